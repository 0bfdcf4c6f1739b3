"""Evolve from Python: a text and a function that scores it in, a better text out."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, cast

from fanfold.config import from_mapping
from fanfold.encoding import digest, encode
from fanfold.errors import ConfigError, nearest
from fanfold.models import Model
from fanfold.run_options import RunOptions
from fanfold.running import Run
from fanfold.studies.evolve.config import EvolveConfig
from fanfold.studies.evolve.study import Subject, evolving, executor_for
from fanfold.study import Study
from fanfold.tables import records, rows_of

#: What the only text is called.
ONLY = "text"
#: Bytes of the name of a file, at most: no longer text is looked for.
LONGEST_NAME = 255


@dataclass(frozen=True)
class Evolved:
    """The result of `evolve`: the best texts by name, their score, the score of the start, and the run."""

    parts: Mapping[str, str]
    score: float
    start_score: float | None
    run: Run[Any]

    @property
    def text(self) -> str:
        """The best text, where there is one."""
        if len(self.parts) > 1:
            raise ConfigError(f"there are several texts: take parts[NAME] of {', '.join(self.parts)}")
        return next(iter(self.parts.values()))


def evolve(
    text: str | Mapping[str, str],
    evaluate: Callable[..., Any],
    *,
    writer: str | Model | None = None,
    cases: str | Path | Iterable[Any] | None = None,
    grader: Any = None,
    **options: Any,
) -> Evolved:
    """Improve a text, or several by name, by what `evaluate` says about them.

    `evaluate(text)` returns a score (higher is better), `(score, feedback)`, or a mapping with `score`, `feedback` and
    further numbers; it may be a coroutine function.  Where there are several texts it gets them by name.  With `cases`,
    a list of values, a data frame or the name of a table, it is `evaluate(text, case)`, and the score is the mean over
    the cases.  Feedback, exceptions and model calls made inside are shown to the `writer`, a model that rewrites the
    text.

    With a `grader` (`exact`, `numeric`, ...) `evaluate` is a program that returns an answer, which is graded against
    the case's field `answer`.  Its prompts get demonstrations of the program's own right answers, also without a
    writer.

    `options` are the other fields of `EvolveConfig` (`calls`, `goal`, `held_out`, ...) and of `RunOptions` (`max_cost`,
    `ledger`, `executor`, ...).  With a `ledger`, the same call continues where it was stopped.
    """
    study, how = _prepared(text, evaluate, writer, cases, grader, options)
    return _evolved(study.run(**how))


async def evolve_async(
    text: str | Mapping[str, str],
    evaluate: Callable[..., Any],
    *,
    writer: str | Model | None = None,
    cases: str | Path | Iterable[Any] | None = None,
    grader: Any = None,
    **options: Any,
) -> Evolved:
    """`evolve` for asynchronous code."""
    study, how = _prepared(text, evaluate, writer, cases, grader, options)
    return _evolved(await study.run_async(**how))


def _prepared(
    text: str | Mapping[str, str],
    evaluate: Callable[..., Any],
    writer: str | Model | None,
    cases: Any,
    grader: Any,
    options: Mapping[str, Any],
) -> tuple[Study[Any], dict[str, Any]]:
    """The study, and the arguments of its run."""
    own = {field.name for field in fields(EvolveConfig)} - {"file", "evaluator", "writer", "cases", "grader"}
    of_run = {field.name for field in fields(RunOptions)}
    for name in options:
        if name not in own | of_run:
            raise ConfigError(f"evolve has no option {name!r}{nearest(name, own | of_run)}")
    settings = {name: value for name, value in options.items() if name in own}
    how = {name: value for name, value in options.items() if name in of_run and name not in own}
    config = from_mapping(EvolveConfig, settings, "evolve")
    if inspect.isclass(evaluate) and any("__call__" in vars(base) for base in evaluate.__mro__):
        evaluate = cast(Any, evaluate)()  # as the shell does; its object is called with the text
    texts = _texts(text)
    if isinstance(cases, str | Path):
        cases = [dict(row) for row, _ in rows_of(str(cases))]
    rows = None if cases is None else list(records(cases))
    start = Subject(texts, evaluate, rows, isinstance(text, str), writer, grader)
    study = evolving(config, start)
    if how.get("ledger") is not None:
        how.setdefault("run", f"evolve-{digest(encode([study.identity, settings])).hex()[:12]}")
    return study, {"executor": executor_for(evaluate, config, start.cases is not None), **how}


def _texts(given: Any) -> dict[str, str]:
    """Texts by name; a file that somebody names instead is refused, as its name would be improved."""
    if not isinstance(given, str | Mapping):
        raise ConfigError(
            f"evolve needs a text, or texts by name, not {given!r:.60}: of a file, give Path(NAME).read_text()"
        )
    texts = {ONLY: given} if isinstance(given, str) else dict(given)
    for name, text in texts.items():
        if not isinstance(name, str) or not isinstance(text, str):
            raise ConfigError(f"evolve needs a text, or texts by name, not {name!r}: {text!r:.60}")
        if len(text.encode("utf-8", "replace")) <= LONGEST_NAME and Path(text).suffix and Path(text).is_file():
            raise ConfigError(f"the text {text!r} is the name of a file: give its text, as in Path(NAME).read_text()")
    return texts


def _evolved(run: Run[Any]) -> Evolved:
    if run.summary is None:
        raise ConfigError(f"run {run.id!r} has not ended ({run.reason}): call evolve again to continue it")
    figures = run.summary.figures
    return Evolved(figures["winner"]["texts"], figures["score"], figures["start_score"], run)
