"""Rehearsals: what a study would take and cost, with nothing sent, and the same each time."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fanfold import Case, ConfigError, MaxCost, MaxTime, MaxTrials, Ok, Random, Space, Study, Sweep, Target
from fanfold.context import here
from fanfold.limits import Limits
from fanfold.models import Model, Price, model
from fanfold.rehearsal import Assumptions, estimate, rehearse, rehearsing
from fanfold.simulator import Latency
from fanfold.space import Int

STEADY = Assumptions(latency=Latency(1.0))


@dataclass(frozen=True)
class Ask:
    """Asks a model about candidate and case; the score follows from the reply."""

    model: Model
    parameters: tuple[tuple[str, Any], ...] = (("max_tokens", 50),)
    fingerprint: str = "ask"

    async def __call__(self, candidate: Any, case: Case) -> Ok:
        reply = await self.model.generate(f"{candidate} {case.id}", **dict(self.parameters))
        return Ok(len(reply.text))


def asking(asked: Model, trials: int = 4, cases: int = 5, **options: Any) -> Study[Any]:
    parameters = options.pop("parameters", {"max_tokens": 50})
    evaluate = Ask(asked, tuple(parameters.items()))
    return Study(Sweep(list(range(trials))), evaluate, cases=range(cases), **options)


def keyless(name: str, **options: Any) -> Model:
    with rehearsing():
        return model(name, **options)


@pytest.fixture(autouse=True)
def nothing_outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No keys in the environment, and a connection to anywhere is an error."""

    async def forbidden(*args: object, **kwargs: object) -> None:
        raise AssertionError("a rehearsal opened a connection")

    monkeypatch.chdir(tmp_path)
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(asyncio.SelectorEventLoop, "sock_connect", forbidden)


@pytest.mark.parametrize("executor", ["async:64", "inline", "batch:auto"])
@pytest.mark.parametrize("name", ["openai/gpt-6-luna", "anthropic/claude-haiku-5-5", "simulated/gpt-6-luna"])
def test_a_study_is_rehearsed_without_key_and_connection(name: str, executor: str, tmp_path: Path) -> None:
    forecast = rehearse(asking(keyless(name)), executor, STEADY)
    assert (forecast.trials, forecast.evaluations, forecast.failures, forecast.calls) == (4, 20, 0, 20)
    (usage,) = forecast.usage
    assert usage.batched == (20 if executor == "batch:auto" else 0)
    price = Price(0.1, 0.5)
    assert usage.cost == pytest.approx(price.cost(usage.input_tokens, usage.output_tokens, batch=usage.batched > 0))
    assert list(tmp_path.iterdir()) == []
    assert here().rehearsal is None


def test_outside_a_rehearsal_a_model_still_needs_its_key() -> None:
    keyless("openai/gpt-6-luna")
    with pytest.raises(ConfigError, match="OPENAI_API_KEY"):
        model("openai/gpt-6-luna")


@pytest.mark.parametrize(
    "asked",
    [
        lambda: model("llama", base_url="http://127.0.0.1:1/deep/v1"),
        lambda: keyless("anthropic/claude-haiku-5-5", base_url="https://gateway.test/anthropic"),
    ],
)
def test_models_anywhere_are_rehearsed_in_their_own_protocol(asked: Any) -> None:
    study = asking(asked(), parameters={"max_tokens": 9, "top_k": 3, "temperature": 0.5})
    forecast = rehearse(study, "async:8", STEADY)
    assert (forecast.calls, forecast.failures) == (20, 0)


def test_a_batch_is_rehearsed_also_behind_a_gateway() -> None:
    asked = keyless("anthropic/claude-haiku-5-5", base_url="https://gateway.test/anthropic")
    (usage,) = rehearse(asking(asked), "batch:anthropic", STEADY).usage
    assert usage.batched == usage.calls == 20


@pytest.mark.slow
def test_time_follows_from_latency_and_concurrency() -> None:
    study = asking(keyless("openai/gpt-6-luna", limits=Limits(adaptive=False)), trials=6, cases=2)
    assert rehearse(study, "inline", STEADY).seconds == pytest.approx(12.0)
    wide = Study(Sweep(range(6)), study.evaluate, cases=range(2), window=6)
    assert rehearse(wide, "async:64", STEADY).seconds == pytest.approx(1.0)
    slow = Assumptions(latency=Latency(1.0, 0.0, 0.1))
    assert rehearse(wide, "async:64", slow).seconds == pytest.approx(6.0)  # replies are longer than the 50 allowed


