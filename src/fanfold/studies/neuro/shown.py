"""How networks, their trainings and the result of a search look to people."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fanfold import drawings
from fanfold.drawings import Drawing
from fanfold.ledger import EvaluationRow, RunView, TrialRow
from fanfold.plugins import Presentation
from fanfold.strategies.pareto import fronts
from fanfold.studies.neuro.genome import NetworkGenome, Shape, describe, genome_of
from fanfold.studies.neuro.layout import layout
from fanfold.summary import Curve, Section
from fanfold.types import Result

#: Networks that are drawn as points, and classes of a confusion matrix, at most.
POINTS, CLASSES = 1000, 40
#: What a score is called.
SCORES = {"classes": "accuracy", "balanced": "balanced accuracy", "numbers": "R2", "labels": "F1"}
#: What the search is called beside its baselines.
OURS = "this search"


def headline(figures: Mapping[str, Any]) -> str | None:
    """The score of the winner, on the test part where there is one, and of the best that needs no search."""
    if figures.get("winner") is None:
        return None
    score = figures.get("score", "accuracy")
    if figures["test"] is None:
        return f"validation {score} {figures['validation']:.4f}"
    low, high = figures["test_interval"]
    rows = "images" if figures.get("kind", "images") == "images" else "rows"
    text = f"test {score} {figures['test']:.4f} [{low:.4f}, {high:.4f}] on {figures['test_images']} {rows}"
    others = [row for row in figures.get("baselines", ()) if row["name"] != OURS]
    return text + (f"; {others[0]['name']} {others[0]['test']:.4f}" if others else "")


def candidate(value: Mapping[str, Any]) -> Section:
    """The network in one line, and whether it starts from a parent's weights."""
    inherits = value.get("inherited") is not None  # weights, or in a page of trials only where they are
    return Section("Network", brief(value) + ("; inherits weights" if inherits else ""))


def text(value: Mapping[str, Any]) -> str:
    """The network, one layer in a line."""
    return "\n".join(brief(value).split(", "))


def brief(value: Mapping[str, Any]) -> str:
    """The network, or those that answer together, in one line."""
    kinds = Counter(describe(genome_of(member["genome"])) for member in value.get("members", [value]))
    return "; ".join(text if count == 1 else f"{count} times {text}" for text, count in kinds.items())


def cell(data: Mapping[str, Any]) -> Section:
    """A training up to a rung, or the guess before the first."""
    names = ("accuracy", "loss", "epochs", "parameters", "operations", "latency", "stopped", "proxy")
    words = {"accuracy": _score(data)}
    rows = tuple((words.get(name, name), data[name]) for name in names if name in data and data[name] is not False)
    return Section("Training", "", ("", "value"), rows)


def overview(view: RunView) -> Iterator[Section]:
    """The networks so far by size and accuracy; the conclusion says more."""
    if view.summary() is None and "belongs_to" not in view.info.meta and (networks := _networks(view)):
        yield sizes(networks)


def compare(views: Sequence[RunView]) -> Iterator[Section]:
    """The front of accurate and small networks, one curve a run."""
    curves = []
    for view in views:
        points = [(accuracy, -parameters) for _, accuracy, parameters, _ in _networks(view)]
        front = sorted((-points[at][1], points[at][0]) for at in next(fronts(points), ()))
        curves.append(Curve(view.name, tuple(front)))
    text = "Networks than which no other is at least as accurate and smaller."
    yield Section("Fronts", text, curves=tuple(curves), across="parameters", up="validation accuracy")


def _networks(view: RunView) -> list[tuple[int, float, float, str]]:
    """The networks of a run as they were trained last."""
    last: dict[int, tuple[float, float]] = {}
    for row in view.evaluations(failed=False, blobs=False, count=POINTS):
        if "accuracy" in row.data:
            last[row.trial] = row.data["accuracy"], row.data["parameters"]
    return [(trial, *point, f"trial {trial}") for trial, point in last.items()]


