"""How a worker process is started, and how its end is noticed."""

from __future__ import annotations

import concurrent.futures
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from fanfold.executors.base import no_worker

#: The folder that holds the package is named, so that workers find it however the parent did.
_BOOT = (
    "import sys; sys.path.insert(0, sys.argv[1]); from fanfold.executors.worker import main; main(int(sys.argv.pop()))"
)
_ROOT = str(Path(__file__).parents[2])


def start(connection: socket.socket, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """A worker that serves whoever is at the other end of the connection.

    A session of its own: Ctrl-C stays with the parent, and the worker can be killed with all its offspring.
    """
    return subprocess.Popen(
        [sys.executable, "-P", "-c", _BOOT, _ROOT, str(connection.fileno())],
        stdin=subprocess.DEVNULL,
        pass_fds=[connection.fileno()],
        env=environment,
        start_new_session=True,
    )


def wait(process: subprocess.Popen[bytes]) -> int:
    """Wait for the end, and end what the worker had started; one of those may even hold the far end open."""
    code = process.wait()
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass  # nobody left in it, or (on macOS) nobody but a zombie
    return code


class LocalProcess:
    """A worker process on this machine: the near end of its socket, and its exit code once it has ended."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        try:
            self.socket, theirs = socket.socketpair()
        except OSError as error:
            raise no_worker(error, "process") from error
        self.socket.setblocking(False)
        try:
            self._process = start(theirs, environment)
        except (OSError, MemoryError) as error:
            self.socket.close()
            raise no_worker(error, "process") from error
        finally:
            theirs.close()
        self.exit_code: concurrent.futures.Future[int] = concurrent.futures.Future()
        self.exit_code.set_running_or_notify_cancel()  # so that someone who stops waiting for it cannot cancel it
        try:
            threading.Thread(target=self._reap, name="fanfold-reap", daemon=True).start()
        except RuntimeError as error:  # the system has no more threads for us
            self._process.kill()
            self._process.wait()
            self.socket.close()
            raise no_worker(error, "process") from error

    def kill(self) -> None:
        self._process.kill()

    def _reap(self) -> None:
        self.exit_code.set_result(wait(self._process))
