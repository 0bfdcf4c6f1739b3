"""The conformance suite for providers: what the engine relies on, checked against the provider's own dialect."""

from __future__ import annotations

import itertools
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from fanfold.calls import Reply, current_broker
from fanfold.encoding import encode
from fanfold.errors import CallFailed, ConfigError
from fanfold.limits import Limits
from fanfold.models.batch.executor import BatchExecutor
from fanfold.models.batch.protocol import RemoteBatch
from fanfold.models.http_exchange import Response
from fanfold.models.model import Model
from fanfold.models.pricing import Price
from fanfold.models.providers import ERROR_KINDS, Provider
from fanfold.models.retry import RetryPolicy
from fanfold.models.simulated import SimulatedTransport
from fanfold.simulator import AccountLimits, Answer, Fault, Faults, Latency, Simulator, SimulatorConfig
from fanfold.strategies import Sweep
from fanfold.study import Study
from fanfold.testing.clock import run_virtual
from fanfold.types import Case, Ok

T = TypeVar("T")

KEY = "key-of-the-conformance-suite"
PRICE = Price(1.0, 2.0)
#: Bodies that are JSON and no reply.
NONSENSE: tuple[Any, ...] = ({}, {"choices": []}, {"content": None}, {"data": [1]}, {"error": "x"}, {"text": 3})


