"""How long calls take, and so how many of them go to a worker together."""

from __future__ import annotations

#: Seconds of work that travel together: a trip then costs a few per cent of it, and no result is late.
WORK = 0.05
#: The most calls that travel together, however quick they are.
MOST = 64
#: Calls of more seconds than this gain nothing from a successor that waits at their worker.
LONG = 1.0
#: A call that has run for so many seconds keeps others from waiting behind it.
LATE = 0.1


class CallPace:
    """The pace of one function: the mean time of its latest calls, measured where they run."""

    def __init__(self) -> None:
        self._mean = 0.0
        self._count = 0

    def took(self, seconds: float) -> None:
        self._count += 1
        self._mean += (seconds - self._mean) / min(self._count, 32)

    @property
    def together(self) -> int:
        """How many calls may travel together; one until the first was measured."""
        return min(MOST, max(1, int(WORK / max(self._mean, 1e-6)))) if self._count else 1

    @property
    def line(self) -> int:
        """How many calls one worker may hold: the one that runs, and at least one more unless they are long."""
        return max(2, self.together) if self._count and self._mean <= LONG else 1
