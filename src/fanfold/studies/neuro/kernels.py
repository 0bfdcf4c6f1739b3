"""Convolutions of many small networks on a GPU, and their slopes at the weights, as kernels in Triton.

`convolutions` calls them, and `layer_kernels` has what comes between.  Maps are (network, image, channel, height,
width), and lie that way in memory.  Sizes are arguments and not compiled in, so that each kernel is compiled once,
whatever the networks are.
"""
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

_SIZES = ["pixels", "height", "width", "channels", "filters", "kh", "kw", "x_k", "w_m", "w_c", "blocks", "total", "per"]
_MORE = ["flipped", "networks"]


@triton.jit
def over(number, by):
    """Whole numbers below 2**22 divided by another: a product and a correction, which is quicker than to divide."""
    found = ((number.to(tl.float32) + 0.5) * (1.0 / by)).to(tl.int32)
    left = number - found * by
    return tl.where(left < 0, found - 1, tl.where(left >= by, found + 1, found))


@triton.jit
def _noted(moments, acc, m, known, inside, pixels, block, blocks, BP: tl.constexpr):
    """Of each channel: the mean of a block, and the squares about it."""
    count = tl.minimum(pixels - block * BP, BP)
    mean = tl.sum(tl.where(inside[None, :], acc, 0.0), 1) / count
    away = tl.where(inside[None, :], acc - mean[:, None], 0.0)
    at = (m * blocks + block) * 2
    tl.store(moments + at, mean, mask=known)
    tl.store(moments + at + 1, tl.sum(away * away, 1), mask=known)


