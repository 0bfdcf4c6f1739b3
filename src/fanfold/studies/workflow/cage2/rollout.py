"""Whole episodes in blocks with the policy in the loop; what comes back is small and ready for learning."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fanfold.studies.workflow.cage2.engine import advance, seen_by_blue, start
from fanfold.studies.workflow.cage2.policy import (
    ANSWERED,
    Floats,
    Keys,
    PolicyNetwork,
    PolicyTable,
    accumulate,
    find,
    packed,
    score,
)
from fanfold.studies.workflow.cage2.rules import HOSTS, Cage2Game
from fanfold.studies.workflow.cage2.state import BLUE_CHOICES, USER0, draw, kernel, part, stream

#: In `EpisodeBlock.held`: the fix made in this step took something from red.
FIXED = 1 << len(HOSTS)
_NO_ROOM = -1


@part
def held_hosts(s: Any) -> Any:
    """The hosts with a session of red, not counting its foothold on User0."""
    at_home = s.sessions[USER0, 0] + s.sessions[USER0, 1] + s.sessions[USER0, 2] + s.sessions[USER0, 3]
    return s.held if at_home > 1 else s.held & ~(1 << USER0)


@part
def sample(chances: Any, point: Any) -> Any:
    """The first action whose cumulated chance exceeds the point."""
    low, high = 0, chances.shape[0] - 1
    while low < high:
        middle = (low + high) >> 1
        if chances[middle] > point:
            high = middle
        else:
            low = middle + 1
    return low


@kernel
def collect(
    states: Any, rules: Any, seed: Any, episodes: Any, layers: Any, inline: Any, greedy: Any, table: Any, block: Any
) -> Any:
    """Play every episode on, each until its end or an observation that waits for an answer; how many still wait.

    With `inline`, the network in `layers` answers at once.  _NO_ROOM: the table is full; call again when it has grown.
    """
    r = rules[0]
    slots, keys, chances, counts = table
    observations, actions, rewards, held = block
    low, high = np.empty_like(layers[1]), np.empty_like(layers[3])
    words = np.empty(keys.shape[1], np.uint64)
    waiting = 0
    for i in range(states.shape[0]):
        s = states[i]
        key, stride = stream(seed, episodes[i], BLUE_CHOICES)
        while s.step < actions.shape[1]:
            seen_by_blue(s, words)
            row = find(slots, keys, counts, words)
            if row < 0:
                return _NO_ROOM
            if row >= counts[ANSWERED]:
                if not inline:
                    waiting += 1
                    break
                score(layers, keys[row], low, high, chances[row])
                accumulate(chances[row], greedy)
                counts[ANSWERED] += 1
            t = s.step
            action = sample(chances[row], np.float32(draw(key, stride, t) >> 8) * np.float32(2.0**-24))
            observations[i, t] = row
            actions[i, t] = action
            held[i, t] = held_hosts(s)
            advance(s, r, np.int64(action))
            held[i, t] |= s.fixed << len(HOSTS)
            rewards[i, t] = s.reward
    return waiting


@kernel
def renumber(rows: Any, numbers: Any, met: Any) -> Any:
    """Number the rows that occur in the order of the episodes, in place; `met` has them in that order, so many of them.

    A block numbered by itself does not depend on what the table held before.
    """
    count = 0
    for i in range(rows.shape[0]):
        for t in range(rows.shape[1]):
            row = rows[i, t]
            if numbers[row] < 0:
                numbers[row] = count
                met[count] = row
                count += 1
            rows[i, t] = numbers[row]
    return count


@dataclass(frozen=True, eq=False)
class EpisodeBlock:
    """Whole episodes played by one version of a policy.

    Arrays are (episode, step): `observations` are numbers into `keys`, the distinct observations in the order in which
    the block met them; `tenths` are rewards times ten; `held` is the set of hosts on which red had a session when blue
    chose (its foothold on User0 not counted), with the bit `FIXED` where the choice took something from red.
    All of it is a function of the policy's weights, the game, the seed and the episodes' numbers alone.
    """

    version: int
    episodes: NDArray[np.int64]
    reds: NDArray[np.int8]
    keys: Keys
    observations: NDArray[np.int32]
    actions: NDArray[np.uint8]
    tenths: NDArray[np.int16]
    held: NDArray[np.uint16]

    @property
    def steps(self) -> int:
        return self.actions.size

    @functools.cached_property
    def rewards(self) -> Floats:
        return self.tenths.astype(np.float32) / np.float32(10)

    @functools.cached_property
    def returns(self) -> NDArray[np.float64]:
        """The sum of the rewards of each episode."""
        sums: NDArray[np.float64] = self.tenths.sum(axis=1, dtype=np.int64) / 10
        return sums


_NO_NETWORK = PolicyNetwork.initial(0, hidden=1).layers()


def rollout(
    table: PolicyTable, game: Cage2Game, episodes: Sequence[int] | NDArray[np.int64], seed: int = 0
) -> EpisodeBlock:
    """Play these episodes to their end with the policy of the table."""
    numbers = np.ascontiguousarray(episodes, np.int64)
    states = start(game, seed, numbers)
    shape = (len(numbers), game.length)
    observations, actions = np.empty(shape, np.int32), np.empty(shape, np.uint8)
    tenths, held = np.empty(shape, np.int16), np.empty(shape, np.uint16)
    network = table.policy if isinstance(table.policy, PolicyNetwork) else None
    layers = _NO_NETWORK if network is None else network.layers()
    table.fit(game.bits)
    if len(table) > table.limit:
        table.forget()
    waiting = 1
    while waiting:
        rows = (table.slots, table.keys, table.chances, table.counts)
        block = (observations, actions, tenths, held)
        key = np.uint64(seed % 2**64)
        waiting = collect(states, game.tables(), key, numbers, layers, network is not None, table.greedy, rows, block)
        if waiting and network is None:
            table.answer()
        if waiting == _NO_ROOM:
            table.grow()
    met = np.empty(len(table), np.int32)
    distinct = renumber(observations, np.full(len(table), -1, np.int32), met)
    keys = packed(table.keys[met[:distinct]])
    return EpisodeBlock(table.version, numbers, states["red"].copy(), keys, observations, actions, tenths, held)
