"""A file of the user's own works without a flag: its form is read from it, said in a line, and the winner is usable."""

from __future__ import annotations

import asyncio
import csv
import json
import random
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest
import strangers
from click.testing import CliRunner

from fanfold.cli import cli
from fanfold.errors import ConfigError
from fanfold.events import Notice
from fanfold.identity import Identity
from fanfold.likeness import filled
from fanfold.models import Model, model
from fanfold.models.http_exchange import Response
from fanfold.models.simulated import SimulatedTransport
from fanfold.prompting.genome import Genome
from fanfold.simulator import Simulator, SimulatorConfig
from fanfold.studies.prompts import PromptsConfig, study
from fanfold.studies.prompts.evaluator import PromptsEvaluator, _is_about_prompt
from fanfold.studies.prompts.study import _sizes
from fanfold.tasks import load
from fanfold.tasks.grading import CodeTests, Exact, JsonSchema, Numeric, Regex
from fanfold.tasks.judge import Judge
from fanfold.tasks.programs import asserts_in

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
FORMS: dict[str, tuple[list[Any], str, Any, tuple[str, ...]]] = {
    "weights": ([f"{n},5 kg" for n in range(1, 31)], "numbers", Numeric(decimal=","), ("\n\n",)),
    "thousands": ([f"1,{n:03} USD" for n in range(30)], "numbers", Numeric(), ("\n\n",)),
    "plural units": ([f"{n} day{'s' * (n > 1)}" for n in range(1, 31)], "numbers", Numeric(), ("\n\n",)),
    "other units": ([f"{n} {'km' if n % 2 else 'm'}" for n in range(30)], "one line", Exact(first_line=True), ("\n",)),
    "zip codes": ([f"0{n}139" for n in range(30)], "one line", Exact(first_line=True), ("\n",)),
    "classes": ([n % 2 for n in range(30)], "one of 2 numbers", Numeric(), ("\n",)),
    "booleans": ([n % 3 == 0 for n in range(30)], "one of 2 labels", Exact(True, among=("False", "True")), ("\n",)),
    "addresses": ([f"{n} Main St\nSpringfield" for n in range(30)], "a few lines", Exact(), ("\n\n",)),
    "lists": ([["a", n] for n in range(30)], "JSON", JsonSchema(), ()),
    "Python's print": ([str({"n": n}) for n in range(30)], "JSON", JsonSchema(), ()),
    "tests": ([[f"assert f(2) == {n}"] for n in range(30)], "tests", CodeTests(), ()),
}


@pytest.mark.parametrize("name", FORMS)
def test_answers_are_understood_as_people_write_them(name: str, tmp_path: Path) -> None:
    answers, form, grader, stop = FORMS[name]
    rows = [{"text": f"case {number}", "target": answer} for number, answer in enumerate(answers)]
    task = load(write_jsonl(tmp_path / "a.jsonl", rows))
    assert f"answers are {form}: " in task.source and task.grader == grader and task.stop == stop
    assert asyncio.run(task.grader(task.problems[3].shown, task.problems[3])).score == (name != "tests")


def test_a_reply_may_reason_in_paragraphs_before_its_number_option_or_json(tmp_path: Path) -> None:
    worked = write_jsonl(
        tmp_path / "a.jsonl", [{"question": f"{n}+1?", "answer": f"So\n#### {n + 1}"} for n in range(30)]
    )
    plain = write_jsonl(tmp_path / "b.jsonl", [{"question": f"{n}+1?", "answer": n + 1} for n in range(30)])
    options = [{"question": f"{n}+1?", "choices": [str(n), str(n + 1)], "answer": 1} for n in range(30)]
    choice = write_jsonl(tmp_path / "c.jsonl", options)
    assert load(worked).stop == () and load(worked).max_tokens == 512
    for path, stop in ((plain, "\n\n"), (choice, "\n")):
        assert load(path).stop == (stop,) and load(path, max_tokens=8).stop == (stop,)
        roomy = PromptsConfig(task=path, max_tokens=600, model=("simulated/gpt-6-luna",))
        evaluate = cast(PromptsEvaluator, study(roomy).evaluate)
        assert evaluate.task.stop == () and "where the model ends them, 600 tokens" in evaluate.task.source
    continuing = cast(PromptsEvaluator, study(PromptsConfig(task=worked)).evaluate)  # would write the next example
    assert continuing.settings(Genome(labels=("Question", "Answer")), "local/smollm2")["stop"] == ["\n\n", "\nQuestion"]


