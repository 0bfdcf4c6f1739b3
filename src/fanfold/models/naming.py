"""A model by its name: which provider it is, where its address and its key come from."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fanfold.calls import REHEARSAL
from fanfold.errors import ConfigError, nearest
from fanfold.limits import Limits, limits_of
from fanfold.models.anthropic import Anthropic
from fanfold.models.model import Connection, Model
from fanfold.models.openai import Compatible, OpenAI
from fanfold.models.pricing import FREE, Price, price_of
from fanfold.models.wire import Wire


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
    folder.  `limits` is a preset (`adaptive`, `conservative`, `balanced`, `aggressive`) or a `Limits`; `price` is
    (input, output) in US dollars per million tokens.
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
    url = (base_url or _setting(wire.url_variable) or wire.default_url).rstrip("/")
    key = key or _setting(wire.key_variable)
    if key is None and url == wire.default_url and REHEARSAL.get() is None:
        raise ConfigError(f"{name} needs an API key: set {wire.key_variable}, or use local/smollm2, which needs none")
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


def _setting(name: str) -> str | None:
    """An environment variable, or its line in `.env` of the current folder."""
    if value := os.environ.get(name):
        return value
    try:
        lines = Path(".env").read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return None
    for line in lines:
        variable, equals, value = line.strip().removeprefix("export ").partition("=")
        if equals and variable.strip() == name and value.strip():
            value = value.strip()
            return json.loads(value) if value[0] == value[-1] == '"' else value.strip("'")
    return None
