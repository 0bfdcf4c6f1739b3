"""Measures conversations: how close to the ideal they run, that batches cost half, and what ten thousand of them hold.

python benchmarks/conversations.py --quick
python benchmarks/conversations.py --quick --only price,memory

The makespan is divided by a lower bound: the longest conversation, all the work over what may run at once, or the calls
over the rate, whichever is most.  Everything is played by the study of secrets, on simulated models whose latency is
lognormal, and most of it on the virtual clock, where no other load can interfere.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import functools
import json
import math
import multiprocessing
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from limits import run
from measure import Line, Sampled, Table, Target, sampled, some_of
from memory import resident

from fanfold import Case, Run, Study, Sweep
from fanfold.calls import CallBroker, Reply
from fanfold.context import enter
from fanfold.limits import Limits
from fanfold.models import Model, model
from fanfold.models.simulated import SimulatedTransport
from fanfold.simulator import AccountLimits as Allowance
from fanfold.simulator import Simulator, SimulatorConfig, serve
from fanfold.studies.secrets import AgentSpec, Config, Game, study
from fanfold.studies.secrets.conversation import TurnRequest
from fanfold.studies.secrets.evaluator import PLAYER, GameEvaluator
from fanfold.studies.secrets.scenarios import scenarios
from fanfold.studies.secrets.simulated import player
from fanfold.sync import run_sync
from fanfold.testing import run_virtual
from models import RESULTS, publish, server, simulator

#: Seconds of an answer: the median, and the sigma of the lognormal.
MEDIAN, SIGMA = 3.0, 0.8
#: Seconds of its rate that a provider lets through at once, and that a client sends at once (its default).
BURST, SENT = 1.0, 0.5
#: In real time everything is so many times as fast.
FAST = 10.0
MODELS = ("openai/gpt-4o-mini", "anthropic/claude-haiku-4-5")
#: The makespan over the bound: where nothing holds conversations back, and anywhere.
FREE, ANYWHERE = 1.10, 1.40


@dataclass(frozen=True)
class Sizes:
    """How many conversations of how many messages from each agent, with how many seeds; and how many are remembered."""

    conversations: int = 200
    messages: int = 5
    seeds: int = 5
    real_seeds: int = 2
    remembered: tuple[int, int] = (1_000, 10_000)


FULL = Sizes(seeds=20, real_seeds=5)
QUICK = Sizes()

#: By conversation, the model and the seconds of each of its calls.
Took: TypeAlias = dict[int, list[tuple[str, float]]]


@dataclass(frozen=True)
class Setting:
    """What holds conversations back, and what the client knows of it.

    `slots` are conversations at once, `in_flight` calls at once to each provider, `rate` the requests per second that
    each provider takes.  The client is told the rate, reads it from headers, has to find out by itself (`nothing`), or
    looks for no limits at all (`off`).  With two providers each agent has one of its own; then the same one always
    opens, or (`staggered`) they take turns.
    """

    name: str
    slots: int | None = None
    in_flight: int | None = None
    rate: float | None = None
    knows: Literal["told", "headers", "nothing", "off"] = "off"
    providers: int = 1
    staggered: bool = True
    #: A conversation may be twice as long, and agents may end it.
    uneven: bool = False
    most: float = ANYWHERE
    #: How many times as fast everything is.
    speed: float = 1.0

    @property
    def limits(self) -> Limits:
        told = self.rate * self.speed * 60 if self.rate is not None and self.knows == "told" else None
        adaptive = self.knows != "off"
        return Limits(told, in_flight=self.in_flight, adaptive=adaptive, burst=SENT / self.speed)

    def models(self, url: str) -> dict[str, Model]:
        make = functools.partial(model, key="no-key", limits=self.limits, timeout=600)
        return {name: make(name, base_url=at) for name, at in zip(MODELS, (f"{url}/v1", url))}

    def simulator(self, seed: int) -> Simulator:
        rate = None if self.rate is None else self.rate * self.speed * 60
        allowance = Allowance(rate, burst_seconds=BURST / self.speed, headers=self.knows == "headers")
        answer = functools.partial(answered, MEDIAN / self.speed)
        return Simulator(SimulatorConfig(seed=seed, limits=allowance, answer=answer, epoch=0.0))

    def game(self, sizes: Sizes) -> Game:
        agents = tuple(AgentSpec(MODELS[seat % self.providers]) for seat in range(2))
        return Game(agents, rounds=1, messages=sizes.messages * (1 + self.uneven), early_end=self.uneven)

    def cases(self, sizes: Sizes, seed: int) -> list[Case]:
        """Two twins differ in who opens; where that is always the same one, every case is of another scenario."""
        count = sizes.conversations
        return scenarios(count, 2, seed) if self.staggered else scenarios(2 * count, 2, seed)[::2]

    def bound(self, took: Took) -> float:
        """No schedule of these calls can end sooner."""
        calls = [call for talk in took.values() for call in talk]
        bounds = [max(sum(seconds for _, seconds in talk) for talk in took.values())]
        if self.slots is not None:
            bounds.append(sum(seconds for _, seconds in calls) / self.slots)
        for name in MODELS:
            work = [seconds for used, seconds in calls if used == name]
            if self.in_flight is not None:
                bounds.append(sum(work) / self.in_flight)
            if self.rate is not None:
                bounds.append((len(work) - max(1.0, self.rate * BURST)) / (self.rate * self.speed))
        return max(bounds)


SETTINGS = (
    Setting("no limit, no cap", most=FREE),
    Setting("no limit near, as headers say (500/s)", rate=500, knows="headers", most=FREE),
    Setting("no limit, which has to be found out", knows="nothing"),
    Setting("50 conversations at once", slots=50),
    Setting("15 conversations at once", slots=15),
    Setting("50 calls in flight", in_flight=50),
    Setting("15 calls in flight", in_flight=15),
    Setting("20/s", rate=20, knows="told"),
    Setting("20/s, learnt from headers", rate=20, knows="headers"),
    Setting("20/s, found by refusals", rate=20, knows="nothing"),
    Setting("5/s", rate=5, knows="told"),
    Setting("2 providers, 5/s each, one always opens", rate=5, knows="told", providers=2, staggered=False),
    Setting("2 providers, 5/s each, openers take turns", rate=5, knows="told", providers=2),
    Setting("2 providers, 1/s each, one always opens", rate=1, knows="told", providers=2, staggered=False),
    Setting("2 providers, 1/s each, openers take turns", rate=1, knows="told", providers=2),
    Setting("uneven lengths, 50 conversations at once", slots=50, uneven=True),
    Setting("uneven lengths, 50 calls in flight", in_flight=50, uneven=True),
)
#: Those that are played in real time as well.
REAL = tuple(dataclasses.replace(SETTINGS[index], speed=FAST) for index in (0, 3, 7))


async def answered(
    median: float, name: str, messages: Sequence[Mapping[str, Any]], params: Mapping[str, Any], rng: random.Random
) -> str:
    """What a simulated model says, and how long it takes: both follow from the request, whoever makes it and when."""
    await asyncio.sleep(rng.lognormvariate(math.log(median), SIGMA))
    return player(name, messages, params, rng)


@dataclass(frozen=True, eq=False)
class Playing(GameEvaluator):
    """The study's own evaluation on given models; it keeps how long every call took, and enters `turn` for each."""

    models: Mapping[str, Model] = field(default_factory=dict)
    turn: Callable[[], AbstractAsyncContextManager[None]] = contextlib.nullcontext
    took: Took = field(default_factory=dict)

    def _model(self, name: str, game: Game) -> Model:
        return self.models[name]

    async def _ask(self, game: Game, asking: TurnRequest) -> Reply:
        async with self.turn():
            reply = await super()._ask(game, asking)
        self.took.setdefault(asking.seed, []).append((asking.agent.spec.model, reply.seconds))
        return reply


