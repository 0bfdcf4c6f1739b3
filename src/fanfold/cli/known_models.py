"""`fanfold models`: the models that have a name here, with what is known of each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from fanfold.cli.output import examples, machine_readable, number, output_options, print_json, say, table


@click.command("models", epilog=examples("fanfold models", "fanfold models lite", "fanfold models --json"))
@click.argument("text", required=False, default="")
@output_options
def known_models(text: str) -> None:
    """List models by name, those of models.toml first; with TEXT, only names that contain it.

    Prices are in US dollars per million tokens. Other models of a provider work too: their prices are unknown, and what
    they take is learnt.
    """
    rows = [row for row in (*_own(), *_usual()) if text.lower() in row["name"].lower()]
    if machine_readable():
        print_json(rows)
    if not rows:
        say(f"no known name contains {text!r}; PROVIDER/NAME works for any model of a provider")
        return
    head = ["name", "input", "output", "context", "does not take", "from"]
    say(table(head, [_cells(row) for row in rows], right=["input", "output", "context"], whole=["name"]))


def _own() -> Iterator[dict[str, Any]]:
    """Names of the user's own."""
    from fanfold.errors import ConfigError
    from fanfold.models import model
    from fanfold.models.catalogue import catalogue
    from fanfold.rehearsal import rehearsing

    for name, entry in catalogue().items():
        try:
            with rehearsing():  # a key need not be set for this
                made = model(name)
        except ConfigError as error:
            yield {"name": name, "from": str(entry.file), "problem": str(error)}
            continue
        known = _row(name, made.provider, made.price, made.capabilities, str(entry.file))
        yield {**known, "model": made.id, "url": made.url, "limits": str(entry.table.limits or "adaptive")}


def _usual() -> Iterator[dict[str, Any]]:
    """Models with a known price, and those that providers give as examples."""
    from fanfold.models.pricing import AS_OF, TABLE
    from fanfold.models.providers import maker_of, package_of, providers

    known = providers()
    priced = [name if name.partition("/")[0] in known else f"{maker_of(name)}/{name}" for name in TABLE]
    for name, provider in known.items():
        listed = [full.partition("/")[2] for full in priced if full.partition("/")[0] == name]
        examples = () if provider.anywhere else provider.examples
        for model in dict.fromkeys([*examples, *listed] or ["MODEL"]):
            source = f"{package_of(name)}, {AS_OF}" if model in listed else package_of(name)
            yield _row(f"{name}/{model}", provider, provider.price(model), provider.capabilities(model), source)


def _row(name: str, provider: Any, price: Any, takes: Any, source: str) -> dict[str, Any]:
    return {
        "name": name,
        "input": None if price is None else price.input,
        "output": None if price is None else price.output,
        "context": takes.context,
        "refuses": sorted(takes.refuses & provider.parameters.keys()),
        "efforts": takes.efforts,
        "has": None if takes.has is None else sorted(takes.has),
        "from": source,
    }


def _cells(row: dict[str, Any]) -> list[str]:
    if "problem" in row:
        return [row["name"], "", "", "", row["problem"], row["from"]]
    prices = ["unknown" if row[name] is None else number(row[name]) for name in ("input", "output")]
    context = "" if row["context"] is None else f"{row['context']:,}"
    return [row["name"], *prices, context, ", ".join(row["refuses"]), row["from"]]
