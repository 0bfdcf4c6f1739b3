"""What runs have paid for model calls, as the ledger says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fanfold.ledger.records import Metrics
from fanfold.ledger.store import OWNER, Ledger
from fanfold.texts import count, money

#: The currency of all prices and costs.
CURRENCY = "USD"


@dataclass(frozen=True, slots=True)
class Spending:
    """What a run and the runs that belong to it have paid for model calls.

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
    #: Calls to simulated models, and what they would have cost: it is among `cost`, and nobody pays it.
    simulated: int = 0
    simulated_cost: float = 0.0
    currency: str = CURRENCY

    @classmethod
    def of(cls, ledger: Ledger, *runs: int) -> Spending:
        """The payments of these runs together."""
        marks = f"({','.join('?' * len(runs))})"
        sums = (
            "SELECT count(*), total(cost), count(*) - count(cost), coalesce(sum(input_tokens), 0), "
            "coalesce(sum(output_tokens), 0), coalesce(sum(cached_tokens), 0), coalesce(sum(estimated), 0), "
            "count(batch), count(CASE WHEN model LIKE 'simulated/%' THEN 1 END), "
            "total(CASE WHEN model LIKE 'simulated/%' THEN cost END) "
            f"FROM payment WHERE run IN {marks}"
        )
        reasons = (
            f"SELECT why_full, count(*) FROM payment WHERE run IN {marks} AND why_full IS NOT NULL AND batch IS NULL "
            "GROUP BY why_full ORDER BY count(*) DESC, why_full"
        )
        brokers = list(ledger.read(f"SELECT run, counts FROM desk WHERE run IN {marks}", runs))
        counts = [ledger.value(text, Metrics, what=f"the counts of run {run}") for run, text in brokers]
        names = ("calls", "cost", "unpriced", "input_tokens", "output_tokens", "cached_tokens", "estimated", "batched")
        every = (*names, "simulated", "simulated_cost")
        return cls(
            **dict(zip(every, ledger.one(sums, runs))),
            full_price=dict(ledger.read(reasons, runs)),
            from_ledger=sum(part.cached for part in counts),
            shared=sum(part.shared for part in counts),
            lost=sum(part.lost for part in counts),
            at_risk=sum(part.at_risk for part in counts),
        )

    @property
    def cost_text(self) -> str:
        """The cost with its currency, for people; an unknown cost is called unknown, not 0."""
        text = cost_text(self.cost, self.unpriced, self.calls)
        if self.simulated and self.simulated == self.calls:
            return f"{text} (simulated, nothing is paid)"
        return f"{text}, {cost_text(self.simulated_cost)} of it simulated" if self.simulated else text

    def below(self, cost: float) -> bool:
        """Whether a cost is more than that of these calls: the rest is what evaluators report themselves."""
        return cost > self.cost * (1 + 1e-9)

    def lines(self, *, short: bool = False) -> list[str]:
        """A run's calls and their cost in a sentence or two; empty for a run without calls."""
        if not self.calls and not self.from_ledger and not self.shared:
            return []
        answered = {"answered from the ledger": self.from_ledger, "shared with equal calls": self.shared}
        ways = ", ".join(f"{number:,} more {way}" for way, number in answered.items() if number)
        spared = f" ({ways})" if ways else ""
        cached = f" ({self.cached_tokens:,} of them cached)" if self.cached_tokens else ""
        guessed = [f"tokens estimated for {count(self.estimated, 'call')}"] if self.estimated else []
        tokens = f"{self.input_tokens:,} input tokens{cached}, {self.output_tokens:,} output tokens"
        if short:
            spared, tokens = "" if self.calls else spared, f"{self.input_tokens + self.output_tokens:,} tokens"
        calls = count(self.calls, "model call")
        lines = [f"{calls}{spared}, {tokens}, cost {self.cost_text}", *guessed, *self._prices()]
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
        listed = "; ".join(why if count == full else f"{why} ({count:,})" for why, count in reasons)
        why = f"; {full:,} at full price: {listed}" if full else ""
        return [f"{self.batched:,} of {self.calls:,} calls at half price{why}"]


def cost_text(cost: float, unpriced: int = 0, calls: int | None = None) -> str:
    """An amount of money; it leaves out the `unpriced` of the `calls`, whose price is unknown."""
    amount = money(cost)
    if not unpriced:
        return amount
    unknown = f"{count(unpriced, 'call')} of unknown price"
    return f"unknown ({unknown})" if unpriced == calls else f"at least {amount} ({unknown})"


def belonging(ledger: Ledger, run: int) -> list[int]:
    """A run and the runs that belong to it, in the order in which they began."""
    # Their names begin with that of the run and a dot, which finds them without a look at the others.
    sql = f"SELECT id FROM run WHERE name > ?1 || '.' AND name < ?1 || '/' AND {OWNER} = ?1 ORDER BY id"
    (name,) = ledger.one("SELECT name FROM run WHERE id = ?", (run,))
    return [run, *(int(id) for (id,) in ledger.read(sql, (name,)))]
