"""A batch from its creation to its end, the same for all providers: validation, progress, expiry, cancelling."""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from fanfold.encoding import digest, encode
from fanfold.simulator.billing import CreatedBatch
from fanfold.simulator.dialect import Dialect
from fanfold.simulator.faults import BATCH, Fault
from fanfold.simulator.state import RequestOrigin, SimulatorState, body_key
from fanfold.simulator.wire import ApiError, Json

#: Progress is made in this many steps between the start and the end of a batch.
STEPS = 20
#: Lines answered at once, so that a big batch does not keep everyone else waiting.
CHUNK = 100
#: The share of the turnaround that goes into validation, and as much again into finalizing.
EDGE = 0.05

#: Status, message and code of the error that a line has where a fault strikes it.
_LINE_ERRORS = {
    "batch_errors": (400, "Invalid value for 'content': expected a string, got null.", "invalid_type"),
    "batch_overloaded": (529, "Overloaded", None),
}

Status = Literal["validating", "in_progress", "cancelling", "finalizing", "completed", "failed", "expired", "cancelled"]
ENDED = ("completed", "failed", "expired", "cancelled")


@dataclass(frozen=True, slots=True)
class BatchLine:
    """One request in a batch; `sample` says how many earlier lines of the batch ask the same.

    Repeated sampling within a batch is wanted, so it must not look like a double charge.
    """

    custom_id: str
    body: Json
    sample: str


def make_lines(requests: Iterable[tuple[str, Json]]) -> list[BatchLine]:
    """Lines from (custom_id, body)."""
    seen: Counter[str] = Counter()
    lines = []
    for custom_id, body in requests:
        key = body_key(body)
        lines.append(BatchLine(custom_id, body, str(seen[key])))
        seen[key] += 1
    return lines


@dataclass(frozen=True, slots=True)
class LineResult:
    """The result of a line: a body for `succeeded`, an error for `errored`, neither for `expired` and `canceled`."""

    custom_id: str
    kind: Literal["succeeded", "errored", "expired", "canceled"]
    body: Json | None = None
    error: ApiError | None = None


