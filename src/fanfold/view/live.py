"""Live changes as server-sent events: what was written since the mark that a page has."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from fanfold.errors import FanfoldError
from fanfold.redaction import redact_body
from fanfold.report.pages import overview, runs
from fanfold.report.pages.matrix import scale
from fanfold.report.pages.parts import Payload
from fanfold.view.shelf import Shelf

#: Seconds between two looks at a run and at the list of runs, and after which a silent stream says that it is alive.
LOOK, LOOK_AT_RUNS, PING = 0.25, 1.0, 15.0
#: The most trials and cells of one event.
TRIALS, CELLS = 200, 5000


async def follow_run(shelf: Shelf, ledger: int, name: str, mark: int | None) -> AsyncIterator[bytes]:
    """A `change` whenever something was written about a run, or its state is another.

    A run that is killed becomes interrupted, and one that is resumed runs again: the stream goes through both.
    """
    seen: Any = None
    said = time.monotonic()
    yield b"retry: 1000\n\n"
    while True:
        standing, event = await shelf.read(lambda: _standing(shelf, ledger, name)), None
        if standing is not None and standing != seen:
            try:
                event = await shelf.read(functools.partial(_change, shelf, ledger, name, mark))
            except Exception:  # a stranger's rows: nothing can be told of them until they change
                seen = standing
        if event is not None:
            # Where there is more, the next look comes upon it.
            seen, mark, said = None if event["more"] else standing, event["mark"], time.monotonic()
            yield _event("change", event, id=mark)
        elif time.monotonic() - said > PING:
            said = time.monotonic()
            yield b"event: ping\ndata: {}\n\n"
        await asyncio.sleep(LOOK)


async def follow_runs(shelf: Shelf) -> AsyncIterator[bytes]:
    """`runs` with the rows that have changed."""
    seen: dict[tuple[int, str], Payload] = {}
    said = time.monotonic()
    yield b"retry: 1000\n\n"
    while True:
        rows = await shelf.read(lambda: _rows(shelf))
        changed = [row for key, row in rows.items() if seen and seen.get(key) != row]
        seen = rows
        if changed:
            said = time.monotonic()
            yield _event("runs", {"rows": changed})
        elif time.monotonic() - said > PING:
            said = time.monotonic()
            yield b"event: ping\ndata: {}\n\n"
        await asyncio.sleep(LOOK_AT_RUNS)


def _event(name: str, payload: Payload, id: int | None = None) -> bytes:
    head = f"id: {id}\n" if id is not None else ""
    return f"{head}event: {name}\ndata: ".encode() + redact_body(msgspec.json.encode(payload)) + b"\n\n"


def _standing(shelf: Shelf, ledger: int, name: str) -> tuple[Any, ...] | None:
    """What differs as soon as something has happened; None while the ledger cannot be read."""
    try:
        view = shelf.view(ledger, name)
        return view.mark, view.status
    except FanfoldError:
        return None


def _change(shelf: Shelf, ledger: int, name: str, mark: int | None) -> Payload | None:
    """What was written since a mark; without a mark, only where the run is now."""
    try:
        shown = shelf.shown(ledger, name)
        changes = shown.view.changes(shown.view.mark if mark is None else mark)
        values = shelf.values(shown, "score")
        low, high = scale(shown, values, "score")
    except FanfoldError:
        return None  # the ledger is locked or damaged: a later look may tell
    cells = [
        [row.trial, row.position, values.row(row.trial, low, high)[row.position]]
        for row in changes.evaluations[:CELLS]
        if row.position < values.columns
    ]
    return {
        "mark": changes.mark,
        "state": changes.status,
        "reason": shown.reason,
        **overview.standing(shown, changes.progress),
        "trials": [shown.trial(row) for row in changes.trials[-TRIALS:]],
        "cells": cells,
        "scale": [shown.score(low), shown.score(high)],
        "more": changes.more,
        "notes": [{"at": note.at, "text": note.text} for note in changes.notes],
        "headline": shown.headline(),
    }


def _rows(shelf: Shelf) -> dict[tuple[int, str], Payload]:
    try:
        rows = runs.runs(shelf.ledgers(), row=shelf.row)["runs"]
    except FanfoldError:
        return {}
    return {(row["ledger"], row["name"]): row for row in rows}