class ProviderConformance:
    """Subclass it in a test module as `class TestMine(ProviderConformance)` and give it `make`; pytest does the rest.

    The provider is asked through `Model`, as in a study, on a virtual clock; its dialect in the simulator answers.
    """

    #: A model's name that the provider would serve.
    model_name = "a-model"

    def make(self) -> Provider:
        """The provider under test."""
        raise NotImplementedError("give your subclass a make() that returns the provider")

    # -- the contract itself -----------------------------------------------------------------------------------------

    def test_it_says_who_it_is(self) -> None:
        provider = self.make()
        assert re.fullmatch(r"[a-z0-9][a-z0-9._-]*", provider.name), f"{provider.name!r} cannot begin a model's id"
        assert provider.start or urlsplit(provider.default_url).scheme == "https", "a key is sent there"
        for variable in (provider.key_variable, provider.url_variable):
            assert re.fullmatch(r"[A-Z0-9_]*", variable), f"{variable!r} is not an environment variable"
        assert provider.dialect() is not None, "without a dialect its models cannot be rehearsed"
        assert re.compile(provider.family)

    def test_the_key_travels_in_the_headers_only(self) -> None:
        provider = self.make()
        path, body = provider.request(self.model_name, "x", {"max_tokens": 5})
        assert any(KEY in value for value in provider.headers(KEY).values())
        assert KEY not in path + encode(body)
        assert not any("None" in value for value in provider.headers(None).values())
        assert path.startswith("/")

    def test_a_parameter_it_lacks_is_an_error(self) -> None:
        try:
            self.make().request(self.model_name, "x", {"no_such_parameter": 1})
        except ConfigError as error:
            assert "no_such_parameter" in str(error)
        else:
            raise AssertionError("the parameter was dropped silently")

    def test_equal_requests_are_written_alike(self) -> None:
        first, second = (
            self.make().request(self.model_name, [{"role": "user", "content": "x"}], {"max_tokens": 5, "system": "s"})
            for _ in range(2)
        )
        assert encode(first[1]) == encode(second[1]) and first[0] == second[0]

    # -- replies -----------------------------------------------------------------------------------------------------

    def test_a_reply_has_the_text_the_tokens_and_the_cost(self) -> None:
        reply, simulator = self.ask("Name a city.", answer="Rome, of course.")
        assert (reply.text, reply.finish, reply.refusal) == ("Rome, of course.", "stop", None)
        (charge,) = simulator.charges
        assert (reply.input_tokens, reply.output_tokens) == (charge.input_tokens, charge.output_tokens)
        assert reply.cost is not None and abs(reply.cost - PRICE.cost(reply.input_tokens, reply.output_tokens)) < 1e-12
        assert not reply.estimated

    def test_system_prompts_and_dialogues_arrive_whole(self) -> None:
        seen: list[str] = []

        def answer(model: str, messages: Any, body: Mapping[str, Any], rng: Any) -> str:
            seen.append(encode(dict(body)))
            return "good"

        dialogue = [
            {"role": "system", "content": "first rule"},
            {"role": "user", "content": "first question"},
            {"role": "assistant", "content": "first answer"},
            {"role": "user", "content": "second question"},
        ]
        assert self.ask(dialogue, answer=answer, system="before all")[0].text == "good"
        for text in ("before all", "first rule", "first question", "first answer", "second question"):
            assert text in seen[0], f"{text!r} was not sent"

    def test_a_reply_that_is_cut_off_says_so(self) -> None:
        reply, _ = self.ask("And then?", answer="word " * 50, max_tokens=5)
        assert reply.finish == "length" and reply.output_tokens == 5

    def test_a_refusal_is_no_text(self) -> None:
        reply, _ = self.ask("x", answer=Answer("I will not.", "refusal"))
        dialect = self.make().dialect()
        if dialect is not None and not dialect.refuses:
            assert (reply.text, reply.finish) == ("I will not.", "stop") and reply.refusal is None
        else:
            assert (reply.text, reply.finish) == ("", "refusal") and reply.refusal

    def test_a_reply_that_is_watched_is_the_same(self) -> None:
        model, _ = self.world(answer=lambda model, messages, body, rng: "Rome, of course.")

        async def main(model: Model) -> tuple[list[str], Reply]:
            stream = model.stream("x", max_tokens=100)
            return [piece async for piece in stream], stream.reply

        pieces, reply = self.run(model, main)
        assert "".join(pieces) == reply.text == "Rome, of course." and reply.finish == "stop" and not reply.estimated

    def test_a_reply_without_usage_is_estimated(self) -> None:
        reply, _ = self.ask("x" * 400, answer="word " * 8, usage=False)
        assert reply.estimated and reply.input_tokens >= 100 and reply.output_tokens == 10

    def test_a_body_that_is_no_reply_is_malformed(self) -> None:
        for body in NONSENSE:
            try:
                self.make().reply(body)
            except CallFailed as error:
                assert error.kind == "malformed", f"{body!r} is {error.kind}"
            else:
                raise AssertionError(f"{body!r} was read as a reply")

    def test_a_reply_with_a_wrong_part_breaks_nothing(self) -> None:
        model, simulator = self.world()
        good = msgspec.json.decode(self.respond(model, simulator).body)
        wrong: tuple[Any, ...] = (None, 3, "x", [], [None], {})
        for name, value in itertools.product(good, wrong):
            body = msgspec.json.encode({**good, name: value})
            try:
                model.read(Response(200, {}, body))
            except CallFailed as error:
                assert error.kind == "malformed", f"{body!r} is {error.kind}"

    # -- failures ----------------------------------------------------------------------------------------------------

    def test_failures_have_the_right_kind(self) -> None:
        kinds = {
            "rate_limit": {"rate-limit"},
            "spend_limit": {"billing"},
            "internal": {"server"},
            "unavailable": {"server", "overloaded"},
            "overloaded": {"server", "overloaded"},
            "bad_gateway": {"server", "overloaded"},
            "hang": {"timeout"},
            "disconnect": {"network"},
            "truncate": {"malformed"},
            "content_type": {"malformed"},
        }
        for fault, expected in kinds.items():
            error = self.fails(Fault(fault))
            assert error.kind in expected, f"{fault} is {error.kind}, not {' or '.join(expected)}: {error}"

    def test_wrong_keys_and_models_are_told_apart(self) -> None:
        assert self.fails(keys=("another",)).kind == "auth"
        assert self.fails(models=("another",)).kind == "not-found"

    def test_every_status_has_a_known_kind(self) -> None:
        for status in (400, 401, 403, 404, 408, 409, 413, 422, 429, 500, 502, 503, 504, 529):
            assert self.make().error_kind(status, {}) in ERROR_KINDS
        assert self.make().failure(400, {}, ["not", "an", "object"]).kind in ERROR_KINDS

    def test_a_refused_call_knows_when_to_come_back(self) -> None:
        assert self.fails(Fault("rate_limit", value=7.0)).retry_after == 7.0

    def test_limits_in_headers_are_read(self) -> None:
        model, simulator = self.world(limits=AccountLimits(rpm=600, tpm=60_000))
        headers = self.respond(model, simulator).headers
        plain = {"content-type", "date"}
        quota = self.make().quota(headers)
        if quota is None:
            assert not [name for name in headers if "limit" in name and name not in plain], "they were not read"
        else:
            assert quota.requests_limit in (600, None) and quota.tokens_limit in (60_000, None)
            assert (quota.requests_remaining, quota.tokens_remaining) != (None, None)

    # -- batches -----------------------------------------------------------------------------------------------------

    def test_calls_travel_in_a_batch_at_the_batch_price(self) -> None:
        if (batched := self.batched()) is not None:
            assert batched[0] == (4, 0)

    def test_what_a_batch_leaves_out_is_in_the_next_one(self) -> None:
        for fault in ("batch_missing", "batch_expired", "batch_cancelled", "batch_shuffled", "batch_duplicates"):
            if (batched := self.batched(Fault(fault, times=1))) is not None:
                (half, full), simulator = batched
                assert half >= 4 and full == 0, f"{fault}: {half} calls at half price, {full} at full price"
                assert len(simulator.billing.batches) == (1 if fault in ("batch_shuffled", "batch_duplicates") else 2)

    def test_a_batch_whose_creation_was_lost_is_found_again(self) -> None:
        if (batched := self.batched(Fault("lost_drop", times=1))) is not None:
            assert batched[0] == (4, 0) and len(batched[1].billing.batches) == 1

    def test_a_batch_is_listed_and_can_be_cancelled(self) -> None:
        protocol = self.make().batches
        if protocol is None:
            return
        model, _ = self.world(turnaround=Latency(1000.0))

        async def main(model: Model) -> list[RemoteBatch]:
            api = protocol(model)
            calls = [(f"tag-{number}", model.call(f"question {number}", max_tokens=5)) for number in range(3)]
            made = await api.create(await api.prepare("tag", calls))
            listed = [batch async for batch in api.newest()]
            await api.cancel(made.id)
            return [made, *listed, await api.get(made.id)]

        made, *listed, cancelled = self.run(model, main)
        assert [batch.id for batch in listed] == [made.id] and not made.ended
        assert listed[0].tag == ("tag" if protocol.tagged else None)
        assert abs(listed[0].created - made.created) < 60 and cancelled.ended is False

    def test_a_long_list_of_batches_is_read_to_its_end(self) -> None:
        protocol = self.make().batches
        if protocol is None:
            return
        model, _ = self.world(turnaround=Latency(1000.0))

        async def main(model: Model) -> tuple[list[str], list[str]]:
            api = protocol(model)
            body = await api.prepare("tag", [("tag-0", model.call("question", max_tokens=5))])
            made = [(await api.create(body)).id for _ in range(101)]
            return made, [batch.id async for batch in api.newest()]

        made, listed = self.run(model, main)
        assert listed == made[::-1]

    # -- the world ---------------------------------------------------------------------------------------------------

    def world(self, *faults: Fault, **settings: Any) -> tuple[Model, Simulator]:
        """A model of the provider, at a simulator that speaks nothing but its dialect."""
        provider = self.make()
        dialect = provider.dialect()
        assert dialect is not None, "give the provider a dialect"
        simulator = Simulator(SimulatorConfig(faults=Faults(faults), **settings), [dialect])
        url = "http://conformance" + urlsplit(provider.default_url).path
        return (
            Model(
                self.model_name,
                provider,
                url,
                Limits(),
                PRICE,
                again=RetryPolicy(tries=1, refusals=1, unreadable=1),
                connect=lambda: SimulatedTransport(simulator),
                key=KEY,
            ),
            simulator,
        )

    def run(self, model: Model, main: Callable[[Model], Awaitable[T]]) -> T:
        async def all() -> T:
            try:
                return await main(model)
            finally:
                await current_broker().close()

        return run_virtual(all())

    def respond(self, model: Model, simulator: Simulator) -> Response:
        """The response to one plain call."""
        call = model.call("x", max_tokens=5)
        body = call.body.encode()
        headers = {"content-type": "application/json", **model.signed("POST", call.endpoint, body)}
        send = SimulatedTransport(simulator).request("POST", call.endpoint, headers, body)
        return self.run(model, lambda model: send)

    def ask(
        self, messages: Any, *, answer: Any = None, usage: bool = True, max_tokens: int = 100, system: str | None = None
    ) -> tuple[Reply, Simulator]:
        said = answer if callable(answer) else lambda model, messages, body, rng: answer
        model, simulator = self.world(answer=said, usage=usage)
        reply = self.run(model, lambda model: model.generate(messages, system=system, max_tokens=max_tokens))
        return reply, simulator

    def fails(self, *faults: Fault, **settings: Any) -> CallFailed:
        """The failure of a call in such a world."""
        model, _ = self.world(*faults, **settings)
        try:
            self.run(model, lambda model: model.generate("x", max_tokens=5))
        except CallFailed as error:
            return error
        raise AssertionError(f"the call succeeded in spite of {faults or settings}")

    def batched(self, *faults: Fault) -> tuple[tuple[int, int], Simulator] | None:
        """How many of four calls are paid in batches, and how many at full price; None: the provider has no batches."""
        model, simulator = self.world(*faults, turnaround=Latency(600.0))
        if model.provider.batches is None:
            return None

        async def evaluate(candidate: int, case: Case) -> Ok:
            await model.generate(f"question {candidate}", max_tokens=5)
            return Ok(float(candidate))

        async def main() -> list[float | None]:
            run = await Study(Sweep(list(range(4))), evaluate).run_async(_Batches("auto", looks=(0.0, 60.0)))
            return [result.score for result in run.results()]

        assert run_virtual(main()) == [0.0, 1.0, 2.0, 3.0], f"a call failed with {faults}"
        prices = [charge.price for charge in simulator.charges]
        return (prices.count("batch"), prices.count("realtime")), simulator


class _Batches(BatchExecutor):
    """Sends in batches also to a server that may lack them."""

    def takes(self, model: Model) -> bool:
        return model.provider.batches is not None
