"""The HTTP client, against real servers that behave, misbehave and lie; on asyncio, on uvloop, and inside a run."""

from __future__ import annotations

import asyncio
import base64
import gzip
import itertools
import pickle
import resource
import shutil
import socket
import ssl
import subprocess
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from http_servers import Request, client, failing, listening, reply, sends, serving
from hypothesis import given, settings
from hypothesis import strategies as st

from fanfold import Case, Study, Sweep, __version__
from fanfold.errors import ConfigError, FanfoldError
from fanfold.models.http import Http, HttpError, Response
from fanfold.models.http_bodies import Broken, UploadBody
from fanfold.models.http_exchange import Exchange
from fanfold.models.http_proxy import Origin, Proxies, Proxy
from fanfold.models.http_route import route, shown
from fanfold.testing import run_virtual

Run = Callable[[Coroutine[Any, Any, Any]], Any]

CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


@pytest.fixture(params=["asyncio", "uvloop", "study"])
def run(request: pytest.FixtureRequest) -> Run:
    """Run a coroutine on the loop under test; nothing here may take longer than ten seconds."""
    if request.param == "uvloop":
        pytest.importorskip("uvloop")
    if request.param == "study":
        return inside_a_run

    def start(main: Coroutine[Any, Any, Any]) -> Any:
        async def bounded() -> Any:
            async with asyncio.timeout(10):
                return await main

        if request.param == "uvloop":
            import uvloop

            return uvloop.run(bounded())
        return asyncio.run(bounded())

    return start


