"""The way of an evaluation: from the queue to a slot, through attempt and executor, to the ledger, and to the search.

One task owns all of it.  An outcome is durable before the search hears of it; a slot is free once its work is done.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

from fanfold.attempt import MOMENT, Abandoned, Backoff, PunctualTime, Room, abandon, attempt
from fanfold.calls import BROKER, METER, Meter
from fanfold.encoding import decode, digest, encode
from fanfold.errors import CallFailed, ConfigError, ExecutorBroken, PlaceLost, RowRefused, WorkerDied
from fanfold.evaluation import arguments, block_size, failure_of, for_blocks, for_one
from fanfold.events import EvaluationFinished, Event, Notice, Ticked, TrialTold, Watcher
from fanfold.executors import Executor
from fanfold.ledger import RunJournal
from fanfold.schedule import Schedule
from fanfold.search_loop import Cell, SearchLoop
from fanfold.stop import MaxFailures
from fanfold.strategy import Snapshots, Strategy
from fanfold.types import Failed, Ok, Outcome, Result

TICK = 0.5
SNAPSHOT_EVERY = 50
#: Cells that may wait for the disk although nothing was evaluated for them.
MOST_REUSED = 1000
#: Seconds of quiet after which a run that can make no further call is over, whatever else its evaluations may be doing.
QUIET = 0.25


def makes_snapshots(strategy: Strategy[Any], schedule: Schedule) -> TypeGuard[Snapshots]:
    """Whether a run of this strategy can be taken over from a saved state instead of by replaying every tell."""
    return isinstance(strategy, Snapshots) and not schedule.remembers


class EvaluationFailed(Exception):
    """Carries a failed outcome through `attempt`, which judges exceptions."""

    def __init__(self, outcome: Failed) -> None:
        super().__init__(outcome.message)
        self.outcome = outcome


@dataclass(frozen=True, slots=True)
class Work:
    """How cells are evaluated: the evaluator, its limits, and where finished results may be taken from."""

    evaluate: Any
    fingerprint: str
    timeout: float | None = None
    retries: int = 0
    #: `run`: equal cells of this run are evaluated once; `ledger`: of any run in the file; `never`: each time again.
    reuse: str = "run"
    #: How many evaluations in a row may fail in the same way; None: any number.
    max_failures: int | None = None

    def key(self, cell: Cell[Any], cases: dict[str, bytes]) -> bytes:
        return digest(self.fingerprint, cell.text, cases[cell.case.id])

    def again(self, error: Exception, n: int) -> float | None:
        """A worker that died is given a second try elsewhere; other failures as many as the study allows.

        What is the place's fault uses up no tries: the road looks for another place.
        """
        if isinstance(error, ExecutorBroken | ConfigError | PlaceLost):
            return None
        tries = max(2, self.retries + 1) if isinstance(error, WorkerDied) else self.retries + 1
        return Backoff(tries)(error, n)


class Dispatcher:
    """Drives a search to its end on an executor.  All state belongs to the task that awaits `drive`."""

    def __init__(
        self,
        search: SearchLoop[Any],
        journal: RunJournal,
        executor: Executor,
        work: Work,
        watch: Watcher | None,
        grace: float,
    ) -> None:
        self.search = search
        self.journal = journal
        self.executor = executor
        self.work = work
        self._watch = watch
        self._grace = grace
        self._queue: list[tuple[int, int, Cell[Any]]] = []
        self._ready: deque[tuple[Cell[Any], Outcome]] = deque()
        self._running: set[asyncio.Task[None]] = set()
        self._sharing: dict[bytes, list[Cell[Any]]] = {}
        self._unsaved = 0
        #: Cells that a kill would repeat: being evaluated, or evaluated and not on disk.
        self._at_risk = 0
        self._room = Room()
        self._failing = None if work.max_failures is None else MaxFailures(work.max_failures)
        self._time: PunctualTime | None = None
        self._halted = self._over = self._deaf = False
        self._wake = asyncio.Event()
        self._error: BaseException | None = None
        self._case_keys = {case.id: digest(encode(case, f"case {case.id!r}")) for case in search.rules.cases}
        self._call, self._block = for_one(work.evaluate), for_blocks(work.evaluate)
        self._most_cells = 1 if self._block is None else block_size(work.evaluate)

    async def drive(self, reopened: Iterable[Any] = ()) -> str:
        """Work until the search ends or is stopped; gives the reason.  Everything finished is in the ledger by then."""
        self.search.after_told = self._told
        self.journal.commits.failed = self._fail
        ticker = asyncio.create_task(self._tick())
        if self.work.timeout is not None:
            self._time = PunctualTime(min(0.5, max(0.01, self.work.timeout / 20)))
        try:
            self._accept(self.search.start(reopened))
            while await self._step():
                pass
        finally:
            if self._time is not None:
                self._time.close()
            ticker.cancel()
            try:
                await self._give_up()
            finally:
                await self.journal.commits.flush()
        if self._error is not None:
            raise self._error
        return self.search.stopped or "the strategy has nothing more to ask"

    def stop(self, reason: str) -> None:
        """Start nothing more; what runs may finish within the grace period, then it is abandoned."""
        self.search.stop(reason)
        self._wake.set()

    def halt(self, error: CallFailed) -> None:
        """No further model call can succeed: an empty budget stops the run like a rule, anything else fails it."""
        if error.kind == "budget":
            self._halted = True
            self.stop(str(error))
        else:
            self._fail(error)

    async def _step(self) -> bool:
        """One turn: take in what is ready, hand out work, wait for something to happen.  False when nothing is left."""
        await self._absorb()
        if self._error is not None:
            return False
        if self.search.stopped is not None:
            await self._drain()
            return False
        self._dispatch()
        if not (self._queue or self._running or self._ready or self._unsaved):
            more = self.search.idle()
            self._accept(more)
            return bool(more)
        if not self._ready:
            await self._wake.wait()
            self._wake.clear()
        return True

    async def _drain(self) -> None:
        """After a stop: running work may finish within the grace period; what does is kept, the rest is abandoned."""
        self._queue.clear()
        end = asyncio.get_running_loop().time() + self._grace
        while self._running and (left := end - asyncio.get_running_loop().time()) > 0:
            parked = self._halted and (broker := BROKER.get()) is not None and not broker.paying
            done, _ = await asyncio.wait(
                self._running,
                timeout=min(left, QUIET) if self._halted else left,
                return_when=asyncio.FIRST_COMPLETED if self._halted else asyncio.ALL_COMPLETED,
            )
            if parked and not done:
                return  # what is left waits for calls that will never be made

    async def _give_up(self) -> None:
        """Cancel what still runs; whoever swallows that is left behind."""
        for task in self._running:
            task.cancel()
        if self._running:
            _, deaf = await asyncio.wait(self._running, timeout=2 * MOMENT)
            self._over = True  # nothing that an abandoned evaluation says from here on is heard
            for task in deaf:
                abandon(task)
                self._abandoned()

    def _abandoned(self) -> None:
        if not self._deaf:
            self._deaf = True
            self._emit(Notice("an evaluation swallowed its cancellation and was left behind: let CancelledError pass"))

    # -- taking in ---------------------------------------------------------------------------------------------------

    def _accept(self, cells: Iterable[Cell[Any]]) -> None:
        """Queue cells; those the run has recorded are answered at once."""
        trial, recorded = -1, {}
        for cell in cells:
            if cell.trial.number != trial:
                trial, recorded = cell.trial.number, dict(self.journal.recall(cell.trial.number))
            if cell.position in recorded:
                self._ready.append((cell, recorded[cell.position]))
            else:
                heapq.heappush(self._queue, (cell.trial.number, cell.position, cell))

    async def _absorb(self) -> None:
        taken = 0
        while self._ready and self.search.stopped is None and self._error is None:
            cell, outcome = self._ready.popleft()
            self._accept(self.search.arrive(cell, outcome))
            taken += 1
            if taken % 256 == 0:
                await asyncio.sleep(0)  # a long replay must not starve timers and Ctrl-C

    def _landed(
        self, key: bytes, cell: Cell[Any], outcome: Outcome, opened: Outcome, error: BaseException | None
    ) -> None:
        """An outcome is on disk: the search may have it, opened, and so may cells that waited for the same."""
        self._unsaved -= 1
        if error is not None:
            self._fail(error)
            return
        self._ready.append((cell, opened))
        for twin in self._sharing.pop(key, ()):
            self._record(key, twin, outcome, (time.time(), 0.0, 0), reused=True)
        self._wake.set()

    def _fail(self, error: BaseException) -> None:
        if self._error is None:
            self._error = error
        self._wake.set()

    # -- handing out -------------------------------------------------------------------------------------------------

    def _dispatch(self) -> None:
        slots = self._room.slots(self.executor.slots, asyncio.get_running_loop().time())
        while self._queue and len(self._running) < slots and (most := self._spare(slots)) > 0:
            cells = self._next_cells(slots - len(self._running), most)
            if cells:
                self._at_risk += len(cells)
                task = asyncio.create_task(self._evaluate(cells))
                self._running.add(task)
                task.add_done_callback(self._done)

    def _spare(self, slots: int) -> int:
        """How many cells may be begun now, so that a kill repeats little and what waits for the disk stays bounded.

        A disk that keeps up is not waited for: what is at risk then is what was evaluated in the last moment.
        """
        if self._unsaved > self._at_risk + MOST_REUSED:
            return 0
        spare = 2 * slots * self._most_cells - self._at_risk
        return min(spare, self._most_cells) if self.journal.commits.behind else self._most_cells

    def _next_cells(self, free: int, most: int) -> list[tuple[bytes, Cell[Any]]]:
        """The cells for one slot: one, or a fair share of the queue where the evaluator takes blocks."""
        wanted = 1 if self._block is None else min(most, -(-len(self._queue) // free))
        cells: list[tuple[bytes, Cell[Any]]] = []
        while self._queue and len(cells) < wanted:
            cell = heapq.heappop(self._queue)[2]
            key = self.work.key(cell, self._case_keys)
            if not self._answered(key, cell):
                cells.append((key, cell))
        return cells

    def _answered(self, key: bytes, cell: Cell[Any]) -> bool:
        """Whether an equal cell has been or is being evaluated; if so this one shares its outcome."""
        if self.work.reuse == "never":
            return False
        if key in self._sharing:
            self._sharing[key].append(cell)
            return True
        self._sharing[key] = []
        found = self.journal.ledger.lookup(key, self.journal.run if self.work.reuse == "run" else None)
        if found is None:
            return False
        self._record(key, cell, found, (time.time(), 0.0, 0), reused=True)
        return True

    async def _evaluate(self, cells: list[tuple[bytes, Cell[Any]]]) -> None:
        started, clock, tries = time.time(), time.perf_counter(), 0
        meter = Meter()
        METER.set(meter)  # this task's own: what its model calls cost is added to what the evaluator says

        async def call() -> list[Outcome]:
            nonlocal tries
            tries += 1
            if self._block is not None and len(cells) > 1:
                return list(await self.executor.run(self._block, [self._arguments(cell) for _, cell in cells]))
            outcome = await self.executor.run(self._call, *self._arguments(cells[0][1]))
            if isinstance(outcome, Failed) and outcome.kind == "error" and tries <= self.work.retries:
                raise EvaluationFailed(outcome)
            return [outcome]

        again = self.work.again if len(cells) == 1 else None
        timeout = self.work.timeout and self.work.timeout * len(cells)
        try:
            outcomes = await attempt(call, again=again, timeout=timeout, time=self._time, grace=self._grace)
        except (ExecutorBroken, ConfigError) as error:  # no evaluation can run here, whatever its candidate
            self._fail(error)
            return
        except PlaceLost as error:
            self._displaced(cells, error)
            return
        except Exception as error:
            if isinstance(error, Abandoned):
                self._abandoned()
            if len(cells) > 1:  # a block that failed as a whole: its cells go one by one, so only the culprit fails
                for pair in cells:
                    await self._evaluate([pair])
                return
            outcomes = [self._failure(error, tries)]
        if self._over:
            return
        self._room.lives()
        times = (started, time.perf_counter() - clock, tries)
        share = meter.cost / len(cells)
        for (key, cell), outcome in zip(cells, outcomes, strict=True):
            self._record(key, cell, replace(outcome, cost=outcome.cost + share) if share else outcome, times)
            if self._failing is not None and (enough := self._failing.count(outcome)) is not None:
                self._fail(enough)

    def _displaced(self, cells: list[tuple[bytes, Cell[Any]]], error: PlaceLost) -> None:
        """A place was lost, not an evaluation: its cells, and those that share them, go back to the queue."""
        self._at_risk -= len(cells)
        for key, cell in cells:
            for waiting in (cell, *self._sharing.pop(key, ())):
                heapq.heappush(self._queue, (waiting.trial.number, waiting.position, waiting))
        loop, first = asyncio.get_running_loop(), self._room.limit == math.inf
        others = len(self._running) - 1
        if not self._room.lost(others, loop.time()):
            self._fail(ExecutorBroken(f"no worker could be had for a minute: {error}. Finished work is kept"))
            return
        loop.call_at(self._room.until, self._wake.set)
        if first:
            self._emit(Notice(f"{error}; until then the run continues on {others} of {self.executor.slots} slots"))

    def _arguments(self, cell: Cell[Any]) -> tuple[Any, ...]:
        return arguments(self.work.evaluate, cell.trial.candidate, cell.case, cell.previous)

    def _failure(self, error: Exception, tries: int) -> Failed:
        if isinstance(error, TimeoutError):
            return Failed("timeout", f"no answer within {self.work.timeout:g} s")
        if isinstance(error, WorkerDied):
            return Failed("worker-died", f"{error} (tried {tries} times)")
        return failure_of(error)

    def _record(
        self, key: bytes, cell: Cell[Any], outcome: Outcome, times: tuple[float, float, int], reused: bool = False
    ) -> None:
        """Write an outcome down.  The search gets it, as the ledger will give it back, once it is durable."""
        self._unsaved += 1
        if reused:
            outcome = replace(outcome, cost=0.0)  # paid for where it was evaluated
        opened = outcome
        if isinstance(outcome, Ok) and outcome.data is not None:
            opened = replace(outcome, data=decode(outcome.data.text, self.journal.ledger.blob))

        def landed(error: BaseException | None) -> None:
            if isinstance(error, RowRefused) and isinstance(outcome, Ok):
                self._unsaved -= 1
                self._record(key, cell, Failed("bad-data", str(error), cost=outcome.cost), times)
                return
            self._at_risk -= not reused
            self._landed(key, cell, outcome, opened, error)

        self.journal.evaluated(cell.trial.number, cell.position, key, outcome, times, reused, landed)
        self.search.tally.reused += reused
        if self._watch is not None:
            self._emit(EvaluationFinished(cell.trial.number, cell.case.id, opened, times[1]))

    def _done(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if self._over:
            return
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)
        self._wake.set()

    # -- watching ----------------------------------------------------------------------------------------------------

    async def _tick(self) -> None:
        told = 0
        while True:
            await asyncio.sleep(TICK)
            if self.search.tally.told > told:  # a run that is killed later still knows how long it has worked
                told = self.search.tally.told
                self.journal.status("running", None, self.search.rules.clock())
            if self.search.stopped is None:
                self.search.check()  # rules about time fire also while nothing finishes
                if self.search.stopped is not None:
                    self._wake.set()
            if (remark := self.journal.ledger.remark()) is not None:
                self._emit(Notice(remark))
            if self._watch is not None:
                self._emit(Ticked(self.search.progress, len(self._running), len(self._queue), self._waits()))

    def _waits(self) -> str | None:
        """What the work waits for, in words: calls that all wait, or workers to be had again."""
        now = asyncio.get_running_loop().time()
        if self._room.limit == 0:
            return f"waiting for a worker, next try in {max(0.0, self._room.until - now):.0f} s"
        wait = None if (broker := BROKER.get()) is None else broker.waits()
        if wait is None or now - wait.since < 1.0:
            return None
        then = "" if wait.until is None else f", next try in {max(0.0, wait.until - now):.0f} s"
        return f"waiting for {wait.what} since {now - wait.since:.0f} s{then}"

    def _told(self, result: Result[Any]) -> None:
        told, search = self.search.tally.told, self.search
        if told % SNAPSHOT_EVERY == 0 and not search.replaying and makes_snapshots(search.strategy, search.schedule):
            self.journal.snapshot(told, search.tally.asked, search.strategy.save())
        if self._watch is not None:
            self._emit(TrialTold(result, self.search.progress))

    def _emit(self, event: Event) -> None:
        if self._watch is not None:
            self._watch(event)
