"""Policies of blue, and a table that asks one only once for each observation it meets."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fanfold.errors import ConfigError
from fanfold.studies.workflow.cage2.rules import ACTIONS, MEMORY, SEEN
from fanfold.studies.workflow.cage2.state import kernel, part

#: What a policy may see: the observation alone, or with what blue remembers.
WIDTHS = (SEEN, SEEN + len(MEMORY))
CHOICES = len(ACTIONS)
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
Floats: TypeAlias = NDArray[np.float32]
Keys: TypeAlias = NDArray[np.uint64]


@part
def exponential(x: Any) -> Any:
    """e to the power x (from -100 to 40) to seven digits, by arithmetic alone so that loops over it are vectorised."""
    x = max(x, -100.0) / 1024
    y = 1 + x * (1 + x / 2 * (1 + x / 3 * (1 + x / 4 * (1 + x / 5))))
    for _ in range(10):
        y *= y
    return y


@part
def squash(values: Any) -> None:
    """The hyperbolic tangent, in place."""
    for j in range(values.shape[0]):
        e = exponential(min(-2.0 * values[j], 40.0))
        values[j] = (1 - e) / (1 + e)


@part
def weigh(inputs: Any, weights: Any, bias: Any, outputs: Any) -> None:
    """One layer.  Sums run in the same order whatever else is evaluated, so that they are the same to the last bit."""
    for j in range(outputs.shape[0]):
        outputs[j] = bias[j]
    for i in range(inputs.shape[0]):
        x = inputs[i]
        for j in range(outputs.shape[0]):
            outputs[j] += x * weights[i, j]


@part
def score(layers: Any, key: Any, low: Any, high: Any, scores: Any) -> None:
    """The network's scores of all actions for one observation; `low` and `high` are room for the hidden layers."""
    first, first_bias, second, second_bias, out, out_bias = layers
    for j in range(low.shape[0]):
        low[j] = first_bias[j]
    for number in range(key.shape[0]):
        word, bit = key[number], 64 * number
        while word:
            if word & np.uint64(1):
                for j in range(low.shape[0]):
                    low[j] += first[bit, j]
            word >>= np.uint64(1)
            bit += 1
    squash(low)
    weigh(low, second, second_bias, high)
    squash(high)
    weigh(high, out, out_bias, scores)


@part
def accumulate(scores: Any, greedy: Any) -> None:
    """Scores of actions become, in place, the chance of an action up to this one; greedily, all of it is the best's."""
    best = 0
    for j in range(scores.shape[0]):
        if scores[j] > scores[best]:
            best = j
    if greedy:
        for j in range(scores.shape[0]):
            scores[j] = j >= best
        return
    top, total = scores[best], 0.0
    for j in range(scores.shape[0]):
        gap = scores[j] - top
        scores[j] = exponential(gap) if gap > -80 else 0.0  # nothing at all, so that minus infinity forbids
    for j in range(scores.shape[0]):
        total += scores[j]
    sum_to_here = 0.0
    for j in range(scores.shape[0]):  # the same sum again, so that the last that is not forbidden gets exactly 1
        sum_to_here += scores[j]
        scores[j] = sum_to_here / total


@kernel
def score_all(layers: Any, keys: Any, scores: Any) -> None:
    low, high = np.empty_like(layers[1]), np.empty_like(layers[3])
    for i in range(keys.shape[0]):
        score(layers, keys[i], low, high, scores[i])


@kernel
def accumulate_all(scores: Any, greedy: Any) -> None:
    for i in range(scores.shape[0]):
        accumulate(scores[i], greedy)


