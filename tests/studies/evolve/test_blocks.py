"""What of a text may change, and what never does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanfold.errors import ConfigError
from fanfold.studies.evolve.blocks import Blocks, differences

MARKED = "import a\n# EVOLVE-BLOCK-START\nx = 1\n# EVOLVE-BLOCK-END\nprint(x)\n"


def test_a_text_without_markers_may_change_as_a_whole() -> None:
    blocks, parts = Blocks.of({"a.txt": "one\ntwo"})
    assert parts == {"a.txt": "one\ntwo"}
    assert blocks.filled({"a.txt": "three"}) == {"a.txt": "three"} and blocks.around("a.txt") == ""


def test_only_what_stands_between_markers_changes() -> None:
    blocks, parts = Blocks.of({"a.py": MARKED})
    assert parts == {"a.py": "x = 1\n"}
    assert blocks.filled({"a.py": "x = 2"})["a.py"] == MARKED.replace("x = 1", "x = 2")
    assert "import a" in blocks.around("a.py") and "x = 1" not in blocks.around("a.py")


def test_several_blocks_are_parts_of_their_own() -> None:
    blocks, parts = Blocks.of({"a.py": MARKED + MARKED.replace("x", "y"), "b": "text"})
    assert parts == {"a.py:1": "x = 1\n", "a.py:2": "y = 1\n", "b": "text"}
    filled = blocks.filled({**parts, "a.py:2": "y = 5\n"})
    assert filled["a.py"] == MARKED + MARKED.replace("x", "y").replace("y = 1", "y = 5")


def test_markers_that_a_writer_repeats_are_not_written_twice() -> None:
    one, _ = Blocks.of({"a.py": MARKED})
    two, _ = Blocks.of({"a.py": MARKED + MARKED.replace("x", "y"), "b": "text"})
    new, other = MARKED.replace("1", "2"), MARKED.replace("x = 1", "y = 3")
    assert one.own("a.py", "x = 2\n") == one.own("a.py", new) == "x = 2\n"
    assert [two.own("a.py:1", new + other), two.own("a.py:2", new + other)] == ["x = 2\n", "y = 3\n"]
    assert two.own("a.py:2", other) == "y = 3\n" and two.own("b", new) == new
    for text in (new * 3, "# EVOLVE-BLOCK-START\nx = 2\n"):
        with pytest.raises(ConfigError, match="the new text"):
            two.own("a.py:1", text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("# EVOLVE-BLOCK-START\nx\n", "has no EVOLVE-BLOCK-END"),
        ("x\n# EVOLVE-BLOCK-END\n", "line 2: EVOLVE-BLOCK-END where EVOLVE-BLOCK-START"),
        ("// EVOLVE-BLOCK-START\n// EVOLVE-BLOCK-START\n", "line 2: EVOLVE-BLOCK-START where EVOLVE-BLOCK-END"),
    ],
)
def test_markers_that_do_not_pair_are_refused_with_their_line(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Blocks.of({"a.py": text})


@given(st.lists(st.sampled_from(["x\n", "  y\n", "\n", "# EVOLVE-BLOCK-START\nz\n# EVOLVE-BLOCK-END\n"])))
@pytest.mark.slow
def test_filling_in_what_was_there_gives_the_text_back(pieces: list[str]) -> None:
    blocks, parts = Blocks.of({"t": "".join(pieces)})
    assert blocks.filled(parts) == {"t": "".join(pieces)}


def test_a_difference_names_both_sides() -> None:
    changed = differences({"a": "one\ntwo\n"}, {"a": "one\nthree\n"})
    assert changed.splitlines()[:2] == ["--- start/a", "+++ best/a"] and "-two" in changed and "+three" in changed
    assert differences({"a": "same"}, {"a": "same"}) == ""
