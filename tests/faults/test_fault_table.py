"""Rows of the fault table that no other test has with their numbers; `make campaign` raises those to the table's."""

from __future__ import annotations

import asyncio
import functools
import os
import random
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from batch_talks import TALKS, TURNS, talks
from fault_world import PROGRAMS, Start, finish, look, many
from searches import Plain, search

from fanfold import Case, Study, Sweep
from fanfold.ledger import Commits, Insert, Ledger
from fanfold.limits import Limits
from fanfold.models.batch.executor import BatchExecutor
from fanfold.models.batch.protocol import BatchResults
from fanfold.models.http import Response
from fanfold.models.model import Model
from fanfold.models.providers.openai import OpenAI, OpenAIBatches
from fanfold.models.simulated import SimulatedTransport
from fanfold.simulator import AccountLimits, Fault, Faults, Latency, Simulator, SimulatorConfig
from fanfold.testing import run_virtual

sys.path.insert(0, str(Path(__file__).parents[1] / "campaign"))

from campaign_world import Plan, World
from world_loop import LIFE

CALLS = TALKS * TURNS
both_styles = pytest.mark.parametrize("style", ["openai", "anthropic"])


def batched(style: str, name: str, *faults: Fault, seed: int = 0) -> tuple[Any, Simulator]:
    """Conversations in batches at a provider with faults."""
    config = SimulatorConfig(seed=1, turnaround=Latency(30.0), faults=Faults(faults, seed))
    simulator = Simulator(config)
    study = talks(style, name, "http://calm.test", lambda: SimulatedTransport(simulator))
    return run_virtual(study.run_async(BatchExecutor(style, poll=10.0, smallest=1))), simulator


@functools.cache
def calm(style: str) -> str:
    """The trace of the same conversations at a provider without faults."""
    return str(batched(style, "talk")[0].trace)


# -- batches -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("how", ["lost_drop", "lost_502", "lost_hang"])
@both_styles
def test_a_create_whose_answer_is_lost_leaves_one_paid_batch(style: str, how: str) -> None:
    for seed in range(many(2, 50)):
        lost = Fault(how, times=1, start=(0.0, 20.0, 40.0)[seed % 3])
        run, simulator = batched(style, "talk", lost, seed=seed)
        assert run.progress.failures == 0
        assert simulator.billing.duplicates() == {}
        assert len(simulator.charges) == CALLS
        assert set(Counter(batch.payload for batch in simulator.billing.batches).values()) == {1}


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.5, 0.0, 0.01, 0.99, 1.0][: many(1, 5)])
@pytest.mark.parametrize("kind", ["batch_expired", "batch_cancelled"])
@both_styles
def test_what_a_batch_had_done_when_it_ended_is_used_and_never_paid_again(style: str, kind: str, share: float) -> None:
    run, simulator = batched(style, "talk", Fault(kind, value=share, times=1))
    assert run.progress.failures == 0
    assert run.trace == calm(style)
    assert simulator.billing.duplicates() == {}
    assert len(simulator.charges) == CALLS


@pytest.mark.slow
@both_styles
def test_missing_repeated_unknown_and_mixed_lines_reach_the_right_conversation(style: str) -> None:
    for seed in range(many(6, 500)):
        rng = random.Random(seed)
        kinds = rng.sample(("batch_shuffled", "batch_duplicates", "batch_missing", "batch_unknown"), rng.randint(1, 4))
        run, simulator = batched(style, "talk", *(Fault(kind, times=rng.randint(1, 2)) for kind in kinds), seed=seed)
        assert (run.progress.failures, run.trace) == (0, calm(style)), (seed, kinds)
        repeated = sum(simulator.billing.duplicates().values())
        assert not repeated or "batch_missing" in kinds, (seed, kinds)


@pytest.mark.slow
@both_styles
def test_fields_and_words_from_the_future_change_nothing(style: str) -> None:
    for seed in range(many(4, 100)):
        word = random.Random(seed).choice(("pondering", "queued_for_review", "ACTIVE", "", "42"))
        future = Fault("extra_fields", probability=0.7), Fault("batch_status", value=word or "none")
        run, simulator = batched(style, "talk", *future, seed=seed)
        assert (run.trace, len(simulator.charges)) == (calm(style), CALLS)


def test_results_that_are_torn_anywhere_give_their_whole_lines() -> None:
    lines = [
        b'{"custom_id":"t-%d","response":{"status_code":200,"body":{"choices":[{"message":{"content":"%d"},'
        b'"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":1}}},"error":null}' % (n, n)
        for n in range(50)
    ]
    whole = b"\n".join(lines)
    ends = [len(b"\n".join(lines[: n + 1])) for n in range(50)]

    class Torn(SimulatedTransport):
        cut = 0

        async def download(self, url: str, headers: Mapping[str, str], sink: Any, **_: Any) -> Response:
            sink(whole[: self.cut])
            return Response(200, {}, b"")

    way = Torn(Simulator())
    model = Model("gpt-6-luna", OpenAI(), "http://api.test/v1", Limits(), None, connect=lambda: way, key="k")

    async def read() -> None:
        protocol = OpenAIBatches(model)
        for way.cut in range(0, len(whole) + 1, many(101, 1)):
            results = BatchResults()
            await protocol._download("http://api.test/v1/files/f/content", results)
            complete = sum(end <= way.cut for end in ends)
            assert list(results.lines) == [f"t-{n}" for n in range(complete)], way.cut
            assert results.torn <= 1

    run_virtual(read())


# -- a provider that says no -------------------------------------------------------------------------------------------


