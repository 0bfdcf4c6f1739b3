"""What one can say about evolving a text; every field is also a flag and a key of a TOML file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fanfold.addresses import check_address
from fanfold.capabilities import Effort
from fanfold.config import Settings, content, option
from fanfold.errors import ConfigError

Preset = Literal["adaptive", "conservative", "balanced", "aggressive"]


@dataclass(frozen=True)
class EvolveConfig(Settings):
    """Texts, the evaluator that scores them, the model that rewrites them, and how many calls the search may make."""

    file: tuple[str, ...] = option((), "the text to improve; several files: several parts", metavar="FILE")
    evaluator: str = option(
        "", "score.py, score.py:function, or a command with {file} in it, such as 'python score.py {file}'"
    )
    writer: str | None = option(None, "the model that rewrites the text, as provider/name")
    goal: str = option("", "what a better text is, in a sentence or two or in @FILE, for the writer")
    kind: Literal["auto", "code", "prompt", "text"] = option("auto", "what the text is, for the writer")
    cases: str | None = option(None, "a table of cases (.csv, .jsonl, .parquet): the text is scored on each row")
    grader: str | None = option(None, "how answers are graded where the evaluator gives an answer, not a score")
    answer_field: str | None = option(None, "the field of a case that holds the right answer; none: by its name")
    calls: int = option(100, "evaluations and calls of the writer, together", least=2)
    accept: int = option(3, "cases on which a new text must beat its parent before it is scored on the others", least=1)
    held_out: int | float | None = option(
        None,
        "cases on which only start and winner are scored (a number, or below 1 a share); none: a quarter of 20 or more",
    )
    demonstrations: int = option(4, "right answers of its own that a prompt may show", least=0)
    failed_score: float | None = option(
        None, "what a case counts on which the evaluator fails; none: the text is dropped"
    )
    target: float | None = option(None, "stop once a text scores this; none: 1 with a grader")
    timeout: float | None = option(120.0, "seconds that an evaluation may take, model calls aside", above=0)
    max_tokens: int | None = option(
        None, "tokens of a text that the writer writes, at most; none: twice the text, and at least 4096", least=16
    )
    reasoning_effort: Effort | None = option(None, "how much the writer reasons, if it does")
    base_url: str | None = option(None, "an OpenAI-compatible server that serves the writer")
    preset: Preset = option("adaptive", "how hard the API may be used")
    window: int = option(4, "texts under way at once", least=1)
    output: str | None = option(
        None, "the file for the best text; of several files, a folder", metavar="FILE", short=["-o"]
    )
    seed: int = option(0, "seed of the search")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_address(self.base_url or "")
        object.__setattr__(self, "goal", content(self.goal, "goal"))  # recorded: a run continues without the file
        if len({Path(name).name for name in self.file}) < len(self.file):
            raise ConfigError(f"two of the files have the same name: {', '.join(self.file)}")
        if isinstance(self.held_out, float) and not 0 <= self.held_out < 1:
            raise ConfigError(f"held_out must be a number of cases, or a share below 1, not {self.held_out!r}")