TESTED: dict[str, dict[str, str]] = {
    "a list": {"text": "Add 1.", "code": "def f(n):\n    return n + 1", "test_list": '["assert f(1) == 2"]'},
    "lines": {"problem": "Add 1.", "solution": "def f(n): return n + 1", "tests": "assert f(1) == 2\nassert f(2) == 3"},
    "imports": {"text": "Add 1.", "test_imports": '["import math"]', "test_list": '["assert f(1) == math.ceil(1.5)"]'},
    "a setup": {"problem": "Add 1.", "tests": "import math\nassert f(1) == math.floor(2.5)"},
    "a function": {
        "prompt": "def f(n):\n",
        "canonical_solution": "    return n + 1\n",
        "test": "def check(candidate):\n    assert candidate(1) == 2\n",
        "entry_point": "f",
    },
}


@pytest.mark.parametrize("name", TESTED)
def test_tests_of_code_are_run_and_never_shown_as_answers(name: str, tmp_path: Path) -> None:
    row = TESTED[name]
    rows = [(f"# {n}\n{input}", *rest, n) for n in range(30) for input, *rest in [row.values()]]
    task = load(write_csv(tmp_path / "a.csv", (*row, "number"), rows))
    assert task.grader == CodeTests() and task.labels[0][1] == "Python" and "assert" not in task.problems[0].shown
    assert "Reply with one Python code block." in task.clauses["format"]
    for reply, score in (("def f(n):\n    return n + 1", 1.0), ("def f(n):\n    return n", 0.0)):
        assert asyncio.run(task.grader(f"Here it is:\n\n```python\n{reply}\n```", task.problems[0])).score == score
    shown = task.problems[0].shown
    assert (shown == "") == (name in ("a setup", "imports"))
    assert not shown or asyncio.run(task.grader(shown, task.problems[0])).score == 1.0


def test_answers_that_are_sentences_name_the_grader_that_compares_what_they_mean(tmp_path: Path) -> None:
    said = "--grader judge --judge MODEL compares what they mean"
    sentences = [(f"When does plan {n} end?", f"Plan {n} ends after {n} days in March.") for n in range(30)]
    path = write_csv(tmp_path / "a.csv", ("question", "answer"), sentences)
    assert said in load(path).source and said not in load(path, grader="contains").source
    names = write_csv(tmp_path / "b.csv", ("question", "answer"), [(f"Who is {n}?", f"Ann {n} Lee") for n in range(30)])
    assert said not in load(names).source


def test_the_setup_of_a_row_runs_before_each_of_its_tests(tmp_path: Path) -> None:
    row = {"text": "Depth?", "code": "class Node:\n    depth = 3", "test_list": ["assert root.depth == 3"]}
    rows = [{**row, "text": f"Depth {n}?", "test_setup_code": "root = Node()" * (n > 0)} for n in range(30)]
    task = load(write_jsonl(tmp_path / "mbpp.jsonl", rows))
    assert asyncio.run(task.grader(str(row["code"]), task.problems[1])).score == 1.0
    assert asyncio.run(task.grader("class Node:\n    depth = 2", task.problems[1])).score == 0.0


@pytest.mark.parametrize("as_text", [True, False])
def test_classes_that_a_table_made_decimals_are_whole_numbers(as_text: bool, tmp_path: Path) -> None:
    rows = [{"text": f"Review {n}", "stars": f"{n % 3}.0" if as_text else float(n % 3)} for n in range(30)]
    task = load(rows)
    assert "Reply with one of: 0, 1, 2." in task.clauses["format"]
    assert task.problems[2].shown == "2" and asyncio.run(task.grader("2.0", task.problems[2])).score == 1.0
    assert load([*rows, {"text": "More", "stars": 2.5}]).problems[2].shown == "2.0"


@pytest.mark.parametrize("as_text", [True, False])
def test_days_that_a_table_gave_a_time_are_days(as_text: bool) -> None:
    days = [datetime(2024, 1, 1) + timedelta(days=number) for number in range(30)]
    rows = [{"text": f"Contract {n}", "end": str(day) if as_text else day} for n, day in enumerate(days)]
    task = load(rows)
    assert task.problems[2].shown == "2024-01-03"
    assert asyncio.run(task.grader("2024-01-03", task.problems[2])).score == 1.0
    timed = load([*rows, {"text": "More", "end": datetime(2024, 1, 1, 12)}])
    assert timed.problems[2].shown == "2024-01-03 00:00:00"


def test_a_function_of_tests_that_nobody_calls_is_no_test() -> None:
    assert asserts_in("def check(f):\n    assert f(1) == 2") is None and asserts_in("I assert that") is None


