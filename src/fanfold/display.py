"""How a run is shown while it works: a live block on a terminal or in a notebook, single lines elsewhere.

On a terminal and elsewhere it is on stderr.
"""

from __future__ import annotations

import importlib
import math
import os
import sys
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import copy_context
from copy import copy
from typing import Any, TypeAlias

from fanfold.cards import card
from fanfold.events import (
    EvaluationFinished,
    Event,
    Notice,
    PersonAsked,
    Progress,
    RunConcluded,
    RunStarted,
    RunStopped,
    Ticked,
    TrialTold,
    Watcher,
    WaveAnswered,
    WaveSent,
)
from fanfold.stop import Either, MaxTime, Never, Rule
from fanfold.texts import count, duration, number, printable, shortened
from fanfold.types import Failed, Result

Shown: TypeAlias = Callable[[Result[Any]], str]

#: Seconds over which speed is measured, and between two lines at first and at most, where there is no terminal.
SPAN, LONGEST = 10.0, 300.0


@contextmanager
def display(
    stop: Rule,
    shown: Shown | None = None,
    wanted: bool | None = True,
    *,
    colourless: bool = False,
    unit: str | None = None,
) -> Iterator[Watcher | None]:
    """A watcher for a run that ends by the rule `stop`.  What goes wrong in it ends the display, not the run.

    `shown` describes a told trial, and `unit` is what trials are called.  `wanted=None` shows a run only to a person
    who waits for it, at a terminal or in a notebook, and warns others of a long outage.
    """
    if not (_someone_waits() if wanted is None else wanted):
        yield None if wanted is False else _warn
        return
    view = _view(stop, shown, colourless)
    view.state.unit = unit
    broken = False
    noted: set[str] = set()
    ended: State | None = None

    def watch(event: Event) -> None:
        nonlocal broken, ended
        if isinstance(event, RunConcluded) and ended is not None:
            view.state = ended  # the last thing shown is the run itself, and not one beside it
        if isinstance(event, Notice):
            if event.message in noted:  # a run beside this one says it again
                return
            noted.add(event.message)
        if not broken:
            try:
                view.see(event)
            except Exception:
                broken = True
                _quietly(view.close)
        if isinstance(event, RunStopped) and ended is None:
            ended = copy(view.state)

    try:
        yield watch
    finally:
        _quietly(view.close)


def _warn(event: Event) -> None:
    """Say what would look like a run that hangs, where nothing else is shown."""
    if isinstance(event, Notice) and event.topic == "outage":
        with suppress(Warning):  # where all warnings are errors, this one is none
            warnings.warn(event.message, stacklevel=2)


def _quietly(call: Callable[[], None]) -> None:
    try:
        call()
    except Exception:
        pass  # a display that cannot be closed must not hide the result of the run


def _view(stop: Rule, shown: Shown | None, colourless: bool) -> Lines | Live | Notebook:
    if _in_a_notebook():
        return Notebook(stop, shown)
    return Live(stop, colourless, shown) if _at_a_terminal() else Lines(stop, shown=shown)


def _at_a_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


def _in_a_notebook() -> bool:
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


def _someone_waits() -> bool:
    """Never under a test runner or continuous integration, whatever their terminals claim to be."""
    alone = os.environ.get("CI") or "PYTEST_CURRENT_TEST" in os.environ
    return not alone and (_in_a_notebook() or _at_a_terminal())


