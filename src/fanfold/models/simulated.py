"""The simulator as a transport, without sockets: `model("simulated/...")`, rehearsals, and tests on a virtual clock."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, ClassVar
from urllib.parse import parse_qsl, urlsplit

from fanfold.config import from_mapping
from fanfold.encoding import encode
from fanfold.models.http import HttpError
from fanfold.models.http_exchange import Response, Sink
from fanfold.models.transport import Transport
from fanfold.simulator.config import SimulatorConfig
from fanfold.simulator.core import Simulator
from fanfold.simulator.wire import BrokenAnswer, Request


class SimulatedTransport(Transport):
    """Carries requests to a simulator in this process; what breaks on the way is raised as a socket would have it."""

    _shared: ClassVar[dict[str, SimulatedTransport]] = {}

    def __init__(self, simulator: Simulator) -> None:
        self.simulator = simulator

    @classmethod
    def of(cls, name: str, **options: Any) -> SimulatedTransport:
        """The transport to the simulator with these settings (of `SimulatorConfig`), the same one each time."""
        settings = encode(options, f"the options of simulated/{name}")
        if settings not in cls._shared:
            cls._shared[settings] = cls(Simulator(from_mapping(SimulatorConfig, options, f"simulated/{name}")))
        return cls._shared[settings]

    async def request(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes | None = None,
        *,
        deadline: float | None = None,
        replay: bool = True,
    ) -> Response:
        return await self._carry(method, url, headers, body, deadline)

    async def stream(
        self, url: str, headers: Mapping[str, str], body: bytes, sink: Sink, *, deadline: float | None = None
    ) -> Response:
        response = await self._carry("POST", url, headers, body, deadline, sink)
        return response if response.status != 200 else Response(200, response.headers, b"")

    async def _carry(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes | None,
        deadline: float | None,
        sink: Sink | None = None,
    ) -> Response:
        parts = urlsplit(url)
        names = {"host": parts.netloc, **{name.lower(): value for name, value in headers.items()}}
        request = Request(method, parts.path, dict(parse_qsl(parts.query)), names, body or b"")
        try:
            async with asyncio.timeout(deadline):
                # What a provider has begun it finishes, also for a client that has gone.
                answer = await asyncio.shield(asyncio.ensure_future(self.simulator.respond(request)))
                if isinstance(answer, BrokenAnswer):
                    if sink is not None and answer.how == "cut" and answer.response is not None:
                        sink(answer.response.body[: len(answer.response.body) // 2])
                    return await _broken(answer)
                if sink is not None and answer.status == 200:
                    for piece in answer.pieces or (answer.body,):
                        sink(piece)
                        await asyncio.sleep(answer.pause)
        except TimeoutError:
            raise HttpError(f"{method} {parts.path}: no complete answer within {deadline:g} s", "timeout") from None
        return Response(answer.status, answer.headers, answer.body)


async def _broken(answer: BrokenAnswer) -> Response:
    if answer.how == "hang":
        await asyncio.get_running_loop().create_future()
    if answer.how == "drip" and answer.response is not None:
        await asyncio.sleep(len(answer.response.body) / answer.bytes_per_second)
        return Response(answer.response.status, answer.response.headers, answer.response.body)
    raise HttpError("the connection was closed in the middle of the answer", "disconnected")
