"""Processes that share by one address keep one limit, pay one bill, and survive its server and each other."""

from __future__ import annotations

import signal
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from share_world import RedisServer, Sharers

from fanfold.simulator import Latency, SimulatorConfig
from fanfold.simulator.limits import AccountLimits

pytestmark = pytest.mark.slow

#: Requests per minute that the simulator and the sharers are told.
RPM = 1200


def limited(latency: float = 0.1, burst: float = 1.0) -> SimulatorConfig:
    return SimulatorConfig(limits=AccountLimits(rpm=RPM, burst_seconds=burst), latency=Latency(latency))


def most_in(times: list[float], seconds: float) -> int:
    """The most calls within so many seconds."""
    times = sorted(times)
    start = most = 0
    for end, at in enumerate(times):
        while at - times[start] > seconds:
            start += 1
        most = max(most, end - start + 1)
    return most


def rows(ledger: Path, table: str) -> int:
    with sqlite3.connect(ledger) as file:
        return int(file.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


def until(true: Callable[[], Any], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def test_three_processes_keep_one_limit_and_use_it(redis: RedisServer, sharers: Sharers, start: Any) -> None:
    world = start(limited())
    for number in range(3):
        sharers.begin(world.url, redis.url, f"{number * 100}:{number * 100 + 100}", rpm=RPM)
    assert all("told 1" in text for text in sharers.end())
    statuses = world.simulator.billing.statuses
    times = [charge.at for charge in world.simulator.charges]
    used = (len(times) - 1) / (max(times) - min(times)) / (RPM / 60)
    assert statuses[200] == 300
    assert statuses[429] <= 0.005 * 300
    assert used >= 0.97


def test_equal_calls_of_three_processes_are_charged_once(redis: RedisServer, sharers: Sharers, start: Any) -> None:
    world = start(SimulatorConfig(latency=Latency(0.05)))
    for number in range(3):
        sharers.begin(world.url, redis.url, "0:1000", shuffle=number, slots=100)
    assert all("told 1" in text for text in sharers.end())
    assert len(world.simulator.charges) == 1000
    # Each ledger is whole without the server, and says what was paid there and nowhere else.
    assert [rows(ledger, "call") for ledger in sharers.ledgers()] == [1000] * 3
    assert sum(rows(ledger, "payment") for ledger in sharers.ledgers()) == 1000
    sharers.begin(world.url, "none", "0:1000", ledger=sharers.ledgers()[0], run="again")
    sharers.end()
    assert len(world.simulator.charges) == 1000


def test_a_server_that_is_killed_and_restarted_costs_nothing_but_its_memory(
    own_redis: RedisServer, sharers: Sharers, start: Any
) -> None:
    world = start(limited())
    for number in range(3):
        sharers.begin(world.url, own_redis.url, f"{number * 90}:{number * 90 + 90}", rpm=RPM)
    charges = world.simulator.charges
    until(lambda: len(charges) >= 60)
    own_redis.kill()
    until(lambda: len(charges) >= 130)
    own_redis.start()
    texts = sharers.end()
    assert all("told 1" in text for text in texts)
    for text in texts:
        assert text.count("does not answer: each sharer keeps to its part") == 1
        assert text.count("answers again") == 1
    assert world.simulator.billing.statuses[200] == len(charges) == 270
    assert world.simulator.billing.statuses[429] <= 0.02 * 270
    assert most_in([charge.at for charge in charges], 5.0) <= RPM / 12 + RPM / 60


def test_a_claimant_that_is_killed_is_replaced(redis: RedisServer, sharers: Sharers, start: Any) -> None:
    world = start(SimulatorConfig())
    world.fault({"kind": "hang", "times": 8})
    dies = sharers.begin(world.url, redis.url, "0:8")
    until(lambda: redis.command("KEYS", "fanfold:1:call:*").count("call:") == 8)
    sharers.begin(world.url, redis.url, "0:8")
    until(lambda: redis.command("KEYS", "fanfold:1:wait:*").count("wait:") == 8)
    dies.send_signal(signal.SIGKILL)
    assert "told 1" in sharers.end()[1]
    assert rows(sharers.ledgers()[1], "payment") == 8


def test_calls_in_batches_are_shared_as_well(redis: RedisServer, sharers: Sharers, start: Any) -> None:
    world = start(SimulatorConfig(turnaround=Latency(0.5)))
    for number in range(2):
        sharers.begin(world.url, redis.url, f"{number * 20}:{number * 20 + 40}", executor="batch:openai")
    assert all("told 1" in text for text in sharers.end())
    assert len(world.simulator.charges) == 60
    assert {charge.price for charge in world.simulator.charges} == {"batch"}
    assert [rows(ledger, "call") for ledger in sharers.ledgers()] == [40, 40]
