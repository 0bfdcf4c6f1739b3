"""Those who speak OpenAI's protocol in their own way: where they listen, and how they put what went wrong."""

from __future__ import annotations

from typing import ClassVar

from fanfold.simulator.openai import CompatibleDialect
from fanfold.simulator.wire import ApiError, Request, SimulatedResponse, reply


class TogetherDialect(CompatibleDialect):
    """Together: OpenAI's errors; credit ends with status 402."""

    name = "together"
    per_model = True
    mount = "/together"

    def no_credit(self, *, batch: bool = False) -> ApiError:
        return ApiError(402, "Credit limit exceeded, please add a payment method.", type="credit_limit")


class XAIDialect(CompatibleDialect):
    """xAI: a sentence for the code and another for the error, and status 400 for a wrong key."""

    name = "xai"
    per_model = True
    mount = "/xai"
    _codes: ClassVar[dict[int, str]] = {
        400: "Client specified an invalid argument",
        403: "The caller does not have permission to execute the specified operation",
        404: "Some requested entity was not found",
        429: "Some resource has been exhausted",
    }

    def failure(self, error: ApiError, serial: str) -> SimulatedResponse:
        code = self._codes.get(error.status, "The service is currently unavailable")
        return reply({"code": code, "error": error.message}, error.status, error.headers)

    def wrong_key(self) -> ApiError:
        return ApiError(400, "Incorrect API key provided. You can obtain an API key from https://console.x.ai.")

    def no_credit(self, *, batch: bool = False) -> ApiError:
        return ApiError(403, "Your team has used all available credits or reached its monthly spending limit.")


class DeepSeekDialect(CompatibleDialect):
    """DeepSeek: no version in its paths, and one code for everything that the client did wrong."""

    name = "deepseek"
    per_model = True
    mount = "/deepseek"
    root = ""

    def failure(self, error: ApiError, serial: str) -> SimulatedResponse:
        detail = {"message": error.message, "type": error.type, "param": None, "code": "invalid_request_error"}
        return reply({"error": detail}, error.status, error.headers)

    def wrong_key(self) -> ApiError:
        return ApiError(401, "Authentication Fails (no such user)", type="authentication_error")

    def no_such_model(self, model: str) -> ApiError:
        return ApiError(400, "Model Not Exist")

    def no_credit(self, *, batch: bool = False) -> ApiError:
        return ApiError(402, "Insufficient Balance", type="unknown_error")


class OpenRouterDialect(CompatibleDialect):
    """OpenRouter: the status again as the code of an error."""

    name = "openrouter"
    mount = "/openrouter"
    root = "/api/v1"

    def failure(self, error: ApiError, serial: str) -> SimulatedResponse:
        body = {"error": {"message": error.message, "code": error.status}, "user_id": "user_simulated"}
        return reply(body, error.status, error.headers)

    def wrong_key(self) -> ApiError:
        return ApiError(401, "User not found.")

    def no_such_model(self, model: str) -> ApiError:
        return ApiError(400, f"{model} is not a valid model ID")

    def no_credit(self, *, batch: bool = False) -> ApiError:
        return ApiError(402, "Insufficient credits. Add more using https://openrouter.ai/credits")


class OllamaDialect(CompatibleDialect):
    """Ollama: a server that asks for no key."""

    name = "ollama"
    mount = "/ollama"

    def key_of(self, request: Request) -> str:
        return request.headers.get("authorization", "").partition(" ")[2].strip() or "nobody"

    def no_such_model(self, model: str) -> ApiError:
        return ApiError(404, f'model "{model}" not found, try pulling it first', type="not_found_error")

    def no_credit(self, *, batch: bool = False) -> ApiError:
        return ApiError(402, "Payment Required")  # it has none itself; a gateway before it may


class VLLMDialect(OllamaDialect):
    """vLLM: the error is the body."""

    name = "vllm"
    mount = "/vllm"
    _types: ClassVar[dict[int, str]] = {400: "BadRequestError", 401: "Unauthorized", 404: "NotFoundError"}

    def failure(self, error: ApiError, serial: str) -> SimulatedResponse:
        kind = self._types.get(error.status, "InternalServerError")
        body = {"object": "error", "message": error.message, "type": kind, "param": error.param, "code": error.status}
        return reply(body, error.status, error.headers)

    def no_such_model(self, model: str) -> ApiError:
        return ApiError(404, f"The model `{model}` does not exist.")


class LlamaCppDialect(OllamaDialect):
    """llama.cpp's server: the status as the code, and a type."""

    name = "llamacpp"
    mount = "/llamacpp"
    _types: ClassVar[dict[int, str]] = {401: "authentication_error", 404: "not_found_error", 503: "unavailable_error"}

    def failure(self, error: ApiError, serial: str) -> SimulatedResponse:
        kind = self._types.get(error.status, "server_error" if error.status >= 500 else error.type)
        return reply(
            {"error": {"code": error.status, "message": error.message, "type": kind}}, error.status, error.headers
        )


DIALECTS = {
    dialect.name: dialect
    for dialect in (
        TogetherDialect,
        XAIDialect,
        DeepSeekDialect,
        OpenRouterDialect,
        OllamaDialect,
        VLLMDialect,
        LlamaCppDialect,
    )
}
