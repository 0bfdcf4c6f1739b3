"""The names that the documents Fanfold grew from use; docs/migration.md has a table.

Legacy holds names, not mechanisms.  It may map documented names, settings and results onto a study, and log and print
what a document prints.  It may not search, stop, solve, retry, remember or learn by itself: where a document promises
something that no study can do, the study learns it.  Nothing inside Fanfold imports this package: it is for code that
was written before.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fanfold.legacy.benchmark import PerformanceBenchmark
    from fanfold.legacy.evolution import AsyncEvolutionController, EvolutionController
    from fanfold.legacy.llm import AsyncLLMInterface
    from fanfold.legacy.pipeline import AsyncEvaluationPipeline, PromptGenome
    from fanfold.legacy.settings import AsyncEvolutionConfig, EvolutionConfig

__all__ = [
    "AsyncEvaluationPipeline",
    "AsyncEvolutionConfig",
    "AsyncEvolutionController",
    "AsyncLLMInterface",
    "EvolutionConfig",
    "EvolutionController",
    "PerformanceBenchmark",
    "PromptGenome",
]

# Imported on first use: one document's names should not load another document's study.
_HOMES = {"Config": "settings", "Controller": "evolution", "Interface": "llm", "Benchmark": "benchmark"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = next((module for end, module in _HOMES.items() if name.endswith(end)), "pipeline")
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)
