"""`fanfold compare`: two or more runs side by side."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any

import click

from fanfold.cli.output import (
    complete_run,
    examples,
    ledger_option,
    machine_readable,
    number,
    output_options,
    print_json,
    say,
    shortened,
    table,
)

if TYPE_CHECKING:
    from fanfold.ledger import RunView
    from fanfold.report import Comparison


@click.command(
    short_help="Compare two or more runs.",
    epilog=examples(
        "fanfold compare first second",
        "fanfold compare baseline last --json",
        "fanfold compare monday.db#search tuesday.db#search",
    ),
)
@click.argument("names", nargs=-1, required=True, metavar="RUN RUN...", shell_complete=complete_run)
@ledger_option
@output_options
def compare(names: tuple[str, ...], ledger: str) -> None:
    """Compare runs, each with the first: figures, best candidates on the cases they share, settings that differ.

    RUN is a run's name, the beginning of one, or `last`. A run of another ledger is LEDGER#RUN.
    """
    from fanfold.report import compare as compared

    with contextlib.ExitStack() as stack:
        comparison = compared(_opened(stack, names, ledger))
    if machine_readable():
        print_json(_as_json(comparison))
    _say(comparison)


def _opened(stack: contextlib.ExitStack, names: tuple[str, ...], ledger: str) -> dict[str, RunView]:
    from fanfold.ledger import RunView

    views: dict[str, RunView] = {}
    for text in names:
        path, separator, run = text.rpartition("#")
        view = stack.enter_context(RunView.open(path if separator else ledger, run))
        # Runs of the same name in two ledgers are told apart by the ledger.
        views[view.name if view.name not in views else f"{path or ledger}#{view.name}"] = view
    return views


def _say(comparison: Comparison) -> None:
    head = ["", *comparison.names]
    rows = [[same[0].label, *(metric.text for metric in same)] for same in zip(*comparison.metrics)]
    say(table(head, rows, right=head[1:]))
    if comparison.differences:
        say(f"\nDifference from {comparison.names[0]}, best candidates on the same cases")
        columns = ["run", "cases", "n", "difference", "95 % interval", "p"]
        shown = []
        for difference in comparison.differences:
            interval = difference.paired.difference
            limits = f"{number(interval.low)} to {number(interval.high)}"
            figures = [str(interval.n), number(interval.estimate), limits, f"{difference.paired.p:.3g}"]
            shown.append([difference.run, difference.cases, *figures])
        say(table(columns, shown, right=columns[2:]))
    else:
        say("\nThe best candidates share no cases, so there is no paired difference")
    if comparison.settings:
        say("\nSettings that differ")
        settings = [[name, *(_short(value) for value in values)] for name, values in comparison.settings.items()]
        say(table(["setting", *comparison.names], settings, whole=["setting"]))


def _short(value: Any) -> str:
    return "-" if value is None else shortened(str(value), 40)


def _as_json(comparison: Comparison) -> dict[str, Any]:
    runs = [
        {"run": name, **{metric.key: metric.value for metric in figures}}
        for name, figures in zip(comparison.names, comparison.metrics)
    ]
    differences = [
        {"run": difference.run, "against": difference.against, "cases": difference.cases, "p": difference.paired.p}
        | dataclasses.asdict(difference.paired.difference)
        for difference in comparison.differences
    ]
    settings = {name: dict(zip(comparison.names, values)) for name, values in comparison.settings.items()}
    return {"runs": runs, "differences": differences, "settings": settings}
