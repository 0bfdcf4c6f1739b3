"""What is paid when clients are killed or answers get lost: real processes, real sockets, the provider's own books."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sqlite3
import subprocess
import threading
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from batch_talks import STEPS, TALKS, TURNS, executor, talks
from fault_world import Provider, Start, many, wait_for

from fanfold.models.simulated import SimulatedTransport
from fanfold.simulator.core import Simulator
from fanfold.simulator.state import body_key
from fanfold.testing import run_virtual

SEED = int(os.environ.get("FANFOLD_KILL_SEED", "20261115"))
BATCH_KILLS, REALTIME_KILLS = many(20, 200), many(40, 200)
IN_FLIGHT = 6
CALLS = TALKS * TURNS


@dataclass
class Lives:
    """What the kills of one test did."""

    kills: int = 0
    runs: int = 0
    twice: int = 0
    where: Counter[str] = field(default_factory=Counter)


class Nursery:
    """Starts one client after the other and ends them at a chosen moment."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        wait_for(process, "ready")

    def live(self, order: dict[str, Any], seconds: float | None) -> bool:
        """Run a client for so long, or to its end; True if it got there."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        pid = int(self._said("pid"))
        timer = threading.Timer(seconds or 0.0, _kill, [pid])
        if seconds is not None:
            timer.start()
        code = int(self._said("ended"))
        timer.cancel()
        assert code in (0, -signal.SIGKILL), f"the client ended with {code}"
        return code == 0

    def _said(self, word: str) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line.startswith(word), line
        return line.split()[1]


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


@pytest.fixture
def nursery(start: Start) -> Nursery:
    process = start("batch_talks.py", stdin=subprocess.PIPE)
    threading.Thread(target=_echo, args=[process], daemon=True).start()
    return Nursery(process)


def _echo(process: subprocess.Popen[str]) -> None:
    """A full pipe must not stop a client; what it complains about belongs in the report of the test."""
    assert process.stderr is not None
    with contextlib.suppress(ValueError):
        for line in process.stderr:
            print(line, end="")


def replies(ledger: Path) -> set[str]:
    """The requests whose replies are durable, by the hash of their body."""
    if not ledger.exists():
        return set()
    with contextlib.closing(sqlite3.connect(ledger)) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        if not db.execute("SELECT count(*) FROM sqlite_master WHERE name = 'call'").fetchone()[0]:
            return set()
        return {body_key(json.loads(request)) for (request,) in db.execute("SELECT request FROM call")}


def reference(style: str, name: str) -> str:
    """The trace of the same study, undisturbed."""
    simulator = Simulator()
    study = talks(style, name, "http://calm.test", lambda: SimulatedTransport(simulator))
    return run_virtual(study.run_async("async")).trace


def under_fire(
    provider: Provider, nursery: Nursery, folder: Path, style: str, mode: str, kills: int, rng: random.Random
) -> Lives:
    """Run studies one after the other, and kill their clients, until there have been so many kills."""
    lives = Lives()
    while lives.kills < kills:
        provider.post("reset")
        name, ledger = f"run{lives.runs}", folder / f"{lives.runs}.db"
        before = lives.kills
        while True:
            held, paid = replies(ledger), provider.paid()
            order = {"style": style, "mode": mode, "name": name, "url": provider.url, "ledger": str(ledger)}
            order["seed"] = rng.random()
            seconds: float | None = None
            where = "time"
            if lives.kills < kills:
                if mode.startswith("batch") and rng.random() < 0.6:
                    where = rng.choice(list(STEPS))
                    order |= {"step": where, "count": rng.choice((1, 1, 2)), "wait": rng.uniform(0.0, 0.004)}
                else:
                    seconds = rng.uniform(0.0, 0.5 if mode.startswith("batch") else 0.25)
            done = nursery.live(order, seconds)
            assert held <= replies(ledger), "a reply that was durable is lost"
            again = provider.paid()
            assert all(again[key] == paid[key] for key in held), "a reply that was durable was paid for again"
            if done:
                break
            lives.kills += 1
            lives.where[where] += 1
        assert ledger.with_suffix(".trace").read_text() == reference(style, name)
        paid = provider.paid()
        assert len(paid) == len(replies(ledger)) == CALLS
        twice = sum(paid.values()) - CALLS
        assert twice <= (0 if mode.startswith("batch") else IN_FLIGHT * (lives.kills - before))
        lives.twice += twice
        lives.runs += 1
    return lives


@pytest.mark.slow
@pytest.mark.parametrize("style", ["openai", "anthropic"])
def test_no_request_is_paid_twice_however_often_a_client_with_batches_is_killed(
    style: str, provider: Provider, nursery: Nursery, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = random.Random(f"{SEED} {style}")
    lives = under_fire(provider, nursery, tmp_path, style, f"batch:{style}", BATCH_KILLS, rng)
    assert lives.twice == 0
    assert lives.where["inside create"] > 0
    with capsys.disabled():
        where = ", ".join(f"{count} {step}" for step, count in lives.where.most_common())
        print(
            f"\n  batch:{style}, seed {SEED}: {lives.kills} kills in {lives.runs} runs ({where}); paid twice: 0", end=""
        )


@pytest.mark.slow
def test_at_most_what_is_in_flight_is_paid_again_when_a_realtime_client_is_killed(
    provider: Provider, nursery: Nursery, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kills = {"openai": REALTIME_KILLS // 2, "anthropic": REALTIME_KILLS // 2}
    for style, count in kills.items():
        rng = random.Random(f"{SEED} realtime {style}")
        (tmp_path / style).mkdir()
        lives = under_fire(provider, nursery, tmp_path / style, style, f"async:{IN_FLIGHT}", count, rng)
        with capsys.disabled():
            each = lives.twice / lives.kills
            print(
                f"\n  realtime {style}, seed {SEED}: {lives.kills} kills in {lives.runs} runs; "
                f"{lives.twice} requests paid again, {each:.2f} per kill (at most {IN_FLIGHT})",
                end="",
            )


@pytest.mark.slow
@pytest.mark.parametrize("how", ["lost_drop", "lost_502", "lost_hang"])
@pytest.mark.parametrize("style", ["openai", "anthropic"])
def test_a_batch_whose_creation_is_answered_by_nothing_is_paid_once(
    style: str, how: str, provider: Provider, tmp_path: Path
) -> None:
    provider.post("faults", {"faults": [{"kind": how, "times": 1}]})
    study = talks(style, how, provider.url)
    object.__setattr__(study.evaluate.model, "timeout", 0.5)  # or a hanging answer would be waited for two minutes
    run = study.run(executor(f"batch:{style}"), ledger=tmp_path / "l.db")
    assert run.progress.failures == 0
    assert run.trace == reference(style, how)
    bill = provider.bill()
    assert bill["duplicates"] == []
    assert bill["counts"]["charged"] == bill["counts"]["batch"] == CALLS
    assert [batch["requests"] for batch in bill["batches"]] == [TALKS] * TURNS
    assert set(bill["batches_per_tag"].values()) == {1}
