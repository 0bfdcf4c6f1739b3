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
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fanfold import Case, Study, Sweep
from measure import Line, Sampled, Sizes, Table, sampled

WORKERS = 2
UNIT = 0.005
INSTALL = "not installed: pip install 'fanfold[bench]'"
TIMEOUT = 60.0


@dataclass(frozen=True)
class Job:
    """One run of a contender: evaluations 0 to `evaluations` - 1; with `kills`, the middle one kills its worker once."""

    evaluations: int
    iterations: int
    folder: str
    kills: bool

    def evaluate(self, index: int) -> float:
        """Compute for a while; gives the CPU seconds that took."""
        started = time.thread_time()
        with (Path(self.folder) / "executions").open("ab", buffering=0) as tally:
            tally.write(b".")
        if self.kills and index == self.evaluations // 2:
            self._die_once()
        compute(self.iterations)
        return time.thread_time() - started

    def _die_once(self) -> None:
        try:
            (Path(self.folder) / "killed").touch(exist_ok=False)
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)


#: What a contender does: get the pool up, call `ready`, and add results to `got` as the library hands them out.
Contender = Callable[[Job, Callable[[], None], list[float]], None]


def with_fanfold(job: Job, ready: Callable[[], None], got: list[float]) -> None:
    def evaluate(candidate: int, case: Case) -> float:
        return job.evaluate(candidate)

    ready()  # its workers start within the run, on our time
    study = Study(Sweep(range(job.evaluations)), evaluate)
    run = study.run(f"processes:{WORKERS}", ledger=Path(job.folder) / "ledger.db")
    got.extend(result.score for result in run.results() if result.score is not None)


def with_pool(job: Job, ready: Callable[[], None], got: list[float]) -> None:
    with concurrent.futures.ProcessPoolExecutor(WORKERS) as pool:
        list(pool.map(compute, [1] * WORKERS))
        ready()
        futures = [pool.submit(job.evaluate, index) for index in range(job.evaluations)]
        for future in concurrent.futures.as_completed(futures):
            got.append(future.result())


def with_joblib(job: Job, ready: Callable[[], None], got: list[float]) -> None:
    joblib = importlib.import_module("joblib")
    with joblib.Parallel(n_jobs=WORKERS, backend="loky") as parallel:
        parallel(joblib.delayed(compute)(1) for _ in range(WORKERS))
        ready()
        got.extend(parallel(joblib.delayed(job.evaluate)(index) for index in range(job.evaluations)))


def with_ray(job: Job, ready: Callable[[], None], got: list[float]) -> None:
    ray = importlib.import_module("ray")
    ray.init(num_cpus=WORKERS, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        ray.get([ray.remote(compute).remote(1) for _ in range(WORKERS)])
        evaluate = ray.remote(lambda index: job.evaluate(index))
        ready()
        got.extend(ray.get([evaluate.remote(index) for index in range(job.evaluations)]))
    finally:
        ray.shutdown()


def with_dask(job: Job, ready: Callable[[], None], got: list[float]) -> None:
    distributed = importlib.import_module("distributed")
    cluster = distributed.LocalCluster(
        n_workers=WORKERS, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs="CRITICAL"
    )
    with cluster, distributed.Client(cluster) as client:
        client.gather(client.map(compute, range(WORKERS)))
        ready()
        got.extend(client.gather(client.map(job.evaluate, range(job.evaluations), pure=False)))


def with_optuna(job: Job, ready: Callable[[], None], got: list[float]) -> None:
    optuna = importlib.import_module("optuna")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.RandomSampler(seed=0))
    ready()
    study.optimize(lambda trial: job.evaluate(trial.number), n_trials=job.evaluations, n_jobs=WORKERS)
    got.extend(trial.value for trial in study.trials if trial.value is not None)


#: Name, the package it needs, and how it does the work.
CONTENDERS: dict[str, tuple[str, Contender]] = {
    "Fanfold processes:2, file ledger": ("fanfold", with_fanfold),
    "ProcessPoolExecutor(2)": ("concurrent", with_pool),
    "joblib, loky, 2 workers": ("joblib", with_joblib),
    "Dask LocalCluster, 2 processes": ("distributed", with_dask),
    "Ray tasks, 2 CPUs": ("ray", with_ray),
    "Optuna n_jobs=2 (threads)": ("optuna", with_optuna),
}


def measure(sizes: Sizes) -> list[Table]:
    iterations = iterations_for(UNIT)
    speed, death = [], []
    for name, (package, _) in CONTENDERS.items():
        if importlib.util.find_spec(package) is None:
            speed.append(Line(name, note=INSTALL))
            continue
        answers = [in_subprocess(name, sizes.peer_evaluations, iterations, False) for _ in range(sizes.repeats)]
        speed.append(_speed(name, answers, sizes.peer_evaluations))
        death.append(_death(name, in_subprocess(name, sizes.peer_evaluations, iterations, True)))
    count = f"{sizes.peer_evaluations} evaluations of about {UNIT * 1e3:g} ms CPU on {WORKERS} workers"
    return [Table(f"Peers: {count}", speed), Table(f"Peers: {count}, one worker killed by SIGKILL", death)]


def _speed(name: str, answers: list[dict[str, Any]], evaluations: int) -> Line:
    failed = [answer["error"] for answer in answers if answer["error"] or answer["got"] != evaluations]
    if failed:
        return Line(name, note=f"failed: {failed[0]}")
    columns = ("time over ideal", "run s", "start s")
    return Line(name, sampled([{column: answer[column] for column in columns} for answer in answers]))


def _death(name: str, answer: dict[str, Any]) -> Line:
    executed = Sampled((float(answer["executions"]),))
    note = f"the run died: {answer['error']}" if answer["error"] else "the run went on"
    return Line(name, {"results delivered": Sampled((float(answer["got"]),)), "executions": executed}, note=note)


def in_subprocess(name: str, evaluations: int, iterations: int, kills: bool) -> dict[str, Any]:
    """One run of a contender; whatever happens to its process, an answer that says what came of it."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        job = Job(evaluations, iterations, folder, kills)
        command = [sys.executable, str(Path(__file__)), name, json.dumps(asdict(job))]
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


def main(name: str, job: Job) -> None:
    """Run one contender here and write what came of it into the job's folder."""
    got: list[float] = []
    begun = time.perf_counter()
    started = begun

    def ready() -> None:
        nonlocal started
        started = time.perf_counter()

    error = ""
    try:
        CONTENDERS[name][1](job, ready, got)
    except Exception as failure:
        error = type(failure).__name__
    seconds = time.perf_counter() - started
    times = {"run s": seconds, "start s": started - begun, "time over ideal": seconds / max(sum(got) / WORKERS, 1e-9)}
    (Path(job.folder) / "answer.json").write_text(json.dumps({"got": len(got), "error": error, **times}))


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
    main(sys.argv[1], Job(**json.loads(sys.argv[2])))
