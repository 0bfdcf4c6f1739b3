"""Dask as a place to run: the conformance suite, a killed worker, clusters that change, what is refused."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fanfold import Study
from fanfold.errors import ConfigError, MissingExtra
from fanfold.executors import Dask, Executor, dask, make
from fanfold.strategies import Sweep
from fanfold.testing.executors import ExecutorConformance, double
from fanfold.types import Case

distributed = pytest.importorskip("distributed")
pytestmark = pytest.mark.slow  # most tests need the cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """One for the whole module: two processes of one thread."""
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, memory_limit=0
    ) as cluster:
        yield cluster


@pytest.fixture
def place(cluster: Any) -> str:
    with distributed.Client(cluster, set_as_default=False) as client:
        client.wait_for_workers(2)  # one may be starting again
    return f"dask:{cluster.scheduler_address}"


class TestDask(ExecutorConformance):
    @pytest.fixture(autouse=True)
    def at(self, cluster: Any) -> None:
        self.address = cluster.scheduler_address

    def make(self) -> Executor:
        executor = Dask(self.address)
        executor.slots = 2  # known once it is open
        return executor


def test_slots_follow_the_cluster(cluster: Any, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask, "LOOK", 0.05)

    async def check() -> None:
        async with make(place) as executor:
            assert executor.slots == 2
            for workers in (3, 2):
                cluster.scale(workers)
                async with asyncio.timeout(60):
                    while executor.slots != workers:
                        await asyncio.sleep(0.05)
                assert await asyncio.gather(*(executor.run(double, n) for n in range(4))) == [0, 2, 4, 6]

    asyncio.run(check())


@dataclass(frozen=True)
class WorkerKiller:
    """Scores by the case's randomness; candidate 2 first kills its worker, once."""

    once: str

    def __call__(self, candidate: int, case: Case) -> float:
        if candidate == 2 and Path(self.once).exists():
            Path(self.once).unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return candidate + case.rng().random()


def test_a_killed_worker_changes_nothing(place: str, tmp_path: Path) -> None:
    study: Study[int] = Study(Sweep(range(8)), WorkerKiller(str(tmp_path / "once")), [Case("a"), Case("b")], seed=4)
    inline = study.run()
    (tmp_path / "once").touch()
    run = study.run(place)
    assert not (tmp_path / "once").exists()
    assert run.trace == inline.trace and run.progress.failures == 0
    with distributed.Client(place.removeprefix("dask:"), set_as_default=False) as client:
        kept = client.run_on_scheduler(lambda dask_scheduler: list(dask_scheduler.worker_plugins))
    assert not [name for name in kept if "fanfold" in name], "nothing of the run stays with the cluster"


SCRIPT = """
import os, signal
from fanfold import Case, Study, Sweep

def evaluate(candidate, case):
    if candidate == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return float(candidate)

run = Study(Sweep(range(4)), evaluate).run("dask:2")
print([(result.score, [failure.kind for failure in result.failures.values()]) for result in run.results()])
"""


def test_a_script_gets_a_cluster_of_its_own_and_a_candidate_that_kills_its_workers_fails_alone(tmp_path: Path) -> None:
    """A script without a guard for its main part, which processes that import it again would need."""
    (tmp_path / "own.py").write_text(SCRIPT)
    done = subprocess.run([sys.executable, tmp_path / "own.py"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    shown = "[(0.0, []), (1.0, []), (None, ['worker-died']), (3.0, [])]"
    assert done.stdout.strip() == shown, done.stderr


def test_the_pool_of_a_client_is_its_cluster(cluster: Any, place: str) -> None:
    with distributed.Client(cluster, set_as_default=False) as client:
        executor = make(client.get_executor())
    assert isinstance(executor, Dask) and executor.name == place


def test_what_no_worker_has_is_refused_with_what_there_is(place: str) -> None:
    with pytest.raises(ConfigError, match=r"no worker of the Dask cluster can give one evaluation gpu=1.*2 with none"):
        Study(Sweep([1]), lambda candidate, case: 2.0 * candidate).run(place, resources="gpu=1")


def test_other_versions_are_said_before_the_first_call(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda name: "9.9")
    with pytest.raises(ConfigError, match=r"tcp://.* has other versions: fanfold .* there and 9\.9 here"):
        Study(Sweep([1]), lambda candidate, case: 2.0 * candidate).run(place)


def test_an_address_without_a_scheduler_and_a_missing_package_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask, "PATIENCE", 0.3)
    for address in ("tcp://127.0.0.1:1", "nowhere.json"):
        with pytest.raises(ConfigError, match=rf"'dask:{address}': no Dask scheduler answers there.*dask scheduler"):
            Study(Sweep([1]), lambda candidate, case: 2.0 * candidate).run(f"dask:{address}")
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(MissingExtra, match=r"pip install 'fanfold\[dask\]'"):
        Study(Sweep([1]), lambda candidate, case: 2.0 * candidate).run("dask:2")


@pytest.mark.parametrize("spec", ["dask:", "dask:0"])
def test_what_is_no_address_is_refused(spec: str) -> None:
    with pytest.raises(ConfigError, match="address of a scheduler"):
        make(spec)
