"""What the sandbox promises: code cannot get out, use more than it may, or leave anything behind."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from fanfold.cli import cli
from fanfold.errors import ConfigError
from fanfold.studies.prompts import Problem, PromptsConfig, study
from fanfold.tasks import sandbox
from fanfold.tasks.grading import CodeTests
from fanfold.tasks.inside import ARCHITECTURES
from fanfold.tasks.sandbox import NEEDED, REFUSED, CodeBounds, Ran, run

QUICK = CodeBounds(seconds=20.0, cpu=1, memory=256)


def ran(code: str, tests: Sequence[str] = ("1",), bounds: CodeBounds = QUICK) -> Ran:
    return asyncio.run(run(code, tests, bounds))


def landlock() -> bool:
    """Whether this kernel has it, asked without the sandbox."""
    return sys.platform == "linux" and ctypes.CDLL(None).syscall(444, None, 0, 1) >= 1


HAS_SECCOMP = Path("/proc/sys/kernel/seccomp").exists() and platform.machine() in ("x86_64", "aarch64")
needs_files = pytest.mark.skipif(not landlock(), reason="this kernel or container has no Landlock")
needs_calls = pytest.mark.skipif(not HAS_SECCOMP, reason="this system has no seccomp, or another processor")


def error_of(code: str, bounds: CodeBounds = QUICK) -> str:
    return ran(code, ("1",), bounds).tests[0].error


def test_expressions_have_values_and_statements_pass_or_fail() -> None:
    done = ran("def add(a, b): return a + b", ["add(2, 3)", "assert add(1, 1) == 2", "assert add(1, 1) == 3", "add()"])
    assert [test.value for test in done.tests] == [5, None, None, None]
    assert [test.error.split(":")[0] for test in done.tests] == ["", "", "AssertionError", "TypeError"]
    assert done.cut == "" and "limits" in done.guards


@pytest.mark.slow
def test_the_same_code_always_gives_the_same_values() -> None:
    code = "value = list({'a', 'b', 'c', 'd', 'e', 'f'})"
    assert ran(code, ["value"]) == ran(code, ["value"])


def test_keys_in_the_environment_do_not_reach_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-canary-1234567890")
    done = ran("import os", ["dict(os.environ)", "os.path.exists('.env')", "os.listdir('.')"])
    assert "OPENAI_API_KEY" not in done.tests[0].value and "canary" not in repr(done)
    assert done.tests[1].value is False and done.tests[2].value == []


@pytest.mark.slow
@needs_files
def test_files_outside_can_be_neither_read_nor_written(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("sk-canary")
    for code in (
        f"open({str(secret)!r}).read()",
        f"open({str(secret)!r}, 'w')",
        f"import os; os.remove({str(secret)!r})",
        f"import os; os.listdir({str(tmp_path)!r})",
        f"import shutil; shutil.rmtree({str(tmp_path)!r})",
        "import os; open(f'/proc/{os.getppid()}/environ').read()",
        "open('/etc/passwd').read()",
        "open('../job').read()",
        "open('../record', 'w')",
    ):
        assert "Permission denied" in error_of(code), code
    assert secret.read_text() == "sk-canary"


@needs_calls
@pytest.mark.parametrize(
    "code",
    [
        "import socket; socket.create_connection(('127.0.0.1', 1))",
        "import os; os.fork()",
        "import subprocess; subprocess.run(['true'])",
        "import os; os.execv('/bin/true', ['true'])",
        "import os; os.kill(os.getppid(), 9)",
        "import os; os.kill(-1, 9)",
        "import os; os.chmod('/tmp', 0)",
        "import threading; threading.Thread(target=print).start()",
    ],
)
def test_network_processes_signals_and_modes_are_out_of_reach(code: str) -> None:
    error = error_of(code)
    assert "not permitted" in error or "can't start new thread" in error


@needs_calls
@pytest.mark.skipif(platform.machine() != "x86_64", reason="other processors have other numbers")
@pytest.mark.parametrize("number", [41, 56, 57, 58, 59, 0x40000000 + 41])
def test_the_kernel_refuses_whatever_library_asks(number: int) -> None:
    code = f"import ctypes; libc = ctypes.CDLL(None, use_errno=True); print(libc.syscall({number}, 0, 0, 0))"
    assert ran(code, ["ctypes.get_errno()"]).tests[0].value == 1


LIBC = "import ctypes, os; libc = ctypes.CDLL(None, use_errno=True)\n"

#: What code might try, in the words of the C library; all of it must come back with EPERM.
TRIED = {
    "a device node": "libc.mknod(b'node', 0o020600, os.makedev(1, 5))",
    "a device node by folder": "libc.mknodat(-100, b'node', 0o060600, os.makedev(8, 0))",
    "System V memory": "libc.shmget(0, 4096, 0o1600)",
    "System V memory of others": "libc.shmat(0, None, 0)",
    "System V semaphores": "libc.semget(0, 1, 0o1600)",
    "System V queues": "libc.msgget(0, 0o1600)",
    "POSIX queues": "libc.mq_open(b'/canary', 0o102, 0o600, None)",
    "cores": "libc.sched_setaffinity(0, 8, ctypes.byref(ctypes.c_ulong(1)))",
    "the scheduler": "libc.sched_setscheduler(0, 3, ctypes.byref(ctypes.c_int(0)))",
    "the scheduler's parameters": "libc.sched_setparam(0, ctypes.byref(ctypes.c_int(0)))",
    "priority": "libc.setpriority(0, 0, 5)",
    "tracing": "libc.ptrace(0, 0, 0, 0)",
    "a keyring": "libc.syscall({keyctl}, 0, -3, 0)",
    "bpf": "libc.syscall({bpf}, 0, 0, 0)",
    "performance events": "libc.syscall({perf_event_open}, 0, 0, -1, -1, 0)",
    "a mount": "libc.mount(b'none', b'.', b'tmpfs', 0, None)",
    "a root": "libc.chroot(b'.')",
    "a namespace": "libc.unshare(0x10000000)",
    "another user": "libc.setuid(0)",
    "groups": "libc.setgroups(0, None)",
    "a socket": "libc.socket(2, 1, 0)",
    "a domain socket": "libc.socket(1, 1, 0)",
    "io_uring": "libc.syscall({io_uring_setup}, 1, 0)",
    "another personality": "libc.personality(0x0040000)",
}


def attempts() -> str:
    """One program that tries everything and says which errors came back."""
    column = ARCHITECTURES[platform.machine()][0]
    numbers = {name: both[column] for name, both in REFUSED.items()}
    lines = [f"ctypes.set_errno(0); tried[{what!r}] = ({call.format(**numbers)}, ctypes.get_errno())" for what, call in
             TRIED.items()]  # fmt: skip
    return LIBC + "tried = {}\n" + "\n".join(lines)


@needs_calls
def test_devices_shared_memory_and_the_scheduler_are_out_of_reach() -> None:
    tried = ran(attempts(), ["tried"]).tests[0]
    assert tried.error == ""
    assert {what: outcome for what, outcome in tried.value.items() if outcome != [-1, 1]} == {}


@pytest.mark.slow
@needs_calls
def test_a_nicer_process_and_a_thread_on_another_core_are_refused_by_their_python_names() -> None:
    for code in ("import os; os.nice(1)", "import os; os.sched_setaffinity(0, {0})", "import os; os.mkfifo('pipe')"):
        assert "not permitted" in error_of(code), code


IDENTITY = "[os.getresuid(), os.getresgid(), os.getgroups()]"


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can become nobody")
def test_root_becomes_nobody() -> None:
    done = ran("import os", [IDENTITY, "open('mine', 'w').write('x')"])
    assert done.tests[0].value == [[65534] * 3, [65534] * 3, []] and done.tests[1].value == 1
    assert "user" in done.guards


def everyones_python() -> str | None:
    """A Python that every user can run: this one, or the system's where this one lies in a folder of root's alone."""
    if all(folder.stat().st_mode & 0o001 for folder in Path(sys.base_prefix, "lib").resolve().parents):
        return sys.executable
    return shutil.which("python3", path="/usr/bin:/usr/local/bin")


@needs_calls
@needs_files
@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="the other tests are a plain user's")
def test_a_plain_user_has_the_same_guards(tmp_path: Path) -> None:
    python = everyones_python()
    if python is None:
        pytest.skip("there is no Python here that another user than root can run")
    with tempfile.TemporaryDirectory() as folder:  # pytest's own folders are root's alone
        os.chmod(folder, 0o755)  # noqa: PTH101
        work, inside = Path(folder, "work"), Path(shutil.copy(sandbox._INSIDE, folder))
        work.mkdir()
        os.chown(work, 12345, 12345)
        job = {"code": attempts(), "tests": ["tried", IDENTITY], "cpu": 5, "memory": 512_000_000, "file": 1_000_000}
        done = subprocess.run(
            [python, "-s", "-S", str(inside)],
            input=json.dumps({**job, "needs": list(NEEDED), "refused": list(REFUSED.values())}),
            cwd=work,
            user=12345,
            group=12345,
            extra_groups=[],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
    assert done.returncode == 0, done.stderr
    guards, tried, identity = map(json.loads, done.stdout.splitlines())
    assert set(guards["guards"]) >= NEEDED
    assert {what: outcome for what, outcome in tried["value"].items() if outcome != [-1, 1]} == {}
    assert identity["value"][2] in ([], [65534], [12345])


@pytest.mark.slow
def test_code_is_not_run_where_a_guard_that_it_needs_is_missing(tmp_path: Path) -> None:
    done = asyncio.run(run("open('ran', 'w')", ["1"], QUICK, needs={"limits", "no such guard"}))
    assert done.cut == "unguarded" and done.tests[0].error == "it was not run: a guard that it needs is missing"
    assert asyncio.run(run("", ["1"], QUICK, needs=())).tests[0].value == 1


@pytest.fixture
def unguarded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without one of the guards, as the sandbox itself says."""
    monkeypatch.setattr(sandbox, "NEEDED", frozenset({"limits", "moat"}))
    monkeypatch.setattr(sandbox, "_REMEDIES", {"moat": "a moat"})


