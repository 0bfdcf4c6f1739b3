"""Fixtures of the fault tests: programs that are started, and a provider in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from fault_world import PROGRAMS, Provider, Start


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a program of `programs/` in a process group of its own, and leaves nothing running behind."""
    started: list[subprocess.Popen[str]] = []

    def begin(program: str, *args: object, **options: Any) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, str(PROGRAMS / program), *map(str, args)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            **options,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


@pytest.fixture
def provider(serving: Provider) -> Provider:
    """A provider with empty books."""
    serving.post("reset")
    return serving


@pytest.fixture(scope="package")
def serving() -> Iterator[Provider]:
    """One process for all tests of a worker: starting it costs more than most of them."""
    command = [sys.executable, "-m", "fanfold.simulator", "--port", "0", "--turnaround", "0.06", "--latency", "0.02"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = ""
        for line in process.stdout:
            if line.startswith("simulator at "):
                url = line.split()[-1]
            if line.strip() == "ready":
                break
        try:
            yield Provider(url)
        finally:
            process.terminate()
