"""AWS Signature Version 4: proof that a request was written by whoever holds a secret key, without sending it."""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Mapping
from urllib.parse import parse_qsl, quote, urlsplit

ALGORITHM = "AWS4-HMAC-SHA256"


def sign(
    method: str,
    url: str,
    body: bytes,
    key: tuple[str, str, str],
    scope: tuple[str, str],
    headers: Mapping[str, str] | None = None,
    now: float | None = None,
) -> dict[str, str]:
    """The headers that sign a request: `key` is (access key id, secret, session token), `scope` (region, service).

    `headers` are signed with it, in lower case, and must be sent as they are.
    """
    identity, secret, token = key
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
    added = {"x-amz-date": stamp, **({"x-amz-security-token": token} if token else {})}
    parts = urlsplit(url)
    signed = {"host": parts.netloc, **added, **(headers or {})}
    place = "/".join((stamp[:8], *scope, "aws4_request"))
    proof = signature(method, parts.path, parts.query, signed, body, secret, place)
    authorization = f"{ALGORITHM} Credential={identity}/{place}, SignedHeaders={_names(signed)}, Signature={proof}"
    return {**added, "authorization": authorization}


def signature(
    method: str, path: str, query: str, headers: Mapping[str, str], body: bytes, secret: str, place: str
) -> str:
    """The signature of a request with these headers; `path` and `query` are as sent, `place` is DATE/REGION/..."""
    pairs = sorted((_quoted(name), _quoted(value)) for name, value in parse_qsl(query, keep_blank_values=True))
    request = [
        method,
        quote(path or "/", safe="/-_.~"),  # quoted once more than it is sent
        "&".join(f"{name}={value}" for name, value in pairs),
        *(f"{name}:{' '.join(headers[name].split())}" for name in sorted(headers)),
        "",
        _names(headers),
        hashlib.sha256(body).hexdigest(),
    ]
    digest = hashlib.sha256("\n".join(request).encode()).hexdigest()
    key = f"AWS4{secret}".encode()
    for part in place.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    text = "\n".join((ALGORITHM, headers["x-amz-date"], place, digest))
    return hmac.digest(key, text.encode(), "sha256").hex()


def _names(headers: Mapping[str, str]) -> str:
    return ";".join(sorted(headers))


def _quoted(text: str) -> str:
    return quote(text, safe="-_.~")
