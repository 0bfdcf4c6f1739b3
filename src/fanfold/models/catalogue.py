"""Models under names of the user's own: `models.toml` in the current folder, and in the user's configuration."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from fanfold.addresses import check_recipient
from fanfold.capabilities import Capabilities
from fanfold.config import Settings, from_mapping, load_toml, option
from fanfold.context import here
from fanfold.errors import ConfigError
from fanfold.limits import Limits
from fanfold.models.pricing import Price
from fanfold.models.providers import Endpoint, Provider, check_unquoted, providers, setting
from fanfold.redaction import know

FILE = "models.toml"
#: Keys and headers that hold secrets, by their names.
_SECRET = re.compile(r"(?i)(?:.*[-_])?(?:key|token|secret|password|authorization|auth)")


@dataclass(frozen=True)
class StatedCapabilities(Settings):
    """What the user says of a model, in the words of Fanfold's own table; what is left out stays as that says."""

    refuses: tuple[str, ...] | None = option(None, "parameters that it does not take")
    steady: tuple[str, ...] | None = option(None, "parameters that it takes only while it does not reason")
    efforts: tuple[str, ...] | None = option(None, "efforts of reasoning that it offers")
    effort: str | None = option(None, "the effort with which it reasons by default")
    context: int | None = option(None, "tokens of its largest input", least=1)
    output: int | None = option(None, "tokens of its largest output", least=1)
    has: tuple[str, ...] | None = option(None, "tools, schema, images, caching, batch")

    def over(self, known: Capabilities) -> Capabilities:
        stated = {field.name: getattr(self, field.name) for field in fields(self)}
        sets = ("refuses", "steady", "has")
        values: dict[str, Any] = {
            name: frozenset(value) if name in sets else value for name, value in stated.items() if value is not None
        }
        return replace(known, **values)


@dataclass(frozen=True)
class NamedModel(Settings):
    """One table of `models.toml`: what a name stands for."""

    model: str = option("", "PROVIDER/NAME; empty: the name of the table")
    base_url: str | None = option(None, "the address of the server")
    key_variable: str | None = option(None, "the environment variable of the key; empty: no key is sent")
    headers: Mapping[str, str] = option((), "sent with every request; $NAME stands for an environment variable")
    price: Price | tuple[float, ...] | None = option(None, "US dollars per million tokens: [input, output, cached]")
    limits: Limits | str | None = option(None, "how hard the API may be used: a preset, or a table of limits")
    timeout: float | None = option(None, "seconds for a call", above=0)
    parameters: Mapping[str, Any] = option((), "of every request that does not set them itself")
    capabilities: StatedCapabilities | None = option(None, "what it takes, where Fanfold's table is wrong or silent")
    transport: str | None = option(None, "what sends the requests: http, or httpx for HTTP/2")
    options: Mapping[str, Any] = option((), "of the provider, such as context of a local model")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("headers", "parameters", "options"):
            object.__setattr__(self, name, dict(getattr(self, name)))
        if isinstance(self.price, tuple):
            if not 2 <= len(self.price) <= 4:
                raise ConfigError("price must be [input, output], [input, output, cached] or a table")
            object.__setattr__(self, "price", Price(*self.price))

    @property
    def definition(self) -> dict[str, Any]:
        """What decides the replies: another definition of the same name is another model."""
        return {"model": self.model, "base_url": self.base_url, "parameters": dict(self.parameters)}


