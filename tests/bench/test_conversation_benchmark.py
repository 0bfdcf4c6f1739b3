"""That the benchmark of conversations runs on tiny sizes, that its bound is one, and that its numbers can be true."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanfold.models import pricing
from fanfold.testing import run_virtual

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
FEW, MORE = "openai/gpt-4o-mini", "anthropic/claude-haiku-4-5"
WAYS = ("sequential", "waves", "barrier-free")


def bench() -> Any:
    return import_module("conversations")


def tiny(conversations: int = 6) -> Any:
    return bench().Sizes(conversations, messages=2, seeds=1, real_seeds=1, remembered=(4, 8))


def free() -> Any:
    """The setting in which nothing holds conversations back."""
    return bench().Setting("free")


def rounded(played: Any) -> dict[int, list[tuple[str, float]]]:
    """What was played, with the virtual clock's rounding errors taken away."""
    return {key: [(name, round(seconds, 6)) for name, seconds in talk] for key, talk in played.took.items()}


@pytest.mark.slow
def test_in_every_setting_every_way_does_the_same_work_and_none_beats_the_bound() -> None:
    for setting in bench().SETTINGS:
        capped = dataclasses.replace(setting, slots=setting.slots and 3, in_flight=setting.in_flight and 2)
        played = {way: bench().virtually(capped, tiny(4), 1, way) for way in WAYS}
        bound = capped.bound(played["barrier-free"].took)
        assert rounded(played["sequential"]) == rounded(played["waves"]) == rounded(played["barrier-free"])
        assert min(each.seconds for each in played.values()) >= bound * (1 - 1e-9), setting.name
        assert played["sequential"].seconds > played["barrier-free"].seconds, setting.name


@pytest.mark.slow
def test_with_two_providers_each_agent_has_its_own_and_openers_take_turns_or_do_not() -> None:
    for staggered, openers in ((True, {FEW, MORE}), (False, {FEW})):
        setting = dataclasses.replace(free(), providers=2, staggered=staggered)
        talks = list(bench().virtually(setting, tiny(), 0, "waves").took.values())
        assert {talk[0][0] for talk in talks} == openers
        assert all(first != second for talk in talks for (first, _), (second, _) in itertools.pairwise(talk))
        assert len(talks) == 6


@pytest.mark.slow
def test_without_limits_a_barrier_free_run_ends_with_its_longest_conversation() -> None:
    played = bench().virtually(free(), tiny(20), 3, "barrier-free")
    assert played.seconds == pytest.approx(max(sum(seconds for _, seconds in talk) for talk in played.took.values()))


@pytest.mark.slow
def test_waves_take_the_slowest_call_of_every_turn_and_a_sequence_takes_them_all() -> None:
    waves, sequence = (bench().virtually(free(), tiny(), 4, way) for way in ("waves", "sequential"))
    turns = list(zip(*([seconds for _, seconds in talk] for talk in waves.took.values()), strict=True))
    assert waves.seconds == pytest.approx(sum(map(max, turns)))
    assert sequence.seconds == pytest.approx(sum(map(sum, turns)))


def test_a_conversation_that_ends_early_does_not_hold_up_the_waves() -> None:
    async def work() -> float:
        turns = bench().Turns(3, most=3)

        async def talk(length: int) -> None:
            for _ in range(length):
                async with turns.turn():
                    await asyncio.sleep(1.0)
            turns.over()

        await asyncio.gather(talk(1), talk(2), talk(5))
        return asyncio.get_running_loop().time()

    assert run_virtual(work()) == 5.0


def test_a_wave_has_no_more_calls_at_once_than_it_may() -> None:
    async def work() -> float:
        turns = bench().Turns(6, most=2)

        async def talk() -> None:
            async with turns.turn():
                await asyncio.sleep(1.0)

        await asyncio.gather(*(talk() for _ in range(6)))
        return asyncio.get_running_loop().time()

    assert run_virtual(work()) == 3.0


calls = st.lists(st.tuples(st.sampled_from([FEW, MORE]), st.floats(0.1, 9)), min_size=1, max_size=8)


@pytest.mark.slow
@given(st.lists(calls, min_size=1, max_size=8), st.integers(1, 5), st.floats(0.1, 9))
def test_the_bound_is_the_tightest_of_its_parts(talks: list[Any], cap: int, rate: float) -> None:
    took = dict(enumerate(talks))
    longest = max(sum(seconds for _, seconds in talk) for talk in talks)
    by_provider = [[seconds for talk in talks for name, seconds in talk if name == wanted] for wanted in (FEW, MORE)]

    def bound(**held: Any) -> float:
        return float(bench().Setting("some", **held).bound(took))

    assert bound() == longest
    assert bound(slots=cap) == pytest.approx(max(longest, sum(map(sum, by_provider)) / cap))
    assert bound(in_flight=cap) == pytest.approx(max(longest, *(sum(work) / cap for work in by_provider)))
    # A provider lets a second's worth through at once, but never less than one request.
    rates = [(len(work) - max(1.0, rate)) / rate for work in by_provider]
    assert bound(rate=rate) == pytest.approx(max(longest, *rates))
    assert bound(slots=cap, rate=rate) == max(bound(slots=cap), bound(rate=rate))


