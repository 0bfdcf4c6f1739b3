"""Measures what happens past one machine: workers, clusters, shared limits, large ledgers, and a long run.

python benchmarks/scaling.py --quick                  # ten minutes on two cores
python benchmarks/scaling.py --only workers,files
python benchmarks/scaling.py --soak 10                # ten minutes of one thing: does anything grow?

A row that cannot be measured here says why and is never guessed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import scaling_files
import scaling_share
import soak
from measure import Line, Table, Target, machine, sampled, save_tables, some_of
from scaling_workers import ENGINES, PAUSES, WORKERS

RESULTS = Path(__file__).parent / "results" / "scaling.json"
PATIENCE = 900.0
#: The figures of version 0.1.0 on two loaded cores, to compare with.
BEFORE = {
    "Fanfold ray:2": "was 1.63-1.80",
    "Fanfold processes:2": "was 0.23",
    "Fanfold async:64": "was 0.065",
}
BEFORE_LARGE = {"Fanfold ray:2": "was 28.6", "Fanfold processes:2": "was 25.4"}


@dataclass(frozen=True)
class ScalingSizes:
    """How much work each section does."""

    repeats: int
    #: Evaluations that cost nothing; those on a large case, and its bytes; seconds in which workers sleep.
    cells: int
    heavy: int
    large: int
    seconds: float
    #: Trials that are resumed, and runs that are listed.
    recorded: int
    runs: int
    #: Calls of each process, under a limit and equal to those of the others.
    limited: int
    equal: int


FULL = ScalingSizes(5, 20_000, 300, 20_000_000, 5.0, 1_000_000, 10_000, 400, 1_000)
QUICK = ScalingSizes(3, 3_000, 300, 20_000_000, 1.0, 1_000_000, 10_000, 200, 1_000)
TINY = ScalingSizes(1, 100, 8, 200_000, 0.05, 600, 40, 10, 20)

Answers = Mapping[str, Any]


def workers(sizes: ScalingSizes) -> Iterator[Table]:
    answers = {}
    for name in ENGINES:
        print(f"measuring {name}", flush=True)
        answers[name] = _engine(name, sizes)
    limit = Target("driver CPU ms", 0.15)
    targets = {f"Fanfold ray:{WORKERS}": limit}
    title = f"Driver CPU for an evaluation that costs nothing, {WORKERS} workers, {sizes.cells:,} evaluations"
    yield Table(title, _rows(answers, "cells", targets, BEFORE))
    limit = Target("driver CPU ms", 1.0)
    targets = {f"Fanfold {name}:{WORKERS}": limit for name in ("processes", "ray")}
    title = f"Driver CPU for an evaluation on a case of {sizes.large / 1e6:g} MB, {sizes.heavy} evaluations"
    yield Table(title, _rows(answers, "large", targets, BEFORE_LARGE))
    names = [f"{pause * 1e3:g} ms" for pause in PAUSES]
    yield Table(
        f"Share of the time in which {WORKERS} workers are busy, by the length of a call", _busy(answers, names)
    )
    yield Table("Calls from workers, calls that travel alone, GPUs and nodes", list(_parts(answers)))


def _engine(name: str, sizes: ScalingSizes) -> Answers:
    """What one engine measured in its own process; an error is a reason."""
    script = str(Path(__file__).with_name("scaling_workers.py"))
    words = [sizes.cells, sizes.heavy, sizes.large, sizes.seconds, sizes.repeats]
    command = [sys.executable, script, name, *map(str, words)]
    quiet = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=quiet)
    except subprocess.TimeoutExpired:
        return {"error": f"no end within {PATIENCE:.0f} s"}
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        return {"error": (done.stderr.strip().splitlines() or ["no answer"])[-1][:150]}
    answer: dict[str, Any] = json.loads(lines[-1])
    return answer


def missing(name: str, reason: str) -> Line:
    return Line(name, note=reason if reason.startswith("not measured") else f"not measured: {reason}")


def _rows(
    answers: Mapping[str, Answers], job: str, targets: Mapping[str, Target], before: Mapping[str, str]
) -> list[Line]:
    lines = []
    for engine, answer in answers.items():
        if "error" in answer:
            lines.append(missing(engine, answer["error"]))
            continue
        for name, samples in answer["rates"][job].items():
            if isinstance(samples, str):
                lines.append(missing(name, samples))
            else:
                lines.append(Line(name, sampled(samples), targets.get(name), before.get(name, "")))
    return lines


def _busy(answers: Mapping[str, Answers], jobs: Sequence[str]) -> list[Line]:
    lines = []
    for answer in answers.values():
        rates = answer.get("rates", {})
        for name in rates.get(jobs[0], {}):
            samples = {job: rates[job][name] for job in jobs}
            if any(isinstance(sample, str) for sample in samples.values()):
                lines.append(missing(name, next(sample for sample in samples.values() if isinstance(sample, str))))
                continue
            values = [
                {job: samples[job][index]["utilisation"] for job in jobs} for index in range(len(samples[jobs[0]]))
            ]
            lines.append(Line(name, sampled(values)))
    return lines


def _parts(answers: Mapping[str, Answers]) -> Iterator[Line]:
    targets = {"calls kept": 1.0, "equal to inline": 1.0, "GPUs used": 8.0, "times one": 7.0}
    for answer in answers.values():
        for name, figures in answer.get("parts", {}).items():
            if isinstance(figures, str):
                yield missing(name, figures)
                continue
            column = next((column for column in figures if column in targets), None)
            if name.startswith("8 GPUs of a host"):  # on Ray, each call with a GPU starts a worker
                column = "times one"
            target = None if column is None else Target(column, targets[column], at_most=False)
            yield Line(name, sampled([figures]), target)


def files(sizes: ScalingSizes) -> Iterator[Table]:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        try:
            large = scaling_files.large(place, sizes.recorded, sizes.repeats)
        except RuntimeError as error:
            yield Table("Large ledgers", [missing(f"a run of {sizes.recorded:,} trials", str(error))])
        else:
            beside = f"`fanfold show` of a small run beside {sizes.recorded:,} evaluations"
            lines = [
                Line(f"a run of {sizes.recorded:,} trials, inline", sampled(large["made"])),
                Line(
                    f"its resume, {sizes.recorded:,} trials", sampled(large["resumed"]), Target("CPU s", 3.0), "was 45"
                ),
                Line(beside, sampled(large["shown"]), Target("more than alone, CPU s", 0.2)),
            ]
            yield Table("Large ledgers", lines)
        listed = scaling_files.listed(place, sizes.runs, sizes.repeats)
        line = Line(f"`fanfold runs` of {sizes.runs:,}", sampled(listed), Target("more than alone, CPU s", 0.2))
        yield Table("Many runs", [line])


def share(sizes: ScalingSizes) -> Iterator[Table]:
    limit, charged = [], []
    for name, place in (("each for itself", nullcontext(scaling_share.NONE)), ("--share", scaling_share.redis())):
        try:
            with place as address:
                used = sampled([scaling_share.limit(address, sizes.limited)])
                paid = sampled([scaling_share.replies(address, sizes.equal)])
        except RuntimeError as error:
            limit.append(missing(name, str(error)))
            charged.append(missing(name, str(error)))
            continue
        shared = name == "--share"
        limit.append(Line(name, used, Target("utilisation", 0.97, at_most=False) if shared else None))
        if shared:
            limit.append(Line("its refusals", {"refused %": used["refused %"]}, Target("refused %", 0.5)))
        charged.append(Line(name, paid, Target("charged", sizes.equal) if shared else None))
    yield Table(f"{scaling_share.SHARERS} processes, one limit of {scaling_share.RPM:,} requests a minute", limit)
    yield Table(f"{scaling_share.SHARERS} processes that ask the same {sizes.equal:,} questions", charged)


SECTIONS: dict[str, Callable[[ScalingSizes], Iterator[Table]]] = {"workers": workers, "files": files, "share": share}


def measured(names: Sequence[str], sizes: ScalingSizes) -> Iterator[Table]:
    """Every table; at the end, how many rows could not be measured."""
    left_out = 0
    for name in names:
        for table in SECTIONS[name](sizes):
            left_out += sum(line.note.startswith("not measured") for line in table.lines)
            yield table
    if left_out:
        print(f"\n{left_out} row(s) not measured")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and save; 1 only when `--strict` was given and a target was missed."""
    options = _parse(arguments)
    sizes = QUICK if options.quick else FULL
    where = machine()
    print(f"{where['processor']}, {where['cores']} cores, load {where['load_before']:.1f}, Python {where['python']}")
    if options.soak:
        path = options.json.with_stem("soak") if options.json == RESULTS else options.json
        return save_tables(soak.measure(options.soak), where, path, options.strict, minutes=options.soak)
    return save_tables(measured(options.only, sizes), where, options.json, options.strict, sizes=vars(sizes))


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="smaller sizes: ten minutes on two cores")
    parser.add_argument(
        "--only", type=some_of(SECTIONS), default=list(SECTIONS), help=f"a list from {','.join(SECTIONS)}"
    )
    parser.add_argument(
        "--soak", type=float, metavar="MINUTES", help="run for so long and see what grows, nothing else"
    )
    parser.add_argument("--json", type=Path, default=RESULTS, help="where the samples are written")
    parser.add_argument("--strict", action="store_true", help="exit with 1 when a target is missed")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
