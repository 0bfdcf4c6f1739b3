"""Measures `fanfold ask` against the same job in other libraries: rows per second, CPU per row, and a kill half way.

python benchmarks/ask.py --quick
python benchmarks/ask.py --json ask.json --strict
"""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from ask_peers import MAX_TOKENS, MODEL, WARM_UP
from measure import Line, Sampled, Table, Target, sampled

from models import environment, parse, publish, server, simulator

ROOT = Path(__file__).parents[1]
LATENCY, CONCURRENCY = 0.05, 256
#: No contender is given longer than this.
PATIENCE = 600.0
OURS = "fanfold"
#: What each of the others is called, and the environment under .venv-peers it lives in (none: ours).
THEIRS = {
    "openai": ("openai SDK, semaphore and gather", None),
    "litellm": ("litellm batch_completion", "litellm"),
    "dspy": ("dspy.Parallel", "dspy"),
    "curator": ("curator.LLM", "curator"),
}
LEAST = 5.0


@dataclass(frozen=True)
class Sizes:
    """Rows of the job for us and for the others, how often it is done, and rows of the job that is killed."""

    ours: int
    peers: int
    repeats: int
    killed: int


FULL = Sizes(ours=10_000, peers=10_000, repeats=3, killed=2_000)
QUICK = Sizes(ours=10_000, peers=2_000, repeats=1, killed=1_000)


@dataclass
class Contender:
    """A library and what it took: a mapping for every repeat, and what went wrong."""

    name: str
    python: str | None
    samples: list[dict[str, float]] = field(default_factory=list)
    note: str = ""

    def command(self, folder: Path, url: str, warm_up: int) -> list[str]:
        table, output = str(folder / "data.jsonl"), str(folder / "out.jsonl")
        if self.name == OURS:
            flags = ["--model", f"openai/{MODEL}", "--base-url", f"{url}/v1", "--max-tokens", str(MAX_TOKENS)]
            ask = [str(self.python), "-m", "fanfold", "ask", table, "--prompt", "Translate: {text}", *flags]
            ledger = str(folder / "ask.db")
            return [*ask, "--concurrent", str(CONCURRENCY), "-o", output, "--ledger", ledger, "--quiet"]
        script = [str(self.python), str(Path(__file__).with_name("ask_peers.py")), self.name, table, output]
        return [*script, "--url", f"{url}/v1", "--concurrency", str(CONCURRENCY), "--warm-up", str(warm_up)]


def contenders() -> list[Contender]:
    """Those that are installed, and those that are not, with a note."""
    found = [Contender(OURS, sys.executable)]
    for name, (_, home) in THEIRS.items():
        python = Path(sys.executable) if home is None else ROOT / ".venv-peers" / home / "bin" / "python"
        present = find_spec("openai") is not None if home is None else python.exists()
        note = "" if present else "not installed: make bench-peers"
        found.append(Contender(name, str(python) if present else None, note=note))
    return found


def measure(sizes: Sizes) -> Iterator[Table]:
    """Contenders take turns within each repeat, so that a noisy minute falls on all of them."""
    with server([sys.executable, "-m", "fanfold.simulator", "--port", "0", "--latency", str(LATENCY)]) as url:
        all_of_them = contenders()
        for _ in range(sizes.repeats):
            for contender in all_of_them:
                _add(contender, url, sizes.ours if contender.name == OURS else sizes.peers)
        yield _table(all_of_them, sizes)
        yield _killed(all_of_them, url, sizes.killed)
        yield _targets(all_of_them)


def _add(contender: Contender, url: str, rows: int) -> None:
    if contender.python is None or contender.note:
        return
    try:
        with tempfile.TemporaryDirectory() as folder:
            contender.samples.append(_job(contender, url, rows, Path(folder)))
    except RuntimeError as error:
        if contender.name == OURS:
            raise
        contender.note = str(error)


def _job(contender: Contender, url: str, rows: int, folder: Path) -> dict[str, float]:
    """The whole job once; an error unless every row was answered and charged once.

    Of the others the clock starts after a warm-up; ours has none, so the CPU of a job of one row is taken off.
    """
    _write(folder, rows)
    simulator(url, "reset", b"{}")
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = _run(contender, folder, url, WARM_UP)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    charged = _charged(url)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    warm = 0
    if contender.name == OURS and rows > 1:
        with tempfile.TemporaryDirectory() as empty:
            cpu -= _job(contender, url, 1, Path(empty))["CPU ms/row"] / 1e3
    elif contender.name != OURS:
        took = json.loads(done.splitlines()[-1])
        cpu, wall, warm = took["cpu_s"], took["wall_s"], WARM_UP
    answered = _answered(folder)
    if answered != rows or charged != rows + warm:
        raise RuntimeError(f"{answered} of {rows} rows were answered, and {charged} were charged")
    return {"rows/s": rows / wall, "CPU ms/row": cpu / rows * 1e3, "rows/CPU-s": rows / cpu}


