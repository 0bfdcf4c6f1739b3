"""Anthropic's message batches."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from fanfold.simulator.jobs import BatchStore, LineResult, SimulatedBatch
from fanfold.simulator.wire import ApiError, Json, Request, SimulatedResponse, read_json, reply

MAX_REQUESTS = 100_000
MAX_BYTES = 256 * 2**20
MESSAGES = "/v1/messages"
BATCHES = f"{MESSAGES}/batches"


class AnthropicStore(BatchStore):
    """Message batches: they carry no tag, and show no progress until they have ended."""

    def create(self, request: Request, owner: str) -> SimulatedResponse:
        if len(request.body) > MAX_BYTES:
            raise ApiError(413, f"Request exceeds the maximum size of {MAX_BYTES:,} bytes.")
        requests = _read_requests(read_json(request.body))
        tag = requests[0][0].rpartition("-")[0] or requests[0][0]
        job = self.start(f"msgbatch_{self.state.serial()}", MESSAGES, owner, tag, requests)
        return reply(self._view(job, request))

    def get(self, request: Request, id: str, owner: str) -> SimulatedResponse:
        job = self.find(id, owner)
        return reply(self._view(job, request), headers=None if job.ended else {"retry-after": "10"})

    def list_batches(self, request: Request, owner: str) -> SimulatedResponse:
        query = request.query
        limit = query.get("limit", "20")
        if not limit.isdigit() or not 1 <= int(limit) <= 1000:
            raise ApiError(400, "limit: Input should be a valid integer between 1 and 1000")
        if "after_id" in query and "before_id" in query:
            raise ApiError(400, "after_id and before_id cannot be used together")
        page, more = _page(self.newest(owner), query, int(limit))
        return reply(
            {
                "data": [self._view(job, request) for job in page],
                "has_more": more,
                "first_id": page[0].id if page else None,
                "last_id": page[-1].id if page else None,
            }
        )

    def cancel(self, request: Request, id: str, owner: str) -> SimulatedResponse:
        job = self.find(id, owner)
        if job.ended:
            raise ApiError(409, f"Batch {id} has already ended and cannot be canceled.")
        job.cancel()
        return reply(self._view(job, request))

    def delete(self, id: str, owner: str) -> SimulatedResponse:
        if not self.find(id, owner).ended:
            raise ApiError(400, f"Batch {id} cannot be deleted while it is being processed: cancel it first.")
        self.remove(id)
        return reply({"id": id, "type": "message_batch_deleted"})

    def results(self, id: str, owner: str) -> SimulatedResponse:
        job = self.find(id, owner)
        if not job.ended:
            raise ApiError(404, f"Batch {id} has no results yet: its processing has not ended.")
        lines = [{"custom_id": id, "result": self._result(line)} for id, line in self.results_of(job)]
        body = b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
        return SimulatedResponse(200, {"content-type": "application/x-jsonl"}, body)

    def _result(self, line: LineResult) -> Json:
        if line.error is not None:
            return {"type": "errored", "error": self.dialect.failure(line.error, self.state.serial()).json()}
        return {"type": line.kind, "message": line.body} if line.body is not None else {"type": line.kind}

    def _view(self, job: SimulatedBatch, request: Request) -> Json:
        status = "ended" if job.ended else "canceling" if job.status == "cancelling" else "in_progress"
        if "batch_status" in job.faults and status == "in_progress":
            status = str(job.faults["batch_status"].value or "paused")
        kinds = ("succeeded", "errored", "canceled", "expired")
        # As the provider does it: no progress is shown until everything has ended.
        counts = {kind: job.count(kind) if job.ended else 0 for kind in kinds}
        ended = next((job.times[name] for name in ("completed", "expired", "cancelled") if name in job.times), None)
        host = request.headers.get("host", "simulator.invalid")
        if "results_elsewhere" in job.faults:
            host = str(job.faults["results_elsewhere"].value or "another.example")
        return {
            "id": job.id,
            "type": "message_batch",
            "processing_status": status,
            "request_counts": {"processing": 0 if job.ended else len(job.lines), **counts},
            "created_at": self._time(job.times["created"]),
            "expires_at": self._time(job.expires),
            "ended_at": self._time(ended),
            "cancel_initiated_at": self._time(job.times.get("cancelling")),
            "archived_at": None,
            "results_url": f"http://{host}{BATCHES}/{job.id}/results" if job.ended else None,
        }

    def _time(self, at: float | None) -> str | None:
        return None if at is None else rfc3339(self.state.wall(at))


def _read_requests(body: Json) -> list[tuple[str, Json]]:
    for name in body:
        if name != "requests":
            raise ApiError(400, f"{name}: Extra inputs are not permitted")
    requests: Any = body.get("requests")
    if requests is None:
        raise ApiError(400, "requests: Field required")
    if not isinstance(requests, list):
        raise ApiError(400, "requests: Input should be a valid list")
    if not requests:
        raise ApiError(400, "requests: List should have at least 1 item after validation, not 0")
    if len(requests) > MAX_REQUESTS:
        many = f"not {len(requests)}"
        raise ApiError(400, f"requests: List should have at most {MAX_REQUESTS} items after validation, {many}")
    seen: set[str] = set()
    read: list[tuple[str, Json]] = []
    for index, item in enumerate(requests):
        where = f"requests.{index}"
        if not isinstance(item, dict):
            raise ApiError(400, f"{where}: Input should be a valid dictionary")
        for name in item:
            if name not in ("custom_id", "params"):
                raise ApiError(400, f"{where}.{name}: Extra inputs are not permitted")
        custom_id, params = item.get("custom_id"), item.get("params")
        if not isinstance(custom_id, str) or not custom_id:
            raise ApiError(400, f"{where}.custom_id: Field required")
        if len(custom_id) > 64:
            raise ApiError(400, f"{where}.custom_id: String should have at most 64 characters")
        if custom_id in seen:
            raise ApiError(400, f"{where}.custom_id: duplicate custom_id {custom_id!r}")
        if not isinstance(params, dict):
            raise ApiError(400, f"{where}.params: Field required")
        seen.add(custom_id)
        read.append((custom_id, params))
    return read


def _page(jobs: list[SimulatedBatch], query: Mapping[str, str], limit: int) -> tuple[list[SimulatedBatch], bool]:
    """Some of the jobs, newest first, and whether there are more in the direction asked for."""
    ids = [job.id for job in jobs]
    for name in ("after_id", "before_id"):
        if name in query and query[name] not in ids:
            raise ApiError(400, f"{name}: there is no batch {query[name]}")
    if "before_id" in query:
        newer = jobs[: ids.index(query["before_id"])]
        return newer[-limit:], len(newer) > limit
    older = jobs[ids.index(query["after_id"]) + 1 :] if "after_id" in query else jobs
    return older[:limit], len(older) > limit


def rfc3339(wall: float, *, up: bool = False) -> str:
    """A time of day in whole seconds, rounded up on demand."""
    seconds = math.ceil(wall) if up else math.floor(wall)
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
