"""How prompts, answers and the result of a search look to people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fanfold.plugins import Presentation
from fanfold.prompting.breeding import candidate_of
from fanfold.prompting.genome import SLOT, Genome, render
from fanfold.summary import Section


def headline(figures: Mapping[str, Any]) -> str | None:
    """The winner's held-out accuracy, and what it gained over the first prompt."""
    held_out = figures.get("held_out")
    if not held_out or held_out["accuracy"] is None:
        return None
    text = f"held-out accuracy {held_out['accuracy']:.3f} [{held_out['low']:.3f}, {held_out['high']:.3f}]"
    gain = figures.get("gain")
    return text if gain is None else f"{text}, {gain:+.3f} against the first prompt"


def candidate(value: Any) -> Section:
    """The prompt as a model reads it; of one that a model was to write, what it was asked for."""
    prompt = candidate_of(value)
    if isinstance(prompt, Genome):
        shots = {id: (f"(input of {id})", f"(answer of {id})") for id in prompt.examples}
        return Section("Prompt", render(prompt, SLOT, shots))
    return Section("Prompt", f"to be written by a model ({prompt.how}) from:\n{prompt.parents[0].head()}")


def cell(data: Any) -> Section:
    """What the model said, and where that was wrong, what was asked and expected."""
    fields = [(name, str(data[name])) for name in ("input", "expected", "said") if name in data]
    return Section("Answer", "", ("", "text"), tuple(fields))


shown = Presentation(headline, candidate, cell)
