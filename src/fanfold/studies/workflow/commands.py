"""`fanfold workflow replay`, which checks the CAGE-2 model against recorded episodes."""

from __future__ import annotations

from dataclasses import asdict

import click

from fanfold.plugins import Shell, StudyCommand

_EXAMPLES = """\b
Examples:
  fanfold workflow replay traces/*.jsonl.gz
  fanfold workflow replay one.jsonl --json
"""


@click.command(short_help="Check the CAGE-2 model against recorded episodes.", epilog=_EXAMPLES)
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path())
@click.option(
    "--observation",
    type=click.Choice(["cyborg", "original"]),
    default="cyborg",
    show_default=True,
    help="Which table blue sees in the record: the challenge's, or that of the patched wrapper.",
)
@click.pass_obj
def replay(shell: Shell, files: tuple[str, ...], observation: str) -> None:
    """Replay recorded episodes with their chance outcomes injected, and compare every step.

    FILE holds one episode a line as JSON, plain or gzipped.  Red's action, its success, the reward, all 52 observation
    bits and the true state are compared.  The first difference is shown, and ends the command with exit code 1.
    """
    from fanfold.studies.workflow.cage2.replay import replay as replay_files

    tally = replay_files(files, observation)
    difference = tally.difference
    if shell.machine_readable:
        counts = {"episodes": tally.episodes, "steps": tally.steps, "mismatches": tally.mismatches}
        shell.print_json({**counts, "files": tally.files, "difference": asdict(difference) if difference else None})
    shell.say(f"{tally.episodes} episodes, {tally.steps} steps, {tally.mismatches} mismatches")
    if difference is not None:
        shell.say(str(difference))
        click.get_current_context().exit(1)


def commands() -> tuple[StudyCommand, ...]:
    return (StudyCommand(replay),)
