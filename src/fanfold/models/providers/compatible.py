"""Any server that speaks OpenAI's protocol: vLLM, llama.cpp, Ollama, LM Studio, gateways."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from fanfold.capabilities import UNKNOWN, Capabilities
from fanfold.context import here
from fanfold.errors import ConfigError
from fanfold.models.pricing import Price
from fanfold.models.providers.contract import Endpoint, setting
from fanfold.models.providers.openai import OpenAI

if TYPE_CHECKING:
    from fanfold.simulator.dialect import Dialect


class ChatServer(OpenAI):
    """OpenAI's protocol as others speak it: with the older name of the output limit, and more of sampling."""

    parameters: ClassVar[Mapping[str, str]] = {
        **OpenAI.parameters,
        "max_tokens": "max_tokens",
        "top_k": "top_k",
        "min_p": "min_p",
    }
    family = ""


class Compatible(ChatServer):
    """Any server that speaks the protocol; nothing else is known of it."""

    name = "openai-compatible"
    anywhere = True

    def endpoint(self, model: str, base_url: str | None, key: str | None, options: Mapping[str, Any]) -> Endpoint:
        if base_url is None and setting(self.url_variable)[0] is None and here().rehearsal is None:
            raise ConfigError(
                f"{self.name}/{model} needs the address of its server: give --base-url URL, or base_url in Python and "
                "in models.toml"
            )
        return super().endpoint(model, base_url, key, options)

    def dialect(self) -> type[Dialect]:
        from fanfold.simulator.openai import CompatibleDialect

        return CompatibleDialect

    def capabilities(self, model: str) -> Capabilities:
        return self.models.get(model, UNKNOWN)  # a server may call anything gpt-5

    def price(self, model: str) -> Price | None:
        return None  # whoever runs the server sets its price
