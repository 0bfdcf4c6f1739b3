"""How values become text: canonical JSON, content hashes and derived seeds."""

from __future__ import annotations

import copy
import dataclasses
import datetime
import hashlib
import math
import re
import reprlib
from collections.abc import Callable
from pathlib import PurePath
from typing import Any, TypeVar

import msgspec

from fanfold.errors import ConfigError
from fanfold.types import Blob, Result, Trial

T = TypeVar("T")

BLOB_KEY = "$blob"
#: A JSON text without this refers to no blob.
MARK = f'"{BLOB_KEY}"'
#: How deep lists and dicts may be nested: what is written must be readable wherever the stack happens to stand.
DEEPEST = 200
#: The most characters that are kept of a text for people.
LONGEST_TEXT = 30_000
#: The most characters of JSON that the data of one outcome may take; more belongs into blobs, read when needed.
MOST_DATA = 64 * 2**20
#: The most bytes of one blob: a row of SQLite must stay below 1e9 bytes.
LARGEST_BLOB = 999_999_000


class Stored(msgspec.Struct, frozen=True):
    """A blob that is in the store of its run already: its name there, and its bytes."""

    name: str
    size: int


class Encoded(msgspec.Struct, frozen=True):
    """The data of an outcome as the ledger keeps it: its JSON, and the blobs in it by their digests.

    `away` says why a worker could not put them into the store of its run.
    """

    text: str
    blobs: dict[str, bytes | Stored] = {}
    away: str = ""


def apart(value: Any) -> Any:
    """The value for somebody who may change it: what can be changed is copied, as if it had been sent elsewhere."""
    kind = type(value)
    if kind in _UNCHANGING:
        return value
    if kind is dict:
        return {key: item if type(item) in _UNCHANGING else apart(item) for key, item in value.items()}
    if kind is list or kind is tuple:
        return kind([item if type(item) in _UNCHANGING else apart(item) for item in value])
    for settings in ("__dataclass_params__", "__struct_config__"):
        if getattr(getattr(kind, settings, None), "frozen", False):
            return value
    try:
        return copy.deepcopy(value)
    except Exception:  # a tensor that is part of a graph, for one
        return value


def own_data(holder: T) -> T:
    """A case or an outcome for somebody who may change its data."""
    data = getattr(holder, "data", None)
    mine = apart(data)
    return holder if mine is data else dataclasses.replace(holder, data=mine)  # type: ignore[type-var]


def own_result(result: Result[Any]) -> Result[Any]:
    """A result for a strategy, which may change its candidate, its outcomes and their data."""
    trial, candidate = result.trial, apart(result.trial.candidate)
    if candidate is not trial.candidate:
        trial = Trial(trial.number, candidate, trial.origin)
    outcomes = {case: own_data(outcome) for case, outcome in result.outcomes.items()}
    return Result(trial, result.score, outcomes, result.dropped)


_UNCHANGING = frozenset({str, int, float, bool, type(None), bytes, Blob})


def _encode_other(value: Any) -> Any:
    if isinstance(value, Blob):
        return {BLOB_KEY: value.digest}
    if callable(getattr(value, "tolist", None)):  # numpy arrays and scalars, torch tensors
        return value.tolist()
    if callable(getattr(type(value), "model_dump", None)):  # models of Pydantic
        return _keyed_by_text(value.model_dump())
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, datetime.date | datetime.time) and value == value:  # of a subclass, as pandas has one
        return value.isoformat()
    raise TypeError(f"a value of type {type(value).__name__!r} cannot be kept")


_canonical = msgspec.json.Encoder(enc_hook=_encode_other, order="sorted")


