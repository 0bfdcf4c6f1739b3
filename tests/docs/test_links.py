"""What a page points at exists: files, headings, and the modules that CONTRIBUTING names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")), *(ROOT / "benchmarks").glob("*.md")]


def headings(page: Path) -> Iterator[str]:
    """The anchors of a page's headings."""
    for heading in re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE):
        yield re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" not in target:
            path, _, anchor = target.partition("#")
            other = page.parent / path if path else page
            assert other.exists(), target
            assert not anchor or anchor in headings(other), target


def test_contributing_names_files_that_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    table = "\n".join(line for line in text.splitlines() if line.startswith("|"))
    paths = re.findall(r"`([\w/]+(?:\.\w+|/))`", table)
    assert len(paths) > 8
    for path in paths:
        assert (ROOT / "src" / "fanfold" / path).exists() or (ROOT / path).exists(), path
    for suite in set(re.findall(r"`(\w+Conformance)`", table)):
        assert suite in (ROOT / "src" / "fanfold" / "testing" / "__init__.py").read_text(), suite


def test_actions_of_the_workflow_are_pinned_to_a_commit() -> None:
    uses = re.findall(r"uses: (\S+)", (ROOT / ".github" / "workflows" / "ci.yml").read_text())
    assert uses and all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", action) for action in uses)
