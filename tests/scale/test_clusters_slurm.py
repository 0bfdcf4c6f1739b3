"""Slurm as a place to run, on the local jobs of submitit: the conformance suite, lost jobs, dead workers, refusals."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fanfold import Study
from fanfold.errors import ConfigError, ExecutorBroken, MissingExtra, PlaceLost, WorkerDied
from fanfold.executors import Executor, Slurm, make, slurm
from fanfold.executors.slurm import _settings
from fanfold.strategies import Sweep
from fanfold.testing.executors import ExecutorConformance, double
from fanfold.types import Case

pytest.importorskip("submitit")
pytestmark = pytest.mark.slow  # jobs are processes that start processes


@pytest.fixture
def place(tmp_path: Path) -> str:
    return f"slurm:2?cluster=local&folder={tmp_path / 'jobs'}"


class TestSlurm(ExecutorConformance):
    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path) -> None:
        self.spec = f"slurm:2?cluster=local&folder={tmp_path / 'jobs'}"

    def make(self) -> Executor:
        return make(self.spec)


@dataclass(frozen=True)
class JobKiller:
    """Scores by the case's randomness; candidate 2 first kills its job, and candidate 4 its process, once each."""

    folder: str

    def __call__(self, candidate: int, case: Case) -> float:
        file = Path(self.folder, str(candidate))
        if file.exists():
            file.unlink()
            if candidate == 2:
                os.kill(os.getppid(), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        return candidate + case.rng().random()


def test_a_lost_job_and_a_killed_worker_change_nothing(place: str, tmp_path: Path) -> None:
    study: Study[int] = Study(Sweep(range(8)), JobKiller(str(tmp_path)), [Case("a"), Case("b")], seed=4)
    inline = study.run()
    for candidate in (2, 4):
        (tmp_path / str(candidate)).touch()
    run = study.run(place)
    assert not (tmp_path / "2").exists() and not (tmp_path / "4").exists()
    assert run.trace == inline.trace and run.progress.failures == 0
    assert not list((tmp_path / "jobs").iterdir()), "what was submitted, with its key, is gone"


SBATCH = """#!/bin/bash
# Runs the jobs of an array here, one after another into the background, as Slurm would on its nodes.
export SLURM_ARRAY_JOB_ID=77 SLURM_JOB_ID=77 SUBMITIT_EXECUTOR=slurm
count=$(sed -n 's/#SBATCH --array=0-\\([0-9]*\\)%.*/\\1/p' "$1")
cp "$1" "$HOME/submitted"
for task in $(seq 0 "$count"); do SLURM_ARRAY_TASK_ID=$task bash "$1" > /dev/null 2> "$HOME/log$task" & done
echo "Submitted batch job 77"
"""
SRUN = """#!/bin/bash
shift 5  # --unbuffered --output FILE --error FILE
exec "$@"
"""


def test_what_is_submitted_with_sbatch_serves_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With an sbatch of our own, for there is no Slurm here."""
    tools = tmp_path / "bin"
    tools.mkdir()
    programs = {"sbatch": SBATCH, "srun": SRUN, "scancel": "#!/bin/bash\necho $@ > $HOME/cancelled\n"}
    for name, text in programs.items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))
    study: Study[int] = Study(Sweep(range(8)), JobKiller(str(tmp_path)), [Case("a"), Case("b")], seed=4)
    run = study.run("slurm:2?partition=gpu&time=2h", resources="gpu=1,memory=4G")
    assert run.trace == study.run().trace and run.progress.failures == 0
    submitted = (tmp_path / "submitted").read_text()
    for line in ("--partition=gpu", "--time=120", "--gpus-per-node=1", "--mem=4GB", "--array=0-1"):
        assert f"#SBATCH {line}" in submitted
    assert (tmp_path / "cancelled").read_text().split() == ["77"]


def die(_: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def lose_the_job(_: int) -> None:
    os.kill(os.getppid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_process_that_dies_in_a_living_job_is_told_from_a_job_that_is_gone(place: str) -> None:
    async def check() -> None:
        async with make(place) as executor:
            with pytest.raises(WorkerDied, match="die was killed by SIGKILL"):
                await executor.run(die, 1)
            with pytest.raises(PlaceLost, match=r"the Slurm job \d+ on .* is gone"):
                await executor.run(lose_the_job, 1)
            assert await asyncio.gather(*(executor.run(double, n) for n in range(4))) == [0, 2, 4, 6]

    asyncio.run(check())


def test_jobs_that_never_reach_the_driver_end_the_run_with_what_they_say(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm, "Pilot", lambda way: astray)
    with pytest.raises(ExecutorBroken, match=r"ended before it reached the driver:[\s\S]*No module named"):
        Study(Sweep([1]), lambda candidate, case: 2.0 * candidate).run(place)


def astray() -> None:
    """Of a module that no job can import."""


def test_what_sbatch_is_told() -> None:
    executor = make("slurm:64?partition=gpu&time=1d2h&account=lab", resources="gpu=2,memory=8G,cpu=4")
    assert isinstance(executor, Slurm) and executor.slots == 64
    assert executor.name == "slurm:64?partition=gpu&time=1d2h&account=lab"
    assert _settings(executor.resources, {"partition": "gpu", "time": "1d2h", "account": "lab"}) == {
        **{"name": "fanfold", "timeout_min": 26 * 60, "cpus_per_task": 4, "gpus_per_node": 2, "mem_gb": 8.0},
        **{"slurm_partition": "gpu", "slurm_account": "lab"},
    }


@pytest.mark.parametrize(
    ("spec", "resources", "words"),
    [
        ("slurm:2", None, "this machine has no sbatch.*login node.*cluster=local"),
        ("slurm:2?time=soon", None, "write 90m, 2h or 1d"),
        ("slurm:2", "licence=1", "cpu, gpu and memory, not licence"),
        ("slurm:x", None, "'x' is not a number of slots"),
        ("slurm:2?cluster=local&wishes=3", None, "jobs cannot be submitted.*wishes"),
    ],
)
def test_what_cannot_work_is_refused_before_the_first_evaluation(
    spec: str, resources: Any, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ConfigError, match=rf"executor='{spec[:7]}(?s:.*){words}"):
        Study(Sweep([1]), lambda candidate, case: 2.0 * candidate).run(spec, resources=resources)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(MissingExtra, match=r"pip install 'fanfold\[slurm\]'"):
        Study(Sweep([1]), lambda candidate, case: 2.0 * candidate).run("slurm:2")
