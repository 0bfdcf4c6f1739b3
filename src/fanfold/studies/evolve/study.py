"""Builds the study: texts, an evaluator and cases become a strategy, a schedule and rules."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fanfold.encoding import derive_seed, encode
from fanfold.errors import ConfigError, nearest
from fanfold.executors.base import is_coroutine_function
from fanfold.models import Model
from fanfold.models.catalogue import defined
from fanfold.schedule import Schedule
from fanfold.schedules import Acceptance, AllCases, PairedDropping
from fanfold.stop import MaxCalls, Rule, Target
from fanfold.strategies.reflective import Reflective
from fanfold.strategy import Strategy
from fanfold.studies.evolve.blocks import Blocks
from fanfold.studies.evolve.conclusion import EvolveConclusion, check_output
from fanfold.studies.evolve.config import EvolveConfig
from fanfold.studies.evolve.evaluator import AnswerGrader, AsyncEvolveEvaluator, EvolveEvaluator, Writing
from fanfold.studies.evolve.program import with_demonstrations
from fanfold.studies.evolve.scoring import Command, Scorer, load_evaluator, needs_case
from fanfold.studies.evolve.strategy import Demonstrations
from fanfold.study import Study
from fanfold.tables import rows_of
from fanfold.tasks import grader as make_grader
from fanfold.tasks.columns import USUAL
from fanfold.types import Case

#: Cases from which on a quarter is held out unless said otherwise.
ENOUGH = 20
#: About how many characters a token has, and how many of an evaluator's words the writer is shown for each case.
CHARACTERS, SHOWN_CHARACTERS = 4, 2000
#: Files that hold prose or prompts; everything else is code, of a program or of a configuration.
_PROSE = (".txt", ".md", ".rst", ".prompt", "")


@dataclass(frozen=True)
class Subject:
    """What a search starts from, in Python: texts by name, the evaluator, and the cases as rows."""

    texts: Mapping[str, str]
    evaluate: Callable[..., Any]
    cases: Sequence[Any] | None = None
    #: Whether the evaluator gets one text rather than texts by name.
    single: bool = True
    writer: str | Model | None = None
    grader: Any = None


def study(config: EvolveConfig) -> Study[Any]:
    """The search that `config` describes."""
    return evolving(config, started(config))


def started(config: EvolveConfig) -> Subject:
    """What a config names: its files are read and its evaluator is loaded."""
    if not config.file:
        raise ConfigError("file is missing: name the text to improve, as in --file solver.py")
    if not config.evaluator:
        raise ConfigError("evaluator is missing: name what scores the text, as in --evaluator score.py")
    function = load_evaluator(config.evaluator)
    single = len(config.file) == 1 and not isinstance(function, Command)
    rows = None if config.cases is None else [dict(row) for row, _ in rows_of(config.cases)]
    if config.output is not None and Path(config.output).resolve() in [Path(name).resolve() for name in config.file]:
        raise ConfigError(f"output {config.output} is the text that the search starts from: name another file")
    return Subject(
        {name: read_text(name) for name in config.file}, function, rows, single, config.writer, config.grader
    )


def evolving(config: EvolveConfig, start: Subject) -> Study[Any]:
    """The search from a start."""
    if not any(text.strip() for text in start.texts.values()) and not config.goal:
        raise ConfigError("the text is empty: write a first version, or say in goal what it should be")
    if start.writer is None and not _shows(config, start):
        raise ConfigError("writer is missing: name the model that rewrites the text, as in --writer PROVIDER/MODEL")
    if config.output is not None:
        check_output(config.output, len(start.texts) > 1)
    blocks, parts = Blocks.of(start.texts)
    cases = None if start.cases is None else _distinct(start.cases)
    repeated = 0 if cases is None or start.cases is None else len(start.cases) - len(cases)
    searched, held_out = _split(cases, config)
    scorer = Scorer.of(start.evaluate, start.single, cases is not None)
    grader = None if start.grader is None else _graded(start.grader, searched, config.answer_field)
    names = [] if isinstance(start.writer, Model) else [start.writer]
    longest = max(map(len, parts.values())) // CHARACTERS
    writing = Writing(
        start.writer,
        config.base_url,
        config.preset,
        config.reasoning_effort,
        config.goal,
        _kind(config, start),
        config.max_tokens or max(4096, 2 * longest),
        defined(*names) or None,
        sum(map(len, start.texts.values())) // CHARACTERS,
        longest,
    )
    kind = AsyncEvolveEvaluator if is_coroutine_function(start.evaluate) else EvolveEvaluator
    evaluate = kind(blocks, scorer, writing, grader, config.failed_score)
    row = 1 if searched is None else len(searched)
    _check_budget(config, row, start.writer is not None)
    return Study(
        _strategy(config, start, parts),
        evaluate,
        searched,
        schedule=_schedule(config, grader is not None and config.failed_score is None),
        stop=_stop(config, grader is not None),
        window=config.window,
        seed=config.seed,
        timeout=config.timeout,
        failed_score=config.failed_score,
        name="evolve",
        conclude=EvolveConclusion(evaluate, parts, tuple(held_out), config.output, config.seed),
        remarks=_remarks(config, start, row, len(held_out), repeated),
    )


def run_options(config: EvolveConfig) -> dict[str, Any]:
    """Where it runs unless said otherwise: what computes in worker processes, what waits for models on the loop."""
    function = load_evaluator(config.evaluator) if config.evaluator else None
    return {"executor": executor_for(function, config, config.cases is not None)}


def executor_for(function: Any, config: EvolveConfig, cases: bool) -> str:
    """Where it runs: more workers than cores, for most of them wait for the writer."""
    return "async:64" if is_coroutine_function(function) else f"processes:{8 if cases else min(8, config.window)}"


def read_text(name: str) -> str:
    """A text of the user, which is a file in UTF-8; a byte order mark is of the file, not of the text."""
    try:
        return Path(name).read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(f"there is no file {name}: check the path") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{name} cannot be read as a text in UTF-8: {error}") from error


def _distinct(rows: Sequence[Any]) -> list[Case]:
    """The cases; of rows that are the same only the first, or one could be searched on and held out at once."""
    cases: dict[Any, Case] = {}
    for number, row in enumerate(rows, 1):
        case = row if isinstance(row, Case) else Case(str(number), row)
        cases.setdefault(encode(row) if isinstance(row, Mapping) else number, case)
    return list(cases.values())


def _split(cases: list[Case] | None, config: EvolveConfig) -> tuple[list[Case] | None, list[Case]]:
    """The cases to search on, and those held out."""
    if cases is None:
        return None, []
    if not cases:
        raise ConfigError("cases is empty: give at least one case, or none at all")
    share = config.held_out if config.held_out is not None else 0.25 if len(cases) >= ENOUGH else 0
    count = round(share * len(cases)) if isinstance(share, float) else share
    if count >= len(cases):
        raise ConfigError(f"held_out={count} leaves none of the {len(cases)} cases to search on: lower it")
    drawn = set(random.Random(derive_seed(config.seed, "held-out")).sample(range(len(cases)), count))
    return (
        [case for place, case in enumerate(cases) if place not in drawn],
        [case for place, case in enumerate(cases) if place in drawn],
    )


def _graded(named: Any, cases: Iterable[Case] | None, field: str | None) -> AnswerGrader:
    """The grader, and the field of the cases that holds the answer."""
    rows = [] if cases is None else [case.data for case in cases]
    if not rows or not all(isinstance(row, Mapping) for row in rows):
        raise ConfigError("a grader needs cases with a right answer each: give cases as dicts, such as rows of a table")
    columns = [str(name) for name in rows[0]]
    if field is None:
        field = next((name for usual in USUAL["answer"] for name in columns if name.casefold() == usual), None)
        if field is None:
            raise ConfigError(
                f"which field of a case is the right answer? Name it with answer_field (fields: {', '.join(columns)})"
            )
    lacking = next((row for row in rows if field not in row), None)
    if lacking is not None:
        raise ConfigError(f"a case has no field {field!r}{nearest(field, map(str, lacking))}: every case needs one")
    return AnswerGrader(make_grader(named), field)


def _kind(config: EvolveConfig, start: Subject) -> str:
    if config.kind != "auto":
        return config.kind
    if start.grader is not None:
        return "prompt"
    return "text" if all(Path(name).suffix.lower() in _PROSE for name in start.texts) else "code"


def _strategy(config: EvolveConfig, start: Subject, parts: dict[str, str]) -> Strategy[Any]:
    names = tuple(parts)
    first = with_demonstrations(parts, {}) if _shows(config, start) else parts
    if start.writer is None:
        return Demonstrations(names, config.demonstrations, first)
    beside = Demonstrations(names, config.demonstrations) if _shows(config, start) else None
    return Reflective([first], writable=names, beside=beside, characters=SHOWN_CHARACTERS)


def _shows(config: EvolveConfig, start: Subject) -> bool:
    """Whether the texts may be prompts of a program, which can show its right answers."""
    return config.demonstrations > 0 and start.cases is not None and (start.grader is not None or not start.single)


def _schedule(config: EvolveConfig, graded: bool) -> Schedule:
    """Scores of graders are between 0 and 1, so that it can be said what is far behind; of others nothing is known."""
    return Acceptance(PairedDropping(4) if graded else AllCases(), first=config.accept)


def _stop(config: EvolveConfig, graded: bool) -> Rule:
    target = 1.0 if config.target is None and graded else config.target  # nothing on these cases is better
    return MaxCalls(config.calls) if target is None else MaxCalls(config.calls) | Target(target)


def _check_budget(config: EvolveConfig, row: int, writes: bool) -> None:
    least = 2 * row + writes
    if config.calls < least:
        raise ConfigError(
            f"{config.calls} calls are too few for a search: the start takes {row}, and one other text as many"
            f"{' and a call of the writer' * writes}; give --calls {least} or more"
        )


def _remarks(config: EvolveConfig, start: Subject, row: int, held_out: int, repeated: int) -> tuple[str, ...]:
    writes = start.writer is not None
    first = min(config.accept, row)
    least, most = (config.calls - row) // (row + writes), (config.calls - row) // (first + writes)
    texts = f"{least}" if least == most else f"{least} to {most}"
    said = f"{config.calls:,} calls: the start and about {texts} new texts"
    if row > first:
        said += f", each on {first} cases first and on all {row} if it is better there"
    remarks = [f"{said} (--calls, --accept)"]
    if isinstance(start.evaluate, Command) and start.evaluate.misread:
        remarks.append(start.evaluate.misread)
    if start.cases is None and needs_case(start.evaluate):
        remarks.append("there are no cases, so the evaluator gets None as its case (--cases)")
    if repeated:
        remarks.append(f"{repeated:,} of the cases repeat another row and are left out")
    if held_out:
        remarks.append(f"{held_out} cases are held out: start and winner are scored on them at the end (--held-out)")
    return tuple(remarks)
