"""What installed packages bring by name: entry points of a group, and errors that name the package."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Any

from fanfold.errors import ConfigError, MissingExtra


def brought(group: str) -> dict[str, EntryPoint]:
    """The entry points of a group by name; nothing of them is imported yet."""
    return {entry.name: entry for entry in sorted(entry_points(group=group), key=lambda entry: entry.name)}


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
