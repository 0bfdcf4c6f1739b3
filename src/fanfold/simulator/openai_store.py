"""OpenAI's batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec

from fanfold.encoding import digest, encode
from fanfold.simulator.dialect import Dialect
from fanfold.simulator.files import File, FileStore, paged
from fanfold.simulator.jobs import LineResult, SimulatedBatch, disturb, make_lines
from fanfold.simulator.openai_requests import CHAT, COMPLETIONS, EMBEDDINGS, RESPONSES, check_metadata
from fanfold.simulator.state import SimulatorState
from fanfold.simulator.wire import ApiError, Json, Request, SimulatedResponse, read_json, reply

MAX_REQUESTS = 50_000
MAX_BATCH_BYTES = 200 * 2**20

_CREATE = ("completion_window", "endpoint", "input_file_id", "metadata", "output_expires_after")
_TIMES = ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")
_EXPIRED = {
    "code": "batch_expired",
    "message": "This request could not be executed before the completion window expired.",
}
_CANCELLED = {"code": "batch_cancelled", "message": "This request was not executed because the batch was cancelled."}


@dataclass(slots=True)
class StoredBatch:
    """A job with what only OpenAI knows about it."""

    job: SimulatedBatch
    input_file_id: str
    metadata: dict[str, str] | None
    model: str | None = None
    errors: list[Json] | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None


class OpenAIStore:
    """All batches of all keys, and their files; each key sees its own."""

    endpoints: ClassVar[Sequence[str]] = (CHAT, RESPONSES, COMPLETIONS, EMBEDDINGS)
    max_bytes: ClassVar[int] = MAX_BATCH_BYTES

    def __init__(self, state: SimulatorState, dialect: Dialect) -> None:
        self.files = FileStore(state, self.max_bytes)
        self._state = state
        self._dialect = dialect
        self._batches: dict[str, StoredBatch] = {}

    def create(self, request: Request, owner: str) -> SimulatedResponse:
        body = read_json(request.body)
        for name in body:
            if name not in _CREATE:
                raise ApiError(400, f"Unknown parameter: '{name}'.", param=name, code="unknown_parameter")
        for name in ("input_file_id", "endpoint", "completion_window"):
            if not isinstance(body.get(name), str):
                text = f"Missing required parameter: '{name}'."
                raise ApiError(400, text, param=name, code="missing_required_parameter")
        _choice(body, "completion_window", ("24h",))
        _choice(body, "endpoint", self.endpoints)
        check_metadata(body.get("metadata"))
        try:
            file = self.files.find(body["input_file_id"], owner)
        except ApiError as error:
            raise ApiError(400, error.message, param="input_file_id") from None
        if file.purpose != "batch":
            raise ApiError(400, f"Invalid file purpose: {file.purpose!r}; expected 'batch'.", param="input_file_id")
        metadata = body.get("metadata")
        id = f"batch_{self._state.serial()}"
        job = SimulatedBatch(self._state, self._dialect, body["endpoint"], owner, id, _tag(metadata))
        batch = self._batches[id] = StoredBatch(job, file.id, metadata)
        job.register(file.content.rstrip(b"\n").count(b"\n") + 1, digest(file.content).hex())
        self._state.start(job.run(lambda: self._validate(batch, file), lambda _: self._deliver(batch)))
        return reply(self._view(batch))

    def get(self, id: str, owner: str) -> SimulatedResponse:
        return reply(self._view(self._batch(id, owner)))

    def list_batches(self, query: Mapping[str, str], owner: str) -> SimulatedResponse:
        batches = [batch for batch in self._batches.values() if batch.job.owner == owner]
        return paged([self._view(batch) for batch in reversed(batches)], query, default=20, most=100)

    def cancel(self, id: str, owner: str) -> SimulatedResponse:
        batch = self._batch(id, owner)
        if batch.job.ended:
            raise ApiError(409, f"Cannot cancel a batch with status '{batch.job.status}'.")
        batch.job.cancel()
        return reply(self._view(batch))

    def _validate(self, batch: StoredBatch, file: File) -> bool:
        """All or nothing: one bad line fails the batch before anything of it is processed."""
        errors, requests = _read_lines(batch.job.endpoint, file.content)
        models = [model for _, body in requests if isinstance(model := body.get("model"), str)]
        batch.model = models[0] if models else None
        if not errors and len(set(models)) > 1:
            other = next(number for number, model in enumerate(models, 1) if model != models[0])
            errors.append(_problem("mismatched_model", "All requests of a batch must use one model.", other, "model"))
        if "batch_failed" in batch.job.faults:
            errors.append(_problem("invalid_request", "The batch failed as the simulator was told to.", None))
        if not errors and batch.model is not None:
            known = self._state.config.models
            if known and batch.model not in known:
                text = f"The provided model '{batch.model}' is not supported by the Batch API."
                errors.append(_problem("model_not_found", text, 1, "body.model"))
        if not errors:
            try:
                batch.job.enqueue(batch.model or "", sum(self._tokens(batch, body) for _, body in requests))
            except ApiError as error:
                errors.append(_problem(error.code or "", error.message, None))
        if errors:
            batch.errors = errors
            return False
        batch.job.lines = make_lines(requests)
        return True

    def _tokens(self, batch: StoredBatch, body: Json) -> int:
        try:
            return self._dialect.read(batch.job.endpoint, body).input_tokens
        except (ApiError, KeyError):
            return 0  # it will be refused when its turn comes

    def _deliver(self, batch: StoredBatch) -> None:
        job = batch.job
        rng = self._state.stream("results", job.tag, str(len(job.results)))
        good = [(line.custom_id, line) for line in job.results if line.kind == "succeeded"]
        bad = [(line.custom_id, line) for line in job.results if line.kind != "succeeded"]
        if good:
            batch.output_file_id = self._write(batch, "output", disturb(good, job.faults, rng))
        if bad:
            batch.error_file_id = self._write(batch, "error", disturb(bad, job.faults, rng))

    def _write(self, batch: StoredBatch, kind: str, results: list[tuple[str, Any]]) -> str:
        lines = [msgspec.json.encode(self._line(custom_id, result)) for custom_id, result in results]
        content = b"".join(line + b"\n" for line in lines)
        return self.files.add(batch.job.owner, f"{batch.job.id}_{kind}.jsonl", "batch_output", content).id

    def _line(self, custom_id: str, result: LineResult) -> Json:
        serial = self._state.serial()
        line: Json = {"id": f"batch_req_{serial}", "custom_id": custom_id, "response": None, "error": None}
        if result.kind == "expired":
            line["error"] = _EXPIRED
        elif result.kind == "canceled":
            line["error"] = _CANCELLED
        elif result.error is not None:
            body = self._dialect.failure(result.error, serial).json()
            line["response"] = {"status_code": result.error.status, "request_id": f"req_{serial}", "body": body}
        else:
            line["response"] = {"status_code": 200, "request_id": f"req_{serial}", "body": result.body}
        return line

    def _view(self, batch: StoredBatch) -> Json:
        job = batch.job
        status: str = job.status
        if "batch_status" in job.faults and status in ("in_progress", "finalizing"):
            status = str(job.faults["batch_status"].value or "paused")
        view: Json = {
            "id": job.id,
            "object": "batch",
            "endpoint": job.endpoint,
            "model": batch.model,
            "errors": None if batch.errors is None else {"object": "list", "data": batch.errors},
            "input_file_id": batch.input_file_id,
            "completion_window": "24h",
            "status": status,
            "output_file_id": batch.output_file_id,
            "error_file_id": batch.error_file_id,
            "created_at": int(self._state.wall(job.times["created"])),
            "expires_at": int(self._state.wall(job.expires)),
            "request_counts": {
                "total": len(job.lines),
                "completed": job.count("succeeded"),
                "failed": job.count("errored"),
            },
            "metadata": batch.metadata,
        }
        for name in _TIMES:
            view[f"{name}_at"] = int(self._state.wall(job.times[name])) if name in job.times else None
        return view

    def _batch(self, id: str, owner: str) -> StoredBatch:
        batch = self._batches.get(id)
        if batch is None or batch.job.owner != owner:
            raise ApiError(404, f"No batch found with id '{id}'.")
        return batch


def _read_lines(endpoint: str, content: bytes) -> tuple[list[Json], list[tuple[str, Json]]]:
    """What is wrong with a batch file, and its requests."""
    errors: list[Json] = []
    requests: list[tuple[str, Json]] = []
    seen: set[str] = set()
    lines = content.split(b"\n")
    if lines[-1].strip() == b"":
        lines.pop()
    if not lines:
        return [_problem("empty_file", "The input file is empty. Please ensure that the batch is not empty.", None)], []
    if len(lines) > MAX_REQUESTS:
        text = f"The batch file contains too many tasks: {len(lines):,}. The maximum is {MAX_REQUESTS:,}."
        return [_problem("too_many_tasks", text, None)], []
    for number, raw in enumerate(lines, 1):
        try:
            line = msgspec.json.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            errors.append(_problem("invalid_json_line", "This line is not parseable as valid JSON.", number))
            continue
        problem = _check_line(endpoint, line, seen)
        if problem is not None:
            errors.append(_problem(*problem[:2], number, problem[2]))
            continue
        seen.add(line["custom_id"])
        requests.append((line["custom_id"], line["body"]))
    return errors[:100], requests


def _check_line(endpoint: str, line: Any, seen: set[str]) -> tuple[str, str, str] | None:
    if not isinstance(line, dict):
        return "invalid_json_line", "This line is not a JSON object.", ""
    for name, kind in (("custom_id", str), ("method", str), ("url", str), ("body", dict)):
        if not isinstance(line.get(name), kind):
            return "missing_required_parameter", f"Missing required parameter: '{name}'.", name
    if not 1 <= len(line["custom_id"]) <= 64:
        return "invalid_custom_id", "The custom_id must have between 1 and 64 characters.", "custom_id"
    if line["custom_id"] in seen:
        text = f"The custom_id '{line['custom_id']}' for this request is a duplicate of another request."
        return "duplicate_custom_id", text, "custom_id"
    if line["method"] != "POST":
        return "invalid_method", f"Invalid method: '{line['method']}'. Only POST is supported.", "method"
    if line["url"] != endpoint:
        return "invalid_url", f"The URL '{line['url']}' does not match the batch endpoint '{endpoint}'.", "url"
    if not isinstance(line["body"].get("model"), str):
        return "missing_required_parameter", "Missing required parameter: 'body.model'.", "body.model"
    return None


def _problem(code: str, message: str, line: int | None, param: str | None = None) -> Json:
    return {"code": code, "message": message, "param": param or None, "line": line}


def _choice(body: Json, name: str, allowed: Sequence[str]) -> None:
    if body[name] not in allowed:
        known = ", ".join(repr(option) for option in allowed)
        text = f"Invalid value: '{body[name]}'. Supported values are: {known}."
        raise ApiError(400, text, param=name, code="invalid_value")


def _tag(metadata: Mapping[str, str] | None) -> str:
    """The name by which a client would find its batch again."""
    if not metadata:
        return ""
    return metadata.get("tag") or metadata.get("intent") or encode(metadata)
