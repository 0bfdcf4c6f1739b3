"""What networks are asked for, one class, numbers or several labels: how each is learnt, scored and read.

Outputs are (..., rows, outputs), where the axes in front hold networks side by side.  What is wanted is whole numbers
of (rows) for classes, and float rows for the others: standardised numbers, or 0 and 1 for each label.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fanfold.stats import rate
from fanfold.stats.intervals import percentiles
from fanfold.tensors import Arrays

TargetKind = Literal["classes", "numbers", "labels"]
#: No network scores less: how far one diverged says nothing.
WORST = -1.0
_RESAMPLES = 1000


def loss(outputs: Tensor, wanted: Tensor, target: str, weights: Tensor | None = None, smoothing: float = 0.0) -> Tensor:
    """The mean loss of each network: cross-entropy, squared error, or binary cross-entropy of every label.

    `weights` say how much each row counts; over all rows their mean is 1.
    """
    if target == "classes":
        if outputs.ndim == 2 and weights is None:
            return F.cross_entropy(outputs, wanted, label_smoothing=smoothing)
        repeated = wanted.repeat(outputs.shape[:-2].numel())
        rows = F.cross_entropy(outputs.flatten(0, -2), repeated, reduction="none", label_smoothing=smoothing)
        rows = rows.view(outputs.shape[:-1])
    elif target == "numbers":
        rows = (outputs - wanted).square().mean(-1)
    else:
        soft = (wanted * (1.0 - smoothing) + smoothing / 2).expand_as(outputs)
        rows = F.binary_cross_entropy_with_logits(outputs, soft, reduction="none").mean(-1)
    return (rows if weights is None else rows * weights).mean(-1)


def score(outputs: Tensor, wanted: Tensor, target: str) -> Tensor:
    """How good each network is on all rows, higher being better: accuracy, R2 or F1; `balanced`: the mean recall.

    R2 is the mean over the numbers, and F1 counts all labels together.  A row that is not finite is wrong.
    """
    finite = torch.isfinite(outputs).all(-1)
    if target in ("classes", "balanced"):
        right = (outputs.argmax(-1) == wanted) & finite
        if target == "classes":
            return right.sum(-1).double() / len(wanted)
        counts = wanted.new_zeros(outputs.shape[-1]).index_add_(0, wanted, torch.ones_like(wanted))
        shares = 1.0 / (counts[wanted].double() * (counts > 0).sum())
        return (right.double() * shares).sum(-1).round(decimals=10)  # equal in whichever order it was summed
    if target == "numbers":
        exact = wanted.double()
        missed = (outputs.double() - exact).square().sum(-2)
        spread = (exact - exact.mean(0)).square().sum(0)
        constant = spread <= 1e-12 * len(exact)
        shares = torch.where(constant, (missed <= 1e-12 * len(exact)).double(), 1.0 - missed / spread)
        return shares.nan_to_num(WORST, neginf=WORST).mean(-1).clamp_min(WORST)
    said, truth = (outputs > 0) & finite[..., None], wanted > 0.5
    both = (said & truth).double().sum((-2, -1))
    either = said.double().sum((-2, -1)) + truth.double().sum()
    return torch.where(either > 0, 2.0 * both / either.clamp_min(1.0), torch.ones_like(both))


def predictions(outputs: Tensor, target: str) -> Tensor:
    """The class of each row, its numbers (still standardised), or 1 for each label that it has."""
    if target == "classes":
        return outputs.argmax(-1)
    return outputs if target == "numbers" else (outputs > 0).long()


def chances(outputs: Tensor, target: str, temperature: float = 1.0) -> Tensor:
    """The chance of each class or label."""
    return (outputs / temperature).softmax(-1) if target == "classes" else (outputs / temperature).sigmoid()


def temperature(outputs: Tensor, wanted: Tensor, target: str) -> float:
    """What outputs are divided by so that their chances fit rows that were not learnt from.

    The loss is convex in the inverse, which is searched between 1/20 and 20.  As in Platt's scaling each label counts
    as if one row of every class had come beside: few rows that are all right do not make a network sure.
    """
    if target == "numbers" or not len(outputs) or not bool(torch.isfinite(outputs).all()):
        return 1.0
    classes = outputs.shape[1] if target == "classes" else 2
    smoothing = classes / (len(outputs) + classes)
    low, high = -3.0, 3.0
    for _ in range(60):
        first, second = low + (high - low) / 3, high - (high - low) / 3
        losses = [
            float(loss(outputs.double() * np.exp(log), _fitting(wanted), target, smoothing=smoothing))
            for log in (first, second)
        ]
        low, high = (low, second) if losses[0] <= losses[1] else (first, high)
    return float(f"{np.exp(-(low + high) / 2):.6g}")


def _fitting(wanted: Tensor) -> Tensor:
    return wanted if wanted.dtype == torch.int64 else wanted.double()


def folded(weights: Arrays, factor: Any, offset: Any) -> Arrays:
    """The weights of a network whose outputs are `factor` times as large, plus `offset`."""
    last = np.asarray(weights["out.bias"], np.float64)
    factors = np.broadcast_to(np.asarray(factor, np.float64), last.shape)
    scaled = np.asarray(weights["out.weight"], np.float64) * factors[:, None]
    return {**weights, "out.weight": scaled, "out.bias": last * factors + offset}


def interval(outputs: Tensor, wanted: Tensor, target: str, seed: int = 0) -> tuple[float, float, float]:
    """The score with its 95 % interval: Wilson's for an accuracy, else from rows drawn again and again."""
    if target != "classes":
        return _resampled(lambda rows: float(score(outputs[rows], wanted[rows], target)), len(wanted), seed)
    accuracy = float(score(outputs, wanted, target))
    share = rate(round(accuracy * len(wanted)), len(wanted))
    return accuracy, share.low, share.high


def difference(one: Tensor, other: Tensor, wanted: Tensor, target: str, seed: int = 0) -> tuple[float, float, float]:
    """How much better one network is than another on the same rows, with its 95 % interval."""

    def better(rows: Tensor) -> float:
        return float(score(one[rows], wanted[rows], target) - score(other[rows], wanted[rows], target))

    return _resampled(better, len(wanted), seed)


def _resampled(statistic: Callable[[Tensor], float], n: int, seed: int) -> tuple[float, float, float]:
    rng = np.random.default_rng(seed)
    values = [statistic(torch.from_numpy(rng.integers(n, size=n))) for _ in range(_RESAMPLES)]
    low, high = percentiles(values, n, 0.95)
    return statistic(torch.arange(n)), low, high


def as_outputs(said: Any, target: str, classes: int) -> Tensor:
    """Outputs that stand for what was said: a class, standardised numbers, or a 1 for each label."""
    answers = torch.as_tensor(np.asarray(said))
    if target == "classes":
        return F.one_hot(answers.long(), classes).double()
    return answers.double().reshape(len(answers), -1) - (0.5 if target == "labels" else 0.0)
