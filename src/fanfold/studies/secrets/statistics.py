"""The figures of a run: rates with clustered intervals, effects tested on the same scenarios, a ranking, and bounds.

A cluster is a scenario: all games with the same secrets, names and seed.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from fanfold import stats
from fanfold.stats import Bounds, Interval, Paired, Ranked
from fanfold.studies.secrets.game import points_range
from fanfold.studies.secrets.records import Meeting, Pairing, Records

#: What an agent can do in a conversation, of (gave, got).
AGENT_FIGURES: Mapping[str, Callable[[int, int], bool]] = {
    "revealed": lambda gave, got: bool(gave),
    "obtained": lambda gave, got: bool(got),
    "optimal": lambda gave, got: bool(got and not gave),
}
#: What can happen in a conversation, of (gave, gave).
TALK_FIGURES: Mapping[str, Callable[[int, int], bool]] = {
    "both revealed": lambda one, other: bool(one and other),
    "one-sided": lambda one, other: one != other,
    "neither revealed": lambda one, other: not (one or other),
}
#: The most clusters a bootstrap goes through, all resamples together.
_DRAWS = 200_000


@dataclass(frozen=True, slots=True)
class Rate:
    """How often something happened: the count, the rate with its interval, and what games apart could make of it."""

    count: int
    interval: Interval
    bounds: Bounds


@dataclass(frozen=True, slots=True)
class AgentFigures:
    """What a player did in one seat of one pairing, or (`seat` is None) in all seats of all its pairings."""

    label: str
    seat: int | None
    rates: Mapping[str, Rate]
    points: Interval


@dataclass(frozen=True, slots=True)
class Overall:
    """What happened in the conversations of one pairing, or of all (`label` is then `all`)."""

    label: str
    talks: int
    revealed: Rate
    rates: Mapping[str, Rate]


@dataclass(frozen=True, slots=True)
class PlayerDifference:
    """Two players compared on the same scenarios, seats and opponents; `adjusted` is Holm's p-value."""

    first: str
    second: str
    what: str
    paired: Paired
    adjusted: float


def agent_figures(records: Records, pairing: Pairing) -> tuple[AgentFigures, ...]:
    """The documented figures of every seat of a pairing."""
    return tuple(_figures(records, label, seat, [(pairing, seat)]) for seat, label in enumerate(pairing.labels))


def model_figures(records: Records) -> tuple[AgentFigures, ...]:
    """The same figures of every player, over all its pairings and seats."""
    places: dict[str, list[tuple[Pairing, int]]] = defaultdict(list)
    for pairing in records.pairings:
        for seat, label in enumerate(pairing.labels):
            places[label].append((pairing, seat))
    return tuple(_figures(records, label, None, own) for label, own in places.items())


def _figures(records: Records, label: str, seat: int | None, places: Sequence[tuple[Pairing, int]]) -> AgentFigures:
    own: dict[int, list[int]] = defaultdict(list)
    for pairing, place in places:
        own[pairing.trial].append(place)
    did = [
        (each.scenario, *_side(each, place))
        for each in records.meetings
        for place in own.get(each.trial, ())
        if place in (each.a, each.b)
    ]
    unknown = sum(records.apart_of(pairing.trial) * int(pairing.game["rounds"]) for pairing, _ in places)
    rates = {
        name: _rate(((scenario, test(gave, got)) for scenario, gave, got in did), unknown)
        for name, test in AGENT_FIGURES.items()
    }
    points: dict[Hashable, list[float]] = defaultdict(list)
    for result in records.results:
        points[result.scenario] += [result.scores[place] for place in own.get(result.trial, ())]
    within = _points_range(pairing for pairing, _ in places)
    return AgentFigures(label, seat, rates, stats.clustered_mean(points, within=within))


def _points_range(pairings: Iterable[Pairing]) -> tuple[float, float]:
    lows, highs = zip(*(points_range(pairing.game) for pairing in pairings))
    return min(lows), max(highs)


def overall(records: Records, pairings: Sequence[Pairing], label: str) -> Overall:
    """What happened in the conversations of these pairings together."""
    trials = {pairing.trial for pairing in pairings}
    meetings = [each for each in records.meetings if each.trial in trials]
    unknown = sum(records.apart_of(pairing.trial) * pairing.talks for pairing in pairings)
    revealed = _rate(
        ((each.scenario, bool(gave)) for each in meetings for gave in (each.gave_a, each.gave_b)), 2 * unknown
    )
    rates = {
        name: _rate(((each.scenario, test(each.gave_a, each.gave_b)) for each in meetings), unknown)
        for name, test in TALK_FIGURES.items()
    }
    return Overall(label, len(meetings), revealed, rates)


