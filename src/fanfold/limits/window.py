"""How many calls may be in flight, found by watching how long calls take and whether the server is overloaded."""

from __future__ import annotations

import math

FIRST = 20.0
#: While doubling, a window's worth of calls is spread over this part of a round trip, and this part of it goes at once.
SPREAD, AT_ONCE = 0.8, 0.1
#: What stays of the calls in flight when the server is overloaded, and of the memory of what it carried before.
CUT, FADE = 0.7, 0.9
#: So many overloads in a row, and so many for each call in flight, may be accidents where far more was carried before.
ACCIDENTS, PER_CALL = 5, 2
#: Calls that take so many times as long as they can are waiting in the server: a larger window brings nothing more.
SATURATED = 4.0
#: A step up once doubling is over, and the share by which the shortest time seen is forgotten per round.
STEP, FORGET = 0.05, 0.005


class Window:
    """Slow start, then small steps up, and a cut on overload; never below 1 or above the cap.

    The window doubles per round trip, up to where overload was last seen, and is then raised by a twentieth per round.
    It grows only while it is what holds calls back, and only while that helps: as long as calls do not take several
    times as long as with a smaller window, more of them in flight means more of them done.  A round is as many calls
    as fit into half a window, and no fewer than the first window.

    A server that fails at random, however busy it is, says that it is overloaded also with far fewer calls in flight
    than it has carried.  A smaller window would not help it, so only a row of such failures cuts the window further.
    """

    __slots__ = (
        "_accidents",
        "_best",
        "_cap",
        "_carried",
        "_cut_call",
        "_done",
        "_full",
        "_next",
        "_round_trip",
        "_target",
        "_took",
        "size",
    )

    def __init__(self, size: float, cap: float) -> None:
        self._cap = cap
        self.size = min(size, cap)
        #: Double up to here.
        self._target = math.inf
        self._cut_call = 0
        #: The most calls in flight with which one came back well, and the overloads with far fewer since one did.
        self._carried = 0
        self._accidents = 0
        #: This round: calls done, how long they took together, and whether one had to wait for the window.
        self._done = 0
        self._took = 0.0
        self._full = False
        #: How long a call took in the last round, and in the quickest one.
        self._round_trip = 0.0
        self._best = math.inf
        #: While doubling, when the next call may go.
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
        if self._full and self.size < self._target:
            self._next = max(self._next, now) + SPREAD * self._round_trip / self.size

    def ok(self, took: float, level: int) -> None:
        """A call that was sent as one of `level` in flight came back well after so many seconds."""
        self._carried = max(self._carried, level)
        if level >= CUT * CUT * self._carried:
            self._accidents = 0
        self._done += 1
        self._took += took
        if not self._round_trip:
            self._round_trip = took
        if self._full and self.size < self._target:
            self.size = min(self.size + 1, self._target, self._cap)
        if self._done >= max(FIRST, min(self.size, self._cap) / 2):
            self._end_round()

    def overloaded(self, call: int, calls: int, level: int, in_flight: int) -> None:
        """Call number `call` of `calls`, sent as one of `level` in flight, failed as the server has too much to do.

        Calls in flight cut the window once.
        """
        if call <= self._cut_call:
            return
        if level <= CUT * self._carried:
            self._accidents += 1
            if self._accidents <= max(ACCIDENTS, PER_CALL * in_flight):
                return
            self._carried, self._accidents = int(CUT * self._carried), 0
        self._cut_call = calls
        # While still recovering, what the server carried before is remembered, so that an outage does not mean a crawl.
        recovering = self.size < self._target < math.inf
        self.size = max(1.0, CUT * min(self.size, in_flight))
        self._target = max(self.size, FADE * self._target if recovering else self.size / CUT * FADE)

    def shift(self, seconds: float) -> None:
        self._next += seconds

    def _end_round(self) -> None:
        self._round_trip = self._took / self._done
        self._best = min(self._best * (1 + FORGET), self._round_trip)
        if self._full:
            saturated = self._round_trip > SATURATED * self._best
            if self.size < self._target:
                if saturated:
                    self.size = self._target = max(1.0, self.size / 2)
            elif not saturated:
                self.size = min(self.size + max(1.0, STEP * self.size), self._cap)
        self._done, self._took, self._full = 0, 0.0, False
