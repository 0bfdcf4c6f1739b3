"""`fanfold ask` in a process of its own: killed, interrupted, and continued by the same command."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

FANFOLD = [sys.executable, "-c", "from fanfold.cli import main; main()"]
ROWS = 600


@pytest.fixture
def provider() -> Iterator[str]:
    command = [sys.executable, "-m", "fanfold.simulator", "--port", "0", "--latency", "0.05"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line.strip() == "ready":
                break
        found = re.search(r"simulator at (\S+)", "".join(lines))
        assert found is not None
        yield found[1]
        process.terminate()


def charges(url: str) -> Counter[str]:
    with urllib.request.urlopen(f"{url}/_simulator/ledger") as response:
        return Counter(charge["key"] for charge in json.load(response)["charges"])


class Asking:
    """The command on a table of many rows, as often as it is started."""

    def __init__(self, folder: Path, url: str, *flags: str) -> None:
        self.folder, self.url = folder, url
        rows = "".join(json.dumps({"id": number, "text": f"row {number}"}) + "\n" for number in range(ROWS))
        (folder / "d.jsonl").write_text(rows)
        model = ["--model", "openai/gpt-6-luna", "--base-url", f"{url}/v1", "--max-tokens", "9", "--concurrent", "16"]
        self.command = [*FANFOLD, "ask", "d.jsonl", "--prompt", "Say {text}.", *model, "-o", "out.jsonl", *flags]

    def start(self) -> subprocess.Popen[str]:
        environment = {**os.environ, "OPENAI_API_KEY": "not-a-key-at-all"}
        return subprocess.Popen(
            self.command, cwd=self.folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def stop_half_way(self, number: int) -> subprocess.Popen[str]:
        process = self.start()
        while charges(self.url).total() < ROWS // 2 and process.poll() is None:
            time.sleep(0.02)
        process.send_signal(number)
        return process

    def rows(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in (self.folder / "out.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_after_a_kill_the_same_command_loses_no_row_and_pays_for_none_twice(tmp_path: Path, provider: str) -> None:
    asking = Asking(tmp_path, provider)
    killed = asking.stop_half_way(signal.SIGKILL)
    killed.communicate(timeout=60)
    assert killed.returncode == -signal.SIGKILL and not (tmp_path / "out.jsonl").exists()
    paid = charges(provider).total()
    assert ROWS // 2 <= paid < ROWS
    again = asking.start()
    _, errors = again.communicate(timeout=120)
    assert again.returncode == 0, errors
    rows = asking.rows()
    assert [row["id"] for row in rows] == list(range(ROWS)) and all(row["answer"] for row in rows)
    repeated = charges(provider).total() - ROWS
    assert 0 <= repeated <= 16  # calls on their way when the process died: nobody could write their replies down


@pytest.mark.slow
def test_ctrl_c_keeps_what_is_answered_and_says_how_to_continue(tmp_path: Path, provider: str) -> None:
    asking = Asking(tmp_path, provider, "--stream")
    stopped = asking.stop_half_way(signal.SIGINT)
    _, errors = stopped.communicate(timeout=60)
    assert stopped.returncode == 130 and "fanfold resume ask-d-" in errors, errors
    streamed = asking.rows()
    assert 0 < len(streamed) < ROWS and [row["id"] for row in streamed] == list(range(len(streamed)))
    again = asking.start()
    _, errors = again.communicate(timeout=120)
    assert again.returncode == 0, errors
    assert len(asking.rows()) == ROWS and set(charges(provider).values()) == {1}


@pytest.mark.slow
def test_help_answers_without_loading_the_engine() -> None:
    heavy = ("asyncio", "rich", "sqlite3", "msgspec", "pyarrow")
    code = (
        "import sys\nfrom fanfold.cli import main\ntry:\n    main()\nexcept SystemExit:\n    pass\n"
        f"print([name for name in {heavy!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, "ask", "--help"], capture_output=True, text=True, timeout=60)
    assert "--dry-run" in done.stdout and done.stdout.splitlines()[-1] == "[]", done.stdout + done.stderr


@pytest.mark.slow
def test_a_reader_that_leaves_early_stops_what_is_still_to_be_paid(tmp_path: Path, provider: str) -> None:
    """As `fanfold ask ... --stream | head` does."""
    process = Asking(tmp_path, provider, "-o", "-", "--stream").start()
    assert process.stdout is not None and process.stderr is not None
    assert json.loads(process.stdout.readline())["id"] == 0
    process.stdout.close()
    said = process.stderr.read()
    assert process.wait(60) == 143 and charges(provider).total() < ROWS, said
    assert "nobody reads the rows any more" in said and "fanfold resume" in said
    assert "watcher" not in said and "Broken pipe" not in said
