"""Known secrets, and texts without them: a server may say a key back anywhere, and nothing here may repeat it.

Every worker imports this before its first call, so what only secrets need is imported where there are some.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

MARK = "***"
#: What is shorter would hit ordinary words, and so would these, which stand for "no key".
SHORTEST = 8
_WORDS = frozenset({"simulated", "not-needed", "no-key-needed"})
#: Variables whose values are keys.
_VARIABLE = re.compile(
    r"\w*_API_KEY|HF_TOKEN|HUGGING_FACE_HUB_TOKEN|AWS_(?:SECRET_ACCESS_KEY|SESSION_TOKEN|BEARER_TOKEN_\w+)"
)

_known: set[str] = set()
#: What is looked for, longest first, as text and as bytes; None until the variables have been read.
_forms: tuple[str, ...] | None = None
_raw: tuple[bytes, ...] = ()


def know(secret: str | None) -> None:
    """Never show this text again, in any form it is usually written in."""
    if secret is not None and secret not in _known and len(secret) >= SHORTEST and secret not in _WORDS:
        _known.add(secret)
        _prepare()


def redact(text: str) -> str:
    """The text with every known secret replaced."""
    for form in _prepare() if _forms is None else _forms:
        if form in text:
            text = text.replace(form, MARK)
    return text


def redact_body(body: bytes) -> bytes:
    """What a server sent, with every known secret replaced, also one that JSON spells with escapes."""
    if _forms is None:
        _prepare()
    for form in _raw:
        if form in body:
            body = body.replace(form, MARK.encode())
    if b"\\" in body and b"\\u00" in body and _raw:  # a letter may be hidden so, and it rarely is
        import json

        try:
            value = json.loads(body)
            clean = _redacted(value)
        except (ValueError, RecursionError):
            return body
        return body if clean == value else json.dumps(clean).encode()
    return body


def dotenv(folder: str | Path = ".") -> Iterator[tuple[str, str]]:
    """The variables that the file `.env` of a folder sets."""
    from pathlib import Path

    try:
        lines = Path(folder, ".env").read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return
    for line in lines:
        variable, equals, value = line.strip().removeprefix("export ").partition("=")
        value = value.strip()
        if equals and value:
            yield variable.strip(), _unquoted(value)


def _unquoted(value: str) -> str:
    if len(value) > 1 and value[0] == value[-1] == '"':
        import json

        try:
            return str(json.loads(value))
        except ValueError:
            return value[1:-1]
    return value.strip("'")


def _prepare() -> tuple[str, ...]:
    global _forms, _raw
    if _forms is None:
        for variable, value in (*os.environ.items(), *dotenv()):
            if _VARIABLE.fullmatch(variable) and len(value) >= SHORTEST and value not in _WORDS:
                _known.add(value)
    forms = {form for secret in _known for form in _spelled(secret)}
    _forms = tuple(sorted(forms, key=len, reverse=True))
    _raw = tuple(form.encode() for form in _forms)
    return _forms


def _spelled(secret: str) -> Iterator[str]:
    import json
    from urllib.parse import quote

    yield secret
    yield quote(secret, safe="")
    yield json.dumps(secret)[1:-1]


def _redacted(value: Any) -> Any:
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, list):
        return [_redacted(item) for item in value]
    if isinstance(value, dict):
        return {redact(name): _redacted(item) for name, item in value.items()}
    return value