class Turns:
    """A barrier for every turn: calls go once each conversation that is not over wants one, `most` of them at once."""

    def __init__(self, conversations: int, most: int) -> None:
        self._alive = conversations
        self._waiting = 0
        self._gate = asyncio.Event()
        self._free = asyncio.Semaphore(most)

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        gate = self._gate
        self._waiting += 1
        self._look()
        await gate.wait()
        async with self._free:
            yield

    def over(self) -> None:
        """A conversation has ended."""
        self._alive -= 1
        self._look()

    def _look(self) -> None:
        if self._waiting and self._waiting == self._alive:
            self._waiting = 0
            gate, self._gate = self._gate, asyncio.Event()
            gate.set()


async def sequential(slots: int, playing: Playing, game: Game, cases: Sequence[Case]) -> None:
    """One conversation after the other."""
    for case in cases:
        await playing(game, case)


async def waves(slots: int, playing: Playing, game: Game, cases: Sequence[Case]) -> None:
    """All conversations turn by turn."""
    turns = Turns(len(cases), slots)
    gated = dataclasses.replace(playing, turn=turns.turn)

    async def one(case: Case) -> None:
        await gated(game, case)
        turns.over()

    await asyncio.gather(*map(one, cases))


async def barrier_free(slots: int, playing: Playing, game: Game, cases: Sequence[Case]) -> None:
    """The engine: a study on async slots, with a ledger."""
    done = await Study(Sweep([game]), playing, cases).run_async(f"async:{slots}")
    done.ledger.close()
    if done.progress.failures:
        raise RuntimeError(f"conversations failed: {done.progress}")


