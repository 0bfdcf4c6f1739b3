"""What a run says that it paid is what the provider charged, and its budget holds, whatever happens on the way."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from fanfold import Case, MaxCost, MaxTrials, Run, Study, Sweep
from fanfold.ledger import Ledger, RunView
from fanfold.models.batch.executor import BatchExecutor
from fanfold.models.model import Model
from fanfold.models.naming import model
from fanfold.models.pricing import price_of
from fanfold.models.simulated import SimulatedTransport
from fanfold.simulator.billing import Rates
from fanfold.simulator.config import Latency, SimulatorConfig
from fanfold.simulator.core import Simulator
from fanfold.testing import run_virtual

#: The provider's price lists, written down here once more.
RATES = {"gpt-6-luna": Rates(0.1, 0.5, 0.01, 0.125), "claude-haiku-5-5": Rates(0.1, 0.5, 0.01, 0.125)}
NAMES = {"openai": "gpt-6-luna", "anthropic": "claude-haiku-5-5"}
#: The most that a call of `Asks` may cost.
WORST = 0.00006


class World:
    """A simulated provider, a model there, and the provider's bill."""

    def __init__(self, style: str = "openai", **settings: Any) -> None:
        settings.setdefault("latency", Latency(1.0, 0.5))
        settings.setdefault("turnaround", Latency(600.0))
        self.name = NAMES[style]
        self.simulator = Simulator(SimulatorConfig(**settings))
        transport = SimulatedTransport(self.simulator)
        self.model = replace(model(f"simulated/{self.name}"), connect=lambda: transport, key="k")

    @property
    def bill(self) -> float:
        return self.simulator.billing.bill(RATES[self.name])


@dataclass(frozen=True)
class Asks:
    """An evaluator of two calls, the second about what the first one said."""

    model: Model
    fingerprint: str = "asks"

    async def __call__(self, candidate: Any, case: Case) -> float:
        first = await self.model.generate(f"one {candidate}", max_tokens=30, reasoning_effort="none")
        second = await self.model.generate(f"two {first.text}", max_tokens=30, reasoning_effort="none")
        return float(len(first.text + second.text))


def executor(mode: str) -> Any:
    return BatchExecutor(mode.partition(":")[2], smallest=2) if mode.startswith("batch") else mode


def study(world: World, candidates: Any = 6, **options: Any) -> Study[Any]:
    given = range(candidates) if isinstance(candidates, int) else candidates
    return Study(Sweep(given), Asks(world.model), window=4, **options)


async def go(study: Study[Any], mode: str, ledger: Path, name: str = "a", **options: Any) -> Run[Any]:
    return await study.run_async(executor(mode), ledger=ledger, run=name, **options)


def do(study: Study[Any], mode: str, ledger: Path, name: str = "a", **options: Any) -> Run[Any]:
    return run_virtual(go(study, mode, ledger, name, **options))


def payments(ledger: Path, run: str | None = None) -> tuple[int, float]:
    with contextlib.closing(sqlite3.connect(ledger)) as db:
        where = "" if run is None else f"WHERE run = (SELECT id FROM run WHERE name = '{run}')"
        count, cost = db.execute(f"SELECT count(*), total(cost) FROM payment {where}").fetchone()
        return int(count), float(cost)


MODES = ["async:1", "async:4", "batch:openai", "batch:anthropic"]


@pytest.mark.slow
@pytest.mark.parametrize("cache", ["on", "off", "refresh"])
@pytest.mark.parametrize("mode", MODES)
def test_what_a_run_paid_is_what_the_provider_charged(mode: str, cache: Any, tmp_path: Path) -> None:
    world = World("anthropic" if "anthropic" in mode else "openai")
    run = do(study(world), mode, tmp_path / "l.db", cache=cache)
    assert payments(tmp_path / "l.db") == (12, pytest.approx(world.bill))
    assert run.progress.cost == pytest.approx(world.bill) == run.money.cost and world.bill > 0
    assert run.money.calls == len(world.simulator.charges) == 12
    assert run.money.batched == (12 if mode.startswith("batch") else 0) and run.money.unpriced == 0


