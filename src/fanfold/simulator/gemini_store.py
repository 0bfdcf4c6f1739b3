"""Gemini's files and batches."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from fanfold.simulator.anthropic_store import rfc3339
from fanfold.simulator.dialect import Dialect
from fanfold.simulator.files import File, FileStore
from fanfold.simulator.jobs import BatchStore, LineResult, SimulatedBatch
from fanfold.simulator.multipart import boundary_of
from fanfold.simulator.state import SimulatorState
from fanfold.simulator.wire import ApiError, Json, Request, SimulatedResponse, read_json, reply

MAX_INLINE_BYTES = 20 * 2**20
FILE_LIFETIME = 48 * 3600
_STATES = {"completed": "SUCCEEDED", "failed": "FAILED", "expired": "EXPIRED", "cancelled": "CANCELLED"}
_CODES = {400: 3, 401: 16, 402: 8, 403: 7, 404: 5, 429: 8, 503: 14}
_TYPE = "type.googleapis.com/google.ai.generativelanguage.v1main.GenerateContentBatch"


@dataclass(frozen=True, slots=True)
class GeminiBatch:
    """What only Gemini knows about a batch: its source is a file, or the metadata of each request in it."""

    model: str
    name: str
    source: str | list[Any]


@dataclass(frozen=True, slots=True)
class GeminiUpload:
    """An upload under way: whose it is, the name of the file, and what has arrived of it."""

    key: str = field(repr=False)
    name: str
    pieces: list[bytes]


class GeminiStore(BatchStore):
    """Operations that carry a name, made of requests or of a file of them, with results of the same kind and order."""

    def __init__(self, state: SimulatorState, dialect: Dialect) -> None:
        super().__init__(state, dialect)
        self._files = FileStore(state)
        self._uploads: dict[str, GeminiUpload] = {}
        self._about: dict[str, GeminiBatch] = {}
        self._responses: dict[str, str] = {}

    # -- files -------------------------------------------------------------------------------------------------------

    def upload(self, request: Request, owner: str) -> SimulatedResponse:
        """Resumable, as the official client does it, or in one request of two parts."""
        headers = request.headers
        command = headers.get("x-goog-upload-command", "")
        if command == "start":
            about = read_json(request.body or b"{}").get("file") or {}
            id = self.state.serial()
            name = str(about.get("displayName") or about.get("display_name") or "")
            self._uploads[id] = GeminiUpload(self.dialect.key_of(request), name, [])
            url = f"http://{headers.get('host', 'simulator.invalid')}/upload/v1beta/files?upload_id={id}"
            return reply({}, headers={"x-goog-upload-url": url, "x-goog-upload-status": "active"})
        if command:
            upload = self._uploads.get(request.query.get("upload_id", ""))
            if upload is None or headers.get("x-goog-upload-offset") != str(sum(map(len, upload.pieces))):
                raise ApiError(400, "There is no such upload at this offset.")
            upload.pieces.append(request.body)
            if "finalize" not in command:
                return reply({}, headers={"x-goog-upload-status": "active"})
            del self._uploads[request.query["upload_id"]]
            name, content = upload.name, b"".join(upload.pieces)
        else:
            name, content = _related(headers.get("content-type", ""), request.body)
        file = self._files.add(owner, name, "batch", content)
        return reply({"file": self.file_view(file)}, headers={"x-goog-upload-status": "final"})

    def uploader(self, request: Request) -> str:
        """The key of who began an upload: its address stands for the key afterwards."""
        upload = self._uploads.get(request.query.get("upload_id", ""))
        return "" if upload is None else upload.key

    def file(self, name: str, owner: str) -> File:
        try:
            return self._files.find(name.removeprefix("files/"), owner)
        except ApiError:
            text = f"You do not have permission to access the File {name} or it may not exist."
            raise ApiError(403, text) from None

    def file_view(self, file: File) -> Json:
        return {
            "name": f"files/{file.id}",
            "displayName": file.filename,
            "mimeType": "application/jsonl",
            "sizeBytes": str(len(file.content)),
            "createTime": rfc3339(file.created),
            "expirationTime": rfc3339(file.created + FILE_LIFETIME),
            "uri": f"https://generativelanguage.googleapis.com/v1beta/files/{file.id}",
            "state": "ACTIVE",
            "source": "UPLOADED" if file.purpose == "batch" else "GENERATED",
        }

    def download(self, id: str, owner: str) -> SimulatedResponse:
        return SimulatedResponse(200, {"content-type": "application/jsonl"}, self.file(id, owner).content)

    # -- batches -----------------------------------------------------------------------------------------------------

    def create(self, request: Request, model: str, owner: str) -> SimulatedResponse:
        self.state.check_model(self.dialect, {"model": model})
        batch = read_json(request.body).get("batch")
        if not isinstance(batch, dict) or not isinstance(batch.get("inputConfig"), dict):
            raise ApiError(400, "* BatchGenerateContentRequest.batch.input_config: input_config is not specified\n")
        source = batch["inputConfig"]
        items: Any
        if "fileName" in source:
            items = _lines(self.file(str(source["fileName"]), owner))
        else:
            if len(request.body) > MAX_INLINE_BYTES:
                raise ApiError(400, f"Request payload size exceeds the limit: {MAX_INLINE_BYTES} bytes.")
            items = (source.get("requests") or {}).get("requests")
        if not isinstance(items, list) or not items:
            raise ApiError(400, "* BatchGenerateContentRequest.batch: there must be at least one request\n")
        requests: list[tuple[str, Json]] = []
        for index, item in enumerate(items):
            if not isinstance(item, dict) or not isinstance(item.get("request"), dict):
                raise ApiError(400, f"* BatchGenerateContentRequest.batch: request {index} is not specified\n")
            requests.append((str(item.get("key", index)), {**item["request"], "model": f"models/{model}"}))
        id = self.state.serial()
        name = str(batch.get("displayName") or "")
        origin = source.get("fileName") or [item.get("metadata") for item in items]
        self._about[id] = GeminiBatch(model, name, origin)
        return reply(self._view(self.start(id, "/v1beta/models", owner, name, requests)))

    def get(self, id: str, owner: str) -> SimulatedResponse:
        return reply(self._view(self.find(id, owner)))

    def list_batches(self, request: Request, owner: str) -> SimulatedResponse:
        start, size = (request.query.get(name, "") for name in ("pageToken", "pageSize"))
        if not (start or "0").isdigit() or not (size or "1").isdigit():
            raise ApiError(400, "The page token or size is not valid.")
        jobs, first, most = self.newest(owner), int(start or 0), min(int(size or 50), 100)
        page: Json = {"operations": [self._view(job) for job in jobs[first : first + most]]}
        return reply({**page, "nextPageToken": str(first + most)} if len(jobs) > first + most else page)

    def cancel(self, id: str, owner: str) -> SimulatedResponse:
        job = self.find(id, owner)
        if job.ended:
            raise ApiError(400, f"Batch {id} has already ended.", code="FAILED_PRECONDITION")
        job.cancel()
        return reply({})

    def delete(self, id: str, owner: str) -> SimulatedResponse:
        self.find(id, owner)
        self.remove(id)
        return reply({})

    def _deliver(self, batch: SimulatedBatch) -> None:
        super()._deliver(batch)
        results = [result for result in self.results_of(batch) if result[1].kind in ("succeeded", "errored")]
        if isinstance(self._about[batch.id].source, str) and results:
            lines = [msgspec.json.encode({"key": key, **self._result(line)}) + b"\n" for key, line in results]
            file = self._files.add(batch.owner, f"{batch.id}.jsonl", "batch_output", b"".join(lines))
            self._responses[batch.id] = f"files/{file.id}"

    def _result(self, line: LineResult) -> Json:
        if line.error is None:
            return {"response": line.body}
        error = self.dialect.failure(line.error, self.state.serial()).json()["error"]
        return {"error": {**error, "code": _CODES.get(line.error.status, 13)}}

    def _view(self, batch: SimulatedBatch) -> Json:
        about = self._about[batch.id]
        errors = batch.count("errored")
        state = _STATES.get(batch.status, "RUNNING" if batch.results else "PENDING")
        if "batch_status" in batch.faults and not batch.ended:
            state = str(batch.faults["batch_status"].value or "PAUSED")
        stats = {
            "requestCount": len(batch.lines),
            "successfulRequestCount": batch.count("succeeded"),
            "failedRequestCount": errors,
            "pendingRequestCount": len(batch.lines) - len(batch.results),
        }
        value: Json = {
            "@type": _TYPE,
            "name": f"batches/{batch.id}",
            "model": f"models/{about.model}",
            "displayName": about.name,
            "createTime": rfc3339(self.state.wall(batch.times["created"])),
            "updateTime": rfc3339(self.state.wall()),
            "batchStats": {name: str(count) for name, count in stats.items() if count},
            "state": f"BATCH_STATE_{state}",
        }
        operation: Json = {"name": value["name"], "metadata": value}
        if batch.ended:
            value["endTime"] = rfc3339(self.state.wall(batch.times[batch.status]))
            operation["done"] = True
            # An expired batch leaves nothing behind.
            if batch.status != "expired" and (output := self._output(batch, about)):
                value["output"] = output
                operation["response"] = {"@type": f"{_TYPE}Output", **output}
        return operation

    def _output(self, batch: SimulatedBatch, about: GeminiBatch) -> Json:
        if isinstance(about.source, str):
            return {"responsesFile": self._responses[batch.id]} if batch.id in self._responses else {}
        responses = [
            {**self._result(line), **({"metadata": about.source[index]} if about.source[index] else {})}
            for index, line in enumerate(batch.results)
            if line.kind in ("succeeded", "errored")
        ]
        return {"inlinedResponses": {"inlinedResponses": responses}}


def _lines(file: File) -> list[Any]:
    try:
        return [msgspec.json.decode(line) for line in file.content.splitlines() if line.strip()]
    except msgspec.DecodeError:
        raise ApiError(400, f"The file files/{file.id} has a line that is not JSON.") from None


def _related(content_type: str, body: bytes) -> tuple[str, bytes]:
    """The name and the content in a multipart/related upload: JSON about the file, then the file."""
    mark = boundary_of(content_type, "multipart/related")
    if mark is None:
        raise ApiError(400, f"expected multipart/related with a boundary, or a resumable upload, got {content_type!r}")
    parts = body.split(mark)
    if len(parts) != 4 or not parts[3].startswith(b"--"):
        raise ApiError(400, "expected two parts: about the file, and the file")
    about, content = (part.partition(b"\r\n\r\n")[2].removesuffix(b"\r\n") for part in parts[1:3])
    return str((read_json(about).get("file") or {}).get("displayName") or ""), content