def test_examples_show_labels_in_one_spelling_and_json_as_json(tmp_path: Path) -> None:
    spelled = ("Refund", "refund ", "REFUND", "Refund", "Other")
    task = load(write_csv(tmp_path / "a.csv", ("text", "label"), [(f"{n}", spelled[n % 5]) for n in range(40)]))
    assert {problem.shown for problem in task.problems} == {"Refund", "Other"}
    assert "Reply with one of: Refund, Other." in task.clauses["format"]
    rows = [{"text": f"{n}", "target": {"n": [n], "ok": True}} for n in range(9)]
    objects = load(write_jsonl(tmp_path / "b.jsonl", rows))
    assert objects.problems[3].shown == '{"n": [3], "ok": true}'
    lists = load(write_jsonl(tmp_path / "c.jsonl", [{"text": f"{n}", "target": ["x", n]} for n in range(9)]))
    assert lists.problems[3].shown == '["x", 3]'


@pytest.mark.parametrize(
    ("grader", "made"),
    [
        ("numeric:tolerance=0.01", Numeric(tolerance=0.01)),
        ({"kind": "numeric", "tolerance": 0.01}, Numeric(tolerance=0.01)),
        ("regex:pattern=([0-9]{1,3}) kg,last=true,then=numeric", Regex("([0-9]{1,3}) kg", last=True, then=Numeric())),
        ("exact:case=yes,among=a,b", Exact(case=True, among=("a", "b"))),
        ('json:schema={"type": "object"}', JsonSchema({"type": "object"})),
        ("json:schema=@schema.json", JsonSchema({"type": "array"})),
        ("judge:scale=yes-no,rubric=Kind, and short?", Judge("simulated/a", "Kind, and short?", scale="yes-no")),
    ],
)  # fmt: skip
def test_every_setting_of_a_grader_is_a_word_of_its_flag(
    grader: Any, made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "schema.json").write_text('{"type": "array"}')
    path = write_csv(tmp_path / "a.csv", ("text", "label"), [(f"{n}", f"{n}") for n in range(20)])
    judge = "simulated/a" if "judge" in str(grader) else None
    built = study(PromptsConfig(task=path, grader=grader, judge=judge, model=("simulated/gpt-4o-mini",)))
    assert built.evaluate.task.grader == made


@pytest.mark.parametrize(("judge", "served"), [("my-judge", True), ("org/judge", True), ("openai/gpt-6-sol", False)])
def test_a_judge_of_the_users_own_server_is_asked_there(judge: str, served: bool, tmp_path: Path) -> None:
    path = write_csv(tmp_path / "a.csv", ("text", "label"), reviews(30))
    url = "http://127.0.0.1:9/v1"
    built = study(PromptsConfig(task=path, grader="judge", judge=judge, model=("mine",), base_url=url))
    assert built.evaluate.task.grader.base_url == (url if served else None)


@pytest.mark.slow
def test_settings_of_graders_come_from_the_shell_and_from_toml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_csv(tmp_path / "a.csv", ("text", "label"), [(f"{n}", f"{n}") for n in range(20)])
    own = "study = 'prompts'\ntask = 'a.csv'\nmodel = ['simulated/gpt-4o-mini']\ntrials = 2\n"
    (tmp_path / "a.toml").write_text(own + "[grader]\nkind = 'numeric'\ntolerance = 0.5\n")
    flags = "prompts --task a.csv --model simulated/gpt-4o-mini --trials 2 --grader numeric:tolerance=0.5"
    for target in ("a.toml", flags):
        ran = CliRunner().invoke(cli, ["run", *target.split(), "--ledger", "a.db"])
        assert ran.exit_code == 0 and "graded as numeric" in ran.output, ran.output
    for grader, said in (
        ("numeric:tol=1", "'numeric' has no setting 'tol': it has tolerance, decimal"),
        ("numeric:1", "write numeric:NAME=VALUE,NAME=VALUE; numeric has tolerance, decimal"),
        ("json:schema=@none.json", "schema: none.json cannot be read"),
        ("judge", "name it with --judge, or as judge:model=MODEL"),
    ):
        ran = CliRunner().invoke(cli, ["run", "prompts", "--task", "a.csv", "--grader", grader, "--ledger", "a.db"])
        assert ran.exit_code == 2 and said in " ".join(ran.output.split()), ran.output


def test_a_chosen_grader_keeps_what_follows_from_the_form(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "a.csv", ("text", "label"), reviews(30))
    assert load(path, grader="exact").stop == ("\n",) and load(path, grader="exact").cover
    assert load(path, grader="contains").stop == () and load(path, grader="contains").max_tokens == 256


