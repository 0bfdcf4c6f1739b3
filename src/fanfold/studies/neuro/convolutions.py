"""Convolutions of stacked networks with all that follows up to the activation, in a few kernels of our own."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from fanfold.studies.neuro import kernels, layer_kernels, network
from fanfold.studies.neuro.layout import halving
from fanfold.studies.neuro.optimiser import Moments

_KINDS = ("relu", "leaky_relu", "tanh", "sigmoid", "selu")
#: How kernels are compiled: pixels of a block, and warps.  Found by trying on an H200; to load ahead makes them slower.
_CONVOLVE = {"BP": 128, "num_warps": 4, "num_stages": 1}
_CORRELATE = {"BP": 64, "num_warps": 2, "num_stages": 1}
#: Channels that a block of a convolution takes at a time, and values that a block of the others does.
_DEPTH, _VALUES = 16, 512
#: Weights of a kernel up to which images that all networks see are gathered once for all.
_GATHERED = 32
#: Blocks whose moments are joined at a time, and into how many parts a channel is split at most.
_PARTS, _CHUNKS = 1024, 64
#: Blocks that fill a GPU a few times over, and the parts of a sum over all pixels at most.
_MANY, _SUMS = 2112, 256
_THREADS = 6

_lock = threading.Lock()
_ready: dict[tuple[str, torch.dtype], bool] = {}


def ready(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the kernels work on a device.  The first time they are compiled; later that is found on the disk."""
    key = (str(device), dtype)
    with _lock:
        if key not in _ready:
            try:
                with ThreadPoolExecutor(_THREADS, "fanfold-kernels") as pool:
                    list(pool.map(lambda task: task(), _tasks({"device": device, "dtype": dtype})))
                _ready[key] = True
            except Exception as error:  # whatever a compiler lacks: all there is to do is the same without it
                warnings.warn(f"networks are trained by PyTorch's kernels, which take longer: {error}", stacklevel=2)
                _ready[key] = False
        return _ready[key]


def _tasks(where: dict[str, Any]) -> list[Callable[[], Any]]:
    """Uses of all kernels, so that none is compiled later."""

    def whole(channels: int, filters: int, side: int, networks: int) -> None:
        x = torch.zeros(networks, 2, channels, side, side, **where)
        weight = torch.zeros(2, filters, channels, 3, 3, **where).requires_grad_()
        ones = torch.ones(2, filters, **where).requires_grad_()
        with torch.autograd.set_multithreading_enabled(False):
            z = layer(x, weight, ones, ones, (torch.zeros_like(ones), torch.ones_like(ones)), "relu", True)
            torch.autograd.grad(z.sum(), weight)

    def convolution(channels: int, filters: int) -> None:
        x, y = (torch.zeros(2, 2, some, 4, 4, **where) for some in (channels, filters))
        weight = torch.zeros(2, filters, channels, 3, 3, **where)
        _convolve(x, weight, y, y, 0, False)
        _correlated(x, y, weight)

    def step() -> None:
        vector, at = torch.zeros(8, **where), torch.zeros(1, dtype=torch.int64, device=where["device"])
        moved(Moments("adam", vector), vector, vector.clone(), vector.clone(), torch.zeros(1, 3, **where), at)

    return [
        lambda: whole(1, 4, 4, 1),
        lambda: whole(4, 4, 2, 2),
        lambda: convolution(20, 20),
        lambda: convolution(4, 20),
        lambda: convolution(20, 4),
        step,
    ]


