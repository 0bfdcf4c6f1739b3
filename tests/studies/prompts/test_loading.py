"""What loading promises: usual files are understood, what was read is said, and errors name file, line and remedy."""

from __future__ import annotations

import asyncio
import json
import struct
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from fanfold.errors import ConfigError, MissingExtra
from fanfold.studies.prompts import PromptsConfig, study
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


@pytest.mark.parametrize(
    "turns",
    [
        [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "greeting"}],
        [{"from": "system", "value": "Sort."}, {"from": "human", "value": "Hi"}, {"from": "gpt", "value": "greeting"}],
    ],
)
def test_conversations_of_the_hub_are_problems(turns: list[Any], tmp_path: Path) -> None:
    task = load(jsonl(tmp_path / "t.jsonl", [{"conversations": turns}]))
    assert task.problems == (Problem("1", "Hi", "greeting"),)


def test_of_a_longer_conversation_all_that_was_said_before_is_asked(tmp_path: Path) -> None:
    said = [("user", "A lamp"), ("assistant", "Which?"), ("user", "The red one"), ("assistant", "sold")]
    turns = [{"role": role, "content": text} for role, text in said]
    task = load(jsonl(tmp_path / "t.jsonl", [{"messages": turns}]))
    assert task.problems == (Problem("1", "User: A lamp\nAssistant: Which?\nUser: The red one", "sold"),)


def test_a_call_of_a_tool_is_not_taken_for_words() -> None:
    said = [("user", "Hi"), ("assistant", None), ("tool", "5"), ("assistant", "a")]
    task = load([{"messages": [{"role": role, "content": text} for role, text in said]}])
    assert task.problems == (Problem("1", "User: Hi\nTool: 5", "a"),)


TOLD = {"role": "developer", "content": "Sort."}
ASKED = {"role": "user", "content": "Hi\nthere"}
IN_PARTS = {"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "text", "text": "there"}]}
REPLIED = {"role": "assistant", "content": "a"}


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [TOLD, IN_PARTS, REPLIED]},
        {"input": [TOLD, ASKED], "ideal": "a"},
        {"prompt": [ASKED], "completion": [REPLIED]},
    ],
    ids=["content in parts", "evals of OpenAI", "prompt and completion of TRL"],
)
def test_conversations_of_todays_libraries_are_problems(row: dict[str, Any], tmp_path: Path) -> None:
    assert load(jsonl(tmp_path / "t.jsonl", [row])).problems == (Problem("1", "Hi\nthere", "a"),)


def test_a_conversation_with_a_picture_is_refused(tmp_path: Path) -> None:
    turn = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}
    with pytest.raises(ConfigError, match="'input' is to be the input, and holds no text"):
        load(jsonl(tmp_path / "t.jsonl", [{"messages": [turn, {"role": "assistant", "content": "a"}]}]))


def test_answers_that_are_bytes_are_refused() -> None:
    with pytest.raises(ConfigError, match="row 1: 'label' is to be the answer, and holds bytes: write it as texts"):
        load([{"text": "a", "label": b"yes"}, {"text": "b", "label": b"no"}])


def test_questions_of_a_form_are_names_of_columns(tmp_path: Path) -> None:
    path = tmp_path / "form.csv"
    path.write_text("Timestamp,What is your question?,Correct answer:\n" + "2026/01/31 10:00:00,Why?,a\n" * 8)
    assert load(str(path)).problems[0] == Problem("1", "Why?", "a")


def test_several_columns_are_one_input_and_what_is_not_read_is_said(tmp_path: Path) -> None:
    rows = [
        {"instruction": f"Route it: {n}.", "input": "Where is it?" if n % 2 else "", "output": "ab"[n % 2], "day": n}
        for n in range(20)
    ]
    task = load(jsonl(tmp_path / "a.jsonl", rows))
    assert task.problems[0].input == "Instruction: Route it: 0."
    assert task.problems[1].input == "Instruction: Route it: 1.\nInput: Where is it?"
    assert "input from 'instruction', 'input', answer from 'output', not read: day" in task.source
    assert task.clauses["instruction"][0] == "Give the output for each instruction and input."
    named = load(jsonl(tmp_path / "a.jsonl", rows), input="day, input")
    assert named.problems[1].input == "Day: 1\nInput: Where is it?"
    comma = load(csv(tmp_path / "a.csv", '"name, first",team\n' + "Bo,x\n" * 3), input="name, first")
    assert comma.problems[0].input == "Bo"


