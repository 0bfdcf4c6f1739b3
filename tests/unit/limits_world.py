"""A provider with enforced limits on the loop's clock, and a crowd of callers that works it through a limiter."""

from __future__ import annotations

import asyncio
import math
import random
from dataclasses import dataclass, field

from fanfold.limits import Limiter, Quota


class Bucket:
    """A token bucket of `burst` seconds of `rate` units per second, full at first; its level may be below zero."""

    def __init__(self, rate: float, burst: float) -> None:
        self.rate = rate
        self.size = max(rate * burst, 1.0)
        self._level = self.size
        self._at = -math.inf

    def level(self, now: float) -> float:
        if self._at > -math.inf:
            self._level = min(self.size, self._level + (now - self._at) * self.rate)
        self._at = now
        return self._level

    def take(self, units: float, now: float) -> None:
        # A server that counts what it refuses forgets it again: its debt is at most one whole bucket.
        self._level = max(self.level(now) - units, -self.size)


@dataclass(frozen=True)
class Reply:
    """What a caller sees: `ok`, or refused with the Retry-After the server gives."""

    ok: bool
    retry_after: float | None = None
    quota: Quota | None = None


@dataclass
class Provider:
    """A server that admits a call when its request and token buckets allow it, and otherwise refuses at once.

    `rpm` and `tpm` are enforced over buckets of `burst` seconds; `refused_count` charges refused calls as well, into
    debt; `headers` puts limits and what is left on every reply; `spread` makes latency lognormal with that sigma.
    Tokens are charged on arrival, as they really are.  `slots` refuses calls beyond so many at a time.
    """

    rpm: float | None = None
    tpm: float | None = None
    burst: float = 1.0
    latency: float = 1.0
    spread: float = 0.0
    refused_count: bool = False
    headers: bool = False
    retry_after: float | None = 1.0
    refusal_latency: float = 0.02
    slots: int | None = None
    seed: int = 0
    #: Times of admitted and refused calls, and the tokens of the admitted.
    admitted: list[float] = field(default_factory=list)
    refused: list[float] = field(default_factory=list)
    tokens: list[float] = field(default_factory=list)
    busy: int = 0
    most_busy: int = 0

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)
        self._requests = Bucket(self.rpm / 60, self.burst) if self.rpm else None
        self._tokens = Bucket(self.tpm / 60, self.burst) if self.tpm else None

    async def call(self, tokens: int) -> Reply:
        loop = asyncio.get_running_loop()
        now = loop.time()
        fits = self._fits(tokens, now)
        if fits or self.refused_count:
            for bucket, units in ((self._requests, 1), (self._tokens, tokens)):
                if bucket is not None:
                    bucket.take(units, now)
        quota = self._quota(now) if self.headers else None
        if not fits:
            self.refused.append(now)
            await asyncio.sleep(self.refusal_latency)
            return Reply(False, self.retry_after, quota)
        self.admitted.append(now)
        self.tokens.append(tokens)
        self.busy += 1
        self.most_busy = max(self.most_busy, self.busy)
        try:
            await asyncio.sleep(self.latency * math.exp(self.spread * self._rng.gauss(0, 1)))
        finally:
            self.busy -= 1
        return Reply(True, quota=quota)

    def _fits(self, tokens: int, now: float) -> bool:
        if self.slots is not None and self.busy >= self.slots:
            return False
        # Adding up fractions of a unit must not refuse a call that is exactly due.
        return (self._requests is None or self._requests.level(now) >= 1 - 1e-6) and (
            self._tokens is None or self._tokens.level(now) >= tokens - 1e-3
        )

    def _quota(self, now: float) -> Quota:
        said: dict[str, float] = {}
        for name, bucket in (("requests", self._requests), ("tokens", self._tokens)):
            if bucket is not None:
                left = max(bucket.level(now), 0.0)
                said[f"{name}_limit"] = bucket.rate * 60
                said[f"{name}_remaining"] = math.floor(left)
                said[f"{name}_reset"] = (bucket.size - left) / bucket.rate
        return Quota(**said)


@dataclass(frozen=True)
class Outcome:
    """What came of a crowd of calls.

    `utilisation`: over the time from one second after the first call until the last call was admitted (the last
    completion less its latency), what was admitted in it, divided by what the limit allows in that time; for several
    limits, of the one used most.  None when the provider has no rate limit.  It can exceed 1 by what the server's burst
    held at the start.  `refused` is the share of all requests sent; `failed` are calls given up after 20 refusals.
    """

    utilisation: float | None
    refused: float
    failed: int
    makespan: float


async def drive(
    limiter: Limiter,
    provider: Provider,
    calls: int = 600,
    concurrency: int = 100,
    *,
    tokens: tuple[int, int] = (50, 150),
    error: tuple[float, float] = (0.5, 1.5),
    seed: int = 0,
) -> Outcome:
    """Make `calls` calls by `concurrency` workers; token estimates are off by a factor drawn from `error`."""
    loop = asyncio.get_running_loop()
    rng = random.Random(seed)
    todo = iter([(size, max(1, round(size * rng.uniform(*error)))) for size in _sizes(rng, calls, tokens)])
    begun, failed = loop.time(), 0

    async def worker() -> None:
        nonlocal failed
        for size, estimate in todo:
            for n in range(20):
                permit = await limiter.acquire(estimate // 2, estimate - estimate // 2)
                with permit:
                    reply = await provider.call(size)
                    if reply.ok:
                        permit.done(True, input_tokens=size // 2, output_tokens=size - size // 2, quota=reply.quota)
                        break
                    permit.done(False, refused=True, retry_after=reply.retry_after, quota=reply.quota)
                await asyncio.sleep(rng.uniform(0, min(8.0, 0.5 * 2.0**n)))
            else:
                failed += 1

    await asyncio.gather(*(worker() for _ in range(concurrency)))
    sent = len(provider.admitted) + len(provider.refused)
    return Outcome(utilisation(provider, begun), len(provider.refused) / sent, failed, loop.time() - begun)


def utilisation(provider: Provider, begun: float) -> float | None:
    """See `Outcome`."""
    start, end = begun + 1.0, provider.admitted[-1]
    if end <= start:
        return None
    later = [(when, size) for when, size in zip(provider.admitted, provider.tokens, strict=True) if when > start]
    shares = []
    if provider.rpm:
        shares.append(len(later) / (provider.rpm / 60 * (end - start)))
    if provider.tpm:
        shares.append(sum(size for _, size in later) / (provider.tpm / 60 * (end - start)))
    return max(shares, default=None)


def _sizes(rng: random.Random, calls: int, tokens: tuple[int, int]) -> list[int]:
    return [rng.randint(*tokens) for _ in range(calls)]