def sizes(networks: Sequence[tuple[int, float, float, str]], score: str = "accuracy") -> Section:
    """Networks (trial, score, parameters, name) as points, with the front of the accurate and small."""
    networks = sorted(networks, key=lambda network: -network[1])[:POINTS]
    best = set(next(fronts([(accuracy, -parameters) for _, accuracy, parameters, _ in networks]), ()))
    points = [
        {"x": parameters, "y": accuracy, "name": name, "front": at in best, "trial": trial}
        for at, (trial, accuracy, parameters, name) in enumerate(networks)
    ]
    text = f"Networks on the front: {len(best)}. None is at least as good and smaller."
    drawn = drawings.scatter(points, x="parameters", y=f"validation {score}")
    return Section(f"{score[:1].upper()}{score[1:]} and size", text, drawings=(drawn,))


def trial(view: RunView, row: TrialRow) -> Iterator[Section]:
    """The network layer by layer, and how it was trained."""
    trained = list(view.evaluations(trials=[row.number], failed=False, blobs=False))
    shape = next((Shape(*each.data["shape"]) for each in trained if "shape" in each.data), None)
    if shape is None or "members" in row.candidate:  # an earlier version did not record the shape
        yield candidate(row.candidate)
    else:
        genome = genome_of(row.candidate["genome"])
        yield network_section("Network", candidate(row.candidate).text, genome, shape)
    if trained:
        yield from evaluation(view, trained[-1])


def evaluation(view: RunView, row: EvaluationRow) -> Iterator[Section]:
    """The figures of a training and its curves; of a test, what was taken for what."""
    if "said" in row.data:
        yield answered(row.data["said"], row.data.get("labels", ()))
        return
    yield cell(row.data)
    if "curve" in row.data:
        accuracy, loss = (
            tuple(
                (float(epoch), point[at]) for epoch, point in enumerate(row.data["curve"], 1) if point[at] is not None
            )
            for at in (0, 1)
        )
        for title, points in ((f"Validation {_score(row.data)}", accuracy), ("Training loss", loss)):
            yield Section(title, "", curves=(Curve(title.lower(), points),), across="epochs", up=title.lower())


def network_section(title: str, text: str, genome: NetworkGenome, shape: Shape) -> Section:
    """A network layer by layer, as a table and a drawing."""
    plan = layout(genome, shape)
    layers: list[dict[str, Any]] = [{"name": "image", "kind": "input", "shape": plan.maps[0]}]
    for i, conv in enumerate(genome.conv):
        own = (f"conv.{i}.", f"norm.{i}.")
        count = sum(math.prod(size) for name, size in plan.tensors.items() if name.startswith(own))
        steps = [conv.activation, "batch norm" * (genome.norm == "batch"), "pool" * plan.pooled[i]]
        size = {"shape": plan.maps[i + 1], "parameters": count, "note": ", ".join(filter(None, steps))}
        layers.append({"name": f"conv {conv.filters} of {conv.kernel}x{conv.kernel}", "kind": "conv", **size})
    ends = [(f"dense.{j}", "dense", dense.nodes, dense.activation) for j, dense in enumerate(genome.dense)]
    for key, kind, nodes, note in (*ends, ("out", "out", shape.classes, "")):
        count = sum(math.prod(plan.tensors[f"{key}.{part}"]) for part in ("weight", "bias"))
        layers.append({"name": kind, "kind": kind, "shape": (nodes,), "parameters": count, "note": note})
    rows = tuple(
        (
            ", ".join(filter(None, (layer["name"], layer["note"]))),
            "x".join(map(str, layer["shape"])),
            layer["parameters"],
        )
        for layer in layers[1:]
    )
    return Section(title, text, ("layer", "size", "numbers"), rows, drawings=(drawings.layers(layers),))


