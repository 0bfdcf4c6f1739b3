"""What the limiter promises, one sentence each, on the virtual clock.

Each of these has been seen to fail on the fault it guards against (`make mutants`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from typing import Any

import pytest

from fanfold.limits import Limiter, Limits, Permit, Quota
from fanfold.limits.known_rates import Cost
from fanfold.limits.pace import Pace
from fanfold.testing import run_virtual


async def all_at_once(limiter: Limiter, callers: int, within: float) -> list[Permit]:
    """The permits that so many callers have after so many seconds, while nobody gives one back."""
    tasks = [asyncio.create_task(limiter.acquire()) for _ in range(callers)]
    await asyncio.sleep(within)
    granted = [task.result() for task in tasks if task.done()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return granted


async def times(limiter: Limiter, callers: int) -> list[float]:
    """When each of so many callers, who all come now, may go; each is done at once."""
    gone: list[float] = []

    async def caller() -> None:
        permit = await limiter.acquire()
        gone.append(asyncio.get_running_loop().time())
        permit.done(True)

    await asyncio.gather(*(caller() for _ in range(callers)))
    return gone


async def after(limiter: Limiter, *replies: dict[str, Any]) -> Limiter:
    """The limiter after calls that ended so."""
    for reply in replies:
        (await limiter.acquire(reply.pop("estimate", 0))).done(**{"ok": True, **reply})
    return limiter


def on_clock(main: Awaitable[Any]) -> Any:
    return run_virtual(main)  # type: ignore[arg-type]


# -- told --------------------------------------------------------------------------------------------------------------


def test_a_told_rate_alone_does_not_bound_how_many_are_in_flight() -> None:
    """Slow calls at a told rate need many at once; the cautious first window is for servers nobody told about."""
    told = Limiter(Limits(requests_per_minute=60_000))
    assert len(on_clock(all_at_once(told, 400, 0.1))) == 400
    assert len(on_clock(all_at_once(Limiter(Limits()), 400, 0.1))) == 20
    assert len(on_clock(all_at_once(Limiter(Limits(adaptive=False)), 400, 0.1))) == 400


def test_no_more_are_in_flight_than_told_whatever_else_is_allowed() -> None:
    for limits in (
        Limits(in_flight=7),
        Limits(in_flight=7, adaptive=False),
        Limits(in_flight=7, tokens_per_minute=1e9),
    ):
        assert len(on_clock(all_at_once(Limiter(limits), 50, 5.0))) == 7


def test_told_tokens_hold_calls_back_by_their_size() -> None:
    async def main(limits: Limits, inputs: int, outputs: int) -> float:
        limiter = Limiter(limits)
        for _ in range(5):
            (await limiter.acquire(inputs, outputs)).done(True, input_tokens=inputs, output_tokens=outputs)
        return asyncio.get_running_loop().time()

    per_second = 60 * 100.0  # 100 tokens a second; calls of 100 tokens, so four gaps of a second
    assert on_clock(main(Limits(tokens_per_minute=per_second, burst=0), 60, 40)) == pytest.approx(4.0)
    assert on_clock(main(Limits(input_tokens_per_minute=per_second, burst=0), 100, 999)) == pytest.approx(4.0)
    assert on_clock(main(Limits(output_tokens_per_minute=per_second, burst=0), 999, 100)) == pytest.approx(4.0)


def test_a_reply_that_names_only_one_kind_of_tokens_corrects_that_kind() -> None:
    async def main(**used: int) -> float:
        limiter = Limiter(Limits(tokens_per_minute=6000, burst=0))
        (await limiter.acquire(100, 100)).done(True, **used)
        await limiter.acquire(1, 1)
        return asyncio.get_running_loop().time()

    assert on_clock(main(input_tokens=300)) == pytest.approx(4.0)
    assert on_clock(main(output_tokens=300)) == pytest.approx(4.0)
    assert on_clock(main(input_tokens=300, output_tokens=300)) == pytest.approx(6.0)
    assert on_clock(main()) == pytest.approx(2.0)


# -- learnt ------------------------------------------------------------------------------------------------------------


def test_once_a_limit_is_learnt_from_headers_the_first_window_no_longer_holds_calls_back() -> None:
    async def main() -> int:
        limiter = await after(Limiter(Limits()), {"quota": Quota(requests_limit=60_000, requests_remaining=59_999)})
        return len(await all_at_once(limiter, 200, 0.5))

    assert on_clock(main()) == 200


def test_a_limit_in_headers_that_changes_is_followed_and_never_raises_a_told_one() -> None:
    def limits(*per_minute: float) -> list[dict[str, Any]]:
        return [{"quota": Quota(requests_limit=limit)} for limit in per_minute]

    assert on_clock(after(Limiter(Limits()), *limits(600))).rate == 10.0
    assert on_clock(after(Limiter(Limits()), *limits(600, 60))).rate == 1.0
    assert on_clock(after(Limiter(Limits()), *limits(600, 60, 1200))).rate == 20.0
    assert on_clock(after(Limiter(Limits(requests_per_minute=300)), *limits(600))).rate == 5.0
    assert on_clock(after(Limiter(Limits(requests_per_minute=300)), *limits(60))).rate == 1.0
    assert on_clock(after(Limiter(Limits(requests_per_minute=300, adaptive=False)), *limits(60))).rate == 5.0


def test_a_limit_that_changes_while_a_quota_is_spread_holds_when_the_spreading_is_over() -> None:
    async def main() -> tuple[float | None, float | None]:
        scarce = {"requests_remaining": 3.0, "requests_reset": 30.0}
        limiter = await after(Limiter(Limits()), {"quota": Quota(requests_limit=1200, **scarce)})
        (await limiter.acquire()).done(True, quota=Quota(requests_limit=600, **scarce))
        slowed = limiter.rate
        await asyncio.sleep(40.0)
        (await limiter.acquire()).done(True)
        return slowed, limiter.rate

    slowed, normal = on_clock(main())
    assert slowed < 0.2
    assert normal == 10.0


# -- refused and overloaded --------------------------------------------------------------------------------------------


def test_without_adapting_a_retry_after_still_holds_everybody_back() -> None:
    async def main(retry_after: float | None) -> list[float]:
        limiter = Limiter(Limits(requests_per_minute=600, adaptive=False))
        (await limiter.acquire()).done(False, refused=True, retry_after=retry_after)
        return await times(limiter, 20)

    gone = on_clock(main(7.0))
    assert min(gone) >= 7.0
    assert max(gone) == pytest.approx(7.0 + 20 * 0.1, abs=0.11), "at the told rate from then on, not all at once"
    assert max(on_clock(main(None))) <= 2.1


def test_a_server_that_refused_once_and_never_again_is_soon_used_at_full_speed() -> None:
    """The rate that was found after the refusal rises, the faster the longer nothing is refused."""

    async def main() -> list[int]:
        limiter = Limiter(Limits())
        (await limiter.acquire()).done(False, refused=True, retry_after=1.0)
        each_minute = []
        for minute in (1, 2):
            gone = 0
            while asyncio.get_running_loop().time() < 60.0 * minute:
                (await limiter.acquire()).done(True)
                gone += 1
                await asyncio.sleep(0.05)
            each_minute.append(gone)
        return each_minute

    first, second = on_clock(main())
    assert first > 300
    assert second == 1200


def test_an_overloaded_server_is_left_alone_as_long_as_it_asks_for() -> None:
    async def main(adaptive: bool) -> float:
        limiter = Limiter(Limits(adaptive=adaptive))
        (await limiter.acquire()).done(False, overloaded=True, retry_after=9.0)
        return min(await times(limiter, 3))

    assert on_clock(main(True)) == pytest.approx(9.0)
    assert on_clock(main(False)) == pytest.approx(9.0)


def test_overload_cuts_the_window_once_for_all_calls_that_were_in_flight() -> None:
    async def main() -> list[int | None]:
        limiter = Limiter(Limits())
        permits = await all_at_once(limiter, 20, 0.1)
        sizes = [limiter.window]
        for permit in permits[:5]:
            permit.done(False, overloaded=True)
            sizes.append(limiter.window)
        for permit in permits[5:]:
            permit.done(True)
        (await limiter.acquire()).done(False, overloaded=True)
        sizes.append(limiter.window)
        return sizes

    before, *after_each, later = on_clock(main())
    assert (before, after_each) == (20, [14] * 5)
    assert later == 14, "a failure with far fewer in flight than were carried says nothing about their number"


# -- measured ----------------------------------------------------------------------------------------------------------


def test_utilisation_is_the_share_of_the_tightest_limit_and_counts_what_was_really_used() -> None:
    async def main(limits: Limits, **used: int) -> float | None:
        limiter = Limiter(limits)
        (await limiter.acquire(500)).done(True, **used)
        return limiter.utilisation

    assert on_clock(main(Limits(requests_per_minute=600))) == pytest.approx(0.1)
    assert on_clock(main(Limits(input_tokens_per_minute=60_000))) == pytest.approx(0.5)
    assert on_clock(main(Limits(input_tokens_per_minute=60_000), input_tokens=800)) == pytest.approx(0.8)
    assert on_clock(main(Limits(requests_per_minute=600, input_tokens_per_minute=60_000))) == pytest.approx(0.5)


def test_a_gate_stays_closed_when_the_limiter_moves_to_another_loop() -> None:
    limiter = Limiter(Limits())

    async def refused() -> None:
        await asyncio.sleep(1000.0)
        (await limiter.acquire()).done(False, refused=True, retry_after=30.0)
        await asyncio.sleep(10.0)
        assert limiter.waiting == 0
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(limiter.acquire(), 5.0)

    async def elsewhere() -> float:
        start = asyncio.get_running_loop().time()
        (await limiter.acquire()).done(True)
        return asyncio.get_running_loop().time() - start

    on_clock(refused())
    assert on_clock(elsewhere()) == pytest.approx(15.0, abs=1.1)


def test_a_limiter_without_limits_says_so() -> None:
    limiter = Limiter(Limits(adaptive=False))
    assert (limiter.window, limiter.rate, limiter.utilisation) == (None, None, None)
    assert Limiter(Limits(requests_per_minute=90)).rate == 1.5
    assert Limiter(Limits(in_flight=3)).window == 3


# -- shared ------------------------------------------------------------------------------------------------------------


class Share:
    """A lease that lets nobody through before a moment."""

    def __init__(self, free_at: float) -> None:
        self.free_at = free_at

    def ready_at(self, cost: Cost | None, now: float) -> float:
        return self.free_at

    def take(self, cost: Cost | None, now: float) -> None: ...
    def correct(self, more: Cost) -> None: ...
    def ended(self) -> None: ...
    def refused(self, seconds: float) -> None: ...
    def learnt(self, rates: Mapping[int, float]) -> None: ...


async def costs_in_line(limiter: Limiter, *tokens: tuple[int, int]) -> list[Cost]:
    """What calls of so many tokens cost, while they wait for their share."""
    limiter.lease = Share(asyncio.get_running_loop().time() + 100.0)
    tasks = [asyncio.create_task(limiter.acquire(*each)) for each in tokens]
    await asyncio.sleep(1.0)
    costs = list(limiter.queued())
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return costs


def test_whoever_shares_a_limit_waits_for_its_share() -> None:
    limiter = Limiter(Limits(requests_per_minute=6000))
    limiter.lease = Share(5.0)
    assert on_clock(times(limiter, 3)) == [5.0] * 3


def test_calls_in_line_say_what_they_cost_the_first_one_first() -> None:
    limiter = Limiter(Limits(tokens_per_minute=60_000))
    assert on_clock(costs_in_line(limiter, (100, 20), (300, 0))) == [(1.0, 120, 100, 20), (1.0, 300, 300, 0)]


@pytest.mark.parametrize("used", [{"input_tokens": 500, "estimate": 0}, {"input_tokens": -500, "estimate": 100}])
def test_a_reply_without_an_estimate_or_with_nonsense_changes_no_estimate(
    used: dict[str, Any],
) -> None:
    async def main() -> list[Cost]:
        limiter = await after(Limiter(Limits(tokens_per_minute=6_000_000)), used)
        return await costs_in_line(limiter, (100, 0))

    assert on_clock(main()) == [(1.0, 100, 100, 0)]


def test_calls_that_use_twice_what_is_estimated_soon_cost_twice_as_much() -> None:
    async def main() -> list[Cost]:
        replies = [{"estimate": 100, "input_tokens": 200} for _ in range(50)]
        limiter = await after(Limiter(Limits(tokens_per_minute=6_000_000)), *replies)
        return await costs_in_line(limiter, (100, 0))

    ((_, tokens, inputs, outputs),) = on_clock(main())
    assert (tokens, inputs, outputs) == (pytest.approx(200, rel=0.01), pytest.approx(200, rel=0.01), 0)


@pytest.mark.parametrize("limit", [0, -5, float("inf")])
def test_a_limit_in_headers_that_allows_nothing_or_everything_says_nothing(limit: float) -> None:
    async def main() -> Limiter:
        return await after(Limiter(Limits()), {"quota": Quota(requests_limit=limit, requests_remaining=limit)})

    assert not on_clock(main()).rates


@pytest.mark.parametrize("limits", [Limits(adaptive=False), Limits(requests_per_minute=60_000)])
def test_the_refusal_of_another_sharer_holds_calls_back_and_slows_none_where_rates_are_known(limits: Limits) -> None:
    async def main() -> list[float]:
        limiter = await after(Limiter(limits), *({} for _ in range(50)))
        limiter.hold(10.0)
        return await times(limiter, 50)

    assert on_clock(main()) == [pytest.approx(10.0, abs=0.1)] * 50


def test_when_a_rate_rises_what_was_charged_before_is_paid_off_at_it_as_well() -> None:
    pace = Pace(1.0, burst=0.0)
    pace.take(10.0, 0.0)
    pace.rise(2.0, 0.0)
    assert pace.ready_at(1.0, 0.0) == 5.0
    pace.take(10.0, 5.0)
    assert pace.ready_at(1.0, 5.0) == 10.0


@pytest.mark.parametrize(("limits", "seconds"), [(Limits(), 4.0), (Limits(adaptive=False), 0.0)])
def test_a_rate_that_another_sharer_has_learnt_holds_here_unless_only_told_ones_count(
    limits: Limits, seconds: float
) -> None:
    async def main() -> list[float]:
        limiter = Limiter(limits)
        limiter.adopt({0: 10.0})
        return await times(limiter, 40)

    assert on_clock(main())[-1] == pytest.approx(seconds, abs=0.2)
