"""Every error Fanfold raises on purpose; each message says what happened, to which input, and what to do next."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fanfold.redaction import redact


class FanfoldError(Exception):
    """Base of all errors raised by Fanfold. No message contains a known key, whatever text it quotes."""

    def __init__(self, *args: object) -> None:
        super().__init__(*(redact(arg) if isinstance(arg, str) else arg for arg in args))

    def __reduce__(self) -> tuple[Any, ...]:
        """For the way home from a worker process: by what it holds, not by how it was made."""
        return _again, (type(self), self.args), self.__dict__


class ConfigError(FanfoldError, ValueError):
    """An argument, option or configuration key that cannot be used as given."""


class LedgerError(FanfoldError):
    """The run file cannot be opened, read or written."""


class RowRefused(LedgerError):
    """The run file cannot hold what one row contains; other rows are not concerned."""


class RunLocked(LedgerError):
    """Another process is working on the same run."""


class ReplayDivergence(FanfoldError):
    """The study no longer asks what the ledger recorded, so continuing would be a different search."""


class NoResult(FanfoldError, LookupError):
    """A run has no complete result, so it has no best one."""


class UnknownShow(FanfoldError, LookupError):
    """Feedback on something that was never shown."""


class MissingExtra(FanfoldError, ImportError):
    """An optional package is needed for what was asked."""

    def __init__(self, package: str, extra: str, purpose: str, distribution: str = "fanfold", then: str = "") -> None:
        """`then` is a second command, for what no extra can install."""
        command = f"pip install '{distribution}[{extra}]'" + (f" && {then}" if then else "")
        super().__init__(f"{purpose} needs the package {package!r}: {command}")


class WorkerDied(FanfoldError):
    """The process that was evaluating ended without an answer (killed, out of memory, or crashed)."""


class NoWayHome(ConfigError):
    """A model call was made where it cannot reach the run it belongs to, so nobody could limit, keep or pay it once."""


class PlaceLost(FanfoldError):
    """The place of one call is gone or cannot be had (a lost node, no descriptors, no memory): no candidate's fault."""


class StoreError(PlaceLost):
    """The store of large parts cannot be reached, or refuses: no candidate's fault, and worth another try."""


class NotInStore(FanfoldError, LookupError):
    """A store has nothing of that name."""


class ExecutorBroken(FanfoldError):
    """The place where work runs is unusable from now on (a broken pool); nothing more can be evaluated there."""


class OnlyFailures(FanfoldError):
    """A run was stopped because its evaluations only fail, all in the same way; `reason` is that in one line."""

    def __init__(self, reason: str, trace: str) -> None:
        super().__init__(f"{reason}\n{trace}" if trace else reason)
        self.reason = reason
        #: The name of the run.
        self.run_id = ""


class CallFailed(FanfoldError):
    """A model call that gave no usable reply.

    `kind` says why: `auth`, `billing`, `bad-request` and `not-found` will fail again; `rate-limit`, `overloaded`,
    `server`, `timeout` and `network` may pass; `unreachable` is an address where nobody answers, that leads elsewhere
    or whose certificate is not accepted; `malformed` and `too-large` are replies that cannot be used; `offline` is a
    call the ledger does not hold; `budget` one there is no money left for; `no-batches` a model that takes none;
    `reasoning` is a reply that was cut off before its first visible word; `schema`, `refusal` and `length` are replies
    that do not fit the schema asked for; `interrupted` is a stream that broke off after its first words.
    """

    def __init__(
        self,
        kind: str,
        message: str,
        *,
        retry_after: float | None = None,
        sent: bool = True,
        parameters: tuple[str, ...] = (),
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.retry_after = retry_after
        #: Whether the request may have reached the provider.
        self.sent = sent
        #: Parameters that the provider says the model does not take, the likeliest first.
        self.parameters = parameters

    @property
    def passing(self) -> bool:
        """Whether the same call may succeed a little later."""
        return self.kind in ("rate-limit", "overloaded", "server", "timeout", "network")

    @property
    def maybe_paid(self) -> bool:
        """Whether the provider may have done, and charged, what no usable reply came of."""
        return self.sent and self.kind in ("timeout", "network", "malformed", "too-large", "unreachable", "interrupted")

    @property
    def hopeless(self) -> bool:
        """Whether every further call would fail the same way, so that a run should stop."""
        return self.kind in ("auth", "billing", "budget", "unreachable", "no-batches")


class Interrupted(FanfoldError, KeyboardInterrupt):
    """Ctrl-C or SIGTERM ended the run. `run_id` and `ledger` say what to resume.

    `code` is the exit code for a program that ends because of it: 130, or 143 after SIGTERM.
    """

    def __init__(self, message: str, *, run_id: str, ledger: str | None, code: int = 130) -> None:
        super().__init__(message)
        self.run_id = run_id
        self.ledger = ledger
        self.code = code


def _again(kind: type[FanfoldError], args: tuple[object, ...]) -> FanfoldError:
    return kind.__new__(kind, *args)


def nearest(name: str, known: Iterable[str], most: int | None = None) -> str:
    """Say which known name was probably meant: `; did you mean 'x'?` or the list of what exists.

    Of a list that may be long the first are said, at most so many.
    """
    import difflib  # only here, because every worker imports this module before its first call

    known = list(known) if most is not None else sorted(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    if close:
        return f"; did you mean {close[0]!r}?"
    more = f" and {len(known) - most:,} more" if most is not None and len(known) > most else ""
    return f"; known: {', '.join(known[:most])}{more}" if known else ""


#: What to do about an error in a part of the search.
RESUMABLE = "What is finished is kept: fix it, then run again under the same name"


class Blamed:
    """What a strategy, schedule or rule raises in this block keeps its type and traceback, and says whose it is."""

    __slots__ = ("_call", "_whose")

    def __init__(self, whose: object, call: str) -> None:
        self._whose, self._call = whose, call

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, FanfoldError | StopIteration):
            error.add_note(f"Raised by {type(self._whose).__name__}.{self._call}. {RESUMABLE}")


def check_whole(value: object, what: str, least: int = 1, most: int | None = None) -> None:
    """Refuse anything but a whole number in the range."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least or (most is not None and value > most):
        limit = f"of at least {least}" if most is None else f"between {least} and {most}"
        raise ConfigError(f"{what} must be a whole number {limit}, not {value!r}")
