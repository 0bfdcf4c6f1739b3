"""The pages of trials and cells: the list, one candidate, one evaluation with its model calls."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any

from fanfold.encoding import BLOB_KEY
from fanfold.errors import ConfigError, LedgerError
from fanfold.ledger import CallRow, EvaluationRow
from fanfold.ledger.spending import cost_text
from fanfold.ledger.trials import Order, Which
from fanfold.plugins import described
from fanfold.report.pages.parts import Payload, ShownRun, cell, clipped, comments, finite, parents, sections
from fanfold.types import Case

#: Rows of one answer.
PAGE = 200


def trials(
    shown: ShownRun, order: Order = "best", which: Which = "all", after: str | None = None, q: str = ""
) -> Payload:
    """A page of trials; `after` is the `next` of the page before."""
    key = None if not after else [float(part) for part in after.split(",", 2)]
    if key is not None and (len(key) != 3 or not all(map(math.isfinite, key))):
        raise ConfigError(f"after={after!r:.40} is not where a page ended")
    page = shown.view.trials_after(key, order=order, which=which, count=PAGE, contains=q)
    more = None if page.next is None else ",".join(repr(part) for part in page.next)
    return {"rows": [shown.trial(row) for row in page.rows], "next": more}


def candidate(shown: ShownRun, number: int, after: int = -1) -> Payload:
    """Everything about one trial, with a page of its cells."""
    view = shown.view
    row = view.trial(number)
    cells = list(view.evaluations(trials=[number], after=(number, after), count=PAGE, blobs=False))
    last = view.progress().asked - 1
    return {
        "trial": shown.trial(row),
        "candidate_text": shown.text(row),
        "sections": sections(shown.study.trial_sections(view, row)),
        "cells": [cell(shown, evaluation) for evaluation in cells],
        "next": cells[-1].position if len(cells) == PAGE else None,
        "parents": _briefs(shown, parents(row)),
        "children": _briefs(shown, view.children(number)[:PAGE]),
        "comments": comments(view, number),
        "files": files(shown, row.candidate, *(evaluation.data for evaluation in cells)),
        "calls": {"count": view.count_calls(number), "cost_text": cost_text(row.cost) if row.cost else ""},
        "previous": number - 1 if number else None,
        "following": number + 1 if number < last else None,
        "feedback": feedback(shown, number),
    }


def texts(shown: ShownRun, numbers: Iterable[int]) -> Payload:
    """Candidates as plain texts, for a diff."""
    return {"texts": {str(number): shown.text(shown.view.trial(number)) for number in numbers}}


def evaluation(shown: ShownRun, number: int, position: int) -> Payload:
    """Everything about one cell."""
    view = shown.view
    row = view.evaluation(number, position)
    if row is None:
        raise LedgerError(f"trial {number} of run {view.name!r} has no evaluation on case {position}")
    case = view.case(position) or Case(row.case)
    calls = view.calls_of(number, position)
    previous, following = view.neighbours(number, position)
    return {
        "trial": shown.trial(view.trial(number)),
        "cell": cell(shown, row),
        "case": {"id": case.id, "text": clipped(_plain_text(case.data))},
        "sections": sections(_cell_sections(shown, row)),
        "message": None if row.message is None else clipped(row.message),
        "traceback": row.detail or None,
        "calls": None if calls is None else [_call(call) for call in calls],
        "started": finite(row.started),
        "previous": previous,
        "following": following,
        "feedback": feedback(shown, number),
    }


def feedback(shown: ShownRun, trial: int) -> Payload | None:
    """What a person is asked about a trial, where the study wants to know."""
    form = described(shown.study.feedback, shown.view, trial)
    if form is None:
        return None
    return {"query": form.query, "answers": list(form.answers), "ask": form.ask, "given": None}


def files(shown: ShownRun, *values: Any) -> list[Payload]:
    """The blobs inside values, as files to download."""
    digests: dict[str, str] = {}
    for value in values:
        _collect(value, "file", digests)
    base = f"/api/run/{shown.ledger}/{shown.info.name}/file"
    sizes = {digest: shown.view.ledger.blob_size(digest) for digest in list(digests)[:50]}
    return [
        {"name": digests[digest], "href": f"{base}/{digest}", "size": size}
        for digest, size in sizes.items()
        if size is not None
    ]


def _collect(value: Any, name: str, digests: dict[str, str]) -> None:
    digest = getattr(value, "digest", None)
    if isinstance(value, dict):
        digest = value.get(BLOB_KEY)
        for key, item in value.items():
            _collect(item, str(key), digests)
    elif isinstance(value, list):
        for item in value:
            _collect(item, name, digests)
    if isinstance(digest, str):
        digests.setdefault(digest, name)


def _cell_sections(shown: ShownRun, row: EvaluationRow) -> Iterable[Any]:
    from fanfold.summary import Section

    made = shown.study.evaluation_sections(shown.view, row)
    return made or ([] if row.data is None else [Section("Data", _plain_text(row.data))])


def _briefs(shown: ShownRun, numbers: Iterable[int]) -> list[Payload]:
    return [shown.trial(row) for row in shown.view.some_trials(numbers)]


def _call(call: CallRow) -> Payload:
    request = call.request if isinstance(call.request, dict) else {"request": call.request}
    messages = [*_system(request), *_messages(request)]
    settings = {name: value for name, value in request.items() if name not in _MESSAGES}
    return {
        "model": f"{call.model} (asked again since: the later reply)" if call.again else call.model,
        "messages": messages,
        "settings": settings,
        "reply": clipped(call.text),
        "finish": call.finish,
        "input_tokens": call.input_tokens,
        "output_tokens": call.output_tokens,
        "cached_tokens": call.cached_tokens,
        "cost_text": "unknown" if call.cost is None else cost_text(call.cost),
        "seconds": finite(call.seconds),
        "tries": call.tries,
        "cached": call.cached,
        "batch": call.batch,
    }


#: Where the protocols of providers keep what was said.
_MESSAGES = ("messages", "contents", "input", "prompt", "system", "systemInstruction", "system_instruction")


def _system(request: Payload) -> list[Payload]:
    names = ("system", "systemInstruction", "system_instruction")
    return [{"role": "system", "text": clipped(_said(request[name]))} for name in names if request.get(name)]


def _messages(request: Payload) -> list[Payload]:
    for name in ("messages", "contents", "input", "prompt"):
        value = request.get(name)
        if isinstance(value, str):
            return [{"role": "user", "text": clipped(value)}]
        if isinstance(value, list):
            return [
                {"role": str(turn.get("role", "user")), "text": clipped(_said(turn))}
                for turn in value
                if isinstance(turn, dict)
            ]
    return []


def _said(value: Any) -> str:
    """The text of a message in any of the protocols."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "\n".join(_said(part) for part in value)
    if isinstance(value, dict):
        for name in ("content", "parts", "text"):
            if name in value:
                return _said(value[name])
    return _plain_text(value)


def _plain_text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False, default=str)
