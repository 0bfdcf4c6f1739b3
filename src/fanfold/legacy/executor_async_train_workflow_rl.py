"""The documented training program over the study `workflow`, and the function its workers ran.

python -m fanfold.legacy.executor_async_train_workflow_rl --n-workers 100 --total-episodes 100000

Its options are those of `fanfold run workflow`, to which everything is handed on; only `--n-workers` means more there.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fanfold.executors import usable_cores

if TYPE_CHECKING:
    from fanfold.studies.workflow.episodes import Episode, collect_single_episode, initial_policy

__all__ = ["Episode", "collect_single_episode", "command", "initial_policy", "main"]

#: The most workflows that are trained at once.  More would be chosen before anything is known of those under way.
AT_ONCE = 8


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command, and give its exit code."""
    from fanfold.cli import cli

    words = command(sys.argv[1:] if arguments is None else arguments)
    try:
        cli.main(words, prog_name="fanfold", standalone_mode=True)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def command(arguments: Sequence[str]) -> list[str]:
    """The words of the `fanfold` command that does what the documented one did.

    The documented workers played episodes of one workflow after the other; here each trains a workflow of its own.  How
    many are under way decides what the search knows when it chooses, and follows from `--n-workers` alone; how many
    processes they share, also from the machine: more than it has cores would only wait for each other.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--n-workers", "--n_workers")
    parser.add_argument("--in-flight", "--in_flight")
    parser.add_argument("--executor")
    known, rest = parser.parse_known_args(list(arguments))
    words = ["run", "workflow", *rest]
    wanted = known.n_workers
    if wanted is not None:
        words += ["--n-workers", wanted]
    if wanted is not None and wanted.isdecimal() and int(wanted) > 0:  # anything else is for the study to refuse
        workers = min(int(wanted), usable_cores())
        known.in_flight = known.in_flight or str(min(int(wanted), AT_ONCE))
        if known.executor is None:
            known.executor = f"processes:{workers}" if workers > 1 else "inline"
            if workers < int(wanted):
                print(f"{wanted} workers asked for, {workers} used: as many as there are cores", file=sys.stderr)
    for name, value in (("--in-flight", known.in_flight), ("--executor", known.executor)):
        words += [] if value is None else [name, value]
    return words


def __getattr__(name: str) -> Any:
    """Imported on first use: the command needs no numpy, what plays episodes does."""
    if name in ("Episode", "collect_single_episode", "initial_policy"):
        return getattr(importlib.import_module("fanfold.studies.workflow.episodes"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


if __name__ == "__main__":
    sys.exit(main())
