"""A lean HTTP server, and the gate that keeps strangers out of what it serves."""

from fanfold.web.gate import Gate
from fanfold.web.server import Site, serve
from fanfold.web.wire import ApiError, BrokenAnswer, Request, WebResponse, read_json, reply

__all__ = [
    "ApiError",
    "BrokenAnswer",
    "Gate",
    "Request",
    "Site",
    "WebResponse",
    "read_json",
    "reply",
    "serve",
]
