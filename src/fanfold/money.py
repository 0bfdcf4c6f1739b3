"""What model calls cost: what a run has paid, as the ledger says, and the money it may still spend."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from fanfold.errors import CallFailed
from fanfold.ledger import Ledger

if TYPE_CHECKING:
    from fanfold.flights import Call

#: All prices and costs are in it.
CURRENCY = "USD"


class _Counts(msgspec.Struct):
    """Of what the brokers of a run counted, what is said about its money."""

    cached: int = 0
    shared: int = 0
    lost: int = 0
    at_risk: float = 0.0


@dataclass(frozen=True, slots=True)
class Spending:
    """What a run, with the runs beside it, has paid for model calls.

    `cost` is in US dollars, that of all calls whose price is known; `unpriced` counts the others, and `estimated` those
    whose reply came without usage, so that their tokens are estimated from the text.  `batched` calls were paid at half
    price; `full_price` says why calls that were to go in a batch were not.  Calls answered from the ledger
    (`from_ledger`) or by an equal one in flight (`shared`) are paid once, and not among `calls`.
    """

    calls: int = 0
    cost: float = 0.0
    unpriced: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    estimated: int = 0
    batched: int = 0
    full_price: Mapping[str, int] = field(default_factory=dict)
    from_ledger: int = 0
    shared: int = 0
    #: Tries that got no reply although they were sent, and what they may have cost at most.
    lost: int = 0
    at_risk: float = 0.0
    currency: str = CURRENCY

    @classmethod
    def of(cls, ledger: Ledger, *runs: int) -> Spending:
        """The payments of these runs together."""
        marks = f"({','.join('?' * len(runs))})"
        sums = (
            "SELECT count(*), total(cost), count(*) - count(cost), coalesce(sum(input_tokens), 0), "
            "coalesce(sum(output_tokens), 0), coalesce(sum(cached_tokens), 0), coalesce(sum(estimated), 0), "
            f"count(batch) FROM payment WHERE run IN {marks}"
        )
        reasons = (
            f"SELECT why_full, count(*) FROM payment WHERE run IN {marks} AND why_full IS NOT NULL AND batch IS NULL "
            "GROUP BY why_full ORDER BY count(*) DESC, why_full"
        )
        brokers = list(ledger.read(f"SELECT run, counts FROM desk WHERE run IN {marks}", runs))
        counts = [ledger.value(text, _Counts, what=f"the counts of run {run}") for run, text in brokers]
        names = ("calls", "cost", "unpriced", "input_tokens", "output_tokens", "cached_tokens", "estimated", "batched")
        return cls(
            **dict(zip(names, ledger.one(sums, runs))),
            full_price=dict(ledger.read(reasons, runs)),
            from_ledger=sum(each.cached for each in counts),
            shared=sum(each.shared for each in counts),
            lost=sum(each.lost for each in counts),
            at_risk=sum(each.at_risk for each in counts),
        )

    @classmethod
    def whole(cls, ledger: Ledger, run: int) -> Spending:
        """What a run and the runs that belong to it have paid."""
        return cls.of(ledger, *belonging(ledger, run))

    @property
    def cost_text(self) -> str:
        """The cost with its currency, for people; what is not known is not called 0."""
        return cost_text(self.cost, self.unpriced, self.calls)

    def lines(self) -> list[str]:
        """A run's calls and their cost in a sentence or two; nothing for a run without any."""
        if not self.calls and not self.from_ledger:
            return []
        spared = f" ({self.from_ledger:,} more answered from the ledger)" if self.from_ledger else ""
        cached = f" ({self.cached_tokens:,} of them cached)" if self.cached_tokens else ""
        guessed = f", tokens estimated for {self.estimated:,} calls" if self.estimated else ""
        tokens = f"{self.input_tokens:,} input tokens{cached}, {self.output_tokens:,} output tokens"
        lines = [f"{self.calls:,} model calls{spared}, {tokens}, cost {self.cost_text}{guessed}", *self._prices()]
        if self.lost:
            lines.append(f"{self.lost:,} tries got no reply, and may have been charged too: {self._risk()}")
        return lines

    def _risk(self) -> str:
        return f"up to {cost_text(self.at_risk)}" if self.at_risk else "nobody knows how much"

    def _prices(self) -> list[str]:
        if not self.batched and not self.full_price:
            return []
        full = self.calls - self.batched
        reasons = [(why, count) for why, count in self.full_price.items()]
        if rest := full - sum(self.full_price.values()):
            reasons.append(("not for a batch", rest))
        said = "; ".join(why if count == full else f"{why} ({count:,})" for why, count in reasons)
        why = f"; {full:,} at full price: {said}" if full else ""
        return [f"{self.batched:,} of {self.calls:,} calls at half price{why}"]


