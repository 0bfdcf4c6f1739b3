"""How columns become features: money as people write it, frequent texts, long tails, and parts of dates."""

from __future__ import annotations

import csv
import datetime
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fanfold.errors import ConfigError
from fanfold.studies.neuro import NeuroConfig
from fanfold.studies.neuro.answers import decimal_of
from fanfold.studies.neuro.columns import FAR, Column, TableEncoder, number
from fanfold.studies.neuro.config import source
from fanfold.studies.neuro.data import Data, from_arrays, load
from fanfold.studies.neuro.tables import TableOptions

pd = pytest.importorskip("pandas")


def read(path: Path, separator: str = ",", features: str = "rich", **columns: Sequence[Any]) -> Data:
    """The table of these columns, as a run learns it."""
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, delimiter=separator).writerows([list(columns), *zip(*columns.values(), strict=True)])
    return load(str(path), validation=None, test=None, columns=TableOptions(features=features))


def column(data: Data, name: str) -> Column:
    assert data.table is not None
    return next(each for each in data.table.columns if each.name == name)


@pytest.mark.parametrize(
    ("texts", "numbers"),
    [
        (["$1,234.50", "$999.10"], [1234.5, 999.1]),
        (["1,234.50 €", "12.00 €"], [1234.5, 12.0]),
        (["-$1,234.50", "($3.00)", "$-4.00", "(5)"], [-1234.5, -3.0, -4.0, -5.0]),
        (["1.234,50-", "7,10", "(1,00)"], [-1234.5, 7.1, -1.0]),
        (["\u22123.5", "1\u2019234.5"], [-3.5, 1234.5]),
        (["0,123", "12,345"], [0.123, 12.345]),
        (["¥1,063", "₹2,000"], [1063.0, 2000.0]),
        (["2-", "3"], [float("nan"), 3.0]),
    ],
)
def test_money_and_its_signs_are_read_as_people_write_them(texts: list[str], numbers: list[float]) -> None:
    decimal = decimal_of(texts, comma=False)
    np.testing.assert_array_equal([number(text, decimal) for text in texts], numbers)


def test_a_decimal_point_among_decimal_commas_is_not_passed_over(tmp_path: Path) -> None:
    texts = [f"{i}.5" if i % 15 == 0 else f"{i},5" for i in range(90)]
    data = read(tmp_path / "t.csv", ";", size=texts, y=[i % 2 for i in range(90)])
    np.testing.assert_array_equal(column(data, "size").numbers(["30.5", "31,5", "1.030,5"]), [np.nan, 31.5, 1030.5])
    assert "in 'size', 6 texts such as '0.5' count as missing" in data.remarks


@pytest.mark.parametrize(
    ("texts", "numbers"),
    [
        (["987", "1.234", "12.345"], [987.0, 1234.0, 12345.0]),
        (["1.234.567", "2.345"], [1234567.0, 2345.0]),
        (["-5", "€ 1.234"], [-5.0, 1234.0]),
    ],
)
def test_points_divide_thousands_where_they_cannot_be_decimal(
    tmp_path: Path, texts: list[str], numbers: list[float]
) -> None:
    data = read(tmp_path / "t.csv", ";", people=texts * 40, y=list(range(len(texts))) * 40)
    assert column(data, "people").numbers(texts).tolist() == numbers
    assert any(each.startswith("in 'people', points divide thousands, as in '") for each in data.remarks)
    target = read(tmp_path / "t.csv", ";", x=range(40 * len(texts)), people=texts * 40)
    assert target.shape.target == "classes"  # a few whole numbers


@pytest.mark.parametrize(
    "texts", [["1234", "1.234"], ["1.234", "2.345"], ["0.123", "12.345", "7"], ["1.234", "1.5", "7"]]
)
def test_points_that_may_be_decimal_are(tmp_path: Path, texts: list[str]) -> None:
    data = read(tmp_path / "t.csv", ";", size=texts * 40, y=list(range(len(texts))) * 40)
    assert column(data, "size").numbers(texts).tolist() == [float(text) for text in texts]
    assert column(read(tmp_path / "u.csv", size=["987", "1.234"] * 40, y=[0, 1] * 40), "size").decimal == "."


