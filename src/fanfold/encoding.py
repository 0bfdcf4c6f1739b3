"""How values become text: canonical JSON, content hashes and derived seeds."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import msgspec

from fanfold.errors import ConfigError
from fanfold.types import Blob

BLOB_KEY = "$blob"


def _encode_other(value: Any) -> Any:
    if isinstance(value, Blob):
        return {BLOB_KEY: value.digest}
    if callable(getattr(value, "tolist", None)):  # numpy arrays and scalars, torch tensors
        return value.tolist()
    raise TypeError(f"a value of type {type(value).__name__!r} cannot be kept")


_canonical = msgspec.json.Encoder(enc_hook=_encode_other, order="sorted")


def encode(value: Any, what: str = "value") -> str:
    """Canonical JSON: equal values give equal text.  `what` names the value in the error when it cannot be encoded."""
    try:
        return _canonical.encode(value).decode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"{what} cannot be written to the ledger: {error}. Use strings, numbers, tuples, lists, dicts, "
            f"dataclasses, numpy arrays or Blob.of(bytes)"
        ) from error


def decode(text: str | bytes, load: Callable[[str], bytes] | None = None) -> Any:
    """The plain value of a JSON text; with `load`, references to blobs come back as `Blob`s that read through it."""
    value = msgspec.json.decode(text)
    marker: Any = BLOB_KEY if isinstance(text, str) else BLOB_KEY.encode()
    return _revive(value, load) if load is not None and marker in text else value


def _revive(value: Any, load: Callable[[str], bytes]) -> Any:
    if isinstance(value, dict):
        if len(value) == 1 and BLOB_KEY in value:
            return Blob(value[BLOB_KEY], load)
        return {key: _revive(item, load) for key, item in value.items()}
    if isinstance(value, list):
        return [_revive(item, load) for item in value]
    return value


def blobs_in(value: Any) -> list[Blob]:
    """Every blob inside a value, in any order."""
    found: list[Blob] = []

    def hook(item: Any) -> Any:
        if isinstance(item, Blob):
            found.append(item)
        return _encode_other(item)

    msgspec.json.encode(value, enc_hook=hook)
    return found


def digest(*parts: str | bytes) -> bytes:
    """Sixteen bytes that identify the sequence of parts."""
    state = hashlib.blake2b(digest_size=16)
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        state.update(len(data).to_bytes(8, "little"))
        state.update(data)
    return state.digest()


def derive_seed(seed: int, *identity: str | int) -> int:
    """A seed that belongs to one identity under one parent seed: stable across machines and versions of Python."""
    return int.from_bytes(digest(str(seed), *(str(part) for part in identity))[:8], "little") >> 1
