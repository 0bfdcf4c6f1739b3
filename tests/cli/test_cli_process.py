"""The command as users meet it: in a process of its own, at a terminal, and interrupted."""

from __future__ import annotations

import json
import os
import pty
import select
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

FANFOLD = [sys.executable, "-c", "from fanfold.cli import main; main()"]
#: Long enough to be interrupted, whatever the machine is doing; the tests wait for signs of life, not for times.
LONG = ["run", "functions", "--run", "it", "--executor", "threads:2", "--delay", "0.01", "--trials", "100000"]
HEAVY = ("asyncio", "rich", "sqlite3", "msgspec", "numpy", "optuna", "pyarrow", "concurrent.futures", "multiprocessing")


def call(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **environment}
    return subprocess.run([*FANFOLD, *arguments], cwd=folder, capture_output=True, text=True, timeout=60, env=env)


def wait_for_evaluations(ledger: Path) -> None:
    import sqlite3

    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            with sqlite3.connect(f"file:{ledger}?mode=ro", uri=True) as db:
                if db.execute("SELECT count(*) FROM trial WHERE told IS NOT NULL").fetchone()[0] >= 3:
                    return
        except sqlite3.Error:
            pass
        finally:
            time.sleep(0.05)
    raise AssertionError("the run did not begin")


@pytest.mark.slow
def test_help_answers_without_loading_the_engine(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom fanfold.cli import main\ntry:\n    main()\nexcept SystemExit:\n    pass\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    for arguments in (["--help"], ["--version"], ["runs", "--help"], ["run", "--help"]):
        done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60)
        assert done.stdout.splitlines()[-1] == "[]", done.stdout + done.stderr