Way: TypeAlias = Callable[[int, Playing, Game, Sequence[Case]], Awaitable[None]]
WAYS: dict[str, Way] = {"sequential": sequential, "waves": waves, "barrier-free": barrier_free}


@dataclass(frozen=True)
class Played:
    """How long all conversations together took, and each call of them."""

    seconds: float
    took: Took


async def timed(setting: Setting, sizes: Sizes, seed: int, way: str, models: Mapping[str, Model]) -> Played:
    """Play all conversations in one way."""
    broker = CallBroker(cache="off")
    enter(broker=broker)
    game, cases = setting.game(sizes), setting.cases(sizes, seed)
    playing = Playing(models=models)
    clock = asyncio.get_running_loop().time
    began = clock()
    await WAYS[way](setting.slots or len(cases), playing, game, cases)
    seconds = clock() - began
    await broker.close()
    lengths = {len(talk) for talk in playing.took.values()}
    if len(playing.took) != len(cases) or (not setting.uneven and lengths != {2 * sizes.messages}):
        raise RuntimeError(f"{setting.name}, {way}: {len(playing.took)} conversations of {lengths} turns were played")
    return Played(seconds, playing.took)


def virtually(setting: Setting, sizes: Sizes, seed: int, way: str) -> Played:
    """`timed` with the simulator in this process, on a clock that jumps."""
    transport = SimulatedTransport(setting.simulator(seed))
    made = setting.models("http://localhost").items()
    models = {name: dataclasses.replace(each, connect=lambda: transport) for name, each in made}
    random.seed(seed)  # the pauses before a refused call is tried again are drawn from there
    return run_virtual(timed(setting, sizes, seed, way, models))


def really(index: int, sizes: Sizes, seed: int) -> dict[str, float]:
    """A setting in real time over sockets, the simulator in another process; and the same on the virtual clock."""
    setting = REAL[index]
    with server([sys.executable, __file__, "--serve", str(index), str(seed)]) as url:
        real = run(timed(setting, sizes, seed, "barrier-free", setting.models(url))).seconds
    virtual = virtually(setting, sizes, seed, "barrier-free")
    # The bound is of what the server slept, not of when that arrived.
    bound = setting.bound(virtual.took)
    ratios = {"real / virtual": real / virtual.seconds, "real / bound": real / bound}
    return {"real s": real, "virtual s": virtual.seconds, **ratios}


