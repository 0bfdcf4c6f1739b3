"""`fanfold critic serve`: a critic for applications in any language."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from fanfold.plugins import Shell, StudyCommand

if TYPE_CHECKING:
    from fanfold.studies.critic.application import Critic

#: Holds the token, if it is not to be made up.
VARIABLE = "FANFOLD_CRITIC_TOKEN"
_EXAMPLES = """\b
Examples:
  fanfold critic serve app.db --model PROVIDER/MODEL --prompts 'Be brief.' --prompts 'Be warm.'
  fanfold critic serve app.db
  curl -H "Authorization: Bearer $TOKEN" -H 'Content-Type: application/json' \\
      -d '{"query": "How do I dry herbs?"}' http://127.0.0.1:8765/ask
"""


@click.command(short_help="Serve a critic over HTTP.", epilog=_EXAMPLES)
@click.argument("file", type=click.Path(dir_okay=False))
@click.option("--model", metavar="MODEL", help="The model that answers; needed for a new FILE.")
@click.option("--prompts", multiple=True, metavar="TEXT", help="A system prompt to choose from, or @FILE; repeat it.")
@click.option("--base-url", metavar="URL", help="An OpenAI-compatible server that serves the model.")
@click.option("--candidates", type=click.IntRange(1), metavar="N", help="Prompts that answer each question.  [2]")
@click.option("--max-tokens", type=click.IntRange(1), metavar="N", help="Length limit of an answer.  [512]")
@click.option("--half-life", type=click.FloatRange(1), metavar="N", help="Answers until feedback counts half.  [200]")
@click.option("--pinned", metavar="TEXT", help="A part of every system prompt, which never changes.")
@click.option(
    "--timeout", type=click.FloatRange(0, min_open=True), metavar="SECONDS", help="For an answer of the model.  [300]"
)
@click.option("--name", default="critic", show_default=True, metavar="NAME", help="Which critic of FILE.")
@click.option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="The address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8765, show_default=True, help="The port, 0 for any.")
@click.option("--allow-host", multiple=True, metavar="NAME", help="Also answer under this host name; repeatable.")
@click.pass_obj
def serve(shell: Shell, /, file: str, host: str, port: int, allow_host: tuple[str, ...], **settings: Any) -> None:
    """Answer `POST /ask` and learn from `POST /tell`, until interrupted.

    FILE keeps everything and is made if it is missing; other processes may use it at the same time. Requests need the
    token that is printed at the start, or the one in FANFOLD_CRITIC_TOKEN. `/ask` takes {"query": ...}, and "show": 2
    for two answers to choose from. `/tell` takes {"id": ..., "rating": 1 to 5}, or "reward": 0 to 1, "thumbs": true
    or false, "preferred": "A", "B" or "tie".
    """
    from fanfold.studies.critic.application import Critic
    from fanfold.sync import run_sync

    given = {name: value for name, value in settings.items() if value not in (None, ())}
    with Critic.open(file, **given) as critic:
        run_sync(lambda: _until_stopped(shell, critic, host, port, allow_host))
        counts = critic.status()
    shell.say(f"stopped; {counts['shows']} shown, {counts['answered']} judged: all in {file}")


async def _until_stopped(shell: Shell, critic: Critic, host: str, port: int, hosts: tuple[str, ...]) -> None:
    import asyncio
    import os
    import secrets
    import signal

    from fanfold.addresses import is_loopback
    from fanfold.redaction import know
    from fanfold.studies.critic.service import serving

    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    own = os.environ.get(VARIABLE)
    token = own or secrets.token_urlsafe(24)
    async with serving(critic, token, host=host, port=port, hosts=hosts) as url:
        shell.say(f"{critic.config.model} answers at {url}: POST /ask, POST /tell, GET /health")
        if not is_loopback(host):
            shell.say(f"{host} can be reached from other machines, without encryption: put a proxy with TLS before it")
        shell.say(f"token from {VARIABLE}" if own else f"token: {token} (set {VARIABLE} for one of your own)")
        if shell.machine_readable:
            shell.print_json({"url": url, **({} if own else {"token": token})})
        shell.say("ready")
        know(token)  # from here on it is never printed
        await stop.wait()


def commands() -> tuple[StudyCommand, ...]:
    return (StudyCommand(serve),)