def test_values_inside_others_are_named_with_dots(tmp_path: Path) -> None:
    rows = [{"data": {"text": f"t{n}"}, "gold": [{"label": "ab"[n % 2]}], "a.b": "c"} for n in range(20)]
    task = load(jsonl(tmp_path / "a.jsonl", rows), input="data.text", answer="gold.0.label")
    assert task.problems[1] == Problem("2", "t1", "b") and task.labels[0] == ("Data text", "Gold 0 label")
    assert load(jsonl(tmp_path / "a.jsonl", rows), input="data.text", answer="a.b").problems[0].answer == "c"
    with pytest.raises(ConfigError, match=r"no field 'data\.txt'"):
        load(jsonl(tmp_path / "a.jsonl", rows), input="data.txt", answer="a.b")


def test_options_may_have_columns_of_their_own(tmp_path: Path) -> None:
    table = "question,A,B,C,answer\n" + "".join(f"1 + {n}?,{n},{n + 1},{n + 2},B\n" for n in range(20))
    task = load(csv(tmp_path / "a.csv", table))
    assert task.problems[3].input == "1 + 3?\nA) 3\nB) 4\nC) 5" and task.grader == MultipleChoice()
    measured = "text,A,B,C,label\n" + "".join(
        f"case {n},{n},{n + 1},{n + 2},{'good' if n % 2 else 'bad'}\n" for n in range(20)
    )
    task = load(csv(tmp_path / "b.csv", measured))
    assert task.problems[3].input == "case 3" and "not read: A, B, C" in task.source


def test_an_option_that_is_missing_leaves_the_others_their_letters(tmp_path: Path) -> None:
    table = "question,A,B,C,answer\n" + "".join(f"q {n},a {n},{f'b {n}' if n % 3 else ''},c {n},C\n" for n in range(20))
    task = load(csv(tmp_path / "a.csv", table))
    assert task.problems[3].input == "q 3\nA) a 3\nC) c 3"
    assert asyncio.run(task.grader("c 3", task.problems[3])).score == 1


@pytest.mark.parametrize("answers", [(1, 2), ("1", "2")])
def test_the_number_of_an_option_counts_as_its_columns_do(answers: Any) -> None:
    task = load([{"sentence": f"s {n}", "option1": "x", "option2": "y", "answer": answers[n % 2]} for n in range(9)])
    assert task.problems[1].input == "s 1\n1) x\n2) y" and [p.answer for p in task.problems[:2]] == ["1", "2"]
    rows = [{"question": f"q {n}", "choices": ["x", "y"], "answer": 1 + n % 2} for n in range(9)]
    with pytest.raises(ConfigError, match=r"answer 2 is none of the options A, B .*positions count from 0"):
        load(rows)


def test_an_option_is_not_taken_for_the_answer() -> None:
    rows = [{"question": f"q {n}", "answerA": "x", "answerB": "y", "answerC": "z", "correct": "B"} for n in range(9)]
    with pytest.raises(ConfigError, match=r"which field holds the answer\? .*correct"):
        load(rows)
    assert load(rows, answer="correct").problems[0].input == "q 0\nA) x\nB) y\nC) z"


def test_columns_that_the_first_row_lacks_are_read(tmp_path: Path) -> None:
    rows = [{"id": n, "question": f"q {n}", "answer": f"a {n}", "context": f"c {n}"} for n in range(20)]
    del rows[0]["context"], rows[0]["id"]
    task = load(jsonl(tmp_path / "a.jsonl", rows))
    assert [problem.input for problem in task.problems[:2]] == ["Question: q 0", "Context: c 1\nQuestion: q 1"]
    assert task.problems[5].id == "6", "an id that a row lacks is none"
    with pytest.raises(ConfigError, match=r"a\.jsonl, line 1 has nothing in 'id': fill it in, or leave out --id-field"):
        load(str(tmp_path / "a.jsonl"), id="id")


def test_questions_without_an_answer_are_counted_as_such() -> None:
    rows = [{"question": f"q {n}", "answers": {"text": [] if n == 3 else [f"a {n}"]}} for n in range(20)]
    task = load(rows)
    assert len(task.problems) == 19 and "1 without input or answer left out" in task.source
    assert load([{"Question": f"q {n}", "Answers": ["x", "y"]} for n in range(9)]).problems[0].answer == ("x", "y")


