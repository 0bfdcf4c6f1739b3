"""The documentation site: every page is in it, nothing in it is made up, and it builds without a warning."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fanfold

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
#: Where pages from outside docs/ are in the site.
ELSEWHERE = {"architecture.md", "changelog.md", "contributing.md", "security.md", "benchmarks/method.md"}

sys.path.insert(0, str(ROOT / "benchmarks"))


def leaves(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    else:
        for part in nav.values() if isinstance(nav, dict) else nav:
            yield from leaves(part)


def test_every_page_has_one_place_in_the_navigation() -> None:
    nav = list(leaves(tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]))
    pages = {page.relative_to(DOCS).as_posix() for page in PAGES} | ELSEWHERE
    results = {f"benchmarks/{path.name}" for path in (ROOT / "benchmarks" / "results").glob("*.md")}
    assert sorted(set(nav)) == sorted(nav)
    assert pages - set(nav) == set(), "give it a place in the navigation of zensical.toml"
    assert set(nav) - pages - results == set()


def test_the_reference_lists_every_public_name_and_no_other() -> None:
    names = re.findall(r"^::: (\S+)$", (DOCS / "reference" / "python.md").read_text(), re.MULTILINE)
    assert set(fanfold.__all__) <= {name.rpartition(".")[2] for name in names}
    for name in names:
        module, _, attribute = name.rpartition(".")
        value = getattr(importlib.import_module(module), attribute)
        assert value.__doc__, name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(DOCS).as_posix())
def test_a_list_begins_after_an_empty_line(page: Path) -> None:
    """The site's Markdown takes a list that follows a line of text for a part of that text."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert re.findall(r"^(?!\s*(?:[-*]|\d+\.) |  )[^\n]+\n(?:[-*]|\d+\.) .*$", text, re.MULTILINE) == []


def test_charts_are_those_of_the_tables() -> None:
    """`python benchmarks/charts.py` draws them again."""
    from charts import charts

    drawn = dict(charts())
    assert drawn == {path: path.read_text() for path in (DOCS / "images").glob("bench-*.svg")}
    shown = (DOCS / "benchmarks.md").read_text()
    assert [path.name for path in drawn if path.name not in shown] == []


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_loads_nothing_from_elsewhere() -> None:
    pytest.importorskip("zensical")
    done = subprocess.run([sys.executable, ROOT / "tools" / "docs_site.py"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and "No issues found" in done.stderr, done.stdout + done.stderr
    site = ROOT / "build" / "site"
    for page in site.rglob("*.html"):
        text = page.read_text()
        assert re.findall(r'<(?:script|img|iframe|link)[^>]* (?:src|href)="(?:https?:)?//', text) == []
        assert "<!-- generated" not in text
    assert "fanfold resume [OPTIONS] RUN" in (site / "reference" / "commands.html").read_text()
    assert "max_tokens" in (site / "reference" / "fields.html").read_text()
    assert "Study" in (site / "reference" / "python.html").read_text()
