"""`fanfold ledger`: what a ledger's file holds, and how files are merged, made smaller, copied and checked."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fanfold.cli.batches import batches
from fanfold.cli.export import export
from fanfold.cli.output import (
    complete_file,
    echo,
    examples,
    ledger_option,
    machine_readable,
    output_options,
    print_json,
    quiet,
    say,
    shortened,
    table,
)
from fanfold.cli.prune import prune
from fanfold.cli.show import runs
from fanfold.texts import count, file_size

if TYPE_CHECKING:
    from fanfold.ledger.merging import Merged


class LedgerGroup(click.Group):
    """The commands about a file; the name of a file, instead of a command, says which one to look at."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in self.commands and Path(args[0]).is_file():
            ctx.params["ledger"] = args[0]
            return "about", _about, ["--ledger", *args]
        return super().resolve_command(ctx, args)


@click.group(
    "ledger",
    cls=LedgerGroup,
    invoke_without_command=True,
    short_help="What a ledger's file holds; merge, prune, copy or check it.",
    epilog=examples(
        "fanfold ledger",
        "fanfold ledger merge other-machine.db",
        "fanfold ledger prune --dry-run",
        "fanfold ledger push s3://bucket/team.db",
        "fanfold ledger pull s3://bucket/team.db --merge",
    ),
)
@ledger_option
@output_options
@click.pass_context
def ledger_group(ctx: click.Context, ledger: str) -> None:
    """Say what a ledger's file holds; or merge, prune, copy or check it."""
    if ctx.invoked_subcommand is None:
        _say_holdings(ledger)
    elif ctx.get_parameter_source("ledger") is click.core.ParameterSource.COMMANDLINE:
        ctx.default_map = {name: {"ledger": ledger} for name in ledger_group.commands}


@click.command(hidden=True)
@ledger_option
@output_options
def _about(ledger: str) -> None:
    """Say what a ledger's file holds."""
    _say_holdings(ledger)


def _say_holdings(ledger: str) -> None:
    from fanfold.ledger.holdings import holdings

    held = holdings(Path(ledger))
    if machine_readable():
        kinds = {
            "runs": held.runs,
            "under_way": held.live,
            "bytes": held.sizes,
            "stores": held.stores,
        }
        head = {"ledger": ledger, "size": held.size, "log": held.log, "schema": held.schema, "written": held.written}
        print_json({**head, **kinds, "open_by": held.open_by})
        return
    older = "" if held.schema == held.newest_schema else f" (this version has {held.newest_schema})"
    log = f", and {file_size(held.log)} in its log" if held.log else ""
    say(f"{ledger}: {file_size(held.size)}{log}, schema {held.schema}{older}, last written {_ago(held.written)}")
    listed = ", ".join(f"{number:,} {status}" for status, number in sorted(held.runs.items()))
    say(f"{count(sum(held.runs.values()), 'run')}{f' ({listed})' if listed else ''}")
    rows = [[kind, file_size(size)] for kind, size in held.sizes.items() if size]
    say(table(["kind", "size"], rows, right=["size"]))
    for address, (number, size) in held.stores.items():
        say(f"{count(number, 'blob')} in {address}: {file_size(size)}")
    for process, program in held.open_by.items():
        say(f"open in process {process}: {shortened(program, 80)}")
    if held.sizes["free"] > held.size / 4 and held.sizes["free"] > 1e6:
        say("fanfold ledger vacuum gives the free pages back to the disk")


def _ago(when: float) -> str:
    from fanfold.texts import duration

    seconds = max(0.0, time.time() - when)
    return f"{duration(seconds)} ago" if seconds < 86400 else time.strftime("%Y-%m-%d %H:%M", time.localtime(when))


@ledger_group.command(
    short_help="Bring the runs of other ledgers into one.",
    epilog=examples(
        "fanfold ledger merge laptop.db cluster.db --into all.db",
        "fanfold ledger merge colleague.db           (into $FANFOLD_LEDGER or fanfold.db)",
    ),
)
@click.argument("others", metavar="OTHER...", nargs=-1, required=True, shell_complete=complete_file)
@click.option("--into", metavar="FILE", shell_complete=complete_file, help="The same as --ledger.")
@ledger_option
@output_options
def merge(others: tuple[str, ...], into: str | None, ledger: str) -> None:
    """Bring the runs of OTHER ledgers into one, which is made if it is missing; the others stay as they are.

    A run that is here already is brought up to date; merging again changes nothing. Replies of models are shared, and
    each payment counts once. A run whose name is taken by another run gets a number behind its name. Each file comes
    as a whole or not at all.
    """
    from fanfold.ledger.merging import merge as merged

    results = {}
    for other in others:
        results[other] = merged(Path(into or ledger), Path(other))
        _say_merged(other, into or ledger, results[other])
    if machine_readable():
        print_json([{"ledger": other, **_merged_as_json(result)} for other, result in results.items()])


def _merged_as_json(result: Merged) -> dict[str, Any]:
    runs = {"added": result.added, "updated": result.updated, "known": result.known, "diverged": result.diverged}
    return {**runs, "replies": result.replies, "payments": result.payments, "blobs": result.blobs}


