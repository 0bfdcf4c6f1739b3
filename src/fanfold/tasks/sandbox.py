"""Runs code that a model wrote in a process of its own, with as few rights as the system lets it have."""

from __future__ import annotations

import asyncio
import functools
import json
import math
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fanfold.config import load_toml
from fanfold.errors import ConfigError
from fanfold.summary import Check

_INSIDE = Path(__file__).with_name("inside.py")
#: No paths, no site packages, no bytecode written, UTF-8; the environment is ours, so it may fix the seed of hashes.
_FLAGS = ("-s", "-S", "-P", "-B", "-X", "utf8")
#: Bytes of a file that is written, the record of the tests included.
_FILE = 1_000_000
#: Who code runs as where root starts it.
_NOBODY = 65534
#: System calls that code in a test has no business with: their numbers on x86-64 and 64-bit ARM (-1: not there).
REFUSED: Mapping[str, tuple[int, int]] = load_toml(Path(__file__).with_name("data") / "syscalls.toml")
#: What must hold before code that a model wrote is run.  A network of its own is not among them: without sockets, which
#: `calls` refuses, there is none either way.
NEEDED = frozenset({"limits", "files", "user", "calls"})
#: What is missing where a guard is, and how it can be had.
_REMEDIES = {
    "limits": "limits on time and memory (setrlimit)",
    "files": "Landlock (Linux 5.13 or newer, with landlock among the kernel's `lsm`)",
    "user": "another user than root (setuid to nobody, and /proc)",
    "calls": "seccomp on x86-64 or 64-bit ARM",
}


@dataclass(frozen=True)
class CodeBounds:
    """What code may use up: seconds on the clock, seconds of a core, and megabytes of memory."""

    seconds: float = 10.0
    cpu: int = 5
    memory: int = 512

    def __post_init__(self) -> None:
        for name, least in (("seconds", 0.1), ("cpu", 1), ("memory", 64)):
            if not least <= getattr(self, name) < 1e6:
                raise ConfigError(f"{name} must be at least {least}, not {getattr(self, name)!r}")


@dataclass(frozen=True)
class Tested:
    """The result of one test: the value of its expression (None for a statement), or the error it ended with."""

    value: Any = None
    error: str = ""


@dataclass(frozen=True)
class Ran:
    """The results of all tests, in order, and which guards were in place.

    `cut` says why it did not come to its own end: `time` (on the clock), `cpu`, `ended` (it left before the tests were
    done, or was killed), `unguarded` (nothing was run, because a guard that was needed is missing); "" when it did.
    Tests it did not reach have that as their error.
    """

    tests: tuple[Tested, ...]
    cut: str = ""
    guards: frozenset[str] = frozenset()


async def run(
    code: str, tests: Sequence[str], bounds: CodeBounds | None = None, needs: Collection[str] = NEEDED
) -> Ran:
    """Run code, then each test, an expression or a statement, in the names it left behind.

    It happens in a bare Python process: its own session and process group, an empty environment, an empty temporary
    folder that is removed, standard library only, no output (what is printed is dropped).  The guards:

    - `limits`: on processor time, memory, size of files, open files, new processes and threads (none); on the clock
      the whole group is killed.
    - `user`: where root starts it, it becomes nobody, without groups.
    - `files`: Landlock, so that nothing can be read but Python and the system's libraries, and nothing written outside
      the temporary folder.
    - `calls`: a seccomp filter against sockets, new processes, signals to others, device nodes, System V memory,
      semaphores and queues, the scheduler, tracing, keyrings, mounts, and changes to the system.
    - `network`: a network namespace with nothing in it.

    Where one that it `needs` is missing (another system, an old kernel, a strict container), nothing is run.

    What this does not protect against: errors in the kernel, use of a core and a disk for a while, or code that looks
    for the tests and forges their result: an assertion runs in the same process as the code it checks.  Expected values
    that are compared here, outside, never enter that process, so tests of the form (expression, value) cannot be passed
    without computing the value.
    """
    box = _Box(code, tuple(tests), bounds or CodeBounds(), tuple(needs))
    try:
        return await asyncio.to_thread(box.run)
    finally:
        box.stop()  # when nobody waits for it any more


def run_code(code: str, expression: str, *, seconds: float = 5.0, memory: int = 512, unsafe: bool = False) -> Any:
    """The value of an expression in the names that some code leaves behind; both run in the sandbox (see `run`).

    For evaluators of code that a model wrote: `run_code(text, f"solve({task!r})")`.  The value is JSON-like.  An error,
    a limit or an early exit raises RuntimeError with the words that belong to it.  Where a guard is missing, nothing is
    run unless it may be `unsafe`.
    """
    bounds = CodeBounds(seconds, max(1, math.ceil(seconds)), memory)
    ran = _Box(code, (expression,), bounds, () if unsafe else tuple(NEEDED)).run()
    if ran.cut == "unguarded":
        raise ConfigError(f"code of a model is not run without {missing()}, unless unsafe=True")
    if ran.tests[0].error:
        raise RuntimeError(ran.tests[0].error)
    return ran.tests[0].value


