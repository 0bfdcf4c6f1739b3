"""The names that the documents Fanfold grew from use, as thin facades over its studies; docs/migration.md has a table.

Nothing inside Fanfold imports this package: it is for code that was written before.
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

# Imported on first use: one document's names should not load another document's study.
_HOMES = {
    "AsyncEvaluationPipeline": "pipeline",
    "AsyncEvolutionConfig": "settings",
    "AsyncEvolutionController": "evolution",
    "AsyncLLMInterface": "llm",
    "EvolutionConfig": "settings",
    "EvolutionController": "evolution",
    "PerformanceBenchmark": "benchmark",
    "PromptGenome": "pipeline",
}

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


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
