"""Limits on a virtual clock: never above what is told, close to what is allowed, and nobody left waiting."""

from __future__ import annotations

import asyncio
import itertools
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from limits_world import Outcome, Provider, drive

from fanfold.errors import ConfigError, FanfoldError
from fanfold.limits import PRESETS, Limiter, Limits, Permit, Quota, limits_of
from fanfold.testing import run_virtual

REQUESTS = {"rpm": 1200.0}
TOKENS = {"rpm": 3500.0, "tpm": 200_000.0}
TOLD = {1200.0: Limits(requests_per_minute=1200), 3500.0: Limits(requests_per_minute=3500, tokens_per_minute=200_000)}

worlds = pytest.mark.parametrize("world", [REQUESTS, TOKENS], ids=["requests", "tokens"])
spreads = pytest.mark.parametrize("spread", [0.0, 0.5], ids=["even", "lognormal"])
retry_afters = pytest.mark.parametrize("retry_after", [1.0, None], ids=["retry-after", "silent"])
counted = pytest.mark.parametrize("refused_count", [False, True], ids=["free", "refused-count"])


def outcome(limits: Limits, seed: int, **world: object) -> Outcome:
    return run_virtual(drive(Limiter(limits), Provider(seed=seed, **world), 600, 100, seed=seed))  # type: ignore[arg-type]


@worlds
@spreads
@counted
@pytest.mark.parametrize("seed", range(3))
def test_a_told_limit_is_used_and_not_overrun(
    world: dict[str, float], spread: float, refused_count: bool, seed: int
) -> None:
    got = outcome(TOLD[world["rpm"]], seed, spread=spread, refused_count=refused_count, **world)
    assert got.utilisation is not None and got.utilisation >= 0.97
    assert got.refused <= 0.005
    assert got.failed == 0


@worlds
@spreads
@counted
@pytest.mark.parametrize("seed", range(3))
def test_a_limit_in_headers_is_as_good_as_told(
    world: dict[str, float], spread: float, refused_count: bool, seed: int
) -> None:
    got = outcome(Limits(), seed, spread=spread, refused_count=refused_count, headers=True, **world)
    assert got.utilisation is not None and got.utilisation >= 0.97
    assert got.refused <= 0.005
    assert got.failed == 0


@pytest.mark.slow
@worlds
@spreads
@counted
@retry_afters
@pytest.mark.parametrize("seed", range(3))
def test_a_limit_nobody_tells_is_found(
    world: dict[str, float], spread: float, refused_count: bool, retry_after: float | None, seed: int
) -> None:
    got = outcome(Limits(), seed, spread=spread, refused_count=refused_count, retry_after=retry_after, **world)
    assert got.utilisation is not None and got.utilisation >= (0.80 if refused_count else 0.85)
    assert got.failed == 0


@pytest.mark.parametrize("told", [2400, 12_000])
def test_a_limit_told_too_high_is_found_out(told: float) -> None:
    got = outcome(Limits(requests_per_minute=told), 0, refused_count=True, **REQUESTS)
    assert got.utilisation is not None and got.utilisation >= 0.80
    assert got.failed == 0


@pytest.mark.parametrize("factor", [0.5, 1.5])
def test_token_estimates_that_are_always_wrong_are_scaled(factor: float) -> None:
    async def main() -> Outcome:
        limiter = Limiter(Limits(tokens_per_minute=200_000))
        return await drive(limiter, Provider(tpm=200_000), 600, 100, error=(factor, factor))

    got = run_virtual(main())
    assert got.utilisation is not None and got.utilisation >= 0.9
    assert got.refused <= 0.02 and got.failed == 0


def test_two_processes_that_share_a_quota_both_get_on() -> None:
    async def main() -> tuple[Outcome, Outcome]:
        provider = Provider(headers=True, refused_count=True, **REQUESTS)
        return tuple(await asyncio.gather(*(drive(Limiter(Limits()), provider, 400, 50, seed=n) for n in range(2))))  # type: ignore[return-value]

    first, second = run_virtual(main())
    assert first.failed == second.failed == 0
    assert max(first.makespan, second.makespan) <= 800 / 20 / 0.8


