"""`fanfold evolve best`: the best text of a run, also of one that was interrupted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fanfold.plugins import Shell, StudyCommand

if TYPE_CHECKING:
    from fanfold.ledger import RunView

_EXAMPLES = """\b
Examples:
  fanfold evolve best last > best.py
  fanfold evolve best last -o best.py
"""


@click.command(short_help="Print the best text of a run.", epilog=_EXAMPLES)
@click.argument("name", metavar="RUN")
@click.option("--output", "-o", metavar="FILE", help="The file for the text; of several files, a folder.")
@click.option("--ledger", envvar="FANFOLD_LEDGER", default="fanfold.db", metavar="FILE", help="Where the run is.")
@click.pass_obj
def best(shell: Shell, name: str, output: str | None, ledger: str) -> None:
    """Print the best text that RUN has found so far, also if it was interrupted."""
    from fanfold.ledger import RunView
    from fanfold.studies.evolve.conclusion import as_in_file, write_texts
    from fanfold.studies.evolve.shown import joined

    with RunView.open(ledger, name) as view:
        texts = _texts(view)
    if output is not None:
        write_texts(output, texts)
    if shell.machine_readable:
        shell.print_json(texts)
    elif output is None:
        text = joined({name: as_in_file(name, text) for name, text in texts.items()})
        click.echo(text.encode(), nl=not text.endswith("\n"))


def _texts(view: RunView) -> dict[str, str]:
    from fanfold.errors import ConfigError
    from fanfold.strategies.reflective import parts_of
    from fanfold.studies.evolve.blocks import Blocks
    from fanfold.studies.evolve.conclusion import best_of
    from fanfold.studies.evolve.program import prompts_of
    from fanfold.studies.evolve.study import read_text

    summary = view.summary()
    if summary is not None and summary.figures.get("winner"):
        return dict(summary.figures["winner"]["texts"])
    winner, fields = best_of(list(view.results())), view.info.meta.get("fields", {})
    parts = None if winner is None else parts_of(winner)
    if parts is None:
        raise ConfigError(f"run {view.info.name!r} has no text with a complete score yet")
    files = {name: read_text(name) for name in fields.get("file", ())}
    prompts = prompts_of(parts)
    return Blocks.of(files)[0].filled(prompts) if files else prompts


def commands() -> tuple[StudyCommand, ...]:
    return (StudyCommand(best),)
