"""A key and a password go to a server that says them back everywhere, and are in no file and no output."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import quote

import pytest
from click.testing import CliRunner

from fanfold import Case, Ok, Study, Sweep
from fanfold.cli import cli
from fanfold.errors import CallFailed, FanfoldError
from fanfold.models import model
from fanfold.redaction import know, redact, redact_body
from fanfold.simulator.config import Latency, SimulatorConfig
from fanfold.simulator.core import Simulator
from fanfold.simulator.wire import BrokenAnswer, Request, SimulatedResponse, reply
from fanfold.web.server import serve

PROGRAM = Path(__file__).parent / "programs" / "canary_study.py"
KEY = "sk-canary-Zm9vYmFy+0123456789/abcdef"
PASSWORD = "canary pass+word/42"
FORMS = [
    form
    for secret in (KEY, PASSWORD)
    for form in (secret, quote(secret, safe=""), base64.b64encode(secret.encode()).decode().rstrip("="))
] + [base64.b64encode(f"user:{PASSWORD}".encode()).decode()]


class Parrot(Simulator):
    """A provider that says every credential back: in words, errors, headers, batch results and redirects."""

    def __init__(self) -> None:
        super().__init__(SimulatorConfig(answer=lambda *asked: f"SECRET {asked[1][-1]}", turnaround=Latency(0.05)))
        self.heard: list[str] = []
        self.late = threading.Event()
        self.fails_batches = False

    async def respond(self, request: Request) -> SimulatedResponse | BrokenAnswer:
        key = request.headers.get("x-api-key") or request.headers.get("authorization", "").removeprefix("Bearer ")
        said = request.body.decode()
        self.heard.append(key)
        if request.path.startswith("http"):  # we are its proxy
            proxy = request.headers.get("proxy-authorization", "")
            self.heard.append(proxy)
            word = base64.b64decode(proxy.removeprefix("Basic ")).decode()
            return reply({"error": {"message": f"who is {word}, {proxy}? {word.partition(':')[2]}"}}, 407)
        if request.path.endswith(("completions", "messages")):
            if (answer := self._misbehaviour(said, key)) is not None:
                return answer
            if "late please" in said:
                self.late.set()
                await asyncio.sleep(0.3)
        answer = await super().respond(request)
        if isinstance(answer, BrokenAnswer):
            return answer
        if self.fails_batches and request.method == "GET" and "/batches/" in request.path:
            why = {"data": [{"message": f"no file for {key}", "code": key}]}
            return reply({**answer.json(), "status": "failed", "errors": why})
        body = answer.body.replace(b"SECRET", _json(key))
        if "escaped please" in said:
            body = answer.body.replace(b"SECRET", "".join(f"\\u{ord(letter):04x}" for letter in key).encode())
        if "model please" in said:
            body = body.replace(b'"gpt-6-luna"', b'"%b"' % _json(key)).replace(b'"stop"', b'"%b"' % _json(key))
        headers = {name: value for name, value in answer.headers.items() if name != "retry-after"}  # a batch says 10 s
        return SimulatedResponse(answer.status, {**headers, "x-echo": key, "x-request-id": key}, body)

    def _misbehaviour(self, said: str, key: str) -> SimulatedResponse | None:
        for status in (400, 401, 404, 500):
            if f"{status} please" in said:
                return reply(
                    {"error": {"message": f"bad key {key}", "type": key, "code": key}}, status, {"x-echo": key}
                )
        if "redirect please" in said:
            return SimulatedResponse(
                307, {"location": f"http://127.0.0.1:9/{quote(key, safe='')}?key={key}"}, key.encode()
            )
        if "nonsense please" in said:
            return SimulatedResponse(200, {"content-type": "text/plain"}, f'{{"a": {key}'.encode())
        if "number please" in said:
            usage = {"prompt_tokens": key, "completion_tokens": key, "input_tokens": key, "output_tokens": key}
            content = [{"type": "text", "text": "x"}]
            choice = {"message": {"content": "x"}, "finish_reason": key}
            return reply({"choices": [choice], "content": content, "stop_reason": "end_turn", "usage": usage})
        return None


def _json(text: str) -> bytes:
    return json.dumps(text)[1:-1].encode()


@pytest.fixture(scope="module")
def parrot() -> Iterator[tuple[Parrot, str]]:
    """The provider on a real socket, in a thread of its own; and its URL."""
    ready: list[Any] = []
    begun, over = threading.Event(), threading.Event()

    async def main() -> None:
        provider = Parrot()
        async with serve(provider) as url:
            ready.extend((provider, url))
            begun.set()
            while not over.is_set():
                await asyncio.sleep(0.02)

    thread = threading.Thread(target=lambda: asyncio.run(main()), daemon=True)
    thread.start()
    assert begun.wait(20)
    yield ready[0], ready[1]
    over.set()
    thread.join(20)


Shell: TypeAlias = Callable[..., str]


@pytest.fixture
def environment(tmp_path: Path, parrot: tuple[Parrot, str]) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "PYTHONPATH", "HOME", "TMPDIR")}
    given = {"OPENAI_API_KEY": KEY, "ANTHROPIC_API_KEY": KEY, "NO_COLOR": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    return kept | given | {"OPENAI_BASE_URL": f"{parrot[1]}/v1", "ANTHROPIC_BASE_URL": parrot[1]}


@pytest.fixture
def shell(tmp_path: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.chdir(tmp_path)

    def run(*words: str, code: int | None = 0, **more: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "fanfold", *words],
            cwd=tmp_path,
            env=environment | more,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        said = done.stdout + done.stderr
        assert code is None or done.returncode == code, said
        assert leaks(said) == []
        return said

    return run


def here(*words: str) -> str:
    """What a command that only reads the ledger says, without a process of its own, which takes long to begin."""
    done = CliRunner().invoke(cli, [*words, "--ledger", "runs.db"])
    assert done.exit_code == 0, done.output
    return done.output


def leaks(text: str) -> list[str]:
    return [form for form in FORMS if form in text]


def assert_clean(folder: Path) -> None:
    """No file below a folder holds a canary in any form: ledger, its WAL, report, export, job folders, logs."""
    looked = [path for path in folder.rglob("*") if path.is_file() and path.name != ".env"]
    assert looked
    found = [(path.name, form) for path in looked for form in FORMS if form.encode() in path.read_bytes()]
    assert found == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "executor", "name"),
    [
        ("concurrent", "async:4", "openai/gpt-6-luna"),
        ("concurrent", "async:4", "anthropic/claude-haiku-5-5"),
        ("study", "processes:2", "openai/gpt-6-luna"),
        ("study", "threads:2", "openai/gpt-6-luna"),
        ("concurrent", "batch:openai", "openai/gpt-6-luna"),
        ("concurrent", "batch:anthropic", "anthropic/claude-haiku-5-5"),
    ],
)
def test_a_key_that_a_server_says_back_is_in_no_file_and_no_output(
    shell: Shell, tmp_path: Path, parrot: tuple[Parrot, str], target: str, executor: str, name: str
) -> None:
    del parrot[0].heard[:]
    words = ("--executor", executor, "--ledger", "runs.db", "--run", "first", "--report", "first.html")
    said = shell("run", f"{PROGRAM}:{target}", *words, "--json", code=None, CANARY_MODEL=name)
    assert json.loads(said[said.index("{\n") : said.rindex("}") + 1])["trials"] == 12
    assert KEY in parrot[0].heard  # it was sent, and so could be said back
    for words in (
        ("show", "first"),
        ("show", "first", "--json"),
        ("report", "first", "-o", "again.html"),
        ("export", "first", "--evaluations", "-o", "first.jsonl"),
        ("export", "first", "--evaluations", "-o", "first.csv"),
        ("batches", "--json"),
    ):
        assert leaks(here(*words)) == []
    text = (tmp_path / "first.jsonl").read_text()
    assert "***" in text
    assert_clean(tmp_path)


@pytest.mark.slow
def test_a_key_from_dotenv_that_a_server_says_back_is_in_no_job_folder(
    shell: Shell, tmp_path: Path, parrot: tuple[Parrot, str]
) -> None:
    (tmp_path / ".env").write_text(f'OPENAI_API_KEY="{KEY}"\n')
    del parrot[0].heard[:]
    words = ("--num-interactions", "2", "--messages-per-interaction", "1", "--results", "jobs", "--max-tokens", "20")
    where = ("--models", "gpt-6-luna", "--base-url", f"{parrot[1]}/v1", "--ledger", "runs.db")
    shell("run", "secrets", *words, *where, OPENAI_API_KEY="", ANTHROPIC_API_KEY="")
    assert KEY in parrot[0].heard
    assert "***" in next(tmp_path.glob("jobs/*/transcripts.txt")).read_text()
    assert_clean(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["401", "redirect"])
def test_a_run_that_a_server_ends_does_not_say_why_in_its_words(shell: Shell, tmp_path: Path, way: str) -> None:
    words = ("--ledger", "runs.db", "--run", "first", "--report", "first.html")
    shell("run", f"{PROGRAM}:concurrent", *words, code=None, CANARY_WAYS=f"echo {way}")
    assert leaks(here("show", "first")) == []
    assert_clean(tmp_path)


@pytest.mark.slow
def test_a_batch_that_fails_in_words_with_the_key_is_noted_without_it(
    shell: Shell, tmp_path: Path, parrot: tuple[Parrot, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parrot[0], "fails_batches", True)
    words = ("--ledger", "runs.db", "--run", "first", "--executor", "batch:openai")
    said = shell("run", f"{PROGRAM}:concurrent", *words, code=None, CANARY_WAYS="echo header")
    assert "no file for ***" in said
    assert_clean(tmp_path)


@pytest.mark.slow
def test_a_killed_run_leaves_no_key_behind(
    tmp_path: Path, environment: dict[str, str], parrot: tuple[Parrot, str]
) -> None:
    parrot[0].late.clear()
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "fanfold",
            "run",
            f"{PROGRAM}:concurrent",
            "--ledger",
            "runs.db",
            "--executor",
            "async:2",
        ],
        cwd=tmp_path,
        env=environment | {"CANARY_WAYS": "echo 400 escaped raise late header"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        assert parrot[0].late.wait(60)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        said, _ = process.communicate()
    assert leaks(said) == []
    assert any(path.name.endswith("-wal") for path in tmp_path.iterdir())
    assert_clean(tmp_path)


@pytest.mark.slow
def test_a_password_in_an_address_is_refused_and_in_no_file_and_no_output(shell: Shell, tmp_path: Path) -> None:
    url = f"https://user:{quote(PASSWORD, safe='')}@gate.example/v1"
    for words, more in (
        (("run", "prompts", "--model", "qwen", "--base-url", url), {}),
        (("run", f"{PROGRAM}:concurrent"), {"OPENAI_BASE_URL": url}),
    ):
        said = shell(*words, "--ledger", "runs.db", "--report", "first.html", code=2, **more)
        assert "gate.example/v1' carries a user or password" in said
    assert list(tmp_path.iterdir()) == []  # no run is left behind


@pytest.mark.slow
def test_a_password_of_a_proxy_that_says_it_back_is_in_no_file_and_no_output(
    shell: Shell, tmp_path: Path, parrot: tuple[Parrot, str]
) -> None:
    proxy = f"http://user:{quote(PASSWORD, safe='')}@{parrot[1].removeprefix('http://')}"
    more = {"HTTP_PROXY": proxy, "OPENAI_BASE_URL": "http://gate.example/v1", "CANARY_WAYS": "echo"}
    shell("run", f"{PROGRAM}:concurrent", "--ledger", "runs.db", "--run", "first", code=None,
          FANFOLD_TRUSTED_HOSTS="http://gate.example", **more)  # fmt: skip
    assert any("Basic" in heard for heard in parrot[0].heard)
    assert "***" in here("show", "first")
    assert_clean(tmp_path)


@pytest.mark.slow
def test_what_is_raised_to_the_user_has_no_key(
    parrot: tuple[Parrot, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    asked = model("openai/gpt-6-luna", base_url=f"{parrot[1]}/v1", key=KEY)
    impatient = replace(asked, again=lambda error, n: None)
    for way in ("400", "401", "404", "nonsense", "redirect"):
        with pytest.raises(CallFailed) as caught:
            impatient.generate_sync(f"{way} please", max_tokens=20)
        shown = "".join(traceback.format_exception(caught.value)) + repr(caught.value)
        assert leaks(shown) == [], way
    assert leaks(repr(asked) + str(asked) + repr(asked.provider)) == []

    async def evaluate(way: str, case: Case) -> Ok:
        return Ok(1.0, (await asked.generate(f"{way} please", max_tokens=20)).text)

    events: list[Any] = []
    run = Study(Sweep(["echo", "400"]), evaluate).run("async:2", ledger="runs.db", watch=events.append)
    assert leaks(repr(events) + repr(run) + repr(list(run.results()))) == []
    run.ledger.close()
    assert_clean(tmp_path)


@pytest.mark.slow
def test_a_key_that_is_in_an_old_ledger_is_neither_shown_nor_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    know(KEY)

    def evaluate(candidate: str, case: Case) -> Ok:
        return Ok(1.0)

    Study(Sweep([f"Bearer {KEY}"]), evaluate).run(ledger="runs.db", run="first").ledger.close()
    for words in (("show", "first"), ("show", "first", "--json"), ("report", "first", "-o", "first.html")):
        assert leaks(here(*words)) == []
    assert leaks((tmp_path / "first.html").read_text()) == []
    assert "Bearer ***" in here("show", "first") and "Bearer ***" in (tmp_path / "first.html").read_text()


def test_known_keys_are_replaced_however_they_are_spelled() -> None:
    know(KEY)
    escaped = "".join(f"\\u{ord(letter):04x}" for letter in KEY)
    for text in (KEY, quote(KEY, safe=""), json.dumps(KEY)):
        assert "***" in redact(f"a {text} b") and leaks(redact(f"a {text} b")) == []
    body = json.loads(redact_body(f'{{"{escaped}": ["{escaped}", "\\u00e9", 1.5, null]}}'.encode()))
    assert body == {"***": ["***", "é", 1.5, None]}
    assert redact_body(b'{"a": "\\u00e9"}') == b'{"a": "\\u00e9"}'
    assert str(FanfoldError(f"it was {KEY}")) == "it was ***"
    know("simulated"), know("short"), know(None), know("")
    assert redact("a simulated, short answer") == "a simulated, short answer"


@pytest.mark.slow
def test_a_model_that_travels_to_another_process_takes_its_key_along_as_known() -> None:
    asked = model("openai/gpt-6-luna", key="sk-another-canary-1234")
    code = (
        "import sys, pickle; from fanfold.redaction import redact; pickle.loads(sys.stdin.buffer.read());"
        "print(redact('sk-another-canary-1234'))"
    )
    done = subprocess.run([sys.executable, "-c", code], input=pickle.dumps(asked), capture_output=True, check=True)
    assert done.stdout == b"***\n"
