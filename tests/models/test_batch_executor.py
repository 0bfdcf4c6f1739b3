"""Calls that travel in batches: waves, what comes back, what is paid, and what a second process finds."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import sqlite3
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fanfold import Case, ConfigError, MaxCost, Ok, Study, Sweep
from fanfold.calls import CallBroker
from fanfold.context import enter, leave
from fanfold.errors import CallFailed
from fanfold.executors import make
from fanfold.ledger import Commits, Ledger
from fanfold.limits import Limits
from fanfold.models.batch.executor import BatchExecutor
from fanfold.models.batch.protocol import BatchResults, RemoteBatch
from fanfold.models.http import Response
from fanfold.models.model import Model
from fanfold.models.pricing import Price
from fanfold.models.providers import Provider
from fanfold.models.providers.anthropic import Anthropic, AnthropicBatches
from fanfold.models.providers.compatible import Compatible
from fanfold.models.providers.openai import OpenAI, OpenAIBatches
from fanfold.models.simulated import SimulatedTransport
from fanfold.simulator.config import Latency, SimulatorConfig
from fanfold.simulator.core import Simulator
from fanfold.simulator.faults import Fault, Faults
from fanfold.simulator.limits import AccountLimits as SimulatedLimits
from fanfold.testing import ExecutorConformance, run_virtual
from fanfold.web.server import serve

STYLES = ["openai", "anthropic"]
both_styles = pytest.mark.parametrize("style", STYLES)


class World:
    """A simulated provider and a model there."""

    def __init__(self, style: str, *faults: Fault, **settings: Any) -> None:
        settings.setdefault("turnaround", Latency(600.0, 0.5))
        settings.setdefault("latency", Latency(1.0))
        self.style = style
        self.simulator = Simulator(SimulatorConfig(faults=Faults(faults), **settings))
        self.model = self.another("gpt-6-luna" if style == "openai" else "claude-haiku-5-5")

    def another(self, name: str, wire: Provider | None = None, **options: Any) -> Model:
        wire = wire or (OpenAI() if self.style == "openai" else Anthropic())
        options = {"timeout": 60.0, "key": "k", **options}
        options.setdefault("connect", lambda: SimulatedTransport(self.simulator))
        url = "http://api.test" if isinstance(wire, Anthropic) else "http://api.test/v1"
        return Model(name, wire, url, Limits(), Price(1.0, 2.0), **options)

    @property
    def waves(self) -> list[int]:
        return [batch.requests for batch in self.simulator.billing.batches]

    @property
    def paid(self) -> tuple[int, int]:
        """How many requests were charged in batches, and how many at full price."""
        prices = [charge.price for charge in self.simulator.charges]
        return prices.count("batch"), prices.count("realtime")

    def fault(self, *faults: Fault) -> None:
        self.simulator.set_faults(Faults(faults))


@dataclass(frozen=True)
class Talk:
    """A conversation of as many turns as the candidate has; its score depends on every word that was said."""

    model: Model
    side: Model | None = None
    fingerprint: str = "talk"
    said: list[str] = field(default_factory=list, compare=False)

    async def __call__(self, candidate: Any, case: Case) -> Ok:
        dialogue: list[dict[str, str]] = []
        for turn in range(candidate[1]):
            dialogue.append({"role": "user", "content": f"{candidate[0]}/{case.id}/{turn}"})
            model = self.side if self.side is not None and turn % 2 else self.model
            reply = await model.generate(dialogue, max_tokens=50)
            dialogue.append({"role": "assistant", "content": reply.text or "(nothing)"})
        self.said.append(dialogue[-1]["content"])
        return Ok(int.from_bytes(hashlib.sha256(repr(dialogue).encode()).digest()[:4]) / 2**32)


def talks(evaluate: Callable[..., Any], lengths: list[int], cases: int = 1, **options: Any) -> Study[Any]:
    return Study(Sweep([[n, turns] for n, turns in enumerate(lengths)]), evaluate, cases=range(cases), **options)


def batch(style: str = "auto", **options: Any) -> BatchExecutor:
    return BatchExecutor(style, **{"looks": (0.0, 60.0, 120.0), **options})


def virtual(main: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    return run_virtual(main())


def ledger_rows(path: Path, sql: str) -> list[Any]:
    with sqlite3.connect(path) as db:
        return db.execute(sql).fetchall()


# -- waves ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@both_styles
def test_each_turn_of_all_conversations_that_still_go_on_is_one_wave(style: str) -> None:
    world = World(style)
    run = virtual(lambda: talks(Talk(world.model), [1, 2, 2, 3, 5, 5], cases=3).run_async(batch(style)))
    assert run.progress.failures == 0
    assert world.waves == [18, 15, 9, 6, 6]
    assert world.paid == (54, 0)


@pytest.mark.slow
@settings(max_examples=10, deadline=None)
@given(lengths=st.lists(st.integers(1, 5), min_size=2, max_size=12), style=st.sampled_from(STYLES))
def test_a_wave_has_as_many_calls_as_conversations_are_alive(lengths: list[int], style: str) -> None:
    alive = [sum(length > turn for length in lengths) for turn in range(max(lengths))]
    world = World(style)
    virtual(lambda: talks(Talk(world.model), lengths).run_async(batch(style)))
    assert world.waves == alive
    assert world.paid == (sum(lengths), 0)
    world = World(style)
    virtual(lambda: talks(Talk(world.model), lengths).run_async(batch(style, fallback="realtime")))
    assert world.waves == [n for n in alive if n > 1]  # the last to speak goes out plainly
    assert world.paid == (sum(n for n in alive if n > 1), alive.count(1))


@pytest.mark.slow
@both_styles
def test_the_same_study_gives_the_same_trace_in_batches_and_in_realtime(style: str, tmp_path: Path) -> None:
    traces = set()
    for executor in ("async:3", batch(style), batch(style, smallest=100, fallback="realtime")):
        world = World(style)
        study = talks(Talk(world.model), [2, 3, 1, 4], cases=2)
        traces.add(virtual(lambda study=study, executor=executor: study.run_async(executor)).trace)
    assert len(traces) == 1


@pytest.mark.slow
@both_styles
def test_calls_in_batches_cost_half_and_the_ledger_says_so(style: str, tmp_path: Path) -> None:
    costs = []
    for executor in ("async:4", batch(style)):
        world, path = World(style), tmp_path / f"{len(costs)}.db"
        study = talks(Talk(world.model), [2, 2, 2])
        run = virtual(lambda study=study, executor=executor, path=path: study.run_async(executor, ledger=path))
        (cost,) = ledger_rows(path, "SELECT sum(cost) FROM call")[0]
        assert run.progress.cost == pytest.approx(cost)
        costs.append(cost)
    assert costs[1] == pytest.approx(costs[0] / 2)
    assert ledger_rows(tmp_path / "1.db", "SELECT count(*), count(batch) FROM call") == [(6, 6)]
    assert ledger_rows(tmp_path / "1.db", "SELECT state, requests FROM batch") == [("done", 3), ("done", 3)]
    assert ledger_rows(tmp_path / "1.db", "SELECT count(*) FROM batch_item") == [(6,)]


@pytest.mark.slow
def test_a_wave_that_is_not_complete_leaves_when_its_oldest_call_has_waited_long_enough() -> None:
    world = World("openai")

    async def evaluate(candidate: Any, case: Case) -> float:
        if candidate[0] == 0:
            await asyncio.sleep(500)  # busy with something else, so the others cannot know whether it will join
        await world.model.generate(f"hello {candidate[0]}")
        return 0.0

    async def main() -> None:
        started = asyncio.get_running_loop().time()
        await talks(evaluate, [1] * 5).run_async(batch(max_wait=90.0))
        created = [made.at - world.simulator.wall() + asyncio.get_running_loop().time() for made in books.batches]
        assert created[0] - started == pytest.approx(90.0, abs=1.0)

    books = world.simulator.billing
    virtual(main)
    assert world.waves == [4, 1]
    assert world.paid == (5, 0)


@pytest.mark.slow
def test_a_wave_leaves_when_the_provider_takes_no_more_in_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World("openai")
    monkeypatch.setattr(OpenAIBatches, "max_requests", 4)
    virtual(lambda: talks(Talk(world.model), [1] * 10).run_async(batch()))
    assert world.waves == [4, 4, 2]
    world = World("anthropic")
    monkeypatch.setattr(AnthropicBatches, "max_bytes", 1600)
    virtual(lambda: talks(Talk(world.model), [1] * 10).run_async(batch()))
    assert sum(world.waves) == 10
    assert max(world.waves) < 8


@pytest.mark.slow
def test_a_call_that_nobody_waits_for_any_more_is_not_paid_for() -> None:
    world = World("openai")

    async def evaluate(candidate: Any, case: Case) -> float:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(30.0 if candidate[0] < 2 else None):
                await world.model.generate(f"hello {candidate[0]}")
        if candidate[0] == 1:
            await world.model.generate("hello 1")  # once more, after it had given up
        if candidate[0] == 4:
            await asyncio.sleep(50.0)
            await world.model.generate("another")
        return 0.0

    async def evaluate_late(candidate: Any, case: Case) -> float:
        if candidate[0] == 4:
            await asyncio.sleep(40.0)  # so that nothing leaves before two have given up
        return await evaluate(candidate, case)

    run = virtual(lambda: talks(evaluate_late, [1] * 5).run_async(batch(max_wait=1000.0)))
    assert run.progress.failures == 0
    asked = [charge.key for charge in world.simulator.charges]
    assert len(asked) == len(set(asked)) == 5  # 1, 2, 3, 4 and the other one, but never 0


@pytest.mark.slow
@both_styles
def test_no_more_tokens_wait_in_batches_than_the_provider_allows(style: str) -> None:
    world = World(style, limits=SimulatedLimits(enqueued_tokens=40))
    executor = batch(style, enqueued=100)  # our estimates are higher than what the simulator counts
    virtual(lambda: talks(Talk(world.model), [1] * 12).run_async(executor))
    assert executor.notes == []
    assert sum(world.waves) == 12
    assert len(world.waves) > 2


@pytest.mark.slow
def test_models_travel_apart_and_those_without_batches_go_out_plainly() -> None:
    world = World("openai")
    other = world.another("gpt-6-sol")
    virtual(lambda: talks(Talk(world.model, other), [2, 2, 4]).run_async(batch("auto")))
    assert sorted((made.requests for made in world.simulator.billing.batches), reverse=True) == [3, 3, 1, 1]
    assert world.paid == (8, 0)

    world = World("openai")
    local = world.another("some-model", Compatible())
    executor = batch("auto")
    virtual(lambda: talks(Talk(world.model, local), [4, 4, 4]).run_async(executor))
    assert world.waves == [3, 3]
    assert world.paid == (6, 6)
    assert executor.notes == [f"{local.id} has no batches here: its calls are sent at once, at full price"]


@pytest.mark.slow
def test_a_named_provider_takes_only_its_own_models() -> None:
    for style, wire, taken in [
        ("openai", OpenAI(), True),
        ("openai", Compatible(), True),
        ("openai", Anthropic(), False),
        ("anthropic", Anthropic(), True),
        ("anthropic", OpenAI(), False),
        ("auto", Anthropic(), True),
        ("auto", OpenAI(), True),
        ("auto", Compatible(), False),
    ]:
        world = World("anthropic" if isinstance(wire, Anthropic) else "openai")
        virtual(
            lambda world=world, wire=wire, style=style: talks(Talk(world.another("m", wire)), [1, 1]).run_async(
                batch(style)
            )
        )
        assert world.paid == ((2, 0) if taken else (0, 2)), (style, wire.name)


@pytest.mark.slow
def test_plain_functions_travel_in_batches_too() -> None:
    world = World("openai", turnaround=Latency(0.2), latency=Latency(0.0))

    def evaluate(candidate: Any, case: Case) -> float:
        first = world.model.generate_sync(f"hello {candidate[0]}")
        return float(len(world.model.generate_sync(f"{first.text} again").text))

    run = talks(evaluate, [1] * 6).run(batch(settle=0.1, poll=0.05))
    assert run.progress.failures == 0
    assert world.waves == [6, 6]


@pytest.mark.slow
@both_styles
def test_equal_calls_of_several_evaluations_are_one_request(style: str) -> None:
    world = World(style)

    async def evaluate(candidate: Any, case: Case) -> float:
        await world.model.generate("the same for all")
        await world.model.generate(f"my own {candidate[0]}")
        return 0.0

    virtual(lambda: talks(evaluate, [1] * 4).run_async(batch(style)))
    assert world.paid == (5, 0)


def test_an_evaluation_may_have_several_calls_out_at_once() -> None:
    world = World("openai")

    async def evaluate(candidate: Any, case: Case) -> float:
        replies = await asyncio.gather(*(world.model.generate(f"{candidate[0]}", sample=n) for n in range(3)))
        return float(len(replies))

    virtual(lambda: talks(evaluate, [1] * 4).run_async(batch()))
    assert world.waves == [12]


# -- what comes back -------------------------------------------------------------------------------------------------


@pytest.mark.slow
@both_styles
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("kind", ["batch_expired", "batch_cancelled"])
def test_what_a_batch_did_before_it_ended_is_used_and_only_the_rest_is_paid_again(
    style: str, kind: str, share: float
) -> None:
    world = World(style, Fault(kind, value=share, times=1))
    run = virtual(lambda: talks(Talk(world.model), [1] * 10).run_async(batch(style)))
    assert run.progress.failures == 0
    left = 10 - round(10 * share)
    assert world.waves == [10, left][: 1 + (left > 0)], "the rest is in the next batch"
    assert world.paid == (10, 0)
    assert not world.simulator.billing.duplicates()
    world = World(style, Fault(kind, value=share))
    virtual(lambda: talks(Talk(world.model), [1] * 10).run_async(batch(style, fallback="realtime")))
    assert world.paid == (10 - left, left)


@pytest.mark.slow
@both_styles
def test_lines_in_any_order_repeated_unknown_or_missing_reach_the_right_call(style: str) -> None:
    kinds = ("batch_shuffled", "batch_duplicates", "batch_missing", "batch_unknown")
    world = World(style, *(Fault(kind, times=2) for kind in kinds))
    calm = World(style)
    executor = batch(style)
    run = virtual(lambda: talks(Talk(world.model), [2] * 20).run_async(executor))
    assert run.trace == virtual(lambda: talks(Talk(calm.model), [2] * 20).run_async("async")).trace
    # A fifth of the results of two waves was withheld, though it was charged.
    assert world.waves[:2] == [20, 20] and sum(world.waves) == 48
    assert world.paid == (48, 0)
    assert run.money.lost == 8
    assert "unknown id" in executor.notes[0] and "repeated" in executor.notes[0] and "missing" in executor.notes[0]


def test_openai_lines_are_read_as_they_were_really_recorded() -> None:
    read = OpenAIBatches(World("openai").model).read
    body = (
        b'{"id":"x","choices":[{"message":{"content":"hi"},"finish_reason":"stop"}],'
        b'"usage":{"prompt_tokens":10,"completion_tokens":5}}'
    )
    line = b'{"id":"batch_req_1","custom_id":"a-1","response":{"status_code":%b,"body":%b},"error":%b}'
    custom_id, reply = read(line % (b"200", body, b"null"))
    assert custom_id == "a-1"
    assert reply.text == "hi" and reply.cost == pytest.approx((10 * 1.0 + 5 * 2.0) / 1e6 / 2)
    refused = b'{"error":{"message":"bad","type":"invalid_request_error","param":null,"code":null}}'
    assert read(line % (b"400", refused, b"null"))[1].kind == "bad-request"
    quota = b'{"error":{"message":"no money","type":"insufficient_quota","code":"insufficient_quota"}}'
    assert read(line % (b"429", quota, b"null"))[1].kind == "billing"
    for again in (
        line % (b"500", b"{}", b"null"),
        line % (b"0", b"null", b"null"),
        b'{"custom_id":"a-1","response":null,"error":{"code":"batch_expired","message":"too late"}}',
        b'{"custom_id":"a-1","response":null,"error":{"code":"from_the_future","message":"?"}}',
    ):
        assert read(again) == ("a-1", None)


def test_anthropic_lines_are_read_as_they_were_really_recorded() -> None:
    read = AnthropicBatches(World("anthropic").model).read
    errored = (
        b'{"custom_id":"a","result":{"type":"errored","error":{"type":"error","error":{"type":"%b","message":"%b"}}}}'
    )
    assert read(errored % (b"invalid_request_error", b"max_tokens: too low"))[1].kind == "bad-request"
    low = b"Your credit balance is too low to access the Anthropic API."
    assert read(errored % (b"invalid_request_error", low))[1].kind == "billing"
    for kind in (b"overloaded_error", b"api_error", b"rate_limit_error", b"timeout_error"):
        assert read(errored % (kind, b"later")) == ("a", None)
    for kind in (b"canceled", b"expired", b"from_the_future"):
        assert read(b'{"custom_id":"a","result":{"type":"%b"}}' % kind) == ("a", None)


@dataclass
class Canned:
    """A transport that delivers one body in pieces of given sizes."""

    body: bytes
    sizes: list[int]

    async def download(self, url: str, headers: Any, sink: Callable[[bytes], object], **options: Any) -> Response:
        at = 0
        for size in [*self.sizes, len(self.body)]:
            sink(self.body[at : at + size])
            at += size
        return Response(200, {}, b"")

    async def close(self) -> None: ...


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(
    ids=st.lists(st.integers(0, 9), max_size=25),
    sizes=st.lists(st.integers(1, 400), max_size=30),
    ending=st.sampled_from([b"", b"\n", b"\n\n"]),
)
def test_whatever_comes_in_whatever_pieces_the_first_line_of_an_id_counts(
    ids: list[int], sizes: list[int], ending: bytes
) -> None:
    line = '{{"custom_id":"id-{}","result":{{"type":"errored","error":{{"error":{{"message":"line {}"}}}}}}}}'
    body = "\n".join(line.format(id, place) for place, id in enumerate(ids)).encode() + ending
    world = World("anthropic")
    model = world.another("claude", connect=lambda: Canned(body, sizes))

    async def main() -> BatchResults:
        return await AnthropicBatches(model).results(
            RemoteBatch("b", 0.0, "ended", True, results=("http://api.test/r",))
        )

    results = virtual(main)
    assert {id: str(said) for id, said in results.lines.items()} == {
        f"id-{id}": f"anthropic: line {ids.index(id)}" for id in ids
    }
    assert results.repeated == len(ids) - len(set(ids))
    assert results.torn == 0


@pytest.mark.slow
@both_styles
def test_a_batch_that_failed_as_a_whole_or_could_not_be_made_falls_back_to_realtime_on_demand(style: str) -> None:
    faults = [Fault("rate_limit", on=("create",)), Fault("internal", on=("upload",))]
    if style == "openai":
        faults.append(Fault("batch_failed"))
    else:
        faults.remove(faults[1])
    for fault in faults:
        world = World(style, fault)
        executor = batch(style, fallback="realtime")
        run = virtual(lambda world=world, executor=executor: talks(Talk(world.model), [2] * 4).run_async(executor))
        assert run.progress.failures == 0
        assert world.paid == (0, 8)
        assert len(executor.notes) == 2


def test_a_server_without_batches_is_asked_for_one_only_once() -> None:
    world = World("openai")
    real = world.simulator.respond
    asked: list[str] = []

    async def respond(request: Any) -> Any:
        asked.append(request.path)
        if "completions" not in request.path:
            request = type(request)("GET", "/v1/nothing/here", {}, request.headers)
        return await real(request)

    world.simulator.respond = respond  # type: ignore[method-assign]
    with pytest.raises(CallFailed, match=r"takes no batches here.*batch_fallback='realtime'") as caught:
        virtual(lambda: talks(Talk(world.model), [3] * 4).run_async(batch()))
    assert caught.value.kind == "no-batches"
    assert world.paid == (0, 0)
    run = virtual(lambda: talks(Talk(world.model), [3] * 4).run_async(batch(fallback="realtime")))
    assert run.progress.failures == 0
    assert asked.count("/v1/files") == 2, "once each"
    assert world.paid == (0, 12)


@both_styles
def test_requests_rejected_by_the_model_fail_their_own_evaluation_only(style: str) -> None:
    world = World(style, Fault("batch_errors", value=0.4))
    run = virtual(lambda: talks(Talk(world.model), [1] * 20).run_async(batch(style)))
    assert 0 < run.progress.failures < 20
    assert world.paid == (20 - run.progress.failures, 0)


@both_styles
def test_lines_that_say_there_is_no_money_stop_the_run(style: str) -> None:
    world = World(style, Fault("batch_billing"))
    with pytest.raises(CallFailed) as caught:
        virtual(lambda: talks(Talk(world.model), [3] * 5).run_async(batch(style)))
    assert caught.value.kind == "billing"
    assert world.waves == [5]
    assert world.paid == (0, 0)


@pytest.mark.slow
@both_styles
def test_what_is_not_done_by_the_deadline_goes_out_plainly(style: str) -> None:
    world = World(style, Fault("batch_stuck", value=0.5, times=1))
    executor = batch(style, deadline=1800.0)

    async def main() -> float:
        run = await talks(Talk(world.model), [1] * 10).run_async(executor)
        assert run.progress.failures == 0
        return asyncio.get_running_loop().time()

    assert 1800 < virtual(main) < 2000
    assert world.paid == (5, 5)
    assert not world.simulator.billing.duplicates()
    assert "deadline" in executor.notes[0] and "$" in executor.notes[0]


@pytest.mark.slow
@both_styles
def test_without_a_deadline_a_batch_is_waited_for_until_it_expires(style: str) -> None:
    world = World(style, Fault("batch_stuck", value=0.5, times=1), expires_after=7200.0)
    virtual(lambda: talks(Talk(world.model), [1] * 10).run_async(batch(style)))
    assert world.waves == [10, 5]
    assert world.paid == (10, 0)


@both_styles
def test_results_that_stop_coming_are_fetched_again(style: str) -> None:
    world = World(style, Fault("hang", times=1, on=("results",)))
    run = virtual(lambda: talks(Talk(world.model), [1] * 3).run_async(batch(style)))
    assert run.progress.failures == 0
    assert world.paid == (3, 0)


@both_styles
def test_results_that_end_early_at_the_end_of_a_line_are_fetched_again(
    style: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, cut = World(style), [True]
    real = SimulatedTransport.download

    async def download(self: SimulatedTransport, url: str, headers: Any, sink: Any, **options: Any) -> Any:
        pieces: list[bytes] = []
        response = await real(self, url, headers, pieces.append, **options)
        whole = b"".join(pieces)
        sink(whole[: whole.index(b"\n") + 1] if cut and cut.pop() else whole)
        return response

    monkeypatch.setattr(SimulatedTransport, "download", download)
    run = virtual(lambda: talks(Talk(world.model), [1] * 3).run_async(batch(style)))
    assert run.progress.failures == 0
    assert world.paid == (3, 0)
    assert world.simulator.billing.duplicates() == {}


def test_results_on_another_host_are_not_fetched() -> None:
    world = World("anthropic", Fault("results_elsewhere"))
    path: list[str] = []
    real = SimulatedTransport.download

    async def download(self: SimulatedTransport, url: str, *args: Any, **options: Any) -> Any:
        path.append(url)
        return await real(self, url, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SimulatedTransport, "download", download)
        run = virtual(lambda: talks(Talk(world.model), [1] * 3).run_async(batch()))
    assert run.progress.failures == 3
    assert path == []
    assert world.paid == (3, 0)


@pytest.mark.slow
@both_styles
@pytest.mark.parametrize(
    "fault",
    [
        Fault("batch_status", value="on_holiday"),
        Fault("extra_fields", on=("create", "poll", "list")),
        Fault("internal", on=("poll",), times=12),
        Fault("malformed", on=("poll",), times=3),
        Fault("bad_gateway", on=("results",), times=8),
        Fault("cut", on=("results",), times=2),
        Fault("truncate", on=("results",), times=1),
        Fault("hang", on=("poll",), times=2),
        Fault("rate_limit", on=("create",), times=3, value=5.0),
        Fault("disconnect", on=("upload",), times=2),
    ],
    ids=lambda fault: f"{fault.kind}-{''.join(fault.on)}",
)
def test_mishaps_on_the_way_are_lived_through_without_paying_twice(style: str, fault: Fault) -> None:
    world = World(style, fault)
    run = virtual(lambda: talks(Talk(world.model), [2] * 6).run_async(batch(style)))
    assert run.progress.failures == 0
    assert world.waves == [6, 6]
    assert world.paid == (12, 0)


# -- a creation in doubt -----------------------------------------------------------------------------------------------


@pytest.mark.slow
@both_styles
@pytest.mark.parametrize("how", ["lost_drop", "lost_502", "lost_hang", "truncate", "malformed", "cut"])
def test_a_batch_whose_creation_was_not_confirmed_is_found_and_paid_once(style: str, how: str, tmp_path: Path) -> None:
    world = World(style, Fault(how, on=("create",), times=1))
    executor = batch(style)
    run = virtual(lambda: talks(Talk(world.model), [2] * 4).run_async(executor, ledger=tmp_path / "l.db"))
    assert run.progress.failures == 0
    assert world.waves == [4, 4]
    assert world.paid == (8, 0)
    assert "found again" in " ".join(executor.notes)
    assert ledger_rows(tmp_path / "l.db", "SELECT DISTINCT state FROM batch") == [("done",)]


@both_styles
@pytest.mark.parametrize("how", ["bad_gateway", "disconnect", "hang", "internal", "overloaded"])
def test_a_batch_that_was_never_created_is_submitted_again_after_enough_looks(
    style: str, how: str, tmp_path: Path
) -> None:
    world = World(style, Fault(how, on=("create",), times=1))
    executor = batch(style)
    virtual(lambda: talks(Talk(world.model), [1] * 4).run_async(executor, ledger=tmp_path / "l.db"))
    assert world.waves == [4]
    assert world.paid == (4, 0)
    states = ledger_rows(tmp_path / "l.db", "SELECT state, remote IS NULL FROM batch ORDER BY created")
    assert states == [("abandoned", 1), ("done", 0)]


@pytest.mark.slow
def test_a_strange_batch_of_the_same_size_is_not_mistaken_for_ours() -> None:
    world = World("anthropic", Fault("lost_drop", times=1, start=50.0))

    async def main() -> None:
        stranger = talks(Talk(world.model), [1] * 4)
        strange = asyncio.create_task(stranger.run_async(batch()))  # another process, so another ledger
        await asyncio.sleep(100)
        run = await talks(Talk(world.model, fingerprint="ours"), [1] * 4, cases=2).run_async(batch(), ledger=None)
        assert run.progress.failures == 0
        await strange

    virtual(main)
    assert sorted(world.waves) == [4, 8]

    world = World("anthropic", Fault("lost_drop", times=1, start=50.0))
    sentences: list[str] = []

    async def alike() -> None:
        strange = asyncio.create_task(talks(Talk(world.model), [1] * 4).run_async(batch()))
        await asyncio.sleep(49)
        also = asyncio.create_task(talks(Talk(world.another("claude-x")), [1] * 4).run_async(batch()))
        await asyncio.sleep(51)
        executor = batch()
        run = await talks(Talk(world.another("claude-y")), [1] * 4).run_async(executor)
        sentences.extend(executor.notes)
        assert run.progress.failures == 0
        await strange
        await also

    virtual(alike)
    assert world.waves == [4, 4, 4]
    assert world.paid == (12, 0)
    assert "found again" in " ".join(sentences)


@both_styles
def test_two_creations_in_doubt_at_once_both_find_their_own(style: str) -> None:
    world = World(style, Fault("lost_502", times=2))
    others = [world.another("claude-a"), world.another("claude-b")]

    async def evaluate(candidate: Any, case: Case) -> float:
        reply = await others[candidate[0] % 2].generate(f"hello {candidate[0]}")
        return float(len(reply.text))

    run = virtual(lambda: talks(evaluate, [1] * 8).run_async(batch(style)))
    assert run.progress.failures == 0
    assert world.waves == [4, 4]
    assert world.paid == (8, 0)


@pytest.mark.slow
@pytest.mark.parametrize("skew", [-7200.0, 7200.0])
@both_styles
def test_a_provider_whose_clock_is_wrong_by_hours_still_has_our_batch(style: str, skew: float) -> None:
    """In real time and over sockets, because the clock is read from the header of responses."""
    faults = Faults((Fault("lost_drop", times=1),))
    config = SimulatorConfig(turnaround=Latency(0.05), clock_skew=skew, faults=faults)

    async def main() -> None:
        simulator = Simulator(config)
        async with serve(simulator, port=0) as url:
            wire: Provider = OpenAI() if style == "openai" else Anthropic()
            model = Model("m", wire, url + ("/v1" if style == "openai" else ""), Limits(), None, key="k")
            executor = batch(style, poll=0.02, settle=0.02, looks=(0.0, 0.05))
            run = await talks(Talk(model), [2] * 3).run_async(executor)
        assert run.progress.failures == 0
        assert [made.requests for made in simulator.billing.batches] == [3, 3]

    asyncio.run(main())


def test_a_batch_that_exists_twice_is_kept_once_and_the_other_cancelled() -> None:
    world = World("openai", Fault("lost_502", times=2))
    real = world.simulator.respond

    async def twice(request: Any) -> Any:
        if request.method == "POST" and request.path == "/v1/batches":
            world.simulator.respond = real  # type: ignore[method-assign]
            await real(request)  # a gateway that repeats what it could not deliver
        return await real(request)

    world.simulator.respond = twice  # type: ignore[method-assign]
    executor = batch()
    run = virtual(lambda: talks(Talk(world.model), [1] * 4).run_async(executor))
    assert run.progress.failures == 0
    assert world.paid == (4, 0)
    assert any("more than once" in note for note in executor.notes)


# -- a second process --------------------------------------------------------------------------------------------------


def interrupted(study: Study[Any], executor: BatchExecutor, path: Path, after: float) -> Coroutine[Any, Any, None]:
    async def main() -> None:
        task = asyncio.create_task(study.run_async(executor, ledger=path, run="r"))
        await asyncio.sleep(after)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    return main()


@pytest.mark.slow
@both_styles
@pytest.mark.parametrize("after", [0.1, 0.21, 5.0, 700.0, 2000.0])
def test_a_resumed_run_waits_for_the_batches_under_way(style: str, after: float, tmp_path: Path) -> None:
    world, path = World(style, turnaround=Latency(600.0)), tmp_path / "l.db"
    first = batch(style)

    async def main() -> Any:
        study = talks(Talk(world.model), [3] * 5)
        await interrupted(study, first, path, after)
        return await study.run_async(batch(style), ledger=path, run="r")

    run = virtual(main)
    assert run.progress.failures == 0
    assert world.waves == [5, 5, 5]
    assert world.paid == (15, 0)
    assert len(first.left) == (0.2 < after < 1800)  # before, nothing was submitted; after, all was done
    assert {state for (state,) in ledger_rows(path, "SELECT state FROM batch")} == {"done"}
    calm = World(style)
    assert run.trace == virtual(lambda: talks(Talk(calm.model), [3] * 5).run_async("async")).trace


@pytest.mark.slow
@both_styles
def test_a_resumed_run_finds_a_batch_whose_creation_it_never_heard_of(style: str, tmp_path: Path) -> None:
    world, path = World(style, Fault("lost_hang", times=1)), tmp_path / "l.db"
    first = batch(style)

    async def main() -> Any:
        study = talks(Talk(world.model), [2] * 5)
        await interrupted(study, first, path, 20.0)
        assert ledger_rows(path, "SELECT state, remote FROM batch") == [("intent", None)]
        return await study.run_async(batch(style), ledger=path, run="r")

    run = virtual(main)
    assert run.progress.failures == 0
    assert world.paid == (10, 0)
    assert "may or may not exist" in first.left[0]


@both_styles
def test_another_run_shares_a_submitted_batch_and_leaves_its_record_alone(style: str, tmp_path: Path) -> None:
    world, path = World(style), tmp_path / "l.db"

    async def main() -> Any:
        study = talks(Talk(world.model), [1] * 5)
        await interrupted(study, batch(style), path, 5.0)
        run = await study.run_async(batch(style), ledger=path, run="another")
        assert ledger_rows(path, "SELECT state FROM batch") == [("submitted",)]
        return run

    assert virtual(main).progress.failures == 0
    assert world.paid == (5, 0)


@pytest.mark.slow
@both_styles
def test_leaving_can_cancel_what_is_under_way(style: str, tmp_path: Path) -> None:
    world, path = World(style), tmp_path / "l.db"
    first = batch(style, leave="cancel")

    async def main() -> Any:
        study = talks(Talk(world.model), [1] * 10)
        await interrupted(study, first, path, 300.0)
        return await study.run_async(batch(style), ledger=path, run="r")

    run = virtual(main)
    assert run.progress.failures == 0
    assert world.paid == (10, 0)
    assert len(world.waves) == 2
    assert not world.simulator.billing.duplicates()
    assert "cancelled" in first.left[0]


@pytest.mark.slow
def test_batches_count_against_the_budget(tmp_path: Path) -> None:
    world = World("openai")
    study = talks(Talk(world.another("gpt-4o-mini")), [1] * 30, stop=MaxCost(0.0008))
    run = virtual(lambda: study.run_async(batch(), ledger=tmp_path / "l.db"))
    assert "spent" in run.reason
    assert run.progress.cost <= 0.0008
    assert 0 < world.paid[0] < 30


def test_a_batch_outside_a_run_needs_no_ledger() -> None:
    world = World("openai")

    async def main() -> list[str]:
        async with batch() as executor:

            async def ask(n: int) -> str:
                return (await world.model.generate(f"hello {n}")).text

            return list(await asyncio.gather(*(executor.run(ask, n) for n in range(5))))

    assert len(set(virtual(main))) == 5
    assert world.waves == [5]


def test_what_a_desk_is_given_is_durable_before_it_is_answered(tmp_path: Path) -> None:
    world = World("openai")
    seen: list[Any] = []

    async def main() -> None:
        ledger = Ledger(tmp_path / "l.db")
        commits = Commits(ledger)
        broker = CallBroker(ledger, commits, run=None)
        before = enter(broker=broker)

        async def ask(n: int) -> None:
            await world.model.generate(f"hello {n}")
            seen.extend(ledger_rows(tmp_path / "l.db", f"SELECT batch FROM call WHERE request LIKE '%hello {n}\"%'"))

        async with batch() as executor:
            await asyncio.gather(*(executor.run(ask, n) for n in range(3)))
        await broker.close()
        leave(before)
        await commits.flush()
        commits.close()

    virtual(main)
    assert len(seen) == 3
    assert len(set(seen)) == 1


# -- the executor ----------------------------------------------------------------------------------------------------


class TestConformance(ExecutorConformance):
    def make(self) -> BatchExecutor:
        executor = BatchExecutor("openai")
        executor.slots = 8
        return executor


def test_it_is_made_by_name() -> None:
    assert [make(spec).name for spec in ("batch", "batch:auto", "batch:openai", "batch:anthropic")] == [
        "batch:auto",
        "batch:auto",
        "batch:openai",
        "batch:anthropic",
    ]


@pytest.mark.parametrize("spec", ["batch:opnai", "batch:8", "batch:"])
def test_a_provider_without_batches_is_named_with_the_remedy(spec: str) -> None:
    with pytest.raises(ConfigError, match="openai") as caught:
        make(spec)
    assert repr(spec) in str(caught.value)


@pytest.mark.parametrize("options", [{"leave": "burn"}, {"max_wait": -1.0}, {"settle": float("nan")}, {"poll": -0.1}])
def test_options_that_cannot_be_used_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        BatchExecutor("openai", **options)
