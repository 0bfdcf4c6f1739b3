"""What a model and its broker promise: limits kept, failures typed, nothing paid twice, no key anywhere."""

from __future__ import annotations

import asyncio
import math
import sqlite3
from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from fanfold import Case, MaxCost, MaxTrials, Study, Sweep
from fanfold.calls import Budget, Call, CallBroker, Reply, Sent
from fanfold.context import enter, leave
from fanfold.errors import CallFailed, ConfigError
from fanfold.ledger import Commits, Ledger
from fanfold.limits import Limits
from fanfold.models import Model, model
from fanfold.models.breaker import Breaker
from fanfold.models.http import Response
from fanfold.models.simulated import SimulatedTransport
from fanfold.models.transport import Transport
from fanfold.simulator import AccountLimits as ServerLimits
from fanfold.simulator import Fault, Faults, Simulator, SimulatorConfig, serve
from fanfold.testing import run_virtual

KEY = "sk-canary-1234567890"


def simulated(
    name: str = "gpt-6-luna", config: SimulatorConfig | None = None, **options: Any
) -> tuple[Model, Simulator]:
    """A model on a simulator of its own, in this process."""
    simulator = Simulator(config or SimulatorConfig())
    transport = SimulatedTransport(simulator)
    return replace(model(f"simulated/{name}"), connect=lambda: transport, key=KEY, **options), simulator


def with_desk(path: Path | None, body: Callable[[CallBroker], Awaitable[Any]], **options: Any) -> Any:
    """Run `body` on the virtual clock with a broker over a ledger."""

    async def main() -> Any:
        ledger = Ledger(path)
        commits = Commits(ledger)
        broker = CallBroker(ledger, commits, **options)
        before = enter(broker=broker)
        try:
            return await body(broker)
        finally:
            leave(before)
            await broker.close()
            await commits.flush()
            commits.close()
            ledger.close()

    return run_virtual(main())


# -- replies ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gpt-6-luna", "claude-haiku-5-5"])
def test_a_reply_has_text_usage_cost_and_time(name: str) -> None:
    asked, simulator = simulated(name)

    async def body(broker: CallBroker) -> Reply:
        return await asked.generate("Name a city.", system="Be brief.", max_tokens=20, temperature=0.5)

    reply = with_desk(None, body)
    assert reply.text and reply.finish in ("stop", "length") and not reply.cached
    assert reply.cost == pytest.approx((reply.input_tokens * 0.1 + reply.output_tokens * 0.5) / 1e6)
    assert len(simulator.charges) == 1


def test_models_are_named_and_mistakes_explained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ConfigError, match="did you mean 'openai'"):
        model("opnai/gpt")
    with pytest.raises(ConfigError, match="set OPENAI_API_KEY, or use local/smollm2"):
        model("openai/gpt-6-luna")
    with pytest.raises(ConfigError, match="lacks the model's name"):
        model("openai/", key="k")
    with pytest.raises(ConfigError, match="balanced"):
        model("openai/gpt", key="k", limits="balancd")
    with pytest.raises(ConfigError, match="no option 'colour'"):
        model("openai/gpt", key="k", colour="red")
    (tmp_path / ".env").write_text(
        '# keys\nexport OPENAI_API_KEY="sk-from-env-file"\nOPENAI_BASE_URL=http://127.0.0.1:1/v1\n'
    )
    found = model("openai/gpt-6-luna")
    assert found.key == "sk-from-env-file" and found.url == "http://127.0.0.1:1/v1"
    assert model("llama3", base_url="http://127.0.0.1:11434/v1").id == "openai-compatible/llama3"


def test_keys_never_show(tmp_path: Path) -> None:
    asked, _ = faulty(Fault("malformed", times=1), Fault("spend_limit", start=1e9))
    path = tmp_path / "runs.db"

    async def evaluate(candidate: int, case: Case) -> float:
        if candidate == 1:
            await replace(asked, provider=asked.provider, key="").generate("x")
        return len((await asked.generate(f"say {candidate}", max_tokens=5)).text)

    try:
        Study(Sweep(range(3)), evaluate).run("async:2", ledger=path)
    except CallFailed as error:
        assert KEY not in str(error)
    assert KEY not in repr(asked)
    for file in tmp_path.iterdir():
        assert KEY.encode() not in file.read_bytes(), file


