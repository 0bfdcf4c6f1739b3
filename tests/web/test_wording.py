"""Numbers on the page read like a person writes them, and the filter of runs understands what people type."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Any

import pytest
from browsing import WEB

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which("node") is None or not (WEB / "node_modules").exists(), reason="run make web first: it needs Node"
    ),
]

RUN = """
import { build } from "esbuild";
const [source, script] = process.argv.slice(1);
const made = await build({ entryPoints: [source], bundle: true, format: "iife", globalName: "module", write: false });
console.log(JSON.stringify(new Function(made.outputFiles[0].text + "; return " + script)()));
"""


def evaluate(source: str, script: str) -> Any:
    """The value of an expression about a module of the page, which it calls `module`."""
    command = ["node", "--input-type=module", "-e", RUN, "--", f"src/{source}", script]
    done = subprocess.run(command, cwd=WEB, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def calls(source: str, function: str, arguments: list[list[Any]]) -> list[Any]:
    return list(evaluate(source, f"{json.dumps(arguments)}.map(each => module.{function}(...each))"))


@pytest.mark.parametrize(
    ("function", "texts"),
    [
        ("number", {0.8125: "0.813", 0: "0", 1: "1", 12345.6: "12,346", 0.5: "0.5", -6.7731: "-6.77", 1e-9: "1e-9"}),
        ("money", {0: "$0", 0.0117: "$0.0117", 1.5: "$1.50", 1234.5: "$1,235", 0.000012: "$0.000012"}),
        ("duration", {0: "0 s", 0.0123: "12 ms", 1.94: "1.9 s", 42: "42 s", 75: "1 min 15 s", 60: "1 min"}),
        ("duration", {59.7: "1 min", 3600: "1 h", 7300: "2 h 2 min", 200000: "2 d 8 h", 3599.9: "1 h"}),
        ("short", {999: "999", 12345: "12.3k", 1234567: "1.23M"}),
        ("bytes", {12: "12 B", 12345: "12.3 kB"}),
    ],
)
def test_numbers_read_like_a_person_writes_them(function: str, texts: dict[float, str]) -> None:
    assert calls("format.ts", function, [[value] for value in texts]) == list(texts.values())


def test_a_range_names_its_unit_once() -> None:
    ranges = calls("format.ts", "range", [[60, 120], [20, 45], [163, 250], [5, 5], [5000, 9000]])
    assert ranges == ["1 to 2 min", "20 to 45 s", "2 to 5 min", "5 s", "1 to 3 h"]


ROWS = [
    {"name": "tickets", "study": "prompts", "state": "finished", "headline": "The best", "best": 0.9, "cost": 0.5}
    | {"elapsed": 400, "trials": 60, "evaluations": 900, "failures": 0, "created": 0},
    {"name": "digits", "study": "neuro", "state": "failed", "headline": "", "best": None, "cost": 0.0}
    | {"elapsed": 20, "trials": 3, "evaluations": 9, "failures": 9, "created": 0},
]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", ["tickets", "digits"]),
        ("score>0.8", ["tickets"]),
        ("score>0.8 study:prompts", ["tickets"]),
        ("score>0.8 study:neuro", []),
        ("-state:failed", ["tickets"]),
        ("failures>=9", ["digits"]),
        ("time>5m", ["tickets"]),
        ("cost<$0.1", ["digits"]),
        ("DIGITS", ["digits"]),
        ('"the best"', ["tickets"]),
        ("name=ticket", []),
        ("study!=neuro", ["tickets"]),
    ],
)
def test_the_filter_understands_what_people_type(text: str, names: list[str]) -> None:
    script = f"{json.dumps(ROWS)}.filter(module.filter({json.dumps(text)}).passes).map(row => row.name)"
    assert evaluate("filter.ts", script) == names


@pytest.mark.parametrize("text", ["scroe>1", "score>high", "study>prompts"])
def test_a_filter_that_cannot_work_says_why(text: str) -> None:
    assert evaluate("filter.ts", f"module.filter({json.dumps(text)}).error")