@pytest.mark.slow
def test_ctrl_c_keeps_everything_and_the_printed_command_goes_on(tmp_path: Path) -> None:
    command = [*FANFOLD, *LONG, "--ledger", "my runs.db"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    wait_for_evaluations(tmp_path / "my runs.db")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err and out == ""
    resume = "fanfold resume it --ledger 'my runs.db'"
    assert err.rstrip().splitlines()[-1].strip() == resume

    before = json.loads(call(tmp_path, "runs", "--json", "--ledger", "my runs.db").stdout)[0]
    assert before["status"] == "stopped" and before["trials"] >= 3
    limit = str(before["trials"] + 5)
    done = call(tmp_path, "resume", "it", "--ledger", "my runs.db", "--max-trials", limit, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["trials"] >= before["trials"]
    assert "replaying" in done.stderr.splitlines()[0]


@pytest.mark.slow
def test_a_killed_run_is_shown_as_interrupted_and_can_be_resumed(tmp_path: Path) -> None:
    process = subprocess.Popen([*FANFOLD, *LONG, "--quiet"], cwd=tmp_path)
    wait_for_evaluations(tmp_path / "fanfold.db")
    assert json.loads(call(tmp_path, "runs", "--json").stdout)[0]["status"] == "running"
    process.kill()
    process.wait(timeout=60)
    listed = json.loads(call(tmp_path, "runs", "--json").stdout)[0]
    assert listed["status"] == "interrupted"
    done = call(tmp_path, "resume", "last", "--max-trials", str(listed["trials"] + 4), "--quiet", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["trials"] >= listed["trials"]


def at_a_terminal(folder: Path, *arguments: str) -> tuple[int, str]:
    """Run the command on a terminal of its own and press Ctrl-C once it has drawn something."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(folder)
        os.environ["TERM"] = "xterm"
        os.execv(sys.executable, [*FANFOLD, *arguments])
    shown, pressed, deadline = b"", False, time.monotonic() + 60
    while time.monotonic() < deadline:
        if select.select([terminal], [], [], 0.2)[0]:
            try:
                data = os.read(terminal, 65536)
            except OSError:
                break
            if not data:
                break
            shown += data
        if not pressed and b"best" in shown:
            os.write(terminal, b"\x03")
            pressed = True
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.close(terminal)
    return code, shown.decode()


@pytest.mark.slow
def test_at_a_terminal_a_live_block_is_drawn_and_ctrl_c_ends_it_cleanly(tmp_path: Path) -> None:
    code, shown = at_a_terminal(tmp_path, *LONG)
    assert code == 130, shown
    assert "/100,000 trials" in shown and "on threads:2" in shown and "\x1b[" in shown
    assert "fanfold resume it --ledger fanfold.db" in shown and "Traceback" not in shown
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")  # the cursor is given back


@pytest.mark.slow
def test_without_colours_nothing_is_coloured(tmp_path: Path) -> None:
    import re

    _, shown = at_a_terminal(tmp_path, *LONG, "--no-color")
    assert not re.search(r"\x1b\[(?:\d+;)*(?:3[0-7]|9[0-7])m", shown)


@pytest.mark.slow
def test_a_reader_that_goes_away_is_no_error_worth_a_traceback(tmp_path: Path) -> None:
    assert call(tmp_path, "run", "functions", "--executor", "inline", "--quiet", "--run", "it").returncode == 0
    process = subprocess.Popen(
        [*FANFOLD, "export", "it", "--evaluations"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    err = process.stderr.read().decode()
    process.stderr.close()
    process.wait(timeout=60)
    assert "Traceback" not in err


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a disk that is always full")
def test_output_that_finds_no_room_is_said_and_closed_output_is_no_error(tmp_path: Path) -> None:
    run = ("run", "functions", "--executor", "inline", "--trials", "3", "--run", "it", "--ledger", "x.db")
    for arguments in (run, ("export", "it", "--ledger", "x.db"), ("show", "it", "--json", "--ledger", "x.db")):
        with Path("/dev/full").open("w") as full:
            done = subprocess.run([*FANFOLD, *arguments], cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, timeout=60)
        assert done.returncode == 1 and b"No space left" in done.stderr and b"Traceback" not in done.stderr
    for arguments in ("runs --ledger x.db", "run functions --trials 3 --ledger x.db --json"):
        command = f"{shlex.join(FANFOLD)} {arguments} >&-"
        assert subprocess.run(command, shell=True, cwd=tmp_path, timeout=60).returncode == 0


@pytest.mark.slow
def test_exit_codes_and_versions_are_those_of_the_console_script(tmp_path: Path) -> None:
    from fanfold import __version__

    assert __version__ in call(tmp_path, "--version").stdout
    assert call(tmp_path, "runs").returncode == 3
    assert call(tmp_path, "run", "nothing").returncode == 2
    assert call(tmp_path, "runs", "--ledger", "x.db", "--upgrade").returncode == 0
    assert call(tmp_path, "runs", FANFOLD_LEDGER="x.db").returncode == 0


@pytest.mark.slow
def test_arguments_that_cannot_be_read_are_refused_before_anything_is_done(tmp_path: Path) -> None:
    command = ["run", "critic", "--model", "simulated/m", "--total", "3", "--pinned"]
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    for word, environment, remedy in (
        ("Sé breve", ascii_only, "set PYTHONUTF8=1"),
        (os.fsdecode(b"S\xe9 breve"), {"PYTHONUTF8": "1"}, "cannot be read as utf-8"),
    ):
        done = call(tmp_path, *command, word, **environment)
        assert done.returncode == 2 and remedy in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_an_unexpected_error_keeps_its_traceback(tmp_path: Path) -> None:
    code = (
        "import fanfold.ledger\nfrom fanfold.cli import main\n"
        "def fail(*arguments): raise RuntimeError('a bug')\nfanfold.ledger.RunView.open = fail\nmain()"
    )
    call(tmp_path, "runs", "--upgrade")
    command = [sys.executable, "-c", code, "show", "last"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "Traceback" in done.stderr and "a bug" in done.stderr


LOUD = """
import os
import gymnasium

print("loading")

class Loud(gymnasium.Env):
    observation_space, action_space = gymnasium.spaces.Discrete(2), gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        print("beginning")
        return 0, {}

    def step(self, action):
        os.write(1, b"a step in C\\n")
        return 1, float(action), True, False, {}
"""


@pytest.mark.slow
def test_what_user_code_prints_stays_out_of_json(tmp_path: Path) -> None:
    (tmp_path / "loud.py").write_text(LOUD)
    command = ["run", "rl", "--env", "loud.py:Loud", "--total-steps", "100", "--fresh-episodes", "4", "--json"]
    for run, workers in (("here", "1"), ("there", "2")):
        done = call(tmp_path, *command, "--run", run, "--n-workers", workers)
        assert json.loads(done.stdout)["run"] == run, done.stdout + done.stderr
        assert {"loading", "beginning", "a step in C"} <= set(done.stderr.splitlines())
    done = call(tmp_path, "play", "here", "--episodes", "2", "--json")
    assert len(json.loads(done.stdout)["episodes"]) == 2 and "a step in C" in done.stderr
    done = call(tmp_path, "play", "here", "--episodes", "1")
    assert done.stdout.splitlines()[:2] == ["loading", "beginning"], "without --json everything is for people"
