"""Pools that others wrote, the door through which workers come home, and what evaluations ask for."""

from __future__ import annotations

import asyncio
import contextvars
import hmac
import os
import pickle
import signal
import socket
import struct
import threading
from collections.abc import Callable
from concurrent.futures import Executor as Pool
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from fanfold import Study
from fanfold.errors import ConfigError, ExecutorBroken
from fanfold.executors import Executor, make
from fanfold.executors import ray as ray_executor
from fanfold.executors.door import QUESTIONS, Door, Way, connected
from fanfold.executors.resources import check, parsed, shown
from fanfold.executors.worker import ASK, HEADER
from fanfold.strategies import Sweep
from fanfold.testing.executors import ExecutorConformance, double
from fanfold.types import Case, Failed

loky = pytest.importorskip("loky")


def spawned() -> Pool:
    return ProcessPoolExecutor(2, get_context("spawn"))


def reusable() -> Pool:
    pool: Pool = loky.get_reusable_executor(max_workers=2, timeout=60)
    return pool


@pytest.mark.slow
class TestLoky(ExecutorConformance):
    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def pool(cls) -> Any:
        yield
        loky.get_reusable_executor().shutdown(kill_workers=True)

    def make(self) -> Executor:
        return make(reusable)


@dataclass(frozen=True)
class PoolBreaker:
    """Scores by the case's randomness; candidate 2 kills its worker, as long as the file is there."""

    file: str
    for_good: bool = False

    def __call__(self, candidate: int, case: Case) -> float:
        if candidate == 2 and Path(self.file).exists():
            if not self.for_good:
                Path(self.file).unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return candidate + case.rng().random()


@pytest.mark.slow
@pytest.mark.parametrize("pool", [reusable, spawned])
def test_a_pool_that_breaks_is_replaced_by_the_function_that_made_it(pool: Callable[[], Pool], tmp_path: Path) -> None:
    study: Study[int] = Study(Sweep(range(6)), PoolBreaker(str(tmp_path / "once")), [Case("a"), Case("b")], seed=4)
    inline = study.run()
    (tmp_path / "once").touch()
    run = study.run(pool)
    assert not (tmp_path / "once").exists()
    assert run.trace == inline.trace and run.progress.failures == 0


@pytest.mark.slow
def test_a_candidate_that_breaks_every_pool_fails_alone(tmp_path: Path) -> None:
    (tmp_path / "always").touch()
    run = Study(Sweep(range(4)), PoolBreaker(str(tmp_path / "always"), for_good=True)).run(spawned)
    outcomes = {result.candidate: next(iter(result.outcomes.values())) for result in run.results()}
    assert [candidate for candidate, outcome in outcomes.items() if isinstance(outcome, Failed)] == [2]
    assert isinstance(outcomes[2], Failed) and outcomes[2].kind == "worker-died"


@pytest.mark.slow
def test_a_pool_of_somebody_else_that_breaks_ends_the_run_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "once").touch()
    with spawned() as pool, pytest.raises(ExecutorBroken, match=r"ProcessPoolExecutor:2 is unusable.*new pool"):
        Study(Sweep(range(4)), PoolBreaker(str(tmp_path / "once"))).run(pool)


@pytest.mark.slow
def test_a_function_that_gives_the_broken_pool_again_ends_the_run(tmp_path: Path) -> None:
    (tmp_path / "once").touch()
    with spawned() as pool, pytest.raises(ExecutorBroken, match="no new one"):
        Study(Sweep(range(4)), PoolBreaker(str(tmp_path / "once"))).run(lambda: pool)


@pytest.mark.slow
def test_a_pool_of_processes_takes_what_a_script_defines() -> None:
    with spawned() as pool:
        run = Study(Sweep([1, 2]), lambda candidate, case: 2.0 * candidate).run(pool)
    assert [result.score for result in run.results()] == [2.0, 4.0]


def test_a_function_that_makes_no_pool_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"must give a concurrent\.futures\.Executor, not 3"):
        Study(Sweep([1]), lambda candidate, case: 2.0 * candidate).run(lambda: 3)  # type: ignore[arg-type,return-value]


# ---------------------------------------------------------------- the door


