"""Measures the engine: overhead, slot utilisation, replay, memory, queries, and other libraries on the same work.

python benchmarks/engine.py --quick
python benchmarks/engine.py --only overhead,replay --json overhead.json
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import memory
import overhead
import peers
import queries
import replay
import utilisation
from measure import FULL, QUICK, Sizes, Table, machine, some_of

SECTIONS: dict[str, Callable[[Sizes], Iterator[Table]]] = {
    "overhead": overhead.measure,
    "utilisation": utilisation.measure,
    "replay": replay.measure,
    "memory": memory.measure,
    "queries": queries.measure,
    "peers": peers.measure,
}
RESULTS = Path(__file__).parent / "results" / "engine.json"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and save; 1 only when `--strict` was given and a target was missed."""
    options = _parse(arguments)
    report = measure(options.only, QUICK if options.quick else FULL)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(report, indent=1) + "\n")
    missed = [
        line["name"]
        for section in report["sections"]
        for table in section["tables"]
        for line in table["lines"]
        if line.get("met") is False
    ]
    print(f"{len(missed)} target(s) MISSED: {'; '.join(missed)}" if missed else "every target met")
    print(f"written to {options.json}")
    return 1 if missed and options.strict else 0


def measure(names: Sequence[str], sizes: Sizes) -> dict[str, Any]:
    """Run the named sections, printing each table as it is done; gives what is saved."""
    where = machine()
    print(f"{where['processor']}, {where['cores']} cores, load {where['load_before']:.1f}, Python {where['python']}")
    sections = []
    for name in names:
        started = time.perf_counter()
        tables = []
        for table in SECTIONS[name](sizes):
            print(f"\n{table}", flush=True)
            tables.append(table.json())
        seconds = time.perf_counter() - started
        print(f"\n[{name}: {seconds:.0f} s]", flush=True)
        sections.append({"name": name, "seconds": seconds, "tables": tables})
    return {"machine": where, "sizes": vars(sizes), "sections": sections}


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="smaller sizes: a few minutes on two cores")
    parser.add_argument(
        "--only", type=some_of(SECTIONS), default=list(SECTIONS), help=f"a list from {','.join(SECTIONS)}"
    )
    parser.add_argument("--json", type=Path, default=RESULTS, help="where the samples are written")
    parser.add_argument("--strict", action="store_true", help="exit with 1 when a target is missed")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
