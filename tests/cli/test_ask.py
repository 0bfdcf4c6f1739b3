"""`fanfold ask`: a row in, a row out, and nothing overwritten, lost or paid for twice."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from fanfold.cli import cli
from fanfold.ledger import Ledger, RunView

Fanfold = Callable[..., Result]
Json = Callable[..., Any]

MODEL = ("--model", "simulated/gpt-4o-mini", "--max-tokens", "6")
ASK = ("--prompt", "Translate: {text}", *MODEL)
OTHER = ("--prompt", "Translate: {text}")


@pytest.fixture(autouse=True)
def data(folder: Path) -> None:
    rows = [{"id": number, "text": f"text {number % 8}", "more": {"n": [number]}} for number in range(10)]
    (folder / "d.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "d.csv").write_text("id;text\n1;Hallo\n2;\n3;=SUM(A1)\n")


def rows_of(path: str) -> list[Any]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def test_every_row_comes_back_with_its_answer(fanfold: Fanfold) -> None:
    said = fanfold("ask", "d.jsonl", *ASK, "-o", "out.jsonl").stdout
    rows = rows_of("out.jsonl")
    assert [row["id"] for row in rows] == list(range(10)) and rows[3]["more"] == {"n": [3]}
    assert all(row["answer"] and row["error"] is None for row in rows) and rows[0]["answer"] == rows[8]["answer"]
    assert "10 of 10 rows answered" in said and "8 model calls" in said and "best" not in said


def test_a_table_may_have_any_name(fanfold: Fanfold, as_json: Json) -> None:
    Path("d.jsonl").rename("Prüfung (2).jsonl")
    assert as_json("ask", "Prüfung (2).jsonl", *ASK, "-o", "実験.jsonl")["run"].startswith("ask-Pr-fung--2--")


@pytest.mark.slow
def test_the_same_command_asks_nothing_again(fanfold: Fanfold, as_json: Json) -> None:
    first = as_json("ask", "d.jsonl", *ASK, "-o", "out.jsonl")
    content = Path("out.jsonl").read_bytes()
    again = as_json("ask", "d.jsonl", *ASK, "-o", "out.jsonl")
    assert again["run"] == first["run"] and again["money"]["calls"] == first["money"]["calls"] == 8
    assert Path("out.jsonl").read_bytes() == content
    Path("out.jsonl").unlink()
    fanfold("resume", "last")
    assert Path("out.jsonl").read_bytes() == content


@pytest.mark.slow
def test_a_file_of_someone_else_is_never_overwritten(fanfold: Fanfold) -> None:
    Path("out.jsonl").write_text("mine\n")
    assert "did not write it" in fanfold("ask", "d.jsonl", *ASK, "-o", "out.jsonl", code=2).stderr
    assert Path("out.jsonl").read_text() == "mine\n" and not Path("fanfold.db").exists()
    fanfold("ask", "d.jsonl", *ASK, "-o", "out.jsonl", "--force")
    assert len(rows_of("out.jsonl")) == 10
    Path("out.jsonl").write_text(Path("out.jsonl").read_text() + "edited\n")
    fanfold("ask", "d.jsonl", *ASK, "-o", "out.jsonl", code=2)
    assert "edited" in Path("out.jsonl").read_text()
    assert "is the table itself" in fanfold("ask", "d.jsonl", *ASK, "-o", "./d.jsonl", code=2).stderr


@pytest.mark.slow
def test_a_settings_file_is_refused_before_anything_is_asked_too(fanfold: Fanfold, as_json: Json) -> None:
    Path("ask.toml").write_text(
        'study = "ask"\nsource = "d.jsonl"\nprompt = "T: {text}"\nmodel = ["simulated/gpt-4o-mini"]\n'
        'max_tokens = 6\noutput = "out.jsonl"\n'
    )
    fanfold("run", "ask.toml", "--run", "first")
    assert "did not write it" in fanfold("run", "ask.toml", "--run", "other", "--prompt", "U: {text}", code=2).stderr
    assert [run["name"] for run in as_json("runs")] == ["first"]
    fanfold("run", "ask.toml", "--run", "first")
    fanfold("run", "ask.toml", "--run", "other", "--prompt", "U: {text}", "--force")
    fanfold("run", "ask.toml", "--run", "third", "--prompt", "V: {text}", "-o", "third.jsonl")
    assert len(rows_of("third.jsonl")) == 10


def test_csv_stays_csv_with_its_separator(fanfold: Fanfold) -> None:
    said = fanfold("ask", "d.csv", "--prompt", "Translate {id}: {text}", *MODEL, "-o", "out.csv").stdout
    assert "separated by ';'" in said and "1 of 3 rows lack a value (text)" in said
    with open("out.csv", newline="") as file:  # noqa: PTH123
        rows = list(csv.DictReader(file, delimiter=";"))
    assert [row["id"] for row in rows] == ["1", "2", "3"] and rows[2]["text"] == "=SUM(A1)"
    assert rows[1]["answer"] == "" and rows[1]["error"].startswith("missing: ")


def test_json_stays_json(fanfold: Fanfold) -> None:
    Path("d.json").write_text(json.dumps([{"id": 1, "text": "Hallo", "more": [2]}, {"id": 2, "text": ""}]))
    fanfold("ask", "d.json", *ASK, "-o", "out.json")
    rows = json.loads(Path("out.json").read_text())
    assert [(row["id"], bool(row["answer"])) for row in rows] == [(1, True), (2, False)]
    assert rows[0]["more"] == [2] and rows[1]["error"]["kind"] == "missing"
    fanfold("ask", "out.json", "--prompt", "{answer}?", *MODEL, "--field", "check", "-o", "again.json")
    assert [bool(row["check"]) for row in json.loads(Path("again.json").read_text())] == [True, False]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_file_that_excel_made_is_one_that_excel_opens_again(fanfold: Fanfold, encoding: str) -> None:
    """Excel takes UTF-8 for what it is only behind a byte order mark."""
    Path("e.csv").write_text("id;text\r\n1;Grüße „an“ €\r\n", encoding=encoding)
    fanfold("ask", "e.csv", *ASK, "-o", "out.csv")
    written = Path("out.csv").read_bytes()
    assert written.startswith(b"\xef\xbb\xbfid;text;answer;error") and "1;Grüße „an“ €;" in written.decode()


def test_a_file_in_the_encoding_of_an_old_excel_says_how_it_is_read(fanfold: Fanfold) -> None:
    Path("e.csv").write_bytes("id;text\r\n1;Grüße „an“ €\r\n".encode("cp1252"))
    said = fanfold("ask", "e.csv", *ASK, "-o", "out.csv", code=2).stderr
    assert "line 2 is not in UTF-8" in said and "--encoding cp1252" in said and "iconv -f WINDOWS-1252" in said
    fanfold("ask", "e.csv", *ASK, "-o", "out.csv", "--encoding", "cp1252")
    assert "1;Grüße „an“ €;" in Path("out.csv").read_text(encoding="utf-8")


@pytest.mark.slow
def test_rows_go_from_format_to_format(fanfold: Fanfold) -> None:
    from pyarrow import parquet

    fanfold("ask", "d.jsonl", *ASK, "-o", "out.parquet")
    rows = parquet.read_table("out.parquet").to_pylist()
    assert [row["id"] for row in rows] == list(range(10)) and rows[1]["more"] == '{"n":[1]}' and rows[1]["answer"]
    fanfold("ask", "out.parquet", "--prompt", "Again: {answer}", *MODEL, "--field", "second", "-o", "again.parquet")
    assert parquet.read_schema("again.parquet").names == [
        "id",
        "text",
        "more",
        "answer",
        "error",
        "second",
        "second_error",
    ]
    fanfold("ask", "again.parquet", "--prompt", "{second}", *MODEL, "--field", "third", "-o", "third.csv")
    assert len(Path("third.csv").read_text().splitlines()) == 11


def test_commas_separate_the_columns_of_a_csv_file_made_of_one_with_tabs(fanfold: Fanfold) -> None:
    Path("t.tsv").write_text("id\ttext\n1\tone, two\n")
    fanfold("ask", "t.tsv", *ASK, "-o", "out.csv")
    assert Path("out.csv").read_text().startswith('id,text,answer,error\n1,"one, two",')


def test_half_a_character_in_one_row_spoils_no_other(fanfold: Fanfold) -> None:
    rows = [{"text": "whole"}, {"text": "cut \ud83d"}, {"text": "x", "note": "\ud83d"}]
    Path("h.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    fanfold("ask", "h.jsonl", *ASK, "-o", "out.jsonl")
    assert all(row["answer"] for row in rows_of("out.jsonl"))


def test_several_models_answer_every_row(fanfold: Fanfold) -> None:
    models = ("--model", "simulated/gpt-6-luna,simulated/claude-haiku-5-5")
    said = fanfold("ask", "d.jsonl", "--prompt", "T: {text}", *models, "--max-tokens", "5", "-o", "out.jsonl").stdout
    row = rows_of("out.jsonl")[0]
    assert row["answer_gpt-6-luna"] and row["answer_claude-haiku-5-5"] and row["error_gpt-6-luna"] is None
    assert "20 of 20 answers to 10 rows by 2 models" in said


@pytest.mark.slow
def test_a_dry_run_estimates_and_sends_nothing(fanfold: Fanfold, as_json: Json) -> None:
    unkeyed = ("--model", "openai/gpt-4o-mini", "--max-tokens", "100")  # nor does it need a key
    said = fanfold("ask", "d.jsonl", "--prompt", "T: {text}", *unkeyed, "--dry-run").stdout
    assert "10 rows, 2 of them equal to another and asked once: 8 calls to openai/gpt-4o-mini" in said
    assert "Nothing was sent" in said and not Path("fanfold.db").exists()
    plan = as_json("ask", "d.jsonl", "--prompt", "T: {text}", *unkeyed, "--dry-run")
    assert (plan["rows"], plan["different"], plan["calls"], plan["expected"]["calls"]) == (10, 8, 8, 8)
    assert 0 < plan["low"]["cost"] <= plan["expected"]["cost"] <= plan["high"]["cost"]
    assert 8 * 100 <= plan["high"]["output_tokens"] <= 8 * 110
    half = as_json("ask", "d.jsonl", "--prompt", "T: {text}", *unkeyed, "--dry-run", "--batch")
    assert half["high"]["cost"] == pytest.approx(plan["high"]["cost"] / 2)


@pytest.mark.slow
def test_a_dry_run_says_what_to_do_about_an_unknown_price(fanfold: Fanfold) -> None:
    said = fanfold("ask", "d.jsonl", *OTHER, "--model", "openai/gpt-99", "--dry-run").stdout
    assert "unknown" in said and "a price in models.toml" in said and "fanfold[prices]" in said
    limited = fanfold("ask", "d.jsonl", *OTHER, "--model", "simulated/gpt-99", "--max-cost", "1", code=1).stderr
    assert "the price of simulated/gpt-99 is not known" in " ".join(limited.split()) and "models.toml" in limited


@pytest.mark.slow
def test_a_dry_run_counts_no_repairs_of_made_up_replies(as_json: Json) -> None:
    Path("s.json").write_text('{"type": "object", "required": ["a"]}')
    plan = as_json("ask", "d.jsonl", "--prompt", "T: {text}", *MODEL, "--schema", "s.json", "--dry-run")
    assert plan["expected"]["calls"] == 8


@pytest.mark.slow
def test_rows_pass_from_stdin_to_stdout(folder: Path) -> None:
    def ask(text: str, *flags: str, code: int = 0) -> Result:
        result = CliRunner().invoke(cli, ["ask", "-", *ASK, *flags], input=text, prog_name="fanfold")
        assert result.exit_code == code, result.output
        return result

    done = ask("Paris\nRome\n\nParis\n")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["text"] for row in rows] == ["Paris", "Rome", "Paris"] and rows[0] == rows[2]
    assert "3 of 3 rows answered" in done.stderr and "read as txt" in done.stderr
    streamed = ask("Paris\nRome\n\nParis\n", "--stream")
    assert streamed.stdout == done.stdout
    assert ask('{"text": "a"}\n').stdout.startswith('{"text":"a","answer":')
    assert ask('[{"text": "a"}]').stdout.startswith('{"text":"a","answer":')
    assert ask('["a"]').stdout == ask('"a"\n', "--format", "jsonl").stdout == ask("a\n").stdout
    assert ask("id,text\n1,a\n", "--format", "csv").stdout.startswith('{"id":"1","text":"a"')
    assert "stdin, line 1 is not JSON" in ask("{text}\n", code=2).stderr
    assert "do not go together" in ask("a\n", "--json", code=2).stderr


def test_a_run_from_stdin_says_how_it_is_continued(fanfold: Fanfold) -> None:
    CliRunner().invoke(cli, ["ask", "-", *ASK], input="Paris\n", prog_name="fanfold")
    assert "pipe them into the same `fanfold ask` command again" in fanfold("resume", "last", code=2).stderr


@pytest.mark.slow
def test_a_stream_is_the_same_file_in_the_end(fanfold: Fanfold) -> None:
    fanfold("ask", "d.jsonl", *ASK, "-o", "out.jsonl")
    fanfold("ask", "d.jsonl", *ASK, "-o", "streamed.jsonl", "--stream")
    assert Path("streamed.jsonl").read_bytes() == Path("out.jsonl").read_bytes()
    fanfold("ask", "d.jsonl", *ASK, "-o", "streamed.jsonl", "--stream")
    assert "--stream writes JSON lines" in fanfold("ask", "d.jsonl", *ASK, "-o", "o.csv", "--stream", code=2).stderr


@pytest.mark.slow
def test_mistakes_are_refused_before_anything_is_asked(fanfold: Fanfold) -> None:
    Path("empty.csv").write_text("id,text\n")
    Path("broken.jsonl").write_text('{"text": "a"}\n' * 5 + '{"text": \n')
    for arguments, said in (
        (("d.jsonl", "--prompt", "T: {txet}", *MODEL), "did you mean 'text'? (columns: id, text, more"),
        (("d.jsonl", "--prompt", '{"a": {text}}', *MODEL), "write {{ for a brace"),
        (("d.jsonl", "--prompt", "@nothing.txt", *MODEL), "there is no file nothing.txt"),
        (("d.jsonl", *MODEL), "prompt is missing"),
        (("d.jsonl", "--prompt", "{text}"), "model is missing"),
        (("empty.csv", *ASK), "there are no rows in empty.csv"),
        (("broken.jsonl", *ASK), "broken.jsonl, line 6 is not JSON"),
        (("none.jsonl", *ASK), "there is no file none.jsonl"),
        ((".", *ASK), "is a folder"),
        (("d.jsonl", *ASK, "-o", "out.doc"), "names no format"),
        (("d.jsonl", *ASK, "-o", "nowhere/out.jsonl"), "folder"),
        (("d.jsonl", *ASK, "-o", "/proc/out.jsonl"), "/proc/out.jsonl cannot be written"),
        (("d.jsonl", *OTHER, "--model", "qwen", "--base-url", "localhost:9999/v1"), "as http://localhost:9999/v1"),
        (("d.jsonl", *OTHER, "--model", "qwen", "--base-url", "gate.example"), "as https://gate.example"),
        (("d.jsonl", *OTHER, "--model", "openai-compatible/qwen"), "needs the address of its server: give --base-url"),
        (("d.jsonl", *OTHER, "--model", "http://localhost:9999/v1"), "is an address: give it as --base-url"),
        (("d.jsonl", *OTHER, "--model", "gpt-4o"), "did you mean 'openai/gpt-4o'?"),
        (("d.jsonl", *OTHER, "--model", "google/gemini-2.5-pro"), "did you mean 'gemini/gemini-2.5-pro'?"),
        (("d.jsonl", *OTHER, "--model", "nobody/x"), "a model is PROVIDER/NAME; for another server give --base-url"),
        (("d.jsonl", *ASK, "--field", "text"), "a column 'text' already"),
        (("d.jsonl", *ASK, "--limit", "2", "--sample", "2"), "give one of them"),
        (("d.jsonl", "--prompt", "{text}", "--model", "openia/gpt-6-luna"), "did you mean 'openai'"),
    ):
        assert said in fanfold("ask", *arguments, code=2).stderr, arguments
    assert not Path("fanfold.db").exists()


@pytest.mark.slow
def test_what_a_run_asked_can_be_looked_at_like_any_other(fanfold: Fanfold, as_json: Json) -> None:
    fanfold("ask", "d.jsonl", *ASK, "-o", "out.jsonl")
    shown = fanfold("show", "last").stdout
    assert "10 of 10 rows answered" in shown and "Translate: text 0" in shown and "Best" not in shown
    fanfold("report", "last", "-o", "r.html")
    fanfold("export", "last", "--rows", "answers", "-o", "a.csv")
    with open("a.csv", newline="") as file:  # noqa: PTH123
        exported = list(csv.DictReader(file))
    assert len(exported) == 10 and exported[1]["prompt"] == "Translate: text 1" and exported[1]["answer"]
    assert as_json("show", "last")["summary"]["models"]["simulated/gpt-4o-mini"]["answered"] == 10


@pytest.mark.slow
def test_failed_rows_are_asked_again_on_request(fanfold: Fanfold, as_json: Json) -> None:
    """A schema with a format is in the prompt, and simulated models pay no attention to it: all rows fail."""
    Path("s.json").write_text('{"type": "object", "properties": {"day": {"type": "string", "format": "date"}}}')
    flags = ("d.jsonl", "--prompt", "T: {text}", *MODEL, "--schema", "s.json", "-o", "out.jsonl")
    first = as_json("ask", *flags, code=1)
    (kinds,) = (model["errors"] for model in first["summary"]["models"].values())
    assert sum(kinds.values()) == 10 and {row["error"]["kind"] for row in rows_of("out.jsonl")} == set(kinds)
    assert as_json("ask", *flags, code=1)["money"]["calls"] == first["money"]["calls"]
    asked = as_json("ask", *flags, "--failed", code=1)["money"]["calls"]
    assert asked > first["money"]["calls"]
    (command,) = re.findall(
        r"fanfold (resume \S+ --retry-failed --cache refresh)", fanfold("ask", *flags, code=1).stdout
    )
    assert as_json(*command.split(), code=1)["money"]["calls"] > asked, "the command at the end works when pasted"


@pytest.mark.slow
def test_batches_answer_rows_at_half_price(fanfold: Fanfold, as_json: Json) -> None:
    result = as_json("ask", "d.jsonl", *ASK, "-o", "out.jsonl", "--batch")
    assert result["money"]["batched"] == result["money"]["calls"] == 8
    assert all(row["answer"] for row in rows_of("out.jsonl"))


@pytest.mark.slow
def test_rows_beyond_the_budget_say_so_and_a_larger_one_reaches_them(fanfold: Fanfold) -> None:
    fanfold("ask", "d.jsonl", *ASK, "-o", "out.jsonl", "--max-cost", "0.00003")
    errors = [row["error"] for row in rows_of("out.jsonl")]
    assert None in errors and {error["kind"] for error in errors if error} == {"not-asked"}
    fanfold("ask", "d.jsonl", *ASK, "-o", "out.jsonl", "--max-cost", "1")
    assert all(row["error"] is None for row in rows_of("out.jsonl"))
    with Ledger("fanfold.db", readonly=True) as ledger:
        assert RunView.open(ledger, "last").costs().calls == 8
