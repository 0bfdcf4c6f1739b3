"""The runs of ledgers as Prometheus text, made at each scrape."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fanfold.errors import FanfoldError
from fanfold.ledger import Ledger, RunView
from fanfold.models.prometheus import KINDS, Sample, exposition, samples

_RUNS = {
    "fanfold_run_running": ("gauge", "1 while a process works on the run."),
    "fanfold_run_trials": ("counter", "Candidates that the search was told about."),
    "fanfold_run_evaluations": ("counter", "Evaluations that have ended."),
    "fanfold_run_failures": ("counter", "Those of them that failed."),
    "fanfold_run_cost": ("counter", "What the evaluations cost, as far as it is known."),
    "fanfold_run_seconds": ("counter", "Seconds of work."),
    "fanfold_run_best": ("gauge", "The best complete score."),
}
#: The newest runs of a ledger that are shown.
MOST = 200


def scrape(ledgers: Mapping[int, Ledger]) -> str:
    """The newest runs of every ledger: how far they are, and their model calls."""
    return exposition({**_RUNS, **KINDS}, _samples(ledgers))


def _samples(ledgers: Mapping[int, Ledger]) -> Iterator[Sample]:
    for ledger in ledgers.values():
        for head in ledger.run_heads()[:MOST]:
            view = RunView(ledger, head.id)
            try:
                info, calls = view.info, view.calls()
            except FanfoldError:
                continue  # a damaged run has no figures
            labels = {"run": info.name, "ledger": ledger.path.name}
            yield "fanfold_run_running", "", labels, view.status == "running"
            for name in ("trials", "evaluations", "failures", "cost"):
                yield f"fanfold_run_{name}", "_total", labels, getattr(info, name)
            yield "fanfold_run_seconds", "_total", labels, info.elapsed
            if info.best is not None:
                yield "fanfold_run_best", "", labels, info.best
            for name, suffix, more, value in samples(info.name, calls):
                yield name, suffix, {**more, "ledger": ledger.path.name}, value
