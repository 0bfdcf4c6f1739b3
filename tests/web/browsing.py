"""A server over ledgers and a browser to look at its pages with; for the tests and for `make screenshots`."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

ROOT = Path(__file__).parents[2]
WEB = ROOT / "web"
STATIC = ROOT / "src/fanfold/report/static"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
AXE = WEB / "node_modules/axe-core/axe.min.js"
FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
)


@contextlib.contextmanager
def serving(*ledgers: Path, options: tuple[str, ...] = (), port: str = "0") -> Iterator[str]:
    """`fanfold view` over ledgers, in a process of its own; gives the address that it printed."""
    command = [sys.executable, "-m", "fanfold", "view", *map(str, ledgers), "--no-open", "--port", port, *options]
    env = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env) as process:
        try:
            assert process.stdout is not None
            lines: list[str] = []
            for line in process.stdout:
                lines.append(line)
                if address := next((word for word in line.split() if "#token=" in word), None):
                    yield address
                    return
            raise AssertionError(f"no address was printed: {''.join(lines)}")
        finally:
            process.terminate()


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """A headless Chromium."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()


class Visitor:
    """One window on the server: goes from page to page and notes every error that the browser reports."""

    def __init__(self, browser: Browser, address: str, width: int = 1400, scheme: Any = "light") -> None:
        self.context = browser.new_context(
            viewport={"width": width, "height": 900 if width > 500 else 800},
            color_scheme=scheme,
            reduced_motion="reduce",
        )
        self.page: Page = self.context.new_page()
        self.errors: list[str] = []
        self.page.on("console", lambda message: message.type == "error" and self.errors.append(message.text))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.goto(address)
        self.settle()

    def go(self, place: str) -> Page:
        """Open a page by its hash, e.g. `#/run/0/prompts/matrix`, and wait until it is drawn."""
        self.page.evaluate("place => { location.hash = place }", place)
        self.settle()
        return self.page

    def settle(self) -> None:
        # Twice: what is loaded may ask for more.
        for _ in range(2):
            self.page.wait_for_selector("main[aria-busy=false]", timeout=20_000)
            self.page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def overflow(self) -> int:
        """How many pixels the page is wider than its window."""
        return int(self.page.evaluate("document.documentElement.scrollWidth - innerWidth"))

    def findings(self) -> list[str]:
        """What axe-core finds that is serious or worse."""
        if not self.page.evaluate("'axe' in window"):
            self.page.evaluate(AXE.read_text())
        rules = {"resultTypes": ["violations"], "runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]}
        result = self.page.evaluate("options => axe.run(document, options)", rules)
        return [
            f"{found['id']}: {json.dumps(found['nodes'][0]['target'])} {found['nodes'][0].get('failureSummary', '')}"
            for found in result["violations"]
            if found["impact"] in ("serious", "critical")
        ]

    def close(self) -> None:
        self.context.close()
