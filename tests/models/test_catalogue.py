"""Names of models that `models.toml` defines work wherever a model is named, and keep every rule about keys."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fanfold.cli import cli
from fanfold.errors import ConfigError
from fanfold.limits import PRESETS
from fanfold.models import Price, model
from fanfold.redaction import redact

SECRET = "sk-secret-0123456789abcdef"
SIMULATED = '[mine]\nmodel = "simulated/gpt-6-luna"\n'


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("OPENAI_BASE_URL", "FANFOLD_TRUSTED_HOSTS", "GATE_KEY", "TEAM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path / "project"


def write(folder: Path, text: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "models.toml").write_text(text)


def users(folder: Path) -> Path:
    return folder.parent / "config/fanfold"


def refused(text: str, folder: Path, name: str = "mine") -> str:
    write(folder, text)
    with pytest.raises(ConfigError) as caught:
        model(name)
    return str(caught.value)


# -- what a name means -----------------------------------------------------------------------------------------------


def test_a_name_stands_for_a_model_with_all_its_settings(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATE_KEY", "key-of-the-gate")
    monkeypatch.setenv("TEAM", "research")
    monkeypatch.setenv("FANFOLD_TRUSTED_HOSTS", "gate.example")
    write(
        folder,
        """
        [mine]
        model = "openai/gpt-6-luna"
        base_url = "https://gate.example/v1"
        key_variable = "GATE_KEY"
        headers = { X-Team = "$TEAM", X-App = "fanfold" }
        price = [1.0, 2.0, 0.5]
        limits = "conservative"
        timeout = 7
        parameters = { reasoning_effort = "low" }
        """,
    )
    asked = model("mine")
    assert (asked.name, asked.url, asked.key) == ("gpt-6-luna", "https://gate.example/v1", "key-of-the-gate")
    assert (asked.price, asked.limits, asked.timeout) == (Price(1.0, 2.0, 0.5), PRESETS["conservative"], 7)
    headers = asked.signed("POST", asked.url)
    assert (headers["x-team"], headers["x-app"]) == ("research", "fanfold") and "key-of-the-gate" in str(headers)
    assert '"reasoning_effort":"low"' in asked.call("x").body
    assert '"reasoning_effort":"high"' in asked.call("x", reasoning_effort="high").body
    assert "key-of-the-gate" not in repr(asked) and "research" not in repr(asked)


def test_arguments_win_over_the_file(folder: Path) -> None:
    write(folder, SIMULATED + "limits = { requests_per_minute = 60 }\nprice = { input = 3, output = 4 }\n")
    asked = model("mine")
    assert asked.limits.requests_per_minute == 60 and asked.price == Price(3, 4)
    asked = model("mine", limits="aggressive", price=(1, 1), timeout=5)
    assert (asked.limits, asked.price, asked.timeout) == (PRESETS["aggressive"], Price(1, 1), 5)


def test_what_the_user_says_of_a_model_is_believed(folder: Path) -> None:
    write(folder, SIMULATED + 'capabilities = { refuses = ["seed"], efforts = ["low"], context = 99 }\n')
    asked, plain = model("mine"), model("simulated/gpt-6-luna")
    body = json.loads(asked.call("x", seed=1, stop=["."], reasoning_effort="low").body)
    assert "seed" not in body and body["stop"] == ["."] and body["reasoning_effort"] == "low"
    assert asked.capabilities.context == 99 and asked.capabilities.output == plain.capabilities.output
    assert "seed" in plain.call("x", seed=1).body


def test_the_folder_comes_before_the_users_own_file(folder: Path) -> None:
    write(users(folder), SIMULATED + "timeout = 1\n[other]\nmodel = 'simulated/x'\n")
    assert model("mine").timeout == 1
    write(folder, SIMULATED + "timeout = 22\n")
    assert model("mine").timeout == 22 and model("other").name == "x"


def test_a_table_may_be_named_after_a_model(folder: Path) -> None:
    write(folder, '["openai/gpt-6-luna"]\nprice = [7, 8]\n')
    assert model("openai/gpt-6-luna").price == Price(7, 8)
    assert model("openai/gpt-4o-mini").price != Price(7, 8)


def test_a_changed_file_is_read_again(folder: Path) -> None:
    write(folder, SIMULATED)
    assert model("mine").name == "gpt-6-luna"
    write(folder, '[mine]\nmodel = "simulated/claude-haiku-5-5"\n')
    assert model("mine").name == "claude-haiku-5-5"


# -- what is wrong with a file ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[mine]\nmodle = 'simulated/x'", "models.toml: [mine]: unknown key 'modle'; did you mean 'model'"),
        ("[mine]\nmodel = 3", "models.toml: [mine]: model"),
        ("[mine]\nmodel = 'simulated/x'\nprice = [1]", "models.toml: [mine]: price must be [input, output]"),
        ("[mine]\nmodel = 'simulated/x'\nlimits = {rpm = 3}", "models.toml: [mine]: unknown key 'limits.rpm'"),
        ("[mine]\nmodel = 'simulated/x'\ntimeout = 0", "models.toml: [mine]: timeout must be above 0"),
        ("[mine]\nmodel = 'simulated/x'\nparameters = {temprature = 1}", "[mine]: parameters: openai has no parameter"),
        (
            "[mine]\nmodel = 'simulated/x'\ncapabilities = {refuse = []}",
            "[mine]: unknown key 'capabilities.refuse'; did",
        ),
        ("[mine]\nmodel = 'opnai/x'", "names no known provider; did you mean 'openai'"),
        ("mine = 'simulated/x'", "models.toml: 'mine' is not a table"),
        ("[mine\n", "models.toml is not valid TOML"),
        ("[mine]\nmodel = 'openai/x'\nkey_variable = 'GATE_KEY'", "[mine] takes its key from GATE_KEY, which is not"),
        ("[mine]\nmodel = 'openai/x'\nheaders = {x-team = '$TEAM'}", "takes the header x-team from TEAM, which is"),
    ],
)
def test_what_is_wrong_is_said_with_file_table_and_key(folder: Path, text: str, expected: str) -> None:
    assert expected in refused(text, folder)


def test_a_name_that_nobody_knows_gets_the_nearest(folder: Path) -> None:
    assert "did you mean 'mine'" in refused(SIMULATED, folder, "mime")


# -- secrets ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        'key = "pasted-secret-1"',
        'api_key = "pasted-secret-2"',
        'OPENAI_API_KEY = "pasted-secret-3"',
        'token = "pasted-secret-4"',
        'key_variable = "sk-pasted-secret-5"',
        'headers = { Authorization = "Bearer pasted-secret-6" }',
        'headers = { x-api-key = "pasted-secret-7" }',
    ],
)
def test_a_key_in_the_file_is_refused_and_not_repeated(folder: Path, line: str) -> None:
    said = refused(f'[mine]\nmodel = "openai/gpt-6-luna"\n{line}\n', folder)
    assert "models.toml: [mine]" in said and "environment variable" in said and "pasted" not in said
    assert "pasted" not in redact(line.split('"')[1])


def test_a_file_in_the_folder_sends_no_key_to_a_new_host(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATE_KEY", "key-of-the-gate")
    gate = 'base_url = "https://evil.example/v1"\n'
    tables = [
        f'[mine]\nmodel = "openai/gpt-6-luna"\n{gate}',
        f'[mine]\nmodel = "openai-compatible/x"\n{gate}',
        f'[mine]\nmodel = "openai/x"\nkey_variable = "GATE_KEY"\n{gate}',
        f'[mine]\nmodel = "openai/x"\nkey_variable = ""\nheaders = {{ x-key = "$GATE_KEY" }}\n{gate}',
        '[mine]\nmodel = "xai/grok-4.6"\nkey_variable = "OPENAI_API_KEY"\n',
    ]
    for text in tables:
        said = refused(text, folder)
        assert "models.toml: [mine]" in said and "only a file names" in said, text
        assert "key-of-the-gate" not in said and SECRET not in said
    monkeypatch.setenv("FANFOLD_TRUSTED_HOSTS", "evil.example")
    write(folder, tables[0])
    assert model("mine").key == SECRET


def test_what_needs_no_trust_needs_none(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder, '[mine]\nmodel = "openai/gpt-6-luna"\nprice = [1, 2]\n[own]\nmodel = "ollama/qwen3"\n')
    assert model("mine").key == SECRET and model("own").key is None
    write(folder, '[mine]\nmodel = "openai/x"\nkey_variable = "TEAM"\nheaders = { x-a = "b" }\n')
    monkeypatch.setenv("TEAM", "key-of-a-team")
    assert model("mine").key == "key-of-a-team"
    write(folder, '[mine]\nmodel = "openai-compatible/x"\nbase_url = "https://gate.example/v1"\nkey_variable = ""\n')
    assert model("mine").key is None
    write(folder, '[mine]\nmodel = "openai-compatible/x"\nbase_url = "http://127.0.0.1:8000/v1"\n')
    assert model("mine").key == SECRET


def test_the_users_own_file_is_the_users_word(folder: Path) -> None:
    write(users(folder), '[mine]\nmodel = "openai/x"\nbase_url = "https://gate.example/v1"\n')
    assert (model("mine").url, model("mine").key) == ("https://gate.example/v1", SECRET)
    write(users(folder), '[mine]\nmodel = "openai/x"\nbase_url = "http://gate.example/v1"\n')
    with pytest.raises(ConfigError, match="plain http"):
        model("mine")


# -- everywhere ------------------------------------------------------------------------------------------------------


def fanfold(*words: str, code: int = 0) -> str:
    done = CliRunner().invoke(cli, [*words, "--ledger", "runs.db"])
    assert done.exit_code == code, done.output
    return done.output


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("prompts", "--model", "mine", "--writer", "mine", "--trials", "2", "--train", "4", "--held-out", "2"),
        ("critic", "--model", "mine", "--feedback", "judge:mine", "--total", "2"),
        ("secrets", "--models", "mine,other", "--judge", "mine", "--num-interactions", "1"),
    ],
    ids=lambda words: words[0],
)
def test_every_study_and_every_agent_takes_such_names(folder: Path, words: tuple[str, ...]) -> None:
    write(folder, SIMULATED + '[other]\nmodel = "simulated/claude-haiku-5-5"\n')
    fanfold("run", *words, "--run", "first")
    shown: dict[str, Any] = json.loads(fanfold("show", "first", "--json"))
    assert {row["model"] for row in shown["model_calls"]} <= {"simulated/gpt-6-luna", "simulated/claude-haiku-5-5"}
    assert shown["model_calls"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("prompts", "--model", "mine", "--trials", "2", "--train", "4", "--held-out", "2"),
        ("critic", "--model", "mine", "--total", "2"),
        ("secrets", "--models", "mine,other", "--num-interactions", "1"),
    ],
    ids=lambda words: words[0],
)
def test_a_run_is_not_resumed_with_another_model_of_the_same_name(folder: Path, words: tuple[str, ...]) -> None:
    write(folder, SIMULATED + '[other]\nmodel = "simulated/claude-haiku-5-5"\n')
    fanfold("run", *words, "--run", "first")
    write(folder, '[mine]\nmodel = "simulated/gpt-6-sol"\n[other]\nmodel = "simulated/claude-haiku-5-5"\n')
    assert "evaluate" in fanfold("run", *words, "--run", "first", code=4)


@pytest.mark.slow
def test_names_work_in_workers_which_see_neither_keys_nor_headers(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fanfold.context import within

    monkeypatch.setenv("TEAM", "token-of-a-team")
    monkeypatch.setenv("FANFOLD_TRUSTED_HOSTS", "api.openai.com")
    write(folder, SIMULATED + '[kept]\nmodel = "openai/gpt-6-luna"\nheaders = { x-team = "$TEAM" }\n')
    with within(leaving=True):
        sent = pickle.dumps(model("kept"))
    assert b"token-of-a-team" not in sent and SECRET.encode() not in sent
    fanfold("run", "prompts", "--model", "mine", "--trials", "2", "--train", "4", "--executor", "processes:2")


def test_a_question_to_another_model_of_the_same_name_is_another_question(folder: Path) -> None:
    from fanfold.studies.ask.evaluator import AskEvaluator

    prints = []
    for text in (SIMULATED, '[mine]\nmodel = "simulated/gpt-6-sol"\n'):
        write(folder, text)
        prints.append(AskEvaluator(models=("mine",)).fingerprint)
    assert prints[0] != prints[1]
