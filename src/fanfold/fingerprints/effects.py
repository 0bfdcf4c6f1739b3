"""What code changes by itself: a counter or a cache is not a setting, and not part of a fingerprint."""

from __future__ import annotations

import types
from typing import Any

from fanfold.fingerprints.code import Chain, Code
from fanfold.fingerprints.inventory import Inventory
from fanfold.fingerprints.objects import MAKING, cell_value, is_a


class Effects:
    """Variables and attributes that the code of an evaluator assigns to; with `untouched`, none count as changed."""

    def __init__(self, root: Any, untouched: bool, inventory: Inventory) -> None:
        self.untouched = untouched
        self._inventory = inventory
        self._mentioned = {"evaluate_block"}
        if is_a(root, types.MethodType):
            self._mentioned.add(root.__func__.__name__)
        #: Variables by where they live, and what is below objects.
        self._gone: set[tuple[int, str]] = set()
        self._below: dict[int, set[Chain]] = {}
        self._methods: dict[int, dict[str, tuple[str, Code]]] = {}

    def read(self, function: types.FunctionType, code: Code, cls: type | None) -> None:
        """Take note of what a function changes."""
        if cls is not None:
            names = function.__code__.co_varnames
            self._methods.setdefault(id(cls), {})[function.__name__] = (names[0] if names else "", code)
        if function.__name__ not in MAKING:
            self._mentioned |= code.mentions
            self._note_changes(function, code)

    def meets(self, cls: type) -> bool:
        """Whether a class is met for the first time."""
        if id(cls) in self._methods:
            return False
        self._methods[id(cls)] = {}
        self._inventory.hold(cls)
        return True

    def changes(self, place: tuple[int, str]) -> bool:
        """Whether code assigns to the variable at this place."""
        return place in self._gone

    def below(self, value: Any) -> set[Chain]:
        """The attributes of an object that code assigns to."""
        return self._below.get(id(value), set())

    def by_methods(self, kind: type) -> set[Chain]:
        """What the methods that an evaluation may call assign to the object."""
        if self.untouched:
            return set()
        methods: dict[str, tuple[str, Code]] = {}
        for cls in reversed(type.__getattribute__(kind, "__mro__")):
            methods |= self._methods.get(id(cls), {})
        waiting = [name for name in methods if name[:2] == name[-2:] == "__" or name in self._mentioned]
        called: set[str] = set()
        while waiting:
            name = waiting.pop()
            if name in called or name in MAKING:
                continue
            called.add(name)
            waiting += methods.keys() & methods[name][1].mentions
        return {chain[1:] for name in called for chain in methods[name][1].changes if chain[0] == methods[name][0]} - {
            ()
        }

    def _note_changes(self, function: types.FunctionType, code: Code) -> None:
        if self.untouched:
            return
        cells = dict(zip(function.__code__.co_freevars, function.__closure__ or ()))
        names = function.__code__.co_varnames
        for name, *rest in code.changes:
            if name in names:  # an argument: a default that is kept and changed is a cache
                self._gone |= set() if rest else {(id(function), name)}
            elif name in cells:
                self._note(id(cells[name]), "", cell_value(cells[name]), tuple(rest))
            elif name in function.__globals__:
                self._note(id(function.__globals__), name, function.__globals__[name], tuple(rest))

    def _note(self, place: int, name: str, value: Any, rest: Chain) -> None:
        if not rest:
            self._gone.add((place, name))
        elif is_a(value, types.FunctionType):
            self._gone |= {(id(value), f"__dict__.{rest[0]}")} if len(rest) == 1 else set()
        elif is_a(value, types.ModuleType):
            self._note(id(vars(value)), rest[0], vars(value).get(rest[0]), rest[1:])
        else:
            self._inventory.hold(value)
            self._below.setdefault(id(value), set()).add(rest)
