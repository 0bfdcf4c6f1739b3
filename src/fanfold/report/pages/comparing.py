"""The Compare page: runs side by side, on the cases they share and at equal cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fanfold.errors import ConfigError
from fanfold.metrics import Metric
from fanfold.plugins import described
from fanfold.report.comparison import Difference, compare
from fanfold.report.pages.overview import history
from fanfold.report.pages.parts import Payload, ShownRun, clipped, finite, plain, sections

#: How many runs are compared at once, and at how many scores their costs.
FEWEST, MOST, SCORES = 2, 6, 5


def comparing(runs: Sequence[ShownRun]) -> Payload:
    """Two to six runs side by side."""
    if not FEWEST <= len(runs) <= MOST:
        raise ConfigError(f"{len(runs)} runs cannot be compared: choose {FEWEST} to {MOST}")
    names = _names(runs)
    compared = compare({name: shown.view for name, shown in names.items()})
    histories = [history(shown) for shown in runs]
    same = all(shown.study_name == runs[0].study_name for shown in runs)
    together = described(runs[0].study.compare, [shown.view for shown in runs]) if same else ()
    return {
        "runs": [
            _run(shown, figures, past) for shown, figures, past in zip(runs, compared.metrics, histories, strict=True)
        ],
        "differences": [_difference(difference) for difference in compared.differences],
        "settings": [{"name": name, "values": list(values)} for name, values in plain(dict(compared.settings)).items()],
        "sections": sections(together or ()),
        "costs": _costs(histories, -1 if runs[0].info.objective.minimize else 1),
    }


def _names(runs: Sequence[ShownRun]) -> dict[str, ShownRun]:
    """The runs under names of their own: those of two ledgers may be called the same."""
    names = {shown.info.name: shown for shown in runs}
    if len(names) == len(runs):
        return names
    return {f"{shown.info.name} ({shown.ledger})": shown for shown in runs}


def _run(shown: ShownRun, figures: Sequence[Metric], past: Mapping[str, Any]) -> Payload:
    best, summary = shown.best(), shown.view.summary()
    return {
        "ledger": shown.ledger,
        "name": shown.info.name,
        "study": shown.study_name,
        "metrics": [
            {"key": metric.key, "label": metric.label, "text": metric.text, "value": finite(metric.value)}
            for metric in figures
        ],
        "history": past,
        "best": None if best is None else shown.trial(best),
        "best_text": "" if best is None else clipped(shown.text(best), 20_000),
        "sections": sections(() if summary is None else summary.sections[:4]),
    }


def _difference(difference: Difference) -> Payload:
    interval = difference.paired.difference
    return {
        "run": difference.run,
        "against": difference.against,
        "cases": difference.cases,
        "n": interval.n,
        "difference": finite(interval.estimate),
        "low": finite(interval.low),
        "high": finite(interval.high),
        "better": difference.better,
        "worse": difference.worse,
        "equal": interval.n - difference.better - difference.worse,
        "p": finite(difference.paired.p),
        "test": difference.test,
    }


def _costs(histories: Sequence[Mapping[str, Any]], sign: int) -> list[Payload]:
    """What each run had paid when its best first reached a score, at scores that one of them reached."""
    ends = [next((best for best in reversed(past["best"]) if best is not None), None) for past in histories]
    starts = [next((best for best in past["best"] if best is not None), None) for past in histories]
    known_ends = [end for end in ends if end is not None]
    known_starts = [start for start in starts if start is not None]
    if not known_ends or not any(past["cost"] and past["cost"][-1] for past in histories):
        return []
    low, high = max(known_starts, key=lambda score: sign * score), max(known_ends, key=lambda score: sign * score)
    scores = sorted({low + (high - low) * step / (SCORES - 1) for step in range(SCORES)})
    return [{"score": score, "costs": [_paid(past, score, sign) for past in histories]} for score in scores]


def _paid(past: Mapping[str, Any], score: float, sign: int) -> float | None:
    """What a run had paid when its best was first that good."""
    for best, cost in zip(past["best"], past["cost"]):
        if best is not None and sign * best >= sign * score:
            return float(cost)
    return None
