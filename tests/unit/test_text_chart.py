"""Charts in characters: what they show, and that any terminal can have them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fanfold.report.text_chart import HEIGHT, text_chart
from fanfold.summary import Curve

RISING = Curve("ours", ((0.0, 0.5), (100.0, 0.5), (100.0, 0.9), (200.0, 0.9)))
FLAT = Curve("theirs", ((0.0, 0.5), (200.0, 0.5)))


def test_a_curve_rises_where_its_points_do_and_the_legend_has_the_last_values() -> None:
    *plot, scale, legend = text_chart([RISING], "calls").splitlines()
    assert len(plot) == HEIGHT
    assert plot[0].startswith("0.9 ") and plot[-1].startswith("0.5 ")
    assert plot[-1].index("●") < plot[0].index("●") and plot[-1].count("●") + plot[0].count("●") >= 64
    assert all(row.count("●") == 1 for row in plot[1:-1])  # the step itself
    assert scale.split() == ["0", "calls", "200"] and legend == "● ours 0.9"


def test_where_curves_meet_the_first_one_is_seen() -> None:
    lowest = text_chart([RISING, FLAT], "calls").splitlines()[HEIGHT - 1]
    assert lowest.index("●") < lowest.index("○") and "○" not in lowest[: lowest.rindex("●")]


def test_a_terminal_without_unicode_gets_ascii() -> None:
    for encoding in ("ascii", "latin-1", None, "no such encoding"):
        assert text_chart([RISING, FLAT], "calls", encoding).isascii()
    assert not text_chart([RISING, FLAT], "calls", "utf-8").isascii()


def test_a_single_level_is_a_line_and_no_points_are_no_chart() -> None:
    assert text_chart([FLAT], "calls").count("●") == 65
    assert text_chart([], "calls") == text_chart([Curve("none", ())], "calls") == ""


@given(
    st.lists(
        st.tuples(st.text("abc ", max_size=8), st.lists(st.tuples(st.floats(), st.floats()), max_size=8)), max_size=8
    )
)
def test_any_curves_fit_into_80_columns(curves: list[tuple[str, list[tuple[float, float]]]]) -> None:
    chart = text_chart([Curve(name, tuple(points)) for name, points in curves], "calls")
    assert "nan" not in chart
    assert all(len(line) < 80 for line in chart.splitlines()[:-1])  # the legend is as long as the names are
