"""For authors and users of executors: a conformance suite, and an executor that fails on purpose."""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
import uuid
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias

from fanfold.encoding import derive_seed
from fanfold.errors import WorkerDied
from fanfold.executors.base import Executor

#: How long a handshake waits before the test fails instead of hanging.
PATIENCE = 60.0


class ExecutorConformance(ABC):
    """What every executor promises, as tests: subclass it in a test module, give `make`, and let pytest collect it.

    The functions it runs are importable from here, the files they meet at are on the local disk.
    """

    #: Whether several calls really run at once.
    concurrent: bool = True

    @abstractmethod
    def make(self) -> Executor:
        """A fresh executor; one with at least two slots where `concurrent` is True."""

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Executor]:
        async with self.make() as executor:
            yield executor

    def test_it_says_what_it_is(self) -> None:
        executor = self.make()
        assert isinstance(executor.name, str) and executor.name
        assert isinstance(executor.slots, int) and executor.slots >= 1
        assert isinstance(executor.interruptible, bool)

    def test_plain_and_coroutine_functions_give_their_values(self) -> None:
        async def check() -> None:
            async with self.opened() as executor:
                assert await executor.run(double, 21) == 42
                assert await executor.run(double_later, 21) == 42
                assert await executor.run(double_promised, "ab") == "abab"

        asyncio.run(check())

    def test_what_a_function_raises_is_raised_with_its_type_and_text(self) -> None:
        async def check() -> None:
            async with self.opened() as executor:
                for fn in (refuse, refuse_later):
                    try:
                        await executor.run(fn, "kaput")
                    except LookupError as error:
                        assert "kaput" in str(error)
                    else:
                        raise AssertionError("nothing was raised")
                assert await executor.run(double, 1) == 2

        asyncio.run(check())

    def test_what_would_end_the_loop_only_fails_the_call(self) -> None:
        async def check() -> None:
            async with self.opened() as executor:
                for fn in (leave, leave_later, cancel_itself):
                    try:
                        await executor.run(fn)
                    except RuntimeError:
                        continue
                    raise AssertionError(f"{fn.__name__} raised nothing")

        asyncio.run(check())

    def test_every_call_gets_its_own_answer(self) -> None:
        async def check() -> None:
            async with self.opened() as executor:
                free = asyncio.Semaphore(executor.slots)

                async def one(number: int) -> Any:
                    async with free:
                        return await executor.run(nap_and_double, number, (number * 7 % 5) / 1000)

                assert await asyncio.gather(*(one(number) for number in range(30))) == [2 * n for n in range(30)]

        asyncio.run(check())

    def test_as_many_calls_as_there_are_slots_run_at_once(self) -> None:
        async def check() -> None:
            async with self.opened() as executor:
                with tempfile.TemporaryDirectory() as folder:
                    calls = [executor.run(meet, folder, executor.slots) for _ in range(executor.slots)]
                    assert await asyncio.gather(*calls) == [executor.slots] * executor.slots

        if self.concurrent:
            asyncio.run(check())

    def test_a_cancelled_call_does_not_poison_later_ones(self) -> None:
        async def check() -> None:
            async with self.opened() as executor:
                with tempfile.TemporaryDirectory() as folder:
                    call = asyncio.create_task(executor.run(hold, folder))
                    await _appears(Path(folder, "holding"))
                    call.cancel()
                    await asyncio.wait([call])
                    assert call.cancelled()
                    # A pool that cannot be interrupted may keep one place busy; the others must still answer.
                    assert await asyncio.gather(*(executor.run(double, n) for n in range(5))) == [0, 2, 4, 6, 8]

        asyncio.run(check())

    def test_it_can_be_used_again_after_it_was_closed(self) -> None:
        executor = self.make()

        async def check(number: int) -> None:
            async with executor:
                assert await asyncio.gather(*(executor.run(double, n) for n in range(number))) == [
                    2 * n for n in range(number)
                ]

        for number in (1, 3, 5):
            asyncio.run(check(number))

    def test_it_closes_while_a_call_is_stuck(self) -> None:
        async def check() -> None:
            with tempfile.TemporaryDirectory() as folder:
                async with asyncio.timeout(PATIENCE):
                    async with self.opened() as executor:
                        call = asyncio.create_task(executor.run(hold, folder))
                        await _appears(Path(folder, "holding"))
                call.cancel()
                await asyncio.wait([call])

        asyncio.run(check())


