"""What goes in and out of the simulator: requests, responses, broken answers, and errors on their way to a response."""

from __future__ import annotations

from collections.abc import Mapping
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


def read_json(body: bytes) -> Json:
    """The JSON object in a request's body; anything else is a 400."""
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ApiError(400, f"We could not parse the JSON body of your request: {error}.") from None
    if not isinstance(value, dict):
        raise ApiError(400, "We could not parse the JSON body of your request: expected an object.")
    return value