# -- never twice ------------------------------------------------------------------------------------------------------


def test_the_same_request_is_paid_once_across_runs_and_samples_are_apart(tmp_path: Path) -> None:
    asked, simulator = simulated()

    async def body(broker: CallBroker) -> list[Reply]:
        first = await asked.generate("Say something.", max_tokens=20)
        again = await asked.generate("Say something.", max_tokens=20)
        other = await asked.generate("Say something.", max_tokens=20, sample=1)
        return [first, again, other]

    first, again, other = with_desk(tmp_path / "a.db", body)
    assert again.text == first.text and again.cached and again.cost == 0.0 and not other.cached
    assert len(simulator.charges) == 2
    once_more = with_desk(tmp_path / "a.db", body)
    assert [reply.cached for reply in once_more] == [True] * 3 and len(simulator.charges) == 2


@pytest.mark.parametrize(("cache", "charges"), [("on", 1), ("refresh", 2), ("off", 2)])
def test_the_cache_does_what_its_mode_says(tmp_path: Path, cache: Any, charges: int) -> None:
    asked, simulator = simulated()

    async def body(broker: CallBroker) -> Reply:
        return await asked.generate("Hello")

    with_desk(tmp_path / "a.db", body)
    with_desk(tmp_path / "a.db", body, cache=cache)
    assert len(simulator.charges) == charges


def test_offline_answers_from_the_ledger_only(tmp_path: Path) -> None:
    asked, simulator = simulated()

    async def known(broker: CallBroker) -> Reply:
        return await asked.generate("Hello")

    async def unknown(broker: CallBroker) -> Reply:
        return await asked.generate("Never asked")

    with_desk(tmp_path / "a.db", known)
    assert with_desk(tmp_path / "a.db", known, cache="offline").cached
    with pytest.raises(CallFailed, match="offline"):
        with_desk(tmp_path / "a.db", unknown, cache="offline")
    assert len(simulator.charges) == 1


def test_identical_calls_in_flight_share_one_request(tmp_path: Path) -> None:
    asked, simulator = simulated()

    async def body(broker: CallBroker) -> list[Reply]:
        return await asyncio.gather(*(asked.generate("All at once") for _ in range(20)))

    replies = with_desk(tmp_path / "a.db", body)
    assert len({reply.text for reply in replies}) == 1 and len(simulator.charges) == 1
    assert sum(not reply.cached for reply in replies) == 1


def test_a_reply_is_on_disk_before_the_evaluation_goes_on(tmp_path: Path) -> None:
    asked, _ = simulated()
    path = tmp_path / "a.db"

    async def body(broker: CallBroker) -> int:
        await asked.generate("Hello")
        with sqlite3.connect(path) as other:
            return int(other.execute("SELECT count(*) FROM call").fetchone()[0])

    assert with_desk(path, body) == 1


def test_a_call_whose_asker_gave_up_is_carried_through_and_kept(tmp_path: Path) -> None:
    from fanfold.simulator import Latency

    asked, simulator = simulated(config=SimulatorConfig(latency=Latency(10.0)))

    async def body(broker: CallBroker) -> Reply:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2):
                await asked.generate("Slow")
        await asyncio.sleep(20)
        return await asked.generate("Slow")

    assert with_desk(tmp_path / "a.db", body).cached
    assert len(simulator.charges) == 1


# -- failures ---------------------------------------------------------------------------------------------------------


def faulty(*faults: Fault, **options: Any) -> tuple[Model, Simulator]:
    return simulated(config=SimulatorConfig(faults=Faults(faults)), **options)


