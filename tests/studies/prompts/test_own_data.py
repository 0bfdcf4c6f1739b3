"""A file of the user's own works without a flag: its form is read from it, said in a line, and the winner is usable."""

from __future__ import annotations

import asyncio
import csv
import json
import random
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fanfold.cli import cli
from fanfold.errors import ConfigError
from fanfold.events import Notice
from fanfold.models import model
from fanfold.studies.prompts import PromptsConfig, study
from fanfold.tasks import load
from fanfold.tasks.grading import Exact, JsonSchema, Numeric

MOODS = {"happy": ("loved", "great", "superb", "charming"), "angry": ("boring", "awful", "dull", "terrible")}
THINGS = ("film", "plot", "acting", "music")


def reviews(count: int, seed: int = 0, share: float = 0.5) -> list[tuple[str, str]]:
    rng = random.Random(seed)
    rows = []
    for number in range(count):
        mood = "happy" if rng.random() < share else "angry"
        rows.append((f"The {rng.choice(THINGS)} was {rng.choice(MOODS[mood])}, scene {number}", mood))
    return rows


def write_csv(path: Path, header: tuple[str, ...], rows: list[tuple[Any, ...]], delimiter: str = ",") -> str:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter=delimiter).writerows([header, *rows])
    return str(path)


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return str(path)


