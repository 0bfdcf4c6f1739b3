"""Our HTTP client and httpx make the same of every odd server, or the difference has its reason here."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

import pytest
from http_servers import client, listening
from odd_servers import Oddity, oddities

from fanfold.models.http import HttpError
from fanfold.models.http_by_httpx import Httpx
from fanfold.models.transport import Transport

pytest.importorskip("h2", reason="needs pip install 'fanfold[httpx]'")

#: How the names of cases begin whose outcomes differ, and why that is right.
EXPLAINED = {
    "body: x-gzip": "the older name of gzip, which RFC 9110 asks for; httpx hands on the packed bytes",
    "body: half a gzip": "httpx hands on what it could unpack; half a reply must not pass for a whole one",
    "body: gzip and more": "httpx drops what follows; nobody knows what it was",
    "body: two gzips": "httpx drops the second; half a reply must not pass for a whole one",
    "body: gzip of gzip": "nobody asked for it, and a bomb would be packed so",
    "body: brotli": "nobody asked for it; httpx hands on the packed bytes",
    "status line: HTTP/1.2": "there is no such version",
    "status line: a blank line before": "some servers send one after the last reply; our parser skips it",
    "header: with bytes beyond ASCII": "we read Latin-1, as RFC 9110 says; httpx guesses UTF-8",
    "header: on two lines": "folded headers are obsolete, and a way to smuggle",
    "header: with an escape sequence": "our parser refuses control characters in headers",
    "length: twice the same": "our parser refuses two lengths, also equal ones",
    "length: and chunked": "both fail; we name the contradiction, httpx only sees the end",
    "chunks: a size beyond 64 bits": "both fail; we name the size, httpx only sees the end",
    "chunks: bare line feeds": "both fail; we name the line break, httpx only sees the end",
    "chunks: empty extensions": "our parser wants a name after the semicolon",
}


async def outcome(transport: Transport, url: str, oddity: Oddity) -> tuple[Any, ...]:
    body = b'{"question": 1}' if oddity.method == "POST" else None
    try:
        response = await transport.request(oddity.method, url, {}, body, deadline=5.0)
    except HttpError as error:
        return (error.kind,)
    return response.status, response.body, response.headers.get("x-id")


async def both(cases: list[Oddity]) -> list[tuple[tuple[Any, ...], tuple[Any, ...]]]:
    """What our client and httpx make of the same servers, one after the other on kept connections."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            method, target, _ = head.split("\r\n")[0].split(" ")
            if method == "POST":
                await reader.readexactly(15)
            if target == "/landed":
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nlanded")
                continue
            oddity = cases[int(target[1:])]
            for piece in oddity.pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
            if oddity.close:
                return

    async with listening(serve) as port, client() as ours:
        httpx = Httpx(verify=ssl.create_default_context())
        urls = [f"http://127.0.0.1:{port}/{number}" for number in range(len(cases))]
        pairs = [
            (await outcome(ours, url, oddity), await outcome(httpx, url, oddity)) for url, oddity in zip(urls, cases)
        ]
        await httpx.close()
    return pairs


@pytest.mark.slow
def test_our_client_and_httpx_make_the_same_of_every_odd_server_or_we_know_why() -> None:
    cases = oddities()
    assert len(cases) > 250
    pairs = dict(zip(cases, asyncio.run(both(list(cases.values())))))
    differing = {name for name, (ours, theirs) in pairs.items() if ours != theirs}
    explained = {name for name in cases if name.startswith(tuple(EXPLAINED))}
    surprises = [f"{name}: {pairs[name][0]!s:.80}, httpx: {pairs[name][1]!s:.80}" for name in differing - explained]
    assert not surprises, "\n".join(surprises)
    assert not explained - differing, "both clients agree now: these need no explanation any more"
    assert not [name for name, pair in pairs.items() if ("timeout",) in pair]