def test_a_few_rows_without_text_or_answer_are_left_out_and_counted(tmp_path: Path) -> None:
    rows = [*reviews(38), ("", "happy"), ("No label", " ")]
    task = load(write_csv(tmp_path / "a.csv", ("text", "label"), rows))
    assert len(task.problems) == 38 and "2 without input or answer left out" in task.source
    with pytest.raises(ConfigError, match=r"2 of 10 rows have nothing in 'text': the first is b\.csv, line 10"):
        load(write_csv(tmp_path / "b.csv", ("text", "label"), [*reviews(8), ("", "a"), ("", "a")]))
    with pytest.raises(ConfigError, match=r"which field holds the answer\? .*--answer-field \(columns: text, a, b\)"):
        load(write_csv(tmp_path / "c.csv", ("text", "a", "b"), [("x", 1, 2)] * 9))


@pytest.mark.slow
def test_rows_of_a_large_file_are_drawn_by_the_seed_from_all_of_it(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "a.csv", ("text", "label"), [(f"{n}", "ab"[n % 2]) for n in range(20_000)])
    task = load(path, rows=1000)
    places = [int(problem.id) for problem in task.problems]
    assert len(places) == 1000 and places == sorted(places) and "1,000 of 20,000 rows (--rows)" in task.source
    assert all(sum(low < place <= low + 2000 for place in places) > 60 for low in range(0, 20_000, 2000))
    assert load(path, rows=1000) == task != load(path, rows=1000, seed=1)
    assert places[:8] == [36, 41, 113, 118, 125, 126, 133, 142], "the same rows on every machine"
    assert len(load(path, rows=None).problems) == 20_000


@pytest.mark.slow
@pytest.mark.parametrize("form", ["short", "long", "wide", "jsonl"])
def test_a_hundred_megabytes_take_no_more_memory_than_a_few(form: str, tmp_path: Path) -> None:
    text = "größe " * (30_000 if form == "long" else 5) + "\U0001f600" * (form == "long")
    row, head = f"{text},a" + ",12" * 300 * (form == "wide") + "\n", "text,label"
    if form == "wide":
        head += "".join(f",c{n}" for n in range(300))
    if form == "jsonl":
        row, head = json.dumps({"text": text, "label": "a"}) + "\n", ""
    path = tmp_path / ("a.jsonl" if form == "jsonl" else "a.csv")
    with path.open("w", encoding="utf-8") as file:
        file.write(f"{head}\n")
        for _ in range(100):
            file.write(row * (1_000_000 // len(row.encode()) + 1))
    # Not getrusage, which remembers the size of the process that this one was forked from.
    script = (
        "import sys; from fanfold.tasks import load; load(sys.argv[1])\n"
        "print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))"
    )
    ran = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True, check=True)
    assert int(ran.stdout) < 300 * 1024


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


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ("Sort {text} by team.", "your prompts have {text} in them, which is sent as it is"),
        ("Sort it.\n{{ input }}", "the problem takes the place of {input}"),
        ("Sort it.\n{input}", ""),
        ('Reply with {"team": "a"} only.', ""),
        ("{choice: Sort it. | Which {team}?}", "your prompts have {team}"),
    ],
)
def test_a_place_in_a_prompt_that_is_none_is_said(prompt: str, said: str, tmp_path: Path) -> None:
    path = write_csv(tmp_path / "a.csv", ("text", "label"), reviews(30))
    own: dict[str, Any] = {"template": prompt} if "choice" in prompt else {"seeds": (prompt,)}
    remarks = " ".join(study(PromptsConfig(task=path, model=("simulated/gpt-4o-mini",), **own)).remarks)
    assert said in remarks and bool(said) == ("your prompts have" in remarks)


def test_too_few_rows_and_free_text_are_refused_with_the_remedy(tmp_path: Path) -> None:
    few = write_csv(tmp_path / "few.csv", ("text", "label"), reviews(5))
    with pytest.raises(ConfigError, match=r"has 5 different problems, too few .* give at least 8"):
        study(PromptsConfig(task=few))
    enough = write_csv(tmp_path / "enough.csv", ("text", "label"), reviews(40))
    with pytest.raises(ConfigError, match=r"40 different problems, and 1,000 held_out leave too few .* ask for fewer"):
        study(PromptsConfig(task=enough, held_out=1000))
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


