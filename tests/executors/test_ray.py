"""Ray as a place to run: the conformance suite, what dies with a worker, whole studies, and whose Ray is shut down."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from fanfold import Study
from fanfold.errors import ConfigError, ExecutorBroken, MissingExtra, WorkerDied
from fanfold.executors import Executor, Ray, make
from fanfold.strategies import Sweep
from fanfold.testing.executors import ExecutorConformance, double, hold
from fanfold.types import Blob, Case, Failed, Ok

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.slow  # every test needs the cluster

CPUS = 3


@pytest.fixture(autouse=True, scope="module")
def session() -> Iterator[None]:
    """One Ray for the whole module: starting one takes seconds."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(
        "local",
        num_cpus=CPUS,
        object_store_memory=80 * 2**20,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
    )
    yield
    ray.shutdown()


class TestRay(ExecutorConformance):
    def make(self) -> Executor:
        return Ray(CPUS)


# ---------------------------------------------------------------- what its workers do


def die(_: Any = None, __: Any = None) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def name_and_pins() -> tuple[int, dict[str, str]]:
    return os.getpid(), {name: value for name, value in os.environ.items() if name.endswith("_NUM_THREADS")}


def test_a_dead_worker_fails_its_own_call_and_no_other() -> None:
    async def check() -> None:
        async with Ray(2) as executor:
            dead, alive = await asyncio.gather(executor.run(die), executor.run(double, 4), return_exceptions=True)
            assert isinstance(dead, WorkerDied) and "die" in str(dead)
            assert alive == 8
            assert await executor.run(double, 5) == 10

    asyncio.run(check())


def test_a_call_whose_worker_dies_is_not_repeated_behind_our_back(tmp_path: Path) -> None:
    def count_and_die(place: str) -> None:
        with Path(place).open("a") as file:
            file.write("x")
        os.kill(os.getpid(), signal.SIGKILL)

    async def check() -> None:
        async with Ray(1) as executor:
            with pytest.raises(WorkerDied):
                await executor.run(count_and_die, str(tmp_path / "count"))

    asyncio.run(check())
    assert (tmp_path / "count").read_text() == "x"


def test_cancelling_a_call_kills_its_worker(tmp_path: Path) -> None:
    def busy(place: str) -> None:
        Path(place).write_text(str(os.getpid()))
        while True:
            time.sleep(0.01)

    async def check() -> None:
        async with Ray(1) as executor:
            call = asyncio.create_task(executor.run(busy, str(tmp_path / "pid")))
            while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
                await asyncio.sleep(0.01)
            process = int((tmp_path / "pid").read_text())
            call.cancel()
            await asyncio.wait([call])
            assert call.cancelled()
            async with asyncio.timeout(20):
                while is_alive(process):
                    await asyncio.sleep(0.01)

    asyncio.run(check())


def test_closing_ends_calls_that_hang(tmp_path: Path) -> None:
    async def check() -> None:
        async with Ray(1) as executor:
            call = asyncio.create_task(executor.run(hold, str(tmp_path)))
            while not (tmp_path / "holding").exists():
                await asyncio.sleep(0.01)
        with pytest.raises(WorkerDied):
            await call

    asyncio.run(check())


def is_alive(process: int) -> bool:
    try:
        return "zombie" not in Path(f"/proc/{process}/status").read_text()
    except OSError:
        return False


def test_numerical_libraries_have_one_thread_in_a_worker() -> None:
    async def check() -> None:
        async with Ray(1) as executor:
            process, pins = await executor.run(name_and_pins)
        assert process != os.getpid()
        assert pins["NUMBA_NUM_THREADS"] == pins["OMP_NUM_THREADS"] == pins["OPENBLAS_NUM_THREADS"] == "1"

    asyncio.run(check())


class Heavy:
    """Says when it is loaded, and where."""

    def __init__(self, log: str) -> None:
        self.log = log

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        with Path(self.log).open("a") as log:
            log.write(f"{os.getpid()}\n")

    def __call__(self, number: int) -> tuple[int, int]:
        return os.getpid(), number


