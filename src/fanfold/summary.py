"""What a study concludes from a run: figures for programs, and sections for people, shown by shell and report alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fanfold.drawings import Drawing
from fanfold.likeness import filled


@dataclass(frozen=True, slots=True)
class Curve:
    """A named line of a chart, as points (x, y) in rising order of x; `low` and `high` are a band, for every point."""

    name: str
    points: tuple[tuple[float, float], ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Section:
    """A titled piece of a summary: a text, a table, or both.  Cells are texts, numbers or None (not known).

    `curves` are drawn in one chart, and `across` and `up` are the titles of its axes.  `drawings` are drawn by the page
    of the run (`fanfold.drawings`); text and table say the same in words.  Right after a run the shell prints `brief`
    in place of text and table, which `fanfold show` and the report have; None: it prints them.
    """

    title: str
    text: str = ""
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[Any, ...], ...] = ()
    curves: tuple[Curve, ...] = ()
    across: str = ""
    brief: str | None = None
    up: str = ""
    drawings: tuple[Drawing, ...] = ()


@dataclass(frozen=True, slots=True)
class Summary:
    """The findings of a run beyond its best candidate: JSON-like `figures`, and `sections` in the order of reading."""

    figures: Mapping[str, Any] = field(default_factory=dict)
    sections: tuple[Section, ...] = ()

    def prompt(self, input: str) -> str:
        """The winning prompt of a search for prompts, with this input."""
        template = self.figures.get("template")
        if template is None:
            raise LookupError("this run has found no prompt")
        return filled(template, input)


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that `fanfold doctor` looked at; only a `required` thing that is not `ok` makes it complain."""

    name: str
    ok: bool
    found: str
    note: str = ""
    required: bool = False


def cell_text(value: Any) -> str:
    """A cell of a section's table as people read it."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)
