"""A Ray cluster of several nodes: nodes that are lost, resources, and whole studies."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fanfold import Study
from fanfold.errors import ConfigError
from fanfold.executors import Ray, make
from fanfold.limits import Limits
from fanfold.models.http import Http
from fanfold.models.model import Model
from fanfold.models.pricing import Price
from fanfold.models.providers.openai import OpenAI
from fanfold.strategies import Sweep
from fanfold.tasks import Problem, Task
from fanfold.tasks.grading import Contains
from fanfold.types import Case

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.slow  # every test needs the cluster

STORE = 80 * 2**20


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head, and a node with two GPUs that only Ray believes in."""
    from ray.cluster_utils import Cluster

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    head = {"num_cpus": 1, "object_store_memory": STORE, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    cluster.add_node(num_cpus=1, num_gpus=2, resources={"licence": 2}, object_store_memory=STORE)
    ray.init(cluster.address, log_to_driver=False, logging_level="FATAL")
    yield cluster
    ray.shutdown()
    cluster.shutdown()


# ---------------------------------------------------------------- resources


def gpu(_: int) -> tuple[str, int]:
    time.sleep(0.1)
    return os.environ["CUDA_VISIBLE_DEVICES"], os.getpid()


def test_every_call_sees_exactly_one_gpu_and_all_are_used(cluster: Any) -> None:
    async def check() -> None:
        async with make("ray:4", resources="gpu=1,cpu=0.1") as executor:
            seen = await asyncio.gather(*(executor.run(gpu, n) for n in range(8)))
        assert {devices for devices, _ in seen} == {"0", "1"}
        (remark,) = executor.remarks()
        assert "room for 2 calls" in remark and "gpu=1" in remark

    asyncio.run(check())


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ("gpu=3", "gpu=3.*1 with cpu=1, gpu=2"),
        ({"gpu": 1, "memory": "100T"}, r"gpu=1, memory=100T"),
        ("licence=1,tape=1", "licence=1, tape=1.*licence=2"),
    ],
)
def test_what_no_node_can_give_is_refused_with_what_there_is(cluster: Any, wanted: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Study(Sweep([1]), lambda candidate, case: 1.0).run("ray:2", resources=wanted)


# ---------------------------------------------------------------- lost nodes


@dataclass(frozen=True)
class NodeKiller:
    """Scores by the case's randomness; one cell first takes its node down as often as there are files to delete."""

    folder: str

    def __call__(self, candidate: int, case: Case) -> float:
        if candidate == 2 and case.id == "a":  # one cell alone, as two would race for the same file
            for file in Path(self.folder).glob("kill*"):
                file.unlink()
                for process in (os.getppid(), os.getpid()):  # a worker's parent is its node
                    os.kill(process, signal.SIGKILL)
        return candidate + case.rng().random()


@pytest.mark.parametrize("times", [1, 2])
def test_a_node_that_is_lost_under_a_cell_is_nobodys_failure(cluster: Any, times: int, tmp_path: Path) -> None:
    for _ in range(times):
        cluster.add_node(num_cpus=1, resources={"shaky": 1}, object_store_memory=STORE)
    cluster.add_node(num_cpus=1, resources={"shaky": 1}, object_store_memory=STORE)
    study: Study[int] = Study(Sweep(range(6)), NodeKiller(str(tmp_path)), [Case("a"), Case("b")], seed=4)
    inline = study.run()
    for number in range(times):
        (tmp_path / f"kill{number}").touch()
    run = study.run("ray:3", resources={"shaky": 1})
    assert not list(tmp_path.iterdir()), "the nodes were taken down"
    assert run.trace == inline.trace and run.progress.failures == 0


# ---------------------------------------------------------------- studies


PROBLEMS = tuple(Problem(f"p{n:02}", f"How many legs have {n} dogs?", str(4 * n % 7)) for n in range(30))
TASK = Task("legs", PROBLEMS, Contains(), "count", (("In", "Out"),), {"instruction": ("Count.", "Add.")}, ("Answer.",))


@pytest.fixture
def provider() -> Iterator[str]:
    """The address of a provider in a process of its own."""
    command = [sys.executable, "-m", "fanfold.simulator", "--port", "0", "--latency", "0.01"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield next(line.split()[-1] for line in process.stdout if line.startswith("simulator at "))
        process.terminate()


def test_prompts_on_a_cluster_pay_each_call_once_and_keep_it(cluster: Any, provider: str, tmp_path: Path) -> None:
    from fanfold.studies.prompts import PromptsConfig, study

    def gpt(name: str) -> Model:
        return Model(name, OpenAI(), f"{provider}/v1", Limits(), Price(1.0, 2.0), connect=Http, key="sk-cluster")

    def charges() -> list[Any]:
        with urllib.request.urlopen(f"{provider}/_simulator/ledger") as response:
            return list(json.load(response)["charges"])

    sizes: dict[str, Any] = {"examples": 2, "train": 6, "validation": 2, "held_out": 4, "population": 4}
    config = PromptsConfig(model=("gpt-6-luna",), search="genetic", trials=12, **sizes)
    runs = []
    for executor in ("ray:2", "async:8"):
        paid = len(charges())
        run = study(config, TASK, gpt).run(executor, ledger=tmp_path / f"{executor[:3]}.db")
        (calls,) = next(run.ledger.read("SELECT count(*) FROM call"))
        bill = charges()[paid:]
        assert calls == len(bill) == len({charge["key"] for charge in bill}) > 6
        runs.append((run.trace, calls))
        run.ledger.close()
    assert runs[0] == runs[1]


def test_a_search_over_workflows_comes_to_the_same_on_a_cluster_as_inline(cluster: Any) -> None:
    from fanfold.studies.workflow import Config, study

    few = {"total_episodes": 120, "max_episodes_per_workflow": 40, "episodes_per_update": 20, "fresh_episodes": 16}
    config = Config(length=10, results=None, **few)  # type: ignore[arg-type]
    inline, remote = (study(config).run(place) for place in ("inline", "ray:2"))
    assert inline.trace == remote.trace and len(list(inline.results())) > 2
    assert inline.summary is not None and remote.summary is not None
    assert inline.summary.figures["beliefs"] == remote.summary.figures["beliefs"]


def test_ray_client_is_refused_with_another_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setenv("RAY_ADDRESS", "ray://host:10001")
    for executor in ("ray:2@ray://host:10001", "ray:2"):
        with pytest.raises(ConfigError, match=rf"'{executor}'.*ray://host:10001.*ray job submit"):
            Study(Sweep([1]), lambda candidate, case: 1.0).run(executor)


def test_an_executor_says_what_each_call_asks_for() -> None:
    assert make("ray:2", resources="GPU=1,mem=8G,licence=2").resources == {
        **{"cpu": 1.0, "gpu": 1.0},
        **{"memory": 8 * 2.0**30, "licence": 2.0},
    }
    assert Ray(2).resources == {"cpu": 1.0}
