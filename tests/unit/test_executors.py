"""Executors: the shipped conformance suite on each of them, and what `make` understands."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import functools
import importlib.metadata
import math
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fanfold.executors
from fanfold import registry
from fanfold.errors import ConfigError, ExecutorBroken, WorkerDied
from fanfold.executors import Async, Executor, Futures, Inline, Processes, Threads, is_coroutine_function, make
from fanfold.testing.executors import ExecutorConformance, Fault, FaultyExecutor, double, hold, meet, seeded_faults


class TestInline(ExecutorConformance):
    concurrent = False

    def make(self) -> Executor:
        return Inline()


class TestAsync(ExecutorConformance):
    def make(self) -> Executor:
        return Async(5)


class TestThreads(ExecutorConformance):
    def make(self) -> Executor:
        return Threads(3)


class TestProcesses(ExecutorConformance):
    def make(self) -> Executor:
        return Processes(2)


class TestThreadPool(ExecutorConformance):
    @pytest.fixture(autouse=True)
    def pool(self) -> Iterator[None]:
        with concurrent.futures.ThreadPoolExecutor(3) as self._pool:
            yield

    def make(self) -> Executor:
        return Futures(self._pool)


class TestProcessPool(ExecutorConformance):
    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def pool(cls) -> Iterator[None]:
        import multiprocessing

        context = multiprocessing.get_context("forkserver")
        with concurrent.futures.ProcessPoolExecutor(3, context) as cls._pool:
            yield

    def make(self) -> Executor:
        return Futures(self._pool)


class TestFaultyWithoutFaults(ExecutorConformance):
    def make(self) -> Executor:
        return FaultyExecutor(Threads(2), {})


async def _coroutine_function() -> int:
    return 1


class _AsyncCallable:
    async def __call__(self) -> int:
        return 1


class _PlainCallable:
    def __call__(self) -> int:
        return 1


@pytest.mark.parametrize(
    "fn", [_coroutine_function, _AsyncCallable(), functools.partial(_coroutine_function), _AsyncCallable().__call__]
)
def test_coroutine_functions_are_recognised_in_every_guise(fn: Any) -> None:
    assert is_coroutine_function(fn)
    assert is_coroutine_function(functools.partial(functools.partial(fn)))


@pytest.mark.parametrize("fn", [double, _PlainCallable(), functools.partial(double, 1), _AsyncCallable, len])
def test_plain_functions_are_not_taken_for_coroutine_functions(fn: Any) -> None:
    assert not is_coroutine_function(fn)


@pytest.mark.parametrize(
    ("spec", "kind", "name"),
    [
        ("inline", Inline, "inline"),
        ("async", Async, "async:64"),
        ("async:7", Async, "async:7"),
        ("threads", Threads, "threads:8"),
        ("threads:3", Threads, "threads:3"),
        ("processes:5", Processes, "processes:5"),
    ],
)
def test_a_text_names_an_executor(spec: str, kind: type[Executor], name: str) -> None:
    executor = make(spec)
    assert type(executor) is kind
    assert executor.name == name
    assert make(executor.name).slots == executor.slots


@pytest.mark.parametrize(("cores", "plain"), [(1, "inline"), (6, "processes:6")])
def test_auto_awaits_coroutine_functions_and_spreads_plain_ones_over_the_cores(
    cores: int, plain: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fanfold.executors, "usable_cores", lambda: cores)
    assert make("auto", double).name == plain
    assert make("auto").name == plain
    assert make("auto", _AsyncCallable()).name == "async:64"


def test_processes_without_a_number_takes_the_usable_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fanfold.executors.os, "sched_getaffinity", lambda _: {0, 3, 5}, raising=False)
    assert make("processes").slots == 3


def test_an_executor_is_taken_as_it_is_and_a_pool_is_wrapped() -> None:
    executor = Inline()
    assert make(executor) is executor
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        assert make(pool).slots == 3
        assert Futures(pool, slots=9).slots == 9


@pytest.mark.parametrize(
    ("spec", "remedy"),
    [
        ("thread:8", "did you mean 'threads'"),
        ("warp", "processes"),
        ("threads:0", "1 or more"),
        ("threads:-1", "1 or more"),
        ("threads:x", "threads:8"),
        ("threads:", "1 or more"),
        ("threads:1.5", "1 or more"),
        ("inline:3", "takes no number"),
        ("auto:3", "takes no number"),
        ("", "known"),
        (8, "processes:8"),
        (Inline, "an Executor"),
    ],
)
def test_a_spec_that_cannot_be_used_is_named_together_with_the_remedy(spec: Any, remedy: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make(spec)
    assert repr(spec) in str(caught.value)
    assert remedy in str(caught.value)


@pytest.mark.slow
@given(st.text(max_size=12), st.text(max_size=6))
def test_any_text_gives_an_executor_or_a_config_error(name: str, number: str) -> None:
    for spec in (name, f"{name}:{number}", f"threads:{number}"):
        try:
            assert make(spec).slots >= 1
        except ConfigError as error:
            assert repr(spec) in str(error)


@pytest.mark.parametrize("kind", [Async, Threads, Processes])
@pytest.mark.parametrize("slots", [0, -2, 1.5])
def test_an_executor_without_slots_cannot_be_made(kind: type[Any], slots: Any) -> None:
    with pytest.raises(ConfigError, match="slots"):
        kind(slots)


def test_installed_packages_add_executors_by_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    def installed(group: str) -> list[importlib.metadata.EntryPoint]:
        return [
            importlib.metadata.EntryPoint("cluster", f"{__name__}:_cluster", group),
            importlib.metadata.EntryPoint("junk", f"{__name__}:_junk", group),
        ]

    monkeypatch.setattr(registry, "installed", installed)
    assert make("cluster:3").slots == 3
    assert make("cluster").slots == 100
    with pytest.raises(ConfigError, match="_junk"):
        make("junk")
    with pytest.raises(ConfigError, match="did you mean 'cluster'"):
        make("clutser")


def _cluster(slots: int | None) -> Executor:
    return Threads(slots or 100)


def _junk(slots: int | None) -> Any:
    return slots


_where = contextvars.ContextVar("_where", default="nowhere")


@pytest.mark.parametrize("spec", ["inline", "async:2", "threads:2"])
def test_calls_inside_this_process_see_the_context_of_their_caller(spec: str) -> None:
    async def where() -> str:
        return _where.get()

    async def check() -> None:
        async with make(spec) as executor:
            for place in ("here", "there"):
                _where.set(place)
                assert await executor.run(_where.get) == place
                assert await executor.run(where) == place

    asyncio.run(check())


def test_threads_start_when_needed_and_are_used_again() -> None:
    async def check() -> None:
        async with Threads(4) as executor:
            used = {await executor.run(threading.get_ident) for _ in range(20)}
            assert len(used) == 1

    asyncio.run(check())


def test_no_thread_keeps_the_program_from_ending() -> None:
    async def check() -> None:
        async with Threads(2) as executor:
            assert await executor.run(lambda: threading.current_thread().daemon)

    asyncio.run(check())


def test_an_abandoned_thread_is_replaced_and_ends_after_its_call(tmp_path: Path) -> None:
    async def check() -> threading.Thread:
        async with Threads(1) as executor:
            stuck = await executor.run(threading.current_thread)
            call = asyncio.create_task(executor.run(hold, str(tmp_path)))
            while not (tmp_path / "holding").exists():
                await asyncio.sleep(0.001)
            call.cancel()
            assert await executor.run(threading.current_thread) is not stuck
            return stuck

    stuck = asyncio.run(check())
    assert stuck.is_alive()
    (tmp_path / "holding").unlink()  # its answer now goes to a closed loop, which must not trouble anyone
    stuck.join(30)
    assert not stuck.is_alive()


def test_a_thread_keeps_its_event_loop_between_calls() -> None:
    async def which() -> Any:
        return asyncio.get_running_loop()

    async def check() -> None:
        async with Threads(1) as executor:
            assert await executor.run(which) is await executor.run(which)

    asyncio.run(check())


def test_a_task_left_behind_by_one_call_does_not_run_on_into_the_next() -> None:
    seen: list[str] = []

    async def litter() -> None:
        async def lurk() -> None:
            try:
                await asyncio.sleep(0)
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                seen.append("cancelled")
                raise

        seen.append(repr(asyncio.ensure_future(lurk()).done()))
        await asyncio.sleep(0)

    async def look() -> int:
        return len(asyncio.all_tasks())

    async def check() -> None:
        async with Threads(1) as executor:
            await executor.run(litter)
            assert seen == ["False", "cancelled"]
            assert await executor.run(look) == 1

    asyncio.run(check())


def test_plain_functions_overlap_under_async(tmp_path: Path) -> None:
    async def check() -> None:
        async with Async(3) as executor:
            assert await asyncio.gather(*(executor.run(meet, str(tmp_path), 3) for _ in range(3))) == [3, 3, 3]

    asyncio.run(check())


def test_cancelling_stops_a_coroutine_under_async() -> None:
    ended: list[bool] = []

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    async def check() -> None:
        async with Async(2) as executor:
            call = asyncio.create_task(executor.run(wait))
            await asyncio.sleep(0)
            call.cancel()
            await asyncio.wait([call])
            assert ended == [True]

    asyncio.run(check())


class _BrokenPool(concurrent.futures.Executor):
    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> concurrent.futures.Future[Any]:
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        future.set_exception(concurrent.futures.BrokenExecutor("a child process terminated abruptly"))
        return future


def _shut_down() -> concurrent.futures.Executor:
    pool = concurrent.futures.ThreadPoolExecutor(1)
    pool.shutdown()
    return pool


@pytest.mark.parametrize("pool", [_BrokenPool, _shut_down])
def test_a_pool_that_no_longer_works_is_reported_with_the_alternative(pool: Any) -> None:
    async def check() -> None:
        async with Futures(pool(), slots=4) as executor:
            with pytest.raises(ExecutorBroken, match=r"finished work is kept.*processes:4"):
                await executor.run(double, 1)

    asyncio.run(check())


def test_a_pool_emptied_by_its_owner_does_not_look_like_a_cancellation(tmp_path: Path) -> None:
    async def check() -> None:
        pool = concurrent.futures.ThreadPoolExecutor(1)
        first = asyncio.create_task(Futures(pool).run(hold, str(tmp_path)))
        queued = asyncio.create_task(Futures(pool).run(double, 1))
        while not (tmp_path / "holding").exists():
            await asyncio.sleep(0.001)
        pool.shutdown(wait=False, cancel_futures=True)
        with pytest.raises(ExecutorBroken):
            await queued
        (tmp_path / "holding").unlink()
        await first

    asyncio.run(check())


def test_a_pool_is_left_running_for_its_owner() -> None:
    async def check() -> None:
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            async with Futures(pool) as executor:
                assert await executor.run(double, 2) == 4
            assert pool.submit(double, 3).result() == 6

    asyncio.run(check())


@asynccontextmanager
async def _faulty(plan: dict[int, Fault]) -> AsyncIterator[FaultyExecutor]:
    async with FaultyExecutor(Inline(), plan) as executor:
        yield executor


def test_planned_faults_strike_their_calls_and_no_others() -> None:
    async def check() -> None:
        plan = {
            0: Fault("died"),
            1: Fault("error", error=OSError("boom")),
            2: Fault("nan"),
            3: Fault("delay", seconds=0.001),
            4: Fault("hang"),
        }
        async with _faulty(plan) as executor:
            with pytest.raises(WorkerDied):
                await executor.run(double, 1)
            with pytest.raises(OSError, match="boom"):
                await executor.run(double, 1)
            assert math.isnan(await executor.run(double, 1))
            assert await executor.run(double, 1) == 2
            call = asyncio.create_task(executor.run(double, 1))
            done, _ = await asyncio.wait([call], timeout=0.01)
            assert not done
            call.cancel()
            assert await executor.run(double, 5) == 10
            assert executor.calls == 6
            assert executor.struck == dict.fromkeys(("died", "error", "nan", "delay", "hang"), 1)

    asyncio.run(check())


@pytest.mark.slow
@given(st.integers(0, 2**32))
def test_seeded_faults_are_the_same_every_time_and_strike_about_their_share(seed: int) -> None:
    share = {Fault("died"): 0.2, Fault("nan"): 0.1}
    faults = [seeded_faults(seed, share)(number) for number in range(300)]
    assert faults == [seeded_faults(seed, share)(number) for number in range(300)]
    assert 20 < faults.count(Fault("died")) < 110
    assert 3 < faults.count(Fault("nan")) < 70


def test_impossible_shares_of_faults_are_refused() -> None:
    with pytest.raises(ValueError, match="shares"):
        seeded_faults(1, {Fault("died"): 0.7, Fault("nan"): 0.7})
