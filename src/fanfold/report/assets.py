"""The built files of the web app, as the wheel ships them."""

from __future__ import annotations

from pathlib import Path

#: By name: no other file can be asked for.
FILES = {name: Path(__file__).parent / "static" / name for name in ("index.html", "app.js", "app.css", "favicon.svg")}


def asset(name: str) -> str:
    """The text of one of them."""
    return FILES[name].read_text(encoding="utf-8")
