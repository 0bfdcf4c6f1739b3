"""One chart of a run as a PNG, drawn by the web app in Chromium."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from html import unescape
from pathlib import Path
from urllib.parse import quote

from fanfold.errors import ConfigError, nearest
from fanfold.ledger import RunView
from fanfold.report.saved import write_report

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge")
#: The charts of a page that was drawn, each with whether it is shown alone.
_DRAWN = re.compile(r'<figure class="chart( alone)?" data-chart="([^"]*)"')
WIDTH, HEIGHT, SCALE, SECONDS = 1000, 600, 2, 60


def write_chart(ledger: str | Path, run_name: str, chart: str, path: str | Path) -> Path:
    """Draw the chart of that name (`best`: the scores over time) to a PNG at `path`, and return the path."""
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if browser is None:
        raise ConfigError(
            "--png draws with Chromium, and there is none: install it (apt-get install chromium, brew install "
            "--cask chromium), or save the page without --png and use its own export"
        )
    path = Path(path)
    with tempfile.TemporaryDirectory(prefix="fanfold-") as folder:
        with RunView.open(ledger, run_name) as view:
            name = view.name
            page = write_report(view.ledger, name, Path(folder, "page.html"))
        address = f"{page.as_uri()}#/run/0/{name}?chart={quote(chart)}"
        picture = Path(folder, "chart.png")
        command = [
            *(browser, "--headless", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
            *("--disable-component-update", "--disable-sync", "--disable-quic", "--hide-scrollbars"),
            *(["--no-sandbox"] if os.geteuid() == 0 else []),
            *(f"--user-data-dir={folder}/profile", f"--window-size={WIDTH},{HEIGHT}"),
            *(f"--force-device-scale-factor={SCALE}", "--virtual-time-budget=5000"),
            *("--dump-dom", f"--screenshot={picture}", address),
        ]
        try:
            ended = subprocess.run(command, capture_output=True, timeout=SECONDS)
        except subprocess.TimeoutExpired:
            raise ConfigError(f"{browser} did not draw the chart within {SECONDS} s") from None
        if not picture.exists():
            raise ConfigError(f"{browser} did not draw the chart: {ended.stderr.decode(errors='replace')[-300:]}")
        drawn = {unescape(each): alone for alone, each in _DRAWN.findall(ended.stdout.decode(errors="replace"))}
        if not drawn.get(chart):
            raise ConfigError(f"the page of run {name!r} has no chart {chart!r}{nearest(chart, drawn)}")
        try:
            shutil.copyfile(picture, path)
        except OSError as error:
            raise ConfigError(f"the chart cannot be written to {path}: {error.strerror}; give another file") from error
    return path
