"""JSON schemas that describe an answer, checked by the package `jsonschema`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fanfold.errors import ConfigError, MissingExtra, nearest

#: Keywords that ask nothing of a value by themselves.
_NOTES = {"title", "description", "default", "examples", "$schema", "$id", "$comment", "$defs", "then", "else"}
#: A pattern may take forever on some text, a format is only checked where further packages are installed.
_REFUSED = {"pattern", "patternProperties", "format", "$dynamicRef"}


def check_schema(schema: Any, *, enforced: bool = True) -> None:
    """Refuse what is not a schema and, where it is to be `enforced`, one that would not be enforced as it reads.

    The ConfigError names the place.
    """
    if schema == {}:
        return  # any JSON fits, and no package is needed to say so
    validator = _validator()
    try:
        validator.check_schema(schema)
    except _package().SchemaError as error:
        raise ConfigError(f"schema{error.json_path[1:]}: {error.message}") from None
    known = {*validator.VALIDATORS, *_NOTES} - _REFUSED
    for part in _parts(schema):
        for key in part:
            if enforced and key not in known:
                raise ConfigError(f"schema: the keyword {key!r} is not supported{nearest(str(key), sorted(known))}")
        if not _refers(part.get("$ref", "#"), schema):
            raise ConfigError(f"schema: $ref {part['$ref']!r} is not a part of this schema (#/...)")


def is_keyword(key: str) -> bool:
    """Whether a key means something in a schema."""
    return key in _NOTES or key in _validator().VALIDATORS


def fault(value: Any, schema: Any) -> str:
    """What is wrong with a value under a schema, or "" when nothing is."""
    if schema == {}:
        return ""
    try:
        error = next(_validator()(schema).iter_errors(value), None)
        return "" if error is None else f"{error.json_path}: {error.message}"
    except RecursionError:
        return "$: nested too deeply"


def same(left: Any, right: Any) -> bool:
    """Equality as in JSON: 1 equals 1.0, true does not equal 1, and a tuple equals a list."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return left.keys() == right.keys() and all(same(item, right[key]) for key, item in left.items())
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(same(*pair) for pair in zip(left, right))
    return bool(left == right)


def _parts(schema: Any) -> Iterator[Mapping[str, Any]]:
    from referencing.jsonschema import DRAFT202012

    if isinstance(schema, Mapping):
        yield schema
        for part in DRAFT202012.subresources_of(schema):
            yield from _parts(part)


def _refers(reference: str, schema: Any) -> bool:
    from referencing import Registry
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT202012

    try:
        Registry().with_resource("", DRAFT202012.create_resource(schema)).resolver().lookup(reference)
    except Unresolvable:
        return False
    return reference.startswith("#")


def _package() -> Any:
    try:
        import jsonschema
    except ImportError as error:
        raise MissingExtra("jsonschema", "schema", "the grader 'json'") from error
    return jsonschema


def _validator() -> Any:
    return _package().Draft202012Validator
