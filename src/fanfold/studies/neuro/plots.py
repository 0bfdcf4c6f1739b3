"""Pictures of a search by matplotlib, for notebooks: how good the networks of each generation were, and how alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fanfold.errors import ConfigError, MissingExtra


def plot_generations(generations: Sequence[Mapping[str, Any]], target: float | None = None) -> Any:
    """A figure of the best, the mean and the least fitness of each generation, and of their deviation.

    A generation has `generation`, `max_fitness`, `avg_fitness`, `min_fitness` and `std_fitness`, in per cent.  One in
    which nothing could be trained is left out.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise MissingExtra("matplotlib", "plots", "drawing a search") from error
    rows = [row for row in generations if row["max_fitness"] > 0]
    if not rows:
        raise ConfigError("there is nothing to draw: no generation has a trained network yet")
    numbers = [row["generation"] + 1 for row in rows]
    mean, deviation = ([row[name] for row in rows] for name in ("avg_fitness", "std_fitness"))
    figure = Figure(figsize=(12, 4.5), layout="constrained")
    fitness, spread = figure.subplots(1, 2)
    for name, label in (("max_fitness", "best"), ("avg_fitness", "mean"), ("min_fitness", "least")):
        fitness.plot(numbers, [row[name] for row in rows], marker="o", label=label)
    low, high = ([m + sign * d for m, d in zip(mean, deviation)] for sign in (-1, 1))
    fitness.fill_between(numbers, low, high, alpha=0.2)
    if target is not None:
        fitness.axhline(target, linestyle="--", color="grey", label=f"target {target:g} %")
    fitness.legend()
    spread.plot(numbers, deviation, marker="o")
    for axes, title in ((fitness, "fitness (%)"), (spread, "standard deviation of the fitness")):
        axes.set_xlabel("generation")
        axes.set_ylabel(title)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(alpha=0.3)
    return figure
