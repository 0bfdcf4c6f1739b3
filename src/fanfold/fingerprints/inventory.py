"""What a walk has found: a text at each path, and where it had to give up."""

from __future__ import annotations

from typing import Any

from fanfold.fingerprints.values import hashed


class Inventory:
    """What is at each path: the full text that is hashed, and what is shown of it."""

    def __init__(self) -> None:
        self.leaves: dict[str, tuple[str, str]] = {}
        self.unknown: dict[str, str] = {}
        self._seen: dict[int, str] = {}
        self._alive: list[Any] = []  # so that no id is given twice

    def hold(self, value: Any) -> None:
        """Keep an object alive as long as the walk, which knows it by its id."""
        self._alive.append(value)

    def leaf(self, path: str, full: str, shown: str | None = None) -> None:
        """Keep what is at a path; with a number where something else is there: two lambdas, two functions of a name."""
        number, first = 2, path
        while path in self.leaves and self.leaves[path][0] != full:
            path, number = f"{first} ({number})", number + 1
        self.leaves[path] = full, shown if shown is not None else full if len(full) <= 60 else f"#{hashed(full)[:12]}"

    def met(self, path: str, value: Any) -> bool:
        """Whether this very object was counted before; then its first path stands for it."""
        before = self._seen.setdefault(id(value), path)
        if before is path:
            self._alive.append(value)
            return False
        if before != path:
            self.leaf(path, f"the same as {before}")
        return True

    def give_up(self, path: str, owner: str | None, what: str) -> None:
        where = owner or path
        self.unknown.setdefault(where, what)
        self.leaf(where, f"unknown: {what}")
