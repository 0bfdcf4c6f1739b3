"""What is to be predicted, as people have it: texts, whole numbers that are no classes, and objects."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fanfold.errors import ConfigError
from fanfold.studies.neuro.data import Data, from_arrays, from_loaders, load

pd = pytest.importorskip("pandas")
RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(120, 3))
IMAGES = RNG.integers(0, 255, (120, 8, 8))
PETS = np.array(["dog", "cat", "emu"])[np.arange(120) % 3]


def learnt(x: Any, y: Any, **more: Any) -> Data:
    return from_arrays(x, y, validation=0.2, test=0.2, **more)


@pytest.mark.parametrize("x", [ROWS, IMAGES], ids=["rows", "images"])
def test_texts_are_classes_by_name(x: Any) -> None:
    data = learnt(x, PETS)
    assert data.classes == ("cat", "dog", "emu") and data.shape.target == "classes"
    assert learnt(x, PETS.astype(object)).digest == learnt(x, PETS.tolist()).digest == data.digest
    named = learnt(x, PETS, classes=["emu", "dog", "cat"])
    assert named.classes == ("emu", "dog", "cat") and np.bincount(named.train.labels).tolist() == [24, 24, 24]
    assert learnt(x, np.array(["10", "2", "1"])[np.arange(120) % 3]).classes == ("1", "2", "10")


def test_separate_parts_share_the_numbers_of_texts() -> None:
    data = from_arrays(IMAGES, PETS, validation=0.2, test=(IMAGES[:4], ["emu", "dog", "emu", "cat"]))
    assert data.test.labels.tolist() == [2, 1, 2, 0]
    batches = [(IMAGES[i : i + 40], PETS[i : i + 40].tolist()) for i in range(0, 120, 40)]
    loaded = from_loaders(batches, [(IMAGES[:2], ("emu", "dog"))], validation=0.2)
    assert loaded.classes == data.classes and sorted(loaded.test.labels.tolist()) == [1, 2]


@pytest.mark.parametrize(
    ("y", "more", "says"),
    [
        (np.where(np.arange(120) == 7, None, PETS), {}, "row 7 has no label, and 0 more: leave those rows out"),
        (PETS, {"target": "numbers"}, "labels are texts such as 'dog', and cannot be predicted as numbers"),
        (PETS, {"classes": ["cat", "dog"]}, "the label 'emu' is none of the classes cat, dog"),
    ],
)
def test_what_is_wrong_with_texts_is_said(y: Any, more: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        learnt(ROWS, y, **more)


@pytest.mark.parametrize(
    ("y", "target", "outputs"),
    [
        (RNG.integers(100_000, 900_000, 120), "numbers", 1),  # prices
        (RNG.integers(18, 90, 120), "numbers", 1),  # ages
        (np.array([Decimal(i) / 10 for i in range(120)]), "numbers", 1),
        ([f"{i / 10}" for i in range(120)], "numbers", 1),
        ([str(i % 3) for i in range(120)], "classes", 3),
        (np.arange(120) % 30, "classes", 30),
        (np.arange(120) % 30 + 1, "classes", 31),
        (np.array([i % 4 for i in range(120)], dtype=object), "classes", 4),
    ],
)
def test_whole_numbers_are_classes_only_if_they_number_them(y: Any, target: str, outputs: int) -> None:
    shape = learnt(ROWS, y).shape
    assert (shape.target, shape.classes) == (target, outputs)
    assert learnt(ROWS, y, target=target).shape == shape


@pytest.mark.parametrize("x", [ROWS, IMAGES], ids=["rows", "images"])
def test_one_of_several_columns_is_a_class_and_any_are_labels(x: Any) -> None:
    kinds = np.arange(120) % 3
    hot = np.eye(3)[kinds]
    assert learnt(x, hot).digest == learnt(x, kinds).digest == learnt(x, torch.tensor(hot)).digest
    assert learnt(x, pd.get_dummies(PETS)).classes == ("cat", "dog", "emu")
    assert learnt(x, hot, target="labels").shape.target == "labels"
    assert learnt(ROWS, np.vstack([hot[:-1], [1, 1, 0]])).shape.target == "labels"
    test = from_arrays(x, hot, validation=0.2, test=(x[:4], hot[[2, 2, 1, 1]])).test
    assert test.labels.tolist() == [2, 2, 1, 1]


def test_half_precision_of_torch_is_read() -> None:
    assert learnt(torch.tensor(ROWS).bfloat16(), np.arange(120) % 2).shape.channels == 3


def test_rows_may_be_columns_by_name_or_mappings() -> None:
    columns = {"size": ROWS[:, 0], "pet": PETS.tolist()}
    rows = [{"size": size, "pet": pet} for size, pet in zip(ROWS[:, 0].tolist(), PETS.tolist(), strict=True)]
    answers = np.arange(120) % 2
    data = learnt(columns, answers)
    assert data.table is not None and data.table.features == ["size", "pet=cat", "pet=dog", "pet=emu"]
    assert learnt(rows, answers).digest == data.digest
    objects = np.array([[size, pet] for size, pet in zip(ROWS[:, 0].tolist(), PETS.tolist(), strict=True)], object)
    assert learnt(objects, answers).digest == data.digest
    arrow = pytest.importorskip("pyarrow").table(columns)
    assert learnt(arrow, answers).digest == data.digest
    lazy = pytest.importorskip("polars").LazyFrame(columns)
    assert learnt(lazy, answers).digest == data.digest
    seen = data.table.encode(columns)
    assert all(np.array_equal(data.table.encode(each), seen) for each in (rows, objects, arrow, lazy))
    assert np.array_equal(data.table.encode(rows[0]), seen[:1])  # a single row
    with pytest.raises(ConfigError, match="columns of different lengths"):
        learnt({"size": ROWS[:, 0], "pet": PETS[:5].tolist()}, answers)


def test_a_class_that_reads_like_a_gap_is_said(tmp_path: Path) -> None:
    def table(*classes: str) -> Data:
        lines = [f"{i},{classes[i % len(classes)]}" for i in range(90)]
        (tmp_path / "t.csv").write_text("\n".join(["x,pain", *lines]))
        return load(str(tmp_path / "t.csv"), validation=None, test=None)

    said = "('None' counts as missing: rename what is a class)"
    assert f"30 rows without 'pain' {said} are left out" in table("None", "mild", "strong").remarks
    assert "30 rows without 'pain' are left out" in table("", "mild", "strong").remarks
    with pytest.raises(ConfigError, match=r"'pain' is always 'mild', or missing \('None' counts as missing"):
        table("None", "mild")


def test_labels_in_lists_are_those_of_an_array() -> None:
    hot = np.eye(3, dtype=int)[np.arange(120) % 3]
    for x in (ROWS, IMAGES):
        assert learnt(x, hot.tolist()).digest == learnt(x, hot).digest
        assert learnt(x, [[pet] for pet in PETS]).digest == learnt(x, PETS).digest
    with pytest.raises(ConfigError, match=r"arrays: numbers are needed, not <U3"):
        learnt(ROWS, np.stack([PETS, PETS], axis=1))


def test_a_label_beyond_the_number_of_classes_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"the label 4, but 3 classes: number them from 0 to 2"):
        learnt(ROWS, np.arange(120) % 5, classes=3)
    assert learnt(ROWS, np.arange(120) % 5, classes=7).shape.classes == 7


def test_separate_parts_of_rows_need_no_weights_and_may_have_answers_in_a_column() -> None:
    answers = np.arange(120) % 2
    weights = np.arange(120) + 1.0
    test = (ROWS[:9], answers[:9])
    data = from_arrays(ROWS, answers, validation=0.2, test=test, weights=weights)
    assert data.train.weights is not None and len(data.test) == 9
    whole = from_arrays(ROWS, answers, validation=0.2, test=0, weights=weights)
    np.testing.assert_array_equal(data.train.weights, whole.train.weights)
    assert from_arrays(ROWS, answers, validation=0.2, test=(ROWS[:9], answers[:9, None])).test.labels.tolist() == [
        *answers[:9]
    ]
    with pytest.raises(ConfigError, match="a separate part has answers of another shape"):
        from_arrays(ROWS, ROWS[:, :2], validation=0.2, test=test)
    with pytest.raises(ConfigError, match="weights must be 120 numbers"):
        from_arrays(ROWS, answers, validation=0.2, test=test, weights=np.ones(129))


def test_what_an_array_masks_is_missing() -> None:
    masked, gaps = np.ma.masked_greater(ROWS, 1.0), np.where(ROWS > 1.0, np.nan, ROWS)
    data, answers = learnt(gaps, np.arange(120) % 2), np.arange(120) % 2
    assert learnt(masked, answers).digest == learnt({f"x{i}": masked[:, i] for i in range(3)}, answers).digest
    assert learnt(masked, answers).digest == data.digest != learnt(ROWS, answers).digest
    assert data.table is not None and np.array_equal(data.table.encode(masked), data.table.encode(gaps))
    assert learnt(np.ma.masked_array(IMAGES), answers).digest == learnt(IMAGES, answers).digest
    with pytest.raises(ConfigError, match="image 0 holds NaN or infinity"):
        learnt(np.ma.masked_greater(IMAGES, 100), answers)
    for labels in (np.ma.masked_equal(answers, 1), np.ma.masked_equal(PETS, "cat")):
        with pytest.raises(ConfigError, match=r"row 1 has no label, and 39 more|holds NaN or infinity"):
            learnt(ROWS, labels)


def test_too_few_names_of_classes_are_said() -> None:
    with pytest.raises(ConfigError, match="2 classes, but 1 names: give one for each"):
        learnt(ROWS, np.arange(120) % 2, classes=["no"])


@pytest.mark.parametrize("x", [ROWS, IMAGES], ids=["rows", "images"])
def test_rows_without_labels_are_refused(x: Any) -> None:
    with pytest.raises(ConfigError, match="labels are missing: give one for each row, or a Dataset to from_loaders"):
        learnt(x, None)


@pytest.mark.parametrize("wanted", [(5, 9), (100_000, 200_000), (2.0, 4.0)])
def test_rows_whose_classes_are_mostly_empty_are_refused_as_images_are(wanted: tuple[float, float]) -> None:
    y = np.array(wanted)[np.arange(60) % 2]
    for x in (RNG.normal(size=(60, 3)), RNG.normal(size=(60, 4, 4))):
        with pytest.raises(ConfigError, match=r"number (the|them)\b.* from 0"):
            from_arrays(x, y)
    assert from_arrays(RNG.normal(size=(60, 3)), y.astype(str)).shape.classes == 2
    assert from_arrays(RNG.normal(size=(60, 3)), np.arange(60) % 4 + 1).shape.classes == 5  # numbered from 1
