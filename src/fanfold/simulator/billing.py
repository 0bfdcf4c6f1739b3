"""What the provider would put on the bill: every charged request, every batch, and what was paid twice."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple, cast, overload

import msgspec


class Rates(NamedTuple):
    """Dollars per million tokens, as the provider's price list has them; in a batch everything costs half."""

    input: float
    output: float
    cached: float
    written: float


class Charge(msgspec.Struct, frozen=True, gc=False):
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
    #: Parts of the input tokens: read from the prompt cache, and written to it.
    cached_tokens: int = 0
    written_tokens: int = 0

    def cost(self, rates: Rates) -> float:
        """What the provider asks for it, in dollars."""
        plain = self.input_tokens - self.cached_tokens - self.written_tokens
        parts = (
            plain * rates.input,
            self.cached_tokens * rates.cached,
            self.written_tokens * rates.written,
            self.output_tokens * rates.output,
        )
        return sum(parts) / (2_000_000 if self.price == "batch" else 1_000_000)

    @property
    def full_price_tokens(self) -> float:
        """Tokens weighted with their price: a batch costs half."""
        return (self.input_tokens + self.output_tokens) * (0.5 if self.price == "batch" else 1.0)


class Charges(Sequence[Charge]):
    """A list of charges, kept as columns: a simulator that lives as long as a big run holds very many of them."""

    def __init__(self) -> None:
        self._numbers = array("d")
        self._keys = bytearray()
        #: Everything else of a charge is shared by many; what is not (a batch and a line of it) is kept by place.
        self._kinds: dict[tuple[str, ...], int] = {}
        self._kind = array("L")
        self._lines: dict[int, tuple[str | None, str | None]] = {}

    def append(self, charge: Charge) -> None:
        kind = (charge.sample, charge.provider, charge.model, charge.price, charge.owner)
        if charge.batch is not None or charge.custom_id is not None:
            self._lines[len(self)] = (charge.batch, charge.custom_id)
        self._kind.append(self._kinds.setdefault(kind, len(self._kinds)))
        self._keys += bytes.fromhex(charge.key)
        sizes = (charge.input_tokens, charge.output_tokens, charge.cached_tokens, charge.written_tokens)
        self._numbers.extend((charge.at, *sizes))

    def __len__(self) -> int:
        return len(self._kind)

    @overload
    def __getitem__(self, at: int) -> Charge: ...

    @overload
    def __getitem__(self, at: slice) -> list[Charge]: ...

    def __getitem__(self, at: int | slice) -> Charge | list[Charge]:
        if isinstance(at, slice):
            return [self[place] for place in range(*at.indices(len(self)))]
        place = range(len(self))[at]
        return self._read(place, list(self._kinds)[self._kind[place]])

    def __iter__(self) -> Iterator[Charge]:
        kinds = list(self._kinds)
        for place in range(len(self)):
            yield self._read(place, kinds[self._kind[place]])

    def __eq__(self, other: object) -> bool:
        return list(self) == other if isinstance(other, list) else self is other

    __hash__ = None  # type: ignore[assignment]

    def _read(self, place: int, kind: tuple[str, ...]) -> Charge:
        sample, provider, model, price, owner = kind
        width = len(self._keys) // len(self)
        at, read, written, cached, stored = self._numbers[5 * place : 5 * place + 5]
        return Charge(
            key=self._keys[width * place : width * (place + 1)].hex(),
            sample=sample,
            at=at,
            provider=provider,
            model=model,
            input_tokens=int(read),
            output_tokens=int(written),
            price=cast(Literal["realtime", "batch"], price),
            owner=owner,
            batch=self._lines.get(place, (None, None))[0],
            custom_id=self._lines.get(place, (None, None))[1],
            cached_tokens=int(cached),
            written_tokens=int(stored),
        )


@dataclass(frozen=True, slots=True)
class CreatedBatch:
    """A batch that exists at the provider: `payload` is a hash of what its lines ask, `tag` how the client named it."""

    id: str
    provider: str
    tag: str
    requests: int
    payload: str
    at: float


class Billing:
    """All charges since the start or the last reset, in the order in which they were made."""

    def __init__(self) -> None:
        self.charges = Charges()
        self.batches: list[CreatedBatch] = []
        self.statuses: Counter[int] = Counter()
        self.broken: Counter[str] = Counter()

    def bill(self, rates: Rates) -> float:
        """What all charges come to, for models of one price list."""
        return sum(charge.cost(rates) for charge in self.charges)

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