CODE = {"task": "code", "model": ("simulated/gpt-6-luna",), "trials": 3, "population": 2, "train": 3, "validation": 2,
        "held_out": 2, "examples": 1}  # fmt: skip


@pytest.mark.slow
@pytest.mark.usefixtures("unguarded")
def test_a_search_that_grades_code_is_refused_at_the_start_where_a_guard_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"lacks a moat.*unsafe = true"):
        study(PromptsConfig(**CODE))
    done = asyncio.run(CodeTests(unsafe=True)("def f(): return 2", Problem("p", "", [["f()", 2]])))
    assert done.score == 1.0
    with pytest.raises(ConfigError, match="a moat"):
        asyncio.run(CodeTests()("def f(): return 2", Problem("p", "", [["f()", 2]])))


@pytest.mark.slow
@pytest.mark.usefixtures("unguarded")
def test_unsafe_is_said_in_the_summary_and_by_the_doctor() -> None:
    run = study(PromptsConfig(**CODE, unsafe=True)).run("async:4")
    assert run.summary is not None
    said = {section.title: section.text for section in run.summary.sections}["Code"]
    assert "UNSAFE, without a moat" in said
    checks = {
        check["name"]: check for check in json.loads(CliRunner().invoke(cli, ["doctor", "--json"]).stdout)["checks"]
    }
    assert not checks["code sandbox"]["ok"] and "a moat" in checks["code sandbox"]["note"]


