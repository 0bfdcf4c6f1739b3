"""Runs inside the sandbox: gives up its rights, runs the code, and writes the result of each test.

It is run as a file by a bare interpreter, so it imports nothing of Fanfold.  The job comes as JSON on standard input;
the first line written says which guards are in place, each further one is the result of a test.  Where a guard that the
job needs is not in place, nothing is run.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import resource
import signal
import struct
import sys

TYPE_CHECKING = False  # typing takes longer to import than all the rest
if TYPE_CHECKING:
    from typing import Any

LIBC = ctypes.CDLL(None, use_errno=True)
PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 1, 22, 38
CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
LONGEST = 200  # of a message about an error

#: Who code runs as where root has started it.
NOBODY = 65534
ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}


def main() -> None:
    job = json.load(sys.stdin)
    out = os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    held = guard(job)
    write(out, {"guards": held})
    if not set(job["needs"]) <= set(held):
        os._exit(0)
    space: dict[str, object] = {"__name__": "solution"}
    failure = ""
    try:
        exec(compile(job["code"], "<reply>", "exec"), space)
    except BaseException as error:
        failure = describe(error)
    for test in job["tests"]:
        write(out, {"error": failure} if failure else outcome(test, space))
    os._exit(0)  # whatever the code left behind is not waited for


def outcome(test: str, space: dict[str, object]) -> dict[str, object]:
    """The value of a test that is an expression; nothing for one that is a statement; or the error it ended with."""
    try:
        try:
            expression = compile(test, "<test>", "eval")
        except SyntaxError:
            exec(compile(test, "<test>", "exec"), space)
            return {"value": None}
        value = eval(expression, space)
        json.dumps(value, allow_nan=False)
        return {"value": value}
    except BaseException as error:
        return {"error": failed_line(test) + describe(error)}


def failed_line(test: str) -> str:
    """The line of a test of several lines that has just raised."""
    lines, at, trace = test.splitlines(), 0, sys.exc_info()[2]
    while trace is not None:
        at = trace.tb_lineno if trace.tb_frame.f_code.co_filename == "<test>" else at
        trace = trace.tb_next
    return f"{lines[at - 1].strip()[:LONGEST]}: " if 0 < at <= len(lines) > 1 else ""


def describe(error: BaseException) -> str:
    try:
        said = str(error)
    except BaseException:
        said = ""
    return f"{type(error).__name__}: {said}"[:LONGEST] if said else type(error).__name__


def write(out: int, line: dict[str, object]) -> None:
    os.write(out, json.dumps(line).encode() + b"\n")


def guard(job: dict[str, Any]) -> list[str]:
    """Put every guard in place that this system has; gives the names of those that are."""
    held = []
    for name, put in (("limits", limits), ("network", network), ("files", files), ("user", user), ("calls", calls)):
        try:
            put(job)
            held.append(name)
        except (OSError, ValueError, AttributeError, KeyError):
            continue
    return held


def limits(job: dict[str, Any]) -> None:
    """What may be used up."""
    if sys.platform == "linux":
        LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    for kind, soft, hard in (
        (resource.RLIMIT_CPU, job["cpu"], job["cpu"] + 1),
        (resource.RLIMIT_CORE, 0, 0),
        (resource.RLIMIT_FSIZE, job["file"], job["file"]),
        (resource.RLIMIT_NOFILE, 64, 64),
        (resource.RLIMIT_NPROC, 0, 0),
        (resource.RLIMIT_AS, job["memory"], job["memory"]),
    ):
        resource.setrlimit(kind, (soft, hard))


def network(job: dict[str, Any]) -> None:
    """A network of our own, with nothing in it."""
    # Root in a namespace of users would still be root to every file, and could not become nobody any more.
    kind = CLONE_NEWNET if os.geteuid() == 0 else CLONE_NEWUSER | CLONE_NEWNET
    if sys.platform != "linux" or LIBC.unshare(kind):
        raise OSError("no network namespace")


def files(job: dict[str, Any]) -> None:
    """Landlock: read Python's own files and the system's libraries, write in the current folder, nothing else."""
    create, add, restrict = 444, 445, 446  # the same on every architecture
    version = LIBC.syscall(create, None, 0, 1)
    if version < 1:
        raise OSError("no Landlock")
    everything = {1: 0x1FFF, 2: 0x3FFF}.get(version, 0x7FFF if version < 5 else 0xFFFF)
    ruleset = LIBC.syscall(create, struct.pack("Q", everything), 8, 0)
    if ruleset < 0:
        raise OSError("no Landlock")
    read_file, read_folder, write_file = 1 << 2, 1 << 3, 1 << 1
    rules = dict.fromkeys((*sys.path, sys.base_prefix, "/usr", "/lib", "/lib64"), read_file | read_folder)
    rules |= dict.fromkeys(("/etc/ld.so.cache", "/etc/localtime", "/dev/urandom"), read_file)
    nodes = 1 << 6 | 1 << 9 | 1 << 11  # devices and sockets
    rules |= {".": everything & ~nodes, "/dev/null": read_file | write_file}
    for path, rights in rules.items():
        if os.path.exists(path):  # noqa: PTH110
            if not os.path.isdir(path):  # noqa: PTH112
                rights &= read_file | write_file
            handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
            if LIBC.syscall(add, ruleset, 1, struct.pack("<Qi", rights, handle), 0):
                raise OSError(f"Landlock refuses the rule for {path}")
            os.close(handle)
    if LIBC.syscall(restrict, ruleset, 0):
        raise OSError("Landlock cannot be used")
    os.close(ruleset)


def user(job: dict[str, Any]) -> None:
    """Become nobody where root has started us; and whoever started us takes us along when it goes."""
    if os.geteuid() == 0 or os.getuid() == 0:
        reachable()
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    if sys.platform == "linux":  # at the end, because a change of user undoes it
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def reachable() -> None:
    """Let Python be found by nobody, also where it lies in a folder of root's alone: open folders need no way there."""
    opened = {}
    for path in sys.path:
        if path.startswith("/") and os.path.isdir(path):  # noqa: PTH112
            opened[path] = f"/proc/self/fd/{os.open(path, os.O_PATH | os.O_DIRECTORY)}"
            os.listdir(opened[path])  # noqa: PTH208 - where there is no /proc, there is no guard

    def moved(path: str) -> str:
        inside = [place for place in opened if f"{path}/".startswith(f"{place}/")]
        return opened[place] + path[len(place) :] if (place := max(inside, key=len, default="")) else path

    sys.path[:] = map(moved, sys.path)
    for module in list(sys.modules.values()):  # packages that are here have more modules to be imported
        if isinstance(paths := getattr(module, "__path__", None), list):
            paths[:] = map(moved, paths)


def calls(job: dict[str, Any]) -> None:
    """A seccomp filter that refuses the system calls that the job names."""
    column, architecture = ARCHITECTURES[platform.machine()]
    load, equal, at_least, give = 0x20, 0x15, 0x35, 0x06
    no, yes, die = 0x00050001, 0x7FFF0000, 0x80000000  # EPERM, allow, end the process
    program = [(load, 0, 0, 4), (equal, 1, 0, architecture), (give, 0, 0, die), (load, 0, 0, 0)]
    program += [(at_least, 0, 1, 0x40000000), (give, 0, 0, no)]  # x86's second set of numbers
    for numbers in job["refused"]:
        if (number := numbers[column]) >= 0:
            program += [(equal, 0, 1, number), (give, 0, 0, no)]
    program.append((give, 0, 0, yes))
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in program))
    header = struct.pack("HxxxxxxQ", len(program), ctypes.addressof(code))
    if LIBC.prctl(PR_SET_SECCOMP, 2, header, 0, 0):
        raise OSError("no seccomp")


if __name__ == "__main__":
    main()
