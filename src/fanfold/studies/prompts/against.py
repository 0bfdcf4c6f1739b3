"""Searches side by side with the same calls: how good the best prompt of each was after how many of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fanfold.prompting.breeding import genome_of
from fanfold.prompting.genome import Genome
from fanfold.studies.prompts.history import SearchHistory
from fanfold.summary import Curve, Section
from fanfold.types import Result

#: Shares of the calls after which the best prompt so far is scored on held-out problems.
MARKS = (1 / 8, 1 / 4, 1 / 2, 3 / 4)


@dataclass(frozen=True)
class Course:
    """The prompts that a search would have returned after so many calls; the last is the one it did return."""

    name: str
    points: tuple[tuple[int, Genome], ...]
    #: What the last one scored in the search, and among the finalists.
    train: Result[Any] | None = None
    validation: Result[Any] | None = None

    @property
    def winner(self) -> Genome:
        return self.points[-1][1]


def course(name: str, search: SearchHistory, winner: Genome, validated: Mapping[Genome, Result[Any]]) -> Course:
    """What a search, in the order of telling, would have led to after some of all calls.

    The best so far is the prompt with the highest score on all problems, before there is one the first of all.
    """
    calls = cells(search.results) + cells(validated.values())
    marks = [round(calls * share) for share in MARKS]
    points: list[tuple[int, Genome]] = []
    made, best = 0, None
    for result in search.results:
        made += len(result.outcomes)
        while marks and made > marks[0]:
            points += [] if best is None else [(marks[0], genome_of(best))]
            marks.pop(0)
        if best is None or (result.complete and (result.score or 0.0) > (best.score or 0.0)):
            best = result
    return Course(name, (*points, (calls, winner)), search.training(winner), validated.get(winner))


def cells(results: Iterable[Result[Any]]) -> int:
    """How many evaluations these results hold."""
    return sum(len(result.outcomes) for result in results)


def held_out_curves(
    courses: Sequence[Course], flat: Mapping[str, Genome | None], accuracy: Mapping[Genome, float | None]
) -> list[Section]:
    """Held-out accuracy against calls, in steps; `flat` are prompts that take no calls.  None without a rival."""
    if len(courses) < 2:
        return []
    most = max(course.points[-1][0] for course in courses)
    curves = [Curve(course.name, tuple(_steps(course, accuracy))) for course in courses]
    for name, genome in flat.items():
        if genome is not None and (level := accuracy.get(genome)) is not None:
            curves.append(Curve(name, ((0.0, level), (float(most), level))))
    text = "what each search would have returned after so many calls; scored when all searches had ended"
    rows = [(course.name, calls, accuracy.get(genome)) for course in courses for calls, genome in course.points]
    columns = ("search", "calls", "held-out")
    title, up = "Held-out accuracy against calls", "held-out accuracy"
    return [Section(title, text, columns, tuple(rows), tuple(curves), "calls", "", up)]


def _steps(course: Course, accuracy: Mapping[Genome, float | None]) -> Iterable[tuple[float, float]]:
    before: float | None = None
    for calls, genome in course.points:
        level = accuracy.get(genome)
        if level is not None:
            if before is not None and before != level:
                yield float(calls), before
            yield float(calls), level
            before = level
