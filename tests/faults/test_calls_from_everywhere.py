"""A model call belongs to its run, wherever it executes: one limit, one ledger, one budget, one bill."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from fault_world import Provider, Start, wait_for

from fanfold import Case, MaxCost, Ok, Study, Sweep
from fanfold.calls import Spending
from fanfold.errors import CallFailed, NoWayHome
from fanfold.executors import futures
from fanfold.executors.door import Door
from fanfold.executors.processes import packed
from fanfold.executors.worker import dumps, loads
from fanfold.limits import Limits
from fanfold.models.batch.executor import BatchExecutor
from fanfold.models.http import Http
from fanfold.models.model import Model
from fanfold.models.pricing import Price
from fanfold.models.providers.openai import OpenAI

PRICE = Price(1000.0, 2000.0)


@dataclass(frozen=True)
class Plain:
    """Asks from a plain function; each question is asked by two candidates."""

    asked: Model

    def __call__(self, candidate: int, case: Case) -> Ok:
        reply = self.asked.generate_sync(f"question {candidate // 2}", max_tokens=8, reasoning_effort="none")
        return Ok(float(len(reply.text)), reply.text)


@dataclass(frozen=True)
class Awaiting:
    """Asks from a coroutine function."""

    asked: Model

    async def __call__(self, candidate: int, case: Case) -> Ok:
        reply = await self.asked.generate(f"question {candidate // 2}", max_tokens=8, reasoning_effort="none")
        return Ok(float(len(reply.text)), reply.text)


@dataclass(frozen=True)
class InThreadsOfItsOwn:
    """Asks from a thread that the evaluator starts, which has no context of the run."""

    asked: Model

    def __call__(self, candidate: int, case: Case) -> Ok:
        with ThreadPoolExecutor(1) as pool:
            reply = pool.submit(
                self.asked.generate_sync, f"question {candidate // 2}", max_tokens=8, reasoning_effort="none"
            ).result()
        return Ok(float(len(reply.text)), reply.text)


@dataclass(frozen=True)
class Wrong:
    """Asks for what the provider refuses."""

    asked: Model

    def __call__(self, candidate: int, case: Case) -> float:
        return float(len(self.asked.generate_sync("question", seed=2**70).text))


def gpt(provider: Provider, limits: Limits | None = None) -> Model:
    url = f"{provider.url}/v1"
    return Model("gpt-6-luna", OpenAI(), url, limits or Limits(), PRICE, connect=Http, key="sk-everywhere")


def batches(place: str = "") -> BatchExecutor:
    return BatchExecutor(f"openai{place}", settle=0.05, poll=0.02, max_wait=0.5, looks=(0.0, 0.05))


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """One Ray for the whole module: starting one takes seconds."""
    ray = pytest.importorskip("ray")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
    ray.init("local", num_cpus=2, object_store_memory=80 * 2**20, **quiet)
    yield
    ray.shutdown()


#: The address of the Dask cluster.
SCHEDULER: list[str] = []


@pytest.fixture(scope="module")
def dask_cluster() -> Iterator[None]:
    distributed = pytest.importorskip("distributed")
    quiet = {"dashboard_address": None, "memory_limit": 0}
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=True, **quiet) as cluster:
        SCHEDULER.append(cluster.scheduler_address)
        yield


#: Where calls are made: the evaluator, and the executor for one run.
PLACES: dict[str, tuple[type[Any], Callable[[], Any]]] = {
    "async": (Awaiting, lambda: "async:8"),
    "threads, plain": (Plain, lambda: "threads:4"),
    "threads, awaiting": (Awaiting, lambda: "threads:4"),
    "threads, threads of their own": (InThreadsOfItsOwn, lambda: "threads:4"),
    "a pool of threads": (Plain, lambda: ThreadPoolExecutor(4)),
    "a pool of processes": (Plain, lambda: lambda: ProcessPoolExecutor(2, get_context("spawn"))),
    "dask, plain": (Plain, lambda: f"dask:{SCHEDULER[-1]}"),
    "processes, plain": (Plain, lambda: "processes:2"),
    "processes, awaiting": (Awaiting, lambda: "processes:2"),
    "processes, threads of their own": (InThreadsOfItsOwn, lambda: "processes:2"),
    "ray, plain": (Plain, lambda: "ray:2"),
    "ray, awaiting": (Awaiting, lambda: "ray:2"),
    "batch": (Awaiting, batches),
    "batch, plain": (Plain, batches),
    "batch, on threads": (Awaiting, lambda: batches("@threads:24")),
    "batch, on processes": (Plain, lambda: batches("@processes:2")),
}


@pytest.fixture(params=list(PLACES))
def place(request: pytest.FixtureRequest) -> str:
    if request.param.startswith("ray"):
        request.getfixturevalue("cluster")
    if request.param.startswith("dask"):
        request.getfixturevalue("dask_cluster")
    return str(request.param)


def calls_in(ledger: Path) -> int:
    with sqlite3.connect(ledger) as db:
        return int(db.execute("SELECT count(*) FROM call").fetchone()[0])


def bill_of(provider: Provider) -> float:
    """What the provider charges, by its own books."""
    charges = provider.bill()["charges"]
    return sum(
        PRICE.cost(charge["input_tokens"], charge["output_tokens"], batch=charge["price"] == "batch")
        for charge in charges
    )


@pytest.mark.slow
def test_on_every_executor_the_bill_the_ledger_and_the_cost_agree(
    place: str, provider: Provider, tmp_path: Path
) -> None:
    evaluator, executor = PLACES[place]
    ledger = tmp_path / "calls.db"
    study = Study(Sweep(list(range(24))), evaluator(gpt(provider)), window=24)
    run = study.run(executor(), ledger=ledger, run="one")
    assert run.progress.evaluations == 24 and run.progress.failures == 0
    assert sum(provider.paid().values()) == 12  # equal calls are paid once
    assert calls_in(ledger) == 12
    if place != "threads, threads of their own":  # whose calls are the run's, but of no evaluation that anybody knows
        assert run.progress.cost == pytest.approx(bill_of(provider))
    assert Spending.of(run.ledger, 1).cost == pytest.approx(bill_of(provider))
    again = study.run(executor(), ledger=ledger, run="two", reuse="never")
    assert again.trace == run.trace and again.progress.cost == 0.0
    assert sum(provider.paid().values()) == 12


@pytest.mark.slow
def test_on_every_executor_a_budget_is_never_exceeded(place: str, provider: Provider, tmp_path: Path) -> None:
    evaluator, executor = PLACES[place]
    model = gpt(provider)
    worst = model.call("question 10", max_tokens=8, reasoning_effort="none").worst
    assert worst is not None
    limit = worst * 2.5
    study = Study(Sweep(list(range(0, 48, 2))), evaluator(model), window=24, stop=MaxCost(limit))
    run = study.run(executor(), ledger=tmp_path / "calls.db", run="one", grace=0.5)
    assert 0 < bill_of(provider) <= limit
    assert run.progress.evaluations < 24
    assert "raise MaxCost" in run.reason or "cost limit" in run.reason
    assert Spending.of(run.ledger, 1).cost == pytest.approx(bill_of(provider))


@pytest.mark.slow
@pytest.mark.parametrize("place", [place for place in PLACES if "batch" not in place], indirect=True)
def test_on_every_executor_a_told_rate_is_kept(place: str, provider: Provider, tmp_path: Path) -> None:
    evaluator, executor = PLACES[place]
    model = gpt(provider, Limits(requests_per_minute=600))
    study = Study(Sweep(list(range(0, 40, 2))), evaluator(model), window=20)
    study.run(executor(), ledger=tmp_path / "calls.db", run="one")
    times = sorted(charge["at"] for charge in provider.bill()["charges"])
    assert len(times) == 20
    # Ten a second after a burst of at most half a second's worth; what travels may be a little late or early.
    for late in range(6, 20):
        assert times[late] - times[0] >= (late - 5) / 10 - 0.15


@pytest.mark.slow
def test_in_a_pool_on_another_executor_that_cannot_reach_it_the_run_is_refused_before_a_call(
    provider: Provider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def elsewhere(hosts: Sequence[str]) -> Door:
        door = Door(hosts)
        door.way = replace(door.way, port=1)  # nobody answers there
        return door

    monkeypatch.setattr(futures, "Door", elsewhere)
    study = Study(Sweep([0, 2]), Plain(gpt(provider)))
    with ProcessPoolExecutor(1) as pool, pytest.raises(NoWayHome, match=r"ProcessPoolExecutor.*processes:N"):
        study.run(pool, ledger=tmp_path / "calls.db")
    assert not provider.bill()["charges"]


@pytest.mark.slow
def test_inline_on_any_executor_a_plain_function_that_would_wait_for_itself_is_refused(
    provider: Provider, tmp_path: Path
) -> None:
    with pytest.raises(NoWayHome, match="threads:N"):
        Study(Sweep([0]), Plain(gpt(provider))).run("inline", ledger=tmp_path / "calls.db")


@pytest.mark.slow
def test_an_executor_brings_home_what_a_call_failed_with(provider: Provider, tmp_path: Path) -> None:
    study = Study(Sweep([0]), Wrong(gpt(provider)))
    run = study.run("processes:1", ledger=tmp_path / "calls.db")
    (result,) = run.results()
    assert next(iter(result.failures.values())).kind == "bad-request"


@pytest.mark.slow
def test_no_key_travels_to_a_worker_of_an_executor(provider: Provider) -> None:
    assert b"sk-everywhere" not in packed(Plain(gpt(provider)))


def test_a_failed_call_travels_whole() -> None:
    error = loads(dumps(CallFailed("rate-limit", "later", retry_after=3.0, sent=False)))
    assert (error.kind, str(error), error.retry_after, error.sent) == ("rate-limit", "later", 3.0, False)


# ---------------------------------------------------------------- two processes, one ledger


def begin(twin: Any) -> None:
    twin.stdin.write("\n")
    twin.stdin.flush()


def end(twin: Any) -> list[str]:
    said: list[str] = twin.stdout.readline().split()
    assert twin.wait(60) == 0, twin.stderr.read()
    return said[:2]


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["async:100", "batch"])
def test_two_processes_with_equal_calls_on_one_fresh_file_are_paid_once(
    executor: str, provider: Provider, start: Start, tmp_path: Path
) -> None:
    ledger = tmp_path / "shared.db"
    twins = [start("twin.py", provider.url, ledger, name, executor, 100, stdin=-1) for name in ("one", "two")]
    for twin in twins:
        wait_for(twin, "ready")
    for twin in twins:
        begin(twin)
    assert [end(twin) for twin in twins] == [["100", "0"], ["100", "0"]]
    assert sum(provider.paid().values()) == 100
    assert calls_in(ledger) == 100
    assert not (tmp_path / "shared.db.calls").exists()


@pytest.mark.slow
def test_a_reply_of_another_process_is_seen_at_once_in_a_file_that_was_empty_executor_by_executor(
    provider: Provider, tmp_path: Path
) -> None:
    """The first run of this process finds the ledger empty; another run on it brings a reply while it works."""
    ledger = tmp_path / "shared.db"
    asked = gpt(provider)

    async def first(candidate: int, case: Case) -> Ok:
        if candidate == 1:  # by now the run knows the file as its own
            other = Study(Sweep([4]), Awaiting(asked))
            await asyncio.to_thread(other.run, "async:1", ledger=ledger, run="other")
        reply = await asked.generate(f"question {candidate}", max_tokens=8, reasoning_effort="none")
        return Ok(1.0, reply.cached)

    run = Study(Sweep([0, 1, 2]), first, window=1).run("async:1", ledger=ledger, run="first")
    assert [next(iter(result.outcomes.values())).data for result in run.results()] == [False, False, True]  # type: ignore[union-attr]
    assert sum(provider.paid().values()) == 3


@pytest.mark.slow
def test_a_call_of_a_process_that_died_is_paid_by_the_one_that_waited_for_it(
    provider: Provider, start: Start, tmp_path: Path
) -> None:
    ledger = tmp_path / "shared.db"
    provider.post("faults", {"faults": [{"kind": "hang", "times": 1}]})
    first, second = (start("twin.py", provider.url, ledger, name, "async:1", 1, stdin=-1) for name in ("one", "two"))
    for twin in (first, second):
        wait_for(twin, "ready")
    begin(first)
    while provider.bill()["counts"]["broken"].get("hang", 0) < 1:
        time.sleep(0.02)
    begin(second)
    time.sleep(0.5)
    assert second.poll() is None and not provider.bill()["charges"]  # it waits
    first.kill()
    assert end(second) == ["1", "0"]
    assert len(provider.bill()["charges"]) == 1


@pytest.mark.slow
def test_a_batch_of_a_process_that_died_is_collected_by_the_one_that_waited_and_paid_once(
    provider: Provider, start: Start, tmp_path: Path
) -> None:
    ledger = tmp_path / "shared.db"
    first = start("twin.py", provider.url, ledger, "one", "slow batch", 20, stdin=-1)
    second = start("twin.py", provider.url, ledger, "two", "batch", 20, stdin=-1)
    for twin in (first, second):
        wait_for(twin, "ready")
    begin(first)
    while not provider.bill()["charges"]:
        time.sleep(0.02)
    begin(second)
    time.sleep(0.5)
    first.kill()
    assert end(second) == ["20", "0"]
    bill = provider.bill()
    assert len(bill["charges"]) == 20 and not bill["duplicates"] and len(bill["batches"]) == 1
