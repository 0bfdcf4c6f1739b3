"""Groq's protocol at its edge, where it differs from OpenAI's."""

from __future__ import annotations

from collections.abc import Mapping

from fanfold.simulator.answers import ModelRequest
from fanfold.simulator.limits import Account
from fanfold.simulator.openai import OpenAIDialect, duration
from fanfold.simulator.openai_requests import CHAT
from fanfold.simulator.openai_store import OpenAIStore
from fanfold.simulator.wire import ApiError, Json, Request, SimulatedResponse, reply

_UNSUPPORTED = ("audio", "logit_bias", "logprobs", "modalities", "prediction", "store", "top_logprobs", "verbosity")


class GroqStore(OpenAIStore):
    """Batches of chat completions; their list has no pages."""

    endpoints = (CHAT,)
    max_bytes = 100 * 2**20

    def list_batches(self, query: Mapping[str, str], owner: str) -> SimulatedResponse:
        batches = [self._view(batch) for batch in self._batches.values() if batch.job.owner == owner]
        return reply({"object": "list", "data": batches[::-1]})


class GroqDialect(OpenAIDialect):
    """Chat completions, files and batches."""

    name = "groq"
    mount = "/openai"
    endpoints = (CHAT,)
    fallback = False
    extra_parameters = frozenset(
        {"citation_options", "compound_custom", "disable_tool_validation", "documents", "exclude_domains"}
        | {"include_domains", "include_reasoning", "reasoning_format", "search_settings"}
    )
    store = GroqStore

    def speaks(self, request: Request) -> bool:
        return False

    def read(self, endpoint: str, body: Json) -> ModelRequest:
        for name in _UNSUPPORTED:
            if body.get(name):
                raise ApiError(400, f"property '{name}' is not supported by this model", param=name)
        if body.get("n") not in (None, 1):
            raise ApiError(400, "'n' : number must be 1", param="n")
        return super().read(endpoint, body)

    def failure(self, error: ApiError, serial: str) -> SimulatedResponse:
        detail = {"message": error.message, "type": error.type, "code": error.code, "param": error.param}
        detail = {name: value for name, value in detail.items() if value is not None}
        return reply({"error": detail}, error.status, {**self.headers(serial), **error.headers})

    def headers(self, serial: str) -> dict[str, str]:
        return {"x-request-id": f"req_{serial}", "x-groq-region": "simulated"}

    def limit_headers(self, account: Account, wall: float) -> dict[str, str]:
        headers = super().limit_headers(account, wall)
        if (requests := account.buckets.get("requests")) is not None:
            # Requests are counted for a day, tokens for a minute.
            headers["x-ratelimit-limit-requests"] = f"{requests.limit * 1440:.0f}"
            headers["x-ratelimit-remaining-requests"] = f"{requests.limit * 1439 + requests.remaining:.0f}"
            headers["x-ratelimit-reset-requests"] = duration(requests.reset)
        return headers
