"""The path of an evaluation: from the queue to a slot, through the executor, to the ledger, and to the search.

One task owns all of it.  An outcome is durable before the search hears of it; a slot is free once its work is done.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from fanfold.attempt import MOMENT, Abandoned, Losses, PunctualTime, Room, abandon
from fanfold.checkpoints import SAVE_EVERY
from fanfold.context import Meter, enter, here
from fanfold.errors import ConfigError, ExecutorBroken, PlaceLost, StoreError
from fanfold.events import Event, Notice, Ticked, Watcher
from fanfold.executors import Executor
from fanfold.ledger import RunJournal
from fanfold.outbox import Outbox
from fanfold.search_loop import Cell, SearchLoop
from fanfold.types import Failed
from fanfold.wakeup import Wakeup
from fanfold.work import Keyed, Work

TICK = 0.5
#: Seconds between two checkpoints.
CHECKPOINT = 60.0
#: So many tells that are sooner than that have one, too: it is checked against them all at once.
QUICK_TELLS = 20_000
#: Seconds of quiet after which a run that can make no further call is over, whatever else its evaluations may be doing.
QUIET = 0.25


class Dispatcher:
    """Drives a search to its end on an executor.  All state belongs to the task that awaits `drive`."""

    def __init__(
        self,
        search: SearchLoop[Any],
        journal: RunJournal,
        executor: Executor,
        work: Work,
        wakeup: Wakeup,
        emit: Callable[[Event], None],
        watch: Watcher | None,
    ) -> None:
        self.search = search
        self.journal = journal
        self.executor = executor
        self.work = work
        self._wakeup = wakeup
        self._emit = emit
        self._watch = watch
        self._outbox = Outbox(journal, work, search.tally, wakeup, watch)
        self._queue: list[tuple[int, int, Cell[Any]]] = []
        self._running: set[asyncio.Task[None]] = set()
        self._room = Room(executor.patience)
        self._time: PunctualTime | None = None
        self._over = self._deaf = False

    async def drive(self, reopened: Iterable[Any] = (), waits: bool = False) -> str:
        """Work until the search ends or is stopped; gives the reason.  Everything finished is in the ledger by then."""
        ticker = asyncio.create_task(self._tick())
        timeout, commits = self.work.limits.timeout, self.journal.commits
        if timeout is not None:
            self._time = PunctualTime(min(0.5, max(0.01, timeout / 20)))
        try:
            self._accept(self.search.start(reopened, waits))
            while await self._step():
                pass
            self.search.save(SAVE_EVERY)
        finally:
            if self._time is not None:
                self._time.close()
            ticker.cancel()
            try:
                await self._give_up()
            finally:
                await commits.flush()
        error = self._wakeup.error or commits.error
        if error is not None:
            raise error
        return self.search.stopped or "the strategy has nothing more to ask"

    async def _step(self) -> bool:
        """One turn: take in what is ready, hand out work, wait for something to happen.  False when nothing is left."""
        wakeup, outbox = self._wakeup, self._outbox
        await self._absorb()
        self.journal.prune()
        if wakeup.reason is not None:
            self.search.stop(wakeup.reason)
        if wakeup.error is not None or self.journal.commits.error is not None:
            return False
        if self.search.stopped is not None:
            await self._drain()
            return False
        await self._dispatch()
        if not (self._queue or self._running or outbox.ready or outbox.unsaved):
            more = self.search.idle()
            self._accept(more)
            return bool(more)
        if not outbox.ready:
            await wakeup.wait()
        return True

    async def _drain(self) -> None:
        """After a stop: running work may finish within the grace period; what does is kept, the rest is abandoned."""
        self._queue.clear()
        halted = self._wakeup.halted
        end = asyncio.get_running_loop().time() + self.work.limits.grace
        while self._running and not self._wakeup.at_once and (left := end - asyncio.get_running_loop().time()) > 0:
            parked = halted and (broker := here().broker) is not None and not broker.paying
            done, _ = await asyncio.wait(
                self._running,
                timeout=min(left, QUIET) if halted else left,
                return_when=asyncio.FIRST_COMPLETED if halted else asyncio.ALL_COMPLETED,
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
                self._outbox.ready.append((cell, recorded[cell.position]))
            else:
                self._enqueue(cell)

    def _enqueue(self, cell: Cell[Any]) -> None:
        heapq.heappush(self._queue, (cell.trial.number, cell.position, cell))

    async def _absorb(self) -> None:
        taken, ready, wakeup = 0, self._outbox.ready, self._wakeup
        while ready and self.search.stopped is None and wakeup.reason is None and wakeup.error is None:
            cell, outcome = ready.popleft()
            self._accept(self.search.arrive(cell, outcome))
            taken += 1
            if taken % 256 == 0:
                await asyncio.sleep(0)  # a long replay must not starve timers and Ctrl-C

    # -- handing out -------------------------------------------------------------------------------------------------

    async def _dispatch(self) -> None:
        begun = 0
        done, context = self._done, contextvars.copy_context()  # one for all: thousands may run
        # An evaluator that takes blocks gets few large ones rather than many in flight.
        depth = self.executor.depth if self.work.most_cells == 1 else self.executor.slots
        slots = self._room.slots(depth, asyncio.get_running_loop().time())
        while self._queue and len(self._running) < slots and (most := self._outbox.spare(slots)) > 0:
            cells = self._next_cells(slots - len(self._running), most)
            if cells:
                self._outbox.begin(cells)
                task = asyncio.create_task(self._evaluate(cells), name="evaluation")
                self._running.add(task)
                task.add_done_callback(done, context=context)
                begun += 1
                if begun % 256 == 0:
                    await asyncio.sleep(0)  # thousands may begin at once

    def _next_cells(self, free: int, most: int) -> list[Keyed]:
        """The cells for one slot: one, or a fair share of the queue where the evaluator takes blocks."""
        wanted = 1 if self.work.most_cells == 1 else min(most, -(-len(self._queue) // free))
        cells: list[Keyed] = []
        while self._queue and len(cells) < wanted:
            cell = heapq.heappop(self._queue)[2]
            key = self.work.key(cell)
            if (alone := self._room.losses.repeated(key)) and cells:
                self._enqueue(cell)
                break
            if not self._outbox.answers(key, cell):
                cells.append((key, cell))
                if alone:
                    break
        return cells

    async def _evaluate(self, cells: list[Keyed]) -> None:
        if self.work.most_cells > 1:
            await self.journal.commits.begun()  # a block may take long, and have the loop's own thread for itself
        started, clock = time.time(), time.perf_counter()
        first = cells[0][1]
        meter = Meter(0.0, first.trial.number, first.case.id, first.position)
        enter(meter=meter)  # this task's own: what its model calls cost is added to what the evaluator says
        try:
            outcomes, tries, abandoned = await self.work.evaluate(cells, self.executor, self._time)
        except (ExecutorBroken, ConfigError) as error:  # no evaluation can run here, whatever its candidate
            self._wakeup.fail(error)
            return
        except PlaceLost as error:
            self._displaced(cells, error)
            return
        except Exception as error:
            if isinstance(error, Abandoned):
                self._abandoned()
            if not self.work.split:
                self.work.split = True
                why = str(error) or type(error).__name__
                self._emit(Notice(f"evaluate_block failed, and such cells are evaluated one by one: {why}"))
            for pair in cells:  # a block that failed as a whole: its cells go one by one, so only the culprit fails
                await self._evaluate([pair])
            return
        if abandoned:
            self._abandoned()
        if self._over:
            return
        self._room.lives()
        seconds = time.perf_counter() - clock
        if meter.seconds:  # the rest is its wait for a worker
            started, seconds = started + max(0.0, seconds - meter.seconds), meter.seconds
        times = (started, seconds, tries)
        own = sum(outcome.cost for outcome in outcomes)
        # An evaluator that reports the cost of its calls means the same money.
        share = 0.0 if math.isclose(own, meter.cost, rel_tol=1e-6) else meter.cost / len(cells)
        for (key, cell), outcome in zip(cells, outcomes, strict=True):
            if meter.keys:
                self.journal.called(cell.trial.number, cell.position, meter.keys, meter.cached)
            self._outbox.finish(key, cell, replace(outcome, cost=outcome.cost + share) if share else outcome, times)

    def _displaced(self, cells: list[Keyed], error: PlaceLost) -> None:
        """A place was lost, not an evaluation: its cells, and those that share them, go back to the queue."""
        if isinstance(error, StoreError) and (store := self.journal.ledger.blobs) is not None:
            store.came(str(error))
        loop, first = asyncio.get_running_loop(), self._room.limit == math.inf
        kept = [(key, cell) for key, cell in cells if self._room.losses.again(key, loop.time())]
        for cell in self._outbox.give_back(kept):
            self._enqueue(cell)
        for key, cell in cells:
            if (key, cell) not in kept:
                self._given_up(key, cell, error)
        others = min(len(self._running) - 1, self.executor.slots)
        if not self._room.lost(others, loop.time()):
            wait = "a minute" if self.executor.patience <= 60 else f"{self.executor.patience / 60:.0f} minutes"
            self._wakeup.fail(ExecutorBroken(f"no worker could be had for {wait}: {error}. Finished work is kept"))
            return
        loop.call_at(self._room.until, self._wakeup.ring)
        if first:
            self._emit(Notice(f"{error}; until then the run continues on {others} of {self.executor.slots} slots"))

    def _given_up(self, key: bytes, cell: Cell[Any], error: PlaceLost) -> None:
        """An evaluation whose place is lost whenever it runs: maybe it takes its node down, but nobody can tell."""
        what = f"trial {cell.trial.number} on case {cell.case.id!r} lost its place again and again ({error})"
        self._emit(Notice(f"{what}; --retry-failed=place-lost evaluates it again"))
        times = (time.time(), 0.0, Losses.MOST)
        self._outbox.finish(key, cell, Failed("place-lost", f"its place was lost again and again: {error}"), times)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if self._over:
            return
        if not task.cancelled() and (error := task.exception()) is not None:
            self._wakeup.fail(error)
        self._wakeup.ring()

    # -- watching ----------------------------------------------------------------------------------------------------

    async def _tick(self) -> None:
        told, saved = 0, asyncio.get_running_loop().time()
        while True:
            await asyncio.sleep(TICK)
            if self.search.tally.told > told:  # a run that is killed later still knows how long it has worked
                told = self.search.tally.told
                self.journal.status("running", None, self.search.rules.clock())
            if self.search.stopped is None:
                self.search.check()  # rules about time fire also while nothing finishes
            if self.search.stopped is not None or self.journal.commits.error is not None:
                self._wakeup.ring()
            if self.search.stopped is None:
                late = (now := asyncio.get_running_loop().time()) - saved >= CHECKPOINT
                saved = now if late else saved
                self.search.save(1 if late else max(QUICK_TELLS, told // 10))
            if (remark := self.journal.ledger.remark()) is not None:
                self._emit(Notice(remark))
            if self._watch is not None:
                waiting = max(0, len(self._running) - self.executor.slots)  # at their workers
                running, queued = len(self._running) - waiting, len(self._queue) + waiting
                self._watch(Ticked(self.search.progress, running, queued, self._waits()))

    def _waits(self) -> str | None:
        """What the work waits for, in words: calls that all wait, or workers to be had again."""
        now = asyncio.get_running_loop().time()
        if self._room.limit == 0:
            return f"waiting for a worker, next try in {max(0.0, self._room.until - now):.0f} s"
        wait = None if (broker := here().broker) is None else broker.waits()
        if wait is None or now - wait.since < 1.0:
            return None
        then = "" if wait.until is None else f", next try in {max(0.0, wait.until - now):.0f} s"
        return f"waiting for {wait.what} since {now - wait.since:.0f} s{then}"
