"""How many calls may be in flight, found by watching throughput and overload."""

from __future__ import annotations

import math

FIRST = 20.0
#: While doubling, a window's worth of calls is spread over this part of a round trip, and this part of it goes at once.
SPREAD, AT_ONCE = 0.8, 0.1
#: What stays of the calls in flight when the server is overloaded.
CUT = 0.7
#: Rounds without growth in throughput that end the slow start, and rounds to wait after a step that did not help.
FLAT_ROUNDS, REST_ROUNDS = 3, 8


class Window:
    """Slow start, then steps up that are kept if they help, and a cut on overload; never below 1 or above `cap`.

    The window doubles per round trip while throughput grows with it, up to where overload was last seen.  From there it is
    raised by a twentieth at a time; a step that brought no throughput is taken back and tried again later.  Only rounds in
    which the window was what held calls back are judged.  A round ends when a call returns that left after it began.
    """

    __slots__ = (
        "_cap",
        "_done",
        "_flat",
        "_full",
        "_next",
        "_round_call",
        "_round_start",
        "_round_trip",
        "_step",
        "_target",
        "_usual",
        "size",
    )

    def __init__(self, size: float, cap: float) -> None:
        self._cap = cap
        self.size = min(size, cap)
        #: Double up to here.
        self._target = math.inf
        #: Throughput of the last judged rounds, rounds it has been flat for, and the step being tried.
        self._usual = 0.0
        self._flat = 0
        self._step = 0.0
        #: The round: its first call, when it began, calls done in it, and whether the window was full in it.
        self._round_call = 0
        self._round_start = -math.inf
        self._done = 0
        self._full = False
        #: While doubling: how long a call takes, and when the next may go.
        self._round_trip = 0.0
        self._next = -math.inf

    def open(self) -> None:
        """Something else holds the calls back from now on, unless overload has been seen."""
        if self._target == math.inf:
            self.size = self._cap

    def ready_at(self, in_flight: int) -> float:
        """When one more may go; infinite if another has to end first."""
        if in_flight and in_flight + 1 > self.size:
            self._full = True
            return math.inf
        return self._next - AT_ONCE * self._round_trip

    def take(self, now: float) -> None:
        # Calls that end together would start together, twice as many each time, and overrun a server by as much.
        if self._round_trip and self._full and self.size < self._target:
            self._next = max(self._next, now) + SPREAD * self._round_trip / self.size

    def ok(self, call: int, calls: int, sent_at: float, now: float) -> None:
        """Call number `call` of `calls` so far came back well."""
        self._done += 1
        self._round_trip += (now - sent_at - self._round_trip) / (8 if self._round_trip else 1)
        if self._full and self.size < self._target:
            self.size = min(self.size + 1, self._target, self._cap)
        if call >= self._round_call:
            if self._full and now > self._round_start > -math.inf:
                self._judge(self._done / (now - self._round_start))
            self._next_round(calls, now)

    def overloaded(self, call: int, calls: int, in_flight: int, now: float) -> None:
        """Call number `call` of `calls` failed because the server has too much to do; one round is cut once."""
        if call < self._round_call:
            return
        # While still recovering, what the server carried before is remembered, so that an outage does not mean a crawl.
        recovering = self.size < self._target < math.inf
        self.size = max(1.0, CUT * min(self.size, in_flight))
        self._target = max(1.0, 0.9 * self._target) if recovering else self.size
        self._flat, self._step, self._usual = 0, 0.0, 0.0
        self._next_round(calls, now)

    def shift(self, seconds: float) -> None:
        self._next += seconds
        self._round_start += seconds

    def _next_round(self, calls: int, now: float) -> None:
        self._round_call, self._round_start, self._done, self._full = calls, now, 0, False

    def _judge(self, throughput: float) -> None:
        if self.size < self._target:
            self._flat = 0 if throughput > 1.15 * self._usual else self._flat + 1
            self._usual = max(self._usual, throughput)
            if self._flat >= FLAT_ROUNDS:
                self._target, self._flat = self.size, 0
            return
        if self._step and throughput < 1.01 * self._usual:
            self.size = max(1.0, self.size - self._step)
            self._step, self._flat = 0.0, REST_ROUNDS
        elif self._flat > 0:
            self._flat -= 1
        else:
            self._step = max(1.0, self.size / 20)
            self.size = min(self.size + self._step, self._cap)
        self._usual = throughput if not self._usual else 0.7 * self._usual + 0.3 * throughput
