"""The examples: two prompts improve together on a planted model, and a heuristic improves although versions crash."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from fanfold import evolve
from fanfold.tasks.sandbox import missing

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.fixture
def pipeline(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys, "path", [str(EXAMPLES), *sys.path])
    return importlib.import_module("pipeline")


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.slow
def test_two_prompts_improve_together_with_demonstrations_of_their_own(pipeline: Any, seed: int) -> None:
    found = evolve(
        pipeline.PROMPTS, pipeline.program, cases=pipeline.CASES, grader="exact", calls=400, held_out=9, seed=seed
    )
    held_out = found.run.summary.figures["held_out"]  # type: ignore[union-attr]
    assert found.start_score is not None and found.score >= found.start_score + 0.3
    assert held_out["winner"] >= held_out["start"] + 0.3
    assert all(found.parts[name].startswith(prompt) for name, prompt in pipeline.PROMPTS.items())


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.slow
def test_a_writer_reads_what_each_prompt_was_asked_and_replied(pipeline: Any, seed: int) -> None:
    found = evolve(
        pipeline.PROMPTS,
        pipeline.program,
        cases=pipeline.CASES,
        grader="exact",
        calls=500,
        held_out=9,
        seed=seed,
        writer=pipeline.WRITER,
        demonstrations=0,
    )
    assert "name only" in found.parts["extract"] and "English name" in found.parts["answer"]
    assert found.score >= 0.9 > 0.4 > (found.start_score or 0.0)


@pytest.mark.slow
@pytest.mark.skipif(bool(missing()), reason="the sandbox lacks a guard here")
def test_a_heuristic_gets_better_although_some_versions_crash_or_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(EXAMPLES), *sys.path])
    packing = importlib.import_module("evolve_packing")
    best = packing.main()
    assert best.score > best.start_score + 0.1 and "sorted" in best.text
