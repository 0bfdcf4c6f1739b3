"""A ledger with a small run of everything that the pages show, made with simulated models in under a minute.

`python tests/web/worlds.py FOLDER` makes it by hand, to look at with `fanfold view FOLDER/worlds.db`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

# Before numpy is loaded: with two threads on matrices this small, everything takes five times as long.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from click.testing import CliRunner

from fanfold.cli import cli

EXAMPLES = Path(__file__).parents[2] / "examples"
LEDGER = "worlds.db"

SHAKY = '''
"""An evaluator as strangers write them: it fails in several ways, now and then."""

import time

from fanfold import Float, MaxTrials, Random, Space, Study


def parsed(text):
    return float(text)


def evaluate(candidate, case):
    place = candidate["x"] * 10 + case.data
    time.sleep(0.001 * (place % 3))
    if place % 7 < 1:
        return parsed(f"{place} metres")
    if place % 11 < 1:
        return 1 / (place - place)
    return -abs(place - 8)


study = Study(Random(Space(x=Float(0, 1))), evaluate, cases=range(6), stop=MaxTrials(30), name="shaky")
'''
BROKEN = SHAKY.replace("place % 7 < 1", "place > -1").replace('name="shaky"', 'name="broken"')
SLOW = ("functions", "--trials", "400", "--population", "20", "--delay", "0.01")

PROMPTS = ("prompts", "--model", "simulated/gpt-6-luna", "--search", "genetic", "--population", "8", "--train", "16")
#: The runs by name, and how each is started.
RUNS: dict[str, tuple[str, ...]] = {
    "functions": ("functions", "--trials", "120", "--population", "20", "--dimensions", "3"),
    "functions-narrow": ("functions", "--trials", "120", "--population", "8", "--dimensions", "3"),
    "prompts": (*PROMPTS, "--trials", "48", "--against", "random"),
    "prompts-written": (*PROMPTS[:3], "--calls", "300", "--search", "reflective", "--writer", "simulated/writer"),
    "critic": (
        *("critic", "--model", "simulated/critic", "--feedback", "simulated", "--total", "40"),
        *("--bootstrap-queries", "10"),
    ),
    "critic-pairs": (
        *("critic", "--model", "simulated/critic", "--feedback", "simulated", "--ask", "pair", "--total", "16"),
        *("--bootstrap-queries", "5"),
    ),
    "secrets": (
        *("secrets", "--models", "simulated/talker", "--models", "simulated/keeper", "--pairings", "all"),
        *("--num-interactions", "8", "--messages-per-interaction", "3", "--results", "none"),
    ),
    "workflow": (
        *(
            "workflow",
            "--total-episodes",
            "600",
            "--max-episodes-per-workflow",
            "100",
            "--look-updates",
            "1",
            "--episodes-per-update",
            "50",
            "--fresh-episodes",
            "64",
        ),
        *("--results", "none"),
    ),
    "workflow-ppo": (
        *("workflow", "--mode", "ppo", "--total-episodes", "2000", "--episodes-per-update", "250"),
        *("--fresh-episodes", "64", "--results", "none"),
    ),
    "neuro": (
        *(
            "neuro",
            "--trials",
            "8",
            "--population",
            "4",
            "--epochs",
            "4",
            "--rungs",
            "2",
            "--max-batches",
            "6",
        ),
        *("--objectives", "accuracy", "--objectives", "parameters", "--engine", "sequential", "--results", "none"),
        *("--baselines", "no"),
    ),
    "ask": (
        *("ask", "--source", str(EXAMPLES / "reviews.jsonl"), "--prompt", "Is this good or bad? {text}"),
        *("--model", "simulated/gpt-6-luna", "--output", "answers.jsonl"),
    ),
    "evolve": (
        *("evolve", "--file", str(EXAMPLES / "evolve_solver.py")),
        *("--evaluator", str(EXAMPLES / "evolve_score.py"), "--writer", "simulated/writer", "--calls", "40"),
    ),
    "shaky": ("{folder}_shaky.py",),
    "broken": ("{folder}_broken.py",),
}


def made(folder: Path, *names: str) -> Path:
    """The ledger in this folder, with all runs or those named; made where it is missing."""
    ledger = folder / LEDGER
    done = folder / "done"
    if done.exists():
        return ledger
    folder.mkdir(parents=True, exist_ok=True)
    # A process may make several worlds, and modules of one name would be in each other's way.
    (folder / f"{folder.name}_shaky.py").write_text(SHAKY)
    (folder / f"{folder.name}_broken.py").write_text(BROKEN)
    with contextlib.chdir(folder):
        for name, command in RUNS.items():
            if not names or name in names:
                begun = time.process_time()
                words = [word.replace("{folder}", folder.name) for word in command]
                result = CliRunner().invoke(cli, ["run", *words, "--run", name, "--ledger", LEDGER])
                failed = name == "broken"
                assert (result.exit_code != 0) == failed, (name, result.output, result.exception)
                print(f"{name}: {time.process_time() - begun:.1f} s", file=sys.stderr)
    if not names or "application" in names:
        application(ledger)
    if not names or "interrupted" in names:
        interrupted(ledger)
    done.touch()
    return ledger


def application(ledger: Path) -> None:
    """A critic inside an application: some answers were judged, three wait for it."""
    from fanfold.studies.critic import Critic

    prompts = ["Answer with numbered steps.", "Be warm and friendly.", "Answer in one short sentence."]
    with Critic.open(ledger, model="simulated/critic", prompts=prompts, name="application", expires=1e9) as critic:
        for number in range(24):
            shown = critic.ask_sync(f"How do I keep {('basil', 'a bicycle', 'bread', 'a promise')[number % 4]}?")
            if number < 22:
                critic.tell_sync(shown.id, rating=5 if "1." in shown.text else 2 + number % 2)
        critic.ask_sync("What is a fair price for a used bicycle?", show=2)


def interrupted(ledger: Path) -> None:
    """A run whose process was killed."""
    command = [sys.executable, "-m", "fanfold", "run", *SLOW, "--run", "interrupted", "--ledger", str(ledger)]
    with subprocess.Popen(command, cwd=ledger.parent, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        sql = "SELECT count(*) FROM evaluation JOIN run ON run.id = run WHERE name = 'interrupted'"
        while process.poll() is None:
            with contextlib.closing(sqlite3.connect(ledger)) as database:
                if database.execute(sql).fetchone()[0] >= 60:
                    process.send_signal(signal.SIGKILL)
                    break
            time.sleep(0.05)


if __name__ == "__main__":
    print(made(Path(sys.argv[1]).absolute(), *sys.argv[2:]))
