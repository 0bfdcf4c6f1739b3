"""Looking at objects without asking them: nothing of their classes is called."""

from __future__ import annotations

import contextvars
import functools
import logging
import os
import sys
import threading
import types
import typing
from collections import deque, namedtuple
from collections.abc import Callable, Iterable
from typing import Any

from fanfold.fingerprints.modules import counted

#: Methods that make an object rather than use it: what they assign are settings.
MAKING = frozenset(
    ("__init__", "__post_init__", "__new__", "__init_subclass__", "__setstate__", "__set_name__", "__class_getitem__")
)
#: Methods that libraries write for a class; they decide no result.
GENERATED = frozenset(
    [
        "__init__",
        "__repr__",
        "__eq__",
        "__ne__",
        "__lt__",
        "__le__",
        "__gt__",
        "__ge__",
        "__hash__",
        "__setattr__",
        "__delattr__",
        "__getstate__",
        "__setstate__",
        "__replace__",
        "__new__",
        "_replace",
        "_asdict",
        "_make",
        "__getnewargs__",
    ]
)
_BY_REPR = (typing.TypeVar, types.GenericAlias, types.UnionType)
DESCRIPTORS = (types.MemberDescriptorType, types.GetSetDescriptorType, type(vars(namedtuple("_", "field"))["field"]))
BUILT_IN = (
    types.BuiltinFunctionType,
    types.MethodWrapperType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
)
CONTAINERS: tuple[tuple[type, Callable[[Any], Any]], ...] = (
    (dict, lambda value: dict(dict.items(value))),
    (list, lambda value: list(list.__iter__(value))),
    (tuple, lambda value: list(tuple.__iter__(value))),
    (set, lambda value: set(set.__iter__(value))),
    (frozenset, lambda value: set(frozenset.__iter__(value))),
    (deque, lambda value: list(deque.__iter__(value))),
    (str, lambda value: str.__str__(value)),
    (int, lambda value: int.__int__(value)),
    (float, lambda value: float.__float__(value)),
    (bytes, lambda value: bytes.__getitem__(value, slice(None))),
)


def name_of(value: Any) -> str:
    """The full name of the function or class that a value is made of."""
    while True:
        if type(value) is functools.partial:
            value = value.func
        elif is_a(value, types.MethodType):
            value = value.__func__
        elif not is_a(value, type) and "__wrapped__" in (held := attributes_of(value)):
            value = held["__wrapped__"]
        else:
            break
    if is_a(value, types.FunctionType | type | types.BuiltinFunctionType):
        return f"{counted(value.__module__)}.{value.__qualname__}"
    return qualified(type(value))


def is_a(value: Any, kinds: Any) -> bool:
    """`isinstance`, which would ask an odd object for its `__class__`."""
    return issubclass(type(value), kinds)


def qualified(cls: type) -> str:
    module = counted(type.__getattribute__(cls, "__dict__").get("__module__"))
    return f"{module if isinstance(module, str) else 'builtins'}.{type.__getattribute__(cls, '__qualname__')}"


EMPTY: Any = object()
METHODS = (
    types.FunctionType,
    property,
    classmethod,
    staticmethod,
    functools.cached_property,
    functools.partialmethod,
)


def cell_value(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return EMPTY


def functions_in(member: Any) -> list[types.FunctionType]:
    """The functions of which a member of a class is made."""
    if isinstance(member, property):
        found: Iterable[Any] = (member.fget, member.fset)
    elif isinstance(member, classmethod | staticmethod):
        found = (member.__func__,)
    else:
        found = (getattr(member, "func", None) if isinstance(member, METHODS[4:]) else member,)
    return [each for each in found if type(each) is types.FunctionType]


def class_attribute(cls: type, name: str) -> Any:
    for base in type.__getattribute__(cls, "__mro__"):
        if name in base.__dict__:
            return base.__dict__[name]
    return None


def unmangled(name: str, cls: type) -> str:
    """`_Eval__k` as the code has it, `__k`."""
    for base in type.__getattribute__(cls, "__mro__"):
        prefix = f"_{base.__name__.lstrip('_')}"
        if name.startswith(f"{prefix}__"):
            return name.removeprefix(prefix)
    return name


def attributes_of(value: Any) -> dict[str, Any]:
    """The state of an object: what is in its `__dict__` and its slots, with no code of its class called."""
    found: dict[str, Any] = {}
    for cls in type.__getattribute__(type(value), "__mro__"):
        for name, member in type.__getattribute__(cls, "__dict__").items():
            if type(member) is types.MemberDescriptorType and name not in ("__weakref__", "__dict__"):
                try:
                    found.setdefault(name, member.__get__(value, cls))
                except AttributeError:
                    continue
            elif name == "__dict__" and type(member) in DESCRIPTORS:
                held = member.__get__(value, cls)
                if type(held) is dict:
                    found |= {key: item for key, item in held.items() if type(key) is str}
    for base in type.__getattribute__(type(value), "__mro__"):
        module = type.__getattribute__(base, "__dict__").get("__module__")
        if type(module) is not str:
            continue
        for name in _OF_USE.get(module) or _OF_USE.get(module.rpartition(".")[2], ()):
            if name in found:
                found[name] = None
    return found


#: Attributes that use fills, by the module of a class or the last part of its name: the generator behind `sample()`,
#: seeded at random when it is first used; connections and cookies of the clients that others are made of; what
#: generated clients find out about their machine.
_OF_USE = {
    "gymnasium.spaces.space": ("_np_random",),
    **dict.fromkeys(("httpx", "httpx2"), ("_state", "_cookies", "_pool")),
    "_base_client": ("_platform", "_lazy_tracer"),
    "requests.sessions": ("cookies",),
    "requests.adapters": ("poolmanager", "proxy_manager"),
}


def is_opaque(cls: type) -> bool:
    """Whether instances hold more than attributes: state of their own in C, which cannot be seen."""
    slots = 0
    for base in type.__getattribute__(cls, "__mro__"):
        members = type.__getattribute__(base, "__dict__")
        slots += sum(type(member) is types.MemberDescriptorType for member in members.values())
        slots += ("__dict__" in members) + ("__weakref__" in members)
    return cls.__basicsize__ > object.__basicsize__ + slots * tuple.__itemsize__


def known_by_name(value: Any) -> str:
    """Things without settings that decide results, of which the name says all."""
    kind = type(value)
    if issubclass(kind, logging.Logger | contextvars.ContextVar):
        return f"{qualified(kind)} {value.name}"
    if issubclass(kind, threading.local):
        return qualified(kind)
    if kind in _BY_REPR or kind.__module__ == "typing":
        return repr(value)
    streams = {"stdin": sys.stdin, "stdout": sys.stdout, "stderr": sys.stderr, "environ": os.environ}
    return next((f"the {name}" for name, stream in streams.items() if value is stream), "")
