"""Files that are there whole or not at all."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def write_files(place: Path, files: Mapping[str, bytes]) -> None:
    """Write files into a folder, which is made where it is missing; each takes its place when it is complete."""
    place.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (place / f".{name}").write_bytes(data)
        (place / f".{name}").replace(place / name)
