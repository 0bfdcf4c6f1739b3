"""Worker processes under fire: what dies takes one call with it, and nothing is left behind."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fanfold import Case, Study, Sweep
from fanfold.errors import ConfigError, WorkerDied
from fanfold.executors.processes import THREAD_SETTINGS, Processes
from fanfold.executors.worker import FUNCTIONS_KEPT

PATIENCE = 60.0


def on(slots: int, check: Callable[[Processes], Awaitable[Any]]) -> Any:
    async def opened() -> Any:
        async with asyncio.timeout(PATIENCE), Processes(slots) as executor:
            return await check(executor)

    return asyncio.run(opened())


def is_gone(pid: int) -> bool:
    """Ended and reaped: a zombie still takes signals."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def has_ended(pid: int) -> bool:
    """Gone, or a zombie that is not ours to reap: containers may have no init that does."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return is_gone(pid)


def wait_until(condition: Callable[[], bool]) -> bool:
    give_up = time.monotonic() + PATIENCE
    while not condition() and time.monotonic() < give_up:
        time.sleep(0.005)
    return condition()


async def text_of(path: Path) -> str:
    while not path.exists():
        await asyncio.sleep(0.005)
    return path.read_text()


def announce(path: Path) -> None:
    """Leave our pid at `path`, whole or not at all."""
    path.with_suffix(".part").write_text(str(os.getpid()))
    path.with_suffix(".part").rename(path)


def hang(path: Path) -> None:
    announce(path)
    while True:
        pass


def hang_if_marked(number: int, marked: int, path: Path) -> int:
    if number == marked:
        hang(path)
    return number * number


@pytest.mark.slow
def test_a_killed_worker_takes_only_its_own_call_with_it(tmp_path: Path) -> None:
    async def check(executor: Processes) -> None:
        calls = [asyncio.create_task(executor.run(hang_if_marked, n, 17, tmp_path / "pid")) for n in range(40)]
        os.kill(int(await text_of(tmp_path / "pid")), signal.SIGKILL)
        answers = await asyncio.gather(*calls, return_exceptions=True)
        died = answers.pop(17)
        assert isinstance(died, WorkerDied)
        assert "hang_if_marked was killed by SIGKILL; out of memory?" in str(died)
        assert answers == [n * n for n in range(40) if n != 17]

    on(4, check)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fn", "words"),
    [
        (lambda: os._exit(7), "exited with code 7"),
        (lambda: os.kill(os.getpid(), signal.SIGSEGV), "killed by SIGSEGV"),
        (lambda: os.closerange(3, 4096), "exited with code 0 before it answered"),
    ],
)
def test_a_worker_that_ends_says_how_and_is_replaced(fn: Callable[[], None], words: str) -> None:
    async def check(executor: Processes) -> None:
        for _ in range(2):
            with pytest.raises(WorkerDied, match=words):
                await executor.run(fn)
            assert await executor.run(abs, -3) == 3

    on(1, check)


@pytest.mark.slow
def test_what_a_worker_forked_neither_hides_its_death_nor_outlives_it(tmp_path: Path) -> None:
    def fork_and_die() -> None:
        if os.fork() == 0:
            announce(tmp_path / "child")
            time.sleep(1000)  # holds the dead worker's end of the socket
        while not (tmp_path / "child").exists():
            time.sleep(0.005)
        os._exit(1)

    async def check(executor: Processes) -> None:
        with pytest.raises(WorkerDied, match="code 1"):
            await executor.run(fork_and_die)
        child = int((tmp_path / "child").read_text())
        assert await asyncio.to_thread(wait_until, lambda: has_ended(child))

    on(1, check)


@pytest.mark.slow
def test_a_worker_that_died_idle_costs_no_call() -> None:
    async def check(executor: Processes) -> None:
        pid = await executor.run(os.getpid)
        os.kill(pid, signal.SIGKILL)
        assert await asyncio.to_thread(wait_until, lambda: is_gone(pid))
        await asyncio.sleep(0.05)
        assert await executor.run(os.getpid) != pid

    on(1, check)


@pytest.mark.slow
def test_cancelling_kills_the_worker_of_that_call_and_no_other(tmp_path: Path) -> None:
    def hang_with_child(path: Path) -> None:
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
        (path / "child").write_text(str(child.pid))
        hang(path / "pid")

    def wait_for(path: Path) -> int:
        announce(path.with_suffix(".waiting"))
        while not path.exists():
            time.sleep(0.005)
        return os.getpid()

    async def check(executor: Processes) -> None:
        other = asyncio.create_task(executor.run(wait_for, tmp_path / "go"))
        spared = int(await text_of(tmp_path / "go.waiting"))
        stuck = asyncio.create_task(executor.run(hang_with_child, tmp_path))
        victim = int(await text_of(tmp_path / "pid"))
        stuck.cancel()
        await asyncio.wait([stuck])
        assert stuck.cancelled()
        assert await asyncio.to_thread(wait_until, lambda: is_gone(victim))
        (tmp_path / "go").touch()
        assert await other == spared
        child = int((tmp_path / "child").read_text())
        assert await asyncio.to_thread(wait_until, lambda: has_ended(child)), "what the worker had started lives on"

    on(2, check)


@pytest.mark.slow
def test_no_worker_is_left_when_the_executor_closes_not_even_as_a_zombie(tmp_path: Path) -> None:
    pids: list[int] = []

    async def check(executor: Processes) -> None:
        for number in range(2):
            asyncio.create_task(executor.run(hang, tmp_path / str(number))).add_done_callback(lambda t: t.exception())
            pids.append(int(await text_of(tmp_path / str(number))))
        pids.append(await executor.run(os.getpid))

    on(3, check)
    assert len(set(pids)) == 3
    assert all(is_gone(pid) for pid in pids)


@pytest.mark.slow
def test_a_worker_that_will_not_listen_is_killed_on_closing() -> None:
    async def check(executor: Processes) -> int:
        pid: int = await executor.run(os.getpid)
        os.kill(pid, signal.SIGSTOP)
        await asyncio.sleep(0.1)  # until it has stopped
        return pid

    pid = on(1, check)
    assert wait_until(lambda: is_gone(pid))


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts open files in /proc")
def test_workers_leave_no_files_open() -> None:
    async def check(executor: Processes) -> None:
        await asyncio.gather(*(executor.run(abs, n) for n in range(8)))
        with pytest.raises(WorkerDied):
            await executor.run(os._exit, 1)

    on(2, check)
    before = len(list(Path("/proc/self/fd").iterdir()))
    on(2, check)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def script(folder: Path, text: str) -> list[str]:
    path = folder / "script.py"
    path.write_text(textwrap.dedent(text))
    return [sys.executable, str(path)]


@pytest.mark.slow
def test_no_worker_outlives_a_killed_parent_not_even_a_busy_one(tmp_path: Path) -> None:
    command = script(
        tmp_path,
        """
        import asyncio, os, subprocess, time
        from fanfold.executors import Processes

        def busy(how):
            child = subprocess.Popen(["sleep", "1000"])
            print(os.getpid(), child.pid, flush=True)
            while how == "spin":
                pass
            while how == "sleep":
                time.sleep(1000)

        async def main():
            async with Processes(3) as executor:
                await asyncio.gather(*(executor.run(busy, how) for how in ("spin", "sleep", "idle")))

        asyncio.run(main())
        """,
    )
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        try:
            pids: list[int] = []
            while len(pids) < 6 and (line := parent.stdout.readline()):
                pids += [int(pid) for pid in line.split()]
            assert len(pids) == 6 and not has_ended(pids[0])
        finally:
            parent.kill()  # also when the above failed, or leaving would wait for it for ever
    assert wait_until(lambda: all(has_ended(pid) for pid in pids))


@pytest.mark.slow
def test_control_c_reaches_the_parent_but_no_worker(tmp_path: Path) -> None:
    command = script(
        tmp_path,
        """
        import asyncio, signal, sys, time
        from fanfold.executors import Processes

        def wait(path):
            open(path + ".waiting", "w").close()
            for _ in range(20):
                time.sleep(0.01)
            return "unharmed"

        async def main():
            heard = asyncio.Event()
            asyncio.get_running_loop().add_signal_handler(signal.SIGINT, heard.set)
            async with Processes(1) as executor:
                call = asyncio.create_task(executor.run(wait, sys.argv[1]))
                await heard.wait()
                print(await call)

        asyncio.run(main())
        """,
    )
    mark = tmp_path / "mark"
    with subprocess.Popen([*command, str(mark)], stdout=subprocess.PIPE, text=True, start_new_session=True) as parent:
        assert wait_until((tmp_path / "mark.waiting").exists)
        os.killpg(parent.pid, signal.SIGINT)
        assert parent.communicate()[0].strip() == "unharmed"


@pytest.mark.slow
def test_a_worker_ignores_an_interrupt_sent_to_itself() -> None:
    def interrupted() -> str:
        os.kill(os.getpid(), signal.SIGINT)
        return "unharmed"

    assert on(1, lambda executor: executor.run(interrupted)) == "unharmed"


@pytest.mark.slow
def test_what_cannot_be_pickled_is_named_and_the_worker_lives() -> None:
    lock = threading.Lock()

    def give_lock() -> Any:
        return threading.Lock()

    def use_lock() -> None:
        lock.acquire()

    async def check(executor: Processes) -> None:
        pid = await executor.run(os.getpid)
        with pytest.raises(TypeError, match=r"result of .*give_lock.*'lock'"):
            await executor.run(give_lock)
        with pytest.raises(TypeError, match=r"argument 2 of max.*'lock'"):
            await executor.run(max, 1, lock)
        with pytest.raises(ConfigError, match=r"use_lock cannot be sent.*threads"):
            await executor.run(use_lock)
        assert await executor.run(os.getpid) == pid

    on(1, check)


@pytest.mark.slow
def test_lambdas_travel_to_a_worker_and_back() -> None:
    async def check(executor: Processes) -> None:
        three = 3
        result = await executor.run(lambda fn: lambda: fn(three), lambda x: x + 1)
        assert result() == 4

    on(1, check)


class Fussy(Exception):
    """Can be pickled but not unpickled, as many libraries' errors."""

    def __init__(self, *, status: int) -> None:
        super().__init__(f"status {status}")


