"""A search beside others: equal calls, held-out problems seen by none, and where the winner came from."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fanfold.cli import cli
from fanfold.errors import ConfigError
from fanfold.prompting.genome import Genome
from fanfold.studies.prompts import PromptsConfig, study
from fanfold.studies.prompts.against import course
from fanfold.studies.prompts.history import SearchHistory
from fanfold.studies.prompts.lineage import changes, lineage
from fanfold.studies.prompts.shown import short_prompt
from fanfold.tasks import Problem, load
from fanfold.tasks.grading import Exact, Grade
from fanfold.types import Ok, Result, Trial

MODEL = "simulated/gpt-6-luna"
DEMO = Path(__file__).parents[3] / "examples" / "tickets.toml"


def prompt(name: str, **parts: Any) -> Genome:
    return Genome(instruction=(name,), **parts)


def told(number: int, genome: Genome, score: float, cells: int = 10, full: int = 10, **origin: Any) -> Result[Any]:
    outcomes = {str(n): Ok(score) for n in range(cells)}
    return Result(Trial(number, genome, origin), score, outcomes, None if cells == full else "behind")


def test_a_course_holds_what_the_search_would_have_returned_after_some_calls() -> None:
    results = [
        told(0, prompt("first"), 0.5),  # known after 10 calls
        told(1, prompt("dropped"), 0.9, cells=2),
        told(2, prompt("better"), 0.6),  # known after 22
        told(3, prompt("last"), 0.8),  # known after 32
    ]
    validated = {prompt("better"): told(0, prompt("better"), 0.7, 8)}
    way = course("guided", SearchHistory(results), prompt("better"), validated)
    assert way.points == (
        (10, prompt("first")),
        (20, prompt("first")),
        (30, prompt("better")),
        (40, prompt("better")),
    )
    assert way.winner == prompt("better") and way.train is results[2] and way.validation is not None


@pytest.fixture(scope="module")
def contest(tmp_path_factory: pytest.TempPathFactory) -> Any:
    config = PromptsConfig(
        task="sentiment", model=(MODEL,), calls=120, against=("random", "genetic"), price_as="openai/gpt-6-luna"
    )
    ledger = tmp_path_factory.mktemp("against") / "l.db"
    run = study(config).run("async:16", ledger=ledger, run="r")
    yield run
    run.ledger.close()


@pytest.mark.slow
def test_every_search_has_the_same_calls_and_ends_with_its_winner(contest: Any) -> None:
    ways = contest.summary.figures["against"]
    assert list(ways) == ["guided", "random", "genetic"]
    assert all(points[-1][0] <= 120 for points in ways.values())
    assert all([calls for calls, _ in points] == sorted(calls for calls, _ in points) for points in ways.values())
    assert ways["guided"][-1][1] == contest.summary.figures["held_out"]["accuracy"]
    rivals = {name: contest.ledger.run(f"r.{name}-{contest.progress.told}") for name in ("random", "genetic")}
    assert all(0 < info.evaluations <= 120 for info in rivals.values())


@dataclasses.dataclass(frozen=True)
class Lenient(Exact):
    """Every reply is right."""

    async def __call__(self, reply: str, problem: Problem) -> Grade:
        return Grade(1.0, reply)


@pytest.mark.slow
def test_a_search_beside_others_uses_its_calls_though_a_prompt_is_always_right() -> None:
    task = dataclasses.replace(load("sentiment"), grader=Lenient())
    config = PromptsConfig(task="sentiment", model=(MODEL,), calls=1000, held_out=10)
    assert "target" in study(config, task).run("async:16").reason
    run = study(dataclasses.replace(config, against=("random",)), task).run("async:16")
    assert "calls" in run.reason and all(points[-1][0] > 60 for points in run.summary.figures["against"].values())


@pytest.mark.slow
def test_no_search_sees_a_held_out_problem(contest: Any) -> None:
    runs = {view.name: view.id for view in (contest.view, *contest.view.siblings())}
    assert len(runs) >= 4
    (last,) = [name for name in runs if ".held-out" in name]
    first_call = contest.ledger.one("SELECT min(rowid) FROM call WHERE run = ?", (runs[last],))[0]
    split = load("sentiment").split(seed=0, examples=8, train=10, validation=10, held_out=60)
    for name, run in runs.items():
        rows = list(contest.ledger.read("SELECT rowid, request FROM call WHERE run = ?", (run,)))
        if name != last:
            assert not any(problem.input in request for _, request in rows for problem in split.held_out), name
            assert all(number < first_call for number, _ in rows)


@pytest.mark.slow
def test_the_summary_says_what_the_calls_would_cost_at_a_list_price(contest: Any) -> None:
    (calls,) = [section.text for section in contest.summary.sections if section.title == "Calls"]
    assert "at the list price of openai/gpt-6-luna they cost $0.0" in calls


def test_a_rival_that_is_the_search_itself_and_an_unknown_price_are_refused() -> None:
    with pytest.raises(ConfigError, match="the search itself"):
        study(PromptsConfig(against=("guided",)))
    with pytest.raises(ConfigError, match="is not known"):
        PromptsConfig(price_as="nobody/knows")


def test_a_lineage_follows_parents_and_what_was_made_without_them_the_best_before_it() -> None:
    results = [
        told(0, prompt("all", examples=("a", "b")), 0.5, by="all examples", parents=[]),
        told(1, prompt("fresh", examples=("a",)), 0.6, by="fresh", parents=[]),
        told(2, prompt("beside", examples=("b",)), 0.9, 2, by="fresh", parents=[]),
        told(3, prompt("fresh", examples=("c", "a"), labels=("Q", "A")), 0.8, by="near the best", parents=[1]),
    ]
    section = lineage(results, results[3].candidate)
    assert [row[0] for row in section.rows] == [3, 1, 0]
    assert [row[3] for row in section.rows] == ["1", "-", "-"]
    assert section.brief is not None and section.brief.splitlines() == [
        "trial 1 (fresh; trial 0 was the best before): train 0.50 -> 0.60",
        "  examples 2 -> 1 (-1 +0); - all; + fresh",
        "trial 3 (near the best; from trial 1): train 0.60 -> 0.80",
        "  examples 1 -> 2 (-0 +1); labels Input / Output -> Q / A",
    ]
    assert "+[example] c" in section.text and "-[example] b" in section.text


@pytest.mark.parametrize(("cells", "score"), [(1, "dropped"), (10, "0.00")])
def test_a_lineage_begins_with_the_first_prompt_also_where_the_search_began_elsewhere(cells: int, score: str) -> None:
    results = [
        told(0, prompt("all", examples=("a", "b")), 0.5, by="all examples", parents=[]),
        told(1, prompt("mine"), 0.0, cells, by="seed", parents=[]),
        told(2, prompt("other", examples=("b",)), 0.6, by="nearest examples", parents=[]),
        told(3, prompt("fresh", examples=("b",)), 0.8, by="fresh", parents=[]),
    ]
    section = lineage(results, results[3].candidate)
    assert [row[0] for row in section.rows] == [3, 2, 0, 1]
    assert section.brief is not None and section.brief.splitlines()[::2] == [
        f"trial 0 (all examples; trial 1 was the first prompt): train {score} -> 0.50",
        "trial 2 (nearest examples; trial 0 was the best before): train 0.50 -> 0.60",
        "trial 3 (fresh; trial 2 was the best before): train 0.60 -> 0.80",
    ]


def test_a_prompt_in_short_has_its_words_and_the_number_of_its_examples() -> None:
    assert short_prompt(prompt("Say it.", examples=("a", "b"), labels=("Q", "A"))) == (
        "Say it.\n(2 examples, Q / A; `fanfold prompt` prints all of it)"
    )
    assert short_prompt(Genome(examples=("a",))).startswith("(1 example, ") and "(no examples" in short_prompt(Genome())


def test_another_order_of_examples_is_a_change() -> None:
    assert changes(prompt("x", examples=("a", "b")), prompt("x", examples=("b", "a"))) == [
        "2 examples in another order"
    ]
    assert changes(prompt("x"), prompt("x")) == []


@pytest.mark.slow
def test_the_demo_fits_on_a_screen_of_40_lines_and_the_rest_is_in_the_report(tmp_path: Path) -> None:
    ledger, report = str(tmp_path / "l.db"), tmp_path / "r.html"
    where = ["--task", "sentiment", "--model", MODEL, "--ledger", ledger]  # a task that simulated models know
    done = CliRunner().invoke(cli, ["run", str(DEMO), *where, "--run", "r", "--report", str(report)])
    assert done.exit_code == 0, done.output
    assert len(done.output.splitlines()) <= 40
    for words in ("held-out accuracy", "against random search", "● guided", "Prompt", "Lineage", "saved", "report: "):
        assert words in done.output, words
    assert "Held-out problems" not in done.output and done.output.count("does not take temperature") == 1
    page = report.read_text()
    for words in ("Held-out accuracy against calls", "Held-out problems", "Against the first prompt", "random search"):
        assert words in page, words
    assert "Best candidate" not in page  # one best: the winner
    shown = CliRunner().invoke(cli, ["show", "r", "--ledger", ledger]).output
    assert "Held-out problems" in shown and "Accuracy, with 95 % intervals" in shown and "Best:" not in shown
    figures = json.loads(CliRunner().invoke(cli, ["show", "r", "--ledger", ledger, "--json"]).output)["summary"]
    assert set(figures["against"]) == {"guided", "random"}


@pytest.mark.slow
def test_the_chart_is_ascii_where_the_terminal_is(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "fanfold",
        "run",
        str(DEMO),
        "--task",
        "sentiment",
        "--model",
        MODEL,
        "--calls",
        "80",
    ]
    environment = {"PYTHONIOENCODING": "ascii", "PATH": "", "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    assert b"# guided" in done.stdout and done.stdout.isascii()