@pytest.mark.slow
def test_a_server_without_limits_has_a_thousand_calls_in_flight_within_a_second() -> None:
    async def main() -> int:
        provider = Provider(latency=0.05)
        crowd = asyncio.create_task(drive(Limiter(Limits()), provider, 30_000, 1000))
        await asyncio.sleep(1.0)
        busy = provider.busy
        await crowd
        return busy

    assert run_virtual(main()) == 1000


@pytest.mark.slow
def test_calls_are_not_piled_up_on_a_server_that_does_eight_at_a_time() -> None:
    async def main() -> tuple[int, int]:
        limiter, server, most = Limiter(Limits()), asyncio.Semaphore(8), 0

        async def caller() -> None:
            nonlocal most
            for _ in range(20):
                permit = await limiter.acquire()
                most = max(most, limiter.in_flight)
                async with server:
                    await asyncio.sleep(0.1)
                permit.done(True)

        await asyncio.gather(*(caller() for _ in range(300)))
        return most, limiter.refused

    most, refused = run_virtual(main())
    assert 8 <= most <= 200 and refused == 0


@pytest.mark.slow
def test_overload_shrinks_the_window_and_recovery_brings_it_back() -> None:
    async def main() -> list[int]:
        limiter, broken, seen = Limiter(Limits()), False, []

        async def caller() -> None:
            while len(seen) < 3:
                permit = await limiter.acquire()
                await asyncio.sleep(0.1)
                permit.done(not broken, overloaded=broken)

        crowd = [asyncio.create_task(caller()) for _ in range(200)]
        for state in (False, True, False):
            broken = state
            await asyncio.sleep(10.0)
            seen.append(limiter.in_flight)
        await asyncio.gather(*crowd)
        return seen

    healthy, outage, after = run_virtual(main())
    assert healthy == 200
    assert outage == 1
    assert after >= 100


def test_failures_at_random_leave_the_window_open_for_they_do_not_come_from_too_many_calls() -> None:
    async def main() -> tuple[float, int]:
        limiter, rng, left = Limiter(Limits()), random.Random(1), 2000

        async def caller() -> None:
            nonlocal left
            while left > 0:
                left -= 1
                permit = await limiter.acquire()
                fails = rng.random() < 0.4
                await asyncio.sleep(0.01 if fails else 0.5)
                permit.done(not fails, overloaded=fails)

        await asyncio.gather(*(caller() for _ in range(100)))
        return asyncio.get_running_loop().time(), limiter.window or 0

    seconds, window = run_virtual(main())
    assert window >= 8 and seconds < 100, "one call at a time would take 600"


def test_a_server_that_turns_away_what_is_too_much_soon_has_what_it_can_carry() -> None:
    async def main() -> tuple[float, float]:
        limiter, busy, turned_away, done = Limiter(Limits()), 0, 0, 0

        async def caller() -> None:
            nonlocal busy, turned_away, done
            while done < 2000:
                permit = await limiter.acquire()
                if busy >= 30:
                    await asyncio.sleep(0.01)
                    permit.done(False, overloaded=True)
                    turned_away += 1
                    await asyncio.sleep(0.5)
                    continue
                busy += 1
                await asyncio.sleep(0.5)
                busy -= 1
                done += 1
                permit.done(True)

        await asyncio.gather(*(caller() for _ in range(100)))
        return asyncio.get_running_loop().time(), turned_away / done

    seconds, share = run_virtual(main())
    assert share < 0.2 and seconds < 1.5 * 2000 * 0.5 / 30