def fail(kind: str) -> None:
    if kind == "fussy":
        raise Fussy(status=500)
    if kind == "local":

        class Local(ValueError):
            pass

        raise Local("of the worker only")
    try:
        raise KeyError("inner")
    except KeyError as error:
        raise ValueError("outer") from error


@pytest.mark.slow
def test_an_error_in_a_worker_comes_with_its_traceback() -> None:
    async def check(executor: Processes) -> None:
        with pytest.raises(ValueError, match="outer") as caught:
            await executor.run(fail, "plain")
        note = "\n".join(caught.value.__notes__)
        assert "in fail" in note and "KeyError: 'inner'" in note
        with pytest.raises(ValueError, match="of the worker only"):
            await executor.run(fail, "local")
        with pytest.raises(RuntimeError, match=r"Fussy: status 500") as caught_fussy:
            await executor.run(fail, "fussy")
        assert "in fail" in "\n".join(caught_fussy.value.__notes__)

    on(1, check)


@pytest.mark.slow
def test_a_worker_that_cannot_import_what_it_is_sent_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "only_here.py").write_text("def fn():\n    return 'found'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import only_here  # type: ignore[import-not-found]

    async def check(executor: Processes) -> None:
        assert await executor.run(only_here.fn) == "found"  # workers have the parent's sys.path

    async def check_without(executor: Processes) -> None:
        with pytest.raises(RuntimeError, match="No module named 'only_here'"):
            await executor.run(only_here.fn)
        assert await executor.run(abs, -1) == 1

    on(1, check)
    monkeypatch.undo()
    on(1, check_without)


@pytest.mark.slow
def test_prints_in_a_worker_reach_the_output_of_the_parent(tmp_path: Path) -> None:
    command = script(
        tmp_path,
        """
        import asyncio, os, sys
        from fanfold.executors import Processes

        def chatter(number):
            print("line", number)
            print("x" * 100_000, end="|")
            print("complaint", number, file=sys.stderr)
            return number

        def last_words():
            print("last words")
            os._exit(1)

        def mutter():
            print("no end of line", end="")

        async def main():
            async with Processes(1) as executor:
                print([await executor.run(chatter, n) for n in range(3)], flush=True)
                try:
                    await executor.run(last_words)
                except Exception as error:
                    print(error, flush=True)
                await executor.run(mutter)

        asyncio.run(main())
        """,
    )
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE, env=environment)
    assert done.stdout.count("x") >= 300_000
    for expected in ("line 0", "line 2", "[0, 1, 2]", "last words", "exited with code 1", "no end of line"):
        assert expected in done.stdout
    assert done.stderr.count("complaint") == 3


