"""The time limit of a request: what it ends, and whose cancellation has its way."""

from __future__ import annotations

import asyncio

import pytest

from fanfold.models.deadline import Deadline
from fanfold.testing import run_virtual


def test_a_block_ends_when_its_time_is_over_and_the_task_continues() -> None:
    async def main() -> float:
        with pytest.raises(TimeoutError), Deadline(3.0) as scope:
            await asyncio.sleep(10)
        assert scope.expired
        task = asyncio.current_task()
        assert task is not None and task.cancelling() == 0
        await asyncio.sleep(1)
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == pytest.approx(4)


@pytest.mark.parametrize("seconds", [5.0, None])
def test_a_block_that_is_quick_enough_is_left_alone(seconds: float | None) -> None:
    async def main() -> float:
        with Deadline(seconds) as scope:
            await asyncio.sleep(4)
        await asyncio.sleep(4)
        assert not scope.expired
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == pytest.approx(8)


def test_an_error_of_the_block_stays_what_it_is() -> None:
    async def main() -> None:
        with Deadline(5.0):
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        run_virtual(main())


@pytest.mark.parametrize("after", [1.0, 3.0])
def test_a_cancellation_from_outside_has_its_way_also_in_the_moment_of_the_deadline(after: float) -> None:
    async def main() -> bool:
        async def block() -> None:
            with Deadline(3.0):
                await asyncio.sleep(10)

        task = asyncio.create_task(block())
        asyncio.get_running_loop().call_later(after, task.cancel)
        await asyncio.wait([task])
        return task.cancelled()

    assert run_virtual(main())
