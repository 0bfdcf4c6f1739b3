"""Ledgers written by earlier versions, one per study, still open, show, report and resume.

Each file of `tests/data/ledgers-VERSION` holds a run called `kept` that was stopped early, packed with gzip.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from fanfold.ledger import Ledger, RunView
from fanfold.models.local import LocalModel
from fanfold.report import metrics

Fanfold = Callable[..., Result]

KEPT = sorted((Path(__file__).parents[1] / "data").glob("ledgers-*/*.db.gz"))
#: How many trials the kept part of each run had told, and a limit that lets it continue.
TOLD = {"critic": 9, "functions": 25, "neuro": 5, "paid": 6, "prompts": 6, "secrets": 0, "workflow": 2}
FURTHER = {"critic": 11, "functions": 40, "neuro": 6, "paid": 8, "prompts": 8, "secrets": None, "workflow": 3}


@pytest.fixture(params=KEPT, ids=lambda path: f"{path.parent.name}-{path.name.partition('.')[0]}")
def kept(request: pytest.FixtureRequest, folder: Path) -> tuple[str, str]:
    """A kept ledger's study, and a copy of the file to work on."""
    packed: Path = request.param
    ledger = folder / "kept.db"
    ledger.write_bytes(gzip.decompress(packed.read_bytes()))
    return packed.name.partition(".")[0], str(ledger)


def test_every_study_has_a_kept_ledger() -> None:
    assert {path.name.partition(".")[0] for path in KEPT} == set(TOLD)


async def answered(*asked: Any, **parameters: Any) -> dict[str, Any]:
    """What the local model would say after half a minute."""
    message = {"role": "assistant", "content": "No."}
    usage = {"prompt_tokens": 9, "completion_tokens": 2}
    return {"choices": [{"message": message, "text": "No.", "finish_reason": "stop"}], "usage": usage}


@pytest.mark.slow
def test_a_kept_ledger_continues_where_it_stopped(
    kept: tuple[str, str],
    fanfold: Fanfold,
    as_json: Callable[..., Any],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for way in ("chat", "complete"):
        monkeypatch.setattr(LocalModel, way, answered)
    study, ledger = kept
    limit = FURTHER[study]
    options = ["--max-time", "1h"] if limit is None else ["--max-trials", str(limit)]
    result = as_json("resume", "kept", "--ledger", ledger, *options, "--quiet")
    assert result["trials"] > TOLD[study]
    shown = as_json("show", "kept", "--ledger", ledger)
    assert shown["trials"] == result["trials"]
    fanfold("report", "kept", "--ledger", ledger, "-o", "kept.html")
    assert "kept" in (folder / "kept.html").read_text()


@pytest.mark.slow
def test_a_kept_ledger_is_shown_before_anything_continues_it(
    kept: tuple[str, str], fanfold: Fanfold, as_json: Callable[..., Any]
) -> None:
    study, ledger = kept
    told = {run["name"]: run["trials"] for run in as_json("runs", "--ledger", ledger)}
    assert told["kept"] == TOLD[study]
    fanfold("show", "kept", "--ledger", ledger)
    fanfold("report", "kept", "--ledger", ledger, "-o", "kept.html")


@pytest.fixture
def barred() -> Iterator[Path]:
    """A folder in which the user may read and not write; as root, which may everything, this becomes somebody else."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        yield folder
        os.seteuid(os.getuid())
        folder.chmod(0o755)


def bar(folder: Path) -> None:
    for path in folder.iterdir():
        path.chmod(0o444)
    folder.chmod(0o555)
    if os.geteuid() == 0:
        os.seteuid(65534)


@pytest.mark.parametrize("journal", ["delete", "wal"])
def test_a_kept_ledger_that_may_not_be_written_is_shown(barred: Path, journal: str) -> None:
    ledger = barred / "kept.db"
    ledger.write_bytes(gzip.decompress(next(path for path in KEPT if path.name.startswith("paid")).read_bytes()))
    with contextlib.closing(sqlite3.connect(ledger)) as db:
        db.execute(f"PRAGMA journal_mode = {journal}")
    before = ledger.read_bytes()
    bar(barred)
    with Ledger(ledger, readonly=True) as opened:
        run = opened.run("kept")
        view = RunView(opened, run.id)
        assert view.info.trials == TOLD["paid"] and metrics(view)
        [(calls, cost)] = opened.read("SELECT count(*), sum(cost) FROM payment WHERE run = ?", (run.id,))
        assert [(calls, cost)] == list(opened.read("SELECT count(*), sum(cost) FROM call WHERE run = ?", (run.id,)))
        assert calls > 0 and cost > 0
    assert ledger.read_bytes() == before and [path.name for path in barred.iterdir()] == ["kept.db"]


def test_a_ledger_of_this_version_in_a_folder_that_may_not_be_written_is_shown(barred: Path) -> None:
    Ledger(barred / "new.db").close()
    bar(barred)
    with Ledger(barred / "new.db", readonly=True) as opened:
        assert opened.runs() == []