def test_the_position_of_an_option_may_be_a_text(tmp_path: Path) -> None:
    rows = [
        {"ctx": f"She counts {n},", "endings": [f"then {n + 1}", f"then {n}"], "label": str(n % 2)} for n in range(9)
    ]
    task = load(jsonl(tmp_path / "a.jsonl", rows))
    assert [problem.answer for problem in task.problems[:2]] == ["A", "B"] and task.grader == MultipleChoice()
    table = load(csv(tmp_path / "a.csv", "question,choices,answer\n" + "1 + 1?,1|2|3,2\n2 + 2?,one|four,1\n"))
    assert [problem.answer for problem in table.problems] == ["2", "B"], "a text of an option before its position"


def test_several_right_answers_are_all_right(tmp_path: Path) -> None:
    rows = [
        {"question": f"Who wrote {n}?", "answers": {"text": [f"Mann {n}", f"T. Mann {n}"], "answer_start": [1, 1]}}
        for n in range(20)
    ]
    task = load(jsonl(tmp_path / "a.jsonl", rows))
    assert "answers are one line: graded as exact" in task.source and task.problems[3].shown == "Mann 3"
    for reply in ("mann 3", "T. Mann 3"):
        assert asyncio.run(task.grader(reply, task.problems[3])).score == 1
    listed = csv(tmp_path / "a.csv", "text,label\n" + "".join(f'{n},"[""a"", ""b""]"\n' for n in range(20)))
    task = load(listed, grader="exact")
    assert asyncio.run(task.grader("b", task.problems[3])).score == 1


def test_a_column_that_looks_like_an_id_and_is_none_is_not_taken_for_one(tmp_path: Path) -> None:
    path = csv(tmp_path / "a.csv", "user_id,text,label\n" + "".join(f"{n % 3},text {n},{n % 2}\n" for n in range(20)))
    task = load(path)
    assert task.problems[4].id == "5" and "not read: user_id" in task.source
    with pytest.raises(ConfigError, match=r"line 5 has the id '0', which a\.csv, line 2 has too: make ids unique"):
        load(path, id="user_id")


def test_rows_that_repeat_others_are_not_searched_and_reported_on_at_once(tmp_path: Path) -> None:
    rows = [(f"Text  number {n % 12}" if n < 12 else f"text number {n % 12}", "ab"[n % 5 == 0]) for n in range(48)]
    task = load(csv(tmp_path / "a.csv", "text,label\n" + "".join(f"{text},{label}\n" for text, label in rows)))
    assert "36 repeat an input and are left out; of different answers to one the first counts" in task.source
    parts = task.split(0, **task.sizes())
    inputs = [p.gist for part in (parts.examples, parts.train, parts.validation, parts.held_out) for p in part]
    assert len(inputs) == len(set(inputs)) <= 12


def test_an_answer_that_nearly_all_rows_have_is_said(tmp_path: Path) -> None:
    table = "text,label\n" + "".join(f"text {n},{'bad' if n == 3 else 'ok'}\n" for n in range(50))
    assert "answers are one of 2 labels (98 % are 'ok')" in load(csv(tmp_path / "a.csv", table)).source


def test_a_file_of_an_old_spreadsheet_is_read_and_said(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"text;label\n" + "".join(f"Größe {n};{'ab'[n % 2]}\n" for n in range(20)).encode("cp1252"))
    task = load(str(path))
    assert task.problems[0].input == "Größe 0"
    assert "its encoding is cp1252, its columns are separated by ';'" in task.source
    path.write_bytes("text,label\nŁódź,a\nGdańsk,b\n".encode("cp1250"))
    assert load(str(path), encoding="cp1250").problems[0].input == "Łódź"


