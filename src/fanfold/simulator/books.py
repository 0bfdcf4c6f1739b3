"""What the provider would put on the bill: every charged request, every batch, and what was paid twice."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any, Literal

import msgspec


class Charge(msgspec.Struct, frozen=True, gc=False):  # gc: hundreds of thousands of these slow every collection down
    """One request that was paid for.

    `key` is a hash of the request's body.  `sample` tells wanted repetitions of one body apart: it comes from the
    header `x-fanfold-sample` (0 without it), and within a batch it counts the lines with that body.
    """

    key: str
    sample: str
    at: float
    provider: str
    model: str
    input_tokens: int
    output_tokens: int
    price: Literal["realtime", "batch"]
    owner: str
    batch: str | None = None
    custom_id: str | None = None

    @property
    def full_price_tokens(self) -> float:
        """Tokens weighted with their price: a batch costs half."""
        return (self.input_tokens + self.output_tokens) * (0.5 if self.price == "batch" else 1.0)


@dataclass(frozen=True, slots=True)
class CreatedBatch:
    """A batch that exists at the provider: `payload` is a hash of what its lines ask, `tag` how the client named it."""

    id: str
    provider: str
    tag: str
    requests: int
    payload: str
    at: float


class Books:
    """All charges since the start or the last reset, in the order in which they were made."""

    def __init__(self) -> None:
        self.charges: list[Charge] = []
        self.batches: list[CreatedBatch] = []
        self.statuses: Counter[int] = Counter()
        self.broken: Counter[str] = Counter()

    def duplicates(self) -> dict[tuple[str, str], int]:
        """Which (key, sample) was paid for more than once, and how often."""
        counts = Counter((charge.key, charge.sample) for charge in self.charges)
        return {paid: count for paid, count in counts.items() if count > 1}

    def report(self, details: bool = True) -> dict[str, Any]:
        """The books as JSON-like data; without `details` the single charges are left out."""
        prices = Counter(charge.price for charge in self.charges)
        report: dict[str, Any] = {
            "counts": {
                "requests": sum(self.statuses.values()) + sum(self.broken.values()),
                "by_status": {str(status): count for status, count in sorted(self.statuses.items())},
                "broken": dict(self.broken),
                "charged": len(self.charges),
                "realtime": prices["realtime"],
                "batch": prices["batch"],
                "input_tokens": sum(charge.input_tokens for charge in self.charges),
                "output_tokens": sum(charge.output_tokens for charge in self.charges),
                "full_price_tokens": sum(charge.full_price_tokens for charge in self.charges),
                "batches": len(self.batches),
            },
            "duplicates": [
                {"key": key, "sample": sample, "count": count} for (key, sample), count in self.duplicates().items()
            ],
            "batches_per_tag": dict(Counter(batch.tag for batch in self.batches)),
            "batches": [asdict(batch) for batch in self.batches],
        }
        if details:
            report["charges"] = [msgspec.structs.asdict(charge) for charge in self.charges]
        return report