def makespans(sizes: Sizes) -> Iterator[Table]:
    """Every setting in every way.  A run mostly waits for its ledger's commits, so there may be more than cores."""
    lines = []
    with ProcessPoolExecutor(4, mp_context=multiprocessing.get_context("spawn")) as pool:
        running = {
            (setting, seed, way): pool.submit(virtually, setting, sizes, seed, way)
            for setting in SETTINGS
            for seed in range(sizes.seeds)
            for way in WAYS
        }
        for setting in SETTINGS:
            samples = []
            for seed in range(sizes.seeds):
                played = {way: running[setting, seed, way].result() for way in WAYS}
                bound = setting.bound(played["barrier-free"].took)
                samples.append({way: each.seconds / bound for way, each in played.items()} | {"bound s": bound})
            worst = Sampled((max(sample["barrier-free"] for sample in samples),))
            target = Target("barrier-free", setting.most)
            lines.append(Line(setting.name, {**sampled(samples), "worst seed": worst}, target))
    what = f"{sizes.conversations} conversations of {2 * sizes.messages} turns, {sizes.seeds} seeds"
    how = f"{MEDIAN:g} s a call, lognormal {SIGMA:g}, virtual clock"
    yield Table(f"Makespan over the lower bound: {what}, {how}", lines)


def realities(sizes: Sizes) -> Iterator[Table]:
    lines = []
    for index, setting in enumerate(REAL):
        samples = [really(index, sizes, seed) for seed in range(sizes.real_seeds)]
        lines.append(Line(setting.name, sampled(samples), Target("real / virtual", 1.10)))
    yield Table(f"Barrier-free over sockets in real time, {FAST:g} times as fast, and on the virtual clock", lines)


def prices(sizes: Sizes) -> Iterator[Table]:
    """The same conversations in realtime and in provider batches, by what the ledgers say each call cost."""
    lines = []
    for name, early_end in (("equal lengths", False), ("uneven lengths", True)):
        plain, batched = (charged(sizes, executor, early_end) for executor in ("async:200", "batch:auto"))
        if plain.keys() != batched.keys():
            raise RuntimeError(f"{name}: other calls were made in batches than in realtime")
        # Exact sums, in whatever order the calls came.
        realtime, batch = (math.fsum(cost for cost, _ in calls.values()) for calls in (plain, batched))
        values = {
            "calls": float(len(plain)),
            "not in a batch": float(sum(wave is None for _, wave in batched.values())),
            "not at half": float(sum(cost != plain[key][0] / 2 for key, (cost, _) in batched.items())),
            "realtime $": realtime,
            "batch $": batch,
            "off half $": abs(batch - realtime / 2),
        }
        target = None if early_end else Target("off half $", 0.0)
        note = f"batch / realtime = {batch / realtime!r}"
        lines.append(Line(name, sampled([values]), target, note))
    what = f"{sizes.conversations} conversations between two providers, up to {2 * sizes.messages} turns"
    yield Table(f"What provider batches cost, by the ledger: {what}", lines)


def charged(sizes: Sizes, executor: str, early_end: bool) -> dict[bytes, tuple[float, str | None]]:
    """By key, what every call cost, and the batch it travelled in."""
    config = Config(
        models=("simulated/gpt-4o-mini", "simulated/claude-haiku-4-5"),
        num_interactions=sizes.conversations,
        messages_per_interaction=sizes.messages,
        early_end=early_end,
        results=None,
    )
    done = run_virtual(study(config).run_async(executor))
    with done.ledger as ledger:
        return {key: (cost, wave) for key, cost, wave in ledger.read("SELECT key, cost, batch FROM call")}


#: Where memory is measured, with which model, and what is promised of the larger number.
REMEMBERED = (
    ("async:200", MODELS[0], Target("peak / first", 1.5)),
    ("async:200", "simulated/gpt-4o-mini", Target("peak / first", 1.5)),
    ("batch:auto", MODELS[0], Target("peak MB", 200.0)),  # there all conversations are under way at once
)
#: Seconds between two beats of the event loop, by which it is seen how long it was blocked.
BEAT = 0.01


