"""Every provider of ours keeps the contract, through the suite that authors of others use."""

from __future__ import annotations

from fanfold.models.providers import Provider
from fanfold.models.providers.anthropic import Anthropic
from fanfold.models.providers.compatible import Compatible
from fanfold.models.providers.local import Local
from fanfold.models.providers.openai import OpenAI
from fanfold.models.providers.simulated import Simulated
from fanfold.testing import ProviderConformance


class TestOpenAI(ProviderConformance):
    def make(self) -> Provider:
        return OpenAI()


class TestAnthropic(ProviderConformance):
    def make(self) -> Provider:
        return Anthropic()


class TestCompatible(ProviderConformance):
    def make(self) -> Provider:
        return Compatible()


class TestLocal(ProviderConformance):
    def make(self) -> Provider:
        return Local()


class TestSimulated(ProviderConformance):
    def make(self) -> Provider:
        return Simulated()
