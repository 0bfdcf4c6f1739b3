"""`fanfold prompt`: the winning prompt of a run, to be used elsewhere."""

from __future__ import annotations

import json
from typing import Any

import click

from fanfold.cli.output import (
    echo,
    examples,
    ledger_option,
    machine_readable,
    newest_run_argument,
    output_options,
    print_json,
)


@click.command(
    short_help="Print the winning prompt of a run.",
    epilog=examples(
        "fanfold prompt last",
        "fanfold prompt last --as python > prompt.py",
        "fanfold prompt last --input 'A film to forget.' --as chat",
    ),
)
@newest_run_argument
@click.option(
    "--as",
    "form",
    type=click.Choice(["text", "chat", "python"]),
    default="text",
    show_default=True,
    help="The text, chat messages as JSON, or a Python module with a function.",
)
@click.option("--input", "given", metavar="TEXT", help="What to put into it; none: a place marked {input}.")
@ledger_option
@output_options
def prompt(name: str, form: str, given: str | None, ledger: str) -> None:
    """Print the prompt that a search for prompts found, whole: words, examples, labels, and the place of the input.

    Where the prompt shows each input the examples most like it, --input prints it for one; --as python does it for any.

    Ask with the settings of the search, and it scores what the run reported: --json and --as python name them.
    """
    from fanfold.errors import ConfigError
    from fanfold.ledger import RunView

    with RunView.open(ledger, name) as view:
        summary = view.summary()
        found = None if summary is None else summary.figures.get("template")
        if summary is None or not isinstance(found, dict):
            raise ConfigError(
                f"run {view.info.name!r} has found no prompt: it must be a search for prompts that has ended"
            )
    text = _outline(found) if given is None else summary.prompt(given)
    if (parts := found.get("form")) and given is None and not machine_readable():
        echo(f"note: the input has several parts, each on a line: {parts!r}", err=True)
    if found.get("extra") and form != "python" and not machine_readable():
        echo("note: what was scored was also asked with logit_bias, which --as python and --json name", err=True)
    if machine_readable():
        print_json({"prompt": text, **found})
    elif form == "python":
        echo(_module(found))
    else:
        echo(text if form == "text" else json.dumps([{"role": "user", "content": text}], ensure_ascii=False, indent=2))


def _outline(found: dict[str, Any]) -> str:
    chosen = ""
    if "nearest" in found:
        chosen = f"[the {found['nearest']} of {len(found['examples'])} examples that are most like the input]\n\n"
    return f"{found['before']}{chosen}{found.get('lead', '')}{{input}}{found['after']}"


def _module(found: dict[str, Any]) -> str:
    settings = {name: found[name] for name in ("model", "max_tokens", "temperature", "stop", "extra") if name in found}
    lines = ['"""A prompt that `fanfold run prompts` found."""', ""]
    lines += [f"{name.upper()} = {value!r}" for name, value in settings.items()]
    around = [found["before"], *found["after"].split("{input}")]
    body = f"    return {' + text + '.join(map(repr, around))}"
    if "nearest" in found:
        import inspect

        from fanfold import likeness

        source = inspect.getsource(likeness).partition("from __future__ import annotations\n")
        parts = {name: found[name] for name in ("before", "examples", "nearest", "lead", "after")}
        lines = [lines[0], "", source[1].strip(), source[2].rstrip(), "", "", *lines[2:], f"TEMPLATE = {parts!r}"]
        body = "    return filled(TEMPLATE, text)"
    told = [f"    # the form of an input: {form!r}"] if (form := found.get("form")) else []
    return "\n".join([*lines, "", "", "def prompt(text: str) -> str:", *told, body])
