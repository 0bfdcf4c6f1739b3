"""`fanfold schema`: a JSON Schema of the settings of a study, so that editors complete and check them."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import click

from fanfold.cli.output import complete_study, examples, output_options

#: What editors for TOML and for YAML both understand.
DRAFT = "http://json-schema.org/draft-07/schema#"
_PLAIN = {bool: "boolean", int: "integer", float: "number", str: "string", Path: "string"}
_LIMITS = {"least": "minimum", "most": "maximum", "above": "exclusiveMinimum", "below": "exclusiveMaximum"}


@click.command(
    short_help="Print the JSON Schema of a study's settings.",
    epilog=examples("fanfold schema prompts", "fanfold schema -o fanfold.schema.json     (all studies in one)"),
)
@click.argument("study", required=False, shell_complete=complete_study)
@click.option("-o", "--output", metavar="FILE", help="Write it to a file.")
@output_options
def schema(study: str | None, output: str | None) -> None:
    """Print the JSON Schema of a settings file: of STUDY, or of every study that is installed.

    Name it in the first line of a file and an editor completes and checks the rest:
    `#:schema prompts.schema.json` in TOML, `# yaml-language-server: $schema=prompts.schema.json` in YAML.
    """
    import msgspec

    from fanfold.cli.output import say
    from fanfold.files import write_files

    text = msgspec.json.format(msgspec.json.encode(file_schema(study)), indent=2) + b"\n"
    if output is None:
        click.echo(text.decode(), nl=False)
        return
    path = Path(output)
    write_files(path.parent, {path.name: text})
    say(f"wrote {output}")


def file_schema(study: str | None) -> dict[str, Any]:
    """The schema of a file for one study, or of one for any study that can be imported here."""
    from fanfold.errors import FanfoldError
    from fanfold.plugins import find_study, studies

    if study is not None:
        return {"$schema": DRAFT, "title": f"Settings of fanfold run {study}", **_of_study(study, find_study(study))}
    cases = []
    for name in studies():
        try:
            known = _of_study(name, find_study(name))
        except FanfoldError:
            continue
        cases.append({"if": {"properties": {"study": {"const": name}}}, "then": known})
    names = {"study": {"enum": [case["then"]["properties"]["study"]["const"] for case in cases]}}
    head = {"title": "Settings of fanfold run", "type": "object", "properties": names, "required": ["study"]}
    return {"$schema": DRAFT, **head, "allOf": cases}


def _of_study(name: str, plugin: Any) -> dict[str, Any]:
    from fanfold.cli.options import ShellOptions

    settings = settings_schema(plugin.config)
    run = settings_schema(ShellOptions) | {"description": "how it is run: the flags of `fanfold run`"}
    own = {"study": {"const": name, "description": "the study these settings are for"}, "$schema": {"type": "string"}}
    properties = {**own, **settings["properties"], "run": run}
    return settings | {"properties": properties, "required": ["study", *settings["required"]]}


def settings_schema(cls: type[Any]) -> dict[str, Any]:
    """The schema of a settings dataclass: what a file may set of it."""
    hints, properties = typing.get_type_hints(cls), {}
    required = []
    for field in dataclasses.fields(cls):
        if not field.init or field.metadata.get("python"):
            continue
        kind = _of_kind(hints[field.name], field.metadata.get("range") or {})
        if help := field.metadata.get("help"):
            kind["description"] = help
        if field.default is not dataclasses.MISSING and field.default not in (None, ()):
            kind["default"] = field.default
        elif field.default is field.default_factory is dataclasses.MISSING:
            required.append(field.name)
        properties[field.name] = kind
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _of_kind(kind: Any, limits: Mapping[str, float]) -> dict[str, Any]:
    origin, args = get_origin(kind), get_args(kind)
    if origin is Literal:
        return {"enum": list(args)}
    if origin in (typing.Union, types.UnionType):
        options = [_of_kind(option, limits) for option in args if option is not types.NoneType]
        options = [option for option in options if option != _UNKNOWN] or [{}]
        return options[0] if len(options) == 1 else {"anyOf": options}
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return settings_schema(kind)
    if origin in (list, tuple, Sequence):
        if origin is tuple and args[-1] is not Ellipsis:
            return {
                "type": "array",
                "items": [_of_kind(of, limits) for of in args],
                "minItems": len(args),
                "maxItems": len(args),
            }
        return {"type": "array", "items": _of_kind(args[0], limits)}
    if origin in (dict, Mapping):
        return {"type": "object", "additionalProperties": _of_kind(args[1], limits)}
    if kind in (int, float):
        return {"type": _PLAIN[kind]} | {_LIMITS[name]: limit for name, limit in limits.items()}
    return {"type": _PLAIN[kind]} if kind in _PLAIN else {} if kind is Any else dict(_UNKNOWN)


#: A type that no file can hold, such as an executor.
_UNKNOWN: Mapping[str, Any] = {"not": {}}
