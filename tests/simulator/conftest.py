"""A simulator on a real port, and one to talk to without sockets."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from simulator_talk import Talk

from fanfold.simulator import Faults, Simulator, SimulatorConfig, serve


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


@pytest.fixture
def talk() -> Callable[..., Talk]:
    """Make a simulator without sockets and talk to it: `talk(limits=..., latency=...)`."""
    return lambda **settings: Talk(Simulator(SimulatorConfig(**settings)))
