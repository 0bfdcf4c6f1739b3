"""Room in a provider's queue: what refusals teach, and that no more waits there than fits."""

from __future__ import annotations

import asyncio
import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanfold.errors import CallFailed
from fanfold.models.batch.executor import BatchExecutor
from fanfold.models.batch.lifecycle import protocol_of
from fanfold.models.batch.protocol import next_look
from fanfold.models.batch.room import QueueRoom, is_full
from fanfold.models.batch.watching import BatchSeen, watch
from fanfold.models.http_exchange import Response
from fanfold.models.naming import model
from fanfold.models.simulated import SimulatedTransport
from fanfold.simulator import Latency, Simulator, SimulatorConfig
from fanfold.testing import run_virtual

OPENAI = (
    "Enqueued token limit reached for gpt-4o in organization org-x. Limit: 90,000 enqueued tokens. Please try again "
    "once some in_progress batches have been completed."
)


async def held(limit: int | None, *tokens: int) -> QueueRoom:
    """Room that is taken already."""
    room = QueueRoom(limit)
    for count in tokens:
        assert await asyncio.wait_for(room.take("m", count, math.inf), 1.0)
    return room


def test_the_limit_that_a_refusal_names_holds_from_then_on_for_that_model() -> None:
    async def main() -> None:
        room = await held(None, 120_000)
        room.refused("m", 120_000, 60, OPENAI)
        assert room.limit("m") == 90_000 and room.limit("another") is None
        room.free("m", 120_000)
        assert room.closed("m", 90_000) == 0.0, "what fits may go at once"

    run_virtual(main())


def test_a_limit_that_is_not_named_is_what_was_held_before_or_half() -> None:
    async def main() -> None:
        room = await held(None, 700, 500)
        room.refused("m", 500, 5, "The processing queue is full.")
        assert room.limit("m") == 700
        room = await held(None, 500)
        room.refused("m", 500, 5, "The processing queue is full.")
        assert room.limit("m") == 250

    run_virtual(main())


def test_a_refusal_that_the_limit_does_not_explain_lowers_it_and_then_time_must_pass() -> None:
    async def main() -> None:
        room, tokens, times = QueueRoom(None), [80_000], []
        for _ in range(16):  # others fill the queue: neither we nor our estimates are the reason
            assert await room.take("m", tokens[-1], math.inf)
            times.append(asyncio.get_running_loop().time())
            room.refused("m", tokens[-1], 60, OPENAI)
            room.free("m", tokens[-1])
            tokens.append(room.limit("m") or 0)
        assert tokens[1] == 64_000 and tokens[-1] == 22_500, "down to a quarter of what is stated"
        assert times[1] == times[0] and times[-1] - times[-2] > 20.0, "at first by size, then by time"

    run_virtual(main())


@given(
    st.integers(1, 100),
    st.lists(st.tuples(st.integers(1, 100), st.floats(0.1, 50.0)), min_size=1, max_size=12),
)
def test_no_more_waits_than_the_limit_unless_it_is_alone(limit: int, batches: list[tuple[int, float]]) -> None:
    async def main() -> None:
        room = QueueRoom(limit)
        inside: list[int] = []

        async def one(tokens: int, seconds: float) -> None:
            assert await room.take("m", tokens, math.inf)
            inside.append(tokens)
            assert sum(inside) <= limit or len(inside) == 1
            await asyncio.sleep(seconds)
            inside.remove(tokens)
            room.free("m", tokens)

        await asyncio.gather(*(one(*batch) for batch in batches))

    run_virtual(main())


def test_who_waits_for_room_longer_than_it_may_is_turned_away() -> None:
    async def main() -> None:
        room = await held(100, 100)
        assert not await room.take("m", 10, 50.0)
        assert asyncio.get_running_loop().time() == pytest.approx(50.0, abs=1.0)

    run_virtual(main())


def test_only_a_full_queue_is_taken_for_one() -> None:
    assert is_full(OPENAI) and is_full("too many batch requests in the processing queue")
    assert not is_full("Rate limit reached for requests per minute. Limit: 500.")


def test_a_fallback_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="fallback must be 'batch' or 'realtime'"):
        BatchExecutor("openai", fallback="full")  # type: ignore[arg-type]


def test_looks_at_a_batch_grow_rare_with_its_age_and_never_come_before_the_provider_wants() -> None:
    assert 0.8 <= next_look(0.0, None) <= 1.2
    assert 48.0 <= next_look(1200.0, None) <= 72.0
    assert 240.0 <= next_look(1e6, None) <= 360.0
    assert next_look(0.0, 900.0) == 900.0


class Flaky(SimulatedTransport):
    """Cannot be reached for a while, as after a night's sleep."""

    looks = 0

    async def request(self, method: str, url: str, *args: object, **options: object) -> Response:
        if method == "GET":
            self.looks += 1
            if self.looks == 3:
                raise CallFailed("network", "no network")
        return await super().request(method, url, *args, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["gpt-4o-mini", "claude-haiku-4-5"])
def test_watching_says_each_change_once_and_ends_with_the_batches(name: str) -> None:
    simulator = Simulator(SimulatorConfig(turnaround=Latency(7200.0)))
    transport = Flaky(simulator)
    asked = replace(model(f"simulated/{name}"), connect=lambda: transport, key="k")

    async def main() -> list[BatchSeen]:
        api = protocol_of(asked)
        body = await api.prepare("tag", [("tag-0", asked.call("hello", max_tokens=5))])
        made = await api.create(body)
        return [seen async for seen in watch({"tag": (api, made.id, 0.0)})]

    seen = run_virtual(main())
    assert all(first != second for first, second in itertools.pairwise(seen))
    assert seen[-1].ended and not any(change.ended for change in seen[:-1])
    assert any(change.error == "no network" for change in seen)
    assert len(seen) < 8 < transport.looks < 200
