"""The providers that are installed: those in the entry-point group `fanfold.providers`, ours among them."""

from __future__ import annotations

import functools
import re
from importlib.metadata import EntryPoint, entry_points

from fanfold.errors import ConfigError, nearest
from fanfold.models.providers.contract import ERROR_KINDS, Endpoint, Messages, Provider, check_unquoted, setting

__all__ = [
    "ERROR_KINDS",
    "GROUP",
    "Endpoint",
    "Messages",
    "Provider",
    "any_server",
    "batching",
    "check_unquoted",
    "find_provider",
    "free_model",
    "maker_of",
    "package_of",
    "provider_names",
    "providers",
    "setting",
]

GROUP = "fanfold.providers"


@functools.cache
def _entries() -> dict[str, EntryPoint]:
    entries: dict[str, EntryPoint] = {}
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: (entry.name, entry.value)):
        other = entries.setdefault(entry.name, entry)
        if other.value != entry.value:
            raise ConfigError(
                f"two packages offer the provider {entry.name!r}: {_package(other)} and {_package(entry)}; "
                "uninstall one of them"
            )
    return entries


def provider_names() -> tuple[str, ...]:
    """The prefixes of all installed providers; nothing of them is imported."""
    return tuple(_entries())


@functools.cache
def find_provider(name: str) -> Provider:
    """The provider with this prefix."""
    entry = _entries().get(name)
    if entry is None:
        raise ConfigError(f"there is no provider {name!r}{nearest(name, provider_names())}")
    try:
        provider = entry.load()()
    except Exception as error:
        raise ConfigError(
            f"the provider {name!r} of the package {_package(entry)!r} cannot be used ({type(error).__name__}: "
            f"{error}): upgrade the package, or report it to its author"
        ) from error
    if not isinstance(provider, Provider):
        raise ConfigError(
            f"the provider {name!r} of the package {_package(entry)!r} cannot be used: {entry.value!r} must be a "
            "subclass of fanfold.models.providers.Provider; report it to its author"
        )
    return provider


@functools.cache
def providers() -> dict[str, Provider]:
    """All installed providers that can be used, by prefix."""
    usable = {}
    for name in provider_names():
        try:
            usable[name] = find_provider(name)
        except ConfigError:
            continue  # `fanfold doctor` says why, and so does using it
    return usable


def batching() -> tuple[str, ...]:
    """The prefixes of the providers known to take batches, as in `batch:NAME`."""
    return tuple(name for name, provider in providers().items() if provider.batches and not provider.anywhere)


def maker_of(model: str) -> str | None:
    """The prefix of the provider whose models have names like this one; None where there is none."""
    for name, provider in providers().items():
        if provider.family and re.match(provider.family, model):
            return name
    return None


def free_model() -> str:
    """The name of a model that needs neither a key nor a network."""
    return next(f"{name}/{provider.examples[0]}" for name, provider in providers().items() if not provider.remote)


def any_server() -> Provider:
    """The provider that stands for any server at a `base_url`."""
    return next(provider for provider in providers().values() if provider.anywhere)


def package_of(name: str) -> str:
    """The package that brings a provider, and its version."""
    entry = _entries()[name]
    return _package(entry) if entry.dist is None else f"{_package(entry)} {entry.dist.version}"


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else entry.value
