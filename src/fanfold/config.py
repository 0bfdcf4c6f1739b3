"""Settings as frozen dataclasses, built from mappings, files and texts; errors name the key and the remedy."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import os
import re
import tomllib
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self, TypeVar, get_args, get_origin

from fanfold.errors import ConfigError, MissingExtra, nearest

T = TypeVar("T")

_PLAIN = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", types.NoneType: "none"}
_TEXTS = {str, Path, types.NoneType}
#: A part of a list: what is in double quotes, or all up to the next comma.
_PART = re.compile(r'\s*(?:"([^"]*)"\s*|([^,]*))(?:,|\Z)')


@dataclass(frozen=True, slots=True)
class FieldHelp:
    """What a person needs to know to set one field; fields of nested dataclasses have dotted names."""

    name: str
    kind: Any
    type: str
    default: Any
    required: bool
    help: str
    metadata: Mapping[str, Any]


def option(
    default: Any,
    help: str,
    *,
    least: float | None = None,
    most: float | None = None,
    above: float | None = None,
    below: float | None = None,
    **more: Any,
) -> Any:
    """A field of a settings dataclass, with its help and its range: `least` and `most` are included, the others not.

    A range holds for a number, and for every number of a list; none is always allowed where the type allows it.
    """
    limits = {"least": least, "most": most, "above": above, "below": below}
    ranged = {name: limit for name, limit in limits.items() if limit is not None}
    return dataclasses.field(default=default, metadata={"help": help, "range": ranged, **more})


class Settings:
    """Base of settings dataclasses: values outside the declared ranges and choices, and unknown names, are refused.

    What a Python program has instead of a plain value is taken for it: a path, a number of numpy, one text for a list
    of one, a mapping for a nested table.  A subclass with a `__post_init__` of its own calls this one first.
    """

    def __new__(cls, *values: Any, **named: Any) -> Self:
        known = [field.name for field in dataclasses.fields(cls) if field.init]  # type: ignore[arg-type]
        for name in named:
            if name not in known:
                raise ConfigError(f"{cls.__name__} has no setting {name!r}{nearest(name, known)}")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        kinds = _kinds(type(self))
        for field in _fields(type(self)):
            kind, given = kinds[field.name], getattr(self, field.name)
            value = _plain(kind, given)
            options = _options(kind)
            if isinstance(value, str) and tuple[str, ...] in options and str not in options:
                value = (value,)
            elif isinstance(value, Mapping) and dataclasses.is_dataclass(kind) and isinstance(kind, type):
                value = from_mapping(kind, value, type(self).__name__, f"{field.name}.")
            if value is not given:
                object.__setattr__(self, field.name, value)
            text = isinstance(value, str | Path)
            if text if kind is bool else {*options} <= _TEXTS and not (text or value is None):
                raise ConfigError(f"{field.name} must be {type_name(kind)}, not {value!r}")
            check_range(field.metadata, value, field.name)
            if get_origin(kind) is Literal:
                _check_choice(kind, value, field.name)


def _options(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (typing.Union, types.UnionType) else (kind,)


def _plain(kind: Any, value: Any) -> Any:
    """Paths where texts are wanted as these texts, and a number of numpy as the plain one."""
    options = _options(kind)
    if isinstance(value, os.PathLike) and (str in options or tuple[str, ...] in options):
        return os.fspath(value)
    if isinstance(value, list | tuple) and tuple[str, ...] in options:
        return tuple(_plain(str, item) for item in value)
    return value.item() if type(value).__module__ == "numpy" and getattr(value, "shape", None) == () else value


def check_range(metadata: Mapping[str, Any], value: Any, key: str) -> None:
    """Refuse a value outside the range that a field's metadata says."""
    limits = metadata.get("range")
    if limits is None:  # not made by `option`
        return
    for number in value if isinstance(value, list | tuple) else (value,):
        if isinstance(number, float) and not math.isfinite(number):
            raise ConfigError(f"{key} must be {range_name(limits) or 'a finite number'}, not {value!r}")
        if limits and number is not None and not (isinstance(number, int | float) and _within(number, **limits)):
            raise ConfigError(f"{key} must be {range_name(limits)}, not {value!r}")


def _within(
    number: float,
    least: float = -math.inf,
    most: float = math.inf,
    above: float = -math.inf,
    below: float = math.inf,
) -> bool:
    return least <= number <= most and above < number < below


def range_name(limits: Mapping[str, float]) -> str:
    """A range in words: "at least 1", "from 0 to 1", "above 0"."""
    low, high = limits.get("least"), limits.get("most", limits.get("below"))
    if low is not None and high is not None:
        return f"from {low:g} to {'below ' if 'below' in limits else ''}{high:g}"
    if limits.keys() == {"above", "below"}:
        return f"between {limits['above']:g} and {limits['below']:g}, both excluded"
    words = {"least": "at least", "most": "at most", "above": "above", "below": "below"}
    return " and ".join(f"{words[name]} {limit:g}" for name, limit in limits.items())


