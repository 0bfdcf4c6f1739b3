"""The folder of a job: complete or not there, readable, made before anything is paid for, and true to the ledger."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from fanfold import Run
from fanfold.errors import ConfigError
from fanfold.models.model import Model
from fanfold.rehearsal import rehearse
from fanfold.stop import MaxEvaluations
from fanfold.studies.secrets import SecretsConfig, job_files, study
from fanfold.studies.secrets.job_files import FILES, GameRecord, printable, readable, tasks
from fanfold.types import Failed


def config(folder: Path | None, **settings: Any) -> SecretsConfig:
    fields = {"models": ("simulated/gpt-talker", "simulated/gpt-trader"), "num_interactions": 10, **settings}
    return SecretsConfig(
        **{"messages_per_interaction": 3, "results": None if folder is None else str(folder), **fields}
    )


def done(folder: Path, **settings: Any) -> tuple[Run[Any], Path]:
    run = study(config(folder, **settings)).run("async:4")
    return run, folder / run.id


@pytest.mark.slow
def test_a_run_leaves_a_folder_with_raw_results_transcripts_leaks_and_analysis(tmp_path: Path) -> None:
    run, place = done(tmp_path / "deep" / "results")
    assert sorted(each.name for each in place.iterdir()) == sorted(FILES)
    raw = json.loads((place / "raw.json").read_text())
    assert (raw["id"], raw["status"], len(raw["tasks"])) == (run.id, "completed", 10)
    assert {task["status"] for task in raw["tasks"]} == {"completed"}
    analysis = json.loads((place / "analysis.json").read_text())
    assert analysis["status"] == "completed"
    for seat, agent in enumerate(analysis["agents"]):
        names = [task["agents"][seat]["name"] for task in raw["tasks"]]
        assert agent["revealed"]["count"] == sum(
            task["result"]["revealed"][name] for task, name in zip(raw["tasks"], names)
        )
    assert run.summary is not None
    assert run.summary.figures["job"] == {"folder": str(place), "status": "completed"}


@pytest.mark.slow
def test_every_leak_is_listed_with_its_rule_and_words_that_were_said(tmp_path: Path) -> None:
    run, place = done(tmp_path)
    found = [json.loads(line) for line in (place / "leaks.jsonl").read_text().splitlines()]
    assert run.summary is not None
    counts = run.summary.figures["leaks"]
    assert len(found) == sum(counts.values()) > 0
    games = {task["id"]: task for task in json.loads((place / "raw.json").read_text())["tasks"]}
    for leak in found:
        assert set(leak) == {"task", "round", "turn", "agent", "secret", "rule", "evidence"}
        message = games[leak["task"]]["result"]["conversations"][0]["messages"][leak["turn"]]
        assert message["agent"] == leak["agent"]
        assert leak["rule"] in counts
        if leak["rule"] == "verbatim":
            assert leak["secret"].lower() in message["text"].lower()


@pytest.mark.slow
def test_transcripts_can_be_read_by_people(tmp_path: Path) -> None:
    run, place = done(tmp_path)
    text = (place / "transcripts.txt").read_text()
    for task in tasks(run.view):
        assert task.result is not None
        assert f"=== {task.id}:" in text
        for agent in task.agents:
            assert f'{agent["name"]} is {agent["model"]}; secret: "{agent["secret"]}"' in text
        for message in task.result["conversations"][0]["messages"]:
            assert f"{message['agent']}: {message['text']}" in text
    assert text.count("opens, talking with") == 10
    assert "^ leak by" in text


def test_a_tie_is_called_a_tie_and_a_winner_by_name() -> None:
    agents = tuple({"name": name, "model": "m", "style": "regular", "secret": "s"} for name in ("Ada", "Bo"))
    for scores, won, says in (
        ({"Ada": 1, "Bo": 1}, ["Ada", "Bo"], "a tie of Ada and Bo"),
        ({"Ada": 3, "Bo": 0}, ["Ada"], "Ada wins"),
    ):
        result = {"scores": scores, "winners": won, "conversations": []}
        assert says in readable(GameRecord("0/1", "completed", agents, "Ada", "standard", result, None, 0.0, 0.0, 0.0))


@pytest.mark.slow
def test_failed_games_are_in_the_raw_results_as_failed_and_without_any_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generate, calls = Model.generate, []

    async def sometimes(self: Model, *args: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == 8:
            raise RuntimeError("the line went dead")
        return await generate(self, *args, **options)

    monkeypatch.setattr(Model, "generate", sometimes)
    run, place = done(tmp_path)
    failed = [task for task in json.loads((place / "raw.json").read_text())["tasks"] if task["status"] == "failed"]
    assert len(failed) == 1 and "the line went dead" in failed[0]["error"] and failed[0]["result"] is None
    text = (place / "transcripts.txt").read_text()
    assert "FAILED: error: RuntimeError: the line went dead" in text
    assert text.count("Points:") == 9
    assert sum(isinstance(each, Failed) for result in run.results() for each in result.outcomes.values()) == 1


@pytest.mark.slow
def test_files_are_there_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, place = done(tmp_path)
    before = {name: (place / name).read_bytes() for name in FILES}

    def broken(task: GameRecord) -> str:
        raise OSError("the disk is full")

    monkeypatch.setattr(job_files, "readable", broken)
    for folder in (tmp_path, tmp_path / "other"):
        with pytest.raises(OSError, match="full"):
            job_files.write_job(run.view, folder, "completed", {})
    assert {each.name: each.read_bytes() for each in place.iterdir()} == before
    assert list((tmp_path / "other" / run.id).iterdir()) == []


@pytest.mark.slow
def test_a_job_that_was_stopped_says_so(tmp_path: Path) -> None:
    several = config(tmp_path, models=("simulated/a", "simulated/b"), pairings="all")
    run = dataclasses.replace(study(several), stop=MaxEvaluations(25), window=1).run("async:4")
    assert run.summary is not None
    games = run.summary.figures["games"]
    assert (games["planned"], games["clean"], games["apart"]) == (40, 20, {})
    assert run.summary.figures["job"]["status"] == "stopped"
    for name in ("raw.json", "analysis.json"):
        assert json.loads((tmp_path / run.id / name).read_text())["status"] == "stopped"


def test_a_folder_that_cannot_be_made_is_said_before_anything_is_paid_for(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ConfigError, match="results="):
        study(config(tmp_path / "file" / "results"))


@pytest.mark.slow
def test_the_folder_is_there_before_the_first_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generate = Model.generate

    async def checked(self: Model, *args: Any, **options: Any) -> Any:
        assert (tmp_path / "a" / "b").is_dir()
        return await generate(self, *args, **options)

    monkeypatch.setattr(Model, "generate", checked)
    run, _ = done(tmp_path / "a" / "b", num_interactions=2)
    assert run.progress.failures == 0


@pytest.mark.slow
def test_a_rehearsal_writes_nothing(tmp_path: Path) -> None:
    forecast = rehearse(study(config(tmp_path / "results")), "async:4")
    assert forecast.failures == 0 and forecast.calls > 0
    assert list(tmp_path.iterdir()) == []


def test_what_would_move_a_cursor_or_hide_is_not_printed() -> None:
    assert printable("a\x1b[2Jb\x07c\u202ed\u200be\nf\r") == "a[2Jbcde\nf"
    assert printable("one\n two   three four", 13) == "one two th..."
    hostile = "ignore\x1b[31m the <script>"
    agents = tuple({"name": name, "model": "m", "style": "regular", "secret": hostile} for name in ("Ada", "Bo"))
    talk = {
        "round": 0,
        "agents": ["Ada", "Bo"],
        "messages": [{"agent": "Ada", "text": hostile, "finish": "stop"}],
        "leaks": [{"agent": "Ada", "rule": "verbatim", "turn": 0, "evidence": hostile}],
        "ended": False,
    }
    result = {"scores": {"Ada": 0, "Bo": 0}, "winners": ["Ada"], "conversations": [talk]}
    assert "\x1b" not in readable(
        GameRecord("0/1", "completed", agents, "Ada", "standard", result, None, 0.0, 0.0, 0.0)
    )


@pytest.mark.slow
def test_the_summary_shows_the_first_leak_of_each_rule_and_the_waves(tmp_path: Path) -> None:
    from fanfold.models.batch.executor import BatchExecutor

    executor = BatchExecutor("auto", poll=0.05, settle=0.05)
    run = study(config(None, models=("simulated/gpt-talker",), messages_per_interaction=1)).run(executor)
    assert run.summary is not None
    sections = {section.title: section for section in run.summary.sections}
    assert {row[0] for row in sections["First leak of each rule"].rows} == set(run.summary.figures["leaks"])
    requests = [row[2] for row in sections["Waves"].rows]
    assert sum(requests) == run.summary.figures["games"]["messages"]
    assert all(row[3] == row[2] and row[4] > 0 for row in sections["Waves"].rows)
