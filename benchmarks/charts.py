"""Draws the tables of the benchmarks as SVG files in docs/images: `python benchmarks/charts.py`."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
WIDTH, LABELS, ROW, TOP, BOTTOM, RIGHT = 760, 330, 30, 44, 52, 70
OURS, OTHERS, INK, LINE = "#0f766e", "#94a3b8", "#6f7d92", "#94a3b855"
NUMBER = r"-?[\d,]*\.?\d+"


@dataclass(frozen=True)
class Bar:
    """A row of a table: what it is about, its value, and its interval if the table has one."""

    name: str
    value: float
    text: str
    low: float
    high: float

    @property
    def ours(self) -> bool:
        return any(word in self.name.lower() for word in ("fanfold", "critic", "h200, 32", "h200, 64", "h200, 128"))


def bars(text: str, column: str, beside: str | None = None) -> Iterator[Bar]:
    """The numbers of a column, from the first table of a page that has it; the column `beside` joins the name."""
    place, other = -1, -1
    for line in text.splitlines():
        cells = [re.sub(r"[`*]", "", cell).strip() for cell in line.strip().strip("|").split("|")]
        if place < 0:
            if line.startswith("|") and column in cells:
                place, other = cells.index(column), cells.index(beside) if beside else -1
        elif not line.startswith("|"):
            return
        elif (match := re.match(rf"({NUMBER})(?: \[({NUMBER}), ({NUMBER})\])?", cells[place])) is not None:
            value, low, high = (float((number or match[1]).replace(",", "")) for number in match.groups())
            name = f"{cells[0]} ({cells[other]})" if beside else cells[0]
            yield Bar(name, value, match[1], low, high)


def ticks(low: float, high: float) -> list[float]:
    """Round numbers that cover a range, about five of them."""
    rough = (high - low) / 5
    power = 10 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [number * step for number in range(first, last + 1)]


def draw(rows: list[Bar], title: str, axis: str, high: float | None = None) -> str:
    """A bar chart: a row for each bar, its value behind it, a titled axis with round ticks."""
    top = high if high is not None else max(max(row.high for row in rows), 0.0)
    marks = ticks(min(min(row.low for row in rows), 0.0), top)
    span = (WIDTH - LABELS - RIGHT) / (marks[-1] - marks[0])
    height = TOP + ROW * len(rows) + BOTTOM
    foot = TOP + ROW * len(rows)

    def across(value: float) -> float:
        return round(LABELS + (value - marks[0]) * span, 1)

    parts = [f'<text x="0" y="20" class="title">{escape(title)}</text>']
    for mark in marks:
        parts.append(f'<path d="M{across(mark)} {TOP - 6}V{foot}" stroke="{LINE}"/>')
        parts.append(f'<text x="{across(mark)}" y="{foot + 18}" text-anchor="middle">{mark:,g}</text>')
    middle = across((marks[0] + marks[-1]) / 2)
    parts.append(f'<text x="{middle}" y="{foot + 40}" text-anchor="middle">{escape(axis)}</text>')
    for number, row in enumerate(rows):
        y = TOP + ROW * number
        left, right = sorted((across(0.0), across(row.value)))
        colour = OURS if row.ours else OTHERS
        parts.append(f'<text x="{LABELS - 10}" y="{y + 17}" text-anchor="end">{escape(shortened(row.name))}</text>')
        parts.append(f'<rect x="{left}" y="{y + 3}" width="{round(right - left, 1)}" height="20" fill="{colour}"/>')
        if row.low < row.high:
            parts.append(f'<path d="M{across(row.low)} {y + 13}H{across(row.high)}" class="interval"/>')
        end = max(right, across(row.high)) + 6
        parts.append(f'<text x="{end}" y="{y + 17}" class="value">{row.text}</text>')
    style = f"text{{font:13px system-ui,sans-serif;fill:{INK}}}.title{{font-weight:600;font-size:15px}}"
    style += f".value{{font-weight:600}}.interval{{stroke:{INK};stroke-width:2}}"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">'
    return "\n".join([head, f"<title>{escape(title)}</title><style>{style}</style>", *parts, "</svg>", ""])


def shortened(name: str, most: int = 46) -> str:
    return name if len(name) <= most else name[: most - 3].rsplit(" ", 1)[0] + " ..."


def charts() -> Iterator[tuple[Path, str]]:
    """Every chart: where it goes, and what is in it."""
    plans: dict[str, dict[str, Any]] = tomllib.loads((ROOT / "benchmarks" / "charts.toml").read_text())
    for name, plan in plans.items():
        rows = list(bars((ROOT / plan["file"]).read_text(), plan["column"], plan.get("beside")))
        yield IMAGES / f"bench-{name}.svg", draw(rows, plan["title"], plan["axis"], plan.get("high"))


if __name__ == "__main__":
    IMAGES.mkdir(exist_ok=True)
    for path, image in charts():
        path.write_text(image)
        print(path.relative_to(ROOT))
