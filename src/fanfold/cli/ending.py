"""The end of a run on one screen: what was found, a chart, what it cost, and what to do next."""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from fanfold.cli.output import ledger_flag, say, screen_width
from fanfold.cli.show import rows_table
from fanfold.plugins import Presentation, described, presentation_of
from fanfold.report.text_chart import text_chart
from fanfold.run_result import Run
from fanfold.stop import explained
from fanfold.summary import Curve, Section
from fanfold.texts import count, duration, number, pretty, shortened

#: Rows of a screen, and how many of them a part may take.
SCREEN, WINNER, TABLE, NOTES, CHART, LEAST = 24, 6, 5, 3, 4, 3
#: Characters that a text in a table keeps.
READABLE = 16


def say_ending(run: Run[Any], candidate: Any, ledger: str, report: str | None) -> bool:
    """Print what a run found; whether it has a result at all."""
    info = run.ledger.run(run.id)
    shown = presentation_of(info.meta)
    fruitful = run.best_or_none is not None if shown.unit is None else info.evaluations > info.failures
    top = _wrapped(_head(run, shown, fruitful))
    bottom = [*_wrapped(_costs(run, shown)), *_next(run, shown, ledger), *([f"report: {report}"] if report else [])]
    notes = _notes(run, shown)
    middle: list[str] = []
    for block in _parts(run, shown, candidate, fruitful):
        left = SCREEN - len(top) - len(middle) - len(notes) - len(bottom) - 2
        if block and left >= min(len(block), LEAST):
            middle += ["", *block[:left]]
        elif left >= 0 and len(block) > 1 and block[1].startswith("  "):  # words, which a line can begin
            notes.append(shortened(f"{block[0]}: {' '.join(block[1:])}", screen_width()))
    say("\n".join([*top, *middle, "", *notes, *bottom]))
    return fruitful


def _head(run: Run[Any], shown: Presentation, fruitful: bool) -> Iterator[str]:
    reason, progress = explained(run.reason, shown.unit), run.progress
    if progress.only_failures:
        yield f"{run.id} failed: none of its {count(progress.evaluations, 'evaluation')} gave a result. {reason}"
    else:
        yield f"{run.id}: {reason}"
    sentence = None if run.summary is None else described(shown.headline, run.summary.figures)
    if sentence:
        yield sentence
    elif not fruitful:
        yield f"no {shown.unit or 'candidate'} has a complete result"
    elif shown.unit is None:
        others = "".join(f", {name} {number(score)}" for name, score in run.best.scores.items())
        yield f"best score {number(run.best.score)}, trial {run.best.number}{others}"


def _parts(run: Run[Any], shown: Presentation, candidate: Any, fruitful: bool) -> Iterator[list[str]]:
    """The blocks between the headline and the costs, the most important first."""
    sections = () if run.summary is None else run.summary.sections
    if fruitful and shown.unit is None and not (shown.chooses and sections):
        section = described(shown.candidate, candidate) or Section("Candidate", pretty(candidate))
        yield _block(section, WINNER)
    elif sections:
        yield _block(sections[0], WINNER)
        sections = sections[1:]
    courses = [section for section in sections if section.curves]  # the study's own, also where nothing moved
    moving = [section for section in courses if _moves(section)]
    if chart := _chart(moving[0]) if moving else [] if courses else _history(run, shown):
        yield chart
    for section in sorted(sections, key=lambda section: bool(section.rows and section.brief is None)):
        if not section.curves and not _is_note(section) and (block := _block(section, TABLE)):
            yield block


def _notes(run: Run[Any], shown: Presentation) -> list[str]:
    """What a study says in one line, beside what it found."""
    sections = () if run.summary is None else run.summary.sections
    first = 1 if shown.chooses or shown.unit is not None else 0  # the winner itself is above
    notes = [section for section in sections[first:] if _is_note(section)]
    return _wrapped(f"{section.title}: {section.brief}" for section in notes[:NOTES])


def _is_note(section: Section) -> bool:
    return bool(section.brief) and "\n" not in (section.brief or "") and not section.curves


def _block(section: Section, most: int) -> list[str]:
    """A section in a few rows: its table without the words before it, or its words."""
    if section.brief is not None:
        section = replace(section, text=section.brief, rows=())
    if not section.text and not section.rows:
        return []
    if not section.rows and "\n" not in section.text and len(f"{section.title}: {section.text}") <= screen_width():
        return [f"{section.title}: {section.text}"]
    lines = _table(section, most - 2) if section.rows else []
    if not lines or len(section.text) <= screen_width():
        words = section.text.splitlines()
        if any(line.startswith("@@ ") for line in words):  # of a diff, what is new and what is gone
            words = [line for line in words if line[:1] in ("+", "-") and not line.startswith(("--- ", "+++ "))]
        lines = [*(f"  {line}" for line in _wrapped(words, screen_width() - 2)), *lines]
    if len(lines) > most:
        lines = [*lines[: most - 1], f"  ... {count(len(lines) - most + 1, 'more line')}"]
    return [section.title, *lines]


