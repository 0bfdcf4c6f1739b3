"""What the network does is not the candidate's fault: calls wait, try again, or stop the run with the reason."""

from __future__ import annotations

import asyncio
import random
import re
import socket
from contextlib import asynccontextmanager
from dataclasses import replace
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest

from fanfold import Case, Study, Sweep
from fanfold.calls import Waiting
from fanfold.context import here
from fanfold.errors import CallFailed
from fanfold.models import Model, model
from fanfold.models.breaker import Breaker
from fanfold.models.http import Http, HttpError, Response
from fanfold.models.simulated import SimulatedTransport
from fanfold.running import Run
from fanfold.simulator import Fault, Faults, Latency, Simulator, SimulatorConfig, serve
from fanfold.testing import run_virtual


class Edge(SimulatedTransport):
    """A simulated provider that notes when requests come, and how many at a time."""

    def __init__(self, *faults: Fault, seed: int = 0, latency: float = 0.0) -> None:
        config = SimulatorConfig(seed=seed, latency=Latency(latency), faults=Faults(faults, seed=seed))
        super().__init__(Simulator(config))
        self.came: list[float] = []
        self.under_way = 0
        self.most: list[int] = []

    async def request(self, method: str, url: str, headers: Any, body: bytes | None = None, **rest: Any) -> Response:
        self.came.append(asyncio.get_running_loop().time())
        self.under_way += 1
        self.most.append(self.under_way)
        try:
            if (answer := self.first(len(self.came))) is not None:
                return answer
            return await super().request(method, url, headers, body, **rest)
        finally:
            self.under_way -= 1

    def first(self, number: int) -> Response | None:
        """What happens to request `number` instead."""
        return None


def asked_at(edge: SimulatedTransport, **options: Any) -> Model:
    return replace(model("simulated/gpt-6-luna"), connect=lambda: edge, **options)


def study(asked: Model, calls: int = 1) -> Study:
    async def evaluate(candidate: int, case: Case) -> float:
        return len((await asked.generate(f"say {candidate}", max_tokens=5)).text)

    evaluate.fingerprint = "says"  # type: ignore[attr-defined]
    return Study(Sweep(range(calls)), evaluate)


def evaluated(asked: Model, calls: int = 1, slots: int = 1, **options: Any) -> tuple[Run, float]:
    """A run of so many calls on the virtual clock, and how long it took."""

    async def main() -> tuple[Run, float]:
        run = await study(asked, calls).run_async(f"async:{slots}", **options)
        return run, asyncio.get_running_loop().time()

    return run_virtual(main())


def failure(run: Run) -> Any:
    (outcome,) = next(iter(run.results())).failures.values()
    return outcome


# -- replies that cannot be read -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["cut", "truncate", "content_type", "malformed"])
def test_waiting_a_reply_that_cannot_be_read_is_asked_for_again(kind: str) -> None:
    run, _ = evaluated(asked_at(Edge(Fault(kind, times=2))))
    assert run.progress.failures == 0


@pytest.mark.parametrize("kind", ["truncate", "content_type", "malformed"])
def test_waiting_replies_that_can_never_be_read_end_after_three_because_each_may_be_paid(kind: str) -> None:
    edge = Edge(Fault(kind))
    run, _ = evaluated(asked_at(edge))
    assert (failure(run).kind, len(edge.came)) == ("malformed", 3)
    assert "(tried 3 times in " in failure(run).message


@pytest.mark.parametrize(
    "body",
    [
        b"[]",
        b'"text"',
        b"\xff",
        b"[" * 100_000,
        b'{"choices": [{"message": {"content": 7}}]}',
        b'{"choices": [{"message": {"content": null, "refusal": {"a": 1}}}]}',
        b'{"choices": [{"message": {"content": "x"}}], "usage": {"completion_tokens": 100000000000000000000}}',
    ],
)
def test_waiting_json_of_another_shape_is_a_reply_that_cannot_be_read(body: bytes) -> None:
    class Odd(Edge):
        def first(self, number: int) -> Response | None:
            return Response(200, {}, body) if number <= 2 else None

    edge = Odd()
    run, _ = evaluated(asked_at(edge))
    assert (run.progress.failures, len(edge.came)) == (0, 3)


def test_waiting_an_answer_that_is_too_large_is_not_asked_for_again() -> None:
    async def main() -> tuple[Run, int]:
        simulator = Simulator(SimulatorConfig())
        async with serve(simulator) as url:
            asked = model("gpt-4o-mini", base_url=f"{url}/v1", key="k")
            run = await study(replace(asked, connect=lambda: Http(max_bytes=50))).run_async("async:1")
            return run, len(simulator.charges)

    run, charges = asyncio.run(main())
    assert (failure(run).kind, charges) == ("too-large", 1)


