"""What the fault tests share: the provider in a process of its own, and looking at a ledger without touching it.

Not in `conftest.py`, because worker processes import the tests, and cannot tell one conftest from another.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import urllib.request
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

PROGRAMS = Path(__file__).parent / "programs"
sys.path.insert(0, str(PROGRAMS))


def many(few: int, all_of_them: int) -> int:
    """How often something is tried: a few times in the suite, as often as the fault table asks in `make campaign`."""
    return all_of_them if os.environ.get("FANFOLD_CAMPAIGN") else few


Start: TypeAlias = Callable[..., "subprocess.Popen[str]"]


class Provider:
    """The simulator in a process of its own."""

    def __init__(self, url: str) -> None:
        self.url = url

    def bill(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.url}/_simulator/ledger") as response:
            return dict(json.load(response))

    def post(self, page: str, value: Any = None) -> None:
        body = json.dumps(value or {}).encode()
        urllib.request.urlopen(urllib.request.Request(f"{self.url}/_simulator/{page}", body)).close()

    def paid(self) -> Counter[str]:
        """How often each request was paid for, by the hash of its body."""
        return Counter(charge["key"] for charge in self.bill()["charges"])


def wait_for(process: subprocess.Popen[str], word: str) -> None:
    """Read the program's output up to the line `word`."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip() == word:
            return
    assert process.stderr is not None
    raise AssertionError(f"the program ended before it said {word!r}:\n{process.stderr.read()}")


def finish(process: subprocess.Popen[str]) -> str:
    """The last line a program says."""
    output, errors = process.communicate(timeout=60)
    assert "Traceback" not in errors, errors
    return (output.splitlines() or [""])[-1]


@dataclass(frozen=True)
class Seen:
    """The rows of a ledger at one moment."""

    candidates: dict[tuple[int, int], str]
    told: list[tuple[int, Any, Any]]
    evaluations: dict[tuple[int, int, int], tuple[Any, ...]]

    @property
    def cells(self) -> set[str]:
        """What has been evaluated, as lines of the side file say it (a case's id is its position)."""
        return {f"{position}\t{self.candidates[run, trial]}" for run, trial, position in self.evaluations}


NOTHING = Seen({}, [], {})


def look(ledger: Path) -> Seen:
    """What is durable in a ledger, read from a copy so that the file itself stays as its writer left it."""
    if not ledger.exists():
        return NOTHING
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy.db"
        shutil.copy(ledger, copy)
        wal = ledger.with_name(ledger.name + "-wal")
        if wal.exists():
            shutil.copy(wal, copy.with_name("copy.db-wal"))
        db = sqlite3.connect(copy)
        try:
            assert rows(db, "PRAGMA integrity_check") == [("ok",)]
            if not rows(db, "PRAGMA user_version")[0][0]:
                return NOTHING
            return Seen(
                {(run, trial): text for run, trial, text in rows(db, "SELECT run, number, candidate FROM trial")},
                rows(db, "SELECT number, score, dropped FROM trial WHERE told IS NOT NULL ORDER BY run, told"),
                {row[:3]: row[3:] for row in rows(db, "SELECT * FROM evaluation")},
            )
        finally:
            db.close()


def rows(db: sqlite3.Connection, sql: str, parameters: Sequence[Any] = ()) -> list[Any]:
    return db.execute(sql, parameters).fetchall()


def lines(side: Path) -> list[str]:
    return side.read_text().splitlines() if side.exists() else []
