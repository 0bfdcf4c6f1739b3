"""Images as a network of PyTorch sees them: channels first, in deviations from the mean of all so far by channel."""

from __future__ import annotations

from typing import Any

from fanfold.rl.heads import Array
from fanfold.rl.policy import FAR


def images_of(rows: Any, image: tuple[int, ...], last: bool) -> Any:
    """Rows as images; bytes come between 0 and 1.  With `last`, the rows' channels are the last dimension."""
    channels, height, width = image
    scale = 255.0 if not rows.is_floating_point() else 1.0
    shape = (-1, height, width, channels) if last else (-1, channels, height, width)
    images = rows.reshape(shape)
    return (images.permute(0, 3, 1, 2) if last else images).float().div(scale).contiguous()


def moments(images: Any) -> tuple[Array, Array]:
    """The mean and the variance of each channel of each image."""
    pixels = images.flatten(2)
    return pixels.mean(2).numpy(), pixels.var(2, unbiased=False).numpy()


def apart(images: Any, mean: Array, deviation: Array) -> Any:
    """Images in deviations from the mean, by channel."""
    middle, unit = (images.new_tensor(each.tolist())[:, None, None] for each in (mean, deviation))
    return ((images - middle) / unit).clamp(-FAR, FAR)
