"""Rate limits as the providers enforce them: token buckets per key and model, and what they tell the client."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from fanfold.errors import ConfigError


@dataclass(frozen=True, slots=True)
class AccountLimits:
    """What one key may use of one model; None is unlimited.

    Buckets hold `burst_seconds` of the rate and refill continuously.  A call that costs more than a full bucket is let
    through when the bucket is full and leaves a debt; one above a whole minute's allowance never passes.
    """

    rpm: float | None = None
    tpm: float | None = None
    input_tpm: float | None = None
    output_tpm: float | None = None
    burst_seconds: float = 60.0
    #: Input tokens waiting in batches; above it a batch fails or is refused, as the provider does it.
    enqueued_tokens: int | None = None
    #: Refused requests use up the allowance too, so that hammering never gets through.
    refused_count: bool = False
    #: Output is counted as max_tokens in advance instead of as what was written.
    count_max_tokens: bool = False
    headers: bool = True
    retry_after: Literal["seconds", "ms", "date", "absent", "garbage"] = "seconds"

    def __post_init__(self) -> None:
        for name in ("rpm", "tpm", "input_tpm", "output_tpm", "enqueued_tokens"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ConfigError(f"limit {name} must be above 0, not {value}; leave it out for no limit")
        if self.burst_seconds <= 0:
            raise ConfigError(f"burst_seconds must be above 0, not {self.burst_seconds}")


@dataclass(frozen=True, slots=True)
class Refused:
    """Which limit stopped a request, and how long until it would pass (infinite: never)."""

    bucket: Bucket
    amount: float
    wait: float


class Bucket:
    """A level that refills at `limit` per minute up to `burst_seconds` worth."""

    __slots__ = ("_at", "capacity", "level", "limit", "name", "rate")

    def __init__(self, name: str, limit: float, burst_seconds: float, now: float) -> None:
        self.name = name
        self.limit = limit
        self.rate = limit / 60.0
        # Below one, a bucket of requests would be full without ever holding a request.
        self.capacity = max(1.0, self.rate * burst_seconds)
        self.level = self.capacity
        self._at = now

    def refill(self, now: float) -> None:
        self.level = min(self.capacity, self.level + max(0.0, now - self._at) * self.rate)
        self._at = max(self._at, now)

    def wait(self, amount: float) -> float:
        """Seconds until so much may be taken."""
        if amount > max(self.limit, 1.0):
            return math.inf
        return max(0.0, (min(amount, self.capacity) - self.level) / self.rate)

    @property
    def remaining(self) -> int:
        return max(0, math.floor(self.level + 1e-9))

    @property
    def reset(self) -> float:
        """Seconds until the bucket is full."""
        return (self.capacity - self.level) / self.rate


class Account:
    """The buckets of one key and model."""

    def __init__(self, limits: AccountLimits, now: float) -> None:
        self.limits = limits
        self.enqueued = 0
        rates = {
            "requests": limits.rpm,
            "tokens": limits.tpm,
            "input-tokens": limits.input_tpm,
            "output-tokens": limits.output_tpm,
        }
        self.buckets = {
            name: Bucket(name, rate, limits.burst_seconds, now) for name, rate in rates.items() if rate is not None
        }

    def admit(self, input_tokens: int, max_tokens: int | None, now: float) -> Refused | None:
        """Take what a request costs, or take nothing and say which limit is in the way."""
        if not self.buckets:
            return None
        output = (max_tokens or 0) if self.limits.count_max_tokens else 0
        costs = {"requests": 1, "tokens": input_tokens + output, "input-tokens": input_tokens, "output-tokens": output}
        worst: Refused | None = None
        for name, bucket in self.buckets.items():
            bucket.refill(now)
            # Output that is counted afterwards leaves a debt, which has to be paid off before the next request.
            amount = max(costs[name], 1)
            wait = bucket.wait(amount)
            # A rounding error is not a reason to refuse who waited exactly as long as told.
            if wait > 1e-6 and (worst is None or wait > worst.wait):
                worst = Refused(bucket, amount, wait)
        if worst is None:
            for name, bucket in self.buckets.items():
                bucket.level -= costs[name]
        elif self.limits.refused_count and "requests" in self.buckets:
            requests = self.buckets["requests"]
            requests.level = max(min(0.0, requests.level), requests.level - 1)
        return worst

    def spend_output(self, tokens: int) -> None:
        """Count what was written, unless it was counted in advance."""
        if not self.limits.count_max_tokens:
            for name in ("tokens", "output-tokens"):
                if name in self.buckets:
                    self.buckets[name].level -= tokens


def retry_headers(how: str, wait: float, http_date: str) -> dict[str, str]:
    """How a 429 says when to come back; `http_date` is the date to name where dates are wanted."""
    if how == "absent" or math.isinf(wait):
        return {}
    if how == "garbage":
        return {"retry-after": "soon"}
    if how == "date":
        return {"retry-after": http_date}
    seconds = {"retry-after": str(max(1, math.ceil(wait)))}
    return {"retry-after-ms": str(max(1, math.ceil(wait * 1000))), **seconds} if how == "ms" else seconds
