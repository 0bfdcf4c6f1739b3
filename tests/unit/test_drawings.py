"""Pictures as data: what is drawn is checked where it is made, and survives the ledger."""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec
import pytest

from fanfold import drawings
from fanfold.drawings import KINDS, Drawing
from fanfold.encoding import decode, encode
from fanfold.errors import ConfigError
from fanfold.stats import rate
from fanfold.summary import Curve, Section, Summary

MADE: dict[str, Drawing] = {
    "diff": drawings.diff("a b", "a c"),
    "intervals": drawings.intervals([drawings.dot("x", rate(3, 10))], unit="share", low=0.0, high=1.0),
    "scatter": drawings.scatter([{"x": 1.0, "y": 2.0, "front": True, "trial": 3}], x="size", y="accuracy"),
    "grid": drawings.grid(["a", "b"], ["c"], [[0.5], [None]], low=0.0, high=1.0, trials=[4, 5]),
    "conversation": drawings.conversation(["Ann"], [{"text": "héllo", "marks": [{"start": 0, "end": 5, "why": "x"}]}]),
    "layers": drawings.layers([{"name": "conv", "shape": [8, 28, 28], "parameters": 80}]),
    "replay": drawings.replay(
        [{"id": "a", "name": "A", "group": "users"}, {"id": "b"}],
        [("a", "b"), ("a", "gone")],
        {"ok": "healthy"},
        [{"title": "1", "states": {"a": "ok"}, "moves": [{"who": "red", "action": "scan", "node": "b"}]}],
    ),
    "images": drawings.images(2, 1, [{"pixels": b"\x00\xff", "caption": "7 for 1", "wrong": True}]),
    "bars": drawings.bars([{"name": "wave 1", "value": 3}], unit="requests"),
}


def test_every_kind_has_a_function_and_survives_the_ledger() -> None:
    assert set(MADE) == set(KINDS) and all(drawing.kind == kind for kind, drawing in MADE.items())
    summary = Summary({}, (Section("All", drawings=tuple(MADE.values()), up="score"),))
    kept = msgspec.convert(decode(encode(summary)), Summary)
    assert [drawing.kind for drawing in kept.sections[0].drawings] == list(MADE)
    assert kept.sections[0].drawings[3].data["values"] == [[0.5], [None]] and kept.sections[0].up == "score"
    assert MADE["replay"].data["links"] == [["a", "b"]]
    assert MADE["images"].data["images"][0]["pixels"] == "AP8="


def test_a_summary_without_drawings_reads_as_before() -> None:
    old = {"figures": {}, "sections": [{"title": "Old", "curves": [{"name": "a", "points": [[0, 1]]}]}]}
    [section] = msgspec.convert(old, Summary).sections
    assert (section.drawings, section.up, section.curves) == ((), "", (Curve("a", ((0, 1),)),))


def test_a_number_that_is_not_finite_is_not_known() -> None:
    [row] = drawings.intervals([{"name": "x", "value": math.nan, "low": -math.inf}]).data["rows"]
    assert row == {"name": "x", "value": None, "low": None, "high": None, "n": None}
    assert drawings.scatter([{"x": math.nan, "y": 1.0}], x="", y="").data["points"] == []
    assert drawings.grid(["a"], ["b"], [[math.inf]], low=0, high=1).data["values"] == [[None]]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            lambda: drawings.intervals([{"nam": "x"}]),
            "'nam' is not known in a drawing of intervals; did you mean 'name",
        ),
        (lambda: drawings.grid(["a"], ["b"], [[1.0, 2.0]], low=0, high=1), "1 rows and 1 columns"),
        (lambda: drawings.grid(["a"], ["b"], [[1.0]], low=0, high=1, trials=[1, 2]), "as many trials"),
        (lambda: drawings.conversation(["Ann"], [{"who": 1, "text": "hi"}]), "person 1"),
        (lambda: drawings.conversation(["Ann"], [{"text": "hi", "marks": [{"start": 0, "end": 3}]}]), "2 characters"),
        (lambda: drawings.images(2, 2, [{"pixels": b"123"}]), "2 x 2"),
        (lambda: drawings.replay([{"id": "a"}], [], {}, [{"states": {"b": "ok"}}]), "'b'"),
        (lambda: drawings.replay([{"id": "a"}], [], {}, [{"states": {"a": "ok"}}]), "'ok'"),
    ],
)
def test_what_cannot_be_drawn_is_refused(make: Callable[[], Drawing], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        make()
