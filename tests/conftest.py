"""Settings for the whole suite, and a simulator on a real port."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import settings

from fanfold.simulator import Faults, Simulator, SimulatorConfig, serve

# Tests run side by side: a numerical library that takes every core for itself slows all of them to a crawl.
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

# The output of tests goes into a pipe, whatever width the workers of the suite are told.
for name in ("COLUMNS", "LINES"):
    os.environ.pop(name, None)

# The same examples every time, so that a failure is somebody's change and not somebody's luck;
# FANFOLD_EXPLORE=1 looks for new ones.
settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None, max_examples=300)
settings.load_profile("explore" if os.environ.get("FANFOLD_EXPLORE") else "same")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What tests share is made once: under `--dist loadgroup` they go to one worker.  Quick tests travel by module."""
    for item in items:
        if not isinstance(item, pytest.Function) or item.get_closest_marker("xdist_group"):
            continue
        fixtures = [fixtures[-1] for fixtures in item._fixtureinfo.name2fixturedefs.values()]
        ours = {fixture.scope: fixture.argname for fixture in fixtures if fixture.baseid}
        if "session" in ours:
            item.add_marker(pytest.mark.xdist_group(ours["session"]))
        elif "module" in ours or not item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))


@dataclass(frozen=True)
class Running:
    """A simulator that answers on `url` from a thread of its own."""

    simulator: Simulator
    url: str
    loop: asyncio.AbstractEventLoop

    def fault(self, *faults: dict[str, Any]) -> None:
        async def set_faults() -> None:
            self.simulator.set_faults(Faults.of({"faults": list(faults)}))

        asyncio.run_coroutine_threadsafe(set_faults(), self.loop).result(10)


Start = Callable[[SimulatorConfig], Running]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start simulators on free ports; all of them stop at the end of the test."""
    stops: list[Callable[[], None]] = []

    def begin(config: SimulatorConfig) -> Running:
        loop = asyncio.new_event_loop()
        ready: asyncio.Event = asyncio.Event()
        started = threading.Event()
        running: list[Running] = []

        async def main() -> None:
            simulator = Simulator(config)
            async with serve(simulator) as url:
                running.append(Running(simulator, url, loop))
                started.set()
                await ready.wait()

        thread = threading.Thread(target=lambda: asyncio.Runner(loop_factory=lambda: loop).run(main()))
        thread.start()

        def stop() -> None:
            loop.call_soon_threadsafe(ready.set)
            thread.join(10)
            loop.close()

        stops.append(stop)
        assert started.wait(10)
        return running[0]

    yield begin
    for stop in stops:
        stop()
