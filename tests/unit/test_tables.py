"""Tables are read from what people have, and written without losing a row or a type."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import io
import json
import sqlite3
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fanfold.errors import ConfigError
from fanfold.tables import column_types, kinds_of, open_table, plain_rows, write_rows

ROWS = [{"id": "1", "text": 'Grüße; "you"'}, {"id": "2", "text": "two\nlines"}]


def read(path: Path, **how: Any) -> list[Any]:
    return [row for row, _ in open_table(str(path), **how)]


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "latin-1"])
def test_csv_is_read_whatever_separates_its_columns(tmp_path: Path, delimiter: str, encoding: str) -> None:
    file = io.BytesIO()
    write_rows(ROWS, "csv", file, {"id": str, "text": str}, delimiter)
    path = tmp_path / "t.csv"
    path.write_text(file.getvalue().decode(), encoding=encoding)
    table = open_table(str(path), encoding=None if encoding.startswith("utf-8") else encoding)
    assert [row for row, _ in table] == ROWS
    assert (repr(delimiter) in table.inferred) == (delimiter != ",")


def test_a_separator_inside_quotes_separates_nothing(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text('"a;b;c",d\n1,2\n')
    assert read(tmp_path / "t.csv") == [{"a;b;c": "1", "d": "2"}]


@pytest.mark.parametrize(
    ("cells", "right"),
    [
        ([['"Yes', "a"], ["no", "b"], ['so"', "a"], ["x", "b"]], None),
        ([["a", '"Yes'], ["b", "no"], ["a", 'so"']], None),
        ([['"Yes," he said', "a"], ['5" wide', '"']], None),
        ([['"all"', "a"], ['"a ""b"" c"', "b"]], [["all", "a"], ['a "b" c', "b"]]),
        (
            [['"two\nlines"', "a"], ["b", '"two\n\nlines"'], ['"', "a"]],
            [["two\nlines", "a"], ["b", "two\n\nlines"], ['"', "a"]],
        ),
        ([['"tab\there"', "a"], ["b", "c"]], [["tab\there", "a"], ["b", "c"]]),
    ],
)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_quote_in_a_file_with_tabs_takes_in_no_other_row(tmp_path: Path, cells: Any, right: Any, end: str) -> None:
    lines = ["\t".join(row) for row in [["one", "two"], *cells]]
    (tmp_path / "t.tsv").write_bytes("".join(line + end for line in lines).encode())
    assert [list(row.values()) for row in read(tmp_path / "t.tsv")] == (right or cells)


def test_texts_longer_than_csv_usually_allows_are_read(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("text\n" + "a" * 500_000 + "\n")
    assert len(read(tmp_path / "t.csv")[0]["text"]) == 500_000


@pytest.mark.parametrize(
    "text",
    [
        "q;a;;;\r\none;1;;;\r\n;;;;\r\ntwo;2;;;\r\n;;;;\r\n;;;;\r\n",
        "sep=;\r\nq;a\r\none;1\r\n;\r\ntwo;2\r\n;\r\n",
        " q ; a\r\none;1\r\n;\r\ntwo;2\r\n",
    ],
    ids=["columns and rows beyond the data", "the line that names the separator", "blanks around names"],
)
def test_what_spreadsheets_leave_around_the_data_is_left_out(tmp_path: Path, text: str) -> None:
    (tmp_path / "t.csv").write_bytes(text.encode())
    assert read(tmp_path / "t.csv") == [{"q": "one", "a": "1"}, {"q": "", "a": ""}, {"q": "two", "a": "2"}]


def test_a_value_under_no_name_is_not_lost(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("q;a;;\none;1;;x\n")
    with pytest.raises(ConfigError, match="line 2 has more values than the 2 columns"):
        read(tmp_path / "t.csv")
    (tmp_path / "t.csv").write_text("Export of May,,\n,,\nid,q,a\n1,one,1\n")
    with pytest.raises(ConfigError, match=r"line 3 has more .* only column 'Export of May': .* further down"):
        read(tmp_path / "t.csv")
    (tmp_path / "t.csv").write_text(",q\n0,one\n,\n1,two\n")
    assert [row[""] for row in read(tmp_path / "t.csv")] == ["0", "", "1"]


def test_json_may_be_lines_or_one_array(tmp_path: Path) -> None:
    rows = [{"a": 1}, {"a": {"b": [2, None]}}]
    for name, text in {
        "l.jsonl": '{"a": 1}\n\n{"a": {"b": [2, null]}}',
        "m.jsonl": '\ufeff{"a": 1}\r\n{"a": {"b": [2, null]}}\r\n',
        "a.json": "\ufeff " + json.dumps(rows, indent=1),
        "b.json": '{"a": 1}\n{"a": {"b": [2, null]}}\n',
    }.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
        assert read(tmp_path / name) == rows, name
    (tmp_path / "u.jsonl").write_text('{"a": "ö"}\n{"a": 2}\n', encoding="utf-16")
    assert read(tmp_path / "u.jsonl", encoding="utf-16") == [{"a": "ö"}, {"a": 2}]


@pytest.mark.parametrize("index", [range(20), [f"r{number}" for number in range(20)]], ids=["numbers", "names"])
@pytest.mark.parametrize("orient", ["records", "index", "columns", "table"])
def test_json_of_pandas_has_a_row_for_each_of_the_frame(tmp_path: Path, orient: Any, index: Any) -> None:
    import pandas

    frame = pandas.DataFrame({"text": [f"t{number}" for number in range(20)], "label": ["a", "b"] * 10}, index=index)
    frame.to_json(tmp_path / "t.json", orient=orient)
    rows = [{name: row[name] for name in ("text", "label")} for row in read(tmp_path / "t.json")]
    assert rows == frame.to_dict("records")


def test_half_a_character_is_read_as_the_mark_of_a_lost_one(tmp_path: Path) -> None:
    row, right = {"a": "cut \ud83d", "b": [{"\udc00": "\ud83d\ude00"}]}, {"a": "cut \ufffd", "b": [{"\ufffd": "😀"}]}
    (tmp_path / "t.jsonl").write_text(json.dumps(row) + "\n")
    (tmp_path / "t.json").write_text(json.dumps([row]))
    given = {"a": "cut \ud83d", "b": [{"\udc00": "😀"}]}
    for rows in (read(tmp_path / "t.jsonl"), read(tmp_path / "t.json"), [*plain_rows([given])]):
        assert rows == [right]
    assert [*plain_rows([{"a": "\ud83d"}, "\ud83d"])] == [{"a": "\ufffd"}, "\ufffd"]


def test_lines_of_a_text_are_rows(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_bytes("\ufeffParis\r\n\r\n Rome \r\n".encode())
    assert read(tmp_path / "t.txt") == [{"text": "Paris"}, {"text": " Rome "}]


@pytest.mark.parametrize(
    ("name", "data", "how", "said"),
    [
        ("t.json", b"[1, 2]", {}, "item 1 of t.json is not an object"),
        ("t.json", b'[{"a": 1}', {}, "t.json is not JSON"),
        ("t.txt", b"Gr\xf6\xdfe\n", {}, "line 1 is not in UTF-8"),
        ("t.csv", b"a\nb\n", {"encoding": "klingon"}, "there is no encoding 'klingon'"),
        ("t.csv", b"a,c\nb,d\n", {"encoding": "utf-16"}, "t.csv is not in utf-16: "),
        ("t.csv", b"a\nb\n", {"format": "cvs"}, "there is no format 'cvs'; did you mean 'csv'"),
        ("t.jsonl", b'{"a": NaN}\n', {}, "line 1 is not JSON"),
    ],
)
def test_what_cannot_be_read_is_explained(tmp_path: Path, name: str, data: bytes, how: Any, said: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ConfigError, match=said):
        read(tmp_path / name, **how)


def test_a_dataset_saved_to_a_folder_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Saved(list[Any]):
        features = types.MappingProxyType({"text": types.SimpleNamespace(names=None)})

    (tmp_path / "dataset_info.json").write_text("{}")
    hub = types.SimpleNamespace(load_from_disk=lambda name: Saved([{"text": "a"}]))
    monkeypatch.setitem(sys.modules, "datasets", hub)
    assert read(tmp_path) == [{"text": "a"}]
    hub.load_from_disk = lambda name: {"train": Saved(), "test": Saved()}
    with pytest.raises(ConfigError, match="several splits: name the folder of one, train, test"):
        read(tmp_path)


def test_parquet_keeps_the_types_of_its_columns(tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    table = pyarrow.table({"n": [1, None], "tags": [["a"], []], "x": [0.5, 1.0]})
    parquet.write_table(table, tmp_path / "t.parquet")
    kinds = column_types(tmp_path / "t.parquet")
    with (tmp_path / "u.parquet").open("wb") as file:
        write_rows(read(tmp_path / "t.parquet"), "parquet", file, kinds)
    assert parquet.read_table(tmp_path / "u.parquet").equals(table)


def test_a_column_has_the_type_that_fits_all_its_values() -> None:
    rows: list[dict[str, Any]] = [{"a": 1, "b": True, "c": None}, {"a": 0.5, "b": "x", "d": [1]}, {"e": 2**70}]
    assert kinds_of(rows) == {"a": float, "b": str, "c": None, "d": str, "e": str}


class Team(enum.Enum):
    RETURNS = "returns"


class Mail(NamedTuple):
    text: str
    teams: Any


@dataclasses.dataclass
class Ticket:
    text: str
    teams: Any


def tables_of_others() -> Iterator[Any]:
    import numpy
    import pandas
    import polars
    import pyarrow
    import pydantic

    class Letter(pydantic.BaseModel):
        text: str
        teams: list[str]

    lists = {"text": ["a", "b"], "teams": [["x", "y"], ["z"]]}
    yield polars.DataFrame(lists)
    yield polars.LazyFrame(lists)
    yield pyarrow.table(lists)
    yield pandas.DataFrame({**lists, "teams": [numpy.array(teams) for teams in lists["teams"]]})
    for kind in (Mail, Ticket, Letter):
        yield [kind(text=text, teams=teams) for text, teams in zip(*lists.values())]
    yield [{"text": text, "teams": set(teams)} for text, teams in zip(*lists.values())]
    database = sqlite3.connect(":memory:")
    database.row_factory = sqlite3.Row
    assert [*plain_rows(database.execute("select 'a' as text"))] == [{"text": "a"}]


def test_rows_of_every_library_are_plain() -> None:
    for table in tables_of_others():
        assert [*plain_rows(table)] == [{"text": "a", "teams": ["x", "y"]}, {"text": "b", "teams": ["z"]}], table


def test_values_of_every_library_are_plain() -> None:
    import numpy
    import pandas

    day = datetime.datetime(2026, 1, 31)
    for value, right in (
        (numpy.int64(3), 3),
        (numpy.array([[1, 2]]), [[1, 2]]),
        (numpy.datetime64("2026-01-31", "ns"), day),
        (numpy.array(["2026-01-31", "NaT"], "datetime64[ns]"), [day, None]),
        (pandas.Timestamp("2026-01-31"), day),
        (pandas.Timedelta("1h"), datetime.timedelta(hours=1)),
        (pandas.NaT, None),
        (pandas.NA, None),
        (Team.RETURNS, "returns"),
        ({"a": (numpy.bool_(True), {3: Team.RETURNS})}, {"a": (True, {"3": "returns"})}),
        (day, day),
        (b"a", b"a"),
    ):
        (row,) = plain_rows([{"value": value}])
        assert row == {"value": right} and type(row["value"]) is type(right), value


def test_numbered_labels_of_a_dataset_in_python_become_their_names() -> None:
    class Dataset(list[Any]):
        features = types.MappingProxyType({"label": types.SimpleNamespace(names=["no", "yes"]), "text": None})

    assert [*plain_rows(Dataset([{"text": "a", "label": 1}]))] == [{"text": "a", "label": "yes"}]


def test_a_frame_with_two_columns_of_one_name_and_one_value_for_many_are_refused() -> None:
    import pandas

    with pytest.raises(ConfigError, match="two columns of the data frame are called 'text': rename one"):
        plain_rows(pandas.DataFrame([["a", "b"]], columns=["text", "text"]))
    for rows in ({"text": ["a"]}, b"a", 3):
        with pytest.raises(ConfigError, match="rows must be a list of rows, not one"):
            plain_rows(rows)  # type: ignore[arg-type]
