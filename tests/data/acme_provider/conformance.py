"""Acme's own test: it is what Fanfold expects of a provider."""

from __future__ import annotations

from acme_provider import Acme

from fanfold.testing import ProviderConformance


class TestAcme(ProviderConformance):
    model_name = "anvil-1"

    def make(self) -> Acme:
        return Acme()
