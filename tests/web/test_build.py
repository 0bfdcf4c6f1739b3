"""The page that is shipped is the one its sources make, and small."""

from __future__ import annotations

import gzip
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from browsing import STATIC, WEB

FILES = ("app.js", "app.css", "index.html", "favicon.svg")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("npm") is None, reason="Node is not installed")
def test_the_committed_page_is_what_the_sources_build(tmp_path: Path) -> None:
    if not (WEB / "node_modules").exists():
        subprocess.run(["npm", "ci", "--no-audit", "--no-fund", "--silent"], cwd=WEB, check=True)
    subprocess.run(["node", WEB / "build.mjs", tmp_path], check=True)
    for name in FILES:
        assert (tmp_path / name).read_bytes() == (STATIC / name).read_bytes(), f"{name}: run make web and commit it"


@pytest.mark.slow
@pytest.mark.skipif(not (WEB / "node_modules").exists(), reason="run make web first")
def test_the_sources_are_well_typed() -> None:
    checked = subprocess.run(["node", WEB / "check.mjs"], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout


def test_the_script_is_under_80_kilobytes() -> None:
    size = sum(len(gzip.compress(file.read_bytes(), 9)) for file in STATIC.glob("*.js"))
    assert size < 80 * 1024


def test_text_never_becomes_markup() -> None:
    sources = [*(WEB / "src").rglob("*.ts"), *(WEB / "src").rglob("*.tsx")]
    assert len(sources) > 20
    for source in sources:
        text = source.read_text()
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", text), source.name
        # An object is set property by property, which the page's policy allows; an attribute's text is not.
        assert not re.search(r"\sstyle=(?!\{\{)", text), f"{source.name}: the page's policy forbids style attributes"
    script = (STATIC / "app.js").read_text()
    assert not re.search(r"\beval\(|new Function\(|https?://(?!www\.w3\.org/)", script)


def test_versions_are_pinned_and_the_lock_file_names_no_server() -> None:
    package = (WEB / "package.json").read_text()
    versions = re.findall(r'^    "[@\w/-]+": "([^"]+)",?$', package, re.MULTILINE)
    assert len([version for version in versions if re.fullmatch(r"[\d.]+", version)]) == 8
    lock = (WEB / "package-lock.json").read_text()
    assert '"resolved"' not in lock
    assert "http" not in re.sub(r'"url": "[^"]*"', "", lock)
    assert lock.count('"integrity"') >= 8
