"""`batch:NAME` means the batches of that provider, however its protocol came about."""

from __future__ import annotations

import pytest

from fanfold.limits import Limits
from fanfold.models import model
from fanfold.models.batch.executor import BatchExecutor
from fanfold.models.model import Model
from fanfold.models.providers import batching, find_provider


@pytest.mark.parametrize("name", batching())
def test_a_provider_named_takes_its_own_models_only(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", "https://mine.openai.azure.com")
    for other in batching():
        provider = find_provider(other)
        asked = Model(provider.examples[0], provider, provider.default_url, Limits(), None)
        assert BatchExecutor(name).takes(asked) == (name == other)
        assert BatchExecutor("auto").takes(asked)


def test_a_server_anywhere_has_openais_batches_on_demand() -> None:
    asked = model("m", base_url="http://127.0.0.1:9/v1")
    assert BatchExecutor("openai").takes(asked) and not BatchExecutor("auto").takes(asked)
    assert not BatchExecutor("groq").takes(asked)
