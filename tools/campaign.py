"""The campaign of faults: whole studies in seeded worlds, and the tests of every row of the fault table.

python tools/campaign.py                       10,000 seeds, then the table; writes docs/reliability.md
python tools/campaign.py --seeds 500 --jobs 2  some seeds only
python tools/campaign.py --seed 145 --verbose  one seed again, step by step
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "campaign"))

#: Seeds that a worker takes at a time.
PIECE = 50


@dataclass
class Tally:
    """What happened in many worlds."""

    counts: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    scenes: Counter[str] = field(default_factory=Counter)
    #: Seed, plan and problems of the worlds in which something did not hold.
    failed: list[tuple[int, str, list[str]]] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        self.counts += other.counts
        self.faults += other.faults
        self.scenes += other.scenes
        self.failed += other.failed


def piece(start: int, end: int) -> Tally:
    """The worlds of some seeds."""
    from campaign_world import live

    tally = Tally()
    for seed in range(start, end):
        story = live(seed)
        tally.scenes[story.plan.scene] += 1
        tally.faults += story.faults
        for name in ("lives", "kills", "stops", "evaluations", "charges", "batched", "repeated"):
            tally.counts[name] += getattr(story, name)
        tally.counts["seeds"] += 1
        tally.counts["budgets"] += story.plan.budget is not None
        tally.counts["virtual seconds"] += round(story.seconds)
        if story.problems:
            tally.failed.append((seed, str(story.plan), story.problems))
    return tally


def worlds(start: int, seeds: int, jobs: int) -> Tally:
    """So many worlds, on so many processes."""
    total = Tally()
    for tally in _pieces(start, seeds, jobs):
        total.add(tally)
        for seed, plan, problems in tally.failed:
            print(f"seed {seed}: {plan}\n    " + "\n    ".join(problem[:600] for problem in problems), flush=True)
        print(f"{total.counts['seeds']:,} seeds, {len(total.failed)} failed", file=sys.stderr, flush=True)
    return total


def _pieces(start: int, seeds: int, jobs: int) -> Iterator[Tally]:
    starts = range(start, start + seeds, PIECE)
    ends = [min(first + PIECE, start + seeds) for first in starts]
    if jobs == 1:
        yield from map(piece, starts, ends)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        yield from pool.map(piece, starts, ends)


def one(seed: int, verbose: bool) -> int:
    """One world again, with everything that happened in it."""
    from campaign_world import live

    story = live(seed)
    if verbose:
        print("\n".join(story.log))
    print(f"seed {seed}: {story.plan}")
    print(f"{story.lives} lives, {story.kills} kills, {story.charges} charges, {story.repeated} paid again")
    print(f"digest {story.digest}")
    for problem in story.problems:
        print(f"PROBLEM {problem}")
    return bool(story.problems)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10_000, help="how many worlds (default: %(default)s)")
    parser.add_argument("--start", type=int, default=0, help="the first seed (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default: %(default)s)")
    parser.add_argument("--seed", type=int, help="only this seed")
    parser.add_argument("--verbose", action="store_true", help="with --seed: every event")
    options = parser.parse_args()
    if options.seed is not None:
        return one(options.seed, options.verbose)
    tally = worlds(options.start, options.seeds, options.jobs)
    print(dict(tally.counts), dict(tally.faults), dict(tally.scenes), sep="\n")
    return bool(tally.failed)


if __name__ == "__main__":
    sys.exit(main())
