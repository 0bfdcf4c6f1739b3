"""The fields of every study can be reached from the shell."""

from __future__ import annotations

import click
import pytest

from fanfold.cli.run import run
from fanfold.cli.target import fields_of
from fanfold.plugins import studies

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
