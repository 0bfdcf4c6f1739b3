"""`fanfold calibrate`: measure what this machine is good for, before a study is run on it."""

from __future__ import annotations

import click

from fanfold.cli.output import examples, machine_readable, output_options, print_json
from fanfold.errors import ConfigError


@click.command(
    short_help="Measure what this machine is good for.",
    context_settings={"ignore_unknown_options": True},
    epilog=examples("fanfold calibrate neuro", "fanfold calibrate neuro --dataset mnist-5000 --batch-size 128"),
)
@click.argument("study", metavar="STUDY")
@click.argument("flags", metavar="[FIELDS]...", nargs=-1, type=click.UNPROCESSED)
@output_options
def calibrate(study: str, flags: tuple[str, ...]) -> None:
    """Measure the ways in which STUDY can run on this machine, and say which to use.

    FIELDS are those of the study, as for `fanfold run`: measure with the data and sizes you mean to use.
    """
    from fanfold.cli.show import say_summary
    from fanfold.cli.target import configured
    from fanfold.plugins import find_study, studies
    from fanfold.summary import Summary

    measure = getattr(find_study(study), "calibrate", None)
    if measure is None:
        able = [name for name in studies() if _able(name)]
        raise ConfigError(f"there is nothing to calibrate in the study {study!r}; try {', '.join(able) or 'none'}")
    sections = tuple(measure(configured(study, flags)))
    if machine_readable():
        print_json([{"title": s.title, "text": s.text, "columns": s.columns, "rows": s.rows} for s in sections])
    say_summary(Summary({}, sections))


def _able(name: str) -> bool:
    """Whether a study can be calibrated; one that cannot be imported here cannot."""
    from fanfold.plugins import find_study

    try:
        return hasattr(find_study(name), "calibrate")
    except ConfigError:
        return False
