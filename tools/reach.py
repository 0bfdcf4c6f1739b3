"""Which tests reach which lines: a pytest plugin that records it, for `tools/mutants.py`.

While it records, it traces the files named in `REACH_FILES` in the tests' own process, in its threads, and in every
Python process they start (a `sitecustomize.py` on the path imports this file there).  A line is written down the moment
it is first seen, so a process that is killed has said what it reached.

While mutants are tried, it names the test under way in the file `REACH_CURRENT`, and repeats a test that fails.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

FILES = "REACH_FILES"  # the files to watch, separated by os.pathsep
LINES = "REACH_LINES"  # where processes started by a test append what they reach
RESULT = "REACH_RESULT"  # where the result goes, as JSON
CURRENT = "REACH_CURRENT"  # the file that names the test under way
EXTRA = "REACH_EXTRA"  # files that are taken although they are marked slow, separated by os.pathsep

#: What pytest-timeout says of a test that it stopped.
STOPPED = "from pytest-timeout"

#: A function that was called so often in one test without a new line has nothing new to show there.
ENOUGH = 300

_watched = frozenset(filter(None, os.environ.get(FILES, "").split(os.pathsep)))
_seen: set[tuple[str, int]] = set()
_calls: dict[CodeType, int] = {}


def _on_call(frame: FrameType, event: str, arg: Any) -> Any:
    code = frame.f_code
    if code.co_filename not in _watched:
        return None
    calls = _calls[code] = _calls.get(code, 0) + 1
    return _on_line if calls < ENOUGH else None


def _on_line(frame: FrameType, event: str, arg: Any) -> Any:
    if event == "line":
        place = (frame.f_code.co_filename, frame.f_lineno)
        if place not in _seen:
            _seen.add(place)
            _calls[frame.f_code] = 0
    return _on_line


class _Child:
    """Records in a process that a test started: each new line goes to the test's file at once."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def on_call(self, frame: FrameType, event: str, arg: Any) -> Any:
        return self.on_line if frame.f_code.co_filename in _watched else None

    def on_line(self, frame: FrameType, event: str, arg: Any) -> Any:
        place = (frame.f_code.co_filename, frame.f_lineno)
        if event == "line" and place not in _seen:
            _seen.add(place)
            try:
                os.write(self._file, f"{place[1]}\t{place[0]}\n".encode())
            except OSError:
                pass  # a test may close or exhaust descriptors; what it reaches after that is not known
        return self.on_line


def watch_child() -> None:
    """Called by `sitecustomize` in every Python process."""
    path = os.environ.get(LINES)
    if path and _watched:
        child = _Child(path)
        threading.settrace(child.on_call)
        sys.settrace(child.on_call)


class Recorder:
    """The plugin itself: what each test reached and how long it took."""

    def __init__(self) -> None:
        self._tests: dict[str, dict[str, Any]] = {}
        self._lines = Path(os.environ[RESULT] + ".lines")
        self._used = sum(os.times()[:4])

    def start(self) -> None:
        os.environ[LINES] = str(self._lines)
        threading.settrace(_on_call)
        sys.settrace(_on_call)

    def before(self) -> None:
        _seen.clear()
        _calls.clear()
        self._lines.unlink(missing_ok=True)

    def after(self, test: str) -> None:
        places = set(_seen)
        if self._lines.exists():
            for line in self._lines.read_text().splitlines():
                number, _, file = line.partition("\t")
                places.add((file, int(number)))
        by_file: dict[str, list[int]] = {}
        for file, number in sorted(places):
            by_file.setdefault(file, []).append(number)
        self._tests.setdefault(test, {"seconds": 0.0, "passed": True})["lines"] = by_file

    def report(self, test: str, seconds: float, passed: bool) -> None:
        """On a busy machine a test mostly waits for its turn, so processor time counts for more than the clock."""
        used, self._used = self._used, sum(os.times()[:4])
        busy = min(seconds, self._used - used)
        record = self._tests.setdefault(test, {"seconds": 0.0, "passed": True, "lines": {}})
        record["seconds"] += busy + 0.2 * (seconds - busy)
        record["passed"] = record["passed"] and passed

    def save(self) -> None:
        sys.settrace(None)
        Path(os.environ[RESULT]).write_text(json.dumps(self._tests))


_recorder = Recorder() if RESULT in os.environ and LINES not in os.environ else None


def pytest_configure(config: Any) -> None:
    # A mutant only has to be noticed: no time is spent on the smallest example that notices it.
    from hypothesis import Phase, settings

    settings.register_profile(
        "mutants",
        parent=settings.get_profile("same"),
        phases=(Phase.explicit, Phase.generate),
        report_multiple_bugs=False,
        suppress_health_check=settings.get_profile("same").suppress_health_check,
    )
    settings.load_profile("mutants")
    if _recorder is not None:
        _recorder.start()


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    if _recorder is None:
        return
    extra = tuple(filter(None, os.environ.get(EXTRA, "").split(os.pathsep)))
    kept = [item for item in items if item.nodeid.startswith(extra) or item.get_closest_marker("slow") is None]
    config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
    items[:] = kept


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Run a test that fails once more, and report what came last: a failure by chance kills no mutant.

    One that was stopped for its time is not repeated here: pytest-timeout has one alarm for the whole of this.
    """
    if _recorder is not None or CURRENT not in os.environ:
        return None
    Path(os.environ[CURRENT]).write_text(item.nodeid)
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports = runtestprotocol(item, log=False, nextitem=nextitem)
    failures = [report for report in reports if report.failed]
    if failures and not any(STOPPED in report.longreprtext for report in failures):
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def pytest_runtest_logstart(nodeid: str, location: Any) -> None:
    if _recorder is not None:
        _recorder.before()


def pytest_runtest_logreport(report: Any) -> None:
    if _recorder is not None:
        _recorder.report(report.nodeid, report.duration, not report.failed)


def pytest_runtest_logfinish(nodeid: str, location: Any) -> None:
    if _recorder is not None:
        _recorder.after(nodeid)


def pytest_sessionfinish(session: Any) -> None:
    if _recorder is not None:
        _recorder.save()