def test_a_retry_after_holds_everybody_back_and_then_lets_them_go_one_by_one() -> None:
    async def main() -> list[float]:
        loop, limiter, gone = asyncio.get_running_loop(), Limiter(Limits(requests_per_minute=600)), []

        async def caller() -> None:
            permit = await limiter.acquire()
            gone.append(loop.time())
            permit.done(True)

        first = await limiter.acquire()
        first.done(False, refused=True, retry_after=7.0)
        await asyncio.gather(*(caller() for _ in range(20)))
        return gone

    gone = run_virtual(main())
    assert min(gone) >= 7.0
    assert all(later - earlier >= 0.1 - 1e-9 for earlier, later in itertools.pairwise(gone))


@pytest.mark.parametrize("retry_after", [-5.0, math.nan, 0.0, 1e9, math.inf, -math.inf])
def test_no_retry_after_holds_longer_than_five_minutes(retry_after: float) -> None:
    async def main() -> float:
        limiter = Limiter(Limits())
        (await limiter.acquire()).done(False, refused=True, retry_after=retry_after)
        (await limiter.acquire()).done(True)
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) <= 302.0


def test_a_quota_that_is_nearly_used_up_is_spread_until_it_resets() -> None:
    async def main() -> list[float]:
        loop, limiter, gone = asyncio.get_running_loop(), Limiter(Limits()), []
        quota = Quota(requests_limit=1200, requests_remaining=3, requests_reset=30.0)
        (await limiter.acquire()).done(True, quota=quota)
        while loop.time() < 35.0:
            permit = await limiter.acquire()
            gone.append(loop.time())
            permit.done(True)
        return gone

    gone = run_virtual(main())
    assert 1 <= sum(when < 29.9 for when in gone) <= 4
    assert 80 <= sum(30.0 <= when < 35.0 for when in gone) <= 120


def test_retry_after_wins_over_a_reset_that_is_far_away() -> None:
    async def main() -> float:
        limiter = Limiter(Limits())
        quota = Quota(tokens_limit=150_000, tokens_remaining=0, tokens_reset=360.0)
        (await limiter.acquire(20, 20)).done(False, refused=True, retry_after=1.0, quota=quota)
        for _ in range(3):
            (await limiter.acquire(20, 20)).done(True)
        return asyncio.get_running_loop().time()

    assert 1.0 <= run_virtual(main()) < 5.0


def test_a_bucket_that_refills_continuously_is_used_at_its_full_rate_even_when_low() -> None:
    async def main() -> int:
        loop, limiter, gone = asyncio.get_running_loop(), Limiter(Limits()), 0
        while loop.time() < 10.0:
            permit = await limiter.acquire()
            gone += 1
            permit.done(True, quota=Quota(requests_limit=1200, requests_remaining=6, requests_reset=59.7))
        return gone

    assert run_virtual(main()) >= 195


@pytest.mark.parametrize("limit", [0, -1, math.nan, math.inf])
def test_a_senseless_quota_is_ignored(limit: float) -> None:
    async def main() -> float | None:
        limiter = Limiter(Limits())
        (await limiter.acquire()).done(
            True, quota=Quota(requests_limit=limit, requests_remaining=limit, tokens_limit=limit)
        )
        return limiter.rate

    assert run_virtual(main()) is None


@settings(max_examples=60, deadline=None)
@given(
    rpm=st.floats(6, 6000),
    burst=st.floats(0, 2),
    gaps=st.lists(st.one_of(st.just(0.0), st.floats(0, 3)), min_size=1, max_size=50),
)
def test_no_span_of_time_sees_more_than_the_told_rate_and_burst(rpm: float, burst: float, gaps: list[float]) -> None:
    async def main() -> list[float]:
        loop, limiter = asyncio.get_running_loop(), Limiter(Limits(requests_per_minute=rpm, burst=burst))
        gone: list[float] = []

        async def caller() -> None:
            permit = await limiter.acquire()
            gone.append(loop.time())
            permit.done(True)

        callers = []
        for gap in gaps:
            callers.append(asyncio.create_task(caller()))
            await asyncio.sleep(gap)
        await asyncio.gather(*callers)
        return gone

    gone = run_virtual(main())
    for first, last in itertools.combinations(range(len(gone)), 2):
        assert last - first + 1 <= rpm / 60 * (gone[last] - gone[first] + burst) + 1 + 1e-6


