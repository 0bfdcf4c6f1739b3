"""What the tests of ledgers on the move share: ledgers of earlier versions, their content, and a study with weights."""

from __future__ import annotations

import contextlib
import gzip
import sqlite3
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from fanfold.cli import cli

DATA = Path(__file__).parents[1] / "data" / "ledgers-0.1.0"

#: A search whose candidates start from the weights of their parents.  How much it keeps is the environment's to say.
LINEAGE = """
import os
from heirs import heirs

study = heirs(int(os.environ.get("KEEP", "0")) or None, 60)
"""


def fanfold(*arguments: str | Path, code: int = 0) -> Result:
    """The command, run here."""
    result = CliRunner().invoke(cli, [str(argument) for argument in arguments], prog_name="fanfold")
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    assert result.exit_code == code, result.output
    return result


def kept(study: str, path: Path) -> Path:
    """A ledger that version 0.1.0 wrote."""
    path.write_bytes(gzip.decompress((DATA / f"{study}.db.gz").read_bytes()))
    return path


def content(path: Path) -> dict[str, list[Any]]:
    """Every row of a file."""
    with contextlib.closing(sqlite3.connect(path)) as db:
        names = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
        return {name: sorted(db.execute(f"SELECT * FROM {name}").fetchall(), key=repr) for name in names}


def changed(path: Path, *statements: str) -> None:
    """Write to a file behind everybody's back."""
    with contextlib.closing(sqlite3.connect(path)) as db:
        for statement in statements:
            db.execute(statement)
        db.commit()


def rows(path: Path, sql: str) -> list[Any]:
    with contextlib.closing(sqlite3.connect(path)) as db:
        return db.execute(sql).fetchall()