@pytest.mark.slow
def test_replies_that_never_match_are_shown_after_the_first(tmp_path: Path) -> None:
    said: list[str] = []
    path = write_csv(tmp_path / "a.csv", ("text", "label"), reviews(60))
    study(PromptsConfig(task=path, model=("simulated/gpt-4o-mini",), trials=2)).run(
        watch=lambda event: said.append(event.message) if isinstance(event, Notice) else None
    )
    (text,) = [text for text in said if "of the first 8" in text]
    assert "where" in text and "is right" in text and "--" in text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reply", "cause"),
    [
        ("<think>\nHm.\n</think>\ngood", "writes its reasoning where the answer is read.*--reasoning-parser"),
        ("\n\ngood", "the last is empty: a reply ends at its first line break, .* --grader contains reads all of it"),
    ],
)
def test_why_a_model_is_never_right_is_told(reply: str, cause: str, tmp_path: Path) -> None:
    said: list[str] = []
    path = write_csv(tmp_path / "a.csv", ("text", "label"), reviews(60))
    transport = SimulatedTransport(Simulator(SimulatorConfig(answer=lambda *_: reply)))
    study(
        PromptsConfig(task=path, model=("simulated/gpt-4o-mini",), trials=2),
        make=lambda name: replace(model(name), connect=lambda: transport),
    ).run(watch=lambda event: said.append(event.message) if isinstance(event, Notice) else None)
    (text,) = [text for text in said if "of the first 8" in text]
    assert re.search(cause, text), text


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [{}, {"validation": 14}, {"validation": 50}])
def test_calls_are_a_budget_and_too_few_are_refused(sizes: dict[str, int], tmp_path: Path) -> None:
    path = write_csv(tmp_path / "a.csv", ("text", "label"), reviews(200))
    ledger = tmp_path / "a.db"
    config = PromptsConfig(task=path, model=("simulated/gpt-4o-mini",), calls=120, held_out=10, **sizes)
    built = study(config)
    assert any(remark.startswith("120 calls (--calls): about") for remark in built.remarks)
    built.run(ledger=ledger, run="r")
    with sqlite3.connect(ledger) as db:
        rows = dict(db.execute("SELECT name, (SELECT count(*) FROM evaluation WHERE run = run.id) FROM run"))
    assert sum(count for name, count in rows.items() if "held-out" not in name) <= 120, rows
    with pytest.raises(ConfigError, match=r"15 calls are too few for a search: two prompts take 16 .* --calls 22 "):
        study(PromptsConfig(task=path, model=("simulated/gpt-4o-mini",), calls=15))
    study(PromptsConfig(task=path, model=("simulated/gpt-4o-mini",), calls=22))


def test_a_changed_row_of_the_file_is_said_in_words(tmp_path: Path) -> None:
    rows = reviews(40)

    def made() -> Any:
        path = write_csv(tmp_path / "a.csv", ("text", "label"), rows)
        return study(PromptsConfig(task=path, model=("simulated/gpt-4o-mini",), trials=1))

    before = made()
    changed = int(before.conclude.split.validation[0].id) - 1
    rows[changed] = (f"{rows[changed][0]} Really.", *rows[changed][1:])
    refused = Identity.of(made()).changes(Identity.of(before).record).refused
    assert refused == {
        "evaluate": "the problems that prompts may show as examples are others, or have other texts: rows of the "
        "file were changed, or are split in another way"
    }
    rows[changed] = (rows[changed][0].removesuffix(" Really."), *rows[changed][1:])
    scored = int(before.conclude.split.held_out[0].id) - 1
    rows[scored] = (f"{rows[scored][0]} Really.", *rows[scored][1:])
    (notice,) = Identity.of(made()).changes(Identity.of(before).record).notices
    assert "rows of the file were added, changed or removed" in notice and "not listed" not in notice


def test_a_setting_that_is_another_in_a_program_is_said_by_its_name(tmp_path: Path) -> None:
    def made(**settings: Any) -> Any:
        return Identity.of(study(PromptsConfig(model=("simulated/gpt-4o-mini",), **settings)))

    refused = made(calls=140, search="random").changes(made(calls=100).record).refused
    assert [words for words in refused.values() if words] == [
        "calls was 100, is 140; search was the default, is 'random'"
    ]
    assert "give the strategy an attribute" not in made(calls=140).changes(made(calls=100).record).remedy


@pytest.mark.parametrize("search", ["guided", "random", "genetic"])
def test_problems_without_an_answer_are_no_examples(search: Any, tmp_path: Path) -> None:
    path = write_csv(tmp_path / "a.csv", ("letter",), [(f"Draft a letter to customer {n}.",) for n in range(40)])
    read: dict[str, Any] = {"grader": "regex:pattern=know", "input_field": "letter", "search": search}
    config = PromptsConfig(task=path, model=("simulated/gpt-4o-mini",), trials=3, **read)
    run = study(config).run("async:8")
    assert run.summary is not None and run.summary.prompt("Hello.").count("customer") == 0