def inside_a_run(main: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine as the evaluation of a study."""
    failures: list[BaseException] = []

    async def evaluate(candidate: int, case: Case) -> float:
        try:
            async with asyncio.timeout(10):
                await main
        except BaseException as error:
            failures.append(error)
        return 0.0

    # A user may well start a run while handling an error: none of that may show in the client's own.
    try:
        raise LookupError("what the user is busy with")
    except LookupError:
        Study(Sweep([0]), evaluate).run("async:1")
    if failures:
        raise failures[0]


# What is sent and what comes back


def test_a_request_arrives_as_it_was_given_and_the_answer_comes_back(run: Run) -> None:
    async def main() -> None:
        async def answer(request: Request) -> None:
            await request.reply(request.body[::-1], "201 Created", "X-One: a\r\nx-one: b\r\nX-Empty:\r\n")

        async with serving(answer) as server, client() as http:
            got = await http.request("POST", f"{server.url}/v1/x?y=%20z#part", {"Authorization": "Bearer k"}, b"abc")
            assert (got.status, got.body) == (201, b"cba")
            assert got.headers == {"x-one": "a, b", "x-empty": "", "content-length": "3"}
            sent = server.requests[0]
            assert (sent.method, sent.target, sent.body) == ("POST", "/v1/x?y=%20z", b"abc")
            assert sent.headers == {
                "host": f"127.0.0.1:{server.port}",
                "accept-encoding": "gzip",
                "user-agent": f"fanfold/{__version__}",
                "authorization": "Bearer k",
                "content-length": "3",
            }

    run(main())


LINES = 4_000


class Counted:
    """Parts of a body of 8 MB, and how many of them have been made."""

    def __init__(self) -> None:
        self.made = 0

    def __call__(self) -> Iterator[bytes]:
        for number in range(LINES):
            self.made += 1
            yield b"%06d" % number + b"x" * 1_994


def test_a_large_body_is_made_while_it_is_sent_and_arrives_whole(run: Run) -> None:
    async def main() -> None:
        seen, before = Counted(), 0

        async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal before
            await reader.readuntil(b"\r\n\r\n")
            await asyncio.sleep(0.2)
            before = seen.made
            body = await reader.readexactly(2_000 * LINES)
            writer.write(reply(body[-2_000:-1_994]))

        async with listening(slow) as port, client() as http:
            body = UploadBody(seen)
            assert len(body) == len(bytes(body)) == 2_000 * LINES
            seen.made = 0
            got = await http.upload(f"http://127.0.0.1:{port}/files", {}, body, deadline=8.0)
            assert got.body == b"%06d" % (LINES - 1) and seen.made == LINES
            assert before < LINES, "nobody had read it yet, and still it was all in memory"

    run(main())


def test_a_large_body_that_the_server_refuses_early_is_not_made_to_its_end(run: Run) -> None:
    async def main() -> None:
        seen, connections = Counted(), 0

        async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal connections
            connections += 1
            await reader.readuntil(b"\r\n\r\n")
            writer.write(reply(b"too large", "413 Payload Too Large"))
            await asyncio.sleep(1)

        async with listening(refuse) as port, client() as http:
            body = UploadBody(seen)
            seen.made = 0
            for times in (1, 2):
                got = await http.upload(f"http://127.0.0.1:{port}/files", {}, body, deadline=5.0)
                assert (got.status, got.body) == (413, b"too large") and seen.made < times * LINES
                assert connections == times, "the rest of a body would be taken for the next request"

    run(main())


def test_a_large_body_is_sent_again_whole_where_a_kept_connection_was_closed(run: Run) -> None:
    async def main() -> None:
        async def once(request: Request) -> bool:
            await request.reply(request.body[-2_000:-1_994])
            return request.number > 0

        async with serving(once) as server, client() as http:
            await http.request("GET", server.url, {})
            got = await http.upload(server.url, {}, UploadBody(Counted()), deadline=8.0)
            assert got.body == b"%06d" % (LINES - 1) and server.requests[-1].headers["content-length"] == "8000000"

    run(main())


@pytest.mark.slow
def test_every_way_to_end_a_body_is_understood(run: Run) -> None:
    answers: dict[str, tuple[bytes, bytes]] = {
        "length": (reply(b"abc"), b"abc"),
        "chunked": (CHUNKED + b"2;x=y\r\nab\r\n1\r\nc\r\n0\r\nt: r\r\n\r\n", b"abc"),
        "until close": (b"HTTP/1.1 200 OK\r\n\r\nabc", b"abc"),
        "old": (b"HTTP/1.0 200 OK\r\n\r\nabc", b"abc"),
        "interim": (b"HTTP/1.1 100 Continue\r\nx: y\r\n\r\nHTTP/1.1 103 Early\r\n\r\n" + reply(b"abc"), b"abc"),
        "nothing": (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
        "unchanged": (b"HTTP/1.1 304 Not Modified\r\ncontent-length: 999999999\r\n\r\n", b""),
        "gzip": (reply(gzip.compress(b"abc", mtime=0), headers="content-encoding: gzip\r\n"), b"abc"),
        "deflate": (reply(zlib.compress(b"abc"), headers="content-encoding: deflate\r\n"), b"abc"),
        "empty gzip": (reply(b"", headers="content-encoding: gzip\r\n"), b""),
    }

    async def main() -> None:
        async with client() as http:
            for raw, body in answers.values():
                async with serving(sends(raw)) as server:
                    got = await http.request("GET", server.url, {})
                    assert got.body == body
                    assert "x" not in got.headers and "t" not in got.headers

    run(main())


def test_the_answer_to_head_has_no_body_whatever_its_length_says(run: Run) -> None:
    async def main() -> None:
        answer = sends(b"HTTP/1.1 200 OK\r\ncontent-length: 999\r\n\r\n", close=False)
        async with serving(answer) as server, client() as http:
            got = await http.request("HEAD", server.url, {}, deadline=5)
            assert (got.body, got.headers["content-length"]) == (b"", "999")

    run(main())


def test_a_redirect_is_an_answer_and_nothing_follows_it(run: Run) -> None:
    async def main() -> None:
        async with serving() as elsewhere:
            moved = reply(b"", "302 Found", f"location: {elsewhere.url}/\r\n")
            async with serving(sends(moved)) as server, client() as http:
                got = await http.request("GET", server.url, {"authorization": "Bearer k"})
                assert (got.status, got.headers["location"]) == (302, f"{elsewhere.url}/")
                assert elsewhere.connections == 0

    run(main())


def test_a_large_body_goes_up_whole(run: Run) -> None:
    body = bytes(range(256)) * 80_000

    async def main() -> None:
        async def answer(request: Request) -> None:
            await request.reply(str(len(request.body)).encode() if request.body == body else b"wrong")

        async with serving(answer) as server, client() as http:
            got = await http.request("POST", server.url, {}, body)
            assert got.body == str(len(body)).encode()

    run(main())


def test_an_answer_before_the_request_is_all_sent_is_taken_and_the_connection_is_not_reused(run: Run) -> None:
    async def main() -> None:
        async def stubborn(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(reply(b"no", "413 Too Large"))
            await asyncio.sleep(0.5)

        async with listening(stubborn) as port, client() as http:
            url = f"http://127.0.0.1:{port}"
            first = await http.request("POST", url, {}, bytes(50 << 20))
            second = await http.request("POST", url, {}, b"x", replay=False)
            assert (first.status, second.status) == (413, 413)

    run(main())


@pytest.mark.slow
@settings(deadline=None)
@given(
    body=st.binary(max_size=3000),
    framing=st.sampled_from(["length", "chunked", "close"]),
    encoding=st.sampled_from(["", "gzip", "deflate", "raw deflate"]),
    interim=st.booleans(),
    cuts=st.lists(st.integers(0, 4000), max_size=30),
)
def test_an_answer_is_the_same_however_the_network_cuts_it(
    body: bytes, framing: str, encoding: str, interim: bool, cuts: list[int]
) -> None:
    raw = answered(body, framing, encoding, interim)
    exchange = Exchange(b"", limit=3000 + 100)
    places = [0, *sorted(cuts), len(raw)]
    for start, end in itertools.pairwise(places):
        if raw[start:end]:
            exchange.feed(raw[start:end])
    assert exchange.done == (framing != "close")
    assert exchange.keep == (framing != "close")
    if framing == "close":
        exchange.end()
    response = exchange.response()
    assert (response.status, response.body, response.headers["x-id"]) == (200, body, "7")


@pytest.mark.slow
@settings(deadline=None)
@given(body=st.binary(min_size=1, max_size=500), chunked=st.booleans(), packed=st.booleans(), cut=st.floats(0, 1))
def test_a_cut_answer_is_never_taken_for_a_whole_one(body: bytes, chunked: bool, packed: bool, cut: float) -> None:
    raw = answered(body, "chunked" if chunked else "length", "gzip" if packed else "", False)
    part = raw[: int(cut * (len(raw) - 1))]
    exchange = Exchange(b"", limit=1000)
    if part:
        exchange.feed(part)
    assert not exchange.done
    with pytest.raises(Broken) as caught:
        exchange.end()
    assert caught.value.kind == "disconnected"


@settings(deadline=None)
@given(prefix=st.sampled_from([b"", b"HTTP/1.1 200 OK\r\n", CHUNKED]), junk=st.binary())
def test_no_bytes_do_more_than_fail_the_exchange(prefix: bytes, junk: bytes) -> None:
    exchange = Exchange(b"", limit=100)
    try:
        exchange.feed(prefix + junk)
        if not exchange.done:
            exchange.end()
    except Broken:
        return
    assert exchange.done
    assert len(exchange.response().body) <= 100


def answered(body: bytes, framing: str, encoding: str, interim: bool) -> bytes:
    if encoding == "gzip":
        body = gzip.compress(body, mtime=0)
    elif encoding == "deflate":
        body = zlib.compress(body)
    elif encoding == "raw deflate":
        bare = zlib.compressobj(wbits=-15)
        body = bare.compress(body) + bare.flush()
    head = "HTTP/1.1 100 Continue\r\nx-id: 1\r\n\r\n" if interim else ""
    head += "HTTP/1.1 200 OK\r\nX-Id: 7\r\n"
    if encoding:
        head += f"content-encoding: {encoding.removeprefix('raw ')}\r\n"
    if framing == "length":
        return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body
    if framing == "close":
        return f"{head}\r\n".encode() + body
    parts = [body[i : i + 37] for i in range(0, len(body), 37)]
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)
    return f"{head}transfer-encoding: chunked\r\n\r\n".encode() + chunks + b"0\r\n\r\n"


# Bounds


def bomb(blocks: int) -> bytes:
    """Gzip of `blocks` times 16 MiB of zeros, which is a thousandth of that on the wire; its end is missing."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    block = packer.compress(bytes(16 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)
    return b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff" + block * blocks


@pytest.mark.slow
def test_a_gzip_bomb_of_ten_gigabytes_ends_at_the_limit_and_never_unfolds_in_memory(run: Run) -> None:
    packed = bomb(640)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    async def main() -> None:
        answer = sends(reply(packed, headers="content-encoding: gzip\r\n"))
        async with serving(answer) as server, client() as http:
            assert (await failing(http.request("GET", server.url, {}))).kind == "too-large"

    run(main())
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown_kib < 200 << 10


def test_a_download_passes_on_no_more_than_its_limit_even_of_a_bomb(run: Run) -> None:
    sizes: list[int] = []

    async def main() -> None:
        answer = sends(reply(bomb(8), headers="content-encoding: gzip\r\n"))
        async with serving(answer) as server, client() as http:
            call = http.download(server.url, {}, lambda piece: sizes.append(len(piece)), max_bytes=8 << 20)
            assert (await failing(call)).kind == "too-large"

    run(main())
    assert sum(sizes) <= 8 << 20
    assert max(sizes) <= 1 << 20


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(b"HTTP/1.1 200 OK\r\ncontent-length: 1001\r\n\r\n", id="announced"),
        pytest.param(b"HTTP/1.1 200 OK\r\n\r\n" + bytes(1001), id="until close"),
        pytest.param(CHUNKED + b"1\r\nx\r\n" * 1001, id="chunked"),
        pytest.param(
            reply(gzip.compress(b"", mtime=0)[:10] + b"\0\0\0\xff\xff" * 201, headers="content-encoding: gzip\r\n"),
            id="packed to be larger",
        ),
        pytest.param(
            b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\n\r\n" + gzip.compress(b"")[:10] + b"\0\0\0\xff\xff" * 201,
            id="packed to be larger, unannounced",
        ),
        pytest.param(b"HTTP/1.1 200 OK\r\nx: " + b"y" * 400_000, id="one endless header"),
        pytest.param(b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 60_000, id="endless headers"),
        pytest.param(b"HTTP/1.1 100 Continue\r\n\r\n" * 15_000, id="endless interim answers"),
        pytest.param(
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n" + b"x: y\r\n" * 60_000, id="trailers"
        ),
    ],
)
def test_an_answer_beyond_its_limit_fails_without_being_read_to_its_end(run: Run, raw: bytes) -> None:
    async def main() -> None:
        async def answer(request: Request) -> None:
            await request.send(raw)
            await request.hang()

        async with serving(answer) as server, client(max_bytes=1000) as http:
            assert (await failing(http.request("GET", server.url, {}))).kind == "too-large"

    run(main())