class Watched(SimulatedTransport):
    """Remembers when requests were sent."""

    def __init__(self, simulator: Simulator) -> None:
        super().__init__(simulator)
        self.times: list[float] = []

    async def request(self, *arguments: Any, **options: Any) -> Response:
        self.times.append(asyncio.get_running_loop().time())
        return await super().request(*arguments, **options)


@pytest.mark.slow
def test_a_storm_of_429_for_five_minutes_loses_no_request_and_stays_below_the_limit() -> None:
    limits = AccountLimits(rpm=600)
    storm = Fault("rate_limit", probability=0.5, end=300.0, value=1.0)
    simulator = Simulator(SimulatorConfig(limits=limits, latency=Latency(0.5), faults=Faults((storm,))))
    way = Watched(simulator)
    told = Limits(requests_per_minute=600)
    model = Model("gpt-6-luna", OpenAI(), "http://api.test/v1", told, None, connect=lambda: way, key="k")

    async def one(candidate: int, case: Case) -> float:
        return float(len((await model.generate(f"question {candidate}", max_tokens=5)).text))

    run = run_virtual(Study(Sweep(range(count := many(150, 1500))), one).run_async("async:64"))
    assert run.progress.failures == 0
    assert len(simulator.charges) == count
    assert max(sum(start <= at < start + 60 for at in way.times) for start in way.times) <= 600 * 1.05


# -- the ledger --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_answer_that_was_read_and_is_not_durable_is_paid_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver dies between reading a reply and writing it down."""
    real, left = Commits.put, 0

    def put(self: Commits, statement: Insert, row: Any, then: Any = None) -> None:
        nonlocal left
        left -= statement is Insert.CALL
        if statement is Insert.CALL and left == 0 and (life := LIFE.get()) is not None:
            asyncio.get_running_loop().kill(life)  # type: ignore[attr-defined]
        real(self, statement, row, then)

    monkeypatch.setattr(Commits, "put", put)
    for number in range(many(8, 100)):
        left = 1 + number % 6
        story = World(Plan("talks", 1, "async", 1), f"answer {number}").story
        assert (story.kills, story.problems, story.repeated) == (1, [], 1), number


@pytest.mark.slow
@pytest.mark.parametrize(("scene", "place"), [("functions", "async"), ("talks", "processes"), ("talks", "batch")])
def test_a_disk_that_is_full_at_any_write_ends_the_run_and_a_resume_completes_it(scene: str, place: str) -> None:
    writes = World(Plan(scene, 1, place, 2), "calm").story.counts["commits"]
    struck = 0
    for number in range(0, writes, many(3, 1)):
        story = World(Plan(scene, 1, place, 2, commits={number: "full"}), f"full {number}").story
        assert story.problems == [], number
        struck += story.faults["full"]
    assert struck >= writes // many(3, 1) // 2


def test_no_call_is_paid_once_the_disk_is_full() -> None:
    """A worker dies, and its evaluation is tried again while the run is ending: found by seed 1577."""
    plan = Plan("ask", 1, "async", 1, commits={4: "full"}, evaluations={1: "died_within"})
    story = World(plan, "1577").story
    assert (story.faults["full"], story.faults["died_within"], story.problems) == (1, 1, [])


@pytest.mark.slow
def test_of_two_runners_of_one_run_that_start_together_one_is_refused(start: Start, tmp_path: Path) -> None:
    trace = search("genetic", "all", Plain(None)).run().trace
    for number in range(many(2, 50)):
        ledger, side = tmp_path / f"{number}.db", tmp_path / f"{number}.txt"
        said = [finish(process) for process in [start("contender.py", "search", ledger, side) for _ in range(2)]]
        assert trace in said
        assert all(words == trace or words.startswith("RunLocked: ") for words in said), said
        assert len(look(ledger).told) == 60


@pytest.mark.slow
def test_a_program_that_holds_the_file_is_waited_for(tmp_path: Path) -> None:
    seconds = many(1, 45)
    Ledger(path := tmp_path / "l.db").close()
    holder = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    holder.execute("BEGIN IMMEDIATE")
    began = time.monotonic()
    threading.Timer(seconds, holder.execute, ["COMMIT"]).start()
    run = Study(Sweep([1, 2, 3]), lambda candidate, case: float(candidate)).run("inline", ledger=path)
    assert run.progress.told == 3
    assert time.monotonic() - began >= seconds - 0.5
    run.ledger.close()
    holder.close()


# -- candidates --------------------------------------------------------------------------------------------------------


def test_one_poisoned_candidate_in_a_hundred_costs_nobody_else() -> None:
    tries: Counter[int] = Counter()

    async def evaluate(candidate: int, case: Case) -> float:
        tries[candidate] += 1
        if candidate % 100 == 99:
            raise ValueError("poison")
        return float(candidate)

    count = many(300, 3000)
    run = run_virtual(Study(Sweep(range(count)), evaluate, retries=2).run_async("async:16"))
    assert run.progress.failures == count // 100
    assert run.progress.told == count
    assert {tries[candidate] for candidate in range(99, count, 100)} == {3}
    assert sum(tries.values()) == count + 2 * (count // 100)


# -- memory ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("FANFOLD_CAMPAIGN"), reason="takes minutes: make campaign")
def test_memory_at_a_hundred_thousand_conversations_is_that_at_ten_thousand() -> None:
    program = str(PROGRAMS / "conversations.py")
    small, large = (
        int(subprocess.run([sys.executable, program, str(count)], check=True, stdout=subprocess.PIPE).stdout)
        for count in (10_000, 100_000)
    )
    assert large <= 1.5 * small, (small, large)
