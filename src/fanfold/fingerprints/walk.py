"""The walk through a value and all that it reaches: what is found on the way makes its fingerprint."""

from __future__ import annotations

import functools
import inspect
import operator
import sys
import types
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fanfold.encoding import digest
from fanfold.fingerprints.code import Chain, Code, read_code, under
from fanfold.fingerprints.modules import Modules
from fanfold.fingerprints.objects import (
    BUILT_IN,
    CONTAINERS,
    DESCRIPTORS,
    EMPTY,
    GENERATED,
    MAKING,
    METHODS,
    attributes_of,
    cell_value,
    class_attribute,
    functions_in,
    is_a,
    is_opaque,
    known_by_name,
    name_of,
    qualified,
    unmangled,
)
from fanfold.fingerprints.values import TooMuch, hashed, kept, plain

#: How many objects and functions are looked at before a fingerprint is given up as unknown.
_STEPS, _FUNCTIONS = 200_000, 5_000
#: How many parts of a fingerprint are kept by name, of state and of code; the others are kept as one hash.
_NAMED, _NAMED_CODE = 40, 20
#: How paths of code begin, and what the others together are called.
CODE, REST = "code of ", "what is not listed"


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What something is.  `text` is equal only where all of it is equal, as far as it is known."""

    #: Of the function or the class.
    name: str
    text: str
    #: What was counted, by its path (`evaluate.k`): the value where it is short and no secret, else a hash.
    parts: dict[str, str] = field(default_factory=dict)
    #: Paths of what cannot be written down, and what is there.
    unknown: dict[str, str] = field(default_factory=dict)
    #: Whether it is the object's own word, its attribute `fingerprint`.
    own: bool = False


@dataclass(frozen=True, slots=True)
class Unknown:
    """Stands, in the settings that an object gives as its fingerprint, for what cannot be told."""

    what: str


def fingerprint(value: Any, role: str = "evaluate", *, untouched: bool = False) -> Fingerprint:
    """What `value` is; `role` is what it is called in paths.

    What an evaluator's code changes itself (a counter, a cache) is no setting and is left out; with `untouched` the
    object is one that is copied before it is used, and everything it holds counts.
    """
    walk = _Walk(role, value, untouched)
    own = walk.own_word(role, value)
    if isinstance(own, str):
        return Fingerprint(name_of(value), own, {f"{role}.fingerprint": repr(own)}, own=True)
    walk.run(value)
    leaves = sorted(walk.leaves.items())
    whole = digest(*(part for path, (full, _) in leaves for part in (path, full))).hex()[:16]
    return Fingerprint(
        name_of(value), f"{name_of(value)}@{whole}", _parts(walk.leaves), dict(sorted(walk.unknown.items()))
    )


def _parts(leaves: Mapping[str, tuple[str, str]]) -> dict[str, str]:
    # Those near the top first: they are what the user gave.
    state = sorted((path for path in leaves if not path.startswith(CODE)), key=lambda path: (path.count("."), path))
    code = sorted(path for path in leaves if path.startswith(CODE))
    listed = {path: leaves[path][1] for path in state[:_NAMED] + code[:_NAMED_CODE]}
    for name, rest in ((REST, state[_NAMED:]), (f"{CODE}{REST}", code[_NAMED_CODE:])):
        if rest:
            listed[name] = hashed("\n".join(f"{path} {leaves[path][0]}" for path in rest))[:12]
    return listed


class _Walk:
    """Goes through everything a value is made of.  Code comes first, so that what it changes is known when the state
    is looked at."""

    def __init__(self, role: str, root: Any, untouched: bool) -> None:
        self.role = role
        self.untouched = untouched
        self.leaves: dict[str, tuple[str, str]] = {}
        self.unknown: dict[str, str] = {}
        self.modules = Modules(name_of(root).partition(".")[0] if role == "evaluate" else "")
        self._code: deque[Callable[[], None]] = deque()
        self._state: deque[Callable[[], None]] = deque()
        self._seen: dict[int, str] = {}
        self._alive: list[Any] = []  # so that no id is given twice
        self._steps = 0
        self._most = 1_000_000
        self._read = 0
        self._mentioned = {"evaluate_block"}
        if is_a(root, types.MethodType):
            self._mentioned.add(root.__func__.__name__)
        #: What code changes: variables by where they live, and what is below objects.
        self._gone: set[tuple[int, str]] = set()
        self._globals: set[tuple[int, str]] = set()
        self._below: dict[int, set[Chain]] = {}
        self._methods: dict[int, dict[str, tuple[str, Code]]] = {}

    def run(self, value: Any) -> None:
        self._state.append(lambda: self.value(self.role, value))
        while self._code or self._state:
            if self._code:
                self._code.popleft()()
                continue
            self._state.popleft()()

    def own_word(self, path: str, value: Any) -> Any:
        """The text (or the settings) that an object gives as its fingerprint; None where it gives none."""
        classes = type.__getattribute__(value if is_a(value, type) else type(value), "__mro__")
        found = None if is_a(value, type) else attributes_of(value).get("fingerprint")
        for cls in classes if found is None else ():
            found = type.__getattribute__(cls, "__dict__").get("fingerprint")
            if found is not None:
                break
        if is_a(found, property | functools.cached_property) and not is_a(value, type):
            try:
                found = value.fingerprint
            except Exception as error:
                self._give_up(f"{path}.fingerprint", None, f"{type(error).__name__}: {error}")
                return {}
        return found if is_a(found, str | Mapping) else None

    # -- values ------------------------------------------------------------------------------------------------------

    def value(self, path: str, value: Any, changes: Iterable[Chain] = (), owner: str | None = None) -> None:
        """Count a value.  `changes` are attributes of it that code changes; `owner` is the path of the object of an
        installed package that it is a part of."""
        self._steps += 1
        if self._steps > _STEPS:
            self._give_up(path, owner, "too much to look at")
            return
        kind = type(value)
        if kind is dict and 0 < len(value) <= 64 and set(map(type, value)) == {str}:
            if not self._met(path, value):
                for key in sorted(value):
                    self.value(f"{path}.{key}", value[key], (), owner)
            return
        try:
            text = plain(value, self._most)
        except TooMuch:
            text, self._most = "", 10_000  # its parts are looked at one by one, each no longer at such length
        except Exception:  # not plain, or too odd to be
            text = ""
        if text:
            self._leaf(path, *kept(path.rpartition(".")[2], value, text))
        elif not self._met(path, value):
            try:
                self._object(path, value, frozenset(changes), owner)
            except Exception as error:  # whatever an odd object does: it cannot be written down
                self._give_up(path, owner, f"{qualified(kind)}, {type(error).__name__}")

    def _object(self, path: str, value: Any, changes: frozenset[Chain], owner: str | None) -> None:
        own = self.own_word(path, value)
        kind = type(value)
        if isinstance(own, str):
            self._leaf(path, *kept("", own, repr(own)))
        elif own is not None:
            self._leaf(path, name_of(value))
            self.value(path, dict(own), (), owner)
        elif kind is Unknown:
            self._give_up(path, owner, value.what)
        elif issubclass(kind, types.ModuleType):
            self._module(path, value)
        elif kind is types.FunctionType:
            self._function(path, value, owner)
        elif kind is types.MethodType:
            self.value(f"{path}.{value.__func__.__name__}", value.__func__, (), owner)
            self.value(path, value.__self__, changes, owner)
        elif kind in BUILT_IN:
            self._leaf(path, value.__qualname__)
            bound = getattr(value, "__self__", None)
            if bound is not None and not is_a(bound, types.ModuleType):
                self.value(f"{path}.__self__", bound, (), owner)
        elif issubclass(kind, functools.partial):
            self._partial(path, value, owner)
        elif issubclass(kind, type):
            self._leaf(path, qualified(value))
            self._class(value)
        elif kind in (operator.itemgetter, operator.attrgetter, operator.methodcaller):
            self._leaf(path, qualified(kind))
            self._content(path, list(value.__reduce__()[1]), owner)
        elif name := known_by_name(value):
            self._leaf(path, name)
        else:
            self._instance(path, value, changes, owner)

    def _partial(self, path: str, value: Any, owner: str | None) -> None:
        get = functools.partial.__dict__
        self.value(f"{path}.func", get["func"].__get__(value), (), owner)
        for place, item in enumerate(get["args"].__get__(value)):
            self.value(f"{path}.args[{place}]", item, (), owner)
        for key, item in sorted(get["keywords"].__get__(value).items()):
            self.value(f"{path}.{key}", item, (), owner)

    def _instance(self, path: str, value: Any, changes: frozenset[Chain], owner: str | None) -> None:
        kind, attributes = type(value), attributes_of(value)
        ours = self._class(kind)
        if not ours and (name := self._importable(value)):
            self._leaf(path, name)
            return
        if not ours and "__wrapped__" in attributes:  # what a decorator of an installed package made of a function
            self._leaf(path, qualified(kind))
            self.value(f"{path}.__wrapped__", attributes["__wrapped__"], (), owner)
            return
        content = next((read(value) for base, read in CONTAINERS if issubclass(kind, base)), None)
        seen_into = ours or content is not None or kind.__module__.startswith("fanfold.")
        inside = owner if seen_into or owner is not None else path
        if content is None and is_opaque(kind):
            self._give_up(path, inside, qualified(kind))
            return
        if kind not in (dict, list, tuple, set, frozenset, deque):
            self._leaf(path, qualified(kind))
        if content is not None:
            self._content(path, content, inside)
        if attributes:
            self._state.append(lambda: self._attributes(path, value, attributes, changes, inside))

    def _content(self, path: str, content: Any, owner: str | None) -> None:
        """What a container holds, where that is not all plain."""
        if isinstance(content, list):
            for place, item in enumerate(content):
                self.value(f"{path}[{place}]", item, (), owner)
        elif isinstance(content, dict):
            for key, item in content.items():
                self.value(f"{path}.{key if type(key) is str else self._alone(path, key)}", item, (), owner)
        elif isinstance(content, set):
            self._leaf(f"{path} members", " ".join(sorted(self._alone(path, item) for item in content)))
        else:
            self.value(f"{path} itself", content, (), owner)

    def _alone(self, path: str, value: Any) -> str:
        """A hash of one value that has no place of its own: a key of a dict, a member of a set."""
        found = fingerprint(value, path, untouched=self.untouched)
        self.unknown |= found.unknown
        return hashed(found.text)

    def _attributes(
        self, path: str, value: Any, attributes: Mapping[str, Any], changes: frozenset[Chain], owner: str | None
    ) -> None:
        kind = type(value)
        changed = changes | self._below.get(id(value), set()) | self._changed_by_methods(kind)
        for name in sorted(attributes):
            plain_name = unmangled(name, kind)
            if (plain_name,) in changed or isinstance(class_attribute(kind, name), functools.cached_property):
                continue
            self.value(f"{path}.{name}", attributes[name], under(changed, plain_name), owner)

    def _changed_by_methods(self, kind: type) -> set[Chain]:
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

    # -- code --------------------------------------------------------------------------------------------------------

    def _function(self, path: str, function: types.FunctionType, owner: str | None, cls: type | None = None) -> None:
        wrapped = function.__dict__.get("__wrapped__")
        if wrapped is not None:
            self.value(f"{path}.__wrapped__", wrapped, (), owner)
        if self.modules.holds_code(function):
            self._code.append(lambda: self._own_function(path, function, owner, cls))
            return
        self._leaf(path, f"{function.__globals__.get('__name__')}.{function.__code__.co_qualname}")
        cells = zip(function.__code__.co_freevars, function.__closure__ or ())
        if isinstance(registry := function.__dict__.get("registry"), types.MappingProxyType):  # singledispatch
            self._content(f"{path}.registry", dict(registry), owner)
        elif wrapped is None:
            for name, cell in cells:
                self._cell(f"{path}.{name}", cell, frozenset(), owner or path)

    def _own_function(self, path: str, function: types.FunctionType, owner: str | None, cls: type | None) -> None:
        self._read += 1
        if self._read > _FUNCTIONS:
            self._give_up(self.role, None, "too much code to look at")
            return
        code, names = read_code(function.__code__), function.__code__.co_varnames
        self._leaf(f"{CODE}{function.__module__}.{function.__qualname__}", hashed(code.text))
        if cls is not None:
            self._methods.setdefault(id(cls), {})[function.__name__] = (names[0] if names else "", code)
        if function.__name__ not in MAKING:
            self._mentioned |= code.mentions
            self._note_changes(function, code)
        for chain in sorted(code.reads):
            self._reached(function.__globals__, chain)
        for level, name, wanted in sorted(code.imports):
            self._imported(function.__globals__.get("__package__") or "", level, name, wanted)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
            if name != "__class__":
                self._cell(f"{path}.{name}", cell, under(code.changes, name), owner)
        defaults = function.__defaults__ or ()
        first = function.__code__.co_argcount - len(defaults)
        given = dict(zip(names[first:], defaults)) | (function.__kwdefaults__ or {})
        given |= {f"__dict__.{name}": item for name, item in function.__dict__.items() if name != "__wrapped__"}
        for name in sorted(given):
            self._later(f"{path}.{name}", given[name], (id(function), name), under(code.changes, name), owner)

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
            self._alive.append(value)
            self._below.setdefault(id(value), set()).add(rest)

    def _cell(self, path: str, cell: types.CellType, changes: frozenset[Chain], owner: str | None) -> None:
        if cell is not EMPTY and cell_value(cell) is not EMPTY:
            self._later(path, cell_value(cell), (id(cell), ""), changes, owner)

    def _reached(self, names: dict[str, Any], chain: Chain) -> None:
        """Count a variable of one of the project's modules."""
        name, *rest = chain
        if name not in names:
            return  # a name of Python itself, or one that is not there yet
        value, module = names[name], names.get("__name__")
        if is_a(value, types.ModuleType) and rest and self.modules.holds(value.__name__, vars(value)):
            self._reached(vars(value), tuple(rest))
            return
        place = id(names), name
        if place not in self._globals:
            self._globals.add(place)
            self._later(f"{module}.{name}", value, place, frozenset(), None)

    def _later(
        self, path: str, value: Any, place: tuple[int, str], changes: frozenset[Chain], owner: str | None
    ) -> None:
        """Count a value when all code is known; one that code changes itself is not counted."""
        if is_a(value, types.FunctionType | type):
            self.value(path, value, (), owner)
            return

        def count() -> None:
            if place not in self._gone:
                self.value(path, value, changes | self._below.get(id(value), set()), owner)

        self._state.append(count)

    def _module(self, path: str, module: types.ModuleType) -> None:
        """A module that is held as a value: its name, and all of its source if it is the project's own."""
        self._leaf(path, module.__name__)
        self._imported("", 0, module.__name__, ())

    def _imported(self, package: str, level: int, name: str, wanted: Chain) -> None:
        for found, text in self.modules.sources(package, level, name, wanted):
            self._leaf(f"{CODE}{found}", hashed(text))

    def _class(self, cls: type) -> bool:
        """Count the code of a class and of its bases; whether it is one of the project's own."""
        bases = type.__getattribute__(cls, "__mro__")
        ours = [base for base in bases if self.modules.holds(base.__dict__.get("__module__"), None)]
        for base in ours:
            if id(base) not in self._methods:
                self._methods[id(base)] = {}
                self._alive.append(base)
                self._leaf(f"{CODE}class {qualified(base)}", " ".join(map(qualified, base.__bases__)))
                self._members(base)
        return bool(ours)

    def _members(self, cls: type) -> None:
        prefix = qualified(cls)
        for name, member in sorted(vars(cls).items(), key=lambda item: item[0]):
            path = f"{prefix}.{name}"
            for function in functions_in(member):
                if function.__code__.co_filename[:1] != "<" or name not in GENERATED:
                    self._function(path, function, None, cls)
            special = name[:2] == name[-2:] == "__" or name.startswith("_abc_")
            if special or isinstance(member, (*DESCRIPTORS, *METHODS)):
                continue
            self._state.append(functools.partial(self._class_value, path, cls, name, member))

    def _class_value(self, path: str, cls: type, name: str, value: Any) -> None:
        changed = self._below.get(id(cls), set()) | self._changed_by_methods(cls)
        if (unmangled(name, cls),) not in changed:
            self.value(path, value, under(changed, name))

    def _importable(self, value: Any) -> str:
        """The full name of an object that can be imported by it from an installed package (`numpy.median`)."""
        if inspect.getattr_static(value, "__name__", None) is None:
            return ""
        module, name = getattr(value, "__module__", None), getattr(value, "__name__", None)
        if not isinstance(module, str) or not isinstance(name, str) or self.modules.holds(module, None):
            return ""
        return f"{module}.{name}" if vars(sys.modules.get(module, types)).get(name) is value else ""

    # -- keeping -----------------------------------------------------------------------------------------------------

    def _leaf(self, path: str, full: str, shown: str | None = None) -> None:
        """Keep what is at a path; with a number where something else is there: two lambdas, two functions of a name."""
        number, first = 2, path
        while path in self.leaves and self.leaves[path][0] != full:
            path, number = f"{first} ({number})", number + 1
        self.leaves[path] = full, shown if shown is not None else full if len(full) <= 60 else f"#{hashed(full)[:12]}"

    def _met(self, path: str, value: Any) -> bool:
        """Whether this very object was counted before; then its first path stands for it."""
        before = self._seen.setdefault(id(value), path)
        if before is path:
            self._alive.append(value)
            return False
        if before != path:
            self._leaf(path, f"the same as {before}")
        return True

    def _give_up(self, path: str, owner: str | None, what: str) -> None:
        where = owner or path
        self.unknown.setdefault(where, what)
        self._leaf(where, f"unknown: {what}")
