"""A stranger's texts give no orders to the terminal, checked by the bytes that arrive at a real pseudo-terminal."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import pty
import re
import select
import sqlite3
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from fanfold import Case, Failed, Ok, Study
from fanfold.cli import cli
from fanfold.strategies import Sweep
from fanfold.texts import printable, printable_json, spreadsheet_cell

#: Sets the title and the clipboard, clears the screen, rings, colours, and hides: in seven and in eight bits.
ORDERS = (
    "\x1b]0;pwned\x07\x1b]52;c;cHduZWQ=\x07\x1b[2J\x1b[H\x1b[31mred\x1bPq\x1b\\\x07\x08\r\x7f\x00"
    "\u009d0;pwned\u009c\u009b2J\u202egnp.exe\u2066\u200b\u200d\ufeff\u2028\U000e0041[bold red]mark[/bold red] :smile:"
)
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e0fff]")
#: What rich writes itself to draw a block again: colours, cursor up, erase line, hide and show the cursor.
OWN = re.compile("\x1b\\[(?:[0-9;]*m|1A|2K|\\?25[lh])|\r")


def at_a_terminal(folder: Path, *arguments: str, seconds: float = 60.0) -> tuple[str, int]:
    """What a terminal is sent by a command whose streams are all tied to it, and the exit code."""
    master, slave = pty.openpty()
    attributes = termios.tcgetattr(slave)
    attributes[1] &= ~termios.OPOST  # line feeds arrive as they are written
    termios.tcsetattr(slave, termios.TCSANOW, attributes)
    process = subprocess.Popen(
        [sys.executable, "-m", "fanfold", *arguments],
        cwd=folder, stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "4000", "LINES": "50"},
    )  # fmt: skip
    os.close(slave)
    arrived = b""
    deadline = time.monotonic() + seconds
    with contextlib.suppress(OSError):  # the other end was closed
        while time.monotonic() < deadline:
            if select.select([master], [], [], 1.0)[0]:
                if not (more := os.read(master, 65536)):
                    break
                arrived += more
    os.close(master)
    if process.poll() is None and time.monotonic() >= deadline:
        process.kill()
    return arrived.decode(), process.wait(10)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a ledger whose every field that takes a text is hostile."""
    folder = tmp_path_factory.mktemp("hostile")

    def evaluate(candidate: dict[str, str], case: Case) -> Ok:
        if candidate["kind"] == "bad":
            raise ValueError(ORDERS)
        return Ok(1.0, data={ORDERS: ORDERS})

    candidates = [{"kind": "good", ORDERS: ORDERS}, {"kind": "bad", "text": ORDERS}]
    study = Study(name="search", strategy=Sweep(candidates), evaluate=evaluate, cases=[Case(f"case {ORDERS}")])
    path = folder / "fanfold.db"
    meta = {"target": f"{ORDERS}", "fields": {ORDERS: ORDERS}, "options": {}, ORDERS: ORDERS}
    study.run("inline", ledger=path, run="search", meta=meta).ledger.close()
    db = sqlite3.connect(path)
    identity = json.dumps({"strategy": ORDERS, "seed": ORDERS})
    db.execute("UPDATE run SET reason = ?, identity = ?", (ORDERS, identity))
    db.execute("UPDATE evaluation SET failure = ?, detail = ? WHERE failure IS NOT NULL", (ORDERS, ORDERS))
    section = {"title": ORDERS, "text": ORDERS, "columns": [ORDERS], "rows": [[ORDERS]], "curves": [], "across": ORDERS}
    db.execute("INSERT INTO summary VALUES (1, ?)", (json.dumps({"figures": {ORDERS: ORDERS}, "sections": [section]}),))
    db.execute("INSERT INTO batch VALUES (?, 1, ?, ?, 'done', ?, 1, 1, ?)", (ORDERS,) * 5)
    db.execute(
        "INSERT INTO call (key, run, model, request, reply, started, seconds, tries) "
        "VALUES (x'00', 1, ?, '{}', '{}', 1, 1, 1)",
        (ORDERS,),
    )
    db.execute("INSERT INTO desk VALUES (1, ?)", (json.dumps({"cached": 1, "utilisation": {ORDERS: 0.5}}),))
    db.commit()
    db.close()
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ("runs",),
        ("runs", "--json"),
        ("show", "last", "--trials", "2"),
        ("show", "last", "--json"),
        ("show", "last", "--prometheus"),
        ("export", "last"),
        ("export", "last", "--format", "csv"),
        ("export", "last", "--evaluations", "--format", "csv"),
        ("report", "last", "-o", "out.html"),
        ("batches",),
        ("batches", "--json"),
        ("resume", "last"),
        ("resume", "last", "--json"),
        ("show", f"absent{ORDERS.replace(chr(0), '')}"),
        ("run", f"absent{ORDERS.replace(chr(0), '')}"),
        ("show", "last", f"--{ORDERS.replace(chr(0), '')}"),
        (f"--{ORDERS.replace(chr(0), '')}",),
    ],
    ids=lambda arguments: re.sub(r"[^a-z-]+", "_", " ".join(arguments)[:40]),
)
def test_what_arrives_at_a_terminal_is_only_shown(hostile: Path, arguments: tuple[str, ...]) -> None:
    colourless = () if arguments[0].startswith("--") else ("--no-color",)
    arrived, code = at_a_terminal(hostile, *arguments, *colourless)
    assert "Traceback" not in arrived and code in (0, 2, 3, 4), arrived
    arrived = re.sub("\x1b\\[(31|1|0)m", "", arrived) if not colourless else arrived
    assert not OBEYED.findall(arrived), arrived
    if arguments[0] in ("show", "batches", "resume", "export") and "out.html" not in arguments:
        assert ("pwned" in arrived and r"\x1b]0;" in arrived) or r"\u001b]0;" in arrived
    if arguments[-1] == "--json":
        json.loads(arrived[arrived.index("[" if arguments[0] in ("runs", "batches") else "{\n") :])


