"""`fanfold examples`: lists the examples that ship with Fanfold, and copies one into the current folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from fanfold.cli import output
from fanfold.errors import ConfigError, nearest

#: The folder that an example is copied to: its commands, and those of the documentation, name it.
FOLDER = Path("examples")


def _names(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    return [name for name in _index() if name.startswith(incomplete)]


@click.command(
    short_help="List the examples, or copy one.", epilog=output.examples("fanfold examples", "fanfold examples tickets")
)
@click.argument("name", required=False, shell_complete=_names)
@output.output_options
def examples(name: str | None) -> None:
    """List the examples, or copy the files of NAME into the folder `examples` and say how to run it.

    No file is overwritten.
    """
    index = _index()
    if name is None:
        if output.machine_readable():
            output.print_json(index)
        output.say(output.table(["name", "what it shows"], [[name, entry["about"]] for name, entry in index.items()]))
        output.say("\nfanfold examples NAME copies one here")
        return
    if name not in index:
        raise ConfigError(f"there is no example {name!r}{nearest(name, index)}")
    entry = index[name]
    copied = [file for file in entry["files"] if _copy(file)]
    if output.machine_readable():
        output.print_json({"name": name, "copied": copied, **entry})
    for file in entry["files"]:
        output.say(f"{'wrote' if file in copied else 'kept'} {FOLDER / file}")
    needs = f"needs: pip install 'fanfold[{entry['extra']}]'\n" if "extra" in entry else ""
    output.say(f"{needs}run it: {entry['run']}")


def _index() -> dict[str, Any]:
    from fanfold.config import load_toml

    return load_toml(_home() / "index.toml")


def _home() -> Path:
    """Where the examples are: inside the package, or beside the source that it was installed from."""
    package = Path(__file__).parents[1]
    return next((home for home in (package / "examples", package.parents[1] / "examples") if home.is_dir()), package)


def _copy(file: str) -> bool:
    target = FOLDER / file
    try:
        FOLDER.mkdir(exist_ok=True)
        with target.open("xb") as copy:
            copy.write((_home() / file).read_bytes())
    except FileExistsError:
        return False
    except OSError as error:
        raise ConfigError(f"{target} cannot be written: {error.strerror}") from error
    return True
