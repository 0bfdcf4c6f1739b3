"""Every row is answered once, in order, and what goes wrong with a row is that row's typed error."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import pytest

import fanfold
from fanfold.errors import ConfigError, ReplayDivergence
from fanfold.events import Notice
from fanfold.ledger import RunView
from fanfold.models import Model, model
from fanfold.models.simulated import SimulatedTransport
from fanfold.simulator import Simulator, SimulatorConfig
from fanfold.simulator.config import Answer
from fanfold.studies.ask.api import ask_async
from fanfold.studies.ask.conclusion import AnswerStream, answered
from fanfold.studies.ask.config import AskConfig
from fanfold.studies.ask.rows import listed
from fanfold.studies.ask.study import Asking, asking

MODEL = "simulated/gpt-4o-mini"
SCHEMA = {"type": "object", "properties": {"label": {"enum": ["good", "bad"]}}, "required": ["label"]}


class World:
    """A model whose replies a function makes of the last message, and what it was asked."""

    def __init__(self, reply: Callable[[str], str | Answer]) -> None:
        self.asked: list[Any] = []
        self.bodies: list[Mapping[str, Any]] = []
        self._reply = reply
        self._transport = SimulatedTransport(Simulator(SimulatorConfig(answer=self._answer)))

    def _answer(self, name: str, messages: Sequence[Mapping[str, Any]], body: Mapping[str, Any], rng: Any) -> Any:
        self.asked.append([message["content"] for message in messages])
        self.bodies.append(body)
        return self._reply(str(messages[-1]["content"]))

    def make(self, name: str) -> Model:
        return dataclasses.replace(model(name), connect=lambda: self._transport)


def run(rows: Any, prompt: str, world: World, schema: Any = None, how: Any = None, **fields: Any) -> list[Any]:
    """The answered rows."""
    asked = asked_of(rows, prompt, world, schema, **fields)
    done = asked.study.run("async:8", **(how or {}))
    with done.ledger:
        return list(answered(done.view, asked.rows, asked.fields))


def asked_of(rows: Any, prompt: str, world: World, schema: Any = None, **fields: Any) -> Asking:
    config = AskConfig(prompt=prompt, model=fields.pop("model", (MODEL,)), **fields)
    return asking(config, listed(rows), schema=schema, make=world.make)


def test_rows_keep_their_order_and_their_fields() -> None:
    world = World(lambda text: text.upper())
    rows = [{"id": number, "text": f"t{number}"} for number in range(30)]
    assert run(rows, "say {text}", world) == [
        {"id": number, "text": f"t{number}", "answer": f"SAY T{number}", "error": None} for number in range(30)
    ]


def test_equal_prompts_are_asked_once_and_answered_everywhere() -> None:
    world = World(lambda text: text)
    rows = run([{"text": "a", "n": 1}, {"text": "b", "n": 2}, {"text": "a", "n": 3}], "{text}", world)
    assert [row["answer"] for row in rows] == ["a", "b", "a"] and len(world.asked) == 2


def test_several_models_have_a_field_each() -> None:
    world = World(lambda text: text)
    (row,) = run(["x"], "{text}", world, model=(MODEL, "simulated/claude-haiku-5-5"))
    assert row == {
        "text": "x",
        "answer_gpt-4o-mini": "x",
        "error_gpt-4o-mini": None,
        "answer_claude-haiku-5-5": "x",
        "error_claude-haiku-5-5": None,
    }


def test_system_prompts_may_name_columns() -> None:
    world = World(lambda text: "fine")
    run([{"q": "why?", "who": "Ann"}], "{q}", world, system="You are {who}.")
    assert world.asked == [["You are Ann.", "why?"]]
    run([{"q": "how?", "who": "Ann"}], "{q}", world, system="Be {{brief}}.", max_tokens=7)
    assert world.asked[-1] == ["Be {brief}.", "how?"] and 7 in world.bodies[-1].values()


def test_a_row_without_a_value_is_not_asked_and_says_so() -> None:
    world = World(lambda text: text)
    rows = [{"text": "a"}, {"text": None}, {"other": 1}]
    first, second, third = run(rows, "{text}!", world)
    assert first["answer"] == "a!" and second["answer"] is None
    assert second["error"] == third["error"] == {"kind": "missing", "message": "the row has no value for text"}
    assert world.asked == [["a!"]]
    assert [row["answer"] for row in run(rows, "{text}!", world, allow_missing=True)] == ["a!", "!", "!"]


def test_many_rows_without_a_value_do_not_stop_the_others() -> None:
    rows = run([{"text": None}] * 60 + [{"text": "a"}], "{text}", World(lambda text: text))
    assert [row["answer"] for row in rows[58:]] == [None, None, "a"]


def test_a_refusal_is_an_error_of_its_row() -> None:
    world = World(lambda text: Answer("I will not.", "refusal") if "b" in text else text)
    first, second = run(["a", "b"], "{text}", world)
    assert first["answer"] == "a" and second["answer"] is None and second["error"]["kind"] == "refusal"


def test_rows_that_have_a_field_of_that_name_are_refused_or_spared() -> None:
    world = World(lambda text: text)
    with pytest.raises(ConfigError, match="the rows have a column 'answer' already: name another"):
        asked_of([{"answer": "a"}], "{answer}", world)
    once = run(["a"], "{text}", world)
    (twice,) = run(once, "{answer}?", world, field="second")
    assert twice == {"text": "a", "answer": "a", "error": None, "second": "a?", "second_error": None}


def test_in_csv_no_answer_is_a_formula_and_what_was_there_stays(tmp_path: Path) -> None:
    output = tmp_path / "out.csv"
    run([{"text": "=A1"}], "{text}", World(lambda text: "=1+1"), output=str(output))
    assert output.read_text() == "text,answer,error\n=A1,'=1+1,\n"


def test_limit_and_sample_choose_rows() -> None:
    world = World(lambda text: text)
    rows = [str(number) for number in range(50)]
    assert [row["answer"] for row in run(rows, "{text}", world, limit=3)] == ["0", "1", "2"]
    chosen = [int(row["answer"]) for row in run(rows, "{text}", world, sample=7)]
    assert len(chosen) == 7 and chosen == sorted(set(chosen)) and chosen != list(range(7))
    assert chosen == [int(row["answer"]) for row in run(rows, "{text}", world, sample=7)]


# -- schemas ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reply", ['{"label": "good"}', '```json\n{"label": "good"}\n```'])
def test_an_answer_that_fits_the_schema_is_its_value(reply: str) -> None:
    world = World(lambda text: reply)
    (row,) = run(["a"], "{text}", world, SCHEMA)
    assert row["answer"] == {"label": "good"} and row["error"] is None and len(world.asked) == 1


def test_a_reply_that_does_not_fit_is_asked_for_once_more() -> None:
    world = World(lambda text: '{"label": "bad"}' if "did not fit" in text else '{"label": "ugly"}')
    (row,) = run(["a"], "{text}", world, SCHEMA)
    assert row["answer"] == {"label": "bad"} and len(world.asked) == 2
    assert "'ugly' is not one of" in world.asked[1][0] and world.asked[0] == ["a"]


def test_a_reply_that_never_fits_is_a_schema_error_of_its_row() -> None:
    world = World(lambda text: "no JSON" if text.startswith("b") else '{"label": "good"}')
    first, second = run(["a", "b"], "{text}", world, SCHEMA)
    assert first["answer"] == {"label": "good"} and second["answer"] is None
    assert second["error"]["kind"] == "schema" and "does not fit" in second["error"]["message"]
    assert len(world.asked) == 3


def test_schemas_and_models_without_structured_output_are_in_the_prompt() -> None:
    world = World(lambda text: 'Sure: {"label": "good"}')
    dated = {**SCHEMA, "properties": {**SCHEMA["properties"], "at": {"type": "string", "format": "date"}}}  # type: ignore[dict-item]
    for schema, name in ((dated, MODEL), (SCHEMA, "simulated/gpt-3.5-turbo")):
        (row,) = run(["a"], "{text}", world, schema, model=(name,))
        assert row["answer"] == {"label": "good"} and "JSON Schema" in world.asked[-1][0], name


def test_drafts_in_the_reasoning_of_a_model_are_no_answer() -> None:
    world = World(lambda text: '<think>\nPerhaps {"label": "bad"}? Or {}?\n</think>\n\n{"label": "good"}')
    (row,) = run(["a"], "{text}", world, SCHEMA, model=("simulated/gpt-3.5-turbo",))
    assert row["answer"] == {"label": "good"} and len(world.asked) == 1


def test_a_schema_that_a_provider_refuses_is_in_the_prompt() -> None:
    world = World(lambda text: '{"label": "good"}' if "JSON Schema" in text else "good")
    watched: list[Any] = []
    rows = run([*"abcd"], "{text}", world, SCHEMA, {"watch": watched.append}, model=("simulated/claude-haiku-5-5",))
    assert [row["answer"] for row in rows] == [{"label": "good"}] * 4 and not any(row["error"] for row in rows)
    said = [event.message for event in watched if isinstance(event, Notice) and "schema" in event.message]
    assert len(said) == 1 and "does not take the schema and is told about it in the prompt" in said[0]


def test_json_that_was_cut_says_so() -> None:
    (row,) = run(["a"], "{text}", World(lambda text: Answer('{"label": "go', "length")), SCHEMA)
    assert row["error"]["kind"] == "length" and "max_tokens" in row["error"]["message"]


@dataclass
class Label:
    label: str
    sure: float


@pytest.mark.parametrize("schema", [{"label": "good or bad"}, {"name": "label", "schema": SCHEMA, "strict": True}])
def test_a_schema_that_anything_would_fit_is_refused_before_the_first_call(schema: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"none of its keys \((label|name, schema, strict)\) is a keyword"):
        asked_of(["a"], "{text}", World(str), schema)


def test_a_schema_may_be_a_type_a_mapping_or_a_file(tmp_path: Path) -> None:
    world = World(lambda text: '{"label": "good", "sure": 1}')
    assert run(["a"], "{text}", world, Label)[0]["answer"] == {"label": "good", "sure": 1}
    (tmp_path / "s.json").write_text(json.dumps(SCHEMA))
    assert run(["a"], "{text}", world, str(tmp_path / "s.json"))[0]["error"] is None
    (tmp_path / "t.json").write_text('{"type": "objekt"}')
    with pytest.raises(ConfigError, match="objekt"):
        asked_of(["a"], "{text}", world, str(tmp_path / "t.json"))
    with pytest.raises(ConfigError, match="there is no file"):
        asked_of(["a"], "{text}", world, str(tmp_path / "u.json"))


# -- runs ------------------------------------------------------------------------------------------------------------


def test_the_same_questions_have_the_same_run_and_others_another(tmp_path: Path) -> None:
    world = World(lambda text: text)
    name = asked_of(["a", "b"], "{text}", world).run
    assert asked_of([{"text": "a", "id": 7}, {"text": "b"}], "{text}", world, field="other").run == name
    for rows, prompt, fields in (
        (["a", "c"], "{text}", {}),
        (["a", "b"], "{text}!", {}),
        (["a", "b"], "{text}", {"max_tokens": 5}),
        (["a", "b"], "{text}", {"model": ("simulated/other",)}),
        (["a", "b"], "{text}", {"system": "Be brief."}),
    ):
        assert asked_of(rows, prompt, world, **fields).run != name


def test_a_run_continues_without_asking_again_and_refuses_other_rows(tmp_path: Path) -> None:
    world = World(lambda text: text)
    how = {"ledger": tmp_path / "a.db", "run": "it"}
    run(["a", "b"], "{text}", world, how=how)
    assert [row["answer"] for row in run(["a", "b"], "{text}", world, how=how)] == ["a", "b"]
    assert len(world.asked) == 2
    with pytest.raises(ReplayDivergence, match=r"2 rows, .*3 rows, "):
        run(["a", "b", "c"], "{text}", world, how=how)


class Counting:
    """A table that knows how many rows of it were read in the latest pass."""

    def __init__(self, count: int) -> None:
        self.count, self.read = count, 0

    def __iter__(self) -> Iterator[tuple[Mapping[str, Any], str]]:
        self.read = 0
        for number in range(self.count):
            self.read += 1
            yield {"text": f"row {number}"}, f"row {number}"


def test_rows_are_read_only_as_far_as_they_are_asked_about() -> None:
    table, ahead = Counting(300), []
    world = World(lambda text: (ahead.append(table.read - len(world.asked)), text)[1])
    asked = asking(AskConfig(prompt="{text}", model=(MODEL,), window=20), table, make=world.make)
    asked.study.run("async:8").ledger.close()
    assert len(ahead) == 300 and max(ahead) <= 20


@pytest.mark.parametrize(
    ("after", "row"),
    [(["b", "c"], 1), (["a", "b"], 3), (["a", "c", "b"], 2), (["", "a", "b", "c"], 1), (["a", "b", "c", "d"], 0)],
    ids=["the first left out", "the last left out", "others swapped", "one in front", "one more"],
)
def test_no_answer_is_written_beside_a_row_that_was_not_asked_about(tmp_path: Path, after: list[str], row: int) -> None:
    table, output, streamed = tmp_path / "t.jsonl", tmp_path / "out.jsonl", list[Any]()

    def write(texts: list[str]) -> None:
        table.write_text("".join(json.dumps({"text": text, "more": len(texts)}) + "\n" for text in texts))

    world = World(lambda text: (write(after), text)[1])
    write(["a", "b", "c"])
    asked = asking(AskConfig(str(table), "{text}", (MODEL,), output=str(output)), make=world.make)
    stream = AnswerStream(asked.rows, asked.fields, streamed.append)
    if row:
        with pytest.raises(ConfigError, match=f"t.jsonl has changed while the run worked: row {row} is not the one"):
            asked.study.run("async:8", watch=stream)
        assert not output.exists() and len(streamed) < row
    else:
        asked.study.run("async:8", watch=stream).ledger.close()
        rows = [json.loads(line) for line in output.read_text().splitlines()]
        assert [each["answer"] for each in rows] == ["a", "b", "c", None] and rows[3]["error"]["kind"] == "not-asked"
    assert all(each["answer"] == each["text"] for each in streamed)


@pytest.mark.slow
def test_what_the_budget_does_not_reach_is_not_asked_and_later_is(tmp_path: Path) -> None:
    world = World(lambda text: text)
    rows = [f"row {number}" for number in range(40)]
    how = {"ledger": tmp_path / "a.db", "run": "it", "max_cost": 0.00005}
    first = run(rows, "{text}", world, how=how, max_tokens=20)
    errors = [row["error"] for row in first if row["error"]]
    assert {error["kind"] for error in errors} == {"not-asked"} and 0 < len(world.asked) < 40
    assert all("may cost up to" in error["message"] for error in errors)
    with RunView.open(tmp_path / "a.db", "it") as view:
        assert view.calls().counts.failed == 0
    again = run(rows, "{text}", world, how={**how, "max_cost": 1.0}, max_tokens=20)
    assert all(row["error"] is None for row in again) and len(world.asked) == 40


# -- from Python -----------------------------------------------------------------------------------------------------


def test_ask_gives_rows_back() -> None:
    rows = fanfold.ask(["Paris", "Rome"], "Where is {text}?", model=MODEL, max_tokens=5)
    assert [row["text"] for row in rows] == ["Paris", "Rome"] and all(row["answer"] for row in rows)


async def _two() -> tuple[list[Any], list[Any]]:
    one = await ask_async([{"q": 1}], "{q}", model=MODEL)
    return one, fanfold.ask([{"q": 1}], "{q}", model=MODEL)  # as in a notebook, inside a running loop


def test_ask_works_in_asynchronous_code_and_in_a_notebook() -> None:
    one, other = asyncio.run(_two())
    assert one == other and one[0]["error"] is None


@pytest.mark.slow
def test_ask_takes_data_frames_and_files(tmp_path: Path) -> None:
    import pandas
    import polars

    (tmp_path / "t.csv").write_text("text\na\n")
    tables = [pandas.DataFrame({"text": ["a"]}), polars.DataFrame({"text": ["a"]}), tmp_path / "t.csv"]
    answers = [fanfold.ask(table, "{text}", model=MODEL)[0] for table in tables]
    assert answers[0] == answers[1] == answers[2]


@pytest.mark.slow
def test_rows_of_a_frame_are_asked_by_their_values() -> None:
    import pandas

    days = pandas.to_datetime(["2026-01-31", None])
    frame = pandas.DataFrame({"day": days, "tags": [[1, 2]] * 2, 7: ["a", "b"]})
    world = World(lambda prompt: "yes")
    rows = run(frame.assign(tags=frame["tags"].map(numpy.array)), "{day} {tags.0} {7}", world)
    assert [row["error"] and row["error"]["message"] for row in rows] == [None, "the row has no value for day"]
    assert len(world.asked) == 1 and rows[0]["tags"] == [1, 2] and str(world.asked[0][-1]).endswith(" 1 a")


def test_ask_explains_mistakes() -> None:
    for call, said in (
        (lambda: fanfold.ask(["a"], "{text}", model=MODEL, max_token=5), "did you mean 'max_tokens'"),
        (lambda: fanfold.ask("nothing.csv", "{text}", model=MODEL), "there is no file nothing.csv"),
        (lambda: fanfold.ask({"text": "a"}, "{text}", model=MODEL), "rows must be a list of rows, not one dict"),
        (lambda: fanfold.ask([1], "{text}", model=MODEL), "row 0 is not a dict or a text but 1"),
        (lambda: fanfold.ask([], "{text}", model=MODEL), "there are no rows"),
        (lambda: fanfold.ask(["a"], "text", model=MODEL), "names no column"),
        (lambda: fanfold.ask(["a"], "{text}", model=()), "model is missing"),
        (lambda: fanfold.ask(["a"], "{text}", model=None), "model must be a name .* not None"),
        (lambda: fanfold.ask(["a"], "{text}", model=model(MODEL)), "model must be a name .* models.toml"),
        (lambda: fanfold.ask(["a"], "{text}", model=(MODEL, MODEL)), "names one twice"),
        (lambda: fanfold.ask(["a"], "{text}", model="nobody/x"), "names no known provider"),
    ):
        with pytest.raises(ConfigError, match=said):
            call()