@pytest.mark.parametrize(
    "kind", ["rate_limit", "internal", "bad_gateway", "unavailable", "overloaded", "disconnect", "cut"]
)
def test_what_passes_is_retried_until_it_has_passed(kind: str) -> None:
    asked, _ = faulty(Fault(kind, times=3))

    async def body(broker: CallBroker) -> tuple[Reply, int]:
        return await asked.generate("Hello"), broker.metrics.retries

    reply, retries = with_desk(None, body)
    assert reply.text and retries == 3


def test_a_hung_server_ends_at_the_deadline_and_is_tried_again() -> None:
    asked, _ = faulty(Fault("hang", times=1), timeout=30.0)

    async def body(broker: CallBroker) -> float:
        begun = broker.loop.time()
        await asked.generate("Hello")
        return broker.loop.time() - begun

    assert 30 <= with_desk(None, body) <= 40


class Poisoned(SimulatedTransport):
    """Answers one request with an error every time."""

    poison = 0

    async def request(self, method: str, url: str, headers: Any, body: bytes | None = None, **rest: Any) -> Response:
        if b"poison" in (body or b""):
            self.poison += 1
            return Response(500, {}, b'{"error": {"message": "boom"}}')
        return await super().request(method, url, headers, body, **rest)


@pytest.mark.slow
def test_a_request_that_always_fails_is_given_up_while_others_pass() -> None:
    transport = Poisoned(Simulator(SimulatorConfig()))
    asked = replace(model("simulated/gpt-6-luna"), connect=lambda: transport)

    async def body(broker: CallBroker) -> None:
        others = asyncio.create_task(_keep_asking(asked, 200))
        with pytest.raises(CallFailed, match="boom") as caught:
            await asked.generate("poison")
        assert caught.value.kind == "server"
        await others

    with_desk(None, body)
    assert transport.poison == 10 and len(transport.simulator.charges) == 200


def test_an_endless_outage_is_given_up_at_last() -> None:
    asked, simulator = faulty(Fault("internal"))

    async def body(broker: CallBroker) -> float:
        with pytest.raises(CallFailed) as caught:
            await asked.generate("Hello")
        assert caught.value.kind == "server"
        return broker.loop.time()

    assert 3600 <= with_desk(None, body) <= 3800
    assert not simulator.charges


async def _keep_asking(asked: Model, times: int) -> None:
    for number in range(times):
        await asked.generate(f"ping {number}")
        await asyncio.sleep(1)


def test_an_outage_of_half_an_hour_is_waited_out_without_hammering() -> None:
    asked, simulator = faulty(Fault("unavailable", end=1800.0))

    async def body(broker: CallBroker) -> tuple[float, int]:
        replies = await asyncio.gather(*(asked.generate(f"say {n}") for n in range(50)))
        return broker.loop.time(), sum(bool(reply.text) for reply in replies)

    took, answered = with_desk(None, body)
    assert answered == 50 and took < 1900
    assert len(simulator.charges) == 50


def test_during_an_outage_one_call_at_a_time_probes_with_growing_pauses() -> None:
    probes: list[float] = []

    async def main() -> None:
        breaker = Breaker(pause=1.0, longest=8.0)
        clock = asyncio.get_running_loop().time

        async def call() -> None:
            while True:
                probe = False
                while breaker.open and not probe:
                    probe = await breaker.turn()
                began = clock()
                probes.append(began)
                await asyncio.sleep(0.1)
                if clock() > 60:
                    breaker.ok()
                    return
                breaker.failed("down", began, probe=probe)

        await asyncio.gather(*(call() for _ in range(5)))

    run_virtual(main())
    during = [moment for moment in probes if 2.0 < moment < 60]
    gaps = [later - earlier for earlier, later in pairwise(during)]
    assert len(during) < 14 and all(gap >= 1.0 for gap in gaps) and max(gaps) <= 8.5


