"""What `fanfold run TARGET` means: a Python file, a settings file or the name of an installed study."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fanfold.addresses import addresses_in, check_settings
from fanfold.cli.options import flag_value
from fanfold.config import FieldHelp, describe, from_mapping, load_file
from fanfold.errors import ConfigError, FanfoldError, nearest
from fanfold.files import guarded, import_file

if TYPE_CHECKING:
    from fanfold.study import Study


#: The endings of files with settings; one in JSON must be named, as there are many others of that ending.
SETTINGS = (".toml", ".yaml", ".yml", ".json")


@dataclass(frozen=True)
class Loaded:
    """A study, and what a later resume needs to make it again; `options` is the file's [run] table."""

    study: Study[Any]
    target: str
    fields: Mapping[str, Any]
    options: Mapping[str, Any]
    #: What simulated models reply in a rehearsal of it.
    world: Any = None


def load(target: str, flags: Sequence[str], seed: int | None, known: Sequence[str]) -> Loaded:
    """The study that a target and the flags behind it describe; `known` are the command's own flags, for typos."""
    check_settings()
    path, _, attribute = target.partition(":")
    if path.endswith(".py"):
        if flags:
            raise ConfigError(_unknown(flags[0], known, f"a Python file takes no fields of its own: {target}"))
        study = _from_python(Path(path).resolve(), attribute or "study")
        study = study if seed is None else dataclasses.replace(study, seed=seed)
        return Loaded(study, f"{Path(path).resolve()}:{attribute or 'study'}", {}, {})
    if target.endswith(SETTINGS):
        given = load_file(target)
        options, name = given.pop("run", {}), given.pop("study", None)
        if not isinstance(name, str):
            raise ConfigError(f'{target}: say which study it is for, as in study = "functions"')
        if not isinstance(options, dict):
            raise ConfigError(f"{target}: run must be a table, [run], not {options!r}")
    else:
        from fanfold.plugins import studies
        from fanfold.tables import ENDINGS

        if target not in studies() and Path(target).exists():
            if ENDINGS.get(Path(target).suffix.lower(), "txt") != "txt":
                raise ConfigError(
                    f"{target} is a table: say what it is for, as in `fanfold run prompts --task {target}` or "
                    f"`fanfold ask {target}`"
                )
            raise ConfigError(f"{target} is neither a .py nor a .toml file: give one of these, or the name of a study")
        given, options, name = {}, {}, target
    return _from_name(name, given, flags, seed, known, target, options)


def only_settings_file() -> str:
    """The file with settings of a study in the current folder, where there is just one."""
    paths = [path for path in sorted(Path().iterdir()) if path.suffix in SETTINGS[:-1] and path.is_file()]
    files = [path.name for path in paths if path.stat().st_size < 2**20 and _names_a_study(path)]
    if len(files) == 1:
        return files[0]
    if not files:
        raise ConfigError(
            "say what to run: a file, or the name of a study. There is no settings file in this folder: "
            "`fanfold init` writes one"
        )
    raise ConfigError(f"say which to run, there are {len(files)} settings files in this folder: {', '.join(files)}")


def _names_a_study(path: Path) -> bool:
    try:
        return isinstance(load_file(path).get("study"), str)
    except FanfoldError:
        # A broken file that seems to be meant is tried, so that its error is told.
        return re.search(r"^study\b", path.read_text(encoding="utf-8", errors="replace"), re.MULTILINE) is not None


def reload(target: str, fields: Mapping[str, Any], seed: int | None) -> Study[Any]:
    """The study of a recorded run: its target and all its fields as they were."""
    check_settings()
    path, _, attribute = target.rpartition(":")
    if path.endswith(".py"):
        if not Path(path).exists():
            raise ConfigError(
                f"the run was started with {path}, which is not there: if it is elsewhere now, `fanfold run FILE --run "
                "NAME` with the same --ledger continues the run"
            )
        study = _from_python(Path(path), attribute)
        return study if seed is None else dataclasses.replace(study, seed=seed)
    return _from_name(target, _recorded(target, fields), (), seed, (), "the recorded run", {}).study