class Bomb:
    """Says when it is unpickled."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("unpickled",)


@pytest.mark.slow
@pytest.mark.parametrize("proof", [b"", b"x" * 32, None])
def test_who_does_not_know_the_key_is_not_read(
    proof: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None: the right key, to see that this test would notice."""
    monkeypatch.chdir(tmp_path)

    async def check() -> None:
        door = Door(["127.0.0.1"])
        number = door.questions.enter([contextvars.copy_context()])
        reader, writer = await asyncio.open_connection("127.0.0.1", door.way.port)
        theirs, ours = await reader.readexactly(32), b"n" * 32
        right = hmac.digest(door.way.key, b"worker" + QUESTIONS + theirs + ours, "sha256")
        bomb = struct.pack("<Q", number) + pickle.dumps(Bomb())
        writer.write(ours + (right if proof is None else proof) + QUESTIONS + HEADER.pack(ASK, 1, len(bomb)) + bomb)
        try:
            async with asyncio.timeout(1.0):
                while await reader.read(1000):
                    pass
        except (ConnectionResetError, TimeoutError):
            pass
        writer.close()
        await door.close()

    asyncio.run(check())
    assert (tmp_path / "unpickled").exists() == (proof is None)


def test_a_worker_asks_nothing_of_a_driver_that_does_not_know_the_key() -> None:
    heard = bytearray()
    with socket.create_server(("127.0.0.1", 0)) as impostor:

        def answer() -> None:
            connection, _ = impostor.accept()
            with connection:
                connection.sendall(b"n" * 32)
                heard.extend(connection.recv(1000))
                connection.sendall(b"p" * 32)
                heard.extend(connection.recv(1000))

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(OSError, match="somebody else"):
            connected(Way(("127.0.0.1",), impostor.getsockname()[1], b"k" * 32), QUESTIONS)
        thread.join()
    assert len(heard) == 65, "a nonce, a proof, and what it is for"


def test_the_key_of_a_door_is_not_shown() -> None:
    assert "secret" not in repr(Way(("127.0.0.1",), 1, b"secret"))


# ---------------------------------------------------------------- resources


@pytest.mark.parametrize(
    ("given", "resources"),
    [
        ("gpu=1,memory=8G,licence=2", {"gpu": 1.0, "memory": 8 * 2.0**30, "licence": 2.0}),
        (" GPUs = 0.5 ", {"gpu": 0.5}),
        ({"gpu": 1, "mem": "512MB"}, {"gpu": 1.0, "memory": 512 * 2.0**20}),
        ({"memory": 1024}, {"memory": 1024.0}),
        (None, {}),
    ],
)
def test_resources_are_read_as_people_write_them(given: Any, resources: dict[str, float]) -> None:
    assert parsed(given) == resources
    assert parsed(shown(resources)) == resources


@pytest.mark.parametrize("given", ["gpu", "gpu=", "gpu=-1", "gpu=0", "gpu=1G", "=1", "1=1", {"gpu": float("nan")}])
def test_resources_that_mean_nothing_are_refused(given: Any) -> None:
    with pytest.raises(ConfigError, match="resources:"):
        parsed(given)


def test_what_is_asked_must_be_in_one_place() -> None:
    with pytest.raises(ConfigError, match=r"cpu=2, gpu=1. There are: 2 with cpu=4, gpu=0; 1 with cpu=1, gpu=8"):
        check({"cpu": 2, "gpu": 1}, [{"cpu": 4, "gpu": 0}, {"cpu": 1, "gpu": 8}, {"cpu": 4, "gpu": 0}], "node")


@pytest.mark.parametrize("executor", ["inline", "async:4", "threads:2", "auto", "batch:auto"])
def test_executors_that_have_nothing_to_give_say_so_by_name(executor: str) -> None:
    with pytest.raises(ConfigError, match=rf"executor='{executor}': it has no resources to give"):
        make(executor, double, resources="gpu=1")


# ---------------------------------------------------------------- nodes


def test_a_worker_that_died_a_moment_before_its_node_was_lost_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_executor, "MOMENT", 0.0)
    nodes: list[dict[str, Any]] = []

    class Cluster:
        @staticmethod
        def nodes() -> list[dict[str, Any]]:
            return nodes

    executor = ray_executor.Ray(1)
    executor._ray = Cluster

    async def lost() -> tuple[str | None, str | None]:
        """The node that a call sent before now may have lost, and one sent afterwards."""
        before = asyncio.get_running_loop().time()
        first = await executor._lost_node(before)
        return first, await executor._lost_node(asyncio.get_running_loop().time() + 1e-6)

    with socket.create_server(("127.0.0.1", 0)) as node:
        place = {"NodeID": "one", "NodeManagerAddress": "127.0.0.1", "NodeManagerPort": node.getsockname()[1]}
        nodes.append({**place, "Alive": True})
        assert asyncio.run(lost()) == (None, None)
    assert asyncio.run(lost()) == ("127.0.0.1", "127.0.0.1"), "Ray takes the node to be alive, and it does not answer"
    nodes[:] = [{**place, "Alive": False}]
    assert asyncio.run(lost()) == ("127.0.0.1", None), "Ray saw at once that the node is gone: that is the worker's end"
