"""Azure OpenAI at its edge: two sets of paths, deployments, and errors of its own around OpenAI's protocol."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from fanfold.simulator.answers import Completion, ModelRequest
from fanfold.simulator.dialect import Stamp
from fanfold.simulator.limits import Refused
from fanfold.simulator.openai import OpenAIDialect
from fanfold.simulator.openai_store import OpenAIStore
from fanfold.simulator.wire import ApiError, Json, Request, SimulatedResponse, read_json, reply

_DATED = re.compile(r"20\d\d-\d\d-\d\d(?:-preview)?")
_DEPLOYMENT = re.compile(r"/openai/deployments/([^/]+)(/.+)")


class AzureStore(OpenAIStore):
    """Batches may name an endpoint without the version of OpenAI's paths."""

    endpoints: ClassVar[Sequence[str]] = (*OpenAIStore.endpoints, "/chat/completions", "/completions", "/embeddings")


class AzureDialect(OpenAIDialect):
    """Below /openai/v1 as OpenAI; below /openai with an api-version, and the model in the path."""

    name = "azure"
    mount = "/azure"
    fallback = False
    store = AzureStore

    def speaks(self, request: Request) -> bool:
        return False

    def plain(self, request: Request) -> Request:
        if request.path.startswith("/openai/v1/"):
            return replace(request, path=request.path.removeprefix("/openai"))
        if not request.path.startswith("/openai/") or not _DATED.fullmatch(request.query.get("api-version", "")):
            return request  # there is no such resource
        deployed = _DEPLOYMENT.fullmatch(request.path)
        if deployed is None:
            return replace(request, path="/v1" + request.path.removeprefix("/openai"))
        return replace(request, path=f"/v1{deployed[2]}", query={**request.query, "deployment": deployed[1]})

    def body_of(self, request: Request) -> Json:
        body = read_json(request.body)
        return body if "deployment" not in request.query else {**body, "model": request.query["deployment"]}

    def key_of(self, request: Request) -> str:
        key = request.headers.get("api-key") or request.headers.get("authorization", "").partition(" ")[2]
        if not key.strip():
            raise self.wrong_key()
        return key.strip()

    def read(self, endpoint: str, body: Json) -> ModelRequest:
        return super().read(_full(endpoint), body)

    def render(
        self, endpoint: str, body: Json, prompt: ModelRequest, written: Sequence[Completion], stamp: Stamp
    ) -> Json:
        return super().render(_full(endpoint), body, prompt, written, stamp)

    def failure(self, error: ApiError, serial: str) -> SimulatedResponse:
        detail: Json = {"code": error.code or str(error.status), "message": error.message}
        detail |= {"param": error.param, "type": error.type} if error.param else {}
        return reply({"error": detail}, error.status, {"apim-request-id": serial, **error.headers})

    def wrong_key(self) -> ApiError:
        text = "Access denied due to invalid subscription key or wrong API endpoint."
        return ApiError(401, text, code="401")

    def no_such_model(self, model: str) -> ApiError:
        text = "The API deployment for this resource does not exist. If it was created just now, wait and try again."
        return ApiError(404, text, code="DeploymentNotFound")

    def too_fast(self, model: str, refused: Refused) -> ApiError:
        error = super().too_fast(model, refused)
        error.code = "RateLimitReached"
        return error


def _full(endpoint: str) -> str:
    return endpoint if endpoint.startswith("/v1/") else f"/v1{endpoint}"