def _recorded(name: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a recorded run; where an older version lacked a setting, the config says what it did."""
    from fanfold.plugins import find_study

    formerly = getattr(find_study(name).config, "formerly", dict)
    return dict(formerly(fields))


def study_of(target: str) -> str:
    """The name of the study that a target is about: its own, or the one that a settings file says."""
    return str(load_file(target).get("study", "")) if target.endswith(SETTINGS) else target


def fields_of(name: str) -> tuple[FieldHelp, ...]:
    """The fields of a study's config, for help texts; empty where there is no such study."""
    from fanfold.plugins import find_study, studies

    return describe(find_study(name).config) if name in studies() else ()


def configured(name: str, flags: Sequence[str], beneath: Mapping[str, Any] | None = None) -> Any:
    """The config of a study with the fields that the flags say, laid over those `beneath`."""
    from fanfold.plugins import find_study

    kind = find_study(name).config
    return from_mapping(kind, settings_of(kind, flags, beneath or {}), name)


def settings_of(kind: type[Any], flags: Sequence[str], beneath: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a config that the flags say, laid over those `beneath`, as a file would have them."""
    return _merged(dict(beneath), _read_flags(describe(kind), flags, ()))


def _from_name(
    name: str,
    given: dict[str, Any],
    flags: Sequence[str],
    seed: int | None,
    known: Sequence[str],
    where: str,
    options: Mapping[str, Any],
) -> Loaded:
    from fanfold.plugins import find_study

    plugin = find_study(name)
    fields = describe(plugin.config)
    said = _read_flags(fields, flags, known)
    check_addresses(addresses_in(given), said, where)
    given = _merged(given, said)
    own_seed = any(field.name == "seed" for field in fields)
    if seed is not None and own_seed:
        given["seed"] = seed
    config = from_mapping(plugin.config, given, where)
    study = guarded(f"the study {name!r}", None, lambda: plugin.build(config))
    if seed is not None and not own_seed:
        study = dataclasses.replace(study, seed=seed)
    defaults = {} if plugin.run_options is None else plugin.run_options(config)
    return Loaded(study, name, dataclasses.asdict(config), {**defaults, **options}, plugin.world)


def check_addresses(filed: dict[str, str], flags: Mapping[str, Any], where: str) -> None:
    """Addresses that a file or a ledger says are not the user's word: keys go there only if the user trusts them."""
    typed = addresses_in(flags)
    filed = {name: url for name, url in filed.items() if name not in flags}
    if filed or typed:
        from fanfold.models.naming import may_ask

        may_ask(filed, where)
        may_ask(typed, None)


def _read_flags(fields: Sequence[FieldHelp], flags: Sequence[str], known: Sequence[str]) -> dict[str, Any]:
    """`--field value` (for a list, also several), `--field=value`, and `--field` or `--no-field` for true or false."""
    by_flag = {f"--{field.name.replace('_', '-')}": field for field in fields}
    by_flag |= {short: field for field in fields for short in field.metadata.get("short", ())}
    found: dict[str, Any] = {}
    rest = [flag for flag in flags if flag != "--"]
    while rest:
        flag, equals, text = rest.pop(0).partition("=")
        flag = flag.replace("_", "-")
        if flag.startswith("--no-") and flag not in by_flag and (field := by_flag.get(f"--{flag[5:]}")) is not None:
            found[field.name] = False
            continue
        if flag not in by_flag:
            raise ConfigError(_unknown(flag, [*known, *by_flag]))
        field = by_flag[flag]
        if not equals and field.kind is bool and (not rest or rest[0].lower() not in ("true", "false", "yes", "no")):
            found[field.name] = True
            continue
        if not equals:
            if not rest:
                raise ConfigError(f"{flag} needs a value: {field.type}")
            text = rest.pop(0)
        value = flag_value(field, flag, text)
        again = isinstance(value, tuple) and field.name in found
        found[field.name] = (*found[field.name], *value) if again else value
    return found


def _unknown(flag: str, known: Sequence[str], otherwise: str = "") -> str:
    if not flag.startswith("-"):
        return f"unexpected argument {flag!r}: fields are written --name value"
    hint = nearest(flag, known)
    return f"unknown option {flag}{hint if 'mean' in hint else f'; {otherwise}' if otherwise else hint}"


def _merged(given: dict[str, Any], dotted: Mapping[str, Any]) -> dict[str, Any]:
    """`given` with the flags laid over it; dotted names reach into tables."""
    for name, value in dotted.items():
        *tables, last = name.split(".")
        place = given
        for table in tables:
            inner = place.get(table)
            place[table] = dict(inner) if isinstance(inner, Mapping) else {}
            place = place[table]
        place[last] = value
    return given


def _from_python(path: Path, attribute: str) -> Study[Any]:
    from fanfold.fingerprints import SCRIPTS
    from fanfold.study import Study

    module = import_file(path)
    SCRIPTS.add(module.__name__)
    found = getattr(module, attribute, None)
    label, wanted = (
        f"{path.name}:{attribute}",
        "give a Study, or a function without required arguments that returns one",
    )
    if found is None:
        studies = [name for name, value in vars(module).items() if isinstance(value, Study)]
        raise ConfigError(f"{path.name} has no {attribute!r}, write {path.name}:NAME{nearest(attribute, studies)}")
    if not isinstance(found, Study) and callable(found):
        if _needs_arguments(found):
            raise ConfigError(f"{label} needs arguments: {wanted}")
        found = guarded(label, path, found)
    if not isinstance(found, Study):
        raise ConfigError(f"{label} is a {type(found).__name__}: {wanted}")
    return found


def _needs_arguments(function: Callable[..., Any]) -> bool:
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(function).parameters.values()
    return any(each.default is each.empty and each.kind not in optional for each in parameters)