@pytest.mark.slow
@pytest.mark.skipif(bool(sandbox.missing()), reason="this machine lacks a guard")
def test_where_the_guards_hold_the_summary_names_them() -> None:
    run = study(PromptsConfig(**CODE)).run("async:4")
    assert run.summary is not None
    said = {section.title: section.text for section in run.summary.sections}["Code"]
    assert "calls, files, limits" in said and "UNSAFE" not in said


@needs_calls
def test_limits_cannot_be_raised_from_inside() -> None:
    code = "import resource; resource.setrlimit(resource.RLIMIT_CPU, (100, 100))"
    assert error_of(code).startswith(("ValueError", "PermissionError"))


def test_the_temporary_folder_can_be_used_and_is_gone_afterwards() -> None:
    code = "import os\nopen('mine', 'w').write('x')\nimport tempfile\nwith tempfile.TemporaryFile() as f: f.write(b'x')"
    done = ran(code, ["os.getcwd()", "os.listdir('.')"])
    assert done.tests[1].value == ["mine"]
    folder = Path(done.tests[0].value)
    assert folder.parent.parent == Path(tempfile.gettempdir()).resolve()
    assert not folder.exists() and not folder.parent.exists()


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("x = bytearray(10**9)", "MemoryError"),
        ("def f(): f()\nf()", "RecursionError"),
        ("open('big', 'wb').write(b'x' * 5_000_000)", "OSError"),
        ("import sys; sys.exit(0)", "SystemExit"),
        ("import numpy", "ModuleNotFoundError"),
        ("raise ValueError('x' * 10_000)", "ValueError: xxx"),
        ("class E(Exception):\n  def __str__(self): raise self\nraise E", "E"),
    ],
)
def test_what_goes_wrong_is_said_briefly(code: str, error: str) -> None:
    said = error_of(code)
    assert said.startswith(error) and len(said) <= 200


