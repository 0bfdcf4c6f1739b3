"""A simulator on a real port, and shorthands for talking to one without sockets."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from fanfold.simulator import Broken, Faults, Request, Response, Simulator, SimulatorConfig, serve


@dataclass(frozen=True)
class Running:
    """A simulator that answers on `url` from a thread of its own."""

    simulator: Simulator
    url: str
    loop: asyncio.AbstractEventLoop

    def fault(self, *faults: dict[str, Any]) -> None:
        async def set_faults() -> None:
            self.simulator.set_faults(Faults.of({"faults": list(faults)}))

        asyncio.run_coroutine_threadsafe(set_faults(), self.loop).result(10)


Start = Callable[[SimulatorConfig], Running]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start simulators on free ports; all of them stop at the end of the test."""
    stops: list[Callable[[], None]] = []

    def begin(config: SimulatorConfig) -> Running:
        loop = asyncio.new_event_loop()
        ready: asyncio.Event = asyncio.Event()
        started = threading.Event()
        running: list[Running] = []

        async def main() -> None:
            simulator = Simulator(config)
            async with serve(simulator) as url:
                running.append(Running(simulator, url, loop))
                started.set()
                await ready.wait()

        thread = threading.Thread(target=lambda: asyncio.Runner(loop_factory=lambda: loop).run(main()))
        thread.start()

        def stop() -> None:
            loop.call_soon_threadsafe(ready.set)
            thread.join(10)
            loop.close()

        stops.append(stop)
        assert started.wait(10)
        return running[0]

    yield begin
    for stop in stops:
        stop()


class Talk:
    """Sends requests to a simulator's core as both providers' clients would."""

    def __init__(self, simulator: Simulator) -> None:
        self.simulator = simulator

    async def send(
        self, method: str, path: str, body: Any = None, *, key: str = "k", query: dict[str, str] | None = None
    ) -> Response | Broken:
        headers = {"authorization": f"Bearer {key}", "host": "sim.test"}
        if path.startswith("/v1/messages"):
            headers = {"x-api-key": key, "anthropic-version": "2026-10-21", "host": "sim.test"}
        raw = body if isinstance(body, bytes) else b"" if body is None else msgspec.json.encode(body)
        return await self.simulator.respond(Request(method, path, query or {}, headers, raw))

    async def ask(self, method: str, path: str, body: Any = None, **more: Any) -> Response:
        answer = await self.send(method, path, body, **more)
        assert isinstance(answer, Response), answer
        return answer

    async def chat(self, content: str = "hello", **more: Any) -> Response | Broken:
        messages = [{"role": "user", "content": content}]
        return await self.send("POST", "/v1/chat/completions", {"model": "m", "messages": messages, **more})

    async def message(self, content: str = "hello", **more: Any) -> Response | Broken:
        messages = [{"role": "user", "content": content}]
        body = {"model": "c", "max_tokens": 100, "messages": messages, **more}
        return await self.send("POST", "/v1/messages", body)

    async def upload(self, content: bytes, *, key: str = "k", purpose: str = "batch") -> str:
        form = b"".join(
            [
                b'--XX\r\nContent-Disposition: form-data; name="purpose"\r\n\r\n' + purpose.encode() + b"\r\n",
                b'--XX\r\nContent-Disposition: form-data; name="file"; filename="in.jsonl"\r\n',
                b"Content-Type: application/octet-stream\r\n\r\n" + content + b"\r\n--XX--\r\n",
            ]
        )
        headers = {"authorization": f"Bearer {key}", "content-type": "multipart/form-data; boundary=XX"}
        answer = await self.simulator.respond(Request("POST", "/v1/files", {}, headers, form))
        assert isinstance(answer, Response) and answer.status == 200, answer
        return str(answer.json()["id"])

    async def create_openai(self, lines: int | bytes, **more: Any) -> Response | Broken:
        content = openai_file(lines) if isinstance(lines, int) else lines
        body = {
            "input_file_id": await self.upload(content),
            "endpoint": "/v1/chat/completions",
            "completion_window": "24h",
            **more,
        }
        return await self.send("POST", "/v1/batches", body)

    async def create_anthropic(self, lines: int, tag: str = "run-intent") -> Response | Broken:
        requests = [{"custom_id": f"{tag}-{n}", "params": anthropic_params(n)} for n in range(lines)]
        return await self.send("POST", "/v1/messages/batches", {"requests": requests})


def openai_file(lines: int) -> bytes:
    return b"\n".join(
        msgspec.json.encode(
            {
                "custom_id": f"id-{n}",
                "method": "POST",
                "url": "/v1/chat/completions",
                "body": {"model": "m", "messages": [{"role": "user", "content": f"question {n}"}]},
            }
        )
        for n in range(lines)
    )


def anthropic_params(n: int) -> dict[str, Any]:
    return {"model": "c", "max_tokens": 50, "messages": [{"role": "user", "content": f"question {n}"}]}


def lines_of(response: Response) -> list[Any]:
    return [msgspec.json.decode(line) for line in response.body.splitlines()]


@pytest.fixture
def talk() -> Callable[..., Talk]:
    """Make a simulator without sockets and talk to it: `talk(limits=..., latency=...)`."""
    return lambda **settings: Talk(Simulator(SimulatorConfig(**settings)))


@pytest.fixture
def lines() -> Callable[[Response], list[Any]]:
    return lines_of


Play = Callable[[Coroutine[Any, Any, None]], None]
