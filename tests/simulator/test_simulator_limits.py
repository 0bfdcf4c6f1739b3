"""The simulator lets through what a provider would, and says about its limits what a provider says."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fanfold.errors import ConfigError
from fanfold.simulator import AccountLimits
from fanfold.simulator.limits import Account
from fanfold.simulator.openai import duration
from fanfold.testing import run_virtual

Talk = Callable[..., Any]


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    gaps=st.lists(st.floats(0, 3), min_size=1, max_size=80),
    rpm=st.floats(5, 600),
    burst=st.floats(0.5, 60),
    refused_count=st.booleans(),
)
def test_no_arrivals_ever_get_more_than_the_rate_and_one_burst(
    gaps: list[float], rpm: float, burst: float, refused_count: bool
) -> None:
    account = Account(AccountLimits(rpm=rpm, burst_seconds=burst, refused_count=refused_count), 0.0)
    now, admitted = 0.0, []
    for gap in gaps:
        now += gap
        if account.admit(10, None, now) is None:
            admitted.append(now)
    capacity = max(1.0, rpm * burst / 60)
    for first in range(len(admitted)):
        for last in range(first, len(admitted)):
            assert last - first + 1 <= capacity + (admitted[last] - admitted[first]) * rpm / 60 + 1e-3


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    costs=st.lists(st.integers(1, 1000), min_size=1, max_size=40),
    tpm=st.integers(1000, 60_000),
    burst=st.floats(0.5, 60),
)
def test_who_waits_as_long_as_told_gets_through(costs: list[int], tpm: int, burst: float) -> None:
    account = Account(AccountLimits(tpm=tpm, burst_seconds=burst), 0.0)
    now = 0.0
    for cost in costs:
        refused = account.admit(cost, None, now)
        if refused is not None:
            now += refused.wait
            assert account.admit(cost, None, now) is None


def test_what_never_fits_is_refused_for_good(talk: Talk) -> None:
    async def main() -> None:
        answer = await talk(limits=AccountLimits(tpm=100)).chat("x" * 1000)
        assert answer.status == 429 and "too large" in answer.json()["error"]["message"]
        assert "retry-after" not in answer.headers

    run_virtual(main())


def test_the_rate_is_enforced_per_key_and_model(talk: Talk) -> None:
    async def main() -> None:
        client = talk(limits=AccountLimits(rpm=60, burst_seconds=1), model_limits={"free": AccountLimits()})
        assert [(await client.chat()).status for _ in range(3)] == [200, 429, 429]
        assert (await client.chat(model="other")).status == 200
        assert {(await client.chat(model="free")).status for _ in range(9)} == {200}
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
        assert (await client.ask("POST", "/v1/chat/completions", body, key="second")).status == 200
        await asyncio.sleep(1)
        assert (await client.chat()).status == 200

    run_virtual(main())


@pytest.mark.parametrize(("refused_count", "passed"), [(False, 10), (True, 1)])
def test_hammering_starves_when_refused_requests_count(talk: Talk, refused_count: bool, passed: int) -> None:
    async def main() -> None:
        client = talk(limits=AccountLimits(rpm=60, burst_seconds=1, refused_count=refused_count))
        statuses = []
        for _ in range(95):
            statuses.append((await client.chat()).status)
            await asyncio.sleep(0.1)
        assert statuses.count(200) == passed
        await asyncio.sleep(1)
        assert (await client.chat()).status == 200, "a pause of one interval must heal it"

    run_virtual(main())


def test_output_is_counted_when_written_or_in_advance(talk: Talk) -> None:
    async def main() -> None:
        def answer(*_: Any) -> str:
            return "x" * 400  # 100 tokens

        after = talk(answer=answer, limits=AccountLimits(output_tpm=600, burst_seconds=10))
        assert [(await after.message(max_tokens=200)).status for _ in range(3)] == [200, 429, 429]
        advance = talk(answer=answer, limits=AccountLimits(output_tpm=600, burst_seconds=60, count_max_tokens=True))
        assert [(await advance.message(max_tokens=200)).status for _ in range(4)] == [200, 200, 200, 429]

    run_virtual(main())


def test_openai_headers_tell_what_is_left_and_when_it_is_full(talk: Talk) -> None:
    async def main() -> None:
        client = talk(limits=AccountLimits(rpm=500, tpm=10_000))
        headers = (await client.chat()).headers
        assert headers["x-ratelimit-limit-requests"] == "500"
        assert headers["x-ratelimit-remaining-requests"] == "499"
        assert headers["x-ratelimit-reset-requests"] == "120ms"
        assert int(headers["x-ratelimit-remaining-tokens"]) < 10_000
        assert re.fullmatch(r"\d+ms|[\d.]+s", headers["x-ratelimit-reset-tokens"])
        bad = await client.chat(temperature="hot")
        assert bad.status == 400 and "x-ratelimit-limit-requests" in bad.headers
        quiet = await talk(limits=AccountLimits(rpm=500, headers=False)).chat()
        assert not [name for name in quiet.headers if "ratelimit" in name]

    run_virtual(main())


def test_anthropic_headers_tell_resets_as_times_of_day(talk: Talk) -> None:
    async def main() -> None:
        client = talk(
            limits=AccountLimits(rpm=60, input_tpm=6000, output_tpm=6000), epoch=1_800_000_000.0, clock_skew=30.0
        )
        headers = (await client.message()).headers
        for name in ("requests", "input-tokens", "output-tokens"):
            reset = datetime.fromisoformat(headers[f"anthropic-ratelimit-{name}-reset"]).timestamp()
            assert 0 < reset - 1_800_000_030 <= 60
            assert int(headers[f"anthropic-ratelimit-{name}-remaining"]) < int(
                headers[f"anthropic-ratelimit-{name}-limit"]
            )

    run_virtual(main())


def test_retry_after_comes_in_every_form(talk: Talk) -> None:
    async def main() -> None:
        seen = {}
        for how in ("seconds", "ms", "date", "absent", "garbage"):
            client = talk(limits=AccountLimits(rpm=60, burst_seconds=1, retry_after=how), epoch=1_800_000_000.0)
            await client.chat()
            await asyncio.sleep(0.25)
            seen[how] = (await client.chat()).headers
        assert seen["seconds"]["retry-after"] == "1"
        assert seen["ms"]["retry-after-ms"] == "750"
        assert parsedate_to_datetime(seen["date"]["retry-after"]).timestamp() > 1_800_000_000
        assert "retry-after" not in seen["absent"]
        assert seen["garbage"]["retry-after"] == "soon"

    run_virtual(main())


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0ms"), (0.004, "4ms"), (8.64, "8.64s"), (1, "1s"), (360, "6m0s"), (61.5, "1m1.5s"), (3630, "1h0m30s")],
)
def test_durations_are_written_as_openai_writes_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_limits_that_make_no_sense_are_named() -> None:
    with pytest.raises(ConfigError, match="rpm must be above 0"):
        AccountLimits(rpm=0)
    with pytest.raises(ConfigError, match="burst_seconds"):
        AccountLimits(burst_seconds=0)


def test_latency_is_waited_for_on_the_clock_of_the_loop(talk: Talk) -> None:
    from fanfold.simulator import Latency

    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        client = talk(latency=Latency(2.0, 0.0, 0.01), answer=lambda *_: "x" * 400)
        await client.chat()
        assert loop.time() == pytest.approx(3.0)
        client = talk(latency=Latency(1.0, 0.5), seed=3)
        times = []
        for _ in range(50):
            before = loop.time()
            await client.chat()
            times.append(loop.time() - before)
        return times

    times = run_virtual(main())
    assert run_virtual(main()) == pytest.approx(times), "seeded"
    assert len(set(times)) == 50 and 0.6 < sorted(times)[25] < 1.6
