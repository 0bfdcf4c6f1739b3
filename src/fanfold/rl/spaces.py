"""Spaces of Gymnasium in the learner's form: observations become rows of numbers, rows of a head become actions."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fanfold.errors import ConfigError
from fanfold.rl.heads import Array, Categories, Gaussian, Head

#: Turns one observation of a space into numbers.
Encode = Callable[[Any], Array]
#: A bound beyond this is none: some write the largest float for that.
_FARTHEST = 1e30
#: From so many numbers on, a part of an observation is balanced with the others.
WIDE = 16
_KINDS = ("Box", "Discrete", "MultiDiscrete", "MultiBinary", "Dict", "Tuple")


class Encoder:
    """Turns observations of a space into rows of `width` numbers: float32, or uint8 for images of bytes.

    Box and MultiBinary observations are taken as they are; a Discrete one, and every number of a MultiDiscrete one,
    becomes one number for each of its values, all 0 but one.  Parts of a Dict (in its own order) or a Tuple
    stand side by side, nested or not.  `image` is the shape of an observation that is a picture: three dimensions, or
    two with at least 16 rows and columns.  `shares` is what balances parts of very different sizes.
    """

    def __init__(self, space: Any) -> None:
        self.space = space
        self.width, self._encode = _encoding(space)
        self.image = tuple(space.shape) if is_image(space) else None
        self.dtype = np.dtype(np.uint8 if self.image and space.dtype == np.uint8 else np.float32)
        kinds = set(map(kind_of, _leaves(space)))
        #: Whether values stand for themselves somewhere, and whether some are marked instead.
        self.continuous, self.marked = "Box" in kinds, bool(kinds & {"Discrete", "MultiDiscrete"})
        self.shares = _shares(space)

    def __call__(self, observation: Any) -> Array:
        """A row of its own: some environments write over what they gave."""
        with np.errstate(over="ignore"):  # who gets the row asks whether it is finite
            return np.array(self._encode(observation), self.dtype)

    def decode(self, rows: Array) -> Any:
        """The observations that rows were made of: an array of them, or a list where they have parts."""
        return _decoded(self.space, rows[:, : self.width])


def is_image(space: Any) -> bool:
    """Whether a space is of pictures."""
    shape = tuple(space.shape or ()) if kind_of(space) == "Box" else ()
    return len(shape) == 3 or (len(shape) == 2 and min(shape) >= 16)


def images_in(space: Any) -> list[str]:
    """The parts of a Dict or a Tuple that are pictures."""
    if kind_of(space) not in ("Dict", "Tuple"):
        return []
    parts = space.spaces.items() if kind_of(space) == "Dict" else enumerate(space.spaces)
    nested = [(str(name), part, images_in(part)) for name, part in parts]
    return [path for name, part, more in nested for path in [name] * is_image(part) + [f"{name}.{m}" for m in more]]


def marking_columns(space: Any) -> int:
    """How many numbers of an observation only mark which value a choice has."""
    return sum(_encoding(leaf)[0] for leaf in _leaves(space) if kind_of(leaf) in ("Discrete", "MultiDiscrete"))


def _leaves(space: Any) -> Iterator[Any]:
    """The parts that have no parts themselves, in the order of their columns."""
    if kind_of(space) in ("Dict", "Tuple"):
        for part in space.spaces.values() if kind_of(space) == "Dict" else space.spaces:
            yield from _leaves(part)
    else:
        yield space


def _shares(space: Any) -> tuple[tuple[int, float], ...]:
    """What columns are multiplied by once they are normalised: so many by this number, the next ones by that.

    Each part of many numbers, such as a picture or a scan, and all the small parts together weigh alike.  Otherwise the
    few numbers beside it would hardly be learnt from.  Empty where there is nothing to balance.
    """
    widths = [_encoding(leaf)[0] for leaf in _leaves(space)]
    wide, others = [width for width in widths if width >= WIDE], sum(width for width in widths if width < WIDE)
    groups = len(wide) + (others > 0)
    if not wide or groups == 1:
        return ()
    each = sum(widths) / groups
    return tuple((width, math.sqrt(each / (width if width >= WIDE else max(1, others)))) for width in widths)


def kind_of(space: Any) -> str:
    """The name of the space, or of the known one that it extends."""
    return next((each.__name__ for each in type(space).__mro__ if each.__name__ in _KINDS), type(space).__name__)


@contextlib.contextmanager
def refused(env: str) -> Iterator[None]:
    """Refusals that name the environment."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"env={env!r}: {error}") from error


def _encoding(space: Any) -> tuple[int, Encode]:
    """How many numbers an observation has, and how it becomes them."""
    kind = kind_of(space)
    if kind in ("Box", "MultiBinary"):
        return math.prod(space.shape), lambda observation: np.asarray(observation).ravel()
    if kind == "Discrete":
        return int(space.n), lambda observation: _marked((int(space.n),), np.array([int(observation) - space.start]))
    if kind == "MultiDiscrete":
        sizes, start = tuple(space.nvec.ravel().tolist()), space.start.ravel()
        return sum(sizes), lambda observation: _marked(sizes, np.asarray(observation).ravel() - start)
    if kind in ("Dict", "Tuple"):
        parts = list(space.spaces.items()) if kind == "Dict" else list(enumerate(space.spaces))
        encodings = [(key, *_encoding(part)) for key, part in parts]
        return sum(width for _, width, _ in encodings), lambda observation: np.concatenate(
            [encode(observation[key]) for key, _, encode in encodings]
        )
    raise ConfigError(
        f"observations of the kind {kind} cannot be learnt from: {space}. Wrap the environment so that it observes a "
        "Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple"
    )


