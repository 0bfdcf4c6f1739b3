"""Every error Fanfold raises on purpose; each message says what happened, to which input, and what to do next."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class FanfoldError(Exception):
    """Base of all errors raised by Fanfold."""


class ConfigError(FanfoldError, ValueError):
    """An argument, option or configuration key that cannot be used as given."""


class LedgerError(FanfoldError):
    """The run file cannot be opened, read or written."""


class RunLocked(LedgerError):
    """Another process is working on the same run."""


class ReplayDivergence(FanfoldError):
    """The study no longer asks what the ledger says it asked, so continuing would be another search."""


class MissingExtra(FanfoldError, ImportError):
    """An optional package is needed for what was asked."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs the package {package!r}: pip install 'fanfold[{extra}]'")


class WorkerDied(FanfoldError):
    """The process that was evaluating ended without an answer (killed, out of memory, or crashed)."""


class ExecutorBroken(FanfoldError):
    """The place where work runs is unusable from now on (a broken pool); nothing more can be evaluated there."""


class Interrupted(FanfoldError, KeyboardInterrupt):
    """Ctrl-C ended the run; `run_id` and `ledger` say where it can be continued from."""

    def __init__(self, message: str, *, run_id: str, ledger: str | None) -> None:
        super().__init__(message)
        self.run_id = run_id
        self.ledger = ledger


def nearest(name: str, known: Iterable[str]) -> str:
    """Say which known name was probably meant: `; did you mean 'x'?` or the list of what exists."""
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known: {', '.join(known)}" if known else ""
