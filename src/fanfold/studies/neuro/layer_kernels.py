"""What follows a convolution of many networks, and a step of their optimiser, as kernels in Triton.

Norm, pooling and activation are one kernel forward and two backward; `kernels` says how maps lie.
"""
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from fanfold.studies.neuro.kernels import over

_PLACES = ["pixels", "height", "width", "filters", "kind", "norm", "blocks", "length", "training"]


@triton.jit
def _activated(x, kind):
    e = tl.exp(-tl.abs(x))
    if kind == 0:
        z = tl.maximum(x, 0.0)
    elif kind == 1:
        z = tl.where(x > 0, x, 0.01 * x)
    elif kind == 2:
        z = (1.0 - e * e) / (1.0 + e * e)
        z = tl.where(x < 0, -z, z)
    elif kind == 3:
        z = tl.where(x < 0, e, 1.0) / (1.0 + e)
    else:
        z = 1.0507009873554805 * tl.where(x > 0, x, 1.6732632423543772 * (e - 1.0))
    return tl.where(x == x, z, x)


@triton.jit
def _slope(z, kind):
    """The slope of an activation where it comes to `z`."""
    # Not the numbers themselves, which would count as single precision here.
    d = tl.full(z.shape, 1.0, z.dtype)
    if kind == 0:
        d = tl.where(z > 0, d, 0.0)
    elif kind == 1:
        d = tl.where(z > 0, d, 0.01 * d)
    elif kind == 2:
        d = 1.0 - z * z
    elif kind == 3:
        d = z * (1.0 - z)
    else:
        d = tl.where(z > 0, 1.0507009873554805 * d, z + 1.7580993408473766)
    return d


@triton.jit
def _joined(moments, pixels, blocks, length, PARTS: tl.constexpr):
    """Mean and variance of a channel from those of its blocks of `length` pixels."""
    total, squares = tl.zeros((PARTS,), moments.dtype.element_ty), tl.zeros((PARTS,), moments.dtype.element_ty)
    for start in range(0, blocks, PARTS):
        b = start + tl.arange(0, PARTS)
        count = tl.minimum(pixels - b * length, length)
        total += count * tl.load(moments + b * 2, mask=b < blocks, other=0.0)
    mean = tl.sum(total, 0) / pixels
    for start in range(0, blocks, PARTS):
        b = start + tl.arange(0, PARTS)
        count = tl.minimum(pixels - b * length, length)
        away = tl.load(moments + b * 2, mask=b < blocks, other=0.0) - mean
        within = tl.load(moments + b * 2 + 1, mask=b < blocks, other=0.0)
        squares += tl.where(b < blocks, within + count * away * away, 0.0)
    return mean, tl.sum(squares, 0) / pixels


