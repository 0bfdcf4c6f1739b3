"""`fanfold cage2 replay`, which checks the CAGE-2 model against recorded episodes."""

from __future__ import annotations

from dataclasses import asdict

import click

from fanfold.cli.output import examples, machine_readable, output_options, print_json, say
from fanfold.errors import MissingExtra


@click.group(short_help="The CAGE-2 network defence game: check the model against recorded episodes.")
def cage2() -> None:
    """The CAGE-2 network defence game (needs the extra `workflow`)."""


@cage2.command(epilog=examples("fanfold cage2 replay traces/*.jsonl.gz", "fanfold cage2 replay one.jsonl --json"))
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path())
@click.option(
    "--observation",
    type=click.Choice(["cyborg", "original"]),
    default="cyborg",
    show_default=True,
    help="Which table blue sees in the record: the challenge's, or that of the patched wrapper.",
)
@output_options
@click.pass_context
def replay(ctx: click.Context, files: tuple[str, ...], observation: str) -> None:
    """Replay recorded episodes with their chance outcomes injected, and compare every step.

    FILE holds one episode a line as JSON, plain or gzipped.  Red's action, its success, the reward, all 52 observation
    bits and the true state are compared.  The first difference is shown, and ends the command with exit code 1.
    """
    try:
        from fanfold.studies.workflow.cage2.replay import replay as replay_files
    except ModuleNotFoundError as error:
        raise MissingExtra(error.name or "numpy", "workflow", "fanfold cage2") from error
    tally = replay_files(files, observation)
    difference = tally.difference
    if machine_readable():
        found = {"episodes": tally.episodes, "steps": tally.steps, "mismatches": tally.mismatches}
        print_json({**found, "files": tally.files, "difference": asdict(difference) if difference else None})
    say(f"{tally.episodes} episodes, {tally.steps} steps, {tally.mismatches} mismatches")
    if difference is not None:
        say(str(difference))
        ctx.exit(1)
