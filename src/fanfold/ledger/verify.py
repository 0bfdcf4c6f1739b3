"""Checks the rows of a run against what their tables promise: a damaged or forged file is refused as a whole."""

from __future__ import annotations

import math
import re
import secrets
import time
import unicodedata
from pathlib import Path
from typing import TYPE_CHECKING

from fanfold.errors import LedgerError

if TYPE_CHECKING:
    from fanfold.ledger.store import Ledger

#: What a run may be called: also the name of its lock file, of its folder of results and of its report.
RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")
_ELSE = re.compile(r"[^A-Za-z0-9._-]+")
STATUSES = ("running", "stopped", "finished", "failed")
#: The last second that a calendar of four digits knows.
LATEST = 253_402_300_799.0

#: Columns with an evaluator's own values; these are checked when they are read, so that one bad outcome stays one.
_OUTCOME = {
    "evaluation": {"failure", "score", "data", "cost", "message", "detail"},
    "trial": {"score", "dropped", "cost"},
}
_SIGNED = {"seed"}
_TYPES = {"INTEGER": "'integer'", "REAL": "'real', 'integer'", "TEXT": "'text'", "BLOB": "'blob'"}
#: The tables whose rows belong to one run, each with an index by which they are found.
_OF_A_RUN = (
    *("run_case", "trial", "evaluation", "superseded", "snapshot", "batch"),
    *("run_count", "desk", "summary", "payment", "change", "note", "cell_call", "request", "comment"),
)


def new_name(study: str) -> str:
    """A name for a new run of a study, whose own name may be any text."""
    folded = unicodedata.normalize("NFKD", study).encode("ascii", "ignore").decode()
    plain = _ELSE.sub("-", folded).strip("-._")[:40] or "study"
    return f"{plain}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


def verify(ledger: Ledger, run: int, proven: int = 0) -> None:
    """Raise a `LedgerError` that names the first odd row of a run, or what is missing from it.

    The values of the trials below `proven` are known to be sound.
    """
    for table in _OF_A_RUN:
        column = {"trial": "number", "evaluation": "trial"}.get(table) if proven else None
        later = "" if column is None else f" AND {column} >= {int(proven)}"
        _check_types(ledger, table, f" AND run = ?{later}", (run,))
    _check_counts(ledger, run)


def verify_all(ledger: Ledger) -> None:
    """The same for all runs, quicker than one by one."""
    for table in _OF_A_RUN:
        _check_types(ledger, table, "", ())
    for (run,) in list(ledger.read("SELECT id FROM run")):
        _check_counts(ledger, run)


def _check_counts(ledger: Ledger, run: int) -> None:
    # What refers comes before what is referred to: a run that is under way adds rows meanwhile.
    snapshot = next(ledger.read("SELECT told, asked FROM snapshot WHERE run = ?", (run,)), (0, 0))
    evaluated = ledger.one("SELECT max(trial) + 1, max(position) + 1 FROM evaluation WHERE run = ?", (run,))
    sql = "SELECT count(*), max(number) + 1, count(told), count(DISTINCT told), max(told) + 1 FROM trial WHERE run = ?"
    trials, numbers, told, orders, last = ledger.one(sql, (run,))
    cases, positions = ledger.one("SELECT count(*), max(position) + 1 FROM run_case WHERE run = ?", (run,))
    for problem, sound in (
        ("its trials have gaps", trials == (numbers or 0)),
        ("its order of telling has gaps or repeats", told == orders == (last or 0)),
        ("its cases have gaps", cases == (positions or 0)),
        ("it has evaluations of trials it never asked", (evaluated[0] or 0) <= trials),
        ("it has evaluations of cases it does not have", (evaluated[1] or 0) <= cases),
        ("its snapshot is of later than all it holds", snapshot[0] <= told and snapshot[1] <= trials),
    ):
        if not sound:
            raise odd(ledger.path, f"run {run}", problem)


def verify_batches(ledger: Ledger) -> None:
    """The same for the provider batches of all runs."""
    _check_types(ledger, "batch", "", ())


def odd(path: Path, row: str, problem: str) -> LedgerError:
    return LedgerError(
        f"{path} is damaged or was not written by Fanfold ({row}: {problem}): keep a copy, save what can be read with "
        f"`sqlite3 {path.name} .recover`, and start a new ledger with --ledger"
    )


def _check_types(ledger: Ledger, table: str, clause: str, parameters: tuple[int, ...]) -> None:
    #: By name: the type, whether it must be there, whether it names the row.
    columns = {row[1]: (row[2], bool(row[3]), bool(row[5])) for row in ledger.read(f"PRAGMA table_info({table})")}
    names = [name for name, (_, _, key) in columns.items() if key] or ["rowid"]
    checked = {name: column for name, column in columns.items() if name not in _OUTCOME.get(table, ())}
    problems = [_problem(name, *column) for name, column in checked.items() if column[0] in _TYPES]
    sql = f"SELECT {', '.join(names)} FROM {table} WHERE ({' OR '.join(problems)}){clause} LIMIT 1"
    for row in ledger.read(sql, parameters):
        raise odd(
            ledger.path, f"{table} {', '.join(str(value)[:40] for value in row)}", "a value of the wrong type or size"
        )


def _problem(name: str, kind: str, needed: bool, key: bool) -> str:
    allowed = _TYPES[kind] if needed or key else f"{_TYPES[kind]}, 'null'"
    negative = f" OR {name} < 0" if kind == "INTEGER" and name not in _SIGNED else ""
    return f"typeof({name}) NOT IN ({allowed}){negative}"


#: SQLite steps per check, checks that any statement may take, and bytes of the file that allow one more.
STEPS, FEWEST, BYTES = 1_000_000, 5, 10_000


class Patience:
    """Ends a statement that takes more steps than any sound file of its size can need: pages that share their
    children make a small file look endless.  With `seconds`, also one that takes longer.
    """

    def __init__(self, path: Path, seconds: float = math.inf) -> None:
        self.seconds = seconds
        self.late = False
        self._paths = (path, path.with_name(f"{path.name}-wal"))
        self._steps = self._most = 0
        self._began = 0.0

    def renew(self) -> None:
        """A new statement begins."""
        self._steps = self._most = 0
        self._began, self.late = time.monotonic(), False

    def __call__(self) -> int:
        self._steps += 1
        self.late = time.monotonic() - self._began > self.seconds
        if self.late:
            return 1
        if not self._most:  # once a statement: an endless one that writes makes the file larger all the while
            size = sum(path.stat().st_size for path in self._paths if path.exists())
            self._most = FEWEST + size // BYTES
        return int(self._steps > self._most)