def cost_text(cost: float, unpriced: int = 0, calls: int | None = None) -> str:
    """An amount of money, of which `unpriced` of the `calls` are not a part because nobody knows their price."""
    # Three digits that count, and never fewer than cents.
    digits = max(2, 2 - math.floor(math.log10(cost))) if cost > 0 else 0
    amount = f"{cost:,.{digits}f} {CURRENCY}"
    if not unpriced:
        return amount
    unknown = f"{unpriced:,} call{'' if unpriced == 1 else 's'} of unknown price"
    return f"unknown ({unknown})" if unpriced == calls else f"at least {amount} ({unknown})"


def belonging(ledger: Ledger, run: int) -> list[int]:
    """A run and the runs beside it, which belong to it, in the order in which they began."""
    sql = (
        "SELECT id FROM run WHERE id = ?1 OR json_extract(meta, '$.belongs_to') = (SELECT name FROM run WHERE id = ?1) "
        "ORDER BY id"
    )
    return [int(found) for (found,) in ledger.read(sql, (run,))]


def owed(ledger: Ledger, run: int) -> dict[bytes, float | None]:
    """What each call in a batch of the run that is still open may cost at most (None: not known)."""
    sql = (
        "SELECT i.key, o.worst FROM batch b JOIN batch_item i ON i.tag = b.tag "
        "LEFT JOIN owed o ON o.tag = i.tag AND o.key = i.key WHERE b.run = ? AND b.state IN ('intent', 'submitted') "
        "AND NOT EXISTS (SELECT 1 FROM call c WHERE c.key = i.key AND c.batch = i.tag)"
    )
    return dict(ledger.read(sql, (run,)))


class Budget:
    """Money for model calls: the worst case is reserved before sending, so the limit holds whatever is in flight.

    What was paid before counts, and what calls in open batches may still cost (`owed`).  Where the run `collects` these
    batches, a call that is asked for again is not owed any more, but reserved like any other.
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
    ) -> None:
        self.limit = limit
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
    def of(cls, ledger: Ledger, run: int, limit: float, *, collects: bool) -> Budget:
        """What is left to a run, and to those beside it."""
        if limit == math.inf:
            return cls()
        paid = Spending.whole(ledger, run)
        spent = paid.cost + paid.at_risk
        doubt = owed(ledger, run)
        return cls(limit, spent, unpriced=paid.unpriced, at_risk=paid.at_risk, owed=doubt, collects=collects)

    async def reserve(self, call: Call) -> float:
        """Set the call's worst case aside, waiting for calls in flight to settle where that can help."""
        if self.limit == math.inf:
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
        return worst

    def lost(self, call: Call) -> None:
        """No reply came to a call that was sent: what it may have cost at most counts as spent."""
        self.spent += call.worst or 0.0
        self.at_risk += call.worst or 0.0

    async def room(self, call: Call) -> None:
        """Wait until a call whose last try was lost can be sent once more, or say that there is no money for that."""
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
        if reserved:
            self._open -= 1
            # Sums of floats need not come back to zero by themselves.
            self._reserved = self._reserved - reserved if self._open else 0.0
        if cost is None:
            self.unpriced += 1
        else:
            self.spent += cost
        self._changed.set()

    def _worst(self, call: Call) -> float:
        """The most a call can cost; what is not known is not taken for nothing."""
        if call.worst is None:
            raise CallFailed(
                "budget",
                f"the price of {call.model} is not known, so a cost limit cannot be kept: give model(..., price=)",
            )
        if self.unpriced:
            paid = "1 call" if self.unpriced == 1 else f"{self.unpriced} calls"
            raise CallFailed(
                "budget",
                f"{paid} of this run were paid at a price that is not known, so a cost limit cannot be kept: continue "
                "without MaxCost, or start a new run with model(..., price=)",
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
            f"{self.spent:.4f} of {self.limit:g} is spent{lost}{owing}, and one more call to {model} may cost up to "
            f"{worst:.4f}: raise MaxCost, or lower max_tokens"
        )
