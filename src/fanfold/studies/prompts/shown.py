"""How prompts, answers and the result of a search look to people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fanfold import drawings
from fanfold.ledger import EvaluationRow, RunView, TrialRow
from fanfold.ledger.spending import Spending, cost_text
from fanfold.models.pricing import list_price
from fanfold.plugins import Presentation, concluded, recorded
from fanfold.prompting.breeding import candidate_of
from fanfold.prompting.genome import SLOT, Genome, outline
from fanfold.prompting.writing import request_section
from fanfold.studies.prompts.objectives import interval_of
from fanfold.summary import Section
from fanfold.tasks import Problem
from fanfold.types import Result, Trial

#: Problems among which one is sought that a prompt does not show.
LOOKED_AT = 100


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
    return _prompt(value, {})


def text(value: Any) -> str:
    """The words of a prompt, its labels and the examples it shows, in their order."""
    prompt = candidate_of(value)
    if not isinstance(prompt, Genome):
        return candidate(value).text
    lines = [prompt.head(), f"Labels: {' / '.join(prompt.labels)}"]
    chosen = f"the {prompt.nearest} most like the input of " if prompt.nearest else ""
    lines += [f"Examples: {chosen}{' '.join(prompt.examples)}"] if prompt.examples else []
    return "\n".join(lines + [f"Own answer: {input}" for input, _ in prompt.worked or ()])


def brief(value: Any) -> str:
    """How many examples a prompt shows, and its words, or what a model was to do with them."""
    prompt = candidate_of(value)
    if not isinstance(prompt, Genome):
        return f"{prompt.how}: {prompt.parents[0].head() or '(no words)'}"
    count = prompt.shown + len(prompt.worked or ())
    shots = f"{count} example{'' if count == 1 else 's'}{' by input' if prompt.nearest else ''}" if count else ""
    return f"{shots}: {prompt.head()}" if shots and prompt.head() else shots or prompt.head() or "(no words)"


def written(view: RunView, row: TrialRow) -> Any:
    """What a model wrote, of a prompt that it was asked for."""
    return recorded(view, row.number, "genome") if "how" in row.candidate else None


def overview(view: RunView) -> Iterator[Section]:
    """The best prompt so far, beside the first; once the run has ended, its conclusion says more."""
    best = view.best()
    if view.summary() is not None or best is None or "belongs_to" in view.info.meta:
        return
    yield _worded(view, best)
    named = {"best so far": best, **({"first prompt": view.trial(0)} if best.number else {})}
    dots = [drawings.dot(name, interval_of(_result(view, row))) for name, row in named.items()]
    yield Section(
        "Accuracy so far, with 95 % intervals",
        "On the problems of the search; other problems decide in the end.",
        ("prompt", "accuracy", "low", "high", "problems"),
        tuple((dot["name"], dot["value"], dot["low"], dot["high"], dot["n"]) for dot in dots),
        drawings=(drawings.intervals(dots, unit="accuracy", low=0.0, high=1.0),),
    )


def trial(view: RunView, row: TrialRow) -> Iterator[Section]:
    """The prompt with the words of its examples, and what its writer was shown."""
    yield _worded(view, row)
    asked = candidate_of(row.candidate)
    if not isinstance(asked, Genome):
        yield request_section(asked)


def compare(views: Sequence[RunView]) -> Iterator[Section]:
    """The winners' accuracy on the parts of their problems."""
    parts = ("train", "validation", "held_out")
    rows = [
        (f"{name}, {part.replace('_', '-')}", found["accuracy"], found["low"], found["high"], found["n"])
        for name, figures in concluded(views)
        for part in parts
        if (found := figures.get(part)) is not None
    ]
    columns = ("name", "value", "low", "high", "n")
    drawn = drawings.intervals([dict(zip(columns, row)) for row in rows], unit="accuracy", low=0.0, high=1.0)
    titles = ("winner", "accuracy", "low", "high", "problems")
    yield Section("Accuracy of the winners", "", titles, tuple(rows), drawings=(drawn,))


def cell(data: Any) -> Section:
    """What the model said, and where that was wrong, what was asked and expected."""
    fields = [(name, str(data[name])) for name in ("input", "expected", "said") if name in data]
    return Section("Answer", "", ("", "text"), tuple(fields))


