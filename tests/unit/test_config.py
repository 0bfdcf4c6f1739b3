"""Settings: what is accepted, and what an error tells the person who made it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanfold.config import Settings as Checked
from fanfold.config import convert, describe, from_mapping, from_text, load_toml, option
from fanfold.errors import ConfigError
from fanfold.plugins import find_study, studies


@dataclass(frozen=True)
class Inner:
    depth: int = 1
    label: str | None = None


@dataclass(frozen=True)
class Settings:
    size: int
    rate: float = 0.5
    mode: Literal["fast", "slow"] = "fast"
    on: bool = False
    names: tuple[str, ...] = ()
    pair: tuple[int, float] = (1, 2.0)
    inner: Inner = field(default_factory=Inner)
    maybe: Inner | None = None
    limit: float | None = field(default=None, metadata={"help": "the most there may be"})

    def __post_init__(self) -> None:
        if self.size < 0:
            raise ConfigError(f"size must be at least 0, not {self.size}")


@pytest.mark.slow
@given(
    st.builds(
        Settings,
        size=st.integers(0, 9),
        rate=st.floats(-5, 5),
        mode=st.sampled_from(["fast", "slow"]),
        on=st.booleans(),
        names=st.lists(st.text()).map(tuple),
        pair=st.tuples(st.integers(), st.floats(-5, 5)),
        inner=st.builds(Inner, depth=st.integers(), label=st.none() | st.text()),
        maybe=st.none() | st.builds(Inner),
        limit=st.none() | st.floats(-5, 5),
    )
)
def test_every_setting_survives_the_way_through_plain_values(settings: Settings) -> None:
    import json

    assert from_mapping(Settings, json.loads(json.dumps(asdict(settings)))) == settings


@pytest.mark.parametrize(
    ("mapping", "words"),
    [
        ({"size": 1, "rat": 0.1}, ["'rat'", "did you mean 'rate'"]),
        ({"size": 1.5}, ["size", "1.5", "a whole number"]),
        ({"size": True}, ["size", "True", "a whole number"]),
        ({"size": 1, "rate": "0.1"}, ["rate", "'0.1'", "a number"]),
        ({"size": 1, "rate": True}, ["rate", "a number"]),
        ({"size": 1, "on": 1}, ["on", "true or false"]),
        ({"size": 1, "mode": "fsat"}, ["mode", "'fast' or 'slow'", "did you mean 'fast'"]),
        ({"size": 1, "names": "abc"}, ["names", "a list", 'write ["abc"]']),
        ({"size": 1, "names": ["a", 3]}, ["names[1]", "a text", "3"]),
        ({"size": 1, "pair": [1]}, ["pair", "2 items"]),
        ({"size": 1, "inner": {"dept": 2}}, ["inner.dept", "did you mean 'depth'"]),
        ({"size": 1, "maybe": {"dept": 2}}, ["maybe.dept", "did you mean 'depth'"]),
        ({"size": 1, "inner": 3}, ["inner", "a table"]),
        ({}, ["'size' is missing", "a whole number"]),
        ({"size": -1}, ["size must be at least 0"]),
    ],
)
def test_a_wrong_setting_is_named_with_what_was_wanted_and_where(mapping: dict[str, object], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        from_mapping(Settings, mapping, where="search.toml")
    for word in ["search.toml", *words]:
        assert word in str(caught.value)


def test_whole_numbers_are_taken_for_floats() -> None:
    rate = from_mapping(Settings, {"size": 1, "rate": 2}).rate
    assert rate == 2.0 and isinstance(rate, float)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (int, "5", 5),
        (float, "5", 5.0),
        (str, "5", "5"),
        (str, "none", "none"),
        (bool, "yes", True),
        (bool, "false", False),
        (int | None, "none", None),
        (str | None, "x", "x"),
        (Literal["a", "b"], "b", "b"),
        (Literal["a", "b"] | None, "none", None),
        (Literal["none", "a"] | None, "none", "none"),
        (tuple[int, ...], "1, 2,3", (1, 2, 3)),
        (list[str], "a,b", ["a", "b"]),
        (tuple[str, ...], '"Price, USD", it\'s "new",5"', ("Price, USD", 'it\'s "new"', '5"')),
        (tuple[float, ...] | None, "1,2", (1.0, 2.0)),
        (dict[str, Any], '{"a": [1]}', {"a": [1]}),
        (dict[str, Any] | None, "none", None),
    ],
)
def test_a_typed_text_becomes_the_value_that_is_wanted(kind: object, text: str, value: object) -> None:
    found = from_text(kind, text, "--it", "the command line")
    assert found == value and type(found) is type(value)


@dataclass(frozen=True)
class Python(Checked):
    folder: str | None = option(None, "where")
    names: tuple[str, ...] = option((), "which")
    count: int = option(1, "how many", least=1)
    table: Checking = field(default_factory=lambda: Checking())


@dataclass(frozen=True)
class Checking(Checked):
    rate: float = option(0.5, "how fast", above=0)


def test_a_program_may_give_paths_numbers_of_numpy_one_name_and_mappings() -> None:
    numpy: Any = pytest.importorskip("numpy")
    made = Python(folder=Path("a") / "b", names="x", count=numpy.int64(3), table={"rate": numpy.float32(0.25)})  # type: ignore[arg-type]
    assert made == Python("a/b", ("x",), 3, Checking(0.25))
    assert type(made.count) is int and type(made.folder) is str
    assert Python(names=[Path("a/b"), "c"]).names == ("a/b", "c")  # type: ignore[arg-type]
    assert from_mapping(Python, {"folder": Path("a/b"), "count": numpy.int64(3)}) == Python("a/b", count=3)
    with pytest.raises(ConfigError, match="count must be at least 1, not 0"):
        Python(count=numpy.int64(0))
    with pytest.raises(ConfigError, match=r"unknown key 'table.rat'; did you mean 'rate'"):
        Python(table={"rat": 1})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "value"), [(str | None, None), (int | None, None), (str, "none"), (Literal["none", "all"] | None, "none")]
)
def test_a_settings_file_says_none_in_a_word(kind: object, value: object) -> None:
    assert convert(kind, "none", "key", "here") == value


@pytest.mark.parametrize("study", ["ask", "critic", "evolve", "prompts", "secrets"])
def test_no_effort_of_reasoning_is_a_value_and_not_the_want_of_one(study: str) -> None:
    kind = get_type_hints(find_study(study).config)["reasoning_effort"]
    assert from_text(kind, "none", "key", "here") == convert(kind, "none", "key", "here") == "none"


def test_a_typed_text_that_fits_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"--it must be a whole number, not 'x'"):
        from_text(int, "x", "--it", "the command line")
    with pytest.raises(ConfigError, match=r"--it must be a table in JSON .*, not 'a=1'"):
        from_text(dict[str, Any], "a=1", "--it", "the command line")


def test_a_broken_toml_file_is_reported_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_text("a = 1\nb = = 2\n")
    with pytest.raises(ConfigError, match=r"bad\.toml is not valid TOML: .*line 2"):
        load_toml(path)
    with pytest.raises(ConfigError, match=r"there is no file .*absent\.toml"):
        load_toml(tmp_path / "absent.toml")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_toml(tmp_path)


def test_a_description_lists_nested_fields_by_dotted_names() -> None:
    fields = {each.name: each for each in describe(Settings)}
    assert fields["size"].required and not fields["rate"].required
    assert fields["inner.depth"].default == 1
    assert fields["limit"].help == "the most there may be"
    assert fields["mode"].type == "'fast' or 'slow'"


def test_the_built_in_study_is_found_by_name_and_runs() -> None:
    assert "functions" in studies()
    plugin = find_study("functions")
    run = plugin.build(plugin.config(function="sphere", dimensions=2, trials=30, population=8, shifts=2)).run()
    assert run.best is not None and run.progress.evaluations == 60
    with pytest.raises(ConfigError, match="did you mean 'functions'"):
        find_study("function")


@pytest.mark.parametrize(
    ("value", "words"),
    [("no_such_package_at_all", "ModuleNotFoundError"), ("json", "a module with a dataclass `Config`")],
)
def test_a_study_that_cannot_be_used_is_named_with_its_package_and_the_reason(
    monkeypatch: pytest.MonkeyPatch, value: str, words: str
) -> None:
    from importlib.metadata import EntryPoint

    from fanfold import registry

    monkeypatch.setattr(registry, "installed", lambda group: [EntryPoint("broken", value, group)])
    with pytest.raises(ConfigError) as caught:
        find_study("broken")
    assert words in str(caught.value) and repr(value) in str(caught.value) and "'broken'" in str(caught.value)


def test_each_test_function_has_its_optimum_where_the_textbook_says() -> None:
    from fanfold.studies.functions import FUNCTIONS

    for name, (function, half) in FUNCTIONS.items():
        optimum = [1.0 if name == "rosenbrock" else 0.0] * 3
        assert abs(function(optimum)) < 1e-9
        assert function([v + 0.01 * half for v in optimum]) > 1e-4


@dataclass(frozen=True)
class Ranged(Checked):
    count: int = option(5, "so many", least=1, most=9)
    share: float | None = option(0.5, "a share", above=0, below=1)
    part: float = option(0.0, "a part", least=0, below=1)
    rates: tuple[float, ...] = option((0.1,), "some rates", least=0)
    free: float = option(1.0, "any number")
    mode: Literal["fast", "slow"] = option("fast", "how")


@dataclass(frozen=True)
class Outer(Checked):
    inner: Ranged = field(default_factory=Ranged)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("count", 0, "count must be from 1 to 9, not 0"),
        ("count", 10, "count must be from 1 to 9, not 10"),
        ("share", 0.0, "share must be between 0 and 1, both excluded, not 0.0"),
        ("share", 1.0, "share must be between 0 and 1, both excluded, not 1.0"),
        ("part", 1.0, "part must be from 0 to below 1, not 1.0"),
        ("part", float("nan"), "part must be from 0 to below 1, not nan"),
        ("rates", (0.5, -0.5), r"rates must be at least 0, not \(0.5, -0.5\)"),
        ("free", float("inf"), "free must be a finite number, not inf"),
        ("mode", "fats", "mode must be 'fast' or 'slow', not 'fats'; did you mean 'fast'"),
    ],
)
def test_a_value_outside_its_range_is_refused_however_it_is_said(name: str, value: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=f"^{words}"):
        Ranged(**{name: value})
    with pytest.raises(ConfigError, match=f"^s.toml: inner.{words}"):
        from_mapping(Outer, {"inner": {name: value}}, "s.toml")


def test_the_ends_of_a_range_belong_to_it_and_none_is_no_number() -> None:
    assert Ranged(count=1).count == 1 and Ranged(count=9).count == 9
    assert Ranged(share=None, part=0.0, rates=()).share is None


def test_a_description_says_the_range() -> None:
    types = {each.name: each.type for each in describe(Ranged)}
    assert types["count"] == "a whole number, from 1 to 9"
    assert types["share"] == "a number or none, between 0 and 1, both excluded"
    assert types["free"] == "a number"


def test_a_keyword_that_is_no_setting_names_the_one_that_was_meant() -> None:
    with pytest.raises(ConfigError, match="Ranged has no setting 'cuont'; did you mean 'count'"):
        Ranged(cuont=3)  # type: ignore[call-arg]


def test_a_settings_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    """Editors on Windows write one."""
    (tmp_path / "a.toml").write_text("a = 1\n", encoding="utf-8-sig")
    assert load_toml(tmp_path / "a.toml") == {"a": 1}
