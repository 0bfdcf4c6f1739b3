"""That the prompt benchmark compares like with like, counts every call, and continues where it was interrupted."""

from __future__ import annotations

import json
import urllib.request
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fanfold.models.http_exchange import Response
from fanfold.prompting.genome import render, template
from fanfold.tasks import load


class Planted:
    """In place of the local model: says the team `returns` to prompts with few examples, and else nothing useful."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    async def request(self, method: str, url: str, headers: Any, body: bytes, **_: Any) -> Response:
        asked = json.loads(body)
        self.asked.append(asked)
        text = "returns" if asked.get("prompt", "").count("Team:") in range(4, 7) else f"well {asked.get('seed', '')}"
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        choice = {"index": 0, "text": text, "message": {"content": text}, "finish_reason": "stop"}
        return Response(200, {}, json.dumps({"model": "x", "choices": [choice], "usage": usage}).encode())


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Planted:
    model = Planted()
    monkeypatch.setattr(import_module("prompts_server"), "LocalTransport", SimpleNamespace(of=lambda name: model))
    return model


@pytest.mark.parametrize("name", ["statements", "tickets", "requests", "dates", "orders", "sums", "places"])
def test_a_task_is_a_file_that_splits_as_the_benchmark_needs(name: str) -> None:
    task = load(import_module("prompts_tasks").DATA / import_module("prompts_tasks").TASKS[name])
    split = task.split(0, **import_module("prompts").SIZES)
    assert len(split.held_out) == 60
    labels = {"statements": 2, "tickets": 5, "requests": 12}
    if name in labels:
        assert len({problem.answer for problem in task.problems}) == labels[name]


def test_the_files_are_what_the_phrases_give_and_hand_written_prompts_fit_them() -> None:
    tasks = import_module("prompts_tasks")
    for name, file in tasks.TASKS.items():
        assert (tasks.DATA / file).read_text(encoding="utf-8") == tasks.written(file), file
        prompts = tasks.HAND[name]["prompts"]
        assert len(prompts) == 5 and all(text.count("{input}") == 1 for text in prompts), name
        assert 1 < sum("{examples}" in text for text in prompts) < 5, name
    assert len(tasks.TASKS) == 10


@pytest.mark.slow
def test_a_call_from_the_file_counts_like_any_other(planted: Planted, tmp_path: Path) -> None:
    prompts, server = import_module("prompts"), import_module("prompts_server")
    job = prompts.Job("hand", "tickets", 0, 100)
    for sent in (100, 100):
        counted = server.CountedModel(tmp_path / "replies.db")
        counted.begin()
        prompts.hand_written(job, counted)
        assert counted.calls == 100
        assert len(planted.asked) == sent


@pytest.mark.slow
def test_peers_reach_the_counted_model_and_the_grader_over_http(planted: Planted, tmp_path: Path) -> None:
    prompts, server = import_module("prompts"), import_module("prompts_server")
    counted = server.CountedModel(tmp_path / "replies.db")
    job = prompts.Job("gepa", "tickets", 0, 100)
    problem = next(problem for problem in job.work.problems if problem.answer == "returns")
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def post(url: str, body: Any) -> Any:
        with direct.open(urllib.request.Request(url, json.dumps(body).encode()), timeout=30) as response:
            return json.loads(response.read())

    with server.served(counted, job.work.grader, job.work.problems) as url:
        said = post(f"{url}/completions", {"prompt": "Team: " * 5, "temperature": 0.0})["choices"][0]["text"]
        assert post(f"{url}/grade", {"input": problem.input, "reply": f" {said}\n"}) == {"score": 1.0}
        several = [post(f"{url}/completions", {"prompt": "x", "temperature": 0.7}) for _ in range(2)]
    assert counted.calls == 3
    assert several[0] != several[1], "a sampled request is another one each time"


@pytest.mark.slow
def test_our_search_stays_within_its_calls_and_gives_a_prompt_that_scores_as_it_says(
    planted: Planted, tmp_path: Path
) -> None:
    prompts, server = import_module("prompts"), import_module("prompts_server")
    counted = server.CountedModel(tmp_path / "replies.db")
    outcome = prompts.outcome_of(prompts.Job("guided", "tickets", 0, 100), counted)
    assert 50 < outcome.used <= 100
    job = prompts.Job("guided", "tickets", 0, 100)
    share = sum(problem.answer == "returns" for problem in job.split.held_out) / 60
    assert outcome.accuracy == pytest.approx(share if outcome.prompt[0].count("Team:") in range(3, 6) else 0.0)
    held = {problem.input for problem in job.split.held_out}
    searched = planted.asked[: outcome.used]
    assert not any(text in asked["prompt"] for asked in searched for text in held), "held-out problems stay unseen"


@pytest.mark.slow
def test_plain_random_search_scores_every_prompt_on_all_problems_and_takes_the_first_of_the_best(
    planted: Planted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts, server = import_module("prompts"), import_module("prompts_server")
    counted = server.CountedModel(tmp_path / "replies.db")
    job = prompts.Job("random-plain", "tickets", 2, 200)
    winners: list[Any] = []
    monkeypatch.setattr(prompts, "template", lambda *winner: winners.append(winner) or template(*winner))
    prompts.METHODS[job.method](job, counted)
    assert counted.calls == 200
    scored = [*job.split.train, *job.split.validation]
    asked: dict[str, list[str]] = {problem.input: [] for problem in scored}
    for text in (request["prompt"] for request in planted.asked):
        asked[max(asked, key=text.rfind)].append(text)  # what is asked stands below all examples
    assert [len(texts) for texts in asked.values()] == [10] * 20, "ten prompts, each on all twenty problems"
    held = {problem.input for problem in job.split.held_out}
    assert not any(text in request["prompt"] for request in planted.asked for text in held)
    returns = [asked[problem.input] for problem in scored if problem.answer == "returns"]
    sums = [sum(texts[number].count("Team:") in range(4, 7) for texts in returns) for number in range(10)]
    assert len(set(sums)) > 1, sums
    first = sums.index(max(sums))
    ((winner, shots),) = winners
    for problem in scored:
        assert render(winner.without(problem.id), problem.input, shots) == asked[problem.input][first]


@pytest.mark.slow
def test_what_is_finished_is_not_run_again_until_the_search_changes(
    planted: Planted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = import_module("prompts")
    arguments = ["--only", "examples,hand", "--tasks", "tickets", "--seeds", "0", "--calls", "100"]
    file = tmp_path / "prompts.jsonl"
    assert prompts.main([*arguments, "--folder", str(tmp_path), "--out", str(tmp_path / "page.md")]) == 0
    assert len(file.read_text().splitlines()) == 2
    assert "| tickets |" in (tmp_path / "page.md").read_text()
    assert prompts.main([*arguments, "--folder", str(tmp_path)]) == 0
    assert len(file.read_text().splitlines()) == 2
    capsys.readouterr()
    monkeypatch.setattr(prompts, "version", lambda method, task: "another")
    assert prompts.main([*arguments, "--folder", str(tmp_path), "--report"]) == 0
    assert "Nothing is finished yet" in capsys.readouterr().out
    assert prompts.main([*arguments, "--folder", str(tmp_path)]) == 0
    assert len(file.read_text().splitlines()) == 4


def test_a_changed_docstring_makes_no_result_old(tmp_path: Path) -> None:
    def version(text: str) -> str:
        (tmp_path / "code.py").write_text(text)
        return str(import_module("prompts_server").version_of([tmp_path / "code.py"]))

    first = version('def f():\n    """This."""\n    return 1\n')
    assert version('def f():\n    """That."""\n    return 1  # one\n') == first
    assert version('def f():\n    """This."""\n    return 2\n') != first
    files = {file.name for file in import_module("prompts").depends_on("guided", "dates")}
    assert {"dates.csv", "llama.py", "guided.py", "paired.py", "conclusion.py"} <= files


def test_a_peer_that_fails_leaves_the_others_their_turn(
    planted: Planted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = import_module("prompts")

    def broken(job: Any, counted: Any) -> Any:
        raise RuntimeError("no such environment")

    monkeypatch.setitem(prompts.METHODS, "genetic", broken)
    arguments = ["--only", "genetic,examples", "--tasks", "tickets", "--seeds", "0", "--calls", "100"]
    assert prompts.main([*arguments, "--folder", str(tmp_path)]) == 0
    assert "no such environment" in capsys.readouterr().out
    assert len((tmp_path / "prompts.jsonl").read_text().splitlines()) == 1


@pytest.mark.parametrize(("method", "shown", "scored"), [("gepa", 8, 20), ("gepa-16", 16, 12)])
def test_a_peer_learns_of_28_problems_and_of_none_that_is_held_out(method: str, shown: int, scored: int) -> None:
    job = import_module("prompts").Job(method, "dates", 1, 100)
    told = import_module("prompts").told(job)
    assert (told["method"], len(told["examples"]), len(told["train"])) == ("gepa", shown, scored)
    rows = {text for text, _ in [*told["examples"], *told["train"]]}
    assert len(rows) == 28 and not rows & {problem.input for problem in job.split.held_out}


def test_a_peer_that_is_not_installed_is_named_and_left_out(
    planted: Planted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = import_module("prompts")
    assert {name.removesuffix("-16") for name in prompts.ENVIRONMENTS} == set(import_module("prompts_peers").METHODS)
    assert list(prompts.METHODS) == list(import_module("prompts_report").NAMES)
    monkeypatch.setattr(prompts, "PEERS", tmp_path)
    arguments = ["--only", "mipro,examples", "--tasks", "tickets", "--seeds", "0", "--calls", "100"]
    assert prompts.main([*arguments, "--folder", str(tmp_path)]) == 0
    assert "left out: mipro" in capsys.readouterr().out


@pytest.mark.slow
def test_a_peer_asks_an_equal_request_once_and_under_the_names_of_the_columns(planted: Planted, tmp_path: Path) -> None:
    prompts, server, peers = import_module("prompts"), import_module("prompts_server"), import_module("prompts_peers")
    counted = server.CountedModel(tmp_path / "replies.db")
    job = prompts.Job("gepa", "tickets", 0, 100)
    with server.served(counted, job.work.grader, job.work.problems) as url:
        access = peers.Access({**prompts.told(job), "url": url})
        text = access.prompt("Choose.", access.examples[:4], access.train[0][0])
        assert text.startswith("Choose.\n\nTicket: ") and text.endswith("\nTeam:")
        assert {access.complete(text) for _ in range(3)} == {"returns"}
        access.write("Improve this.")
    assert counted.calls == access.made == 2
    completion, chat = planted.asked
    assert (completion["temperature"], completion["stop"]) == (0.0, ["\n"])
    assert chat["messages"][0]["content"] == "Improve this."


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", ["dspy-random", "dspy-bare", "dspy-bare-16", "mipro", "gepa", "gepa-16", "capo", "capo-fields"]
)
def test_a_peer_finds_a_prompt_within_its_calls(method: str, planted: Planted, tmp_path: Path) -> None:
    prompts, server = import_module("prompts"), import_module("prompts_server")
    if not (prompts.PEERS / prompts.ENVIRONMENTS[method] / "bin" / "python").exists():
        pytest.skip("not installed: make bench-peers")
    outcome = prompts.outcome_of(prompts.Job(method, "tickets", 0, 100), server.CountedModel(tmp_path / "replies.db"))
    assert 40 < outcome.used <= 110
    assert len(planted.asked) <= outcome.used + 60
    assert outcome.prompt[1].startswith("\nOutput:" if method == "capo" else "\nTeam:")


def test_a_difference_is_paired_and_its_interval_knows_that_seeds_share_a_task() -> None:
    report = import_module("prompts_report")
    ours = {(task, seed): 0.5 + gap for task, gap in (("a", 0.3), ("b", 0.3), ("c", -0.3)) for seed in range(3)}
    theirs = dict.fromkeys(ours, 0.5) | {("d", 0): 1.0}
    mean, low, high, *counts = report.difference(ours, theirs)
    assert mean == pytest.approx(0.1) and counts == [6, 0, 3]
    assert low < -0.2 and high > 0.25, "three tasks, however many seeds, show little"
    even = report.difference(ours, ours)
    assert even[:3] == (0, 0, 0) and even[3:] == (0, 9, 0)


def test_unknown_methods_and_tasks_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        import_module("prompts").main(["--only", "guided,magic"])
    assert "magic" in capsys.readouterr().err
