"""What loading promises: usual files are understood, what was read is said, and errors name file, line and remedy."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from fanfold.errors import ConfigError, MissingExtra
from fanfold.tasks import Problem, load
from fanfold.tasks.grading import Exact, MultipleChoice, Numeric

ROWS = [{"id": "a", "question": "1 + 1?", "answer": "2"}, {"id": "b", "question": "Größe: 2 + 2?", "answer": "4"}]
PROBLEMS = (Problem("a", "1 + 1?", "2"), Problem("b", "Größe: 2 + 2?", "4"))


def jsonl(path: Path, rows: list[Any]) -> str:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def csv(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


def parquet(path: Path, rows: list[Any]) -> str:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet as writer

    writer.write_table(pyarrow.Table.from_pylist(rows), path)
    return str(path)


# -- formats ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["jsonl", "ndjson", "csv", "tsv", "parquet"])
def test_every_format_gives_the_same_problems(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"sums.{kind}"
    if kind == "parquet":
        name = parquet(path, ROWS)
    elif kind in ("csv", "tsv"):
        lines = [list(ROWS[0]), *(list(row.values()) for row in ROWS)]
        name = csv(path, "\n".join(("\t" if kind == "tsv" else ",").join(line) for line in lines))
    else:
        name = jsonl(path, ROWS)
    task = load(name, grader="numeric", max_tokens=5)
    assert task.problems == PROBLEMS and task.name == "sums" and task.max_tokens == 5
    assert "input from 'question'" in task.source and "2 problems" in task.source


def test_fields_with_other_names_are_named(tmp_path: Path) -> None:
    name = jsonl(tmp_path / "t.jsonl", [{"text": "no", "frage": "1 + 1?", "loesung": 2, "answer": "no"}])
    task = load(name, input="frage", answer="loesung")
    assert task.problems == (Problem("1", "1 + 1?", 2),)
    assert "answer from 'loesung'" in task.source
    crossed = load(jsonl(tmp_path / "u.jsonl", [{"input": "2", "question": "1 + 1?"}]), answer="input")
    assert crossed.problems == (Problem("1", "1 + 1?", "2"),)


@pytest.mark.parametrize(
    ("answers", "made"),
    [
        (["1", "2.5", "$3,000", "40%", -5], Numeric()),
        (["so\n#### 72", "#### 3"], Numeric()),
        (["1", "two"], Exact(first_line=True)),
        (["2020-01-01"], Exact(first_line=True)),
        (["yes", True], Exact(first_line=True)),
    ],
)
def test_a_grader_is_guessed_from_the_answers_and_said(answers: list[Any], made: Any, tmp_path: Path) -> None:
    name = jsonl(tmp_path / "t.jsonl", [{"input": f"{n}?", "answer": answer} for n, answer in enumerate(answers)])
    task = load(name)
    assert task.grader == made and f"graded as {'numeric' if made == Numeric() else 'exact'}" in task.source


def test_options_are_shown_to_the_model_and_positions_become_letters(tmp_path: Path) -> None:
    rows = [
        {"question": "Capital of Peru?", "choices": ["Lima", "Rome"], "answer": 1},
        {"question": "Capital of Italy?\nA) Lima\nB) Rome", "choices": ["Lima", "Rome"], "answer": 1},
    ]
    task = load(jsonl(tmp_path / "t.jsonl", rows))
    assert task.grader == MultipleChoice() and [problem.answer for problem in task.problems] == ["B", "B"]
    assert task.problems[0].input == "Capital of Peru?\nA) Lima\nB) Rome"
    assert task.problems[1].input.count("A) Lima") == 1
    packed = load(csv(tmp_path / "t.csv", "question,options,answer\nCapital of Peru?,Lima | Rome,A\n"))
    assert packed.problems[0].note == {"options": ["Lima", "Rome"]} and packed.grader == MultipleChoice()
    paired = [{"question": "?", "choices": {"text": ["Lima", "Rome"], "label": ["1", "2"]}, "answer": "2"}]
    assert load(jsonl(tmp_path / "u.jsonl", paired)).problems[0].input == "?\n1) Lima\n2) Rome"


def test_a_limit_takes_the_first_problems_and_reads_no_further(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"input": "a", "answer": "b"}\nbroken\n')
    assert len(load(str(path), limit=1).problems) == 1
    assert len(load("city", limit=7).problems) == 7


def test_empty_lines_a_byte_order_mark_and_windows_line_ends_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"input": "a", "answer": "b"}\r\n\r\n{"input": "c", "answer": "d"}\r\n')
    assert [problem.input for problem in load(str(path)).problems] == ["a", "c"]
    table = tmp_path / "t.csv"
    table.write_bytes(b'\xef\xbb\xbfinput,answer\r\n"a, with\r\ntwo lines",b\r\n')
    assert load(str(table)).problems[0].input == "a, with\r\ntwo lines"


def test_settings_change_tasks_that_ship_and_tasks_from_files(tmp_path: Path) -> None:
    task = load("city", grader="contains", seeds=["Where?"], max_tokens=20, labels=[["In", "Out"]])
    assert task.seeds == ("Where?",) and task.max_tokens == 20 and task.labels == (("In", "Out"),)
    assert task.problems == load("city").problems and task.grader != load("city").grader
    named = load(jsonl(tmp_path / "t.jsonl", ROWS), name="sums", clauses={"role": ["You add."]})
    assert named.name == "sums" and named.clauses == {"role": ("You add.",)}


def test_conversations_as_for_fine_tuning_are_problems(tmp_path: Path) -> None:
    turns = [{"role": "system", "content": "Sort."}, {"role": "user", "content": "Hi"}]
    task = load(jsonl(tmp_path / "t.jsonl", [{"messages": [*turns, {"role": "assistant", "content": "greeting"}]}]))
    assert task.problems == (Problem("1", "Hi", "greeting"),)


def test_a_file_without_a_line_of_names_is_noticed(tmp_path: Path) -> None:
    rows = "".join(f"I think {n} of it,{'good' if n % 2 else 'bad'}\n" for n in range(20))
    with pytest.raises(ConfigError, match=r"first line looks like data .*'bad'.*names the columns"):
        load(csv(tmp_path / "t.csv", rows))


# -- what is wrong with a file ----------------------------------------------------------------------------------------

GOOD = b'{"input": "a", "answer": "b"}\n'
TWICE = b'{"id": 1, "input": "a", "answer": "b"}\n{"id": 1, "input": "c", "answer": "b"}\n'


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("t.jsonl", b'{"input": "a", "answer": "b"}\n{"input": "c",\n', r"t\.jsonl, line 2 is not JSON.*one object"),
        ("t.jsonl", b'[1, 2]\n', r"t\.jsonl, line 1 is not an object"),
        ("t.jsonl", b'{"input": NaN}\n', "line 1 is not JSON: NaN"),
        ("t.jsonl", b"[" * 100_000, "line 1 is not JSON"),
        ("t.jsonl", b"", r"t\.jsonl is empty"),
        ("t.jsonl", b"\n\n", r"t\.jsonl is empty"),
        ("t.jsonl", b'{"inptu": "a", "answer": "b", "c": 1}\n', r"which field .*input\? .*--input-field.*inptu, ans"),
        ("t.jsonl", GOOD + b'{"input": "a", "anwser": "b"}\n', "line 2 has no field 'answer'; did you mean 'anwser'"),
        ("t.jsonl", b'{"input": "a", "answer": null}\n', "problem '1': there is no answer"),
        ("t.jsonl", b'{"input": 3, "answer": "b"}\n', "line 1: 'input' is to be the input, and holds no text but 3"),
        ("t.jsonl", TWICE, r"line 2 has the id '1', which t\.jsonl, line 1 has too: make ids unique"),
        ("t.jsonl", GOOD + b'{"input": "Gr\xf6\xdfe"}\n', r"t\.jsonl, line 2 is not in UTF-8.*WINDOWS-1252"),
        ("t.jsonl", '{"input": "a"}'.encode("utf-16") + b"a", r"t\.jsonl is not in utf-16.*truncated"),
        ("t.jsonl", b'{"input": "a", "options": [], "answer": "A"}\n', "line 1: options must be a list"),
        ("t.csv", b"input,answer\na,b\nc\n", r"t\.csv, line 3 has fewer values than the 2 columns"),
        ("t.csv", b"input,answer\na,b,c\n", r"t\.csv, line 2 has more values.*double quotes"),
        ("t.csv", b"input,input\na,b\n", "two columns are called 'input'"),
        ("t.csv", b'input,answer\n"a,b\n', r"t\.csv, line 2 is not CSV"),
        ("t.csv", b"input,answer\na,b\nGr\xf6\xdfe,b\n", r"t\.csv, line 3 is not in UTF-8"),
        ("t.csv", b"", r"t\.csv is empty"),
        ("t.csv", b"input,answer\n", r"t\.csv is empty"),
        ("t.parquet", b"PAR1 and nothing else", "cannot be read as Parquet"),
        ("t.xlsx", b"", "names no format: use .jsonl.*a spreadsheet program saves .* as CSV UTF-8"),
    ],
)  # fmt: skip
def test_an_error_names_the_place_and_the_remedy(file: str, content: bytes, said: str, tmp_path: Path) -> None:
    if file.endswith("parquet"):
        pytest.importorskip("pyarrow")
    path = tmp_path / file
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=f"(?s){said}") as raised:
        load(str(path), grader="exact")
    assert "\n" not in str(raised.value)


def test_mistakes_in_the_call_are_explained(tmp_path: Path) -> None:
    name = jsonl(tmp_path / "t.jsonl", ROWS)
    for call, said in (
        (lambda: load("citty"), "there is no task 'citty'; did you mean 'city'"),
        (lambda: load("nowhere.jsonl"), "there is no file nowhere.jsonl"),
        (lambda: load(str(tmp_path)), "is a folder, and no dataset was saved to it"),
        (lambda: load(name, input="qestion"), "no field 'qestion'; did you mean 'question'"),
        (lambda: load(name, max_token=3), "did you mean 'max_tokens'"),
        (lambda: load(name, limit=0), "limit must be"),
        (lambda: load(name, grader="choice"), "problem 'a': there are no options"),
        (lambda: load(name, grader="regex"), "'pattern' is missing"),
        (lambda: load("city", input="text"), "its fields are known"),
        (lambda: load("hf:"), "names no dataset"),
        (lambda: load("hf:a:b:c:d"), "names no dataset"),
    ):
        with pytest.raises(ConfigError, match=said):
            call()


# -- optional packages ------------------------------------------------------------------------------------------------


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "t.parquet").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtra, match=r"pip install 'fanfold\[parquet\]'"):
        load(str(tmp_path / "t.parquet"))
    with pytest.raises(MissingExtra, match=r"pip install 'fanfold\[datasets\]'"):
        load("hf:gsm8k:main:test")


class Hub:
    """The edge of the `datasets` package: it keeps what it was asked for and gives rows with their features."""

    def __init__(self, rows: list[dict[str, Any]], **labels: list[str]) -> None:
        self.rows = rows
        self.asked: list[Any] = []
        names = {name: types.SimpleNamespace(names=labels.get(name)) for row in rows for name in row}
        self.features = names

    def load_dataset(self, name: str, config: str | None, *, split: str) -> Hub:
        self.asked.append((name, config, split))
        if not self.rows:
            raise FileNotFoundError("no such dataset on the hub")
        return self

    def __iter__(self) -> Any:
        return iter(self.rows)


def test_a_dataset_of_the_hub_is_named_by_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub([{"question": "6 * 12?", "answer": "6 times 12 is 72.\n#### 72"}])
    monkeypatch.setitem(sys.modules, "datasets", hub)
    task = load("hf:openai/gsm8k:main:test")
    load("hf:gsm8k:test")
    load("hf:gsm8k")
    assert hub.asked == [("openai/gsm8k", "main", "test"), ("gsm8k", None, "test"), ("gsm8k", None, "train")]
    assert task.grader == Numeric() and task.name == "openai/gsm8k"
    assert task.problems[0].shown.endswith("#### 72")


def test_numbered_labels_of_a_dataset_become_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub([{"text": "Good.", "label": 1}, {"text": "Bad.", "label": 0}], label=["negative", "positive"])
    monkeypatch.setitem(sys.modules, "datasets", hub)
    assert [problem.answer for problem in load("hf:reviews:test").problems] == ["positive", "negative"]


def test_a_dataset_that_cannot_be_had_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", Hub([]))
    with pytest.raises(ConfigError, match=r"hf:nothing:test cannot be loaded.*FileNotFoundError.*whether the hub"):
        load("hf:nothing:test")


def test_a_file_is_described_by_its_column_names(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("ticket,assigned_team\n" + "".join(f"text {n},{'red' if n % 2 else 'blue'}\n" for n in range(20)))
    assert load(path).clauses["instruction"][0] == "Give the assigned team for each ticket."
