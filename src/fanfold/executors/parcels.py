"""Values that every far worker fetches once: large cases, and what a study shares."""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

from fanfold.executors.base import home
from fanfold.executors.worker import dumps as dumps
from fanfold.executors.worker import loads

#: Characters of a case from which on it is fetched once, instead of being sent with every call.
LARGE = 16 * 2**10
#: Bytes of fetched values that a worker keeps, the latest used last; one is always kept.
KEPT = 512 * 2**20

_KNOWN: weakref.WeakValueDictionary[str, Parcel] = weakref.WeakValueDictionary()
_FETCHED: dict[str, tuple[Any, int]] = {}


class Fetch(NamedTuple):
    """What a worker asks home for a value that it does not have; the reply is the pickled value."""

    name: str


class Parcel:
    """A value under a name that equal values share.  Pickled for a worker, it is only the name."""

    __slots__ = ("__weakref__", "name", "value")

    def __init__(self, name: str, value: Any) -> None:
        self.name = name
        self.value = value

    @staticmethod
    def of(name: str, value: Any) -> Parcel:
        """The parcel of that name; workers can ask for it as long as somebody holds it."""
        parcel = _KNOWN.get(name)
        if parcel is None:
            parcel = _KNOWN[name] = Parcel(name, value)
        return parcel

    def __reduce__(self) -> tuple[Any, ...]:
        from fanfold.context import here  # here, because a worker does not need it

        return (fetched, (self.name,)) if here().leaving else (_unchanged, (self.value,))


def value_for(request: Fetch) -> Any:
    """What a worker asks for, at home."""
    return _KNOWN[request.name].value


def fetched(name: str) -> Any:
    """The value of a parcel, in a worker."""
    entry = _FETCHED.pop(name, None)
    if entry is None:
        send = home()
        if send is None:
            raise LookupError(f"the data {name} is at home, and this process has no way to fetch it")
        data = send(Fetch(name)).result()
        entry = loads(data), len(data)
    _FETCHED[name] = entry
    while len(_FETCHED) > 1 and sum(size for _, size in _FETCHED.values()) > KEPT:
        del _FETCHED[next(iter(_FETCHED))]
    return entry[0]


def _unchanged(value: Any) -> Any:
    return value
