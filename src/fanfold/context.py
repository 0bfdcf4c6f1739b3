"""What travels with an evaluation: its run, its meter, its clock, and the call it carries.

One context variable holds it all, so that threads and tasks which an evaluator starts inherit it as a whole.  Studies
never read it: they get what they need as arguments.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import msgspec


class Meter(msgspec.Struct):
    """The model calls of one evaluation, what they cost, and its time; of a block, `case` is its first."""

    cost: float = 0.0
    trial: int = 0
    case: str = ""
    position: int = 0
    #: The keys of its calls in the order of the replies, and a byte for each: 1 where it paid nothing.
    keys: bytes = b""
    cached: bytes = b""
    #: How long it ran, where its worker says so: then its wait for the worker does not count.
    seconds: float = 0.0

    def count(self, key: bytes, cached: bool) -> None:
        """Take note of a call that was answered."""
        self.keys += key
        self.cached += b"\1" if cached else b"\0"


class Context(msgspec.Struct, frozen=True):
    """Where code runs, as far as the engine has to know."""

    #: Of the run: its call broker, the other way its calls take (batches), and in a rehearsal what gives a model its
    #: transport instead of the model itself.
    broker: Any = None
    route: Any = None
    rehearsal: Callable[[Any], Any] | None = None
    #: Where people reach it from elsewhere.
    remote: Any = None
    #: Answers what an evaluation asks from a worker; called in that evaluation's context, on the run's event loop.
    answer: Callable[[Any], Awaitable[Any]] | None = None
    #: Of the evaluation: its meter, and its clock where it has a time limit.
    meter: Meter | None = None
    clock: Any = None
    #: Whether the time that its model calls take is not its own.
    calls_aside: bool = False
    #: Where its calls and their replies are added in the order of the replies, for an evaluator that wants to see them.
    trace: list[Any] | None = None
    #: Of a traced run: gives each evaluation a span.
    spans: Any = None
    #: Of a call: the flight that this code carries to a provider.
    flight: Any = None
    #: True while something is pickled for a worker that can ask home: what must stay at home need not travel.
    leaving: bool = False


_HERE: contextvars.ContextVar[Context] = contextvars.ContextVar("fanfold", default=Context())  # noqa: B039 (it is frozen)

#: The context of the code that asks.
here = _HERE.get


def enter(**changes: Any) -> contextvars.Token[Context]:
    """Change the context of this task or thread from now on; `leave` undoes it."""
    return _HERE.set(msgspec.structs.replace(_HERE.get(), **changes))


leave = _HERE.reset


@contextlib.contextmanager
def within(**changes: Any) -> Iterator[None]:
    """Change the context of a block."""
    token = enter(**changes)
    try:
        yield
    finally:
        _HERE.reset(token)


def copied(**changes: Any) -> contextvars.Context:
    """A copy of everything ambient, with these changes: the context of a new task."""
    context = contextvars.copy_context()
    if changes:
        context.run(enter, **changes)
    return context
