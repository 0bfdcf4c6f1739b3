"""`fanfold show RUN --cell TRIAL:CASE` and `--failure N`: one evaluation with everything that is known about it."""

from __future__ import annotations

import textwrap
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from fanfold.cli.output import machine_readable, print_json, say
from fanfold.cli.show import say_section
from fanfold.errors import ConfigError, nearest
from fanfold.texts import count, duration, money, number, pretty

if TYPE_CHECKING:
    from fanfold.ledger import CallRow, EvaluationRow, RunView

#: Characters of a text that are shown, and cells that are named.
LONGEST, NAMED = 4000, 10


def say_cell(view: RunView, cell: str) -> None:
    """The evaluation of a trial on a case: input, score and why, model calls with their replies, traceback."""
    trial, position = _place(view, cell)
    row = view.evaluation(trial, position)
    if row is None:
        raise ConfigError(f"run {view.name!r} has not evaluated {cell}")
    calls = view.calls_of(trial, position)
    score = view.info.objective.natural(row.score)
    if machine_readable():
        listed = None if calls is None else [asdict(call) for call in calls]
        print_json({**asdict(row), "score": score, "calls": listed})
    _say_outcome(row, score)
    case = view.case(position)
    if case is not None and case.data is not None:
        say(f"\nCase\n{_indented(pretty(case.data))}")
    _say_sections(view, row)
    if calls is None:
        say("\nThis run did not record which calls its evaluations made.")
    for number_, call in enumerate(calls or (), 1):
        _say_call(number_, call)
    if row.detail:
        say(f"\nTraceback\n{_indented(row.detail)}")


def say_failure(view: RunView, place: int, where: str) -> None:
    """The failures of one cause, as `fanfold show` numbers them, with the traceback of the first."""
    groups = view.failure_groups()
    if not groups:
        raise ConfigError(f"run {view.name!r} has no failures")
    if place > len(groups):
        raise ConfigError(f"run {view.name!r} has {count(len(groups), 'kind')} of failures, and no number {place}")
    group = groups[place - 1]
    if machine_readable():
        print_json(asdict(group))
    say(f"{group.kind}, {count(group.count, 'time')}: {group.message}")
    more = f" and {group.count - NAMED:,} more" if group.count > NAMED else ""
    say(f"Cells: {', '.join(f'{trial}:{case}' for trial, _, case in group.cells[:NAMED])}{more}")
    if group.traceback:
        say(f"\nTraceback of the first\n{_indented(group.traceback)}")
    trial, _, case = group.cells[0]
    say(f"\nIts calls and data: fanfold show {where} --cell {trial}:{case}")


def _place(view: RunView, cell: str) -> tuple[int, int]:
    """The trial and the position of the case that TRIAL:CASE names: by the case's id, or else by its position."""
    trial, colon, case = cell.partition(":")
    if not trial.isdigit() or not colon:
        raise ConfigError(f"--cell {cell}: write TRIAL:CASE, such as 3:{next(iter(view.cases())).id}")
    ids = [known.id for known in view.cases()]
    if case in ids:
        return int(trial), ids.index(case)
    if case.isdigit() and int(case) < len(ids):
        return int(trial), int(case)
    raise ConfigError(f"run {view.name!r} has no case {case!r}{nearest(case, ids)}")


def _say_outcome(row: EvaluationRow, score: float | None) -> None:
    outcome = f"score {number(score)}" if row.failure is None else f"failed ({row.failure}): {row.message}"
    took = "" if row.seconds is None else f", {duration(row.seconds)}"
    tries = f", {row.tries} tries" if (row.tries or 1) > 1 else ""
    say(f"Trial {row.trial} on case {row.case}: {outcome}{took}{tries}{', reused' if row.reused else ''}")


def _say_sections(view: RunView, row: EvaluationRow) -> None:
    from fanfold.plugins import presentation_of

    sections = presentation_of(view.info.meta).evaluation_sections(view, row)
    for section in sections:
        say_section(section)
    if not sections and row.data is not None:
        say(f"\nData\n{_indented(pretty(row.data))}")


def _say_call(place: int, call: CallRow) -> None:
    cached = ", from the ledger" if call.cached else ""
    tries = f", {call.tries} tries" if call.tries > 1 else ""
    batch = f", batch {call.batch}" if call.batch else ""
    tokens = f"{call.input_tokens:,} + {call.output_tokens:,} tokens"
    facts = f"{tokens}, {money(call.cost)}, {duration(call.seconds)}{tries}{cached}{batch}"
    if call.again:
        facts = "asked again since (--cache refresh or off): this is the later reply"
    say(f"\nCall {place}: {call.model}, {facts}")
    for role, text in messages(call.request):
        say(f"  {role}:\n{_indented(text, 4)}")
    say(f"  reply ({call.finish}):\n{_indented(call.text, 4)}")


def messages(request: Any) -> list[tuple[str, str]]:
    """What a request says, by who says it; the request itself where it has another form."""
    body = request if isinstance(request, dict) else {}
    listed = body.get("messages") or body.get("input") or body.get("contents")
    said = [("system", body["system"])] if isinstance(body.get("system"), str) else []
    if isinstance(listed, str):
        return [*said, ("user", listed)]
    if not isinstance(listed, list) or not all(isinstance(part, dict) for part in listed):
        return [*said, ("request", pretty(request))]
    return [*said, *((str(part.get("role", "?")), _text(part.get("content") or part.get("parts"))) for part in listed)]


def _text(content: Any) -> str:
    """The words of a message, whose parts may be dicts with a text."""
    if isinstance(content, list):
        return "\n".join(_text(part.get("text", part) if isinstance(part, dict) else part) for part in content)
    return content if isinstance(content, str) else pretty(content)


def _indented(text: str, by: int = 2) -> str:
    cut = text if len(text) <= LONGEST else f"{text[:LONGEST]}\n... {len(text) - LONGEST:,} more characters"
    return textwrap.indent(cut.rstrip(), " " * by)