def test_a_function_is_loaded_once_in_a_worker_however_often_it_is_called(tmp_path: Path) -> None:
    async def check() -> None:
        heavy = Heavy(str(tmp_path / "log"))
        async with Ray(1) as executor:
            workers = {(await executor.run(heavy, number))[0] for number in range(20)}
            loads = (tmp_path / "log").read_text().split()
            assert len(loads) == len(set(loads)), "twice in one worker"
            assert workers <= {int(load) for load in loads}
            assert len(workers) < 20

    asyncio.run(check())


def test_more_functions_than_a_worker_keeps_all_answer() -> None:
    async def check() -> None:
        async with Ray(1) as executor:
            functions = [lambda value, number=number: value + number for number in range(70)]
            for fn in (*functions, *functions[:3]):
                assert await executor.run(fn, 1) == fn(1)

    asyncio.run(check())


def test_what_cannot_travel_is_said_by_name() -> None:
    import threading

    lock = threading.Lock()

    def locked() -> None:
        lock.acquire()

    async def check() -> None:
        async with Ray(1) as executor:
            with pytest.raises(ConfigError, match="locked cannot be sent"):
                await executor.run(locked)
            with pytest.raises(TypeError, match="argument 1 of double"):
                await executor.run(double, lock)
            with pytest.raises(TypeError, match="cannot be sent back"):
                await executor.run(threading.Lock)

    asyncio.run(check())


# ---------------------------------------------------------------- studies


def weigh(candidate: Any, case: Case) -> Ok:
    data = candidate["weights"].read() if isinstance(candidate, dict) else b""
    return Ok(len(data) + case.rng().random(), {"back": Blob.of(data[::-1])})


class InBlocks:
    block_size = 8

    def __call__(self, candidate: int, case: Case) -> float:
        return self.evaluate_block([(candidate, case)])[0]

    def evaluate_block(self, cells: Sequence[tuple[int, Case]]) -> list[float]:
        return [candidate * 10 + case.rng().random() for candidate, case in cells]


def test_blobs_travel_both_ways_and_the_search_is_that_of_every_other_executor() -> None:
    big = Blob.of(bytes(range(256)) * 800)  # more than Ray sends along with a task
    candidates = [{"weights": big}, {"weights": Blob.of(b"abc")}]
    found = {}
    for executor in ("inline", "ray:2"):
        run = Study(Sweep(candidates), weigh, [Case("a"), Case("b")], seed=3).run(executor=executor)
        found[executor] = [(result.score, result.outcomes) for result in run.results()]
        assert found[executor][0][1]["a"].data["back"].read() == big.read()[::-1]
    assert found["inline"] == found["ray:2"]


def test_blocks_of_cells_are_evaluated_together() -> None:
    runs = [
        Study(Sweep(range(10)), InBlocks(), [Case("a"), Case("b"), Case("c")], seed=1).run(executor=executor)
        for executor in ("inline", "ray:2")
    ]
    first, second = ([result.score for result in run.results()] for run in runs)
    assert first == second and len(first) == 10 and None not in first


def fatal(candidate: int, case: Case) -> float:
    if candidate == 2:
        die()
    return float(candidate)


def test_a_candidate_that_kills_its_workers_is_a_failed_cell_and_the_study_goes_on() -> None:
    run = Study(Sweep(range(5)), fatal, [Case("a")]).run(executor="ray:2")
    results = {result.candidate: result for result in run.results()}
    outcome = results[2].outcomes["a"]
    assert isinstance(outcome, Failed) and outcome.kind == "worker-died"
    assert [results[n].score for n in (0, 1, 3, 4)] == [0, 1, 3, 4]


def test_a_policy_learns_the_same_on_ray_as_inline() -> None:
    from fanfold.rl import train

    small = {"total_episodes": 40, "episodes_per_update": 20, "block": 5, "fresh_episodes": 8}
    inline, remote = (train("CartPole-v1", executor=place, **small) for place in ("inline", "ray:2"))  # type: ignore[arg-type]
    assert inline.run.trace == remote.run.trace and inline.curve == remote.curve
    assert inline.run.summary is not None and remote.run.summary is not None
    assert inline.run.summary.figures["return"] == remote.run.summary.figures["return"]


