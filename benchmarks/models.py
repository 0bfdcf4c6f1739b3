"""Measures model calls: client CPU and calls per second of Fanfold, of the openai SDK, and of other libraries.

python benchmarks/models.py --quick
python benchmarks/models.py --json models.json --strict
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from measure import Line, Sampled, Table, Target, machine, sampled, save_tables
from model_peers import WARM_UP, loop_factory

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
LATENCY = 0.05
LOW, HIGH = 100, 1000
#: No contender is given longer than this.
PATIENCE = 400.0
#: Where libraries keep what should not outlive a benchmark.
HOMES = ("HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "DSPY_CACHEDIR", "CURATOR_CACHE_DIR")

DURABLE, FORGETFUL, STUDY = "fanfold-durable", "fanfold-forgetful", "fanfold-study"
SDK, LITELLM, EVAL = "openai", "litellm", "inspect-eval"
OURS = {
    DURABLE: "Fanfold generate, limiter, file ledger",
    FORGETFUL: "Fanfold generate, limiter, no ledger",
    STUDY: "Fanfold Study on async:N, file ledger",
}
#: What each of the others is called, and the environment under .venv-peers it lives in (none: ours).
THEIRS = {
    SDK: ("openai SDK, AsyncOpenAI", None),
    LITELLM: ("litellm acompletion", "litellm"),
    "langchain": ("langchain ChatOpenAI.abatch", "langchain"),
    "dspy": ("dspy.Evaluate, threads", "dspy"),
    "inspect-model": ("inspect_ai model only", "inspect"),
    EVAL: ("inspect_ai eval", "inspect"),
}


@dataclass(frozen=True)
class Sizes:
    """How many calls each contender makes, by concurrency, and how often."""

    repeats: int
    peer_repeats: int
    ours: Mapping[int, int]
    sdk: Mapping[int, int]
    peers: Mapping[int, int]
    evals: Mapping[int, int]
    remembered: int

    def of(self, name: str, concurrency: int) -> tuple[int, int]:
        """(calls, repeats)"""
        if name in OURS:
            return self.ours[concurrency], self.repeats
        if name == SDK:
            return self.sdk[concurrency], self.repeats
        return (self.evals if name == EVAL else self.peers)[concurrency], self.peer_repeats


FULL = Sizes(
    repeats=5,
    peer_repeats=3,
    ours={LOW: 20_000, HIGH: 60_000},
    sdk={LOW: 2_000, HIGH: 3_000},
    peers={LOW: 2_000, HIGH: 3_000},
    evals={LOW: 1_000, HIGH: 1_000},
    remembered=100_000,
)
QUICK = Sizes(
    repeats=3,
    peer_repeats=1,
    ours={LOW: 6_000, HIGH: 20_000},
    sdk={LOW: 1_000, HIGH: 1_000},
    peers={LOW: 1_000, HIGH: 1_000},
    evals={LOW: 300, HIGH: 1_000},
    remembered=100_000,
)


@dataclass
class Found:
    """What one contender took at one concurrency: a mapping for every repeat, and what went wrong."""

    samples: list[dict[str, float]] = field(default_factory=list)
    note: str = ""

    @property
    def values(self) -> dict[str, Sampled]:
        return sampled(self.samples) if self.samples else {}


Findings = dict[tuple[str, int], Found]


def measure(sizes: Sizes) -> Iterator[Table]:
    """Contenders take turns within each repeat, so that a noisy minute falls on all of them."""
    with server([sys.executable, "-m", "fanfold.simulator", "--port", "0", "--latency", str(LATENCY)]) as url:
        findings: Findings = {}
        for concurrency in sizes.ours:
            for repeat in range(sizes.repeats):
                for name in (*OURS, *THEIRS):
                    calls, repeats = sizes.of(name, concurrency)
                    if repeat < repeats:
                        found = findings.setdefault((name, concurrency), Found())
                        _add(found, name, url, calls, concurrency)
            yield _table(findings, concurrency, sizes)
        yield _ratios(findings, list(sizes.ours))
        long = one(DURABLE, url, sizes.remembered, max(sizes.ours))
        yield _targets(findings, list(sizes.ours), sizes.remembered, long)


def _add(found: Found, name: str, url: str, calls: int, concurrency: int) -> None:
    python = python_of(name)
    if python is None:
        found.note = "not installed: make bench-peers"
        return
    try:
        found.samples.append(one(name, url, calls, concurrency, python))
    except RuntimeError as error:
        if name in OURS:
            raise
        found.note = str(error)


def python_of(name: str) -> str | None:
    """The interpreter that has this contender's library; None if none has."""
    environment = None if name in OURS else THEIRS[name][1]
    if environment is None:
        return sys.executable if name != SDK or find_spec("openai") else None
    python = ROOT / ".venv-peers" / environment / "bin" / "python"
    return str(python) if python.exists() else None


