"""What workers cost the driver, how busy they are, and what a lost node costs, beside other libraries.

Each engine (local processes, Ray, Dask) has a process of its own, in which its contenders take turns.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measure import stopwatch

from fanfold import Case, Ok, Study, Sweep
from fanfold.models import model

WORKERS = 2
GPUS = 8
QUIET = {"include_dashboard": False, "object_store_memory": 150 * 2**20}
#: How long evaluations sleep where utilisation is measured.
PAUSES = (0.001, 0.010, 0.100)
ALONE = 0.060


@dataclass(frozen=True)
class Job:
    """So many evaluations that sleep `pause` seconds each, on a case of `size` bytes."""

    cells: int
    pause: float = 0.0
    size: int = 0


#: Does a job; the seconds and the end of each evaluation are read after the clock has stopped.
Work = Callable[[Job], Iterable[tuple[float, float]]]


def pausing(pause: float, data: bytes, _: int) -> tuple[float, float]:
    """Sleep; gives the seconds it took, and when it ended."""
    if not pause:
        return 0.0, 0.0
    started = time.time()
    time.sleep(pause)
    return time.time() - started, time.time()


@dataclass(frozen=True)
class Pausing:
    """The same as an evaluator."""

    pause: float

    def __call__(self, candidate: int, case: Case) -> Ok:
        return Ok(*pausing(self.pause, case.data, candidate))


async def nothing(candidate: int, case: Case) -> float:
    return 0.0


@functools.cache
def data(size: int) -> bytes:
    return os.urandom(size)


def ours(executor: str, **options: Any) -> Work:
    """Fanfold with a ledger on disk."""

    def work(job: Job) -> Iterable[tuple[float, float]]:
        evaluate: Any = nothing if executor.startswith("async") else Pausing(job.pause)
        study = Study(Sweep(range(job.cells)), evaluate, [Case("only", data(job.size))])
        folder = tempfile.TemporaryDirectory()
        run = study.run(executor, ledger=Path(folder.name) / "ledger.db", **options)
        if (run.progress.evaluations, run.progress.failures) != (job.cells, 0):
            raise RuntimeError(f"{executor}: {run.progress} instead of {job.cells} evaluations")
        return _times(run, folder)

    return work


def _times(run: Any, folder: tempfile.TemporaryDirectory[str]) -> Iterator[tuple[float, float]]:
    """What the evaluations of a run gave; its ledger is not needed after that."""
    with folder:
        outcomes = (outcome for result in run.results() for outcome in result.outcomes.values())
        yield from ((outcome.score, outcome.data or 0.0) for outcome in outcomes)
        run.ledger.close()


def _pool(pool: Any, chunks: bool) -> Work:
    def work(job: Job) -> Iterable[tuple[float, float]]:
        call = functools.partial(pausing, job.pause, data(job.size))
        return list(pool.map(call, range(job.cells)) if chunks else pool.imap_unordered(call, range(job.cells)))

    return work


def _joblib(parallel: Any, delayed: Any) -> Work:
    return lambda job: parallel(delayed(pausing)(job.pause, data(job.size), index) for index in range(job.cells))


@contextmanager
def local() -> Iterator[dict[str, Work]]:
    import multiprocessing

    found = {f"Fanfold {name}": ours(name) for name in ("inline", "async:64", "threads:8", f"processes:{WORKERS}")}
    with multiprocessing.get_context("fork").Pool(WORKERS) as pool:
        found |= {
            "multiprocessing.Pool.imap_unordered": _pool(pool, False),
            "multiprocessing.Pool.map, in chunks": _pool(pool, True),
        }
        try:
            joblib = importlib.import_module("joblib")
        except ImportError:
            yield found
            return
        with joblib.Parallel(n_jobs=WORKERS, backend="loky") as parallel:
            yield found | {"joblib, loky": _joblib(parallel, joblib.delayed)}


@contextmanager
def ray() -> Iterator[dict[str, Work]]:
    """A Ray cluster on this machine, with GPUs that only Ray believes in."""
    ray = importlib.import_module("ray")
    cluster_utils = importlib.import_module("ray.cluster_utils")
    cluster = cluster_utils.Cluster(True, head_node_args={"num_cpus": WORKERS, "num_gpus": GPUS, **QUIET})
    ray.init(cluster.address, log_to_driver=False, logging_level="FATAL")
    remote = ray.remote(pausing)

    def tasks(job: Job) -> Iterable[tuple[float, float]]:
        shared = ray.put(data(job.size))
        return list(ray.get([remote.remote(job.pause, shared, index) for index in range(job.cells)]))

    try:
        ray.get([remote.remote(0.0, b"", index) for index in range(WORKERS)])
        yield {f"Fanfold ray:{WORKERS}": ours(f"ray:{WORKERS}"), "Ray tasks": tasks, "cluster": cluster}  # type: ignore[dict-item]
    finally:
        ray.shutdown()
        cluster.shutdown()


@contextmanager
def dask() -> Iterator[dict[str, Work]]:
    """The scheduler lives in the driver's process, for both contenders."""
    distributed = importlib.import_module("distributed")
    cluster = distributed.LocalCluster(
        n_workers=WORKERS, threads_per_worker=1, dashboard_address=None, silence_logs="CRITICAL"
    )
    with cluster, distributed.Client(cluster) as client:

        def tasks(job: Job) -> Iterable[tuple[float, float]]:
            shared = client.scatter(data(job.size), broadcast=True, hash=False)
            calls = client.map(
                functools.partial(pausing, job.pause), [shared] * job.cells, range(job.cells), pure=False
            )
            return list(client.gather(calls))

        yield {f"Fanfold dask, {WORKERS} workers": ours(f"dask:{cluster.scheduler_address}"), "Dask futures": tasks}


