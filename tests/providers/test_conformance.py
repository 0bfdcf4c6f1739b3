"""Every installed provider keeps the contract, in realtime and in batches: the suite that other authors use too."""

from __future__ import annotations

from fanfold.models.providers import Provider, find_provider, provider_names
from fanfold.testing import ProviderConformance


def _suite(name: str) -> type[ProviderConformance]:
    def make(self: ProviderConformance) -> Provider:
        return find_provider(name)

    return type(f"Test_{name}", (ProviderConformance,), {"make": make})


#: One class a provider, so that a failure names it; nobody adds a provider by hand.
globals().update({f"Test_{name}": _suite(name) for name in provider_names()})


def test_no_provider_is_left_out() -> None:
    assert {name.removeprefix("Test_") for name in globals() if name.startswith("Test_")} == set(provider_names())
