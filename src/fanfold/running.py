"""How a run is put together, resumed and interrupted, and its result."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from fanfold import executors
from fanfold.calls import CallBroker, Metrics, at_work
from fanfold.context import within
from fanfold.dispatcher import Dispatcher
from fanfold.encoding import encode, words
from fanfold.errors import ConfigError, OnlyFailures, ReplayDivergence
from fanfold.events import Event, Notice, RunConcluded, RunStarted, RunStopped, shielded
from fanfold.fingerprints import fingerprint
from fanfold.garbage import rare_collections
from fanfold.identity import REMEDY, Identity
from fanfold.ledger import (
    RUN_NAME,
    Commits,
    Insert,
    Ledger,
    Pruner,
    RunBlobs,
    RunJournal,
    RunLock,
    RunView,
    Spending,
    belonging,
    create_run,
    forget_run,
    new_name,
    restart_run,
)
from fanfold.money import Budget
from fanfold.natural import natural_progress, natural_result, natural_watcher
from fanfold.refill import Refill, RefillJournal, kinds_of
from fanfold.remote import Remote
from fanfold.resuming import Resumed, candidates_of, search_of
from fanfold.run_options import RunOptions
from fanfold.run_result import Run as Run
from fanfold.search_loop import SearchLoop
from fanfold.sharing import SharedBudget, Sharing, shared_by
from fanfold.stop import MaxCost, limited
from fanfold.summary import Summary
from fanfold.types import CompleteResult
from fanfold.wakeup import DETACHED, INTERRUPTED, Wakeup
from fanfold.work import Work, WorkLimits

if TYPE_CHECKING:
    from fanfold.study import Study


#: Stops a run from any thread: gently, or (True) at once.
Stop: TypeAlias = "Callable[[bool], None]"
#: Runs a study beside a finished run, under the run's name and a word; and what is made of a run with its help.
Go: TypeAlias = "Callable[[str, Study[Any]], Awaitable[Run[Any]]]"
Conclude: TypeAlias = "Callable[[Run[Any], Go], Awaitable[Summary]]"


class Start:
    """A study and how to run it, checked and put together; calling it runs it."""

    def __init__(self, study: Study[Any], options: RunOptions, hand_over: Callable[[Stop], None] | None = None) -> None:
        self.study = study
        self.options = options
        rule = options.limit(study.stop)
        self.rule = rule.mirrored() if study.minimize else rule
        self.name = options.run or new_name(study.name)
        self.watch = natural_watcher(study.goal, shielded(options.watch))
        self.stop: Stop | None = None
        self._wakeup = Wakeup()
        self._remote: Remote | None = None
        self._journal: RunJournal | None = None
        self._sharing: Sharing | None = None
        #: The fingerprint that finished evaluations are kept under, and what there is to say about the study.
        self._evaluator = ""
        self._remarks: list[str] = []
        #: Told how this run can be stopped; a run beside another is stopped with that one.
        self._hand_over = hand_over or self._take_over
        if options.share_budget is not None and options.share is None:
            raise ConfigError("share_budget needs share=URL (--share): the server where the budget is kept")
        if options.retry_failed:
            kinds_of(options.retry_failed)
        if RUN_NAME.fullmatch(self.name) is None:
            raise ConfigError(
                f"run {self.name!r} cannot be a run's name: use up to 80 letters, digits, dots, dashes and underscores"
            )
        self.executor = options.place(study.evaluate)
        inline = isinstance(self.executor, executors.Inline)
        if study.timeout is not None and inline and not executors.is_coroutine_function(study.evaluate):
            raise ConfigError("a timeout cannot stop a plain function that runs inline: use processes:N or threads:N")

    async def __call__(self) -> Run[Any]:
        if callable(ready := getattr(self.study.evaluate, "check_ready", None)):
            ready()
        async with shared_by(self.options.share, self._warn) as self._sharing:
            return await self._opened()

    async def _opened(self) -> Run[Any]:
        ledger = Ledger(self.options.ledger)
        try:
            lock = RunLock(ledger.path, self.name)
            try:
                if self.options.blobs is not None:
                    ledger.blobs = RunBlobs.at(self.options.blobs, ledger)
                with rare_collections():
                    done = await self._locked(ledger)
                if self.study.conclude is None or done.reason in (INTERRUPTED, DETACHED):
                    return done
                return await self._concluded(done, self.study.conclude)
            finally:
                if self._remote is not None:
                    self._remote.close()
                if ledger.blobs is not None:
                    ledger.blobs.close()
                ledger.settle(shrinks=self.study.keep is not None)
                lock.release()
        except BaseException:
            ledger.close()
            raise

    async def _locked(self, ledger: Ledger) -> Run[Any]:
        commits = Commits(ledger)
        run, new, identity = self._find_or_create(ledger)
        journal = self._journal = RunJournal(ledger, run, commits, identity.basis)
        remote = self._remote = Remote(journal, self._asked_to_stop, self._emit)
        started = asyncio.get_running_loop().time()

        def clock() -> float:
            return journal.elapsed + asyncio.get_running_loop().time() - started

        status, reason = "failed", "it ended in an error"
        try:
            # The executor ends before the broker: what it left to providers may need their lines once more.
            async with self._broker(journal, remote), self.executor:
                with within(remote=remote):
                    search, reason = await self._searched(journal, clock, remote)
            done = "failed" if search.progress.only_failures else "finished"
            status = "stopped" if reason in (INTERRUPTED, DETACHED) else done
        except asyncio.CancelledError:
            status, reason = "stopped", INTERRUPTED
            raise
        except Exception as error:
            reason = words(error)
            if isinstance(error, OnlyFailures):
                reason, error.run_id = error.reason, self.name
            raise
        finally:
            for remark in (*self.executor.remarks(), *filter(None, [ledger.remark()])):
                self._emit(Notice(remark))
            journal.status(status, reason, clock())
            await commits.flush()
            commits.close()
            identity.used(self.study, self._evaluator)
            if new and status == "failed":
                forget_run(ledger, journal.run)
        self._emit(RunStopped(reason, search.progress))
        goal, told = self.study.goal, search.tally.best
        best = None if told is None else CompleteResult.of(natural_result(goal, told))
        progress = natural_progress(goal, search.progress)
        return Run(self.name, best, progress, reason, search.tally.trace.hex(), ledger)

    async def _searched(
        self, journal: RunJournal, clock: Callable[[], float], remote: Remote
    ) -> tuple[SearchLoop[Any], str]:
        """Failed evaluations again where that is wanted, then the search; gives what was done last and why it ended."""

        def fresh(journal: RunJournal) -> Resumed:
            return search_of(self.study, remote.raised(self.rule), journal, clock, self.watch, self.options.replay)

        search = (resumed := fresh(journal)).search
        self._announce(journal)
        if resumed.remark is not None:
            self._emit(Notice(resumed.remark))
        journal.status("running", None, journal.elapsed)
        if self.options.retry_failed:
            again = RefillJournal(journal, search.schedule)
            kinds, part = kinds_of(self.options.retry_failed), "belongs_to" in (self.options.meta or {})
            asked = candidates_of(self.study, journal, search)
            cells = again.failed_cells(kinds, asked, search.rules, named_here=not part)
            if cells or not part:
                self._emit(Notice(f"{len(cells)} failed evaluation(s) are made again"))
            if cells:
                refill = Refill(search.strategy, search.schedule, search.rules, again, cells)
                reason = await self._driven(Resumed(refill), again)
                if refill.stopped is not None:
                    return refill, reason
                journal = RunJournal(journal.ledger, journal.run, journal.commits, journal.basis)
                resumed = fresh(journal)
        remote.search = resumed.search
        return resumed.search, await self._driven(resumed, journal)

    async def _driven(self, resumed: Resumed, journal: RunJournal) -> str:
        study, options, search = self.study, self.options, resumed.search
        limits = WorkLimits(study.timeout, study.retries, options.grace, options.reuse, options.max_failures or None)
        ticket = None if journal.ledger.blobs is None else journal.ledger.blobs.ticket
        fetches, cases = self.executor.fetches, study.seeded_cases
        work = Work(study.evaluate, self._evaluator, cases, limits, study.goal, ticket, study.shared, fetches)
        if study.keep is not None and not isinstance(search, Refill):
            needs = getattr(search.strategy, "needs", lambda: None)  # a strategy need not be a subclass of ours
            journal.pruner = Pruner(study.evaluate, needs, study.keep)
            for trial in resumed.reopened:
                journal.pruner.asked(trial.number, encode(trial.candidate))
        dispatcher = Dispatcher(search, journal, self.executor, work, self._wakeup, self._emit, self.watch)
        self._hand_over(_stopper(self._wakeup))
        return await dispatcher.drive(resumed.reopened, resumed.waits)

    async def _concluded(self, done: Run[Any], conclude: Conclude) -> Run[Any]:
        """The run with what its study makes of it; interrupted on the way, the run counts as interrupted."""
        beside: list[Run[Any]] = []

        async def go(word: str, study: Study[Any]) -> Run[Any]:
            run = await self._beside(done, word, study)
            beside.append(run)
            if run.reason in (INTERRUPTED, DETACHED):
                raise asyncio.CancelledError
            return run

        run = done.ledger.run(done.id).id
        commits = Commits(done.ledger)
        try:
            summary = await conclude(done, go)
            commits.put(Insert.SUMMARY, (run, encode(summary, f"the summary of {done.id}", finite=False)))
        except asyncio.CancelledError:
            if not beside or beside[-1].reason not in (INTERRUPTED, DETACHED):
                raise
            return replace(done, reason=beside[-1].reason)
        finally:
            await commits.flush()
            commits.close()
            for each in beside:
                each.ledger.close()
        self._emit(RunConcluded(done.id, summary.figures))
        return replace(done, summary=summary)

    async def _beside(self, done: Run[Any], word: str, study: Study[Any]) -> Run[Any]:
        """Another study on the same executor, ledger and money, whose run belongs to this one."""
        # A run that continued since may conclude something else, and then it is another run beside.
        name = f"{done.id}.{word}-{done.progress.told}"
        limit = (self.rule if self._remote is None else self._remote.raised(self.rule)).cost_limit()
        if limit < math.inf:
            left = limit - _paid_before(done.ledger, done.id, name)
            study = replace(study, stop=limited(study.stop, MaxCost(max(1e-12, left))))
        options = self.options.beside(self.executor, done.ledger.path, name, {"belongs_to": done.id})
        if options.reuse == "ledger" and Identity.of(study).unknown("evaluate"):
            options = replace(options, reuse="run")  # a search that is over is not lost because of its conclusion
        return await Start(study, options, self._take_over)()

    def _take_over(self, stop: Stop) -> None:
        self.stop = stop

    def _asked_to_stop(self) -> bool:
        """Stop as the first Ctrl-C does; False while there is nothing to stop yet."""
        if self.stop is not None:
            self.stop(False)
        return self.stop is not None

    @contextlib.asynccontextmanager
    async def _broker(self, journal: RunJournal, remote: Remote) -> AsyncIterator[None]:
        """A broker for the model calls of the run's evaluations."""
        ledger, run = journal.ledger, journal.run
        limit = remote.raised(self.rule).cost_limit()
        shared = SharedBudget.of(self._sharing, self.options.share_budget)
        budget = remote.budget = Budget.of(ledger, run, limit, collects=self.executor.collects, shared=shared)
        broker = CallBroker(
            ledger,
            journal.commits,
            run=run,
            cache=self.options.cache,
            budget=budget,
            sharing=self._sharing,
            halt=self._wakeup.halt,
            emit=self._emit,
        )
        grace = self.options.grace
        try:
            with at_work(broker):
                yield
            grace = 0.0  # what was to be waited for has been waited for
        finally:
            await broker.close(grace)
            if shared is not None:
                shared.close()
            if broker.metrics != Metrics():
                total = broker.metrics.plus(RunView(ledger, run).counts())
                journal.commits.put(Insert.COUNTS, (run, encode(total)))

    def _find_or_create(self, ledger: Ledger) -> tuple[int, bool, Identity]:
        """The id of the run, whether it is new, and what is searched."""
        name, identity = self.name, Identity.of(self.study)
        self._evaluator = identity.record["evaluate"]
        if self.study.shared and (unknown := fingerprint(dict(self.study.shared), "shared").unknown):
            listed = ", ".join(f"{path} ({what})" for path, what in unknown.items())
            raise ConfigError(
                f"what evaluations share cannot be compared with that of another run: {listed}. {REMEDY.capitalize()}"
            )
        if self.options.reuse == "ledger" and (where := identity.unknown("evaluate")):
            raise ConfigError(
                f"reuse='ledger' takes results of an equal evaluator, and whether one is equal to this cannot be told: "
                f"{where} cannot be written down. Either {REMEDY}; or use reuse='run'"
            )
        run = ledger.find(name)
        if callable(ready := getattr(self.study.conclude, "check_ready", None)):
            ready(None if run is None else RunView(ledger, run).summary())
        if run is None:
            meta = dict(self.options.meta or {})
            return create_run(ledger, name, identity.record, meta, self.study.seeded_cases), True, identity
        self._check(identity, ledger.identity(run), ledger.info(run).meta)
        if isinstance(stop := (self.options.meta or {}).get("stop"), str):
            restart_run(ledger, run, stop)
        return run, False, identity

    def _check(self, identity: Identity, recorded: Any, meta: Mapping[str, Any]) -> None:
        """Refuse to continue with another study than the recorded one."""
        changes = identity.changes(recorded, meta.get("fields"), (self.options.meta or {}).get("fields"))
        refused = dict(changes.refused)
        if self.options.accept_changes and refused.keys() == {"evaluate"}:
            refused = {}
        if refused:
            said = "; ".join(filter(None, refused.values()))
            raise ReplayDivergence(
                f"run {self.name!r} cannot continue, its study has changed: {said}. {changes.remedy}"
            )
        self._remarks = changes.notices
        if "evaluate" not in changes.refused and self.options.reuse == "run":
            self._evaluator = recorded["evaluate"]  # under which equal cells of this run are found
        if changes.older:
            self._remarks.append(
                f"run {self.name!r} was begun by version 0.1.0, which did not write down the settings of its "
                "evaluator: whether they are the same cannot be told"
            )

    def _announce(self, journal: RunJournal) -> None:
        study, slots = self.study, self.executor.slots
        path = None if journal.ledger.temporary else str(journal.ledger.path)
        fields = (self.options.meta or {}).get("fields", {})
        self._emit(
            RunStarted(
                self.name,
                path,
                self.executor.name,
                slots,
                journal.recorded > 0,
                study.name,
                fields if isinstance(fields, Mapping) else {},
                journal.recorded_told,
            )
        )
        for remark in (*study.remarks, *self._remarks):
            self._emit(Notice(remark))
        if self.options.run is not None and journal.ledger.temporary:
            self._warn(f"run {self.name!r} is not kept: give run() a ledger='runs.db' to continue it later")
        batches = RunView(journal.ledger, journal.run).batches(open=True)
        if batches and not self.executor.collects:
            self._warn(
                f"{len(batches)} provider batch(es) of this run with {sum(batch.requests for batch in batches)} "
                "request(s) are still open: stop, "
                "and resume with the executor batch:auto, or what they answer is paid for again"
            )
        busy = study.effective_window * len(study.seeded_cases)
        if busy < slots and self.executor.bounded:
            window = f"window={study.effective_window} with {len(study.seeded_cases)} case(s)"
            self._warn(f"{window} keeps at most {busy} of the {slots} slots busy: give the study a larger window")

    def _warn(self, text: str) -> None:
        self._emit(Notice(text))

    def _emit(self, event: Event) -> None:
        if isinstance(event, Notice) and self._journal is not None:
            self._journal.note(event.message)
        if self.watch is not None:
            self.watch(event)


def _stopper(wakeup: Wakeup) -> Stop:
    """A function that any thread may call to stop the run, gently or (True) at once."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None

    def stop(now: bool) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the run is over
            if now:
                loop.call_soon_threadsafe(task.cancel)
            else:
                loop.call_soon_threadsafe(wakeup.stop, INTERRUPTED)

    return stop


def _paid_before(ledger: Ledger, whole: str, name: str) -> float:
    """What a run and those beside it paid before the one of this name began; infinite where that is not known."""
    known = ledger.find(name)
    runs = [run for run in belonging(ledger, ledger.run(whole).id) if known is None or run < known]
    paid = Spending.of(ledger, *runs)
    return math.inf if paid.unpriced else paid.cost
