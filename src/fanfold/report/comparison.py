"""Two or more runs side by side: figures, paired differences on the cases they share, settings that differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fanfold.encoding import encode
from fanfold.errors import ConfigError
from fanfold.ledger import RunView
from fanfold.metrics import Metric, held_out, metrics
from fanfold.stats import Paired, mcnemar, paired
from fanfold.types import Ok

#: What the names of those settings begin with that a run takes from the objects it is made of.
_PARTS = "parts."
#: What the command line writes down of a run, and what of that, and of every run, is not a setting.
_OF_COMMANDS = frozenset(("options", "fields", "stop", "target"))
_NO_SETTINGS = frozenset(("options.run", "options.ledger", "digest", "version"))


@dataclass(frozen=True, slots=True)
class Difference:
    """How much more the best candidate of `run` scores than that of `against`, on the cases that both were scored on.

    `cases` says which ones: those of the search, or the held-out ones.  `better` and `worse` count those on which the
    scores differ.  Where cases are only right or wrong, the p-value is that of McNemar's test.
    """

    run: str
    against: str
    cases: str
    paired: Paired
    better: int
    worse: int
    test: str

    @classmethod
    def of(
        cls, run: str, against: str, cases: str, shared: Mapping[str, tuple[float, float]], minimize: bool = False
    ) -> Difference:
        higher = sum(theirs > ours for theirs, ours in shared.values())
        lower = sum(theirs < ours for theirs, ours in shared.values())
        better, worse = (lower, higher) if minimize else (higher, lower)
        difference = paired({case: [pair] for case, pair in shared.items()})
        if all(score in (0, 1) for pair in shared.values() for score in pair):
            exact = replace(difference, p=mcnemar(better, worse))
            return cls(run, against, cases, exact, better, worse, "McNemar")
        return cls(run, against, cases, difference, better, worse, "sign flip")


@dataclass(frozen=True, slots=True)
class Comparison:
    """Runs side by side; `settings` has those that differ, with a value for each run (None where it has none)."""

    names: tuple[str, ...]
    metrics: tuple[tuple[Metric, ...], ...]
    differences: tuple[Difference, ...]
    settings: Mapping[str, tuple[Any, ...]]


def compare(views: Mapping[str, RunView]) -> Comparison:
    """Compare runs, each with the first, under the names they are given here."""
    if len(views) < 2:
        raise ConfigError("a comparison needs two runs or more")
    (first, base), *others = views.items()
    differences = []
    for name, view in others:
        for cases, theirs, ours in (
            ("search", _scores(view, _best(view)), _scores(base, _best(base))),
            ("held-out", _held_out_scores(view), _held_out_scores(base)),
        ):
            shared = {case: (theirs[case], ours[case]) for case in theirs if case in ours}
            if shared:
                differences.append(Difference.of(name, first, cases, shared, base.info.objective.minimize))
    figures = tuple(tuple(metrics(view)) for view in views.values())
    return Comparison(tuple(views), figures, tuple(differences), _differing([*views.values()]))


def _best(view: RunView) -> int | None:
    return next(iter(view.numbers(order="best", which="complete", count=1)), None)


def _held_out_scores(view: RunView) -> dict[str, float]:
    run = held_out(view)
    return {} if run is None else _scores(run, 0)


def _scores(view: RunView, trial: int | None) -> dict[str, float]:
    """The scores of a trial by what makes a case the same in two runs: its id, and its data or else its seed.

    They are in the evaluator's units, also where the study minimises.
    """
    if trial is None:
        return {}
    outcomes, sign = view.outcomes(trial), -1 if view.info.objective.minimize else 1
    return {
        encode([case.id, case.seed if case.data is None else case.data]): sign * outcome.score
        for case in view.cases()
        if isinstance(outcome := outcomes.get(case.id), Ok)
    }


def _differing(views: Sequence[RunView]) -> dict[str, tuple[Any, ...]]:
    """The settings that differ: first those that were given, then the parts that all runs have."""
    infos = [view.info for view in views]
    # What one run was not started with in words cannot be compared with those of another.
    unsaid = {name for name in _OF_COMMANDS for info in infos if name not in info.meta}
    recorded = [{**info.identity, **info.meta} for info in infos]
    settings = [_flat({name: value for name, value in run.items() if name not in unsaid}) for run in recorded]
    cases = [[[case.id, case.data] for case in view.cases()] for view in views]
    for run, own in zip(settings, cases, strict=True):
        run["cases"] = f"{len(own):,}" if own == cases[0] else f"{len(own):,}, others"
    names = dict.fromkeys(name for run in settings for name in run if name not in _NO_SETTINGS)
    values = {name: tuple(run.get(name) for run in settings) for name in names}
    differing = {name: column for name, column in values.items() if any(value != column[0] for value in column)}
    given = {name: column for name, column in differing.items() if not name.startswith(_PARTS)}
    # Of parts of another kind the line of the kind says enough.
    return given | {
        name: column for name, column in differing.items() if name.startswith(_PARTS) and None not in column
    }


def _flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, item in value.items():
        flat |= _flat(item, f"{prefix}{key}.") if isinstance(item, dict) else {f"{prefix}{key}": item}
    return flat
