"""What several pages show: a run's frame, trials and cells in one line, sections."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping
from typing import Any

from fanfold.ledger import EvaluationRow, RunView, TrialRow
from fanfold.plugins import Presentation, described, presentation_of, target_of
from fanfold.stop import explained
from fanfold.summary import Section
from fanfold.texts import number

Payload = dict[str, Any]

#: The most rows of a table and points of a curve that a page gets, and the most characters of a text.
MOST_ROWS, MOST_POINTS, MOST_TEXT = 2000, 2000, 200_000


class ShownRun:
    """A run together with its study's words for it."""

    def __init__(self, view: RunView, ledger: int = 0) -> None:
        self.view, self.ledger = view, ledger
        self.info = view.info
        meta = self.info.meta
        self.target = target_of(view) if "belongs_to" in meta else meta.get("target")
        self.study = _presentation(self.target) if isinstance(self.target, str) else Presentation()

    @property
    def unit(self) -> str:
        return self.study.unit or "candidate"

    @property
    def reason(self) -> str:
        """Why the run is not running, as a person would say it."""
        return explained(self.info.reason, self.unit)

    def best(self) -> TrialRow | None:
        """The best candidate; None where no trial is better than another."""
        return self.view.best() if self.study.unit is None else None

    @property
    def study_name(self) -> str:
        """The installed study that was run, or the file it came from, or what its code calls it."""
        return self.target if isinstance(self.target, str) else str(self.info.identity.get("study") or "python")

    def score(self, score: float | None) -> Any:
        """A score as the evaluator gave it."""
        return finite(self.info.objective.natural(score))

    def headline(self) -> str:
        summary = self.view.summary()
        return (described(self.study.headline, summary.figures) if summary is not None else None) or ""

    def brief(self, row: TrialRow) -> str:
        return self.study.brief_of(self.study.candidate_of(self.view, row))

    def text(self, row: TrialRow) -> str:
        return clipped(self.study.text_of(self.study.candidate_of(self.view, row)))

    def trial(self, row: TrialRow) -> Payload:
        """A trial in one line."""
        origin = row.origin if isinstance(row.origin, dict) else {}
        return {
            "trial": row.number,
            "order": row.order,
            "score": self.score(row.score),
            "score_text": number(self.score(row.score)),
            "dropped": row.dropped,
            "cost": finite(row.cost),
            "evaluations": row.evaluations,
            "failures": row.failures,
            "brief": self.brief(row),
            "by": str(origin.get("by", ""))[:80],
            "parents": parents(row),
        }


@functools.cache
def _presentation(target: str) -> Presentation:
    """Looked up once: what is installed does not change while a server runs."""
    return presentation_of({"target": target})


def parents(row: TrialRow) -> list[int]:
    """The trials that a candidate was made from."""
    named = row.origin.get("parents") if isinstance(row.origin, dict) else None
    return [parent for parent in named if type(parent) is int] if isinstance(named, list) else []


def cell(shown: ShownRun, row: EvaluationRow) -> Payload:
    """An evaluation in one line."""
    return {
        "position": row.position,
        "case": row.case,
        "score": shown.score(row.score),
        "score_text": number(shown.score(row.score)),
        "failure": row.failure,
        "seconds": finite(row.seconds),
        "cost": finite(row.cost),
        "reused": row.reused,
        "tries": row.tries,
    }


def comments(view: RunView, trial: int | None = None) -> list[Payload]:
    """What people wrote about a run or a trial."""
    return [
        {"id": comment.id, "trial": comment.trial, "at": comment.at, "text": clipped(comment.text, 20_000)}
        for comment in view.comments(trial)[-200:]
    ]


def sections(of: Iterable[Section]) -> list[Payload]:
    """Sections as the page draws them; empty ones are left out."""
    return [_section(part) for part in of if part.text or part.rows or part.curves or part.drawings]


def _section(section: Section) -> Payload:
    return {
        "title": section.title,
        "text": clipped(section.text),
        "columns": [str(column) for column in section.columns],
        "rows": [[_cell(value) for value in row] for row in section.rows[:MOST_ROWS]],
        "curves": [
            {
                "name": curve.name,
                "points": [[finite(x), finite(y)] for x, y in thinned(curve.points)],
                "low": [finite(y) for y in thinned(curve.low)],
                "high": [finite(y) for y in thinned(curve.high)],
            }
            for curve in section.curves
        ],
        "across": section.across,
        "up": section.up,
        "drawings": [{"kind": drawing.kind, "data": drawing.data} for drawing in section.drawings],
    }


def _cell(value: Any) -> str | float | None:
    if isinstance(value, bool) or not isinstance(value, str | int | float | None):
        value = str(value)
    return clipped(value) if isinstance(value, str) else finite(value)


def thinned(points: Any, most: int = MOST_POINTS) -> list[Any]:
    """Evenly chosen points, and the last one."""
    every = -(-len(points) // (most - 1))
    return list(points) if len(points) <= most else [*points[:-1:every], points[-1]]


def clipped(text: str, most: int = MOST_TEXT) -> str:
    """A text that fits on a page; what is cut off is said."""
    return text if len(text) <= most else f"{text[:most]} … ({len(text):,} characters)"


def finite(value: Any) -> Any:
    """A number that JSON has and a page can draw; None for any other."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, int) and abs(value) < 2**53 else None


def plain(value: Mapping[str, Any]) -> Payload:
    """Settings as JSON."""
    import json

    loaded: Payload = json.loads(json.dumps(value, default=str))
    return loaded
