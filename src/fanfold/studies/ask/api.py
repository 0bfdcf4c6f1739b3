"""Ask from Python: rows in, rows out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from fanfold.config import from_mapping
from fanfold.errors import ConfigError, nearest
from fanfold.run_options import RunOptions
from fanfold.running import Run
from fanfold.studies.ask.conclusion import answered
from fanfold.studies.ask.config import AskConfig
from fanfold.studies.ask.rows import listed
from fanfold.studies.ask.study import Asking, asking, run_options


def ask(
    rows: str | Path | Iterable[Any],
    prompt: str,
    *,
    model: str | Sequence[str],
    schema: str | Path | Mapping[str, Any] | type | None = None,
    **options: Any,
) -> list[dict[str, Any]]:
    """Ask a model about every row, and return the rows with its answers, in their order.

    `rows` are dicts, texts (their column is `text`), a table, a dataset, or the name of a file.  `prompt` names
    columns in braces: `"Translate: {text}"`.  Each row gets a field `answer`, and `error`, which is None or a dict with
    `kind` and `message`; with several models these fields end in the model's name.  `schema` makes answers values that
    fit a JSON Schema, or the one of a type such as a dataclass.

    `options` are the other fields of `AskConfig` (`system`, `max_tokens`, `batch`, ...) and of `RunOptions`
    (`max_cost`, `ledger`, `watch`, ...).  With a `ledger`, the same call continues where it was stopped, and asks
    nothing again.  Works in a notebook, too.
    """
    asked, how = _prepared(rows, prompt, model, schema, options)
    return _rows(asked.study.run(**how), asked)


async def ask_async(
    rows: str | Path | Iterable[Any],
    prompt: str,
    *,
    model: str | Sequence[str],
    schema: str | Path | Mapping[str, Any] | type | None = None,
    **options: Any,
) -> list[dict[str, Any]]:
    """`ask` for asynchronous code."""
    asked, how = _prepared(rows, prompt, model, schema, options)
    return _rows(await asked.study.run_async(**how), asked)


def _prepared(
    rows: Any, prompt: str, model: str | Sequence[str], schema: Any, options: Mapping[str, Any]
) -> tuple[Asking, dict[str, Any]]:
    """The study, and the arguments of its run."""
    own = {field.name for field in fields(AskConfig)} - {"source"}
    of_run = {field.name for field in fields(RunOptions)}
    for name in options:
        if name not in own | of_run:
            raise ConfigError(f"ask has no option {name!r}{nearest(name, own | of_run)}")
    named = isinstance(rows, str | Path)
    settings = {name: value for name, value in options.items() if name in own}
    models = [model] if isinstance(model, str) or not isinstance(model, Iterable) else list(model)
    for name in models:
        if not isinstance(name, str):
            raise ConfigError(
                f"model must be a name (PROVIDER/MODEL), or several, not {name!r:.60}: give a model with settings of "
                "its own a name in models.toml"
            )
    source = {"source": str(rows)} if named else {}
    config = from_mapping(AskConfig, {**settings, **source, "prompt": prompt, "model": models}, "ask")
    asked = asking(config, None if named else listed(rows), schema=schema)
    how = {name: value for name, value in options.items() if name in of_run}
    if how.get("ledger") is not None:
        how.setdefault("run", asked.run)
    return asked, {**run_options(config), **how}


def _rows(run: Run[Any], asked: Asking) -> list[dict[str, Any]]:
    with run.ledger:
        return list(answered(run.view, asked.rows, asked.fields))
