"""`fanfold critic serve` and the example web app, as processes that speak HTTP."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from fanfold.simulator.config import Latency, SimulatorConfig
from fanfold.studies.critic import Critic

ROOT = Path(__file__).parents[2]
PROMPTS = ("--prompts", "Be brief.", "--prompts", "Be warm.")


class Client:
    """Asks a service; every answer is JSON."""

    def __init__(self, url: str, token: str = "") -> None:
        self.url, self.token = url, token

    def __call__(self, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data)
        given = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        for name, value in (given | {name.replace("_", "-"): value for name, value in headers.items()}).items():
            request.add_header(name, value)
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                return reply.status, json.load(reply)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)


@contextmanager
def served(*arguments: object, **variables: str) -> Iterator[tuple[Client, subprocess.Popen[str]]]:
    """A service in a process of its own, on a free port."""
    command = [sys.executable, "-m", "fanfold", "critic", "serve", *map(str, arguments), "--port", "0", "--json"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **variables}
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.communicate()[1]
        while not line.rstrip().endswith("}"):
            line += process.stdout.readline()
        started = json.loads(line)
        yield Client(started["url"], started.get("token", variables.get("FANFOLD_CRITIC_TOKEN", ""))), process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        process.wait(30)
        for stream in (process.stdout, process.stderr):
            assert stream is not None
            stream.close()


def begin(tmp_path: Path) -> tuple[object, ...]:
    return (tmp_path / "app.db", "--model", "simulated/critic", *PROMPTS)


@pytest.mark.slow
def test_a_service_answers_learns_and_stops_when_interrupted(tmp_path: Path) -> None:
    with served(*begin(tmp_path)) as (client, process):
        assert client("/health") == (200, {"status": "ok"})
        status, shown = client("/ask", {"query": "How do I dry herbs?"})
        assert status == 200
        assert shown["prompt"] in PROMPTS
        assert client("/tell", {"id": shown["id"], "rating": 4}) == (200, {"told": shown["id"]})
        _, pair = client("/ask", {"query": "How do I dry herbs?", "show": 2})
        assert len(pair["texts"]) == 2
        assert client("/tell", {"id": pair["id"], "preferred": "B"})[0] == 200
        with Critic.open(tmp_path / "app.db") as here:  # a program on the same file, meanwhile
            assert here.status()["answered"] == 2
            late = here.ask_sync("Why is the sky blue?")
        assert client("/tell", {"id": late.id, "thumbs": False})[0] == 200
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    with served(tmp_path / "app.db") as (client, _):  # the file knows the model and the prompts
        assert client("/ask", {"query": "Why is the sky blue?"})[0] == 200


@pytest.mark.slow
def test_whoever_may_not_ask_is_refused_and_told_what_to_do(tmp_path: Path) -> None:
    token = "a-token-of-my-own-choice"
    with served(*begin(tmp_path), FANFOLD_CRITIC_TOKEN=token) as (client, process):
        ask = {"query": "How do I dry herbs?"}
        assert client("/ask", ask)[0] == 200
        for status, remedy, reply in (
            (401, "Authorization: Bearer", Client(client.url)("/ask", ask)),
            (401, "Authorization: Bearer", Client(client.url, token[:-1])("/tell", {"id": "0-1", "rating": 1})),
            (403, "--allow-host", client("/ask", ask, Host="rebound.example")),
            (403, "ask from your server", client("/ask", ask, Origin="https://elsewhere.example")),
            (403, "ask from your server", client("/health", Origin="null")),
            (415, "application/json", client("/ask", ask, Content_Type="text/plain")),
            (400, "JSON", client("/ask", b"{")),
            (400, "JSON", client("/ask", b"[1]")),
            (400, "'query' is missing", client("/ask", {})),
            (400, "unknown key 'shows': use query, show", client("/ask", {**ask, "shows": 2})),
            (400, "query must be a text", client("/ask", {"query": 7})),
            (400, "show=1 or 2", client("/ask", {**ask, "show": 9})),
            (404, "the id of what `ask` returned", client("/tell", {"id": "0-1", "rating": 1})),
            (400, "unknown key 'self'", client("/tell", {"id": "0-1", "self": 1})),
            (404, "/ask, /tell, /health", client("/admin")),
            (405, "/ask takes POST", client("/ask")),
            (413, "above 65536 bytes", client("/ask", b" " * 70_000)),
            (431, "headers are above", client("/ask", ask, X_Large="x" * 70_000)),
        ):
            assert reply[0] == status, reply
            assert remedy in reply[1]["error"]["message"]
        process.send_signal(signal.SIGTERM)
        out, error = process.communicate(timeout=30)
        assert token not in out + error  # it is not ours to print


@pytest.mark.slow
def test_fifty_questions_at_once_are_answered_and_each_call_is_paid_once(tmp_path: Path, start: Any) -> None:
    simulator = start(SimulatorConfig(latency=Latency(0.05)))
    settings = ("--model", "openai/gpt-6-luna", "--base-url", f"{simulator.url}/v1", *PROMPTS)
    with served(tmp_path / "app.db", *settings, OPENAI_API_KEY="x") as (client, _):
        with ThreadPoolExecutor(50) as threads:
            asked = [{"query": f"How do I dry {n % 25} herbs?"} for n in range(50)]
            shown = list(threads.map(lambda body: client("/ask", body), asked))
            assert [status for status, _ in shown] == [200] * 50
            told = [{"id": reply["id"], "reward": 0.5} for _, reply in shown]
            assert [status for status, _ in threads.map(lambda body: client("/tell", body), told)] == [200] * 50
        assert len({body["id"] for body in told}) == 50
    with Critic.open(tmp_path / "app.db") as critic:
        assert critic.status() == {"shows": 50, "answered": 50, "open": 0}
        paid = critic._ledger.one("SELECT count(*), count(DISTINCT key) FROM payment")
        assert paid[0] == paid[1] == len(simulator.simulator.charges) < 100


@pytest.mark.slow
def test_a_question_under_way_is_answered_before_the_service_stops(tmp_path: Path) -> None:
    asked, stopping = threading.Event(), threading.Event()

    class SlowModel(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            asked.set()
            stopping.wait(30)
            choice = {"message": {"role": "assistant", "content": "Hang them up."}, "finish_reason": "stop"}
            usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
            body = json.dumps({"id": "1", "model": "slow", "choices": [{"index": 0, **choice}], "usage": usage})
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

    with ThreadingHTTPServer(("127.0.0.1", 0), SlowModel) as model, ThreadPoolExecutor(2) as threads:
        threads.submit(model.serve_forever)
        url = f"http://127.0.0.1:{model.server_port}/v1"
        with served(tmp_path / "app.db", "--model", "openai-compatible/slow", "--base-url", url, *PROMPTS) as (
            client,
            process,
        ):
            reply = threads.submit(client, "/ask", {"query": "How do I dry herbs?"})
            assert asked.wait(30)
            process.send_signal(signal.SIGINT)
            while client("/health")[0] == 200:
                time.sleep(0.02)
            stopping.set()
            assert reply.result(30)[1]["text"] == "Hang them up."
            assert process.wait(30) == 0
        model.shutdown()
    with Critic.open(tmp_path / "app.db") as critic:
        assert critic.status()["shows"] == 1


@pytest.mark.slow
def test_what_cannot_be_served_is_refused_at_once(tmp_path: Path) -> None:
    def run(*arguments: object, **variables: str) -> str:
        command = [sys.executable, "-m", "fanfold", "critic", "serve", *map(str, arguments)]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=60, env={**os.environ, "NO_COLOR": "1", **variables}
        )
        assert done.returncode == 2, done.stdout
        return " ".join(done.stderr.split())

    assert "give model= and prompts=[...]" in run(tmp_path / "app.db")
    assert "can be guessed: use 16 or more" in run(*begin(tmp_path), FANFOLD_CRITIC_TOKEN="short")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert f"the critic cannot listen on 127.0.0.1:{port}" in run(*begin(tmp_path), "--port", port)


@pytest.mark.slow
def test_the_example_app_shows_a_page_answers_and_takes_thumbs(tmp_path: Path) -> None:
    script = ROOT / "examples" / "critic_app.py"
    assert len(script.read_text().splitlines()) < 60
    command = [sys.executable, script, "0", "simulated/critic", tmp_path / "app.db"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        client = Client(process.stdout.readline().rpartition(" ")[2].strip())
        with urllib.request.urlopen(client.url, timeout=30) as page:
            assert b"<form" in page.read()
        status, shown = client("/ask", {"query": "How do I dry herbs?"})
        assert status == 200
        assert shown["text"]
        assert client("/tell", {"id": shown["id"], "thumbs": True}) == (200, {})
        assert client("/tell", {"id": "0-0", "thumbs": True})[0] == 400
        with Critic.open(tmp_path / "app.db") as critic:
            assert critic.status() == {"shows": 1, "answered": 1, "open": 0}
    finally:
        process.kill()
        process.communicate()
