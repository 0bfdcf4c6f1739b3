"""A whole study in a world of faults: one seed, one world, and what must hold at its end.

`live(seed)` runs a study through kills and faults of network, provider, disk and workers, resumes it until it ends, and
checks the result against a calm world, the ledger of each life, and the provider's bill.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import gc
import math
import os
import random
import shutil
import sqlite3
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import world_parts as parts
from world_loop import LIFE, Life, WorldLoop, WorldTime, close_left
from world_parts import CANARY_KEY, Disk, Network, Place, Provider
from world_plan import Plan, Story, plan_of
from world_studies import RPM, SCENES

from fanfold import calls
from fanfold.encoding import digest
from fanfold.errors import CallFailed, ExecutorBroken, LedgerError
from fanfold.events import RunStarted, TrialTold
from fanfold.executors.base import set_home
from fanfold.ledger import Ledger
from fanfold.models import Model
from fanfold.models.batch.executor import BatchExecutor
from fanfold.models.pricing import list_price
from fanfold.run_result import Run
from fanfold.simulator import AccountLimits, Latency, Simulator, SimulatorConfig, addresses, serve
from fanfold.simulator.billing import Charge
from fanfold.types import Ok

#: Virtual seconds after which a world counts as hung, and lives after which it counts as never ending.
LONGEST, MOST_LIVES = 3 * 3600.0, 16
#: The network has one provider.
HOST, PORT = "127.0.0.1", 80
#: Texts of errors that must never reach a model.
ERRORS = (b"Rate limit reached", b"had an error while", b"Bad Gateway", b"Overloaded", b"Please log in", b"SIGKILL")
#: Rows that are durable at a kill must be in the end as they were.
KEPT = {
    "evaluation": "SELECT * FROM evaluation",
    "call": "SELECT * FROM call",
    "payment": "SELECT * FROM payment",
    "trial": "SELECT run, number, candidate FROM trial",
    "told": "SELECT run, number, told, score, dropped FROM trial WHERE told IS NOT NULL",
}
OUTCOMES = "SELECT run.name, trial, count(*) FROM evaluation JOIN run ON run.id = run GROUP BY run, trial"


def calm_world(plan: Plan) -> Story:
    """The same study in a calm world."""
    return _calm(*plan.calm)


@functools.cache
def _calm(scene: str, variant: int, place: str, slots: int) -> Story:
    story = World(Plan(scene, variant, place, slots), "calm").story
    assert not story.problems, (scene, variant, place, story.problems)
    return story


def live(seed: int) -> Story:
    """The world of a seed, from its beginning to its end."""
    return World(plan_of(seed, calm_world), str(seed)).story


class World:
    """One study, its provider, disk, network and workers, on one clock, driven by one seed."""

    def __init__(self, plan: Plan, seed: str) -> None:
        self.plan, self.scene = plan, SCENES[plan.scene]
        self.story = Story(plan)
        self._seed = seed
        self._lives: list[Life] = []
        self._kept: dict[str, set[Any]] = {}
        self._repeats = 0
        #: How many outcomes of each trial of each run the search was told.
        self._told: dict[tuple[str, int], int] = {}
        self._run = ""
        #: What was charged for replies that no ledger knows of.
        self._unknown = 0.0
        self.limit: float | None = None
        if plan.budget is not None:
            self.limit = plan.budget * calm_world(plan).bill
        self.disk = Disk(plan.commits, self._rng("disk"), self.log)
        self.network = Network(plan.exchanges, plan.connections, self._rng("network"), self.log)
        self.workers = parts.Counted(plan.evaluations, self._rng("workers"), self.log)
        self.loop = WorldLoop(self.disk, self.network, self._killed)
        config = SimulatorConfig(
            seed=plan.variant,
            latency=Latency(0.5, 0.6),
            turnaround=Latency(30.0, 0.7),
            epoch=1_800_000_000.0,
            answer=self.scene.answer,
            limits=AccountLimits(rpm=RPM),
        )
        self.provider = Provider(Simulator(config), plan.answers, self._rng("provider"), self.log)
        root = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.folder = Path(tempfile.mkdtemp(prefix="fanfold-world-", dir=root))
        try:
            with WorldTime(self.loop, seed), _environment(), self._gc():
                try:
                    self.loop.run_until_complete(self._conduct())
                except Exception as error:
                    self._wrong(f"{type(error).__name__}: {error}")
                self._finish()
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _rng(self, what: str) -> random.Random:
        return random.Random(f"{self._seed} {what}")

    def log(self, text: str) -> None:
        self.story.log.append(f"{self.loop.time():.6f} {text}")

    def _wrong(self, text: str) -> None:
        self.story.problems.append(text)
        self.log(f"PROBLEM {text}")

    @contextlib.contextmanager
    def _gc(self) -> Iterator[None]:
        """What is left of killed lives must not be collected, and so continue, while the world lasts."""
        enabled = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if enabled:
                gc.enable()

    # -- lives -------------------------------------------------------------------------------------------------------

    async def _conduct(self) -> None:
        async with serve(self.provider, host=HOST, port=PORT):
            done: Run[Any] | None = None
            ledger = self._ledger(0)
            ledger.parent.mkdir()
            shutil.copy(_template(), ledger)
            while done is None and len(self._lives) < MOST_LIVES and not self.story.problems:
                done = await self._live()
            if done is None and not self.story.problems:
                self._wrong(f"it never ended: {len(self._lives)} lives")

    async def _live(self) -> Run[Any] | None:
        """One life of the driver; its result if it came that far."""
        number = len(self._lives)
        life = Life(number, self.plan.kills[number] if number < len(self.plan.kills) else None)
        self._lives.append(life)
        _forget_process(self.loop)  # once more: the step in which a life is killed is made to its end
        over = self._over = self.loop.create_future()
        self.log(f"life {number}")
        context = contextvars.copy_context()
        context.run(LIFE.set, life)
        struck = self._struck()
        task = self.loop.create_task(self._drive(number), context=context)
        life.stop = task.cancel if number < len(self.plan.gently) and self.plan.gently[number] else None
        task.add_done_callback(lambda _: None if over.done() else over.set_result(None))
        bound = self.loop.call_later(LONGEST, self._hangs, life)
        await over
        bound.cancel()
        self.story.steps = life.steps
        if not life.alive or task.cancelled() or task.exception() is not None:
            await asyncio.sleep(1.0)  # what it had sent arrives
        if not life.alive:
            self._look(self._ledger(number + 1), kept=False)
            return None
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        self.log(f"life {number} ends: {type(error).__name__ if error else 'done'}")
        if error is None:
            return task.result()
        self.story.stops += task.cancelled()
        self._judge(error, self._struck() - struck, life)
        following = self._ledger(number + 1)
        following.parent.mkdir()
        self.disk.copy(self._ledger(number), following)
        self._look(following, kept=False)
        return None

    async def _drive(self, number: int) -> Run[Any]:
        plan = self.plan
        place: Any = BatchExecutor("auto", poll=10.0)
        if plan.place != "batch":
            place = Place(plan.place, plan.slots, self.workers)
        study = self.scene.make(plan.variant)
        how: Any = {"run": "r", "progress": False, "grace": 1.0, "max_cost": self.limit, "watch": self._watch}
        run = await study.run_async(place, ledger=self._ledger(number), **how)
        self.story.result = _result(run, study.in_order)
        run.ledger.close()
        return run

    def _watch(self, event: Any) -> None:
        if isinstance(event, RunStarted):
            self._run = event.run_id
        elif isinstance(event, TrialTold):
            self._told[self._run, event.result.trial.number] = len(event.result.outcomes)

    def _hangs(self, life: Life) -> None:
        tasks = sorted(str(task.get_coro()) for task in asyncio.all_tasks(self.loop) if task.life is life)
        self._wrong(f"it hangs: {tasks}")
        self.loop.kill(life)

    def _killed(self, life: Life) -> None:
        self.log(f"life {life.number} is killed at step {life.steps}")
        self.story.kills += 1
        _forget_process(self.loop)
        following = self._ledger(life.number + 1)
        following.parent.mkdir()
        self.disk.copy(self._ledger(life.number), following)
        if not self._over.done():
            self._over.set_result(None)

    def _ledger(self, life: int) -> Path:
        return self.folder / str(life) / "l.db"

    def _struck(self) -> Counter[str]:
        counted = (self.disk, self.network, self.network.dialled, self.workers, self.provider.count)
        return sum((each.struck for each in counted), Counter())

    # -- what must hold ----------------------------------------------------------------------------------------------

    def _judge(self, error: BaseException, struck: Counter[str], life: Life) -> None:
        """An error that ends a life must have its cause in a fault of that life."""
        if isinstance(error, asyncio.CancelledError) and life.stop is not None:
            return
        fine = {
            LedgerError: ("full", "locked"),
            ExecutorBroken: ("lost",),
            CallFailed: (*parts.CONNECTIONS, *parts.EXCHANGES, *parts.LOST_REPLIES),
        }
        for kind, causes in fine.items():
            if isinstance(error, kind) and any(struck[cause] for cause in causes):
                return
        self._wrong(f"a life ended in {type(error).__name__}: {error}")

    def _look(self, ledger: Path, *, kept: bool = True) -> None:
        """Compare what is durable with what was before, and count what was charged and is not durable."""
        db = sqlite3.connect(ledger)
        try:
            if db.execute("PRAGMA integrity_check").fetchall() != [("ok",)]:
                self._wrong("the ledger is damaged")
            rows = {table: set(db.execute(sql)) for table, sql in KEPT.items()}
            outcomes = {(run, trial): number for run, trial, number in db.execute(OUTCOMES)}
        finally:
            db.close()
        for table, before in self._kept.items():
            if lost := before - rows[table]:
                self._wrong(f"{len(lost)} rows of {table} that were durable are lost or changed: {min(map(str, lost))}")
        for trial, number in self._told.items():
            if outcomes.get(trial, 0) < number:
                self._wrong(f"the search was told of trial {trial}, and not all of its outcomes are durable")
        self._kept = rows
        self.log(f"durable {digest(repr([sorted(map(repr, each)) for each in rows.values()])).hex()}")
        if not kept:
            held = parts.durable_calls(ledger)
            charged = self.provider.charged()
            in_flight = sum(not held[key] for key, price in charged if price == "realtime")
            deep = 2 if self.plan.place == "processes" else 1
            if in_flight > (most := self.plan.slots * deep * self.scene.together) and self.plan.place != "batch":
                self._wrong(f"{in_flight} calls were paid and not durable, with {most} in flight")
            self._repeats += in_flight
            self._unknown += math.fsum(map(_cost, [c for c in self.provider.simulator.charges if not held[c.key]]))

    def _finish(self) -> None:
        tasks = asyncio.all_tasks(self.loop)
        for life in self._lives:
            life.left += [task for task in tasks if task.life is life]  # type: ignore[attr-defined]
            close_left(life)
        story, plan = self.story, self.plan
        struck = self._struck()
        story.lives, story.faults, story.seconds = len(self._lives), struck, self.loop.time()
        story.counts = {
            "exchanges": self.network.count,
            "connections": self.network.dialled.count,
            "commits": self.disk.count,
            "evaluations": self.workers.count,
        }
        ledger = self._ledger(len(self._lives) - 1)
        if not story.problems:
            self._look(ledger)
            self._check_bill(ledger, struck)
        if self._seed != "calm" and plan.budget is None and not story.problems:
            calm = calm_world(plan)
            if story.result != calm.result:
                self._wrong(f"the result is another: {_difference(story.result, calm.result)}")
        if any(text in body for text in ERRORS for body in self.provider.bodies):
            self._wrong("the text of an error was sent to a model")
        if places := parts.scan(self.folder, CANARY_KEY.encode()):
            self._wrong(f"the key is in {places}")
        if any(CANARY_KEY in line for line in story.log):
            self._wrong("the key is in the log")
        self.loop.close()

    def _check_bill(self, ledger: Path, struck: Counter[str]) -> None:
        story, charged = self.story, self.provider.charged()
        story.charges, story.evaluations = sum(charged.values()), len(self._kept["evaluation"])
        story.batched = sum(number for (_, price), number in charged.items() if price == "batch")
        keys = {key for key, _ in charged}
        totals = Counter({key: charged[key, "realtime"] + charged[key, "batch"] for key in keys})
        story.repeated = sum(number - 1 for number in totals.values())
        lost = sum(struck[kind] for kind in (*parts.LOST_REPLIES, "drip", "slow", "twice"))
        if story.repeated > self._repeats + lost:
            self._wrong(
                f"{story.repeated} requests were paid again; {self._repeats} were in flight when a life ended, and "
                f"{lost} replies were lost"
            )
        twice = sum(charged[key, "batch"] - 1 for key in keys if charged[key, "batch"] > 1)
        if twice:
            self._wrong(f"{twice} requests were paid again in batches")
        story.bill = math.fsum(map(_cost, self.provider.simulator.charges))
        if self.limit is not None and story.bill > self.limit + self._unknown + 1e-12:
            self._wrong(f"the bill is {story.bill:.9f}, the budget {self.limit:.9f}, unknown {self._unknown:.9f}")
        refused = self.provider.simulator.billing.statuses[429] - struck["rate_limit"]
        if refused and self.plan.scene == "talks" and self.plan.variant > 1 and len(self._lives) == 1:
            self._wrong(f"{refused} requests were beyond the limit, which was told")
        missing = keys - set(parts.durable_calls(ledger))
        if missing and self.plan.budget is None:
            self._wrong(f"{len(missing)} requests were paid, and their replies are not in the ledger")


def _result(run: Run[Any], in_order: bool) -> Any:
    """What must be the same in every world: the whole search, or where the order is that of arrival, its results.

    Without what a search may cost, which is less for a resumed one: its replies are in the ledger.
    """
    rows = [
        (repr(result.trial.candidate), result.score, sorted((case, *_plain(o)) for case, o in result.outcomes.items()))
        for result in run.results()
    ]
    return (run.trace, rows) if in_order else (None, sorted(rows))


def _plain(outcome: Any) -> tuple[str, str]:
    return ("", repr(outcome.data)) if isinstance(outcome, Ok) else (outcome.kind, outcome.message)


def _difference(one: Any, other: Any) -> str:
    if one is None:
        return "there is none"
    for mine, theirs in zip(one[1], other[1]):
        if mine != theirs:
            return f"{mine!r:.400} and calm {theirs!r:.400}"
    return f"{len(one[1])} rows and calm {len(other[1])}"


def _forget_process(loop: WorldLoop) -> None:
    """What a process knows dies with it: lines to models, brokers, the way home."""
    for line in sys.modules[Model.__module__]._LINES.pop(loop, {}).values():
        line.loop = lambda: None
    calls._LOOSE.pop(loop, None)
    calls._AT_WORK.clear()
    set_home(None)


def _cost(charge: Charge) -> float:
    price = list_price(f"{charge.provider}/{charge.model}")
    assert price is not None, charge
    return price.cost(charge.input_tokens, charge.output_tokens, batch=charge.price == "batch")


@functools.cache
def _template() -> Path:
    """An empty ledger to copy: making the tables takes longer than a small study."""
    folder = tempfile.mkdtemp(prefix="fanfold-world-template-")
    Ledger(path := Path(folder, "l.db")).close()
    import atexit

    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return path


@contextlib.contextmanager
def _environment() -> Iterator[None]:
    before = dict(os.environ)
    for name in [*os.environ]:
        if name.upper().endswith("_PROXY") or name.endswith(("_API_KEY", "_BASE_URL")):
            del os.environ[name]
    os.environ.update(_variables())
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@functools.cache
def _variables() -> dict[str, str]:
    names = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY")
    return {**addresses(f"http://{HOST}:{PORT}"), **dict.fromkeys(names, CANARY_KEY), "NO_PROXY": "*"}