def test_a_body_of_exactly_the_limit_is_fine_and_a_call_may_have_its_own_limit(run: Run) -> None:
    async def main() -> None:
        async with serving(lambda r: r.reply(bytes(1000))) as server, client(max_bytes=1000) as http:
            assert len((await http.request("GET", server.url, {})).body) == 1000
            assert (await failing(http.request("GET", server.url, {}, max_bytes=999))).kind == "too-large"

    run(main())


@pytest.mark.slow
def test_a_server_that_sends_a_byte_now_and_then_ends_at_the_deadline(run: Run) -> None:
    async def main() -> None:
        async def drip(request: Request) -> None:
            await request.send(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n")
            while True:
                await request.send(b"x")
                await asyncio.sleep(0.02)

        async with serving(drip) as server, client() as http:
            error = await failing(http.request("GET", server.url, {}, deadline=1.5))
            assert (error.kind, error.sent) == ("timeout", True)
            assert "1.5 s" in str(error)

    run(main())


def test_a_server_that_never_answers_ends_at_the_deadline_to_the_second() -> None:
    async def main() -> float:
        async with serving(Request.hang) as server, client() as http:
            error = await failing(http.request("POST", server.url, {}, b"{}", deadline=3600.0))
            assert (error.kind, error.sent) == ("timeout", True)
            return asyncio.get_running_loop().time()

    assert run_virtual(main()) == pytest.approx(3600.0)


@pytest.mark.slow
def test_waiting_for_a_connection_counts_towards_the_deadline(run: Run) -> None:
    async def main() -> None:
        async with serving(Request.hang) as server, client(connections=1) as http:
            busy = asyncio.create_task(http.request("GET", server.url, {}))
            await asyncio.sleep(0.05)
            error = await failing(http.request("GET", server.url, {}, deadline=0.05))
            assert (error.kind, error.sent) == ("timeout", False)
            busy.cancel()

    run(main())


# Servers that break


@pytest.mark.slow
@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        (b"", "disconnected"),
        (b"HTTP/1.1 200 OK\r\ncontent-", "disconnected"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc", "disconnected"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n", "disconnected"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "protocol"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n", "protocol"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n", "protocol"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\nabc", "protocol"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n", "protocol"),
        (b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\nabc", "protocol"),
        (reply(b"abc", headers="content-encoding: br\r\n"), "protocol"),
        (reply(b"abc", headers="content-encoding: gzip\r\n"), "protocol"),
        (reply(gzip.compress(b"abc", mtime=0)[:-4], headers="content-encoding: gzip\r\n"), "protocol"),
        (reply(gzip.compress(b"abc", mtime=0) + b"more", headers="content-encoding: gzip\r\n"), "protocol"),
        (reply(gzip.compress(b"abc", mtime=0) * 2, headers="content-encoding: gzip\r\n"), "protocol"),
    ],
)
def test_a_broken_answer_is_an_error_that_says_so(run: Run, raw: bytes, kind: str) -> None:
    async def main() -> None:
        async with serving(sends(raw)) as server, client() as http:
            error = await failing(http.request("POST", f"{server.url}/v1/chat?key=secret", {}, b"{}"))
            assert (error.kind, error.sent) == (kind, True)
            assert str(error).startswith(f"POST {server.url}/v1/chat: ")
            assert len(server.requests) == 1

    run(main())


