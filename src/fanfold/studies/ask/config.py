"""What one can say about asking: every field is also a flag and a key of a TOML file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fanfold.addresses import check_address
from fanfold.capabilities import Effort
from fanfold.config import Settings, option
from fanfold.errors import ConfigError

Preset = Literal["adaptive", "conservative", "balanced", "aggressive"]


@dataclass(frozen=True)
class AskConfig(Settings):
    """A table, a prompt with the names of its columns, the models that are asked, and where the answers go."""

    source: str = option(
        "", "a file (.jsonl, .csv, .tsv, .json, .txt, .parquet), hf:NAME:SPLIT, or a folder of a saved dataset"
    )
    prompt: str = option("", "the prompt, with columns in braces, or @FILE: 'Translate: {text}'", metavar="TEXT")
    model: tuple[str, ...] = option((), "the model as provider/name; several: each answers every row", metavar="A,B")
    system: str | None = option(None, "a system prompt, which may name columns too, or @FILE", metavar="TEXT")
    schema: str | None = option(None, "a file with the JSON Schema that answers must fit", metavar="FILE")
    output: str | None = option(
        None, "the file for the rows with their answers; none, or -: stdout", metavar="FILE", short=["-o"]
    )
    field: str = option("answer", "the column for the answer", metavar="NAME")
    max_tokens: int | None = option(None, "tokens of an answer, at most", least=1, metavar="N")
    temperature: float | None = option(None, "sampling temperature, for models that have one", least=0, metavar="T")
    reasoning_effort: Effort | None = option(
        None, "how long to reason, for models that do: none, low, medium, high, ...", metavar="EFFORT"
    )
    limit: int | None = option(None, "take only the first N rows", least=1, metavar="N")
    sample: int | None = option(None, "take only N rows, chosen at random", least=1, metavar="N")
    seed: int = option(0, "seed of the random choice", metavar="N")
    allow_missing: bool = option(False, "take a missing value for an empty text instead of an error of its row")
    format: Literal["jsonl", "json", "csv", "tsv", "txt", "parquet"] | None = option(
        None, "the format of the table; none: by its ending", metavar="FORMAT"
    )
    encoding: str | None = option(None, "the encoding of the table; none: UTF-8", metavar="NAME")
    delimiter: str | None = option(None, "what separates CSV columns; none: as in the first line", metavar="C")
    batch: bool = option(False, "send the calls in provider batches, at half price")
    base_url: str | None = option(None, "an OpenAI-compatible server that serves the models", metavar="URL")
    preset: Preset = option("adaptive", "how hard the API may be used")
    concurrent: int | None = option(None, "calls in flight; none: as the preset says", least=1, metavar="N")
    window: int = option(10_000, "rows under way at once; in batches, the rows of a wave", least=1, metavar="N")
    force: bool = option(False, "overwrite a file that is not of this run")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_address(self.base_url or "")
        if len(set(self.model)) < len(self.model):
            raise ConfigError(f"model names one twice: {', '.join(self.model)}")
        if self.limit is not None and self.sample is not None:
            raise ConfigError("limit takes the first rows and sample takes some at random: give one of them")
        if self.delimiter is not None and len(self.delimiter) != 1:
            raise ConfigError(f"delimiter must be one character, not {self.delimiter!r}")

    @property
    def in_flight(self) -> int:
        """How many calls are made at once."""
        if self.concurrent is not None:
            return self.concurrent
        from fanfold.limits.values import PRESETS
        from fanfold.models.naming import runs_here

        if self.model and all(map(runs_here, self.model)):
            from fanfold.models.local import default_in_flight

            return default_in_flight()
        return PRESETS[self.preset].in_flight or 256
