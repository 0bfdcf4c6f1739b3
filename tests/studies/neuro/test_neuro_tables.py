"""Tables to learn from: what is inferred, what is refused, and what networks see of rows."""

from __future__ import annotations

import csv
import dataclasses
import datetime
import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_diabetes, load_linnerud, load_wine

from fanfold.errors import ConfigError, ReplayDivergence
from fanfold.run_result import Run
from fanfold.studies.neuro import NeuroConfig, columns, run_options, study
from fanfold.studies.neuro.columns import Column, TableEncoder
from fanfold.studies.neuro.config import source
from fanfold.studies.neuro.data import Data, from_arrays, identity, load
from fanfold.studies.neuro.shown import answered
from fanfold.studies.neuro.tables import TableOptions

pd = pytest.importorskip("pandas")
RNG = np.random.default_rng(0)


def written(path: Path, names: Sequence[str], rows: Iterable[Sequence[Any]], **dialect: Any) -> str:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, **dialect)
        writer.writerows([names, *rows])
    return str(path)


def table(path: str, **options: Any) -> Data:
    return load(path, validation=None, test=None, columns=TableOptions(**options))


@pytest.fixture
def houses(tmp_path: Path) -> str:
    """As a spreadsheet in German writes it: semicolons, decimal commas, Windows-1252, and what people type."""
    lines = ["Stadt;Fläche;Alter;Notiz;leer;gebaut;Preis"]
    for i in range(120):
        age = ("unbekannt", "")[i % 2] if i % 20 == 0 else str(i % 90)
        area = f"{20 + i * 1.5:.1f}".replace(".", ",")
        price = f"{1000 + 7 * i:,.2f}".replace(",", "_").replace(".", ",").replace("_", ".")
        lines.append(
            f'{("Bern", "Zürich", "Genève")[i % 3]};"{area}";{age};x;;{1930 + i % 90}-05-0{i % 9 + 1};"{price}"'
        )
    path = tmp_path / "houses.csv"
    path.write_bytes("\r\n".join(lines).encode("cp1252"))
    return str(path)


def test_an_awkward_table_is_read_and_everything_inferred_is_said(houses: str) -> None:
    data = table(houses)
    assert data.shape.target == "numbers" and data.classes == ("Preis",)
    assert data.table is not None
    assert data.table.features == [
        "Stadt=Bern", "Stadt=Genève", "Stadt=Zürich", "Fläche", "Alter", "Alter is missing", "gebaut",
    ]  # fmt: skip
    first, *others = data.remarks
    assert first.startswith("predicts Preis, a number (regression) from 2 numbers, 1 category, 1 date, 1 % missing")
    assert "120 rows" in first and "--predict-as" in first
    said = "\n".join(others)
    for words in ("6 texts such as 'unbekannt'", "empty: leer", "always the same: Notiz", "cp1252", "';'"):
        assert words in said
    (mean, scale) = data.units[0]
    prices = data.train.labels[:, 0] * scale + mean
    assert prices.min() >= 1000 and prices.max() <= 1833  # 1.833,00 is neither 1.833 nor 183,300


def test_the_encoding_is_learnt_from_the_training_part_alone(tmp_path: Path) -> None:
    rows = [(float(i), "ab"[i % 2], i % 2) for i in range(200)]
    path = written(tmp_path / "t.csv", ("x", "c", "y"), rows)
    data = table(path)
    assert data.table is not None
    number = data.table.columns[0]
    train = data.train.pixels[:, 0, 0, 0].astype(float) * number.scale + number.mean
    assert train.mean() == pytest.approx(number.mean) and train.std() == pytest.approx(number.scale)
    held = {f"{x:.0f}" for x in data.test.pixels[:, 0, 0, 0].astype(float) * number.scale + number.mean}
    odd = [(1e6 if f"{x:.0f}" in held else x, "z" if f"{x:.0f}" in held else c, y) for x, c, y in rows]
    assert table(written(tmp_path / "odd.csv", ("x", "c", "y"), odd)).table == data.table