@pytest.mark.parametrize(
    ("text", "encoding", "western"),
    [
        ("Почему небо синее {}?", "cp1251", False),
        ("Πόσο κάνει {}?", "cp1253", False),
        ("Ile kosztuje żółta łódź {}?", "cp1250", False),
        ("Příliš žluťoučký kůň {}?", "cp1250", False),
        ("{}月の花は何ですか", "shift_jis", False),
        ("{}这是什么", "gb18030", False),
        ("{}이것은 무엇입니까", "euc_kr", False),
        ("Où est l'été, élève n° {} ? Créée déjà", "cp1252", True),
        ("Hvað er þetta, fór Þórður á ís {}?", "cp1252", True),
        ("Är ön på åsen {}?", "cp1252", True),
        ("Cost “{}” – 5 €, 3 m³ …", "cp1252", True),
        ("İstanbul'da güneş {} saat açtı mı?", "cp1254", False),
    ],
)
def test_a_file_of_another_part_of_the_world_is_not_taken_for_a_western_one(
    text: str, encoding: str, western: bool, tmp_path: Path
) -> None:
    path = tmp_path / "old.csv"
    path.write_bytes(
        "".join(["text;label\n", *(f"{text.format(n)};{'ab'[n % 2]}\n" for n in range(20))]).encode(encoding)
    )
    if western:
        assert load(str(path)).problems[3].input == text.format(3)
        return
    with pytest.raises(ConfigError, match=r"old.csv.* is not in UTF-8.*--encoding.*cp1250"):
        load(str(path))
    assert load(str(path), encoding=encoding).problems[3].input == text.format(3)


@pytest.mark.parametrize("library", ["", "pandas", "polars"])
def test_rows_of_python_and_of_frames_are_a_task(library: str) -> None:
    rows: Any = [{"text": f"text {n}", "team": "ab"[n % 2], "note": float("nan")} for n in range(20)]
    if library:
        rows = pytest.importorskip(library).DataFrame(rows)
    task = load(rows, name="tickets", answer="team")
    assert task.name == "tickets" and task.problems[1] == Problem("2", "text 1", "b")
    assert task.source.startswith("rows: 20 problems, input from 'text', answer from 'team', not read: note")
    built = study(PromptsConfig(model=("simulated/gpt-4o-mini",), trials=2), task=task)
    assert built.remarks[0].startswith("rows: 20 problems")
    run = built.run()
    assert run.summary is not None and run.summary.figures["held_out"]["n"] > 0
    with pytest.raises(ConfigError, match="row 1 is not a dict but 'a'"):
        load(["a", "b"])


@pytest.mark.slow
def test_columns_of_pandas_mean_what_they_mean_in_the_file(tmp_path: Path) -> None:
    import pandas

    frame = pandas.DataFrame(
        {
            "question": [f"What is {n}?" for n in range(20)],
            "answers": [{"text": [f"N {n}", f"n {n}"], "start": [n]} for n in range(20)],
            "options": [["a", "b"]] * 20,
        }
    )
    frame.to_parquet(tmp_path / "q.parquet")
    again = pandas.read_parquet(tmp_path / "q.parquet")  # lists are arrays of numpy now
    for columns in (["question", "answers"], ["question", "options"]):
        own = load(again[columns], answer=columns[1], name="q")
        again[columns].to_parquet(tmp_path / "part.parquet")
        assert own.problems == load(str(tmp_path / "part.parquet"), answer=columns[1]).problems
    assert load(again[["question", "answers"]]).problems[0].answer == ("N 0", "n 0")
    days = frame.assign(answers=pandas.date_range("2026-01-31", periods=20).astype("datetime64[ns]"))
    days[["question", "answers"]].to_parquet(tmp_path / "days.parquet")
    for source in (days[["question", "answers"]], str(tmp_path / "days.parquet")):
        task = load(source)
        assert study(PromptsConfig(model=("simulated/gpt-4o-mini",), trials=2), task=task).run().summary is not None


def test_numbers_that_no_reply_will_have_exactly_are_said(tmp_path: Path) -> None:
    task = load(csv(tmp_path / "a.csv", "text,share\n" + "".join(f"{n} of 7,{n / 7}\n" for n in range(20))))
    assert "numbers with many decimals" in task.source and "numeric:tolerance=0.01" in task.source
    plain = load(csv(tmp_path / "b.csv", "text,share\n" + "".join(f"{n} of 7,{n / 4}\n" for n in range(20))))
    assert "answers are numbers: graded as numeric" in plain.source
    single = [struct.unpack("f", struct.pack("f", n / 10))[0] for n in range(20)]
    rows = load([{"text": f"{n} of 10", "share": share} for n, share in enumerate(single)])
    assert rows.problems[1].answer == 0.10000000149011612
    assert "answers are numbers: graded as numeric" in rows.source
    assert asyncio.run(rows.grader("It is 0.1", rows.problems[1])).score == 1


