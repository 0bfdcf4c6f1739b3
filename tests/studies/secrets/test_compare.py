"""`fanfold secrets compare`, and the study from the shell: what is planned, printed, written, and gone on with."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from fanfold import Ledger
from fanfold.cli import cli
from fanfold.errors import CallFailed
from fanfold.studies.secrets.evaluator import GameEvaluator

Fanfold = Callable[..., Result]
MODELS = "simulated/gpt-keeper,simulated/gpt-talker"
SIZES = ("--interactions", "8", "--messages", "2", "--batch-service", "default")
SMALL = ("secrets", "compare", "--models", MODELS, *SIZES)


@pytest.fixture
def fanfold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fanfold:
    monkeypatch.chdir(tmp_path)
    for name in ("FANFOLD_LEDGER", "OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"):
        monkeypatch.delenv(name, raising=False)

    def call(*arguments: str, code: int = 0) -> Result:
        result = CliRunner().invoke(cli, list(arguments), prog_name="fanfold")
        unexpected = result.exception is not None and not isinstance(result.exception, SystemExit)
        assert not unexpected, result.exc_info
        assert result.exit_code == code, result.output
        return result

    return call


def job(folder: Path) -> Any:
    (place,) = folder.iterdir()
    return json.loads((place / "raw.json").read_text())


@pytest.mark.slow
def test_every_ordered_pair_plays_on_the_same_scenarios(fanfold: Fanfold, tmp_path: Path) -> None:
    said, shown = fanfold(*SMALL).stdout, fanfold("show", "last").stdout
    for title in ("Agents", "Overall", "Opener effect", "Pair matrix", "Ranking", "Paired comparison", "Leaks", "Job"):
        assert f"\n{title}\n" in shown
    assert said.index("expected") < said.index("What such a run can show") < said.index("Stopped after 4 trials")
    raw = job(tmp_path / "results" / "model_comparison")
    assert (raw["status"], len(raw["tasks"])) == ("completed", 32)
    seats: dict[str, set[Any]] = {}
    for task in raw["tasks"]:
        pair = tuple(agent["model"] for agent in task["agents"])
        words = tuple((agent["name"], agent["secret"]) for agent in task["agents"])
        seats.setdefault(str(pair), set()).add((task["id"].partition("/")[2], words, task["opener"]))
    assert len(seats) == 4
    assert len({frozenset(each) for each in seats.values()}) == 1


@pytest.mark.slow
def test_the_result_for_programs_is_one_json_value(fanfold: Fanfold) -> None:
    found = json.loads(fanfold(*SMALL, "--json").stdout)
    assert [one["player"] for one in found["summary"]["ranking"]] == MODELS.split(",")
    assert len(found["summary"]["matrix"]) == 4
    assert {"estimate", "low", "high", "n", "clusters"} <= set(found["summary"]["matrix"][0])


@pytest.mark.slow
def test_a_model_that_is_named_twice_plays_once(fanfold: Fanfold) -> None:
    words = f"secrets compare --plan --models {MODELS},simulated/gpt-keeper --style regular,regular --interactions 8"
    found = json.loads(fanfold(*words.split(), "--json").stdout)
    assert (found["players"], found["pairs"]) == (MODELS.split(","), 4)


@pytest.mark.slow
def test_a_plan_sends_nothing_and_leaves_nothing(fanfold: Fanfold, tmp_path: Path) -> None:
    words = "secrets compare --plan --models openai/gpt-6-luna,anthropic/claude-haiku-5-5 --interactions 200"
    plan = (*words.split(), "--batch-service", "default")
    said = fanfold(*plan).stdout
    assert "4 ordered pairs of 2 players, 200 games each" in said
    assert "What such a run can show" in said
    found = json.loads(fanfold(*plan, "--json").stdout)
    assert found["estimate"]["expected"]["calls"] == 4 * 200 * 10
    assert 0 < found["estimate"]["low"]["cost"] <= found["estimate"]["expected"]["cost"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_batches_are_planned_at_half_the_price(fanfold: Fanfold) -> None:
    words = "secrets compare --plan --json --models openai/gpt-6-luna --interactions 4 --messages 1 --batch-service"
    costs = [
        json.loads(fanfold(*words.split(), service).stdout)["estimate"]["high"]["cost"]
        for service in ("default", "auto")
    ]
    assert costs[0] == pytest.approx(2 * costs[1], rel=0.01)


@pytest.mark.slow
def test_without_names_and_keys_the_local_model_plays_itself_in_two_styles(fanfold: Fanfold) -> None:
    found = json.loads(fanfold("secrets", "compare", "--plan", "--json", "--interactions", "2").stdout)
    assert found["players"] == ["local/smollm2", "local/smollm2 (aggressive)"]


def test_a_service_without_a_key_says_which_key_is_missing(fanfold: Fanfold) -> None:
    said = fanfold("secrets", "compare", "--batch-service", "openai-conversation", "--interactions", "2", code=2).stderr
    assert "OPENAI_API_KEY" in said


@pytest.mark.slow
def test_a_comparison_is_a_run_like_any_other(fanfold: Fanfold, tmp_path: Path) -> None:
    fanfold(*SMALL, "--run", "first", "--max-evaluations", "16")
    assert "first" in fanfold("runs").stdout
    with Ledger(tmp_path / "fanfold.db", readonly=True) as ledger:
        (before,) = ledger.one("SELECT count(*) FROM evaluation")
    said = fanfold("resume", "first", "--max-evaluations", "1000").stdout
    assert "32 evaluations" in said
    assert before == 16
    with Ledger(tmp_path / "fanfold.db", readonly=True) as ledger:
        calls, messages = (
            ledger.one(sql)[0]
            for sql in (
                "SELECT count(*) FROM call",
                "SELECT sum(json_extract(data, '$.messages')) FROM evaluation",
            )
        )
    assert calls == messages
    assert "Pair matrix" in fanfold("show", "first").stdout


@pytest.mark.slow
def test_the_study_runs_by_its_name_with_the_documented_options(fanfold: Fanfold, tmp_path: Path) -> None:
    words = "run secrets --models simulated/gpt-trader --num-interactions 6 --messages-per-interaction 2"
    more = "--game-mode retained --batch-service default --batch-size 10 --max-concurrent 5"
    said = fanfold(*words.split(), *more.split())
    assert "on async:5" in said.stderr
    assert "95 % intervals in brackets" in fanfold("show", "last").stdout
    raw = job(tmp_path / "results" / "batch_jobs")
    assert {task["game_mode"] for task in raw["tasks"]} == {"retained"}
    assert "messages each agent sends" in fanfold("run", "secrets", "--help").stdout


@pytest.mark.slow
def test_points_can_be_changed_from_the_shell(fanfold: Fanfold) -> None:
    words = ("run", "secrets", "--models", "simulated/gpt-talker", "--num-interactions", "8", "--seed", "3", "--json")
    for more, worth in (((), 1), (("--scoring.both", "100"), 100)):
        figures = json.loads(fanfold(*words, *more).stdout)["summary"]
        both = figures["overall"][0]["both_revealed"]["count"]
        agent = figures["agents"][0]
        assert both > 0
        assert agent["points"]["estimate"] == pytest.approx((worth * both + 3 * agent["optimal"]["count"]) / 8)


@pytest.mark.slow
def test_the_study_can_be_estimated_and_rehearsed_from_the_shell(fanfold: Fanfold, tmp_path: Path) -> None:
    study = ("secrets", "--agent-type", "gpt4o_mini", "--num-interactions", "5", "--messages-per-interaction", "2")
    assert "expected" in fanfold("estimate", *study).stdout
    assert "was rehearsed" in fanfold("run", *study, "--rehearse").stdout
    assert list(tmp_path.iterdir()) == []


def test_a_job_whose_games_all_failed_says_failed_everywhere(
    fanfold: Fanfold, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(*_: Any) -> Any:
        raise CallFailed("not-found", "there is no such model")

    monkeypatch.setattr(GameEvaluator, "_ask", refused)
    sizes = ("--models", "simulated/gpt-keeper", "--num-interactions", "6", "--run", "job")
    said = fanfold("run", "secrets", *sizes, "--report", "job.html", code=1).stdout
    assert "job failed: none of its 6 evaluations gave a result" in said
    sentence = "failed: none of 6 games was played; not-found (6)"
    assert sentence in said and "failed: results/batch_jobs/job" in said
    assert "completed" not in said and "\nAgents\n" not in said
    page = (tmp_path / "job.html").read_text()
    assert sentence in page
    assert [run["status"] for run in json.loads(fanfold("runs", "--json").stdout)] == ["failed"]
    assert job(tmp_path / "results" / "batch_jobs")["status"] == "failed"
    analysis = json.loads((tmp_path / "results" / "batch_jobs" / "job" / "analysis.json").read_text())
    assert (analysis["status"], analysis["games"]["status"]) == ("failed", "failed")


@pytest.mark.slow
def test_a_failed_job_that_is_tried_again_is_completed(
    fanfold: Fanfold, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(*_: Any) -> Any:
        raise CallFailed("not-found", "there is no such model")

    sizes = ("--models", "simulated/gpt-keeper", "--num-interactions", "4", "--messages-per-interaction", "1")
    with monkeypatch.context() as patched:
        patched.setattr(GameEvaluator, "_ask", refused)
        fanfold("run", "secrets", *sizes, "--run", "job", code=1)
    fanfold("resume", "job", "--retry-failed", "--trust")
    assert job(tmp_path / "results" / "batch_jobs")["status"] == "completed"
    assert [run["status"] for run in json.loads(fanfold("runs", "--json").stdout)] == ["finished"]


@pytest.mark.slow
def test_games_and_messages_are_rows_of_an_export(fanfold: Fanfold, tmp_path: Path) -> None:
    sizes = ("--models", "simulated/gpt-talker", "--num-interactions", "6", "--messages-per-interaction", "2")
    fanfold("run", "secrets", *sizes, "--run", "talk")
    games, messages = (
        [json.loads(line) for line in fanfold("export", "talk", "--rows", rows).stdout.splitlines()]
        for rows in ("games", "messages")
    )
    raw = {task["id"]: task for task in job(tmp_path / "results" / "batch_jobs")["tasks"]}
    assert len(games) == 12 and {row["game"] for row in games} == set(raw)
    for row in games:
        result = raw[row["game"]]["result"]
        assert (row["points"], row["revealed"]) == (result["scores"][row["name"]], result["revealed"][row["name"]])
        assert row["won"] == (row["name"] in result["winners"]) and row["model"] == "simulated/gpt-talker"
    said = [
        (task["id"], 1, turn + 1, message["agent"], message["text"])
        for task in raw.values()
        for turn, message in enumerate(task["result"]["conversations"][0]["messages"])
    ]
    assert [(row["game"], row["round"], row["turn"], row["name"], row["text"]) for row in messages] == said
    leaks = [leak["rule"] for task in raw.values() for leak in task["result"]["conversations"][0]["leaks"]]
    assert leaks and sorted(rule for row in messages for rule in row["leaks"].split()) == sorted(leaks)
    fanfold("export", "talk", "--rows", "messages", "-o", "messages.csv")
    with (tmp_path / "messages.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["turn"]) for row in rows] == [row["turn"] for row in messages]
    assert "did you mean 'messages'" in fanfold("export", "talk", "--rows", "message", code=2).output
    assert "evaluations, games, messages, trials" in fanfold("export", "talk", "--rows", "xyz", code=2).output
    assert "two tables" in fanfold("export", "talk", "--evaluations", "--rows", "games", code=2).output
