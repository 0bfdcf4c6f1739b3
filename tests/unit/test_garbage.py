"""A run collects garbage rarely, and leaves the program's own settings as they were."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from typing import Any

import pytest

from fanfold import Case, Study, Sweep
from fanfold.calls import Call, CallBroker, Reply, Sent
from fanfold.flights import MANY
from fanfold.garbage import YOUNG, rare_collections
from fanfold.testing import run_virtual


@pytest.fixture(autouse=True)
def own_settings() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


def seen_in_a_run() -> list[int]:
    seen: list[int] = []

    def evaluate(candidate: Any, case: Case) -> float:
        seen.append(gc.get_threshold()[0])
        return 0.0

    Study(Sweep([1, 2]), evaluate).run()
    return seen


@pytest.mark.parametrize(
    ("own", "inside"), [(700, YOUNG), (2 * YOUNG, 2 * YOUNG), (0, 0)], ids=["default", "rarer", "off"]
)
def test_a_run_collects_rarely_unless_the_program_does_so_already(own: int, inside: int) -> None:
    gc.set_threshold(own, 10, 10)
    assert seen_in_a_run() == [inside, inside]
    assert gc.get_threshold() == (own, 10, 10)


def test_a_run_that_fails_puts_the_settings_back() -> None:
    gc.set_threshold(700, 10, 10)
    with pytest.raises(RuntimeError), rare_collections():
        raise RuntimeError
    assert gc.get_threshold()[0] == 700


def test_of_several_runs_at_once_the_last_puts_the_settings_back() -> None:
    gc.set_threshold(700, 10, 10)
    with rare_collections():
        assert seen_in_a_run() == [YOUNG, YOUNG]
        assert gc.get_threshold()[0] == YOUNG
    assert gc.get_threshold()[0] == 700


@pytest.mark.parametrize(("calls", "inside"), [(MANY - 1, 700), (MANY, YOUNG)])
def test_many_calls_outside_a_run_collect_rarely_until_none_is_in_flight(calls: int, inside: int) -> None:
    gc.set_threshold(700, 10, 10)

    async def main() -> int:
        broker = CallBroker()

        async def slow(call: Call) -> Sent:
            await asyncio.sleep(float(call.body))
            if call.body == "2":
                raise ValueError("failed")
            return Sent(Reply(text="yes", cost=0.0))

        asked = [Call("m", "e", str(number), number, 1, 1, None) for number in range(1, calls + 1)]
        tasks = [asyncio.create_task(broker.answer(call, slow)) for call in asked]
        await asyncio.sleep(calls - 0.5)
        seen = gc.get_threshold()[0]
        await asyncio.gather(*tasks, return_exceptions=True)
        assert gc.get_threshold()[0] == 700
        await broker.close()
        return seen

    assert run_virtual(main()) == inside
