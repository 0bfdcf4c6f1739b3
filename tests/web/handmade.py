"""A saved page with payloads made by hand, to look at one thing at a time."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page

from fanfold.drawings import Drawing
from fanfold.report.saved import document

RUN = "/api/run/0/made"
NOTHING: dict[str, Any] = {"text": "", "columns": [], "rows": [], "curves": [], "across": "", "up": "", "drawings": []}


def brief(trial: int, **more: Any) -> dict[str, Any]:
    """A candidate as lists show it."""
    row = {"trial": trial, "order": trial, "score": 0.5, "score_text": "0.5", "dropped": None, "cost": 0.0}
    return {**row, "evaluations": 1, "failures": 0, "brief": f"the {trial}th", "by": "", "parents": [], **more}


def section(title: str, *drawings: Drawing, **more: Any) -> dict[str, Any]:
    """A section with drawings."""
    drawn = [{"kind": drawing.kind, "data": drawing.data} for drawing in drawings]
    return {**NOTHING, "title": title, "drawings": drawn, **more}


def candidate(trial: int, *sections: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """The payload of a candidate's page."""
    lists: dict[str, Any] = {"cells": [], "parents": [], "children": [], "comments": [], "files": []}
    rest = {"next": None, "previous": None, "following": None, "feedback": None, "calls": {"count": 0, "cost_text": ""}}
    return {"trial": brief(trial), "candidate_text": "", "sections": list(sections), **lists, **rest, **more}


def overview() -> dict[str, Any]:
    counts = {"asked": 9, "told": 9, "cases": 1, "evaluations": 9, "failures": 0, "reused": 0, "goal": None}
    names = ("order", "trial", "score", "best", "complete", "evaluations", "seconds", "cost")
    quantiles: dict[str, Any] = {"order": [], "low": [], "mid": [], "high": []}
    return {
        **{"ledger": 0, "name": "made", "study": "prompts", "unit": "prompt", "units": "prompts", "state": "finished"},
        **{"reason": "", "headline": "", "progress": {**counts, "goal_of": ""}, "eta": None, "cost_text": "$0"},
        **{"elapsed_text": "1 s", "created": 1.7e9, "metrics": [], "limits": {}, "next": [], "pages": ["lineage"]},
        "can": dict.fromkeys(("stop", "resume", "retry", "budget", "note", "feedback"), True),
        "history": {**{name: list[Any]() for name in names}, "quantiles": quantiles},
        **{"mark": 0, "scale": [0, 1], "best": None, "sections": [], "notes": [], "comments": [], "settings": {}},
    }


@contextlib.contextmanager
def opened(
    browser: Browser, folder: Path, payloads: Mapping[str, Any], place: str, width: int = 1400
) -> Iterator[Page]:
    """A window on a page of the run `made`; fails where the browser reports an error."""
    data = {
        RUN: overview(),
        **{path if path[0] == "/" else f"{RUN}/{path}": payload for path, payload in payloads.items()},
    }
    file = folder / "made.html"
    file.write_text(document(json.dumps(data).replace("<", "\\u003c"), "made"))
    context = browser.new_context(viewport={"width": width, "height": 900}, reduced_motion="reduce")
    page, errors = context.new_page(), list[str]()
    page.on("console", lambda message: message.type == "error" and errors.append(message.text))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(f"{file.as_uri()}#/run/0/made/{place}")
    page.wait_for_selector("main[aria-busy=false]")
    try:
        yield page
        assert not errors
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    finally:
        context.close()
