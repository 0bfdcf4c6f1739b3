"""What a dialect reads and writes: requests, responses, errors, and replies that are streamed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from fanfold.web.wire import ApiError, BrokenAnswer, Json, Request, read_json, reply
from fanfold.web.wire import WebResponse as SimulatedResponse

__all__ = ["ApiError", "BrokenAnswer", "Json", "Request", "SimulatedResponse", "read_json", "reply", "stream"]

_encode = msgspec.json.Encoder().encode


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
