"""What calls in batches promise, seen from outside: what was sent, what was paid, and what the user is told.

Each of these has been seen to fail on the fault it guards against (`make mutants`).
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import re
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fanfold import Case, MaxTrials, Study, Sweep
from fanfold.calls import Call, CallBroker, Reply
from fanfold.context import enter, leave
from fanfold.display import told
from fanfold.errors import CallFailed
from fanfold.events import BatchChanged, Event, Notice, WaveAnswered, WaveSent
from fanfold.limits import Limits
from fanfold.models.batch import executor
from fanfold.models.batch.executor import THREADS, BatchExecutor
from fanfold.models.batch.journal import Parked
from fanfold.models.batch.slices import MOST, Slices
from fanfold.models.http import Response
from fanfold.models.model import Model
from fanfold.models.pricing import Price
from fanfold.models.providers.anthropic import Anthropic, AnthropicBatches
from fanfold.models.providers.local import Local
from fanfold.models.providers.openai import OpenAI, OpenAIBatches
from fanfold.models.simulated import SimulatedTransport
from fanfold.simulator import Latency, Simulator, SimulatorConfig
from fanfold.testing import run_virtual

STYLES = pytest.mark.parametrize("style", ["openai", "anthropic"])


class World:
    """A simulated provider and a model there."""

    def __init__(self, style: str, transport: type[SimulatedTransport] = SimulatedTransport) -> None:
        self.simulator = Simulator(SimulatorConfig(turnaround=Latency(600.0), latency=Latency(1.0)))
        wire, path = (OpenAI(), "/v1") if style == "openai" else (Anthropic(), "")
        name = "gpt-6-luna" if style == "openai" else "claude-haiku-5-5"
        carried = transport(self.simulator)
        self.events: list[Event] = []
        self.model = Model(
            name,
            wire,
            f"http://api.test{path}",
            Limits(),
            Price(1.0, 2.0),
            timeout=60.0,
            key="k",
            connect=lambda: carried,
        )

    def evaluate(self, turns: int = 1) -> Callable[..., Any]:
        async def talk(candidate: int, case: Case) -> float:
            for turn in range(turns):
                await self.model.generate(f"{candidate} {turn}", max_tokens=5)
            return float(candidate)

        talk.fingerprint = f"talks for {turns} turns"  # type: ignore[attr-defined]
        return talk

    def run(self, candidates: int, turns: int = 1, **options: Any) -> tuple[Any, list[str]]:
        """The run, and the sentences for its user."""
        events = self.events = []
        study = Study(Sweep(range(candidates)), self.evaluate(turns), window=candidates)
        run = run_virtual(study.run_async(BatchExecutor(**options), watch=events.append))
        return run, [event.message for event in events if isinstance(event, Notice)]

    @property
    def waves(self) -> list[int]:
        return [batch.requests for batch in self.simulator.billing.batches]

    @property
    def paid(self) -> tuple[int, int]:
        """How many requests were charged in batches, and how many at full price."""
        prices = [charge.price for charge in self.simulator.charges]
        return prices.count("batch"), prices.count("realtime")


@pytest.mark.slow
def test_more_conversations_than_there_are_threads_travel_in_one_wave() -> None:
    world = World("openai")
    world.run(THREADS + 40)
    assert world.waves == [THREADS + 40]


@pytest.mark.slow
@STYLES
def test_the_user_is_told_of_every_wave_that_leaves_and_comes_back(style: str) -> None:
    world = World(style)
    run, _ = world.run(3, turns=2)
    waves = [event for event in world.events if isinstance(event, WaveSent | WaveAnswered)]
    kinds = [(type(event), event.number, event.requests, event.model) for event in waves]
    assert kinds == [(kind, wave, 3, world.model.id) for wave in (1, 2) for kind in (WaveSent, WaveAnswered)]
    assert all(event.seconds > 0 for event in waves if isinstance(event, WaveAnswered))
    assert [sorted(event.calls) for event in waves if isinstance(event, WaveSent)] == [
        [(trial, "0", turn) for trial in range(3)] for turn in (0, 1)
    ]
    assert [event.tag for event in waves[::2]] == [wave.tag for wave in run.view.waves()]
    assert [(wave.requests, wave.answered, wave.state) for wave in run.view.waves()] == [(3, 3, "done")] * 2
    states = [event.state for event in world.events if isinstance(event, BatchChanged)]
    assert states == ["intent", "submitted", "done"] * 2


@STYLES
def test_the_shell_says_when_a_wave_leaves_and_when_it_is_back(style: str) -> None:
    world = World(style)
    world.run(3, turns=2)
    lines = [line for event in world.events if (line := told(event)) is not None]
    assert lines[::2] == [f"wave {wave}, turn {wave}: 3 requests to {world.model.id}" for wave in (1, 2)]
    assert re.fullmatch(r"wave 1: answered after [\w. ]+, [\w. ]+ per request", lines[1])
    assert len(lines) == 4


def test_a_wave_of_calls_of_several_turns_names_the_first_and_the_last() -> None:
    assert told(WaveSent(2, "x/y", 3, "tag", ((0, "a", 1), (0, "b", 3), (1, "a", 2)))) == (
        "wave 2, turns 2-4: 3 requests to x/y"
    )


@pytest.mark.slow
@STYLES
def test_a_part_of_the_results_is_not_taken_for_all_of_them_and_nothing_is_paid_twice(style: str) -> None:
    class Part(SimulatedTransport):
        """Gives the first line of the results, as a part (206), before it gives all."""

        parts = 0

        async def download(self, url: str, headers: Any, sink: Any, *, deadline: float | None = None) -> Response:
            whole: list[bytes] = []
            response = await super().download(url, headers, whole.append, deadline=deadline)
            if not Part.parts:
                Part.parts += 1
                sink(b"".join(whole).split(b"\n")[0] + b"\n")
                return Response(206, response.headers, b"")
            for piece in whole:
                sink(piece)
            return response

    world = World(style, Part)
    world.run(4)
    assert Part.parts == 1
    assert world.paid == (4, 0)


def test_a_model_that_is_not_reached_by_http_has_no_batches() -> None:
    world = World("openai")
    assert world.model.provider.batches is OpenAIBatches
    assert World("anthropic").model.provider.batches is AnthropicBatches
    assert Local().batches is None


@pytest.mark.slow
@STYLES
def test_what_is_not_done_by_the_deadline_is_cancelled_and_goes_out_plainly(style: str) -> None:
    world = World(style)
    run, told = world.run(3, deadline=100.0)
    assert run.progress.failures == 0
    assert world.paid == (0, 3)
    assert any("is not done by its deadline: what is left of its 3 calls goes out at once" in text for text in told)


@pytest.mark.slow
@STYLES
def test_no_more_tokens_than_allowed_gather_in_one_wave_or_wait_at_the_provider(style: str) -> None:
    world = World(style)
    tokens = _tokens(world)
    run, _ = world.run(6, enqueued=2 * tokens)
    assert world.waves == [2, 2, 2] and run.progress.failures == 0
    created = [batch.at for batch in world.simulator.billing.batches]
    assert all(later - earlier >= 590.0 for earlier, later in itertools.pairwise(created)), "one after the other"


def _tokens(world: World) -> int:
    """What one call is estimated at."""
    seen: list[int] = []

    class Noting(CallBroker):
        async def answer(self, call: Call, send: Any) -> Reply:
            seen.append(call.input_tokens)
            return Reply(text="")

    async def main() -> None:
        before = enter(broker=Noting())
        await world.model.generate("0 0", max_tokens=5)
        leave(before)

    run_virtual(main())
    return seen[0]


@STYLES
def test_the_calls_of_a_batch_that_is_gone_are_sent_again(style: str) -> None:
    class Gone(SimulatedTransport):
        """Knows no batch any more once it is made."""

        async def request(self, method: str, url: str, *args: Any, **options: Any) -> Response:
            if method == "GET" and "/batches/" in url:
                return Response(404, {}, b'{"error": {"type": "not_found_error", "message": "no such batch"}}')
            return await super().request(method, url, *args, **options)

    world = World(style, Gone)
    run, told = world.run(3)
    assert run.progress.failures == 3 and world.waves == [3, 3, 3], "not for ever: each may be charged"
    assert [wave.state for wave in run.view.waves()] == ["failed"] * 3
    assert any("gives no results" in text and "go into the next batch" in text for text in told)
    run, _ = world.run(3, fallback="realtime")
    assert run.progress.failures == 0 and world.paid[1] == 3


@STYLES
def test_complete_results_are_downloaded_once_and_an_answer_of_another_status_is_none(style: str) -> None:
    class Early(SimulatedTransport):
        """Says at first that the results will come, with a status of its own."""

        statuses: tuple[int, ...] = ()

        async def download(self, url: str, headers: Any, sink: Any, *, deadline: float | None = None) -> Response:
            response = await super().download(url, headers, sink, deadline=deadline)
            Early.statuses += (response.status if Early.statuses else 202,)
            return dataclasses.replace(response, status=Early.statuses[-1])

    world = World(style, Early)
    run, _ = world.run(1)
    assert Early.statuses == (202, 200) and run.progress.failures == 0
    world.run(1)
    assert Early.statuses == (202, 200, 200)


@STYLES
def test_whoever_detaches_leaves_as_soon_as_every_call_is_in_a_batch(style: str, tmp_path: Path) -> None:
    world = World(style)
    study = Study(Sweep(range(2)), world.evaluate(), window=2)
    run = run_virtual(study.run_async(BatchExecutor(detach=True), ledger=tmp_path / "ledger.db", run="it"))
    assert (run.reason, world.waves) == ("detached", [2])


@STYLES
def test_whoever_detaches_does_not_wait_for_room_in_the_queue_and_says_what_is_left(style: str, tmp_path: Path) -> None:
    world = World(style)
    study = Study(Sweep(range(6)), world.evaluate(), window=6)
    batches = BatchExecutor(detach=True, enqueued=2 * _tokens(world))
    run = run_virtual(study.run_async(batches, ledger=tmp_path / "ledger.db", run="it"))
    assert (run.reason, world.waves) == ("detached", [2])
    assert run.progress.elapsed < 60, "the first batch takes ten minutes"
    assert any("4 calls wait for room in the provider's queue" in text for text in batches.left)


def test_a_call_in_a_batch_leaves_out_what_the_model_has_refused() -> None:
    model = World("openai").model

    async def main() -> tuple[str, str]:
        call = model.call("hello", max_tokens=5, seed=3)
        parked = Parked(call, model, 0.0, asyncio.get_running_loop().create_future())
        before = parked.sendable().body
        assert parked.learns(CallFailed("bad-request", "no seed", parameters=("seed",)))
        return before, parked.sendable().body

    before, after = run_virtual(main())
    assert "seed" in before and "seed" not in after


def test_plain_functions_take_turns_where_there_are_more_of_them_than_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "THREADS", 2)

    async def main() -> Any:
        study = Study(Sweep(range(6)), lambda candidate, case: float(candidate), window=6)
        return await asyncio.wait_for(study.run_async(BatchExecutor()), 20)

    assert asyncio.run(main()).progress.evaluations == 6


# -- leaving, and what earlier processes left --------------------------------------------------------------------------


@STYLES
def test_whoever_leaves_the_executor_outside_a_run_hears_which_batch_still_runs(style: str) -> None:
    world = World(style)

    async def main() -> list[str]:
        async with BatchExecutor(style) as batches:
            ask = [batches.run(world.evaluate(), n, Case("0", 0)) for n in range(3)]
            task = asyncio.gather(*ask, return_exceptions=True)
            await asyncio.sleep(60)
            task.cancel()
        return batches.left

    (left,) = run_virtual(main())
    assert "(3 calls to" in left and "still runs at the provider" in left


@STYLES
def test_without_a_ledger_a_batch_is_done_as_soon_as_it_is_answered(style: str) -> None:
    world = World(style)
    events: list[Event] = []

    async def main() -> None:
        broker = CallBroker(emit=events.append)
        before = enter(broker=broker)
        async with BatchExecutor(style) as batches:
            await asyncio.gather(*(batches.run(world.evaluate(), n, Case("0", 0)) for n in range(3)))
            await asyncio.sleep(1)
        await broker.close()
        leave(before)

    run_virtual(main())
    assert [event.state for event in events if isinstance(event, BatchChanged)] == ["intent", "submitted", "done"]


@pytest.mark.parametrize(("whose", "state"), [("ours", "done"), ("another", "submitted")])
def test_a_batch_whose_replies_are_all_kept_is_written_off_by_its_own_run_alone(
    whose: str, state: str, tmp_path: Path
) -> None:
    """A kill may come between the last reply and the note that the batch is done."""
    world = World("openai")
    path = tmp_path / "ledger.db"

    def go(name: str, candidates: range) -> None:
        study = Study(Sweep(candidates), world.evaluate(), window=8, stop=MaxTrials(len(candidates)))
        run_virtual(study.run_async(BatchExecutor("openai"), ledger=path, run=name))

    def states(change: str = "") -> list[str]:
        with contextlib.closing(sqlite3.connect(path)) as db, db:
            if change:
                db.execute(change)
            return [state for (state,) in db.execute("SELECT state FROM batch ORDER BY created")]

    go("ours", range(3))
    assert states("UPDATE batch SET state = 'submitted'") == ["submitted"]
    go(whose, range(6))
    assert states() == [state, "done"]
    assert world.paid == (6, 0)


# -- waves and lists ---------------------------------------------------------------------------------------------------


def test_every_wave_waits_as_long_as_is_said_for_those_who_have_not_asked_yet() -> None:
    """Also the second one: what is left of the first one's time is not held against it."""
    world = World("openai")
    asked: list[float] = []

    async def talk(candidate: int, case: Case) -> float:
        if candidate == 2:
            await asyncio.sleep(5_000)  # is busy all the time, so that no wave is complete
        for turn in range(2 if candidate < 2 else 0):
            asked.append(asyncio.get_running_loop().time())
            await world.model.generate(f"{candidate} {turn}", max_tokens=5)
        return 0.0

    run_virtual(Study(Sweep(range(3)), talk, window=3).run_async(BatchExecutor("openai", max_wait=70.0)))
    left = [batch.at for batch in world.simulator.billing.batches]
    assert world.waves == [2, 2]
    assert left[1] - left[0] == pytest.approx(asked[2] - asked[0], abs=1.0)


