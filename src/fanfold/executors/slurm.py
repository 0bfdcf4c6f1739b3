"""Calls in jobs of a Slurm cluster: each job is a worker that serves one call after another."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import importlib
import os
import re
import shutil
import socket
import struct
import subprocess
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qsl

from fanfold.errors import ConfigError, ExecutorBroken, MissingExtra, PlaceLost
from fanfold.executors import local_process
from fanfold.executors.base import slots_of
from fanfold.executors.door import Door, Way, connected, hosts_of_driver
from fanfold.executors.processes import THREAD_SETTINGS, Processes
from fanfold.executors.resources import Given, parsed
from fanfold.executors.worker import HEADER

#: Frames between the driver and a job: who the job is, start a worker, kill it, how it ended.
HELLO, START, KILL, EXIT = b"h", b"s", b"k", b"x"
#: Where a connection leads, for the door.
JOB, WORKER = b"j", b"w"
#: Seconds between two looks at jobs that are not connected.
LOOK = 30.0
#: Minutes that a job may run, unless the user says otherwise; then it is requeued.
MINUTES = 60
_NUMBER = struct.Struct("<I")
_TIME = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m(?:in)?)?")


class Slurm(Processes):
    """Calls in up to `slots` Slurm jobs, submitted through submitit when the executor is opened.

    A job is a worker: it connects to the driver, and serves calls until the driver ends.  So the driver must run where
    compute nodes reach it, on a login node or in a job of its own.  Calls begin as jobs do.  A job that is preempted,
    runs out of time or loses its node is requeued or replaced, and its call is made again elsewhere (PlaceLost); a
    process that dies in a living job fails its call with WorkerDied, as in `Processes`.

    `parameters` are those of sbatch by their long names (`partition`, `account`, `qos`, `constraint`, ...), and
    `time`, `folder` (of all nodes: jobs and logs), `cluster` ("local" runs the jobs here, to try it).
    """

    patience = 3600.0

    def __init__(self, slots: int, resources: Given = None, **parameters: str) -> None:
        super().__init__(slots)
        query = "&".join(f"{name}={value}" for name, value in parameters.items())
        self.name = f"slurm:{slots}?{query}" if query else f"slurm:{slots}"
        self.resources = parsed(resources)
        self._wanted = dict(parameters)
        self._settings = _settings(self.resources, self._wanted)
        self._door: Door | None = None
        self._jobs = _Jobs(self)

    @classmethod
    def named(cls, argument: int | str | None, slots: int, resources: Given = None) -> Self:
        """`slurm:64`, or with what sbatch is told: `slurm:64?partition=gpu&time=2h`."""
        number, _, query = str(argument).partition("?")
        return cls(slots if argument is None else slots_of("slurm", number), resources, **dict(parse_qsl(query)))

    @property
    def local(self) -> bool:
        """Whether the jobs are processes of this machine."""
        return self._wanted.get("cluster") == "local"

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        hosts = ("127.0.0.1",) if self.local else hosts_of_driver()
        self._door = Door(hosts, j=self._jobs.serve, w=self._jobs.worker)
        try:
            await asyncio.to_thread(self._jobs.open, self._settings, self._wanted, Pilot(self._door.way))
        except BaseException:
            await self._leave()
            raise
        self._door.start(self._jobs.look(1.0 if self.local else LOOK))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await super().__aexit__(kind, error, trace)
        await self._leave()

    async def _leave(self) -> None:
        if self._door is not None:
            await self._door.close()
            self._door = None
        await asyncio.to_thread(self._jobs.close)

    def arrived(self) -> None:
        """A worker waits for calls."""
        self._hand_out_soon()

    def broken(self, reason: str) -> None:
        """No job can be had."""
        while self._queue:
            self._queue.popleft().fail(ExecutorBroken(reason))

    def _start(self, gpus: Mapping[str, str]) -> JobWorker | None:
        return self._jobs.arrived.pop() if self._jobs.arrived else None


def _settings(resources: Mapping[str, float], wanted: dict[str, str]) -> dict[str, Any]:
    """What submitit is told."""
    if others := sorted(resources.keys() - {"cpu", "gpu", "memory"}):
        raise ConfigError(
            f"resources: a Slurm job can be given cpu, gpu and memory, not {', '.join(others)}; write what sbatch "
            "calls it after the number, as in 'slurm:8?licenses=matlab'"
        )
    settings: dict[str, Any] = {"name": "fanfold", "timeout_min": MINUTES, "cpus_per_task": 1}
    for name, key in (("cpu", "cpus_per_task"), ("gpu", "gpus_per_node")):
        if name in resources:
            settings[key] = -int(-resources[name] // 1)
    if "memory" in resources:
        settings["mem_gb"] = resources["memory"] / 2**30
    for name, value in wanted.items():
        if name == "time":
            settings["timeout_min"] = _minutes(value)
        elif name not in ("cluster", "folder"):
            settings[f"slurm_{name.replace('-', '_')}"] = int(value) if value.isdecimal() else value
    return settings


def _minutes(text: str) -> int:
    if match := _TIME.fullmatch(text):
        days, hours, minutes = (int(part or 0) for part in match.groups())
        if total := 24 * 60 * days + 60 * hours + minutes:
            return total
    raise ConfigError(f"time={text!r} is not a time for jobs; write 90m, 2h or 1d")


class JobWorker:
    """A worker process in a job: the connection to it, its exit code, or PlaceLost where the job is gone."""

    def __init__(self, number: int, job: _ConnectedJob) -> None:
        self.number = number
        self.socket: socket.socket
        self.exit_code: concurrent.futures.Future[int] = concurrent.futures.Future()
        self.exit_code.set_running_or_notify_cancel()
        self._job = job

    def kill(self) -> None:
        self._job.send(KILL, self.number)

    def lost(self, reason: str) -> None:
        if not self.exit_code.done():
            self.exit_code.set_exception(PlaceLost(reason))


class _ConnectedJob:
    """The driver's end of a job that is connected."""

    def __init__(self, name: str, writer: asyncio.StreamWriter) -> None:
        self.name, self._writer = name, writer
        self.worker: JobWorker | None = None

    def send(self, kind: bytes, number: int) -> None:
        if not self._writer.is_closing():
            self._writer.write(HEADER.pack(kind, number, 0))


