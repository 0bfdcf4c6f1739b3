"""Azure OpenAI: both protocols of a resource, in realtime and in batches, and the settings that its users have."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from fanfold.errors import ConfigError
from fanfold.models import model
from fanfold.models.providers import Provider
from fanfold.models.providers.azure import Azure, AzureDeployments
from fanfold.simulator import Latency, Simulator, SimulatorConfig, serve
from fanfold.testing import ProviderConformance

RESOURCE = "https://mine.openai.azure.com"


@pytest.fixture(autouse=True)
def clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("AZURE_OPENAI_API_KEY", "AZURE_OPENAI_ENDPOINT", "AZURE_OPENAI_AD_TOKEN", "OPENAI_API_VERSION")
    for name in (*names, "AZURE_OPENAI_API_VERSION", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


class TestDated(ProviderConformance):
    """The whole suite once more, in the dated protocol."""

    def make(self) -> Provider:
        return _Dated()


class _Dated(AzureDeployments):
    default_url = "https://NAME.openai.azure.com/openai"


def test_a_resource_is_needed_and_a_deployment_is_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_OPENAI_API_KEY", "key-of-a-resource")
    with pytest.raises(ConfigError, match="set AZURE_OPENAI_ENDPOINT=https://NAME"):
        model("azure/my-deployment")
    monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", RESOURCE + "/")
    asked = model("azure/my-deployment")
    assert asked.call("x").endpoint == f"{RESOURCE}/openai/v1/chat/completions"
    assert '"model":"my-deployment"' in asked.call("x").body
    assert asked.signed("POST", asked.url) == {"api-key": "key-of-a-resource"}
    assert asked.price is None and model("azure/gpt-6-luna").price is not None


def test_a_version_or_the_address_chooses_the_dated_protocol(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_OPENAI_API_KEY", "key-of-a-resource")
    asked = model("azure/d", base_url=f"{RESOURCE}/openai")
    assert asked.call("x").endpoint == f"{RESOURCE}/openai/deployments/d/chat/completions?api-version=2024-10-21"
    monkeypatch.setenv("OPENAI_API_VERSION", "2025-04-01-preview")
    monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", RESOURCE)
    path = "/openai/deployments/d/chat/completions?api-version=2025-04-01-preview"
    assert model("azure/d").call("x").endpoint == RESOURCE + path
    assert model("azure/d", base_url=f"{RESOURCE}/openai/v1").url.endswith("/v1")


def test_a_token_of_entra_id_is_a_bearer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_OPENAI_AD_TOKEN", "eyJ-a-token-of-somebody")
    asked = model("azure/d", base_url=RESOURCE)
    assert asked.signed("POST", asked.url) == {"authorization": "Bearer eyJ-a-token-of-somebody"}


def test_a_resource_in_dotenv_gets_its_key_and_another_host_does_not(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text(f"AZURE_OPENAI_API_KEY=key-of-a-resource\nAZURE_OPENAI_ENDPOINT={RESOURCE}\n")
    assert model("azure/d").key == "key-of-a-resource"
    for host in ("mine.openai.azure.com.evil.example", "evilopenai.azure.com", "evilazure.com"):
        (tmp_path / ".env").write_text(f"AZURE_OPENAI_API_KEY=k\nAZURE_OPENAI_ENDPOINT=https://{host}\n")
        with pytest.raises(ConfigError, match="only a file names"):
            model("azure/d")


def test_nothing_needs_a_resource_in_a_rehearsal() -> None:
    from fanfold.rehearsal import rehearsing

    with rehearsing():
        assert model("azure/d").url == Azure.default_url


@pytest.mark.parametrize("dated", [False, True])
def test_the_sdk_passes_a_lifecycle(dated: bool) -> None:
    """A chat, a file, a batch until its end, and its results, with OpenAI's own client for Azure."""
    openai = pytest.importorskip("openai")

    def lifecycle(url: str) -> tuple[Any, ...]:
        if dated:
            client = openai.AzureOpenAI(azure_endpoint=f"{url}/azure", api_version="2024-10-21", api_key="k")
        else:
            client = openai.OpenAI(base_url=f"{url}/azure/openai/v1", api_key="k")
        with client:
            said = [{"role": "user", "content": "x"}]
            path = "/chat/completions" if dated else "/v1/chat/completions"
            chat = client.chat.completions.create(model="d", messages=said)
            lines = b'{"custom_id":"a","method":"POST","url":"%b","body":{"model":"d","messages":[{"role":"user",'
            lines += b'"content":"x"}]}}\n'
            file = client.files.create(file=("x.jsonl", lines % path.encode()), purpose="batch")
            batch = client.batches.create(input_file_id=file.id, endpoint=path, completion_window="24h")
            while batch.status not in ("completed", "failed"):
                batch = client.batches.retrieve(batch.id)
            results = client.files.content(batch.output_file_id).text if batch.output_file_id else str(batch.errors)
            with pytest.raises(openai.NotFoundError) as gone:
                client.chat.completions.create(model="gone", messages=said)
            return chat.choices[0].message.content, batch.status, results, gone.value.code

    async def main() -> tuple[Any, ...]:
        config = SimulatorConfig(models=("d",), answer=lambda *_: "good", turnaround=Latency(0.05))
        async with serve(Simulator(config)) as url:
            return await asyncio.to_thread(lifecycle, url)

    text, status, results, code = asyncio.run(main())
    assert (text, status, code) == ("good", "completed", "DeploymentNotFound")
    assert '"custom_id":"a"' in results and "good" in results
