"""The far side of the sandbox: a process that gives up what it may do, runs code, and writes what came of each test.

It is run as a file by a bare interpreter, so it imports nothing of Fanfold.  The job comes as JSON on standard input;
the first line written says which guards are in place, each further one what came of a test.  Where a guard that the job
needs is not in place, nothing is run.
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

#: System calls that code in a test has no business with: their numbers on x86-64 and 64-bit ARM (None: not there).
REFUSED = {
    "clone": (56, 220), "fork": (57, None), "vfork": (58, None), "clone3": (435, 435), "execve": (59, 221),
    "execveat": (322, 281), "socket": (41, 198), "connect": (42, 203), "io_uring_setup": (425, 425),
    "kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131), "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240), "pidfd_open": (434, 434), "pidfd_send_signal": (424, 424), "ptrace": (101, 117),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "prlimit64": (302, 261), "setrlimit": (160, 164),
    "setpriority": (141, 140), "sched_setaffinity": (203, 122), "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118), "sched_setattr": (314, 274), "ioprio_set": (251, 30), "mbind": (237, 235),
    "set_mempolicy": (238, 237), "migrate_pages": (256, 238), "move_pages": (279, 239), "mknod": (133, None),
    "mknodat": (259, 33), "shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195), "semget": (64, 190),
    "semop": (65, 193), "semctl": (66, 191), "semtimedop": (220, 192), "msgget": (68, 186), "msgsnd": (69, 189),
    "msgrcv": (70, 188), "msgctl": (71, 187), "mq_open": (240, 180), "mq_unlink": (241, 181),
    "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452),
    "chown": (92, None), "fchown": (93, 55), "lchown": (94, None), "fchownat": (260, 54), "setxattr": (188, 5),
    "lsetxattr": (189, 6), "fsetxattr": (190, 7), "removexattr": (197, 14), "lremovexattr": (198, 15),
    "fremovexattr": (199, 16), "utime": (132, None), "utimes": (235, None), "utimensat": (280, 88),
    "futimesat": (261, None), "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39),
    "pivot_root": (155, 41), "chroot": (161, 51), "open_tree": (428, 428), "move_mount": (429, 429),
    "fsopen": (430, 430), "bpf": (321, 280), "keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218),
    "perf_event_open": (298, 241), "userfaultfd": (323, 282), "init_module": (175, 105), "finit_module": (313, 273),
    "delete_module": (176, 106), "kexec_load": (246, 104), "reboot": (169, 142), "swapon": (167, 224),
    "settimeofday": (164, 170), "clock_settime": (227, 112), "adjtimex": (159, 171), "clock_adjtime": (305, 266),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442),
    "open_tree_attr": (467, 467), "kexec_file_load": (320, 294), "swapoff": (168, 225), "syslog": (103, 116),
    "iopl": (172, None), "ioperm": (173, None), "modify_ldt": (154, None), "personality": (135, 92), "kcmp": (312, 272),
    "pidfd_getfd": (438, 438), "process_madvise": (440, 440), "process_mrelease": (448, 448),
    "fanotify_init": (300, 262), "name_to_handle_at": (303, 264), "lookup_dcookie": (212, 18), "vhangup": (153, 58),
    "setuid": (105, 146), "setgid": (106, 144), "setgroups": (116, 159), "setreuid": (113, 145),
    "setregid": (114, 143), "setresuid": (117, 147), "setresgid": (119, 149), "setfsuid": (122, 151),
    "setfsgid": (123, 152), "capset": (126, 91), "setdomainname": (171, 162), "quotactl_fd": (443, 443),
    "sethostname": (170, 161), "acct": (163, 89), "quotactl": (179, 60), "open_by_handle_at": (304, 265),
}  # fmt: skip
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
        return {"error": describe(error)}


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
    """A seccomp filter that refuses the system calls above."""
    column, architecture = ARCHITECTURES[platform.machine()]
    load, equal, at_least, give = 0x20, 0x15, 0x35, 0x06
    no, yes, die = 0x00050001, 0x7FFF0000, 0x80000000  # EPERM, allow, end the process
    program = [(load, 0, 0, 4), (equal, 1, 0, architecture), (give, 0, 0, die), (load, 0, 0, 0)]
    program += [(at_least, 0, 1, 0x40000000), (give, 0, 0, no)]  # x86's second set of numbers
    for numbers in REFUSED.values():
        if (number := numbers[column]) is not None:
            program += [(equal, 0, 1, number), (give, 0, 0, no)]
    program.append((give, 0, 0, yes))
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in program))
    header = struct.pack("HxxxxxxQ", len(program), ctypes.addressof(code))
    if LIBC.prctl(PR_SET_SECCOMP, 2, header, 0, 0):
        raise OSError("no seccomp")


if __name__ == "__main__":
    main()
