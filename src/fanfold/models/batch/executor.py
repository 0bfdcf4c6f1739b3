"""The executor that sends model calls in provider batches."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Sequence
from types import TracebackType
from typing import Any, Literal, Self

from fanfold.attempt import off_the_clock
from fanfold.context import enter, here
from fanfold.errors import ConfigError, nearest
from fanfold.executors import make
from fanfold.executors.base import Executor, is_coroutine_function
from fanfold.executors.local import Async
from fanfold.models.batch.recovery import BatchTerms
from fanfold.models.batch.waves import Gathering, Seat, Waves
from fanfold.models.model import Model
from fanfold.models.providers import batching, find_provider

#: Plain functions each keep a thread while their calls wait; more of them than this take turns.
THREADS = 1024


class BatchExecutor(Executor):
    """Runs evaluations like `async`, all at once, and sends their model calls in batches at half the price.

    A wave of calls leaves when every evaluation waits for an answer and none has joined for `settle` seconds, when its
    oldest call has waited `max_wait` seconds, or when the provider takes no more in one batch.  Calls that a batch
    gives no answer to (it expired, was cancelled, or did not fit into the provider's queue) join the next one.

    The full price is paid only for calls to models without batches, for those that have waited `deadline` seconds, and
    with `fallback="realtime"`: then what a batch leaves, and waves of fewer than `smallest` calls, are sent at once.

    `provider` is the prefix of one, or `auto` for all that have batches.  It may end in the most calls of a batch, as
    in `auto:20`, and then in where evaluations run instead, as in `auto:20@processes:8`, whose calls come home to join
    the waves.

    Batches are in the run's ledger before they are created, and a resumed run waits for those still under way.  On
    leaving, they are kept or cancelled as `leave` says; `left` then names them, and `notes` what was out of order.

    `poll` is the time between two looks at a batch (else growing from 1 second to 5 minutes, or as the provider asks);
    `looks` are the pauses before each look for a batch whose creation is in doubt, after which it is given up and
    submitted again; `enqueued` is how many input tokens the provider lets wait in batches of one model, which is else
    learnt when it refuses more.  With `detach`, the run stops as soon as the provider has all that can be submitted.
    """

    interruptible = True
    slots = 1_000_000
    bounded = False
    collects = True

    def __init__(
        self,
        provider: str | None = None,
        *,
        max_wait: float = 60.0,
        deadline: float | None = None,
        poll: float | None = None,
        settle: float = 0.2,
        smallest: int = 2,
        looks: Sequence[float] = (0.0, 5.0, 10.0, 30.0, 60.0, 120.0),
        enqueued: int | None = None,
        leave: Literal["keep", "cancel"] = "keep",
        fallback: Literal["batch", "realtime"] = "batch",
        detach: bool = False,
    ) -> None:
        self.name = f"batch:{'auto' if provider is None else provider}"
        named, at, place = self.name.removeprefix("batch:").partition("@")
        provider, colon, most = named.partition(":")
        if at and place in ("", "auto", "inline"):
            raise ConfigError(f"executor={self.name!r}: name a place with slots after the '@', such as processes:8")
        if colon and not (most.isascii() and most.isdecimal() and 0 < int(most) < 1_000_000):
            raise ConfigError(f"executor={self.name!r}: {most!r} is not a number of calls; write batch:{provider}:20")
        known = ("auto", *batching())
        if provider not in known:
            raise ConfigError(f"executor={self.name!r}: no such provider of batches{nearest(provider, known)}")
        if leave not in ("keep", "cancel"):
            raise ConfigError(f"leave must be 'keep' or 'cancel', not {leave!r}")
        if fallback not in ("batch", "realtime"):
            raise ConfigError(f"fallback must be 'batch' or 'realtime', not {fallback!r}")
        for option, value in (("max_wait", max_wait), ("settle", settle), ("deadline", deadline), ("poll", poll)):
            if value is not None and not value >= 0:
                raise ConfigError(f"{option}={value!r} is not a number of seconds: give 0 or more")
        self.left: list[str] = []
        self.notes: list[str] = []
        #: None: every model whose provider is known to have batches.
        self._provider = None if provider == "auto" else type(find_provider(provider))
        self._gathering = Gathering(max_wait, settle, smallest, int(most) if colon else None)
        self._terms = BatchTerms(deadline, poll, tuple(looks), enqueued, leave, fallback, detach)
        self._inner: Executor = make(place) if at else Async(THREADS)
        if at:
            self.slots, self.bounded, self.fetches = self._inner.slots, True, self._inner.fetches
        self._waves: Waves | None = None

    @staticmethod
    def spellings() -> list[str]:
        """For help and completion."""
        return [f"batch:{provider}" for provider in (*batching(), "auto")]

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        self.left, self.notes = [], []
        self._waves = Waves(self._gathering, self._terms, self.notes, self.left.extend)
        self._seat = functools.partial(Seat, self._waves, self.takes)
        self._threads = asyncio.Semaphore(THREADS)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        waves, self._waves = self._waves, None
        try:
            if waves is not None:
                await waves.close()
        finally:
            await self._inner.__aexit__(kind, error, trace)

    def remarks(self) -> Sequence[str]:
        return self.left  # its notes were told as they came

    def run(self, fn: Callable[..., Any], *args: Any) -> Coroutine[Any, Any, Any]:
        if self.bounded or is_coroutine_function(fn):
            return self._seated(fn, args)
        return self._in_turn(fn, args)

    async def _in_turn(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        with off_the_clock():  # one that waits for a thread is not yet an evaluation others should wait for
            await self._threads.acquire()
        try:
            return await self._seated(fn, args)
        finally:
            self._threads.release()

    async def _seated(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        assert self._waves is not None, "use the executor in an `async with` block"
        seat = self._seat()
        before = here().route
        enter(route=seat)
        self._waves.enter(seat)
        try:
            await self._waves.turn()
            return await self._inner.run(fn, *args)
        finally:
            self._waves.exit(seat)
            enter(route=before)

    def takes(self, model: Model) -> bool:
        """Whether a model's calls travel in batches."""
        if model.provider.batches is None:
            return False
        if self._provider is None:
            return not model.provider.anywhere
        # A server anywhere may have the batches of the provider whose protocol it speaks; another provider has its own.
        if model.provider.anywhere:
            return isinstance(model.provider, self._provider)
        return type(model.provider) is self._provider
