"""Studies by name: what installed packages offer in the entry point group `fanfold.studies`."""

from __future__ import annotations

import dataclasses
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from fanfold.errors import ConfigError, nearest

GROUP = "fanfold.studies"


def studies() -> dict[str, EntryPoint]:
    """Every study that is installed, by name; nothing of it is imported yet."""
    return {entry.name: entry for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name)}


def find_study(name: str) -> Any:
    """The module behind a study's name: it has a `Config` (a frozen dataclass) and `study(config) -> Study`.

    It may have `how(config)` as well: run options (as in the [run] table of a TOML file) that follow from its fields.
    """
    known = studies()
    if name not in known:
        raise ConfigError(f"there is no study {name!r}{nearest(name, known)}")
    entry = known[name]
    package = entry.dist.name if entry.dist is not None else entry.value
    try:
        module = entry.load()
    except Exception as error:
        remedy = f"install what it needs, or upgrade {package!r}"
        extras = entry.dist.metadata.get_all("Provides-Extra") if entry.dist is not None else None
        if isinstance(error, ImportError) and name in (extras or ()):
            remedy = f"pip install '{package}[{name}]'"
        raise ConfigError(
            f"the study {name!r} of the package {package!r} cannot be imported ({type(error).__name__}: {error}): "
            f"{remedy}"
        ) from error
    if not dataclasses.is_dataclass(getattr(module, "Config", None)) or not callable(getattr(module, "study", None)):
        raise ConfigError(
            f"the study {name!r} of the package {package!r} cannot be used: {entry.value!r} must have a dataclass "
            "`Config` and a function `study(config)`; report it to its author"
        )
    return module
