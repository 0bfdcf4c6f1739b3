"""What one can say about a search for prompts; every field is also a flag and a key of a TOML file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from fanfold.addresses import check_address
from fanfold.capabilities import Effort
from fanfold.config import Settings, content, option
from fanfold.errors import ConfigError, nearest
from fanfold.limits.values import PRESETS
from fanfold.models.pricing import list_price
from fanfold.prompting.sketch import bank_of
from fanfold.prompting.words import WordRates
from fanfold.strategies.generations import Convergence
from fanfold.studies.prompts.objectives import OBJECTIVES
from fanfold.tasks.graders import settings_of
from fanfold.tasks.loading import ROWS

#: Finalists, and how many a budget of calls is spent on at most.
FINALISTS, MOST_FINALISTS = 3, 8

Preset = Literal["adaptive", "conservative", "balanced", "aggressive"]


@dataclass(frozen=True)
class PromptsConfig(Settings):
    """A task, the models that are asked, how prompts are bred, and how many problems they are scored on."""

    task: str = option("city", "a built-in task, or a file (.jsonl, .csv, .parquet), or hf:dataset:config:split")
    grader: str | Mapping[str, Any] | None = option(
        None, "how replies are graded, with settings as in numeric:tolerance=0.01; none: by the form of the answers"
    )
    input_field: str | None = option(
        None, "the column of the file that holds the problem; several with commas; data.text for one inside another"
    )
    answer_field: str | None = option(None, "the column of the file that holds the answer")
    id_field: str | None = option(None, "the column that holds a unique id; none: one called id, if it is unique")
    encoding: str | None = option(
        None, "the encoding of a CSV file; none: UTF-8, or Windows-1252 if it is not that", metavar="NAME"
    )
    rows: int | None = option(ROWS, "rows that are used of a larger file, drawn by the seed; none: all", least=8)
    model: tuple[str, ...] = option(
        ("local/smollm2",), "the model, as provider/name; several: each prompt runs on each"
    )
    base_url: str | None = option(None, "an OpenAI-compatible server that serves the models")
    writer: str | None = option(None, "a model that writes prompts: it is shown mistakes and what is wrong with them")
    judge: str | None = option(None, "the model behind the grader `judge`")
    unsafe: bool = option(False, "grade code although the sandbox lacks a guard: the code can then do whatever you can")
    seeds: tuple[str, ...] = option((), "prompts to start with (in a TOML file); none: the task's own")
    seeds_file: str | None = option(None, "a text file of prompts to start with, separated by lines of ---")
    template: str | tuple[str | tuple[str, ...], ...] | None = option(
        None, "a prompt with {choice: this | that} and {pinned: ...} in it, or @FILE; prompts are made from it"
    )
    pinned: str | tuple[str, ...] = option((), "a text, or @FILE, that every prompt has and that never changes")
    clauses: str | Mapping[str, tuple[str, ...]] | None = option(
        None, "clauses to make prompts of: a table by section, or a file with one on each line; none: the task's own"
    )
    must: str | tuple[str, ...] = option((), "what every prompt must say: a text, or re:PATTERN")
    never: str | tuple[str, ...] = option((), "what no prompt may say: a text, or re:PATTERN")
    search: Literal["guided", "random", "genetic", "reflective"] | None = option(
        None,
        "guided: learns what labels, examples and clauses are worth; random: the same without learning; reflective: a "
        "writer learns from mistakes too; none: guided, or reflective with a writer",
    )
    against: tuple[Literal["guided", "random", "genetic", "reflective"], ...] = option(
        (), "other searches that get the same calls: ends with a chart of held-out accuracy against calls"
    )
    price_as: str | None = option(None, "a model (provider/name) at whose list price the calls are counted, too")
    calls: int | None = option(
        None, "model calls for the search and the choice of the winner; none: as many as the trials take", least=1
    )
    trials: int = option(64, "prompts to try", least=1)
    population: int = option(12, "prompts in a generation", least=2)
    elites: int = option(3, "prompts kept from one generation to the next, with their scores")
    form: Literal["clauses", "words"] = option(
        "clauses", "what is bred: clauses in sections, or lists of 3 to 50 words"
    )
    words: WordRates = field(default_factory=WordRates)
    until: Convergence = field(default_factory=Convergence)
    selection: Literal["tournament", "roulette", "rank", "sus", "elitist"] = option(
        "tournament", "how parents are chosen"
    )
    tournament: int = option(3, "prompts in a tournament")
    pressure: float = option(1.5, "selection pressure of rank and sus")
    crossover_rate: float = option(0.5, "share of prompts with two parents")
    mutation_rate: float = option(0.5, "how strongly prompts are changed at first")
    adaptive: bool = option(True, "whether the mutation rate follows success")
    steady: bool = option(False, "no generations and no waiting: each prompt is bred from the best so far")
    window: int | None = option(
        None, "prompts being scored at once; none: 4, or when steady the strategy's own", least=1
    )
    schedule: Literal["racing", "paired", "all"] | None = option(
        None, "when a worse prompt is dropped: racing when that is shown, paired as soon as it is behind; none: paired"
    )
    error: float = option(
        0.05, "probability with which racing may drop a prompt that is as good as the best", above=0, below=1
    )
    step: int | None = option(
        None, "problems a prompt is raced on at a time; none: 4, or 1 with a budget of few calls", least=1
    )
    examples: int | float | None = option(
        None, "problems that may be shown as examples (a number, or below 1 a share); none: 8, or fewer of few"
    )
    train: int | float | None = option(None, "problems that prompts are scored on during the search; none: 24", above=0)
    show_train: bool = option(
        True, "show these and the validation problems as examples too, each to all others but never to itself"
    )
    validation: int | float | None = option(
        None, "problems on which the winner is chosen among the finalists; none: 24"
    )
    held_out: int | float | None = option(None, "problems on which the winner is scored once, at the end; none: 60")
    finalists: int | None = option(
        None, "prompts compared on the validation problems; none: 3, or what a quarter of the calls pays for", least=1
    )
    max_examples: int | None = option(
        None, "examples in a prompt, at most; none: 32, or as many of long ones as have room", least=0
    )
    by_input: bool = option(True, "try prompts, too, that show each input the examples most like it")
    calibrate: bool = option(
        False,
        "take off by logit_bias what the model prefers to answer whatever it is asked: of labels, for a model in this "
        "process",
    )
    max_words: int = option(120, "words in a prompt besides its examples, at most")
    max_tokens: int | None = option(None, "tokens of a reply, at most; none: as the task says", least=1)
    temperature: float = option(0.0, "sampling temperature of the model", least=0)
    reasoning_effort: Effort | None = option(None, "how much the model, the writer and the judge reason, if they do")
    objectives: tuple[str, ...] = option(("accuracy",), "accuracy, cost, length, ...; several: a Pareto front")
    weights: tuple[float, ...] | None = option(None, "weights of the objectives: one fitness instead of a Pareto front")
    target: float | None = option(None, "stop once a prompt scores this; none: 1, if accuracy is the only objective")
    patience: int | None = option(None, "stop after so many prompts without a better one", least=1)
    preset: Preset = option("adaptive", "how hard the API may be used")
    concurrent: int | None = option(None, "calls in flight; none: as the preset says", least=1)
    seed: int = option(0, "seed of the search and of the split of the problems")

    def __post_init__(self) -> None:
        super().__post_init__()
        # what a file says is part of the settings: a run continues without it
        if isinstance(self.grader, str) and ":" in self.grader:
            object.__setattr__(self, "grader", settings_of(self.grader))
        if isinstance(self.template, str):
            object.__setattr__(self, "template", content(self.template, "template"))
        pinned = self.pinned
        texts = (
            content(pinned, "pinned") if isinstance(pinned, str) else tuple(content(each, "pinned") for each in pinned)
        )
        object.__setattr__(self, "pinned", texts)
        if self.clauses is not None:
            object.__setattr__(self, "clauses", bank_of(self.clauses))
        check_address(self.base_url or "")
        if not self.model:
            raise ConfigError("model is empty: name at least one, such as local/smollm2")
        if self.search == "reflective" and self.writer is None:
            raise ConfigError("search = reflective needs a model that writes: name one (--writer)")
        if len(set(self.model)) < len(self.model):
            raise ConfigError(f"model names one twice: {', '.join(self.model)}")
        for name in self.objectives:
            if name not in OBJECTIVES:
                raise ConfigError(f"there is no objective {name!r}{nearest(name, OBJECTIVES)}")
        if "accuracy" not in self.objectives:
            raise ConfigError("objectives must name accuracy: without it the best prompt is the empty one")
        if self.price_as is not None and list_price(self.price_as) is None:
            raise ConfigError(f"the list price of price_as={self.price_as!r} is not known: name another model")
        if self.weights is not None and len(self.weights) != len(self.objectives):
            raise ConfigError(f"{len(self.weights)} weights for {len(self.objectives)} objectives: give one each")

    @classmethod
    def formerly(cls, fields: Mapping[str, Any]) -> dict[str, Any]:
        """What a version without these settings did."""
        return {
            "search": "genetic",
            "schedule": "racing",
            "rows": None,
            "show_train": False,
            "by_input": False,
            **fields,
        }

    def contenders(self, row: int) -> int:
        """How many finalists are compared on `row` problems: with a budget, as many as a quarter of it pays for."""
        if self.calls is None or not row:
            return self.finalists or FINALISTS
        return min(self.finalists or MOST_FINALISTS, self.calls // 4 // row)

    @property
    def kind(self) -> Literal["guided", "random", "genetic", "reflective"]:
        """The search: unless said otherwise one that learns, where no option needs the genetic one."""
        if self.search is not None:
            return self.search
        plain = self.form == "clauses" and self.objectives == ("accuracy",)
        if not plain or self.steady or self.until != Convergence():
            return "genetic"
        return "guided" if self.writer is None else "reflective"

    @property
    def guided(self) -> bool:
        """Whether prompts are composed, not bred."""
        return self.kind != "genetic"

    @property
    def in_flight(self) -> int:
        """How many calls are made at once."""
        if self.concurrent is not None:
            return self.concurrent
        from fanfold.models.naming import runs_here

        if all(map(runs_here, self.model)):
            from fanfold.models.local import default_in_flight

            return default_in_flight()
        return PRESETS[self.preset].in_flight or 256
