"""The money a run may still spend on model calls."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from fanfold.errors import CallFailed
from fanfold.ledger import Ledger, RunView, owed
from fanfold.sharing import SharedBudget
from fanfold.texts import number

if TYPE_CHECKING:
    from fanfold.flights import Call

#: What to do about a model whose price nobody knows.
PRICE_REMEDY = (
    "give it a name and a price in models.toml, or model(..., price=), or pip install 'fanfold[prices]' for a larger "
    "table"
)


class Budget:
    """Money for model calls: the worst case is reserved before sending, so the limit holds whatever is in flight.

    What was paid before counts, and what calls in open batches may still cost (`owed`).  Where the run `collects` these
    batches, a call that is asked for again is not owed any more, but reserved like any other.  With a `shared` budget,
    money is set aside there, too.
    """

    def __init__(
        self,
        limit: float = math.inf,
        spent: float = 0.0,
        *,
        unpriced: int = 0,
        at_risk: float = 0.0,
        owed: Mapping[bytes, float | None] | None = None,
        collects: bool = False,
        shared: SharedBudget | None = None,
    ) -> None:
        self.limit = limit
        self.shared = shared
        self.spent = spent
        self.unpriced = unpriced
        #: What of `spent` may have been charged for replies that never came.
        self.at_risk = at_risk
        self._owed = dict(owed or {})
        self._owing = sum(worst or 0.0 for worst in self._owed.values())
        self._collects = collects
        self._reserved = 0.0
        self._open = 0
        #: How many of those open wait for money themselves.
        self._stuck = 0
        self._changed = asyncio.Event()

    @classmethod
    def of(
        cls, ledger: Ledger, run: int, limit: float, *, collects: bool, shared: SharedBudget | None = None
    ) -> Budget:
        """The budget left to a run and to the runs that belong to it."""
        if limit == math.inf and shared is None:
            return cls()
        paid = RunView(ledger, run).costs()
        spent = paid.cost + paid.at_risk
        pending = owed(ledger, run)
        return cls(
            limit, spent, unpriced=paid.unpriced, at_risk=paid.at_risk, owed=pending, collects=collects, shared=shared
        )

    @property
    def limited(self) -> bool:
        return self.limit < math.inf or self.shared is not None

    async def reserve(self, call: Call) -> float:
        """Set the call's worst case aside, waiting for calls in flight to settle where that can help."""
        if not self.limited:
            return 0.0
        worst = self._worst(call)
        if self._collects and self._owed:
            self._owing -= self._owed.pop(call.key, 0.0) or 0.0
        while self.spent + self._owing + self._reserved + worst > self.limit:
            if not self._open:
                raise CallFailed("budget", self._refusal(call.model, worst))
            self._changed.clear()
            await self._changed.wait()
        self._reserved += worst
        self._open += worst > 0
        if self.shared is not None:
            try:
                await self.shared.reserve(worst, call.model)
            except BaseException:
                self._free(worst)
                raise
        return worst

    def extend(self, limit: float) -> None:
        """Allow more; calls that wait for money look again."""
        self.limit = max(self.limit, limit)
        self._changed.set()

    def lost(self, call: Call) -> None:
        """A call was sent and got no reply: the most it may have cost counts as spent."""
        self.spent += call.worst or 0.0
        self.at_risk += call.worst or 0.0
        if self.shared is not None:
            self.shared.settle(0.0, call.worst or 0.0)

    async def room(self, call: Call) -> None:
        """Wait until there is money to send a lost call again; raise if there will not be."""
        while self.limit < self.spent + self._owing + self._reserved:
            if self._open <= self._stuck + 1:
                raise CallFailed("budget", self._refusal(call.model, call.worst or 0.0))
            self._stuck += 1
            self._changed.clear()
            try:
                await self._changed.wait()
            finally:
                self._stuck -= 1

    def settle(self, reserved: float, cost: float | None) -> None:
        if cost is None:
            self.unpriced += 1
        else:
            self.spent += cost
        self._free(reserved)
        if self.shared is not None:
            self.shared.settle(reserved, cost or 0.0)

    def _free(self, reserved: float) -> None:
        if reserved:
            self._open -= 1
            # Sums of floats need not come back to zero by themselves.
            self._reserved = self._reserved - reserved if self._open else 0.0
        self._changed.set()

    def _worst(self, call: Call) -> float:
        """The most a call can cost; an unknown price is refused, not taken for 0."""
        if call.worst is None:
            raise CallFailed(
                "budget",
                f"the price of {call.shown_model} is not known, so a cost limit cannot be kept: {PRICE_REMEDY}",
            )
        if self.unpriced:
            paid = "1 call" if self.unpriced == 1 else f"{self.unpriced} calls"
            raise CallFailed(
                "budget",
                f"{paid} of this run were paid at a price that is not known, so a cost limit cannot be kept: continue "
                "without MaxCost (--max-cost), or start a new run with a price in models.toml or model(..., price=)",
            )
        if not self._collects and (unknown := sum(owed is None for owed in self._owed.values())):
            raise CallFailed(
                "budget",
                f"{unknown} calls in open batches of this run may still be charged, and nobody knows how much, so a "
                "cost limit cannot be kept: resume with the executor batch:auto, which collects them",
            )
        return call.worst

    def _refusal(self, model: str, worst: float) -> str:
        lost = f" (up to {self.at_risk:.4f} of it for replies that never came)" if self.at_risk else ""
        owing = ""
        if self._owing > 0:
            collect = "" if self._collects else " (the executor batch:auto collects them)"
            owing = f", up to {self._owing:.4f} may still be charged for calls in open batches{collect}"
        return (
            f"{number(self.spent)} of {number(self.limit)} is spent{lost}{owing}, and one more call to {model} may "
            f"cost up to {number(worst)}: raise MaxCost (--max-cost), or lower max_tokens (--max-tokens)"
        )