def test_a_refused_connection_and_an_unknown_name_were_never_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]

    def unknown(*args: object, **options: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    def exhausted(*args: object, **options: object) -> None:
        raise OSError(24, "Too many open files")

    async def main() -> None:
        async with client() as http:
            refused = await failing(http.request("GET", f"http://127.0.0.1:{port}/", {}))
            assert (refused.kind, refused.sent) == ("connect", False)
            with monkeypatch.context() as starved:
                starved.setattr(socket, "socket", exhausted)
                without = await failing(http.request("GET", f"http://127.0.0.1:{port}/", {}))
            assert (without.kind, without.sent) == ("connect", False)
            assert "Too many open files" in str(without)
            monkeypatch.setattr(socket, "getaddrinfo", unknown)
            nameless = await failing(http.request("GET", "http://api.test/", {}))
            assert (nameless.kind, nameless.sent) == ("dns", False)
            assert "'api.test'" in str(nameless)

    asyncio.run(main())


def test_a_name_is_looked_up_once_for_all_and_its_working_address_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    lookups: list[str] = []

    def fake(host: str, port: int, *args: object, **options: object) -> list[tuple[Any, ...]]:
        lookups.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, port)) for ip in ("127.0.0.9", "127.0.0.1")]

    async def main() -> None:
        loop, tried = asyncio.get_running_loop(), list[str]()
        connect = loop.sock_connect

        def noted(sock: socket.socket, address: Any) -> Any:
            tried.append(address[0])
            return connect(sock, address)

        async with serving(lambda r: r.reply(headers="connection: close\r\n")) as server, client() as http:
            monkeypatch.setattr(socket, "getaddrinfo", fake)
            monkeypatch.setattr(loop, "sock_connect", noted)
            url = f"http://api.test:{server.port}"
            answers = await asyncio.gather(*[http.request("GET", url, {}) for _ in range(50)])
            assert {answer.status for answer in answers} == {200}
            assert lookups == ["api.test"]
            tried.clear()
            await http.request("GET", url, {})
            assert tried == ["127.0.0.1"]

    asyncio.run(main())


def test_an_error_survives_the_way_to_another_process() -> None:
    error = pickle.loads(pickle.dumps(HttpError("what", "dns", sent=False)))  # noqa: S301
    assert (str(error), error.kind, error.sent) == ("what", "dns", False)
    assert isinstance(error, FanfoldError)


# Connections


def test_a_free_connection_is_reused_the_most_recent_first(run: Run) -> None:
    async def main() -> None:
        gate = asyncio.Event()

        async def answer(request: Request) -> None:
            if request.target == "/slow":
                await gate.wait()
            await request.reply(str(request.connection).encode())

        async with serving(answer) as server, client() as http:
            slow = asyncio.create_task(http.request("GET", f"{server.url}/slow", {}))
            while not server.requests:
                await asyncio.sleep(0)
            assert [(await http.request("GET", server.url, {})).body for _ in range(5)] == [b"2"] * 5
            gate.set()
            await slow
            assert (await http.request("GET", server.url, {})).body == b"1"

    run(main())


def test_two_hundred_calls_share_four_connections_and_none_gets_anothers_answer(run: Run) -> None:
    async def main() -> None:
        async def echo(request: Request) -> None:
            await asyncio.sleep(0.001)
            await request.reply(request.body)

        async with serving(echo) as server, client(connections=4) as http:
            bodies = [str(number).encode() for number in range(200)]
            answers = await asyncio.gather(*[http.request("POST", server.url, {}, body) for body in bodies])
            assert [answer.body for answer in answers] == bodies
            assert server.most_open <= 4
            assert server.connections == 4

    run(main())


