"""What models take: a dated table of parameters, efforts of reasoning and sizes; unknown models may take anything."""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

#: The efforts as a setting of a study; "off" and "none" are the same.
Effort = Literal["none", "off", "minimal", "low", "medium", "high", "xhigh", "max"]
T = TypeVar("T")

#: How much a model may reason, from the least to the most, and the tokens to allow for it beside the visible reply.
EFFORTS = {
    "none": 0,
    "minimal": 1_024,
    "low": 4_096,
    "medium": 8_192,
    "high": 24_576,
    "xhigh": 49_152,
    "max": 98_304,
}
#: Values that every model accepts, because they change nothing.
_NEUTRAL = {"temperature": 1, "top_p": 1, "n": 1, "frequency_penalty": 0, "presence_penalty": 0, "logprobs": False}

#: What a request may use only if the model has it.
_HAD = ("tools", "schema", "images")


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What one model takes.  Where a fact is not known, the model is asked, and a refusal teaches.

    `refuses` are parameters it does not have, `steady` those that it has only while it does not reason; both by
    Fanfold's names.  `efforts` are the efforts of reasoning that it offers, and `effort` the one it has by default
    (None: it reasons only when asked to).  `context` and `output` are its largest input and output, in tokens.  `has`
    holds `tools`, `schema`, `images`, `caching`, `batch`, `adaptive` (it decides itself how long to reason) and
    `responses` (it speaks the Responses protocol only); None: not known.
    """

    refuses: frozenset[str] = frozenset()
    steady: frozenset[str] = frozenset()
    efforts: tuple[str, ...] | None = None
    effort: str | None = None
    context: int | None = None
    output: int | None = None
    has: frozenset[str] | None = None

    def reasoning(self, effort: str | None) -> str | None:
        """The effort with which it reasons if asked for `effort` (None: for none in particular); None: not at all."""
        chosen = effort if effort is not None and self.takes("reasoning_effort", effort) else self.effort
        return None if chosen == "none" else chosen

    def takes(self, name: str, value: Any = None, effort: str | None = None) -> bool:
        """Whether it takes a parameter, with this value, when it is asked to reason with `effort`."""
        if name in _HAD:
            return self.has is None or name in self.has
        if name == "reasoning_effort":
            return self.efforts is None or value in self.efforts or (value is None and bool(self.efforts))
        if name in self.refuses or (name in self.steady and self.reasoning(effort) is not None):
            return value is not None and value == _NEUTRAL.get(name)
        return True

    def room(self, visible: int, effort: str | None) -> int:
        """The limit to ask for, so that a reply of `visible` tokens fits beside the reasoning."""
        chosen = self.reasoning(effort) if visible > 0 else None
        total = visible + (0 if chosen is None else EFFORTS.get(chosen, 0))
        return total if self.output is None else max(visible, min(total, self.output))


#: A model of which nothing is known.
UNKNOWN = Capabilities()


@functools.cache
def _table() -> tuple[str, dict[str, Capabilities]]:
    data = tomllib.loads(Path(__file__).with_name("capabilities.toml").read_text())
    return data["as_of"], {name: capabilities(row) for name, row in data["models"].items()}


def capabilities(row: Mapping[str, Any]) -> Capabilities:
    """Capabilities as a table in a TOML file states them; what it does not list, a model is known to lack."""
    values: dict[str, Any] = {name: frozenset(row.get(name, ())) for name in ("refuses", "steady", "has")}
    values |= {name: row.get(name) for name in ("context", "output", "effort")}
    return Capabilities(**values, efforts=tuple(row.get("efforts", ())))


def capabilities_of(name: str, more: Mapping[str, Capabilities] | None = None, provider: str = "") -> Capabilities:
    """What the model of a name takes, dated versions included; UNKNOWN where no table has it.

    `more` comes first, then the table, in which a model may have a row of its own at a `provider`.
    """
    return entry_of(name, (more or {}, _table()[1]), provider) or UNKNOWN


def entry_of(name: str, tables: Iterable[Mapping[str, T]], provider: str = "") -> T | None:
    """The entry of a model in the first table that has one: as it is at a `provider`, else for everybody.

    A dated version has the entry of the model it is a version of, where it has none of its own.
    """
    bare = re.sub(r"-(?:\d{8}|\d{4}-\d{2}-\d{2}|latest)$", "", name)
    names = (f"{provider}/{name}", f"{provider}/{bare}", name, bare)
    return next((table[key] for table in tables for key in names if key in table), None)


def as_of() -> str:
    """When the table was last checked."""
    return _table()[0]