def _say_merged(other: str, into: str, result: Merged) -> None:
    from fanfold.addresses import shown

    runs = ((f"added to {into}", result.added), ("updated", result.updated), ("known already", result.known))
    parts = [f"{count(len(names), 'run')} {verb}" for verb, names in runs if names]
    if result.replies:
        parts.append("1 reply" if result.replies == 1 else f"{result.replies:,} replies")
    parts += [count(n, noun) for n, noun in ((result.payments, "payment"), (result.blobs, "blob")) if n]
    say(f"{shown(other)}: {', '.join(parts) or 'no runs'}")
    for there, here in result.renamed.items():
        why = "was continued in another way here" if there in result.diverged else "is the name of another run here"
        say(f"  {there} is now {here}: {there} {why}")


@ledger_group.command(
    short_help="Give free space in the file back to the disk.",
    epilog=examples("fanfold ledger vacuum", "fanfold ledger vacuum --ledger runs.db"),
)
@ledger_option
@output_options
def vacuum(ledger: str) -> None:
    """Write the file again without its free space, after a check that it is sound.

    It takes as much room on the disk again while it works. Killed, it leaves the file as it was. No run may be under
    way.
    """
    from fanfold.ledger.holdings import vacuum as vacuumed
    from fanfold.ledger.schema import check_exists

    check_exists(Path(ledger))
    before, after = vacuumed(Path(ledger))
    if machine_readable():
        print_json({"ledger": ledger, "before": before, "after": after})
    say(f"{ledger}: {file_size(before)} before, {file_size(after)} now")


@ledger_group.command(
    short_help="Check the whole file: pages, rows, blobs.",
    epilog=examples("fanfold ledger verify", "fanfold ledger verify --ledger from-a-stranger.db"),
)
@ledger_option
@output_options
def verify(ledger: str) -> None:
    """Check the whole file: its pages, the rows of every run, and every blob against its digest.

    Blobs in stores must be there, with the size they had.
    """
    from fanfold.ledger import Ledger
    from fanfold.ledger.holdings import check_file, check_rows, check_stores

    with Ledger(ledger, readonly=True) as opened:
        check_file(opened)
        number, blobs = check_rows(opened)
        blobs += check_stores(opened)
    if machine_readable():
        print_json({"ledger": ledger, "sound": True, "runs": number, "blobs": blobs})
    say(f"{ledger} is sound: {count(number, 'run')}, {count(blobs, 'blob')}")


@ledger_group.command(
    short_help="Copy the ledger to a folder or a bucket.",
    epilog=examples(
        "fanfold ledger push s3://bucket/team.db",
        "fanfold ledger push /mnt/shared/ledgers/",
        "fanfold ledger push backup/runs.db --force",
    ),
)
@click.argument("address", metavar="ADDRESS")
@click.option("--force", is_flag=True, help="Replace what is there, also if it has runs that this ledger lacks.")
@ledger_option
@output_options
def push(address: str, force: bool, ledger: str) -> None:
    """Copy the ledger to ADDRESS: a file, a folder, or what fsspec reaches (s3://, gs://, sftp:// ...).

    A run may write meanwhile: the copy is of one moment. Its checksum and a list of its runs are put beside it, in a
    file that ends with .json. What is there is replaced only if this ledger has all of its runs.
    """
    from fanfold.ledger.moving import push as pushed
    from fanfold.ledger.schema import check_exists

    check_exists(Path(ledger))
    result = pushed(Path(ledger), address, force=force, progress=_progress())
    if machine_readable():
        print_json({"ledger": ledger, "address": result.address, "size": result.size, "runs": result.runs})
    say(f"{result.address}: {file_size(result.size)}, {count(result.runs, 'run')}")
    for store in result.stores:
        echo(f"note: its blobs stay in {store}: who pulls the ledger reads them from there", err=True)


@ledger_group.command(
    short_help="Bring a ledger from a folder or a bucket.",
    epilog=examples(
        "fanfold ledger pull s3://bucket/team.db",
        "fanfold ledger pull s3://bucket/team.db --merge --ledger runs.db",
    ),
)
@click.argument("address", metavar="ADDRESS")
@click.option("--merge", "both", is_flag=True, help="Also where this ledger has what the other lacks: have both.")
@ledger_option
@output_options
def pull(address: str, both: bool, ledger: str) -> None:
    """Bring a ledger from ADDRESS, as `push` takes it: as a new file, or its news into the ledger that is here.

    A ledger that has runs, or parts of runs, which the other lacks is left alone unless --merge says to have both.
    """
    from fanfold.ledger.moving import pull as pulled

    result = pulled(Path(ledger), address, into_ours=both, progress=_progress())
    if machine_readable():
        merged = None if result.merged is None else _merged_as_json(result.merged)
        print_json({"ledger": ledger, "size": result.size, "merged": merged})
    if not result.checked:
        echo("note: there was no checksum beside it: it was not put there by `fanfold ledger push`", err=True)
    if result.merged is None:
        say(f"{ledger}: {file_size(result.size)}")
    elif result.merged.added or result.merged.updated:
        _say_merged(address, ledger, result.merged)
    else:
        say(f"{ledger} has everything that is there")


def _progress() -> Callable[[str, int, int], None] | None:
    """Shows how far a copy is, on a terminal."""
    if quiet() or machine_readable() or not sys.stderr.isatty():
        return None

    def show(what: str, done: int, total: int) -> None:
        line = f"{what}: {file_size(done)} of {file_size(total)}"
        click.echo(f"\r{line:<60}" + ("\r" + " " * 60 + "\r" if done >= total else ""), err=True, nl=False)

    return show


for _command in (runs, export, batches, prune):
    ledger_group.add_command(_command)
