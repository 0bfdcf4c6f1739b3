"""Azure OpenAI: OpenAI's models in a resource of the user's own, where a deployment's name stands for the model's."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from fanfold.calls import Call
from fanfold.context import here
from fanfold.errors import ConfigError
from fanfold.models.batch.protocol import RemoteBatch
from fanfold.models.http_exchange import Response
from fanfold.models.providers.contract import Endpoint, Messages, setting
from fanfold.models.providers.openai import OpenAI, OpenAIBatches

if TYPE_CHECKING:
    from fanfold.simulator.dialect import Dialect

_HOSTS = (".openai.azure.com", ".cognitiveservices.azure.com", ".services.ai.azure.com", ".openai.azure.us")
#: The last version with a date; its successor is /openai/v1.
DATED = "2024-10-21"


class Azure(OpenAI):
    """Speaks the v1 protocol, which is OpenAI's, and the dated one where OPENAI_API_VERSION or the address asks for it.

    A resource is named by its address alone, or with the path of a protocol: /openai/v1, or /openai for the dated one.
    """

    name = "azure"
    default_url = "https://NAME.openai.azure.com/openai/v1"
    key_variable = "AZURE_OPENAI_API_KEY"
    url_variable = "AZURE_OPENAI_ENDPOINT"
    family = ""
    examples = ("gpt-6-luna",)

    def dialect(self) -> type[Dialect]:
        from fanfold.simulator.azure import AzureDialect

        return AzureDialect

    def own_key(self) -> str | None:
        return super().own_key() or setting("AZURE_OPENAI_AD_TOKEN")[0]

    def address(self, url: str) -> str:
        url = url.rstrip("/")
        if url.endswith(("/openai", "/openai/v1")):
            return url
        return f"{url}/openai" if _version() else f"{url}/openai/v1"

    def owns(self, url: str) -> bool:
        return (urlsplit(url).hostname or "").endswith(_HOSTS) and url.startswith("https:")

    def endpoint(self, model: str, base_url: str | None, key: str | None, options: Mapping[str, Any]) -> Endpoint:
        endpoint = super().endpoint(model, base_url, key, options)
        if endpoint.url == self.default_url and here().rehearsal is None:
            example = endpoint.url.removesuffix("/openai/v1")
            raise ConfigError(f"azure/{model} needs the address of your resource: set {self.url_variable}={example}")
        if endpoint.url.endswith("/v1"):
            return endpoint
        return dataclasses.replace(endpoint, provider=AzureDeployments(_version() or DATED))

    def headers(self, key: str | None) -> dict[str, str]:
        # A token of Entra ID is a JWT, which always begins so.
        return super().headers(key) if key and key.startswith("eyJ") else {"api-key": key or ""}


class DeploymentBatches(OpenAIBatches):
    """Batches of the dated protocol: its version goes with every request."""

    async def ask(self, method: str, path: str, *rest: Any, **options: Any) -> Response:
        return await super().ask(method, self._dated(path), *rest, **options)

    def line_path(self, call: Call) -> str:
        return "/" + call.endpoint.removeprefix(self.model.url).partition("?")[0].split("/", 3)[3]

    def result_urls(self, remote: RemoteBatch) -> list[str]:
        return [self._dated(url) for url in super().result_urls(remote)]

    def _dated(self, path: str) -> str:
        provider = self.model.provider
        assert isinstance(provider, AzureDeployments)
        return f"{path}{'&' if '?' in path else '?'}api-version={provider.version}"


class AzureDeployments(Azure):
    """The dated protocol: the deployment is in the path, and the version in the query."""

    batches = DeploymentBatches

    def __init__(self, version: str = DATED) -> None:
        self.version = version

    def request(self, model: str, messages: Messages, parameters: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        path, body = super().request(model, messages, parameters)
        return f"/deployments/{quote(model, safe='')}{path}?api-version={self.version}", body


def _version() -> str | None:
    return setting("OPENAI_API_VERSION")[0] or setting("AZURE_OPENAI_API_VERSION")[0]