def test_calls_that_wait_for_a_connection_go_in_the_order_they_came(run: Run) -> None:
    async def main() -> None:
        async with serving() as server, client(connections=1) as http:
            tasks = [asyncio.create_task(http.request("GET", f"{server.url}/{i}", {})) for i in range(20)]
            await asyncio.sleep(0)
            tasks[7].cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            assert [r.target for r in server.requests] == [f"/{i}" for i in range(20) if i != 7]

    run(main())


def test_many_servers_share_one_bound_and_each_is_asked_its_own(run: Run) -> None:
    async def main() -> None:
        one, two = sends(reply(b"one"), close=False), sends(reply(b"two"), close=False)
        async with serving(one) as first, serving(two) as second, client(connections=1) as http:
            urls = [first.url, second.url, first.url, first.url, second.url] * 4
            answers = await asyncio.gather(*[http.request("GET", url, {}, deadline=5) for url in urls])
            assert [answer.body for answer in answers] == [b"one", b"two", b"one", b"one", b"two"] * 4
            for url in urls:
                await http.request("GET", url, {}, deadline=5)

    run(main())


@pytest.mark.parametrize("headers", ["", "connection: close\r\n"])
def test_a_call_cancelled_at_the_moment_its_turn_comes_passes_it_on(run: Run, headers: str) -> None:
    async def main() -> None:
        async with serving(lambda r: r.reply(headers=headers)) as server, client(connections=1) as http:

            async def first() -> None:
                await http.request("GET", server.url, {})
                second.cancel()

            holding = asyncio.create_task(first())
            await asyncio.sleep(0)
            second = asyncio.create_task(http.request("GET", server.url, {}))
            await asyncio.sleep(0)
            third = asyncio.create_task(http.request("GET", server.url, {}, deadline=5))
            await holding
            assert (await third).status == 200
            assert second.cancelled()

    run(main())


@pytest.mark.parametrize("ending", ["header", "quietly"])
def test_a_connection_that_the_server_ends_is_not_used_again(run: Run, ending: str) -> None:
    async def main() -> None:
        async def answer(request: Request) -> bool:
            await request.reply(headers="connection: close\r\n" if ending == "header" else "")
            return False

        async with serving(answer) as server, client() as http:
            for _ in range(3):
                assert (await http.request("GET", server.url, {}, replay=False)).status == 200
                while server.open:
                    await asyncio.sleep(0.001)
                await asyncio.sleep(0.02)
            assert [request.connection for request in server.requests] == [1, 2, 3]

    run(main())


def closes_on_the_second(first_bytes: bytes = b"") -> Callable[[Request], Awaitable[object]]:
    async def answer(request: Request) -> object:
        if request.number == 1:
            await request.send(first_bytes)
            return False
        await request.reply()
        return True

    return answer


def test_a_request_lost_to_a_closing_kept_connection_is_sent_once_more(run: Run) -> None:
    async def main() -> None:
        async with serving(closes_on_the_second()) as server, client() as http:
            await http.request("POST", server.url, {}, b"a")
            assert (await http.request("POST", server.url, {}, b"b")).status == 200
            assert [(r.body, r.connection) for r in server.requests] == [(b"a", 1), (b"b", 1), (b"b", 2)]

    run(main())


@pytest.mark.parametrize(("replay", "first_bytes"), [(False, b""), (True, b"HTTP/1.1 2")])
def test_a_request_is_not_sent_again_when_told_so_or_when_anything_came_back(
    run: Run, replay: bool, first_bytes: bytes
) -> None:
    async def main() -> None:
        async with serving(closes_on_the_second(first_bytes)) as server, client() as http:
            await http.request("POST", server.url, {}, b"a")
            error = await failing(http.request("POST", server.url, {}, b"b", replay=replay))
            assert (error.kind, error.sent) == ("disconnected", True)
            assert [r.body for r in server.requests] == [b"a", b"b"]

    run(main())


def test_a_request_that_cannot_be_sent_once_more_may_still_have_arrived_the_first_time(run: Run) -> None:
    async def main() -> None:
        async def answer(request: Request) -> bool:
            if request.number == 1:
                for listener in listeners:
                    listener.close()
                return False
            await request.reply()
            return True

        listeners: list[asyncio.Server] = []
        async with serving(answer, listeners=listeners) as server, client() as http:
            await http.request("POST", server.url, {}, b"a")
            error = await failing(http.request("POST", server.url, {}, b"b"))
            assert (error.kind, error.sent) == ("connect", True)

    run(main())


def test_words_nobody_asked_for_are_not_taken_for_the_next_answer(run: Run) -> None:
    async def main() -> None:
        right, sent = asyncio.Event(), asyncio.Event()

        async def twice(request: Request) -> None:
            await request.send(reply(b"right") + (reply(b"wrong") if request.number == 0 else b""))
            if request.number == 1:
                await right.wait()
                await request.send(reply(b"wrong"))
            sent.set()

        async with serving(twice) as server, client() as http:
            for _ in range(3):
                assert (await http.request("GET", server.url, {}, replay=False)).body == b"right"
                right.set()
                await sent.wait()
                sent.clear()
                await asyncio.sleep(0.02)
            assert [r.connection for r in server.requests] == [1, 2, 3]

    run(main())


