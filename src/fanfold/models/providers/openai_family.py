"""Providers and servers that speak OpenAI's chat protocol under an address, a key and errors of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit

from fanfold.capabilities import UNKNOWN, Capabilities, capabilities_of
from fanfold.models.pricing import FREE, Price, price_of
from fanfold.models.providers.compatible import ChatServer

if TYPE_CHECKING:
    from fanfold.simulator.dialect import Dialect


class _Relative(ChatServer):
    """What they share: no batches, their own prices, and a dialect of the same name in the simulator."""

    batches = None
    #: Errors that only a part of their message tells apart, and their kinds.
    phrases: ClassVar[Mapping[str, str]] = {}

    def error_kind(self, status: int, error: Mapping[str, Any]) -> str:
        message = str(error.get("message"))
        return next(
            (kind for phrase, kind in self.phrases.items() if phrase in message), super().error_kind(status, error)
        )

    def dialect(self) -> type[Dialect]:
        from fanfold.simulator.openai_family import DIALECTS

        return DIALECTS[self.name]


class TogetherAI(_Relative):
    """Together AI: open models, named MAKER/MODEL."""

    name = "together"
    default_url = "https://api.together.xyz/v1"
    key_variable = "TOGETHER_API_KEY"
    url_variable = "TOGETHER_BASE_URL"
    examples = ("openai/gpt-oss-120b", "deepseek-ai/DeepSeek-V4.1-Flash-1017")


class XAI(_Relative):
    """xAI: the Grok models."""

    name = "xai"
    default_url = "https://api.x.ai/v1"
    key_variable = "XAI_API_KEY"
    url_variable = "XAI_BASE_URL"
    parameters: ClassVar[Mapping[str, str]] = {**ChatServer.parameters, "max_tokens": "max_completion_tokens"}
    family = r"grok-"
    examples = ("grok-4.20-non-reasoning", "grok-4.6")
    #: A wrong key has status 400, and an empty account 403 or 429.
    phrases: ClassVar[Mapping[str, str]] = {"API key": "auth", "credits": "billing"}

    def error(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"message": body.get("error"), "code": body.get("code")}


class DeepSeek(_Relative):
    """DeepSeek's own service."""

    name = "deepseek"
    default_url = "https://api.deepseek.com"
    key_variable = "DEEPSEEK_API_KEY"
    url_variable = "DEEPSEEK_BASE_URL"
    family = r"deepseek-"
    examples = ("deepseek-v4-flash", "deepseek-v4-pro")
    phrases: ClassVar[Mapping[str, str]] = {"Model Not Exist": "not-found"}


class OpenRouter(_Relative):
    """OpenRouter: the models of many makers, named MAKER/MODEL, at their makers' prices."""

    name = "openrouter"
    default_url = "https://openrouter.ai/api/v1"
    key_variable = "OPENROUTER_API_KEY"
    url_variable = "OPENROUTER_BASE_URL"
    examples = ("openai/gpt-6-luna",)
    #: Status 403 also says that an input was flagged.
    phrases: ClassVar[Mapping[str, str]] = {
        "not a valid model ID": "not-found",
        "limit exceeded": "billing",
        "flagged": "bad-request",
    }

    def price(self, model: str) -> Price | None:
        return FREE if model.endswith(":free") else super().price(model) or price_of(model.rpartition("/")[2])

    def capabilities(self, model: str) -> Capabilities:
        known = super().capabilities(model)
        return capabilities_of(model.rpartition("/")[2]) if known is UNKNOWN else known


class _OwnServer(_Relative):
    """A server on the user's own machine: no key, no cost.  Its variable names the server, with or without /v1."""

    key_variable = ""
    examples: ClassVar[Sequence[str]] = ()

    def price(self, model: str) -> Price | None:
        return FREE

    def capabilities(self, model: str) -> Capabilities:
        return UNKNOWN  # it depends on how the server was started

    def address(self, url: str) -> str:
        url = super().address(url)
        parts = urlsplit(url if "://" in url else f"http://{url}")
        host = parts.netloc.replace("0.0.0.0", "127.0.0.1")  # a server listens there, nobody calls there
        if parts.port is None and parts.scheme == "http":
            host = f"{host.rstrip(':')}:{urlsplit(self.default_url).port}"
        return f"{parts.scheme}://{host}{parts.path.removesuffix('/v1')}/v1"


class Ollama(_OwnServer):
    """Ollama's server."""

    name = "ollama"
    default_url = "http://127.0.0.1:11434/v1"
    url_variable = "OLLAMA_HOST"
    start = "`ollama serve`, then `ollama pull MODEL`"


class VLLM(_OwnServer):
    """vLLM's server."""

    name = "vllm"
    default_url = "http://127.0.0.1:8000/v1"
    key_variable = "VLLM_API_KEY"
    url_variable = "VLLM_BASE_URL"
    start = "`vllm serve MODEL`"


class LlamaCpp(_OwnServer):
    """llama.cpp's server."""

    name = "llamacpp"
    default_url = "http://127.0.0.1:8080/v1"
    key_variable = "LLAMA_API_KEY"
    url_variable = "LLAMACPP_BASE_URL"
    start = "`llama-server -m MODEL.gguf`"