@pytest.mark.slow
def test_a_worker_takes_and_gives_fifty_megabytes() -> None:
    data = os.urandom(1 << 20) * 50

    def turned(value: bytes) -> bytes:
        return value[::-1]

    assert on(1, lambda executor: executor.run(turned, data)) == data[::-1]


@pytest.mark.slow
def test_workers_need_no_guard_in_the_script_and_share_its_classes(tmp_path: Path) -> None:
    command = script(
        tmp_path,
        """
        import asyncio, enum
        from dataclasses import dataclass
        from fanfold.executors import Processes

        print("started")

        class Colour(enum.Enum):
            RED = 1

        @dataclass(frozen=True)
        class Candidate:
            size: int
            colour: Colour = Colour.RED

        def grow(candidate):
            assert isinstance(candidate, Candidate) and candidate.colour is Colour.RED
            return Candidate(candidate.size + 1)

        async def main():
            async with Processes(2) as executor:
                return await asyncio.gather(*(executor.run(grow, Candidate(n)) for n in range(4)))

        assert asyncio.run(main()) == [Candidate(n + 1) for n in range(4)]
        """,
    )
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stdout, done.stderr) == (0, "started\n", "")


@pytest.mark.slow
def test_numerical_libraries_are_pinned_in_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "16")
    monkeypatch.setenv("FANFOLD_TEST", "handed down")

    async def check(threads: int) -> None:
        async with Processes(1, threads_per_worker=threads) as executor:
            seen = await executor.run(lambda: dict(os.environ))
            assert {seen[name] for name in THREAD_SETTINGS} == {str(threads)}
            assert seen["FANFOLD_TEST"] == "handed down"

    asyncio.run(check(1))
    asyncio.run(check(3))
    assert os.environ["OMP_NUM_THREADS"] == "16"


