"""A run that is watched: changes arrive, a kill and a resume are seen, and a page can stop, resume and extend it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from asking import Asker, asking

from fanfold import Case, MaxTrials, Study, Sweep
from fanfold.ledger import RunView

#: A search of 2,000 trials that takes a while.
SLOW = ("functions", "--trials", "2000", "--population", "10", "--delay", "0.02", "--executor", "threads:4")


def fanfold(*arguments: str, folder: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "fanfold", *arguments, "--quiet"]
    return subprocess.Popen(command, cwd=folder, env={**os.environ}, start_new_session=True)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A slow search under way, in a process of its own."""
    process = fanfold("run", *SLOW, "--ledger", "runs.db", "--run", "slow", folder=tmp_path)
    yield process
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(30)


def until(ready: Callable[[], Any], seconds: float = 60.0) -> Any:
    """What `ready` gives, once that is something."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if value := ready():
                return value
        except AssertionError:
            pass
        time.sleep(0.1)
    raise AssertionError("it did not happen in time")


def begun(tmp_path: Path) -> bool:
    try:
        with RunView.open(tmp_path / "runs.db", "slow") as view:
            return view.progress().told > 3
    except Exception:
        return False


PATH = "/api/run/0/slow"


@pytest.mark.slow
def test_a_watched_run_is_followed_through_a_kill_and_a_resume(tmp_path: Path, run: subprocess.Popen[bytes]) -> None:
    until(lambda: begun(tmp_path))
    with asking(tmp_path / "runs.db") as server:
        page = server.get(PATH)
        assert page["state"] == "running" and page["can"]["stop"] and page["progress"]["goal"] == 2000
        with server.events(f"/api/events?run=0/slow&mark={page['mark']}") as events:
            seen = {(row["trial"]) for row in server.get(f"{PATH}/trials?order=number")["rows"]}
            changes = (payload for name, payload in events if name == "change")
            mark = page["mark"]
            for change in changes:
                assert change["mark"] >= mark
                mark = change["mark"]
                seen |= {row["trial"] for row in change["trials"]}
                if change["progress"]["told"] > page["progress"]["told"] + 8:
                    break
            assert change["eta"] is None or change["eta"][0] <= change["eta"][1]
            assert change["cells"] and all(0 <= byte <= 255 for _, _, byte in change["cells"])
            os.killpg(run.pid, signal.SIGKILL)
            run.wait(30)
            interrupted = next(change for change in changes if change["state"] == "interrupted")
            again = fanfold("resume", "slow", "--ledger", "runs.db", folder=tmp_path)
            try:
                resumed = next(
                    change
                    for change in changes
                    if change["state"] == "running" and change["progress"]["told"] > interrupted["progress"]["told"]
                )
            finally:
                os.killpg(again.pid, signal.SIGKILL)
                again.wait(30)
            assert resumed["mark"] > interrupted["mark"]
        told = server.get(PATH)["progress"]["told"]
        with server.events("/api/events?run=0/slow", {"last-event-id": str(page["mark"])}) as events:
            caught = set[int]()
            for _, change in events:
                caught |= {row["trial"] for row in change["trials"] if row["order"] is not None}
                if not change["more"]:
                    break
        assert len(caught) >= min(200, told - page["progress"]["told"]), "what came after the mark comes again"


@pytest.mark.slow
def test_a_run_is_stopped_and_resumed_from_its_page(tmp_path: Path, run: subprocess.Popen[bytes]) -> None:
    until(lambda: begun(tmp_path))
    with asking(tmp_path / "runs.db") as server:
        status, _ = server.post(f"{PATH}/resume", {})
        assert status == 409, "it is running already"
        status, answer = server.post(f"{PATH}/stop", {})
        assert status == 200 and "kept" in answer["said"]
        assert run.wait(60) == 130, "as Ctrl-C does it"
        page = server.get(PATH)
        assert page["state"] in ("stopped", "interrupted") and page["can"]["resume"] and not page["can"]["stop"]
        command = next(step["command"] for step in page["next"] if step["text"] == "Continue where it stopped")
        assert command == f"fanfold resume slow --ledger {tmp_path / 'runs.db'}"
        assert server.post(f"{PATH}/stop", {})[0] == 409
        told = page["progress"]["told"]
        status, answer = server.post(f"{PATH}/resume", {"max_trials": told + 12})
        assert status == 200, answer
        page = until(lambda: (page := server.get(PATH))["state"] == "finished" and page)
        assert page["progress"]["told"] == told + 12


@pytest.mark.slow
def test_the_limits_of_a_running_run_are_raised(tmp_path: Path) -> None:
    short = [word if word != "2000" else "60" for word in SLOW]
    run = fanfold("run", *short, "--ledger", "runs.db", "--run", "slow", folder=tmp_path)
    until(lambda: begun(tmp_path))
    with asking(tmp_path / "runs.db") as server:
        status, answer = server.post(f"{PATH}/budget", {"max_trials": 90})
        assert status == 200, answer
        assert server.get(PATH)["limits"]["max_trials"] == 90
        assert run.wait(90) == 0
        assert server.get(PATH)["progress"]["told"] == 90
        assert server.post(f"{PATH}/budget", {"max_trials": 95})[0] == 409, "it has ended: resume it instead"


def finished(tmp_path: Path) -> Path:
    path = tmp_path / "runs.db"

    def evaluate(candidate: int, case: Case) -> float:
        return float(candidate)

    Study(Sweep(range(5)), evaluate, stop=MaxTrials(5)).run(ledger=path, run="slow", executor="inline").ledger.close()
    return path


@pytest.mark.slow
def test_notes_on_a_run_and_on_a_candidate_are_kept_and_arrive(tmp_path: Path) -> None:
    path = finished(tmp_path)
    with asking(path) as server, server.events("/api/events?run=0/slow&mark=0") as events:
        next(events)
        assert server.post(f"{PATH}/note", {"text": " worth a look <b>\n"})[0] == 200
        assert server.post(f"{PATH}/note", {"text": "the best", "trial": 4})[0] == 200
        assert next(events)[1]["mark"] > 0
        assert [note["text"] for note in server.get(PATH)["comments"]] == ["worth a look <b>", "the best"]
        assert [note["trial"] for note in server.get(f"{PATH}/trial/4")["comments"]] == [4]


@pytest.mark.parametrize(
    ("what", "body", "words"),
    [
        ("note", {"text": ""}, "1 to 10,000"),
        ("note", {"text": 7}, "1 to 10,000"),
        ("note", {"text": "x" * 20_000}, "1 to 10,000"),
        ("note", {"text": "x", "trial": 99}, "no trial 99"),
        ("note", {"text": "x", "trial": "1; DROP TABLE run"}, "whole number"),
        ("budget", {}, "at least one limit"),
        ("budget", {"max_trials": 1.5}, "must be a number"),
        ("budget", {"max_trials": True}, "must be a number"),
        ("budget", {"max_cost": -1}, "must be a number"),
        ("budget", {"executor": "processes"}, "unknown limit"),
        ("resume", {"ledger": "/etc/passwd"}, "cannot be resumed"),
        ("feedback", {"trial": 0, "value": 1}, "takes no feedback"),
        ("delete", {}, "nothing here"),
    ],
)
def test_what_makes_no_sense_is_refused_with_a_reason(tmp_path: Path, what: str, body: Any, words: str) -> None:
    with asking(finished(tmp_path)) as server:
        status, answer = server.post(f"{PATH}/{what}", body)
        assert 400 <= status < 500 and words in answer["error"]["message"]


@pytest.mark.slow
def test_a_resume_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(
        "from fanfold import *\nstudy = Study(Sweep(range(3)), lambda c, case: 1.0, stop=MaxTrials(3))\n"
    )
    assert fanfold("run", "mine.py", "--ledger", "runs.db", "--run", "slow", folder=tmp_path).wait(60) == 0
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").unlink()
    with asking(tmp_path / "runs.db") as server:
        status, answer = server.post(f"{PATH}/resume", {"max_trials": 5})
        assert status == 400 and "mine.py" in answer["error"]["message"], answer


@pytest.mark.slow
def test_the_list_of_runs_is_live(tmp_path: Path) -> None:
    path = finished(tmp_path)
    with asking(path) as server, server.events("/api/events") as events:
        study = Study(Sweep([1]), lambda candidate, case: 1.0)
        time.sleep(1.5)
        study.run(ledger=path, run="new", executor="inline").ledger.close()
        name, change = next(events)
        assert name == "runs" and change["rows"][0]["name"] == "new"


def test_a_client_that_leaves_is_forgotten_and_the_server_ends_with_clients_on_it(tmp_path: Path) -> None:
    with asking(finished(tmp_path)) as server:
        for _ in range(20):
            with server.events("/api/events?run=0/slow&mark=0") as events:
                next(events)
        with server.events("/api/events?run=0/slow&mark=0") as events:
            next(events)
            server.get(PATH)


@pytest.mark.slow
def test_a_page_opened_with_a_run_is_there_at_once_and_ends_with_it(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fanfold", "run", *SLOW, "--ledger", "runs.db", "--run", "slow", "--view"]
    run = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
    assert run.stderr is not None
    address = next(line for line in run.stderr if "#token=" in line)
    url, _, token = address.strip().partition("/#token=")
    server = Asker(url)
    server.headers = {"authorization": f"Bearer {token}"}
    until(lambda: server.get(PATH)["progress"]["told"] > 2)
    assert server.get(PATH)["state"] == "running"
    run.kill()  # also where nobody can clean up
    run.wait(30)
    run.stderr.close()

    def gone() -> bool:
        try:
            server.ask("/api/runs")
        except OSError:
            return True
        return False

    until(gone)
