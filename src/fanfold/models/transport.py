"""What carries a request to a provider and its response back: a socket, a model in this process, a simulator."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fanfold.encoding import encode
from fanfold.models.http_bodies import UploadBody
from fanfold.models.http_exchange import Response, Sink


class Transport(ABC):
    """One way to a provider.  What goes wrong on the way is raised as HttpError; every status is a response."""

    @abstractmethod
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
        """Send a request and give the whole response.

        `deadline` is in seconds.  Without `replay` the request must never be sent twice.
        """

    async def download(
        self, url: str, headers: Mapping[str, str], sink: Sink, *, deadline: float | None = None
    ) -> Response:
        """GET a body into `sink`, piece by piece; the body of any status but 200 is in the response."""
        response = await self.request("GET", url, headers, deadline=deadline)
        if response.status != 200:
            return response
        for start in range(0, len(response.body), 65_536):
            sink(response.body[start : start + 65_536])
        return Response(200, response.headers, b"")

    async def upload(
        self, url: str, headers: Mapping[str, str], body: UploadBody, *, deadline: float | None = None
    ) -> Response:
        """POST a large body, which need not be in memory as a whole."""
        return await self.request("POST", url, headers, bytes(body), deadline=deadline)

    async def stream(
        self, url: str, headers: Mapping[str, str], body: bytes, sink: Sink, *, deadline: float | None = None
    ) -> Response:
        """POST a request, and pass its answer to `sink` as it comes; only a 200 goes there (see `download`)."""
        response = await self.request("POST", url, headers, body, deadline=deadline)
        if response.status != 200:
            return response
        sink(response.body)
        return Response(200, response.headers, b"")

    async def close(self) -> None:  # noqa: B027 (most have nothing of their own)
        """Give back what belongs to this transport alone."""


@dataclass(frozen=True)
class Connector:
    """Makes a transport by name and options; equal connectors make the same."""

    make: Callable[..., Transport]
    name: str
    settings: str
    options: Mapping[str, Any] = field(compare=False)

    @classmethod
    def of(cls, make: Callable[..., Transport], name: str, options: Mapping[str, Any]) -> Connector:
        return cls(make, name, encode(options, f"the options of {name}"), options)

    def __call__(self) -> Transport:
        return self.make(self.name, **self.options)
