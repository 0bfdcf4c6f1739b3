"""The charts of a report as inline SVG: all scores over the order of telling, and the curves of a section."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape
from typing import TypeVar

from fanfold.ledger import RunView
from fanfold.summary import Curve

X = TypeVar("X")

MOST_POINTS = 2000
#: Greater scores are drawn as this one, so that differences of scores stay finite.
LARGEST = 1e300
WIDTH, HEIGHT = 900, 320
LEFT, RIGHT, TOP, BOTTOM, LEGEND = 70, 15, 15, 35, 15


def score_chart(view: RunView, trials: int) -> str:
    """An `<svg>` of at most `MOST_POINTS` dots and one line; a sentence where there are no scores yet."""
    every = max(1, -(-trials // MOST_POINTS))
    dots: list[tuple[int, float]] = []
    steps: list[tuple[int, float]] = []
    for order, score, best, better in _scores(view):
        if order % every == 0 or better:
            dots.append((order, score))
        if better:
            steps.append((order, best))
    if not dots:
        return "<p>No scores yet.</p>"
    dots = _thin(dots)
    steps = _thin(steps)
    low, high = _range([score for _, score in dots], steps[0][1] if steps else None)
    last = max(1, trials - 1)

    def x(order: int) -> str:
        return f"{LEFT + (WIDTH - LEFT - RIGHT) * order / last:.1f}"

    def y(score: float) -> str:
        share = (min(max(score, low), high) - low) / (high - low)
        return f"{HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share:.1f}"

    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="scores over the order of telling">']
    for value in (low + (high - low) * quarter / 4 for quarter in range(5)):
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(value)}" y2="{y(value)}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y(value)}" text-anchor="end" dy="4">{value:.4g}</text>')
    marks = sorted({0, trials // 2, trials - 1})
    parts += [f'<text x="{x(mark)}" y="{HEIGHT - 10}" text-anchor="middle">{mark + 1}</text>' for mark in marks]
    parts += [f'<circle class="dot" cx="{x(order)}" cy="{y(score)}" r="2"/>' for order, score in dots]
    if steps:
        line = f"M{x(steps[0][0])} {y(steps[0][1])}"
        line += "".join(f"H{x(order)}V{y(best)}" for order, best in steps[1:])
        parts.append(f'<path class="best" d="{line}H{x(last)}"/>')
    return "\n".join([*parts, "</svg>"])


#: Curves of one chart, at most: more cannot be told apart.
MOST_CURVES = 6


def line_chart(curves: Sequence[Curve], across: str) -> str:
    """An `<svg>` of the first few curves, with a legend; nothing where there is no point to draw."""
    drawn = [(curve.name, drawable(curve.points)) for curve in curves[:MOST_CURVES]]
    points = [point for _, line in drawn for point in line]
    if not points:
        return ""
    left, right = min(x for x, _ in points), max(x for x, _ in points)
    low, high = min(y for _, y in points), max(y for _, y in points)
    margin = (high - low) * 0.05 or max(abs(high), 1.0) * 0.05
    low, high, width = low - margin, high + margin, (right - left) or 1.0

    def place(x: float, y: float) -> tuple[float, float]:
        across_share, up_share = (x - left) / width, (y - low) / (high - low)
        return LEFT + (WIDTH - LEFT - RIGHT) * across_share, HEIGHT - BOTTOM - (
            HEIGHT - TOP - LEGEND - BOTTOM
        ) * up_share

    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(across, quote=True)}">']
    for value in (low + (high - low) * quarter / 4 for quarter in range(5)):
        y = place(left, value)[1]
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y:.1f}" text-anchor="end" dy="4">{value:.4g}</text>')
    for mark in (left, right):
        anchor = "start" if mark == left else "end"
        parts.append(f'<text x="{place(mark, low)[0]:.1f}" y="{HEIGHT - 10}" text-anchor="{anchor}">{mark:,.6g}</text>')
    parts.append(f'<text x="{WIDTH // 2}" y="{HEIGHT - 10}" text-anchor="middle">{escape(across)}</text>')
    for number, (_, line) in enumerate(drawn):
        path = " ".join(f"{'L' if at else 'M'}{x:.1f} {y:.1f}" for at, (x, y) in enumerate(place(*p) for p in line))
        parts.append(f'<path class="curve c{number}" d="{path}"/>' if line else "")
    names = (f'<tspan class="c{number}" dx="12">{escape(name)}</tspan>' for number, (name, _) in enumerate(drawn))
    parts.append(f'<text x="{LEFT}" y="{TOP}">{"".join(names)}</text>')
    return "\n".join([*parts, "</svg>"])


def drawable(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points that can be drawn, no more than can be seen."""
    return _thin([(float(x), min(max(float(y), -LARGEST), LARGEST)) for x, y in points if math.isfinite(x + y)])


def _scores(view: RunView) -> Iterator[tuple[int, float, float, bool]]:
    """Order, score, best so far and whether this trial raised it; only complete trials raise it."""
    best: float | None = None
    for order, exact, complete in view.scores():
        score = min(max(exact, -LARGEST), LARGEST)
        better = complete and (best is None or score > best)
        if better:
            best = score
        yield order, score, score if best is None else best, better


def _thin(points: list[X]) -> list[X]:
    """Evenly chosen points, and the last one."""
    every = -(-len(points) // (MOST_POINTS - 1))
    return points if len(points) <= MOST_POINTS else [*points[:-1:every], points[-1]]


def _range(scores: list[float], first_best: float | None) -> tuple[float, float]:
    """The scores worth showing: a few very bad ones are drawn at the lower edge rather than flatten all others."""
    ordered = sorted(scores)
    low, high = ordered[len(ordered) // 20], ordered[-1]
    if first_best is not None:
        low = min(low, first_best)
    margin = (high - low) * 0.05 or max(abs(high), 1.0) * 0.05
    return low - margin, high + margin
