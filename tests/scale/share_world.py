"""A real Redis server, and processes that share by it."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

SHARER = Path(__file__).parent / "programs" / "sharer.py"


@dataclass
class RedisServer:
    """A redis-server (or valkey-server) of a test's own, which forgets everything when it is killed."""

    binary: str
    folder: Path
    password: str = ""
    options: list[str] = field(default_factory=list)
    port: int = 0
    process: subprocess.Popen[bytes] | None = None

    def start(self, *, tls: bool = False) -> None:
        if not self.port:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                self.port = free.getsockname()[1]
        command = [
            self.binary,
            "--tls-port" if tls else "--port",
            str(self.port),
            *self.options,
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
        ]
        command += ["--unixsocket", str(self.folder / "redis.sock")]
        if self.password:
            command += ["--requirepass", self.password]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=self.folder)
        for _ in range(200):
            with socket.socket() as link:
                if link.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.02)
        raise RuntimeError("the Redis server of the test does not start")

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def stop(self, *, cont: bool = False) -> None:
        """Let it hang, or continue."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT if cont else signal.SIGSTOP)

    @property
    def url(self) -> str:
        login = f":{self.password}@" if self.password else ""
        return f"redis://{login}127.0.0.1:{self.port}/0"

    def command(self, *words: str | bytes) -> str:
        """What the server answers to a command of somebody else."""
        tool = shutil.which("redis-cli") or shutil.which("valkey-cli") or "redis-cli"
        login = {"REDISCLI_AUTH": self.password} if self.password else {}
        line = [tool, "-p", str(self.port), *words]
        done = subprocess.run(line, capture_output=True, check=True, env={**os.environ, **login})
        return done.stdout.decode(errors="replace").strip()


def redis_server(folder: Path, password: str = "") -> RedisServer:
    """One that is not started yet; skips the test where none is installed."""
    binary = shutil.which("redis-server") or shutil.which("valkey-server")
    if binary is None:
        pytest.skip("needs a Redis server: make redis, or apt-get install redis-server")
    return RedisServer(binary, folder, password)


@dataclass
class Sharers:
    """Processes that make model calls and share them; see `programs/sharer.py`."""

    folder: Path
    processes: list[subprocess.Popen[str]] = field(default_factory=list)
    _texts: list[str] = field(default_factory=list)

    def begin(self, base_url: str, share: str, calls: str, **options: object) -> subprocess.Popen[str]:
        ledger = options.pop("ledger", None) or self.folder / f"sharer{len(self.processes)}.db"
        flags = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]
        command = [sys.executable, str(SHARER), base_url, share, calls, str(ledger), *flags]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.processes.append(process)
        return process

    def end(self) -> list[str]:
        """What each of them printed, once all are done."""
        for process in self.processes[len(self._texts) :]:
            self._texts.append(process.communicate(timeout=120)[0])
        return self._texts

    def ledgers(self) -> list[Path]:
        return [self.folder / f"sharer{number}.db" for number in range(len(self.processes))]