def confusion(
    said: Sequence[int],
    labels: Sequence[int],
    classes: Sequence[str] = (),
    wrong: Sequence[Drawing] = (),
    unit: str = "rows",
) -> Section:
    """What was taken for what: a matrix in shares of each class, the most frequent mistakes, and some of the images."""
    pairs = Counter(zip(labels, said))
    sizes = Counter(labels)
    names = [classes[at] if at < len(classes) else str(at) for at in range(max((*labels, *said), default=-1) + 1)]
    mistakes = [(pair, count) for pair, count in pairs.most_common() if pair[0] != pair[1]]
    rows = tuple((names[label], names[answer], count, sizes[label]) for (label, answer), count in mistakes[:20])
    total = sum(count for _, count in mistakes)
    text = f"{total} of {len(labels)} test {unit} were taken for another class."
    drawn = []
    if len(names) <= CLASSES:
        shares = [
            [pairs[label, answer] / sizes[label] if sizes[label] else None for answer in range(len(names))]
            for label in range(len(names))
        ]
        drawn.append(
            drawings.grid(names, names, shares, low=0.0, high=1.0, across="taken for", down=f"is, share of {unit}")
        )
    columns = ("is", "taken for", unit, "of")
    return Section("Mistakes on the test part", text, columns, rows, drawings=(*drawn, *wrong))


def answered(
    said: Sequence[Any],
    labels: Sequence[Any],
    names: Sequence[str] = (),
    units: Sequence[tuple[float, float]] = (),
    wrong: Sequence[Drawing] = (),
    unit: str = "rows",
) -> Section:
    """What was said of the test part: classes taken for others, numbers and their errors, or labels missed."""
    if not labels or not isinstance(labels[0], Sequence):
        return confusion(said, labels, names, wrong, unit)
    names = names or [f"output {place}" for place in range(len(labels[0]))]
    if isinstance(said[0][0], int):
        rows = []
        for name, truth, answers in zip(names, zip(*labels), zip(*said)):
            pairs = Counter((bool(has), bool(answer)) for has, answer in zip(truth, answers))
            rows.append((name, pairs[True, True] + pairs[True, False], pairs[True, False], pairs[False, True]))
        return Section(
            "Mistakes on the test part", "", ("label", "rows that have it", "missed", "wrongly said"), tuple(rows)
        )
    errors, drawn = [], []
    for place, (name, (mean, scale)) in enumerate(zip(names, units or [(0.0, 1.0)] * len(names))):
        pairs_of = [(row[place] * scale + mean, answer[place] * scale + mean) for row, answer in zip(labels, said)]
        gaps = sorted(abs(truth - answer) for truth, answer in pairs_of)
        root = math.sqrt(sum(gap * gap for gap in gaps) / len(gaps))
        errors.append((name, sum(gaps) / len(gaps), gaps[len(gaps) // 2], root))
        points = [{"x": x, "y": y, "name": f"row {at}"} for at, (x, y) in enumerate(pairs_of[:POINTS])]
        drawn.append(drawings.scatter(points, x=name, y=f"{name}, predicted"))
    columns = ("number", "mean absolute error", "median", "root mean square")
    text = "" if units else "In deviations from the mean."
    return Section("Errors on the test part", text, columns, tuple(errors), drawings=tuple(drawn[:4]))


def _score(data: Mapping[str, Any]) -> str:
    """What the score of a training is called; an earlier version did not record it."""
    shape = data.get("shape", ())
    return SCORES[Shape(*shape).scored] if len(shape) > 5 else "accuracy"


def trained(result: Result[Any]) -> str:
    """A network in a few words."""
    score = "failed" if result.score is None else f"{result.score:.4f}"
    return f"{score} by {describe(result.candidate.genome)}"


presentation = Presentation(
    headline,
    candidate,
    cell,
    text=text,
    brief=brief,
    scale=(0.0, 1.0),
    overview=overview,
    trial=trial,
    evaluation=evaluation,
    compare=compare,
)
