"""Named arrays as bytes in the safetensors format: a length, a JSON header, and the raw numbers; never a pickle."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from fanfold.errors import ConfigError

Arrays: TypeAlias = dict[str, NDArray[Any]]

_NAMES = {
    "F64": "<f8",
    "F32": "<f4",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "<i1",
    "U64": "<u8",
    "U32": "<u4",
    "U16": "<u2",
    "U8": "<u1",
    "BOOL": "|b1",
}
_KINDS = {np.dtype(kind): name for name, kind in _NAMES.items()}


def pack(arrays: Mapping[str, NDArray[Any]], about: Mapping[str, str] | None = None) -> bytes:
    """The arrays as one piece of bytes, the largest numbers first so that all of them are aligned."""
    header: dict[str, Any] = {"__metadata__": dict(about)} if about else {}
    parts, place = [], 0
    for name in sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name)):
        array = arrays[name]
        data = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()
        kind = _KINDS[array.dtype.newbyteorder("<")]
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [place, place + len(data)]}
        parts.append(data)
        place += len(data)
    text = msgspec.json.encode(header)
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + b"".join(parts)


def unpack(data: bytes) -> Arrays:
    """The arrays that `pack` was given (read-only: they are views of the bytes)."""
    header, start = _header(data)
    header.pop("__metadata__", None)
    arrays: Arrays = {}
    try:
        for name, entry in header.items():
            kind, shape = np.dtype(_NAMES[entry["dtype"]]), tuple(entry["shape"])
            first, last = entry["data_offsets"]
            if first < 0 or last - first != kind.itemsize * math.prod(shape) or start + last > len(data):
                raise ValueError(f"{name!r} does not fit")
            arrays[name] = np.frombuffer(data, kind, math.prod(shape), start + first).reshape(shape)
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"these bytes are not arrays in the safetensors format: {error}") from error
    return arrays


def about(data: bytes) -> dict[str, str]:
    """What `pack` was told about the arrays."""
    found: dict[str, str] = _header(data)[0].get("__metadata__", {})
    return found


def _header(data: bytes) -> tuple[dict[str, Any], int]:
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > len(data) - 8:
        raise ConfigError("these bytes are not arrays in the safetensors format: the header is cut off")
    try:
        return msgspec.json.decode(data[8 : 8 + length], type=dict[str, Any]), 8 + length
    except msgspec.MsgspecError as error:
        raise ConfigError(f"these bytes are not arrays in the safetensors format: {error}") from error