def test_thousands_of_dollars_are_thousands_in_any_table(tmp_path: Path) -> None:
    amounts = [50.0 * i - 500 for i in range(100)]
    texts = [f"(${-amount:,.2f})" if amount < 0 else f"${amount:,.2f}" for amount in amounts]
    for separator in (",", ";"):
        data = read(tmp_path / "t.csv", separator, pay=texts, y=[i % 2 for i in range(100)])
        assert column(data, "pay").numbers(texts).tolist() == amounts


def test_a_price_with_a_code_is_refused_as_such(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'price' holds numbers with a unit, such as 'CHF 100.0': write plain"):
        read(tmp_path / "t.csv", x=range(100), price=[f"CHF {100 + i}.0" for i in range(100)])


def test_frequent_texts_have_a_feature_each(tmp_path: Path) -> None:
    towns = [f"town {i % 60}" if i < 1200 else f"village {i}" for i in range(1240)]
    data = read(tmp_path / "t.csv", town=towns, y=[i % 2 for i in range(1240)])
    town = column(data, "town")
    assert town.levels == tuple(sorted({f"town {i}" for i in range(60)})) and town.buckets == 64
    assert any("100 categories, of which the 60 most frequent have a feature each" in each for each in data.remarks)
    seen = town.encoded(["town 7", "town 8", "village 1230", "never seen", None])
    assert seen.sum(axis=1).tolist() == [1, 1, 1, 1, 0] and seen[:2, :60].sum() == 2 and not seen[2:, :60].any()
    alone = read(tmp_path / "t.csv", town=towns[:1200], y=[i % 2 for i in range(1200)])
    assert column(alone, "town").buckets == 0 and alone.shape.channels == 60


def test_a_few_numbers_far_off_do_not_hide_what_the_others_say(tmp_path: Path) -> None:
    size = [-9999 if i % 20 == 0 else i / 10 for i in range(400)]
    data = read(tmp_path / "t.csv", size=size, y=[i % 2 for i in range(400)])
    usual = column(data, "size").encoded([1.0, 20.0, 39.0])[:, 0]
    assert np.diff(usual).min() > 1.0
    far = column(data, "size").encoded([-1e12, -9999.0, 0.1, 40.0, 400.0, 1e12])[:, 0]
    assert np.diff(far).min() > 0 and np.abs(far).max() < 30  # whatever comes later has its place


def test_gains_that_most_do_not_have_are_told_apart(tmp_path: Path) -> None:
    gain = [0 if i % 10 else 10.0 ** (i / 250) for i in range(1000)]
    data = read(tmp_path / "t.csv", gain=gain, y=[i % 2 for i in range(1000)])
    seen = column(data, "gain").encoded([0, 10, 100, 1e3])
    assert np.diff(seen[:, 0]).min() > 0.1


def test_dates_tell_season_weekday_and_time(tmp_path: Path) -> None:
    first = datetime.datetime(2024, 1, 1, 6)
    days = [first + datetime.timedelta(days=2 * i, hours=i % 12) for i in range(200)]
    data = read(tmp_path / "t.csv", when=days, y=[i % 2 for i in range(200)])
    when = column(data, "when")
    assert when.parts == ("year", "week", "day") and len(when.features) == 1 + 2 + 7 + 2
    monday, year_later = when.encoded(["2024-01-01T06:00", "2024-12-30T06:00"])
    np.testing.assert_allclose(monday[1:], year_later[1:], atol=0.05)  # a Monday in winter again
    assert monday[3:10].sum() == 1.0
    plain = read(tmp_path / "t.csv", when=["2024-01-01", "2024-01-08"] * 50, y=[0, 1] * 50)
    assert column(plain, "when").parts == ()  # no part of the calendar differs


def test_a_date_for_never_does_not_hide_what_the_others_say(tmp_path: Path) -> None:
    first = datetime.date(2023, 1, 1)
    until = ["9999-12-31" if i % 10 == 0 else str(first + datetime.timedelta(days=i)) for i in range(400)]
    when = column(read(tmp_path / "t.csv", until=until, y=[i % 2 for i in range(400)]), "until")
    assert np.diff(when.encoded(["2023-01-02", "2023-06-01", "2024-01-31", "9999-12-31"])[:, 0]).min() > 0.2
    assert when.parts == ("year", "week")


def test_what_a_column_becomes_is_the_same_from_its_file(tmp_path: Path) -> None:
    first = datetime.date(2024, 1, 1)
    values = {
        "when": [str(first + datetime.timedelta(days=i)) for i in range(200)],
        "pay": [f"${10.0 ** (i / 20):,.2f}" for i in range(200)],
        "town": [f"town {i % 45}" for i in range(200)],
    }
    data = read(tmp_path / "t.csv", **values, y=[i % 2 for i in range(200)])
    assert data.table is not None
    again = TableEncoder.load(json.loads(json.dumps(data.table.as_dict())))
    assert again == data.table and again.encode(values).shape == (200, len(again.features))
    gaps = again.encode([{"when": None, "pay": "", "town": "?"}])
    assert not gaps.any()


def test_a_run_of_an_earlier_version_keeps_the_features_it_had(tmp_path: Path) -> None:
    towns = [f"town {i % 60}" for i in range(300)]
    size = [1e9 if i % 60 == 7 else i % 60 for i in range(300)]
    when = [str(datetime.date(2024, 1, 1) + datetime.timedelta(days=i)) for i in range(300)]
    columns: dict[str, Any] = {"town": towns, "size": size, "when": when, "y": [i % 2 for i in range(300)]}
    data = read(tmp_path / "t.csv", features="plain", **columns)
    assert data.shape.channels == 64 + 1 + 1 and column(data, "size").bent
    config = NeuroConfig(**NeuroConfig.formerly({"dataset": str(tmp_path / "t.csv")}))
    assert config.features == "plain" and "features" not in repr(source(config))
    assert "features='rich'" in repr(source(NeuroConfig(dataset=config.dataset)))
    assert "features" not in repr(source(NeuroConfig(dataset="digits", predict_as="classes")))


def test_a_frame_may_have_booleans_with_gaps() -> None:
    flags = pd.DataFrame({"flag": pd.array([None if i % 4 == 0 else i % 3 == 0 for i in range(100)], dtype="boolean")})
    data = from_arrays(flags, np.arange(100) % 2, validation=0.2)
    assert data.table is not None and data.table.features == ["flag", "flag is missing"]


@pytest.mark.parametrize("text", ["31-Jan-26", "31 January 2026", "Sat, 31 Jan 2026", "Saturday, January 31, 2026"])
def test_dates_with_names_of_months_are_read(text: str) -> None:
    assert Column("when", "date").numbers([text, "1-Feb-26", "31-Dec-99"]).tolist() == [20484.0, 20485.0, 10956.0]


@pytest.mark.parametrize("name", ["PassengerId", "customerID", "user_id"])
def test_numbers_of_the_rows_are_refused_however_they_are_called(tmp_path: Path, name: str) -> None:
    columns = {name: list(range(100)), "x": [i % 7 for i in range(100)], "y": [i % 2 for i in range(100)]}
    with pytest.raises(ConfigError, match=f"the column '{name}' numbers the rows, which says nothing: --ignore {name}"):
        read(tmp_path / "t.csv", **columns)
    assert read(tmp_path / "t.csv", **{**columns, name: [i // 2 for i in range(100)]}).shape.channels == 2
    assert read(tmp_path / "t.csv", **{"rapid": columns.pop(name), **columns}).shape.channels == 2


@pytest.mark.parametrize("far", [1e39, 1e300, -1.7e308])
def test_no_number_is_so_far_off_that_a_network_says_nothing(far: float) -> None:
    few = [1.0, 2.0, 3.0] * 30
    rows = {"few": few, "bent": [*few[:-1], 1e5], "ranked": [float(i) ** 4 for i in range(90)]}
    rich = from_arrays(rows, np.arange(90) % 2).table
    assert rich is not None
    plain = TableEncoder((*rich.columns, Column("bent", "number", scale=1e-3, bent=True)))
    seen = plain.encode({name: [1.5, far] for name in rows})
    assert np.isfinite(seen).all() and abs(seen).max() <= FAR
    assert (np.sign(seen[1]) == np.sign(far)).all()
