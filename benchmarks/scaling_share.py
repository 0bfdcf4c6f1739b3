"""What three processes make of one limit and of equal calls, each for itself or sharing by a Redis server."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fanfold import Case, Study, Sweep
from fanfold.limits import Limits
from fanfold.models import model
from models import server, simulator

SHARERS, RPM = 3, 1200
NONE = "none"


def ask(url: str, share: str, first: int, last: int, seed: int, limited: bool, ledger: str) -> None:
    """One process: ask these questions in an order of its own."""
    numbers = list(range(first, last))
    random.Random(seed).shuffle(numbers)
    limits = Limits(requests_per_minute=RPM) if limited else Limits()
    asked = model("openai/gpt-4o-mini", base_url=f"{url}/v1", key="no-key", limits=limits, price=(1, 2))

    async def evaluate(candidate: str, case: Case) -> float:
        return float(len((await asked.generate(f"number {case.data}", max_tokens=16)).text))

    options: dict[str, Any] = {} if share == NONE else {"share": share}
    study = Study(Sweep(["one"]), evaluate, [Case(str(number), number) for number in numbers])
    run = study.run("async:100", ledger=ledger, run="asked", **options)
    if run.progress.failures:
        raise SystemExit(f"{run.progress.failures} calls failed")


@contextlib.contextmanager
def redis() -> Iterator[str]:
    """The address of a Redis server of our own, which keeps nothing on disk."""
    binary = shutil.which("redis-server") or shutil.which("valkey-server")
    if binary is None:
        raise RuntimeError("there is no redis-server here (apt-get install redis-server)")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [binary, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    with tempfile.TemporaryDirectory() as folder, subprocess.Popen(command, stdout=-3, cwd=folder) as process:
        try:
            for _ in range(200):
                with socket.socket() as link:
                    if link.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.02)
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            process.kill()


def served(share: str) -> dict[str, float]:
    """What the Redis server has done so far: commands, and CPU in microseconds."""
    if share == NONE:
        return {}
    place = urlsplit(share)
    with socket.create_connection((place.hostname, place.port), 10) as link, link.makefile("rwb") as stream:
        stream.write(b"INFO everything\r\n")
        stream.flush()
        text = stream.read(int(stream.readline()[1:])).decode()
    facts = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    cpu = float(facts["used_cpu_user"]) + float(facts["used_cpu_sys"])
    return {"commands": float(facts["total_commands_processed"]), "CPU us": cpu * 1e6}


def sharers(url: str, share: str, calls: int, *, equal: bool, limited: bool) -> None:
    """Let three processes ask, the same questions or each its own."""
    with tempfile.TemporaryDirectory() as folder:
        processes = []
        for number in range(SHARERS):
            first = 0 if equal else number * calls
            words: list[object] = [url, share, first, first + calls, number, int(limited), f"{folder}/{number}.db"]
            command = [sys.executable, str(Path(__file__)), *map(str, words)]
            processes.append(subprocess.Popen(command, stdout=-3, stderr=subprocess.PIPE, text=True))
        errors = [process.communicate()[1] for process in processes]
        failed = [error for process, error in zip(processes, errors) if process.returncode]
    if failed:
        raise RuntimeError((failed[0].strip().splitlines() or ["without a word"])[-1][:150])


def limit(share: str, calls: int) -> dict[str, float]:
    """The use of one limit of 1,200 requests a minute by three processes that know it."""
    command = [sys.executable, "-m", "fanfold.simulator", "--port", "0", "--latency", "0.1", "--rpm", str(RPM)]
    with server([*command, "--burst", "1"]) as url:
        before = served(share)
        sharers(url, share, calls, equal=False, limited=True)
        after = served(share)
        page: dict[str, Any] = simulator(url, "ledger")
    times = sorted(charge["at"] for charge in page["charges"])
    start = times[0] + 1.0  # by then the bucket of the limit is empty
    used = sum(at > start for at in times) / (RPM / 60 * max(1e-9, times[-1] - start))
    refused = page["counts"]["by_status"].get("429", 0)
    share_refused = 100 * refused / (refused + len(times))
    return {"utilisation": used, "refused %": share_refused, **_per_call(before, after, len(times))}


def replies(share: str, calls: int) -> dict[str, float]:
    """What three processes that ask the same are charged."""
    with server([sys.executable, "-m", "fanfold.simulator", "--port", "0", "--latency", "0.05"]) as url:
        before = served(share)
        sharers(url, share, calls, equal=True, limited=False)
        after = served(share)
        charged = float(simulator(url, "ledger?summary=1")["counts"]["charged"])
    asked = calls * SHARERS
    return {"charged": charged, "distinct": float(calls), **_per_call(before, after, asked)}


def _per_call(before: dict[str, float], after: dict[str, float], calls: int) -> dict[str, float]:
    return {f"Redis {name} a call": (after[name] - before[name]) / calls for name in after}


if __name__ == "__main__":
    url, share, *numbers, ledger = sys.argv[1:]
    first, last, seed, limited = map(int, numbers)
    ask(url, share, first, last, seed, bool(limited), ledger)
    print(json.dumps({}))