@dataclass(frozen=True, slots=True)
class Entry:
    """A table with its name and its file; in the user's own configuration, addresses are the user's word."""

    name: str
    table: NamedModel
    file: Path
    trusted: bool

    @property
    def where(self) -> str:
        return f"{self.file}: [{self.name}]"

    def key(self) -> str | None:
        """The key that the table's variable holds."""
        variable = self.table.key_variable
        if not variable:
            return None
        value = setting(variable)[0]
        if value is None and here().rehearsal is None:
            raise ConfigError(f"{self.where} takes its key from {variable}, which is not set")
        check_unquoted(variable, value)
        return value

    def headers(self) -> dict[str, str]:
        """The headers, with the variables that they name filled in."""
        headers = {}
        for name, value in self.table.headers.items():
            if value.startswith("$"):
                filled = setting(value[1:])[0]
                if filled is None and here().rehearsal is None:
                    raise ConfigError(f"{self.where} takes the header {name} from {value[1:]}, which is not set")
                know(filled)
                check_unquoted(value[1:], filled)
                value = filled or ""
            headers[name.lower()] = value
        return headers

    def check_parameters(self, provider: Provider) -> None:
        """Refuse parameters that the provider does not have."""
        try:
            provider.translated(self.table.parameters)
        except ConfigError as error:
            raise ConfigError(f"{self.where}: parameters: {error}") from error

    def check(self, provider: Provider, endpoint: Endpoint) -> None:
        """Refuse to send a secret where only a file in the current folder wants it sent."""
        named = [value[1:] for value in self.table.headers.values() if value.startswith("$")]
        named += [self.table.key_variable or provider.key_variable] if endpoint.key is not None else []
        others = {other.key_variable for other in providers().values()} - {provider.key_variable, ""}
        for variable in () if self.trusted else named:
            # The key of one provider is not for another, even at the other's own address.
            if variable in others or (variable and self.table.base_url):
                own = endpoint.url if provider.owns(endpoint.url) else provider.home()
                check_recipient(endpoint.url, [] if variable in others else [own], variable, self.where)


def catalogue() -> dict[str, Entry]:
    """Every name that the files define; the file in the current folder comes first."""
    entries: dict[str, Entry] = {}
    for file, trusted in ((Path(FILE), False), (_user_file(), True)):
        try:
            stamp = file.stat()
        except OSError:
            continue
        for name, entry in _read(file, file.absolute(), stamp.st_mtime_ns, stamp.st_size, trusted).items():
            entries.setdefault(name, entry)
    return entries


def defined(*names: str | None) -> dict[str, Any]:
    """The definitions of those names that `models.toml` defines, for fingerprints; of other names nothing."""
    entries = catalogue()
    return {name: entries[name].table.definition for name in names if name in entries}


def _user_file() -> Path:
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(home, "fanfold", FILE)


@functools.lru_cache(8)
def _read(file: Path, place: Path, modified: int, size: int, trusted: bool) -> dict[str, Entry]:
    entries = {}
    for name, table in load_toml(file).items():
        where = f"{file}: [{name}]"
        if not isinstance(table, dict):
            raise ConfigError(f"{file}: {name!r} is not a table: write [{name}], and its settings below")
        _check_secrets(where, table)
        settings = from_mapping(NamedModel, table, where)
        entries[name] = Entry(name, settings, file, trusted)
    return entries


def _check_secrets(where: str, table: Mapping[str, Any]) -> None:
    """Refuse a secret in the file, without showing it."""
    for name, value in table.items():
        if name != "key_variable" and _SECRET.fullmatch(name):
            know(str(value))
            raise ConfigError(
                f"{where}: {name!r} would keep a secret in a file: put it into an environment variable, and name that "
                'here: key_variable = "NAME"'
            )
    variable = table.get("key_variable")
    if isinstance(variable, str) and variable and not re.fullmatch(r"[A-Za-z_]\w*", variable):
        know(variable)
        raise ConfigError(f"{where}: key_variable is the name of an environment variable, never the key itself")
    headers = table.get("headers")
    for name, value in headers.items() if isinstance(headers, dict) else ():
        if _SECRET.fullmatch(name) and not str(value).startswith("$"):
            know(str(value))
            raise ConfigError(
                f"{where}: the header {name!r} would keep a secret in a file: put it into an environment variable, and "
                f'name that here: {name} = "$NAME"'
            )
