"""The campaign of faults: whole studies in seeded worlds, and the tests of every row of the fault table.

python tools/campaign.py --write               10,000 seeds, then the table; the figures go into docs/reliability.md
python tools/campaign.py --seeds 500           some seeds only
python tools/campaign.py --seeds 0 --rows 1,5  some rows only
python tools/campaign.py --seed 145 --verbose  one seed again, event by event
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import textwrap
import tomllib
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "campaign"))

#: Seeds that a worker takes at a time.
PIECE = 50
#: Where the figures go: all of them, and what is told of them.
KEPT = ROOT / "benchmarks" / "results" / "campaign.json"
PAGE, RESULTS = ROOT / "docs" / "reliability.md", ROOT / "benchmarks" / "results" / "campaign.md"
BEGIN, END = "<!-- campaign -->", "<!-- /campaign -->"


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


#: What the parts of a tally are, for one that was written down.
KINDS: dict[str, Any] = {"counts": Counter, "faults": Counter, "scenes": Counter, "failed": list}


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


def table() -> list[dict[str, Any]]:
    """The rows of the fault table."""
    return list(tomllib.loads((ROOT / "tools" / "campaign.toml").read_text())["row"])


def check(row: dict[str, Any]) -> Counter[str]:
    """Run the tests of a row with the numbers of the table: how many passed, failed and were skipped."""
    counts: Counter[str] = Counter()
    environment = {**os.environ, "FANFOLD_CAMPAIGN": "1"}
    for test in row["tests"]:
        file, *words = shlex.split(test)
        command = [sys.executable, "-m", "pytest", "--timeout=1800", f"tests/{file}", *words]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
        last = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else ""
        found = {what: int(number) for number, what in re.findall(r"(\d+) (passed|failed|skipped|error)", last)}
        counts.update(found)
        if done.returncode or not found.get("passed"):
            counts["failed"] += not found.get("failed")
            print(f"{test}\n{done.stdout[-4000:]}{done.stderr[-2000:]}", flush=True)
    return counts


def worlds_in_words(tally: Tally) -> list[str]:
    """What the worlds came to, as lines of a page."""
    count = tally.counts
    text = (
        f"{count['seeds']:,} worlds: {count['lives']:,} lives of drivers, {count['kills']:,} killed and "
        f"{count['stops']:,} stopped at any step, {sum(tally.faults.values()):,} other faults of "
        f"{len(tally.faults)} kinds, {count['evaluations']:,} evaluations, {count['charges']:,} paid calls, "
        f"{count['batched']:,} of them in batches, {count['budgets']:,} budgets. {count['repeated']:,} calls were paid "
        "again: they were in flight at a kill, or their reply was lost."
    )
    return [
        *wrapped(text),
        "",
        "| lost | paid again in batches | paid again beyond what was in flight | other results | hung |",
        "|---|---|---|---|---|",
        "| 0 | 0 | 0 | 0 | 0 |" if not tally.failed else f"| {len(tally.failed)} worlds failed | | | | |",
    ]


def wrapped(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(text, 118, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def report(tally: Tally, checked: dict[int, Counter[str]]) -> str:
    """The section of the page: the same text for the same figures."""
    lines = [*worlds_in_words(tally), ""]
    for number, row in enumerate(table(), 1):
        tests = ", ".join(f"`{test}`" for test in row["tests"])
        lines += wrapped(f"{number}. **{row['fault']}**: {row['promise']} ({row['number']}). {tests}", "    ")
    if any(checked.values()):
        passed, failed = (sum(each[what] for each in checked.values()) for what in ("passed", "failed"))
        lines += ["", f"{len(checked)} rows, {passed:,} tests passed, {failed:,} failed."]
    return "\n".join(lines)


def write(tally: Tally, checked: dict[int, Counter[str]]) -> None:
    """Put the figures into the documentation, and the details beside the benchmarks."""
    page = PAGE.read_text()
    before, rest = page.split(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n\n{report(tally, checked)}\n\n{END}{rest.split(END)[1]}")
    lines = ["# The campaign of faults", "", *worlds_in_words(tally), "", "| fault | times |", "|---|---|"]
    lines += [f"| {kind} | {number:,} |" for kind, number in sorted(tally.faults.items())]
    lines += ["", "| study | worlds |", "|---|---|"]
    lines += [f"| {scene} | {number:,} |" for scene, number in sorted(tally.scenes.items())]
    lines += ["", "| # | fault | passed | failed | skipped |", "|---|---|---|---|---|"]
    for number, counts in checked.items():
        fault = table()[number - 1]["fault"]
        lines.append(f"| {number} | {fault} | {counts['passed']} | {counts['failed']} | {counts['skipped']} |")
    RESULTS.write_text("\n".join(lines) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10_000, help="how many worlds (default: %(default)s)")
    parser.add_argument("--start", type=int, default=0, help="the first seed (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default: %(default)s)")
    parser.add_argument("--seed", type=int, help="only this seed")
    parser.add_argument("--verbose", action="store_true", help="with --seed: every event")
    parser.add_argument(
        "--rows", default="", help="rows of the fault table, such as 1,5; `all`; default with --write: all"
    )
    parser.add_argument("--write", action="store_true", help="write the figures into docs/reliability.md")
    options = parser.parse_args()
    if options.seed is not None:
        return one(options.seed, options.verbose)
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {"rows": {}}
    tally = worlds(options.start, options.seeds, options.jobs)
    if options.seeds:
        kept["worlds"] = vars(tally)
        print("\n".join(worlds_in_words(tally)), flush=True)
    every = options.rows == "all" or (options.write and not options.rows)
    numbers = range(1, len(table()) + 1) if every else [int(word) for word in options.rows.split(",") if word.isdigit()]
    failed = bool(tally.failed)
    for number in numbers:
        counts = check(table()[number - 1])
        kept["rows"][str(number)] = counts
        failed |= bool(counts["failed"])
        print(f"row {number}: {table()[number - 1]['fault']}: {dict(counts)}", flush=True)
        KEPT.write_text(json.dumps(kept))
    KEPT.write_text(json.dumps(kept))
    if options.write:
        rows = {number: Counter(kept["rows"].get(str(number), {})) for number in range(1, len(table()) + 1)}
        write(Tally(**{name: kind(kept["worlds"][name]) for name, kind in KINDS.items()}), rows)
    return failed


if __name__ == "__main__":
    sys.exit(main())
