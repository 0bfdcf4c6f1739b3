"""A small validator for JSON schemas: the keywords people use to describe an answer, and an error for any other."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from fanfold.errors import ConfigError, nearest

_TYPES: Mapping[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "number": lambda value: _is_number(value),
    "integer": lambda value: _is_number(value) and value == int(value),
}
_BOUNDS: Mapping[str, tuple[str, Callable[[Any], Any], Callable[[Any, Any], bool]]] = {
    "minimum": ("number", lambda number: number, lambda value, bound: value >= bound),
    "maximum": ("number", lambda number: number, lambda value, bound: value <= bound),
    "exclusiveMinimum": ("number", lambda number: number, lambda value, bound: value > bound),
    "exclusiveMaximum": ("number", lambda number: number, lambda value, bound: value < bound),
    "minLength": ("string", len, lambda value, bound: value >= bound),
    "maxLength": ("string", len, lambda value, bound: value <= bound),
    "minItems": ("array", len, lambda value, bound: value >= bound),
    "maxItems": ("array", len, lambda value, bound: value <= bound),
}
_SILENT = ("title", "description", "default", "examples", "$schema", "$id", "$comment")
_KNOWN = ("type", "properties", "required", "enum", "const", "items", "additionalProperties", *_BOUNDS, *_SILENT)


def check_schema(schema: Any, where: str = "schema") -> None:
    """Refuse a schema that would not be enforced as it reads: a ConfigError names the place."""
    if isinstance(schema, bool):
        return
    if not isinstance(schema, Mapping):
        raise ConfigError(f"{where} must be a table or true or false, not {schema!r}")
    for key, value in schema.items():
        if key not in _KNOWN:
            raise ConfigError(f"{where}: the keyword {key!r} is not supported{nearest(str(key), _KNOWN)}")
        place = f"{where}.{key}"
        if key == "type":
            for name in value if isinstance(value, list | tuple) else [value]:
                if name not in _TYPES:
                    raise ConfigError(f"{place}: there is no type {name!r}{nearest(str(name), _TYPES)}")
        elif key == "properties":
            if not isinstance(value, Mapping):
                raise ConfigError(f"{place} must be a table, not {value!r}")
            for name, inner in value.items():
                check_schema(inner, f"{place}.{name}")
        elif key in ("items", "additionalProperties"):
            check_schema(value, place)
        elif key in ("required", "enum") and not isinstance(value, list | tuple):
            raise ConfigError(f"{place} must be a list, not {value!r}")
        elif key in _BOUNDS and not _is_number(value):
            raise ConfigError(f"{place} must be a number, not {value!r}")


def fault(value: Any, schema: Any, where: str = "the value") -> str:
    """What is wrong with a value under a schema, or "" when nothing is."""
    if isinstance(schema, bool):
        return "" if schema else f"{where} is not allowed"
    kinds = schema.get("type")
    if kinds is not None:
        names = kinds if isinstance(kinds, list | tuple) else [kinds]
        if not any(_TYPES[name](value) for name in names):
            return f"{where} is not of type {' or '.join(names)}"
    if "enum" in schema and not any(same(value, option) for option in schema["enum"]):
        return f"{where} is none of the allowed values"
    if "const" in schema and not same(value, schema["const"]):
        return f"{where} is not the one allowed value"
    for key, (kind, measure, holds) in _BOUNDS.items():
        if key in schema and _TYPES[kind](value) and not holds(measure(value), schema[key]):
            return f"{where} breaks {key} {schema[key]!r}"
    if isinstance(value, list) and "items" in schema:
        faults = (fault(item, schema["items"], f"{where}[{index}]") for index, item in enumerate(value))
        return next(filter(None, faults), "")
    return _object_fault(value, schema, where) if isinstance(value, dict) else ""


def _object_fault(value: dict[str, Any], schema: Mapping[str, Any], where: str) -> str:
    known = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in value:
            return f"{where} lacks {name!r}"
    for name, item in value.items():
        inner = known.get(name, schema.get("additionalProperties", True))
        if found := fault(item, inner, f"{where}.{name}"):
            return found
    return ""


def same(left: Any, right: Any) -> bool:
    """Equality as JSON has it: 1 and 1.0 are the same number, true is no number, lists and tuples are one kind."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return left.keys() == right.keys() and all(same(item, right[key]) for key, item in left.items())
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(same(*pair) for pair in zip(left, right))
    return bool(left == right)


def _is_number(value: Any) -> bool:
    # a whole number may be too large for a float, and so for isfinite
    return math.isfinite(value) if isinstance(value, float) else isinstance(value, int) and not isinstance(value, bool)
