"""Strategies that come with Fanfold: fixed lists, random search, a genetic search, and other libraries' optimisers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fanfold.strategies.genetic import Genetic
from fanfold.strategies.gp_ucb import GpUcb
from fanfold.strategies.reflective import Reflective
from fanfold.strategies.sweep import Random, Sweep

if TYPE_CHECKING:
    from fanfold.strategies.wrap import Cmaes, Nevergrad, Optuna

__all__ = ["Cmaes", "Genetic", "GpUcb", "Nevergrad", "Optuna", "Random", "Reflective", "Sweep"]


def __getattr__(name: str) -> Any:
    if name in ("Cmaes", "Nevergrad", "Optuna"):
        from fanfold.strategies import wrap

        return getattr(wrap, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
