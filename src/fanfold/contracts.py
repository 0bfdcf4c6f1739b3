"""Whether a strategy and an evaluator can be used at all, found out before anything is evaluated."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from fanfold.errors import ConfigError
from fanfold.executors.base import name_of
from fanfold.space import Space
from fanfold.strategy import Strategy

_NOTHING: Mapping[str, Any] = MappingProxyType({})


def check_strategy(strategy: Any) -> None:
    """Refuse what is not a strategy, with what was probably meant."""
    if isinstance(strategy, Strategy):
        return
    if isinstance(strategy, type):
        remedy = f"give an instance, {strategy.__name__}(...)"
    elif isinstance(strategy, Space):
        remedy = "give Random(space) or Genetic(space)"
    elif isinstance(strategy, list | tuple | range):
        remedy = "give Sweep(candidates)"
    else:
        remedy = f"let {type(strategy).__name__} extend fanfold.Strategy"
    raise ConfigError(f"strategy must be a fanfold.Strategy, and {strategy!r:.80} is not one: {remedy}")


def check_evaluator(evaluate: Any, shared: Mapping[str, Any]) -> None:
    """Refuse an evaluator that cannot be called with what it is given."""
    if isinstance(evaluate, type):
        raise ConfigError(
            f"evaluate must be a function of (candidate, case), not the class {evaluate.__name__}: give an instance"
        )
    if not callable(evaluate):
        raise ConfigError(f"evaluate must be a function of (candidate, case), not {evaluate!r}")
    if not isinstance(shared, Mapping) or not all(isinstance(name, str) for name in shared):
        raise ConfigError(f"shared must be a dict of names and values, not {shared!r:.80}")
    continues = bool(getattr(evaluate, "continues", False))
    _check_returns(evaluate, "evaluate")
    check_call(evaluate, "evaluate", ("candidate", "case", "previous")[: 2 + continues], shared)
    block = getattr(evaluate, "evaluate_block", None)
    if callable(block):
        _check_returns(block, "evaluate_block")
        check_call(block, "evaluate_block", ("cells",), shared)


def check_conclude(conclude: Any) -> None:
    """Refuse what cannot be awaited with a run, before the run is over."""
    if conclude is None:
        return
    if not callable(conclude):
        raise ConfigError(f"conclude must be a function or None, not {conclude!r}")
    function = inspect.unwrap(conclude)
    if inspect.isfunction(function) and not inspect.iscoroutinefunction(function):
        raise ConfigError(f"conclude must be a coroutine function, and {name_of(function)} is not: make it `async def`")
    check_call(conclude, "conclude", ("run", "go"))


def _check_returns(function: Any, what: str) -> None:
    for called in (function, getattr(type(function), "__call__", None)):  # noqa: B004
        if inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
            raise ConfigError(f"{what} is a generator, because it has a `yield`: return the score instead")


def check_call(function: Any, what: str, names: tuple[str, ...], shared: Mapping[str, Any] = _NOTHING) -> None:
    """Refuse a function that does not take arguments of these names, in this order, and what is shared by name."""
    try:
        # What a decorator wraps may take other arguments than the decorator, which is what is called.
        signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):
        return  # a built-in that does not say what it takes
    try:
        signature.bind(*names, **shared)
    except TypeError as error:
        if shared:
            raise ConfigError(
                f"shared has {', '.join(shared)}, and {what} must take that as arguments of these names "
                f"({error}): add them to its parameters"
            ) from error
        raise ConfigError(
            f"{what} is called with ({', '.join(names)}), and {name_of(function)} does not take that ({error}): give "
            "it these parameters, and what else it needs by functools.partial"
        ) from error
