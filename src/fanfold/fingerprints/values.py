"""Values that can be written down: equal values of equal types give equal text, in every process."""

from __future__ import annotations

import collections
import datetime
import decimal
import enum
import fractions
import hashlib
import ipaddress
import pathlib
import random
import re
import sys
import types
import uuid
import zoneinfo
from typing import Any

from fanfold.encoding import digest
from fanfold.fingerprints.modules import counted

#: How long a text may be to be shown.
_SHORT = 40
_ATOMS = frozenset((type(None), bool, int, float, complex, str, type(...), type(NotImplemented), range))
_WRITTEN_BY_REPR = frozenset(
    (
        datetime.date,
        datetime.time,
        datetime.datetime,
        datetime.timedelta,
        datetime.timezone,
        decimal.Decimal,
        fractions.Fraction,
        uuid.UUID,
        ipaddress.IPv4Address,
        ipaddress.IPv6Address,
        zoneinfo.ZoneInfo,
        slice,
    )
)
_SECRET_NAME = re.compile(
    r"(?i)(^|[^a-z])(api_?keys?|keys?|tokens?|secrets?|passwords?|passwd|pwd|credentials?|auth|authorization|bearer)$"
)
_SECRET_TEXT = re.compile(
    r"(?i)^(sk|pk|rk|gh[a-z]|xox[a-z]|hf)[-_]|^(akia|eyj)|bearer |://[^/@\s]*@|key|token|secret|passw"
)


class NotPlain(Exception):
    """The value holds something that cannot be written down as it is."""


class TooMuch(NotPlain):
    """The value has more parts than were to be looked at."""


def plain(value: Any, most: int = 1_000_000) -> str:
    """The text of a plain value of at most so many parts, or NotPlain."""
    return _Plain(most).text(value)


class _Plain:
    def __init__(self, most: int) -> None:
        self.left = most

    def text(self, value: Any) -> str:
        kind = type(value)
        if kind in _ATOMS:
            return _atom(value)
        if kind is list or kind is tuple:
            return self._sequence(value, kind)
        self.left -= 1
        if self.left < 0:
            raise TooMuch
        if kind is dict:
            if set(map(type, value)) == {str} and set(map(type, value.values())) <= _ATOMS:
                return f"{{{_atom(sorted(value.items()))}}}"
            items = sorted((self.text(key), self.text(item)) for key, item in value.items())
            return f"{{{', '.join(f'{key}: {item}' for key, item in items)}}}"
        if kind is set or kind is frozenset:
            return f"{kind.__name__}({', '.join(sorted(map(self.text, value)))})"
        return self._other(value, kind)

    def _sequence(self, value: Any, kind: type) -> str:
        kinds = set(map(type, value))
        if kinds <= _ATOMS:
            return _atom(value)
        self.left -= len(value)
        if self.left < 0:
            raise TooMuch
        return f"{kind.__name__}({', '.join(map(self.text, value))})"

    def _other(self, value: Any, kind: type) -> str:
        if kind is bytes or kind is bytearray:
            return f"{kind.__name__}#{hashed(value)}"
        if kind in _WRITTEN_BY_REPR:
            return repr(value)
        if kind is types.MappingProxyType or kind is collections.OrderedDict or kind is collections.Counter:
            return f"{kind.__name__}{self.text(dict(value))}"
        if kind is collections.deque:
            return f"deque{self.text(list(value))}"
        if kind is re.Pattern:
            return f"pattern({self.text(value.pattern)}, {value.flags})"
        if kind in (pathlib.PosixPath, pathlib.PurePosixPath, pathlib.WindowsPath, pathlib.PureWindowsPath):
            return f"path({str(value)!r})"
        if issubclass(kind, enum.Enum):
            members = vars(value)
            return f"{counted(kind.__module__)}.{kind.__qualname__}.{members['_name_']}={self.text(members['_value_'])}"
        if kind is random.Random:
            return f"random#{hashed(repr(value.getstate()))}"
        return _array(value, kind)


