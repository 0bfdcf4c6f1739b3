"""Runs as runs of Weights & Biases, on this machine unless the user says otherwise."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from fanfold.events import RunStarted
from fanfold.trackers.figures import FigureTracker, settings_of


class Wandb(FigureTracker):
    """The address is the project, as PROJECT or ENTITY/PROJECT; `fanfold` without one.

    Nothing leaves this machine unless WANDB_MODE=online is set: by default files are written below `wandb/`, which
    `wandb sync` sends when you want it.
    """

    packages = ("wandb",)

    def begin(self, run: RunStarted) -> None:
        import wandb

        entity, _, project = (self.address or "fanfold").rpartition("/")
        self._tracked: Any = wandb.init(
            project=project,
            entity=entity or None,
            id=run.run_id,
            name=run.run_id,
            group=run.study or None,
            config=settings_of(run, longest=10_000),
            resume="allow",
            mode=os.environ.get("WANDB_MODE", "offline"),
            settings=wandb.Settings(console="off", silent=True, x_disable_stats=True, save_code=False),
        )

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        self._tracked.log(dict(figures), step=step)

    def conclude(self, figures: Mapping[str, float]) -> None:
        self._tracked.summary.update(dict(figures))

    def end(self, reason: str) -> None:
        self._tracked.summary["reason"] = reason
        self._tracked.finish(exit_code=int(reason == "failed"))