def from_mapping(cls: type[T], mapping: Mapping[str, Any], where: str = "the settings", under: str = "") -> T:
    """A `cls` (a dataclass) made of a mapping.

    Unknown keys, missing keys and values of another type are ConfigErrors that name the key and `where` it stands.
    Whole numbers are taken for floats and lists for tuples; a nested mapping becomes the nested dataclass.
    """
    kinds = _kinds(cls)
    for key in mapping:
        if key not in kinds:
            raise ConfigError(f"{where}: unknown key {under + str(key)!r}{nearest(str(key), kinds)}")
    values = {key: convert(kinds[key], value, under + key, where) for key, value in mapping.items()}
    try:
        for field in _fields(cls):
            if field.name in values:
                check_range(field.metadata, values[field.name], under + field.name)
            elif _required(field):
                raise ConfigError(f"{under + field.name!r} is missing: give {type_name(kinds[field.name])}")
        return cls(**values)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from error


def convert(kind: Any, value: Any, key: str, where: str) -> Any:
    """`value` as the type `kind` asks for, or a ConfigError."""
    origin, args = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    value = _plain(kind, value)
    if origin in (typing.Union, types.UnionType):
        return _convert_union(kind, args, value, key, where)
    if origin is Literal:
        return _check_choice(kind, value, f"{where}: {key}")
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        if isinstance(value, Mapping):
            return from_mapping(kind, value, where, f"{key}.")
    elif origin in (list, tuple, Sequence) or kind in (list, tuple):
        if isinstance(value, list | tuple):
            return _convert_items(kind, value, key, where)
    elif origin in (dict, Mapping) or kind is dict:
        if isinstance(value, Mapping):
            of = args[1] if args else Any
            return {name: convert(of, item, f"{key}.{name}", where) for name, item in value.items()}
    elif kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    elif kind is int and isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(kind, type) and kind not in (int, float) and isinstance(value, kind):
        return value
    hint = f"; write [{json.dumps(value)}]" if isinstance(value, str) and args[:1] == (str,) else ""
    raise ConfigError(f"{where}: {key} must be {type_name(kind)}, not {value!r} ({type(value).__name__}){hint}")


def _check_choice(kind: Any, value: Any, key: str) -> Any:
    choices = get_args(kind)
    if any(value == choice and type(value) is type(choice) for choice in choices):
        return value
    hint = nearest(value, [choice for choice in choices if isinstance(choice, str)]) if isinstance(value, str) else ""
    raise ConfigError(f"{key} must be {type_name(kind)}, not {value!r}{hint if 'mean' in hint else ''}")


def _convert_union(kind: Any, options: tuple[Any, ...], value: Any, key: str, where: str) -> Any:
    if isinstance(value, Mapping):  # a typo inside a table should be reported as such, not as a wrong type of the table
        for option in options:
            if dataclasses.is_dataclass(option):
                return convert(option, value, key, where)
    if value == "none" and types.NoneType in options and not _is_choice("none", kind):
        return None  # TOML has no word of its own for it
    for option in sorted(options, key=lambda option: option is not type(value)):
        try:
            return convert(option, value, key, where)
        except ConfigError:
            continue
    raise ConfigError(f"{where}: {key} must be {type_name(kind)}, not {value!r} ({type(value).__name__})")


def _convert_items(kind: Any, values: Sequence[Any], key: str, where: str) -> Any:
    args = get_args(kind)
    is_tuple = kind is tuple or get_origin(kind) is tuple
    if is_tuple and args and args[-1] is not Ellipsis:
        if len(values) != len(args):
            raise ConfigError(f"{where}: {key} must have {len(args)} items, not {len(values)}: {list(values)!r}")
        kinds: Sequence[Any] = args
    else:
        kinds = [args[0] if args else Any] * len(values)
    items = (convert(of, item, f"{key}[{i}]", where) for i, (of, item) in enumerate(zip(kinds, values)))
    return tuple(items) if is_tuple else list(items)


def from_text(kind: Any, text: str, key: str, where: str) -> Any:
    """The value that a text typed by a person stands for where `kind` is wanted: `true`, `none`, `3`, `a,b,c`."""
    for reading in _readings(text):
        if reading is None and _is_choice("none", kind):
            continue
        try:
            return convert(kind, reading, key, where)
        except ConfigError:
            continue
    for option in _options(kind):
        items = get_args(option)
        if get_origin(option) in (list, tuple, Sequence) and items:
            parts = [part for found in _PART.findall(text) if (part := "".join(found).strip())]
            return convert(option, [from_text(items[0], part, key, where) for part in parts], key, where)
        if get_origin(option) in (dict, Mapping):
            try:
                table = json.loads(text)
            except json.JSONDecodeError as error:
                raise ConfigError(f"{where}: {key} must be a table in JSON ({error}), not {text!r}") from error
            return convert(option, table, key, where)
    return convert(kind, text, key, where)


def _is_choice(word: str, kind: Any) -> bool:
    """Whether a word is one of the choices of a union's options."""
    return any(word in get_args(option) for option in _options(kind) if get_origin(option) is Literal)


def _readings(text: str) -> Iterator[Any]:
    word = text.strip().lower()
    if word in ("none", "null"):
        yield None
    if word in ("true", "false", "yes", "no"):
        yield word in ("true", "yes")
    for number in (int, float):
        try:
            yield number(text)
        except ValueError:
            pass
    yield text


