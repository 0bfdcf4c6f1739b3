"""What a page can do about a run: stop, resume, raise its limits, note something, give feedback."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import IO, Any

from fanfold.errors import ConfigError
from fanfold.ledger import add_comment, add_request
from fanfold.redaction import redact
from fanfold.report.pages.overview import can
from fanfold.report.pages.parts import ShownRun
from fanfold.texts import printable
from fanfold.view.shelf import Shelf
from fanfold.web import ApiError

#: Characters of a note, and the seconds that a resumed run has to start.
LONGEST_NOTE, STARTED = 10_000, 30.0
LIMITS = {"max_cost": float, "max_trials": int, "max_evaluations": int, "max_time": float}


class Actions:
    """Writes requests, notes and feedback in short transactions of their own, and starts `fanfold resume`."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self._resumed: dict[tuple[int, str], tuple[subprocess.Popen[bytes], IO[bytes]]] = {}

    async def do(self, ledger: int, name: str, what: str, body: Mapping[str, Any]) -> str:
        """Do it, and say what was done."""
        if what == "resume":
            arguments = await self._shelf.read(lambda: self._arguments(ledger, name, body))
            return await self._resume(ledger, name, arguments)
        known = {"stop": self._stop, "budget": self._budget, "note": self._note, "feedback": self._feedback}
        if what not in known:
            raise ApiError(404, "there is nothing here", type="path")
        return await self._shelf.read(lambda: known[what](self._shelf.shown(ledger, name), body))

    async def close(self) -> None:
        """Runs that were resumed continue without the server."""
        for _, output in self._resumed.values():
            output.close()

    def _stop(self, shown: ShownRun, body: Mapping[str, Any]) -> str:
        _check(shown, "stop", "does not run")
        add_request(shown.view.ledger.path, shown.info.name, "stop")
        return "The run stops: what is running gets a moment to end, and everything finished is kept."

    def _budget(self, shown: ShownRun, body: Mapping[str, Any]) -> str:
        limits = _limits(body)
        if not limits:
            raise ConfigError(f"give at least one limit: {', '.join(LIMITS)}")
        _check(shown, "stop", "does not run: resume it with the new limits")
        add_request(shown.view.ledger.path, shown.info.name, "budget", limits)
        return "The run continues to the new limits."

    def _note(self, shown: ShownRun, body: Mapping[str, Any]) -> str:
        text, trial = body.get("text"), body.get("trial")
        if not isinstance(text, str) or not text.strip() or len(text) > LONGEST_NOTE:
            raise ConfigError(f"a note is a text of 1 to {LONGEST_NOTE:,} characters")
        if trial is not None:
            shown.view.trial(_whole(trial, "trial"))
        add_comment(shown.view.ledger.path, shown.info.name, trial, text.strip())
        return "The note is kept in the ledger."

    def _feedback(self, shown: ShownRun, body: Mapping[str, Any]) -> str:
        tell = shown.study.tell
        if tell is None:
            raise ConfigError(f"the study {shown.study_name!r} takes no feedback")
        tell(shown.view.ledger.path, shown.info.name, _whole(body.get("trial"), "trial"), body.get("value"))
        return "Thank you: the feedback is recorded."

    def _arguments(self, ledger: int, name: str, body: Mapping[str, Any]) -> list[str]:
        shown = self._shelf.shown(ledger, name)
        _check(shown, "resume", "cannot be resumed from here")
        limits = _limits({key: value for key, value in body.items() if key != "retry_failed"})
        flags = [f"--{key.replace('_', '-')}={value}" for key, value in limits.items()]
        retry = ["--retry-failed"] if body.get("retry_failed") is True else []
        path = str(shown.view.ledger.path.absolute())
        return [shown.info.name, *retry, *flags, "--ledger", path, "--no-color"]

    async def _resume(self, ledger: int, name: str, arguments: list[str]) -> str:
        """Start `fanfold resume` in a session of its own; what it says is shown where it fails."""
        output = tempfile.TemporaryFile()  # noqa: SIM115 - the process writes to it for as long as it lives
        command = [sys.executable, "-m", "fanfold", "resume", *arguments]
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        self._resumed[ledger, name] = (process, output)
        for _ in range(round(STARTED / 0.1)):
            await asyncio.sleep(0.1)
            if process.poll() is not None:
                break
            if await self._shelf.read(lambda: self._shelf.shown(ledger, name).view.status) == "running":
                return "The run continues."
        if process.returncode:
            output.seek(0)
            text = redact(printable(output.read().decode(errors="replace")))[-2000:].strip()
            raise ConfigError(f"fanfold resume ended with code {process.returncode}: {text}")
        return "The run is starting." if process.returncode is None else "The run was resumed, and has ended already."


def _check(shown: ShownRun, what: str, problem: str) -> None:
    if not can(shown, shown.view.status)[what]:
        raise ApiError(409, f"run {shown.info.name!r} {problem}", type="state")


def _limits(body: Mapping[str, Any]) -> dict[str, Any]:
    limits = {}
    for name, value in body.items():
        if name not in LIMITS:
            raise ConfigError(f"unknown limit {name!r:.40}: use {', '.join(LIMITS)}")
        number = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e15
        if value is None:
            continue
        if not number or (LIMITS[name] is int and value != int(value)):
            raise ConfigError(f"{name} must be a number above 0, not {value!r:.40}")
        limits[name] = int(value) if LIMITS[name] is int else f"{value:g}s" if name == "max_time" else value
    return limits


def _whole(value: Any, name: str) -> int:
    if type(value) is not int or value < 0:
        raise ConfigError(f"{name} must be a whole number, not {value!r:.40}")
    return value