def test_nobody_is_told_that_the_right_answer_is_none(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "a.csv", ("letter",), [(f"Draft a letter to customer {n}.",) for n in range(40)])
    read: dict[str, Any] = {"grader": "regex:pattern=polite", "input_field": "letter", "writer": "simulated/writer"}
    run = study(PromptsConfig(task=path, model=("simulated/gpt-4o-mini",), trials=6, **read)).run("async:8")
    failures = [case for result in run.results() for case in result.candidate.get("failures", ())]
    assert failures and {case["expected"] for case in failures} == {""}
    assert run.summary is not None
    (held,) = [section for section in run.summary.sections if section.title == "Held-out problems"]
    assert {row[1] for row in held.rows} == {""}


def test_a_part_of_the_split_that_is_none_is_none_with_a_budget_too(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "a.csv", ("text", "label"), reviews(200))
    config = PromptsConfig(task=path, model=("simulated/gpt-4o-mini",), calls=120, validation=0, held_out=10)
    built = study(config)
    assert any(", 0 kept to choose the winner" in remark for remark in built.remarks), built.remarks


@pytest.mark.slow
def test_the_prompt_of_several_columns_says_how_its_input_is_put_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [(f"about {number}", text, mood) for number, (text, mood) in enumerate(reviews(30))]
    path = write_csv(tmp_path / "mine.csv", ("Subject", "Body", "team"), rows)
    flags = ["--input-field", "Subject,Body", "--model", "simulated/gpt-4o-mini", "--calls", "40", "--held-out", "4"]
    ran = CliRunner().invoke(cli, ["run", "prompts", "--task", path, "--run", "r", *flags])
    assert ran.exit_code == 0 and "examples, Team;" in ran.output.replace("\n", " "), ran.output
    out = CliRunner().invoke(cli, ["prompt", "r"])
    assert "each on a line: 'Subject: ...\\nBody: ...'" in out.stderr and "Subject: about" in out.stdout
    python = CliRunner().invoke(cli, ["prompt", "r", "--as", "python"]).stdout
    assert "# the form of an input: 'Subject: ...\\nBody: ...'" in python
    module: dict[str, Any] = {}
    exec(python, module)
    assert "Subject: X\nBody: Y\nTeam:" in module["prompt"]("Subject: X\nBody: Y")
    assert load(path, input=["Body"], answer="team").form == ""
    assert load(path, input=["Subject", "Body"]) == load(path, input="Subject,Body")


def test_rows_in_the_place_of_a_task_are_refused_with_the_way_to_make_one() -> None:
    import pandas

    frame: Any = pandas.DataFrame(reviews(30), columns=["text", "mood"])
    with pytest.raises(ConfigError, match=r"not DataFrame: make one with fanfold.tasks.load\(rows\)"):
        study(PromptsConfig(), task=frame)


