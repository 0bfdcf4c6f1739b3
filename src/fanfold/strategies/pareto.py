"""Several objectives at once: fronts of points that no other dominates, and a ranking by them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def merits(points: Sequence[tuple[float, ...]]) -> list[float]:
    """Non-dominated sorting as one number each: an earlier front comes first, and in it who has more room around."""
    found = [0.0] * len(points)
    for place, front in enumerate(fronts(points)):
        room = _room([points[at] for at in front])
        for at, space in zip(front, room):
            found[at] = -place + 0.9 * space
    return found


def fronts(points: Sequence[tuple[float, ...]]) -> Iterator[list[int]]:
    """The indices of the points by front: those no other dominates, those only the first front does, and so on."""
    left = sorted(range(len(points)), key=points.__getitem__, reverse=True)
    while left:
        front: list[int] = []
        for at in left:  # whoever dominates a point stands before it, and so does somebody of the front that does
            if not any(_dominates(points[other], points[at]) for other in front):
                front.append(at)
        yield sorted(front)
        members = set(front)
        left = [at for at in left if at not in members]


def _dominates(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    return a != b and all(x >= y for x, y in zip(a, b))


def _room(points: Sequence[tuple[float, ...]]) -> list[float]:
    """How lonely each point is in its front, between 0 and 1; the ends of each objective are as lonely as can be."""
    room = [0.0] * len(points)
    for axis in range(len(points[0])):
        order = sorted(range(len(points)), key=lambda at: points[at][axis])
        span = points[order[-1]][axis] - points[order[0]][axis]
        for before, at, after in zip([None, *order[:-1]], order, [*order[1:], None]):
            if before is None or after is None or span == 0:
                room[at] += 1.0
            else:
                room[at] += (points[after][axis] - points[before][axis]) / span
    return [min(1.0, value / len(points[0])) for value in room]