def one(name: str, url: str, calls: int, concurrency: int, python: str = sys.executable) -> dict[str, float]:
    """Let one contender make its calls in a process of its own; an error unless every call was answered once."""
    simulator(url, "reset", b"{}")
    with tempfile.TemporaryDirectory() as home:
        script = [python, str(Path(__file__).with_name("model_peers.py")), name, "--url", f"{url}/v1"]
        command = [*script, "--calls", str(calls), "--concurrency", str(concurrency)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=environment(home))
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"gave up after {PATIENCE:.0f} s") from None
    if done.returncode:
        raise RuntimeError(f"failed: {(done.stderr.strip().splitlines() or ['without a word'])[-1][:160]}")
    took = json.loads(done.stdout.strip().splitlines()[-1])
    charged = simulator(url, "ledger?summary=1")["counts"]["charged"] - WARM_UP
    if took["failed"] or charged != calls:
        raise RuntimeError(f"{took['failed']} of {calls} calls failed, and {charged} were charged")
    return {
        "CPU ms/call": took["cpu_s"] / calls * 1e3,
        "calls/CPU-s": calls / took["cpu_s"],
        "calls/s": calls / took["wall_s"],
        "of ideal": calls / took["wall_s"] / (concurrency / LATENCY),
        "no core": took["waited_s"] / took["wall_s"],
        "peak MB": took["peak_mb"],
    }