@pytest.mark.slow
def test_a_setting_that_is_ten_times_as_fast_is_the_same_in_a_tenth_of_the_time() -> None:
    setting = bench().Setting("paced", rate=0.5, knows="told", in_flight=3)
    quick = dataclasses.replace(setting, speed=10.0)
    slow, fast = (bench().virtually(each, tiny(), 0, "barrier-free") for each in (setting, quick))
    assert fast.seconds * 10 == pytest.approx(slow.seconds)
    assert quick.bound(fast.took) * 10 == pytest.approx(setting.bound(slow.took))
    usual, scaled = (each.simulator(0).config.limits for each in (setting, quick))
    assert (scaled.rpm, scaled.burst_seconds) == (usual.rpm * 10, usual.burst_seconds / 10)


@pytest.mark.slow
def test_a_failed_conversation_is_an_error_and_not_a_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    def player(*given: Any) -> str:
        raise ValueError("nothing to say")

    monkeypatch.setattr(bench(), "player", player)
    setting = dataclasses.replace(free(), speed=1e6)
    with pytest.raises(RuntimeError, match="conversations failed"):
        bench().virtually(setting, tiny(1), 0, "barrier-free")


@pytest.mark.slow
def test_a_conversation_that_is_played_twice_is_an_error_and_not_a_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = free().cases(tiny(2), 0)
    monkeypatch.setattr(bench().Setting, "cases", lambda self, sizes, seed: [cases[0], cases[0]])
    for setting in (free(), dataclasses.replace(free(), uneven=True)):
        with pytest.raises(RuntimeError, match="1 conversations of"):
            bench().virtually(setting, tiny(2), 0, "sequential")


@pytest.mark.slow
def test_every_setting_has_a_line_with_all_ways_beside_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench(), "SETTINGS", bench().SETTINGS[:1])
    (table,) = bench().measure(tiny(3), ["makespan"])
    (line,) = table.lines
    medians = {column: value.median for column, value in line.values.items()}
    assert medians["barrier-free"] == pytest.approx(1.0) and not line.missed
    assert medians["sequential"] > medians["waves"] >= medians["barrier-free"] == medians["worst seed"]


@pytest.mark.slow
def test_in_real_time_nothing_is_faster_than_the_virtual_clock_says() -> None:
    got = bench().really(0, tiny(3), 0)
    assert got["virtual s"] > 0.1
    assert got["real / virtual"] > 0.98  # a timer may be a millisecond early


@pytest.mark.slow
def test_the_same_conversations_cost_exactly_half_in_provider_batches() -> None:
    (table,) = bench().measure(tiny(), ["price"])
    equal, uneven = ({column: value.median for column, value in line.values.items()} for line in table.lines)
    assert (equal["calls"], equal["not in a batch"], equal["not at half"], equal["off half $"]) == (24, 0, 0, 0)
    assert equal["batch $"] * 2 == equal["realtime $"] > 0
    assert uneven["not at half"] == uneven["not in a batch"], "only what travelled alone may cost more"
    assert not any(line.missed for line in table.lines)


@pytest.mark.slow
def test_a_batch_that_costs_more_than_half_misses_its_target(monkeypatch: pytest.MonkeyPatch) -> None:
    dear = dataclasses.replace(pricing.TABLE["claude-haiku-4-5"], batch=0.5000001)
    monkeypatch.setitem(pricing.TABLE, "claude-haiku-4-5", dear)
    (table,) = bench().measure(tiny(), ["price"])
    assert table.lines[0].missed and table.lines[0].values["not at half"].median == 12


@pytest.mark.slow
def test_memory_is_that_of_a_process_of_its_own_in_which_every_call_was_charged_once() -> None:
    command = [sys.executable, "-m", "fanfold.simulator", "--port", "0", "--answer", bench().PLAYER]
    with bench().server(command) as url:
        got = bench().held(url, "async:200", 4, FEW)
    assert got["failed"] == 0 and 4 <= got["calls"] <= 40
    assert 10 < got["after MB"] <= got["peak MB"] * 1.01 < 1_000


@pytest.mark.slow
def test_the_peak_of_a_process_is_not_that_of_the_one_that_started_it() -> None:
    much = bytearray(b"x") * 300_000_000
    ask = [sys.executable, "-c", "import conversations; print(conversations.peak())"]
    answer = subprocess.run(ask, check=True, capture_output=True, text=True, cwd=BENCHMARKS).stdout
    assert 10_000_000 < int(answer) < len(much)


def test_growth_beyond_the_target_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {4: {"peak MB": 50.0, "after MB": 40.0}, 8: {"peak MB": 76.0, "after MB": 40.0}}
    monkeypatch.setattr(bench(), "server", lambda command: contextlib.nullcontext("http://nowhere"))
    monkeypatch.setattr(bench(), "held", lambda url, executor, count, name: sizes[count])
    (table,) = bench().measure(tiny(), ["memory"])
    assert [line.name for line in table.lines if line.missed] == [
        f"8 on async:200, {FEW}",
        "8 on async:200, simulated/gpt-4o-mini",
    ]


@pytest.mark.slow
def test_only_the_sections_that_were_asked_for_are_measured_and_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench(), "QUICK", tiny(4))
    file = tmp_path / "conversations.json"
    assert bench().main(["--quick", "--only", "price", "--strict", "--json", str(file)]) == 0
    assert [table["title"].split(",")[0] for table in json.loads(file.read_text())["tables"]] == [
        "What provider batches cost"
    ]
    assert "every target met" in capsys.readouterr().out


def test_a_section_that_does_not_exist_is_refused_with_the_nearest_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bench().main(["--only", "prise"])
    assert "did you mean 'price'" in capsys.readouterr().err