def opener_effect(records: Records, seed: int = 0) -> Paired | None:
    """How much more often an agent reveals when it opens than when the other does, in the twin of the same game."""
    seen: dict[tuple[int, int, int, int], dict[bool, int]] = defaultdict(dict)
    for each in records.meetings:
        seen[each.trial, each.scenario, each.place, each.a][True] = each.gave_a
        seen[each.trial, each.scenario, each.place, each.b][False] = each.gave_b
    pairs: dict[Hashable, list[tuple[float, float]]] = defaultdict(list)
    for (_, scenario, _, _), gave in seen.items():
        if len(gave) == 2:
            pairs[scenario].append((gave[True], gave[False]))
    return stats.paired(pairs, seed=seed, within=(0.0, 1.0)) if pairs else None


def opening(records: Records) -> dict[str, Rate]:
    """How often openers reveal, and how often those who answer."""
    return {
        "opener": _rate(((each.scenario, bool(each.gave_a)) for each in records.meetings), 0),
        "other": _rate(((each.scenario, bool(each.gave_b)) for each in records.meetings), 0),
    }


def matrix(records: Records) -> dict[tuple[str, str], Interval]:
    """The share of games that the row's player won against the column's, a tie counting half; seats of two only."""
    shares: dict[tuple[str, str], dict[Hashable, list[float]]] = defaultdict(lambda: defaultdict(list))
    labels = {pairing.trial: pairing.labels for pairing in records.pairings if len(pairing.labels) == 2}
    for result in records.results:
        if result.trial in labels:
            row, column = labels[result.trial]
            shares[row, column][result.scenario].append(_won(result.scores[0], result.scores[1]))
    return {pair: stats.clustered_mean(groups, within=(0.0, 1.0)) for pair, groups in shares.items()}


def ranked(records: Records, seed: int = 0) -> tuple[Ranked, ...]:
    """Players by Bradley-Terry strength: in a game, who has more points than another beats it."""
    wins: dict[int, dict[tuple[str, str], float]] = defaultdict(lambda: defaultdict(float))
    labels = {pairing.trial: pairing.labels for pairing in records.pairings}
    for result in records.results:
        for one, other in itertools.combinations(range(len(result.scores)), 2):
            first, second = labels[result.trial][one], labels[result.trial][other]
            if first != second:
                won = _won(result.scores[one], result.scores[other])
                wins[result.scenario][first, second] += won
                wins[result.scenario][second, first] += 1.0 - won
    if not wins:
        return ()
    return stats.ranking(wins, seed=seed, resamples=max(200, min(1000, _DRAWS // len(wins))))


def differences(records: Records, seed: int = 0) -> tuple[PlayerDifference, ...]:
    """Every two players compared where both had the same seat, opponent, scenario and opener; Holm over all tests."""
    played = _by_place(records)
    players = list(dict.fromkeys(player for player, *_ in played))
    ranges = {"points": _points_range(records.pairings), "revealed": (0.0, 1.0), "obtained": (0.0, 1.0)}
    tests: list[tuple[str, str, str, Paired]] = []
    for first, second in itertools.combinations(players, 2):
        for at, (what, within) in enumerate(ranges.items()):
            pairs: dict[Hashable, list[tuple[float, float]]] = defaultdict(list)
            for (player, *place), values in played.items():
                if player == first and (twin := played.get((second, *place))) is not None:  # type: ignore[arg-type]
                    pairs[place[2]].append((values[at], twin[at]))
            if pairs:
                tests.append((first, second, what, stats.paired(pairs, seed=seed, within=within)))
    adjusted = stats.holm([test.p for *_, test in tests])
    return tuple(PlayerDifference(*test, p) for test, p in zip(tests, adjusted))


def _by_place(records: Records) -> dict[tuple[str, int, str, int, int], tuple[float, float, float]]:
    """Points, revealed and obtained of every player at (seat, opponent, scenario, twin); games of two, one round."""
    labels = {
        pairing.trial: pairing.labels
        for pairing in records.pairings
        if len(pairing.labels) == 2 and pairing.game["rounds"] == 1
    }
    scores = {(each.trial, each.scenario, each.twin): each.scores for each in records.results}
    places = {}
    for each in records.meetings:
        if each.trial in labels:
            names = labels[each.trial]
            for seat in (0, 1):
                gave, got = _side(each, seat)
                points = scores[each.trial, each.scenario, each.twin][seat]
                place = (names[seat], seat, names[1 - seat], each.scenario, each.twin)
                places[place] = (points, float(gave), float(got))
    return places


def _side(meeting: Meeting, seat: int) -> tuple[int, int]:
    """What a seat gave and got in a conversation."""
    return (meeting.gave_a, meeting.gave_b) if seat == meeting.a else (meeting.gave_b, meeting.gave_a)


def _won(mine: float, other: float) -> float:
    return 0.5 if mine == other else float(mine > other)


def _rate(observed: Iterable[tuple[int, bool]], unknown: int) -> Rate:
    groups: dict[Hashable, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for scenario, happened in observed:
        successes, n = groups[scenario]
        groups[scenario] = (successes + happened, n + 1)
    count, n = sum(each for each, _ in groups.values()), sum(each for _, each in groups.values())
    return Rate(count, stats.clustered_rate(groups), stats.bounds(count, n - count, unknown))
