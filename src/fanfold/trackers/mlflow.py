"""Runs as runs of MLflow."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any

from fanfold.events import RunStarted
from fanfold.trackers.figures import FigureTracker, settings_of

#: Figures that are sent together, at most (the service takes 1,000), and seconds after which those there are sent.
BATCH, PAUSE = 900, 2.0
TAG, EXPERIMENT = "fanfold.run", "fanfold"


class Mlflow(FigureTracker):
    """The address is a tracking URI; without one, MLFLOW_TRACKING_URI or what MLflow takes by itself.

    A resumed run continues its run of MLflow, which has the tag `fanfold.run`, in the experiment `fanfold` or the one
    that MLFLOW_EXPERIMENT_NAME says.
    """

    packages = ("mlflow",)

    def begin(self, run: RunStarted) -> None:
        import logging
        import os

        logging.getLogger("mlflow").setLevel(logging.WARNING)  # it tells every step of its own on stderr
        from mlflow.entities import Metric, Param
        from mlflow.tracking import MlflowClient

        self._metric: Any = Metric
        self._client: Any = MlflowClient(tracking_uri=self.address)
        self._waiting: list[Any] = []
        self._sent = time.monotonic()
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or EXPERIMENT
        experiment = self._client.get_experiment_by_name(name)
        place = self._client.create_experiment(name) if experiment is None else experiment.experiment_id
        same = f"tags.`{TAG}` = '{run.run_id}'"
        if run.resumed and (known := self._client.search_runs([place], same, max_results=1)):
            self._id = known[0].info.run_id
            self._client.update_run(self._id, status="RUNNING")
            return
        tags = {TAG: run.run_id, "fanfold.ledger": run.ledger or "", "fanfold.executor": run.executor}
        self._id = self._client.create_run(place, run_name=run.run_id, tags=tags).info.run_id
        params = [Param(_name(name), value) for name, value in settings_of(run).items()]
        for first in range(0, len(params), 100):
            self._client.log_batch(self._id, params=params[first : first + 100])

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        self._waiting += [self._metric(_name(name), value, now, step) for name, value in figures.items()]
        if len(self._waiting) >= BATCH or time.monotonic() - self._sent > PAUSE:
            self._send()

    def conclude(self, figures: Mapping[str, float]) -> None:
        self.log(0, figures)

    def end(self, reason: str) -> None:
        self._send()
        self._client.set_tag(self._id, "fanfold.reason", reason[:500])
        status = {"failed": "FAILED", "interrupted": "KILLED"}.get(reason, "FINISHED")
        self._client.set_terminated(self._id, status)

    def _send(self) -> None:
        for first in range(0, len(self._waiting), BATCH):
            self._client.log_batch(self._id, metrics=self._waiting[first : first + BATCH])
        self._waiting, self._sent = [], time.monotonic()


def _name(name: str) -> str:
    """A name that MLflow takes."""
    return re.sub(r"[^\w ./-]", "_", name)[:250]
