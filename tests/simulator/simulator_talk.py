"""Talking to a simulator's core without sockets, as both providers' clients would."""

from __future__ import annotations

from typing import Any

import msgspec

from fanfold.simulator import BrokenAnswer, Request, SimulatedResponse, Simulator


class Talk:
    """Sends requests to a simulator's core as both providers' clients would."""

    def __init__(self, simulator: Simulator) -> None:
        self.simulator = simulator

    async def send(
        self, method: str, path: str, body: Any = None, *, key: str = "k", query: dict[str, str] | None = None
    ) -> SimulatedResponse | BrokenAnswer:
        headers = {"authorization": f"Bearer {key}", "host": "sim.test"}
        if path.startswith("/v1/messages"):
            headers = {"x-api-key": key, "anthropic-version": "2026-10-21", "host": "sim.test"}
        raw = body if isinstance(body, bytes) else b"" if body is None else msgspec.json.encode(body)
        return await self.simulator.respond(Request(method, path, query or {}, headers, raw))

    async def ask(self, method: str, path: str, body: Any = None, **more: Any) -> SimulatedResponse:
        answer = await self.send(method, path, body, **more)
        assert isinstance(answer, SimulatedResponse), answer
        return answer

    async def chat(self, content: str = "hello", **more: Any) -> SimulatedResponse | BrokenAnswer:
        messages = [{"role": "user", "content": content}]
        return await self.send("POST", "/v1/chat/completions", {"model": "m", "messages": messages, **more})

    async def message(self, content: str = "hello", **more: Any) -> SimulatedResponse | BrokenAnswer:
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
        assert isinstance(answer, SimulatedResponse) and answer.status == 200, answer
        return str(answer.json()["id"])

    async def create_openai(self, lines: int | bytes, **more: Any) -> SimulatedResponse | BrokenAnswer:
        content = openai_file(lines) if isinstance(lines, int) else lines
        body = {
            "input_file_id": await self.upload(content),
            "endpoint": "/v1/chat/completions",
            "completion_window": "24h",
            **more,
        }
        return await self.send("POST", "/v1/batches", body)

    async def create_anthropic(self, lines: int, tag: str = "run-intent") -> SimulatedResponse | BrokenAnswer:
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


def lines_of(response: SimulatedResponse) -> list[Any]:
    return [msgspec.json.decode(line) for line in response.body.splitlines()]
