"""`fanfold ledger prune`: remove what neither a resume nor a report of a finished run needs."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import deque
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fanfold.cli.output import complete_run, examples, ledger_option, machine_readable, output_options, print_json, say
from fanfold.errors import ConfigError, FanfoldError, LedgerError
from fanfold.texts import count, file_size

if TYPE_CHECKING:
    from fanfold.ledger import Ledger, RunInfo
    from fanfold.ledger.pruning import Retention
    from fanfold.study import Study


@click.command(
    short_help="Remove what finished runs no longer need.",
    epilog=examples(
        "fanfold ledger prune --dry-run",
        "fanfold ledger prune neuro-20260801-101500-1a2b --keep 3",
        "fanfold ledger prune --calls --final       (no resume, no retries; results and bills stay)",
    ),
)
@click.argument("names", metavar="[RUN...]", nargs=-1, shell_complete=complete_run)
@click.option(
    "--keep", type=click.IntRange(min=0), metavar="N", help="Trials whose blobs stay.  [default: the study's]"
)
@click.option("--calls", is_flag=True, help="Also remove the replies of models to finished evaluations.")
@click.option("--final", is_flag=True, help="Also remove what only a resume would need.")
@click.option("--dry-run", is_flag=True, help="Only say what would be freed.")
@click.option("--trust", is_flag=True, help="Do not ask whether what the ledger names outside this folder may be used.")
@ledger_option
@output_options
def prune(
    names: tuple[str, ...], keep: int | None, calls: bool, final: bool, dry_run: bool, trust: bool, ledger: str
) -> None:
    """Remove blobs, such as weights, that neither a resume nor a report of finished runs needs.

    These stay: the blobs of the best trials (as many as the study keeps, or --keep), of those that the strategy would
    still use, of open and failed trials, and what the conclusion names. A study that keeps everything loses nothing
    unless --keep is given. To know what a strategy would use, the study is loaded as for a resume. Blobs that nothing
    names are always removed. Scores, candidates, figures and payments always stay.
    """
    from fanfold.ledger import Ledger, belonging
    from fanfold.ledger.holdings import file_bytes
    from fanfold.ledger.pruning import sweep
    from fanfold.ledger.schema import check_exists

    path = Path(ledger)
    check_exists(path)
    with Ledger(path) as opened:
        before = file_bytes(opened)
        idle = _chosen(opened, names)
        over = _retentions(opened, idle, keep, final, trust)
        replies = {run for info in idle if calls for run in belonging(opened, info.id)}
        swept = sweep(opened, over, replies=replies, final=final, dry=dry_run)
    if not dry_run and swept.size:
        _give_back(path, much=swept.size > before / 2)
    after = path.stat().st_size
    if machine_readable():
        freed = {"blobs": swept.blobs, "orphans": swept.orphans, "replies": swept.replies, "bytes": swept.size}
        print_json({"ledger": ledger, "dry_run": dry_run, **freed, "before": before, "after": after})
        return
    parts = [
        count(swept.blobs, "blob") + " that no run needs",
        count(swept.orphans, "blob") + " that nothing names",
        f"{swept.replies:,} replies of models",
    ]
    listed = ", ".join(part for part, number in zip(parts, (swept.blobs, swept.orphans, swept.replies)) if number)
    if not listed:
        say(f"{ledger}: {file_size(before)}, nothing to remove")
    elif dry_run:
        say(f"{ledger}: {file_size(before)}; would remove {listed}: {file_size(swept.size)}")
    else:
        beside = f", and {file_size(swept.stored_size)} in stores" if swept.stored_size else ""
        say(f"{ledger}: removed {listed}: {file_size(before)} before, {file_size(after)} now{beside}")


def _give_back(path: Path, much: bool) -> None:
    """Give free pages back to the disk: all at once where there are many, or the file can do no other."""
    from fanfold.ledger import Ledger
    from fanfold.ledger.holdings import shrinks, vacuum

    with Ledger(path) as opened:
        if shrinks(opened) and not much:
            opened.settle(shrinks=True)
            return
    with contextlib.suppress(LedgerError):  # a run is under way: the space is used again
        vacuum(path)


def _chosen(ledger: Ledger, names: tuple[str, ...]) -> list[RunInfo]:
    """The runs that are named, or all that are over; not those that a process works on."""
    from fanfold.ledger.lock import under_way

    chosen = [ledger.info(ledger.last() if name == "last" else ledger.named(name)) for name in names]
    if not names:
        over = [info for info in ledger.runs() if info.status in ("finished", "failed")]
        chosen = [info for info in over if "belongs_to" not in info.meta]
    live = set(under_way(ledger.path, (info.name for info in chosen)))
    for name in sorted(live):
        say(f"{name}: left alone, because it is under way")
    return [info for info in chosen if info.name not in live]


def _retentions(
    ledger: Ledger, idle: list[RunInfo], keep: int | None, final: bool, trust: bool
) -> dict[int, Retention]:
    """What stays of the blobs of runs, by their ids."""
    from fanfold.ledger import belonging
    from fanfold.ledger.pruning import Retention, digests_of, last_commit

    over: dict[int, Retention] = {}
    for info in idle:
        runs = belonging(ledger, info.id)
        if not any(digests_of(ledger.read, run) for run in runs):
            continue
        commits = {run: last_commit(ledger.read, run) for run in runs}
        try:
            retention = _retention(ledger, info, keep, final, trust)
        except FanfoldError as error:
            say(f"{info.name}: its blobs stay, because {error}")
            continue
        if retention is not None:
            beside = Retention(retention.keep, (), retention.passing, final=True)
            kept = {info.id: retention, **dict.fromkeys(runs[1:] if final else (), beside)}
            over |= {run: dataclasses.replace(stays, commit=commits[run]) for run, stays in kept.items()}
    return over


def _retention(ledger: Ledger, info: RunInfo, keep: int | None, final: bool, trust: bool) -> Retention | None:
    from fanfold.ledger.pruning import Retention

    try:
        study = _study(ledger.path, info, trust)
    except FanfoldError as error:
        if not final or keep is None:
            remedy = "say --final, and with --keep how many trials keep their blobs"
            raise ConfigError(f"its study cannot be loaded: {error}; to prune it without, {remedy}") from error
        return Retention(keep, final=True)
    kept = study.keep if keep is None else keep
    if kept is None:
        return None
    passing, continues = getattr(study.evaluate, "passing", ()), bool(getattr(study.evaluate, "continues", False))
    if final:
        return Retention(kept, (), passing, continues, final=True)
    needs, also = _needed_later(study, ledger, info.id)
    return Retention(kept, needs, passing, continues, also)


def _study(path: Path, info: RunInfo, trust: bool) -> Study[Any]:
    """The study of a run, as a resume would load it."""
    from fanfold.cli.options import shell_options
    from fanfold.cli.target import reload
    from fanfold.cli.trust import agree

    target = info.meta.get("target")
    if not isinstance(target, str) or "continue" in info.meta:
        raise ConfigError("it was started from Python code")
    agree(info.name, path, info.meta, trust)
    options = shell_options({}, {**info.meta.get("options", {}), "report": None}, f"run {info.name!r}")
    study = reload(target, info.meta.get("fields", {}), options.seed)
    return dataclasses.replace(study, stop=options.limit(study.stop))


def _needed_later(study: Study[Any], ledger: Ledger, run: int) -> tuple[Collection[int] | None, frozenset[str]]:
    """The trials that the strategy would still use, and the blobs of candidates that it would ask next.

    The search is told everything again, as for a resume, and nothing is evaluated or written.
    """
    from fanfold.encoding import references
    from fanfold.ledger import Commits, Insert, RunJournal
    from fanfold.resuming import search_of

    asked: set[str] = set()

    class AskedBlobs(Commits):
        def put(self, statement: Insert, row: tuple[Any, ...], then: Any = None) -> None:
            if statement is Insert.ASKED:
                asked.update(references(row[2]))

    commits = AskedBlobs(ledger)
    journal = RunJournal(ledger, run, commits)
    try:
        resumed = search_of(study, study.stop, journal, lambda: journal.elapsed, None)
        search = resumed.search
        cells, open = deque(search.start(resumed.reopened, resumed.waits)), False
        while search.stopped is None and (cells or not open):
            if not cells:
                cells.extend(search.idle())
                open = not cells
                continue
            cell = cells.popleft()
            outcome = journal.recall(cell.trial.number).get(cell.position)
            if outcome is None:
                open = True
            else:
                cells.extend(search.arrive(cell, outcome))
    finally:
        commits.close()
    needs = getattr(search.strategy, "needs", None)
    return None if needs is None or (trials := needs()) is None else set(trials), frozenset(asked)