@settings(max_examples=60, deadline=None)
@given(
    tpm=st.floats(600, 60_000),
    sizes=st.lists(st.tuples(st.integers(0, 2000), st.floats(0.25, 2)), min_size=1, max_size=40),
)
def test_tokens_are_paced_by_what_was_used_whatever_was_estimated(tpm: float, sizes: list[tuple[int, float]]) -> None:
    """One at a time, every charge is corrected before the next leaves: all but the last are paid for."""

    async def main() -> float:
        limiter = Limiter(Limits(tokens_per_minute=tpm))
        for used, error in sizes:
            permit = await limiter.acquire(round(used * error), 0)
            permit.done(True, input_tokens=used)
        return asyncio.get_running_loop().time()

    took = run_virtual(main())
    paid = sum(used for used, _ in sizes[:-1])
    assert paid <= tpm / 60 * (took + 0.5) + 2000 + 1e-6
    assert took <= sum(used * max(1.0, error) for used, error in sizes) * 8 / (tpm / 60) + 1e-6


fates = st.sampled_from(["ok", "refused", "overloaded", "failed", "cancelled", "dropped"])
waits = st.sampled_from([None, 0.0, -1.0, 2.0, math.nan, math.inf])
quotas = st.one_of(
    st.none(),
    st.builds(
        Quota,
        requests_limit=st.sampled_from([None, 0.0, 60.0, 6000.0]),
        requests_remaining=st.sampled_from([None, -1.0, 0.0, 5.0, 1e9]),
        requests_reset=st.sampled_from([None, -1.0, 0.0, 1.0, 1e9]),
        tokens_limit=st.sampled_from([None, math.nan, 1000.0]),
        tokens_remaining=st.sampled_from([None, 0.0, 100.0]),
    ),
)
limitses = st.builds(
    Limits,
    requests_per_minute=st.sampled_from([None, 30.0, 6000.0]),
    output_tokens_per_minute=st.sampled_from([None, 1000.0]),
    in_flight=st.sampled_from([None, 1, 3]),
    adaptive=st.booleans(),
    burst=st.sampled_from([0.0, 0.5, 1.0]),
)


@pytest.mark.slow
@settings(max_examples=120, deadline=None)
@given(limits=limitses, calls=st.lists(st.tuples(fates, waits, quotas, st.integers(0, 500)), min_size=1, max_size=30))
def test_whatever_happens_everybody_gets_through_in_order_and_no_place_is_lost(
    limits: Limits, calls: list[tuple[str, float | None, Quota | None, int]]
) -> None:
    async def main() -> tuple[list[int], Limiter]:
        limiter = Limiter(limits)
        order: list[int] = []

        async def caller(number: int, fate: str, wait: float | None, quota: Quota | None, tokens: int) -> None:
            with await limiter.acquire(tokens, tokens) as permit:
                order.append(number)
                assert limits.in_flight is None or limiter.in_flight <= limits.in_flight
                await asyncio.sleep(0.3)
                if fate != "dropped":
                    permit.done(
                        fate == "ok",
                        refused=fate == "refused",
                        overloaded=fate == "overloaded",
                        retry_after=wait,
                        quota=quota,
                        output_tokens=tokens // 2,
                    )

        tasks = [asyncio.create_task(caller(number, *call)) for number, call in enumerate(calls)]
        for task, (number, (fate, *_)) in zip(tasks, enumerate(calls), strict=True):
            if fate == "cancelled":
                await asyncio.sleep(0.05 * number)
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert all(task.cancelled() or task.exception() is None for task in tasks)
        (await limiter.acquire()).done(True)
        return order, limiter

    order, limiter = run_virtual(main())
    assert order == sorted(order)
    assert limiter.in_flight == limiter.waiting == 0


