"""What a settings file says by now that its run does not: a resume keeps to the settings that were recorded."""

from __future__ import annotations

import dataclasses
import hashlib
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fanfold.cli.options import FIELDS, ShellOptions, shell_options
from fanfold.cli.target import SETTINGS
from fanfold.cli.trust import is_own
from fanfold.config import from_mapping, load_file
from fanfold.errors import ConfigError, FanfoldError
from fanfold.identity import other_fields


def settings_file(target: str) -> dict[str, str] | None:
    """A target that is a settings file, as a run records it; None for any other."""
    path = Path(target)
    return {"path": str(path.resolve()), "digest": _digest(path)} if target.endswith(SETTINGS) else None


def edited(meta: Mapping[str, Any], name: str, options: ShellOptions, ledger: Path) -> tuple[str, ...]:
    """How the settings file of a run differs by now from what a resume continues with, in a sentence; mostly none."""
    recorded = meta.get("settings")
    if not isinstance(recorded, Mapping) or not isinstance(file := recorded.get("path"), str):
        return ()
    path = Path(file)
    if not path.is_file() or not is_own(path, ledger) or _digest(path) == recorded.get("digest"):
        return ()
    head = f"{path.name} has changed since the run began, which keeps to its settings"
    try:
        fields, limits = _differences(path, meta, options)
    except FanfoldError as error:
        return (f"{head}; the file cannot be read now: {error}",)
    remedies = []
    if limits:
        remedies.append(f"`fanfold resume {name} {' '.join(limits.values())}` continues with other limits")
    if fields:
        again = f"fanfold run {shlex.quote(path.name)}"
        remedies.append(f"`{again}` begins a run with other settings, and no reply is paid for again")
    return (f"{head}: {'; '.join([*fields, *limits])}. {'; '.join(remedies)}",) if remedies else ()


def _differences(path: Path, meta: Mapping[str, Any], options: ShellOptions) -> tuple[list[str], dict[str, str]]:
    """The fields that are others, in words, and the limits that are, in words with the flags that set them."""
    from fanfold.plugins import find_study

    given = load_file(path)
    run, study = given.pop("run", {}), given.pop("study", None)
    if study != meta.get("target"):
        return [f"study was {meta.get('target')!r}, is {study!r}"], {}
    if not isinstance(run, Mapping):
        raise ConfigError(f"run must be a table, [run], not {run!r:.80}")
    now = shell_options({}, run, f"{path.name} [run]")
    fields = dataclasses.asdict(from_mapping(find_study(study).config, given, path.name))
    if now.seed is not None and "seed" in fields:
        fields["seed"] = now.seed
    limits: dict[str, str] = {}
    for field in FIELDS:
        if "rule" in field.metadata and field.name in run:
            was, value = getattr(options, field.name), getattr(now, field.name)
            words = other_fields({field.name: was}, {field.name: value})
            limits |= dict.fromkeys(words, f"--{field.name.replace('_', '-')} {value}")
    return list(other_fields(meta.get("fields", {}), fields)), limits


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
