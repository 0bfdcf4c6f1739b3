"""The lean server: live bodies end with their client, and the gate lets in who may come in."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from fanfold.errors import ConfigError
from fanfold.web import ApiError, Gate, Request, WebResponse, serve

TOKEN = "a-token-of-many-letters"


class Clock:
    """A site that counts without end, and remembers how its last body ended."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()

    async def respond(self, request: Request) -> WebResponse:
        return WebResponse(200, {"content-type": "text/event-stream"}, b"", live=self._count())

    async def _count(self) -> AsyncIterator[bytes]:
        try:
            for number in range(10_000):
                yield f"data: {number}\n\n".encode()
                await asyncio.sleep(0.01)
        finally:
            self.ended.set()

    def wall(self) -> float:
        return time.time()

    async def close(self) -> None:
        pass


def test_a_live_body_comes_as_it_is_made_and_ends_when_the_client_leaves() -> None:
    async def main() -> None:
        site = Clock()
        async with serve(site, name="clock") as url:
            host, _, port = url.removeprefix("http://").partition(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            assert b"transfer-encoding: chunked" in await reader.readuntil(b"\r\n\r\n")
            assert b"data: 3" in await reader.readuntil(b"data: 3")
            assert not site.ended.is_set()
            writer.close()
            await asyncio.wait_for(site.ended.wait(), 10)

    asyncio.run(main())


def test_a_live_body_waits_for_a_client_that_reads_slowly() -> None:
    made = 0

    class Flood(Clock):
        async def _count(self) -> AsyncIterator[bytes]:
            nonlocal made
            while made < 10_000:
                made += 1
                yield b"x" * 65536
            self.ended.set()

    async def main() -> None:
        async with serve(Flood(), name="flood") as url:
            host, _, port = url.removeprefix("http://").partition(":")
            reader, writer = await asyncio.open_connection(host, int(port), limit=1024)
            writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            await reader.readuntil(b"\r\n\r\n")
            before = -1
            while made != before:
                before = made
                await asyncio.sleep(0.2)
            assert 0 < made < 1000, "what nobody reads is not made"
            writer.close()

    asyncio.run(main())


def request(**headers: str) -> Request:
    return Request("GET", "/", {}, {"host": "127.0.0.1:80"} | {k.replace("_", "-"): v for k, v in headers.items()})


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"host": "evil.example:80", "authorization": f"Bearer {TOKEN}"},
        {"host": "127.0.0.1.evil.example"},
        {"host": ""},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:81"},
        {"origin": "https://127.0.0.1:80"},
        {"sec_fetch_site": "cross-site", "sec_fetch_mode": "no-cors"},
        {"sec_fetch_site": "same-site", "sec_fetch_mode": "cors"},
    ],
)
def test_another_host_and_pages_of_another_origin_are_refused(headers: dict[str, str]) -> None:
    with pytest.raises(ApiError) as refused:
        Gate(TOKEN).check_source(request(**headers))
    assert refused.value.status == 403


def test_the_own_page_and_programs_are_let_in() -> None:
    gate = Gate(TOKEN, names=["box.local"])
    for headers in ({}, {"host": "localhost:1"}, {"host": "[::1]:1"}, {"host": "Box.Local"}):
        gate.check_source(request(**headers))
    gate.check_source(request(origin="http://127.0.0.1:80", sec_fetch_site="same-origin"))
    gate.check_source(request(sec_fetch_site="cross-site", sec_fetch_mode="navigate"))


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": TOKEN},
        {"authorization": f"Bearer {TOKEN}x"},
        {"authorization": "Bearer "},
        {"authorization": "Bearer \xe9\ud800"},
        {"cookie": f"other={TOKEN}"},
        {"cookie": "{name}=wrong"},
        {"cookie": "{name}"},
    ],
)
def test_nobody_gets_in_without_the_token(headers: dict[str, str]) -> None:
    gate = Gate(TOKEN)
    name = gate.cookie().partition("=")[0]
    with pytest.raises(ApiError) as refused:
        gate.check_token(request(**{key: value.replace("{name}", name) for key, value in headers.items()}))
    assert refused.value.status == 401 and TOKEN not in str(refused.value)


def test_the_token_opens_as_bearer_and_as_the_cookie_that_scripts_cannot_read() -> None:
    gate = Gate(TOKEN)
    gate.check_token(request(authorization=f"Bearer {TOKEN}"))
    gate.check_token(request(cookie=f"theme=dark; {gate.cookie().partition(';')[0]}"))
    assert "HttpOnly" in gate.cookie() and "SameSite=Strict" in gate.cookie()
    assert gate.cookie().partition("=")[0] != Gate("another-token-of-letters").cookie().partition("=")[0]


def test_a_token_that_can_be_guessed_is_refused() -> None:
    with pytest.raises(ConfigError, match="can be guessed"):
        Gate("short")
