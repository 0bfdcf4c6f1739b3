"""The same work with other libraries, each in a process of its own: how fast, and what a killed worker costs.

Two questions.  Speed: evaluations of about 5 ms of CPU on two workers, wall clock over the ideal (the CPU time of the
evaluations themselves, halved).  Death: the worker of one evaluation is killed with SIGKILL, once.
"""

from __future__ import annotations

import concurrent.futures
import importlib
import importlib.util
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from measure import Line, Sampled, Sizes, Table, sampled

from fanfold import Case, Study, Sweep

WORKERS = 2
UNIT = 0.005
INSTALL = "not installed: pip install 'fanfold[bench]'"
TIMEOUT = 60.0


@dataclass(frozen=True)
class Job:
    """One run of a contender: so many evaluations; with `kills`, the middle one kills its worker, once."""

    evaluations: int
    iterations: int
    folder: str
    kills: bool

    def evaluate(self, index: int) -> float:
        """Compute for a while; gives the CPU seconds that took."""
        if self.kills:
            self._count()
            if index == self.evaluations // 2:
                self._die_once()
        started = time.thread_time()
        compute(self.iterations)
        return time.thread_time() - started

    def evaluate_case(self, candidate: int, case: Case) -> float:
        return self.evaluate(candidate)

    def _count(self) -> None:
        with (Path(self.folder) / "executions").open("ab", buffering=0) as tally:
            tally.write(b".")

    def _die_once(self) -> None:
        try:
            (Path(self.folder) / "killed").touch(exist_ok=False)
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)


#: Does the job once and adds the results to the list as the library hands them out.
Work = Callable[[Job, list[float]], None]


@contextmanager
def fanfold_processes() -> Iterator[Work]:
    def work(job: Job, got: list[float]) -> None:
        study = Study(Sweep(range(job.evaluations)), job.evaluate_case)
        run = study.run(f"processes:{WORKERS}", ledger=Path(job.folder) / "ledger.db")
        got.extend(result.score for result in run.results() if result.score is not None)
        run.ledger.close()

    yield work  # its workers start within each run, on our time


@contextmanager
def process_pool() -> Iterator[Work]:
    with concurrent.futures.ProcessPoolExecutor(WORKERS) as pool:

        def work(job: Job, got: list[float]) -> None:
            futures = [pool.submit(job.evaluate, index) for index in range(job.evaluations)]
            got.extend(future.result() for future in concurrent.futures.as_completed(futures))

        yield work


@contextmanager
def joblib_loky() -> Iterator[Work]:
    joblib = importlib.import_module("joblib")
    with joblib.Parallel(n_jobs=WORKERS, backend="loky") as parallel:

        def work(job: Job, got: list[float]) -> None:
            got.extend(parallel(joblib.delayed(job.evaluate)(index) for index in range(job.evaluations)))

        yield work


@contextmanager
def dask_cluster() -> Iterator[Work]:
    distributed = importlib.import_module("distributed")
    cluster = distributed.LocalCluster(
        n_workers=WORKERS, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs="CRITICAL"
    )
    with cluster, distributed.Client(cluster) as client:

        def work(job: Job, got: list[float]) -> None:
            got.extend(client.gather(client.map(job.evaluate, range(job.evaluations), pure=False)))

        yield work