@pytest.mark.slow
def test_a_live_run_shows_hostile_candidates_and_errors_without_obeying_them(tmp_path: Path) -> None:
    (tmp_path / "noisy.py").write_text(
        "import asyncio\n"
        "from fanfold import Case, Study\nfrom fanfold.context import here\n"
        "from fanfold.events import Notice\nfrom fanfold.strategies import Sweep\n"
        f"ORDERS = {ORDERS!r}\n"
        "async def evaluate(candidate, case):\n"
        "    here().broker.emit(Notice(ORDERS))\n"
        "    await asyncio.sleep(0.7)\n"  # longer than the display waits before it draws again
        "    if candidate['n'] == 1: raise ValueError(ORDERS)\n"
        "    return 1.0\n"
        "study = Study(name='noisy', strategy=Sweep([{'n': n, ORDERS: ORDERS} for n in range(3)]), evaluate=evaluate,\n"
        "              cases=[Case('a')], window=1, shown=lambda result: ORDERS)\n"
    )
    arrived, code = at_a_terminal(tmp_path, "run", "noisy.py", "--no-color")
    assert code == 0, arrived
    assert (
        "note: \\x1b]0;pwned" in arrived and "ValueError: \\x1b]0;pwned" in arrived and "last \\x1b]0;pwned" in arrived
    )
    assert "[bold red]mark[/bold red] :smile:" in arrived
    assert not OBEYED.findall(OWN.sub("", arrived)), arrived
    colours = set(re.findall("\x1b\\[([0-9;]*)m", arrived))
    assert colours <= {"0", "1", ""}, "no colours of its own, none of a stranger"


@pytest.mark.slow
def test_the_error_that_a_stranger_wrote_is_shown_without_colours_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(f"raise RuntimeError({ORDERS!r})\n")
    arrived, code = at_a_terminal(tmp_path, "run", "broken.py", "--no-color")
    assert code == 2 and not OBEYED.findall(arrived), arrived


def test_json_keeps_its_meaning() -> None:
    text = json.dumps({"a": ORDERS + "\udc80é😀"}, ensure_ascii=False)
    assert json.loads(printable_json(text)) == json.loads(text) and not OBEYED.search(printable_json(text))


def test_printable_text_keeps_what_people_read() -> None:
    assert printable("one\ntwo\tthree é 漢字 😀\r\n") == "one\ntwo\tthree é 漢字 😀\n"
    assert printable("a\nb\tc", lines=False) == r"a\x0ab\x09c"
    assert printable("half \ud83d of one") == r"half \ud83d of one"


@pytest.mark.parametrize(
    "text", ["=1+1", "+1+cmd", "-1+cmd|' /C calc'!A0", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "＝1+1"]
)
def test_a_formula_is_a_text(text: str) -> None:
    assert spreadsheet_cell(text) == f"'{text}"


@pytest.mark.parametrize("text", ["-1.5", "+3", "-1e-9", "plain", "", "a=b", " =1", "1-2"])
def test_numbers_and_other_texts_stay_as_they_are(text: str) -> None:
    assert spreadsheet_cell(text) == text


@pytest.mark.slow
def test_formulas_in_an_export_are_quoted_and_numbers_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    candidates = [{"text": '=HYPERLINK("http://x")', "number": -1.5}, {"text": "-2", "number": -3}]

    def evaluate(candidate: dict[str, object], case: Case) -> Ok | Failed:
        return Failed("error", "@SUM(1)") if candidate["text"] == "-2" else Ok(-1.0, data="=1")

    study = Study(name="sheet", strategy=Sweep(candidates), evaluate=evaluate, cases=[Case("=case")])
    study.run("inline", ledger="fanfold.db", run="sheet").ledger.close()
    found = CliRunner().invoke(cli, ["export", "sheet", "--format", "csv"]).stdout
    first, second = csv.DictReader(io.StringIO(found))
    assert first["candidate.text"] == '\'=HYPERLINK("http://x")' and second["candidate.text"] == "-2"
    assert first["candidate.number"] == "-1.5" and first["score"] == "-1.0"
    found = CliRunner().invoke(cli, ["export", "sheet", "--format", "csv", "--evaluations"]).stdout
    first, second = csv.DictReader(io.StringIO(found))
    assert first["case"] == "'=case" and second["message"] == "'@SUM(1)" and first["score"] == "-1.0"
