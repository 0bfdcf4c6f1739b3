"""Settings for the whole suite, and a simulator on a real port."""

from __future__ import annotations

import asyncio
import compileall
import functools
import gc
import itertools
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from fanfold.simulator import Faults, Simulator, SimulatorConfig, serve

SOURCES = Path(__file__).parents[1] / "src" / "fanfold"

# Tests run side by side: a numerical library that takes every core for itself slows all of them to a crawl.
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

# The output of tests goes into a pipe, whatever width the workers of the suite are told.
for name in ("COLUMNS", "LINES"):
    os.environ.pop(name, None)

# A shell without job control starts what it puts in the background deaf to Ctrl-C, which is what some tests are about.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples every time, so that a failure is somebody's change and not somebody's luck;
# FANFOLD_EXPLORE=1 looks for new ones.
settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None, max_examples=300)
settings.load_profile("explore" if os.environ.get("FANFOLD_EXPLORE") else "same")


def pytest_configure(config: pytest.Config) -> None:
    """Compile the package once: tests start it in hundreds of processes, and not every machine lets those keep it."""
    if not hasattr(config, "workerinput"):
        compileall.compile_dir(SOURCES, quiet=2)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Tests that one worker has compiled are not compiled again by the others, whatever the environment says.

    Nothing that is loaded is garbage, and looking for it takes a third of the time.
    """
    kept, sys.dont_write_bytecode = sys.dont_write_bytecode, False
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        sys.dont_write_bytecode = kept


def pytest_collection_finish() -> None:
    """The garbage collector need not look through the modules of all tests again and again."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """What tests share is made once: tests of one module, or folder, with such a fixture go to one worker of xdist."""
    from xdist.scheduler import LoadScopeScheduling

    class Sharing(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return scope_of(nodeid)

        def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
            super().mark_test_complete(node, item_index, duration)
            # All that a worker has been given is counted after each test: what is finished need not be.
            assigned, scope = self.assigned_work[node], scope_of(self.registered_collections[node][item_index])
            if all(assigned[scope].values()):
                del assigned[scope]

    return Sharing(config, log)


def scope_of(nodeid: str) -> str:
    """The folder or the module whose tests share a fixture; otherwise the test, with all its parameters."""
    module = nodeid.partition("::")[0]
    folder, _, _ = module.rpartition("/")
    together = f"{folder}/conftest.py"
    if folder != "tests" and "session" in shared(together):
        return folder
    return module if shared(module) | shared(together) else nodeid.partition("[")[0]


@functools.cache
def shared(path: str) -> set[str]:
    """The scopes of fixtures in a file that more than one test uses."""
    file = Path(__file__).parents[1] / path
    return set(re.findall(r'scope="(module|session)"', file.read_text())) if file.exists() else set()


@pytest.fixture(autouse=True)
def modules_of_a_test_are_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Modules that a test has loaded from files it wrote are forgotten: the next one may write others of that name."""
    last = next(reversed(sys.modules))
    yield
    place = str(tmp_path_factory.getbasetemp())
    # In the order of loading: a set of thousands of names for each test takes longer than most tests.
    for name in list(itertools.takewhile(lambda name: name != last, reversed(sys.modules))):
        if str(getattr(sys.modules[name], "__file__", None) or "").startswith(place):
            del sys.modules[name]


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
