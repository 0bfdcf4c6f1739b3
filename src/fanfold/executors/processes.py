"""Worker processes of our own: no fork, no re-import of the script, and a worker that dies takes one call with it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from fanfold.errors import ExecutorBroken, PlaceLost, WorkerDied
from fanfold.executors.base import Executor, checked_slots, name_of
from fanfold.executors.local_process import LocalProcess
from fanfold.executors.pace import LATE, CallPace
from fanfold.executors.resources import VISIBLE, Resources, gpu_shares, parsed
from fanfold.executors.worker import ERROR, FUNCTIONS_KEPT, dumps, loads
from fanfold.executors.worker_process import Hosted, SentFunction, WorkerCall, WorkerProcess, packed_function
from fanfold.executors.worker_process import answered as answered
from fanfold.executors.worker_process import packed as packed

THREAD_SETTINGS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMBA_NUM_THREADS",
)
#: Seconds in which a worker may end by itself before it is killed.
GRACE = 0.5
#: Seconds before another worker is started after one could not be, while there are others.
PATIENCE = 1.0


class Processes(Executor):
    """Calls in up to `slots` worker processes, started when first needed.

    Workers are fresh interpreters: functions and arguments travel by pickle (what a script or notebook defines, by
    value), a function once per worker and as it was at its first call.  Model calls made there come home to their run,
    which limits, keeps and pays them.  A worker that dies fails the call it was in with WorkerDied and is replaced;
    cancelling a call kills its worker.  What a worker had started ends with it.  Numerical libraries use
    `threads_per_worker` threads in each, so that workers do not fight over the cores.  With resources such as `gpu=1`,
    each sees GPUs of its own.

    Quick calls wait in line at a worker, so that it never waits for us.  They are not on their clocks until they begin,
    and go elsewhere, at no cost, where the worker ends or the call before them takes long.
    """

    interruptible = True
    fetches = True

    def __init__(self, slots: int, threads_per_worker: int = 1, resources: str | Resources | None = None) -> None:
        self.slots = checked_slots(slots, "slots")
        self.resources = parsed(resources)
        #: The GPUs of each worker; none where they share what there is.
        self._shares = gpu_shares(self.resources, slots) if self.resources else []
        self.name = f"processes:{slots}"
        self._pins = dict.fromkeys(THREAD_SETTINGS, str(checked_slots(threads_per_worker, "threads_per_worker")))
        self._functions: dict[int, SentFunction] = {}
        self._count = 0
        self._pace = CallPace()
        self._queue: deque[WorkerCall] = deque()
        self._workers: dict[WorkerProcess, str] = {}
        self._idle: list[WorkerProcess] = []
        #: Until when no worker is started because the last one could not be.
        self._patient = 0.0
        self._soon = self._watching = False

    @property
    def depth(self) -> int:
        return self.slots * self._pace.line

    async def __aenter__(self) -> Self:
        self._patient, self._soon, self._watching = 0.0, False, False  # they belong to a loop
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        workers = list(self._workers)
        self._workers.clear()
        self._idle.clear()
        for worker in workers:
            worker.hang_up()
        for call in self._queue:
            call.fail(self._closed(call))
        self._queue.clear()
        self._functions.clear()
        if not workers:
            return
        ended = [asyncio.wrap_future(worker.exit_code) for worker in workers]
        try:
            await asyncio.wait(ended, timeout=GRACE)
        finally:
            for worker in workers:
                worker.kill()
        await asyncio.wait(ended, timeout=GRACE)
        for worker in workers:
            self.gone(worker)

    async def run(self, fn: Callable[..., Any], *args: Any) -> Any:
        function = self._function(fn)
        call = WorkerCall(function, pickled(args, fn))
        self._pace = function.pace
        self._queue.append(call)
        self._hand_out_soon()
        try:
            kind, reply = await call.answer
        except asyncio.CancelledError:
            if call.worker is not None and call.worker.runs(call):
                self._dismiss(call.worker)
            raise
        return value_of(kind, reply, fn)

    def _function(self, fn: Callable[..., Any]) -> SentFunction:
        known = self._functions.get(id(fn))
        if known is not None:
            return known
        data = packed_function(fn, "worker process")
        self._count += 1
        # Holding on to fn keeps its id from being given to another function.
        function = self._functions[id(fn)] = SentFunction(fn, self._count, data, CallPace())
        if len(self._functions) > FUNCTIONS_KEPT:
            del self._functions[next(iter(self._functions))]
        return function

    # -- handing out ---------------------------------------------------------------------------------------------------

    def _hand_out_soon(self) -> None:
        """Hand out in a moment: what is called until then goes out together."""
        if not self._soon:
            self._soon = True
            asyncio.get_running_loop().call_soon(self._hand_out)

    def _hand_out(self) -> None:
        """Give what is queued to idle workers, then to new ones, then to the shortest lines."""
        self._soon = False
        now, busy = asyncio.get_running_loop().time(), dict[WorkerProcess, None]()
        while (call := self._next()) is not None and (worker := self._free(call, now)) is not None:
            busy[worker] = None
            worker.take(self._queue.popleft())
        call, length = self._next(), 1
        while call is not None and length < call.function.pace.line:
            for worker in self._workers:
                if call is not None and worker.accepts(length, now):
                    busy[worker] = None
                    worker.take(self._queue.popleft())
                    call = self._next()
            length += 1
        for worker in busy:
            worker.flush()
        if length > 1 and not self._watching:
            self._watching = True
            asyncio.get_running_loop().call_later(LATE, self._watch)

    def _next(self) -> WorkerCall | None:
        """The first call of the queue that somebody still waits for."""
        while self._queue:
            if not self._queue[0].answer.done():
                return self._queue[0]
            self._queue.popleft()
        return None

    def _free(self, call: WorkerCall, now: float) -> WorkerProcess | None:
        """The idle worker that was last at work, whose memory is warmest; or a new one."""
        while self._idle:
            worker = self._idle.pop()
            if not worker.exit_code.done():
                return worker
            self._dismiss(worker)
        if len(self._workers) >= self.slots or (self._workers and now < self._patient):
            return None
        try:
            gpus = self._share()
            process = self._start(gpus)
            if process is None:
                return None
            worker = WorkerProcess(process, self)
        except (PlaceLost, ExecutorBroken) as error:
            self._patient = now + PATIENCE
            self._queue.popleft()
            call.fail(error)
            self._hand_out_soon()
            return None
        self._workers[worker] = gpus.get(VISIBLE, "")
        return worker

    def _share(self) -> dict[str, str]:
        """The GPUs that no worker has, as a variable for the next one."""
        free = list(self._shares)
        for taken in self._workers.values() if free else ():
            free.remove(taken)
        return {VISIBLE: free[0]} if free else {}

    def _start(self, gpus: Mapping[str, str]) -> Hosted | None:
        """A new worker; None where none is to be had yet."""
        return LocalProcess({**os.environ, **self._pins, **gpus})

    def _watch(self) -> None:
        """Calls that wait behind a long one are asked back where somebody else is free to make them."""
        now, lines = asyncio.get_running_loop().time(), False
        free = len(self._idle) + self.slots - len(self._workers)
        for worker in self._workers:
            lines = lines or len(worker.line) > 1
            if free > 0 and len(worker.line) > 1 and not worker.accepts(len(worker.line), now) and not worker.recalled:
                free -= len(worker.line) - 1
                worker.recall()
        self._watching = lines
        if lines:
            asyncio.get_running_loop().call_later(LATE, self._watch)

    # -- what workers tell ---------------------------------------------------------------------------------------------

    def finished(self, worker: WorkerProcess) -> None:
        """A worker has answered its first call, or given back the last ones."""
        if worker not in self._workers:
            worker.close()
        elif not worker.line:
            if not worker.recalled:
                self._idle.append(worker)
        elif worker.line[0].answer.done():  # it begins with something that nobody waits for any more
            self._dismiss(worker)
        if self._queue:
            self._hand_out_soon()

    def requeue(self, calls: Sequence[WorkerCall]) -> None:
        """Calls that have not begun where they were sent."""
        for call in reversed(calls):
            call.worker, call.loads = None, False
            self._queue.appendleft(call)
        self._hand_out_soon()

    def gone(self, worker: WorkerProcess) -> None:
        """A worker has hung up: the call it was in fails when it is known how it ended, the others go elsewhere."""
        if worker.line:
            head = worker.line.popleft()
            head.end()
            code = asyncio.wrap_future(worker.exit_code)
            code.add_done_callback(lambda code: head.fail(_death(head, code)))
        self._dismiss(worker)

    def _dismiss(self, worker: WorkerProcess) -> None:
        """Kill a worker; what waits in its line goes elsewhere, unless this executor was closed."""
        waiting = [call for call in worker.line if not call.answer.done()]
        worker.line.clear()
        if worker in self._workers:
            del self._workers[worker]
            self.requeue(waiting)
        else:
            for call in waiting:
                call.fail(self._closed(call))
        if worker in self._idle:
            self._idle.remove(worker)
        worker.kill()  # of no effect on the exit code of one that is already ending
        worker.close()

    def _closed(self, call: WorkerCall) -> WorkerDied:
        return WorkerDied(f"{self.name} was closed before {name_of(call.function.fn)} began")


def pickled(args: tuple[Any, ...], fn: Callable[..., Any]) -> bytes:
    try:
        return packed(args)
    except PlaceLost:
        raise  # a blob that cannot be read now
    except Exception as error:
        culprit = next((i for i, arg in enumerate(args) if not _can_be_pickled(arg)), 0)
        raise TypeError(
            f"argument {culprit + 1} of {name_of(fn)}, of type {type(args[culprit]).__qualname__!r}, cannot be sent to "
            f"a worker process ({error}): pass plain values, or run it on threads"
        ) from error


def _can_be_pickled(value: Any) -> bool:
    try:
        dumps(value)
    except Exception:
        return False
    return True


def value_of(kind: bytes, reply: bytes | bytearray, fn: Callable[..., Any]) -> Any:
    if kind != ERROR:
        try:
            return loads(reply)
        except Exception as error:
            raise TypeError(
                f"the result of {name_of(fn)} came back from its worker process but cannot be loaded here ({error}): "
                f"return values whose classes can be imported"
            ) from error
    itself, text, trace = loads(reply)
    try:
        failure = loads(itself) if itself is not None else RuntimeError(text)
    except Exception:  # many exceptions can be pickled but not unpickled
        failure = RuntimeError(text)
    failure.add_note(f"In the worker process:\n{trace}")
    raise failure


def _death(call: WorkerCall, ended: asyncio.Future[int]) -> Exception:
    error = ended.exception()
    if isinstance(error, Exception):  # it was lost with its place
        return error
    code = ended.result()
    return WorkerDied(f"the worker process that ran {name_of(call.function.fn)} {_in_words(code)}")


def _in_words(code: int) -> str:
    """How a process ended, for people."""
    if code >= 0:
        return f"exited with code {code} before it answered"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = {"SIGKILL": "; out of memory?", "SIGSEGV": "; a crash in native code"}.get(name, "")
    return f"was killed by {name}{hint}"
