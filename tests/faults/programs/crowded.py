"""A run on worker processes in a program that may open few files: `crowded.py SPARE LEDGER [PATIENCE]`."""

from __future__ import annotations

import os
import resource
import sys
import time
from typing import Any

from fanfold import Study, Sweep
from fanfold.errors import ExecutorBroken
from fanfold.events import Event, Notice, RunStarted
from fanfold.executors import Executor


def evaluate(candidate: int, case: Any) -> float:
    time.sleep(0.02)
    return float(candidate)


def main(spare: int, ledger: str) -> None:
    def watch(event: Event) -> None:
        if isinstance(event, RunStarted):
            while (number := os.dup(1)) < 100:
                pass  # no gaps below the limit
            os.close(number)
            resource.setrlimit(resource.RLIMIT_NOFILE, (number + spare, number + spare))
        elif isinstance(event, Notice):
            print("note:", event.message, flush=True)

    try:
        run = Study(Sweep(range(40)), evaluate).run("processes:12", ledger=ledger, run="crowded", watch=watch)
    except ExecutorBroken as error:
        print("broken:", error)
    else:
        print("done:", run.progress.evaluations, run.progress.failures)


if __name__ == "__main__":
    if len(sys.argv) > 3:
        Executor.patience = float(sys.argv[3])
    main(int(sys.argv[1]), sys.argv[2])