def _words(bits: int) -> int:
    """How many words of 64 bits hold so many."""
    return -(-bits // 64)


def packed(rows: Keys) -> Keys:
    """Observations in rows of words as policies and learners take them: single words where one is enough."""
    return rows[:, 0] if rows.shape[1] == 1 else rows


@dataclass(frozen=True, eq=False)
class PolicyNetwork:
    """A policy with two hidden layers of tanh: what blue sees and a constant context in, a score per action out.

    Matrices are (inputs, outputs).  Blue sees 52 bits, or with memory more (`Cage2Game.bits`).  The original conditions
    on the order of five unit types, 25 further inputs: with 52 + 25 inputs and 64 hidden units it is 77-64-64-145.  The
    context cannot change within an episode.
    """

    first: Floats
    first_bias: Floats
    second: Floats
    second_bias: Floats
    out: Floats
    out_bias: Floats
    context: Floats

    def __post_init__(self) -> None:
        for each in fields(self):
            array = np.ascontiguousarray(getattr(self, each.name), np.float32)
            if not np.isfinite(array).all():
                raise ConfigError(
                    f"the network's {each.name!r} holds numbers that are not finite: the training diverged"
                )
            object.__setattr__(self, each.name, array)
        hidden = self.first.shape[-1]
        wanted = {
            "first": ((self.bits if self.bits in WIDTHS else SEEN) + len(self.context), hidden),
            "first_bias": (hidden,),
            "second": (hidden, hidden),
            "second_bias": (hidden,),
            "out": (hidden, CHOICES),
            "out_bias": (CHOICES,),
        }
        for name, shape in wanted.items():
            size = getattr(self, name).shape
            if size != shape:
                raise ConfigError(f"the network's {name!r} has the shape {size}; it must be {shape}")

    @classmethod
    def initial(cls, seed: int, context: Any = (), hidden: int = 64, bits: int = SEEN) -> PolicyNetwork:
        """Small random weights."""
        rng = np.random.default_rng(seed)
        context = np.asarray(context, np.float32)

        def layer(inputs: int, outputs: int) -> tuple[Floats, Floats]:
            reach = 1 / math.sqrt(inputs)
            draws = [rng.uniform(-reach, reach, size) for size in ((inputs, outputs), (outputs,))]
            return draws[0].astype(np.float32), draws[1].astype(np.float32)

        sizes = (bits + len(context), hidden, hidden, CHOICES)
        (first, second, out) = (layer(inputs, outputs) for inputs, outputs in itertools.pairwise(sizes))
        return cls(*first, *second, *out, context)

    @property
    def bits(self) -> int:
        """How much it sees."""
        return len(self.first) - len(self.context)

    def layers(self) -> tuple[Floats, ...]:
        """The arrays the kernels take: what the context adds is part of the first bias."""
        added = self.context.astype(np.float64) @ self.first[self.bits :].astype(np.float64)
        bias = (self.first_bias + added).astype(np.float32)
        return self.first[: self.bits], bias, self.second, self.second_bias, self.out, self.out_bias

    def scores(self, keys: Keys) -> Floats:
        """(observation, action): the score of each action."""
        scores = np.empty((len(keys), CHOICES), np.float32)
        rows = np.ascontiguousarray(keys, np.uint64).reshape(len(keys), _words(self.bits))
        score_all(self.layers(), rows, scores)
        return scores

    def log_probabilities(self, keys: Keys) -> Floats:
        """(observation, action): the logarithm of the chance of each action."""
        scores = self.scores(keys)
        scores -= scores.max(axis=1, keepdims=True)
        scores -= np.log(np.exp(scores).sum(axis=1, keepdims=True))
        return scores


#: Any policy: observations as packed bits in (one word each, or with memory a row of two), a score for each of the 145
#: actions out (softmax makes chances of them).
Policy: TypeAlias = PolicyNetwork | Callable[[Keys], Floats]

#: In `PolicyTable.counts`: the rows in use, and those of them that hold an answer.
ASKED, ANSWERED = range(2)


class PolicyTable:
    """What one version of a policy does in each observation met so far, evaluated once.

    `greedy` always takes the best action.  A table that holds more than `limit` observations is emptied before the
    next block; only time depends on it.  A table serves one thread at a time.
    """

    def __init__(self, policy: Policy, version: int = 0, *, greedy: bool = False, limit: int = 65_536) -> None:
        self.limit = limit
        self._room(4_096, 1)
        self.counts = np.zeros(2, np.int64)
        self.load(policy, version, greedy=greedy)

    def load(self, policy: Policy, version: int, *, greedy: bool = False) -> None:
        """Continue with another policy, or another version of it, in the same memory."""
        self.policy = policy
        self.version = version
        self.greedy = greedy
        self.forget()
        if isinstance(policy, PolicyNetwork):
            self.fit(policy.bits)

    def fit(self, bits: int) -> None:
        """Prepare for a game in which blue sees so many bits; a network sees what it learnt with."""
        self._words(_words(self.policy.bits if isinstance(self.policy, PolicyNetwork) else bits))

    def _words(self, words: int) -> None:
        if words != self.keys.shape[1]:
            self._room(len(self.keys), words)
            self.forget()

    def __len__(self) -> int:
        return int(self.counts[ANSWERED])

    def _room(self, rows: int, words: int) -> None:
        self.keys = np.empty((rows, words), np.uint64)
        self.chances = np.empty((rows, CHOICES), np.float32)
        self.slots = np.full(4 * rows, -1, np.int32)

    def forget(self) -> None:
        self.slots[:] = -1
        self.counts[:] = 0

    def grow(self) -> None:
        """Twice the room, with everything still in it."""
        keys, chances = self.keys, self.chances
        rows, words = keys.shape
        self._room(2 * rows, words)
        self.keys[:rows], self.chances[:rows] = keys, chances
        replace(self.slots, self.keys, self.counts[ASKED])

    def answer(self) -> None:
        """Ask a policy that is a function about the observations that wait for it."""
        assert not isinstance(self.policy, PolicyNetwork)
        rows = slice(int(self.counts[ANSWERED]), int(self.counts[ASKED]))
        if rows.start == rows.stop:
            return
        scores = np.asarray(self.policy(packed(self.keys[rows].copy())), np.float32)
        wanted = (rows.stop - rows.start, CHOICES)
        if scores.shape != wanted or np.isnan(scores).any() or np.isposinf(scores).any():
            raise ConfigError(f"the policy must give finite scores of the shape {wanted}; it gave {scores.shape}")
        self.chances[rows] = scores
        accumulate_all(self.chances[rows], self.greedy)
        self.counts[ANSWERED] = self.counts[ASKED]


@part
def slot_of(slots: Any, key: Any) -> Any:
    """Where to look for an observation first."""
    mixed = key[0] * GOLDEN
    for number in range(1, key.shape[0]):
        mixed = (mixed ^ mixed >> np.uint64(32) ^ key[number]) * GOLDEN
    return (mixed >> np.uint64(32)) & np.uint64(slots.shape[0] - 1)


@part
def next_slot(slots: Any, slot: Any) -> Any:
    return (slot + np.uint64(1)) & np.uint64(slots.shape[0] - 1)


@part
def same(one: Any, other: Any) -> Any:
    equal = True
    for number in range(one.shape[0]):
        equal &= one[number] == other[number]
    return equal


@part
def find(slots: Any, keys: Any, counts: Any, key: Any) -> Any:
    """The row of an observation, which is a new one if need be; -1 when there is no room for it."""
    slot = slot_of(slots, key)
    while slots[slot] >= 0:
        if same(keys[slots[slot]], key):
            return np.int64(slots[slot])
        slot = next_slot(slots, slot)
    row = counts[ASKED]
    if row == keys.shape[0]:
        return np.int64(-1)
    counts[ASKED] = row + 1
    keys[row] = key
    slots[slot] = row
    return row


@kernel
def replace(slots: Any, keys: Any, count: Any) -> None:
    """Find places for all rows in empty slots."""
    for row in range(count):
        slot = slot_of(slots, keys[row])
        while slots[slot] >= 0:
            slot = next_slot(slots, slot)
        slots[slot] = row