def _decoded(space: Any, rows: Array) -> Any:
    kind = kind_of(space)
    if kind in ("Box", "MultiBinary"):
        return rows.reshape(len(rows), *space.shape).astype(space.dtype)
    if kind == "Discrete":
        return rows.argmax(axis=1) + int(space.start)
    if kind == "MultiDiscrete":
        ends = np.cumsum(space.nvec.ravel())[:-1]
        chosen = np.stack([part.argmax(axis=1) for part in np.split(rows, ends, axis=1)], axis=1)
        return chosen.reshape(len(rows), *space.shape) + space.start
    parts = list(space.spaces.values() if kind == "Dict" else space.spaces)
    widths = np.cumsum([_encoding(part)[0] for part in parts])[:-1]
    columns = [_decoded(part, some) for part, some in zip(parts, np.split(rows, widths, axis=1))]
    return [dict(zip(space.spaces, values)) if kind == "Dict" else values for values in zip(*columns)]


def _marked(sizes: Sequence[int], values: Array) -> Array:
    if not all(0 <= value < size for value, size in zip(values.tolist(), sizes, strict=True)):
        raise ValueError(f"an observation is not in its space: {values.tolist()} with {list(sizes)} values from 0")
    row = np.zeros(sum(sizes), np.float32)
    row[np.cumsum([0, *sizes[:-1]]) + values] = 1
    return row


def head_of(space: Any) -> Head:
    """The head for the actions of a space."""
    kind = kind_of(space)
    if kind == "Discrete":
        return Categories((int(space.n),))
    if kind == "MultiDiscrete":
        return Categories(tuple(space.nvec.ravel().tolist()))
    if kind == "MultiBinary":
        return Categories((2,) * math.prod(space.shape))
    if kind == "Box" and np.issubdtype(space.dtype, np.floating):
        return Gaussian(math.prod(space.shape))
    raise ConfigError(
        f"the actions {space} cannot be learnt: wrap the environment so that they are a Discrete, MultiDiscrete or "
        "MultiBinary space, or a Box of floating-point numbers"
    )


class Decoder:
    """Turns rows of a head into actions of a space, all of an episode's neighbours at once.

    Numbers of a Box are in units of half its range around its middle, so that -1 and 1 are its bounds, and clipped to
    it; where a bound is missing, they are the environment's own units.
    """

    def __init__(self, space: Any) -> None:
        self.space, self._kind = space, kind_of(space)
        if self._kind == "Box":
            low, high = np.asarray(space.low, np.float64).ravel(), np.asarray(space.high, np.float64).ravel()
            bounded = (np.abs(low) < _FARTHEST) & (np.abs(high) < _FARTHEST)
            ends = [np.where(bounded, end, both) for end, both in ((low, -1.0), (high, 1.0))]
            self._middle, self._half = ends[0] / 2 + ends[1] / 2, ends[1] / 2 - ends[0] / 2
            self._low, self._high = low, high

    def __call__(self, actions: Array) -> list[Any]:
        space = self.space
        if self._kind == "Discrete":
            return (actions + int(space.start)).tolist()  # type: ignore[no-any-return]
        rows = actions.reshape(len(actions), *space.shape)
        if self._kind == "Box":
            scaled = np.clip(self._middle + self._half * actions, self._low, self._high).astype(space.dtype)
            return list(scaled.reshape(rows.shape))
        start = space.start if self._kind == "MultiDiscrete" else 0
        return list((rows + start).astype(space.dtype))


def mask_of(env: Any, observation: Any, info: Mapping[str, Any], head: Head) -> Array | None:
    """Which choices are allowed, one number for each output of the head; None where the environment does not say.

    Environments say so by `info["action_mask"]`, by a part `action_mask` of what they observe, or by a method
    `action_masks()`, which may be a wrapper's.
    """
    if not isinstance(head, Categories):
        return None
    mask = info.get("action_mask")
    if mask is None and isinstance(observation, Mapping):
        mask = observation.get("action_mask")
    if mask is None:
        asked = _own_masks(env)
        mask = asked() if callable(asked) else asked
    return None if mask is None else mask_row(mask, head)


def _own_masks(env: Any) -> Any:
    """The `action_masks` of an environment, or of one of its wrappers (the `ActionMasker` of sb3-contrib)."""
    while not hasattr(env, "action_masks"):
        if env is env.unwrapped:
            return None
        env = env.env
    return env.action_masks


def mask_row(mask: Any, head: Head) -> Array:
    """A mask as one number for each output; for several choices it may be a tuple with a part for each."""
    parts = mask if isinstance(mask, tuple | list) else [mask]
    row = np.concatenate([np.asarray(part).ravel() for part in parts]).astype(bool)
    if len(row) != head.outputs:
        raise ConfigError(f"an action mask has {len(row)} entries, and the actions have {head.outputs} choices")
    return row.astype(np.float32)
