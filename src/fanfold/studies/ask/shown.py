"""How rows, answers and the result of asking look to people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fanfold.ledger import RunView
from fanfold.plugins import Presentation
from fanfold.summary import Section
from fanfold.tables.writing import as_json


def headline(figures: Mapping[str, Any]) -> str | None:
    """How many rows were answered, and why others were not."""
    models = figures.get("models")
    if not models:
        return None
    wanted = figures["rows"] * len(models)
    answered = sum(model["answered"] for model in models.values())
    kinds: dict[str, int] = {}
    for model in models.values():
        for kind, count in model["errors"].items():
            kinds[kind] = kinds.get(kind, 0) + count
    what = "rows" if len(models) == 1 else f"answers to {figures['rows']:,} rows by {len(models)} models"
    text = f"{answered:,} of {wanted:,} {what}{' answered' if len(models) == 1 else ''}"
    listed = ", ".join(f"{count:,} {kind}" for kind, count in sorted(kinds.items(), key=lambda kind: -kind[1]))
    return f"{text}; {listed}" if listed else text


def candidate(value: Any) -> Section:
    """What was asked."""
    if isinstance(value, str):
        return Section("Prompt", value)
    if "missing" in value:
        return Section("Prompt", f"(no value for {', '.join(value['missing'])})")
    return Section("Prompt", f"{value['system']}\n\n{value['prompt']}")


def cell(data: Any) -> Section:
    """What was answered."""
    if "missing" in data:
        return Section("Answer", f"not asked: no value for {', '.join(data['missing'])}")
    answer = data["answer"]
    return Section("Answer", answer if isinstance(answer, str) else as_json(answer))


def prompts(view: RunView) -> Iterator[dict[str, Any]]:
    """A row for every answer, with the prompt, for `fanfold export --rows answers`."""
    for trial in view.trials(blobs=False):
        asked = candidate(trial.candidate).text
        for answer in view.evaluations(trials=[trial.number], blobs=False):
            text = None if answer.data is None else cell(answer.data).text
            yield {"row": trial.number, "model": answer.case, "prompt": asked, "answer": text, "error": answer.failure}


shown = Presentation(headline, candidate, cell, {"answers": prompts}, unit="row")
