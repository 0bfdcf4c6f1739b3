"""`fanfold batches`: the provider batches of a ledger, listed, watched or cancelled."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fanfold.cli.output import (
    examples,
    ledger_option,
    machine_readable,
    output_options,
    print_json,
    say,
    shortened,
    table,
)
from fanfold.errors import ConfigError, LedgerError, nearest

if TYPE_CHECKING:
    from fanfold.ledger import BatchRow
    from fanfold.models.batch.protocol import BatchProtocol
    from fanfold.models.batch.watching import BatchSeen


@click.command(
    short_help="List the provider batches of a ledger, watch them, or cancel one.",
    epilog=examples("fanfold batches", "fanfold batches --watch", "fanfold batches --cancel ff-1a2b --ledger runs.db"),
)
@ledger_option
@click.option("--watch", is_flag=True, help="Say what changes at the providers until all open batches have ended.")
@click.option("--cancel", metavar="TAG", help="Ask the provider to end this batch early (TAG or its beginning).")
@output_options
def batches(ledger: str, watch: bool, cancel: str | None) -> None:
    """List the provider batches that a ledger knows, newest first.

    A batch is `intent` (its creation is not confirmed), `submitted`, or it has ended: `done`, `expired`, `cancelled`,
    `failed`, or `abandoned` (never found at the provider). What a batch did not answer is in a later one.

    With --cancel, one of them is ended early at its provider; what it has done by then is charged, and a resumed run
    collects it and continues with the rest.
    """
    from dataclasses import asdict

    from fanfold.ledger import Ledger, verify_batches
    from fanfold.ledger import batches as all_batches

    with Ledger(ledger, readonly=True) as opened:
        verify_batches(opened)
        known = all_batches(opened)
    if cancel is not None:
        _cancel(_chosen(known, cancel, ledger))
    elif watch:
        _watch([batch for batch in known if batch.state == "submitted"], ledger)
    elif machine_readable():
        print_json([asdict(batch) for batch in known])
    elif known:
        head = ["tag", "run", "model", "state", "requests", "at the provider", "note"]
        say(table(head, [_row(batch) for batch in known], right=["requests"], whole=["tag", "at the provider"]))
    else:
        from fanfold.models.providers import batching

        executors = " or ".join(f"batch:{name}" for name in batching())
        say(f"{ledger} knows of no provider batches: runs with --executor {executors} make some")


def _row(batch: BatchRow) -> list[str]:
    cells = (batch.tag, batch.run, batch.model, batch.state, batch.requests, batch.remote)
    return [*(str(cell or "-") for cell in cells), shortened(batch.note or "", 60)]


def _chosen(known: list[BatchRow], tag: str, ledger: str) -> BatchRow:
    exact = [batch for batch in known if batch.tag == tag]
    exact = exact or [batch for batch in known if tag and batch.tag.startswith(tag)]
    if len(exact) != 1:
        problem = "is not one batch but several" if exact else "is not a batch"
        tags = [batch.tag for batch in exact or known]
        raise LedgerError(f"{tag!r} {problem} of {ledger}{nearest(tag, tags)}")
    batch = exact[0]
    if batch.state != "submitted":
        remedy = "resume its run, which finds out" if batch.state == "intent" else "there is nothing to cancel"
        raise ConfigError(f"batch {batch.tag} is {batch.state!r}, not under way as far as is known: {remedy}")
    return batch


def _protocol(batch: BatchRow) -> BatchProtocol:
    from fanfold.flights import SIMULATED
    from fanfold.models import model
    from fanfold.models.batch.lifecycle import protocol_of

    if batch.endpoint.startswith(SIMULATED):
        raise ConfigError(
            f"batch {batch.tag} is simulated: it was only ever in the process of its run, and costs nothing; a resume "
            "of the run does without it"
        )
    asked = model(batch.model)
    # A file says where the batch is, but only the user's own settings may say where their key is sent.
    if not batch.endpoint.startswith(f"{asked.url}/"):
        raise ConfigError(
            f"batch {batch.tag} was made at {batch.endpoint}, not at {asked.url}: set {asked.provider.url_variable}"
        )
    return protocol_of(asked)


def _cancel(batch: BatchRow) -> None:
    import asyncio

    from fanfold.calls import current_broker

    api = _protocol(batch)

    async def go() -> None:
        try:
            await api.cancel(str(batch.remote))
        finally:
            await current_broker().close()

    asyncio.run(go())
    if machine_readable():
        print_json({"tag": batch.tag, "remote": batch.remote, "cancelled": True})
    say(f"{batch.remote} is being cancelled; `fanfold resume {batch.run or 'RUN'}` takes what it has done")


def _watch(open: list[BatchRow], ledger: str) -> None:
    import asyncio
    import shlex
    import time
    from dataclasses import asdict

    from fanfold.calls import current_broker
    from fanfold.models.batch.watching import watch

    ways = {batch.tag: (_protocol(batch), str(batch.remote), time.time() - batch.created) for batch in open}
    last: dict[str, BatchSeen] = {}

    async def go() -> None:
        try:
            async for seen in watch(ways):
                last[seen.tag] = seen
                say(_change(seen))
        finally:
            await current_broker().close()

    asyncio.run(go())
    if machine_readable():
        print_json([asdict(seen) for seen in last.values()])
    for run in dict.fromkeys(batch.run for batch in open if batch.run):
        say(f"collect the answers with: fanfold resume {run} --ledger {shlex.quote(ledger)}")
    if not open:
        say(f"no batch of {ledger} is open")


def _change(seen: BatchSeen) -> str:
    import time

    done = f", {seen.finished:,} of {seen.requests:,} requests done" if seen.finished is not None else ""
    error = f" ({shortened(seen.error)})" if seen.error else ""
    return f"{time.strftime('%H:%M:%S')} {seen.tag}: {seen.status}{done}{error}"
