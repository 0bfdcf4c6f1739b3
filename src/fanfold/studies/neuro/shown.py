"""How networks, their trainings and the result of a search look to people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fanfold.plugins import Presentation
from fanfold.studies.neuro.genome import describe, genome_of
from fanfold.summary import Section
from fanfold.types import Result


def headline(figures: Mapping[str, Any]) -> str | None:
    """The accuracy of the winner: on the test part, where there is one."""
    if figures.get("winner") is None:
        return None
    if figures["test"] is None:
        return f"validation accuracy {figures['validation']:.4f}"
    low, high = figures["test_interval"]
    return f"test accuracy {figures['test']:.4f} [{low:.4f}, {high:.4f}] on {figures['test_images']} images"


def candidate(value: Mapping[str, Any]) -> Section:
    """The network in one line, and whether it starts from a parent's weights."""
    inherits = value.get("inherited") is not None  # weights, or in a page of trials only where they are
    return Section("Network", describe(genome_of(value["genome"])) + ("; inherits weights" if inherits else ""))


def cell(data: Mapping[str, Any]) -> Section:
    """A training up to a rung, or the guess before the first."""
    names = ("accuracy", "loss", "epochs", "parameters", "operations", "latency", "stopped", "proxy")
    return Section("Training", "", ("", "value"), tuple((name, data[name]) for name in names if name in data))


def trained(result: Result[Any]) -> str:
    """A network in a few words."""
    score = "failed" if result.score is None else f"{result.score:.4f}"
    return f"{score} by {describe(result.candidate.genome)}"


presentation = Presentation(headline, candidate, cell)
