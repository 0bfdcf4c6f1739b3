"""The ledger: one SQLite file that holds every run, durable before anyone is told."""

from fanfold.ledger.batches import (
    all_answered,
    batch_items,
    batches,
    live_batches,
    owed,
    remote_batches,
    replies_kept,
)
from fanfold.ledger.blobs import RunBlobs, orphans, wrote_to
from fanfold.ledger.claims import Claims
from fanfold.ledger.commits import Commits, Insert
from fanfold.ledger.creation import create_run, forget_run
from fanfold.ledger.journal import RunJournal
from fanfold.ledger.lock import RunLock
from fanfold.ledger.matrix import CellValues, Quantity
from fanfold.ledger.page_records import (
    Comment,
    FailureGroup,
    History,
    RunRequest,
    Span,
    Throughput,
    TrialOrigin,
    TrialPage,
    WorkSlots,
)
from fanfold.ledger.pruning import Pruner
from fanfold.ledger.records import (
    BatchCounts,
    BatchRow,
    CallFacts,
    CallRow,
    ChangedRows,
    EvaluationRow,
    FailureKind,
    MatrixSlice,
    Metrics,
    ModelCalls,
    Note,
    RunHead,
    RunInfo,
    Timings,
    TrialRow,
    WaveRow,
)
from fanfold.ledger.requests import add_comment, add_request, close_requests, requests_of, restart_run
from fanfold.ledger.shows import ShowRow, describe_run, find_show, judged_since, last_checkpoint, shows_since
from fanfold.ledger.spending import CURRENCY, Spending, belonging, cost_text
from fanfold.ledger.store import Ledger
from fanfold.ledger.verify import RUN_NAME, new_name, verify_batches
from fanfold.ledger.view import RunView

__all__ = [
    "CURRENCY",
    "RUN_NAME",
    "BatchCounts",
    "BatchRow",
    "CallFacts",
    "CallRow",
    "CellValues",
    "ChangedRows",
    "Claims",
    "Comment",
    "Commits",
    "EvaluationRow",
    "FailureGroup",
    "FailureKind",
    "History",
    "Insert",
    "Ledger",
    "MatrixSlice",
    "Metrics",
    "ModelCalls",
    "Note",
    "Pruner",
    "Quantity",
    "RunBlobs",
    "RunHead",
    "RunInfo",
    "RunJournal",
    "RunLock",
    "RunRequest",
    "RunView",
    "ShowRow",
    "Span",
    "Spending",
    "Throughput",
    "Timings",
    "TrialOrigin",
    "TrialPage",
    "TrialRow",
    "WaveRow",
    "WorkSlots",
    "add_comment",
    "add_request",
    "all_answered",
    "batch_items",
    "batches",
    "belonging",
    "close_requests",
    "cost_text",
    "create_run",
    "describe_run",
    "find_show",
    "forget_run",
    "judged_since",
    "last_checkpoint",
    "live_batches",
    "new_name",
    "orphans",
    "owed",
    "remote_batches",
    "replies_kept",
    "requests_of",
    "restart_run",
    "shows_since",
    "verify_batches",
    "wrote_to",
]