def memories(sizes: Sizes) -> Iterator[Table]:
    """Each number of conversations in a process of its own, by default with the simulator in another one."""
    lines = []
    with server([sys.executable, "-m", "fanfold.simulator", "--port", "0", "--answer", PLAYER]) as url:
        for executor, name, target in REMEMBERED:
            found = {count: held(url, executor, count, name) for count in sizes.remembered}
            first = found[sizes.remembered[0]]
            for count, values in found.items():
                grown = {"peak / first": values["peak MB"] / first["peak MB"]}
                promised = None if values is first else target
                lines.append(Line(f"{count:,} on {executor}, {name}", sampled([values | grown]), promised))
    yield Table(f"Memory of conversations of up to {2 * Config().messages_per_interaction} turns", lines)


def held(url: str, executor: str, count: int, name: str) -> dict[str, float]:
    """What `remember` prints, from a process of its own; an error unless every call was answered and charged once."""
    simulator(url, "reset", b"{}")
    environment = {**os.environ, "OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": "no-key"}
    command = [sys.executable, __file__, "--remember", executor, str(count), name]
    answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout
    values: dict[str, float] = json.loads(answer.splitlines()[-1])
    elsewhere = not name.startswith("simulated/")
    charged = simulator(url, "ledger?summary=1")["counts"]["charged"] if elsewhere else values["calls"]
    if values["failed"] or charged != values["calls"]:
        raise RuntimeError(f"{count} conversations on {executor}: {values}, and {charged} calls were charged")
    return values


def peak() -> int:
    """The most bytes this process ever had in memory; not by getrusage, where a child begins with its parent's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def remember(executor: str, count: int, name: str) -> None:
    """Play so many conversations, with all that the study makes of them, and print what this process held."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        config = Config(models=(name,), num_interactions=count, results=f"{folder}/results")
        blocked = Blocked()

        async def main() -> Run[Any]:
            beats = asyncio.create_task(blocked.watch())
            done = await study(config).run_async(executor, ledger=Path(folder) / "ledger.db")
            beats.cancel()
            return done

        done = run_sync(main)
        calls = done.ledger.one("SELECT count(*) FROM call")[0]
        after = resident() / 1e6
        done.ledger.close()
    seconds = time.perf_counter() - began
    held = {"peak MB": peak() / 1e6, "after MB": after, "calls": calls, "failed": done.progress.failures, "s": seconds}
    print(json.dumps({**held, "blocked ms": blocked.longest * 1e3, "by itself ms": blocked.own * 1e3}))


class Blocked:
    """The longest that the event loop was blocked: by the clock, and by its own thread's CPU time."""

    def __init__(self) -> None:
        self.longest = self.own = 0.0

    async def watch(self) -> None:
        while True:
            began, used = time.perf_counter(), time.thread_time()
            await asyncio.sleep(BEAT)
            self.longest = max(self.longest, time.perf_counter() - began - BEAT)
            self.own = max(self.own, time.thread_time() - used)


async def _serve(index: int, seed: int) -> None:
    async with serve(REAL[index].simulator(seed)) as url:
        print(f"simulator at {url}\nready", flush=True)
        await asyncio.Event().wait()


SECTIONS: dict[str, Callable[[Sizes], Iterator[Table]]] = {
    "makespan": makespans,
    "real": realities,
    "price": prices,
    "memory": memories,
}


def measure(sizes: Sizes, names: Collection[str] = tuple(SECTIONS)) -> Iterator[Table]:
    for name in names:
        yield from SECTIONS[name](sizes)


def main(arguments: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["--serve"]:
        run(_serve(int(given[1]), int(given[2])))
        return 0
    if given[:1] == ["--remember"]:
        remember(given[1], int(given[2]), given[3])
        return 0
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer seeds")
    parser.add_argument(
        "--only", type=some_of(SECTIONS), default=list(SECTIONS), help=f"a list from {','.join(SECTIONS)}"
    )
    parser.add_argument("--json", type=Path, default=RESULTS / "conversations.json", help="where samples are written")
    parser.add_argument("--strict", action="store_true", help="exit with 1 when a target is missed")
    options = parser.parse_args(given)
    sizes = QUICK if options.quick else FULL
    return publish(measure(sizes, options.only), sizes, options.json, options.strict)


if __name__ == "__main__":
    sys.exit(main())
