"""What a search for a better text found: the winner, what changed, where it came from, and how it does elsewhere."""

from __future__ import annotations

import codecs
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fanfold import drawings
from fanfold.errors import ConfigError
from fanfold.files import replacing, write_files
from fanfold.running import Go, Run
from fanfold.strategies import Sweep
from fanfold.strategies.reflective import parts_of
from fanfold.studies.evolve.blocks import differences
from fanfold.studies.evolve.evaluator import EvolveEvaluator
from fanfold.studies.evolve.shown import joined
from fanfold.study import Study
from fanfold.summary import Section, Summary
from fanfold.texts import count
from fanfold.types import UNWRITTEN, Case, Ok, Result

#: Rows of the lists that could be long.
MOST_ROWS = 40


@dataclass(frozen=True)
class EvolveConclusion:
    """Scores start and winner on the held-out cases, writes the winner to `output`, and says what changed."""

    evaluate: EvolveEvaluator
    start: Mapping[str, str]
    held_out: tuple[Case, ...] = ()
    output: str | None = None
    seed: int = 0

    @property
    def fingerprint(self) -> str:
        return f"fanfold.evolve/1 {len(self.held_out)}"  # the rest of it is the study's

    def rehearsed(self) -> EvolveConclusion:
        return replace(self, output=None)

    async def __call__(self, run: Run[Any], go: Go) -> Summary:
        results = list(run.results())
        winner = best_of(results)
        parts = None if winner is None else parts_of(winner)
        if winner is None or parts is None:
            raise ConfigError(self._without_score(results, run))
        first = next((result for result in results if result.number == 0 and result.complete), None)
        texts, before = self.evaluate.texts(parts), self.evaluate.texts(self.start)
        held = await self._held_out(parts, go)
        figures = {
            "winner": {"trial": winner.number, "parts": parts, "texts": texts},
            "score": winner.score,
            "start_score": None if first is None else first.score,
            "held_out": held,
            "texts_tried": len(results),
            "ways": {way: list(counts) for way, counts in _ways(results).items()},
        }
        if self.output is not None:
            write_texts(self.output, texts)
        changed = differences(before, texts)
        drawn = drawings.diff(joined(before), joined(texts), before_name="start", after_name=f"trial {winner.number}")
        rows = [("start", figures["start_score"], *([held["start"]] if held else []))]
        rows.append((f"best (trial {winner.number})", winner.score, *([held["winner"]] if held else [])))
        columns = ("text", "score", *(["held-out"] if held else []))
        sections = [
            Section("Score", "" if changed else _nothing(results), columns, tuple(rows)),
            *([Section("Changes", changed, drawings=(drawn,))] if changed else []),
            *([Section("Best text", joined(texts))] if changed and self.output is None else []),
            Section("Lineage", "", ("trial", "by", "score", "parents"), tuple(_lineage(winner, results))),
            Section("Ways of making texts", "", ("way", "texts", "complete", "unusable"), tuple(_rows(results))),
            *_cases(winner, first),
        ]
        if self.output is not None:
            sections.append(Section("Written to", self.output))
        return Summary(figures, tuple(sections))

    def _without_score(self, results: list[Result[Any]], run: Run[Any]) -> str:
        """Why not even the start has a score."""
        failures = [] if not results else list(results[0].failures.items())
        if not failures:
            return f"no text was scored on all cases ({run.reason})"
        case, failed = failures[0]
        where = f" on case {case}" if len(run.view.cases()) > 1 else ""
        detail = f"\n{failed.detail.strip()[-1500:]}" if failed.kind == "error" else ""
        return (
            f"the evaluator fails for the text that the search starts from{where}, so nothing was written: "
            f"{failed.message}{detail}"
        )

    async def _held_out(self, parts: Mapping[str, str], go: Go) -> dict[str, Any] | None:
        """The mean scores of start and winner on cases that the search did not see."""
        if not self.held_out:
            return None
        candidates = [dict(parts), *([dict(self.start)] if parts != self.start else [])]  # what was found comes first
        run = await go(
            "held-out", Study(Sweep(candidates), self.evaluate, self.held_out, seed=self.seed, name="held-out")
        )
        scores = {result.number: result.score for result in run.results()}
        return {"start": scores.get(len(candidates) - 1), "winner": scores.get(0), "n": len(self.held_out)}


def best_of(results: list[Result[Any]]) -> Result[Any] | None:
    """The complete result with the highest score, of equals the first."""
    complete = [result for result in results if result.complete and parts_of(result) is not None]
    return max(complete, key=lambda result: (result.score or 0.0, -result.number), default=None)


