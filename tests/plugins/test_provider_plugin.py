"""A provider from another package works wherever our own do."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import fanfold

if TYPE_CHECKING:
    from conftest import Environment

pytestmark = pytest.mark.slow  # every test starts interpreters

STUDY = ("prompts", "--model", "acme/anvil-1", "--trials", "3", "--train", "4", "--schedule", "all")


@pytest.fixture(scope="module")
def acme(install: Callable[[str], Environment]) -> Environment:
    return install("acme_provider")


@pytest.fixture(scope="module")
def address(acme: Environment) -> Iterator[str]:
    """A simulator, started from the shell, that speaks Acme's dialect; gives the address for ACME_URL."""
    command = [sys.executable, "-m", "fanfold.simulator", "--port", "0", "--turnaround", "0.2"]
    path = os.pathsep.join([str(acme.packages), str(Path(fanfold.__file__).parents[1])])
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    lines = ""
    for line in process.stdout:
        lines += line
        if line.startswith("ready"):
            break
    found = re.search(r"ACME_URL=(\S+)", lines)
    assert found is not None, lines
    yield found[1]
    process.terminate()
    process.wait(30)


def test_a_study_asks_its_models_and_records_what_they_cost(acme: Environment, address: str) -> None:
    acme.fanfold("run", *STUDY, "--run", "plain", ACME_KEY="k", ACME_URL=address)
    shown = json.loads(acme.fanfold("show", "plain", "--json").stdout)
    (calls,) = shown["model_calls"]
    cost = (3.0 * calls["input_tokens"] + 6.0 * calls["output_tokens"]) / 1e6
    assert calls["model"] == "acme/anvil-1" and calls["calls"] > 0
    assert calls["cost"] == pytest.approx(cost)


def test_its_calls_travel_in_its_batches(acme: Environment, address: str) -> None:
    environment = {"ACME_KEY": "k", "ACME_URL": address}
    acme.fanfold("run", *STUDY, "--run", "waves", "--executor", "batch:acme", "--seed", "2", **environment)
    batches = json.loads(acme.fanfold("batches", "--json").stdout)
    assert batches and {batch["model"] for batch in batches} == {"acme/anvil-1"}
    refused = acme.fanfold("batches", "--cancel", batches[0]["tag"], code=2, **environment).stderr
    assert "there is nothing to cancel" in refused


def test_a_batch_under_way_is_cancelled_at_its_provider(acme: Environment, address: str) -> None:
    code = (
        "import asyncio\nfrom fanfold.calls import current_broker\nfrom fanfold.models import model\n"
        "async def main():\n"
        "    acme = model('acme/anvil-1')\n    api = acme.provider.batches(acme)\n"
        "    made = await api.create(await api.prepare('tag', [('tag-0', acme.call('x'))]))\n"
        "    await api.cancel(made.id)\n    print((await api.get(made.id)).requests)\n"
        "    await current_broker().close()\n"
        "asyncio.run(main())"
    )
    assert acme.python("-c", code, ACME_KEY="k", ACME_URL=address).stdout == "1\n"


def test_it_is_rehearsed_and_estimated_without_a_key(acme: Environment) -> None:
    rehearsed = json.loads(acme.fanfold("run", *STUDY, "--rehearse", "--rpm", "60", "--json").stdout)
    assert rehearsed["usage"][0]["model"] == "acme/anvil-1" and rehearsed["cost"] > 0
    waves = json.loads(acme.fanfold("run", *STUDY, "--rehearse", "--executor", "batch:acme", "--json").stdout)
    assert waves["usage"][0]["batched"] > 0
    estimate = json.loads(acme.fanfold("estimate", *STUDY, "--max-tokens", "50", "--json").stdout)
    most = 50 * estimate["high"]["calls"]
    assert most <= estimate["high"]["output_tokens"] <= 1.1 * most
    assert 0 < estimate["low"]["cost"] <= estimate["expected"]["cost"] <= estimate["high"]["cost"]


def test_completion_help_doctor_and_errors_list_it(acme: Environment) -> None:
    assert acme.completions("run", "prompts", "--executor", "batch:a") == [
        "batch:acme",
        "batch:anthropic",
        "batch:azure",
        "batch:auto",
    ]
    assert "acme" in acme.fanfold("simulate", "--help").stdout
    checks = json.loads(acme.fanfold("doctor", "--json", ACME_KEY="k").stdout)["checks"]
    row = next(check for check in checks if check["name"] == "provider acme")
    assert row["ok"] and row["found"] == "acme-provider 0.3"
    assert "ACME_KEY is set" in row["note"] and "batch:acme" in row["note"]
    assert "did you mean 'acme'" in acme.fanfold("run", "prompts", "--model", "acmee/anvil-1", code=2).stderr
    assert "set ACME_KEY" in acme.fanfold("run", *STUDY, code=2, ACME_KEY="").stderr
    assert "batch:acme" in acme.fanfold("batches", "--ledger", _empty(acme)).stdout
    assert "did you mean 'acme'" in acme.fanfold("run", *STUDY, "--executor", "batch:acmee", code=2).stderr


def test_its_models_are_simulated_in_its_own_dialect(acme: Environment) -> None:
    code = "from fanfold.models import model; m = model('simulated/anvil-1'); print(m.id, m.url, m.price.input)"
    assert acme.python("-c", code).stdout == "acme/anvil-1 http://simulated/v2 3.0\n"


def test_one_that_cannot_be_imported_disturbs_nobody(acme: Environment) -> None:
    checks = json.loads(acme.fanfold("doctor", "--json").stdout)["checks"]
    row = next(check for check in checks if check["name"] == "provider broken-acme")
    assert not row["ok"] and not row["required"] and "acme-provider" in row["note"]
    assert "batch:acme" in acme.completions("run", "prompts", "--executor", "batch")
    refused = acme.fanfold("run", "prompts", "--model", "broken-acme/x", code=2).stderr
    assert "cannot be used" in refused and "'acme-provider'" in refused


def test_its_key_reaches_no_log_and_no_error(acme: Environment, address: str) -> None:
    secret = "acme-secret-0123456789"
    done = acme.fanfold("run", *STUDY, "--run", "secret", "--seed", "3", ACME_KEY=secret, ACME_URL=address)
    assert secret not in done.stdout + done.stderr
    for file in acme.folder.rglob("*"):
        assert not file.is_file() or secret.encode() not in file.read_bytes(), file


def test_its_author_checks_it_with_our_suite(acme: Environment) -> None:
    file = Path(__file__).parents[1] / "data/acme_provider/conformance.py"
    options = ["-q", "-c", os.devnull, "-p", "no:cacheprovider", "--rootdir", str(acme.folder)]
    assert " passed" in acme.python("-m", "pytest", *options, str(file)).stdout


def _empty(acme: Environment) -> str:
    """A ledger without batches."""
    acme.fanfold("run", "functions", "--trials", "2", "--ledger", "empty.db")
    return "empty.db"
