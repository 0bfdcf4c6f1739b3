"""One worker for each GPU: the same search, whatever happens to a worker.  Workers on the CPU stand for GPUs here."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fanfold.errors import ConfigError
from fanfold.events import EvaluationFinished, Event
from fanfold.running import Run
from fanfold.strategies import Sweep
from fanfold.studies.neuro import NeuroConfig, run_options, study
from fanfold.study import Study
from fanfold.types import Case, Ok

pytest.importorskip("torch")

SMALL: dict[str, Any] = {
    "dataset": "digits", "population": 6, "elites": 1, "trials": 11, "epochs": 2, "rungs": 2, "eta": 2,
    "max_batches": 3, "conv_layers": (1, 2), "filters": (3, 24), "nodes": (64, 128), "dense_layers": (1, 1),
    "results": None, "baselines": "no", "finalists": 0, "seed": 3, "device": "cpu",
}  # fmt: skip


def workers() -> list[int]:
    """The worker processes of this one."""
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    return [
        int(child) for child in children if b"fanfold.executors.worker" in Path(f"/proc/{child}/cmdline").read_bytes()
    ]


def searched(watch: Any = None, blobs: Path | None = None, ledger: Path | None = None, **changes: Any) -> Run[Any]:
    config = NeuroConfig(**{**SMALL, **changes})
    return study(config).run(**run_options(config), watch=watch, blobs=blobs, ledger=ledger, run="r", progress=False)


@pytest.mark.slow
def test_two_workers_search_as_one_process_does_though_one_is_killed(tmp_path: Path) -> None:
    killed: list[int] = []
    seen: set[int] = set()

    def kill(event: Event) -> None:
        if isinstance(event, EvaluationFinished):
            seen.update(workers())
            if len(seen) == 2 and not killed:
                killed.append(max(seen))
                os.kill(killed[0], signal.SIGKILL)

    alone = searched(engine="sequential")
    both = searched(kill, tmp_path / "blobs", tmp_path / "one.db", gpus=2)
    assert killed and len(seen) >= 3, "there are two workers, and another in place of the killed one"
    assert both.trace == alone.trace and [r.number for r in both.results()] == [r.number for r in alone.results()]
    best, other = both.best.outcomes["2 epochs"], alone.best.outcomes["2 epochs"]
    assert isinstance(best, Ok) and isinstance(other, Ok)
    assert best.data["weights"].read() == other.data["weights"].read()
    named = {name for (name,) in both.ledger.read("SELECT name FROM stored_blob")}
    assert named and both.ledger.blobs is not None and both.ledger.blobs.reached, "workers wrote weights themselves"


@dataclass(frozen=True)
class Uneven:
    """Says which GPU a block was given.  One worker dies once; its successor and the other wait for each other."""

    folder: str
    fingerprint = "uneven"
    block_size = 8

    def __call__(self, candidate: int, case: Case) -> Ok:
        return self.evaluate_block([(candidate, case)])[0]

    def evaluate_block(self, cells: Any) -> list[Ok]:
        gpu, place = os.environ["CUDA_VISIBLE_DEVICES"], Path(self.folder)
        if gpu == "3" and not (place / "died").exists():
            (place / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        (place / f"{gpu}-{cells[0][0]}").touch()

        def blocks(of: str) -> int:
            return len(list(place.glob(f"{of}-*")))

        while blocks("5") < 3 if gpu == "3" else blocks("5") >= 3 and not blocks("3"):
            time.sleep(0.01)
        return [Ok(float(candidate), {"gpu": gpu, "pid": os.getpid()}) for candidate, _ in cells]


@pytest.mark.slow
def test_each_worker_has_a_gpu_and_none_waits_for_a_slow_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    uneven = Study(Sweep(range(60)), Uneven(str(tmp_path)), window=60)
    run = uneven.run("processes:2", resources="gpu=1")
    assert [result.score for result in run.results()] == [float(number) for number in range(60)], "told in order"
    places = {(cell["gpu"], cell["pid"]) for result in run.results() for cell in [result.outcomes["0"].data]}  # type: ignore[union-attr]
    assert sorted(gpu for gpu, _ in places) == ["3", "5"], "one GPU each, also of the worker that replaced another"
    assert (tmp_path / "died").exists()


def test_gpus_decide_the_executor_and_what_a_worker_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,4")
    assert run_options(NeuroConfig(gpus=2)) == {"executor": "processes:2", "resources": "gpu=1"}
    assert run_options(NeuroConfig(gpus="all")) == {"executor": "processes:3", "resources": "gpu=1"}
    assert run_options(NeuroConfig(gpus=2, device="cpu")) == {"executor": "processes:2"}
    trainer: Any = study(NeuroConfig(gpus=2)).evaluate
    assert (trainer.engine.name, trainer.engine.devices, trainer.block_size) == ("graph", ("cuda",), 128)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"gpus": 0}, "gpus must be a whole number of at least 1, not 0"),
        ({"gpus": 2, "engine": "threads"}, "engine='threads' has workers of its own"),
        ({"gpus": 2}, r"this machine has 0 GPUs"),
        ({"gpus": "all"}, r"this machine has 0 GPUs"),
    ],
)
def test_what_cannot_work_is_refused_with_the_reason(
    changes: dict[str, Any], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(ConfigError, match=problem):
        searched(**{**changes, "device": "auto"})