def double(value: Any) -> Any:
    return value * 2


async def double_later(value: Any) -> Any:
    await asyncio.sleep(0)
    return value * 2


def double_promised(value: Any) -> Any:
    """A plain function whose value has to be awaited."""
    return double_later(value)


def nap_and_double(value: Any, seconds: float) -> Any:
    time.sleep(seconds)
    return value * 2


def refuse(text: str) -> None:
    raise LookupError(text)


async def refuse_later(text: str) -> None:
    raise LookupError(text)


def leave() -> None:
    raise SystemExit(3)


async def leave_later() -> None:
    raise SystemExit(3)


async def cancel_itself() -> None:
    raise asyncio.CancelledError


def meet(folder: str, number: int) -> int:
    """Come back once `number` calls are in here together."""
    Path(folder, uuid.uuid4().hex).touch()
    give_up = time.monotonic() + PATIENCE
    while (came := sum(1 for _ in Path(folder).iterdir())) < number:
        if time.monotonic() > give_up:
            raise TimeoutError(f"{number} calls should run at once, but only {came} came")
        time.sleep(0.002)
    return number


async def hold(folder: str) -> None:
    """Say so with a file `holding`, then hang for as long as the file is there."""
    Path(folder, "holding").touch()
    while Path(folder, "holding").exists():
        await asyncio.sleep(0.002)


async def _appears(path: Path) -> None:
    async with asyncio.timeout(PATIENCE):
        while not path.exists():
            await asyncio.sleep(0.002)


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to one call instead of, or besides, being made.

    `died` raises WorkerDied, `error` raises `error`, `hang` waits until cancelled: all without making the call.
    `delay` waits for `seconds` first; `nan` makes the call and gives NaN in place of its value.
    """

    kind: Literal["died", "error", "delay", "hang", "nan"]
    seconds: float = 0.0
    error: Exception | None = None


#: Which fault, if any, strikes the call with this number (counted from 0, in the order in which calls begin).
Faults: TypeAlias = Mapping[int, Fault] | Callable[[int], Fault | None]


def seeded_faults(seed: int, share: Mapping[Fault, float]) -> Callable[[int], Fault | None]:
    """Faults by chance: each strikes its share of the calls.  Which ones is fixed by the seed and the call's number."""
    if sum(share.values()) > 1 or min(share.values(), default=0) < 0:
        raise ValueError(
            f"shares of faults must be between 0 and 1 and add up to 1 at most, not {list(share.values())}"
        )

    def fault(number: int) -> Fault | None:
        draw = random.Random(derive_seed(seed, number)).random()
        for candidate, chance in share.items():
            if draw < chance:
                return candidate
            draw -= chance
        return None

    return fault


class FaultyExecutor(Executor):
    """Runs calls in `inner`, except those that `faults` strikes.

    `calls` counts all calls, `struck` the faults by kind.
    """

    def __init__(self, inner: Executor, faults: Faults) -> None:
        self.inner = inner
        self.name = f"faulty {inner.name}"
        self.slots = inner.slots
        self.interruptible = inner.interruptible
        self.calls = 0
        self.struck: Counter[str] = Counter()
        self._faults = faults if callable(faults) else faults.get

    async def __aenter__(self) -> Self:
        await self.inner.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.inner.__aexit__(kind, error, trace)

    async def run(self, fn: Callable[..., Any], *args: Any) -> Any:
        number = self.calls
        self.calls += 1
        fault = self._faults(number)
        if fault is None:
            return await self.inner.run(fn, *args)
        self.struck[fault.kind] += 1
        if fault.kind == "died":
            raise WorkerDied(f"call {number} was struck on purpose: its worker died")
        if fault.kind == "error":
            raise fault.error or RuntimeError(f"call {number} was struck on purpose")
        if fault.kind == "hang":
            await asyncio.get_running_loop().create_future()
        await asyncio.sleep(fault.seconds)
        value = await self.inner.run(fn, *args)
        return float("nan") if fault.kind == "nan" else value