@pytest.mark.slow
def test_thirty_rows_give_a_prompt_that_scores_what_was_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole way on the local model: search, held-out accuracy, export, and the exported prompt asked again."""
    monkeypatch.chdir(tmp_path)
    path = write_csv(tmp_path / "mine.csv", ("Review Text", "Mood"), reviews(30))
    flags = ["--calls", "30", "--max-examples", "3", "--held-out", "6"]
    ran = CliRunner().invoke(cli, ["run", "prompts", "--task", "mine.csv", "--run", "r", *flags])
    assert ran.exit_code == 0 and "held-out" in ran.output, ran.output
    told = json.loads(CliRunner().invoke(cli, ["show", "r", "--json"]).stdout)["summary"]
    out = json.loads(CliRunner().invoke(cli, ["prompt", "r", "--json"]).stdout)
    task = load(path)
    config = PromptsConfig(task=path, calls=30, max_examples=3, held_out=6)
    held = task.split(config.seed, **_sizes(config, task)).held_out
    assert len(held) == told["held_out"]["n"]
    asked = model(out["model"])

    async def main() -> list[float]:
        scores = []
        for problem in held:
            how = {name: out[name] for name in ("max_tokens", "temperature", "stop")}
            reply = await asked.generate(filled(out, problem.input), **how)
            scores.append((await task.grader(reply.text, problem)).score)
        return scores

    scores = asyncio.run(main())
    assert sum(scores) / len(scores) == pytest.approx(told["held_out"]["accuracy"])
    module: dict[str, Any] = {}
    exec(CliRunner().invoke(cli, ["prompt", "r", "--as", "python"]).stdout, module)
    assert module["prompt"]("X") == filled(out, "X") and module["STOP"] == out["stop"]


# -- files as strangers bring them ------------------------------------------------------------------------------------


def planted(path: Path) -> Callable[..., Model]:
    """A model that knows the answers of a file: right for a prompt with examples, less often for one without."""
    known = {problem.input: problem.shown for problem in load(str(path)).problems}

    def answer(name: str, messages: Sequence[Mapping[str, Any]], params: Mapping[str, Any], rng: random.Random) -> str:
        text = str(messages[-1]["content"])
        asked = max(known, key=lambda input: (text.rfind(input) + len(input) * (input in text), len(input)))
        shown = sum(text.count(example) for example in known) - 1
        return known[asked] if rng.random() < 0.7 + 0.1 * shown else "no idea"

    transport = SimulatedTransport(Simulator(SimulatorConfig(answer=answer)))
    return lambda name, **options: replace(model("simulated/gpt-4o-mini"), connect=lambda: transport)


def exported_score(path: Path, asked: Model) -> float:
    """The accuracy of the exported prompt on the held-out problems of a file."""
    out = json.loads(CliRunner().invoke(cli, ["prompt", "r", "--json"]).stdout)
    task = load(str(path))
    held = task.split(0, **task.sizes()).held_out

    async def main() -> float:
        scores = []
        for problem in held:
            how = {name: out[name] for name in ("max_tokens", "temperature", "stop")}
            reply = await asked.generate(filled(out, problem.input), **how)
            scores.append((await task.grader(reply.text, problem)).score)
        return sum(scores) / len(scores)

    return asyncio.run(main())


@pytest.mark.slow
@pytest.mark.parametrize("name", strangers.FILES)
def test_a_file_runs_without_a_flag_to_an_accuracy_and_a_prompt(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = strangers.write(name, tmp_path)
    make = planted(path)
    monkeypatch.setattr("fanfold.studies.prompts.evaluator.model", make)
    ran = CliRunner().invoke(cli, ["run", "prompts", "--task", name, "--run", "r"])
    said = f"answers are {strangers.FILES[name][1]}: "
    assert ran.exit_code == 0 and said in " ".join(ran.output.split()), ran.output
    told = json.loads(CliRunner().invoke(cli, ["show", "r", "--json"]).stdout)["summary"]
    assert 0.5 < told["held_out"]["accuracy"] <= 1.0
    assert exported_score(path, make("any")) == pytest.approx(told["held_out"]["accuracy"])


@pytest.mark.slow
def test_numbers_of_a_strangers_file_run_on_the_local_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    strangers.write("stars.csv", tmp_path)
    flags = ["--calls", "24", "--max-examples", "4", "--held-out", "12"]
    ran = CliRunner().invoke(cli, ["run", "prompts", "--task", "stars.csv", "--run", "r", *flags])
    assert ran.exit_code == 0 and "held-out accuracy" in ran.output, ran.output
    told = json.loads(CliRunner().invoke(cli, ["show", "r", "--json"]).stdout)["summary"]
    assert told["held_out"]["accuracy"] > 0.5


def test_a_model_is_not_shown_more_than_it_has_room_for(tmp_path: Path) -> None:
    path = str(strangers.write("documents.csv", tmp_path))
    for long in (study(PromptsConfig(task=path)), study(PromptsConfig(task=path, max_examples=4))):
        assert any("long texts: prompts show at most 1 of them" in remark for remark in long.remarks)
    assert long.evaluate.context == 8192 and long.evaluate.material.most_examples == 1
    other = study(PromptsConfig(task=path, max_examples=4, model=("simulated/gpt-4o-mini",)))
    assert other.evaluate.material.most_examples == 4
    huge = write_csv(tmp_path / "huge.csv", ("text", "label"), [(f"{n} word" * 20_000, "ab"[n % 2]) for n in range(20)])
    with pytest.raises(ConfigError, match=r"characters and local/smollm2 has room for 8,192 tokens"):
        study(PromptsConfig(task=huge))


class Picky(SimulatedTransport):
    """Takes no request with a certain word in it."""

    async def request(self, *args: Any, **how: Any) -> Response:
        body = args[3]
        if b"forbidden" not in body:
            return await super().request(*args, **how)
        error = {"message": "This model's maximum context length is 128000 tokens.", "code": "context_length_exceeded"}
        return Response(400, {}, json.dumps({"error": error}).encode())


@pytest.mark.slow
def test_a_problem_that_no_model_takes_counts_as_wrong_and_the_search_goes_on(tmp_path: Path) -> None:
    rows = [(f"{text}{' forbidden' if n % 4 == 0 else ''}", label) for n, (text, label) in enumerate(reviews(40))]
    path = write_csv(tmp_path / "mine.csv", ("text", "label"), rows)
    transport = Picky(Simulator(SimulatorConfig(answer=lambda *_: rows[1][1])))
    config = PromptsConfig(task=path, model=("simulated/gpt-4o-mini",), trials=6, max_examples=0, by_input=False)
    watched: list[Any] = []
    made = study(config, make=lambda name: replace(model(name), connect=lambda: transport))
    run = made.run("async:8", watch=watched.append)
    figures = run.summary.figures
    assert 0 < figures["held_out"]["accuracy"] < 1 and run.view.info.failures == 0
    said = [event.message for event in watched if isinstance(event, Notice) and "not taken" in event.message]
    assert len(said) == 1 and "maximum context length" in said[0]


@pytest.mark.parametrize(
    ("error", "own"),
    [
        ("max_tokens is too large: 32768. This model supports at most 16384 completion tokens", False),
        ("Invalid 'stop': array too long. Expected an array with maximum length 4, but got 5 instead.", False),
        ("'max_tokens' is too large: 5000. This model's maximum context length is 4096 tokens and your request has 50 "
         "input tokens (5000 > 4096 - 50).", False),
        ("'max_tokens' is too large: 200. This model's maximum context length is 4096 tokens and your request has 4050 "
         "input tokens (200 > 4096 - 4050).", True),
        ("This model's maximum context length is 4096 tokens. However, you requested 5050 tokens (50 in the messages, "
         "5000 in the completion). Please reduce the length of the messages or completion.", False),
        ("input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000", True),
        ("prompt is too long: 210000 tokens > 200000 maximum", True),
        ("Invalid 'messages[0].content': string too long. Expected a string with maximum length 10485760", True),
        ("Invalid prompt: your prompt was flagged as potentially violating our usage policy.", True),
    ],
)  # fmt: skip
def test_a_limit_that_is_too_large_is_no_wrong_answer(error: str, own: bool) -> None:
    assert _is_about_prompt(error) == own


def test_a_file_called_like_a_built_in_task_says_how_it_was_read(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "sentiment.csv", ("text", "label"), reviews(40))
    remarks = study(PromptsConfig(task=path, model=("simulated/gpt-4o-mini",))).remarks
    assert any("input from 'text', answer from 'label'" in remark for remark in remarks)
    assert not study(PromptsConfig(task="sentiment", model=("simulated/gpt-4o-mini",))).remarks


def test_problems_that_are_probably_too_long_are_counted_at_the_start(tmp_path: Path) -> None:
    rows = [(f"{n}" + " word" * (130_000 if n == 3 else 3), "ab"[n % 2]) for n in range(20)]
    path = write_csv(tmp_path / "long.csv", ("text", "label"), rows)
    remarks = study(PromptsConfig(task=path, model=("openai/gpt-4o-mini",))).remarks
    assert any("1 of 20 problems are probably longer than openai/gpt-4o-mini reads" in remark for remark in remarks)


def test_answers_that_list_labels_are_noticed(tmp_path: Path) -> None:
    said = "(lists of 4 labels; --grader labels takes them in any order)"
    own = [["bug", "ui"], ["ui"], ["slow", "bug"], ["billing"]]
    for name, mark in (("semicolon", "; "), ("comma", ", "), ("bar", "|")):
        rows = [(f"text {n}", mark.join(own[n % 4])) for n in range(40)]
        path = write_csv(tmp_path / f"{name}.csv", ("text", "tags"), rows)
        assert said in load(path).source
        chosen = load(path, grader="labels")
        assert said not in chosen.source and chosen.stop == ("\n\n",) and chosen.problems[0].shown == rows[0][1]
        assert asyncio.run(chosen.grader(mark.join(reversed(own[0])), chosen.problems[0])).score == 1
    lists = load([{"text": f"text {n}", "tags": own[n % 4]} for n in range(40)])
    assert said in lists.source and isinstance(lists.grader, JsonSchema)
    for answers in (["b > a", "a > b"], ["a;b;c", "c;b;a"], ["Paris, France", "Rome"], ["a; a", "b; a"]):
        rows = [(f"text {n}", answers[n % len(answers)]) for n in range(40)]
        path = write_csv(tmp_path / "other.csv", ("text", "tags"), rows if "Rome" not in answers else rows[:2] * 2)
        assert "lists of" not in load(path).source