def test_an_idle_connection_is_closed_after_its_time(run: Run) -> None:
    async def main() -> None:
        async with serving() as server, client(idle=0.05) as http:
            await http.request("GET", server.url, {})
            while server.open:
                await asyncio.sleep(0.01)
            await http.request("GET", server.url, {}, replay=False)
            assert server.connections == 2

    run(main())


def test_a_call_cancelled_in_the_middle_of_a_body_closes_its_connection_and_frees_its_place(run: Run) -> None:
    async def main() -> None:
        async def answer(request: Request) -> None:
            if request.number == 0:
                await request.send(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf")
                await request.hang()
            await request.reply(b"whole")

        async with serving(answer) as server, client(connections=1) as http:
            received: list[bytes] = []
            call = asyncio.create_task(http.download(server.url, {}, received.append))
            while not received:
                await asyncio.sleep(0)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            assert (await http.request("GET", server.url, {})).body == b"whole"
            assert (server.gone, server.connections) == (1, 2)

    run(main())


@pytest.mark.slow
@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.sampled_from(["call", "cancel"]), st.integers(0, 3)), max_size=25))
def test_no_pattern_of_cancellation_loses_a_place(steps: list[tuple[str, int]]) -> None:
    async def main() -> None:
        async with serving() as server, client(connections=2) as http:
            tasks: list[asyncio.Task[Response]] = []
            for what, turns in steps:
                if what == "call":
                    tasks.append(asyncio.create_task(http.request("GET", server.url, {})))
                elif tasks:
                    tasks[turns % len(tasks)].cancel()
                for _ in range(turns):
                    await asyncio.sleep(0)
            await asyncio.gather(*tasks, return_exceptions=True)
            async with asyncio.timeout(5):
                done = await asyncio.gather(*[http.request("GET", server.url, {}) for _ in range(3)])
            assert [answer.body for answer in done] == [b"ok"] * 3
            assert http._pool._places + sum(map(len, http._pool._idle.values())) == 2

    asyncio.run(main())


def test_closing_ends_what_is_under_way_and_refuses_what_comes_later(run: Run) -> None:
    async def main() -> None:
        async with serving(Request.hang) as server:
            http = client(connections=1)
            calls = [asyncio.create_task(failing(http.request("GET", server.url, {}))) for _ in range(2)]
            while not server.requests:
                await asyncio.sleep(0)
            await http.close()
            assert [(error.kind, error.sent) for error in await asyncio.gather(*calls)] == [
                ("disconnected", True),
                ("disconnected", False),
            ]
            with pytest.raises(ConfigError, match="closed"):
                await http.request("GET", server.url, {})

    run(main())


def test_a_client_belongs_to_one_event_loop() -> None:
    http = client()

    async def call() -> None:
        async with serving() as server:
            await http.request("GET", server.url, {})

    asyncio.run(call())
    with pytest.raises(ConfigError, match="another event loop"):
        asyncio.run(call())


# Downloads


def test_a_download_goes_to_its_sink_and_other_answers_to_the_caller(run: Run) -> None:
    content = b"line of a results file\n" * 200_000

    async def main() -> None:
        async def answer(request: Request) -> None:
            if request.target == "/file":
                await request.reply(gzip.compress(content, mtime=0), headers="content-encoding: gzip\r\n")
            else:
                await request.reply(b"no such file", "404 Not Found")

        async with serving(answer) as server, client(max_bytes=1000) as http:
            pieces: list[bytes] = []
            found = await http.download(f"{server.url}/file", {}, pieces.append)
            assert (found.status, found.body, b"".join(pieces)) == (200, b"", content)
            missing = await http.download(f"{server.url}/none", {}, pieces.append)
            assert (missing.status, missing.body, b"".join(pieces)) == (404, b"no such file", content)

    run(main())


def test_what_a_sink_raises_reaches_the_caller(run: Run) -> None:
    def full(piece: bytes) -> None:
        raise OSError(28, "No space left on device")

    async def main() -> None:
        async with serving() as server, client() as http:
            with pytest.raises(OSError, match="No space left"):
                await http.download(server.url, {}, full)
            assert (await http.request("GET", server.url, {})).body == b"ok"

    run(main())


# What may not be sent