def test_a_caller_cancelled_at_the_moment_of_its_turn_leaves_its_place_to_the_next() -> None:
    async def main() -> None:
        limiter = Limiter(Limits(in_flight=1))
        first = await limiter.acquire()
        second = asyncio.create_task(limiter.acquire())
        third = asyncio.create_task(limiter.acquire())
        await asyncio.sleep(0)
        first.done(True)
        second.cancel()
        permit = await third
        assert isinstance(permit, Permit) and limiter.in_flight == 1
        assert second.cancelled()

    run_virtual(main())


def test_done_counts_once() -> None:
    async def main() -> int:
        limiter = Limiter(Limits())
        permit = await limiter.acquire()
        await limiter.acquire()
        permit.done(True)
        permit.done(False, refused=True)
        assert limiter.refused == 0
        return limiter.in_flight

    assert run_virtual(main()) == 1


def test_a_limiter_moves_to_another_loop_whose_clock_reads_less() -> None:
    limiter = Limiter(Limits(requests_per_minute=60))

    async def later() -> None:
        await asyncio.sleep(10_000)
        for _ in range(3):
            (await limiter.acquire()).done(True)

    async def now() -> float:
        (await limiter.acquire()).done(True)
        return asyncio.get_running_loop().time()

    run_virtual(later())
    assert run_virtual(now()) <= 1.0 + 1e-6


def test_two_loops_at_once_are_refused() -> None:
    limiter = Limiter(Limits(in_flight=1))

    async def outer() -> None:
        await limiter.acquire()
        waiting = asyncio.create_task(limiter.acquire())
        await asyncio.sleep(0)
        with pytest.raises(FanfoldError, match="two event loops"):
            await asyncio.to_thread(asyncio.run, limiter.acquire())
        waiting.cancel()

    run_virtual(outer())


def test_what_is_measured_is_what_happened() -> None:
    async def main() -> Limiter:
        limiter = Limiter(Limits(requests_per_minute=600, in_flight=5))
        await drive(limiter, Provider(latency=0.1), 300, 20)
        return limiter

    limiter = run_virtual(main())
    assert (limiter.granted, limiter.refused, limiter.in_flight, limiter.waiting) == (300, 0, 0, 0)
    assert limiter.window == 5 and limiter.rate == 10.0
    assert limiter.utilisation == pytest.approx(1.0, abs=0.05)
    assert Limiter(Limits()).utilisation is None and Limiter(Limits()).rate is None


def test_presets_have_the_documented_numbers() -> None:
    numbers = {name: (limits.in_flight, limits.requests_per_minute) for name, limits in PRESETS.items()}
    assert numbers == {
        "adaptive": (None, None),
        "conservative": (15, 2000),
        "balanced": (50, 3500),
        "aggressive": (120, 3500),
    }
    assert limits_of(None) == limits_of("adaptive") == Limits()
    assert limits_of(Limits(in_flight=3)).in_flight == 3


def test_a_wrong_name_or_number_says_what_was_meant() -> None:
    with pytest.raises(ConfigError, match="'ballanced'; did you mean 'balanced'"):
        limits_of("ballanced")
    with pytest.raises(ConfigError, match="requests_per_minute=0"):
        Limits(requests_per_minute=0)
    with pytest.raises(ConfigError, match="in_flight=0"):
        Limits(in_flight=0)
    with pytest.raises(ConfigError, match="burst=nan"):
        Limits(burst=math.nan)


@pytest.mark.slow
def test_in_real_time_a_told_rate_holds_too() -> None:
    async def main() -> float:
        loop, limiter = asyncio.get_running_loop(), Limiter(Limits(requests_per_minute=6000, burst=0.1))
        begun = loop.time()

        async def caller() -> None:
            with await limiter.acquire():
                await asyncio.sleep(0.01)

        await asyncio.gather(*(caller() for _ in range(40)))
        return loop.time() - begun

    assert asyncio.run(main()) >= 0.29
