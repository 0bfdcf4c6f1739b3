"""Evaluators that give every kind of bad outcome, one for each candidate, which is the name of the kind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np

from fanfold import Blob, Case, ConfigError, Failed, Ok
from fanfold.encoding import MOST_DATA
from fanfold.errors import CallFailed, ExecutorBroken, WorkerDied

HALF = "half an emoji: \ud83d"
MENDED = "half an emoji: \ufffd"


class Mute(Exception):
    """Raises where it should say what happened."""

    def __str__(self) -> str:
        raise ValueError("no text")

    __repr__ = __str__


class Rude(Exception):
    def __str__(self) -> str:
        raise SystemExit(1)


class Unheard(BaseException):
    """An exception of a library that wants to be caught by nobody."""


class Locked(Exception):
    """Cannot be sent to another process."""

    def __init__(self) -> None:
        super().__init__("holds a lock")
        self.lock = threading.Lock()


class NoNumber:
    """Breaks wherever it is touched."""

    def __float__(self) -> float:
        raise RuntimeError("no number")

    def __repr__(self) -> str:
        raise RuntimeError("no text")


class NoList:
    def tolist(self) -> Any:
        raise KeyError("no list")


def raising(error: Any) -> Callable[[], Any]:
    def poison() -> Any:
        raise error() if callable(error) else error

    return poison


def giving(value: Any) -> Callable[[], Any]:
    return lambda: value


def recursing() -> Any:
    return recursing()


def chained() -> Any:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    raise first


def noted() -> Any:
    error = ValueError("with a note")
    error.add_note(HALF)
    raise error


async def coroutine() -> float:
    return 1.0


def generator() -> Iterator[float]:
    yield 1.0


def cycle() -> Any:
    data: list[Any] = []
    data.append(data)
    return data


def deep() -> Any:
    data: Any = 1
    for _ in range(500):
        data = [data]
    return data


def kindless() -> Any:
    error = CallFailed("server", "broken")
    error.kind = None  # type: ignore[assignment]
    raise error


def blob(data: Any) -> Blob:
    return Blob("0" * 40, lambda digest: data)


#: The kind of bad outcome, and the kind of failure that is to come of it.
BAD: dict[str, tuple[Callable[[], Any], str]] = {
    # what an evaluator raises
    "raises half an emoji": (raising(lambda: ValueError(HALF)), "error"),
    "raises what has no text": (raising(Mute), "error"),
    "raises what exits when asked for its text": (raising(Rude), "error"),
    "raises a very long text": (raising(lambda: ValueError("x" * 3_000_000)), "error"),
    "raises with an object": (raising(lambda: KeyError(NoNumber())), "error"),
    "raises with a note of half an emoji": (noted, "error"),
    "raises a chain without end": (chained, "error"),
    "raises what cannot be sent": (raising(Locked), "error"),
    "raises BaseException": (raising(lambda: BaseException("base")), "error"),
    "raises a BaseException of its own": (raising(Unheard), "error"),
    "raises GeneratorExit": (raising(GeneratorExit), "error"),
    "raises SystemExit": (raising(lambda: SystemExit(3)), "error"),
    "raises CancelledError": (raising(asyncio.CancelledError), "error"),
    "raises a group": (raising(lambda: ExceptionGroup("all", [ValueError(HALF), Mute()])), "error"),
    "raises a base group": (raising(lambda: BaseExceptionGroup("all", [SystemExit(1), GeneratorExit()])), "error"),
    "raises StopIteration": (raising(StopIteration), "error"),
    "raises StopAsyncIteration": (raising(StopAsyncIteration), "error"),
    "raises RecursionError": (recursing, "error"),
    "raises MemoryError": (raising(MemoryError), "error"),
    "raises TimeoutError": (raising(TimeoutError), "error"),
    "raises ConfigError": (raising(lambda: ConfigError("mine")), "error"),
    "raises ExecutorBroken": (raising(lambda: ExecutorBroken("mine")), "error"),
    "raises WorkerDied": (raising(lambda: WorkerDied("mine")), "error"),
    "raises a call's failure without a kind": (kindless, "error"),
    # what is no score
    "gives None": (giving(None), "bad-score"),
    "gives a text": (giving("0.5"), "bad-score"),
    "gives half an emoji": (giving(HALF), "bad-score"),
    "gives bytes": (giving(b"0.5"), "bad-score"),
    "gives NaN": (giving(float("nan")), "bad-score"),
    "gives infinity": (giving(float("-inf")), "bad-score"),
    "gives a numpy NaN": (giving(np.float32("nan")), "bad-score"),
    "gives a Decimal NaN": (giving(Decimal("sNaN")), "bad-score"),
    "gives a complex number": (giving(1j), "bad-score"),
    "gives a complex number of numpy": (giving(np.complex64(1j)), "bad-score"),
    "gives a huge integer": (giving(10**400), "bad-score"),
    "gives an integer too long to print": (giving(10**5000), "bad-score"),
    "gives a list": (giving([0.5]), "bad-score"),
    "gives an array": (giving(np.array([0.5, 0.5])), "bad-score"),
    "gives a coroutine": (lambda: coroutine(), "bad-score"),
    "gives a generator": (lambda: generator(), "bad-score"),
    "gives a class": (giving(float), "bad-score"),
    "gives an exception": (lambda: Mute(), "bad-score"),
    "gives what is no number": (lambda: NoNumber(), "bad-score"),
    "gives Ok of None": (giving(Ok(None)), "bad-score"),  # type: ignore[arg-type]
    "gives Ok of a long text": (lambda: Ok("x" * 3_000_000), "bad-score"),  # type: ignore[arg-type]
    # what is no cost
    "costs NaN": (giving(Ok(1.0, cost=float("nan"))), "bad-data"),
    "costs infinity": (giving(Ok(1.0, cost=float("inf"))), "bad-data"),
    "costs less than nothing": (giving(Ok(1.0, cost=-1.0)), "bad-data"),
    "costs None": (giving(Ok(1.0, cost=None)), "bad-data"),  # type: ignore[arg-type]
    "costs a text": (giving(Ok(1.0, cost="0.1")), "bad-data"),  # type: ignore[arg-type]
    "costs a huge integer": (giving(Ok(1.0, cost=10**400)), "bad-data"),
    "costs an array": (giving(Ok(1.0, cost=np.array([1.0, 2.0]))), "bad-data"),  # type: ignore[arg-type]
    "costs what is no number": (lambda: Ok(1.0, cost=NoNumber()), "bad-data"),  # type: ignore[arg-type]
    # what cannot be kept
    "has data in a cycle": (lambda: Ok(1.0, cycle()), "bad-data"),
    "has data too deep": (lambda: Ok(1.0, deep()), "bad-data"),
    "has NaN in its data": (giving(Ok(1.0, {"losses": [1.0, float("nan")]})), "bad-data"),
    "has infinity in an array": (giving(Ok(1.0, np.array([1.0, np.inf]))), "bad-data"),
    "has an object in its data": (lambda: Ok(1.0, object()), "bad-data"),
    "has a lock in its data": (lambda: Ok(1.0, threading.Lock()), "bad-data"),
    "has a function in its data": (lambda: Ok(1.0, [lambda: 1]), "bad-data"),
    "has an exception in its data": (lambda: Ok(1.0, Mute()), "bad-data"),
    "has a generator in its data": (lambda: Ok(1.0, generator()), "bad-data"),
    "has data that breaks": (lambda: Ok(1.0, NoList()), "bad-data"),
    "has two keys of one text": (giving(Ok(1.0, {1: 2, "1": 3})), "bad-data"),
    "has a set without an order": (giving(Ok(1.0, {1, "a"})), "bad-data"),
    "has an integer too long to print": (giving(Ok(1.0, 10**5000)), "bad-data"),
    "has too much data": (lambda: Ok(1.0, "x" * MOST_DATA), "bad-data"),
    "has the key of a blob in its data": (giving(Ok(1.0, {"$blob": "0" * 40})), "bad-data"),
    "has a blob of text": (lambda: Ok(1.0, blob("text")), "bad-data"),
    "has a blob of nothing": (lambda: Ok(1.0, [blob(None)]), "bad-data"),
    # failures that are none
    "fails with no kind": (giving(Failed(None, "mine")), "bad-data"),  # type: ignore[arg-type]
    "fails with an empty kind": (giving(Failed("", "mine")), "bad-data"),
    "fails with a sentence as its kind": (giving(Failed("it did not work", "mine")), "bad-data"),
    "fails with bytes as its kind": (giving(Failed(b"odd", "mine")), "bad-data"),  # type: ignore[arg-type]
    "fails with half an emoji as its kind": (giving(Failed(HALF, "mine")), "bad-data"),
    "fails and costs NaN": (giving(Failed("mine", "m", cost=float("nan"))), "bad-data"),
    "fails and costs a text": (giving(Failed("mine", "m", cost="a lot")), "bad-data"),  # type: ignore[arg-type]
    "fails with an exception": (lambda: Failed("mine", ValueError("x")), "mine"),  # type: ignore[arg-type]
    "fails with what has no text": (lambda: Failed("mine", Mute()), "mine"),  # type: ignore[arg-type]
    "fails with no message": (giving(Failed("mine", None)), "mine"),  # type: ignore[arg-type]
    "fails with half an emoji": (giving(Failed("mine", HALF, HALF)), "mine"),
    "fails with a long detail": (lambda: Failed("mine", "m", "d" * 3_000_000), "mine"),
    "fails and costs a number of numpy": (giving(Failed("mine", "m", cost=np.float32(0.5))), "mine"),  # type: ignore[arg-type]
}

#: Odd but good: what the ledger is to give back.
ODD: dict[str, tuple[Callable[[], Any], Ok]] = {
    "a whole number": (giving(3), Ok(3.0)),
    "a truth": (giving(True), Ok(1.0)),
    "a Decimal": (giving(Decimal("0.5")), Ok(0.5)),
    "a number of numpy": (giving(np.float32(0.5)), Ok(0.5)),
    "an array of nothing but a number": (giving(np.array(0.5)), Ok(0.5)),
    "a cost of numpy": (giving(Ok(np.float64(0.5), cost=np.float32(0.25))), Ok(0.5, cost=0.25)),  # type: ignore[arg-type]
    "a whole cost of numpy": (giving(Ok(0.5, cost=np.int64(2))), Ok(0.5, cost=2.0)),  # type: ignore[arg-type]
    "data with half an emoji": (giving(Ok(0.5, {HALF: [HALF]})), Ok(0.5, {MENDED: [MENDED]})),
    "data with both halves": (giving(Ok(0.5, "\ud83d\ude00")), Ok(0.5, "\U0001f600")),
    "half an emoji beside a blob": (lambda: Ok(0.5, [HALF, Blob.of(b"b")]), Ok(0.5, [MENDED, Blob.of(b"b")])),
    "data of numpy": (giving(Ok(0.5, {"n": np.int64(2), "none": None})), Ok(0.5, {"n": 2, "none": None})),
    "a set and a tuple": (giving(Ok(0.5, [{2, 1}, (3,)])), Ok(0.5, [[1, 2], [3]])),
}  # fmt: skip


def poisoned(name: str) -> Any:
    if name in BAD:
        return BAD[name][0]()
    return ODD[name][0]() if name in ODD else 0.25


@dataclass(frozen=True)
class Poisoned:
    """Gives what its candidate says, in a plain function."""

    fingerprint: str = "poisons"

    def __call__(self, candidate: str, case: Case) -> Any:
        return poisoned(candidate)


@dataclass(frozen=True)
class PoisonedLater:
    """The same in a coroutine function that really waits."""

    fingerprint: str = "poisons"

    async def __call__(self, candidate: str, case: Case) -> Any:
        await asyncio.sleep(0)
        return poisoned(candidate)