@pytest.mark.slow
@pytest.mark.parametrize("cache", ["off", "refresh"])
def test_two_runs_in_one_file_keep_what_each_has_paid(cache: Any, tmp_path: Path) -> None:
    """A reply that another run asks for again takes the first one's place in the cache, and nothing else."""
    world, ledger = World(), tmp_path / "l.db"
    first = do(study(world), "async:2", ledger, "first")
    before, paid = world.bill, first.money
    second = do(study(world), "async:2", ledger, "second", cache=cache)
    assert payments(ledger, "first") == (12, pytest.approx(before)) and first.money == paid
    assert payments(ledger, "second") == (12, pytest.approx(world.bill - before))
    assert second.money.cost == pytest.approx(world.bill - before)
    with contextlib.closing(sqlite3.connect(ledger)) as db:
        assert db.execute("SELECT count(*) FROM call").fetchone() == (12,)


@pytest.mark.slow
def test_a_reply_from_the_ledger_is_not_paid_again(tmp_path: Path) -> None:
    world, ledger = World(), tmp_path / "l.db"
    do(study(world), "async:2", ledger, "first")
    again = do(study(world), "async:2", ledger, "second")
    assert payments(ledger, "second") == (0, 0.0) and len(world.simulator.charges) == 12
    assert (again.money.calls, again.money.from_ledger) == (0, 12)


# -- limits --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("cache", ["on", "off", "refresh"])
@pytest.mark.parametrize("mode", ["async:1", "async:8", "batch:openai"])
def test_a_budget_is_never_exceeded_by_the_bill_however_often_the_run_is_resumed(
    mode: str, cache: Any, tmp_path: Path
) -> None:
    world, limit = World(), 0.0004
    told = -1
    for _ in range(3):
        run = do(study(world, 1000, stop=MaxCost(limit)), mode, tmp_path / "l.db", cache=cache, grace=10_000.0)
        assert world.bill <= limit and payments(tmp_path / "l.db")[1] == pytest.approx(world.bill)
        assert run.progress.failures == 0 and run.progress.told >= told
        told = run.progress.told
    assert world.bill > limit - 2 * WORST * (8 if mode.startswith("batch") else 1)


@pytest.mark.slow
def test_a_budget_counts_what_a_run_paid_before_it_asked_for_all_again(tmp_path: Path) -> None:
    """Replies that were replaced in the cache were paid all the same."""
    world, limit, ledger = World(), 0.0004, tmp_path / "l.db"
    do(study(world, 1000, stop=MaxTrials(4)), "async:2", ledger)
    do(study(world, 1000, stop=MaxTrials(4)), "async:2", ledger, "other", cache="refresh")
    before, own = world.bill, payments(ledger, "a")[1]
    do(study(world, 1000, stop=MaxCost(limit)), "async:2", ledger, cache="refresh")
    assert own + world.bill - before <= limit


@pytest.mark.slow
def test_a_budget_is_shared_with_the_runs_beside_a_run(tmp_path: Path) -> None:
    world, limit, ledger = World(), 0.0006, tmp_path / "l.db"

    async def conclude(run: Run[Any], go: Any) -> Any:
        from fanfold.summary import Summary

        for word in ("x", "y"):
            await go(word, study(world, [f"{word} {number}" for number in range(1000)]))
        return Summary()

    whole = study(world, 3, stop=MaxCost(limit), conclude=conclude)
    for _ in range(3):
        run = do(whole, "async:2", ledger)
        assert world.bill <= limit and run.money.cost == pytest.approx(world.bill)
    assert payments(ledger, "a")[1] < run.money.cost == pytest.approx(payments(ledger)[1])


