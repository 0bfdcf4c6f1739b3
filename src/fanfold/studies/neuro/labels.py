"""What arrays of labels are called: texts numbered as classes, and names for what is predicted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fanfold.errors import ConfigError
from fanfold.studies.neuro.answers import FEW_NUMBERS, in_order, sample
from fanfold.studies.neuro.columns import level
from fanfold.studies.neuro.images import Images, array, unmasked

#: Names of the classes, or only how many there are.
Classes = int | Sequence[str] | None


def numbered(parts: Sequence[Any], classes: Classes, target: str, where: str) -> tuple[list[Any], Classes]:
    """The labels of all parts as numbers.

    Texts are classes, in the order of `classes` or else of the alphabet; so are rows of 0 with a single 1.
    """
    plain = [_plain(labels, where) for labels in parts]
    if target in ("auto", "classes") and all(map(_one_hot, plain)):
        rows = [array(labels, where) for labels in plain]
        if len({part.shape[1] for part in rows}) == 1:
            columns = getattr(parts[0], "columns", range(rows[0].shape[1]))
            return [part.argmax(axis=1) for part in rows], classes or [str(column) for column in columns]
    texts = [labels for labels in plain if _are_texts(labels)]
    if texts and target != "classes" and classes is None and _measures(np.concatenate(texts), target):
        return [labels.astype(np.float64) if _are_texts(labels) else labels for labels in plain], classes
    if not texts:
        return plain, classes
    if target not in ("auto", "classes"):
        some = sample(texts[0].tolist())
        raise ConfigError(f"{where}: labels are texts such as {some}, and cannot be predicted as {target}")
    names = [[level(label) for label in np.asarray(labels).tolist()] for labels in plain]
    every = set().union(*names)
    known = in_order(every) if classes is None or isinstance(classes, int) else list(classes)
    if unknown := sorted(every - set(known)):
        raise ConfigError(f"{where}: the label {unknown[0]!r} is none of the classes {', '.join(known)}")
    places = {name: place for place, name in enumerate(known)}
    return [np.array([places[name] for name in part], np.int64) for part in names], known


def _one_hot(labels: Any) -> bool:
    """Whether each row has a single 1 among several 0, as Keras wants classes."""
    if getattr(labels, "ndim", 0) != 2 or getattr(labels.dtype, "kind", "f") not in "buif":
        return False
    rows = array(labels, "labels")
    return rows.shape[1] > 1 and bool(np.isin(rows, (0, 1)).all() and (rows.sum(axis=1) == 1).all())


def _are_texts(labels: Any) -> bool:
    return isinstance(labels, np.ndarray) and labels.dtype.kind == "U" and labels.ndim == 1


def _measures(texts: Any, target: str) -> bool:
    """Whether texts are numbers, and too many or too fine to be the names of classes."""
    try:
        numbers = np.unique(texts.astype(np.float64))
    except ValueError:
        return False
    return target == "numbers" or len(numbers) > FEW_NUMBERS or bool(np.mod(numbers, 1).any())


def _plain(labels: Any, where: str) -> Any:
    """Texts as an array of texts, and numbers as numbers; what is neither is refused where numbers are checked."""
    if labels is None:
        raise ConfigError(f"{where}: labels are missing: give one for each row, or a Dataset to from_loaders")
    try:
        given = labels if hasattr(labels, "detach") else np.asarray(unmasked(labels))
    except (TypeError, ValueError):  # lists of several lengths
        return labels
    if getattr(given.dtype, "kind", "f") not in "OUT":
        return given
    given = given[:, 0] if given.ndim == 2 and given.shape[1] == 1 else given
    values = given.tolist()
    gaps = [row for row, value in enumerate(values) if _gap(value)]
    if gaps:
        raise ConfigError(f"{where}: row {gaps[0]} has no label, and {len(gaps) - 1} more: leave those rows out")
    if given.ndim == 1 and any(isinstance(value, str) for value in values):
        return np.array([level(value) for value in values])
    try:
        return np.array(values, np.float64)
    except (TypeError, ValueError):
        return labels


def _gap(value: Any) -> bool:
    kind = type(value).__name__
    return value is None or kind in ("NAType", "NaTType") or (isinstance(value, float) and value != value)


def names_of(classes: Classes, parts: Sequence[Images], where: str, target: str = "classes") -> tuple[str, ...]:
    """The names of the classes, labels or numbers of images, checked."""
    if target != "classes":
        count = parts[0].labels.shape[1]
        names = tuple(map(str, range(count))) if classes is None or isinstance(classes, int) else tuple(classes)
        if len(names) != count or any(part.labels.shape[1] != count for part in parts):
            raise ConfigError(f"{where}: {count} {target} to predict, but {len(names)} names: give one for each")
        return names
    most = max(int(part.labels.max()) for part in parts) + 1
    count = most if classes is None else classes if isinstance(classes, int) else len(classes)
    if count < 2:
        raise ConfigError(f"{where}: classes can be told apart only if there are two or more; here is {count}")
    if most > count:
        raise ConfigError(f"{where}: the label {most - 1}, but {count} classes: number them from 0 to {count - 1}")
    if count > len(parts[0]):
        raise ConfigError(f"{where}: {count} classes, but {len(parts[0])} images to learn from: number them from 0")
    names = tuple(map(str, range(count))) if classes is None or isinstance(classes, int) else tuple(classes)
    missing = sorted(set(range(count)) - set(np.unique(parts[0].labels).tolist()))
    if missing:
        text = ", ".join(repr(names[label]) for label in missing[:5]) + ("..." if len(missing) > 5 else "")
        raise ConfigError(f"{where}: no image to learn from of class {text}: add some, or number the rest from 0")
    return names
