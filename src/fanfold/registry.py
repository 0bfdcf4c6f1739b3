"""What installed packages bring by name: entry points of a group, and errors that name the package."""

from __future__ import annotations

import contextlib
import functools
import sys
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from fanfold.errors import ConfigError, MissingExtra


def installed(group: str) -> tuple[EntryPoint, ...]:
    """The entry points of a group, read once until a package is installed or removed."""
    return _read(group, tuple((folder, _changed(folder)) for folder in sys.path))


@functools.lru_cache(maxsize=32)
def _read(group: str, places: tuple[tuple[str, int], ...]) -> tuple[EntryPoint, ...]:
    return tuple(entry_points(group=group))  # of all installed packages: milliseconds


def _changed(folder: str) -> int:
    """When something came into a folder or left it; nobody installs packages into the working folder, which is ''."""
    with contextlib.suppress(OSError):
        return Path(folder).stat().st_mtime_ns if folder else 0
    return 0


def brought(group: str) -> dict[str, EntryPoint]:
    """The entry points of a group by name; nothing of them is imported yet."""
    return {entry.name: entry for entry in sorted(installed(group), key=lambda entry: entry.name)}


def loaded(entry: EntryPoint, what: str) -> Any:
    """What an entry point names; `what` is what the user asked for."""
    try:
        return entry.load()
    except MissingExtra:
        raise
    except Exception as error:
        package = package_of(entry)
        raise ConfigError(
            f"{what} of the package {package!r} cannot be imported ({type(error).__name__}: {error}): install what it "
            f"needs, or upgrade {package!r}"
        ) from error


def package_of(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else entry.value
