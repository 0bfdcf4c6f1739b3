"""Optimisers on flat vectors: all numbers of one network, or of many stacked, move in the same few operations."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

#: Shares of the past in the first and the second moment.
FIRST = {"adam": 0.9, "adamw": 0.9, "sgd": 0.9}
SECOND = {"adam": 0.999, "adamw": 0.999, "rmsprop": 0.99}
TINY, DECAY = 1e-8, 0.01
#: Numbers between the places where a tensor may begin: 128 bytes, or 256.
ALIGNED = 32


class Flat:
    """Tensors laid one behind the other in one vector.  `views` are those tensors: leaves that share its memory.

    Each begins at a multiple of `ALIGNED` numbers: kernels of a GPU load several at once, and fail where they may not.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.vector = joined([tensor.detach() for tensor in tensors.values()])
        self.views: dict[str, Tensor] = {}
        self.places: dict[str, slice] = {}
        place = 0
        for name, tensor in tensors.items():
            self.places[name] = slice(place, place + tensor.numel())
            self.views[name] = self.vector[self.places[name]].view(tensor.shape).detach().requires_grad_()
            place += tensor.numel() + gap(tensor.numel())

    def slope(self, loss: Tensor) -> Tensor:
        """The gradient of a loss, laid out like the vector."""
        return joined(torch.autograd.grad(loss, list(self.views.values())))

    def packed(self, vector: Tensor) -> Tensor:
        """A vector of this layout without its gaps."""
        return torch.cat([vector[place] for place in self.places.values()])

    def laid(self, packed: Tensor) -> Tensor:
        """A packed vector in this layout."""
        lengths = [place.stop - place.start for place in self.places.values()]
        return joined(torch.split(packed, lengths))


def gap(length: int) -> int:
    """How many numbers are left free behind a tensor."""
    return -length % ALIGNED


def joined(slopes: Sequence[Tensor], out: Tensor | None = None) -> Tensor:
    """Tensors one behind the other, with zeros in the gaps."""
    pieces: list[Tensor] = []
    for slope in slopes:
        pieces.append(slope.reshape(-1))
        if missing := gap(slope.numel()):
            pieces.append(_nothing(slope)[:missing])
    return torch.cat(pieces, out=out)


#: Zeros for the gaps, made once: in a captured graph nothing may be allocated.
_NOTHING: dict[tuple[torch.device, torch.dtype], Tensor] = {}


def _nothing(like: Tensor) -> Tensor:
    key = (like.device, like.dtype)
    if key not in _NOTHING:
        _NOTHING[key] = torch.zeros(ALIGNED, device=like.device, dtype=like.dtype)
    return _NOTHING[key]


class Moments:
    """What an optimiser remembers of the past slopes, in the layout of the vector it moves."""

    def __init__(self, kind: str, vector: Tensor) -> None:
        self.kind = kind
        self.first = torch.zeros_like(vector) if kind in FIRST else None
        self.second = torch.zeros_like(vector) if kind in SECOND else None

    @torch.no_grad()
    def move(self, vector: Tensor, slope: Tensor, rate: float | Tensor, scales: tuple[float | Tensor, ...]) -> None:
        """Move the vector against a slope, in place.

        `rate` is the learning rate, one number or one for each place.  `scales` are `corrections` of the step, as
        numbers or as tensors of one number each, which can change between replays of a captured graph.
        """
        longer, tiny = scales
        if self.kind == "adamw":
            vector.mul_(1.0 - DECAY * rate)
        direction = slope
        if self.first is not None:
            keep = FIRST[self.kind]
            # Momentum as PyTorch has it: SGD adds slopes up, Adam averages them.
            self.first.mul_(keep).add_(slope, alpha=1.0 if self.kind == "sgd" else 1.0 - keep)
            direction = self.first
        if self.second is not None:
            keep = SECOND[self.kind]
            self.second.mul_(keep).addcmul_(slope, slope, value=1.0 - keep)
            direction = direction / self.second.sqrt().add_(tiny)
        vector.sub_(direction * (rate * longer))


def corrections(kind: str, step: int) -> tuple[float, float]:
    """For step number 1, 2, ...: what the rate is multiplied by, and what is added to the root of the second moment."""
    if kind not in ("adam", "adamw"):
        return 1.0, TINY
    one, two = 1.0 - FIRST[kind] ** step, math.sqrt(1.0 - SECOND[kind] ** step)
    return two / one, TINY * two
