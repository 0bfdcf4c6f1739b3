"""Pictures as data: what a study wants drawn, one function for each kind of drawing.

The page of a run draws them.  Where nothing can be drawn, the text and the table of the section say the same in words.
Rows are mappings: a key that is left out gets its default, an unknown one is refused, and a number that is not finite
counts as not known (None).
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from fanfold.errors import ConfigError, nearest

Row: TypeAlias = Mapping[str, Any]


class Estimated(Protocol):
    """An estimate with its limits, such as `fanfold.stats.Interval`."""

    @property
    def estimate(self) -> float | None: ...
    @property
    def low(self) -> float: ...
    @property
    def high(self) -> float: ...
    @property
    def n(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Drawing:
    """One picture: its kind, and what is drawn, as JSON-like data."""

    kind: str
    data: Mapping[str, Any]


#: The kinds that the page draws.
KINDS = ("diff", "intervals", "scatter", "grid", "conversation", "layers", "replay", "images", "bars")


def diff(before: str, after: str, *, before_name: str = "before", after_name: str = "after") -> Drawing:
    """Two texts, and which words changed from one to the other."""
    return Drawing("diff", {"before": before, "after": after, "before_name": before_name, "after_name": after_name})


def intervals(rows: Iterable[Row], *, unit: str = "", low: float | None = None, high: float | None = None) -> Drawing:
    """Estimates (`name`, `value`, `low`, `high`, `n`) on one axis, which may have fixed ends."""
    checked = _rows("intervals", rows, name="", value=None, low=None, high=None, n=None)
    return Drawing("intervals", {"unit": unit, "low": low, "high": high, "rows": checked})


def dot(name: str, interval: Estimated) -> Row:
    """An interval of `fanfold.stats` as a row of `intervals`."""
    return {"name": name, "value": interval.estimate, "low": interval.low, "high": interval.high, "n": interval.n}


def scatter(points: Iterable[Row], *, x: str, y: str) -> Drawing:
    """Points (`x`, `y`, `name`, `front`, `trial`); those on the Pareto front (`front`) are connected."""
    checked = _rows("scatter", points, x=None, y=None, name="", front=False, trial=None)
    placed = [point for point in checked if point["x"] is not None and point["y"] is not None]
    return Drawing("scatter", {"x": x, "y": y, "points": placed})


def grid(
    rows: Sequence[str],
    columns: Sequence[str],
    values: Sequence[Sequence[float | None]],
    *,
    low: float,
    high: float,
    across: str = "",
    down: str = "",
    trials: Sequence[int] | None = None,
) -> Drawing:
    """A heat map with a fixed scale, such as a confusion matrix.  `trials` are those that the rows belong to."""
    if len(values) != len(rows) or any(len(line) != len(columns) for line in values):
        raise ConfigError(f"a grid of {len(rows)} rows and {len(columns)} columns needs as many values")
    if trials is not None and len(trials) != len(rows):
        raise ConfigError(f"a grid of {len(rows)} rows needs as many trials, not {len(trials)}")
    cells = [[_finite(value) for value in line] for line in values]
    names = {"rows": list(rows), "columns": list(columns), "across": across, "down": down}
    return Drawing("grid", dict(**names, values=cells, low=low, high=high, trials=trials and list(trials)))


def conversation(people: Sequence[str], messages: Iterable[Row]) -> Drawing:
    """Messages (`who`: the place in `people`, `text`, `marks`, `note`); a mark is `start`, `end` and `why`.

    Places are counted in characters, as Python does.
    """
    checked = _rows("conversation", messages, who=0, text="", marks=(), note="")
    for message in checked:
        if not 0 <= message["who"] < len(people):
            raise ConfigError(f"a message is from person {message['who']}, but there are {len(people)}")
        message["marks"] = _rows("conversation", message["marks"], start=0, end=0, why="")
        size = len(message["text"])
        if any(not 0 <= mark["start"] < mark["end"] <= size for mark in message["marks"]):
            raise ConfigError(f"a mark must lie within the {size} characters of its message")
    return Drawing("conversation", {"people": list(people), "messages": checked})


def layers(layers: Iterable[Row]) -> Drawing:
    """The layers of a network (`name`, `kind`, `shape` of the output, `parameters`, `note`), from input to output."""
    return Drawing("layers", {"layers": _rows("layers", layers, name="", kind="", shape=(), parameters=0, note="")})


def replay(
    nodes: Iterable[Row], links: Iterable[tuple[str, str]], states: Mapping[str, str], steps: Iterable[Row]
) -> Drawing:
    """An episode on a network.

    A node has `id`, `name` and `group`.  A step has a `title`, the `states` of nodes that changed or all of them,
    `moves` (`who`, `action`, `node`) and a `value`, such as its reward.  `states` gives the meaning of each state's
    name; in the order of their names they go from good to bad.
    """
    known = _rows("replay", nodes, id="", name="", group="")
    ids = {node["id"] for node in known}
    taken = _rows("replay", steps, title="", states={}, moves=(), value=None)
    for step in taken:
        step["moves"] = _rows("replay", step["moves"], who="", action="", node=None)
        strange = {*step["states"], *(move["node"] for move in step["moves"] if move["node"] is not None)} - ids
        if strange or (strange := {*step["states"].values()} - states.keys()):
            raise ConfigError(f"a step of a replay names {sorted(map(str, strange))[0]!r}, which is not defined")
    pairs = [[a, b] for a, b in links if a in ids and b in ids]
    return Drawing("replay", {"nodes": known, "links": pairs, "states": dict(states), "steps": taken})


def images(width: int, height: int, images: Iterable[Row]) -> Drawing:
    """Small grey images (`pixels`: bytes, row by row, 0 is black; `caption`; `wrong`)."""
    checked = _rows("images", images, pixels=b"", caption="", wrong=False)
    for image in checked:
        if len(image["pixels"]) != width * height:
            raise ConfigError(f"an image of {width} x {height} has that many bytes, not {len(image['pixels'])}")
        image["pixels"] = base64.b64encode(image["pixels"]).decode()
    return Drawing("images", {"width": width, "height": height, "images": checked})


def bars(rows: Iterable[Row], *, unit: str = "") -> Drawing:
    """Bars from zero (`name`, `value`, `low`, `high`, `note`)."""
    return Drawing(
        "bars", {"unit": unit, "bars": _rows("bars", rows, name="", value=None, low=None, high=None, note="")}
    )


def _rows(kind: str, rows: Iterable[Row], /, **defaults: Any) -> list[dict[str, Any]]:
    checked = []
    for row in rows:
        for key in row.keys() - defaults.keys():
            raise ConfigError(f"{key!r} is not known in a drawing of {kind}{nearest(key, defaults)}")
        checked.append({key: _finite(row.get(key, default)) for key, default in defaults.items()})
    return checked


def _finite(value: Any) -> Any:
    """The value; None for a number that is not finite."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
