"""Strengths and places of players from who beat whom."""

from __future__ import annotations

import math
import operator
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from fanfold.errors import ConfigError
from fanfold.stats.checks import checked_share
from fanfold.stats.intervals import Interval, percentiles, redraw

C = TypeVar("C", bound=Hashable)  # what names a cluster
P = TypeVar("P", bound=Hashable)  # what names a player

#: Strengths that differ by less than this share are the same rank.
_SAME = 1e-6


@dataclass(frozen=True, slots=True)
class Ranked:
    """A player's Bradley-Terry strength (their geometric mean is 1) and rank, each with its limits."""

    player: Hashable
    strength: Interval
    rank: int
    rank_low: int
    rank_high: int


def bradley_terry(wins: Mapping[tuple[P, P], float], prior: float = 0.1) -> dict[P, float]:
    """The strength of each player, where a beats b with probability strength[a] / (strength[a] + strength[b]).

    `wins[a, b]` is how often a beat b; a tie is half a win for both.  Every two players are given `prior` wins over
    each other on top, so that the undefeated stay finite and those who never met are comparable.  Games against
    oneself say nothing.  The geometric mean of the strengths is 1.
    """
    players = _players([wins])
    return dict(zip(players, _strengths(_table([wins], players, prior), [1.0] * len(players))))


def ranking(
    clusters: Mapping[C, Mapping[tuple[P, P], float]],
    level: float = 0.95,
    *,
    seed: int = 0,
    resamples: int = 1000,
    prior: float = 0.1,
) -> tuple[Ranked, ...]:
    """Players from strongest to weakest by `bradley_terry`, with limits from drawing whole clusters again.

    Clusters that are all alike are not certain of the next one, so the limits also hold what one more cluster could
    make of a player: that in which it wins every game, and that in which it loses every game.
    """
    checked_share(level, "level")
    groups = list(clusters.values())
    players = _players(groups)
    strengths = _strengths(_table(groups, players, prior), [1.0] * len(players))
    drawn = [strengths]
    if len(groups) > 1:
        drawn = [
            _strengths(_table([groups[i] for i in picked], players, prior), strengths)
            for picked in redraw(len(groups), seed, resamples)
        ]
    ranks, drawn_ranks = _places(strengths), [_places(row) for row in drawn]
    n = round(math.fsum(value for group in groups for (a, b), value in group.items() if a != b))
    ranked = []
    for i, player in enumerate(players):
        low, high, rank_low, rank_high = 0.0, math.inf, 1.0, float(len(players))
        if len(groups) > 1:
            more = [_strengths(_table([*groups, last], players, prior), strengths) for last in _unseen(groups, player)]
            low, high = _widened(percentiles([row[i] for row in drawn], len(groups), level), [row[i] for row in more])
            places = percentiles([float(row[i]) for row in drawn_ranks], len(groups), level)
            rank_low, rank_high = _widened(places, [float(_places(row)[i]) for row in more])
        strength = Interval(strengths[i], low, high, n, len(groups), level)
        ranked.append(Ranked(player, strength, ranks[i], int(rank_low), int(rank_high)))
    return tuple(sorted(ranked, key=lambda one: one.rank))


def _unseen(groups: Sequence[Mapping[tuple[P, P], float]], player: P) -> list[dict[tuple[P, P], float]]:
    """An average cluster in which the player loses every game, and one in which it wins them."""
    games: dict[P, float] = {}
    for group in groups:
        for pair, value in group.items():
            if player in pair and pair != (player, player):
                other = pair[1] if pair[0] == player else pair[0]
                games[other] = games.get(other, 0.0) + value / len(groups)
    return [
        {(other, player): count for other, count in games.items()},
        {(player, other): count for other, count in games.items()},
    ]


def _widened(limits: tuple[float, float], values: Iterable[float]) -> tuple[float, float]:
    return min(limits[0], *values), max(limits[1], *values)


def _players(groups: Iterable[Mapping[tuple[P, P], float]]) -> list[P]:
    return list(dict.fromkeys(player for group in groups for pair in group for player in pair))


def _table(groups: Iterable[Mapping[tuple[P, P], float]], players: Sequence[P], prior: float) -> list[list[float]]:
    """How often each player (row) beat each (column), the prior included."""
    if not 0.0 < prior < math.inf:
        raise ConfigError(f"prior={prior!r}: give a small number above 0, or the undefeated would be infinitely strong")
    numbers = {player: i for i, player in enumerate(players)}
    table = [[0.0 if i == j else prior for j in numbers.values()] for i in numbers.values()]
    for group in groups:
        for (a, b), value in group.items():
            if not 0.0 <= value < math.inf:
                raise ConfigError(f"wins[{a!r}, {b!r}]={value!r}: give how often the first beat the second, 0 or more")
            if a != b:
                table[numbers[a]][numbers[b]] += value
    return table


def _strengths(table: Sequence[Sequence[float]], start: Sequence[float]) -> list[float]:
    """The most likely strengths, by a fixed point each player's turn comes closer to.

    It has the same solution as the classical minorise-maximise step and needs a small part of its rounds.
    """
    strengths, count = list(start), len(start)
    if count < 2:
        return strengths
    losses = list(zip(*table))
    for _ in range(10_000):
        before = list(strengths)
        for i in range(count):
            own = strengths[i]
            shares = [1.0 / (own + other) for other in strengths]
            won = math.fsum(map(operator.mul, table[i], map(operator.mul, strengths, shares)))
            strengths[i] = won / math.fsum(map(operator.mul, losses[i], shares))
        scale = math.exp(-math.fsum(map(math.log, strengths)) / count)
        strengths = [strength * scale for strength in strengths]
        if all(abs(new - old) <= 1e-10 * old for new, old in zip(strengths, before)):
            break
    return strengths


def _places(strengths: Sequence[float]) -> list[int]:
    return [1 + sum(other > own * (1.0 + _SAME) for other in strengths) for own in strengths]