@pytest.mark.parametrize(
    "document",
    [
        {"version": 1, "data": [{"text": f"t{n}", "label": "ab"[n % 2]} for n in range(9)]},
        {"text": [f"t{n}" for n in range(9)], "label": ["ab"[n % 2] for n in range(9)]},
        {"text": {str(n): f"t{n}" for n in range(9)}, "label": {str(n): "ab"[n % 2] for n in range(9)}},
        {f"row {n}": {"text": f"t{n}", "label": "ab"[n % 2]} for n in range(9)},
    ],
)
def test_json_is_read_as_programs_write_tables(document: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    for indent in (None, 2):
        path.write_text(json.dumps(document, indent=indent))
        assert [(p.input, p.answer) for p in load(str(path)).problems[:2]] == [("t0", "a"), ("t1", "b")]


def test_a_file_without_a_line_of_names_is_noticed(tmp_path: Path) -> None:
    rows = "".join(f"I think {n} of it,{'good' if n % 2 else 'bad'}\n" for n in range(20))
    with pytest.raises(ConfigError, match=r"first line looks like data .*'bad'.*names the columns"):
        load(csv(tmp_path / "t.csv", rows))


# -- what is wrong with a file ----------------------------------------------------------------------------------------

GOOD = b'{"input": "a", "answer": "b"}\n'


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
        ("t.jsonl", b'{"input": "a", "answer": null}\n', r"1 of 1 rows have nothing in 'answer': the first is t"),
        ("t.jsonl", b'{"input": [3], "answer": "b"}\n', r"line 1: 'input' is .*, and holds no text but \[3\]"),
        ("t.jsonl", b'{"input": {"a": "b"}, "answer": "c"}\n', r"no text .*: name what is in it, as in input\.a\)"),
        ("t.jsonl", b'[{"input": "a"}]', r"line 1 is not an object .* one JSON document, let its name end in \.json"),
        ("t.json", b'{"train": [{"a": "b"}], "test": [{"a": "b"}]}', r"several tables \(train, test\): write the one"),
        ("t.json", b'{"a": 1, "b": 2, "c": 3}', r"which field .*input\? .*a, b, c"),
        ("t.jsonl.gz", b"", "names no format: .* unpack it first"),
        ("t.csv", b"1,What is 1 + 1?,2,x\n", r"is empty"),
        ("t.csv", b"Tickets 2024,\n,\ntext,label\na,b\n", r"columns: Tickets 2024, .*; if a line further down names"),
        ("t.csv", b"1,What is it?,2,x\n3,And that?,2,x\n", r"which field .*; if its first line is data, add one that"),
        ("t.csv", b"What is 1 + 1?,2\nWhat is 1 + 3?,4\n", r"first line looks like data .*'2'.* names the columns"),
        ("t.jsonl", GOOD + b'{"input": "Gr\xf6\xdfe"}\n', r"t\.jsonl, line 2 is not in UTF-8.*WINDOWS-1252"),
        ("t.jsonl", '{"input": "a"}'.encode("utf-16") + b"a", r"t\.jsonl is not in utf-16.*truncated"),
        ("t.jsonl", b'{"input": "a", "options": [], "answer": "A"}\n', "line 1: options must be a list"),
        ("t.csv", b"input,answer\na,b\nc\n", r"t\.csv, line 3 has fewer values than the 2 columns"),
        ("t.csv", b"input,answer\na,b,c\n", r"t\.csv, line 2 has more values.*double quotes"),
        ("t.csv", b"input,input\na,b\n", "two columns are called 'input'"),
        ("t.csv", b'input,answer\n"a,b\n', r"t\.csv, line 2 is not CSV"),
        ("t.csv", b"input,answer\na,b\nGr\xf6\x81e,b\n", r"t\.csv, line 3 is not in UTF-8 .* --encoding cp1252"),
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
        load(str(path), grader="exact" if "1 + 1?,2\n" not in content.decode("latin-1") else None)
    assert "\n" not in str(raised.value)


def test_mistakes_in_the_call_are_explained(tmp_path: Path) -> None:
    name = jsonl(tmp_path / "t.jsonl", ROWS)
    for call, said in (
        (lambda: load("citty"), "there is no task 'citty'; did you mean 'city'"),
        (lambda: load("nowhere.jsonl"), "there is no file nowhere.jsonl"),
        (lambda: load("https://example.com/a.csv"), "is an address: download it"),
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