@pytest.mark.slow
@pytest.mark.parametrize("told", [True, False], ids=["told to the model", "assumed"])
@pytest.mark.parametrize("name", ["openai/gpt-6-luna", "anthropic/claude-haiku-5-5"])
def test_a_limit_decides_how_long_it_takes(name: str, told: bool) -> None:
    limits = Limits(requests_per_minute=120) if told else None
    study = asking(keyless(name, limits=limits), trials=60, cases=5, window=60)
    assumed = Assumptions(latency=Latency(1.0), requests=None if told else 120)
    forecast = rehearse(study, "async:64", assumed)
    (usage,) = forecast.usage
    assert usage.limits == {"requests/min": 120}
    assert 120.0 <= forecast.seconds <= 160.0  # 300 calls at two a second, less what a burst allows
    assert usage.utilisation is not None and usage.utilisation >= 0.93
    assert usage.refused <= 3


@pytest.mark.slow
def test_an_unknown_price_stays_unknown() -> None:
    known, unknown = keyless("openai/gpt-6-luna"), keyless("openai/gpt-nobody-knows")
    assert rehearse(asking(unknown), "async", STEADY).cost is None
    assert estimate(asking(unknown), "async", STEADY).high.cost is None

    async def both(candidate: Any, case: Case) -> float:
        await known.generate(str(candidate), max_tokens=5)
        await unknown.generate(str(candidate), max_tokens=5)
        return 0.0

    forecast = rehearse(Study(Sweep(range(2)), both), "async", STEADY)
    assert [each.cost is None for each in forecast.usage] == [False, True] and forecast.cost is None


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["async:64", "batch:auto"])
def test_two_rehearsals_are_the_same_and_leave_randomness_alone(executor: str) -> None:
    study = asking(keyless("openai/gpt-6-luna"), trials=8)
    before = random.getstate()
    tight = Assumptions(requests=30, tokens=3000)
    assert rehearse(study, executor, tight) == rehearse(study, executor, tight)
    assert random.getstate() == before


def test_a_rehearsal_works_inside_a_running_loop() -> None:
    study = asking(keyless("openai/gpt-6-luna"))

    async def notebook() -> int:
        return rehearse(study, "async", STEADY).calls

    assert asyncio.run(notebook()) == 20


def test_what_leaves_the_virtual_clock_is_refused_with_a_remedy() -> None:
    def plain(candidate: Any, case: Case) -> float:
        return 0.0

    with pytest.raises(ConfigError, match=r"plain function.*async def"):
        rehearse(Study(Sweep([1]), plain))
    with pytest.raises(ConfigError, match=r"processes:2.*use async:N"):
        rehearse(asking(keyless("openai/gpt-6-luna")), "processes:2")
    with pytest.raises(ConfigError, match="reply_tokens=0"):
        Assumptions(reply_tokens=0)


def test_an_evaluator_that_cannot_read_made_up_replies_is_reported() -> None:
    asked = keyless("openai/gpt-6-luna")

    async def strict(candidate: Any, case: Case) -> float:
        return float((await asked.generate("?", max_tokens=5)).text)

    forecast = rehearse(Study(Sweep(range(3)), strict), "async", STEADY)
    assert forecast.failures == 3 and forecast.failure is not None and "could not convert" in forecast.failure


def test_a_reply_that_was_to_be_json_is_json() -> None:
    import json

    asked, said = keyless("openai/gpt-6-luna"), []

    async def read(candidate: Any, case: Case) -> float:
        reply = await asked.generate(str(candidate), response_format={"type": "json_object"})
        said.append(json.loads(reply.text))
        return 0.0

    assert rehearse(Study(Sweep(range(20)), read), "async", STEADY).failures == 0
    assert len(said) == 20


@pytest.mark.slow
def test_an_estimate_goes_from_the_shortest_replies_to_the_longest() -> None:
    study = asking(
        keyless("openai/gpt-4o-mini"), parameters={"max_tokens": 900}, stop=MaxTrials(40), trials=100, window=4
    )
    found = estimate(study, "async", Assumptions(reply_tokens=200), sample=10)
    assert (found.trials, found.cases, found.sample, found.endless) == (40, 5, 10, False)
    assert found.low.calls == found.expected.calls == found.high.calls == 200
    assert found.high.output_tokens == 200 * 990  # the 900, and a tenth for how tokens are counted
    assert found.low.cost < found.expected.cost < found.high.cost  # type: ignore[operator]
    assert found.low.seconds < found.expected.seconds < found.high.seconds
    shortest = found.low.output_tokens / 200 / 0.9
    assert shortest == pytest.approx(round(shortest)) and shortest < 200 < found.expected.output_tokens / 200 * 1.5


@pytest.mark.slow
def test_an_estimate_at_its_highest_runs_every_case() -> None:
    from fanfold import Halving

    study = asking(keyless("openai/gpt-6-luna"), trials=9, cases=9, schedule=Halving(), stop=MaxTrials(9), window=9)
    found = estimate(study, "async", STEADY)
    assert found.expected.calls < found.high.calls == 81