class State:
    """What the events said so far."""

    def __init__(self, stop: Rule, clock: Callable[[], float] = time.monotonic, shown: Shown | None = None) -> None:
        self.stop = stop
        self.clock = clock
        self.last_trial = ""
        #: What a trial is called in a study that looks for no best one.
        self.unit: str | None = None
        self._shown = shown
        self.started: RunStarted | None = None
        self.progress = Progress()
        self.running = 0
        self.waiting: str | None = None
        self.fresh = False
        self.over = False
        self.last_failure = ""
        self._finished: deque[float] = deque(maxlen=100_000)
        self._since = clock()

    def take(self, event: Event) -> None:
        if isinstance(event, RunStarted):
            if self.started is not None:  # a run beside the one that is over, which has rules of its own
                self.stop, self.progress, self.fresh, self.over = Never(), Progress(), False, False
                self._shown, self.last_trial = None, ""
            self.started, self._since = event, self.clock()
        elif isinstance(event, EvaluationFinished):
            self.fresh = True
            self._finished.append(self.clock())
            if isinstance(event.outcome, Failed):
                self.last_failure = f"{event.outcome.kind}: {shortened(event.outcome.message)}"
        elif isinstance(event, TrialTold | RunStopped):
            self.progress, self.over = event.progress, isinstance(event, RunStopped)
            if isinstance(event, TrialTold) and self._shown is not None:
                self.last_trial = shortened(self._shown(event.result))
        elif isinstance(event, Ticked):
            self.progress, self.running, self.waiting = event.progress, event.running, event.waiting
            self.fresh = self.fresh or event.running > 0

    @property
    def replaying(self) -> bool:
        """Recorded trials are being told again: the run was resumed, and nothing new has begun."""
        return self.started is not None and self.started.resumed and not self.fresh and not self.over

    @property
    def per_second(self) -> float:
        now = self.clock()
        while self._finished and self._finished[0] < now - SPAN:
            self._finished.popleft()
        return len(self._finished) / max(min(SPAN, now - self._since), 0.5)

    @property
    def total(self) -> int | None:
        """How many trials there will be, if the stopping rules know."""
        allowed = self.stop.allowance(self.progress)
        return None if math.isinf(allowed) else self.progress.asked + int(allowed)

    @property
    def share(self) -> float | None:
        """How much of the run is done, by the rule that will end it first."""
        shares = []
        if self.total:
            shares.append(self.progress.told / self.total)
        if (limit := _time_limit(self.stop)) is not None:
            shares.append(self.progress.elapsed / limit)
        return min(1.0, max(shares)) if shares else None

    @property
    def remaining(self) -> float | None:
        """Seconds until the run ends, if that can be told."""
        ends = []
        if self.total and (rate := self.per_second) > 0:
            ends.append((self.total - self.progress.told) * self.progress.cases / rate)
        if (limit := _time_limit(self.stop)) is not None:
            ends.append(max(0.0, limit - self.progress.elapsed))
        return min(ends) if ends else None

    def counts(self) -> str:
        now = self.progress
        total = f"{now.told:,}/" if self.total else ""
        parts = [total + count(self.total or now.told, self.unit or "trial")]
        if self.unit is None or now.cases > 1:
            parts.append(count(now.evaluations, "evaluation"))
        if not self.over and not self.replaying:
            parts.append(f"{self.per_second:.1f}/s")
        if now.best is not None and self.unit is None:
            parts.append(f"best {number(now.best)}")
        if now.cost:
            parts.append(f"cost {number(now.cost)}")
        if self.remaining is not None and not self.over and not self.replaying:
            parts.append(f"eta {duration(self.remaining)}")
        if self.last_trial and not self.over:
            parts.append(f"last {self.last_trial}")
        return ("replaying, " if self.replaying else "") + ", ".join(parts)

    def failures(self) -> str:
        last = self.last_failure or "in an earlier part of the run"
        return f"{count(self.progress.failures, 'failure')}, last {last}"


def _time_limit(rule: Rule) -> float | None:
    rules = rule.rules if isinstance(rule, Either) else (rule,)
    return min((each.seconds for each in rules if isinstance(each, MaxTime)), default=None)


def told(event: Event) -> str | None:
    """The line that an event is worth by itself."""
    if isinstance(event, Notice):
        return f"note: {event.message}"
    if isinstance(event, WaveSent):
        return f"wave {event.number}{_turns(event)}: {count(event.requests, 'request')} to {event.model}"
    if isinstance(event, WaveAnswered):
        each = duration(event.seconds / event.requests)
        return f"wave {event.number}: answered after {duration(event.seconds)}, {each} per request"
    return None


def _turns(wave: WaveSent) -> str:
    """Which of their evaluations' calls a wave carries; in a conversation, that is its turn."""
    numbers = {number + 1 for _, _, number in wave.calls}
    if not numbers:
        return ""
    first, last = min(numbers), max(numbers)
    return f", turn {first}" if first == last else f", turns {first}-{last}"


