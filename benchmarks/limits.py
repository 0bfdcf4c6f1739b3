"""Measures limits: how much of an enforced allowance is used when it is told, learnt from headers, or only found.

python benchmarks/limits.py --quick

Utilisation is what the server admitted from one second after the first call until the last admission, divided by what
its limit allows in that time; of several limits, the one used most.  A burst saved up before that second can lift it a
little above 1.  The refused share is of all requests sent; failed calls are those that were given up for good.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import random
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from measure import Line, Sampled, Table, Target, sampled
from model_peers import loop_factory

from fanfold.calls import CallBroker
from fanfold.context import enter
from fanfold.errors import CallFailed
from fanfold.limits import Limits
from fanfold.models import Model, model
from fanfold.models.simulated import SimulatedTransport
from fanfold.simulator import AccountLimits as Allowance
from fanfold.simulator import Latency, Simulator, SimulatorConfig, serve
from fanfold.testing import run_virtual
from models import parse, publish, server, simulator

T = TypeVar("T")

LATENCY, BURST, CONCURRENCY = 1.0, 1.0, 100
#: Characters of a prompt: with the simulator's answers, a call is about 95 tokens, so 200,000 TPM is the tighter limit.
PROMPT = (80, 320)
MAX_TOKENS = 200


@dataclass(frozen=True)
class Sizes:
    """How many calls are made per case (by requests per minute), how often, and with how many seeds when simulated."""

    requests: int
    tokens: int
    repeats: int
    seeds: int

    def of(self, case: Case) -> int:
        return self.requests if case.tpm is None else self.tokens


@dataclass(frozen=True)
class Case:
    """A server's limit and what the client knows of it; `counts` when refused requests use up the limit as well."""

    rpm: float
    tpm: float | None
    mode: str
    counts: bool

    @property
    def name(self) -> str:
        """What the model is called: limits are kept per model, so every case has its own."""
        return f"{self.rpm:.0f}-{self.mode}-{'counted' if self.counts else 'free'}"

    @property
    def title(self) -> str:
        limit = f"{self.rpm:,.0f} RPM" + (f", {self.tpm:,.0f} TPM" if self.tpm else "")
        return f"{limit}; {MODES[self.mode]}; refusals {'count' if self.counts else 'are free'}"

    @property
    def allowance(self) -> Allowance:
        headers = self.mode == "headers"
        return Allowance(self.rpm, self.tpm, burst_seconds=BURST, refused_count=self.counts, headers=headers)

    @property
    def limits(self) -> Limits:
        if self.mode != "told":
            return Limits()
        return Limits(requests_per_minute=self.rpm, tokens_per_minute=self.tpm)

    @property
    def least(self) -> float:
        """The utilisation to reach."""
        if self.mode == "adaptive":
            return 0.80 if self.counts else 0.85
        return 0.95 if self.counts else 0.97


MODES = {"told": "told", "headers": "learnt from headers", "adaptive": "no headers, adaptive"}
RATES: tuple[tuple[float, float | None], ...] = ((1_200, None), (3_500, 200_000))
CASES = [Case(*rate, mode, counts) for rate, mode, counts in itertools.product(RATES, MODES, (False, True))]
FULL = Sizes(requests=2_000, tokens=3_000, repeats=2, seeds=5)
QUICK = Sizes(requests=700, tokens=1_200, repeats=1, seeds=3)


def measure(sizes: Sizes) -> Iterator[Table]:
    """All cases at once over sockets, since they wait most of the time; then each on the virtual clock."""
    found: dict[Case, list[dict[str, float]]] = {case: [] for case in CASES}
    for repeat in range(sizes.repeats):
        with server([sys.executable, __file__, "--serve"]) as url:
            for case, sample in run(over_sockets(url, CASES, sizes, repeat)).items():
                found[case].append(sample)
    yield _table("Over sockets, in real time", found)
    yield _targets("Over sockets: refused and failed", found)
    found = {case: [virtually(case, sizes, seed) for seed in range(sizes.seeds)] for case in CASES}
    yield _table("On the virtual clock, no network (a cross-check; medians over seeds)", found)
    yield _targets("On the virtual clock: refused and failed", found)


def run(work: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=loop_factory()[0]) as runner:
        return runner.run(work)


