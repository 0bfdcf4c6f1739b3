"""A policy and a value network in numpy: weights, forward and backward passes."""

from __future__ import annotations

import itertools
import math

import numpy as np

from fanfold.rl.heads import Array
from fanfold.tensors import Arrays

#: Where the value network's outputs stand: value = mean + scale x output.
SCALE = "value.scale"
#: The logarithms of the deviations of continuous actions.
LOG_DEVIATION = "policy.log_deviation"


def initial(inputs: int, outputs: int, hidden: int, seed: int) -> Arrays:
    """Fresh weights of a policy and a value network."""
    rng = np.random.default_rng(seed)
    weights: Arrays = {}
    for net, out, gain in (("policy", outputs, 0.01), ("value", 1, 1.0)):
        for layer, (n, m) in enumerate(itertools.pairwise((inputs, hidden, hidden, out))):
            left, _, right = np.linalg.svd(rng.normal(size=(n, m)), full_matrices=False)
            stretch = gain if layer == 2 else math.sqrt(2)
            weights[f"{net}.{layer}.weight"] = (left @ right * stretch).astype(np.float32)
            weights[f"{net}.{layer}.bias"] = np.zeros(m, np.float32)
    weights[SCALE] = np.array([0, 1], np.float64)
    return weights


def forward(weights: Arrays, net: str, inputs: Array) -> tuple[Array, Array, Array]:
    """The two hidden layers and the outputs."""
    low = np.tanh(inputs @ weights[f"{net}.0.weight"] + weights[f"{net}.0.bias"])
    high = np.tanh(low @ weights[f"{net}.1.weight"] + weights[f"{net}.1.bias"])
    return low, high, high @ weights[f"{net}.2.weight"] + weights[f"{net}.2.bias"]


def backward(weights: Arrays, net: str, inputs: Array, low: Array, high: Array, slope: Array) -> Arrays:
    """The gradient of a loss in all weights of a net, given its slope in the outputs."""
    gradient: Arrays = {}
    for layer, below in ((2, high), (1, low), (0, inputs)):
        gradient[f"{net}.{layer}.weight"] = below.T @ slope
        gradient[f"{net}.{layer}.bias"] = slope.sum(axis=0)
        if layer:
            slope = (slope @ weights[f"{net}.{layer}.weight"].T) * (1 - below * below)
    return gradient


def values(weights: Arrays, inputs: Array) -> Array:
    """What the value network expects of each observation."""
    mean, scale = weights[SCALE]
    expected: Array = mean + scale * forward(weights, "value", inputs)[2][:, 0].astype(np.float64)
    return expected