@functools.cache
def guards() -> frozenset[str]:
    """The guards that hold on this machine, tried once in a process."""
    return _Box("", (), CodeBounds(seconds=60.0), ()).run().guards


def missing() -> str:
    """What this machine lacks to run code that a model wrote, in words; "" where it lacks nothing."""
    return ", ".join(_REMEDIES[name] for name in sorted(NEEDED - guards()))


def checks() -> list[Check]:
    """For `fanfold doctor`: each guard is put in place once, for real."""
    lacking = missing()
    note = f"refused without {lacking}, unless unsafe = true" if lacking else "for code that models write"
    return [Check("code sandbox", not lacking, ", ".join(sorted(guards())) or "no guards", note)]


@dataclass
class _Box:
    """One run; `stop` may be called from any thread at any time."""

    code: str
    tests: tuple[str, ...]
    bounds: CodeBounds
    needs: tuple[str, ...] = tuple(NEEDED)
    _process: subprocess.Popen[bytes] | None = None
    _stopped: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self) -> Ran:
        with tempfile.TemporaryDirectory(prefix="fanfold-", ignore_cleanup_errors=True) as folder:
            work = Path(folder, "work")
            work.mkdir()
            job, record = Path(folder, "job"), Path(folder, "record")
            if os.geteuid() == 0:  # it becomes nobody, who needs a way to a folder of its own and to nothing else
                Path(folder).chmod(0o711)
                os.chown(work, _NOBODY, _NOBODY)
            for private in (job, record):
                private.touch(0o600)
            job.write_text(
                json.dumps(
                    {
                        "code": self.code,
                        "tests": self.tests,
                        "cpu": self.bounds.cpu,
                        "memory": self.bounds.memory * 1_000_000,
                        "file": _FILE,
                        "needs": self.needs,
                        "refused": list(REFUSED.values()),
                    }
                )
            )
            with job.open("rb") as given, record.open("wb") as written:
                cut = self._wait(work, given, written)
            return self._read(record.read_bytes(), cut)

    def _wait(self, work: Path, given: Any, written: Any) -> str:
        with self._lock:
            if self._stopped:
                return "ended"
            self._process = subprocess.Popen(
                [sys.executable, *_FLAGS, str(_INSIDE)],
                stdin=given,
                stdout=written,
                stderr=subprocess.DEVNULL,
                cwd=work,
                env={"PYTHONHASHSEED": "0", "LANG": "C.UTF-8", "HOME": ".", "TMPDIR": "."},
                start_new_session=True,
            )
        over = not _ends(self._process, self.bounds.seconds)
        self.stop()
        status = self._process.wait()
        return "time" if over else "cpu" if status in (-signal.SIGXCPU, -signal.SIGKILL) else ""

    def stop(self) -> None:
        with self._lock:
            stopped, self._stopped = self._stopped, True
            if self._process is not None and not stopped:  # only once: later its number may be another process's
                try:
                    os.killpg(self._process.pid, signal.SIGKILL)
                except (ProcessLookupError, PermissionError):
                    self._process.kill()  # it may be there and not yet lead a group

    def _read(self, record: bytes, cut: str) -> Ran:
        lines = _lines(record)
        guards = lines[0].get("guards", ()) if lines else ()
        tests = [
            Tested(line.get("value"), str(line.get("error", "")))
            for line in lines[1 : len(self.tests) + 1]
            if "value" in line or "error" in line
        ]
        if not set(self.needs) <= set(guards) and not cut:
            cut = "unguarded"
        if len(tests) < len(self.tests):
            cut = cut or "ended"
            tests += [Tested(error=_WORDS[cut])] * (len(self.tests) - len(tests))
        return Ran(tuple(tests), cut, frozenset(map(str, guards)))


_WORDS = {
    "time": "it took too long",
    "cpu": "it used too much processor time",
    "unguarded": "it was not run: a guard that it needs is missing",
    "ended": "it ended before this test was done",
}


def _ends(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Whether a process ends by itself within some time."""
    try:
        handle = os.pidfd_open(process.pid)
    except (AttributeError, OSError):  # another system: Popen looks again and again, less and less often
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True
    try:
        waiting = select.poll()
        waiting.register(handle, select.POLLIN)
        return bool(waiting.poll(seconds * 1000))
    finally:
        os.close(handle)


def _lines(record: bytes) -> list[dict[str, Any]]:
    """The lines of the record up to the first that makes no sense."""
    lines: list[dict[str, Any]] = []
    for text in record.split(b"\n"):
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):
            break
        if not isinstance(line, dict):
            break
        lines.append(line)
    return lines
