"""What goes in and out of a server: requests, responses, broken answers, and errors on their way to a response."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import parse_qsl

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
    #: The query as it came, for names that are given more than once.
    search: str = ""

    def every(self, name: str) -> list[str]:
        """All values that the query gives to a name."""
        return [value for key, value in parse_qsl(self.search) if key == name]


@dataclass(frozen=True, slots=True)
class WebResponse:
    """One HTTP response; its length, date and connection headers are added by whoever writes it."""

    status: int
    headers: dict[str, str]
    body: bytes
    #: The body as it is streamed, and the seconds after each piece.
    pieces: tuple[bytes, ...] = ()
    pause: float = 0.0
    #: A body without an end, written as it comes. It is closed when the client leaves.
    live: AsyncIterator[bytes] | None = None

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
    response: WebResponse | None = None
    bytes_per_second: float = 1.0


class ApiError(Exception):
    """A request that is answered with an error; each site gives it its own shape."""

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


def reply(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> WebResponse:
    """A JSON response."""
    return WebResponse(status, {"content-type": "application/json", **(headers or {})}, _encode(value))


def read_json(body: bytes) -> Json:
    """The JSON object in a request's body; anything else is a 400."""
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ApiError(400, f"We could not parse the JSON body of your request: {error}.") from None
    if not isinstance(value, dict):
        raise ApiError(400, "We could not parse the JSON body of your request: expected an object.")
    return value