def test_missing_values_are_filled_with_the_mean_and_marked(tmp_path: Path) -> None:
    gaps = ("", "NA", "n/a", "NaN", "null", "?")
    rows = [(gaps[i // 4 % 6] if i % 4 == 0 else i, "" if i % 5 == 0 else "ab"[i % 2], i % 2) for i in range(100)]
    data = table(written(tmp_path / "t.csv", ("x", "c", "y"), rows))
    assert data.table is not None
    assert data.table.features == ["x", "x is missing", "c=a", "c=b", "c is missing"]
    seen = data.table.encode([{"x": None, "c": "?"}, {"x": 3, "c": "b"}, {"x": "3", "c": "never seen"}])
    assert seen[0].tolist() == [0, 1, 0, 0, 1]
    assert seen[1, 1:].tolist() == [0, 0, 1, 0] and seen[1, 0] != 0
    assert seen[2].tolist() == [seen[1, 0], 0, 0, 0, 0]


def test_many_categories_share_features_and_long_tails_are_bent(tmp_path: Path) -> None:
    rows = [(f"town {i % 60}", 1e9 if i % 60 == 7 else i % 60, i % 2) for i in range(300)]
    data = table(written(tmp_path / "t.csv", ("town", "size", "y"), rows))
    assert data.table is not None
    town, _ = data.table.columns
    assert town.buckets == 64 and data.shape.channels == 65
    assert any("60 categories" in remark for remark in data.remarks)
    assert data.train.pixels[:, :64].sum(axis=1).max() == 1.0
    usual = data.table.columns[1].encoded([0.0, 30.0, 59.0, 1e9])[:, 0]
    assert usual[2] - usual[0] > 1 and 10 < usual[3] < 30  # standardised, the usual ones would all be the same


@pytest.mark.parametrize(
    ("value", "decimal", "number"),
    [
        (" 12 ", ".", 12.0), ("1,234.5", ".", 1234.5), ("1.234,5", ",", 1234.5), ("-3,5", ",", -3.5),
        ("12 %", ".", 12.0), ("$5.00", ".", 5.0), ("1e3", ".", 1000.0), (True, ".", 1.0), (7, ",", 7.0),
        ("1 234 567", ".", 1234567.0), ("-1\u202f234,5", ",", -1234.5), ("12\u00a0345 €", ".", 12345.0),
    ],
)  # fmt: skip
def test_numbers_are_read_as_people_write_them(value: Any, decimal: str, number: float) -> None:
    assert columns.number(value, decimal) == number


@pytest.mark.parametrize("text", ["1_000", "inf", "twelve", "1,23,4", "12.3.4", "12 34", "1 2345", "5 km"])
def test_what_is_not_a_number_is_not_taken_for_one(text: str) -> None:
    assert np.isnan(columns.number(text))


def test_dates_are_days_however_they_come() -> None:
    column = Column("when", "date")
    moment = datetime.datetime(2026, 1, 31, 12)
    values = [
        "2026-01-31T12:00",
        moment,
        np.datetime64("2026-01-31T12"),
        pd.Timestamp(moment),
        datetime.date(2026, 1, 31),
    ]
    assert column.numbers(values).tolist() == [20484.5] * 4 + [20484.0]
    assert column.numbers(["2026-01-31T12:00+02:00"])[0] == pytest.approx(20484.5 - 2 / 24)


@pytest.mark.parametrize(
    ("text", "days"),
    [
        ("2026/1/31", 20484.0),
        ("2026.01.31 6:00", 20484.25),
        ("2026/01/31 06:00 PM", 20484.75),
        ("31-Jan-2026", 20484.0),
        ("31. January 2026", 20484.0),
        ("Jan 31, 2026 12:00 am", 20484.0),
        ("18:00", 0.75),
        ("6:00:00 p.m.", 0.75),
        (datetime.time(18), 0.75),
        ("26:00", None),
        ("Jam 31, 2026", None),
        ("2026/31/01", None),
        ("3:1", None),
    ],
)
def test_dates_and_times_of_day_are_read_in_the_usual_forms(text: Any, days: float | None) -> None:
    read = Column("when", "date").numbers([text])[0]
    assert np.isnan(read) if days is None else read == days


def test_a_length_of_time_is_a_number_of_seconds(tmp_path: Path) -> None:
    frame = pd.DataFrame({"took": pd.to_timedelta(np.arange(60.0) * 60, unit="s"), "y": np.arange(60) > 29})
    path = str(tmp_path / "times.parquet")
    frame.to_parquet(path)
    encoder = table(path).table
    assert encoder is not None and encoder.columns[0].kind == "number"
    assert encoder.columns[0].numbers([datetime.timedelta(minutes=2)]).tolist() == [120.0]


@pytest.mark.parametrize(
    ("texts", "order", "days"),
    [
        (["31.01.2026", "1.2.2026 12:00"], "dmy", [20484.0, 20485.5]),
        (["1/31/2026 6:00:00", "02/01/2026"], "mdy", [20484.25, 20485.0]),
        (["31-01-2026", "01-02-2026"], "dmy", [20484.0, 20485.0]),
        (["01/02/2026", "03/04/2026"], "", None),
        (["31/01/2026", "01/31/2026"], "", None),
    ],
)
def test_dates_with_the_year_last_are_read_where_they_tell_day_from_month(
    texts: list[str], order: str, days: list[float] | None
) -> None:
    assert columns.date_order(texts) == order
    if days is not None:
        assert Column("when", "date", order=order).numbers([*texts, "32.01.2026"])[:2].tolist() == days


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("sheet.xlsx", "saves its sheet as CSV"),
        ("rows.dat", "use .jsonl"),
        ("rows.txt", "is read as lines of text: if it has columns, call it .csv, whatever separates them"),
    ],
)
def test_a_file_of_another_kind_is_refused_with_the_remedy(tmp_path: Path, name: str, remedy: str) -> None:
    (tmp_path / name).write_bytes(b"PK\3\4")
    with pytest.raises(ConfigError, match=remedy):
        load(str(tmp_path / name))


REFUSED: dict[str, tuple[tuple[str, ...], Any, dict[str, Any], str]] = {
    "too many texts to predict": (("x", "who"), lambda i: (i, f"person {i}"), {}, "900 different values in 900 rows"),
    "no such column": (("x", "y"), lambda i: (i, i % 2), {"predict": ("yy",)}, "'yy' to predict; did you mean 'y'"),
    "nothing to ignore": (("x", "y"), lambda i: (i, i % 2), {"ignore": ("id",)}, "no column 'id' to ignore"),
    "an id": (("id", "x", "y"), lambda i: (i, i % 7, i % 2), {}, "'id' numbers the rows.*--ignore id"),
    "units": (("t", "y"), lambda i: (f"{i / 7:.1f} km", i % 2), {}, "'t' holds numbers with a unit, such as '0.0 km'"),
    "free text": (("t", "y"), lambda i: (f"I liked it {i}", i % 2), {}, "'t' has 900 different texts.*--ignore t"),
    "several of them": (
        ("id", "x", "my text", "y"), lambda i: (i, i % 7, f"I liked it {i}", i % 2), {},
        r"'id' numbers the rows.*Nor can 'my text' be used: --ignore 'id,my text' leaves out all of them",
    ),
    "a name of two words": (("my text", "y"), lambda i: (f"I liked it {i}", i % 2), {}, "--ignore 'my text'"),
    "a name with a comma": (("a, b", "y"), lambda i: (f"I liked it {i}", i % 2), {}, "--ignore '\"a, b\"'"),
    "part of a name": (("a, b", "y"), lambda i: (i, i % 2), {"predict": ("a",)}, "a comma is put in double quotes"),
    "one column": (("x y",), lambda i: (f"{i} {i % 2}",), {}, "one column, 'x y': separate columns by a comma, a tab"),
    "dates of another kind": (("d", "y"), lambda i: (f"1/{i % 12 + 1}/2026", i % 2), {}, "'d' holds dates.*2026-01-31"),
    "dates with short years": (("d", "y"), lambda i: (f"{i % 28 + 1}.1.26", i % 2), {}, "'d' holds dates.*2026-01-31"),
    "always the same": (("x", "y"), lambda i: (i, "yes"), {}, "'y' is always the same"),
    "a number always the same": (("x", "y"), lambda i: (i, 5), {"predict_as": "numbers"}, "'y' is always 5"),
    "texts as numbers": (("x", "y"), lambda i: (i, "abc"[i % 3]), {"predict_as": "numbers"}, "'y' holds texts such"),
    "mixed targets": (("x", "a", "b"), lambda i: (i, i, "ab"[i % 2]), {"predict": ("a", "b")}, "'b' holds 'a'"),
    "nothing to predict from": (("c", "y"), lambda i: ("same", i % 2), {}, "no column is left.*always the same: c"),
    "all is predicted": (("x", "y"), lambda i: (i, i), {"predict": ("x", "y")}, "none is left"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_work_is_refused_by_column_and_remedy(tmp_path: Path, case: str) -> None:
    names, row, options, says = REFUSED[case]
    path = written(tmp_path / "t.csv", names, [row(i) for i in range(900)])
    with pytest.raises(ConfigError, match=says):
        table(path, **options)


def test_a_dozen_rows_are_too_few_and_rows_without_the_target_do_not_count(tmp_path: Path) -> None:
    path = written(tmp_path / "t.csv", ("x", "y"), [(i, i % 2 if i < 12 else "") for i in range(100)])
    with pytest.raises(ConfigError, match="100 rows, 88 of them without y are too few"):
        table(path)
    path = written(tmp_path / "u.csv", ("x", "y"), [(i, i % 2 if i % 10 else "") for i in range(100)])
    data = table(path)
    assert len(data.train) + len(data.validation) + len(data.test) == 90
    assert "10 rows without 'y' are left out" in data.remarks


def test_a_column_that_alone_tells_the_answer_is_named(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    left = np.arange(300) >= 250  # sorted by the answer, as tables often are
    columns = {
        "age": rng.integers(18, 90, 300),
        "sex": rng.choice(["m", "f"], 300),
        "reason": np.where(left, rng.choice(["price", "moved"], 300), ""),
        "fee": np.where(left, rng.integers(10, 50, 300), 0),
        "refund": np.where(left, "5.5", ""),
        "y": np.where(left, "left", "stays"),
    }
    data = table(written(tmp_path / "churn.csv", list(columns), zip(*columns.values())))
    told = "'reason', 'fee', 'refund' alone tell 'y' of nearly all rows: if known only afterwards, --ignore reason,fee"
    assert f"{told},refund" in data.remarks
    price = np.exp(rng.normal(5, 1, 300))
    rows = zip(price * rng.uniform(0.8, 1.2, 300), np.round(price * 1.19, 2), price)
    data = table(written(tmp_path / "prices.csv", ("size", "gross", "price"), rows))
    told = "'gross' alone tells 'price' of nearly all rows: if known only afterwards, --ignore gross"
    assert [remark for remark in data.remarks if "alone" in remark] == [told]


def test_rows_without_labels_say_how_they_can_be_kept(tmp_path: Path) -> None:
    rows = [(i, ("red; large", "soft", "")[i % 3]) for i in range(90)]
    data = table(written(tmp_path / "tags.csv", ("x", "tags"), rows), predict_as="labels")
    told = "30 rows without 'tags' are left out (so that rows may have none, predict columns of 0 and 1)"
    assert told in data.remarks


def test_the_usual_words_for_a_missing_value_leave_a_column_of_numbers(tmp_path: Path) -> None:
    words = ("n.a.", "N/A", ".", "#VALUE!", "#DIV/0!", "")
    rows = [(words[i % 6] if i % 3 == 0 else i / 7, i % 2) for i in range(120)]
    encoder = table(written(tmp_path / "gaps.csv", ("x", "y"), rows)).table
    assert encoder is not None and (encoder.columns[0].kind, encoder.columns[0].marked) == ("number", True)


def test_numbers_of_rows_that_a_frame_wrote_along_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "wine.csv"
    load_wine(as_frame=True).frame.to_csv(path)  # its first column has no name
    data = table(str(path))
    assert data.shape.channels == 13 and data.classes == ("0", "1", "2")
    assert any("numbers of the rows" in remark for remark in data.remarks)


def test_csv_and_parquet_and_arrays_and_frames_are_the_same_table(tmp_path: Path) -> None:
    frame = load_wine(as_frame=True).frame
    frame.to_csv(tmp_path / "wine.csv", index=False)
    frame.to_parquet(tmp_path / "wine.parquet")
    one, two = (table(str(tmp_path / f"wine.{ending}")) for ending in ("csv", "parquet"))
    x, y = frame.drop(columns="target"), frame["target"]
    settings: dict[str, Any] = {"validation": 0.2, "test": 0.2}
    three, four = from_arrays(x.to_numpy(), y.to_numpy(), **settings), from_arrays(x, y, **settings)
    assert one.digest == two.digest == three.digest == four.digest
    assert three.shape.kind == "table" and four.table is not None and four.table.columns[0].name == "alcohol"


@pytest.mark.parametrize(
    ("y", "target", "width"),
    [
        (RNG.integers(3, size=60), "classes", 3),
        (RNG.normal(size=60), "numbers", 1),
        (RNG.normal(size=(60, 2)), "numbers", 2),
        (RNG.integers(2, size=(60, 4)), "labels", 4),
    ],
)
def test_what_an_array_of_answers_is_follows_from_its_values(y: Any, target: str, width: int) -> None:
    data = from_arrays(RNG.normal(size=(60, 5)), y, validation=0.2, test=0.2)
    assert (data.shape.target, data.shape.classes) == (target, width)
    assert data.train.labels.dtype == (np.int64 if target == "classes" else np.float32)


def test_several_columns_are_numbers_or_labels(tmp_path: Path) -> None:
    bunch = load_linnerud(as_frame=True)
    frame = pd.concat([bunch.data, bunch.target], axis=1)
    frame.to_csv(tmp_path / "linnerud.csv", index=False)
    data = table(str(tmp_path / "linnerud.csv"), predict=("Weight", "Waist", "Pulse"))
    assert data.shape.target == "numbers" and data.shape.classes == 3 and data.shape.channels == 3
    np.testing.assert_allclose(data.train.labels.mean(axis=0), 0.0, atol=1e-6)
    rows = [(i, i % 2, i % 3 == 0) for i in range(60)]
    labels = table(
        written(tmp_path / "l.csv", ("x", "a", "b"), [(x, int(a), int(b)) for x, a, b in rows]), predict=("a", "b")
    )
    assert labels.shape.target == "labels" and labels.classes == ("a", "b")


def test_labels_may_be_in_one_text(tmp_path: Path) -> None:
    rows = [
        (i, "; ".join(name for name, has in (("even", i % 2 == 0), ("third", i % 3 == 0), ("any", True)) if has))
        for i in range(60)
    ]
    data = table(written(tmp_path / "t.csv", ("x", "tags"), rows), predict_as="labels")
    assert data.classes == ("any", "even", "third")
    assert data.train.labels[:, 0].all() and 0.3 < data.train.labels[:, 1].mean() < 0.7


def test_numbers_are_split_in_proportion_to_their_size() -> None:
    data = load_diabetes()
    parts = from_arrays(data.data, data.target, validation=0.2, test=0.2)
    means = [float(part.labels.mean()) for part in (parts.train, parts.validation, parts.test)]
    assert max(means) - min(means) < 0.12  # of a deviation; by luck alone it is three times that


def test_sequences_are_images_of_one_line() -> None:
    data = from_arrays(RNG.normal(size=(50, 3, 20)), RNG.integers(2, size=50), kind="sequence")
    assert (data.shape.channels, data.shape.height, data.shape.width, data.shape.kind) == (3, 1, 20, "sequence")


def test_a_file_of_arrays_says_what_it_was_taken_for(tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", x=RNG.normal(size=(60, 5)), y=RNG.normal(size=60))
    np.savez(tmp_path / "waves.npz", x=RNG.normal(size=(60, 2, 30)), y=RNG.integers(2, size=60))
    rows, waves = (f"arrays:{tmp_path / name}.npz" for name in ("rows", "waves"))
    (said,) = load(rows).remarks
    assert "rows of numbers of 5, to predict numbers (--kind, --predict-as)" in said
    assert "images of 2 x 30" in load(waves).remarks[0]
    assert "sequences of 2 x 30" in load(waves, columns=TableOptions(kind="sequence")).remarks[0]


def test_weights_are_1_in_the_mean_and_tell_data_apart() -> None:
    x, y = RNG.normal(size=(60, 3)), RNG.integers(2, size=60)
    plain, weighted = from_arrays(x, y), from_arrays(x, y, weights=np.arange(60) + 1.0)
    assert plain.digest != weighted.digest and weighted.train.weights is not None
    for wrong in (np.ones(59), -np.ones(60), np.zeros(60), np.full(60, np.nan)):
        with pytest.raises(ConfigError, match="weights must be 60 numbers"):
            from_arrays(x, y, weights=wrong)


def test_another_file_under_the_same_name_is_another_source(tmp_path: Path) -> None:
    path = written(tmp_path / "t.csv", ("x", "y"), [(i, i % 2) for i in range(60)])
    first = source(NeuroConfig(dataset=path))
    written(tmp_path / "t.csv", ("x", "y"), [(i + 1, i % 2) for i in range(60)])
    assert identity(source(NeuroConfig(dataset=path))) != identity(first)
    plain = repr(source(NeuroConfig(dataset="digits")))
    assert plain.startswith("Source(name='digits', folder=None, validation=0.1, test=0.1") and "columns" not in plain


def test_the_study_says_what_was_inferred_before_it_runs(tmp_path: Path) -> None:
    path = written(tmp_path / "t.csv", ("size", "price", "kind"), [(i, 3.5 * i, "ab"[i % 2]) for i in range(60)])
    config = NeuroConfig(dataset=path, predict=("price",), results=None)
    assert study(config).remarks[0].startswith("predicts price, a number (regression) from 1 number, 1 category")
    with pytest.raises(ConfigError, match="digits has no columns"):
        study(NeuroConfig(predict=("price",)))


def test_the_encoder_works_from_a_saved_card_in_a_process_without_fanfold(houses: str, tmp_path: Path) -> None:
    data = table(houses)
    assert data.table is not None
    rows = [{"Stadt": "Bern", "Fläche": "33,5", "Alter": None, "gebaut": "1999-01-02"}]
    Path(tmp_path, "model.json").write_text(json.dumps({"table": data.table.as_dict()}), encoding="utf-8")
    Path(tmp_path, "table.py").write_text(Path(columns.__file__).read_text(encoding="utf-8"), encoding="utf-8")
    code = (
        "import json, sys; sys.path.insert(0, '.'); from table import TableEncoder; "
        "assert 'fanfold' not in sys.modules; "
        f"print(json.dumps(TableEncoder.load('model.json').encode({rows!r}).tolist()))"
    )
    alone = subprocess.run(
        [sys.executable, "-I", "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(alone.stdout) == data.table.encode(rows).tolist()
    assert TableEncoder.load(data.table.as_dict()) == data.table
    with pytest.raises(ValueError, match="no column 'Fläche'"):
        data.table.encode([{"Stadt": "Bern"}])
    assert dataclasses.replace(data.table) == data.table


def test_a_first_line_that_is_a_row_is_refused(tmp_path: Path) -> None:
    iris = [(5.1, 3.5, 1.4, "setosa"), *((i / 9, i / 7, i / 5, "ab"[i % 2]) for i in range(40))]
    adult = [(39, "State-gov", 77516, 13, "<=50K"), *((i, "Private", 3 * i, i % 16, "ab"[i % 2]) for i in range(40))]
    for rows, value in (iris, "5.1"), (adult, "39"):
        path = written(tmp_path / "bare.csv", rows[0], rows[1:])
        with pytest.raises(ConfigError, match=f"must hold the names of the columns, and '{value}' is a value: write"):
            table(path)


@pytest.mark.parametrize("names", [("town", "1990", "1991", "y"), ("2020", "2019", "2018", "y"), ("a", "3", "b", "y")])
def test_names_of_columns_may_be_numbers(names: Sequence[str], tmp_path: Path) -> None:
    path = written(tmp_path / "years.csv", names, ((i % 3, i / 7, i % 5, i % 2) for i in range(40)))
    assert table(path).table is not None


def test_a_class_that_nearly_all_rows_have_is_said(tmp_path: Path) -> None:
    rows = [(i / 7, "fraud" if i < 3 else "fine") for i in range(120)]
    remarks = table(written(tmp_path / "rare.csv", ("x", "y"), rows)).remarks
    assert remarks[1] == (
        "97.5 % of the rows have 'y' 'fine', and 3 'fraud': always answering 'fine' has an accuracy of 0.975; with "
        "--balanced every class counts the same"
    )
    even = [(i / 7, "ab"[i % 2]) for i in range(120)]
    assert len(table(written(tmp_path / "even.csv", ("x", "y"), even)).remarks) == 1


def test_a_class_too_rare_for_every_part_is_said(tmp_path: Path) -> None:
    rows = [(i / 7, "once" if i == 5 else "ab"[i % 2]) for i in range(120)]
    remarks = table(written(tmp_path / "once.csv", ("x", "y"), rows)).remarks
    assert remarks[1] == "fewer than 3 rows have 'y' 'once': too few to learn from, to validate and to test"


def test_classes_that_are_written_in_several_ways_are_said(tmp_path: Path) -> None:
    ways = ("Yes", "no", "YES ", "yes", "not sure", "notsure")
    data = table(written(tmp_path / "t.csv", ["x", "y"], [(i, ways[i % 6]) for i in range(60)]))
    assert data.shape.classes == 6
    text = "classes of 'y' differ in capitals or blanks alone ('YES', 'Yes', 'yes'; 'not sure', 'notsure'): "
    assert f"{text}if they are the same, write them alike" in data.remarks
    plain = table(written(tmp_path / "u.csv", ["x", "y"], [(i, ways[i % 2]) for i in range(60)]))
    assert not any("capitals" in remark for remark in plain.remarks)


def test_texts_where_a_number_is_to_be_predicted_are_said(tmp_path: Path) -> None:
    rows = [(i, "sold out" if i % 20 == 3 else "" if i % 10 == 4 else i / 7) for i in range(60)]
    data = table(written(tmp_path / "t.csv", ["x", "price"], rows))
    said = "9 rows without 'price' are left out, 3 of them because texts such as 'sold out' are not numbers"
    assert said in data.remarks


def test_rows_may_be_lists_or_a_frame_of_polars_and_answers_a_column() -> None:
    x, y = load_wine(return_X_y=True)
    wanted = from_arrays(x, y)
    frame = pytest.importorskip("polars").DataFrame(x, schema=[f"x{place}" for place in range(x.shape[1])])
    for data in (from_arrays(x.tolist(), y.tolist()), from_arrays(frame, y), from_arrays(x, y[:, None])):
        assert data.digest == wanted.digest and data.shape.target == "classes"


def test_columns_of_one_name_are_refused() -> None:
    x, y = load_wine(return_X_y=True, as_frame=True)
    with pytest.raises(ConfigError, match="two columns are called 'a': rename one"):
        from_arrays(x.set_axis([*"abcdefghijk", "a", "l"], axis=1), y)


def test_sequences_with_their_channels_last_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"transpose\(0, 2, 1\)"):
        from_arrays(np.zeros((60, 50, 3)), np.arange(60) % 2, kind="sequence")


def test_numbers_with_some_texts_and_long_texts_are_refused_by_an_example(tmp_path: Path) -> None:
    rows = [("about 5" if i % 7 == 0 else i, i / 3, i % 2) for i in range(120)]
    with pytest.raises(ConfigError, match="'m' holds numbers, but also 18 texts such as 'about 5': make numbers of"):
        table(written(tmp_path / "mixed.csv", ("m", "x", "y"), rows))
    texts = [(f"{i} {'a long review ' * 9}", i / 3, i % 2) for i in range(120)]
    with pytest.raises(ConfigError, match=r"such as '0 a long review a long review a long re…': that is learnt"):
        table(written(tmp_path / "texts.csv", ("t", "x", "y"), texts))


def test_what_was_inferred_names_only_options_that_change_it(tmp_path: Path) -> None:
    rows = [("" if i == 4 else i % 2, i / 3) for i in range(60)]
    path = written(tmp_path / "split.csv", ("y", "x"), rows, delimiter=";")
    assert table(path).remarks[1:] == (
        "1 row without 'y' is left out",
        "of split.csv, its columns are separated by ';'",
    )


def test_mistakes_are_counted_in_rows_or_in_images() -> None:
    for unit, section in ("rows", answered([0, 1], [0, 0])), ("images", answered([0, 1], [0, 0], unit="images")):
        assert section.text == f"1 of 2 test {unit} were taken for another class." and unit in section.columns


def test_a_table_of_another_alphabet_is_refused_and_read_by_the_encoding_that_is_named(tmp_path: Path) -> None:
    rows = [(("Москва", "Казань", "Тверь")[i % 3], i, i % 2) for i in range(90)]
    lines = ["город,цена,y", *(",".join(map(str, row)) for row in rows)]
    path = tmp_path / "towns.csv"
    path.write_bytes("\n".join(lines).encode("cp1251"))
    with pytest.raises(ConfigError, match=r"name its encoding \(--encoding\), such as .*cp1251"):
        table(str(path), features="rich")
    encoder = table(str(path), features="rich", encoding="cp1251").table
    assert encoder is not None and encoder.features == ["город=Казань", "город=Москва", "город=Тверь", "цена"]
    assert table(str(path), features="plain").shape.channels == 4  # a run of an earlier version continues


def test_names_with_numbers_are_classes_if_they_are_said_to_be(tmp_path: Path) -> None:
    path = written(tmp_path / "f.csv", ("x", "flight"), [(i / 7, f"KLM{100 + i % 25}") for i in range(500)])
    with pytest.raises(ConfigError, match=r"numbers with a unit, such as 'KLM100'.*--predict-as classes"):
        table(path)
    assert table(path, predict_as="classes").shape.classes == 25


def test_rows_without_names_must_have_as_many_values_as_columns() -> None:
    encoder = TableEncoder((Column("area", "number"), Column("rooms", "number")))
    for row in ([60, 2], (60, 2), np.array([60.0, 2.0])):
        assert encoder.encode(row).tolist() == encoder.encode([row]).tolist() == [[60.0, 2.0]]
    for rows in ([[7, 60, 2]], [[60, 2], [60]], np.ones((3, 3)), np.ones(1)):
        with pytest.raises(ValueError, match=r"values, and 2 are needed, in this order: area, rooms; or give"):
            encoder.encode(rows)


def test_what_pandas_lacks_is_missing_in_any_row() -> None:
    encoder = TableEncoder((Column("n", "number", marked=True), Column("c", "category", levels=("u",), marked=True)))
    for gap in (pd.NA, pd.NaT, None, float("nan")):
        assert encoder.encode([{"n": gap, "c": gap}]).tolist() == [[0.0, 1.0, 0.0, 1.0]]


def test_codes_with_an_underscore_are_no_numbers(tmp_path: Path) -> None:
    path = written(tmp_path / "t.csv", ("batch", "y"), [(f"{i % 3}_{i % 2}", i % 2) for i in range(60)])
    encoder = table(path).table
    assert encoder is not None and encoder.columns[0].levels == ("0_0", "0_1", "1_0", "1_1", "2_0", "2_1")


def test_arrays_that_are_not_read_are_named(tmp_path: Path) -> None:
    x, y = RNG.normal(size=(60, 5)), np.arange(60) % 2
    np.savez(tmp_path / "a.npz", x_train=x, y_train=y, x_val=x, y_val=y, x_test=x, y_test=y)
    assert load(f"arrays:{tmp_path}/a.npz").remarks[1] == "x_val, y_val in a.npz are not read"
    np.savez(tmp_path / "b.npz", x=x, y=y, x_test=x)
    assert load(f"arrays:{tmp_path}/b.npz").remarks[1] == "x_test in b.npz is not read"


@pytest.mark.parametrize("words", [("true", "false"), ("TRUE", "FALSE")])
def test_what_is_true_or_false_is_the_same_as_a_word_and_as_a_value(words: tuple[str, str], tmp_path: Path) -> None:
    path = written(tmp_path / "t.csv", ("lift", "y"), [(words[i % 2], i % 2) for i in range(60)])
    encoder = table(path).table
    assert encoder is not None
    seen = encoder.encode([{"lift": word} for word in words])
    assert seen.any() and encoder.encode([{"lift": True}, {"lift": False}]).tolist() == seen.tolist()
    assert encoder.encode(pd.read_csv(path))[:2].tolist() == seen.tolist()
    values = from_arrays(pd.read_csv(path)[["lift"]], np.arange(60) % 2).table
    assert values is not None
    learnt = values.encode([{"lift": True}, {"lift": False}, {"lift": None}])
    assert values.encode([{"lift": word} for word in (*words, "")]).tolist() == learnt.tolist()
    assert TableEncoder.load(values.as_dict()) == values


def _categorical(kind: str, levels: Sequence[Any]) -> Any:
    values = [levels[row % len(levels)] for row in range(90)]
    if kind == "pandas":
        return pd.DataFrame({"n": RNG.normal(size=90), "k": pd.Categorical(values)})
    pl = pytest.importorskip("polars")
    dtype = pl.Categorical if kind == "polars" else pl.Enum(levels)
    return pl.DataFrame({"n": RNG.normal(size=90), "k": pl.Series(values, dtype=dtype)})


@pytest.mark.parametrize(
    "kind, levels", [("pandas", (7, 8, 9)), ("pandas", ("7", "8")), ("polars", ("7", "8")), ("enum", ("7", "8"))]
)
def test_numbers_that_a_frame_holds_as_categories_are_categories(kind: str, levels: Sequence[Any]) -> None:
    frame = _categorical(kind, levels)
    encoder = from_arrays(frame, np.arange(90) % 2).table
    assert encoder is not None and encoder.columns[0].kind == "number"
    assert (encoder.columns[1].kind, encoder.columns[1].levels) == ("category", tuple(map(str, levels)))
    rows = frame.to_dict("records") if kind == "pandas" else frame.to_dicts()
    assert encoder.encode(frame).tolist() == encoder.encode(rows).tolist()
    assert encoder.encode([{"n": 0.0, "k": 8}])[0].tolist() == encoder.encode([{"n": 0.0, "k": "8"}])[0].tolist()


@pytest.mark.parametrize("values", [[1, 2, 3], [True, False, True]], ids=["ordered", "true or false"])
def test_categories_in_an_order_of_numbers_and_truths_are_numbers(values: Sequence[Any]) -> None:
    frame = pd.DataFrame({"k": pd.Categorical(values * 30, ordered=True)})
    encoder = from_arrays(frame, np.arange(90) % 2).table
    assert encoder is not None and encoder.columns[0].kind == "number"


def test_periods_are_refused_with_how_to_make_dates_of_them() -> None:
    frame = pd.DataFrame({"month": pd.period_range("2015-01", periods=90, freq="M")})
    with pytest.raises(ConfigError, match=r"'month' holds periods such as '2015-01'.*dt\.to_timestamp"):
        from_arrays(frame, np.arange(90) % 2)
    assert from_arrays(frame.assign(month=frame.month.dt.to_timestamp()), np.arange(90) % 2).table


def test_a_run_on_a_table_that_changed_says_that_the_data_are_others(tmp_path: Path) -> None:
    def begun(extra: int) -> Run[Any]:
        path = written(tmp_path / "t.csv", ("a", "y"), [(row * row % 17 + extra, row % 2) for row in range(60)])
        config = NeuroConfig(dataset=path, trials=2, population=2, epochs=1, results=None, baselines="no")
        return study(config).run(**run_options(config), ledger=tmp_path / "runs.db", run="r")

    recorded = begun(0)
    assert begun(0).best.score == recorded.best.score
    with pytest.raises(ReplayDivergence, match="the data are others"):
        begun(1)
    with sqlite3.connect(tmp_path / "runs.db") as ledger:  # as an earlier version wrote it down
        kept = json.loads(ledger.execute("SELECT identity FROM run WHERE name = 'r'").fetchone()[0])
        kept["parts"]["evaluate"] = {"evaluate.fingerprint": kept["parts"]["evaluate"]["evaluate.fingerprint"]}
        ledger.execute("UPDATE run SET identity = ? WHERE name = 'r'", (json.dumps(kept),))
    with pytest.raises(ReplayDivergence, match=r"evaluate was 'neuro-1@.* \(which stands for .*\bdata\b"):
        begun(1)
    assert begun(0).best.score == recorded.best.score
