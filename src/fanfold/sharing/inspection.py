"""What `fanfold doctor --share` says of a server: how far it is, who shares by it, and what it holds for them."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

from fanfold.errors import FanfoldError
from fanfold.sharing.address import ShareAddress
from fanfold.sharing.hub import PREFIX
from fanfold.sharing.link import RedisLink, ShareRefused
from fanfold.summary import Check

#: How often the round trip is measured, the longest that is quick, and the most keys that are looked at.
PINGS, QUICK, MOST_KEYS = 20, 0.02, 100_000
#: How many keys are weighed, to judge them all.
SAMPLE = 100


async def inspected(url: str) -> list[Check]:
    """A line for everything worth knowing; one that says why not, where the server cannot be used."""
    try:
        link = RedisLink(ShareAddress.parse(url), "fanfold-doctor", lambda *_: None, lambda up: None)
        await link.open()
    except FanfoldError as error:
        return [Check("share", False, "cannot be used", str(error), True)]
    try:
        return [check async for check in _checks(link)]
    except FanfoldError as error:
        return [Check("share", False, str(link.address), f"it stopped answering, or refuses: {error}", True)]
    finally:
        await link.close()


async def _checks(link: RedisLink) -> AsyncIterator[Check]:
    yield Check("share", True, str(link.address), f"version {link.version}")
    trips, skews = [], []
    for _ in range(PINGS):
        before = time.time()
        seconds, micro = await link.call("TIME")
        after = time.time()
        trips.append(after - before)
        skews.append(int(seconds) + int(micro) / 1e6 - (before + after) / 2)
    trip = statistics.median(trips)
    slow = "" if trip <= QUICK else "slow: each call to a model takes at least two of these"
    yield Check("share round trip", trip <= QUICK, f"{trip * 1000:.2f} ms", slow)
    skew = statistics.median(skews)
    yield Check("share clock", True, f"{skew * 1000:+.1f} ms", "ahead of this machine; limits follow its clock")
    now = time.time() + skew
    alive = await link.call("ZRANGE", f"{PREFIX}alive", f"{now:.6f}", "+inf", "BYSCORE")
    yield Check("sharers", True, str(len(alive)), ", ".join(sorted(_text(name) for name in alive)[:10]))
    kinds, weights = await _keys(link)
    for place in sorted(name for name in weights if name.startswith("limit:")):
        if (check := await _limit(link, place.removeprefix("limit:"), now)) is not None:
            yield check
    counts = ", ".join(f"{count:,} {kind}" for kind, count in sorted(kinds.items())) or "none"
    sample = [weights[name] for name in weights]
    memory = statistics.fmean(sample) * kinds.total() / 2**20 if sample else 0.0
    more = "" if kinds.total() < MOST_KEYS else f", of the first {MOST_KEYS:,}"
    yield Check("shared keys", True, counts, f"about {memory:.1f} MiB{more}; replies are kept for a day")


async def _limit(link: RedisLink, place: str, now: float) -> Check | None:
    """One limit: whose it is, who uses it, and how much of it is leased."""
    try:
        flat = await link.call("HGETALL", f"{PREFIX}limit:{place}")
        sharers = await link.call("ZCOUNT", f"{PREFIX}who:{place}", f"{now - 10:.6f}", "+inf")
        values = {_text(name): _text(value) for name, value in dict(flat).items()}
        ahead = max((float(value) - now for name, value in values.items() if name.startswith("until ")), default=0.0)
    except (ShareRefused, ValueError, TypeError):
        return Check(f"limit {place[:8]}", False, "foreign", "something else is kept under this name: remove it")
    found = f"{sharers} sharer(s), {max(0.0, ahead):.2f} s leased ahead"
    return Check(f"limit {place[:8]}", True, found, values.get("model", ""))


async def _keys(link: RedisLink) -> tuple[Counter[str], dict[str, int]]:
    """How many keys there are of each kind, and the bytes of all limits and of a sample of the others."""
    kinds: Counter[str] = Counter()
    weights: dict[str, int] = {}
    cursor: Any = b"0"
    while kinds.total() < MOST_KEYS:
        cursor, names = await link.call("SCAN", cursor, "MATCH", f"{PREFIX}*", "COUNT", "1000")
        for raw in names:
            name = _text(raw).removeprefix(PREFIX)
            kind = name.partition(":")[0]
            kinds[kind] += 1
            if kind == "limit" or len(weights) < SAMPLE:
                weights[name] = int(await link.call("MEMORY", "USAGE", raw) or 0)
        if cursor == b"0":
            break
    return kinds, weights


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