@pytest.mark.slow
def test_workers_serve_a_loop_in_any_thread() -> None:
    answers: list[Any] = []

    async def check(executor: Processes) -> None:
        answers.append(await executor.run(abs, -5))
        with pytest.raises(WorkerDied, match="code 4"):
            await executor.run(os._exit, 4)
        answers.append(await executor.run(abs, -6))

    thread = threading.Thread(target=on, args=(1, check))
    thread.start()
    thread.join()
    assert answers == [5, 6]


@pytest.mark.slow
def test_a_worker_is_started_only_when_all_others_are_busy() -> None:
    async def check(executor: Processes) -> None:
        assert len({await executor.run(os.getpid) for _ in range(10)}) == 1

    on(4, check)


@pytest.mark.slow
def test_a_worker_never_mixes_up_functions_however_many_there_are() -> None:
    functions = [lambda x, n=n: (n, x) for n in range(FUNCTIONS_KEPT * 2 + 5)]

    async def check(executor: Processes) -> None:
        for _ in range(2):
            for n, fn in enumerate(functions):
                assert await executor.run(fn, "x") == (n, "x")
        for n in (3, 90, 3, 90):
            assert await asyncio.gather(*(executor.run(functions[n], i) for i in range(4))) == [
                (n, i) for i in range(4)
            ]

    on(2, check)


@pytest.mark.slow
def test_of_forty_evaluations_the_one_whose_worker_is_killed_is_retried_and_the_others_run_once(tmp_path: Path) -> None:
    log, killed = tmp_path / "log", tmp_path / "killed"

    def evaluate(candidate: int, case: Case) -> float:
        with log.open("a") as file:
            file.write(f"{candidate}\n")
        if candidate == 17 and not killed.exists():
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return candidate

    run = Study(Sweep(range(40)), evaluate).run("processes:4", ledger=tmp_path / "runs.db", run="a")
    assert [result.score for result in run.results()] == list(range(40)) and run.progress.failures == 0
    begun = sorted(int(line) for line in log.read_text().split())
    assert begun == sorted([*range(40), 17]), "39 once, the one whose worker died twice"
    tries = dict(run.ledger.read("SELECT trial, tries FROM evaluation"))
    assert tries == {number: 2 if number == 17 else 1 for number in range(40)}


@pytest.fixture
def usual_signals() -> Iterator[None]:
    """SIGTERM as a program begins with it: Ray takes it, and keeps it."""
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)


@pytest.mark.usefixtures("usual_signals")
@pytest.mark.parametrize("executor", ["inline", "threads:1", "processes:1"])
def test_a_process_that_an_evaluator_forks_can_be_terminated(executor: str, capfd: pytest.CaptureFixture[str]) -> None:
    def evaluate(candidate: int, case: Case) -> float:
        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(30,))
        child.start()
        time.sleep(0.05)
        child.terminate()
        child.join(2.0)
        ended = child.exitcode
        child.kill()
        return -float(ended or 0)

    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    assert Study(Sweep([1]), evaluate).run(executor, progress=False).best.score == signal.SIGTERM
    assert "stopping" not in capfd.readouterr().err
    assert before == (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT))


@pytest.mark.usefixtures("usual_signals")
def test_a_process_can_be_terminated_in_the_moment_it_is_forked(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def evaluate(candidate: int, case: Case) -> float:
        monkeypatch.setattr("fanfold.signals._GUARDS", [])  # as long as these were not told of the fork
        if (child := os.fork()) == 0:
            os.kill(os.getpid(), signal.SIGTERM)
            os._exit(0)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    assert Study(Sweep([1]), evaluate).run("inline", progress=False).best.score == -signal.SIGTERM
    assert "stopping" not in capfd.readouterr().err
