"""The documented log of a batch job: a line when a wave leaves, who is in it, and how long it took."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from fanfold.events import EvaluationFinished, Event, Notice, RunStarted, WaveAnswered, WaveSent
from fanfold.ledger import RunView
from fanfold.legacy.secret_game import BatchJob
from fanfold.studies.secrets.job_files import printable
from fanfold.types import Case, Failed

log = logging.getLogger("fanfold.legacy")

#: At most so many lines about tasks that went well, and so many conversations in a line.
LINES, NAMED = 10, 50


class JobLog:
    """Watches the run of a job: keeps its tasks up to date, and logs waves, failures and progress."""

    def __init__(self, job: BatchJob, cases: Sequence[Case]) -> None:
        self.job = job
        self._cases = {case.id: (case, task) for case, task in zip(cases, job.tasks)}
        self._ended = 0
        #: The waves of earlier processes, which have their numbers.
        self._before = 0
        #: In a plain conversation of two, whose turn it is follows from the number of the message.
        self._plain = len(job.agents) == 2 and job.config.rounds == 1 and job.config.judge is None

    def begun(self, case: Case) -> None:
        self._cases[case.id][1].begin()

    def __call__(self, event: Event) -> None:
        if isinstance(event, RunStarted):
            assert event.ledger is not None, "a job is kept in a file"
            with RunView.open(event.ledger, event.run_id) as view:
                self._before = len(view.batches())
        elif isinstance(event, EvaluationFinished):
            self._finished(event)
        elif isinstance(event, WaveSent):
            self._sent(event)
        elif isinstance(event, WaveAnswered):
            number, seconds, each = event.number + self._before, event.seconds, event.seconds / event.requests
            log.info("Wave %d completed in %.2f seconds, avg %.2f sec per message", number, seconds, each)
        elif isinstance(event, Notice) and event.topic != "parameters":  # the document's log knows nothing of them
            log.warning("%s: %s", self.job.id, printable(event.message, 300))

    def _finished(self, event: EvaluationFinished) -> None:
        task, outcome = self._cases[event.case][1], event.outcome
        at = (task.started_at or 0.0) + event.seconds
        if isinstance(outcome, Failed):
            task.end(f"{outcome.kind}: {outcome.message}", {}, at)
            log.error("task %s of %s failed: %s", task.id, self.job.id, printable(task.error or "", 300))
        else:
            task.end(None, outcome.data, at)
        self._ended += 1
        total = self.job.total_tasks
        if self._ended * LINES // total > (self._ended - 1) * LINES // total:
            counts = f"{self.job.completed_tasks} completed, {self.job.failed_tasks} failed"
            log.info("%s: %s of %d tasks", self.job.id, counts, total)

    def _sent(self, wave: WaveSent) -> None:
        number = wave.number + self._before
        named = sorted({self._cases[case][1].id for _, case, _ in wave.calls})
        more = [f"and {len(named) - NAMED} more"] if len(named) > NAMED else []
        whose = f"{self._speakers(wave)} ({self._messages(wave)})"
        log.info("Processing wave %d with %d requests for %s", number, wave.requests, whose)
        log.info("Wave %d conversations: %s", number, ", ".join([*named[:NAMED], *more]))

    def _speakers(self, wave: WaveSent) -> str:
        if not self._plain:
            return "all agents"
        seats = {(turn + self._cases[case][0].data["opener"]) % 2 for _, case, turn in wave.calls}
        return " and ".join(sorted(printable(self.job.agents[seat].name, 40) for seat in seats))

    def _messages(self, wave: WaveSent) -> str:
        kinds = {"responses" if turn else "first messages" for _, _, turn in wave.calls}
        return kinds.pop() if self._plain and len(kinds) == 1 else "messages"


def listening(evaluate: Callable[[Any, Case], Any], begun: Callable[[Case], None]) -> Callable[[Any, Case], Any]:
    """An evaluator that tells a log when it begins, and is otherwise the same."""

    async def heard(game: Any, case: Case) -> Any:
        begun(case)
        return await evaluate(game, case)

    heard.fingerprint = evaluate.fingerprint  # type: ignore[attr-defined]
    return heard