@contextmanager
def ray_tasks() -> Iterator[Work]:
    ray = importlib.import_module("ray")
    ray.init(num_cpus=WORKERS, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    evaluate = ray.remote(Job.evaluate)

    def work(job: Job, got: list[float]) -> None:
        got.extend(ray.get([evaluate.remote(job, index) for index in range(job.evaluations)]))

    try:
        yield work
    finally:
        ray.shutdown()


@contextmanager
def optuna_threads() -> Iterator[Work]:
    optuna = importlib.import_module("optuna")
    optuna.logging.set_verbosity(optuna.logging.ERROR)

    def work(job: Job, got: list[float]) -> None:
        study = optuna.create_study(direction="maximize", sampler=optuna.samplers.RandomSampler(seed=0))
        study.optimize(lambda trial: job.evaluate(trial.number), n_trials=job.evaluations, n_jobs=WORKERS)
        got.extend(trial.value for trial in study.trials if trial.value is not None)

    yield work


#: The package each needs, and how it does the work.
CONTENDERS: dict[str, tuple[str, Callable[[], AbstractContextManager[Work]]]] = {
    "Fanfold processes:2, file ledger": ("fanfold", fanfold_processes),
    "ProcessPoolExecutor(2)": ("concurrent", process_pool),
    "joblib, loky, 2 workers": ("joblib", joblib_loky),
    "Dask LocalCluster, 2 processes": ("distributed", dask_cluster),
    "Ray tasks, 2 CPUs": ("ray", ray_tasks),
    "Optuna n_jobs=2 (threads)": ("optuna", optuna_threads),
}


def measure(sizes: Sizes) -> Iterator[Table]:
    iterations, speed, death = iterations_for(UNIT), [], []
    for name, (package, _) in CONTENDERS.items():
        if importlib.util.find_spec(package) is None:
            speed.append(Line(name, note=INSTALL))
            continue
        speed.append(_speed(name, in_subprocess(name, sizes.peer_evaluations, iterations, rounds=sizes.repeats)))
        death.append(_death(name, in_subprocess(name, sizes.peer_evaluations, iterations, rounds=0)))
    count = f"{sizes.peer_evaluations} evaluations of about {UNIT * 1e3:g} ms CPU on {WORKERS} workers"
    yield Table(f"Peers: {count}", speed)
    yield Table(f"Peers: {count}, one worker killed by SIGKILL", death)


def _speed(name: str, answer: dict[str, Any]) -> Line:
    if answer["error"]:
        return Line(name, note=f"failed: {answer['error']}")
    return Line(name, {**sampled(answer["rounds"]), "start s": Sampled((answer["start s"],))})


def _death(name: str, answer: dict[str, Any]) -> Line:
    counts = {"results delivered": Sampled((answer["got"],)), "executions": Sampled((answer["executions"],))}
    return Line(name, counts, note=f"the run died: {answer['error']}" if answer["error"] else "the run continued")


def in_subprocess(name: str, evaluations: int, iterations: int, rounds: int) -> dict[str, Any]:
    """Some timed rounds of a contender, or with none, one in which a worker is killed.

    Whatever happens to its process, there is an answer that says how it ended.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        job = Job(evaluations, iterations, folder, kills=rounds == 0)
        command = [sys.executable, str(Path(__file__)), name, json.dumps(asdict(job)), str(rounds)]
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        try:
            code: int | None = process.wait(TIMEOUT)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            code = None
        return _answer(Path(folder), code)


def _answer(folder: Path, code: int | None) -> dict[str, Any]:
    executions, answer = folder / "executions", folder / "answer.json"
    found: dict[str, Any] = {"got": 0, "executions": executions.stat().st_size if executions.exists() else 0}
    if answer.exists():
        return {**found, **json.loads(answer.read_text())}
    ended = f"no end within {TIMEOUT:g} s" if code is None else f"its process ended with {code}, nothing was left"
    return {**found, "error": ended}


def main(name: str, job: Job, rounds: int) -> None:
    """Run one contender here and write the result into the job's folder."""
    got: list[float] = []
    times: list[dict[str, float]] = []
    start, error = 0.0, ""
    try:
        begun = time.perf_counter()
        with CONTENDERS[name][1]() as work:
            work(replace(job, evaluations=WORKERS, kills=False), [])  # the workers are up and have their imports
            start = time.perf_counter() - begun
            for _ in range(rounds or 1):
                got.clear()
                begun = time.perf_counter()
                work(job, got)
                seconds = time.perf_counter() - begun
                times.append({"time over ideal": seconds / (sum(got) / WORKERS), "run s": seconds})
    except Exception as failure:
        error = type(failure).__name__
    if not error and len(got) != job.evaluations:
        error = f"{len(got)} of {job.evaluations} results"
    answer = {"got": len(got), "error": error, "start s": start, "rounds": times}
    (Path(job.folder) / "answer.json").write_text(json.dumps(answer))


def compute(iterations: int) -> int:
    total = 0
    for number in range(iterations):
        total += number * number
    return total


def iterations_for(seconds: float) -> int:
    """How many iterations take about so much CPU on this machine."""
    probe = 20_000
    times = []
    for _ in range(15):
        started = time.thread_time()
        compute(probe)
        times.append(time.thread_time() - started)
    return max(1, round(probe * seconds / statistics.median(times)))


if __name__ == "__main__":
    main(sys.argv[1], Job(**json.loads(sys.argv[2])), int(sys.argv[3]))
