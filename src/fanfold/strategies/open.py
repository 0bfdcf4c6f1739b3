"""Candidates that were asked and not yet told."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, KeysView, Mapping, Sequence
from typing import Any, Generic, TypeVar

from fanfold.encoding import encode
from fanfold.errors import ConfigError

H = TypeVar("H")


class OpenCandidates(Generic[H]):
    """What a strategy knows its open candidates by.  Equal ones may be open at once: the oldest is told first."""

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._waiting: dict[str, deque[H]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def keys(self) -> KeysView[str]:
        return self._waiting.keys()

    def add(self, candidate: Any, handle: H, key: str | None = None) -> None:
        """A candidate was asked; `key` is its encoding, where that is known."""
        self._waiting.setdefault(encode(candidate) if key is None else key, deque()).append(handle)

    def latest(self, candidate: Any) -> H | None:
        waiting = self._waiting.get(encode(candidate, "an asked candidate"))
        return waiting[-1] if waiting else None

    def take(self, candidate: Any) -> H:
        key = encode(candidate, "a told candidate")
        waiting = self._waiting.get(key)
        if not waiting:
            raise ConfigError(f"{self._owner} was told {candidate!r}, which is not open: was it changed after the ask?")
        handle = waiting.popleft()
        if not waiting:
            del self._waiting[key]
        return handle

    def save(self, handle: Callable[[H], Any]) -> dict[str, list[Any]]:
        """The open candidates in their order, each handle as data."""
        return {key: [handle(one) for one in waiting] for key, waiting in self._waiting.items()}

    def load(self, state: Mapping[str, Sequence[Any]], handle: Callable[[Any], H]) -> None:
        self._waiting = {key: deque(handle(one) for one in waiting) for key, waiting in state.items()}
