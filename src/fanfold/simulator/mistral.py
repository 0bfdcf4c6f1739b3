"""Mistral's protocol at its edge, where it differs from OpenAI's: parameters, errors, files and batch jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from fanfold.simulator.answers import Completion, ModelRequest
from fanfold.simulator.dialect import Dialect, Stamp, Work
from fanfold.simulator.files import File, FileStore
from fanfold.simulator.jobs import BatchStore, LineResult, SimulatedBatch
from fanfold.simulator.limits import Account, Refused
from fanfold.simulator.openai import OpenAIDialect
from fanfold.simulator.openai_requests import CHAT, invalid, number
from fanfold.simulator.state import SimulatorState
from fanfold.simulator.wire import ApiError, Json, Request, SimulatedResponse, read_json, reply

MAX_BYTES = 512 * 2**20
#: Parameters, beside OpenAI's of the same name.
_OWN = frozenset(
    {"guardrails", "min_tokens", "prompt_logprobs", "prompt_mode", "random_seed", "repetition_penalty", "safe_prompt"}
    | {"top_k", "top_prompt_logprobs"}
)
_SHARED = frozenset(
    {"frequency_penalty", "logprobs", "max_tokens", "messages", "metadata", "model", "n", "parallel_tool_calls"}
    | {"prediction", "presence_penalty", "prompt_cache_key", "reasoning_effort", "response_format", "service_tier"}
    | {"stop", "stream", "temperature", "tool_choice", "tools", "top_logprobs", "top_p"}
)
_CREATE = ("endpoint", "input_files", "requests", "model", "agent_id", "metadata", "timeout_hours")
_FILTERS = ("page", "page_size", "order_by", "model", "agent_id", "created_after", "created_by_me", "status")
_STATUSES = {
    "validating": "QUEUED",
    "in_progress": "RUNNING",
    "finalizing": "RUNNING",
    "cancelling": "CANCELLATION_REQUESTED",
    "completed": "SUCCESS",
    "failed": "FAILED",
    "expired": "TIMEOUT_EXCEEDED",
    "cancelled": "CANCELLED",
}


class MistralFiles(FileStore):
    """Files, with where they come from."""

    def view(self, file: File, *, fresh: bool = False) -> Json:
        return {
            "id": file.id,
            "object": "file",
            "bytes": len(file.content),
            "created_at": int(file.created),
            "filename": file.filename,
            "purpose": "batch",
            "sample_type": "batch_request" if file.purpose == "batch" else "batch_result",
            "num_lines": file.content.count(b"\n"),
            "source": "upload" if file.purpose == "batch" else "mistral",
            "deleted": False,
        }


@dataclass(slots=True)
class MistralJob:
    """What only Mistral knows about a batch."""

    model: str
    input_files: list[str]
    metadata: dict[str, str] | None
    output_file: str | None = None
    error_file: str | None = None
    outputs: list[Json] | None = None


class MistralStore(BatchStore):
    """Batch jobs: lines without a model, from files or in the request."""

    def __init__(self, state: SimulatorState, dialect: Dialect) -> None:
        super().__init__(state, dialect)
        self.files = MistralFiles(state, MAX_BYTES)
        self._jobs: dict[str, MistralJob] = {}

    def create(self, request: Request, owner: str) -> SimulatedResponse:
        body = read_json(request.body)
        for name in body:
            if name not in _CREATE:
                raise invalid(name, "Extra inputs are not permitted", "extra_forbidden")
        if body.get("endpoint") != CHAT:
            raise invalid("endpoint", f"Input should be '{CHAT}'", "enum")
        number(body, "timeout_hours", 1, 168, int)
        if not isinstance(body.get("model"), str):
            raise invalid("model", "Field required", "missing")
        if (body.get("input_files") is None) == (body.get("requests") is None):
            raise ApiError(400, "Either input_files or requests must be given, not both.")
        files = body.get("input_files") or []
        lines = body.get("requests") or [line for id in files for line in _lines(self.files.find(id, owner))]
        metadata = body.get("metadata")
        requests = _requests(lines, body["model"])
        id = self.state.serial()
        self._jobs[id] = MistralJob(body["model"], files, metadata)
        job = self.start(id, CHAT, owner, str((metadata or {}).get("tag", "")), requests)
        return reply(self._view(job))

    def get(self, id: str, owner: str) -> SimulatedResponse:
        return reply(self._view(self.find(id, owner)))

    def cancel(self, id: str, owner: str) -> SimulatedResponse:
        job = self.find(id, owner)
        job.cancel()
        return reply(self._view(job))

    def list_jobs(self, request: Request, owner: str) -> SimulatedResponse:
        query = request.query
        page, size = (query.get(name, default) for name, default in (("page", "0"), ("page_size", "100")))
        if not page.isdigit() or not size.isdigit():
            raise invalid("page", "Input should be a valid integer", "int_parsing")
        metadata = {name: value for name, value in query.items() if name not in _FILTERS}
        jobs = [
            job
            for job in self.newest(owner)
            if metadata.items() <= (self._jobs[job.id].metadata or {}).items()
            and query.get("model", self._jobs[job.id].model) == self._jobs[job.id].model
            and self.state.wall(job.times["created"]) >= _moment(query.get("created_after"))
        ]
        if query.get("order_by") == "created":
            jobs.reverse()
        shown = jobs[int(page) * int(size) : (int(page) + 1) * int(size)]
        return reply({"object": "list", "data": [self._view(job) for job in shown], "total": len(jobs)})

    def _deliver(self, batch: SimulatedBatch) -> None:
        super()._deliver(batch)
        job = self._jobs[batch.id]
        results = self.results_of(batch)
        if not job.input_files:
            job.outputs = [self._line(*result) for result in results if result[1].kind in ("succeeded", "errored")]
            return
        for kind, name in (("succeeded", "output_file"), ("errored", "error_file")):
            lines = [self._line(id, result) for id, result in results if result.kind == kind]
            if lines:
                content = b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
                setattr(job, name, self.files.add(batch.owner, f"{batch.id}_{name}.jsonl", "batch_output", content).id)

    def _line(self, custom_id: str, result: LineResult) -> Json:
        serial = self.state.serial()
        status, body = 200, result.body
        if result.error is not None:
            failure = self.dialect.failure(result.error, serial)
            status, body = failure.status, failure.json()
        response = {"status_code": status, "body": body}
        return {"id": f"batch-{serial}", "custom_id": custom_id, "response": response, "error": None}

    def _view(self, batch: SimulatedBatch) -> Json:
        job = self._jobs[batch.id]
        status = _STATUSES[batch.status]
        if "batch_status" in batch.faults and status == "RUNNING":
            status = str(batch.faults["batch_status"].value or "PAUSED")
        times = {name: batch.times.get(name) for name in ("created", "completed")}
        return {
            "id": batch.id,
            "object": "batch",
            "input_files": job.input_files,
            "metadata": job.metadata,
            "endpoint": batch.endpoint,
            "model": job.model,
            "agent_id": None,
            "output_file": job.output_file,
            "error_file": job.error_file,
            "errors": [],
            "outputs": job.outputs,
            "status": status,
            **{f"{name}_at": None if at is None else int(self.state.wall(at)) for name, at in times.items()},
            "total_requests": len(batch.lines),
            "completed_requests": len(batch.results),
            "succeeded_requests": batch.count("succeeded"),
            "failed_requests": batch.count("errored"),
        }


class MistralDialect(OpenAIDialect):
    """Chat completions, files and batch jobs."""

    name = "mistral"
    mount = "/mistral"
    endpoints = (CHAT,)
    fallback = False
    refuses = False

    def __init__(self, state: SimulatorState) -> None:
        super().__init__(state)
        self._mistral = MistralStore(state, self)

    def events(self, endpoint: str, body: Json, value: Json) -> list[Json] | None:
        # Usage comes with every stream, without being asked for.
        return super().events(endpoint, {**body, "stream_options": {"include_usage": True}}, value)

    def speaks(self, request: Request) -> bool:
        return False

    def route(self, request: Request) -> tuple[str, Work] | None:
        store, files = self._mistral, self._mistral.files
        match request.method, request.path.strip("/").split("/")[1:]:
            case "GET", ["models"]:
                return super().route(request)
            case "POST", ["files"]:
                return "upload", files.upload
            case "GET", ["files", id]:
                return "other", lambda request, owner: files.get(id, owner)
            case "DELETE", ["files", id]:
                return "delete", lambda request, owner: files.delete(id, owner)
            case "GET", ["files", id, "content"]:
                return "results", lambda request, owner: files.content(id, owner)
            case "POST", ["batch", "jobs"]:
                return "create", store.create
            case "GET", ["batch", "jobs"]:
                return "list", store.list_jobs
            case "GET", ["batch", "jobs", id]:
                return "poll", lambda request, owner: store.get(id, owner)
            case "POST", ["batch", "jobs", id, "cancel"]:
                return "cancel", lambda request, owner: store.cancel(id, owner)
        return None

    def read(self, endpoint: str, body: Json) -> ModelRequest:
        for name in body:
            if name not in _OWN | _SHARED:
                raise invalid(name, "Extra inputs are not permitted", "extra_forbidden")
        number(body, "temperature", 0, 1.5)
        number(body, "random_seed", 0, 2**63 - 1, int)
        shared = {name: value for name, value in body.items() if name in _SHARED}
        request = super().read(endpoint, shared)
        last = request.messages[-1]
        if last["role"] not in ("user", "tool") and not last.get("prefix"):
            text = f"Expected last role User or Tool (or Assistant with prefix True) for serving but got {last['role']}"
            raise ApiError(400, text, type="invalid_request_message_order", code="3230")
        return request

    def render(
        self, endpoint: str, body: Json, prompt: ModelRequest, written: Sequence[Completion], stamp: Stamp
    ) -> Json:
        value = super().render(endpoint, body, prompt, written, stamp)
        for choice, answer in zip(value["choices"], written, strict=True):
            calls = choice["message"].get("tool_calls")
            choice["message"] = {"role": "assistant", "content": answer.text, "tool_calls": calls}
        return {name: value[name] for name in value if name not in ("service_tier", "system_fingerprint")}

    def failure(self, error: ApiError, serial: str) -> SimulatedResponse:
        headers = {"mistral-correlation-id": serial, **error.headers}
        if error.status == 401:
            return reply({"detail": "Unauthorized"}, 401, headers)
        status = 422 if error.status == 400 and error.param else error.status
        body: Json = {"object": "error", "message": error.message, "type": error.type, "param": None}
        if status == 422:
            place = ["body", *str(error.param).split(".")]
            body["message"] = {"detail": [{"type": error.code, "loc": place, "msg": error.message, "input": None}]}
        return reply({**body, "code": error.code, "raw_status_code": status}, status, headers)

    def headers(self, serial: str) -> dict[str, str]:
        return {"mistral-correlation-id": serial}

    def limit_headers(self, account: Account, wall: float) -> dict[str, str]:
        headers = {}
        for name, short in (("requests", "req"), ("tokens", "tokens")):
            if (bucket := account.buckets.get(name)) is not None:
                headers[f"x-ratelimit-limit-{short}-minute"] = f"{bucket.limit:.0f}"
                headers[f"x-ratelimit-remaining-{short}-minute"] = str(bucket.remaining)
        return headers

    def too_fast(self, model: str, refused: Refused) -> ApiError:
        return ApiError(429, "Rate limit exceeded", type="rate_limited", code="1300")

    def no_credit(self, *, batch: bool = False) -> ApiError:
        return ApiError(402, "Payment required: add a payment method or credits.", type="payment_required", code="1400")

    def no_such_model(self, model: str) -> ApiError:
        return ApiError(400, f"Invalid model: {model}", type="invalid_model", code="1500")


def _lines(file: File) -> list[Any]:
    try:
        return [msgspec.json.decode(line) for line in file.content.splitlines() if line.strip()]
    except msgspec.DecodeError:
        raise ApiError(400, f"Invalid file format in {file.id}: a line is not JSON.", type="invalid_file") from None


def _requests(lines: list[Any], model: str) -> list[tuple[str, Json]]:
    requests: list[tuple[str, Json]] = []
    for index, line in enumerate(lines):
        if not isinstance(line, dict) or not isinstance(line.get("body"), dict):
            raise ApiError(400, f"Invalid file format: line {index} has no body.", type="invalid_file")
        requests.append((str(line.get("custom_id", index)), {"model": model, **line["body"]}))
    if not requests:
        raise ApiError(400, "Invalid file format: there are no requests.", type="invalid_file")
    return requests


def _moment(text: str | None) -> float:
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() if text else 0.0
    except ValueError:
        raise invalid("created_after", "Input should be a valid datetime", "datetime_parsing") from None
