"""Acme's models: a protocol, a batch protocol and a dialect that resemble nobody else's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from fanfold.calls import Call, Reply
from fanfold.limits import Quota
from fanfold.models.batch.protocol import BatchProtocol, LineOutcome, RemoteBatch
from fanfold.models.pricing import Price
from fanfold.models.providers import Messages, Provider
from fanfold.models.providers.reading import as_dialogue, estimated, malformed, number, tokens
from fanfold.simulator.answers import Completion, ModelRequest, content_tokens
from fanfold.simulator.dialect import Dialect, Stamp, Work
from fanfold.simulator.jobs import BatchStore, LineResult, SimulatedBatch
from fanfold.simulator.limits import Account
from fanfold.simulator.state import SimulatorState
from fanfold.simulator.wire import ApiError, Json, Request, SimulatedResponse, read_json, reply

ENDED = {"done": "stop", "limit": "length", "declined": "refusal"}
KINDS = {"slow_down": "rate-limit", "no_credit": "billing", "who": "auth", "unknown_model": "not-found"}


class AcmeJob(msgspec.Struct):
    id: str
    state: str
    at: float
    label: str
    size: int


class AcmeJobs(BatchProtocol):
    """Jobs: labelled lists of calls."""

    path = "/jobs"
    view = AcmeJob
    max_requests = 1000
    max_bytes = 10_000_000
    tagged = True

    async def prepare(self, tag: str, calls: Sequence[tuple[str, Call]]) -> bytes:
        items = [{"id": id, "call": msgspec.json.decode(call.body)} for id, call in calls]
        return msgspec.json.encode({"label": tag, "items": items})

    def remote(self, batch: AcmeJob, again: float | None) -> RemoteBatch:
        ended = {"working": False, "ended": True}.get(batch.state)
        return RemoteBatch(batch.id, batch.at, batch.state, ended, batch.size, batch.label, retry_after=again)

    def result_urls(self, remote: RemoteBatch) -> list[str]:
        return [f"{self.model.url}/jobs/{remote.id}/results"]

    def read(self, line: bytes) -> tuple[str, LineOutcome]:
        result = msgspec.json.decode(line)
        if result["status"] == 0:
            return result["id"], None
        return result["id"], self.reply(result["status"], msgspec.json.encode(result["body"]))


class Acme(Provider):
    """Acme: turns in, one answer out."""

    name = "acme"
    default_url = "https://models.acme.example/v2"
    key_variable = "ACME_KEY"
    url_variable = "ACME_URL"
    parameters: ClassVar[Mapping[str, str]] = {"temperature": "heat", "max_tokens": "longest", "stop": "until"}
    prices: ClassVar[Mapping[str, Price]] = {"anvil-1": Price(3.0, 6.0)}
    batches = AcmeJobs
    family = "anvil-"
    examples = ("anvil-1",)

    def request(self, model: str, messages: Messages, parameters: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        dialogue = as_dialogue(messages)
        if parameters.get("system"):
            dialogue = [{"role": "system", "content": parameters["system"]}, *dialogue]
        turns = [{"who": message["role"], "text": message["content"]} for message in dialogue]
        return "/generate", {"model": model, "turns": turns, **self.translated(parameters)}

    def headers(self, key: str | None) -> dict[str, str]:
        return {"acme-key": key or ""}

    def reply(self, body: Mapping[str, Any]) -> Reply:
        try:
            finish, text, used = ENDED[body["ended"]], body["answer"], body.get("used")
            read, written = tokens(used, "in"), tokens(used, "out")
            return Reply(
                text="" if finish == "refusal" else text,
                finish=finish,
                refusal=text if finish == "refusal" else None,
                input_tokens=read or 0,
                output_tokens=estimated(text) if written is None else written,
                estimated=read is None or written is None,
                model=str(body["model"]),
            )
        except (KeyError, TypeError) as error:
            raise malformed(self.name, repr(error)) from error

    def error(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        problem = body.get("problem")
        return {"code": problem.get("name"), "message": problem.get("text")} if isinstance(problem, Mapping) else {}

    def error_kind(self, status: int, error: Mapping[str, Any]) -> str:
        kind = KINDS.get(str(error.get("code")))
        by_status = {401: "auth", 403: "auth", 404: "not-found", 429: "rate-limit", 503: "overloaded"}
        return kind or by_status.get(status) or ("server" if status >= 500 else "bad-request")

    def quota(self, headers: Mapping[str, str]) -> Quota | None:
        if "acme-per-minute" not in headers:
            return None
        return Quota(
            requests_limit=number(headers["acme-per-minute"]), requests_remaining=number(headers.get("acme-left"))
        )

    def dialect(self) -> type[Dialect]:
        return AcmeDialect


class AcmeDialect(Dialect):
    """Acme in the simulator."""

    name = "acme"
    endpoints = ("/v2/generate",)

    def __init__(self, state: SimulatorState) -> None:
        super().__init__(state)
        self._jobs = BatchStore(state, self)

    def speaks(self, request: Request) -> bool:
        return request.path.startswith("/v2/")

    def route(self, request: Request) -> tuple[str, Work] | None:
        jobs = self._jobs
        match request.method, request.path.split("/")[2:]:
            case "POST", ["jobs"]:
                return "create", self._create
            case "GET", ["jobs"]:
                return "list", lambda _, owner: reply({"data": [self._view(job) for job in jobs.newest(owner)]})
            case "GET", ["jobs", id]:
                return "poll", lambda _, owner: reply(self._view(jobs.find(id, owner)))
            case "POST", ["jobs", id, "cancel"]:
                return "cancel", lambda _, owner: self._cancel(jobs.find(id, owner))
            case "GET", ["jobs", id, "results"]:
                return "results", lambda _, owner: self._results(jobs.find(id, owner))
        return None

    def key_of(self, request: Request) -> str:
        if not request.headers.get("acme-key"):
            raise self.wrong_key()
        return request.headers["acme-key"]

    def read(self, endpoint: str, body: Json) -> ModelRequest:
        unknown = set(body) - {"model", "turns", "heat", "longest", "until"}
        if unknown or not isinstance(body.get("turns"), list):
            raise ApiError(400, f"cannot read {sorted(unknown) or 'turns'}", code="unreadable")
        turns = [{"role": turn["who"], "content": turn["text"]} for turn in body["turns"]]
        count = sum(content_tokens(turn["content"]) for turn in turns)
        until = body.get("until") or []
        stops = (until,) if isinstance(until, str) else tuple(until)
        return ModelRequest(body["model"], turns, count, body.get("longest"), stops)

    def render(
        self, endpoint: str, body: Json, prompt: ModelRequest, written: Sequence[Completion], stamp: Stamp
    ) -> Json:
        words = {finish: ended for ended, finish in ENDED.items()}
        answer = {"answer": written[0].text, "ended": words.get(written[0].finish, "done"), "model": prompt.model}
        return {**answer, **({"used": {"in": prompt.input_tokens, "out": written[0].tokens}} if stamp.usage else {})}

    def limit_headers(self, account: Account, wall: float) -> dict[str, str]:
        bucket = account.buckets["requests"]
        return {"acme-per-minute": f"{bucket.limit:.0f}", "acme-left": str(bucket.remaining)}

    def failure(self, error: ApiError, serial: str) -> SimulatedResponse:
        return reply({"problem": {"name": error.code, "text": error.message}}, error.status, error.headers)

    def wrong_key(self) -> ApiError:
        return ApiError(401, "who are you?", code="who")

    def no_such_model(self, model: str) -> ApiError:
        return ApiError(404, f"no {model} here", code="unknown_model")

    def no_credit(self, *, batch: bool = False) -> ApiError:
        return ApiError(402, "no credit", code="no_credit")

    def _create(self, request: Request, owner: str) -> SimulatedResponse:
        body = read_json(request.body)
        requests = [(item["id"], item["call"]) for item in body["items"]]
        return reply(
            self._view(self._jobs.start(self.state.serial(), self.endpoints[0], owner, body["label"], requests))
        )

    def _cancel(self, job: SimulatedBatch) -> SimulatedResponse:
        job.cancel()
        return reply(self._view(job))

    def _view(self, job: SimulatedBatch) -> Json:
        at = self.state.wall(job.times["created"])
        state = "ended" if job.ended else "working"
        return {"id": job.id, "state": state, "at": at, "label": job.tag, "size": len(job.lines)}

    def _results(self, job: SimulatedBatch) -> SimulatedResponse:
        lines = [msgspec.json.encode({"id": id, **self._result(line)}) for id, line in self._jobs.results_of(job)]
        return SimulatedResponse(200, {}, b"\n".join(lines))

    def _result(self, line: LineResult) -> Json:
        if line.error is not None:
            return {"status": line.error.status, "body": self.failure(line.error, "").json()}
        return {"status": 0 if line.body is None else 200, "body": line.body}
