"""What the sandbox promises: code cannot get out, use more than it may, or leave anything behind."""

from __future__ import annotations

import asyncio
import ctypes
import os
import platform
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from fanfold.errors import ConfigError
from fanfold.studies.prompts.tasks.sandbox import Bounds, Ran, run

QUICK = Bounds(seconds=20.0, cpu=1, memory=256)


def ran(code: str, tests: Sequence[str] = ("1",), bounds: Bounds = QUICK) -> Ran:
    return asyncio.run(run(code, tests, bounds))


def landlock() -> bool:
    """Whether this kernel has it, asked without the sandbox."""
    return sys.platform == "linux" and ctypes.CDLL(None).syscall(444, None, 0, 1) >= 1


HAS_SECCOMP = Path("/proc/sys/kernel/seccomp").exists() and platform.machine() in ("x86_64", "aarch64")
needs_files = pytest.mark.skipif(not landlock(), reason="this kernel or container has no Landlock")
needs_calls = pytest.mark.skipif(not HAS_SECCOMP, reason="this system has no seccomp, or another processor")


def error_of(code: str, bounds: Bounds = QUICK) -> str:
    return ran(code, ("1",), bounds).tests[0].error


def test_expressions_have_values_and_statements_pass_or_fail() -> None:
    done = ran("def add(a, b): return a + b", ["add(2, 3)", "assert add(1, 1) == 2", "assert add(1, 1) == 3", "add()"])
    assert [test.value for test in done.tests] == [5, None, None, None]
    assert [test.error.split(":")[0] for test in done.tests] == ["", "", "AssertionError", "TypeError"]
    assert done.cut == "" and "limits" in done.guards


def test_the_same_code_always_gives_the_same_values() -> None:
    code = "value = list({'a', 'b', 'c', 'd', 'e', 'f'})"
    assert ran(code, ["value"]) == ran(code, ["value"])


def test_keys_in_the_environment_do_not_reach_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-canary-1234567890")
    done = ran("import os", ["dict(os.environ)", "os.path.exists('.env')", "os.listdir('.')"])
    assert "OPENAI_API_KEY" not in done.tests[0].value and "canary" not in repr(done)
    assert done.tests[1].value is False and done.tests[2].value == []


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


@pytest.mark.parametrize("first", ["", "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\n"])
def test_an_endless_loop_is_stopped_by_processor_time_even_if_it_ignores_the_warning(first: str) -> None:
    done = ran(first + "while True: pass", ["1"], Bounds(seconds=200.0, cpu=1))  # others may need the core as well
    assert done.cut == "cpu" and "processor time" in done.tests[0].error


def test_finished_tests_count_when_a_later_one_is_cut_short() -> None:
    done = ran("import time", ["1", "time.sleep(60)", "3"], Bounds(seconds=1.0, cpu=1))
    assert done.cut == "time" and done.tests[0].value == 1
    assert [test.error for test in done.tests] == ["", "it took too long", "it took too long"]


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_run_that_nobody_waits_for_is_killed() -> None:
    async def main() -> None:
        task = asyncio.create_task(run("import time; time.sleep(60)", ["1"], Bounds(seconds=60.0)))
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
            Bounds(**{name: 0})
