"""What model calls cost: a small dated table, overrides, and `unknown` where nobody knows."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fanfold.capabilities import entry_of
from fanfold.errors import ConfigError

#: What providers that charge for writing to their prompt cache ask for it (kept for minutes, the default).
WRITING = 1.25
PRICE_HELP = "give US dollars per million tokens, as (input, output) or (input, output, cached)"


@dataclass(frozen=True, slots=True)
class Price:
    """US dollars per million tokens; provider batches cost `batch` times as much.

    Input that a provider reads from its prompt cache costs `cached` (left out: as much as other input, so that nothing
    is counted too low), and input that it writes there WRITING times as much as other input.
    """

    input: float
    output: float
    cached: float | None = None
    batch: float = 0.5

    def __post_init__(self) -> None:
        for name in ("input", "output", "cached", "batch"):
            value: Any = getattr(self, name)
            number = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf
            if not number and not (name == "cached" and value is None):
                raise ConfigError(f"a price's {name} must be a number of at least 0, not {value!r:.80}: {PRICE_HELP}")

    @classmethod
    def of(cls, value: Any) -> Price:
        """The price a user means: a `Price`, its numbers, or its table."""
        if isinstance(value, cls):
            return value
        if isinstance(value, Mapping) and {"input", "output"} <= value.keys() <= {"input", "output", "cached", "batch"}:
            return cls(**value)
        if isinstance(value, tuple | list) and 2 <= len(value) <= 4:
            return cls(*value)
        raise ConfigError(f"the price {value!r:.80} cannot be used: {PRICE_HELP}")

    def cost(
        self,
        input_tokens: int,
        output_tokens: int,
        cached_tokens: int = 0,
        *,
        written_tokens: int = 0,
        batch: bool = False,
    ) -> float:
        cached = self.input if self.cached is None else self.cached
        fresh = max(0, input_tokens - cached_tokens) + (WRITING - 1) * written_tokens
        full = (fresh * self.input + cached_tokens * cached + output_tokens * self.output) / 1e6
        return full * self.batch if batch else full


FREE = Price(0.0, 0.0)

_DATA = tomllib.loads(Path(__file__).with_name("prices.toml").read_text())
#: When the table was last checked.
AS_OF: str = _DATA["as_of"]
TABLE = {name: Price(*rates) for name, rates in _DATA["models"].items()}


def price_of(name: str, more: Mapping[str, Price] | None = None, provider: str = "") -> Price | None:
    """The price of a model by its name, dated versions included; None where it is not known.

    `more` prices come first, then our own short table, in which a model may have a price of its own at a `provider`;
    then the package genai-prices is asked, where it is installed.
    """
    return entry_of(name, (more or {}, TABLE), provider) or _from_package(name)


def list_price(model: str) -> Price | None:
    """The price of a model as provider/name."""
    provider, _, name = model.partition("/")
    return price_of(name, provider=provider)


def _from_package(name: str) -> Price | None:
    try:
        from genai_prices import Usage, calc_price  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        return None
    try:
        price = calc_price(Usage(input_tokens=1_000_000, output_tokens=1_000_000), model_ref=name)
    except LookupError:
        return None
    return Price(float(price.input_price), float(price.output_price))
