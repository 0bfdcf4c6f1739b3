"""How queries, responses, feedback and the result of a run look to people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fanfold.plugins import Presentation
from fanfold.studies.critic.evaluator import Generate, Write, step_of
from fanfold.summary import Section


def headline(figures: Mapping[str, Any]) -> str | None:
    """How satisfied people are now, and how that began."""
    windows = figures.get("satisfaction")
    if not windows:
        return None
    first, last = windows[0]["estimate"], windows[-1]["estimate"]
    return f"satisfaction {first:.3f} at first, {last:.3f} at the end, over {figures['answered']} answers"


def candidate(value: Any) -> Section:
    """The query, and the prompts that answer it or the responses that are judged."""
    step = step_of(value)
    if isinstance(step, Generate):
        prompts = zip(step.temperatures, step.prompts)
        return Section("Query", step.query, ("temperature", "prompt"), tuple((t, prompt.text) for t, prompt in prompts))
    if isinstance(step, Write):
        asked = f"a new version, from {len(step.failures)} responses that were not liked"
        return Section("To be written", asked, ("prompt",), tuple((prompt.text,) for prompt in step.prompts))
    return Section("Shown", step.query, ("response",), tuple((each.response,) for each in step.shown))


def cell(data: Any) -> Section:
    """A response, or the feedback on one."""
    if "text" in data:
        return Section("Response", data["text"])
    return Section("Feedback", f"{data['kind']}: {data['raw']} (score {data['score']:.3g})")


shown = Presentation(headline, candidate, cell)
