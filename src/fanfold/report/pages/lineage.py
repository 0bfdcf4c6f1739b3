"""The Lineage page: which candidate was made from which, how, and what each way of making paid."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fanfold.ledger.page_records import TrialOrigin
from fanfold.report.pages.parts import Payload, ShownRun

#: The most nodes of a drawing.
MOST = 2000


def lineage(shown: ShownRun) -> Payload:
    """The graph of parents and children, thinned to what a page can draw."""
    origins = {origin.trial: origin for origin in shown.view.origins()}
    best = shown.best()
    line = _ancestors(origins, [] if best is None else [best.number])
    kept = _kept(origins, line)
    offspring = dict.fromkeys(origins, 0)
    for origin in origins.values():
        for parent in origin.parents:
            if parent in offspring:
                offspring[parent] += 1
    generations = _generations(origins)
    briefs = {row.number: shown.brief(row) for row in shown.view.some_trials(kept)}
    nodes = [
        {
            "trial": number,
            "parents": [parent for parent in origins[number].parents if parent in briefs],
            "by": origins[number].by[:80],
            "score": shown.score(origins[number].score),
            "brief": briefs[number],
            "generation": generations[number],
            "offspring": offspring[number],
            "line": number in line,
        }
        for number in kept
        if number in briefs
    ]
    return {"nodes": nodes, "ways": _ways(shown, origins), "thinned": len(origins) - len(nodes)}


def _ancestors(origins: Mapping[int, TrialOrigin], of: list[int]) -> set[int]:
    line, waiting = set[int](), of
    while waiting:
        number = waiting.pop()
        if number not in line and number in origins:
            line.add(number)
            waiting += origins[number].parents
    return line


def _kept(origins: Mapping[int, TrialOrigin], line: set[int]) -> list[int]:
    """The best line, then the best trials with all their ancestors, as many as can be drawn."""
    if len(origins) <= MOST:
        return sorted(origins)
    kept = set(sorted(line)[-MOST:])
    ranked = sorted(origins.values(), key=lambda origin: -(origin.score if origin.score is not None else -1e308))
    for origin in ranked:
        family = _ancestors(origins, [origin.trial]) - kept
        if len(kept) + len(family) <= MOST:
            kept |= family
        if len(kept) == MOST:
            break
    return sorted(kept)


def _generations(origins: Mapping[int, TrialOrigin]) -> dict[int, int]:
    """The generation of each trial: one more than its youngest parent's. Parents are asked before their children."""
    generations: dict[int, int] = {}
    for number, origin in sorted(origins.items()):
        generations[number] = 1 + max((generations.get(parent, -1) for parent in origin.parents), default=-1)
    return generations


def _ways(shown: ShownRun, origins: Mapping[int, TrialOrigin]) -> list[Payload]:
    """What each way of making candidates paid: how often a child was better than its best parent."""
    ways: dict[str, list[TrialOrigin]] = {}
    for origin in origins.values():
        if origin.by:
            ways.setdefault(origin.by, []).append(origin)
    rows = [
        {
            "by": by[:400],
            "made": len(made),
            "better": sum(_better(origin, origins) for origin in made),
            "best": shown.score(_most(origin.score for origin in made if origin.dropped is None)),
        }
        for by, made in ways.items()
    ]
    return sorted(rows, key=lambda row: -row["made"])[:50]


def _better(origin: TrialOrigin, origins: Mapping[int, TrialOrigin]) -> bool:
    before = _most(origins[parent].score for parent in origin.parents if parent in origins)
    return origin.dropped is None and origin.score is not None and before is not None and origin.score > before


def _most(scores: Iterable[float | None]) -> float | None:
    return max((score for score in scores if score is not None), default=None)