async def over_sockets(url: str, cases: Sequence[Case], sizes: Sizes, seed: int) -> dict[Case, dict[str, float]]:
    """Every case at the same time, each with its own model and so its own limits at the server."""
    models = [model(f"openai/{case.name}", base_url=f"{url}/v1", key="no-key", limits=case.limits) for case in cases]
    drives = [drive(asked, sizes.of(case), seed, time.time) for asked, case in zip(models, cases)]
    ends = await asyncio.gather(*drives)
    charges = (await asyncio.to_thread(simulator, url, "ledger"))["charges"]
    admitted: dict[str, list[tuple[float, int]]] = {case.name: [] for case in cases}
    for charge in charges:
        admitted[charge["model"]].append((charge["at"], charge["input_tokens"] + charge["output_tokens"]))
    used = [utilisation(case, begun, admitted[case.name]) for case, (begun, _) in zip(cases, ends)]
    return {case: {"utilisation": share, **end} for case, share, (_, end) in zip(cases, used, ends)}


def virtually(case: Case, sizes: Sizes, seed: int) -> dict[str, float]:
    """One case with the simulator in this process, on a clock that jumps."""
    config = SimulatorConfig(seed=seed, limits=case.allowance, latency=Latency(LATENCY), epoch=0.0)
    transport = SimulatedTransport(Simulator(config))
    asked = model(f"openai/{case.name}", base_url="http://localhost/v1", key="no-key", limits=case.limits)
    random.seed(seed)

    async def work() -> tuple[float, dict[str, float]]:
        clock = asyncio.get_running_loop().time
        return await drive(dataclasses.replace(asked, connect=lambda: transport), sizes.of(case), seed, clock)

    begun, end = run_virtual(work())
    charges = transport.simulator.charges
    admitted = [(charge.at, charge.input_tokens + charge.output_tokens) for charge in charges]
    return {"utilisation": utilisation(case, begun, admitted), **end}


async def drive(asked: Model, calls: int, seed: int, clock: Callable[[], float]) -> tuple[float, dict[str, float]]:
    """Make the calls, many at a time; gives when the first was made, and their results."""
    broker = CallBroker(cache="off")
    enter(broker=broker)
    rng = random.Random(seed)
    todo = iter([f"{number} {'word ' * (rng.randint(*PROMPT) // 5)}" for number in range(calls)])
    failed = 0

    async def worker() -> None:
        nonlocal failed
        for text in todo:
            try:
                await asked.generate(text, max_tokens=MAX_TOKENS)
            except CallFailed:
                failed += 1

    begun = clock()
    await asyncio.gather(*(worker() for _ in range(CONCURRENCY)))
    took, sent = clock() - begun, asked.line().limiter.granted
    await broker.close()
    return begun, {"refused": broker.metrics.refused / sent, "failed": float(failed), "makespan s": took}


def utilisation(case: Case, begun: float, admitted: Sequence[tuple[float, int]]) -> float:
    """See the top; `admitted` are times and tokens."""
    start, end = begun + 1.0, max((when for when, _ in admitted), default=0.0)
    if end <= start:
        return 0.0
    later = [tokens for when, tokens in admitted if when > start]
    shares = [len(later) / (case.rpm / 60 * (end - start))]
    if case.tpm is not None:
        shares.append(sum(later) / (case.tpm / 60 * (end - start)))
    return max(shares)


def _table(title: str, found: dict[Case, list[dict[str, float]]]) -> Table:
    lines = []
    for case, samples in found.items():
        lines.append(Line(case.title, sampled(samples), Target("utilisation", case.least, at_most=False)))
    return Table(f"{title}: {LATENCY:g} s latency, bursts of {BURST:g} s, {CONCURRENCY} callers", lines)


def _targets(title: str, found: dict[Case, list[dict[str, float]]]) -> Table:
    known = [samples for case, samples in found.items() if case.mode != "adaptive" and not case.counts]
    refused = max(sampled(samples)["refused"].median for samples in known)
    failed = sum(sample["failed"] for samples in found.values() for sample in samples)
    worst = Line(
        "refused share, told or from headers, the worst", {"value": Sampled((refused,))}, Target("value", 0.005)
    )
    lost = Line("calls finally failed, all cases", {"value": Sampled((failed,))}, Target("value", 0))
    return Table(title, [worst, lost])


async def _serve() -> None:
    limits = {case.name: case.allowance for case in CASES}
    async with serve(Simulator(SimulatorConfig(model_limits=limits, latency=Latency(LATENCY)))) as url:
        print(f"simulator at {url}\nready", flush=True)
        await asyncio.Event().wait()


def main(arguments: Sequence[str] | None = None) -> int:
    if list(sys.argv[1:] if arguments is None else arguments) == ["--serve"]:
        run(_serve())
        return 0
    options = parse(__doc__ or "", "limits.json", arguments)
    sizes = QUICK if options.quick else FULL
    return publish(measure(sizes), sizes, options.json, options.strict)


if __name__ == "__main__":
    sys.exit(main())