@pytest.mark.slow
def test_an_estimate_knows_how_many_trials_there_will_be() -> None:
    asked = Ask(keyless("openai/gpt-6-luna"))
    endless = Study(Random(Space(x=Int(0, 10**9))), asked)
    found = estimate(endless, "async", STEADY, sample=5)
    assert (found.trials, found.endless, found.expected.calls) == (100, True, 100)
    short = estimate(Study(Sweep(range(3)), asked), "async", STEADY)
    assert (short.trials, short.endless, short.expected.calls) == (3, False, 3)
    long = estimate(Study(Sweep(range(300)), asked), "async", STEADY, sample=5)
    assert (long.trials, long.endless, long.expected.calls) == (300, False, 300)
    assert estimate(Study(Sweep(range(8)), asked, stop=MaxTrials(90)), "async", STEADY, sample=5).trials == 8
    grid = Sweep.grid(Space(x=Int(0, 10), y=Int(0, 10**9)), 20)
    assert estimate(Study(grid, asked), "async", STEADY, sample=5).trials == 220
    limited = estimate(Study(Sweep(range(50)), asked, stop=MaxTrials(7) | MaxCost(0.5)), "async", STEADY)
    assert (limited.trials, limited.cost_limit) == (7, 0.5)


async def free(candidate: Any, case: Case) -> float:
    return 0.5


@pytest.mark.slow
def test_a_rehearsal_of_a_study_without_end_ends() -> None:
    asked = Ask(keyless("openai/gpt-6-luna"))
    endless = Study(Random(Space(x=Int(0, 10**9))), asked, stop=Target(1e9))
    found = rehearse(endless, "async", STEADY)
    assert found.trials == 1000 and "no end" in found.reason
    assert rehearse(endless, "async", STEADY, max_trials=7).trials == 7
    assert rehearse(replace(endless, stop=MaxTime(30.0)), "async", STEADY).trials > 1000
    for rule in (MaxCost(1.0), MaxTime("1h"), MaxTime("1h") & MaxTrials(5)):  # of what costs nothing and takes no time
        assert rehearse(replace(endless, evaluate=free, stop=rule), "async", STEADY).trials == 1000
    assert rehearse(replace(endless, evaluate=free, stop=MaxTime("1h") | MaxTrials(1100)), "async").trials == 1100
    assert rehearse(Study(Sweep(range(1500)), asked), "async", STEADY).trials == 1500


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(
    st.integers(1, 6),
    st.integers(1, 4),
    st.one_of(st.none(), st.integers(1, 300)),
    st.integers(1, 400),
    st.one_of(st.none(), st.floats(30, 3000)),
    st.integers(1, 12),
)
def test_low_is_never_above_expected_nor_expected_above_high(
    trials: int, cases: int, most: int | None, middle: int, rate: float | None, sample: int
) -> None:
    study = asking(keyless("openai/gpt-6-luna"), trials, cases, parameters={"max_tokens": most}, stop=MaxTrials(20))
    found = estimate(study, "async", Assumptions(reply_tokens=middle, requests=rate), sample)
    for name in ("seconds", "calls", "input_tokens", "output_tokens", "cost"):
        assert getattr(found.low, name) <= getattr(found.expected, name) <= getattr(found.high, name)


def test_models_say_what_the_world_of_the_rehearsal_says_at_the_length_that_is_assumed() -> None:
    heard: list[str] = []
    asked = keyless("openai/gpt-6-luna")

    async def listen(candidate: int, case: Case) -> float:
        heard.append((await asked.generate(f"What is {candidate}?", max_tokens=50)).text)
        return 0.0

    def world(model: str, messages: Any, params: Any, rng: random.Random) -> str:
        return f"I know: {messages[-1]['content']}"

    forecast = rehearse(Study(Sweep([1, 2]), listen), "async", STEADY, answer=world)
    assert sorted(heard) == ["I know: What is 1?", "I know: What is 2?"]
    assert (
        forecast.usage[0].output_tokens
        == rehearse(Study(Sweep([1, 2]), listen), "async", STEADY).usage[0].output_tokens
    )


@dataclass(frozen=True)
class Filing:
    """Writes a file for every evaluation, but not in a rehearsal."""

    folder: Path | None
    model: Model

    def rehearsed(self) -> Filing:
        return replace(self, folder=None)

    async def __call__(self, candidate: int, case: Case) -> float:
        await self.model.generate(str(candidate))
        if self.folder is not None:
            (self.folder / str(candidate)).touch()
        return 0.0


def test_what_would_write_files_gives_a_part_for_rehearsals_that_does_not(tmp_path: Path) -> None:
    filing = Filing(tmp_path, keyless("openai/gpt-6-luna"))
    assert rehearse(Study(Sweep([1, 2]), filing), "async", STEADY).evaluations == 2
    assert list(tmp_path.iterdir()) == []
