"""`fanfold view`: look at ledgers in the browser, live, or save a run as a page to send."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click

from fanfold.cli.output import echo, examples, machine_readable, output_options, print_json, say

#: The token of a server that others are told about.
VARIABLE = "FANFOLD_VIEW_TOKEN"


@click.command(
    short_help="Look at runs in the browser, live.",
    epilog=examples(
        "fanfold view",
        "fanfold view monday.db tuesday.db",
        "fanfold view first-try",
        "fanfold view --save first-try.html --run first-try",
        "fanfold view --host 0.0.0.0 --port 8080 --token LONG-SECRET --allow-host box.example",
    ),
)
@click.argument("ledgers", nargs=-1, metavar="[LEDGER|RUN]...", type=click.Path(path_type=Path))
@click.option("--port", type=click.IntRange(0, 65535), default=0, metavar="N", help="Listen here; 0: any free port.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Listen on this address; others need --token.")
@click.option("--token", envvar=VARIABLE, metavar="TOKEN", help=f"The secret of the address.  [default: ${VARIABLE}]")
@click.option("--allow-host", multiple=True, metavar="NAME", help="Also answer under this name; may be repeated.")
@click.option("--open/--no-open", default=True, help="Open a browser.  [default: open, where there is a desktop]")
@click.option("--save", type=click.Path(path_type=Path), metavar="FILE", help="Write one HTML file, and leave.")
@click.option("--png", metavar="CHART", help="With --save: write one chart as a PNG, such as `best`; needs Chromium.")
@click.option("--ledger", "named", multiple=True, hidden=True, type=click.Path(path_type=Path), help="A LEDGER.")
@click.option("--until-eof", is_flag=True, hidden=True, help="End when whoever started this closes its input.")
@click.option("--run", "runs", multiple=True, metavar="RUN", help="Open the page here.  [with --save: the last]")
@output_options
def view(
    ledgers: tuple[Path, ...],
    port: int,
    host: str,
    token: str | None,
    allow_host: tuple[str, ...],
    open: bool,
    save: Path | None,
    png: str | None,
    runs: tuple[str, ...],
    named: tuple[Path, ...],
    until_eof: bool,
) -> None:
    """Show the runs of LEDGERs in the browser: live while they run, afterwards, several files at once.

    Without a LEDGER, it is $FANFOLD_LEDGER or fanfold.db; a RUN of it may be named instead. The page is for this
    machine only, and for whoever has the printed address. It reads; from it you can also stop and resume a run, raise
    its limits, and leave notes.
    --save writes the same page with its data inside, which opens without a server or a network.
    """
    from fanfold.errors import ConfigError

    paths, runs = _places(ledgers, named, runs)
    if png is not None and save is None:
        raise ConfigError("--png writes a file: name it with --save chart.png")
    if (runs or save is not None) and (len(paths) > 1 or len(runs) > 1):
        raise ConfigError("--save and --run take one run of one ledger: name one LEDGER and one --run")
    if save is not None:
        _save(paths[0], runs, save, png)
        return
    from urllib.parse import quote

    from fanfold.ledger import Ledger, RunView
    from fanfold.sync import run_sync

    for path in paths:
        Ledger(path, readonly=True).close()  # what cannot be read is said now
    page = ""
    for run in runs:
        with RunView.open(paths[0], run) as shown:
            page = f"/run/0/{quote(shown.name, safe='')}"
    run_sync(lambda: _until_stopped(paths, host, port, token, allow_host, open, until_eof, page))


def _places(
    ledgers: tuple[Path, ...], named: tuple[Path, ...], runs: tuple[str, ...]
) -> tuple[tuple[Path, ...], tuple[str, ...]]:
    """The ledgers, and the runs: a name that is not a file means a run of the other ledger, as in `fanfold show`."""
    from fanfold.cli.output import default_ledger
    from fanfold.errors import LedgerError
    from fanfold.ledger import RunView

    usual = named or (Path(default_ledger()),)
    if len(ledgers) != 1 or runs or ledgers[0].exists() or not usual[0].exists():
        return (*ledgers, *named) or usual, runs
    try:
        with RunView.open(usual[0], str(ledgers[0])) as shown:
            return usual, (shown.name,)
    except LedgerError as error:
        raise LedgerError(f"there is no ledger at {ledgers[0]}, and as the name of a run {error}") from None


@contextmanager
def page_beside(ledger: str) -> Iterator[None]:
    """`fanfold view` in a process of its own: it ends with this one, on a terminal when the user has seen enough."""
    import subprocess
    import sys

    from fanfold.ledger import Ledger

    Ledger(ledger).close()  # made now, if it is missing
    command = [sys.executable, "-m", "fanfold", "view", ledger, "--until-eof"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=sys.stderr.fileno(), start_new_session=True)
    try:
        yield
        if sys.stdin.isatty() and sys.stderr.isatty():
            echo("The page stays open until Ctrl-C.", err=True)
            process.wait()
    except KeyboardInterrupt:
        pass  # seen enough
    finally:
        process.terminate()
        process.wait()


def _save(ledger: Path, runs: Sequence[str], file: Path, chart: str | None) -> None:
    from fanfold.report import write_chart, write_report

    name = runs or ("last",)
    written = write_report(ledger, name[0], file) if chart is None else write_chart(ledger, name[0], chart, file)
    if machine_readable():
        print_json({"file": str(written)})
    say(f"{written}")


async def _until_stopped(
    paths: Sequence[Path],
    host: str,
    port: int,
    token: str | None,
    names: tuple[str, ...],
    browser: bool,
    until_eof: bool,
    page: str,
) -> None:
    import asyncio
    import secrets
    import signal

    from fanfold.addresses import is_loopback
    from fanfold.errors import ConfigError
    from fanfold.redaction import know
    from fanfold.view.server import viewing

    if token is None and not is_loopback(host):
        raise ConfigError(f"{host} can be reached from other machines: choose a secret with --token or {VARIABLE}")
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    if until_eof:
        asyncio.get_running_loop().add_reader(0, stop.set)  # nobody writes: it can be read only at its end
    secret = token or secrets.token_urlsafe(24)
    async with viewing(paths, secret, host=host, port=port, names=names) as url:
        if not is_loopback(host):
            echo(
                f"{host} can be reached from other machines, without encryption: put a proxy with TLS before it",
                err=True,
            )
        address = f"{url}/#token={secret}{page}"
        if machine_readable():
            print_json({"url": url, "address": address})
        say(address if until_eof else f"{address}\nCtrl-C ends the server; runs continue.")
        opened = _open(address) if browser and not machine_readable() else None
        know(secret)  # from here on it is never printed
        try:
            await stop.wait()
        finally:
            if opened is not None:
                opened.unlink(missing_ok=True)


def _open(address: str) -> Path | None:
    """Open a browser where there is a desktop.

    It is given a private file that leads to the address: other users could read a secret on a command line.
    """
    import os
    import sys
    import tempfile
    import webbrowser
    from html import escape

    desktop = sys.platform in ("darwin", "win32") or any(
        os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY")
    )
    if not desktop:
        return None
    file, name = tempfile.mkstemp(prefix="fanfold-", suffix=".html")
    with os.fdopen(file, "w") as page:
        page.write(f'<!doctype html><meta http-equiv="refresh" content="0; url={escape(address)}">')
    webbrowser.open(Path(name).as_uri())
    return Path(name)