@STYLES
def test_a_long_list_of_batches_is_read_page_by_page(style: str) -> None:
    class TwoAPage(SimulatedTransport):
        async def request(self, method: str, url: str, *args: Any, **options: Any) -> Response:
            return await super().request(method, url.replace("limit=100", "limit=2"), *args, **options)

    world = World(style, TwoAPage)

    async def main() -> list[str]:
        protocol = world.model.provider.batches
        assert protocol is not None
        run = Study(Sweep(range(5)), world.evaluate(), window=5).run_async(BatchExecutor(f"{style}:1"))
        await run
        return [batch.id async for batch in protocol(world.model).newest()]

    listed = run_virtual(main())
    assert listed == [batch.id for batch in reversed(world.simulator.billing.batches)]
    assert len(listed) == 5


def test_evaluations_that_are_answered_at_once_continue_in_slices() -> None:
    """Between two turns of the event loop no more than a slice of them continues, and none is left behind."""

    async def main() -> list[int]:
        slices, order, beats = Slices(), [], [0]

        async def continues(number: int) -> None:
            await slices.turn()
            order.append(number)

        async def beat() -> None:
            while len(order) < 500:
                beats.append(len(order))
                await asyncio.sleep(0)

        tasks = [asyncio.create_task(continues(number)) for number in range(500)]
        tasks[400].cancel()
        order.append(400)
        await asyncio.gather(beat(), *tasks, return_exceptions=True)
        assert sorted(order) == list(range(500))
        return [after - before for before, after in itertools.pairwise(beats)]

    assert 0 < max(asyncio.run(main())) <= 2 * MOST


@STYLES
def test_thousands_of_evaluations_in_batches_leave_the_loop_free_between_slices(style: str) -> None:
    """What follows an answer is counted between two turns of the loop: never that of all evaluations."""
    steps, worst = [0], [0]

    async def evaluate(candidate: int, case: Case) -> float:
        for turn in range(2):
            await model.generate(f"{candidate}, {turn}")
            steps[0] += 1
        return 1.0

    async def watched() -> Any:
        async def beat() -> None:
            while True:
                before = steps[0]
                await asyncio.sleep(0)
                worst[0] = max(worst[0], steps[0] - before)

        beating = asyncio.create_task(beat())
        try:
            return await Study(Sweep(range(600)), evaluate, [Case("0")], window=600).run_async(BatchExecutor(poll=0.01))
        finally:
            beating.cancel()

    quick = SimulatedTransport(Simulator(SimulatorConfig(turnaround=Latency(0.01))))
    model = dataclasses.replace(World(style).model, connect=lambda: quick)
    run = asyncio.run(watched())
    assert run.progress.failures == 0 and steps[0] == 1200
    assert 0 < worst[0] <= 2 * MOST
