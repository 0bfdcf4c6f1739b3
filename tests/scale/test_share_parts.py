"""What sharers promise each other, looked at from close by: turns, refusals, claims, money, and foreign values."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from share_world import RedisServer, Sharers, redis_server

from fanfold import Case, ConfigError, Study, Sweep
from fanfold.cli import cli
from fanfold.errors import CallFailed
from fanfold.events import Notice
from fanfold.limits import Limiter, Limits, Quota
from fanfold.models import model
from fanfold.sharing import Lease, ShareAddress, SharedBudget, Sharing
from fanfold.simulator import Latency, SimulatorConfig

pytestmark = pytest.mark.slow

KEY = b"\1" * 32


@asynccontextmanager
async def sharing(redis: RedisServer, number: int = 1) -> AsyncIterator[list[Sharing]]:
    """So many sharers in one process, as if each were its own."""
    group = [Sharing(ShareAddress.parse(redis.url)) for _ in range(number)]
    for one in group:
        await one.join()
    try:
        yield group
    finally:
        for one in group:
            await one.leave()


def limiter(by: Sharing, limits: Limits) -> Limiter:
    limiter = Limiter(limits)
    limiter.lease = Lease(by, limiter, ("openai/luna", "https://example.com", "secret key"))
    return limiter


async def flood(limiter: Limiter, callers: int, seconds: float, took: float = 0.0) -> int:
    """How many calls get through in so many seconds, where so many callers want to."""
    done = 0

    async def call() -> None:
        nonlocal done
        while True:
            permit = await limiter.acquire(10, 10)
            await asyncio.sleep(took)
            done += 1
            permit.done(True, input_tokens=10, output_tokens=10)

    tasks = [asyncio.create_task(call()) for _ in range(callers)]
    await asyncio.sleep(seconds)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return done


async def until(true: Callable[[], Any], seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        while not true():
            await asyncio.sleep(0.01)


def run(main: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(main())  # type: ignore[arg-type]


# -- limits ------------------------------------------------------------------------------------------------------------


def test_shares_follow_demand_and_nobody_who_waits_starves(redis: RedisServer) -> None:
    async def main() -> None:
        async with sharing(redis, 2) as (greedy, modest):
            limits = Limits(requests_per_minute=6000, burst=0.1)
            first, second = limiter(greedy, limits), limiter(modest, limits)
            alone = await flood(first, 100, 0.5)
            assert alone >= 25
            many, few = await asyncio.gather(flood(first, 100, 1.5), flood(second, 3, 1.5))
            assert many + few <= 150 + 3 * 10
            assert few >= (many + few) / 4

    run(main)


def test_tokens_are_shared_and_corrected(redis: RedisServer) -> None:
    async def main() -> None:
        async with sharing(redis, 2) as group:
            limits = Limits(tokens_per_minute=60_000, burst=0.1)  # 50 calls of 20 tokens a second
            counts = await asyncio.gather(*(flood(limiter(one, limits), 50, 1.0) for one in group))
            assert 20 <= sum(counts) <= 50 + 10
            # What was estimated at 20 and used 2,020 is paid off by everybody.
            (await limiter(group[0], limits).acquire(10, 10)).done(True, input_tokens=10, output_tokens=2010)
            await asyncio.sleep(0.05)
            assert await flood(limiter(group[1], limits), 9, 0.5) <= 2

    run(main)


@pytest.mark.parametrize("rpm", [None, 6000])
def test_calls_in_flight_are_counted_together_where_told(redis: RedisServer, rpm: float | None) -> None:
    async def main() -> None:
        async with sharing(redis, 2) as group:
            both = [limiter(one, Limits(requests_per_minute=rpm, in_flight=4, adaptive=False)) for one in group]
            said: list[str] = []
            group[0].warnings.append(said.append)
            most = 0

            async def watch() -> None:
                nonlocal most
                while True:
                    most = max(most, sum(one.in_flight for one in both))
                    await asyncio.sleep(0.001)

            watching = asyncio.create_task(watch())
            counts = await asyncio.gather(*(flood(one, 10, 1.0, took=0.05) for one in both))
            watching.cancel()
            assert most <= 4
            assert min(counts) >= 5
            assert said == []

    run(main)


def test_a_refusal_of_one_holds_back_all_and_what_one_learns_all_know(redis: RedisServer) -> None:
    async def main() -> None:
        async with sharing(redis, 2) as (one, other):
            refused, heard = limiter(one, Limits()), limiter(other, Limits())
            permit, quiet = await refused.acquire(), await heard.acquire()
            permit.done(False, refused=True, retry_after=30.0)
            await until(lambda: heard.closed_until is not None)
            assert heard.rate is not None  # and from then on it keeps a rate, not only the pause
            quiet.done(True, quota=Quota(requests_limit=600))
            await until(lambda: refused.rate is not None and refused.rates)
            assert refused.rates[0][0] == 10.0
            late = limiter(one, Limits())
            await until(lambda: late.rates)
            assert late.rates[0][0] == 10.0

    run(main)


def test_a_clock_that_is_set_back_and_the_dead_hold_up_nobody(redis: RedisServer) -> None:
    async def main() -> None:
        async with sharing(redis) as (one,):
            shared = limiter(one, Limits(requests_per_minute=600, in_flight=2))
            (await shared.acquire()).done(True)
            name, later = redis.command("KEYS", "fanfold:1:limit:*"), str(time.time() + 3600)
            redis.command("HSET", name, "seen", later, "until 0", later, "flying the-dead", "2")
            for _ in range(4):
                (await asyncio.wait_for(shared.acquire(), 2.0)).done(True)
            assert "the-dead" not in redis.command("HGETALL", name)

    run(main)


def test_keys_say_nothing_of_the_key_and_expire(redis: RedisServer) -> None:
    async def main() -> None:
        async with sharing(redis) as (one,):
            shared = limiter(one, Limits(requests_per_minute=600, in_flight=3))
            (await shared.acquire(5, 5)).done(True)
            await one.take(KEY)
            await SharedBudget(one, 5.0).reserve(1.0, "luna")
            names = redis.command("KEYS", "*").split()
            kinds = {name.split(":")[2] for name in names if name.startswith("fanfold:1:")}
            assert kinds | {"queue"} == {"alive", "limit", "who", "queue", "call", "budget"}
            assert all(int(redis.command("TTL", name)) > 0 for name in names)

    run(main)
    redis.command("SAVE")
    dump = (redis.folder / "dump.rdb").read_bytes()
    assert b"luna" in dump
    assert b"secret" not in dump


# -- replies -----------------------------------------------------------------------------------------------------------


def test_a_claim_is_given_up_by_who_fails_is_cancelled_or_loses_its_way(redis: RedisServer) -> None:
    async def main() -> None:
        async with sharing(redis, 2) as (one, other):
            assert await one.take(KEY) is True
            assert await other.take(KEY) is False
            waiting = asyncio.create_task(other.news_of(KEY))
            one.give(KEY)  # it failed
            await asyncio.wait_for(waiting, 1.0)
            assert await other.take(KEY) is True
            other.give(KEY, b"reply")
            await until(lambda: KEY not in other._claims and not other._tasks)
            assert await one.take(KEY) == b"reply"
            gone = asyncio.create_task(one.take(b"\2" * 32))
            await asyncio.sleep(0)
            gone.cancel()
            await asyncio.gather(gone, return_exceptions=True)
            one.give(b"\2" * 32)
            await until(lambda: not one._tasks)
            assert await other.take(b"\2" * 32) is True

    run(main)


def test_two_runs_of_one_process_pay_once(redis: RedisServer, start: Any, tmp_path: Path) -> None:
    world = start(SimulatorConfig(latency=Latency(0.1)))
    luna = model("openai/gpt-4o-mini", base_url=f"{world.url}/v1", key="no-key-needed")

    async def ask(candidate: str, case: Case) -> float:
        return float(len((await luna.generate(f"number {case.data}")).text))

    async def main() -> None:
        study = Study(Sweep(["one"]), ask, range(10))
        runs = [study.run_async("async:10", ledger=tmp_path / f"{n}.db", share=redis.url) for n in range(2)]
        await asyncio.gather(*runs)

    run(main)
    assert len(world.simulator.charges) == 10


@pytest.mark.parametrize("value", [b"rubbish", b'{"text": 3}', b"\x80\x04K\x01.", b"{" * 2000, None])
def test_foreign_values_are_ignored_with_a_warning(
    redis: RedisServer, start: Any, tmp_path: Path, value: bytes | None
) -> None:
    world = start(SimulatorConfig())
    luna = model("openai/gpt-4o-mini", base_url=f"{world.url}/v1", key="no-key-needed")
    notices: list[str] = []

    async def ask(candidate: str, case: Case) -> float:
        key = luna.call("hello").key.hex()
        redis.command(*(["LPUSH"] if value is None else ["SET"]), f"fanfold:1:call:{key}", value or b"item")
        redis.command("PUBLISH", "fanfold:1:news:" + place(redis), '{"sender": "x", "hold": 1e9}')
        return float(len((await luna.generate("hello")).text))

    def watch(event: Any) -> None:
        notices.extend([event.message] if isinstance(event, Notice) else [])

    study = Study(Sweep(["one"]), ask, [1])
    done = study.run("async:2", ledger=tmp_path / "a.db", share=redis.url, watch=watch)
    assert done.best is not None
    assert sum("foreign values where replies should be" in notice for notice in notices) == 1
    assert len(world.simulator.charges) == 1


def place(redis: RedisServer) -> str:
    names = redis.command("KEYS", "fanfold:1:limit:*").split()
    return names[0].rpartition(":")[2] if names else "none"


# -- money -------------------------------------------------------------------------------------------------------------


def test_a_budget_of_all_is_reserved_settled_and_never_exceeded(redis: RedisServer) -> None:
    async def main() -> None:
        async with sharing(redis, 2) as group:
            one, other = (SharedBudget(by, 10.0) for by in group)
            await asyncio.gather(*(budget.reserve(2.0, "luna") for budget in (one, other, one, other)))
            waits = asyncio.create_task(other.reserve(3.0, "luna"))  # there may be enough when something is settled
            await asyncio.sleep(0.3)
            assert not waits.done()
            one.settle(2.0, 0.5)
            await asyncio.wait_for(waits, 5.0)
            for budget, worst, cost in ((one, 2.0, 2.0), (other, 2.0, 2.0), (other, 2.0, 2.0), (other, 3.0, 3.0)):
                budget.settle(worst, cost)
            with pytest.raises(CallFailed, match=r"9\.5000 of the shared budget 10 is spent by all") as failed:
                await one.reserve(0.6, "luna")
            assert failed.value.hopeless
            await other.reserve(0.5, "luna")

    run(main)


def test_what_the_dead_reserved_is_free_again_and_what_they_spent_is_not(
    redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fanfold.sharing.budget.ALIVE", 1.0)

    async def main() -> None:
        async with sharing(redis, 2) as (one, other):
            dead, living = SharedBudget(one, 10.0), SharedBudget(other, 10.0)
            await dead.reserve(4.0, "luna")
            dead.settle(4.0, 4.0)
            await dead.reserve(6.0, "luna")
            dead.close()  # says nothing more
            await asyncio.wait_for(living.reserve(6.0, "luna"), 5.0)
            living.settle(6.0, 6.0)
            with pytest.raises(CallFailed, match=r"10\.0000 of the shared budget 10 is spent"):
                await living.reserve(0.1, "luna")

    run(main)


def test_without_the_server_each_has_its_part_of_the_money(
    own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fanfold.sharing.budget.SETTLE", 2.0)

    async def main() -> None:
        async with sharing(own_redis, 2) as group:
            one, other = (SharedBudget(by, 10.0) for by in group)
            for budget in (one, other, one, other):
                await budget.reserve(1.0, "luna")  # 6 are left
            one.write()  # as every second, and so hears what is left
            await until(lambda: not any(by._tasks for by in group))
            own_redis.kill()
            await until(lambda: not any(by.link.up for by in group))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(one.reserve(3.5, "luna"), 0.3)
            await asyncio.wait_for(one.reserve(3.0, "luna"), 0.3)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(one.reserve(0.1, "luna"), 0.3)
            await asyncio.wait_for(other.reserve(1.0, "luna"), 0.3)
            late = group[0].link
            assert late._returning is not None
            late._returning.cancel()
            own_redis.start()  # and it has forgotten everything
            await until(lambda: group[1].link.up)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(other.reserve(2.5, "luna"), 0.7)
            await late._return()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(other.reserve(2.5, "luna"), 2.5)
            await asyncio.wait_for(one.reserve(2.0, "luna"), 5.0)  # of what the other one had not used

    run(main)


def test_a_run_stops_at_the_shared_budget(redis: RedisServer, sharers: Sharers, start: Any) -> None:
    world = start(SimulatorConfig())
    worst = 300e-6
    for number in range(2):
        sharers.begin(world.url, f"{redis.url}?budget=june", "0:1000", budget=20 * worst, shuffle=number)
    texts = sharers.end()
    assert any("of the shared budget 0.006 is spent by all who share" in text for text in texts)
    paid = sum(charge.input_tokens * 1e-6 + charge.output_tokens * 2e-6 for charge in world.simulator.charges)
    assert 0 < paid <= 20 * worst
    assert redis.command("HLEN", "fanfold:1:budget:june") == "2"


# -- the address -------------------------------------------------------------------------------------------------------


def test_a_server_that_is_not_there_refuses_the_run_before_it_begins(tmp_path: Path, start: Any) -> None:
    study = Study(Sweep(["one"]), lambda candidate, case: 1.0, [1])
    with pytest.raises(ConfigError, match=r"redis://127.0.0.1:1/0 does not answer .*: start the server there"):
        study.run(share="redis://127.0.0.1:1/0", ledger=tmp_path / "a.db")
    assert not (tmp_path / "a.db").exists()
    with pytest.raises(ConfigError, match="is it another kind of server"):
        study.run(share=start(SimulatorConfig()).url.replace("http:", "redis:"))
    with pytest.raises(ConfigError, match="share_budget needs share=URL"):
        study.run(share_budget=1.0)
    for wrong in ("http://host", "redis://", "redis://host/x", "redis://host/0?x=1", "redis://host:port/0"):
        with pytest.raises(ConfigError, match="write redis://HOST:PORT/DATABASE"):
            study.run(share=wrong)


def test_a_password_logs_in_and_is_never_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = redis_server(tmp_path, password="pw7")  # too short for what removes known secrets from texts
    server.start()
    seen: list[Any] = []
    study = Study(Sweep(["one"]), lambda candidate, case: 1.0, [1])
    try:
        study.run(share=server.url, ledger=tmp_path / "a.db", watch=seen.append)
        shell = CliRunner()
        ledger = ["--ledger", str(tmp_path / "a.db")]
        said = shell.invoke(cli, ["run", "functions", "--run", "one", "--share", server.url, *ledger])
        assert said.exit_code == 0, said.output
        forgot = shell.invoke(cli, ["resume", "one", *ledger])
        assert "put it into the address, or into REDISCLI_AUTH" in forgot.output
        assert shell.invoke(cli, ["resume", "one", "--share", "off", *ledger]).exit_code == 0
        looked = shell.invoke(cli, ["doctor", "--share", server.url])
        assert f"redis://127.0.0.1:{server.port}/0" in looked.output
        with pytest.raises(ConfigError, match="wants another user or password") as refused:
            study.run(share=server.url.replace("pw7", "pw8"))
        monkeypatch.setenv("REDISCLI_AUTH", "pw7")
        study.run(share=server.url.replace(":pw7@", ""))
        study.run(share=f"unix://{tmp_path}/redis.sock?db=2")
    finally:
        server.kill()
    texts = f"{seen} {said.output} {looked.output} {refused.value}"
    assert "pw7" not in texts
    assert "pw8" not in texts
    assert b"pw7" not in b"".join(file.read_bytes() for file in tmp_path.glob("a.db*"))


def test_a_server_with_tls_is_trusted_by_its_authority_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"--tls-cert-file": tmp_path / "cert.pem", "--tls-key-file": tmp_path / "key.pem"}
    make = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
    ]
    make += ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    make += ["-out", str(tmp_path / "cert.pem"), "-keyout", str(tmp_path / "key.pem")]
    subprocess.run(make, check=True, capture_output=True)
    server = redis_server(tmp_path)
    server.options = ["--port", "0", "--tls-auth-clients", "no", "--tls-ca-cert-file", str(tmp_path / "cert.pem")]
    server.options += [str(word) for pair in files.items() for word in pair]
    server.start(tls=True)
    study = Study(Sweep(["one"]), lambda candidate, case: 1.0, [1])
    try:
        with pytest.raises(ConfigError, match="name its authority in SSL_CERT_FILE"):
            study.run(share=server.url.replace("redis:", "rediss:"))
        with pytest.raises(ConfigError, match="hung up at once"):
            study.run(share=server.url)
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
        assert study.run(share=server.url.replace("redis:", "rediss:")).best is not None
    finally:
        server.kill()


def test_the_doctor_looks_at_a_server(redis: RedisServer) -> None:
    async def main() -> None:
        async with sharing(redis) as (one,):
            (await limiter(one, Limits(requests_per_minute=600)).acquire()).done(True)
            looked = await asyncio.to_thread(CliRunner().invoke, cli, ["doctor", "--share", redis.url])
            assert looked.exit_code == 0
            for words in ("share round trip", "share clock", "1 sharer(s)", "openai/luna", one.id, "MiB"):
                assert words in looked.output

    run(main)
    away = CliRunner().invoke(cli, ["doctor", "--share", "redis://127.0.0.1:1"])
    assert away.exit_code == 1
    assert "does not answer" in away.output


# -- the server hangs --------------------------------------------------------------------------------------------------


def test_limits_hold_and_calls_continue_while_the_server_hangs(own_redis: RedisServer) -> None:
    async def main() -> None:
        async with sharing(own_redis, 2) as group:
            limits = Limits(requests_per_minute=1200, burst=0.1)
            both = [limiter(one, limits) for one in group]
            await asyncio.gather(*(flood(one, 20, 0.5) for one in both))
            own_redis.stop()
            await until(lambda: not any(one.link.up for one in group))
            counts = await asyncio.gather(*(flood(one, 20, 1.5) for one in both))
            assert all(5 <= count <= 15 + 2 for count in counts)  # half of 20 a second each
            own_redis.stop(cont=True)
            await until(lambda: all(one.link.up for one in group), 2.0)

    run(main)


def test_a_model_shares_its_limits_without_a_run(redis: RedisServer, start: Any) -> None:
    world = start(SimulatorConfig())
    limits = Limits(requests_per_minute=600, shared=redis.url)
    assert redis.url not in repr(limits)
    luna = model("openai/gpt-4o-mini", base_url=f"{world.url}/v1", key="no-key-needed", limits=limits)

    async def main() -> None:
        await asyncio.gather(*(luna.generate("hello") for _ in range(3)))
        assert "until 0" in redis.command("HGETALL", redis.command("KEYS", "fanfold:1:limit:*"))

    run(main)
    away = Limits(shared="redis://127.0.0.1:1")
    with pytest.raises(ConfigError, match="does not answer"):
        run(lambda: model("openai/gpt-4o-mini", base_url=f"{world.url}/v1", key="x", limits=away).generate("hello"))
