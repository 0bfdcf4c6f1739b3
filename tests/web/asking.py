"""A server in a thread, and plain HTTP requests to it: what `fanfold view` answers, without a browser."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fanfold.view.server import viewing

TOKEN = "a-token-of-many-letters"


class Asker:
    """Asks the server at an address; every request carries the token, unless other headers are given."""

    def __init__(self, url: str) -> None:
        self.host = url.removeprefix("http://")
        self.headers = {"authorization": f"Bearer {TOKEN}"}

    def ask(
        self, path: str, method: str = "GET", body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        """The status, the headers and the body of an answer."""
        connection = http.client.HTTPConnection(self.host, timeout=30)
        try:
            sent = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
            kind = {} if body is None else {"content-type": "application/json"}
            connection.request(method, path, sent, {**kind, **(self.headers if headers is None else headers)})
            answer = connection.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
        finally:
            connection.close()

    def get(self, path: str) -> Any:
        """The payload of a path."""
        status, _, body = self.ask(path)
        assert status == 200, (path, status, body)
        return json.loads(body)

    def post(self, path: str, body: Any) -> tuple[int, Any]:
        status, _, answer = self.ask(path, "POST", body)
        return status, json.loads(answer)

    @contextlib.contextmanager
    def events(self, path: str, headers: dict[str, str] | None = None) -> Iterator[Iterator[tuple[str, Any]]]:
        """The names and payloads of server-sent events, as they come."""
        connection = http.client.HTTPConnection(self.host, timeout=30)
        connection.request("GET", path, headers={**self.headers, **(headers or {})})
        answer = connection.getresponse()
        assert answer.status == 200 and answer.getheader("content-type") == "text/event-stream"

        def read() -> Iterator[tuple[str, Any]]:
            name = ""
            for line in answer:
                if line.startswith(b"event: "):
                    name = line[7:].strip().decode()
                elif line.startswith(b"data: "):
                    yield name, json.loads(line[6:])

        try:
            yield read()
        finally:
            answer.close()
            connection.close()


@contextlib.contextmanager
def asking(*ledgers: Path) -> Iterator[Asker]:
    """A server over ledgers as long as the context lasts."""
    started: list[str] = []
    ready = threading.Event()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def main() -> None:
        async with viewing(ledgers, TOKEN) as url:
            started.append(url)
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(main(),), daemon=True)
    thread.start()
    assert ready.wait(20)
    try:
        yield Asker(started[0])
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(20)
        loop.close()
