"""What a study concludes from a run: figures for programs, and sections for people, shown by shell and report alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Section:
    """A titled piece of a summary: a text, a table, or both.  Cells are texts, numbers or None (not known)."""

    title: str
    text: str = ""
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[Any, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Summary:
    """What came of a run beyond its best candidate: JSON-like `figures`, and `sections` in the order of reading."""

    figures: Mapping[str, Any] = field(default_factory=dict)
    sections: tuple[Section, ...] = ()


def cell_text(value: Any) -> str:
    """A cell of a section's table as people read it."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)