def _atom(value: Any) -> str:
    try:
        return repr(value)
    except ValueError:  # a whole number of more digits than Python likes to write
        return hex(value) if type(value) is int else ", ".join(map(_atom, value)) + f" in {type(value).__name__}"


def _array(value: Any, kind: type) -> str:
    """Arrays, tensors and tables by their bytes; only libraries that are loaded anyway are looked at."""
    library = (kind.__module__ or "").partition(".")[0]
    if library == "torch":
        return _tensor(value, sys.modules["torch"])
    if library == "pandas":
        return _table(value, sys.modules["pandas"])
    if library != "numpy":
        raise NotPlain
    numpy: Any = sys.modules["numpy"]
    if kind is numpy.ufunc:
        return f"numpy.{value.__name__}"
    if issubclass(kind, numpy.dtype):
        return f"numpy.{value}"
    if issubclass(kind, numpy.generic):
        return f"numpy.{value.dtype.str}#{value.tobytes().hex()}"
    if kind in (numpy.ndarray, numpy.memmap, numpy.recarray):
        if value.dtype.hasobject:
            return f"array{value.shape}{plain(value.tolist())}"
        data = numpy.ascontiguousarray(value).reshape(-1).view(numpy.uint8)
        return f"array{value.shape}{value.dtype.descr}#{hashed(data.data)}"
    if kind is numpy.random.Generator:
        return f"generator{plain(value.bit_generator.state)}"
    if kind is numpy.random.RandomState:
        return f"randomstate{plain(value.get_state(legacy=False))}"
    raise NotPlain


def _table(value: Any, pandas: Any) -> str:
    kind = type(value)
    if kind not in (pandas.DataFrame, pandas.Series):
        raise NotPlain
    heads = [list(map(repr, value.columns)), list(map(str, value.dtypes))] if kind is pandas.DataFrame else value.name
    rows = pandas.util.hash_pandas_object(value).to_numpy().tobytes()
    return f"{kind.__name__}{value.shape} {heads!r} #{hashed(rows)}"


def _tensor(value: Any, torch: Any) -> str:
    kind = type(value)
    if kind in (torch.dtype, torch.device):
        return str(value)
    if kind is torch.Generator:
        value = value.get_state()
    if not issubclass(kind, torch.Tensor | torch.Generator) or value.layout is not torch.strided or value.is_meta:
        raise NotPlain
    data = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return f"{value.dtype}{tuple(value.shape)}#{hashed(data.data)}"


def hashed(data: Any) -> str:
    """Sixteen hexadecimal digits for a text or for bytes."""
    state = hashlib.blake2b(data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data, digest_size=8)
    return state.hexdigest()


def looks_secret(name: str, value: Any) -> bool:
    """Whether a value may be a key or a password, by its name or its looks: such texts are never shown."""
    if type(value) in (bool, int, float, complex, type(None)):
        return False
    return _SECRET_NAME.search(name) is not None or (type(value) is str and len(value) <= _SHORT and _looks_odd(value))


def _looks_odd(text: str) -> bool:
    random = re.fullmatch(r"(?=.*\d)(?=.*[A-Za-z])[\w+/=-]{20,}", text)
    return _SECRET_TEXT.search(text) is not None or random is not None


def hidden(name: str, text: str) -> str:
    """What is kept of a secret: enough to see that it changed; slow to make, so that it cannot be guessed."""
    return "hidden " + hashlib.pbkdf2_hmac("sha256", text.encode(), digest("hidden", name), 10_000).hex()[:12]


def kept(name: str, value: Any, text: str, most: int = _SHORT) -> tuple[str, str]:
    """What stands for a value and what is shown of it: itself where it is short and no secret, else a hash."""
    if looks_secret(name, value):
        secret = hidden(name, text)
        return secret, secret
    numbers = type(value) in (list, tuple) and all(type(item) in (bool, int, float) for item in value)
    short = len(text) <= most and (type(value) in _ATOMS or numbers or issubclass(type(value), enum.Enum))
    if short and len(text) > _SHORT and type(value) is str:
        short = not _looks_odd(value)
    full = hashed(text)
    return full, text if short else f"#{full[:12]}"
