"""How texts, their scores and the result of a search look to people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from fanfold.plugins import Presentation
from fanfold.studies.evolve.program import prompts_of
from fanfold.summary import Section

if TYPE_CHECKING:
    from fanfold.ledger import RunView


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
    return f"score {score:.6g}{where}, {score - start:+.6g} against the start"


def candidate(value: Any) -> Section:
    """The text, or the texts by name; of one that the writer was asked for, which of them."""
    if "how" in value:
        return Section("Text", f"{value.get('part')}, rewritten by the writer ({value['how']})")
    return Section("Text", joined(prompts_of(value)))


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


shown = Presentation(headline, candidate, cell, {"lineage": lineage})
