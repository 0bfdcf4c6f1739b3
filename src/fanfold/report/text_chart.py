"""The curves of a section as characters, for a terminal without colours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from fanfold.summary import Curve

#: One mark for each curve, and the left edge.
PLAIN = ("#o.+x*", "|")
FANCY = ("●○·▲□◆", "┤")
#: Columns and rows of the plot itself; with its scale a line has less than 80 characters.
WIDTH, HEIGHT = 64, 6
#: Curves of one chart, at most: more cannot be told apart; and greater values are drawn as this one.
MOST_CURVES, LARGEST = 6, 1e300


def text_chart(curves: Sequence[Curve], across: str, encoding: str | None = "utf-8", height: int = HEIGHT) -> str:
    """The first few curves, with scales and a legend of the last values; nothing where there is no point to draw.

    `height` is in rows, without the scale below.  Where curves meet, the first one is seen.  Only ASCII is used where
    `encoding` has no other marks.
    """
    lines = [(curve.name, _drawable(curve.points)) for curve in curves[:MOST_CURVES]]
    points = [point for _, line in lines for point in line]
    if not points:
        return ""
    marks, edge = FANCY if _can_show(FANCY[0], encoding) else PLAIN
    left, right = min(x for x, _ in points), max(x for x, _ in points)
    low, high = min(y for _, y in points), max(y for _, y in points)

    def place(x: float, y: float) -> tuple[float, float]:
        column = (x - left) / ((right - left) or 1.0) * (WIDTH - 1)
        return column, (y - low) / (high - low) * (height - 1) if high > low else height // 2

    canvas = [[" "] * WIDTH for _ in range(height)]
    for mark, (_, line) in reversed(list(zip(marks, lines))):
        for column, row in _strokes([place(x, y) for x, y in line]):
            canvas[row][column] = mark
    scale = {height - 1: f"{high:.4g}", 0: f"{low:.4g}"} if high > low else {height // 2: f"{low:.4g}"}
    margin = max(map(len, scale.values()))
    rows = [f"{scale.get(row, ''):>{margin}} {edge}{''.join(canvas[row])}".rstrip() for row in range(height)]
    first, last = f"{left:,.6g}", f"{right:,.6g}"
    legend = "  ".join(f"{mark} {name} {line[-1][1]:.3g}" for mark, (name, line) in zip(marks, lines) if line)
    return "\n".join(
        [
            *reversed(rows),
            f"{'':{margin}}  {first}{across:^{max(0, WIDTH - len(first) - len(last))}}{last}",
            legend,
        ]
    )


def _strokes(places: Sequence[tuple[float, float]]) -> list[tuple[int, int]]:
    """The cells (column, row) of a line through these places, without gaps."""
    cells = [(round(column), round(row)) for column, row in places[:1]]
    for (x, y), (column, row) in pairwise(places):
        steps = max(1, math.ceil(abs(column - x)), math.ceil(abs(row - y)))
        cells += [(round(x + (column - x) * n / steps), round(y + (row - y) * n / steps)) for n in range(1, steps + 1)]
    return cells


def _drawable(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points that can be drawn."""
    return [(float(x), min(max(float(y), -LARGEST), LARGEST)) for x, y in points if math.isfinite(x + y)]


def _can_show(text: str, encoding: str | None) -> bool:
    try:
        text.encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