def _run(contender: Contender, folder: Path, url: str, warm_up: int) -> str:
    try:
        done = subprocess.run(
            contender.command(folder, url, warm_up),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            env=environment(str(folder)),
            cwd=folder,
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"gave up after {PATIENCE:.0f} s") from None
    if done.returncode:
        raise RuntimeError(f"failed: {(done.stderr.strip().splitlines() or ['without a word'])[-1][:160]}")
    return done.stdout.strip()


def _write(folder: Path, rows: int) -> None:
    lines = (json.dumps({"id": number, "text": f"What follows from {number}?"}) for number in range(rows))
    (folder / "data.jsonl").write_text("".join(f"{line}\n" for line in lines))


def _answered(folder: Path) -> int:
    """How many rows of the output have an answer."""
    output = folder / "out.jsonl"
    rows = [json.loads(line) for line in output.read_text().splitlines()] if output.exists() else []
    return len({row["id"] for row in rows if row.get("answer")})


def _killed(all_of_them: Sequence[Contender], url: str, rows: int) -> Table:
    """Kill each job when half of its rows are charged, start it again, and count."""
    lines = []
    for contender in all_of_them:
        label, note, values = _label(contender.name), contender.note, {}
        if contender.python is not None and not note:
            with tempfile.TemporaryDirectory() as folder:
                try:
                    values = _kill_once(contender, url, rows, Path(folder))
                except RuntimeError as error:
                    note = str(error)
        lines.append(Line(label, {name: Sampled((value,)) for name, value in values.items()}, note=note))
    return Table(f"Killed when half of {rows:,} rows were charged, then started again", lines)


def _kill_once(contender: Contender, url: str, rows: int, folder: Path) -> dict[str, float]:
    _write(folder, rows)
    simulator(url, "reset", b"{}")
    command, quiet = contender.command(folder, url, 0), subprocess.DEVNULL
    with subprocess.Popen(command, stdout=quiet, stderr=quiet, env=environment(str(folder)), cwd=folder) as process:
        deadline = time.monotonic() + PATIENCE
        while _charged(url) < rows // 2 and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    paid = _charged(url)
    _run(contender, folder, url, 0)
    return {
        "paid at the kill": paid,
        "lost rows": rows - _answered(folder),
        "paid twice": _charged(url) - rows,
    }


def _charged(url: str) -> int:
    return int(simulator(url, "ledger?summary=1")["counts"]["charged"])


def _label(name: str) -> str:
    return "fanfold ask" if name == OURS else THEIRS[name][0]


def _table(all_of_them: Sequence[Contender], sizes: Sizes) -> Table:
    lines = []
    for contender in all_of_them:
        rows = sizes.ours if contender.name == OURS else sizes.peers
        values = sampled(contender.samples) if contender.samples else {}
        lines.append(Line(f"{_label(contender.name)} ({rows:,} rows)", values, note=contender.note))
    return Table(f"Rows at {LATENCY * 1e3:.0f} ms latency, {CONCURRENCY} calls in flight", lines)


def _targets(all_of_them: Sequence[Contender]) -> Table:
    speed = {each.name: sampled(each.samples)["rows/CPU-s"].median for each in all_of_them if each.samples}
    lines = [
        Line(f"rows per CPU-second over {_label(name)}", {"times": Sampled((speed[OURS] / speed[name],))})
        for name in speed
        if name != OURS
    ]
    best = max((speed[name] for name in speed if name != OURS), default=None)
    if best is not None:
        times = Sampled((speed[OURS] / best,))
        lines.append(Line("over the best of them", {"times": times}, Target("times", LEAST, at_most=False)))
    return Table("Times", lines)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(__doc__ or "", "ask.json", arguments)
    sizes = QUICK if options.quick else FULL
    return publish(measure(sizes), sizes, options.json, options.strict)


if __name__ == "__main__":
    sys.exit(main())
