"""What wakes a run: something happened, or the run is to stop, or it has failed."""

from __future__ import annotations

import asyncio

from fanfold.errors import CallFailed

#: Why a run stopped that continues later: a signal, or providers that have all it waits for.
INTERRUPTED, DETACHED = "interrupted", "detached"


class Wakeup:
    """Collects why a run has to look up from its waiting; the run decides what to do about it.

    Everything here is called on the run's event loop.
    """

    def __init__(self) -> None:
        self.error: BaseException | None = None
        #: Why the run is to stop, and whether that is because no further model call can be made.
        self.reason: str | None = None
        self.halted = False
        #: Whether to stop without waiting for what runs.
        self.at_once = False
        self._event = asyncio.Event()

    def ring(self) -> None:
        self._event.set()

    async def wait(self) -> None:
        """Sleep until somebody rings."""
        await self._event.wait()
        self._event.clear()

    def stop(self, reason: str) -> None:
        """Start nothing more; what runs may finish within the grace period, then it is abandoned."""
        self.reason = self.reason or reason
        self._event.set()

    def halt(self, error: CallFailed) -> None:
        """No further model call can succeed: an empty budget stops the run like a rule, anything else fails it.

        A run that is detached stops too, at once: providers work on all that it waits for.
        """
        if error.kind == "detached":
            self.at_once = True
            self.stop(DETACHED)
        elif error.kind == "budget":
            self.halted = True
            self.stop(str(error))
        else:
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """End the run with this error, unless it already has one."""
        self.error = self.error or error
        self._event.set()
