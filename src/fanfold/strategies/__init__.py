"""Strategies that come with Fanfold: fixed lists, random search, a genetic search, and other libraries' optimisers."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from fanfold.errors import ConfigError, nearest
from fanfold.space import Space
from fanfold.strategies.genetic import Genetic
from fanfold.strategies.gp_ucb import GpUcb
from fanfold.strategies.reflective import Reflective
from fanfold.strategies.sweep import Random, Sweep
from fanfold.strategy import Strategy

if TYPE_CHECKING:
    from fanfold.strategies.wrap import Cmaes, Nevergrad, Optuna

__all__ = ["Cmaes", "Genetic", "GpUcb", "Nevergrad", "Optuna", "Random", "Reflective", "Sweep"]

GROUP = "fanfold.strategies"
#: Ours that search a space, by name.
_OWN = {"genetic": "Genetic", "random": "Random", "optuna": "Optuna", "cmaes": "Cmaes", "nevergrad": "Nevergrad"}


def strategy(name: str, space: Space, **settings: Any) -> Strategy[Any]:
    """A strategy for a space by its name: genetic, random, optuna, cmaes, nevergrad.

    Packages bring others in the entry-point group `fanfold.strategies`: callables that take the space and their
    settings.
    """
    from fanfold.registry import brought, loaded

    known = brought(GROUP)
    if name not in _OWN and name not in known:
        raise ConfigError(f"there is no strategy {name!r}{nearest(name, [*_OWN, *known])}")
    own = sys.modules[__name__]
    make = getattr(own, _OWN[name]) if name in _OWN else loaded(known[name], f"the strategy {name!r}")
    made = make(space, **settings)
    if not isinstance(made, Strategy):
        raise ConfigError(f"strategy {name!r} gave {made!r}, which is not a fanfold Strategy; report it to its author")
    return made


def __getattr__(name: str) -> Any:
    if name in ("Cmaes", "Nevergrad", "Optuna"):
        from fanfold.strategies import wrap

        return getattr(wrap, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
