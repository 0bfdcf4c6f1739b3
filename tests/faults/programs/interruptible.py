"""Runs a search and says how it ended: the program in which the tests press Ctrl-C.

The candidates up to AWAKE are evaluated at once; each later one sleeps for a minute.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from dataclasses import dataclass
from typing import Any

from searches import Coroutine, Plain, note, search

from fanfold import Case, Study, Sweep

AWAKE = 8


@dataclass(frozen=True)
class Sleepy:
    """Says who it is, then sleeps; blocks its thread or process while it does."""

    side: str
    fingerprint: str = "sleepy"

    def __call__(self, candidate: int, case: Case) -> float:
        if candidate >= AWAKE:
            note(self.side, f"asleep in {os.getpid()}", case)
            time.sleep(60)
        note(self.side, candidate, case)
        return float(candidate)


@dataclass(frozen=True)
class SleepyCoroutine:
    """Sleeps as coroutines do."""

    side: str
    fingerprint: str = "sleepy"

    async def __call__(self, candidate: int, case: Case) -> float:
        if candidate >= AWAKE:
            note(self.side, f"asleep in {os.getpid()}", case)
            await asyncio.sleep(60)
        note(self.side, candidate, case)
        return float(candidate)


def study_of(what: str, executor: str, side: str) -> Study[Any]:
    coroutine = executor.startswith("async")
    if what == "sleepy":
        return Study(Sweep(range(16)), SleepyCoroutine(side) if coroutine else Sleepy(side))
    return search(what, "all", Coroutine(side) if coroutine else Plain(side))


def main(what: str, where: str, executor: str, ledger: str, side: str, grace: str) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a test runner in the background may ignore it
    study = study_of(what, executor, side)

    def run() -> str:
        return study.run(executor, ledger=ledger, run="search", grace=float(grace)).trace

    async def run_inside() -> str:
        return run()

    try:
        print("ready", flush=True)
        trace = asyncio.run(run_inside()) if where == "inside" else run()
    except KeyboardInterrupt as error:
        print(type(error).__name__, flush=True)
        sys.exit(130)
    print(trace, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