ENGINES: dict[str, Callable[[], AbstractContextManager[dict[str, Work]]]] = {"local": local, "ray": ray, "dask": dask}


def rates(contenders: dict[str, Work], jobs: dict[str, Job], repeats: int) -> dict[str, dict[str, Any]]:
    """CPU of this process and utilisation of the workers, by job and contender, one sample for each repeat."""
    found: dict[str, dict[str, Any]] = {name: {} for name in jobs}
    for name, job in jobs.items():
        for contender, work in contenders.items():
            if (job.pause or job.size) and not _has_workers(contender):
                continue
            try:
                few = Job(2 * WORKERS, job.pause, job.size)
                list(work(few))  # workers are up and have their imports
                sample = functools.partial(_apart, few=few) if job.size else _sample
                found[name][contender] = [sample(work, job) for _ in range(repeats)]
            except Exception as error:
                found[name][contender] = f"not measured: {type(error).__name__}: {error}"[:150]
    return found


def _has_workers(contender: str) -> bool:
    return not contender.startswith(("Fanfold inline", "Fanfold async", "Fanfold threads"))


def _apart(work: Work, job: Job, few: Job) -> dict[str, float]:
    """What each evaluation costs, apart from what large data cost once: hashing, storing and sending them."""
    short, long = (_sample(work, size)["driver CPU ms"] * size.cells for size in (few, job))
    each = (long - short) / (job.cells - few.cells)
    return {"driver CPU ms": each, "once, CPU ms": short - each * few.cells}


def _sample(work: Work, job: Job) -> dict[str, float]:
    with stopwatch() as watch:
        answers = work(job)
    times = list(answers)
    per = {"driver CPU ms": watch.cpu / job.cells * 1e3, "cells/s": job.cells / watch.wall}
    if not job.pause:
        return per
    span = max(end for _, end in times) - min(end - seconds for seconds, end in times)
    return {**per, "utilisation": sum(seconds for seconds, _ in times) / WORKERS / span}


@dataclass(frozen=True)
class OnGpu:
    """Sleeps; gives the number of its GPU, and its times."""

    pause: float

    def __call__(self, candidate: int, case: Case) -> Ok:
        return Ok(float(os.environ.get("CUDA_VISIBLE_DEVICES", "-1")), pausing(self.pause, b"", candidate))


def gpus(executor: str, cells: int, **resources: float) -> dict[str, float]:
    """How many of eight GPUs are used, and the work done at once; neither CUDA nor a GPU is needed."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, range(GPUS)))
    run = Study(Sweep(range(cells)), OnGpu(0.25), window=4 * GPUS).run(executor, resources={"gpu": 1, **resources})
    outcomes = [outcome for result in run.results() for outcome in result.outcomes.values()]
    run.ledger.close()
    seconds, ends = zip(*(outcome.data for outcome in outcomes))
    span = max(ends) - min(end - length for length, end in zip(seconds, ends))
    return {"GPUs used": float(len({outcome.score for outcome in outcomes})), "times one": sum(seconds) / span}


@dataclass(frozen=True)
class NodeKiller:
    """Scores by the case's randomness; one cell takes its node down as often as there are files to delete."""

    folder: str

    def __call__(self, candidate: int, case: Case) -> float:
        if candidate == 2 and case.id == "a":  # one cell alone, as two would race for the same file
            for file in Path(self.folder).glob("kill*"):
                file.unlink()
                for process in (os.getppid(), os.getpid()):  # a worker's parent is its node
                    os.kill(process, signal.SIGKILL)
        return candidate + case.rng().random()


