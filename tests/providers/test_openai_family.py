"""Services and servers with OpenAI's protocol are asked where they are, with their own key, and tell their errors."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from fanfold.calls import current_broker
from fanfold.errors import CallFailed, ConfigError
from fanfold.models import model
from fanfold.models.providers import find_provider, providers
from fanfold.models.retry import RetryPolicy
from fanfold.simulator import Simulator, SimulatorConfig, addresses, serve

SERVICES = {
    "together": ("TOGETHER_API_KEY", "https://api.together.xyz/v1"),
    "xai": ("XAI_API_KEY", "https://api.x.ai/v1"),
    "deepseek": ("DEEPSEEK_API_KEY", "https://api.deepseek.com"),
    "openrouter": ("OPENROUTER_API_KEY", "https://openrouter.ai/api/v1"),
}
SERVERS = {"ollama": ("ollama serve", 11434), "vllm": ("vllm serve", 8000), "llamacpp": ("llama-server", 8080)}


@pytest.fixture(autouse=True)
def clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for provider in providers().values():
        monkeypatch.delenv(provider.key_variable or "-", raising=False)
        monkeypatch.delenv(provider.url_variable, raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_is_asked_at_its_own_address_with_its_own_key(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    variable, url = SERVICES[name]
    with pytest.raises(ConfigError, match=f"set {variable}"):
        model(f"{name}/some/model")
    monkeypatch.setenv("OPENAI_API_KEY", "key-of-somebody-else")
    monkeypatch.setenv(variable, "key-of-this-service")
    asked = model(f"{name}/some/model")
    assert (asked.name, asked.url, asked.key) == ("some/model", url, "key-of-this-service")
    assert asked.price is None  # not known, and so not zero


@pytest.mark.parametrize("name", [*SERVICES, "ollama"])
def test_the_examples_of_a_service_have_a_price(name: str) -> None:
    provider = find_provider(name)
    assert all(provider.price(example) is not None for example in provider.examples)


@pytest.mark.parametrize("name", SERVERS)
def test_a_server_of_ones_own_needs_no_key_and_costs_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "key-of-somebody-else")
    asked = model(f"{name}/qwen3:8b")
    assert (asked.url, asked.key) == (f"http://127.0.0.1:{SERVERS[name][1]}/v1", None)
    assert asked.price is not None and asked.price.cost(10**6, 10**6) == 0


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1:11500", "http://127.0.0.1:11500/v1"),
        ("gpu.example", "http://gpu.example:11434/v1"),
        ("0.0.0.0", "http://127.0.0.1:11434/v1"),
        ("https://gpu.example", "https://gpu.example/v1"),
        ("http://gpu.example:80/ollama/v1/", "http://gpu.example:80/ollama/v1"),
    ],
)
def test_a_host_is_understood_as_ollama_writes_it(host: str, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_HOST", host)
    assert model("ollama/qwen3:8b").url == url


@pytest.mark.parametrize("name", SERVERS)
def test_where_nothing_listens_the_error_says_how_to_start_it(name: str) -> None:
    from dataclasses import replace

    asked = replace(model(f"{name}/m", base_url="http://127.0.0.1:9"), again=RetryPolicy(tries=1))

    async def main() -> None:
        try:
            await asked.generate("x")
        finally:
            await current_broker().close()

    with pytest.raises(CallFailed, match=f"start it with `{SERVERS[name][0]}"):
        asyncio.run(main())


def test_one_simulator_answers_every_provider_in_its_own_dialect(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the addresses it names, a request of each provider is charged to that provider's dialect."""

    async def main() -> dict[str, str]:
        simulator, charged = Simulator(SimulatorConfig()), {}
        async with serve(simulator) as url:
            for variable, address in addresses(url).items():
                monkeypatch.setenv(variable, address)
            for name, provider in providers().items():
                if provider.remote and name != "simulated":
                    asked = model(f"{name}/m", key="key-of-somebody")
                    await asked.generate("x", max_tokens=5)
                    charged[name] = list(simulator.charges)[-1].provider
            await current_broker().close()
        return charged

    charged = asyncio.run(main())
    assert charged.pop("openai-compatible") == "openai"
    assert charged == {name: name for name in charged} and set(SERVICES) | set(SERVERS) <= set(charged)