def test_a_wrong_key_stops_the_run_once_and_is_not_retried(tmp_path: Path) -> None:
    asked, _ = simulated(config=SimulatorConfig(keys=("right",)))

    async def evaluate(candidate: int, case: Case) -> float:
        return len((await asked.generate(f"say {candidate}")).text)

    study = Study(Sweep(range(100)), evaluate)
    with pytest.raises(CallFailed, match="check the API key"):
        study.run("async:10", ledger=tmp_path / "a.db", run="a", grace=0.1)
    fixed = replace(asked, key="right")

    async def evaluate_fixed(candidate: int, case: Case) -> float:
        return len((await fixed.generate(f"say {candidate}")).text)

    evaluate_fixed.fingerprint = study.identity["evaluate"]  # type: ignore[attr-defined]
    run = Study(Sweep(range(100)), evaluate_fixed).run("async:10", ledger=tmp_path / "a.db", run="a")
    assert run.progress.told == 100 and run.progress.failures == 0, "nothing was recorded as failed"


def test_a_wrong_key_that_a_server_refuses_one_call_after_the_other_ends_the_run_without_a_wait() -> None:
    class Refusing(Transport):
        asked = 0

        async def request(self, *arguments: Any, **options: Any) -> Response:
            self.asked += 1
            await asyncio.sleep(self.asked)
            return Response(401, {}, b"{}")

    transport = Refusing()
    asked = model("m", base_url="http://127.0.0.1:9/v1")
    asked = replace(asked, connect=lambda: transport)

    async def evaluate(candidate: int, case: Case) -> float:
        return len((await asked.generate(f"say {candidate}")).text)

    async def main() -> float:
        with pytest.raises(CallFailed, match="check the API key"):
            await Study(Sweep(range(4)), evaluate).run_async("async:4", grace=600.0)
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) < 10


def test_a_failed_call_fails_its_own_evaluation_with_its_kind() -> None:
    asked, _ = simulated(config=SimulatorConfig(models=("gpt-6-luna",)))
    missing = replace(asked, name="gpt-99")

    async def evaluate(candidate: int, case: Case) -> float:
        return len((await (missing if candidate == 2 else asked).generate(f"say {candidate}")).text)

    run = run_virtual(Study(Sweep(range(4)), evaluate).run_async("async:2"))
    assert {r.number: r.failures["0"].kind for r in run.results() if r.failures} == {2: "not-found"}


# -- money ------------------------------------------------------------------------------------------------------------


def test_an_evaluation_costs_what_its_calls_cost(tmp_path: Path) -> None:
    asked, simulator = simulated()

    async def evaluate(candidate: int, case: Case) -> float:
        first = await asked.generate(f"one {candidate}", max_tokens=10)
        second = await asked.generate(f"two {candidate}", max_tokens=10)
        return len(first.text + second.text)

    run = run_virtual(Study(Sweep(range(5)), evaluate).run_async("async:3", ledger=tmp_path / "a.db"))
    with sqlite3.connect(tmp_path / "a.db") as db:
        (paid,) = db.execute("SELECT sum(cost) FROM call").fetchone()
    assert run.progress.cost == pytest.approx(paid) and paid > 0
    assert len(simulator.charges) == 10


@pytest.mark.parametrize("slots", [1, 8])
def test_a_cost_limit_is_never_exceeded(tmp_path: Path, slots: int) -> None:
    asked, _ = simulated(price=model("openai/gpt-6-luna", key="k").price)
    limit = 0.0002

    async def evaluate(candidate: int, case: Case) -> float:
        return len((await asked.generate(f"say {candidate}", max_tokens=30, reasoning_effort="none")).text)

    study = Study(Sweep(range(1000)), evaluate, stop=MaxCost(limit))
    run = run_virtual(study.run_async(f"async:{slots}", ledger=tmp_path / "a.db", run="a"))
    with sqlite3.connect(tmp_path / "a.db") as db:
        (paid,) = db.execute("SELECT sum(cost) FROM call").fetchone()
    assert 0.5 * limit < paid <= limit and run.progress.failures == 0
    assert "MaxCost" in run.reason or "cost" in run.reason


def test_a_cost_limit_with_an_unknown_price_is_refused_before_anything_is_sent() -> None:
    asked, simulator = simulated(price=None)

    async def body(broker: CallBroker) -> None:
        await asked.generate("Hello")

    with pytest.raises(CallFailed, match=r"price of .* is not known"):
        with_desk(None, body, budget=Budget(1.0))
    assert not simulator.charges


