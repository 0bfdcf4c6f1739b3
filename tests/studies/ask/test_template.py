"""Prompts name columns in braces, and mistakes in them are found before anything is asked."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanfold.errors import ConfigError
from fanfold.studies.ask.template import Template

ROW = {
    "text": "Hi",
    "n": 3,
    "x": 0.5,
    "ok": True,
    "user": {"name": "Ann", "tags": ["a", "b"]},
    "a.b": "dot",
    "gap": None,
    "day": datetime.date(2026, 5, 1),
    "price": Decimal("1.50"),
}


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("Translate: {text}", "Translate: Hi"),
        ("{n} {x} {ok}", "3 0.5 true"),
        ("{user.name} {user.tags.1}", "Ann b"),
        ("{user}", '{"name":"Ann","tags":["a","b"]}'),
        ("{a.b}", "dot"),
        ('{{"label": "{ text }"}}', '{"label": "Hi"}'),
        ("{text}{text}", "HiHi"),
        ("[{gap}]", "[]"),
        ("On {day} for {price}", "On 2026-05-01 for 1.50"),
    ],
)
def test_columns_are_filled_in(text: str, filled: str) -> None:
    assert Template.parse(text).fill(ROW) == filled


@given(st.text())
def test_any_text_is_literal_once_its_braces_are_doubled(text: str) -> None:
    escaped = text.replace("{", "{{").replace("}", "}}")
    template = Template.parse(" " + escaped)
    assert template.names == () and template.fill({}) == " " + text


@pytest.mark.parametrize("text", ["{", "}", "a { b", '{"a": {text}}', "{text"])
def test_a_single_brace_is_refused_with_the_remedy(text: str) -> None:
    with pytest.raises(ConfigError, match=r"single '[{}]' at character \d+: write (\{\{|\}\}) for a brace"):
        Template.parse(text)


def test_an_unknown_column_is_named_with_the_nearest_and_all_others() -> None:
    with pytest.raises(ConfigError, match=r"column 'txet'.*did you mean 'text'.*columns: text, n"):
        Template.parse("{txet}").check(["text", "n"])
    Template.parse("{user.name}").check(["user"])


@pytest.mark.parametrize(
    ("row", "missing"),
    [({"text": "a"}, []), ({}, ["text"]), ({"text": None}, ["text"]), ({"text": ""}, ["text"]), ({"text": 0}, [])],
)
def test_absent_null_and_empty_values_are_missing(row: dict[str, Any], missing: list[str]) -> None:
    assert Template.parse("{text}").missing(row) == missing


@pytest.mark.parametrize("image", [b"\x89PNG", {"bytes": b"\x89PNG", "path": "a.png"}, object()])
def test_an_image_is_refused_rather_than_written_into_the_prompt(image: Any) -> None:
    with pytest.raises(ConfigError, match=r"the column 'image' holds (bytes|dict|object) and no text"):
        Template.parse("What is on {image}?").fill({"image": image})


def test_a_prompt_may_be_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("\ufeffSay {text}.\n", encoding="utf-8")
    assert Template.parse(f"@{tmp_path / 'p.txt'}").fill(ROW) == "Say Hi."
    with pytest.raises(ConfigError, match="there is no file"):
        Template.parse(f"@{tmp_path / 'q.txt'}")
