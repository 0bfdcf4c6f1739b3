"""How images are varied before they are learnt from.

What an image becomes follows from its number and the epoch alone: the same beside whatever and wherever a network is
trained.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from fanfold.studies.neuro import network

#: Makes the lots of a warp others than those of its shift.
_SALT = 0x5851F42D4C957F2D


class Augmentation(NamedTuple):
    """The most pixels that images are shifted by, whether they may be mirrored, and how much they are warped."""

    shift: int = 0
    flip: bool = False
    #: The most radians that they are turned by, and the largest shares that they are stretched and slanted by.
    warp: float = 0.0


AUGMENTS = {
    "none": Augmentation(),
    "shift": Augmentation(2),
    "flip": Augmentation(flip=True),
    "shift+flip": Augmentation(2, True),
    "warp": Augmentation(2, warp=0.15),
}


def meant(augment: str, of_data: str) -> Augmentation:
    """What a gene says, or the data where it leaves that to them."""
    return AUGMENTS[of_data if augment == "data" else augment]


def places(count: int, device: torch.device) -> Tensor:
    """Three numbers for each image, from which its lots are drawn."""
    return network.places(3 * count, device).view(-1, 3)


def moved(pixels: Tensor, index: Tensor, places: Tensor, base: int | Tensor, how: Augmentation) -> Tensor:
    """The images at `index` of (n, height, width, channels), shifted and mirrored; at the border, pixels repeat."""
    height, width = pixels.shape[1:3]
    lots = network.drawn(places[index], base)
    moves = lots[:, :2] % (2 * how.shift + 1) - how.shift
    rows = (torch.arange(height, device=index.device) + moves[:, :1]).clamp(0, height - 1)
    columns = (torch.arange(width, device=index.device) + moves[:, 1:]).clamp(0, width - 1)
    if how.flip:
        columns = torch.where(lots[:, 2:] < network.LOTS // 2, width - 1 - columns, columns)
    return pixels[index[:, None, None], rows[:, :, None], columns[:, None, :]]


def warped(images: Tensor, places: Tensor, base: int | Tensor, how: Augmentation) -> Tensor:
    """Images of (n, channels, height, width) turned, stretched and slanted about their middle, and shifted.

    `places` are theirs.  Each is changed by anything up to the most, in either direction.
    """
    lots = torch.cat([network.drawn(places, base), network.drawn(places, base ^ _SALT)], 1)
    down, right, _, turn, stretch, slant = ((lots.to(images.dtype) + 0.5) * (2 / network.LOTS) - 1.0).unbind(1)
    height, width = images.shape[2:]
    size, cosine, sine = 1.0 + how.warp * stretch, torch.cos(how.warp * turn), torch.sin(how.warp * turn)
    leant = how.warp * slant
    # For each place of the result, where it comes from; both run from -1 to 1 along each side.
    across = (size * cosine, size * (leant * cosine - sine), right * (2 * how.shift / width))
    along = (size * sine, size * (leant * sine + cosine), down * (2 * how.shift / height))
    origins = torch.stack([torch.stack(across, 1), torch.stack(along, 1)], 1)
    grid = functional.affine_grid(origins, list(images.shape), align_corners=False)
    result = functional.grid_sample(images, grid, "bilinear", "border", align_corners=False)
    # A clone, because one channel counts as either layout, and what follows is several times as slow in the other.
    return result.clone(memory_format=torch.channels_last)
