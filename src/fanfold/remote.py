"""What people ask of a running run from elsewhere: to stop, to go further, to take their answer to a question."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from fanfold.context import here
from fanfold.errors import ConfigError, LedgerError
from fanfold.events import Event, Notice
from fanfold.ledger import RunJournal, RunRequest, RunView, add_request, close_requests, requests_of
from fanfold.money import Budget
from fanfold.search_loop import SearchLoop
from fanfold.stop import LIMITS, Rule, raised

#: Seconds between two looks.
LOOK = 0.5


class Remote:
    """Looks for requests twice a second, and obeys them.

    Limits that were raised once stay so: a resume starts with them, and asks for each trial when it was asked for then.
    `stop` is called for a request to stop; it returns False while there is nothing to stop yet.
    """

    def __init__(self, journal: RunJournal, stop: Callable[[], bool], emit: Callable[[Event], None]) -> None:
        self.search: SearchLoop[Any] | None = None
        self.budget: Budget | None = None
        #: The limits that were asked for, the highest of each.
        self.limits: dict[str, Any] = {}
        self._ledger, self._run = journal.ledger, journal.run
        self._name = RunView(journal.ledger, journal.run).name
        self._stop, self._emit = stop, emit
        self._last = 0
        #: Answers that no question has taken, by trial and position.
        self._answers: defaultdict[tuple[Any, Any], deque[RunRequest]] = defaultdict(deque)
        self._news = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None
        if not self._ledger.temporary:  # nobody else knows where that is
            self._recall()
            self._looking = asyncio.create_task(self._look())

    @property
    def reachable(self) -> bool:
        return self._looking is not None

    def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()

    def raised(self, rule: Rule) -> Rule:
        """A stopping rule with the limits that were asked for."""
        return raised(rule, self.limits)

    async def ask(self, question: Mapping[str, Any]) -> Any:
        """Ask people something for the evaluation that this code belongs to, and wait for what one of them answers."""
        meter = here().meter
        assert meter is not None
        cell = (meter.trial, meter.position)
        numbers = list[int]()
        if not self._answers[cell]:
            value = {"trial": meter.trial, "position": meter.position, **question}
            numbers.append(await asyncio.to_thread(add_request, self._ledger.path, self._name, "question", value))
        while not self._answers[cell]:
            self._news.clear()
            await self._news.wait()
        answer = self._answers[cell].popleft()
        await asyncio.to_thread(self._close, [*numbers, answer.id])
        return answer.value.get("value")

    def _recall(self) -> None:
        """What was asked before the run was resumed: a stop and questions are over, limits and answers hold."""
        over = []
        for request in requests_of(self._ledger, self._run):
            self._last = request.id
            if request.what == "budget":
                self._add_limits(request.value)
            elif request.what not in ("stop", "question"):
                self._keep(request)
                continue
            if request.taken is None:
                over.append(request.id)
        if over:
            self._close(over)

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK)
            with contextlib.suppress(LedgerError):  # what cannot be read now is looked at again
                self._obey(requests_of(self._ledger, self._run, self._last))

    def _obey(self, requests: Iterable[RunRequest]) -> None:
        for request in requests:
            if request.what == "stop" and not self._stop():
                return
            self._last = request.id
            if request.what == "budget":
                self._extend(request.value)
            elif request.what not in ("stop", "question"):
                self._keep(request)
                continue
            if request.what != "question":
                asyncio.get_running_loop().run_in_executor(None, self._close, [request.id])

    def _close(self, numbers: list[int]) -> None:
        with contextlib.suppress(LedgerError):  # it is obeyed all the same
            close_requests(self._ledger.path, self._name, numbers)

    def _keep(self, request: RunRequest) -> None:
        if isinstance(request.value, dict):
            self._answers[request.value.get("trial"), request.value.get("position", 0)].append(request)
            self._news.set()

    def _add_limits(self, limits: Any) -> None:
        for name in LIMITS.keys() & (limits if isinstance(limits, dict) else {}).keys():
            kind, amount = LIMITS[name]
            try:
                higher = getattr(kind(limits[name]), amount)
                if name not in self.limits or higher > getattr(kind(self.limits[name]), amount):
                    self.limits[name] = limits[name]
            except ConfigError as error:
                self._emit(Notice(f"a limit that was asked for cannot be set: {error}"))

    def _extend(self, limits: Any) -> None:
        """Raise the limits of the run as it works."""
        self._add_limits(limits)
        if self.search is None:
            return
        before = self.search.rules.stop
        rule = self.raised(before)
        if rule is before:
            self._emit(Notice("a higher limit was asked for, and the run has none that is lower"))
            return
        self.search.rules = replace(self.search.rules, stop=rule)
        if self.budget is not None:
            self.budget.extend(rule.cost_limit())
        self._emit(Notice(f"limits raised on request: the run now stops at {rule!r}"))


async def ask_person(question: Mapping[str, Any]) -> Any:
    """Ask people something for the evaluation that this code belongs to: a page shows it, and the answer comes back.

    An evaluator calls it on the event loop of its run.  What was answered before a resume is not asked again.
    """
    remote: Remote | None = here().remote
    if remote is None or not remote.reachable or here().meter is None:
        raise ConfigError("only an evaluation of a run that has a ledger can ask people: give the run a ledger")
    return await remote.ask(question)
