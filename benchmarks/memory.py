"""What a long run keeps in memory: the growth of its process per finished evaluation."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from measure import Line, Sizes, Table, Target, sampled

from fanfold import Case, Float, MaxTrials, Random, Space, Study


def measure(sizes: Sizes) -> Iterator[Table]:
    samples = []
    for _ in range(1 if sizes.remembered >= 100_000 else sizes.repeats):
        command = [sys.executable, str(Path(__file__)), str(sizes.remembered)]
        answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        early, late = (int(word) for word in answer.split())
        grown = (late - early) / (0.9 * sizes.remembered)
        samples.append({"bytes per evaluation": grown, "at 10 % MB": early / 1e6, "at 100 % MB": late / 1e6})
    line = Line("Random on async:64", sampled(samples), Target("bytes per evaluation", 200.0))
    yield Table(f"Resident memory over {sizes.remembered} evaluations", [line])


def resident() -> int:
    """Bytes of this process that are in memory."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main(evaluations: int) -> None:
    """Run, and print the resident bytes after a tenth and at the end."""
    done = 0

    async def evaluate(candidate: Any, case: Case) -> float:
        nonlocal done
        done += 1
        if done in (evaluations // 10, evaluations):
            print(resident())
        return float(candidate["x"])

    Study(Random(Space(x=Float(0, 1))), evaluate, stop=MaxTrials(evaluations)).run("async:64").ledger.close()


if __name__ == "__main__":
    main(int(sys.argv[1]))