@pytest.mark.slow
def test_a_budget_refuses_to_continue_a_run_that_paid_a_price_nobody_knows(tmp_path: Path) -> None:
    world = World()
    unpriced = replace(world.model, price=None)
    asked = Study(Sweep(range(1000)), Asks(unpriced), stop=MaxTrials(2))
    run = do(asked, "async:2", tmp_path / "l.db")
    assert (run.money.unpriced, run.money.calls) == (4, 4) and "unknown (4 calls" in run.money.cost_text
    charged = len(world.simulator.charges)
    run = do(replace(study(world, 1000), window=None, stop=MaxCost(1.0)), "async:2", tmp_path / "l.db")
    assert "a price that is not known" in run.reason and "continue without MaxCost" in run.reason
    assert len(world.simulator.charges) == charged


def test_a_stop_by_the_budget_does_not_wait_for_calls_that_were_never_sent(tmp_path: Path) -> None:
    from fanfold.calls import Call, CallBroker
    from fanfold.errors import CallFailed
    from fanfold.money import Budget

    async def main() -> tuple[float, list[CallFailed]]:
        stops: list[CallFailed] = []
        broker = CallBroker(budget=Budget(1.0), halt=stops.append)

        async def never(call: Call) -> Any:
            raise AssertionError("sent")

        calls = [Call("m", "e", str(number), 0, 1, 1, 2.0) for number in range(3)]
        asked = [asyncio.ensure_future(broker.answer(call, never)) for call in calls]
        await asyncio.sleep(1)
        assert not broker.paying
        begun = broker.loop.time()
        await broker.close(grace=60.0)
        took = broker.loop.time() - begun
        await asyncio.gather(*asked, return_exceptions=True)
        return took, stops

    took, stops = run_virtual(main())
    assert took == 0 and stops and stops[0].kind == "budget"


def test_a_stop_by_the_budget_lets_a_call_arrive_that_is_paid_for(tmp_path: Path) -> None:
    from fanfold.calls import Call, CallBroker, Reply, Sent

    async def main() -> float:
        broker = CallBroker()

        async def slow(call: Call) -> Sent:
            await asyncio.sleep(5)
            return Sent(Reply(text="late", cost=0.1))

        asked = asyncio.ensure_future(broker.answer(Call("m", "e", "x", 0, 1, 1, 0.2), slow))
        await asyncio.sleep(1)
        assert broker.paying
        begun = broker.loop.time()
        await broker.close(grace=60.0)
        assert (await asked).text == "late"
        return broker.loop.time() - begun

    assert run_virtual(main()) == pytest.approx(4)


# -- kills ---------------------------------------------------------------------------------------------------------


async def killed(study: Study[Any], mode: str, ledger: Path, when: Callable[[], bool], **options: Any) -> Path:
    """Run until `when`, and give the ledger as a process killed at that moment leaves it."""
    left = ledger.with_name("left.db")
    run = asyncio.ensure_future(go(study, mode, ledger, grace=0.0, **options))
    while not run.done() and not when():
        await asyncio.sleep(0.25)
    assert not run.done(), "it was over before it could be killed"
    for end in ("", "-wal"):
        if (part := ledger.with_name(ledger.name + end)).exists():
            shutil.copy(part, left.with_name(left.name + end))
    run.cancel()
    await asyncio.gather(run, return_exceptions=True)
    return left


@pytest.mark.slow
@pytest.mark.parametrize("cache", ["on", "off", "refresh"])
def test_after_a_kill_at_most_what_was_in_flight_is_not_among_what_was_paid(cache: Any, tmp_path: Path) -> None:
    world, limit, slots = World(), 0.0006, 3
    asked = study(world, 1000, stop=MaxCost(limit))

    async def main() -> None:
        ledger = tmp_path / "l.db"
        left = await killed(asked, f"async:{slots}", ledger, lambda: world.bill > limit / 2, cache=cache)
        lost = world.bill - payments(left)[1]
        assert 0 <= lost <= slots * WORST
        await go(asked, f"async:{slots}", left, cache=cache, grace=10_000.0)
        assert payments(left)[1] <= limit and world.bill - payments(left)[1] == pytest.approx(lost)

    run_virtual(main())


