"""On real sockets the server speaks HTTP/1.1 as clients need it, and misbehaves exactly as told."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fanfold.errors import ConfigError
from fanfold.simulator import Latency, Simulator, SimulatorConfig, serve
from fanfold.simulator.__main__ import main

Start = Callable[[SimulatorConfig], Any]

BODY = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'
HEADERS = {"authorization": "Bearer k", "content-type": "application/json"}


def _connect(running: Any) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(running.url.removeprefix("http://"), timeout=5)


def _raw(running: Any, data: bytes) -> socket.socket:
    host, _, port = running.url.removeprefix("http://").partition(":")
    connection = socket.create_connection((host, int(port)), timeout=5)
    connection.sendall(data)
    return connection


def _post(body: bytes = BODY) -> bytes:
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer k\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


def test_a_connection_is_kept_and_dated(start: Start) -> None:
    connection = _connect(start(SimulatorConfig()))
    for _ in range(3):
        connection.request("POST", "/v1/chat/completions", BODY, HEADERS)
        answer = connection.getresponse()
        assert answer.status == 200 and answer.getheader("date") and answer.getheader("x-request-id")
        assert json.loads(answer.read())["choices"]
        sock = connection.sock
    assert connection.sock is sock, "kept alive"
    connection.request("GET", "/v1/models", headers={**HEADERS, "connection": "close"})
    assert connection.getresponse().getheader("connection") == "close"


@pytest.mark.slow
def test_chunked_bodies_and_pipelined_requests_are_read(start: Start) -> None:
    running = start(SimulatorConfig(latency=Latency(0.01)))
    connection = _connect(running)
    connection.request("POST", "/v1/chat/completions", iter([BODY[:10], BODY[10:]]), HEADERS, encode_chunked=True)
    assert connection.getresponse().status == 200
    with _raw(running, _post() * 40) as pipelined:
        received = b""
        while received.count(b'"object":"chat.completion"') < 40:
            received += pipelined.recv(65536)
    assert received.count(b"HTTP/1.1 200 OK") == 40


def test_what_is_not_http_is_refused(start: Start) -> None:
    with _raw(start(SimulatorConfig()), b"hello\r\n\r\n") as connection:
        assert connection.recv(1000).startswith(b"HTTP/1.1 400")


@pytest.mark.slow
@pytest.mark.parametrize("size", [20, pytest.param(190, marks=pytest.mark.slow)])
def test_big_files_come_through_whole(start: Start, size: int) -> None:
    running = start(SimulatorConfig())
    content = b"0123456789abcde\n" * (size * 2**16)
    form = b'--B\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--B\r\nContent-Disposition: '
    form += b'form-data; name="file"; filename="big.jsonl"\r\n\r\n' + content + b"\r\n--B--\r\n"
    connection = _connect(running)
    headers = {
        "authorization": "Bearer k",
        "content-type": 'multipart/form-data; boundary="B"',
        "expect": "100-continue",
    }
    connection.request("POST", "/v1/files", form, headers)
    answer = json.loads(connection.getresponse().read())
    assert (answer["bytes"], answer["filename"]) == (len(content), "big.jsonl")
    connection.request("GET", f"/v1/files/{answer['id']}/content", headers=HEADERS)
    assert connection.getresponse().read() == content


def test_broken_connections_break_as_told(start: Start) -> None:
    running = start(SimulatorConfig())
    running.fault(
        {"kind": "disconnect", "times": 1}, {"kind": "cut", "times": 1}, {"kind": "lost_drop", "on": ["generate"]}
    )
    with _raw(running, _post()) as dropped:
        assert dropped.recv(1000) == b""
    connection = _connect(running)
    connection.request("POST", "/v1/chat/completions", BODY, HEADERS)
    with pytest.raises(http.client.IncompleteRead):
        connection.getresponse().read()
    with _raw(running, _post()) as lost:
        assert lost.recv(1000) == b""
    assert len(running.simulator.charges) == 2


@pytest.mark.slow
def test_a_hung_connection_stays_silent_and_a_dripping_one_is_slow(start: Start) -> None:
    running = start(SimulatorConfig())
    running.fault({"kind": "hang", "times": 1}, {"kind": "drip", "value": 50})
    with _raw(running, _post()) as hung:
        hung.settimeout(0.3)
        with pytest.raises(TimeoutError):
            hung.recv(1)
        hung.sendall(_post())
        with pytest.raises(TimeoutError):
            hung.recv(1)
    connection = _connect(running)
    connection.request("POST", "/v1/chat/completions", BODY, HEADERS)
    answer = connection.getresponse()
    assert answer.status == 200
    assert answer.read(3) == b'{"i' and int(answer.getheader("content-length") or 0) > 100


def test_a_client_that_leaves_is_charged(start: Start) -> None:
    running = start(SimulatorConfig(latency=Latency(0.05)))
    _raw(running, _post()).close()
    for _ in range(100):
        with urllib.request.urlopen(f"{running.url}/_simulator/ledger", timeout=5) as answer:
            charged = json.load(answer)["counts"]["charged"]
        if charged:
            break
    assert charged == 1


async def _occupied() -> None:
    async with serve(Simulator()) as url, serve(Simulator(), port=int(url.rpartition(":")[2])):
        pass


def test_a_port_in_use_is_named() -> None:
    import asyncio

    with pytest.raises(ConfigError, match=r"cannot listen on 127\.0\.0\.1:\d+.*--port"):
        asyncio.run(_occupied())


@pytest.mark.slow
def test_the_command_serves_until_it_is_told_to_stop(tmp_path: Path) -> None:
    faults = tmp_path / "faults.json"
    faults.write_text('{"faults": [{"kind": "internal", "times": 1}]}')
    command = [sys.executable, "-m", "fanfold.simulator", "--port", "0", "--rpm", "60", "--faults", str(faults)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[-1]
        assert "OPENAI_BASE_URL" in process.stdout.readline()
        process.stdout.readline()
        assert process.stdout.readline() == "ready\n"
        connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=10)
        statuses = []
        for _ in range(2):
            connection.request("POST", "/v1/chat/completions", BODY, HEADERS)
            answer = connection.getresponse()
            statuses.append(answer.status)
            answer.read()
        assert statuses == [500, 200] and answer.getheader("x-ratelimit-limit-requests") == "60"
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
        assert process.stdout.read() == "stopped; 1 requests charged, 0 batches\n"


def test_the_command_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = tmp_path / "faults.json"
    bad.write_text('{"faults": [{"kind": "hnag"}]}')
    for argv, words in (
        (["--faults", str(bad)], "did you mean 'hang'"),
        (["--faults", str(tmp_path / "none.json")], "cannot be read"),
        (["--latency", "quick"], "is not a latency"),
        (["--rpm", "-1"], "rpm must be above 0"),
    ):
        assert main(argv) == 2
        assert words in capsys.readouterr().err