def _table(section: Section, most: int) -> list[str]:
    """The first rows, and the first columns that a screen has room for where texts are cut, figures are not."""
    for columns in range(len(section.columns), 0, -1):
        part = replace(section, columns=section.columns[:columns], rows=tuple(r[:columns] for r in section.rows))
        lines = rows_table(part, most, screen_width(), READABLE).splitlines()
        if len(lines) == 1 + len(part.rows[:most]):  # else each row is a block of lines
            break
    return lines


def _moves(section: Section) -> bool:
    """Whether there is anything to see in a chart: a line that is not flat."""
    return any(len({y for _, y in curve.points}) > 1 for curve in section.curves)


def _chart(section: Section) -> list[str]:
    chart = text_chart(section.curves, section.across, sys.stdout.encoding, CHART)
    return [section.title, *chart.splitlines()] if chart else []


def _history(run: Run[Any], shown: Presentation) -> list[str]:
    """The best score so far, where it rose at all and the result is a candidate, not a table of all."""
    history = run.view.history(200)
    natural = run.view.info.objective.natural
    best = [(float(order + 1), natural(score)) for order, score in zip(history.order, history.best)]
    points = tuple((x, y) for x, y in best if y is not None and y == y)
    compares = shown.chooses and run.summary is not None and any(section.rows for section in run.summary.sections[:1])
    if shown.unit is not None or compares or len({y for _, y in points}) < 2:
        return []
    return _chart(Section("Best score so far", curves=(Curve("best", points),), across="trials"))


def _costs(run: Run[Any], shown: Presentation) -> Iterator[str]:
    """The figures of the whole run, as `fanfold show` and the report have them."""
    info, money, progress = run.view.info, run.money, run.progress
    trials = f"{count(info.trials, 'trial')}, " if shown.unit is None else ""
    reused = f" ({progress.reused:,} reused)" if progress.reused else ""
    paid = run.view.cost()
    cost = f", cost {number(paid)}" if money.below(paid) else ""  # that of model calls is in the next lines
    evaluations = f"{count(info.evaluations, 'evaluation')}{reused}, {count(info.failures, 'failure')}"
    yield f"{trials}{evaluations}{cost}, {duration(progress.elapsed)}"
    yield from money.lines(short=True)


def _next(run: Run[Any], shown: Presentation, ledger: str) -> Iterator[str]:
    """Commands that work when pasted, each with what it does."""
    where = ledger_flag(ledger)
    commands = {
        f"fanfold show {run.id}{where}": "all of it",
        f"fanfold view{where.replace(' --ledger', '')}": "look at it in a browser",
    }
    if run.progress.failures:
        commands[f"fanfold show {run.id} --failure 1{where}"] = "the most frequent failure"
    if run.progress.failures and (shown.unit is not None or run.progress.only_failures):
        again = "--retry-failed --cache refresh" if shown.unit is not None else "--retry-failed"
        commands[f"fanfold resume {run.id} {again}{where}"] = "try the failed ones again"
    if shown.unit is None and run.view.info.open_ended and (more := further(run.reason)):
        commands[f"fanfold resume {run.id} {more}{where}"] = "search on"
    width = max(map(len, commands))
    explained_too = width + max(map(len, commands.values())) + 4 <= screen_width()
    for command, words in commands.items():
        yield f"  {command.ljust(width)}  {words}" if explained_too else f"  {command}"


_LIMITS = {"trial": "--max-trials", "evaluation": "--max-evaluations"}


def further(reason: str) -> str:
    """The flag that gives a run which reached a limit twice as much."""
    if match := re.fullmatch(r"([\d,]+) (trial|evaluation)s", reason):
        return f"{_LIMITS[match[2]]} {2 * int(match[1].replace(',', ''))}"
    if match := re.fullmatch(r"(cost|time) limit of ([\d.]+)([smh]?)", reason):
        return f"--max-{match[1]} {2 * float(match[2]):g}{match[3]}"
    return ""


def _wrapped(lines: Iterable[str], width: int | None = None) -> list[str]:
    width = width or screen_width()
    return [part for line in lines for part in textwrap.wrap(line, width) or [""]]