@pytest.mark.parametrize(
    "code", ["import os; os._exit(0)", "import ctypes; ctypes.string_at(0)", "import os; os.closerange(3, 64)"]
)
def test_code_that_leaves_before_the_tests_passes_none(code: str) -> None:
    done = ran(code, ["1", "2"])
    assert done.cut == "ended" and all(test.error for test in done.tests)


def test_endless_output_is_dropped() -> None:
    assert ran("for _ in range(1000): print('x' * 10_000)").tests[0].value == 1


def test_a_value_too_large_to_keep_fails_its_test_and_those_after_it() -> None:
    done = ran("", ["1", "'x' * 2_000_000", "3"])
    assert done.tests[0].value == 1 and done.tests[1].error and done.tests[2].error


@pytest.mark.slow
@pytest.mark.parametrize("first", ["", "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\n"])
def test_an_endless_loop_is_stopped_by_processor_time_even_if_it_ignores_the_warning(first: str) -> None:
    done = ran(first + "while True: pass", ["1"], CodeBounds(seconds=200.0, cpu=1))  # others may need the core as well
    assert done.cut == "cpu" and "processor time" in done.tests[0].error


@pytest.mark.slow
def test_finished_tests_count_when_a_later_one_is_cut_short() -> None:
    done = ran("import time", ["1", "time.sleep(60)", "3"], CodeBounds(seconds=4.0, cpu=1))
    assert done.cut == "time" and done.tests[0].value == 1
    assert [test.error for test in done.tests] == ["", "it took too long", "it took too long"]


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_run_that_nobody_waits_for_is_killed() -> None:
    async def main() -> None:
        task = asyncio.create_task(run("import time; time.sleep(60)", ["1"], CodeBounds(seconds=60.0)))
        while not children():
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        for _ in range(1000):  # well before its own time is up
            if not children():
                return
            await asyncio.sleep(0.02)
        raise AssertionError("it is still there")

    asyncio.run(main())


def children() -> list[str]:
    """Processes of this one that run in the sandbox."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            mine = f"\nPPid:\t{os.getpid()}\n" in (folder / "status").read_text()
            if mine and b"inside.py" in (folder / "cmdline").read_bytes():
                found.append(folder.name)
        except OSError:
            continue
    return found


def test_bounds_that_cannot_work_are_refused() -> None:
    for name in ("seconds", "cpu", "memory"):
        with pytest.raises(ConfigError, match=name):
            CodeBounds(**{name: 0})
