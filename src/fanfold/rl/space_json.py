"""Spaces of Gymnasium as JSON, so that an agent's file says what it observes and does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fanfold.errors import ConfigError
from fanfold.rl.spaces import kind_of


def space_to_json(space: Any) -> dict[str, Any]:
    """A space as plain values; bounds that are the same everywhere are one number, and none where there is no bound."""
    kind = kind_of(space)
    if kind == "Box":
        bounds = {name: _bound(getattr(space, name)) for name in ("low", "high")}
        return {"kind": kind, "shape": list(space.shape), "dtype": str(space.dtype), **bounds}
    if kind == "Discrete":
        return {"kind": kind, "n": int(space.n), "start": int(space.start)}
    if kind == "MultiDiscrete":
        return {"kind": kind, "nvec": space.nvec.tolist(), "start": space.start.tolist()}
    if kind == "MultiBinary":
        return {"kind": kind, "shape": list(space.shape)}
    if kind == "Dict":
        # Pairs, as their order counts, and a ledger sorts the names of a mapping.
        return {"kind": kind, "parts": [[name, space_to_json(part)] for name, part in space.spaces.items()]}
    if kind == "Tuple":
        return {"kind": kind, "parts": [space_to_json(part) for part in space.spaces]}
    raise ConfigError(f"a space of the kind {kind} cannot be learnt: {space}")


def space_from_json(record: Mapping[str, Any]) -> Any:
    """The space that `space_to_json` described."""
    from gymnasium import spaces

    kind = record["kind"]
    if kind == "Box":
        shape, dtype = tuple(record["shape"]), np.dtype(record["dtype"]).type
        low, high = (_bounds(record[name], end, shape) for name, end in (("low", -np.inf), ("high", np.inf)))
        return spaces.Box(low.astype(dtype), high.astype(dtype), shape, dtype)
    if kind == "Discrete":
        return spaces.Discrete(record["n"], start=record["start"])
    if kind == "MultiDiscrete":
        return spaces.MultiDiscrete(np.array(record["nvec"]), start=np.array(record["start"]))
    if kind == "MultiBinary":
        shape = tuple(record["shape"])
        return spaces.MultiBinary(shape if len(shape) > 1 else shape[0])
    if kind == "Dict":
        parts = record["parts"]
        pairs = parts.items() if isinstance(parts, Mapping) else parts  # a mapping in files of 1.0
        return spaces.Dict([(name, space_from_json(part)) for name, part in pairs])
    if kind == "Tuple":
        return spaces.Tuple([space_from_json(part) for part in record["parts"]])
    raise ConfigError(f"the agent's file has a space of the unknown kind {kind!r}")


def _bound(values: Any) -> Any:
    flat = np.asarray(values, np.float64).ravel()
    same = len(set(flat.tolist())) <= 1
    numbers = [each if np.isfinite(each) else None for each in flat.tolist()]
    return numbers[0] if same and numbers else numbers


def _bounds(values: Any, none: float, shape: tuple[int, ...]) -> Any:
    if not isinstance(values, list):
        return np.full(shape, none if values is None else values)
    return np.array([none if each is None else each for each in values]).reshape(shape)
