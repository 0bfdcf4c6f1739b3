"""`fanfold simulate`, `estimate`, `batches`, `run --rehearse`, `--cache`, and what `show` says about model calls."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from fanfold.ledger import Ledger

Fanfold = Callable[..., Result]
Json = Callable[..., Any]

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-c", "from fanfold.cli import main; main()"]
KEYED = """
from fanfold import Case, MaxTrials, Study, Sweep
from fanfold.models import model

asked = model("openai/gpt-6-luna")


async def evaluate(candidate, case):
    return len((await asked.generate(f"{candidate} {case.id}", max_tokens=20)).text)


study = Study(Sweep(range(30)), evaluate, cases=range(3), stop=MaxTrials(20), window=10, name="keyed")
"""


@pytest.fixture(autouse=True)
def unkeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"):
        monkeypatch.delenv(name, raising=False)


class Simulated:
    """`fanfold simulate` in a process of its own."""

    def __init__(self, *options: str) -> None:
        command = [*COMMAND, "simulate", "--port", "0", *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        lines = []
        for line in self.process.stdout:
            lines.append(line)
            if line.strip() == "ready":
                break
        found = re.search(r"simulator at (http://127\.0\.0\.1:\d+)", "".join(lines))
        assert found is not None, lines
        self.url = found[1]

    def get(self, path: str) -> Any:
        request = urllib.request.Request(self.url + path, headers={"authorization": "Bearer x"})
        with urllib.request.urlopen(request, timeout=30) as response:
            return json.load(response)

    @property
    def charged(self) -> int:
        return int(self.get("/_simulator/ledger")["counts"]["charged"])

    def close(self) -> int:
        self.process.send_signal(signal.SIGINT)
        self.process.communicate(timeout=30)
        return self.process.returncode


@pytest.fixture
def simulator() -> Iterator[Simulated]:
    simulated = Simulated("--turnaround", "3600")
    yield simulated
    assert simulated.close() == 0


@pytest.fixture
def served(simulator: Simulated, monkeypatch: pytest.MonkeyPatch) -> Simulated:
    monkeypatch.setenv("OPENAI_BASE_URL", f"{simulator.url}/v1")
    monkeypatch.setenv("OPENAI_API_KEY", "x")
    return simulator


# -- the flow that the documentation shows ---------------------------------------------------------------------------


@pytest.mark.slow
def test_the_shell_lines_of_the_docs_work_as_they_stand(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "models.md").read_text()
    (block,) = [each for each in re.findall(r"^```sh\n(.*?)^```$", text, re.M | re.S) if "fanfold simulate" in each]
    assert "fanfold simulate --port 8089 &" in block
    assert "fanfold run prompts --model openai/gpt-6-luna" in block
    free = Simulated()  # finds a port; whoever had it a moment ago is as good as free
    port = free.url.rpartition(":")[2]
    free.close()
    script = f"set -e\n{block.replace('8089', port)}\nfanfold show last --json > shown.json\nkill %1\nwait %1\n"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-m", "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PATH": path, "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    shown = json.loads((tmp_path / "shown.json").read_text())
    (calls,) = shown["model_calls"]
    assert calls["model"] == "openai/gpt-6-luna" and calls["calls"] > 100 and calls["cost"] > 0
    with Ledger(tmp_path / "fanfold.db", readonly=True) as ledger:  # the calls on held-out problems have runs beside
        made = ledger.one("SELECT count(*) FROM call")[0]
    assert made > calls["calls"] and f"{made} requests charged" in done.stdout


@pytest.mark.slow
def test_simulate_explains_itself_and_refuses_what_it_does_not_know(tmp_path: Path) -> None:
    shown = subprocess.run([*COMMAND, "simulate", "--help"], capture_output=True, text=True, timeout=60)
    assert shown.returncode == 0 and "--rpm" in shown.stdout
    fakes = shown.stdout.partition("A fake of ")[2].partition(" with")[0]
    assert {"anthropic", "groq", "openai"} <= set(fakes.replace("\n", " ").replace(",", " ").split())
    wrong = subprocess.run([*COMMAND, "simulate", "--nonsense"], capture_output=True, text=True, timeout=60)
    assert wrong.returncode == 2 and "--nonsense" in wrong.stderr


# -- run: cache and rehearsal ----------------------------------------------------------------------------------------

ALONE = ("--validation", "0", "--held-out", "0")
SMALL = ("run", "prompts", "--model", "openai/gpt-6-luna", "--trials", "3", "--train", "4", "--schedule", "all", *ALONE)


@pytest.mark.slow
def test_the_cache_option_decides_who_is_asked(fanfold: Fanfold, as_json: Json, served: Simulated) -> None:
    assert as_json(*SMALL, "--run", "first")["cost"] > 0
    paid = served.charged
    assert paid == 12
    assert as_json(*SMALL, "--run", "second")["cost"] == 0
    assert served.charged == paid
    fanfold(*SMALL, "--run", "third", "--cache", "refresh")
    assert served.charged == 2 * paid
    assert as_json(*SMALL, "--run", "fourth", "--cache", "offline")["failures"] == 0
    unheard = fanfold(*SMALL, "--run", "fifth", "--cache", "offline", "--seed", "9", code=1)
    assert "no candidate has a complete result" in unheard.stdout
    assert served.charged == 2 * paid


@pytest.mark.slow
def test_a_rehearsal_needs_no_key_and_leaves_nothing(fanfold: Fanfold, as_json: Json, folder: Path) -> None:
    (folder / "keyed.py").write_text(KEYED)
    shown = fanfold("run", "keyed.py", "--rehearse", "--rpm", "60", "--latency", "1").stdout
    for words in ("20 trials, 60 evaluations", "60 requests/min", "openai/gpt-6-luna", "Replies are made up"):
        assert words in shown
    told = as_json("run", "keyed.py", "--rehearse", "--rpm", "60", "--latency", "1", "--max-trials", "10")
    assert (told["trials"], told["calls"], told["usage"][0]["limits"]) == (10, 30, {"requests/min": 60.0})
    assert told["cost"] > 0 and told["seconds"] > 10
    assert not list(folder.glob("*.db"))
    assert "needs an API key" in fanfold("run", "keyed.py", code=2).stderr


def test_a_rehearsal_says_what_it_cannot_do(fanfold: Fanfold, folder: Path) -> None:
    assert "plain function" in fanfold("run", "functions", "--rehearse", code=2).stderr
    assert "add --rehearse" in fanfold("run", "functions", "--rpm", "5", code=2).stderr
    bad = fanfold("run", "prompts", "--model", "openai/gpt-6-luna", "--rehearse", "--latency", "fast", code=2)
    assert "'fast' is not a latency" in bad.stderr
    (folder / "idle.py").write_text(KEYED.replace("len((await asked", "0 and len((await asked"))
    assert "No model was asked" in fanfold("run", "idle.py", "--rehearse").stdout


@pytest.mark.slow
def test_an_unknown_price_is_said_to_be_unknown(fanfold: Fanfold, as_json: Json, served: Simulated) -> None:
    strange = ("prompts", "--model", "openai/gpt-of-nobody", "--trials", "2", "--train", "2", *ALONE)
    assert "cost unknown" in fanfold("run", *strange, "--rehearse").stdout
    assert as_json("estimate", *strange)["high"]["cost"] is None
    fanfold("run", *strange, "--run", "it")
    row = next(line for line in fanfold("show", "it").stdout.splitlines() if line.startswith("openai/gpt-of-nobody"))
    assert "unknown" in row.split()
    assert "cost_usd" not in fanfold("show", "it", "--prometheus").stdout


# -- estimate --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_estimate_covers_what_the_rehearsal_then_needs(fanfold: Fanfold, as_json: Json, folder: Path) -> None:
    (folder / "keyed.py").write_text(KEYED)
    found = as_json("estimate", "keyed.py", "--sample", "5", "--max-cost", "2")
    assert (found["trials"], found["sample"], found["cost_limit"], found["endless"]) == (20, 5, 2.0, False)
    whole = as_json("run", "keyed.py", "--rehearse")
    assert found["low"]["cost"] * 0.9 <= whole["cost"] <= found["high"]["cost"] * 1.1
    text = fanfold("estimate", "keyed.py", "--executor", "batch:openai").stdout
    assert [line.split()[0] for line in text.splitlines()[3:6]] == ["low", "expected", "high"]
    assert "Fields of prompts" in fanfold("estimate", "prompts", "--help").stdout


# -- what a run asked ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_show_counts_model_calls_in_words_json_and_prometheus(
    fanfold: Fanfold, as_json: Json, served: Simulated
) -> None:
    fanfold(*SMALL, "--run", "it")
    shown = fanfold("show", "it").stdout
    assert "Model calls" in shown and "Provider batches" not in shown
    (calls,) = as_json("show", "it")["model_calls"]
    assert (calls["calls"], calls["unpriced"], list(calls["latency"])) == (12, 0, ["p50", "p90", "p99"])
    text = fanfold("show", "it", "--prometheus").stdout
    assert 'fanfold_calls_total{model="openai/gpt-6-luna",run="it"} 12.0' in text.splitlines()
    fanfold("run", "functions", "--trials", "4", "--run", "plain", "--executor", "inline")
    assert "Model calls" not in fanfold("show", "plain").stdout


# -- batches ---------------------------------------------------------------------------------------------------------


def submitted(ledger: Path) -> bool:
    try:
        with sqlite3.connect(f"file:{ledger}?mode=ro", uri=True) as db:
            return bool(db.execute("SELECT 1 FROM batch WHERE state = 'submitted'").fetchall())
    except sqlite3.Error:
        return False


def test_a_simulated_batch_is_listed_as_such_and_nobody_is_asked_for_a_key(
    fanfold: Fanfold, as_json: Json, folder: Path
) -> None:
    Path("rows.csv").write_text("q\na\nb\n", encoding="utf-8")
    ask = ("ask", "rows.csv", "--prompt", "{q}", "--model", "simulated/m", "--executor", "batch", "-o", "out.jsonl")
    assert "fanfold resume" in fanfold(*ask, "--detach").stdout
    (batch,) = as_json("batches")
    assert (batch["model"], batch["state"]) == ("simulated/m", "submitted")
    for flags in (("--watch",), ("--cancel", batch["tag"])):
        assert "in the process of its run" in fanfold("batches", *flags, code=2).stderr


@pytest.mark.slow
def test_a_batch_left_behind_is_listed_and_can_be_cancelled(
    fanfold: Fanfold, as_json: Json, served: Simulated, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [*COMMAND, *SMALL, "--search", "genetic", "--run", "it", "--executor", "batch:openai", "--quiet"]
    process = subprocess.Popen(command, cwd=folder)
    deadline = time.monotonic() + 60
    while not submitted(folder / "fanfold.db") and time.monotonic() < deadline:
        time.sleep(0.05)
    process.kill()
    process.wait(timeout=60)

    (batch,) = as_json("batches")
    assert (batch["run"], batch["state"], batch["requests"]) == ("it", "submitted", 12)
    assert batch["tag"] in fanfold("batches").stdout
    assert "submitted" in fanfold("show", "it").stdout
    with monkeypatch.context() as elsewhere:  # a ledger must not decide where a key is sent
        elsewhere.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
        assert "set OPENAI_BASE_URL" in fanfold("batches", "--cancel", batch["tag"], code=2).stderr
    assert "is not a batch" in fanfold("batches", "--cancel", "nothing", code=3).stderr

    assert "fanfold resume it" in fanfold("batches", "--cancel", batch["tag"][:-1]).stdout
    assert served.get(f"/v1/batches/{batch['remote']}")["status"] in ("cancelling", "cancelled")
    resume = ("resume", "it", "--executor", "batch:openai", "--batch-fallback", "realtime")
    assert as_json(*resume)["failures"] == 0
    assert served.charged == 12
    (batch,) = as_json("batches")
    assert batch["state"] == "cancelled" and "cancelled" in fanfold("batches").stdout
    assert "not under way" in fanfold("batches", "--cancel", batch["tag"], code=2).stderr


@pytest.mark.slow
def test_a_run_is_left_to_the_provider_watched_and_picked_up(
    fanfold: Fanfold, as_json: Json, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Simulated("--turnaround", "3")
    try:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{slow.url}/v1")
        monkeypatch.setenv("OPENAI_API_KEY", "x")
        left = fanfold(*SMALL, "--search", "genetic", "--executor", "batch:openai", "--run", "it", "--detach").stdout
        assert "1 provider batches with 12 requests are still open" in left and "fanfold resume it --ledger" in left
        (batch,) = as_json("batches")
        assert batch["state"] == "submitted"
        watched = fanfold("batches", "--watch").stdout
        assert f"{batch['tag']}: completed, 12 of 12 requests done" in watched and "fanfold resume it" in watched
        assert as_json("resume", "it", "--detach")["failures"] == 0, "the batch has ended: nothing is left to leave"
        assert as_json("batches")[0]["state"] == "done" and slow.charged == 12
        assert "no batch of fanfold.db is open" in fanfold("batches", "--watch").stdout
    finally:
        slow.close()
    assert "are for executors that do" in fanfold(*SMALL, "--detach", "--executor", "async:4", code=2).stderr


@pytest.mark.slow
def test_a_ledger_without_batches_says_how_to_get_some(fanfold: Fanfold, as_json: Json) -> None:
    fanfold("run", "functions", "--trials", "4", "--run", "plain", "--executor", "inline")
    assert "batch:openai" in fanfold("batches").stdout
    assert as_json("batches") == []


def test_what_is_said_about_batches_needs_a_batch_executor(fanfold: Callable[..., Result]) -> None:
    result = fanfold("run", "prompts", "--cancel-batches", "--executor", "async:4", code=2)
    assert "--executor batch" in result.stderr


@pytest.mark.slow
def test_a_study_can_be_run_through_batches_at_half_price(
    as_json: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = Simulated("--turnaround", "0.2")
    try:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{quick.url}/v1")
        monkeypatch.setenv("OPENAI_API_KEY", "x")
        as_json(*SMALL, "--executor", "batch:openai", "--batch-deadline", "5m", "--run", "half")
        shown = as_json("show", "half")
    finally:
        quick.close()
    (calls,) = shown["model_calls"]
    assert calls["batched"] > 0 and {batch["state"] for batch in shown["batches"]} == {"done"}


@pytest.mark.slow
def test_after_its_deadline_the_rest_of_a_batch_goes_out_in_realtime(
    served: Simulated, as_json: Callable[..., Any]
) -> None:
    as_json(*SMALL, "--executor", "batch:openai", "--batch-deadline", "1s", "--run", "late")
    (calls,) = as_json("show", "late")["model_calls"]
    assert calls["calls"] == served.charged == 12


@pytest.mark.slow
def test_a_simulated_model_that_cannot_know_the_answers_says_so(fanfold: Fanfold, folder: Path) -> None:
    (folder / "own.csv").write_text("ticket,team\n" + "".join(f"ticket {n},{'ab'[n % 2]}\n" for n in range(20)))
    said = fanfold("run", "prompts", "--task", "own.csv", "--model", "simulated/gpt-6-luna", "--calls", "30").stderr
    assert "simulated models know only the built-in tasks; --model local/smollm2 answers any" in said
