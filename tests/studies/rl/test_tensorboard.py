"""Event files: what is written is what TensorBoard reads."""

from __future__ import annotations

import math
import struct
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanfold import Study
from fanfold.errors import ConfigError
from fanfold.events import Progress, RunStarted, RunStopped, TrialTold
from fanfold.rl import tensorboard
from fanfold.rl.collect import Collect, Collector
from fanfold.rl.heads import Categories
from fanfold.rl.learner import Learner, LearningPlan
from fanfold.rl.policy import Mlp
from fanfold.types import Blob, Result, Trial

accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")


def shown(path: Path) -> dict[str, list[tuple[int, float]]]:
    """The curves as TensorBoard sees them."""
    found = accumulator.EventAccumulator(str(path), size_guidance={accumulator.SCALARS: 0})
    found.Reload()
    tags = found.Tags()["scalars"]
    return {tag: [(event.step, event.value) for event in found.Scalars(tag)] for tag in tags}


def test_curves_are_read_back_by_tensorboard_as_they_were(tmp_path: Path) -> None:
    curves = {
        "return/mean": [(0, -250.5), (1, -30.25), (400, 0.0)],
        "compliance": [(1, 0.5), (400, 0.96875)],
        "Größe der Schritte": [(2**40, 1e-20)],
    }
    tensorboard.write(tmp_path / "new" / "run", curves)
    found = shown(tmp_path / "new" / "run")
    assert found.keys() == curves.keys()
    for name, points in curves.items():
        assert [step for step, _ in found[name]] == [step for step, _ in points]
        assert [value for _, value in found[name]] == [float(np.float32(value)) for _, value in points]


@pytest.mark.slow
@given(
    st.dictionaries(
        st.text(st.characters(codec="utf-8"), min_size=1, max_size=300),
        st.dictionaries(st.integers(0, 2**62), st.floats(width=32), max_size=5),
        max_size=4,
    )
)
def test_any_curves_survive(curves: dict[str, dict[int, float]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        tensorboard.write(Path(folder), {name: list(points.items()) for name, points in curves.items()})
        events = list(records(Path(folder, tensorboard.FINISHED).read_bytes()))
    event_pb2 = pytest.importorskip("tensorboard.compat.proto.event_pb2")
    found: dict[str, dict[int, float]] = {}
    for data in events:
        event = event_pb2.Event.FromString(data)
        for value in event.summary.value:
            found.setdefault(value.tag, {})[event.step] = value.simple_value
    expected = {name: points for name, points in curves.items() if points}
    assert found.keys() == expected.keys()
    for name, points in expected.items():
        assert found[name].keys() == points.keys()
        assert all(same(found[name][step], points[step]) for step in points)


def same(one: float, other: float) -> bool:
    return one == other or (math.isnan(one) and math.isnan(other))


def records(data: bytes) -> Any:
    """The records of a file; its checksums must be right."""
    masked = pytest.importorskip("tensorboard.compat.tensorflow_stub.pywrap_tensorflow").masked_crc32c

    def checksum(part: bytes) -> bytes:
        return struct.pack("<I", masked(part))

    while data:
        (length,) = struct.unpack_from("<Q", data)
        assert checksum(data[:8]) == data[8:12]
        body = data[12 : 12 + length]
        assert checksum(body) == data[12 + length : 16 + length]
        yield body
        data = data[16 + length :]


def test_without_the_package_the_files_say_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto.event_pb2", None)
    assert tensorboard.noted(tmp_path, {"a": [(1, 1.0)]}) == (
        "no curves for TensorBoard (pip install 'fanfold[tensorboard]')"
    )
    assert not list(tmp_path.iterdir())


def test_values_that_32_bits_cannot_hold_are_infinite(tmp_path: Path) -> None:
    tensorboard.write(tmp_path, {"a": [(1, 1e300), (2, -1e300), (3, math.nan)]})
    (_, first), (_, second), (_, third) = shown(tmp_path)["a"]
    assert (first, second) == (math.inf, -math.inf) and math.isnan(third)


def test_writing_again_replaces_and_leaves_nothing_else(tmp_path: Path) -> None:
    tensorboard.write(tmp_path, {"a": [(1, 1.0)], "b": [(1, 1.0)]})
    tensorboard.write(tmp_path, {"a": [(1, 2.0)]})
    assert shown(tmp_path) == {"a": [(1, 2.0)]}
    assert [each.name for each in tmp_path.iterdir()] == [tensorboard.FINISHED]


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="the curves cannot be written to"):
        tensorboard.write(tmp_path / "file" / "run", {"a": [(1, 1.0)]})


@pytest.mark.slow
def test_a_run_can_be_followed_while_it_learns(tmp_path: Path) -> None:
    learner = Learner(LearningPlan(Mlp(4, Categories((2,))), 40, per_update=20, block=10, held_out=10))
    run = Study(learner, Collector("CartPole-v1"), seed=4).run(executor="inline", watch=tensorboard.live(tmp_path))
    learnt = [result.score for result in run.results() if result.candidate["learn"]]
    found = shown(tmp_path)["blocks/return"]
    assert [step for step, _ in found] == [10, 20, 30, 40]
    assert [value for _, value in found] == pytest.approx(learnt)


@pytest.mark.parametrize(("resumed", "points"), [(True, [1, 2, 3, 4]), (False, [3, 4])])
def test_a_resumed_run_continues_its_file_and_a_new_one_replaces_it(
    tmp_path: Path, resumed: bool, points: list[int]
) -> None:
    for start in (0, 2):
        watch = tensorboard.live(tmp_path)
        watch(RunStarted("run", None, "inline", 1, resumed))
        for number in (start, start + 1):
            block = Collect(0, Blob.of(b""), number, 1)
            watch(TrialTold(Result(Trial(number, block), 1.0, {}), Progress()))
        failed = Collect(0, Blob.of(b""), 9, 1)
        watch(TrialTold(Result(Trial(9, failed), None, {}), Progress()))
        held_out = Collect(0, Blob.of(b""), 9, 1, learn=False)
        watch(TrialTold(Result(Trial(9, held_out), 1.0, {}), Progress()))
        watch(RunStopped("done", Progress()))
    assert [step for step, _ in shown(tmp_path)["blocks/return"]] == points
    assert [each.name for each in tmp_path.iterdir()] == [tensorboard.UNDER_WAY]