class Lines:
    """A line at the start, one after ten seconds, others when the run is twice as old, and one at the end.

    A run beside the first one has only lines of the second kind.
    """

    def __init__(self, stop: Rule, clock: Callable[[], float] = time.monotonic, shown: Shown | None = None) -> None:
        self.state = State(stop, clock, shown)
        self._since: float | None = None
        self._next = 0.0
        self._beside = ""

    def see(self, event: Event) -> None:
        state = self.state
        state.take(event)
        if isinstance(event, RunStarted) and self._since is not None:
            self._beside = f"{event.run_id.rpartition('.')[2].rpartition('-')[0]}: "
        elif isinstance(event, RunStarted):
            self._since, self._next = state.clock(), state.clock() + SPAN
            going = "replaying and continuing" if event.resumed else "running"
            self._print(f"{going} {event.run_id} on {event.executor}, ledger {event.ledger or 'none'}")
        elif (line := told(event)) is not None:
            self._print(line)
        elif (isinstance(event, RunStopped) and not self._beside) or (
            isinstance(event, Ticked) and state.clock() >= self._next
        ):
            self._next = state.clock() + min(LONGEST, max(SPAN, state.clock() - (self._since or 0.0)))
            waiting = f", {state.waiting}" if state.waiting and not state.over else ""
            self._print(
                self._beside + state.counts() + waiting + (f", {state.failures()}" if state.progress.failures else "")
            )

    def close(self) -> None:
        pass

    def _print(self, line: str) -> None:
        print(printable(line), file=sys.stderr, flush=True)


#: A text as it is: no markup, no emoji in place of their names, no colours for numbers.
_PLAIN: dict[str, Any] = {"markup": False, "emoji": False, "highlight": False}


class Live:
    """One block that is redrawn about twice a second, and stays as it is while a person is asked below it."""

    def __init__(self, stop: Rule, colourless: bool, shown: Shown | None = None) -> None:
        from rich.console import Console

        self.state = State(stop, shown=shown)
        self._console = Console(stderr=True, no_color=True if colourless else None)
        self._display: Any = None
        self._questions = 0

    def see(self, event: Event) -> None:
        self.state.take(event)
        if isinstance(event, PersonAsked):
            self._questions += -1 if event.done else 1
        if self._questions:
            self.close()
        elif isinstance(event, RunStarted | Ticked | RunStopped | RunConcluded):
            self._draw()
        if (line := told(event)) is not None:
            self._console.print(printable(line), **_PLAIN)

    def close(self) -> None:
        if self._display is not None:
            self._display.stop()
            self._display = None

    def _draw(self) -> None:
        from rich.live import Live as Display

        if self._display is None:
            self._display = Display(console=self._console, auto_refresh=False, redirect_stdout=False)
            self._display.start()
        self._display.update(self._block(), refresh=True)

    def _block(self) -> Any:
        from rich.console import Group
        from rich.text import Text

        state, started = self.state, self.state.started
        assert started is not None
        head = Text.assemble((started.run_id, "bold"), f"  {state.running}/{started.slots} on {started.executor}")
        lines: list[Any] = [head]
        if state.share is not None:
            whole = max(10, min(50, self._console.width - 7))
            full = int(whole * state.share)
            lines.append(Text.assemble("[", ("#" * full, "green"), "." * (whole - full), f"] {100 * state.share:.0f}%"))
        lines.append(Text(state.counts(), overflow="ellipsis", no_wrap=True))
        if state.waiting and not state.over:
            lines.append(Text(state.waiting, style="yellow", overflow="ellipsis", no_wrap=True))
        if state.progress.failures:
            lines.append(Text(state.failures(), style="red", overflow="ellipsis", no_wrap=True))
        for line in lines:
            line.plain = printable(line.plain, lines=False)  # a stranger's text gives no orders to the terminal
        return Group(*lines)


class Notebook:
    """An output of the notebook's cell that is redrawn about twice a second."""

    def __init__(self, stop: Rule, shown: Shown | None = None) -> None:
        handle: Any = importlib.import_module("IPython.display").DisplayHandle()
        self.state = State(stop, shown=shown)
        self._notes: deque[str] = deque(maxlen=5)
        self._handle = handle
        handle.display(self)
        self._context = copy_context()  # a kernel finds the cell by it, and events come from another thread

    def see(self, event: Event) -> None:
        self.state.take(event)
        if (line := told(event)) is not None:
            self._notes.append(line)
        if isinstance(event, RunStarted | Ticked | RunStopped | RunConcluded):
            self.close()

    def close(self) -> None:
        self._context.run(self._handle.update, self)

    def __repr__(self) -> str:
        return self.state.counts()

    def _repr_html_(self) -> str:
        state, started = self.state, self.state.started
        if started is None:
            return ""
        facts = {"progress": state.counts()}
        if state.waiting and not state.over:
            facts["waiting"] = state.waiting
        if state.progress.failures:
            facts["failures"] = state.failures()
        if self._notes:
            facts["notes"] = "\n".join(self._notes)
        head = "" if state.over else f"{state.running} of {started.slots} slots of {started.executor} at work"
        bar = "" if state.share is None else f'<progress value="{state.share:.3f}"></progress>'
        return card(started.run_id, head, facts, bar)
