"""What goes in and out of the simulator: requests, responses, broken answers, and errors on their way to a response."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

Json = dict[str, Any]

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Request:
    """One HTTP request; the names of the headers are in lower case."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class SimulatedResponse:
    """One HTTP response; its length, date and connection headers are added by whoever writes it."""

    status: int
    headers: dict[str, str]
    body: bytes
    #: The body as it is streamed, and the seconds after each piece.
    pieces: tuple[bytes, ...] = ()
    pause: float = 0.0

    def json(self) -> Any:
        """The body as a value."""
        return msgspec.json.decode(self.body)


@dataclass(frozen=True, slots=True)
class BrokenAnswer:
    """An answer that does not arrive as it should.

    `hang`: nothing ever comes.  `drop`: the connection closes without a byte.  `cut`: the headers and the first half of
    `response`, then the connection closes.  `drip`: `response` at `bytes_per_second`.
    """

    how: Literal["hang", "drop", "cut", "drip"]
    response: SimulatedResponse | None = None
    bytes_per_second: float = 1.0


class ApiError(Exception):
    """A request that is answered with an error; each provider gives it its own shape."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type
        self.param = param
        self.code = code
        self.headers = dict(headers or {})


def reply(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> SimulatedResponse:
    """A JSON response."""
    return SimulatedResponse(status, {"content-type": "application/json", **(headers or {})}, _encode(value))


def stream(events: Sequence[Json], headers: Mapping[str, str], seconds: float) -> SimulatedResponse:
    """A response of server-sent events, over so many seconds."""
    pieces = []
    for event in events:
        name = b"event: %b\n" % str(event["type"]).encode() if "type" in event else b""
        pieces.append(b"%bdata: %b\n\n" % (name, _encode(event)))
    if "type" not in events[0]:
        pieces.append(b"data: [DONE]\n\n")
    headers = {"content-type": "text/event-stream", **headers}
    return SimulatedResponse(200, headers, b"".join(pieces), tuple(pieces), seconds / len(pieces))


def read_json(body: bytes) -> Json:
    """The JSON object in a request's body; anything else is a 400."""
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ApiError(400, f"We could not parse the JSON body of your request: {error}.") from None
    if not isinstance(value, dict):
        raise ApiError(400, "We could not parse the JSON body of your request: expected an object.")
    return value