def environment(home: str) -> dict[str, str]:
    """Nothing but loopback, nothing left behind in the user's folders, no key that is not a fake."""
    folders = dict.fromkeys(HOMES, home)
    kept = {name: value for name, value in os.environ.items() if "_API_KEY" not in name and "_BASE_URL" not in name}
    return {**kept, **folders, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1", "OPENAI_API_KEY": "no-key"}


def simulator(url: str, page: str, body: bytes | None = None) -> Any:
    """What one of the simulator's own pages says."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(f"{url}/_simulator/{page}", body, timeout=60) as response:
        return json.loads(response.read())


@contextmanager
def server(command: Sequence[str]) -> Iterator[str]:
    """A simulator in a process of its own, as long as the context lasts; gives its URL."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = ""
            for line in process.stdout:
                url = line.removeprefix("simulator at ").strip() if line.startswith("simulator at ") else url
                if line.strip() == "ready":
                    break
            else:
                raise RuntimeError("the simulator did not start")
            yield url
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


def _table(findings: Findings, concurrency: int, sizes: Sizes) -> Table:
    ideal = concurrency / LATENCY
    title = f"Concurrency {concurrency}, {LATENCY * 1e3:.0f} ms latency (ideal {ideal:,.0f} calls/s)"
    lines = []
    for name in (*OURS, *THEIRS):
        label = OURS[name] if name in OURS else THEIRS[name][0]
        found = findings[name, concurrency]
        lines.append(Line(f"{label} ({sizes.of(name, concurrency)[0]:,} calls)", found.values, note=found.note))
    return Table(title, lines)


def _ratios(findings: Findings, concurrencies: Sequence[int]) -> Table:
    lines = []
    for name, (label, _) in THEIRS.items():
        values: dict[str, Sampled] = {}
        for mine, word in ((DURABLE, "generate"), (STUDY, "Study")):
            for concurrency in concurrencies:
                ratio = _ratio(findings, mine, name, concurrency)
                values |= {} if ratio is None else {f"{word}, {concurrency}": Sampled((ratio,))}
        lines.append(Line(label, values))
    return Table("How many times the calls per CPU-second of ... (file ledger, by concurrency)", lines)


def _ratio(findings: Findings, mine: str, theirs: str, concurrency: int) -> float | None:
    other = findings[theirs, concurrency].values
    return findings[mine, concurrency].values["calls/CPU-s"].median / other["calls/CPU-s"].median if other else None


def _targets(findings: Findings, concurrencies: Sequence[int], remembered: int, long: Mapping[str, float]) -> Table:
    low, high = min(concurrencies), max(concurrencies)
    ours = {concurrency: findings[DURABLE, concurrency].values for concurrency in concurrencies}
    lines = [
        _line(f"calls per CPU-second of the client, concurrency {high}", ours[high]["calls/CPU-s"], 2_500),
        _line(f"calls per second of wall clock, concurrency {high}", ours[high]["calls/s"], 2_500),
        _line(f"share of the ideal, concurrency {low}", ours[low]["of ideal"], 0.80),
    ]
    # A whole eval is compared with a whole study, the others with the call alone.
    for theirs, mine, least in ((SDK, DURABLE, 8), (LITELLM, DURABLE, 15), (EVAL, STUDY, 60)):
        for concurrency in concurrencies:
            ratio = _ratio(findings, mine, theirs, concurrency)
            if ratio is not None:
                name = f"{'Study' if mine == STUDY else 'generate'} over {THEIRS[theirs][0]}, concurrency {concurrency}"
                lines.append(_line(f"{name}, by CPU", Sampled((ratio,)), least))
    for concurrency in concurrencies:
        for column, word in (("calls/s", "wall clock"), ("calls/CPU-s", "CPU")):
            kept, lost = (findings[name, concurrency].samples for name in (DURABLE, FORGETFUL))
            price = Sampled(tuple(1 - mine[column] / other[column] for mine, other in zip(kept, lost)))
            name = f"share of throughput that durability costs, {concurrency}, by {word}"
            lines.append(_line(name, price, 0.15, at_most=True))
    lines.append(
        _line(f"peak MB of a process that makes {remembered:,} calls", Sampled((long["peak MB"],)), 250, at_most=True)
    )
    return Table("Targets", lines)


def _line(name: str, value: Sampled, limit: float, at_most: bool = False) -> Line:
    return Line(name, {"value": value}, Target("value", limit, at_most))


def publish(tables: Iterator[Table], sizes: Any, path: Path, strict: bool) -> int:
    """Print each table as it is done and save them all; 1 only when `strict` and a target was missed."""
    where = machine()
    loop = loop_factory()[1]
    python = f"Python {where['python']} on {loop}"
    print(f"{where['processor']}, {where['cores']} cores, load {where['load_before']:.1f}, {python}")
    return save_tables(tables, where, path, strict, loop=loop, sizes=asdict(sizes))


def parse(description: str, results: str, arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="smaller sizes: a few minutes on two cores")
    parser.add_argument("--json", type=Path, default=RESULTS / results, help="where the samples are written")
    parser.add_argument("--strict", action="store_true", help="exit with 1 when a target is missed")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(__doc__ or "", "models.json", arguments)
    sizes = QUICK if options.quick else FULL
    return publish(measure(sizes), sizes, options.json, options.strict)


if __name__ == "__main__":
    sys.exit(main())
