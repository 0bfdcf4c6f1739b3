"""The documented log of a batch job: a line when a wave leaves, who is in it, and how long it took."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fanfold.calls import Call, CallBroker, Reply, Route
from fanfold.context import here, within
from fanfold.errors import CallFailed
from fanfold.events import EvaluationFinished, Event, Notice, RunStarted, RunStopped, Ticked
from fanfold.ledger import Ledger
from fanfold.legacy.secret_game import Agent, BatchJob, BatchTask
from fanfold.studies.secrets.game import Game
from fanfold.studies.secrets.job_files import printable
from fanfold.types import Case, Failed, Ok

log = logging.getLogger("fanfold.legacy")

#: At most so many lines about tasks that went well, and so many conversations in a line.
LINES, NAMED = 10, 50
#: What the engine says about waves is said here with more words.
_OF_WAVES = re.compile(r"(Processing wave|Wave) \d+ ")


@dataclass(slots=True)
class Asked:
    """A request of a task: for whose and which message, where that can be told, when it was made, when answered."""

    task: BatchTask
    turn: int | None
    speaker: Agent | None
    since: float
    answered: float | None = None
    wave: Wave | None = None


@dataclass(slots=True, eq=False)
class Wave:
    """Requests that travel in one provider batch, and how many of them have no answer yet."""

    number: int
    asked: Sequence[Asked]
    waiting: int


class JobLog:
    """Watches the run of a job: keeps its tasks up to date, and logs waves, failures and progress.

    Which requests travel together is read from the ledger, where every batch stands before it is submitted; when they
    were made and answered is seen at the route that the executor gives them.
    """

    def __init__(self, job: BatchJob, cases: Sequence[Case]) -> None:
        self.job = job
        self._tasks = {case.id: task for case, task in zip(cases, job.tasks)}
        self._asked: dict[bytes, Asked] = {}
        self._seen: set[str] = set()
        self._ledger: Ledger | None = None
        self._run = 0
        self._ended = 0
        #: In a plain conversation of two, whose turn it is follows from the number of the message.
        self._plain = len(job.agents) == 2 and job.config.rounds == 1 and job.config.judge is None

    def listening(self, evaluate: Callable[[Game, Case], Any]) -> Listening:
        """The evaluator, heard by this log."""
        return Listening(evaluate, self)

    def __call__(self, event: Event) -> None:
        if isinstance(event, RunStarted):
            self._begin(event)
        elif isinstance(event, EvaluationFinished):
            self._finished(event)
        elif isinstance(event, Notice) and not _OF_WAVES.match(event.message):
            log.warning("%s: %s", self.job.id, printable(event.message, 300))
        elif isinstance(event, Ticked):
            self.look()
        elif isinstance(event, RunStopped):
            self.look()
            self.close()

    def close(self) -> None:
        if self._ledger is not None:
            self._ledger.close()
            self._ledger = None

    # -- what is heard -------------------------------------------------------------------------------------------------

    def begun(self, case: Case) -> None:
        self._tasks[case.id].begin()

    def asks(self, case: Case, call: Call, turn: int) -> Asked:
        task, now = self._tasks[case.id], asyncio.get_running_loop().time()
        speaker = self.job.agents[(turn + case.data["opener"]) % 2]
        asked = Asked(task, turn, speaker, now) if self._plain else Asked(task, None, None, now)
        self._asked[call.key] = asked
        return asked

    def answered(self, asked: Asked) -> None:
        asked.answered = asyncio.get_running_loop().time()
        if asked.wave is not None:
            asked.wave.waiting -= 1
            self._say_if_complete(asked.wave)

    def _finished(self, event: EvaluationFinished) -> None:
        task, outcome = self._tasks[event.case], event.outcome
        task.end(outcome, (task.started_at or 0.0) + event.seconds)
        if isinstance(outcome, Failed):
            log.error("task %s of %s failed: %s", task.id, self.job.id, printable(task.error or "", 300))
        self._ended += 1
        total = self.job.total_tasks
        if self._ended * LINES // total > (self._ended - 1) * LINES // total:
            counts = f"{self.job.completed_tasks} completed, {self.job.failed_tasks} failed"
            log.info("%s: %s of %d tasks", self.job.id, counts, total)

    # -- waves ---------------------------------------------------------------------------------------------------------

    def _begin(self, event: RunStarted) -> None:
        assert event.ledger is not None, "a job is kept in a file"
        self._ledger = Ledger(event.ledger, readonly=True)
        (self._run,) = self._ledger.one("SELECT id FROM run WHERE name = ?", (event.run_id,))
        over = "SELECT tag FROM batch WHERE run = ? AND state IN ('done', 'abandoned')"
        self._seen = {tag for (tag,) in self._ledger.read(over, (self._run,))}

    def look(self) -> None:
        """Say which waves have left since the last look."""
        if self._ledger is None:
            return
        batches = "SELECT tag, requests FROM batch WHERE run = ? ORDER BY created, tag"
        new = [(tag, requests) for tag, requests in self._ledger.read(batches, (self._run,)) if tag not in self._seen]
        for tag, requests in new:
            self._leaves(tag, requests)
        # A batch is in the ledger before any answer comes of it: what is answered by now went another way.
        self._asked = {key: asked for key, asked in self._asked.items() if asked.answered is None}

    def _leaves(self, tag: str, requests: int) -> None:
        assert self._ledger is not None
        keys = [key for (key,) in self._ledger.read("SELECT key FROM batch_item WHERE tag = ?", (tag,))]
        here = sorted((self._asked[key] for key in keys if key in self._asked), key=lambda asked: asked.task.id)
        if not here:
            return  # of an earlier process, and nobody has asked again yet
        self._seen.add(tag)
        wave = Wave(len(self._seen), here, sum(asked.answered is None for asked in here))
        for asked in here:
            asked.wave = wave
        log.info("Processing wave %d with %d requests for %s", wave.number, requests, _whose(here))
        log.info("Wave %d conversations: %s", wave.number, _listed(here))
        self._say_if_complete(wave)

    def _say_if_complete(self, wave: Wave) -> None:
        if wave.waiting:
            return
        seconds = max(asked.answered or 0.0 for asked in wave.asked) - max(asked.since for asked in wave.asked)
        each = seconds / len(wave.asked)
        log.info("Wave %d completed in %.2f seconds, avg %.2f sec per message", wave.number, seconds, each)


def _listed(asked: Sequence[Asked]) -> str:
    names = [each.task.id for each in asked[:NAMED]]
    return ", ".join([*names, f"and {len(asked) - NAMED} more"] if len(asked) > NAMED else names)


def _whose(asked: Sequence[Asked]) -> str:
    kinds = {"messages" if each.turn is None else "responses" if each.turn else "first messages" for each in asked}
    what = kinds.pop() if len(kinds) == 1 else "messages"
    speakers = sorted({printable(each.speaker.name, 40) for each in asked if each.speaker is not None})
    return f"{' and '.join(speakers) or 'all agents'} ({what})"


@dataclass(frozen=True)
class Listening:
    """An evaluator that tells a log when it begins, and what it asks on the way."""

    evaluate: Callable[[Game, Case], Any]
    log: JobLog = field(repr=False, compare=False)

    @property
    def fingerprint(self) -> str:
        """That of the evaluator: to listen changes nothing."""
        return str(self.evaluate.fingerprint)  # type: ignore[attr-defined]

    async def __call__(self, game: Game, case: Case) -> Ok:
        self.log.begun(case)
        route = here().route
        with within(route=None if route is None else Overheard(route, self.log, case)):
            found: Ok = await self.evaluate(game, case)
            return found


@dataclass(slots=True)
class Overheard:
    """The route that an executor gives an evaluation's calls, with somebody who listens."""

    route: Route
    log: JobLog
    case: Case
    turn: int = -1

    def takes(self, model: Any) -> bool:
        self.turn += 1  # asked once for every call, also for those that go another way
        return self.route.takes(model)

    async def answer(self, broker: CallBroker, model: Any, call: Call) -> Reply:
        asked = self.log.asks(self.case, call, self.turn)
        try:
            reply = await self.route.answer(broker, model, call)
        except CallFailed:
            self.log.answered(asked)
            raise
        self.log.answered(asked)
        return reply
