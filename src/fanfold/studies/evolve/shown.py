"""How texts, their scores and the result of a search look to people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from fanfold.plugins import Presentation, recorded
from fanfold.prompting.writing import request_section
from fanfold.strategies.reflective import Written
from fanfold.studies.evolve.program import prompts_of
from fanfold.summary import Section

if TYPE_CHECKING:
    from fanfold.ledger import RunView, TrialRow


def headline(figures: Mapping[str, Any]) -> str | None:
    """The winner's score and the start's, on held-out cases where there are any."""
    if figures.get("winner") is None:
        return None
    where, pair = "", (figures["score"], figures["start_score"])
    if figures.get("held_out") is not None:
        where, pair = " on held-out cases", (figures["held_out"]["winner"], figures["held_out"]["start"])
    score, start = pair
    if score is None or start is None:
        return None
    return f"score {score:.4g}{where}, {score - start:+.4g} against the start"


def candidate(value: Any) -> Section:
    """The text, or the texts by name; of one that the writer was asked for, which of them."""
    if "how" in value:
        return Section("Text", f"{value.get('part')}, rewritten by the writer ({value['how']})")
    return Section("Text", joined(prompts_of(value)))


def text(value: Any) -> str:
    """The texts themselves."""
    return candidate(value).text


def brief(value: Any) -> str:
    """The first lines of a text that say something, or what the writer was to do."""
    if "how" in value:
        return f"{value['how']}: {brief(value['parents'][0])}"
    lines = [line.partition(" #")[0].strip() for part in prompts_of(value).values() for line in part.splitlines()]
    return " / ".join(line for line in lines if line and not line.startswith("#"))


def written(view: RunView, row: TrialRow) -> Any:
    """What the writer wrote, of a text that it was asked for."""
    return recorded(view, row.number, "parts") if "how" in row.candidate else None


def trial(view: RunView, row: TrialRow) -> Iterator[Section]:
    """The text, how it was written, and what the evaluator measured on every case."""
    yield candidate(shown.candidate_of(view, row))
    if "how" in row.candidate:
        yield request_section(msgspec.convert(row.candidate, Written[dict[str, str]]))
    measured = {
        each.case: each.data["metrics"]
        for each in view.evaluations(trials=[row.number], failed=False, blobs=False)
        if isinstance(each.data, Mapping) and each.data.get("metrics")
    }
    names = tuple(dict.fromkeys(name for metrics in measured.values() for name in metrics))
    rows = tuple((case, *(metrics.get(name) for name in names)) for case, metrics in measured.items())
    if rows:
        yield Section("Measured", "", ("case", *names), rows)


def cell(data: Any) -> Section:
    """What the evaluator said."""
    names = ("input", "expected", "said", "feedback")
    rows = [(name, str(data[name])) for name in names if data and name in data]
    rows += [(name, f"{number:.6g}") for name, number in ((data or {}).get("metrics") or {}).items()]
    return Section("Evaluation", "", ("", "text"), tuple(rows))


def joined(texts: Mapping[str, str]) -> str:
    """Several texts in one, each under its name."""
    if len(texts) == 1:
        return next(iter(texts.values()))
    return "\n\n".join(f"[{name}]\n{text}" for name, text in texts.items())


def lineage(view: RunView) -> Iterable[Mapping[str, Any]]:
    """Every trial with its parents and how it was made."""
    for result in view.results():
        origin = result.trial.origin or {}
        yield {
            "trial": result.number,
            "by": origin.get("by"),
            "parents": ",".join(map(str, origin.get("parents", ()))),
            "score": result.score,
            "dropped": result.dropped,
        }


shown = Presentation(
    headline, candidate, cell, {"lineage": lineage}, text=text, brief=brief, trial=trial, written=written
)
