"""The chart of a report: all scores and the best so far, over the order of telling, as inline SVG."""

from __future__ import annotations

from collections.abc import Iterator

from fanfold.ledger import Ledger

MOST_POINTS = 2000
#: Greater scores are drawn as this one, so that differences of scores stay finite.
LARGEST = 1e300
WIDTH, HEIGHT = 900, 320
LEFT, RIGHT, TOP, BOTTOM = 70, 15, 15, 35


def score_chart(ledger: Ledger, run: int, trials: int) -> str:
    """An `<svg>` of at most `MOST_POINTS` dots and one line; a sentence where there are no scores yet."""
    every = max(1, -(-trials // MOST_POINTS))
    dots: list[tuple[int, float]] = []
    steps: list[tuple[int, float]] = []
    for order, score, best, better in _scores(ledger, run):
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


def _scores(ledger: Ledger, run: int) -> Iterator[tuple[int, float, float, bool]]:
    """Order, score, best so far and whether this trial raised it; only complete trials raise it."""
    sql = (
        "SELECT told, score, dropped FROM trial WHERE run = ? AND told IS NOT NULL AND score IS NOT NULL ORDER BY told"
    )
    best: float | None = None
    for order, exact, dropped in ledger.read(sql, (run,)):
        score = min(max(exact, -LARGEST), LARGEST)
        better = dropped is None and (best is None or score > best)
        if better:
            best = score
        yield order, score, score if best is None else best, better


def _thin(points: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Every so manieth point, and the last."""
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
