"""Tables are read from what people have, and written without losing a row or a type."""

from __future__ import annotations

import io
import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from fanfold.errors import ConfigError
from fanfold.tables import column_types, kinds_of, open_table, write_rows

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