German = [(f"Der Film war {'toll' if n % 2 else 'schlecht'} {n}", "gut" if n % 2 else "schlecht") for n in range(30)]
FILES: dict[str, tuple[Callable[[Path], str], Any, tuple[str, str], str]] = {
    "two labels": (
        lambda at: write_csv(at / "a.csv", ("Review Text", "Mood"), reviews(30)),
        Exact(first_line=True, among=("happy", "angry")),
        ("Review Text", "Mood"),
        "one of 2 labels",
    ),
    "semicolons": (
        lambda at: write_csv(at / "a.csv", ("text", "label"), reviews(40), ";"),
        Exact(first_line=True, among=("happy", "angry")),
        ("Text", "Label"),
        "one of 2 labels",
    ),
    "json lines": (
        lambda at: write_jsonl(at / "a.jsonl", [{"question": t, "answer": a} for t, a in reviews(30)]),
        Exact(first_line=True, among=("happy", "angry")),
        ("Question", "Answer"),
        "one of 2 labels",
    ),
    "unbalanced": (
        lambda at: write_csv(at / "a.csv", ("text", "label"), reviews(60, share=0.9)),
        Exact(first_line=True, among=("happy", "angry")),
        ("Text", "Label"),
        "one of 2 labels",
    ),
    "numbers": (
        lambda at: write_csv(at / "a.csv", ("problem", "result"), [(f"{n} + {n}", 2 * n) for n in range(30)]),
        Numeric(),
        ("Problem", "Result"),
        "numbers",
    ),
    "prices": (
        lambda at: write_csv(at / "a.csv", ("item", "price"), [(f"item {n}", f"${n},000") for n in range(1, 31)]),
        Numeric(),
        ("Item", "Price"),
        "numbers",
    ),
    "JSON in a CSV": (
        lambda at: write_csv(
            at / "a.csv", ("text", "output"), [(f"{n} apples", json.dumps({"count": n})) for n in range(30)]
        ),
        JsonSchema(),
        ("Text", "Output"),
        "JSON",
    ),
    "JSON objects": (
        lambda at: write_jsonl(at / "a.jsonl", [{"text": f"{n} pears", "target": {"count": n}} for n in range(30)]),
        JsonSchema(),
        ("Text", "Target"),
        "JSON",
    ),
    "one line": (
        lambda at: write_csv(
            at / "a.csv", ("raw_date", "iso_date"), [(f"{n}/3/24", f"2024-03-{n:02}") for n in range(1, 30)]
        ),
        Exact(first_line=True),
        ("Raw date", "Iso date"),
        "one line",
    ),
    "long texts": (
        lambda at: write_csv(at / "a.csv", ("document", "topic"), [(t * 200, a) for t, a in reviews(24)]),
        Exact(first_line=True, among=("happy", "angry")),
        ("Document", "Topic"),
        "one of 2 labels",
    ),
    "another language": (
        lambda at: write_csv(at / "a.csv", ("Satz", "Urteil"), German),
        Exact(first_line=True, among=("schlecht", "gut")),
        ("Satz", "Urteil"),
        "one of 2 labels",
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_the_form_of_the_answers_decides_and_is_said(name: str, tmp_path: Path) -> None:
    make, grader, labels, said = FILES[name]
    path = make(tmp_path)
    task = load(path)
    if isinstance(grader, Exact) and isinstance(task.grader, Exact):
        assert set(task.grader.among) == set(grader.among) and task.grader.first_line
    else:
        assert task.grader == grader
    assert task.labels[0] == labels and f"answers are {said}" in task.source
    built = study(PromptsConfig(task=path, model=("simulated/gpt-4o-mini",)))
    assert "--grader" in built.remarks[0] and said in built.remarks[0]


@pytest.mark.parametrize(("rows", "warned"), [(20, True), (30, True), (100, False), (400, False)])
def test_any_number_of_rows_is_split_and_few_are_said(rows: int, warned: bool, tmp_path: Path) -> None:
    built = study(PromptsConfig(task=write_csv(tmp_path / "a.csv", ("text", "label"), reviews(rows))))
    assert any("interval of the result will be wide" in remark for remark in built.remarks) == warned
    assert len(built.seeded_cases) >= 4


def test_too_few_rows_and_free_text_are_refused_with_the_remedy(tmp_path: Path) -> None:
    few = write_csv(tmp_path / "few.csv", ("text", "label"), reviews(5))
    with pytest.raises(ConfigError, match=r"has 5 different problems, too few .* give at least 8"):
        study(PromptsConfig(task=few))
    essays = write_jsonl(tmp_path / "e.jsonl", [{"text": f"{n}", "answer": "A long story.\n" * 30} for n in range(30)])
    with pytest.raises(ConfigError, match=r"free text, .* --grader judge --judge MODEL"):
        study(PromptsConfig(task=essays))


def test_examples_show_every_answer_there_is(tmp_path: Path) -> None:
    rows = [(f"case {n}", ("rare" if n % 10 == 0 else "usual")) for n in range(120)]
    task = load(write_csv(tmp_path / "a.csv", ("text", "label"), rows))
    for seed in range(20):
        split = task.split(seed, **task.sizes())
        assert {problem.answer for problem in split.examples} == {"rare", "usual"}


@pytest.mark.parametrize(
    ("reply", "right"),
    [
        ("happy", True),
        ("The mood is happy.", True),
        ("happy or angry", False),
        ("angry", False),
        ("Happy\nangry", True),
    ],
)
def test_a_reply_that_names_one_label_counts_as_that_label(reply: str, right: bool, tmp_path: Path) -> None:
    task = load(write_csv(tmp_path / "a.csv", ("text", "label"), reviews(30)))
    problem = next(problem for problem in task.problems if problem.answer == "happy")
    assert asyncio.run(task.grader(reply, problem)).score == right


def test_replies_that_never_match_are_shown_after_the_first(tmp_path: Path) -> None:
    said: list[str] = []
    path = write_csv(tmp_path / "a.csv", ("text", "label"), reviews(60))
    study(PromptsConfig(task=path, model=("simulated/gpt-4o-mini",), trials=2)).run(
        watch=lambda event: said.append(event.message) if isinstance(event, Notice) else None
    )
    (text,) = [text for text in said if "of the first 8" in text]
    assert "where" in text and "is right" in text and "--" in text


@pytest.mark.parametrize("sizes", [{}, {"validation": 14}, {"validation": 50}])
def test_calls_are_a_budget_and_too_few_are_refused(sizes: dict[str, int], tmp_path: Path) -> None:
    path = write_csv(tmp_path / "a.csv", ("text", "label"), reviews(200))
    ledger = tmp_path / "a.db"
    config = PromptsConfig(task=path, model=("simulated/gpt-4o-mini",), calls=120, held_out=10, **sizes)
    built = study(config)
    assert any(remark.startswith("120 calls: about") for remark in built.remarks)
    built.run(ledger=ledger, run="r")
    with sqlite3.connect(ledger) as db:
        rows = dict(db.execute("SELECT name, (SELECT count(*) FROM evaluation WHERE run = run.id) FROM run"))
    assert sum(count for name, count in rows.items() if "held-out" not in name) <= 120, rows
    with pytest.raises(ConfigError, match="15 calls are too few for a search"):
        study(PromptsConfig(task=path, model=("simulated/gpt-4o-mini",), calls=15))


@pytest.mark.slow
def test_thirty_rows_give_a_prompt_that_scores_what_was_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole way on the local model: search, held-out accuracy, export, and the exported prompt asked again."""
    monkeypatch.chdir(tmp_path)
    path = write_csv(tmp_path / "mine.csv", ("Review Text", "Mood"), reviews(30))
    ran = CliRunner().invoke(cli, ["run", "prompts", "--task", "mine.csv", "--calls", "60", "--run", "r"])
    assert ran.exit_code == 0 and "held-out" in ran.output, ran.output
    told = json.loads(CliRunner().invoke(cli, ["show", "r", "--json"]).stdout)["summary"]
    out = json.loads(CliRunner().invoke(cli, ["prompt", "r", "--json"]).stdout)
    task = load(path)
    config = PromptsConfig(task=path)
    sizes = task.sizes(**{name: getattr(config, name) for name in ("examples", "train", "validation", "held_out")})
    held = task.split(config.seed, **sizes).held_out
    asked = model(out["model"])

    async def main() -> list[float]:
        scores = []
        for problem in held:
            how = {name: out[name] for name in ("max_tokens", "temperature", "stop")}
            reply = await asked.generate(out["before"] + problem.input + out["after"], **how)
            scores.append((await task.grader(reply.text, problem)).score)
        return scores

    scores = asyncio.run(main())
    assert sum(scores) / len(scores) == pytest.approx(told["held_out"]["accuracy"])
    module: dict[str, Any] = {}
    exec(CliRunner().invoke(cli, ["prompt", "r", "--as", "python"]).stdout, module)
    assert module["prompt"]("X") == out["before"] + "X" + out["after"] and module["STOP"] == out["stop"]
