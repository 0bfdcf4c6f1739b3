"""Damaged and forged ledgers are read or refused with a reason: no traceback, no hang, no file but the one asked for.

Each of the ledgers is made from one that a version of Fanfold wrote, by a number: the same number, the same ledger.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import random
import sqlite3
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fanfold import Ledger, LedgerError
from fanfold.cli import cli

KEPT = sorted((Path(__file__).parents[1] / "data").glob("ledgers-*/*.db.gz"))
LEDGERS = 500
#: Small files most of the time: damage to them is more likely to be seen.
SMALL = [path for path in KEPT if path.stat().st_size < 20_000]
PARTS = 10
#: Seconds that any command may take; a hang is caught by the time limit of the test itself.
LIMIT = 20.0

DEEP = "[" * 100_000 + "]" * 100_000
ODD: list[Any] = [
    None, -1, 0, 1, 2**62, -(2**63), 1e308, float("inf"), -float("inf"), 0.5, "", "text", "{", "[]", "{}", "null", "1",
    '"x"', b"", b"\xff\xfe", b"\x00" * 8, "\x1b]0;pwned\x07", "../../escape", "/etc/passwd", "a\x00b", "x" * 200_000,
    DEEP, "[" * 900 + "]" * 900, "9" * 5000, '{"a": 1e999}', '{"$blob": 3}', '{"$blob": "absent"}',
    '{"sections": [{"title": 1}]}', '{"utilisation": []}',
    '{"figures": {}, "sections": [{"title": "t", "columns": ["a"], "rows": [[], [1, 2]]}]}', "[" + "0," * 50_000 + "0]",
]  # fmt: skip

COMMANDS = [
    ("runs",),
    ("runs", "--json"),
    ("show", "kept"),
    ("show", "last", "--trials", "5"),
    ("show", "last", "--json"),
    ("show", "last", "--prometheus"),
    ("export", "last"),
    ("export", "last", "-o", "out.jsonl"),
    ("export", "last", "-o", "out.csv"),
    ("export", "last", "-o", "out.parquet"),
    ("export", "last", "--evaluations", "-o", "out.csv"),
    ("export", "last", "--evaluations", "-o", "out.parquet"),
    ("report", "last", "-o", "out.html"),
    ("report", "last", "--json"),
    ("batches",),
    ("batches", "--json"),
    ("ledger",),
    ("ledger", "verify"),
    ("ledger", "vacuum"),
    ("ledger", "prune", "--calls"),
    ("doctor",),
]


def flip_bits(path: Path, dice: random.Random) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(dice.choice([1, 3, 30, 300])):
        data[dice.randrange(dice.choice([100, 4096, len(data)]))] ^= 1 << dice.randrange(8)
    path.write_bytes(data)


def cut(path: Path, dice: random.Random) -> None:
    size = path.stat().st_size
    os.truncate(path, dice.choice([0, 1, 15, 100, 4096, dice.randrange(size), size - 1, size // 4096 // 2 * 4096]))


def mix_pages(path: Path, dice: random.Random) -> None:
    data = bytearray(path.read_bytes())
    pages = len(data) // 4096
    for _ in range(dice.randint(1, 3)):
        one, other = (4096 * dice.randrange(pages) for _ in range(2))
        replaced = dice.choice([bytes(4096), dice.randbytes(4096), bytes(data[other : other + 4096])])
        data[one : one + 4096] = replaced
    path.write_bytes(data)


def garbage(path: Path, dice: random.Random) -> None:
    path.write_bytes(dice.choice([b"", b"hello", dice.randbytes(5000), b"SQLite format 3\0" + dice.randbytes(4080)]))


def strange_log(path: Path, dice: random.Random) -> None:
    path.with_name(f"{path.name}-wal").write_bytes(
        dice.choice([dice.randbytes(40_000), b"\x37\x7f\x06\x82" + bytes(9000)])
    )


def sql(change: Callable[[sqlite3.Connection, random.Random], None]) -> Callable[[Path, random.Random], None]:
    def changed(path: Path, dice: random.Random) -> None:
        db = sqlite3.connect(path, isolation_level=None)
        try:
            with contextlib.suppress(sqlite3.Error):  # what SQLite itself refuses cannot be in a file
                db.execute("PRAGMA synchronous = OFF")
                change(db, dice)
        finally:
            db.close()

    changed.__name__ = change.__name__
    return changed


TABLES = (
    "run",
    "run_case",
    "trial",
    "evaluation",
    "call",
    "batch",
    "broker",
    "summary",
    "snapshot",
    "blob",
    "batch_item",
)


def columns(db: sqlite3.Connection, table: str) -> list[str]:
    return [row[1] for row in db.execute(f"PRAGMA table_info({table})")]


@sql
def odd_values(db: sqlite3.Connection, dice: random.Random) -> None:
    table = dice.choice(TABLES[:4] * 3 + TABLES)
    column = dice.choice(columns(db, table))
    value, where = dice.choice(ODD), dice.choice(["", f"WHERE {column} = (SELECT {column} FROM {table} LIMIT 1)"])
    placeholder = dice.choice(["?", "?", "?", "CAST(x'ff' AS TEXT) || ?"])
    db.execute(f"UPDATE OR REPLACE {table} SET {column} = {placeholder} {where}", (value,))


@sql
def odd_rows(db: sqlite3.Connection, dice: random.Random) -> None:
    table = dice.choice(TABLES)
    names = columns(db, table)
    for _ in range(dice.choice([1, 20])):
        values = [1 if name == "run" else dice.choice([*ODD[:20], *range(5), b"key", "name", "{}"]) for name in names]
        with contextlib.suppress(sqlite3.Error):
            db.execute(f"INSERT OR REPLACE INTO {table} VALUES ({', '.join('?' * len(names))})", values)


@sql
def missing_rows(db: sqlite3.Connection, dice: random.Random) -> None:
    table = dice.choice(TABLES[:4])
    key = "position" if table in ("run_case", "evaluation") else "number" if table == "trial" else "id"
    condition = dice.choice(["1", f"{key} = (SELECT min({key}) FROM {table})", f"{key} % 2 = 0", f"{key} > 2"])
    db.execute(f"DELETE FROM {table} WHERE {condition}")


@sql
def odd_order(db: sqlite3.Connection, dice: random.Random) -> None:
    db.execute(
        dice.choice(
            [
                "UPDATE trial SET told = told + 1",
                "UPDATE trial SET told = 0",
                "UPDATE trial SET told = told * 2",
                "UPDATE trial SET told = -told",
                "UPDATE OR REPLACE trial SET number = number + 1",
                "UPDATE OR REPLACE evaluation SET position = position + 1",
                "UPDATE OR REPLACE evaluation SET trial = trial + 1000",
                "UPDATE OR REPLACE run_case SET position = position + 1",
                "UPDATE OR REPLACE run SET id = id + 10",
                "UPDATE snapshot SET told = 100000, asked = 100000",
                "UPDATE trial SET told = NULL",
            ]
        )
    )


@sql
def other_schema(db: sqlite3.Connection, dice: random.Random) -> None:
    table = dice.choice(TABLES[:4])
    column = dice.choice(columns(db, table))
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n"
    names = ", ".join(columns(db, "trial"))
    for statement in dice.choice(
        [
            [f"DROP TABLE {table}"],
            [f"ALTER TABLE {table} DROP COLUMN {column}"],
            [f"ALTER TABLE {table} ADD COLUMN extra TEXT"],
            [f"ALTER TABLE {table} ADD COLUMN extra AS (abs({column}))"],
            [f"ALTER TABLE {table} RENAME COLUMN {column} TO other"],
            [f"CREATE TRIGGER act AFTER UPDATE ON {table} BEGIN DELETE FROM trial; END"],
            ["ALTER TABLE trial RENAME TO kept", f"CREATE VIEW trial AS SELECT {names} FROM kept, ({endless})"],
            ["DROP TABLE desk", f"CREATE VIEW desk (run, counts) AS SELECT i, i FROM ({endless})"],
            ["DROP TABLE summary", "CREATE VIEW summary (run, text) AS SELECT 1, load_extension('/tmp/x.so')"],
            [f"CREATE INDEX extra ON {table} (abs({column}))"],
            [f"CREATE UNIQUE INDEX extra ON {table} ({column}, run)"],
            ["CREATE VIRTUAL TABLE extra USING fts5(text)"],
            ["CREATE TABLE extra (a, b)", "INSERT INTO extra VALUES (1, zeroblob(100000))"],
            ["CREATE TABLE again AS SELECT * FROM trial", "DROP TABLE trial", "ALTER TABLE again RENAME TO trial"],
        ]
    ):  # fmt: skip
        db.execute(statement)


@sql
def other_marks(db: sqlite3.Connection, dice: random.Random) -> None:
    mark = dice.choice(["application_id", "user_version"])
    db.execute(f"PRAGMA {mark} = {dice.choice([-1, 0, 1, 2, 3, 7, 99, 2**31 - 1])}")


CHANGES = [
    flip_bits,
    cut,
    mix_pages,
    garbage,
    strange_log,
    odd_rows,
    missing_rows,
    odd_order,
    other_schema,
    other_marks,
]
CHANGES += [odd_values] * 6 + [flip_bits] * 2


def hostile(number: int, path: Path, sources: list[Path] = SMALL * 5 + KEPT) -> str:
    """The ledger of that number; gives what was done to it."""
    dice = random.Random(number)
    source = dice.choice(sources)
    path.write_bytes(gzip.decompress(source.read_bytes()))
    changes = [dice.choice(CHANGES) for _ in range(dice.choice([1, 1, 2]))]
    for change in changes:
        with contextlib.suppress(IndexError, ValueError):  # an earlier change left nothing to change
            change(path, dice)
    return f"ledger {number} from {source.name}: {', '.join(change.__name__ for change in changes)}"


def attempt(folder: Path, what: str, command: tuple[str, ...]) -> int:
    """Run a command on the ledger of a folder, and check what it may do; gives its exit code."""
    ledger = ("--ledger", "hostile.db")
    started = time.process_time()  # a busy machine is not the ledger's fault; what waits for ever ends with the test
    result = CliRunner().invoke(cli, [*command, *ledger], prog_name="fanfold")
    took = time.process_time() - started
    where = f"{what}: fanfold {' '.join(command)}"
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise AssertionError(f"{where}\n{''.join(traceback.format_exception(*result.exc_info)[-2500:])}")
    assert result.exit_code in (0, 2, 3), f"{where}: exit code {result.exit_code}\n{result.output}"
    assert "Traceback" not in result.output and took < LIMIT, f"{where}: {took:.1f} s\n{result.output}"
    left = {path.name for path in folder.iterdir() if not path.name.startswith("hostile.db")}
    asked = {command[command.index("-o") + 1]} if "-o" in command else set()
    if command[0] == "report":  # named after the run, which may be one that belongs to `kept`
        asked |= {name for name in left if name.startswith("kept") and name.endswith(".html")}
    allowed = asked if result.exit_code == 0 else set()
    assert left <= allowed, f"{where} left {left} behind"
    for name in left:
        (folder / name).unlink()
    return result.exit_code


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_a_hostile_ledger_is_read_or_refused(part: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "fsync", lambda file: None)  # nobody cuts the power, and a slow disk is slow 500 times
    codes: set[int] = set()
    for number in range(part, LEDGERS, PARTS):
        for beside in tmp_path.iterdir():
            beside.unlink()
        what = hostile(number, tmp_path / "hostile.db")
        dice = random.Random(-number)
        codes |= {attempt(tmp_path, what, command) for command in dice.sample(COMMANDS, 3)}
    assert codes >= {0, 3}, "some of them can be read, and some are refused"


@pytest.mark.slow
def test_a_hostile_ledger_is_resumed_or_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "fsync", lambda file: None)
    sources = [path for path in KEPT if path.name.startswith("functions")]
    for number in range(60):
        for beside in tmp_path.iterdir():
            beside.unlink()
        what = hostile(number, tmp_path / "hostile.db", sources)
        how = ["--ledger", "hostile.db", "--max-trials", "27", "--executor", "inline", "--quiet"]
        result = CliRunner().invoke(cli, ["resume", "kept", *how], prog_name="fanfold")
        assert isinstance(result.exception, SystemExit | None), f"{what}: {result.exception!r}"
        assert result.exit_code in (0, 2, 3, 4), f"{what}\n{result.output}"
        assert all(path.name.startswith("hostile.db") for path in tmp_path.iterdir()), what


@pytest.mark.slow
def test_a_hostile_ledger_is_merged_whole_or_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "fsync", lambda file: None)
    sound = gzip.decompress(next(path for path in KEPT if path.name.startswith("functions")).read_bytes())
    codes: set[int] = set()
    for number in range(60):
        for beside in tmp_path.iterdir():
            beside.unlink()
        (tmp_path / "sound.db").write_bytes(sound)
        what = hostile(number, tmp_path / "hostile.db")
        merged = CliRunner().invoke(cli, ["ledger", "merge", "hostile.db", "--into", "sound.db"], prog_name="fanfold")
        assert isinstance(merged.exception, SystemExit | None), f"{what}: {merged.exception!r}"
        codes.add(merged.exit_code)
        checked = CliRunner().invoke(cli, ["ledger", "verify", "--ledger", "sound.db"], prog_name="fanfold")
        assert checked.exit_code == 0, f"{what}\n{checked.output}"
        with Ledger("sound.db", readonly=True) as ledger:
            assert len(ledger.runs()) == 1 or merged.exit_code == 0, what
        assert all(path.name.startswith(("hostile.db", "sound.db")) for path in tmp_path.iterdir()), what
    assert codes == {0, 3}


# -- single tricks ---------------------------------------------------------------------------------------------------


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "hostile.db"
    (source,) = [path for path in KEPT if path.name.startswith("functions")]
    path.write_bytes(gzip.decompress(source.read_bytes()))
    return path


def refused(ledger: Path, *command: str, says: str) -> None:
    result = CliRunner().invoke(cli, [*command, "--ledger", str(ledger)], prog_name="fanfold")
    assert result.exit_code == 3 and says in result.stderr and "hostile.db" in result.stderr, result.output


def changed(ledger: Path, *statements: str) -> None:
    db = sqlite3.connect(ledger)
    for statement in statements:
        db.execute(statement)
    db.commit()
    db.close()


@pytest.mark.slow
def test_a_small_file_whose_pages_share_their_children_is_given_up(ledger: Path) -> None:
    """Fourteen pages of 400 children each, all of them the next page: 400 ** 14 rows in 60 KB."""
    changed(ledger, "INSERT INTO call VALUES (x'00', 1, 'm', '{}', '{}', 1, 1, 1.0, 1.0, 1.0, 1, NULL)")
    db = sqlite3.connect(ledger)
    (root,) = db.execute("SELECT rootpage FROM sqlite_master WHERE name = 'call'").fetchone()
    db.execute("PRAGMA journal_mode = DELETE")
    db.close()
    data = bytearray(ledger.read_bytes())
    pages = len(data) // 4096
    leaf = bytes(data[(root - 1) * 4096 : root * 4096])
    cell = b"\x01"  # the key, which a scan does not look at
    for child in [*range(pages + 2, pages + 15), 0]:
        if not child:
            data += leaf
            continue
        cells = [child.to_bytes(4, "big") + cell] * 400
        starts = [4096 - 5 * (number + 1) for number in range(400)]
        head = (
            b"\x05\x00\x00"
            + (400).to_bytes(2, "big")
            + starts[-1].to_bytes(2, "big")
            + b"\x00"
            + child.to_bytes(4, "big")
        )
        page = head + b"".join(start.to_bytes(2, "big") for start in starts)
        data += page + bytes(starts[-1] - len(page)) + b"".join(cells)
    data[(root - 1) * 4096 : root * 4096] = data[pages * 4096 : (pages + 1) * 4096]
    data[28:32] = (len(data) // 4096).to_bytes(4, "big")
    ledger.write_bytes(data)
    started = time.process_time()
    refused(ledger, "show", "last", says="damaged")
    assert time.process_time() - started < 3 * LIMIT


@pytest.mark.slow
@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("CREATE TRIGGER act AFTER UPDATE ON trial BEGIN DELETE FROM trial; END", "a trigger called 'act'"),
        ("CREATE VIEW look AS SELECT * FROM trial", "a view called 'look'"),
        ("CREATE INDEX fast ON trial (abs(score))", "an index called 'fast'"),
        ("CREATE VIRTUAL TABLE words USING fts5(text)", "a table called 'words'"),
        ("ALTER TABLE trial ADD COLUMN extra TEXT", "trial is not as schema"),
        ("DROP TABLE blob", "blob is not as schema"),
        ("UPDATE run SET name = '../../escape'", "run 1: its name"),
        ("UPDATE run SET status = 'odd'", "run 1: its status"),
        ("UPDATE run SET meta = '[1]'", "run 1"),
        ("UPDATE run SET created = 9e300", "run 1"),
        ("UPDATE trial SET candidate = '{' WHERE number = 3", "trial 3"),
        ("UPDATE trial SET asked_after = 'x' WHERE number = 3", "trial 1, 3"),
        ("UPDATE trial SET told = 7", "order of telling"),
        ("DELETE FROM trial WHERE number = 2", "its trials have gaps"),
        ("UPDATE evaluation SET tries = -1 WHERE trial = 4", "evaluation 1, 4"),
        ("DELETE FROM run_case", "cases it does not have"),
        ("INSERT INTO summary VALUES (1, '{\"sections\": 3}')", "the summary of run 1"),
        ('INSERT INTO desk VALUES (1, \'{"cached": "many"}\')', "the counts of run 1"),
        ("INSERT INTO batch VALUES ('t', 1, x'00', 'e', 'done', 'r', 1, 1, 'n')", "batch t"),
    ],
)
def test_an_odd_ledger_is_refused_by_name(ledger: Path, statement: str, says: str) -> None:
    changed(ledger, statement)
    refused(ledger, "show", "last", "--trials", "100", says=says)


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("INSERT INTO cell_call VALUES (1, 3, 0, 'keys', x'00')", "cell_call 1, 3, 0"),
        ("INSERT INTO request VALUES (7, 1, 1.0, x'00', '{}', NULL)", "request 7"),
        ("INSERT INTO comment VALUES (8, 1, -3, 1.0, 'text')", "comment 8"),
    ],
)
def test_an_odd_row_of_a_later_table_is_refused_too(ledger: Path, statement: str, says: str) -> None:
    Ledger(ledger).close()  # brings it up to date
    test_an_odd_ledger_is_refused_by_name(ledger, statement, says)


def test_the_tables_and_indices_of_others_are_none_of_our_business(ledger: Path) -> None:
    changed(ledger, "CREATE TABLE notes (text TEXT UNIQUE)", "CREATE INDEX mine ON trial (score)", "ANALYZE")
    assert CliRunner().invoke(cli, ["show", "last", "--ledger", str(ledger)]).exit_code == 0


def test_a_forged_run_is_not_resumed_by_a_program_either(ledger: Path) -> None:
    changed(ledger, "UPDATE trial SET told = 7")
    from fanfold.ledger import Commits, RunJournal

    with Ledger(ledger) as opened, pytest.raises(LedgerError, match="order of telling"):
        commits = Commits(opened)
        try:
            RunJournal(opened, 1, commits)
        finally:
            commits.close()