@triton.jit(do_not_specialize=_PLACES)
def settle(
    y, moments, running_mean, running_var, gain, shift, z, stats,
    pixels, height, width, filters, kind, norm, training, blocks, length,
    PH: tl.constexpr, PW: tl.constexpr, MOMENTUM: tl.constexpr, EPSILON: tl.constexpr,
    BLOCK: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """One channel of one network, or a part of its images: normalised, pooled and activated.

    `stats` get its mean and the reciprocal of its deviation: of these images if `training`, else the running ones.
    """
    channel, chunk = tl.program_id(0), tl.program_id(1)
    k, f = channel // filters, channel % filters
    dtype = y.dtype.element_ty
    mean = tl.sum(tl.zeros((PARTS,), dtype), 0)
    deviation, factor = mean + 1.0, mean + 1.0
    if norm > 0:
        factor = tl.load(gain + channel)
        if training > 0:
            mean, var = _joined(moments + channel * blocks * 2, pixels, blocks, length, PARTS)
            if chunk == 0:
                before = tl.load(running_mean + channel)
                tl.store(running_mean + channel, before + MOMENTUM * (mean - before))
                before = tl.load(running_var + channel)
                tl.store(running_var + channel, before + MOMENTUM * (var * pixels / (pixels - 1) - before))
        else:
            mean = tl.load(running_mean + channel)
            var = tl.load(running_var + channel)
        deviation = 1.0 / tl.sqrt_rn(var + EPSILON) if dtype == tl.float32 else 1.0 / tl.sqrt(var + EPSILON)
    if chunk == 0:
        tl.store(stats + channel * 2, mean)
        tl.store(stats + channel * 2 + 1, deviation)
    added = tl.load(shift + channel)
    out_height, out_width = height // PH, width // PW
    out_area, area = out_height * out_width, height * width
    images = pixels // area
    y += (k * images * filters + f) * area
    z += (k * images * filters + f) * out_area
    for start in range(chunk * BLOCK, images * out_area, tl.num_programs(1) * BLOCK):
        o = start + tl.arange(0, BLOCK)
        kept = o < images * out_area
        n = over(o, out_area)
        place = o - n * out_area
        row = over(place, out_width)
        corner = n * filters * area + row * PH * width + (place - row * out_width) * PW
        best = tl.zeros((BLOCK,), dtype)
        for i in tl.static_range(PH * PW):
            value = tl.load(y + corner + (i // PW) * width + i % PW, mask=kept, other=0.0)
            value = (value - mean) * deviation * factor + added
            best = tl.where((value > best) | (value != value) | (i == 0), value, best)
        tl.store(z + n * filters * out_area + place, _activated(best, kind), mask=kept)


@triton.jit(do_not_specialize=_PLACES)
def gather(
    y, z, dz, stats, gain, shift, sums, pixels, height, width, filters, kind, norm,
    PH: tl.constexpr, PW: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Of one channel of one network, or a part of its images: the sums that the slope of a norm needs."""
    channel, chunk = tl.program_id(0), tl.program_id(1)
    k, f = channel // filters, channel % filters
    dtype = y.dtype.element_ty
    mean, deviation = tl.load(stats + channel * 2), tl.load(stats + channel * 2 + 1)
    factor = mean * 0.0 + 1.0
    if norm > 0:
        factor = tl.load(gain + channel)
    added = tl.load(shift + channel)
    out_height, out_width = height // PH, width // PW
    out_area, area = out_height * out_width, height * width
    images = pixels // area
    y += (k * images * filters + f) * area
    z += (k * images * filters + f) * out_area
    dz += (k * images * filters + f) * out_area
    first, second = tl.zeros((BLOCK,), dtype), tl.zeros((BLOCK,), dtype)
    for start in range(chunk * BLOCK, images * out_area, tl.num_programs(1) * BLOCK):
        o = start + tl.arange(0, BLOCK)
        kept = o < images * out_area
        n = over(o, out_area)
        place = o - n * out_area
        row = over(place, out_width)
        corner = n * filters * area + row * PH * width + (place - row * out_width) * PW
        best, normal = tl.zeros((BLOCK,), dtype), tl.zeros((BLOCK,), dtype)
        for i in tl.static_range(PH * PW):
            value = tl.load(y + corner + (i // PW) * width + i % PW, mask=kept, other=0.0)
            hat = (value - mean) * deviation
            value = hat * factor + added
            better = (value > best) | (value != value) | (i == 0)
            best, normal = tl.where(better, value, best), tl.where(better, hat, normal)
        at = n * filters * out_area + place
        d = tl.load(dz + at, mask=kept, other=0.0)
        d *= _slope(tl.load(z + at, mask=kept, other=0.0), kind)
        first += d
        second += d * normal
    at = (channel * tl.num_programs(1) + chunk) * 2
    tl.store(sums + at, tl.sum(first, 0))
    tl.store(sums + at + 1, tl.sum(second, 0))


@triton.jit(do_not_specialize=_PLACES)
def scatter(
    y, z, dz, stats, gain, shift, sums, dy, dgain, dshift,
    pixels, height, width, filters, kind, norm, blocks,
    PH: tl.constexpr, PW: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """The slopes at the outputs of a convolution, from those behind its activation."""
    channel, chunk = tl.program_id(0), tl.program_id(1)
    k, f = channel // filters, channel % filters
    dtype = y.dtype.element_ty
    mean, deviation = tl.load(stats + channel * 2), tl.load(stats + channel * 2 + 1)
    b = tl.arange(0, PARTS)
    first = tl.sum(tl.load(sums + (channel * blocks + b) * 2, mask=b < blocks, other=0.0), 0)
    second = tl.sum(tl.load(sums + (channel * blocks + b) * 2 + 1, mask=b < blocks, other=0.0), 0)
    if chunk == 0:
        tl.store(dshift + channel, first)
    factor = mean * 0.0 + 1.0
    if norm > 0:
        factor = tl.load(gain + channel)
        if chunk == 0:
            tl.store(dgain + channel, second)
        first = first / pixels
        second = second / pixels
    else:
        first = mean * 0.0
        second = mean * 0.0
    added = tl.load(shift + channel)
    out_height, out_width = height // PH, width // PW
    out_area, area = out_height * out_width, height * width
    # Windows that the border cuts off leave nothing to pool, but belong to what is normalised.
    all_height, all_width = (height + PH - 1) // PH, (width + PW - 1) // PW
    all_area = all_height * all_width
    images = pixels // area
    y += (k * images * filters + f) * area
    dy += (k * images * filters + f) * area
    z += (k * images * filters + f) * out_area
    dz += (k * images * filters + f) * out_area
    for start in range(chunk * BLOCK, images * all_area, tl.num_programs(1) * BLOCK):
        o = start + tl.arange(0, BLOCK)
        n = over(o, all_area)
        row = over(o - n * all_area, all_width)
        column = o - n * all_area - row * all_width
        kept = n < images
        whole = kept & (row < out_height) & (column < out_width)
        corner = n * filters * area + row * PH * width + column * PW
        best, which = tl.zeros((BLOCK,), dtype), tl.zeros((BLOCK,), tl.int32)
        for i in tl.static_range(PH * PW):
            value = tl.load(y + corner + (i // PW) * width + i % PW, mask=whole, other=0.0)
            value = (value - mean) * deviation * factor + added
            better = (value > best) | (value != value) | (i == 0)
            best, which = tl.where(better, value, best), tl.where(better, i, which)
        at = n * filters * out_area + row * out_width + column
        d = tl.load(dz + at, mask=whole, other=0.0)
        d *= _slope(tl.load(z + at, mask=whole, other=0.0), kind)
        for i in tl.static_range(PH * PW):
            there = kept & (row * PH + i // PW < height) & (column * PW + i % PW < width)
            offset = corner + (i // PW) * width + i % PW
            hat = (tl.load(y + offset, mask=there, other=0.0) - mean) * deviation
            slope = tl.where(which == i, d, 0.0) - first - hat * second
            tl.store(dy + offset, slope * factor * deviation, mask=there)


@triton.jit(do_not_specialize=["length", "kind", "each"])
def move(vector, slope, first, second, rates, scales, at, length, kind, each, BLOCK: tl.constexpr):
    """A step of an optimiser: what `Moments.move` does, in one kernel.

    `kind` counts adam, adamw, sgd, rmsprop; `scales` has a row for each step, and the number of this one is in `at`.
    """
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    kept = i < length
    scale = scales + tl.load(at) * 3
    longer, tiny = tl.load(scale + 1), tl.load(scale + 2)
    rate = tl.load(scale) + tl.zeros((BLOCK,), vector.dtype.element_ty)
    if each > 0:
        rate = rate * tl.load(rates + i, mask=kept, other=0.0)
    value, d = tl.load(vector + i, mask=kept, other=0.0), tl.load(slope + i, mask=kept, other=0.0)
    if kind == 1:
        value = value * (1.0 - 0.01 * rate)
    direction = d
    if kind < 3:
        old = tl.load(first + i, mask=kept, other=0.0) * 0.9
        if kind == 2:
            direction = old + d
        else:
            direction = old + 0.1 * d
        tl.store(first + i, direction, mask=kept)
    if kind != 2:
        old = tl.load(second + i, mask=kept, other=0.0)
        if kind == 3:
            old = old * 0.99 + 0.01 * d * d
        else:
            old = old * 0.999 + 0.001 * d * d
        tl.store(second + i, old, mask=kept)
        direction = direction / (tl.sqrt(old) + tiny)
    tl.store(vector + i, value - direction * (rate * longer), mask=kept)
