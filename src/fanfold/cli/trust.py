"""What a recorded run would do for whoever wrote its ledger, and whether the user agrees.

A ledger may be a stranger's.  Resuming executes the Python file that it names, writes into the folders that it names,
imports and connects to what it names: without a question only where that is in the current folder or that of the
ledger, and the ledger is the user's own.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from fanfold.cli.output import echo, machine_readable
from fanfold.errors import ConfigError
from fanfold.ledger import Ledger, wrote_to

#: `module:function`, which is imported; after these words comes a path or the name of a model instead.
_CODE = re.compile(r"([A-Za-z_][\w.]*):[\w.-]+")
_WORDS = ("judge", "hf", "folder", "arrays", "re")


def file_digest(target: str) -> str | None:
    """What identifies the content of a target that is a Python file."""
    path = target.rpartition(":")[0]
    if not path.endswith(".py"):
        return None
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except (OSError, ValueError):
        return None


def agree(run: str, ledger: Path, meta: Mapping[str, Any], trust: bool) -> None:
    """Return if nothing is to be asked, or the user agrees; else an error says what would have been done."""
    found = [] if trust else list(reached(ledger, meta))
    if not found:
        return
    would = "\n".join([f"run {run!r} was recorded in {ledger}; to resume it would", *(f"  - {each}" for each in found)])
    if not (sys.stdin.isatty() and sys.stderr.isatty()) or machine_readable():
        raise ConfigError(f"{would}\nIf you trust who wrote the ledger, say --trust")
    echo(would, err=True)
    if not click.confirm("Do you trust who wrote the ledger?", err=True):
        raise ConfigError("nothing was done")


def is_own(path: Path, ledger: Path) -> bool:
    """Whether a file is the user's, in the current folder or that of the ledger, or below."""
    return _within(str(path), [Path.cwd(), ledger.resolve().parent]) and _owned(path)


def reached(ledger: Path, meta: Mapping[str, Any]) -> Iterator[str]:
    """What a recorded run uses outside the user's own project."""
    homes = [Path.cwd(), ledger.resolve().parent]
    own = _owned(ledger)
    path = str(meta.get("target")).rpartition(":")[0]
    if path.endswith(".py"):
        changed = "digest" in meta and file_digest(str(meta["target"])) != meta["digest"]
        if not own or not _within(path, homes) or not _owned(Path(path)):
            yield f"execute the Python file {path}{' (which has changed since)' if changed else ''}"
    executor = _part(meta, "options").get("executor")
    if isinstance(executor, str) and "@" in executor:
        yield f"send its work to {executor}, and take what comes back"
    blobs = _part(meta, "options").get("blobs")
    if isinstance(blobs, str) and ("://" in blobs or not _within(blobs, homes)):
        with Ledger(ledger, readonly=True) as opened:
            if not wrote_to(opened, blobs):
                yield f"write weights and other large parts to {blobs}"
    for name, value in _settings("", _part(meta, "fields")):
        if name.rpartition(".")[2] == "unsafe" and value:
            yield f"run what models write without a guard ({name})"
        elif name == "evaluator" and "{" in str(value):
            yield f"run the command {value}"
        elif isinstance(value, str):
            yield from _reached_by(name, value, homes if own else homes[:1])


def _part(meta: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = meta.get(name, {})
    if not isinstance(found, Mapping):
        raise ConfigError(f"the {name} of the recorded run are not a table: it cannot be resumed from here")
    return found


def _settings(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Every single value inside the recorded fields, with its dotted name."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _settings(f"{name}.{key}" if name else str(key), item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _settings(name, item)
    else:
        yield name, value


def _reached_by(name: str, text: str, homes: list[Path]) -> Iterator[str]:
    if "@" in text:  # @FILE is read
        yield from _reached_by(name, text.rpartition("@")[2], homes)
    head, colon, rest = text.partition(":")
    if colon and head in _WORDS:
        text = rest
    elif (code := _CODE.fullmatch(text)) is not None:
        top = code[1].partition(".")[0]
        local = top not in sys.stdlib_module_names and any((homes[0] / each).exists() for each in (f"{top}.py", top))
        if not local:
            yield f"import and call {text} ({name})"
        return
    if "\n" not in text and not all(_within(each, homes) for each in {text, os.path.expanduser(text)}):  # noqa: PTH111
        yield f"use {text} ({name})"


def _within(text: str, homes: list[Path]) -> bool:
    """Whether a text, taken for a path, leads to one of the folders or below."""
    try:
        path = Path(text).resolve()
    except (OSError, ValueError, RuntimeError):
        return True  # no path at all
    return any(path.is_relative_to(home) for home in homes)


def _owned(path: Path) -> bool:
    """Whether a file is this user's, or the administrator's."""
    try:
        return path.stat().st_uid in (os.geteuid(), 0)
    except (OSError, ValueError):
        return True  # it is not there: loading it says so
