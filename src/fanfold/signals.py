"""Ctrl-C and SIGTERM: a run that is told to end saves, and says how it can be continued."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any, Self

from fanfold.errors import Interrupted
from fanfold.running import Run, Start
from fanfold.sync import run_sync
from fanfold.wakeup import INTERRUPTED


def run_guarded(start: Start) -> Run[Any]:
    """Run to the end from synchronous code, with Ctrl-C and SIGTERM under control."""
    with _Signals(start) as signals:
        return signals.interpret(lambda: run_sync(start))


class _Signals:
    """The first Ctrl-C or SIGTERM stops the run gently; the second, or the end of the grace period, at once."""

    def __init__(self, start: Start) -> None:
        self._start = start
        self._process = os.getpid()
        self._presses = 0
        self._timer: threading.Timer | None = None
        self._before: dict[int, Any] = {}
        self._number: int = signal.SIGINT

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            if callable(signal.getsignal(signal.SIGINT)):  # neither ignored nor left to the system
                self._before[signal.SIGINT] = signal.signal(signal.SIGINT, self._pressed)
            if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:  # a program that takes it itself keeps it
                self._before[signal.SIGTERM] = signal.signal(signal.SIGTERM, self._pressed)
            _GUARDS.append(self)
        return self

    def __exit__(self, *exc: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.leave()
        if self in _GUARDS:
            _GUARDS.remove(self)

    def leave(self) -> None:
        """Give the signals back to those who had them before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def _pressed(self, number: int, frame: Any) -> None:
        if os.getpid() != self._process:  # forked so recently that `_in_child` has not been called
            self.leave()
            signal.raise_signal(number)
            return
        self._presses += 1
        if self._presses == 1:
            self._number = number
        stop = self._start.stop
        if stop is None or self._presses > 2:
            raise KeyboardInterrupt
        if self._presses == 2:
            stop(True)
            raise KeyboardInterrupt
        again = "Ctrl-C again" if number == signal.SIGINT else "once more"
        print(f"stopping: waiting for what is running ({again} to stop at once)", file=sys.stderr, flush=True)
        stop(False)
        # An evaluation that blocks the event loop itself cannot be ended by a timer of that loop.
        main = threading.main_thread().ident
        self._timer = threading.Timer(self._start.options.grace + 2.0, signal.pthread_kill, [main, number])
        self._timer.daemon = True
        self._timer.start()

    def interpret(self, run: Callable[[], Run[Any]]) -> Run[Any]:
        """The result of `run()`, or `Interrupted` when a signal ended it."""
        try:
            result = run()
        except (KeyboardInterrupt, asyncio.CancelledError):
            raise self._interrupted() from None
        if result.reason == INTERRUPTED:
            raise self._interrupted()
        return result

    def _interrupted(self) -> Interrupted:
        name, ledger = self._start.name, self._start.options.ledger
        path = None if ledger is None else str(ledger)
        how = (
            f"everything finished is in {path}; run again with run={name!r} to continue" if path else "it had no ledger"
        )
        return Interrupted(
            f"run {name!r} was interrupted: {how}", run_id=name, ledger=path, code=128 + int(self._number)
        )


#: The runs under way in this process that take its signals, the outermost first.
_GUARDS: list[_Signals] = []


def _in_child() -> None:
    """A process that an evaluator forks ends as usual by a signal: the run, and what it says, is its parent's."""
    while _GUARDS:
        _GUARDS.pop().leave()


os.register_at_fork(after_in_child=_in_child)
