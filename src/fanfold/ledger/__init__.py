"""The ledger: one SQLite file that holds every run, durable before anyone is told."""

from fanfold.ledger.claims import Claims
from fanfold.ledger.commits import Commits, Insert
from fanfold.ledger.journal import RunJournal
from fanfold.ledger.lock import RunLock
from fanfold.ledger.store import Ledger, RunInfo, create_run, forget_run, text
from fanfold.ledger.verify import RUN_NAME, odd, verify, verify_batches

__all__ = [
    "RUN_NAME",
    "Claims",
    "Commits",
    "Insert",
    "Ledger",
    "RunInfo",
    "RunJournal",
    "RunLock",
    "create_run",
    "forget_run",
    "odd",
    "text",
    "verify",
    "verify_batches",
]