class _Jobs:
    """The jobs of an executor: submitted, connected, lost, replaced."""

    def __init__(self, owner: Slurm) -> None:
        self.arrived: list[JobWorker] = []
        self._owner = owner
        self._expected: dict[int, JobWorker] = {}
        self._count = 0
        self._connected: set[str] = set()
        self._seen: set[str] = set()
        self._submitted: list[Any] = []
        self._submit: Any = None
        self._folder: Path | None = None

    def open(self, settings: Mapping[str, Any], wanted: Mapping[str, str], pilot: Pilot) -> None:
        """Submit all jobs; blocks."""
        name, cluster = self._owner.name, wanted.get("cluster", "slurm")
        try:
            submitit = importlib.import_module("submitit")
        except ImportError as error:
            raise MissingExtra("submitit", "slurm", f"executor={name!r}") from error
        if cluster == "slurm" and shutil.which("sbatch") is None:
            raise ConfigError(
                f"executor={name!r}: this machine has no sbatch; run it on a login node of the cluster, or write "
                "'slurm:2?cluster=local' to try it here"
            )
        above = Path(wanted.get("folder", "~/.cache/fanfold/slurm")).expanduser()
        try:
            above.mkdir(parents=True, exist_ok=True)
            # For the user alone: what is submitted holds the key of the run's door.
            self._folder = Path(tempfile.mkdtemp(prefix="run-", dir=above))
            executor = submitit.AutoExecutor(self._folder, cluster=cluster, slurm_max_num_timeout=1000)
            executor.update_parameters(**settings)
        except (OSError, RuntimeError, ValueError, TypeError, NameError) as error:
            raise ConfigError(f"executor={name!r}: jobs cannot be submitted ({error})") from error

        def submit(count: int) -> None:
            with executor.batch():
                jobs = [executor.submit(pilot) for _ in range(count)]
            self._submitted += jobs

        self._submit = submit
        try:
            submit(self._owner.slots)
        except Exception as error:  # sbatch says what it does not like
            raise ConfigError(f"executor={name!r}: sbatch refused the jobs ({str(error).strip()[-500:]})") from error

    async def serve(self, connection: socket.socket) -> None:
        """One job, as long as it is connected."""
        reader, writer = await asyncio.open_connection(sock=connection.dup())
        kind, _, length = HEADER.unpack(await reader.readexactly(HEADER.size))
        name, _, host = (await reader.readexactly(length)).decode().partition(" ")
        job = _ConnectedJob(name, writer)
        self._connected.add(name)
        self._seen.add(name)
        try:
            while True:
                self._count += 1
                worker = job.worker = self._expected[self._count] = JobWorker(self._count, job)
                job.send(START, worker.number)
                kind = b""
                while kind != EXIT:
                    kind, _, length = HEADER.unpack(await reader.readexactly(HEADER.size))
                    body = await reader.readexactly(length)
                self._forget(worker)
                worker.exit_code.set_result(int(body))
        except (asyncio.IncompleteReadError, OSError):
            pass  # the job is gone
        finally:
            writer.close()
            self._connected.discard(name)
            if job.worker is not None:
                self._forget(job.worker)
                job.worker.lost(
                    f"the Slurm job {name} on {host} is gone (preempted, out of time, or its node was lost)"
                )

    def _forget(self, worker: JobWorker) -> None:
        self._expected.pop(worker.number, None)
        if worker in self.arrived:
            self.arrived.remove(worker)

    async def worker(self, connection: socket.socket) -> None:
        """A worker of a job has connected."""
        (number,) = _NUMBER.unpack(await asyncio.get_running_loop().sock_recv(connection, _NUMBER.size))
        worker = self._expected.pop(number, None)
        if worker is not None:
            worker.socket = connection.dup()
            worker.socket.setblocking(False)
            self.arrived.append(worker)
            self._owner.arrived()

    async def look(self, every: float) -> None:
        """Replace jobs that have ended; give up where they end before they reach us."""
        while True:
            await asyncio.sleep(every)
            for job in list(self._submitted):
                name = str(job.job_id)
                if name in self._connected or not await asyncio.to_thread(job.done):
                    continue
                self._submitted.remove(job)
                if name not in self._seen:
                    tail = (await asyncio.to_thread(job.stderr) or "no output").strip()[-500:]
                    self._owner.broken(
                        f"the Slurm job {name} ended before it reached the driver: {tail}. Logs are in {self._folder}"
                    )
                    return
                await asyncio.to_thread(self._submit, 1)

    def close(self) -> None:
        """Cancel what is queued or runs; jobs that are connected have ended by themselves.  Blocks."""
        jobs, self._submitted = self._submitted, []
        if shutil.which("scancel") is not None and not self._owner.local:
            names = sorted({str(job.job_id).partition("_")[0] for job in jobs})
            if names:
                subprocess.run(["scancel", *names], check=False, capture_output=True)
        else:
            for job in jobs:
                with contextlib.suppress(Exception):
                    job.cancel(check=False)
        if self._folder is not None and len(self._seen) > 0:  # else the logs are of use
            shutil.rmtree(self._folder, ignore_errors=True)
        self._seen.clear()
        self.arrived.clear()


