"""How rows, answers and the result of asking look to people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fanfold.ledger import EvaluationRow, RunView, TrialRow
from fanfold.plugins import Presentation
from fanfold.summary import Section
from fanfold.tables.writing import as_json

#: Rows of the table of answers.
ROWS = 200


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


def text(value: Any) -> str:
    """What was asked."""
    return candidate(value).text


def overview(view: RunView) -> Iterator[Section]:
    """The first rows and their answers, as a table."""
    trials = list(view.trials(count=ROWS, blobs=False))
    models = [case.id for case in view.cases()]
    numbers = [row.number for row in trials]
    answers = {(row.trial, row.case): row for row in view.evaluations(trials=numbers, blobs=False)}
    rows = tuple(
        (row.number, text(row.candidate), *(_answer(answers.get((row.number, model))) for model in models))
        for row in trials
    )
    count = view.info.trials
    more = f"The first {len(rows):,} of {count:,} rows." if count > len(rows) else ""
    yield Section("Rows", more, ("row", "prompt", *(models if len(models) > 1 else ["answer"])), rows)


def trial(view: RunView, row: TrialRow) -> Iterator[Section]:
    """What was asked, and every model's answer."""
    yield candidate(row.candidate)
    answers = view.evaluations(trials=[row.number], blobs=False)
    yield Section("Answers", "", ("model", "answer"), tuple((answer.case, _answer(answer)) for answer in answers))


def evaluation(view: RunView, row: EvaluationRow) -> Iterator[Section]:
    """The question and the answer."""
    yield candidate(view.trial(row.trial).candidate)
    yield cell(row.data)


def _answer(row: EvaluationRow | None) -> str | None:
    """An answer as a table has it; None while there is none."""
    if row is None:
        return None
    return f"({row.failure}: {row.message})" if row.failure is not None else cell(row.data).text


def prompts(view: RunView) -> Iterator[dict[str, Any]]:
    """A row for every answer, with the prompt, for `fanfold export --rows answers`."""
    for trial in view.trials(blobs=False):
        asked = candidate(trial.candidate).text
        for answer in view.evaluations(trials=[trial.number], blobs=False):
            text = None if answer.data is None else cell(answer.data).text
            yield {"row": trial.number, "model": answer.case, "prompt": asked, "answer": text, "error": answer.failure}


shown = Presentation(
    headline,
    candidate,
    cell,
    {"answers": prompts},
    unit="row",
    text=text,
    brief=text,
    overview=overview,
    trial=trial,
    evaluation=evaluation,
)