class Layer(torch.autograd.Function):
    """A convolution of (network, image, channel, height, width), its norm or bias, pooling and activation.

    Images of one network serve all.  `running` are the statistics of the norm, none without one.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        gain: Tensor | None,
        shift: Tensor,
        running: tuple[Tensor, Tensor] | None,
        activation: str,
        training: bool,
    ) -> Tensor:
        networks, filters = weight.shape[:2]
        images, _, height, width = x.shape[1:]
        ph, pw = halving(height, width)
        y = x.new_empty(networks, images, filters, height, width)
        pixels, total = images * height * width, networks * filters
        length = _CONVOLVE["BP"]
        blocks = -(-pixels // length) if training and running is not None else 0
        moments = x.new_empty(total, blocks, 2) if blocks else y
        _convolve(x, weight, y, moments, blocks, False)
        z = x.new_empty(networks, images, filters, height // ph, width // pw)
        stats = x.new_empty(total, 2)
        mean, var = running or (stats, stats)
        sizes = (pixels, height, width, filters, _KINDS.index(activation), int(gain is not None))
        grid = (total, _chunks(total, z.numel() // total))
        layer_kernels.settle[grid](
            y, moments, mean, var, shift if gain is None else gain, shift, z, stats,
            *sizes, int(training), blocks, length,
            PH=ph, PW=pw, MOMENTUM=network.MOMENTUM, EPSILON=network.EPSILON, BLOCK=_VALUES, PARTS=_PARTS,
        )  # fmt: skip
        ctx.save_for_backward(x, weight, shift if gain is None else gain, shift, y, z, stats)
        ctx.sizes, ctx.pooled = sizes, {"PH": ph, "PW": pw}
        return z

    @staticmethod
    def backward(ctx: Any, dz: Tensor) -> Any:
        x, weight, gain, shift, y, z, stats = ctx.saved_tensors
        total = len(stats)
        chunks = _chunks(total, z.numel() // total)
        sums, dy = stats.new_empty(total, chunks, 2), torch.empty_like(y)
        dgain, dshift, normed = torch.empty_like(gain), torch.empty_like(shift), bool(ctx.sizes[-1])
        seen = (y, z, dz.contiguous(), stats, gain, shift, sums)
        layer_kernels.gather[total, chunks](*seen, *ctx.sizes, **ctx.pooled, BLOCK=_VALUES)
        layer_kernels.scatter[total, chunks](
            *seen, dy, dgain, dshift, *ctx.sizes, chunks, **ctx.pooled, BLOCK=_VALUES, PARTS=_CHUNKS,
        )  # fmt: skip
        dx = None
        if ctx.needs_input_grad[0]:
            dx = torch.empty_like(x)
            _convolve(dy, weight, dx, dx, 0, True)
        return dx, _correlated(x, dy, weight), dgain if normed else None, dshift, None, None, None


def layer(
    x: Tensor,
    weight: Tensor,
    gain: Tensor | None,
    shift: Tensor,
    running: tuple[Tensor, Tensor] | None,
    activation: str,
    training: bool,
) -> Tensor:
    """What `Layer` computes."""
    z: Tensor = Layer.apply(x, weight, gain, shift, running, activation, training)  # type: ignore[no-untyped-call]
    return z


def moved(moments: Moments, vector: Tensor, slope: Tensor, rates: Tensor | None, scales: Tensor, at: Tensor) -> None:
    """`Moments.move` by row `at` of the scales; with `rates`, by each place's own."""
    kind = ("adam", "adamw", "sgd", "rmsprop").index(moments.kind)
    first, second = (vector if moment is None else moment for moment in (moments.first, moments.second))
    layer_kernels.move[(-(-len(vector) // _VALUES),)](
        vector, slope, first, second, vector if rates is None else rates, scales, at,
        len(vector), kind, int(rates is not None), BLOCK=_VALUES,
    )  # fmt: skip


def _chunks(channels: int, values: int) -> int:
    """Into how many parts the values of each channel are split, so that all parts fill a GPU."""
    return max(1, min(_MANY // channels, -(-values // _VALUES), _CHUNKS))


def _filters(count: int) -> int:
    """Filters of a block: what a matrix unit takes at least, or twice as many."""
    return 16 if count <= 16 else 32


def _precision(x: Tensor) -> str:
    """How float32 is multiplied: as cuDNN may do it, or three times as exactly, which is exact enough for float32."""
    return "ieee" if x.dtype != torch.float32 else "tf32" if torch.backends.cudnn.allow_tf32 else "tf32x3"


def _gathered(x: Tensor, weight: Tensor) -> bool:
    return len(x) == 1 and weight[0, 0].numel() <= _GATHERED


def _convolve(x: Tensor, weight: Tensor, y: Tensor, moments: Tensor, blocks: int, flipped: bool) -> None:
    """Fill `y` with `x` convolved; flipped, the way back."""
    networks, filters, channels, kh, kw = weight.shape
    images, _, height, width = x.shape[1:]
    pixels, how = images * height * width, {**_CONVOLVE, "PRECISION": _precision(x)}
    across = -(-pixels // _CONVOLVE["BP"])
    if _gathered(x, weight) and not flipped:
        kernels.convolve_shared[(across,)](
            x, weight, y, moments, pixels, height, width, channels, filters, kh, kw, networks * filters, blocks,
            BM=32, BK=_GATHERED, **how,
        )  # fmt: skip
        return
    w_m, w_c = channels * kh * kw, kh * kw
    if flipped:
        filters, channels, w_m, w_c = channels, filters, w_c, w_m
    block, x_k = _filters(filters), 0 if len(x) == 1 else x[0].numel()
    kernels.convolve[across, -(-filters // block), networks](
        x, weight, y, moments, pixels, height, width, channels, filters, kh, kw, x_k, w_m, w_c, int(flipped), blocks,
        BM=block, BK=_DEPTH, **how,
    )  # fmt: skip


def _correlated(x: Tensor, dy: Tensor, weight: Tensor) -> Tensor:
    """The slopes at the weights: sums over parts of the pixels, added up in the same order each time."""
    networks, filters, channels, kh, kw = weight.shape
    images, _, height, width = x.shape[1:]
    pixels, total, shared = images * height * width, networks * filters, _gathered(x, weight)
    block, across = (32, _GATHERED) if shared else (_filters(filters), _filters(channels))
    blocks = -(-total // block) if shared else kh * kw * -(-filters // block) * -(-channels // across)
    parts = max(1, min(_MANY // (blocks if shared else blocks * networks), -(-pixels // 512), _SUMS))
    per = -(-pixels // (parts * _CORRELATE["BP"])) * _CORRELATE["BP"]
    parts = -(-pixels // per)
    found = weight.new_empty(parts, *weight.shape)
    sizes = (pixels, height, width, channels, filters, kh, kw)
    how = {**_CORRELATE, "BM": block, "BC": across, "PRECISION": _precision(x)}
    if shared:
        kernels.correlate_shared[parts, blocks](x, dy, found, *sizes, total, per, **how)
    else:
        x_k = 0 if len(x) == 1 else x[0].numel()
        kernels.correlate[parts, blocks, networks](x, dy, found, *sizes, x_k, per, networks, **how)
    return found.sum(0) if parts > 1 else found[0]