def encode(value: Any, what: str = "value", *, finite: bool = True) -> str:
    """Canonical JSON: equal values give equal text.  `what` names the value in the error when it cannot be encoded.

    NaN and infinity, which JSON does not have, are refused; with `finite=False` they become null.  Keys of dicts that
    are not texts become the JSON of theirs, `1` or `["a",2]`.
    """
    try:
        try:
            raw = _canonical.encode(value)
        except TypeError:
            raw = _canonical.encode(_keyed_by_text(value))
        text = raw.decode()
        if "null" in text and finite and (found := _not_finite(value)) is not None:
            raise ValueError(f"its {found}, which JSON does not have" if found[0] == "[" else f"it {found}")
        if len(raw) > 2 * DEEPEST and _too_deep(raw):
            raise ValueError(f"it is nested deeper than {DEEPEST} levels")
        return text
    except Exception as error:  # also what a value's own methods raise
        raise ConfigError(
            f"{what} cannot be written to the ledger: {words(error)}. Use strings, finite numbers, tuples, lists, "
            f"dicts, dataclasses, Pydantic models, numpy arrays or Blob.of(bytes)"
        ) from error


def _keyed_by_text(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_keyed_by_text(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _keyed_by_text(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if not isinstance(value, dict):
        return value
    keyed = {key if isinstance(key, str) else _canonical.encode(key).decode(): value[key] for key in value}
    if len(keyed) < len(value):
        raise ValueError(f"two keys of a dict are the same as text ({brief(value)})")
    return {key: _keyed_by_text(item) for key, item in keyed.items()}


def _not_finite(value: Any) -> str | None:
    """Where in a value NaN or infinity stands; msgspec writes them as null."""
    kind = type(value)
    if kind is float:
        return None if math.isfinite(value) else f"is {value}"
    items: Any = ()
    if kind is dict:
        items = value.items()
    elif kind is list or kind is tuple:
        items = enumerate(value)
    elif value is not None and kind is not str and kind is not int and kind is not bool:
        plain = msgspec.to_builtins(value, enc_hook=_encode_other)
        return None if type(plain) is kind else _not_finite(plain)
    for key, item in items:
        if (found := _not_finite(item)) is not None:
            return f"[{key!r}]{'' if found[0] == '[' else ' '}{found}"
    return None


_STRINGS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"')
_BESIDES = bytes(set(range(256)) - set(b"[]{}"))


def _too_deep(raw: bytes) -> bool:
    if raw.count(b"[") + raw.count(b"{") <= DEEPEST:
        return False
    # Brackets inside texts seldom matter, and taking texts out is the slow part.
    return _levels_left(raw) and _levels_left(_STRINGS.sub(b"", raw))


def _levels_left(raw: bytes) -> bool:
    """Whether brackets are left when the innermost level is taken away as often as is allowed."""
    brackets = raw.translate(None, _BESIDES)
    for _ in range(DEEPEST):
        if not brackets:
            return False
        brackets = brackets.replace(b"[]", b"").replace(b"{}", b"")
    return bool(brackets)


def pack(value: Any, what: str = "the data of the outcome") -> Encoded:
    """The data of an outcome, ready for the ledger.  Lone surrogates are replaced: half an emoji costs no score."""
    try:
        text = encode(value, what)
    except ConfigError as error:
        if not isinstance(error.__cause__, UnicodeEncodeError):
            raise
        text = encode(_mended(msgspec.to_builtins(value, enc_hook=_encode_other)), what)
    if len(text) > MOST_DATA:
        raise ConfigError(
            f"{what} is {len(text):,} characters of JSON, and at most {MOST_DATA:,} are kept: return less, or put "
            "large parts into Blob.of(bytes)"
        )
    return Encoded(text, blobs_in(value, text, what)) if MARK in text else Encoded(text)


def _mended(value: Any) -> Any:
    if isinstance(value, str):
        return _without_surrogates(value)
    if isinstance(value, dict):
        return {_mended(key): _mended(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_mended(item) for item in value]
    return value


def decode(text: str | bytes, load: Callable[[str], bytes] | None = None) -> Any:
    """The plain value of a JSON text; with `load`, references to blobs come back as `Blob`s that read through it."""
    value = msgspec.json.decode(text)
    marker: Any = BLOB_KEY if isinstance(text, str) else BLOB_KEY.encode()
    return _revive(value, load) if load is not None and marker in text else value


def _revive(value: Any, load: Callable[[str], bytes]) -> Any:
    if isinstance(value, dict):
        if len(value) == 1 and isinstance(value.get(BLOB_KEY), str):
            return Blob(value[BLOB_KEY], load)
        return {key: _revive(item, load) for key, item in value.items()}
    if isinstance(value, list):
        return [_revive(item, load) for item in value]
    return value


#: In JSON text this can be nothing but a reference: inside a string the quotes would be escaped.
_REFERENCE = re.compile(re.escape(f'{{"{BLOB_KEY}":') + r'(?:"([^"]*)"\}|)')


def blobs_in(
    value: Any, text: str, what: str, stored: Callable[[str], Stored | None] = lambda digest: None
) -> dict[str, bytes | Stored]:
    """Every blob inside a value whose JSON is `text`, by its digest: its bytes, unless it is `stored` already."""
    found: dict[str, bytes | Stored] = {}

    def hook(item: Any) -> Any:
        if isinstance(item, Blob) and item.digest not in found:
            if (place := stored(item.digest)) is not None:
                found[item.digest] = place
                return _encode_other(item)
            data = item.read()
            if not isinstance(data, bytes):
                raise ConfigError(f"{what} holds a blob of {type(data).__name__}: make it with Blob.of(bytes)")
            if len(data) > LARGEST_BLOB:
                raise ConfigError(
                    f"{what} holds a blob of {len(data):,} bytes, and at most {LARGEST_BLOB:,} can be kept: split it"
                )
            found[item.digest] = data
        return _encode_other(item)

    msgspec.to_builtins(value, enc_hook=hook)
    if set(_REFERENCE.findall(text)) != set(found):
        raise ConfigError(f"{what} uses the key {BLOB_KEY!r}, which stands for Blob.of(bytes): use another key")
    return found


def references(text: str) -> set[str]:
    """The digests of the blobs that a JSON text refers to."""
    return set(_REFERENCE.findall(text)) if MARK in text else set()


def words(value: Any, most: int = 0) -> str:
    """What a value says of itself, as text that can be kept: whatever its `__str__` does, and of limited length."""
    most = most or LONGEST_TEXT
    try:
        text = str.__str__(value if isinstance(value, str) else str(value))  # and of no class of the user's own
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return f"(a {type(value).__name__} that gives no text: its __str__ raised {type(error).__name__})"
    if len(text) > most:  # the beginning says what it is about, the end of a traceback what happened
        end = most // 2
        text = f"{text[: most - end]}\n... {len(text) - most:,} characters were cut here ...\n{text[-end:]}"
    try:
        text.encode()
    except UnicodeEncodeError:
        return _without_surrogates(text)
    return text


def brief(value: Any) -> str:
    """A value and its type in a few words, for a message."""
    try:
        text = words(reprlib.repr(value), 60).replace("\n", " ")
    except Exception:  # an integer of too many digits, for one
        return f"a value of type {type(value).__name__!r}"
    return f"{text} ({type(value).__name__})"


def _without_surrogates(text: str) -> str:
    """Pairs of surrogates become the character they stand for, lone ones the replacement character."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def digest(*parts: str | bytes) -> bytes:
    """Sixteen bytes that identify the sequence of parts."""
    pieces: list[bytes] = []
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        pieces += len(data).to_bytes(8, "little"), data
    return hashlib.blake2b(b"".join(pieces), digest_size=16).digest()


def derive_seed(seed: int, *identity: str | int) -> int:
    """A seed that belongs to one identity under one parent seed: stable across machines and versions of Python."""
    return int.from_bytes(digest(str(seed), *(str(part) for part in identity))[:8], "little") >> 1
