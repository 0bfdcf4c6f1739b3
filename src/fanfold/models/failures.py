"""Why a call failed, where its request got no answer from the server that it was meant for."""

from __future__ import annotations

import re

from fanfold.addresses import shown
from fanfold.errors import CallFailed
from fanfold.models.http import HttpError, Response


def network_failure(error: HttpError, provider: str, timeout: float, start: str = "") -> CallFailed:
    """What a call that brought no answer means for the call; `start` is how the user starts that server."""
    if error.kind == "timeout":
        return CallFailed("timeout", f"{provider} gave no full answer within {timeout:g} s", sent=error.sent)
    if error.kind == "too-large":
        return CallFailed("too-large", f"{provider}: {error}")
    kind = "unreachable" if error.kind == "certificate" else "network"
    remedy = f"; is it running? start it with {start}" if start and error.kind == "connect" else ""
    return CallFailed(kind, f"{provider} cannot be reached: {error}{remedy}", sent=error.sent)


class Redirected(CallFailed):
    """A server that said to ask elsewhere."""


def redirected(response: Response, provider: str) -> CallFailed:
    """A redirect that was not followed: the key belongs to the server that the user named."""
    where = shown(response.headers.get("location", "")) or "nowhere"
    return Redirected(
        "network",
        f"{provider} answers with a redirect (status {response.status}) to {where}, which is not followed: only "
        "307 and 308 to the same server are, as the key must not travel; give the address that answers as base_url",
        sent=False,
    )


def deserted(error: CallFailed, endpoint: str) -> CallFailed:
    """The last failure of an address where nobody has ever answered."""
    text = f"nobody answers at {shown(endpoint)}: {error}; check the address and the network, then resume"
    return CallFailed("unreachable", text, sent=error.sent)


def nowhere(error: CallFailed, endpoint: str, anywhere: bool) -> CallFailed:
    """A failure that says where it was asked, if there was nothing; `anywhere`: the address is the user's own."""
    if error.kind != "not-found":
        return error
    versioned = not anywhere or re.search(r"/v\d", endpoint)
    remedy = "" if versioned else "; most such servers want a base URL that ends in /v1"
    return CallFailed("not-found", f"{error}: asked at {shown(endpoint)}{remedy}")