class SimulatedBatch:
    """One batch: its lines, its state, and the times of every change (of the loop), in `times`.

    `run()` takes it from the start to the end; `cancel()` asks it to end early.  Results are complete once it has
    ended: every line then has one, unless a fault says otherwise.
    """

    def __init__(self, state: SimulatorState, dialect: Dialect, endpoint: str, owner: str, id: str, tag: str) -> None:
        self.id = id
        self.owner = owner
        self.endpoint = endpoint
        self.tag = tag
        self.lines: Sequence[BatchLine] = ()
        self.results: list[LineResult] = []
        self.status: Status = "validating"
        self.times: dict[str, float] = {"created": state.now()}
        self.faults: Mapping[str, Fault] = state.plan.draw_all(BATCH, "create", state.now())
        self._state = state
        self._dialect = dialect
        self._cancelled = asyncio.Event()
        self._enqueued: list[tuple[str, int]] = []

    @property
    def expires(self) -> float:
        return self.times["created"] + self._state.config.expires_after

    @property
    def ended(self) -> bool:
        return self.status in ENDED

    def count(self, kind: str) -> int:
        return sum(result.kind == kind for result in self.results)

    def register(self, requests: int, payload: str) -> None:
        """Enter the batch in the bill: from here on it exists and will be charged."""
        book = CreatedBatch(self.id, self._dialect.name, self.tag, requests, payload, self._state.wall())
        self._state.billing.batches.append(book)

    def enqueue(self, model: str, tokens: int) -> None:
        """Count waiting tokens against the limit of a model, or raise an ApiError with the code of the excess."""
        account = self._state.account(self.owner, model)
        limit = account.limits.enqueued_tokens
        if limit is not None and account.enqueued + tokens > limit:
            raise ApiError(
                429,
                f"Enqueued token limit reached for {model} in organization simulated. Limit: {limit:,} enqueued "
                "tokens. Please try again once some in_progress batches have been completed.",
                code="token_limit_exceeded",
            )
        account.enqueued += tokens
        self._enqueued.append((model, tokens))

    def cancel(self) -> None:
        if not self.ended and self.status != "cancelling":
            self._turn("cancelling")
            self._cancelled.set()

    async def run(self, validate: Callable[[], bool], deliver: Callable[[SimulatedBatch], None]) -> None:
        """Live through the batch: `validate` says whether it may start, `deliver` publishes results at the end."""
        total = self._state.draw_time(self._state.config.turnaround)
        started = self.times["created"]
        ending: Status = await self._wait(started + EDGE * total) or "completed"
        if ending == "completed" and not validate():
            ending = "failed"
        if ending == "completed":
            self._turn("in_progress")
            ending = await self._progress(started + EDGE * total, (1 - 2 * EDGE) * total)
        if ending == "completed":
            self._turn("finalizing")
            ending = await self._wait(started + total) or ending
        if ending == "cancelled" and self.status == "cancelling":
            await asyncio.sleep(self._state.config.cancel_seconds)
        if ending != "failed":
            rest: Literal["expired", "canceled"] = "expired" if ending == "expired" else "canceled"
            self.results += [LineResult(line.custom_id, rest) for line in self.lines[len(self.results) :]]
        for model, tokens in self._enqueued:
            self._state.account(self.owner, model).enqueued -= tokens
        deliver(self)
        self._turn(ending)

    async def _progress(self, start: float, length: float) -> Status:
        end: Status = "completed"
        allowed = len(self.lines)
        for kind, status in (("batch_expired", "expired"), ("batch_cancelled", "cancelled"), ("batch_stuck", "")):
            if kind in self.faults:
                allowed = min(allowed, math.ceil(len(self.lines) * self.faults[kind].number(0.5)))
                end = status or end  # type: ignore[assignment]
        for step in range(1, STEPS + 1):
            stopped = await self._wait(start + length * step / STEPS)
            if stopped:
                return stopped
            await self._advance(min(allowed, len(self.lines) * step // STEPS))
        if "batch_stuck" in self.faults:
            return await self._wait(self.expires) or "expired"
        return end

    async def _advance(self, upto: int) -> None:
        while len(self.results) < upto:
            done = len(self.results)
            chunk = range(done, min(upto, done + CHUNK))
            self.results += await asyncio.gather(*(self._line(number) for number in chunk))
            await asyncio.sleep(0)

    async def _line(self, number: int) -> LineResult:
        line = self.lines[number]
        try:
            self._strike(number)
            self._state.check_model(self._dialect, line.body)
            if line.body.get("stream"):
                raise ApiError(400, "stream: streaming is not supported in batches", param="stream")
            prompt = self._dialect.read(self.endpoint, line.body)
            origin = RequestOrigin(self.owner, line.sample, self.id, line.custom_id)
            body, _ = await self._state.generate(self._dialect, self.endpoint, line.body, prompt, origin)
        except ApiError as error:
            return LineResult(line.custom_id, "errored", error=error)
        return LineResult(line.custom_id, "succeeded", body)

    def _strike(self, number: int) -> None:
        if "batch_billing" in self.faults:
            raise self._dialect.no_credit(batch=True)
        if "batch_failed" in self.faults:
            raise ApiError(400, "The request was rejected by the simulator as it was told to.")
        for kind, (status, message, code) in _LINE_ERRORS.items():
            if kind in self.faults:
                rng = self._state.stream("errors", self.lines[number].custom_id)
                if rng.random() < self.faults[kind].number(0.5):
                    raise ApiError(status, message, code=code)

    async def _wait(self, until: float) -> Literal["", "cancelled", "expired"]:
        """Wait, unless the batch is cancelled or expires before that."""
        deadline = min(until, self.expires)
        if self._state.now() < deadline:
            try:
                async with asyncio.timeout_at(deadline):
                    await self._cancelled.wait()
            except TimeoutError:
                pass
        if self._cancelled.is_set():
            return "cancelled"
        return "expired" if self._state.now() >= self.expires else ""

    def _turn(self, status: Status) -> None:
        self.status = status
        self.times[status] = self._state.now()


class BatchStore:
    """The batches of one dialect; each key sees its own."""

    def __init__(self, state: SimulatorState, dialect: Dialect) -> None:
        self.state, self.dialect = state, dialect
        self._batches: dict[str, SimulatedBatch] = {}
        self._results: dict[str, list[tuple[str, LineResult]]] = {}

    def start(self, id: str, endpoint: str, owner: str, tag: str, requests: list[tuple[str, Json]]) -> SimulatedBatch:
        """A new batch of (custom_id, body), under way at once; an ApiError where too many tokens are enqueued."""
        batch = SimulatedBatch(self.state, self.dialect, endpoint, owner, id, tag)
        tokens: Counter[str] = Counter()
        for _, body in requests:
            tokens[str(body.get("model"))] += self.tokens(endpoint, body)
        for model, count in tokens.items():
            batch.enqueue(model, count)
        batch.lines = make_lines(requests)
        batch.status = "in_progress"  # there is no validation to wait for
        batch.register(len(requests), digest(*(encode(list(item)) for item in requests)).hex())
        self._batches[id] = batch
        self.state.start(batch.run(lambda: True, self._deliver))
        return batch

    def find(self, id: str, owner: str) -> SimulatedBatch:
        batch = self._batches.get(id)
        if batch is None or batch.owner != owner:
            raise ApiError(404, f"Batch {id} not found.")
        return batch

    def newest(self, owner: str) -> list[SimulatedBatch]:
        """All batches of an owner, newest first."""
        return [batch for batch in reversed(self._batches.values()) if batch.owner == owner]

    def remove(self, id: str) -> None:
        del self._batches[id]
        self._results.pop(id, None)

    def results_of(self, batch: SimulatedBatch) -> list[tuple[str, LineResult]]:
        """The results of an ended batch by custom_id, in the disorder that its faults ask for."""
        return self._results[batch.id]

    def tokens(self, endpoint: str, body: Json) -> int:
        """Input tokens of a request; 0 for one that will be refused when its turn comes."""
        try:
            return self.dialect.read(endpoint, body).input_tokens
        except (ApiError, KeyError):
            return 0

    def _deliver(self, batch: SimulatedBatch) -> None:
        rng = self.state.stream("results", batch.tag, str(len(batch.results)))
        self._results[batch.id] = disturb([(line.custom_id, line) for line in batch.results], batch.faults, rng)


def disturb(items: list[tuple[str, Any]], faults: Mapping[str, Fault], rng: random.Random) -> list[tuple[str, Any]]:
    """Results as (custom_id, rest), with the disorder that the faults of a batch ask for."""
    items = list(items)
    some = max(1, len(items) // 5)
    if "batch_missing" in faults and len(items) > 1:
        gone = set(rng.sample(range(len(items)), some))
        items = [item for index, item in enumerate(items) if index not in gone]
    if "batch_duplicates" in faults and items:
        items += rng.sample(items, min(some, len(items)))
    if "batch_unknown" in faults and items:
        items += [(f"unknown-{number}", items[number][1]) for number in range(min(some, len(items)))]
    if "batch_shuffled" in faults:
        rng.shuffle(items)
    return items