# -- servers that are not there ---------------------------------------------------------------------------------------


@asynccontextmanager
async def answering(text: bytes) -> Any:
    """A server that says the same to everybody and hangs up; nothing at all: it only hangs up."""

    async def serve_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if text:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(text)
        writer.close()

    server = await asyncio.start_server(serve_one, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


def stopped(path: Path, url: str, **options: Any) -> tuple[CallFailed, float]:
    """The error that ends a run against `url`, and when, on the virtual clock."""

    async def main() -> tuple[CallFailed, float]:
        asked = replace(model("gpt-6-luna", base_url=url, key="k"), **options)
        with pytest.raises(CallFailed) as caught:
            await study(asked, 20).run_async("async:4", ledger=path, run="a", grace=0.1)
        return caught.value, asyncio.get_running_loop().time()

    return run_virtual(main())


def continued(path: Path) -> Run:
    """The same run where the server is there."""
    return run_virtual(study(asked_at(Edge()), 20).run_async("async:4", ledger=path, run="a"))


@pytest.mark.slow
def test_waiting_nobody_listens_stops_the_run_after_half_a_minute_and_nothing_counts_as_failed(tmp_path: Path) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    error, seconds = stopped(tmp_path / "a.db", f"http://127.0.0.1:{port}/v1")
    assert error.kind == "unreachable" and error.hopeless and 30 <= seconds <= 45
    text = str(error)
    assert f"nobody answers at http://127.0.0.1:{port}/v1/chat/completions: " in text
    assert "refused" in text and re.search(r"tried \d+ times in \d+ s", text)
    run = continued(tmp_path / "a.db")
    assert (run.progress.told, run.progress.failures) == (20, 0)


def test_waiting_a_redirect_stops_the_run_and_is_never_followed(tmp_path: Path) -> None:
    async def main() -> tuple[CallFailed, float, int]:
        moved = (
            b"HTTP/1.1 308 Permanent Redirect\r\nlocation: http://other.test/v1?key=secret\r\ncontent-length: 0\r\n\r\n"
        )
        async with answering(moved) as port:
            asked = model("gpt-6-luna", base_url=f"http://127.0.0.1:{port}/v1", key="k")
            with pytest.raises(CallFailed) as caught:
                await study(asked, 5).run_async("async:2", grace=0.1)
            return caught.value, asyncio.get_running_loop().time(), port

    error, seconds, port = run_virtual(main())
    assert error.kind == "unreachable" and 30 <= seconds <= 45
    assert f"127.0.0.1:{port}" in str(error) and "(status 308) to http://other.test/v1," in str(error)
    assert "base_url" in str(error) and "secret" not in str(error)


def test_waiting_a_redirect_of_a_server_that_answered_before_stops_the_run_too() -> None:
    class Moves(Edge):
        def first(self, number: int) -> Response | None:
            return Response(302, {"location": "http://other.test/"}, b"") if number > 4 else None

    async def main() -> float:
        with pytest.raises(CallFailed, match=r"to http://other\.test/,") as caught:
            await study(asked_at(Moves()), 8).run_async("async:4", grace=0.1)
        assert caught.value.kind == "unreachable"
        return asyncio.get_running_loop().time()

    assert 30 <= run_virtual(main()) <= 45


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt-6-luna", "claude-haiku-5-5"])
def test_waiting_a_redirect_stops_a_run_in_batches_as_well(name: str) -> None:
    class Moved(Edge):
        def first(self, number: int) -> Response | None:
            return Response(302, {"location": "http://other.test/"}, b"")

    edge = Moved()

    async def main() -> None:
        asked = replace(model(f"simulated/{name}"), connect=lambda: edge)
        with pytest.raises(CallFailed, match=r"status 302\) to http://other.test/,") as caught:
            await study(asked, 4).run_async("batch:auto", grace=0.1)
        assert caught.value.kind == "unreachable"
        assert asyncio.get_running_loop().time() < 120

    run_virtual(main())


def test_waiting_an_unknown_host_name_stops_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*args: object, **options: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    error, seconds = stopped(tmp_path / "a.db", "https://api.tpyo.test/v1")
    assert error.kind == "unreachable" and 30 <= seconds <= 45
    assert "'api.tpyo.test' cannot be resolved" in str(error)


def test_waiting_a_server_that_only_hangs_stops_the_run_when_the_timeout_has_shown_it() -> None:
    async def main() -> float:
        with pytest.raises(CallFailed, match=r"no full answer within 20 s.*tried 2 times") as caught:
            await study(asked_at(Edge(Fault("hang")), timeout=20.0), 4).run_async("async:4", grace=0.1)
        assert caught.value.kind == "unreachable"
        return asyncio.get_running_loop().time()

    assert 30 <= run_virtual(main()) <= 45


def test_waiting_a_handshake_that_breaks_is_the_network_and_only_a_certificate_is_hopeless(tmp_path: Path) -> None:
    class Tls(Edge):
        kind = "tls"

        def first(self, number: int) -> Response | None:
            if number <= 3:
                raise HttpError("no TLS handshake", self.kind, sent=False)
            return None

    run, _ = evaluated(asked_at(Tls()))
    assert run.progress.failures == 0
    wary = Tls()
    wary.kind = "certificate"
    with pytest.raises(CallFailed) as caught:
        evaluated(asked_at(wary), grace=0.1)
    assert (caught.value.kind, caught.value.hopeless, len(wary.came)) == ("unreachable", True, 1)


def test_waiting_a_server_that_resets_every_handshake_is_tried_for_half_a_minute(tmp_path: Path) -> None:
    async def main() -> float:
        async with answering(b"") as port:
            asked = model("gpt-6-luna", base_url=f"https://127.0.0.1:{port}/v1", key="k")
            with pytest.raises(CallFailed, match="no TLS handshake") as caught:
                await study(asked, 2).run_async("async:2", grace=0.1)
            assert caught.value.kind == "unreachable"
            return asyncio.get_running_loop().time()

    assert 30 <= run_virtual(main()) <= 45


# -- servers that answered before -------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["disconnect", "unavailable", "hang"])
def test_waiting_an_outage_of_an_hour_less_a_bit_fails_nothing_and_says_what_is_waited_for(kind: str) -> None:
    asked = asked_at(Edge(Fault(kind, start=10.0, end=3000.0)), timeout=20.0)
    seen: list[tuple[float, Waiting | None]] = []

    async def look() -> None:
        clock, broker = asyncio.get_running_loop().time, here().broker
        assert broker is not None
        while True:
            seen.append((clock(), broker.waits()))
            await asyncio.sleep(7.0)

    async def evaluate(candidate: int, case: Case) -> float:
        watching = asyncio.create_task(look()) if candidate == 0 else None
        for turn in range(20):
            await asyncio.sleep(1.0)
            await asked.generate(f"say {candidate} {turn}", max_tokens=5)
        if watching is not None:
            watching.cancel()
        return 1.0

    run = run_virtual(Study(Sweep(range(8)), evaluate).run_async("async:8"))
    assert run.progress.failures == 0
    during = [(now, wait) for now, wait in seen if 100 < now < 3000]
    assert len(during) > 400
    for now, wait in during:
        assert wait is not None and wait.what.startswith("openai to answer again (openai")
        assert wait.since <= 11.5, "since the outage began"
        assert wait.until is not None and now - 20.5 <= wait.until <= now + 31, "the next try, or the one under way"


@pytest.mark.parametrize("progress", [None, False])
def test_waiting_a_long_outage_is_said_once_also_where_no_progress_is_shown(
    progress: bool | None, recwarn: pytest.WarningsRecorder
) -> None:
    edge = Edge(Fault("unavailable", start=0.0, end=200.0), Fault("unavailable", start=200.5, end=220.0), latency=0.1)
    run, seconds = evaluated(asked_at(edge), calls=20, slots=3, progress=progress)
    assert run.progress.failures == 0 and seconds > 200
    (note,) = [note.text for note in run.view.notes() if "answer" in note.text]
    assert note.startswith("calls wait for openai to answer again (openai: ") and note.endswith("tried until it does")
    warned = [str(warning.message) for warning in recwarn if "answer" in str(warning.message)]
    assert warned == ([] if progress is False else [note])


@pytest.mark.slow
def test_waiting_an_outage_is_waited_out_together_with_one_probe_at_a_time() -> None:
    edge = Edge(Fault("unavailable", start=1.0, end=600.0), latency=0.5)
    run, seconds = evaluated(asked_at(edge), calls=300, slots=50)
    assert run.progress.failures == 0 and seconds < 700
    during = [(at, most) for at, most in zip(edge.came, edge.most, strict=True) if 10 < at < 600]
    assert len(during) < 40 and {most for _, most in during} == {1}


def test_waiting_what_probes_and_is_cancelled_leaves_its_turn_to_the_next() -> None:
    async def main() -> list[str]:
        breaker, log = Breaker(), []
        for _ in range(20):
            breaker.failed("down", 0.0)
        assert breaker.open

        async def call(name: str) -> None:
            while not await breaker.turn():
                pass
            log.append(name)
            try:
                await asyncio.sleep(100)
            except asyncio.CancelledError:
                breaker.left(probe=True)
                raise

        tasks = [asyncio.create_task(call(name)) for name in "abc"]
        await asyncio.sleep(2)
        tasks[0].cancel()
        await asyncio.sleep(2)
        for task in tasks[1:]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return log

    assert run_virtual(main())[:2] == ["a", "b"]


def test_waiting_for_a_probe_under_way_wakes_nobody_until_it_has_ended() -> None:
    async def main() -> tuple[float, int]:
        breaker, looks = Breaker(), 0
        for _ in range(20):
            breaker.failed("down", 0.0)
        await asyncio.sleep(2)
        assert await breaker.turn(), "we try for all"

        async def late() -> float:
            nonlocal looks
            while breaker.open:
                looks += 1
                assert looks < 10, "it looks again and again"
                await breaker.turn()
            return asyncio.get_running_loop().time()

        waiting = asyncio.create_task(late())
        await asyncio.sleep(100)
        breaker.ok()
        return await waiting, looks

    assert run_virtual(main()) == (102, 1)


def test_waiting_calls_get_the_turn_of_one_that_is_cancelled_as_it_comes() -> None:
    async def main() -> bool:
        breaker = Breaker()
        for _ in range(20):
            breaker.failed("down", 0.0)
        first, second = (asyncio.create_task(breaker.turn()) for _ in range(2))
        await asyncio.sleep(0)
        breaker._release(1)
        first.cancel()
        async with asyncio.timeout(0.5):  # before the next try is due by itself
            return await second

    assert run_virtual(main()) is False, "look again"


# -- servers that fail now and then -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["internal", "unavailable"])
@pytest.mark.parametrize(("slots", "latency"), [(20, 0.5), (80, 0.05)])
def test_waiting_forty_per_cent_of_errors_among_successes_are_no_outage(
    kind: str, slots: int, latency: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn, waits = Breaker.turn, 0

    async def counted(breaker: Breaker) -> bool:
        nonlocal waits
        waits += 1
        return await turn(breaker)

    monkeypatch.setattr(Breaker, "turn", counted)
    took, waited = [], []
    for seed in range(5):
        random.seed(seed)
        waits = 0
        edge = Edge(Fault(kind, probability=0.4), seed=seed, latency=latency)
        run, seconds = evaluated(asked_at(edge), calls=80, slots=slots)
        assert run.progress.failures == 0
        took.append(seconds)
        waited.append(waits)
    # Of five runs the middle one: a row of failures that looks like an outage may happen by chance, not as a rule.
    assert sorted(waited)[2] == 0, "no call waited for the breaker"
    assert sorted(took)[2] < 11.5, "what a plain client with six retries takes"


# -- giving up says how often and for how long ------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "kind", "tries", "least"),
    [
        ("rate_limit", "rate-limit", 40, 30),
        ("internal", "server", None, 3600),
        ("unavailable", "overloaded", None, 3600),
        ("hang", "timeout", None, 3600),
    ],
)
def test_waiting_in_vain_ends_in_a_failure_that_says_how_often_and_how_long(
    fault: str, kind: str, tries: int | None, least: float
) -> None:
    edge = Edge(Fault(fault, start=0.5))  # it answers the first call, so it is there

    async def evaluate(candidate: int, case: Case) -> float:
        await asked.generate("first", max_tokens=5)
        await asyncio.sleep(1.0)
        return len((await asked.generate("second", max_tokens=5)).text)

    asked = asked_at(edge, timeout=10.0)
    run = run_virtual(Study(Sweep([0]), evaluate).run_async("async:1"))
    assert failure(run).kind == kind
    told = re.search(r"\(tried (\d+) times in (\d+) s\)", failure(run).message)
    assert told is not None and int(told[1]) == len(edge.came) - 1 == (tries or int(told[1]))
    assert int(told[2]) >= least


@pytest.mark.slow
def test_waiting_for_a_rate_limit_uses_up_no_tries_of_another_sort() -> None:
    edge = Edge(Fault("rate_limit", times=15, value=1.0), Fault("internal", times=4), Fault("truncate", times=2))
    run, _ = evaluated(asked_at(edge))
    assert (run.progress.failures, len(edge.came)) == (0, 22)


def test_waiting_until_a_date_goes_by_the_clock_of_the_server_that_named_it() -> None:
    class Skewed(Edge):
        def first(self, number: int) -> Response | None:
            now = 1e9 * number  # 2001 or 2033: not our time at all
            told = {"date": formatdate(now, usegmt=True), "retry-after": formatdate(now + 20, usegmt=True)}
            return Response(429, told, b'{"error": {"message": "later"}}') if number <= 2 else None

    edge = Skewed()
    run, _ = evaluated(asked_at(edge))
    assert run.progress.failures == 0
    first, second, third = edge.came
    assert 20 <= second - first <= 23 and 20 <= third - second <= 45
