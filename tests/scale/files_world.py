"""What the tests of ledgers on the move share: ledgers of earlier versions, their content, and a study with weights."""

from __future__ import annotations

import contextlib
import gzip
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from fanfold.cli import cli

DATA = Path(__file__).parents[1] / "data" / "ledgers-0.1.0"

#: A search whose candidates start from the weights of their parents.  How much it keeps is the environment's to say.
HEIRS = """
import os
from random import Random
from fanfold import Blob, Ok, Study
from fanfold.schedules import Halving, last_rung
from fanfold.stop import MaxTrials
from fanfold.strategies import Genetic
from fanfold.strategies.breeding import Bred

SIZE = 20_000

class Heirs:
    def sample(self, rng):
        return Bred({"gene": rng.randrange(10**9), "inherited": None})
    def child(self, pick, rng, rate):
        parent = pick()
        last = list(parent.outcomes.values())[-1]
        return Bred({"gene": rng.randrange(10**9), "inherited": last.data["weights"]}, (parent,))
    def again(self, bred, rng, rate):
        return bred
    def learn(self, result, better): ...

class Training:
    continues, passing, fingerprint = True, ("state",), "training-1"
    def __call__(self, candidate, case, previous=None):
        if previous is not None:
            start = previous.data["state"].read() + previous.data["weights"].read()
        else:
            start = b"" if candidate["inherited"] is None else candidate["inherited"].read()
        rng = Random(f"{candidate['gene']} {case.id} {sum(start)}")
        return Ok(rng.random(), {"weights": Blob.of(rng.randbytes(SIZE)), "state": Blob.of(rng.randbytes(SIZE))})

study = Study(Genetic(breeder=Heirs(), population=6, elites=1), Training(), ["one", "two"], Halving(2, cohort=5),
              MaxTrials(60), aggregate=last_rung, keep=int(os.environ.get("KEEP", "0")) or None, name="heirs")
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


def fails_at(monkeypatch: Any, owner: Any, name: str, error: BaseException) -> Callable[[], None]:
    """A method that raises until the returned function is called."""
    monkeypatch.setattr(owner, name, lambda *args, **kwargs: (_ for _ in ()).throw(error))
    return monkeypatch.undo
