"""Measures `fanfold view` on a ledger of 1,000,000 cells: the server, a run that it follows, and the page in Chromium.

python benchmarks/view.py --quick
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import importlib.util
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from measure import Line, Sampled, Table, Target, machine, sampled, save_tables, stopwatch

from fanfold import Case, Study, Sweep
from fanfold.ledger import Ledger

RESULTS = Path(__file__).parent / "results" / "view.json"
TRIALS, CASES = 5_000, 200
#: The study that is followed: evaluations a second on so many slots, and cases of a candidate.
RATE, SLOTS, LIVE_CASES = 1_000, 100, 10
TOKEN = "benchmark-token-of-some-length"
RUN = "/api/run/0/big"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking")

_COUNT = "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < {count})"
_FAILS = "i % 1000 = 7"
#: One run of 5,000 candidates with words, parents and scores; each of its cells has an answer of 160 letters.
ROWS = {
    "run_case": (CASES, "1, i, 'case ' || i, NULL, json_object('question', 'what is ' || i || ' + ' || i || '?')"),
    "trial": (
        TRIALS,
        "1, i, json_object('text', 'Candidate ' || i || ': ' || hex(randomblob(300))), max(0, i - 64), i, "
        f"(i % 997) / 1000.0, NULL, {CASES}, 0.02, "
        "json_object('parents', json_array(max(0, i - 50)), 'by', 'mutate', 'generation', i / 50)",
    ),
    "evaluation": (
        TRIALS * CASES,
        f"1, i / {CASES}, i % {CASES}, randomblob(16), CASE WHEN {_FAILS} THEN 'error' END, "
        f"CASE WHEN NOT {_FAILS} THEN (abs(random()) % 1000) / 1000.0 END, "
        f"CASE WHEN NOT {_FAILS} THEN json_object('answer', hex(randomblob(80))) END, "
        f"CASE WHEN {_FAILS} THEN 'ValueError: no answer at ' || i END, CASE WHEN {_FAILS} THEN 'Traceback' END, "
        "0.0001, 1.7e9 + i / 1000.0, 0.5 + (abs(random()) % 100) / 100.0, 1, 0",
    ),
    "change": (2 * TRIALS, "1, i + 1, 1.7e9 + i / 10.0, json_array(i / 2), '[]', '[]'"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and save; 1 only when `--strict` was given and a target was missed."""
    options = _parse(arguments)
    if options.live is not None:
        return live(options.live, options.seconds)
    where = machine()
    print(f"{where['processor']}, {where['cores']} cores, load {where['load_before']:.1f}, Python {where['python']}")
    tables = measure(3 if options.quick else 7, TRIALS if options.trials is None else options.trials)
    return save_tables(tables, where, options.json, options.strict)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer repeats")
    parser.add_argument("--trials", type=int, help="candidates of the ledger, each on 200 cases")
    parser.add_argument("--json", type=Path, default=RESULTS, help="where the samples are written")
    parser.add_argument("--strict", action="store_true", help="exit with 1 when a target is missed")
    parser.add_argument("--live", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=6.0, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def measure(repeats: int, trials: int) -> Iterator[Table]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "big.db"
        fill(path, trials)
        cells = f"{trials * CASES:,} cells ({path.stat().st_size / 1e6:.0f} MB)"
        with Server(path) as server:
            yield Table(f"The server over {cells}", list(answers(server, repeats)))
        yield Table(f"A study of {RATE:,} evaluations/s, alone and followed by a page", list(followed(folder, repeats)))
        if CHROMIUM is None or importlib.util.find_spec("playwright") is None:
            print("\nthe page is left out: apt-get install chromium, pip install playwright")
            return
        with Server(path) as server:
            yield Table(f"The page over {cells}, in Chromium", list(pages(server, Path(folder), repeats)))


def fill(path: Path, trials: int) -> None:
    """Write one finished run of so many trials."""
    Ledger(path).close()
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA synchronous = OFF")
        run = (1, "big", 1.7e9, 1.7e9 + 1000, 1000.0, "finished", f"{trials} trials", "{}", "{}")
        db.execute(f"INSERT INTO run VALUES ({','.join('?' * len(run))})", run)
        for table, (count, values) in ROWS.items():
            rows = count if table == "run_case" else count * trials // TRIALS
            db.execute(f"{_COUNT.format(count=rows)} INSERT INTO {table} SELECT {values} FROM n")
        db.commit()


# -- the server --------------------------------------------------------------------------------------------------------


class Server:
    """`fanfold view` in a process of its own, and a client of it."""

    def __init__(self, *paths: Path) -> None:
        command = [sys.executable, "-m", "fanfold", "view", *map(str, paths), "--no-open", "--token", TOKEN]
        env = {**os.environ, "PYTHONUNBUFFERED": "1"}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)
        assert self.process.stdout is not None
        self.address = next(word for line in self.process.stdout for word in line.split() if "#token=" in word)
        self.host = self.address.partition("/#")[0].removeprefix("http://")

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *exc: object) -> None:
        self.process.terminate()
        self.process.wait()

    def get(self, path: str) -> bytes:
        connection = http.client.HTTPConnection(self.host, timeout=60)
        connection.request("GET", path, headers={"authorization": f"Bearer {TOKEN}"})
        reply = connection.getresponse()
        body = reply.read()
        connection.close()
        if reply.status != 200:
            raise RuntimeError(f"{path}: {reply.status} {body[:200]!r}")
        return body

    def follow(self, run: str, stop: threading.Event) -> None:
        """Read the live stream of a run, as a page does, until told to stop."""
        connection = http.client.HTTPConnection(self.host, timeout=30)
        connection.request("GET", f"/api/events?run={run}", headers={"authorization": f"Bearer {TOKEN}"})
        reply = connection.getresponse()
        while not stop.is_set() and reply.readline():
            pass
        connection.close()

    def memory(self) -> float:
        """The most resident memory that the server has used, in MB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) / 1e3

    def cpu(self) -> float:
        """The CPU seconds that the server has used."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def answers(server: Server, repeats: int) -> Iterator[Line]:
    def timed(get: Callable[[], object]) -> dict[str, float]:
        with stopwatch() as watch:
            get()
        return {"ms": watch.wall * 1e3}

    def again(path: str) -> dict[str, Sampled]:
        return sampled([timed(lambda: server.get(path)) for _ in range(repeats)])

    yield Line("Overview, first", sampled([timed(lambda: server.get(RUN))]))
    yield Line("Overview", again(RUN), Target("ms", 1500.0))
    head = "/matrix?order=best&cases=position&colour=score"
    yield Line("matrix, first", sampled([timed(lambda: server.get(RUN + head))]))
    yield Line("matrix", again(RUN + head), Target("ms", 1500.0))
    levels = json.loads(server.get(RUN + head))["levels"]
    for level in sorted({0, len(levels) // 2, len(levels) - 1}):
        query = f"/tile{head.removeprefix('/matrix')}&level={level}&row=0&column=0"
        yield Line(f"tile, level {level}", again(RUN + query), Target("ms", 500.0))
    for page in ("trials", "trial/17", "cell/17/3", "lineage", "work", "failures"):
        yield Line(page, sampled([timed(lambda page=page: server.get(f"{RUN}/{page}"))]))  # type: ignore[misc]
    yield Line("memory of the server", {"MB": Sampled((server.memory(),))}, Target("MB", 150.0))


# -- a run that is followed --------------------------------------------------------------------------------------------


async def evaluate(candidate: int, case: Case) -> float:
    await asyncio.sleep(SLOTS / RATE)
    return candidate % 97 / 97


def live(path: Path, seconds: float) -> int:
    """Run the study that is followed, and print what it took."""
    trials = round(RATE * seconds) // LIVE_CASES
    study = Study(Sweep(range(trials)), evaluate, cases=range(LIVE_CASES), window=3 * SLOTS // LIVE_CASES)
    with stopwatch() as watch:
        study.run(f"async:{SLOTS}", ledger=path, run="live", progress=False).ledger.close()
    count = trials * LIVE_CASES
    print(json.dumps({"evaluations/s": count / watch.wall, "CPU us": watch.cpu / count * 1e6}))
    return 0


def start(path: Path, seconds: float) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, "--live", str(path), "--seconds", str(seconds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def followed(folder: str, repeats: int) -> Iterator[Line]:
    samples: dict[bool, list[dict[str, float]]] = {False: [], True: []}
    for repeat in range(2 * repeats):
        watched = repeat % 2 == 1
        path = Path(folder) / f"live-{repeat}.db"
        Ledger(path).close()
        with Server(path) as server:
            before, stop = server.cpu(), threading.Event()
            run = start(path, 6.0)
            if watched:
                _wait_for(path)
                thread = threading.Thread(target=server.follow, args=("0/live", stop), daemon=True)
                thread.start()
            output, _ = run.communicate()
            sample = json.loads(output)
            sample["server CPU %"] = (server.cpu() - before) / 6.0 * 100
            stop.set()
            samples[watched].append(sample)
    yield Line("alone", sampled(samples[False]))
    yield Line("followed", sampled(samples[True]))
    pairs = list(zip(samples[False], samples[True], strict=True))
    slower = Sampled(tuple(alone["evaluations/s"] / beside["evaluations/s"] for alone, beside in pairs))
    more = Sampled(tuple(beside["CPU us"] / alone["CPU us"] for alone, beside in pairs))
    yield Line("time of the run, followed / alone", {"ratio": slower}, Target("ratio", 1.02))
    yield Line("its CPU, followed / alone", {"ratio": more})


def _wait_for(path: Path) -> None:
    """Return once the run has begun."""
    for _ in range(600):
        with Ledger(path, readonly=True) as ledger:
            if ledger.find("live") is not None:
                return
        time.sleep(0.05)
    raise RuntimeError("the run did not begin")


# -- the page ----------------------------------------------------------------------------------------------------------


def pages(server: Server, folder: Path, repeats: int) -> Iterator[Line]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        try:
            page = browser.new_context(viewport={"width": 1400, "height": 900}).new_page()
            page.goto(server.address)
            _settled(page)
            server.get(RUN)
            paints = [_opened(page, server, repeat) for repeat in range(repeats)]
            yield Line("first paint", sampled([{"ms": paint} for paint, _ in paints]), Target("ms", 500.0))
            yield Line("Overview is there", sampled([{"ms": overview} for _, overview in paints]), Target("ms", 1500.0))
            page.goto(f"http://{server.host}/?matrix#/run/0/big/matrix")
            _settled(page)
            page.wait_for_timeout(1500)
            for name, move in (("matrix, moved", _drag), ("matrix, zoomed", _zoom)):
                rates = [{"frames/s": _frames(page, move)} for _ in range(repeats)]
                yield Line(name, sampled(rates), Target("frames/s", 50.0, at_most=False))
        finally:
            browser.close()
        yield from _updates(playwright, folder, repeats)


def _settled(page: Any) -> None:
    for _ in range(2):
        page.wait_for_selector("main[aria-busy=false]", timeout=60_000)
        page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


def _opened(page: Any, server: Server, number: int) -> tuple[float, float]:
    """Milliseconds from the navigation to the first paint, and until the Overview is drawn."""
    page.goto(f"http://{server.host}/?{number}#/run/0/big", wait_until="commit")
    _settled(page)
    drawn = page.evaluate("performance.now()")
    paint = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
    return float(page.evaluate(paint)), float(drawn)


def _frames(page: Any, move: Callable[[Any, float, float], None]) -> float:
    """Frames a second while something moves the matrix."""
    box = page.locator("canvas").first.bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.evaluate(
        "() => { window.counted = 0; window.began = performance.now();"
        " const tick = () => { window.counted++; requestAnimationFrame(tick) }; requestAnimationFrame(tick) }"
    )
    end = time.monotonic() + 3.0
    while time.monotonic() < end:
        move(page, x, y)
    rate = page.evaluate("window.counted / (performance.now() - window.began) * 1000")
    page.evaluate("() => { window.requestAnimationFrame = window.requestAnimationFrame }")
    page.reload()
    _settled(page)
    page.wait_for_timeout(500)
    return float(rate)


def _drag(page: Any, x: float, y: float) -> None:
    page.mouse.move(x, y)
    page.mouse.down()
    for step in range(20):
        page.mouse.move(x - 10 * step, y - 12 * step)
    page.mouse.up()


def _zoom(page: Any, x: float, y: float) -> None:
    for direction in (-1, 1):
        for _ in range(12):
            page.mouse.wheel(0, direction * 120)


def _updates(playwright: Any, folder: Path, repeats: int) -> Iterator[Line]:
    """What a live update costs the browser, while a study of 1,000 evaluations/s is followed."""
    samples: dict[str, list[dict[str, float]]] = {"": [], "/matrix": []}
    for repeat in range(repeats):
        for place, into in samples.items():
            path = folder / f"page-{repeat}{place.replace('/', '-')}.db"
            Ledger(path).close()
            run = start(path, 10.0)
            _wait_for(path)
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
            with Server(path) as server:
                page = browser.new_context(viewport={"width": 1400, "height": 900}).new_page()
                page.goto(server.address)
                _settled(page)
                page.goto(f"http://{server.host}/?live#/run/0/live{place}")
                _settled(page)
                into.append(_busy(page))
            browser.close()
            run.communicate()
    for place, name in (("", "a live update of the Overview"), ("/matrix", "a live update of the matrix")):
        yield Line(name, sampled(samples[place]), Target("CPU ms", 50.0))


def _busy(page: Any) -> dict[str, float]:
    """Milliseconds of the page's main thread for each event of the stream."""
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")
    session.send("Network.enable")
    events: list[Any] = []
    session.on("Network.eventSourceMessageReceived", lambda event: events.append(event))

    def spent() -> float:
        metrics = session.send("Performance.getMetrics")["metrics"]
        return float(next(metric["value"] for metric in metrics if metric["name"] == "TaskDuration"))

    page.wait_for_timeout(500)
    before, count = spent(), len(events)
    page.wait_for_timeout(4000)
    updates = max(1, len(events) - count)
    return {"CPU ms": (spent() - before) / updates * 1e3, "updates/s": updates / 4.0}


if __name__ == "__main__":
    sys.exit(main())
