"""The fields of every study can be reached from the shell."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import click
import pytest
from click.testing import Result

from fanfold.cli.run import run
from fanfold.cli.target import fields_of, load
from fanfold.config import range_name
from fanfold.errors import ConfigError
from fanfold.plugins import find_study, studies

#: Fields that mean what the command's own option of that name means.
SHARED = {"seed", "target"}


@pytest.mark.parametrize("name", sorted(studies()))
def test_no_field_is_hidden_by_an_option_of_the_command(name: str) -> None:
    own = {option.lstrip("-") for each in run.params if isinstance(each, click.Option) for option in each.opts}
    fields = fields_of(name)
    assert {field.name.replace("_", "-") for field in fields} & own <= SHARED
    for field in fields:
        assert field.help, f"{name}.{field.name} has no help"
        if field.name == "target":
            assert field.type == "a number or none", f"{name}.target is not a score"


@pytest.mark.parametrize("name", sorted(studies()))
def test_declared_ranges_are_checked_by_python_too_and_shown_in_help(name: str, fanfold: Callable[..., Result]) -> None:
    config = find_study(name).config
    ranged = [field for field in dataclasses.fields(config) if field.metadata.get("range")]
    assert ranged, f"{name} declares no range"
    for field in ranged:
        limits = field.metadata["range"]
        below = limits.get("least", limits.get("above", 0)) - 1
        with pytest.raises(ConfigError, match=f"^{field.name} must be"):
            config(**{field.name: below})
    help = " ".join(fanfold("run", name, "--help").stdout.split())
    assert range_name(ranged[0].metadata["range"]) in help


@pytest.mark.parametrize(
    ("words", "flag"),
    [(("run", "functions", "--run", ""), "--run"), (("run", "functions", "--track", ","), "--track"),
     (("run", "functions", "--report", ""), "--report"), (("run", "ask", "--model", ""), "--model"),
     (("run", "prompts", "--against="), "--against"), (("secrets", "compare", "--models", " "), "--models")],
)  # fmt: skip
def test_a_variable_that_is_not_set_is_not_taken_for_a_flag_left_out(
    words: tuple[str, ...], flag: str, fanfold: Callable[..., Result]
) -> None:
    assert f"{flag} is empty" in fanfold(*words, code=2).stderr


def test_a_text_that_may_be_empty_is_taken_as_it_is() -> None:
    made = load("critic", ["--pinned", "", "--model", "simulated/m"], None, [])
    assert made.fields["pinned"] == ""