def content(text: str, what: str) -> str:
    """A text of the settings; `@FILE` stands for what is in the file."""
    if not text.startswith("@"):
        return text
    try:
        return Path(text[1:]).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{what}: {text[1:]} cannot be read: {getattr(error, 'strerror', error)}") from error


def load_toml(path: str | Path) -> dict[str, Any]:
    """The content of a TOML file; what is wrong with it is a ConfigError with the line."""
    table: dict[str, Any] = _parsed(Path(path), "TOML", tomllib.loads, tomllib.TOMLDecodeError)
    return table


def load_file(path: str | Path) -> dict[str, Any]:
    """The settings in a TOML, YAML or JSON file, by its ending.  `$schema`, which editors read, is left out."""
    path = Path(path)
    if path.suffix in (".yaml", ".yml"):
        try:
            import yaml
        except ModuleNotFoundError as error:
            raise MissingExtra("pyyaml", "yaml", f"reading {path}") from error
        table = _parsed(path, "YAML", _plain_yaml, yaml.YAMLError)
    elif path.suffix == ".json":
        table = _parsed(path, "JSON", json.loads, ValueError)
    else:
        table = load_toml(path)
    if not isinstance(table, dict) or not all(isinstance(key, str) for key in table):
        raise ConfigError(f"{path} must hold names and their values at the top, not {type(table).__name__}")
    table.pop("$schema", None)
    return table


def _parsed(path: Path, language: str, parse: Callable[[str], Any], broken: type[Exception]) -> Any:
    try:
        return parse(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise ConfigError(f"there is no file {path}: check the path") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not a text in UTF-8: {error.reason} at byte {error.start}") from error
    except RecursionError:
        raise ConfigError(f"{path} is nested too deeply") from None
    except broken as error:
        raise ConfigError(f"{path} is not valid {language}: {error}") from error


def _plain_yaml(text: str) -> Any:
    """YAML without what TOML refuses, too: a name given twice, and aliases, by which a small file becomes huge."""
    import yaml

    loader: Any = type("PlainYaml", (yaml.SafeLoader,), {})
    # The library takes 1e-4 for a text unless it is told otherwise.
    loader.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), "-+0123456789"
    )
    for event in yaml.parse(text, loader):
        if isinstance(event, yaml.AliasEvent):
            raise yaml.YAMLError(f"aliases are not read: write the value out\n{event.start_mark}")
    nodes = [yaml.compose(text, loader)]
    while nodes:
        node = nodes.pop()
        if isinstance(node, yaml.MappingNode):
            names = [name.value for name, _ in node.value]
            if twice := next((name for name in names if names.count(name) > 1), None):
                raise yaml.YAMLError(f"{twice} is there twice\n{node.start_mark}")
            nodes += [value for _, value in node.value]
        elif isinstance(node, yaml.SequenceNode):
            nodes += node.value
    return yaml.load(text, loader)


def describe(cls: type[Any]) -> tuple[FieldHelp, ...]:
    """Every field of a dataclass with its help and range; those of nested dataclasses have dotted names."""
    return tuple(_describe(cls, ""))


def _describe(cls: type[Any], under: str) -> Iterator[FieldHelp]:
    kinds = _kinds(cls)
    for field in _fields(cls):
        kind = kinds[field.name]
        if dataclasses.is_dataclass(kind) and isinstance(kind, type):
            yield from _describe(kind, f"{under}{field.name}.")
            continue
        default = None if field.default is dataclasses.MISSING else field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        help, limits = str(field.metadata.get("help", "")), range_name(field.metadata.get("range", {}))
        words = f"{type_name(kind)}, {limits}" if limits else type_name(kind)
        yield FieldHelp(under + field.name, kind, words, default, _required(field), help, field.metadata)


def type_name(kind: Any) -> str:
    """A type in words, for messages and help."""
    origin, args = get_origin(kind), get_args(kind)
    if origin is Literal:
        names = [repr(option) for option in args]
    elif origin in (typing.Union, types.UnionType):
        plain = [type_name(option) for option in args if option in _PLAIN or not isinstance(option, type)]
        names = plain or ["a table"]
    elif origin in (list, tuple, Sequence):
        names = [f"a list ({', '.join(type_name(option) for option in args if option is not Ellipsis)} each)"]
    elif dataclasses.is_dataclass(kind) or origin in (dict, Mapping):
        names = ["a table"]
    else:
        names = [_PLAIN.get(kind) or str(getattr(kind, "__name__", kind))]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


def _fields(cls: type[Any]) -> list[dataclasses.Field[Any]]:
    """The fields that a file or a flag can set."""
    return [field for field in dataclasses.fields(cls) if field.init and not field.metadata.get("python")]


_hints: Callable[[Any], dict[str, Any]] = functools.cache(typing.get_type_hints)


def _kinds(cls: type[Any]) -> dict[str, Any]:
    hints = _hints(cls)
    return {field.name: hints[field.name] for field in _fields(cls)}


def _required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