@pytest.mark.slow
@settings(deadline=None)
@given(st.text(max_size=10), st.sampled_from("\r\n\0"), st.text(max_size=10), st.booleans())
def test_no_header_can_smuggle_in_another(before: str, evil: str, after: str, in_name: bool) -> None:
    text = before + evil + after
    headers = {text: "x"} if in_name else {"x-key": text}

    async def main() -> None:
        with pytest.raises(ConfigError) as caught:
            await client().request("GET", "http://127.0.0.1:1/", headers)
        if not in_name:
            assert str(caught.value).startswith("the value of header 'x-key' holds")

    asyncio.run(main())


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        ({"x-key": "sk-\u2603"}, "cannot carry"),
        ({"Content-Length": "3"}, "by the client itself"),
        ({"Transfer-Encoding": "chunked"}, "by the client itself"),
        ({"bad name": "x"}, "not a valid header name"),
        ({"": "x"}, "not a valid header name"),
    ],
)
def test_a_header_that_cannot_be_sent_is_named_and_its_value_is_not_shown(
    run: Run, headers: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        run(client().request("GET", "http://127.0.0.1:1/", headers))
    assert "sk-" not in str(caught.value)


@pytest.mark.parametrize("method", ["get", "GET /x HTTP/1.1\r\n", "", "CONNECT", "PO ST"])
def test_a_method_is_an_upper_case_word(run: Run, method: str) -> None:
    with pytest.raises(ConfigError, match="not a usable HTTP method"):
        run(client().request(method, "http://127.0.0.1:1/", {}))


@pytest.mark.parametrize(
    "url",
    [
        "ftp://host/x",
        "host/x",
        "",
        "http://",
        "http://user:secret@host/",
        "http://secret@host/",
        "http://host:port/",
        "http://host:99999/",
        "http://ho st/",
        "http://host/a b?key=secret",
        "http://host/\r\nx: y?secret",
        "http://host/\u00e9?secret",
        "http://good.test\\@evil.test/",
        "http://good.test\\.evil.test/",
        "http://[::1/",
        "http://[zz]/",
        "http://[v1.x]/",
    ],
)
def test_a_url_that_means_nothing_or_hides_something_is_refused_without_showing_its_secrets(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        route(url, Proxies({}))
    assert "secret" not in str(caught.value)


def test_urls_are_read_as_browsers_do() -> None:
    def read(url: str) -> tuple[Origin, str]:
        way = route(url, Proxies({}))
        return way.origin, way.start.split("\r\naccept")[0]

    assert read("HTTPS://API.Test") == (Origin("https", "api.test", 443), " / HTTP/1.1\r\nhost: api.test")
    assert read("http://h:80/a?b#c") == (Origin("http", "h", 80), " /a?b HTTP/1.1\r\nhost: h")
    assert read("https://h:80/") == (Origin("https", "h", 80), " / HTTP/1.1\r\nhost: h:80")
    assert read("http://[::1]:8080/x") == (Origin("http", "::1", 8080), " /x HTTP/1.1\r\nhost: [::1]:8080")
    assert read("http://[0:0::1]/x") == (Origin("http", "::1", 80), " /x HTTP/1.1\r\nhost: [::1]")
    assert shown("https://u:p@host:1/a/b?key=c#d") == "https://host:1/a/b"


# TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl command to make a certificate")
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=api.test"
    command += f" -addext subjectAltName=DNS:api.test,DNS:localhost -keyout {key} -out {cert}"
    subprocess.run(command.split(), check=True, capture_output=True)
    return cert, key


@pytest.fixture
def server_tls(certificate: tuple[Path, Path]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    return context


def test_a_trusted_server_is_spoken_to_under_its_name_and_its_connection_reused(
    run: Run, certificate: tuple[Path, Path], server_tls: ssl.SSLContext
) -> None:
    names: list[str | None] = []
    server_tls.sni_callback = lambda connection, name, context: names.append(name)

    async def main() -> None:
        trust = ssl.create_default_context(cafile=certificate[0])
        async with serving(lambda r: r.reply(r.body), server_tls) as server, client(verify=trust) as http:
            url = f"https://localhost:{server.port}/"
            for body in (b"one", bytes(3 << 20)):
                assert (await http.request("POST", url, {}, body)).body == body
            assert (names, server.connections) == (["localhost"], 1)

    run(main())


def test_an_untrusted_or_misnamed_server_gets_no_request(
    run: Run, certificate: tuple[Path, Path], server_tls: ssl.SSLContext
) -> None:
    async def main() -> None:
        trust = ssl.create_default_context(cafile=certificate[0])
        async with serving(tls=server_tls) as server:
            async with client() as wary, client(verify=trust) as trusting:
                unknown = await failing(wary.request("GET", f"https://localhost:{server.port}/", {}))
                misnamed = await failing(trusting.request("GET", f"https://127.0.0.1:{server.port}/", {}))
            assert [(e.kind, e.sent) for e in (unknown, misnamed)] == [("certificate", False)] * 2
            assert "SSL_CERT_FILE" in str(unknown)
            assert server.requests == []

    run(main())


def test_a_certificate_named_in_the_environment_is_trusted(
    run: Run, certificate: tuple[Path, Path], server_tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))

    async def main() -> None:
        async with serving(tls=server_tls) as server, client() as http:
            assert (await http.request("GET", f"https://localhost:{server.port}/", {})).body == b"ok"

    run(main())


def test_a_server_without_tls_is_not_spoken_to_in_the_clear(run: Run) -> None:
    heard: list[bytes] = []

    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.read(65536))
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async def main() -> None:
        async with listening(plain) as port, client() as http:
            error = await failing(http.request("GET", f"https://127.0.0.1:{port}/", {"x-key": "sk-1"}))
            assert (error.kind, error.sent) == ("tls", False)

    run(main())
    assert heard and b"sk-1" not in heard[0]


def test_a_handshake_that_the_server_breaks_off_is_no_matter_of_certificates(run: Run) -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.transport.abort()

    async def main() -> None:
        async with listening(hang_up) as port, client() as http:
            error = await failing(http.request("GET", f"https://127.0.0.1:{port}/", {}))
            assert (error.kind, error.sent) == ("tls", False)
            assert f"127.0.0.1:{port}" in str(error)

    run(main())


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_an_address_where_nobody_greets_is_given_up_long_before_the_deadline(scheme: str) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with listening(silent) as port, client() as http:
            if scheme == "http":
                loop.sock_connect = lambda sock, address: asyncio.sleep(1e6)  # type: ignore
            error = await failing(http.request("GET", f"{scheme}://127.0.0.1:{port}/", {}, deadline=600.0))
            assert (error.kind, error.sent) == ("connect" if scheme == "http" else "tls", False)
            assert loop.time() == pytest.approx(15.0)

    run_virtual(main())


# Proxies


@asynccontextmanager
async def proxying(upstream: int, refuse: bytes = b"") -> AsyncIterator[tuple[int, list[str]]]:
    """A proxy that leads every tunnel to one local port and answers plain requests itself."""
    heads: list[str] = []

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            heads.append(head)
            if refuse:
                writer.write(refuse)
            elif head.startswith("CONNECT "):
                inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", upstream)
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                try:
                    await asyncio.gather(pump(reader, inner_writer), pump(inner_reader, writer))
                finally:
                    inner_writer.transport.abort()
                return
            else:
                writer.write(reply(b"from the proxy"))

    async with listening(serve) as port:
        yield port, heads


def through(port: int, user: str = "") -> Http:
    url = f"http://{user}127.0.0.1:{port}"
    return client(proxies={"HTTP_PROXY": url, "HTTPS_PROXY": url})


def test_a_proxy_is_asked_for_the_whole_url_with_its_own_password(run: Run) -> None:
    async def main() -> None:
        async with proxying(0) as (port, heads), through(port, "me:p%40ss@") as http:
            for path in ("/a?b=c", "/d"):
                assert (await http.request("GET", f"http://api.test{path}", {})).body == b"from the proxy"
        lines = heads[0].split("\r\n")
        assert lines[:2] == ["GET http://api.test/a?b=c HTTP/1.1", "host: api.test"]
        assert f"proxy-authorization: Basic {base64.b64encode(b'me:p@ss').decode()}" in lines

    run(main())


def test_a_proxy_leads_tls_through_a_tunnel_and_never_sees_the_key(
    run: Run, certificate: tuple[Path, Path], server_tls: ssl.SSLContext
) -> None:
    async def main() -> None:
        trust = ssl.create_default_context(cafile=certificate[0])
        async with serving(lambda r: r.reply(r.body), server_tls) as server, proxying(server.port) as (port, heads):
            async with client(verify=trust, proxies={"https_proxy": f"me:secret@127.0.0.1:{port}"}) as http:
                for body in (b"hello", bytes(1 << 20)):
                    got = await http.request("POST", "https://api.test/v1", {"authorization": "Bearer k"}, body)
                    assert got.body == body
            assert server.requests[0].headers["authorization"] == "Bearer k"
            assert "proxy-authorization" not in server.requests[0].headers
            assert [head.split("\r\n")[0] for head in heads] == ["CONNECT api.test:443 HTTP/1.1"]
            assert "proxy-authorization: Basic" in heads[0] and "Bearer" not in heads[0]

    run(main())


def test_a_tunnel_does_not_make_a_wrong_certificate_right(run: Run, server_tls: ssl.SSLContext) -> None:
    async def main() -> None:
        async with serving(tls=server_tls) as server, proxying(server.port) as (port, _), through(port) as http:
            error = await failing(http.request("GET", "https://api.test/", {}))
            assert (error.kind, error.sent, server.requests) == ("certificate", False, [])

    run(main())


def test_a_proxy_that_refuses_or_is_not_there_is_named_without_its_password(run: Run) -> None:
    refusal = b"HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 5\r\n\r\nabcde"

    async def main() -> None:
        async with proxying(0, refusal) as (port, _), through(port, "me:secret@") as http:
            refused = await failing(http.request("GET", "https://api.test/", {}))
        async with through(port, "me:secret@") as http:
            absent = await failing(http.request("GET", "https://api.test/", {}))
        assert [(e.kind, e.sent) for e in (refused, absent)] == [("proxy", False)] * 2
        assert f"127.0.0.1:{port}" in str(refused) and "407" in str(refused)
        assert "secret" not in f"{refused} {absent}"

    run(main())


@pytest.mark.parametrize(
    ("exempt", "host", "direct"),
    [
        ("", "api.test", False),
        ("", "localhost", True),
        ("", "127.0.0.1", True),
        ("*", "api.test", True),
        ("api.test", "api.test", True),
        ("api.test", "v1.api.test", True),
        (".api.test", "v1.api.test", True),
        ("api.test", "notapi.test", False),
        ("other, api.test:443", "api.test", True),
        ("api.test:8443", "api.test", False),
        ("10.0.0.0/8", "10.1.2.3", True),
        ("10.0.0.0/8", "11.1.2.3", False),
        ("fd00::/8", "fd00::1", True),
        ("10.0.0.0/8", "api.test", False),
    ],
)
def test_no_proxy_exempts_hosts_subdomains_ports_and_networks(exempt: str, host: str, direct: bool) -> None:
    proxies = Proxies({"HTTPS_PROXY": "proxy.test:3128", "NO_PROXY": exempt})
    assert proxies(Origin("https", host, 443)) == (None if direct else Proxy("proxy.test", 3128))
    assert proxies(Origin("http", host, 80)) is None


def test_an_unusable_proxy_is_refused_by_the_name_of_its_variable_and_without_its_password() -> None:
    for url in ("socks4://me:secret@proxy.test:1080", "http://me:secret@pro xy/"):
        with pytest.raises(ConfigError, match="HTTPS_PROXY") as caught:
            Proxies({"HTTPS_PROXY": url})(Origin("https", "api.test", 443))
        assert "secret" not in str(caught.value)
    assert "secret" not in repr(Proxies({"HTTPS_PROXY": "http://me:secret@p:1"})(Origin("https", "api.test", 443)))
