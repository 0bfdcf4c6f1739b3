"""A model by its name: the provider that its prefix names, and where its address and its key come from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from fanfold.addresses import check_address, check_recipient
from fanfold.errors import ConfigError, nearest
from fanfold.limits import Limits, limits_of
from fanfold.models.catalogue import FILE, NamedModel, catalogue
from fanfold.models.http import Http
from fanfold.models.http_by_httpx import Httpx, check_httpx
from fanfold.models.model import Model
from fanfold.models.pricing import Price
from fanfold.models.providers import (
    Provider,
    any_server,
    find_provider,
    maker_of,
    provider_names,
    providers,
)
from fanfold.models.transport import Transport

TRANSPORTS: Mapping[str, Callable[[], Transport]] = {"http": Http, "httpx": Httpx}

#: Seconds for a call where nobody says another number.
TIMEOUT = 120.0


#: What `model` takes for every provider.
_OPTIONS = ("base_url", "key", "limits", "price", "timeout", "parameters", "transport")


def model(
    name: str,
    *,
    base_url: str | None = None,
    key: str | None = None,
    limits: str | Limits | None = None,
    price: Price | tuple[float, ...] | None = None,
    timeout: float | None = None,
    parameters: Mapping[str, Any] | None = None,
    hints: Mapping[str, Any] | None = None,
    transport: str | None = None,
    **options: Any,
) -> Model:
    """A model by name, PROVIDER/NAME: `local/smollm2`, `local/path.gguf`, `simulated/...`, or any installed provider's.

    A name that `models.toml` defines stands for the model there, with its settings; arguments win over them.

    With `base_url`, any server that speaks a provider's protocol; without a prefix, that of an OpenAI-compatible one,
    and the whole name is passed on.  Keys and URLs come from the provider's usual environment variables, or from `.env`
    in the current folder.  A key is never sent over plain http beyond this machine, nor to a host that only a file
    names, unless FANFOLD_TRUSTED_HOSTS has it.  `limits` is a preset (`adaptive`, `conservative`, `balanced`,
    `aggressive`) or a `Limits`; `price` is (input, output) in US dollars per million tokens; `timeout` is in seconds
    (120 by default).  `parameters` are those of every request that does not set them itself.  `options` are the
    provider's own; `hints` are options for those providers that have them.  `transport="httpx"` sends by httpx, which
    speaks HTTP/2.
    """
    entry = catalogue().get(name)
    table = NamedModel() if entry is None else entry.table
    base_url = base_url or table.base_url
    provider, rest = _provider(table.model or name, base_url)
    options = {**table.options, **options}
    options |= {option: value for option, value in (hints or {}).items() if option in provider.options}
    for option in sorted(options.keys() - {*provider.options}):
        meant = nearest(option, (*provider.options, *_OPTIONS))
        raise ConfigError(f"model({name!r}) has no option {option!r}{meant}")
    if not rest:
        raise ConfigError(f"model {name!r} lacks the model's name: write {(table.model or name).rstrip('/')}/NAME")
    endpoint = provider.endpoint(rest, base_url, key or (entry.key() if entry else None), options)
    if entry is not None:
        endpoint = replace(endpoint, key=None) if table.key_variable == "" and key is None else endpoint
        entry.check(provider, endpoint)
        entry.check_parameters(endpoint.provider)
    price, transport = table.price if price is None else price, transport or table.transport
    return Model(
        rest,
        endpoint.provider,
        endpoint.url,
        endpoint.limits or limits_of(limits or table.limits),
        endpoint.price if price is None else Price.of(price),
        max(_seconds(name, timeout) or table.timeout or TIMEOUT, endpoint.timeout),
        raw=endpoint.raw,
        connect=endpoint.connect if transport is None else _connector(transport, endpoint.connect),
        key=endpoint.key,
        headers={} if entry is None else entry.headers(),
        defaults={
            **table.parameters,
            **{name: value for name, value in (parameters or {}).items() if value is not None},
        },
        stated=None if table.capabilities is None else table.capabilities.over(endpoint.provider.capabilities(rest)),
    )


def _seconds(name: str, timeout: float | None) -> float | None:
    if timeout is not None and not (isinstance(timeout, int | float) and timeout > 0):
        raise ConfigError(f"model({name!r}): timeout must be a positive number of seconds, not {timeout!r}")
    return timeout


def _provider(name: str, base_url: str | None) -> tuple[Provider, str]:
    """The provider that a name means, and the rest of the name."""
    prefix, slash, rest = name.partition("/")
    if prefix in provider_names() and (slash or not base_url):
        return find_provider(prefix), rest
    if base_url:
        return any_server(), name
    if "://" in name:
        raise ConfigError(f"model {name!r} is an address: give it as --base-url (base_url=), and the model's own name")
    meant = nearest(prefix, (*provider_names(), *catalogue()))
    bare = rest or name
    before, colon, behind = name.partition(":")
    if colon and before in provider_names():  # as other libraries write it
        meant = f"; did you mean {f'{before}/{behind}'!r}?"
    elif "did you mean" not in meant and (maker := maker_of(bare)):
        meant = f"; did you mean {f'{maker}/{bare}'!r}?"
    raise ConfigError(
        f"model {name!r} names no known provider{meant} (a model is PROVIDER/NAME; for another server give --base-url, "
        f"in Python base_url=, or define it in {FILE})"
    )


def _connector(transport: str, connect: Callable[[], Transport]) -> Callable[[], Transport]:
    """What makes the transport of a name, for a model that is asked over HTTP."""
    if transport not in TRANSPORTS:
        raise ConfigError(f"there is no transport {transport!r}{nearest(transport, TRANSPORTS)}")
    if connect is not Http:
        raise ConfigError(f"transport={transport!r} is for models behind HTTP, and this one is not")
    if transport == "httpx":
        check_httpx()
    return TRANSPORTS[transport]


def runs_here(name: str) -> bool:
    """Whether the model of a name computes inside this process."""
    entry = catalogue().get(name)
    prefix, slash, _ = (name if entry is None else entry.table.model or name).partition("/")
    return bool(slash) and prefix in provider_names() and not find_provider(prefix).remote


def _sends_key(provider: Provider) -> bool:
    """Whether a key is set for a provider, and goes along with requests: one that only signs them stays here."""
    key = provider.own_key()
    return key is not None and any(key in value for value in provider.headers(key).values())


def may_ask(fields: Mapping[str, str], source: str | None) -> None:
    """Refuse addresses among a study's fields that carry a secret, or that no key may be sent to.

    `source` names the file they come from; None: the user gave them.
    """
    for name, url in fields.items():
        check_address(url)
        if "://" not in url:
            continue
        own = {provider.default_url for provider in providers().values()}
        for variable in {provider.key_variable for provider in providers().values() if _sends_key(provider)}:
            check_recipient(url, tuple(own), variable, None if source is None else f"{source}: {name}")
