"""Graders by name, with their settings: from a table, or from a text such as `numeric:tolerance=0.01`."""

from __future__ import annotations

import dataclasses
import json
import re
from collections import abc
from collections.abc import Mapping
from typing import Any, get_origin

from fanfold.config import FieldHelp, content, describe, from_mapping, from_text
from fanfold.errors import ConfigError, nearest
from fanfold.registry import brought, loaded, package_of
from fanfold.tasks import grading
from fanfold.tasks.task import Grader, Own

GROUP = "fanfold.graders"

_KINDS: Mapping[str, Any] = {
    "exact": grading.Exact,
    "labels": grading.Labels,
    "numeric": grading.Numeric,
    "choice": grading.MultipleChoice,
    "contains": grading.Contains,
    "regex": grading.Regex,
    "json": grading.JsonSchema,
    "code": grading.CodeTests,
    "own": Own,
}
_FILE = re.compile(r".+\.py(:\w+)?")
_JUDGES = {"judge": "Judge", "pairwise": "Pairwise"}


def grader(kind: str | Mapping[str, Any] | Grader, **options: Any) -> Grader:
    """A grader by word, with its settings: `grader("regex", pattern=...)`, or `grader("numeric:tolerance=0.01")`.

    A table with a key `kind`, as in TOML, works too.  The words: exact, labels, numeric, choice, contains, regex, json,
    code, judge, pairwise, and those that packages bring in the entry-point group `fanfold.graders`: dataclasses whose
    fields are the settings.  `grade.py` or `grade.py:function` is one of the user's own, and so is a function (`Own`).
    """
    if not isinstance(kind, str | Mapping):
        if options:
            raise ConfigError(f"the grader {kind!r} is made already and takes no options {sorted(options)}")
        return Own.of(kind)
    table = {**settings_of(kind), **options}
    word = table.pop("kind")
    cls = _class(word)
    names = [field.name for field in describe(cls)]
    for name in table:
        if name not in names:
            hint = nearest(name, names) if names else ""
            known = f": it has {', '.join(names) or 'none'}"
            raise ConfigError(f"the grader {word!r} has no setting {name!r}{hint if 'mean' in hint else known}")
    if isinstance(then := table.get("then"), str | Mapping):
        table["then"] = grader(then)
    made: Grader = from_mapping(cls, table, f"grader {word!r}")
    return made


def kind_of(grader: str | Mapping[str, Any] | Grader) -> str | None:
    """The word for a grader; None for one of the user's own."""
    if isinstance(grader, str | Mapping):
        return str(settings_of(grader)["kind"])
    return next((word for word, cls in _KINDS.items() if type(grader) is cls), None)


def settings_of(kind: str | Mapping[str, Any]) -> dict[str, Any]:
    """A grader's `kind` and settings as a table, also from a text: `numeric:tolerance=0.01`.

    Settings are separated by commas; `@FILE` is the content of a file, and a schema is JSON.
    """
    if isinstance(kind, Mapping):
        if not isinstance(kind.get("kind"), str):
            raise ConfigError(f"the grader {dict(kind)!r} has no kind: add kind = one of {', '.join(_words())}")
        return {**kind, **settings_of(kind["kind"])} if _FILE.fullmatch(kind["kind"]) else dict(kind)
    if _FILE.fullmatch(kind):
        return {"kind": "own", "function": kind}
    word, colon, rest = kind.partition(":")
    fields = {field.name: field for field in describe(_class(word))}
    table: dict[str, Any] = {"kind": word}
    for part in re.split(r",\s*(?=\w+=)", rest) if colon else ():
        name, equals, text = part.strip().partition("=")
        if not equals:
            raise ConfigError(
                f"the grader {kind!r} is not understood at {part!r}: write {word}:NAME=VALUE,NAME=VALUE; "
                f"{word} has {', '.join(fields) or 'no settings'}"
            )
        table[name] = text if name not in fields or name == "then" else _setting(fields[name], text, word)
    return table


def _setting(field: FieldHelp, text: str, word: str) -> Any:
    text = content(text, f"grader {word!r}: {field.name}").strip()
    if get_origin(field.kind) is not abc.Mapping:
        return from_text(field.kind, text, field.name, f"grader {word!r}")
    try:
        return json.loads(text)
    except ValueError as error:
        raise ConfigError(
            f"grader {word!r}: {field.name} is not JSON ({error}): write {field.name}=@FILE, or JSON"
        ) from error


def _class(word: str) -> Any:
    if word not in _words():
        raise ConfigError(f"there is no grader {word!r}{nearest(word, _words())}")
    if word in _JUDGES:
        from fanfold.tasks import judge  # it needs the model layer

        return getattr(judge, _JUDGES[word])
    if word in _KINDS:
        return _KINDS[word]
    cls = loaded(entry := brought(GROUP)[word], f"the grader {word!r}")
    if not (dataclasses.is_dataclass(cls) and isinstance(cls, type) and callable(cls)):
        raise ConfigError(
            f"the grader {word!r} of the package {package_of(entry)!r} cannot be used: {entry.value!r} must be a "
            "dataclass that grades when called; report it to its author"
        )
    return cls


def _words() -> list[str]:
    return [*_KINDS, *_JUDGES, *(name for name in brought(GROUP) if name not in {*_KINDS, *_JUDGES})]
