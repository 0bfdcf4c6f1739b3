"""What the engine promises about time limits: an evaluation has all of its own time, and no more, on the virtual clock.

Each of these has been seen to fail on the fault it guards against (`make mutants`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import pytest

from fanfold import Case, Study, Sweep
from fanfold.attempt import off_the_clock
from fanfold.calls import Call, CallBroker, Reply, Sent, Waiting, current_broker, waiting
from fanfold.testing import run_virtual


def too_late(*works: Callable[[], Awaitable[None]]) -> list[int]:
    """Which of these evaluations fail, when each has ten seconds of its own and all begin together."""

    async def evaluate(candidate: int, case: Case) -> float:
        await works[candidate]()
        return 1.0

    study = Study(Sweep(range(len(works))), evaluate, timeout=10, window=len(works))
    run = run_virtual(study.run_async("async"))
    return [result.number for result in run.results() if result.failures]


async def wait(seconds: float) -> None:
    with off_the_clock():
        await asyncio.sleep(seconds)


@pytest.mark.parametrize(("before", "after", "late"), [(4, 5, []), (6, 6, [0]), (0, 11, [0]), (9, 0, [])])
def test_time_before_and_after_a_wait_counts_and_the_wait_does_not(
    before: float, after: float, late: list[int]
) -> None:
    async def work() -> None:
        await asyncio.sleep(before)
        await wait(100)
        await asyncio.sleep(after)

    assert too_late(work) == late


@pytest.mark.parametrize(("own", "late"), [(9, []), (11, [0])])
def test_the_clock_stands_still_until_the_last_of_several_waits_is_over(own: float, late: list[int]) -> None:
    async def work() -> None:
        await asyncio.gather(wait(30), wait(60), wait(90))
        await asyncio.sleep(own)

    assert too_late(work) == late


def test_a_wait_that_begins_again_and_again_takes_nothing_from_an_evaluation() -> None:
    async def work() -> None:
        for _ in range(8):
            await asyncio.sleep(1)
            await wait(20)

    assert too_late(work) == []


# -- calls that wait ---------------------------------------------------------------------------------------------------


async def ask(question: str, *, turn: float = 100.0, send: float = 0.0, again: float = 0.0) -> None:
    """Make a call that waits for its turn, takes a while to send, and waits once more; equal questions are one call."""

    async def carried(call: Call) -> Sent:
        with waiting("its turn"), waiting("its turn, told by two at once"):
            await asyncio.sleep(turn)
        await asyncio.sleep(send)
        with waiting("another turn"):
            await asyncio.sleep(again)
        return Sent(Reply(text="yes", cost=0.0))

    await current_broker().answer(Call("a/model", "http://api.test", question, 0, 1, 1, None), carried)


@pytest.mark.parametrize(("own", "late"), [(9, []), (11, [0])])
def test_a_call_takes_the_time_of_its_evaluation_only_while_it_is_under_way(own: float, late: list[int]) -> None:
    async def work() -> None:
        await ask("alone", send=own - 2, again=100)
        await asyncio.sleep(2)

    assert too_late(work) == late


@pytest.mark.parametrize(("before", "send", "after", "late"), [(3, 3, 3, []), (6, 0, 6, [1]), (3, 8, 0, [1])])
def test_who_joins_a_call_that_waits_does_not_pay_for_the_wait_but_for_the_rest(
    before: float, send: float, after: float, late: list[int]
) -> None:
    async def first() -> None:
        await ask("the same", send=send, again=50)

    async def second() -> None:
        await asyncio.sleep(before)
        await ask("the same")
        await asyncio.sleep(after)

    assert too_late(first, second) == late


@pytest.mark.parametrize(("own", "late"), [(9, []), (11, [1])])
def test_who_no_longer_waits_for_a_call_is_on_its_own_time_again(own: float, late: list[int]) -> None:
    async def first() -> None:
        await ask("the same")

    async def second() -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(ask("the same"), 50)
        await asyncio.sleep(own)

    assert too_late(first, second) == late


def test_who_left_a_call_that_waits_again_later_is_not_stopped_by_it() -> None:
    """Its clock runs on: eleven seconds of its own are too much, whatever the call it left waits for."""

    async def first() -> None:
        await ask("the same", turn=5, send=5, again=500)

    async def second() -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(ask("the same"), 8)
        await asyncio.sleep(11)

    assert too_late(first, second) == [1]


@pytest.mark.parametrize(("since", "shown"), [(None, 2.0), (-30.0, -30.0)])
def test_what_every_call_waits_for_is_said_and_since_when(since: float | None, shown: float) -> None:
    async def carried(call: Call) -> Sent:
        await asyncio.sleep(2)
        with waiting("its turn", 12.0, since=since):
            await asyncio.sleep(10)
        return Sent(Reply(text="yes", cost=0.0))

    async def main() -> list[Waiting | None]:
        broker = CallBroker()
        call = asyncio.create_task(broker.answer(Call("a/model", "http://api.test", "?", 0, 1, 1, None), carried))
        seen = []
        for _ in range(2):
            await asyncio.sleep(1.5)
            seen.append(broker.waits())
        await call
        return [*seen, broker.waits()]

    assert run_virtual(main()) == [None, Waiting("its turn", shown, 12.0), None]
