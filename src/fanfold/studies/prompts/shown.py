"""How prompts, answers and the result of a search look to people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fanfold.ledger.spending import Spending, cost_text
from fanfold.models.pricing import list_price
from fanfold.plugins import Presentation
from fanfold.prompting.breeding import candidate_of
from fanfold.prompting.genome import SLOT, Genome, render
from fanfold.summary import Section


def headline(figures: Mapping[str, Any]) -> str | None:
    """The winner's held-out accuracy, and what it is ahead of the first prompt and of other searches."""
    held_out = figures.get("held_out")
    if not held_out or held_out["accuracy"] is None:
        return None
    text = f"held-out accuracy {held_out['accuracy']:.3f} [{held_out['low']:.3f}, {held_out['high']:.3f}]"
    gain, others = figures.get("gain"), list(figures.get("against", {}).items())[1:]
    ahead = {} if gain is None else {"the first prompt": gain}
    ahead |= {
        f"{name} search": held_out["accuracy"] - points[-1][1] for name, points in others if points[-1][1] is not None
    }
    if ahead:
        text += ", " + ", ".join(f"{by:+.3f} against {name}" for name, by in ahead.items())
    regret = figures.get("expected_regret")
    return text if regret is None else f"{text}; expected regret {regret:.3f}"


def candidate(value: Any) -> Section:
    """The prompt as a model reads it; of one that a model was to write, what it was asked for."""
    prompt = candidate_of(value)
    if isinstance(prompt, Genome):
        shots = {id: (f"(input of {id})", f"(answer of {id})") for id in prompt.examples}
        return Section("Prompt", render(prompt, SLOT, shots))
    return Section("Prompt", f"to be written by a model ({prompt.how}) from:\n{prompt.parents[0].head()}")


def short_prompt(genome: Genome) -> str:
    """A prompt in two lines: its words, and how the problems are shown."""
    count = len(genome.examples)
    examples = f"{count or 'no'} example{'' if count == 1 else 's'}"
    return "\n".join(
        [*genome.head().splitlines(), f"({examples}, {' / '.join(genome.labels)}; `fanfold prompt` prints all of it)"]
    )


def at_list_price(paid: Spending, calls: Mapping[str, Any], model: str | None) -> list[str]:
    """What the calls of a search, and those it saved, would cost at the list price of a model."""
    price = None if model is None else list_price(model)
    if price is None or not paid.calls:
        return []
    each = price.cost(paid.input_tokens, paid.output_tokens) / paid.calls
    made, saved = cost_text(each * calls["made"]), cost_text(each * calls["saved"])
    return [f"at the list price of {model} they cost {made}, those saved {saved}"]


def cell(data: Any) -> Section:
    """What the model said, and where that was wrong, what was asked and expected."""
    fields = [(name, str(data[name])) for name in ("input", "expected", "said") if name in data]
    return Section("Answer", "", ("", "text"), tuple(fields))


shown = Presentation(headline, candidate, cell, chooses=True)