def test_a_ray_that_was_there_before_stays() -> None:
    async def check() -> None:
        async with Ray(2) as executor:
            assert await executor.run(double, 1) == 2

    asyncio.run(check())
    assert ray.is_initialized()


def test_more_slots_than_the_cluster_has_cpus_are_remarked_on() -> None:
    async def remarks(slots: int) -> Sequence[str]:
        async with Ray(slots) as executor:
            assert await asyncio.gather(*(executor.run(double, n) for n in range(8))) == [2 * n for n in range(8)]
        return executor.remarks()

    (remark,) = asyncio.run(remarks(100))
    assert f"room for {CPUS} calls with cpu=1" in remark and "100" in remark
    assert asyncio.run(remarks(CPUS)) == ()


OWN = """
import asyncio, os, ray
from fanfold.executors import make

def pid(_=None):
    return os.getpid()

async def main():
    executor = make("ray:3")
    for _ in range(2):
        async with executor:
            assert ray.is_initialized()
            assert len(await asyncio.gather(*(executor.run(pid, n) for n in range(6)))) == 6
            assert ray.cluster_resources()["CPU"] == 3
        assert not ray.is_initialized()
    try:
        await executor.run(pid)
    except Exception as error:
        print(type(error).__name__)
    assert not ray.is_initialized(), "nothing is started behind the user's back"

if __name__ == "__main__":
    asyncio.run(main())
"""


@pytest.mark.timeout(240)
def test_a_ray_of_its_own_is_started_and_shut_down_as_often_as_needed_and_quietly(tmp_path: Path) -> None:
    """In a process of its own, because this one has a Ray; as a script, whose functions travel by value."""
    (tmp_path / "own.py").write_text(OWN)
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    done = subprocess.run(
        [sys.executable, str(tmp_path / "own.py")], capture_output=True, text=True, timeout=200, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [ExecutorBroken.__name__]
    assert "INFO" not in done.stderr


def test_an_address_where_no_cluster_is_and_a_ray_that_is_missing_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    async def use(executor: Executor) -> None:
        async with executor:
            pass

    monkeypatch.setattr(ray, "is_initialized", lambda: False)

    def refuse(address: str, **options: Any) -> None:
        assert "num_cpus" not in options, "the size of somebody else's cluster is not ours to say"
        raise ConnectionError(f"nobody at {address}")

    monkeypatch.setattr(ray, "init", refuse)
    with pytest.raises(ConfigError, match=r"'ray:2@10\.0\.0\.1:6379'.*nobody at 10\.0\.0\.1:6379.*ray start"):
        asyncio.run(use(make("ray:2@10.0.0.1:6379")))
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.2:6379")
    with pytest.raises(ConfigError, match=r"nobody at 10\.0\.0\.2:6379"):
        asyncio.run(use(make("ray:2")))
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match=r"'ray:2' needs the package 'ray': pip install 'fanfold\[ray\]'"):
        asyncio.run(use(make("ray:2")))


@pytest.mark.parametrize(
    ("spec", "name", "slots"),
    [("ray:100", "ray:100", 100), ("ray:8@auto", "ray:8@auto", 8), ("ray:1@h:1", "ray:1@h:1", 1)],
)
def test_it_is_made_by_name(spec: str, name: str, slots: int) -> None:
    made = make(spec)
    assert isinstance(made, Ray)
    assert (made.name, made.slots) == (name, slots)
    assert isinstance(make("ray"), Ray)


@pytest.mark.parametrize("spec", ["ray:", "ray:0", "ray:x", "ray:@auto", "ray:2@", "ray:-1@auto", "processes:2@auto"])
def test_what_is_no_number_or_no_address_is_refused(spec: str) -> None:
    with pytest.raises(ConfigError, match="executor="):
        make(spec)