@pytest.mark.slow
@pytest.mark.parametrize("style", ["openai", "anthropic"])
def test_after_a_kill_a_batch_that_was_paid_is_collected_and_counted_once(style: str, tmp_path: Path) -> None:
    world = World(style)
    books = world.simulator.billing

    async def main() -> None:
        left = await killed(study(world), f"batch:{style}", tmp_path / "l.db", lambda: len(books.batches) > 0)
        run = await go(study(world), f"batch:{style}", left)
        assert payments(left) == (12, pytest.approx(world.bill)) and run.money.cost == pytest.approx(world.bill)
        assert run.money.batched == 12 and not books.duplicates()

    run_virtual(main())


@pytest.mark.slow
@pytest.mark.parametrize("style", ["openai", "anthropic"])
def test_a_budget_counts_what_open_batches_may_still_charge(style: str, tmp_path: Path) -> None:
    """Killed with a batch under way and resumed without batches, a run pays again, but not beyond its limit."""
    world, limit = World(style), 0.0004
    asked = study(world, 1000, stop=MaxCost(limit))

    async def main() -> None:
        batches = world.simulator.billing.batches
        left = await killed(asked, f"batch:{style}", tmp_path / "l.db", lambda: len(batches) > 0)
        assert payments(left)[0] == 0
        run = await go(asked, "async:2", left, grace=100.0)
        paid = payments(left)[1]
        assert "open batches" in run.reason and paid == pytest.approx(world.bill) and paid > 0
        await asyncio.sleep(3600)  # the batch ends, and is charged
        assert paid < world.bill <= limit

    run_virtual(main())


@pytest.mark.slow
def test_a_budget_lets_a_resumed_run_collect_its_open_batches(tmp_path: Path) -> None:
    """What is owed for them is not reserved a second time: money for the run and one call more is enough."""
    calm = World()
    do(study(calm, 4), "batch:openai", tmp_path / "calm.db")
    world, limit = World(), calm.bill + WORST / 1.2

    async def main() -> None:
        batches = world.simulator.billing.batches
        asked = study(world, 4, stop=MaxCost(limit))
        left = await killed(asked, "batch:openai", tmp_path / "l.db", lambda: len(batches) > 0)
        run = await go(asked, "batch:openai", left)
        assert run.progress.told == 4 and world.bill <= limit and payments(left)[1] == pytest.approx(world.bill)

    run_virtual(main())


@pytest.mark.slow
def test_calls_of_an_open_batch_of_unknown_price_stop_a_budget_that_cannot_collect_them(tmp_path: Path) -> None:
    world = World()
    asked = study(world, 1000, stop=MaxCost(0.0004))

    async def main() -> None:
        batches = world.simulator.billing.batches
        left = await killed(asked, "batch:openai", tmp_path / "l.db", lambda: len(batches) > 0)
        with contextlib.closing(sqlite3.connect(left)) as db, db:
            db.execute("DELETE FROM owed")  # as in a ledger of an older version
        run = await go(asked, "async:2", left)
        assert "resume with the executor batch:auto" in run.reason and not payments(left)[0]

    run_virtual(main())


@pytest.mark.slow
def test_what_a_ledger_of_an_older_version_paid_still_counts(tmp_path: Path) -> None:
    world, ledger = World(), tmp_path / "l.db"
    do(study(world), "async:2", ledger)
    with contextlib.closing(sqlite3.connect(ledger)) as db, db:
        tables = ("payment", "owed", "superseded", "change", "note", "learnt", "cell_call", "request", "comment")
        for later in (*tables, "blob_holder", "stored_blob", "run_count"):
            db.execute(f"DROP TABLE {later}")
        for later in ("batch_run", "batch_state", "trial_told", "evaluation_failed", "evaluation_reused"):
            db.execute(f"DROP INDEX {later}")
        db.execute("PRAGMA user_version = 3")
    with Ledger(ledger, readonly=True) as opened:
        paid = RunView.open(opened, "a").costs()
    assert (paid.calls, paid.cost) == (12, pytest.approx(world.bill))
    assert price_of(world.name) is not None
