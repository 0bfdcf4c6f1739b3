"""Graders and strategies that packages bring by name."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from fanfold import Float, Space, registry
from fanfold.errors import ConfigError
from fanfold.strategies import Genetic, Random, strategy
from fanfold.strategies.sweep import Sweep
from fanfold.studies.functions import FunctionsConfig, study
from fanfold.tasks.graders import grader
from fanfold.tasks.task import Problem


@dataclass(frozen=True)
class Vowels:
    """Whether a reply has at least so many vowels."""

    least: int = 1

    def __call__(self, problem: Problem, reply: str) -> Any:
        return float(sum(letter in "aeiou" for letter in reply) >= self.least)


def corners(space: Space, many: int = 2) -> Sweep:
    return Sweep([{"x": float(number)} for number in range(many)])


@pytest.fixture
def bring(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Registers something of this module, or what `value` names, as an installed package would."""
    entries: list[EntryPoint] = []
    monkeypatch.setattr(registry, "installed", lambda group: [entry for entry in entries if entry.group == group])

    def bring(group: str, name: str, value: str) -> None:
        entries.append(EntryPoint(name, value if ":" in value else f"{__name__}:{value}", f"fanfold.{group}"))

    return bring


def test_a_package_that_comes_or_goes_while_we_run_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    assert "late0" not in registry.brought("fanfold.graders")
    for number in range(2):
        package = tmp_path / f"late{number}-1.dist-info"
        package.mkdir()
        (package / "METADATA").write_text(f"Name: late{number}\nVersion: {number}\n")
        (package / "entry_points.txt").write_text(f"[fanfold.graders]\nlate{number} = {__name__}:Vowels\n")
        os.utime(tmp_path, (number, number))  # two changes in one tick of the clock look like one
        entry = registry.brought("fanfold.graders")[f"late{number}"]
        assert entry.load() is Vowels and registry.package_of(entry) == f"late{number}"
        assert registry.installed("fanfold.graders") is registry.installed("fanfold.graders")
    shutil.rmtree(tmp_path / "late0-1.dist-info")
    os.utime(tmp_path, (2, 2))
    assert {"late0", "late1"} & {*registry.brought("fanfold.graders")} == {"late1"}


def test_a_grader_of_a_package_takes_its_settings_from_the_text(bring: Callable[..., None]) -> None:
    bring("graders", "vowels", "Vowels")
    assert grader("vowels:least=3") == Vowels(3) == grader({"kind": "vowels", "least": 3})
    with pytest.raises(ConfigError, match="no setting 'leest'; did you mean 'least'"):
        grader("vowels", leest=3)
    with pytest.raises(ConfigError, match="there is no grader 'vowel'; did you mean 'vowels'"):
        grader("vowel")


def test_ours_win_and_what_cannot_be_used_names_its_package(bring: Callable[..., None]) -> None:
    bring("graders", "exact", "Vowels")
    assert not isinstance(grader("exact"), Vowels)
    bring("graders", "odd", "corners")
    with pytest.raises(ConfigError, match="must be a dataclass that grades when called"):
        grader("odd")
    bring("graders", "gone", "nowhere.at_all:Grader")
    with pytest.raises(ConfigError, match=r"the grader 'gone' of the package .* cannot be imported \(ModuleNotFound"):
        grader("gone")


def test_a_strategy_is_found_by_its_name(bring: Callable[..., None]) -> None:
    space = Space(x=Float(0, 1))
    assert isinstance(strategy("random", space), Random)
    assert isinstance(strategy("genetic", space, population=4), Genetic)
    bring("strategies", "corners", "corners")
    assert isinstance(strategy("corners", space, many=3), Sweep)
    with pytest.raises(ConfigError, match="there is no strategy 'corner'; did you mean 'corners'"):
        strategy("corner", space)
    bring("strategies", "wrong", "Vowels")
    with pytest.raises(ConfigError, match="not a fanfold Strategy"):
        strategy("wrong", space)


def test_a_study_takes_a_strategy_by_its_name() -> None:
    run = study(FunctionsConfig(strategy="random", trials=20)).run()
    assert run.progress.told == 20
    run.ledger.close()
