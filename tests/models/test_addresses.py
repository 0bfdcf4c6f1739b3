"""What holds for keys and addresses: who is sent a key, and what an address may not carry."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from fanfold.addresses import check_address, check_recipient, same_origin
from fanfold.cli import cli
from fanfold.errors import ConfigError
from fanfold.models import model
from fanfold.studies import critic, prompts, secrets

CANARY = "sk-canary-0123456789abcdef"
PASSWORD = "canary-password-9876"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("OPENAI_BASE_URL", "ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY", "FANFOLD_TRUSTED_HOSTS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", CANARY)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "url",
    [
        f"https://user:{PASSWORD}@gate.example/v1",
        f"https://{PASSWORD}@gate.example/v1",
        f"https://gate.example/v1?api_key={PASSWORD}",
        f"https://gate.example/v1?a=1&token={PASSWORD}",
        f"https://gate.example/v1#{PASSWORD}",
    ],
)
def test_an_address_that_carries_a_secret_is_refused_at_the_start_and_not_repeated(folder: Path, url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        model("qwen", base_url=url)
    assert PASSWORD not in str(caught.value) and "gate.example" in str(caught.value)
    for config in (prompts.plugin.config, critic.plugin.config, secrets.plugin.config):
        with pytest.raises(ConfigError, match=r"gate\.example"):
            config(base_url=url)
    done = CliRunner().invoke(cli, ["run", "prompts", "--model", "qwen", "--base-url", url, "--ledger", "runs.db"])
    assert done.exit_code == 2 and PASSWORD not in done.output and not (folder / "runs.db").exists()


def test_a_key_is_never_sent_over_plain_http_beyond_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="plain http") as caught:
        model("qwen", base_url="http://10.0.0.5:8000/v1")
    assert "FANFOLD_TRUSTED_HOSTS=http://10.0.0.5:8000" in str(caught.value)
    monkeypatch.setenv("OPENAI_BASE_URL", "http://gate.example/v1")
    with pytest.raises(ConfigError, match="plain http"):
        model("openai/gpt-6-luna")
    monkeypatch.setenv("FANFOLD_TRUSTED_HOSTS", "gate.example, 10.0.0.5:8000")
    with pytest.raises(ConfigError, match="plain http"):
        model("openai/gpt-6-luna")
    monkeypatch.setenv("FANFOLD_TRUSTED_HOSTS", "other.example,http://10.0.0.5:8000")
    assert model("qwen", base_url="http://10.0.0.5:8000/v1").key == CANARY
    with pytest.raises(ConfigError, match="plain http"):
        model("qwen", base_url="http://10.0.0.5:8001/v1")
    monkeypatch.delenv("OPENAI_API_KEY")
    assert model("qwen", base_url="http://10.0.0.6:8000/v1").key is None  # there is nothing to keep


@pytest.mark.parametrize("url", ["http://127.0.0.1:8089/v1", "http://localhost:1/v1", "http://[::1]:11434/v1"])
def test_this_machine_is_trusted(folder: Path, url: str) -> None:
    (folder / ".env").write_text(f"OPENAI_BASE_URL={url}\n")
    assert model("openai/gpt-6-luna").url == url


def test_an_address_from_dotenv_gets_no_key_until_the_user_names_its_host(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / ".env").write_text("OPENAI_BASE_URL=https://evil.example/v1\nFANFOLD_TRUSTED_HOSTS=evil.example\n")
    with pytest.raises(ConfigError, match=r"\.env: OPENAI_BASE_URL") as caught:
        model("openai/gpt-6-luna")
    assert "FANFOLD_TRUSTED_HOSTS=evil.example" in str(caught.value)
    for trusted in ("evil.example", "https://evil.example", "evil.example:443", "x.example, EVIL.example"):
        monkeypatch.setenv("FANFOLD_TRUSTED_HOSTS", trusted)
        assert model("openai/gpt-6-luna").url == "https://evil.example/v1"
    for other in ("example", "evil.example:8443", "notevil.example", "http://evil.example", ""):
        monkeypatch.setenv("FANFOLD_TRUSTED_HOSTS", other)
        with pytest.raises(ConfigError, match="only a file names"):
            model("openai/gpt-6-luna")
    (folder / ".env").write_text("OPENAI_BASE_URL=https://api.openai.com/v1\n")
    assert model("openai/gpt-6-luna").key == CANARY


def test_what_the_user_says_is_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert model("qwen", base_url="https://gate.example/v1").key == CANARY
    monkeypatch.setenv("OPENAI_BASE_URL", "https://gate.example/v1")
    assert model("openai/gpt-6-luna").url == "https://gate.example/v1"


def run(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(cli, [*words, "--ledger", "runs.db"])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


@pytest.mark.parametrize("study", ["prompts", "critic", "secrets"])
def test_an_address_from_toml_gets_no_key_until_the_user_names_its_host(folder: Path, study: str) -> None:
    fields = {"prompts": 'model = ["qwen"]', "critic": 'model = "qwen"', "secrets": 'models = ["qwen"]'}[study]
    (folder / "search.toml").write_text(f'study = "{study}"\nbase_url = "https://evil.example/v1"\n{fields}\n')
    code, said = run("run", "search.toml")
    assert code == 2 and "search.toml: base_url" in said and "--trust-host evil.example" in said
    assert not (folder / "runs.db").exists() and CANARY not in said


@pytest.mark.slow
def test_a_recorded_address_gets_no_key_on_resume_until_the_user_names_its_host(folder: Path) -> None:
    words = ("run", "functions", "--run", "first", "--max-trials", "2")
    assert run(*words)[0] == 0
    import sqlite3

    fields = {"model": ["qwen"], "base_url": "https://evil.example/v1"}
    with sqlite3.connect("runs.db") as db:
        (meta,) = db.execute("SELECT meta FROM run").fetchone()
        changed = json.dumps({**json.loads(meta), "target": "prompts", "fields": fields})
        db.execute("UPDATE run SET meta = ?", (changed,))
    code, said = run("resume", "first")
    assert code == 2 and "the recorded run: base_url" in said and "--trust-host evil.example" in said
    code, said = run("resume", "first", "--trust-host", "evil.example")
    assert "only a file names" not in said


def test_a_flag_is_the_users_word_even_beside_a_file(folder: Path) -> None:
    (folder / "search.toml").write_text('study = "prompts"\nbase_url = "https://evil.example/v1"\nmodel = ["qwen"]\n')
    code, said = run("run", "search.toml", "--base-url", "https://gate.example/v1", "--task", "no-such-task")
    assert code == 2 and "no-such-task" in said


@pytest.mark.parametrize(
    "url",
    ["https://api.openai.com.evil.example/v1", "https://evil.example/api.openai.com", "https://api.openai.com:444/v1"],
)
def test_what_only_looks_like_the_providers_host_is_another(url: str) -> None:
    check_address(url)
    with pytest.raises(ConfigError, match="only a file names"):
        check_recipient(url, ["https://api.openai.com/v1"], "OPENAI_API_KEY", "x.toml")
    check_recipient("https://API.openai.com/v2", ["https://api.openai.com/v1"], "OPENAI_API_KEY", "x.toml")


@pytest.mark.parametrize(
    ("url", "other", "same"),
    [
        ("http://127.0.0.1:80/v1", "http://127.0.0.1/results", True),
        ("https://api.test:443", "https://API.test/x", True),
        ("https://api.test", "http://api.test", False),
        ("https://api.test", "https://api.test:8443", False),
        ("https://api.test", "https://api.test.evil", False),
        ("https://api.test", "https://api.test@evil", False),
        ("https://api.test", "https://api.test:port", False),
        ("https://api.test", "https://[api.test", False),
    ],
)
def test_a_server_is_the_same_with_and_without_its_usual_port(url: str, other: str, same: bool) -> None:
    assert same_origin(url, other) is same


@pytest.mark.parametrize("end", ["/v1", "/v1/", "/v1/chat/completions", "/v1/completions/", "/v1/responses"])
@pytest.mark.parametrize("name", ["qwen", "ollama/qwen", "groq/qwen"])
def test_an_address_may_be_the_one_that_examples_with_curl_show(name: str, end: str) -> None:
    assert model(name, base_url=f" http://127.0.0.1:9/a{end}", key="k").url == "http://127.0.0.1:9/a/v1"


def test_a_key_that_was_read_with_its_line_end_is_taken_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", f" {CANARY}\n")
    assert model("anthropic/claude-haiku-5-5").key == CANARY == model("openai/gpt-6-luna", key=f"{CANARY}\r\n").key
    monkeypatch.setenv("ANTHROPIC_API_KEY", "\n")
    with pytest.raises(ConfigError, match="needs an API key"):
        model("anthropic/claude-haiku-5-5")


@pytest.mark.parametrize("variable", ["ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"])
def test_a_variable_with_quotes_around_its_value_is_refused_by_its_name(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", CANARY)
    monkeypatch.setenv(variable, f'"{CANARY}"')
    with pytest.raises(ConfigError, match=f"{variable} has quotes around its value") as refused:
        model("anthropic/claude-haiku-4-5")
    assert CANARY not in str(refused.value)