def lost_nodes(cluster: Any, times: int) -> dict[str, float]:
    """A study whose cell loses its node so often, compared with the same study inline."""
    for _ in range(times + 1):
        cluster.add_node(num_cpus=1, resources={"shaky": 1}, **QUIET)
    with tempfile.TemporaryDirectory() as folder:
        study = Study(Sweep(range(6)), NodeKiller(folder), [Case("a"), Case("b")], seed=4)
        inline = study.run()
        for number in range(times):
            (Path(folder) / f"kill{number}").touch()
        run = study.run("ray:3", resources={"shaky": 1})
        left = len(list(Path(folder).iterdir()))
    return {"nodes lost": float(times - left), "equal to inline": float(run.trace == inline.trace)}


@dataclass(frozen=True)
class Asking:
    """Makes one model call of its own for each candidate."""

    name: str = "simulated/gpt-6-luna"

    def __call__(self, candidate: int, case: Case) -> float:
        return float(len(model(self.name).generate_sync(f"question {candidate}", max_tokens=8).text))


def kept(executor: str, calls: int) -> dict[str, float]:
    """The share of model calls from workers that the ledger holds."""
    with tempfile.TemporaryDirectory() as folder:
        run = Study(Sweep(range(calls)), Asking()).run(executor, ledger=Path(folder) / "ledger.db")
        held = run.ledger.one("SELECT count(*) FROM call")[0]
        run.ledger.close()
    return {"calls kept": held / calls}


def alone(executor: str, **options: Any) -> dict[str, float]:
    """Driver CPU of a call that is too long to travel with others, where enough of them finish to share commits."""
    work = ours(executor, **options)
    list(work(Job(4 * GPUS, ALONE)))  # workers are up
    return {"driver CPU ms": _apart(work, Job(60 * GPUS, ALONE), Job(4 * GPUS, ALONE))["driver CPU ms"]}


def parts(engine: str, contenders: dict[str, Any], cells: int) -> Iterator[tuple[str, Callable[[], dict[str, float]]]]:
    calls = max(4, min(60, cells // 50))
    if engine == "local":
        for executor in ("threads:2", f"processes:{WORKERS}"):
            yield f"model calls on {executor}", functools.partial(kept, executor, calls)
        if cells < 1_000:  # a trial of the script itself starts few workers
            return
        yield f"a call of 60 ms on processes:{2 * GPUS}", functools.partial(alone, f"processes:{2 * GPUS}")
        yield f"{GPUS} GPUs of a host, processes:{GPUS}", functools.partial(gpus, f"processes:{GPUS}", 20 * GPUS)
    if engine == "ray":
        cluster = contenders.pop("cluster")
        yield f"model calls on ray:{WORKERS}", functools.partial(kept, f"ray:{WORKERS}", calls)
        yield f"a call of 60 ms on ray:{GPUS}", functools.partial(alone, f"ray:{GPUS}", resources={"cpu": 0.1})
        yield f"{GPUS} GPUs of a cluster, ray:{GPUS}", functools.partial(gpus, f"ray:{GPUS}", 2 * GPUS, cpu=0.1)
        yield "node lost twice under the same cell", functools.partial(lost_nodes, cluster, 2)


def main(engine: str, cells: int, heavy: int, size: int, seconds: float, repeats: int) -> None:
    """Print everything of one engine as a line of JSON."""
    jobs = {"cells": Job(cells), "large": Job(heavy, size=size)}
    jobs |= {f"{pause * 1e3:g} ms": Job(max(4, round(seconds * WORKERS / pause)), pause) for pause in PAUSES}
    with ENGINES[engine]() as contenders:
        todo = list(parts(engine, contenders, cells))
        found: dict[str, Any] = {"rates": rates(contenders, jobs, repeats), "parts": {}}
        for name, part in todo:
            try:
                found["parts"][name] = part()
            except Exception as error:
                found["parts"][name] = f"not measured: {type(error).__name__}: {error}"[:150]
    print(json.dumps(found), flush=True)


def _start(words: Sequence[str]) -> None:
    engine, cells, heavy, size, seconds, repeats = words
    main(engine, int(cells), int(heavy), int(size), float(seconds), int(repeats))


if __name__ == "__main__":
    _start(sys.argv[1:])
