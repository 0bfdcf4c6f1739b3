"""Where a prompt came from: its ancestors, and what changed from each one to the next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from fanfold.prompting.breeding import genome_of
from fanfold.prompting.genome import Genome, difference
from fanfold.summary import Section
from fanfold.types import Result

#: Ancestors that are listed, and the steps that are printed right after a run.
MOST, SHOWN = 40, 3
#: Columns of a terminal.
WIDTH = 80


def lineage(results: Sequence[Result[Any]], winner: Genome) -> Section:
    """The winner, its first parent, that one's, and so on, with what changed at every step.

    A prompt that was made without parents follows on the best before it, and all of them on the first prompt.
    """
    line = _line(results, winner)
    rows = tuple(
        (result.number, _origin(result).get("by", ""), result.score, ", ".join(map(str, _parents(result))) or "-")
        for result in line
    )
    steps = [(old, new) for new, old in pairwise(line)][::-1]
    text = "\n\n".join(f"{_head(old, new)}\n{difference(genome_of(old), genome_of(new))}" for old, new in steps)
    brief = [line for old, new in steps[-SHOWN:] for line in (_head(old, new), f"  {_changes(old, new)}")]
    if len(steps) > SHOWN:
        brief.insert(0, f"(the last {SHOWN} of {len(steps)} steps)")
    return Section("Lineage", text, ("trial", "by", "score", "parents"), rows, brief="\n".join(brief))


def changes(a: Genome, b: Genome) -> list[str]:
    """What changed from one prompt to another, a few words for each clause, the labels and the examples."""
    parts = []
    gone, come = (
        sum(id not in others for id in ids) for ids, others in ((a.examples, b.examples), (b.examples, a.examples))
    )
    if a.nearest != b.nearest:
        parts.append(f"examples: {_showing(a)} -> {_showing(b)}")
    elif gone or come:
        parts.append(f"examples {len(a.examples)} -> {len(b.examples)} (-{gone} +{come})")
    elif a.examples != b.examples:
        parts.append(f"{len(b.examples)} examples in another order")
    if a.labels != b.labels:
        parts.append(f"labels {' / '.join(a.labels)} -> {' / '.join(b.labels)}")
    old, new = ([clause.strip() for clause in genome.clauses] for genome in (a, b))
    parts += [f"- {clause}" for clause in old if clause not in new]
    parts += [f"+ {clause}" for clause in new if clause not in old]
    return parts


def _showing(genome: Genome) -> str:
    return f"the {genome.shown} most like the input" if genome.nearest else str(genome.shown)


def _line(results: Sequence[Result[Any]], winner: Genome) -> list[Result[Any]]:
    numbered = {result.number: result for result in results}
    scored = [result for result in results if genome_of(result) == winner]
    here: Result[Any] | None = next((result for result in scored if result.complete), scored[0] if scored else None)
    line: list[Result[Any]] = []
    while here is not None and len(line) < MOST:
        line.append(here)
        parents = _parents(here)
        here = numbered.get(parents[0]) if parents else _best_before(results, here)
    first = next((result for result in results if _origin(result).get("by") == "seed"), None)
    if line and first is not None and all(_origin(result).get("by") != "seed" for result in line):
        line.append(first)
    return line


def _best_before(results: Sequence[Result[Any]], here: Result[Any]) -> Result[Any] | None:
    before = [result for result in results if result.number < here.number and result.complete]
    return max(before, key=lambda result: result.score or 0.0, default=None)


def _origin(result: Result[Any]) -> Mapping[str, Any]:
    return result.trial.origin or {}


def _parents(result: Result[Any]) -> Sequence[int]:
    return tuple(_origin(result).get("parents", ()))


def _head(old: Result[Any], new: Result[Any]) -> str:
    if old.number in _parents(new):
        source = f"from trial {old.number}"
    else:
        before = old.complete and old.number < new.number
        source = f"trial {old.number} was the {'best before' if before else 'first prompt'}"
    return f"trial {new.number} ({_origin(new).get('by', '')}; {source}): train {_score(old)} -> {_score(new)}"


def _score(result: Result[Any]) -> str:
    return "-" if result.score is None else f"{result.score:.2f}" if result.complete else "dropped"


def _changes(old: Result[Any], new: Result[Any]) -> str:
    text = "; ".join(changes(genome_of(old), genome_of(new))) or "nothing"
    return text if len(text) <= WIDTH - 2 else f"{text[: WIDTH - 5]}..."
