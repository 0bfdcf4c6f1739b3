"""On the virtual loop waiting is instant and exact, and nothing real is missed."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fanfold.testing.clock import VirtualLoop, run_virtual


def _now() -> float:
    return asyncio.get_running_loop().time()


def test_a_day_of_sleep_takes_exactly_a_day_of_virtual_time() -> None:
    async def main() -> float:
        await asyncio.sleep(24 * 3600)
        await asyncio.sleep(30 * 24 * 3600)  # longer than the loop's longest single wait
        return _now()

    assert run_virtual(main()) == 31 * 24 * 3600


@pytest.mark.slow
@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0.001, 1e6), max_size=20))
def test_a_sleep_ends_exactly_when_it_should(delays: list[float]) -> None:
    async def main() -> None:
        for delay in delays:
            end = _now() + delay
            await asyncio.sleep(delay)
            assert _now() == end

    run_virtual(main())


def test_a_call_at_an_absolute_time_comes_exactly_then() -> None:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(0.05591908123118383)  # from here, adding the difference to 9.347 misses it by a rounding
        arrived = asyncio.Event()
        loop.call_at(9.347, arrived.set)
        await arrived.wait()
        return loop.time()

    assert run_virtual(main()) == 9.347


def test_no_time_passes_while_something_is_runnable() -> None:
    async def main() -> float:
        for _ in range(1000):
            await asyncio.sleep(0)
        time.sleep(0.01)
        return _now()

    assert run_virtual(main()) == 0.0


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 10**6), unique=True, max_size=30))
def test_concurrent_sleeps_end_in_the_order_of_their_times(delays: list[int]) -> None:
    ended: list[tuple[int, float]] = []

    async def sleep(delay: int) -> None:
        await asyncio.sleep(delay)
        ended.append((delay, _now()))

    async def main() -> None:
        async with asyncio.TaskGroup() as tasks:
            for delay in delays:
                tasks.create_task(sleep(delay))

    run_virtual(main())
    assert ended == [(delay, float(delay)) for delay in sorted(delays)]


def test_a_timeout_fires_at_its_time() -> None:
    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(10):
                await asyncio.sleep(3600)
        return _now()

    assert run_virtual(main()) == 10.0


def test_a_cancelled_timer_does_not_pull_time_forward() -> None:
    async def main() -> float:
        asyncio.get_running_loop().call_later(5, lambda: None).cancel()
        async with asyncio.timeout(7):
            await asyncio.sleep(1)
        await asyncio.sleep(1)
        return _now()

    assert run_virtual(main()) == 2.0


@pytest.mark.parametrize("own_pool", [False, True])
def test_time_stands_still_while_a_call_runs_in_a_thread(own_pool: bool) -> None:
    def work() -> str:
        time.sleep(0.05)
        return "done"

    async def main() -> tuple[str, float]:
        loop = asyncio.get_running_loop()
        ticker = asyncio.create_task(asyncio.sleep(3600))
        with ThreadPoolExecutor(1) as pool:
            async with asyncio.timeout(1):
                answer = await loop.run_in_executor(pool if own_pool else None, work)
            seen = _now()
        await ticker
        return answer, seen

    assert run_virtual(main()) == ("done", 0.0)


def test_time_goes_on_after_a_call_in_a_thread_raised() -> None:
    def work() -> None:
        raise ValueError("from the thread")

    async def main() -> float:
        with pytest.raises(ValueError, match="from the thread"):
            await asyncio.to_thread(work)
        await asyncio.sleep(5)
        return _now()

    assert run_virtual(main()) == 5.0


def test_a_thread_still_running_at_the_end_is_joined_without_a_warning(recwarn: pytest.WarningsRecorder) -> None:
    release = threading.Event()
    ended: list[bool] = []

    def work() -> None:
        release.wait(10)
        time.sleep(0.05)
        ended.append(True)

    async def main() -> None:
        call = asyncio.create_task(asyncio.to_thread(work))
        await asyncio.sleep(0)
        call.cancel()
        release.set()

    with asyncio.Runner(loop_factory=lambda: VirtualLoop(patience=0.01)) as runner:
        runner.run(main())
    assert ended == [True]
    assert not recwarn.list


def test_a_socket_is_read_before_time_jumps() -> None:
    async def main() -> tuple[bytes, float]:
        left, right = socket.socketpair()
        reader, writer = await asyncio.open_connection(sock=left)
        answering, answer = await asyncio.open_connection(sock=right)
        async with asyncio.timeout(1):
            writer.write(b"ping\n")
            assert await answering.readline() == b"ping\n"
            answer.write(b"pong\n")
            line = await reader.readline()
        seen = _now()
        for end in (writer, answer):
            end.close()
            await end.wait_closed()
        return line, seen

    assert run_virtual(main()) == (b"pong\n", 0.0)


def test_a_sign_from_another_thread_is_waited_for_when_there_is_no_timer() -> None:
    async def main() -> float:
        arrived = asyncio.Event()
        loop = asyncio.get_running_loop()
        thread = threading.Timer(0.05, loop.call_soon_threadsafe, [arrived.set])
        thread.start()
        await arrived.wait()
        thread.join()
        return _now()

    assert run_virtual(main()) == 0.0


def test_a_deadlock_is_an_error_that_names_the_waiting_tasks() -> None:
    async def main() -> None:
        await asyncio.get_running_loop().create_task(asyncio.Event().wait(), name="the-waiter")

    with (
        asyncio.Runner(loop_factory=lambda: VirtualLoop(patience=0.02)) as runner,
        pytest.raises(RuntimeError, match=r"deadlock: .*the-waiter"),
    ):
        runner.run(main())


def test_each_run_starts_at_zero() -> None:
    async def main() -> float:
        start = _now()
        await asyncio.sleep(1)
        return start

    assert [run_virtual(main()) for _ in range(2)] == [0.0, 0.0]