@triton.jit(do_not_specialize=[*_SIZES, *_MORE])
def convolve(
    x, weight, y, moments, pixels, height, width, channels, filters, kh, kw, x_k, w_m, w_c, flipped, blocks,
    BM: tl.constexpr, BP: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A block of pixels of one network: the channels below each place of a kernel, times the weights there.

    `moments` get the mean and the squares about it of every block, where there is room for `blocks` of them.
    """
    block, k = tl.program_id(0), tl.program_id(2)
    area, size = height * width, kh * kw
    p = block * BP + tl.arange(0, BP)
    inside = p < pixels
    n, place = p // area, p % area
    row, column = place // width, place % width
    # Neighbours mostly lie beside each other: so that the threads of a warp are laid along them, and not across.
    before = tl.max_contiguous(n * (channels * area) + place, 2)
    after = tl.max_contiguous(n * (filters * area) + place, 2)
    m = tl.program_id(1) * BM + tl.arange(0, BM)
    x += k * x_k
    weight += k * filters * channels * size + flipped * (size - 1)
    step = 1 - 2 * flipped
    acc = tl.zeros((BM, BP), dtype=y.dtype.element_ty)
    for start in range(0, channels, BK):
        c = start + tl.arange(0, BK)
        rows = x + ((c * area)[:, None] + before[None, :])
        columns = weight + (m[:, None] * w_m + (c * w_c)[None, :])
        known = (m < filters)[:, None] & (c < channels)[None, :]
        down, right = -(kh // 2), -(kw // 2)
        for tap in range(size):
            r, s = row + down, column + right
            there = inside & (r >= 0) & (r < height) & (s >= 0) & (s < width)
            below = tl.load(rows + (down * width + right), mask=(c < channels)[:, None] & there[None, :], other=0.0)
            some = tl.load(columns + tap * step, mask=known, other=0.0)
            acc = tl.dot(some, below, acc, input_precision=PRECISION, out_dtype=y.dtype.element_ty)
            last = right == kw // 2
            down = tl.where(last, down + 1, down)
            right = tl.where(last, -(kw // 2), right + 1)
    kept = (m < filters)[:, None] & inside[None, :]
    tl.store(y + k * pixels * filters + (m[:, None] * area + after[None, :]), acc, mask=kept)
    if blocks > 0:
        _noted(moments + k * filters * blocks * 2, acc, m, m < filters, inside, pixels, block, blocks, BP)


@triton.jit(do_not_specialize=_SIZES)
def convolve_shared(
    x, weight, y, moments, pixels, height, width, channels, filters, kh, kw, total, blocks,
    BM: tl.constexpr, BP: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """`convolve` for images that all networks see, and kernels of at most `BK` weights: gathered once for all."""
    block = tl.program_id(0)
    area, size = height * width, kh * kw
    depth = channels * size
    p = block * BP + tl.arange(0, BP)
    inside = p < pixels
    n, place = p // area, p % area
    row, column = place // width, place % width
    before = tl.max_contiguous(n * (channels * area) + place, 2)
    after = tl.max_contiguous(n * (filters * area) + place, 2)
    q = tl.arange(0, BK)
    c = over(q, size)
    tap = q - c * size
    down = over(tap, kw)
    right = tap - down * kw - kw // 2
    down -= kh // 2
    r, s = row[None, :] + down[:, None], column[None, :] + right[:, None]
    there = (r >= 0) & (r < height) & (s >= 0) & (s < width) & (q < depth)[:, None] & inside[None, :]
    below = tl.load(x + ((c * area + down * width + right)[:, None] + before[None, :]), mask=there, other=0.0)
    for start in range(0, total, BM):
        m = start + tl.arange(0, BM)
        known = (m < total)[:, None] & (q < depth)[None, :]
        some = tl.load(weight + (m[:, None] * depth + q[None, :]), mask=known, other=0.0)
        zero = tl.zeros((BM, BP), dtype=y.dtype.element_ty)
        acc = tl.dot(some, below, zero, input_precision=PRECISION, out_dtype=y.dtype.element_ty)
        k = over(m, filters)
        rows = (k * pixels * filters + (m - k * filters) * area)[:, None]
        tl.store(y + (rows + after[None, :]), acc, mask=(m < total)[:, None] & inside[None, :])
        if blocks > 0:
            _noted(moments, acc, m, m < total, inside, pixels, block, blocks, BP)


@triton.jit(do_not_specialize=[*_SIZES, *_MORE])
def correlate(
    x, dy, parts, pixels, height, width, channels, filters, kh, kw, x_k, per, networks,
    BM: tl.constexpr, BC: tl.constexpr, BP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Some pixels' slopes for the weights at one place of a kernel: (part, network, filter, channel, place)."""
    part, k = tl.program_id(0), tl.program_id(2)
    area, size = height * width, kh * kw
    tap, block = tl.program_id(1) % size, tl.program_id(1) // size
    columns = tl.cdiv(channels, BC)
    m = (block // columns) * BM + tl.arange(0, BM)
    c = (block % columns) * BC + tl.arange(0, BC)
    down, right = tap // kw - kh // 2, tap % kw - kw // 2
    x += k * x_k + down * width + right
    dy += k * pixels * filters
    acc = tl.zeros((BM, BC), dtype=parts.dtype.element_ty)
    for start in range(part * per, tl.minimum((part + 1) * per, pixels), BP):
        p = start + tl.arange(0, BP)
        n, place = p // area, p % area
        r, s = place // width + down, place % width + right
        there = (p < pixels) & (r >= 0) & (r < height) & (s >= 0) & (s < width)
        before = tl.max_contiguous(n * (channels * area) + place, 2)
        after = tl.max_contiguous(n * (filters * area) + place, 2)
        kept = (c < channels)[:, None] & there[None, :]
        below = tl.load(x + ((c * area)[:, None] + before[None, :]), mask=kept, other=0.0)
        kept = (m < filters)[:, None] & there[None, :]
        slope = tl.load(dy + ((m * area)[:, None] + after[None, :]), mask=kept, other=0.0)
        acc = tl.dot(slope, tl.trans(below), acc, input_precision=PRECISION, out_dtype=parts.dtype.element_ty)
    at = (((part * networks + k) * filters + m)[:, None] * channels + c[None, :]) * size + tap
    tl.store(parts + at, acc, mask=(m < filters)[:, None] & (c < channels)[None, :])


@triton.jit(do_not_specialize=_SIZES)
def correlate_shared(
    x, dy, parts, pixels, height, width, channels, filters, kh, kw, total, per,
    BM: tl.constexpr, BC: tl.constexpr, BP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """`correlate` for images that all networks see, and kernels of at most `BC` weights: (part, filter, weight)."""
    part = tl.program_id(0)
    area, size = height * width, kh * kw
    depth = channels * size
    m, q = tl.program_id(1) * BM + tl.arange(0, BM), tl.arange(0, BC)
    c, tap = q // size, q % size
    down, right = tap // kw - kh // 2, tap % kw - kw // 2
    offset = (c * area + down * width + right)[:, None]
    rows = ((m // filters) * pixels * filters + (m % filters) * area)[:, None]
    acc = tl.zeros((BM, BC), dtype=parts.dtype.element_ty)
    for start in range(part * per, tl.minimum((part + 1) * per, pixels), BP):
        p = start + tl.arange(0, BP)
        inside = p < pixels
        n, place = p // area, p % area
        before = tl.max_contiguous(n * (channels * area) + place, 2)
        after = tl.max_contiguous(n * (filters * area) + place, 2)
        r, s = (place // width)[None, :] + down[:, None], (place % width)[None, :] + right[:, None]
        there = (r >= 0) & (r < height) & (s >= 0) & (s < width) & (q < depth)[:, None] & inside[None, :]
        below = tl.load(x + (offset + before[None, :]), mask=there, other=0.0)
        slope = tl.load(dy + (rows + after[None, :]), mask=(m < total)[:, None] & inside[None, :], other=0.0)
        acc = tl.dot(slope, tl.trans(below), acc, input_precision=PRECISION, out_dtype=parts.dtype.element_ty)
    at = (part * total + m)[:, None] * depth + q[None, :]
    tl.store(parts + at, acc, mask=(m < total)[:, None] & (q < depth)[None, :])
