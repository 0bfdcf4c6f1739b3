"""Options of a run are written once: the same names, types and ranges as argument, as key of [run] and as flag."""

from __future__ import annotations

import inspect
import json
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from fanfold import Study
from fanfold.cli import cli
from fanfold.cli.options import ShellOptions, with_values
from fanfold.cli.run import resume, run
from fanfold.config import describe, from_mapping, from_text
from fanfold.errors import ConfigError
from fanfold.ledger import Ledger
from fanfold.run_options import RunOptions
from fanfold.running import Go, Run
from fanfold.stop import MaxTrials, Plateau
from fanfold.strategies import Sweep
from fanfold.summary import Summary

WRITABLE = {field.name: field for field in describe(ShellOptions)}


def parabola(candidate: dict[str, float], case: Any) -> float:
    return -((candidate["x"] - 3) ** 2)


def study(**more: Any) -> Study[Any]:
    return Study(Sweep([{"x": float(x)} for x in range(10)]), parabola, **more)


@pytest.mark.parametrize("method", [Study.run, Study.run_async])
def test_the_arguments_of_a_run_are_the_fields_of_its_options(method: Any) -> None:
    taken = list(inspect.signature(method).parameters.values())[1:]
    assert [(each.name, each.default) for each in taken] == [(each.name, each.default) for each in fields(RunOptions)]
    assert [each.name for each in taken if each.kind is not inspect.Parameter.KEYWORD_ONLY] == ["executor"]


def test_every_option_is_a_flag_with_its_help() -> None:
    flags = {each.name: each for each in run.params if isinstance(each, click.Option)}
    assert WRITABLE.keys() <= flags.keys()
    for name, field in WRITABLE.items():
        assert field.help and str(flags[name].help).startswith(field.help)
    assert WRITABLE.keys() - {each.name for each in resume.params} == {"run", "seed"}


def test_what_only_python_can_say_is_neither_a_key_nor_a_flag() -> None:
    assert not {"watch", "meta"} & WRITABLE.keys()
    with pytest.raises(ConfigError, match="unknown key 'meta'"):
        from_mapping(ShellOptions, {"meta": {}}, "s.toml [run]")


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("max_trials", 0, "max_trials must be at least 1, not 0"),
        ("max_cost", 0.0, "max_cost must be above 0, not 0.0"),
        ("max_failures", -1, "max_failures must be at least 0, not -1"),
        ("grace", -1.0, "grace must be at least 0"),
        ("reuse", "ledgr", "did you mean 'ledger'"),
        ("cache", "maybe", "'on', 'off', 'refresh' or 'offline'"),
        ("max_time", "soon", "90s"),
        ("batch_deadline", 60.0, "makes no provider batches"),
        ("cancel_batches", True, "makes no provider batches"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_evaluated(
    name: str, value: Any, words: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=words.replace("(", r"\(")):
        study().run(ledger=tmp_path / "it.db", **{name: value})
    assert not (tmp_path / "it.db").exists()


def test_an_argument_of_the_study_that_is_given_to_the_run_is_named_as_such() -> None:
    with pytest.raises(ConfigError, match=r"timeout is an argument of Study, not of run: Study\(..., timeout=5\)"):
        Study(Sweep([1]), lambda candidate, case: 0.0).run("threads:2", timeout=5)  # type: ignore[call-arg]


def test_limits_of_a_run_replace_the_studys_own_of_their_kind_and_join_the_others() -> None:
    assert study(stop=MaxTrials(2)).run(max_trials=5).progress.told == 5
    assert study(stop=Plateau(4)).run(max_trials=9).progress.told == 8
    assert study().run(target=-1.0).best.score == -1.0  # type: ignore[union-attr]
    assert study(cases=(value for value in (1, 2))).run(max_evaluations=4).progress.evaluations == 4


def test_limits_of_a_run_do_not_limit_those_beside_it() -> None:
    sizes = []

    async def conclude(done: Run[Any], go: Go) -> Summary:
        sizes.append((await go("held-out", study())).progress.told)
        return Summary({}, ())

    assert study(conclude=conclude).run(max_trials=2, target=0.0).progress.told == 2
    assert sizes == [10]


def test_no_failures_are_too_many_where_the_limit_is_none_or_nought() -> None:
    def broken(candidate: Any, case: Any) -> float:
        raise RuntimeError("always")

    for never in (None, 0):
        candidates = [{"x": x} for x in range(60)]
        assert Study(Sweep(candidates), broken).run(max_failures=never).progress.failures == 60


def test_decisions_for_one_time_are_not_taken_over_by_a_resume() -> None:
    options = ShellOptions("inline", max_time="2h", accept_changes=True, retry_failed=True, report="it.html")
    assert options.recorded() == {"executor": "inline", "max_time": "2h"}
    assert ShellOptions("auto").recorded() == {}


def test_what_python_says_about_a_run_is_kept_with_it(tmp_path: Path) -> None:
    study().run(ledger=tmp_path / "it.db", run="it", meta={"who": "me"}).ledger.close()
    with Ledger(tmp_path / "it.db", readonly=True) as ledger:
        assert ledger.run("it").meta == {"who": "me"}


def test_a_flag_that_needs_no_value_never_takes_the_next_word_for_one() -> None:
    assert with_values(["--retry-failed", "last"]) == ["--retry-failed=true", "last"]
    assert with_values(["last", "--retry-failed=timeout"]) == ["last", "--retry-failed=timeout"]


@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("timeout", ["timeout"]), ("timeout, network", ["timeout", "network"])]
)
def test_kinds_of_failure_are_listed_in_one_word(text: str, value: Any) -> None:
    assert from_text(WRITABLE["retry_failed"].kind, text, "--retry-failed", "the command line") == value


def test_a_failed_run_is_filled_by_its_name_and_what_failed_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    code = "from pathlib import Path\nfrom fanfold import Study\nfrom fanfold.strategies import Sweep\n"
    code += "def score(x, case):\n    if x == 2 and not Path('fixed').exists():\n        raise ValueError('no')\n"
    code += "    return x\nstudy = Study(Sweep([1, 2, 3]), score)\n"
    (tmp_path / "options_study.py").write_text(code)
    command = ["run", "options_study.py", "--run", "it", "--executor", "inline", "--json"]
    assert json.loads(CliRunner().invoke(cli, command).stdout)["failures"] == 1
    (tmp_path / "fixed").touch()
    result = CliRunner().invoke(cli, [*command, "--retry-failed"])
    assert result.exit_code == 0 and json.loads(result.stdout)["failures"] == 0
