"""The rules of the house: what the source may hold, checked by reading it."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "fanfold"


def places(pattern: str, *, outside: tuple[str, ...] = (), flags: int = 0) -> Iterator[str]:
    """`path:line: text` wherever `pattern` is in the source, outside paths that start with one of `outside`."""
    compiled = re.compile(pattern, flags)
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix()
        if not name.startswith(outside):
            for number, line in enumerate(path.read_text().splitlines(), 1):
                if compiled.search(line):
                    yield f"{name}:{number}: {line.strip()}"


@pytest.mark.slow
def test_the_shape_of_the_source_is_kept() -> None:
    shape = subprocess.run([sys.executable, ROOT / "tools" / "shape.py"], capture_output=True, text=True)
    assert shape.returncode == 0, shape.stdout


SQL = r"\b(SELECT .*\bFROM|INSERT (OR \w+ )?INTO|UPDATE \w+ SET|DELETE FROM|(CREATE|DROP) (TABLE|INDEX)|PRAGMA) "


def test_sql_lives_in_the_ledger_alone() -> None:
    assert list(places(SQL, outside=("ledger/",))) == []
    assert list(places(r"\.execute(many)?\(|^\s*(import|from) sqlite3", outside=("ledger/", "cli/doctor.py"))) == []


def test_nothing_imports_legacy() -> None:
    assert list(places(r"^\s*(from|import) fanfold\.legacy", outside=("legacy/",))) == []


def test_legacy_searches_stops_retries_and_remembers_nothing_by_itself() -> None:
    own = (
        r"class \w+\(.*\b(Strategy|Genetic|Schedule|Rule|Executor|Transport)\b|def (ask|tell|check|sample|child|send)\("
    )
    found = [place for place in places(own) if place.startswith("legacy/")]
    assert found == [], "where a document promises it, the study learns it"


#: Where a provider may be named: its own module, prices, its dialect in the simulator; and names in the documents.
DIALECTS = ("openai", "anthropic", "azure", "bedrock", "gemini", "groq", "mistral")
PROVIDERS = ("models/providers/", "legacy/", *(f"simulator/{name}" for name in DIALECTS))


def test_a_provider_is_named_only_in_its_own_modules() -> None:
    # "OpenAI-compatible" is the common name of a protocol.
    names = "anthropic|claude|gemini|mistral|groq|xai|deepseek|openrouter|bedrock|azure|ollama|vllm"
    named = rf"openai(?!-compatible)|\b({names})\b|\bgpt-?\d"
    assert list(places(named, outside=PROVIDERS, flags=re.IGNORECASE)) == []


def test_nobody_asks_whether_a_model_is_local_or_simulated_by_its_name() -> None:
    asked = r"""["'](local|simulated)/["']"""
    assert list(places(asked, outside=PROVIDERS)) == []


def test_the_architecture_page_shows_the_layers_that_are_checked() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    shown = "\n".join(layer.replace("fanfold.", "").replace(" | ", " · ") for layer in layers)
    assert f"```\n{shown}\n```" in (ROOT / "ARCHITECTURE.md").read_text()


def test_no_two_modules_of_a_folder_differ_by_one_letter() -> None:
    for folder in {path.parent for path in SOURCE.rglob("*.py")}:
        names = sorted(path.stem for path in folder.glob("*.py"))
        alike = [(one, other) for one in names for other in names if one < other and _one_letter(one, other)]
        assert alike == [], folder


def _one_letter(one: str, other: str) -> bool:
    short, long = sorted((one, other), key=len)
    if len(short) == len(long):
        return sum(a != b for a, b in zip(short, long)) == 1
    return any(long[:place] + long[place + 1 :] == short for place in range(len(long)))
