"""What calls cost: cached input, usage that was not sent, prices nobody knows, and what a run says of it all."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fanfold import Case, ConfigError, MaxCost, Run, Study, Sweep
from fanfold.ledger import Spending
from fanfold.limits import Limits
from fanfold.models import model
from fanfold.models.batch.executor import BatchExecutor
from fanfold.models.model import Model
from fanfold.models.pricing import TABLE, Price, price_of
from fanfold.models.providers.anthropic import Anthropic
from fanfold.models.providers.compatible import Compatible
from fanfold.models.providers.openai import OpenAI
from fanfold.models.simulated import SimulatedTransport
from fanfold.simulator.billing import Rates
from fanfold.simulator.config import Answer, Latency, SimulatorConfig
from fanfold.simulator.core import Simulator
from fanfold.simulator.faults import Fault, Faults
from fanfold.testing import run_virtual

#: Input, output, read from and written to the prompt cache, as the providers' price lists have them.
RATES = {"gpt-6-luna": Rates(0.1, 0.5, 0.01, 0.1), "claude-haiku-4-5": Rates(1.0, 5.0, 0.1, 1.25)}


def world(name: str, *faults: Fault, **settings: Any) -> tuple[Model, Simulator]:
    settings = {"latency": Latency(1.0), "turnaround": Latency(60.0), **settings}
    simulator = Simulator(SimulatorConfig(faults=Faults(faults), **settings))
    wire = Anthropic() if name.startswith("claude") else OpenAI()
    url = "http://api.test" if name.startswith("claude") else "http://api.test/v1"
    transport = SimulatedTransport(simulator)
    return Model(name, wire, url, Limits(), price_of(name), 30.0, connect=lambda: transport, key="k"), simulator


def talks(asked: Model, talks: int = 3, turns: int = 3, **options: Any) -> Study[Any]:
    async def evaluate(candidate: int, case: Case) -> float:
        dialogue: list[dict[str, str]] = []
        for turn in range(turns):
            dialogue.append({"role": "user", "content": f"{candidate} says {turn}"})
            reply = await asked.generate(dialogue, max_tokens=20, reasoning_effort="none")
            dialogue.append({"role": "assistant", "content": reply.text or "(nothing)"})
        return float(len(str(dialogue)))

    return Study(Sweep(range(talks)), evaluate, window=3, **options)


def do(study: Study[Any], executor: Any = "async:3", **options: Any) -> Run[Any]:
    return run_virtual(study.run_async(executor, **options))


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("name", list(RATES))
def test_cached_input_is_paid_at_its_own_price(name: str, batched: bool) -> None:
    asked, simulator = world(name, prompt_cache=8)

    async def evaluate(candidate: int, case: Case) -> float:
        common = [{"role": "user", "content": "A long beginning. " * 20}, {"role": "assistant", "content": "Well."}]
        question = {"role": "user", "content": f"What about {candidate}?"}
        return float(len((await asked.generate([*common, question], max_tokens=20, cache=True)).text))

    run = do(Study(Sweep(range(6)), evaluate), BatchExecutor("auto") if batched else "async:2")
    books, money = simulator.billing, run.money
    cached = sum(charge.cached_tokens for charge in books.charges)
    assert cached > 0 and money.cached_tokens == cached
    assert sum(charge.written_tokens for charge in books.charges) > 0 or not name.startswith("claude")
    assert money.cost == pytest.approx(books.bill(RATES[name]))
    assert money.input_tokens == sum(charge.input_tokens for charge in books.charges)
    dear = sum(asked.price.cost(c.input_tokens, c.output_tokens, batch=batched) for c in books.charges if asked.price)
    assert money.cost < dear
    assert f"{cached:,} of them cached" in money.lines()[0]


def test_every_model_of_a_provider_that_caches_prompts_has_a_price_for_cached_input() -> None:
    for name, price in TABLE.items():
        elsewhere = "/" in name  # such a provider may ask the full price for everything
        assert (elsewhere and price.cached is None) or 0 < (price.cached or 0) < price.input, name


# -- usage that is not sent ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("name", list(RATES))
def test_what_was_paid_without_usage_is_estimated_from_the_text_and_marked(name: str, batched: bool) -> None:
    asked, simulator = world(name, usage=False)
    run = do(talks(asked), BatchExecutor("auto") if batched else "async:3")
    money = run.money
    assert (money.calls, money.estimated, money.unpriced) == (9, 9, 0)
    # The simulator counts by the same rule, and the shape of a request takes characters of its own.
    bill = simulator.billing.bill(RATES[name])
    assert bill < money.cost < 4 * bill
    assert money.output_tokens == sum(charge.output_tokens for charge in simulator.charges)
    assert "tokens estimated for 9 calls" in money.lines()
    assert run.progress.cost == pytest.approx(money.cost)


def test_a_reply_whose_usage_makes_no_sense_is_estimated() -> None:
    body = {"choices": [{"message": {"content": "12345678"}, "finish_reason": "stop"}]}
    for usage in (None, {}, {"prompt_tokens": -5, "completion_tokens": 3}, {"prompt_tokens": 5}, "much", [1]):
        reply = Compatible().reply({**body, "usage": usage})
        assert reply.estimated and reply.input_tokens >= 0 and reply.output_tokens in (2, 3)
    assert not Compatible().reply({**body, "usage": {"prompt_tokens": 5, "completion_tokens": 3}}).estimated


def test_a_budget_holds_without_usage(tmp_path: Path) -> None:
    asked, simulator = world("gpt-6-luna", usage=False)
    limit = 0.0003
    for _ in range(2):
        do(talks(asked, 1000, stop=MaxCost(limit)), ledger=tmp_path / "l.db", run="a")
        assert simulator.billing.bill(RATES["gpt-6-luna"]) <= limit


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["lost_drop", "cut", "truncate", "lost_hang"])
def test_a_budget_counts_replies_that_were_lost_on_the_way(kind: str, tmp_path: Path) -> None:
    """The provider has charged them all the same."""
    asked, simulator = world("gpt-6-luna", Fault(kind, probability=0.3, on=("generate",)))
    limit = 0.0006
    for _ in range(2):
        run = do(talks(asked, 1000, turns=1, stop=MaxCost(limit)), ledger=tmp_path / "l.db", run="a")
        bill = simulator.billing.bill(RATES["gpt-6-luna"])
        assert run.money.cost < bill <= min(limit, run.money.cost + run.money.at_risk)
    assert any("may have been charged too" in line for line in run.money.lines())


# -- prices nobody knows ---------------------------------------------------------------------------------------------


def test_what_was_paid_at_an_unknown_price_is_unknown_and_not_nothing() -> None:
    asked, _ = world("gpt-6-luna")
    nobody = replace(asked, name="nobody-knows", price=None)

    async def evaluate(candidate: int, case: Case) -> float:
        return float(len((await (nobody if candidate % 2 else asked).generate(f"say {candidate}")).text))

    said: list[str] = []
    run = do(Study(Sweep(range(6)), evaluate), watch=lambda event: said.append(getattr(event, "message", "")))
    assert run.money.unpriced == 3 and run.money.cost > 0
    assert run.money.cost_text.startswith("at least ") and " (3 calls of unknown price)" in run.money.cost_text
    assert any("the price of openai/nobody-knows is not known" in text for text in said)


# -- half price, and why not -----------------------------------------------------------------------------------------


def paid_in_batches(asked: Model, count: int, **options: Any) -> Spending:
    async def evaluate(candidate: int, case: Case) -> float:
        return float(len((await asked.generate(f"say {candidate}", max_tokens=20)).text))

    return do(Study(Sweep(range(count)), evaluate), BatchExecutor("auto", **options)).money


def test_the_end_of_a_run_says_what_was_paid_at_half_price_and_why_the_rest_was_not() -> None:
    asked, _ = world("gpt-6-luna")
    money = paid_in_batches(asked, 1, fallback="realtime")
    assert money.full_price == {"fewer than 2 in a wave": 1}
    assert money.lines()[1] == "0 of 1 calls at half price; 1 at full price: fewer than 2 in a wave"
    money = paid_in_batches(asked, 7)
    assert (money.batched, money.full_price) == (7, {}) and money.lines()[1] == "7 of 7 calls at half price"
    assert "7 model calls" in money.lines()[0] and "cost $" in money.lines()[0]


@pytest.mark.parametrize(
    ("name", "fault", "options", "why"),
    [
        ("gpt-6-luna", Fault("batch_failed"), {"fallback": "realtime"}, "the batch failed"),
        ("claude-haiku-4-5", Fault("batch_expired", value=0.0), {"fallback": "realtime"}, "the batch expired"),
        ("gpt-6-luna", None, {"deadline": 5.0}, "deadline"),
    ],
)
def test_calls_that_were_paid_in_full_say_why(name: str, fault: Fault | None, options: Any, why: str) -> None:
    asked, simulator = world(name, *([fault] if fault else []), turnaround=Latency(3600.0))
    money = paid_in_batches(asked, 4, **options)
    assert money.full_price == {why: 4} and money.batched == 0
    assert money.cost == pytest.approx(simulator.billing.bill(RATES[name]))


def test_a_model_without_batches_beside_one_with_them_is_told_apart() -> None:
    asked, simulator = world("gpt-6-luna", answer=lambda *given: Answer("Yes."))
    plain = replace(asked, provider=Compatible(), name="own", price=None)

    async def evaluate(candidate: int, case: Case) -> float:
        texts = await asyncio.gather(
            asked.generate(f"say {candidate}", max_tokens=5), plain.generate(f"say {candidate}", max_tokens=5)
        )
        return float(sum(len(reply.text) for reply in texts))

    money = do(Study(Sweep(range(3)), evaluate, window=3), BatchExecutor("auto")).money
    assert money.lines()[1] == "3 of 6 calls at half price; 3 at full price: not for a batch"
    assert money.unpriced == 3 and len(simulator.charges) == 6


@pytest.mark.parametrize("price", [0.5, 0, (1,), "free", (-1, 2), ("1", "2"), (math.nan, 1), {"input": 1}, (1, True)])
def test_a_price_that_is_none_is_refused_with_how_to_write_it(price: Any) -> None:
    with pytest.raises(ConfigError, match="US dollars per million tokens"):
        model("m", base_url="http://127.0.0.1:9/v1", price=price)


@pytest.mark.parametrize("price", [Price(1, 2), (1, 2), [1, 2], {"input": 1, "output": 2}])
def test_a_price_has_several_forms(price: Any) -> None:
    assert model("m", base_url="http://127.0.0.1:9/v1", price=price).price == Price(1, 2)


@pytest.mark.parametrize(
    "setting", [{"timeout": "5"}, {"timeout": -1}, {"timeout": 0}, {"limits": 5}, {"limits": {"a": 1}}]
)
def test_a_setting_of_a_model_that_cannot_work_is_refused(setting: Any) -> None:
    with pytest.raises(ConfigError, match=next(iter(setting))):
        model("m", base_url="http://127.0.0.1:9/v1", **setting)
