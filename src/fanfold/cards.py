"""Small pieces of HTML for notebooks: self-contained, escaped, readable on a light and on a dark page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from fanfold.redaction import redact
from fanfold.texts import number

_WIDTH, _HEIGHT, _LEFT, _BELOW = 360, 120, 56, 30
_MOST_POINTS = 500


def card(title: str, text: str, facts: Mapping[str, str], chart: str = "") -> str:
    """A titled box with a sentence, a table of facts, and a picture beside it."""
    rows = "".join(
        f'<tr style="vertical-align:top"><td style="text-align:left;opacity:.7">{_safe(name)}</td>'
        f'<td style="text-align:left;white-space:pre-wrap">{_safe(value)}</td></tr>'
        for name, value in facts.items()
    )
    return (
        f'<div style="max-width:60em"><b>{_safe(title)}</b><p style="margin:.2em 0 .6em">{_safe(text)}</p>'
        '<div style="display:flex;flex-wrap:wrap;gap:1.5em;align-items:flex-start">'
        f'<table style="color:inherit">{rows}</table>{chart}</div></div>'
    )


def picture(points: Sequence[tuple[float, float]], up: str, across: str) -> str:
    """A line that rises in steps, as SVG with titled axes; nothing where there are fewer than two points."""
    finite = [point for point in points if all(map(math.isfinite, point))]
    kept = finite[:: math.ceil(len(finite) / _MOST_POINTS) or 1]
    points = kept if not finite or kept[-1] == finite[-1] else [*kept, finite[-1]]
    if len(points) < 2:
        return ""
    left, right = points[0][0], points[-1][0]
    low, high = min(y for _, y in points), max(y for _, y in points)
    across_one = (_WIDTH - _LEFT - 8) / ((right - left) or 1.0)
    up_one = (_HEIGHT - _BELOW - 20) / ((high - low) or 1.0)
    floor = _HEIGHT - _BELOW - (0 if high > low else (_HEIGHT - _BELOW - 20) / 2)
    path = ""
    for x, y in points:
        h, v = _LEFT + (x - left) * across_one, floor - (y - low) * up_one
        path += f"H{h:.1f}V{v:.1f}" if path else f"M{h:.1f} {v:.1f}"
    line = _HEIGHT - _BELOW + 4

    def words(x: float, y: float, text: str, anchor: str) -> str:
        return f'<text x="{x:g}" y="{y:.1f}" text-anchor="{anchor}">{_safe(text)}</text>'

    labels = [
        words(_LEFT - 6, floor + 4, number(low), "end"),
        words(_LEFT - 6, floor - (high - low) * up_one + 4, number(high), "end") if high > low else "",
        words(_LEFT, 10, up, "start"),
        words(_LEFT, line + 14, number(left), "start"),
        words((_LEFT + _WIDTH) / 2, line + 14, across, "middle"),
        words(_WIDTH - 8, line + 14, number(right), "end"),
    ]
    return (
        f'<svg width="{_WIDTH}" height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{_safe(up)}" font-size="11" fill="currentColor">'
        f'<path d="M{_LEFT} 16V{line}H{_WIDTH - 8}" fill="none" stroke="currentColor" stroke-opacity=".3"/>'
        f'<path d="{path}" fill="none" stroke="#2f7ed8" stroke-width="2"/>{"".join(labels)}</svg>'
    )


def _safe(text: str) -> str:
    return escape(redact(text))