def check_output(output: str, many: bool) -> None:
    """Refuse a place that the best text cannot be written to, before anything is paid for."""
    path, problem = Path(output), ""
    if many and path.exists() and not path.is_dir():
        problem = "is a file, and there are several texts: name a folder"
    elif not many and path.is_dir():
        problem = "is a folder, and the best text is one file: name the file"
    elif not many and not path.parent.is_dir():
        problem = f"cannot be written: there is no folder {path.parent}; make it, or name another"
    elif not many and (path.is_file() or not path.exists()) and not os.access(path.parent, os.W_OK):
        problem = f"cannot be written: nothing can be written into {path.parent.absolute()}; name another folder"
    if problem:
        raise ConfigError(f"output {output} {problem}")


def write_texts(output: str, texts: Mapping[str, str]) -> None:
    """Write a text to a file, or several into a folder."""
    check_output(output, len(texts) > 1)
    if len(texts) > 1:
        write_files(Path(output), {Path(name).name: as_in_file(name, text).encode() for name, text in texts.items()})
        return
    with replacing(Path(output)) as file:
        file.write(as_in_file(*next(iter(texts.items()))).encode())


def as_in_file(name: str, text: str) -> str:
    """A text with the byte order mark and the line breaks of the file that the search started from.

    A search knows no mark, and only the line breaks of Unix.
    """
    try:
        before = Path(name).read_bytes()
    except (OSError, ValueError):  # not the name of a file, or no longer
        return text
    mark = "\ufeff" * before.startswith(codecs.BOM_UTF8)
    windows = 2 * before.count(b"\r\n") > before.count(b"\n")
    return mark + (text.replace("\r\n", "\n").replace("\n", "\r\n") if windows else text)


def _nothing(results: list[Result[Any]]) -> str:
    """Why there is nothing better than the start."""
    if others := results[1:]:
        failures = [next(iter(result.failures.values()), None) for result in others]
        unwritten = [failed for failed in failures if failed is not None and failed.kind == UNWRITTEN]
        if len(unwritten) == len(others):
            tries = count(len(others), "time")
            return f"nothing else was tried, for the writer wrote no usable text {tries}: {unwritten[0].message[:200]}"
        scored = any(isinstance(outcome, Ok) for result in others for outcome in result.outcomes.values())
        failed = next((each for each in failures if each is not None and each.kind != UNWRITTEN), None)
        if not scored and failed is not None:
            return f"none of the {count(len(others), 'other text')} could be scored: {failed.message[:200]}"
        return "nothing better than the start was found"
    return (
        "nothing else was tried: without a writer, prompts show right answers of their own, and no call of the program "
        "to a fanfold model came out right; name a writer, or start with better prompts"
    )


def _lineage(winner: Result[Any], results: list[Result[Any]]) -> list[tuple[Any, ...]]:
    """The winner, its parents, theirs, and so on: the line of the first parents, with all parents named."""
    by_number = {result.number: result for result in results}
    rows: list[tuple[Any, ...]] = []
    here: Result[Any] | None = winner
    while here is not None and len(rows) < MOST_ROWS:
        origin = here.trial.origin or {}
        parents = origin.get("parents", [])
        rows.append((here.number, origin.get("by", ""), here.score, ", ".join(map(str, parents)) or "-"))
        here = by_number.get(parents[0]) if parents else None
    return rows


def _ways(results: list[Result[Any]]) -> dict[str, tuple[int, int, int]]:
    """Of each way of making texts: how many, how many were scored on all cases, how many could not be used."""
    made, complete, unusable = Counter[str](), Counter[str](), Counter[str]()
    for result in results:
        way = str((result.trial.origin or {}).get("by", ""))
        made[way] += 1
        complete[way] += result.complete
        unusable[way] += any(failed.kind == UNWRITTEN for failed in result.failures.values())
    return {way: (made[way], complete[way], unusable[way]) for way in made}


def _rows(results: list[Result[Any]]) -> list[tuple[Any, ...]]:
    return [(way, *counts) for way, counts in sorted(_ways(results).items(), key=lambda entry: -entry[1][0])]


def _cases(winner: Result[Any], first: Result[Any] | None) -> list[Section]:
    """The winner case by case beside the start, the worst first."""
    if len(winner.outcomes) < 2:
        return []
    before = {} if first is None else first.outcomes
    rows = [(case, _score(before.get(case)), _score(outcome)) for case, outcome in winner.outcomes.items()]
    rows.sort(key=lambda row: (row[2] is not None, row[2]))
    return [Section("Cases", "", ("case", "start", "best"), tuple(rows[:MOST_ROWS]))]


def _score(outcome: Any) -> float | None:
    return outcome.score if isinstance(outcome, Ok) else None
