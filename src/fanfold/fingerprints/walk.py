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
from fanfold.fingerprints.code import Chain, read_code, under
from fanfold.fingerprints.effects import Effects
from fanfold.fingerprints.inventory import Inventory
from fanfold.fingerprints.modules import Modules, counted
from fanfold.fingerprints.objects import (
    BUILT_IN,
    CONTAINERS,
    DESCRIPTORS,
    EMPTY,
    GENERATED,
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
#: How long the text that an object gives as its fingerprint may be to be shown.
_OWN_WORD = 120
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

    What an evaluator's code changes itself (a counter, a cache) is not a setting and is left out; with `untouched` the
    object is one that is copied before it is used, and everything it holds counts.
    """
    walk = _Walk(role, value, untouched)
    own = walk.own_word(role, value)
    if isinstance(own, str):
        if isinstance(stands_for := walk.own_word(role, value, "fingerprint_of"), Mapping):
            walk.value(role, dict(stands_for))
        return Fingerprint(
            name_of(value), own, {f"{role}.fingerprint": repr(own), **_parts(walk.found.leaves)}, own=True
        )
    walk.run(value)
    leaves = sorted(walk.found.leaves.items())
    whole = digest(*(part for path, (full, _) in leaves for part in (path, full))).hex()[:16]
    return Fingerprint(
        name_of(value), f"{name_of(value)}@{whole}", _parts(walk.found.leaves), dict(sorted(walk.found.unknown.items()))
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
        self.found = Inventory()
        self._effects = Effects(root, untouched, self.found)
        self._modules = Modules(name_of(root).partition(".")[0] if role == "evaluate" else "")
        self._code: deque[Callable[[], None]] = deque()
        self._state: deque[Callable[[], None]] = deque()
        self._globals: set[tuple[int, str]] = set()
        self._steps = 0
        self._most = 1_000_000
        self._read = 0

    def run(self, value: Any) -> None:
        self._state.append(lambda: self.value(self.role, value))
        while self._code or self._state:
            if self._code:
                self._code.popleft()()
                continue
            self._state.popleft()()

    def own_word(self, path: str, value: Any, name: str = "fingerprint") -> Any:
        """The text (or the settings) that an object gives as its fingerprint; None where it gives none."""
        classes = type.__getattribute__(value if is_a(value, type) else type(value), "__mro__")
        found = None if is_a(value, type) else attributes_of(value).get(name)
        for cls in classes if found is None else ():
            found = type.__getattribute__(cls, "__dict__").get(name)
            if found is not None:
                break
        if is_a(found, property | functools.cached_property) and not is_a(value, type):
            try:
                found = getattr(value, name)
            except Exception as error:
                self.found.give_up(f"{path}.{name}", None, f"{type(error).__name__}: {error}")
                return {}
        return found if is_a(found, str | Mapping) else None

    # -- values ------------------------------------------------------------------------------------------------------

    def value(self, path: str, value: Any, changes: Iterable[Chain] = (), owner: str | None = None) -> None:
        """Count a value.  `changes` are attributes of it that code changes; `owner` is the path of the object of an
        installed package that it is a part of."""
        self._steps += 1
        if self._steps > _STEPS:
            self.found.give_up(path, owner, "too much to look at")
            return
        kind = type(value)
        if kind is dict and 0 < len(value) <= 64 and set(map(type, value)) == {str}:
            if not self.found.met(path, value):
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
            self.found.leaf(path, *kept(path.rpartition(".")[2], value, text))
        elif not self.found.met(path, value):
            try:
                self._object(path, value, frozenset(changes), owner)
            except Exception as error:  # whatever an odd object does: it cannot be written down
                self.found.give_up(path, owner, f"{qualified(kind)}, {type(error).__name__}")

    def _object(self, path: str, value: Any, changes: frozenset[Chain], owner: str | None) -> None:
        own = self.own_word(path, value)
        kind = type(value)
        if isinstance(own, str):
            self.found.leaf(path, *kept("", own, repr(own), _OWN_WORD))
        elif own is not None:
            self.found.leaf(path, name_of(value))
            self.value(path, dict(own), (), owner)
        elif kind is Unknown:
            self.found.give_up(path, owner, value.what)
        elif issubclass(kind, types.ModuleType):
            self._module(path, value)
        elif kind is types.FunctionType:
            self._function(path, value, owner)
        elif kind is types.MethodType:
            self.value(f"{path}.{value.__func__.__name__}", value.__func__, (), owner)
            self.value(path, value.__self__, changes, owner)
        elif kind in BUILT_IN:
            self.found.leaf(path, value.__qualname__)
            bound = getattr(value, "__self__", None)
            if bound is not None and not is_a(bound, types.ModuleType):
                self.value(f"{path}.__self__", bound, (), owner)
        elif issubclass(kind, functools.partial):
            self._partial(path, value, owner)
        elif issubclass(kind, type):
            self.found.leaf(path, qualified(value))
            self._class(value)
        elif kind in (operator.itemgetter, operator.attrgetter, operator.methodcaller):
            self.found.leaf(path, qualified(kind))
            self._content(path, list(value.__reduce__()[1]), owner)
        elif name := known_by_name(value):
            self.found.leaf(path, name)
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
            self.found.leaf(path, name)
            return
        if not ours and "__wrapped__" in attributes:  # what a decorator of an installed package made of a function
            self.found.leaf(path, qualified(kind))
            self.value(f"{path}.__wrapped__", attributes["__wrapped__"], (), owner)
            return
        content = next((read(value) for base, read in CONTAINERS if issubclass(kind, base)), None)
        seen_into = ours or content is not None or kind.__module__.startswith("fanfold.")
        inside = owner if seen_into or owner is not None else path
        if content is None and is_opaque(kind):
            self.found.give_up(path, inside, qualified(kind))
            return
        if kind not in (dict, list, tuple, set, frozenset, deque):
            self.found.leaf(path, qualified(kind))
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
            self.found.leaf(f"{path} members", " ".join(sorted(self._alone(path, item) for item in content)))
        else:
            self.value(f"{path} itself", content, (), owner)

    def _alone(self, path: str, value: Any) -> str:
        """A hash of one value that has no place of its own: a key of a dict, a member of a set."""
        found = fingerprint(value, path, untouched=self._effects.untouched)
        self.found.unknown |= found.unknown
        return hashed(found.text)

    def _attributes(
        self, path: str, value: Any, attributes: Mapping[str, Any], changes: frozenset[Chain], owner: str | None
    ) -> None:
        kind = type(value)
        changed = changes | self._effects.below(value) | self._effects.by_methods(kind)
        for name in sorted(attributes):
            plain_name = unmangled(name, kind)
            if (plain_name,) in changed or isinstance(class_attribute(kind, name), functools.cached_property):
                continue
            self.value(f"{path}.{name}", attributes[name], under(changed, plain_name), owner)

    # -- code --------------------------------------------------------------------------------------------------------

    def _function(self, path: str, function: types.FunctionType, owner: str | None, cls: type | None = None) -> None:
        wrapped = function.__dict__.get("__wrapped__")
        if wrapped is not None:
            self.value(f"{path}.__wrapped__", wrapped, (), owner)
        if self._modules.holds_code(function):
            self._code.append(lambda: self._own_function(path, function, owner, cls))
            return
        self.found.leaf(path, f"{function.__globals__.get('__name__')}.{function.__code__.co_qualname}")
        cells = zip(function.__code__.co_freevars, function.__closure__ or ())
        if isinstance(registry := function.__dict__.get("registry"), types.MappingProxyType):  # singledispatch
            self._content(f"{path}.registry", dict(registry), owner)
        elif wrapped is None:
            for name, cell in cells:
                self._cell(f"{path}.{name}", cell, frozenset(), owner or path)

    def _own_function(self, path: str, function: types.FunctionType, owner: str | None, cls: type | None) -> None:
        self._read += 1
        if self._read > _FUNCTIONS:
            self.found.give_up(self.role, None, "too much code to look at")
            return
        code, names = read_code(function.__code__), function.__code__.co_varnames
        self.found.leaf(f"{CODE}{counted(function.__module__)}.{function.__qualname__}", hashed(code.text))
        self._effects.read(function, code, cls)
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

    def _cell(self, path: str, cell: types.CellType, changes: frozenset[Chain], owner: str | None) -> None:
        if cell is not EMPTY and cell_value(cell) is not EMPTY:
            self._later(path, cell_value(cell), (id(cell), ""), changes, owner)

    def _reached(self, names: dict[str, Any], chain: Chain) -> None:
        """Count a variable of one of the project's modules."""
        name, *rest = chain
        if name not in names:
            return  # a name of Python itself, or one that is not there yet
        value, module = names[name], counted(names.get("__name__"))
        if is_a(value, types.ModuleType) and rest and self._modules.holds(value.__name__, vars(value)):
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
            if not self._effects.changes(place):
                self.value(path, value, changes | self._effects.below(value), owner)

        self._state.append(count)

    def _module(self, path: str, module: types.ModuleType) -> None:
        """A module that is held as a value: its name, and all of its source if it is the project's own."""
        self.found.leaf(path, module.__name__)
        self._imported("", 0, module.__name__, ())

    def _imported(self, package: str, level: int, name: str, wanted: Chain) -> None:
        for found, text in self._modules.sources(package, level, name, wanted):
            self.found.leaf(f"{CODE}{found}", hashed(text))

    def _class(self, cls: type) -> bool:
        """Count the code of a class and of its bases; whether it is one of the project's own."""
        bases = type.__getattribute__(cls, "__mro__")
        ours = [base for base in bases if self._modules.holds(base.__dict__.get("__module__"), None)]
        for base in ours:
            if self._effects.meets(base):
                self.found.leaf(f"{CODE}class {qualified(base)}", " ".join(map(qualified, base.__bases__)))
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
        changed = self._effects.below(cls) | self._effects.by_methods(cls)
        if (unmangled(name, cls),) not in changed:
            self.value(path, value, under(changed, name))

    def _importable(self, value: Any) -> str:
        """The full name of an object that can be imported by it from an installed package (`numpy.median`)."""
        if inspect.getattr_static(value, "__name__", None) is None:
            return ""
        module, name = getattr(value, "__module__", None), getattr(value, "__name__", None)
        if not isinstance(module, str) or not isinstance(name, str) or self._modules.holds(module, None):
            return ""
        return f"{module}.{name}" if vars(sys.modules.get(module, types)).get(name) is value else ""