# ---------------------------------------------------------------- in a job


class Pilot:
    """What a job does: it starts worker processes for the driver, says how each ended, and ends with the driver."""

    def __init__(self, way: Way) -> None:
        self.way = way

    def checkpoint(self) -> Any:
        """For submitit, when the job is preempted or out of time: begin again in another."""
        submitit = importlib.import_module("submitit")
        return submitit.helpers.DelayedSubmission(self)

    def __call__(self) -> None:
        job = importlib.import_module("submitit").JobEnvironment().job_id
        hello = f"{job} {socket.gethostname()}".encode()
        driver = connected(self.way, JOB)
        sending, worker, current = threading.Lock(), None, 0

        def reap(process: subprocess.Popen[bytes], number: int) -> None:
            code = str(local_process.wait(process)).encode()
            with sending, contextlib.suppress(OSError):
                driver.sendall(HEADER.pack(EXIT, number, len(code)) + code)

        with sending:
            driver.sendall(HEADER.pack(HELLO, 0, len(hello)) + hello)
        cpus = os.environ.get("SLURM_CPUS_PER_TASK", "1")
        environment = {**os.environ, **dict.fromkeys(THREAD_SETTINGS, cpus)}
        try:
            with driver.makefile("rb") as stream:
                while len(header := stream.read(HEADER.size)) == HEADER.size:
                    kind, number, _ = HEADER.unpack(header)
                    if kind == KILL and worker is not None and number == current:  # not the one after it
                        worker.kill()
                    elif kind == START:
                        current = number
                        with connected(self.way, WORKER) as connection:
                            connection.sendall(_NUMBER.pack(number))
                            worker = local_process.start(connection, environment)
                        threading.Thread(target=reap, args=(worker, number), daemon=True).start()
        finally:
            if worker is not None:
                worker.kill()
                local_process.wait(worker)