def test_an_unknown_price_is_unknown_not_free() -> None:
    asked, _ = simulated(price=None)

    async def body(broker: CallBroker) -> tuple[Reply, int]:
        return await asked.generate("Hello"), broker.metrics.unpriced

    reply, unpriced = with_desk(None, body)
    assert reply.cost is None and unpriced == 1


def test_reservations_wait_for_what_is_in_flight() -> None:
    order: list[str] = []

    async def main() -> None:
        budget = Budget(1.0)
        call = Call("m", "e", "{}", 0, 1, 1, 0.6)
        reserved = await budget.reserve(call)

        async def second() -> None:
            await budget.reserve(call)
            order.append("second")

        task = asyncio.create_task(second())
        await asyncio.sleep(1)
        order.append("settled")
        budget.settle(reserved, 0.1)
        await task
        assert math.isclose(budget.spent, 0.1)

    run_virtual(main())
    assert order == ["settled", "second"]


# -- limits, sockets, threads -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_told_limit_is_kept_without_a_single_refusal() -> None:
    config = SimulatorConfig(limits=ServerLimits(rpm=600, burst_seconds=1.0))
    asked, simulator = simulated(config=config, limits=Limits(requests_per_minute=600))

    async def body(broker: CallBroker) -> tuple[float, int]:
        begun = broker.loop.time()
        await asyncio.gather(*(asked.generate(f"say {n}") for n in range(200)))
        return broker.loop.time() - begun, broker.metrics.refused

    took, refused = with_desk(None, body)
    assert refused == 0 and len(simulator.charges) == 200
    assert 18.5 <= took <= 21.5


def test_it_works_over_real_sockets_and_from_plain_threads(tmp_path: Path) -> None:
    simulator = Simulator(SimulatorConfig())

    async def main() -> int:
        async with serve(simulator) as url:
            asked = model("openai/gpt-6-luna", base_url=f"{url}/v1", key="k")

            def evaluate(candidate: int, case: Case) -> float:
                return len(asked.generate_sync(f"say {candidate}", max_tokens=5).text)

            study = Study(Sweep(range(20)), evaluate, stop=MaxTrials(20))
            run = await study.run_async("threads:4", ledger=tmp_path / "a.db", run="a")
            assert run.progress.failures == 0
            outside = await asyncio.to_thread(asked.generate_sync, "outside any run", max_tokens=5)
            assert outside.text
            return run.progress.told

    assert asyncio.run(main()) == 20
    assert len(simulator.charges) == 21


def test_a_sender_that_raises_leaves_no_trace() -> None:
    async def broken(call: Call) -> Sent:
        raise RuntimeError("cable cut")

    async def body(broker: CallBroker) -> None:
        call = Call("m", "e", "{}", 0, 1, 1, None)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="cable cut"):
                await broker.answer(call, broken)

    with_desk(None, body)


def test_one_model_serves_several_runs_on_one_event_loop(tmp_path: Path) -> None:
    async def main() -> list[int]:
        async with serve(Simulator(SimulatorConfig())) as url:
            asked = model("openai/gpt-6-luna", base_url=f"{url}/v1", key="k")

            async def evaluate(candidate: int, case: Case) -> float:
                return len((await asked.generate(f"say {candidate}", max_tokens=5)).text)

            study = Study(Sweep(range(5)), evaluate)
            return [(await study.run_async("async:4")).progress.failures for _ in range(3)]

    assert asyncio.run(main()) == [0, 0, 0]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("openai:gpt-6-luna", "did you mean 'openai/gpt-6-luna'"),
        ("ollama:qwen3:8b", "did you mean 'ollama/qwen3:8b'"),
        ("gpt-6-luna", "did you mean 'openai/gpt-6-luna'"),
        ("simulated", "lacks the model's name: write simulated/NAME"),
        ("openai/", "lacks the model's name: write openai/NAME"),
    ],
)
def test_a_name_that_is_written_in_another_way_is_refused_with_the_right_one(name: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        model(name)
