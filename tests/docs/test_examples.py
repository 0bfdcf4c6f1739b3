"""Every example in the README and the docs runs."""

from __future__ import annotations

import functools
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path, language: str) -> list[str]:
    return [text for found, text in BLOCK.findall(page.read_text()) if found == language]


def with_blocks(language: str) -> pytest.MarkDecorator:
    pages = [page for page in PAGES if blocks(page, language)]
    return pytest.mark.parametrize("page", pages, ids=lambda page: page.relative_to(ROOT).as_posix())


def environment() -> dict[str, str]:
    return {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "NO_COLOR": "1"}


def commands(code: str) -> list[str]:
    """The lines of a block, without prompts, comments and line ends that are continued."""
    return [line.removeprefix("$ ").split("  #")[0].strip() for line in code.replace("\\\n", " ").splitlines()]


@pytest.mark.slow
@with_blocks("python")
def test_the_python_of_a_page_runs_from_top_to_bottom(page: Path, tmp_path: Path) -> None:
    scripts = [tmp_path / f"block_{number}.py" for number, _ in enumerate(blocks(page, "python"))]
    for script, code in zip(scripts, blocks(page, "python"), strict=True):
        script.write_text(code)
    words = [sys.executable, ROOT / "tests" / "docs" / "run_scripts.py", *scripts]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{page.name}:\n{done.stderr}"


@pytest.mark.slow
@with_blocks("console")
def test_the_commands_of_a_page_run_from_top_to_bottom(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commands that start with `fanfold` or `python examples/` are executed; set-up (`pip`, `make`) is not."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")
    for command in (command for code in blocks(page, "console") for command in commands(code)):
        words = shlex.split(command)
        if re.match(r"fanfold view(?!.*--(save|png))", command):
            serve(command, tmp_path)
        elif words[:1] == ["fanfold"]:
            assert_done(words[1:])
        elif command.startswith("python examples/"):
            done = subprocess.run(words, env=environment(), capture_output=True, text=True, timeout=120)
            assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"


def assert_done(words: list[str]) -> None:
    """Run a command of ours in this process: a hundred interpreters take a minute to begin."""
    from fanfold.cli import cli

    done = CliRunner().invoke(cli, words, prog_name="fanfold")
    assert done.exit_code == 0, f"fanfold {shlex.join(words)}\n{done.output}"


def serve(command: str, folder: Path) -> None:
    """Start a server, wait until it prints its address, and press Ctrl-C."""
    words = [*shlex.split(command), "--no-open"]
    with subprocess.Popen(words, cwd=folder, env=environment(), stdout=-1, stderr=-2, text=True) as server:
        assert server.stdout is not None
        try:
            lines = [next(line for line in server.stdout if "http://" in line or "rror" in line)]
        finally:
            server.send_signal(signal.SIGINT)
        assert "http://127.0.0.1" in lines[-1], f"{command}\n{lines}"


@functools.cache
def help_of(words: tuple[str, ...]) -> str:
    from fanfold.cli import cli

    shown = CliRunner().invoke(cli, [*words, "--help"], prog_name="fanfold")
    assert shown.exit_code == 0, f"fanfold {' '.join(words)} --help: {shown.output}"
    return shown.output


@with_blocks("sh")
def test_commands_that_need_a_key_or_a_day_have_flags_that_exist(page: Path) -> None:
    """Blocks of `sh` are not run: they need a model, a cluster or a server.  What they say must still be right."""
    from fanfold.cli import cli
    from fanfold.cli.studies import SHORT
    from fanfold.plugins import studies

    for command in (command for code in blocks(page, "sh") for command in commands(code)):
        words = shlex.split(command, comments=True)
        places = [place for place, word in enumerate(words[:-1]) if word == "fanfold" and words[place + 1].isalpha()]
        for arguments in (words[place + 1 :] for place in places):
            assert arguments[0] in {*cli.commands, *SHORT, *studies()}, command
            taken = arguments[:2] if arguments[1:] and set(arguments[:2]) & set(studies()) else arguments[:1]
            if arguments[0] == "ask":
                taken = ["ask"]
            flags = [argument.partition("=")[0] for argument in arguments if argument.startswith("--")]
            missing = [flag for flag in flags if not re.search(rf"{re.escape(flag)}(?![\w.-])", help_of(tuple(taken)))]
            assert missing == [], f"fanfold {' '.join(taken)} has no {missing}"


@pytest.mark.slow
def test_the_example_gives_the_same_answer_on_every_executor() -> None:
    script = ROOT / "examples" / "custom_study.py"
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True, timeout=120)
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == [
        "inline",
        "async:8",
        "threads:4",
        "processes:2",
        "ThreadPoolExecutor",
    ]
    assert len({line.split("best")[1] for line in lines}) == 1, done.stdout


@pytest.mark.slow
def test_every_public_name_can_be_imported_and_nothing_heavy_is_loaded_by_it() -> None:
    import fanfold

    for name in fanfold.__all__:
        assert getattr(fanfold, name) is not None
    assert len(fanfold.__all__) <= 40
    heavy = ("msgspec", "asyncio", "sqlite3", "rich", "click")
    code = f"import sys, fanfold; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