def evaluation(view: RunView, row: EvaluationRow) -> Iterator[Section]:
    """The problem and the right answer, and what the model said."""
    case, data = view.case(row.position), row.data or {}
    if case is None:
        return
    problem = _problem(case.data)
    fields = {"input": problem.input, "expected": problem.shown, "said": data.get("said"), "why": data.get("feedback")}
    rows = tuple((name, str(value)) for name, value in fields.items() if value not in (None, ""))
    yield Section("Answer", "", ("", "text"), rows)


def _worded(view: RunView, row: TrialRow) -> Section:
    """A prompt as a model reads it, with the words of its examples."""
    prompt, known = candidate_of(shown.candidate_of(view, row)), _shots(view)
    if isinstance(prompt, Genome) and not prompt.nearest and not known.keys() >= {*prompt.examples}:
        sent = _sent(view, row.number, prompt)
        return _prompt(prompt, known) if sent is None else Section("Prompt", sent)
    return _prompt(prompt, known)


def _prompt(value: Any, shots: Mapping[str, tuple[str, str]]) -> Section:
    prompt = candidate_of(value)
    if isinstance(prompt, Genome):
        unknown = {id: (f"(input of {id})", f"(answer of {id})") for id in prompt.examples}
        return Section("Prompt", outline(prompt, {**unknown, **shots}))
    return Section("Prompt", f"to be written by a model ({prompt.how}) from:\n{prompt.parents[0].head()}")


def _shots(view: RunView) -> dict[str, tuple[str, str]]:
    """The words of those examples that are cases of the run."""
    problems = [_problem(case.data) for case in view.cases()]
    return {problem.id: (problem.input, problem.shown) for problem in problems}


def _sent(view: RunView, number: int, prompt: Genome) -> str | None:
    """A prompt as it was sent, for the words of examples that are not cases of the run.

    A problem is not shown itself as an example, so the first one is taken that is none, if there is one.
    """
    cases = view.cases()
    problems = [
        (row.position, _problem(cases[row.position].data))
        for row in view.evaluations(trials=[number], count=LOOKED_AT, blobs=False)
    ]
    for position, problem in sorted(problems, key=lambda entry: entry[1].id in prompt.examples)[:1]:
        for call in view.calls_of(number, position) or ():
            for text in _texts(call.request):
                before, input, after = text.rpartition(problem.input)
                if input:
                    return f"{before}{SLOT}{after}"
    return None


def _texts(value: Any) -> Iterator[str]:
    """The texts in a request of any protocol."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(part)


def _problem(data: Mapping[str, Any]) -> Problem:
    return Problem(data["problem"], data["input"], data["answer"], data.get("note"))


def _result(view: RunView, row: TrialRow) -> Result[Any]:
    asked = Trial(row.number, row.candidate, row.origin)
    return Result(asked, row.score, view.outcomes(row.number), row.dropped)


def short_prompt(genome: Genome) -> str:
    """A prompt in two lines: its words, and how the problems are shown."""
    count = genome.shown
    examples = f"{count or 'no'} example{'' if count == 1 else 's'}{' most like the input' if genome.nearest else ''}"
    examples += ", calibrated" if genome.biases else ""
    return "\n".join(
        [
            *genome.head().splitlines(),
            f"({examples}, {' / '.join(filter(None, genome.labels))}; `fanfold prompt` prints all of it)",
        ]
    )


def at_list_price(paid: Spending, calls: Mapping[str, Any], model: str | None) -> list[str]:
    """What the calls of a search, and those it saved, would cost at the list price of a model."""
    price = None if model is None else list_price(model)
    if price is None or not paid.calls:
        return []
    each = price.cost(paid.input_tokens, paid.output_tokens) / paid.calls
    made, saved = cost_text(each * calls["made"]), cost_text(each * calls["saved"])
    return [f"at the list price of {model} they cost {made}, those saved {saved}"]


shown = Presentation(
    headline,
    candidate,
    cell,
    chooses=True,
    text=text,
    brief=brief,
    scale=(0.0, 1.0),
    overview=overview,
    trial=trial,
    evaluation=evaluation,
    compare=compare,
    written=written,
)
