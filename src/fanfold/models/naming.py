"""A model by its name: which provider it is, where its address and its key come from."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from fanfold.addresses import check_address, check_recipient
from fanfold.calls import REHEARSAL
from fanfold.errors import ConfigError, nearest
from fanfold.limits import Limits, limits_of
from fanfold.models.anthropic import Anthropic
from fanfold.models.model import Connection, Model
from fanfold.models.openai import Compatible, OpenAI
from fanfold.models.pricing import FREE, Price, price_of
from fanfold.models.wire import Wire
from fanfold.redaction import dotenv

#: The providers' own addresses.
_OWN = (OpenAI.default_url, Anthropic.default_url)


def model(
    name: str,
    *,
    base_url: str | None = None,
    key: str | None = None,
    limits: str | Limits | None = None,
    price: Price | tuple[float, float] | None = None,
    timeout: float = 120.0,
    **options: Any,
) -> Model:
    """A model by name: `openai/gpt-...`, `anthropic/claude-...`, `local/smollm2`, `local/path.gguf`, `simulated/...`.

    With `base_url`, any server that speaks OpenAI's protocol (the name is then passed on as it is, after an optional
    `openai/`).  Keys and URLs come from the provider's usual environment variables, or from `.env` in the current
    folder.  A key is never sent over plain http beyond this machine, nor to a host that only a file names, unless
    FANFOLD_TRUSTED_HOSTS has it.  `limits` is a preset (`adaptive`, `conservative`, `balanced`, `aggressive`) or a
    `Limits`; `price` is (input, output) in US dollars per million tokens.
    """
    provider, slash, rest = name.partition("/")
    given = Price(*price) if isinstance(price, tuple) else price
    if provider == "local" and slash:
        return _local(rest, given, timeout, options)
    if provider == "simulated" and slash:
        return _simulated(rest, given, limits, timeout, options)
    if options:
        raise ConfigError(f"model({name!r}) has no option {sorted(options)[0]!r}")
    if provider == "anthropic" and slash:
        wire: Wire = Anthropic()
    elif provider == "openai" and slash:
        wire = Compatible() if base_url else OpenAI()
    elif base_url:
        wire, rest = Compatible(), name
    else:
        known = ("openai", "anthropic", "local", "simulated")
        raise ConfigError(f"model {name!r} names no known provider{nearest(provider, known)} (or give base_url=)")
    if not rest:
        raise ConfigError(f"model {name!r} lacks the model's name after the slash")
    url, source = (base_url, None) if base_url else setting(wire.url_variable)
    url = (url or wire.default_url).rstrip("/")
    check_address(url)
    key = key or setting(wire.key_variable)[0]
    if key is None and url == wire.default_url and REHEARSAL.get() is None:
        raise ConfigError(f"{name} needs an API key: set {wire.key_variable}, or use local/smollm2, which needs none")
    if key is not None:
        where = None if source is None else f"{source}: {wire.url_variable}"
        check_recipient(url, [wire.default_url], wire.key_variable, where)
    found = given or price_of(rest) if wire.name != "openai-compatible" else given
    return Model(rest, wire, url, limits_of(limits), found, timeout, key=key)


def _local(name: str, price: Price | None, timeout: float, options: Mapping[str, Any]) -> Model:
    from fanfold.models.local import LocalTransport

    transport = LocalTransport.of(name, **options)
    limits = Limits(in_flight=transport.slots, adaptive=False)
    connect = Connection.of(LocalTransport.of, name, options)
    return Model(name, Compatible(), "local:", limits, price or FREE, max(timeout, 600.0), raw=True, connect=connect)


def _simulated(
    name: str, price: Price | None, limits: str | Limits | None, timeout: float, options: Mapping[str, Any]
) -> Model:
    from fanfold.models.simulated import SimulatedTransport

    wire: Wire = Anthropic() if "claude" in name else OpenAI()
    url = "http://simulated" + ("" if wire.name == "anthropic" else "/v1")
    connect = Connection.of(SimulatedTransport.of, name, options)
    connect()  # options that cannot be used are refused here
    found = price or price_of(name)
    return Model(name, wire, url, limits_of(limits), found, timeout, connect=connect, key="simulated")


def setting(name: str) -> tuple[str | None, str | None]:
    """An environment variable, or its line in `.env` of the current folder; and the file, where it is from one."""
    if value := os.environ.get(name):
        return value, None
    return next(((value, ".env") for variable, value in dotenv() if variable == name), (None, None))


def may_ask(fields: Mapping[str, str], source: str | None) -> None:
    """Refuse addresses among a study's fields that carry a secret, or that no key may be sent to.

    `source` names the file they come from; None: the user gave them.
    """
    for name, url in fields.items():
        check_address(url)
        for wire in (OpenAI, Anthropic):
            if "://" in url and setting(wire.key_variable)[0] is not None:
                check_recipient(url, _OWN, wire.key_variable, None if source is None else f"{source}: {name}")
