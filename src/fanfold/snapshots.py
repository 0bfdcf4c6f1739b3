"""What a search knows, as data that a resume takes over: a checkpoint, and how its parts are saved.  Never a pickle."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias, TypeGuard, runtime_checkable

import msgspec

from fanfold.encoding import digest
from fanfold.errors import FanfoldError
from fanfold.fingerprints import fingerprint
from fanfold.types import Result

#: Gives the result of a told trial, by its number, as the search was told it.
Told: TypeAlias = Callable[[int], Result[Any]]
#: How the bytes of a checkpoint begin; a state without it was saved by version 0.1.0, and is the strategy's alone.
_MAGIC = b"fanfold checkpoint 1\n"


class Unsaved(FanfoldError):
    """Some state cannot be saved as data: a resume replays the run instead."""


@runtime_checkable
class Snapshots(Protocol):
    """A strategy or a schedule with these two is taken over by a resume, instead of being told everything again."""

    def save(self) -> bytes:
        """All state needed to continue, as bytes that `load` understands (never a pickle)."""

    def load(self, state: bytes) -> bool | None:
        """Take over a saved state, after `begin`; False where another version saved it, and all is told again.

        A `load(state, told)` of two arguments is also given a function from the number of a told trial to its result,
        so that a state need not repeat what the ledger has.
        """


class Checkpoint(msgspec.Struct):
    """A search after so many asks and tells.  `record` is the digest of what was told until then (`ledger.proof`)."""

    told: int
    asked: int
    #: All trials with a lower number have been told.
    settled: int
    strategy: bytes
    schedule: bytes
    tally: dict[str, Any]
    #: What the stopping rules have counted, by their texts.
    rules: dict[str, Any]
    #: Whether the strategy has been asked since the last tell, and gave all that it has for now.
    waits: bool
    #: The version and the fingerprints of what it was made by.
    basis: str = ""
    record: bytes = b""
    #: How many trials had evaluations made again since the search had them.
    amended: int = 0

    def sealed(self) -> bytes:
        data = msgspec.msgpack.encode(self)
        return _MAGIC + digest(data) + data

    @classmethod
    def opened(cls, state: bytes) -> Checkpoint | None:
        """The checkpoint of these bytes; None for the state of a strategy alone.  Raises Unsaved for damaged ones."""
        if not state.startswith(_MAGIC):
            return None
        seal, data = state[len(_MAGIC) : len(_MAGIC) + 16], state[len(_MAGIC) + 16 :]
        if digest(data) != seal:
            raise Unsaved("its checkpoint is damaged")
        try:
            return msgspec.msgpack.decode(data, type=cls)
        except msgspec.DecodeError as error:
            raise Unsaved(f"its checkpoint is damaged: {error}") from error


def saves(part: Any) -> TypeGuard[Snapshots]:
    """Whether a strategy or schedule can be saved: it has `save` and `load`, and no subclass could have added state."""
    if not isinstance(part, Snapshots):
        return False
    for kind in type(part).__mro__:
        if "save" in vars(kind):
            return True
        if kind.__module__.partition(".")[0] != "fanfold" and any(map(callable, vars(kind).values())):
            return False
    return False


def unsaved(*parts: Any) -> str | None:
    """Why a search of these cannot be taken over from a checkpoint; None if it can."""
    for part in parts:
        if not saves(part) and getattr(part, "remembers", True):
            return f"{type(part).__name__} has no save() and load() of its own"
    return None


def take_over(part: Any, state: bytes, told: Told) -> None:
    """Load a saved state; raises Unsaved where it cannot be."""
    try:
        load: Any = part.load
        answer = load(state, told) if len(inspect.signature(load).parameters) > 1 else load(state)
    except Exception as error:  # damaged or forged: whatever its reader meets
        raise Unsaved(f"the saved state of {type(part).__name__} cannot be read ({error})") from error
    if answer is False:
        raise Unsaved(f"the saved state of {type(part).__name__} is another version's")


def same_type(value: Any, other: Any) -> bool:
    """Whether two values are equal in their types, too: a tuple that came back as a list is not."""
    if type(value) is not type(other):
        return False
    if isinstance(value, dict):
        return value.keys() == other.keys() and all(same_type(item, other[key]) for key, item in value.items())
    if isinstance(value, list | tuple):
        return len(value) == len(other) and all(map(same_type, value, other))
    return bool(value == other)


# -- what strategies and schedules save by -------------------------------------------------------------------------


def packed(**state: Any) -> bytes:
    """Named values (numbers, texts, bytes, lists, dicts) as bytes."""
    return msgspec.msgpack.encode(state)


def unpacked(state: bytes) -> dict[str, Any]:
    return msgspec.msgpack.decode(state, type=dict[str, Any])


def rng_state(rng: random.Random) -> Any:
    return rng.getstate()


def set_rng(rng: random.Random, state: Any) -> None:
    version, words, gauss = state
    rng.setstate((version, tuple(words), gauss))


def untouched(**parts: Any) -> dict[str, str]:
    """Fingerprints of what a user gave, such as functions: a resume has them as they were at the beginning.

    Compared by `check_untouched`, so that one that has changed while it worked is noticed.
    """
    prints = {name: fingerprint(part, name, untouched=True) for name, part in parts.items() if part is not None}
    for name, print in prints.items():
        if print.unknown:
            raise Unsaved(f"what {name} holds cannot be written down")
    return {name: print.text for name, print in prints.items()}


def check_untouched(saved: Mapping[str, str], **parts: Any) -> None:
    for name, text in untouched(**parts).items():
        if saved.get(name) != text:
            raise Unsaved(f"{name} changed while it worked")
