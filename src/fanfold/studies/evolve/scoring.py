"""The user's evaluator: a function, a Python file that holds one, or a command; and how its results are read."""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import math
import re
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fanfold.encoding import digest
from fanfold.errors import ConfigError
from fanfold.executors.base import is_coroutine_function
from fanfold.files import load_function
from fanfold.types import Failed, Ok, Outcome

#: How much is kept of a text that an evaluator gives: its end, where errors are.
KEPT = 4000
#: Where other tools put the score and the words of a result.
_SCORES = ("score", "combined_score")
_WORDS = ("feedback", "text_feedback")
#: What the first argument of an evaluator is called that reads a file; a `dockerfile` or a `profile` is a text.
_OF_FILES = re.compile(r"(?:.*_)?(?:path|file|filename|filepath)")
#: How the files of compiled programs begin, on Linux and on macOS.
_PROGRAMS = (b"\x7fELF", b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe")
#: Signs that only a shell understands.
_SHELL = re.compile(r"[|&;]{1,2}|[0-9&]?[<>]{1,2}(&[0-9])?")


@dataclass(frozen=True)
class Scorer:
    """Calls an evaluator with a text, or with several by name, and with the case if it takes one."""

    function: Callable[..., Any]
    #: Whether it gets one text rather than a mapping of texts.
    single: bool = True
    takes_case: bool = False
    #: Whether it gets the path of a file with the text: its first argument is called so (`program_path`, `file`).
    by_path: bool = False

    @classmethod
    def of(cls, function: Callable[..., Any], single: bool, cases: bool) -> Scorer:
        if not callable(function):
            raise ConfigError(f"the evaluator must be a function of (text, case), not {function!r:.80}")
        takes, _, first = _arguments(function)
        if cases and not takes:
            raise ConfigError(
                "there are cases, and the evaluator takes one argument: give it a second, as in "
                "def evaluate(text, case)"
            )
        by_path = single and _OF_FILES.fullmatch(first) is not None and not is_coroutine_function(function)
        return cls(function, single, takes, by_path)

    def __call__(self, texts: Mapping[str, str], case: Any) -> Any:
        """What the evaluator returns; a coroutine if it is a coroutine function."""
        if not self.by_path:
            return self._called(next(iter(texts.values())) if self.single else texts, case)
        with tempfile.TemporaryDirectory(prefix="fanfold-") as folder:
            return self._called(str(_written(texts, folder)[0]), case)

    def _called(self, text: Any, case: Any) -> Any:
        # Without cases, what stands in the place of one and has a default (`timeout=30`) keeps it.
        with_case = self.takes_case and (case is not None or _arguments(self.function)[1])
        return self.function(text, case) if with_case else self.function(text)


@dataclass(frozen=True)
class Command:
    """An evaluator that is a command: `{file}` is the text's file, `{folder}` that of all texts, `{case}` its JSON.

    The last line of its output is a number, or JSON with a `score`.  What it printed before that, and its errors, are
    the feedback.
    """

    command: str
    #: The files that it names, such as a script, with what identifies their content: a run continues with the same.
    files: str = ""

    @property
    def misread(self) -> str:
        """What to know about a command that was written for a shell, which does not run it."""
        sign = next((word for word in shlex.split(self.command) if _SHELL.fullmatch(word)), None)
        quoted = f"sh -c {shlex.quote(self.command)}"
        return "" if sign is None else f"{sign} is given to the command as an argument; for a shell write {quoted}"

    def __call__(self, texts: Mapping[str, str], case: Any = None) -> Any:
        with tempfile.TemporaryDirectory(prefix="fanfold-") as folder:
            paths = _written(texts, folder)
            row = Path(folder, "case.json")
            row.write_text(json.dumps(case, ensure_ascii=False, default=str), encoding="utf-8")
            places = {"{file}": str(paths[0]), "{folder}": folder, "{case}": str(row)}
            words = [_filled(word, places) for word in shlex.split(self.command)]
            try:
                done = subprocess.run(words, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL)
            except OSError as error:
                return self._failed("error", f"the command {words[0]!r} cannot be started: {error.strerror}")
        if done.returncode:
            printed = f"{done.stdout}\n{done.stderr}".strip()
            return self._failed("error", f"the command ended with status {done.returncode}:\n{printed[-KEPT:]}")
        *before, last = done.stdout.strip().splitlines() or [""]
        result = _result_of_line(last, "\n".join([*before, done.stderr.strip()]).strip())
        return self._failed(result.kind, result.message) if isinstance(result, Failed) else result

    def _failed(self, kind: str, message: str) -> Failed:
        return Failed(kind, f"{message} ({self.misread})" if self.misread else message)


def load_evaluator(named: str) -> Callable[..., Any]:
    """The evaluator that a text names: `score.py`, `score.py:function`, or a command with `{file}` in it."""
    if "{file}" in named or "{folder}" in named:
        try:
            return Command(named, _files_in(named))
        except ValueError as error:
            raise ConfigError(f"evaluator {named!r} is not a command: {error}") from None
    path = named.partition(":")[0]
    if not path.endswith(".py") or (" " in path and not Path(path).exists()):
        raise ConfigError(
            f"evaluator {named!r} is neither a Python file (score.py, score.py:function) nor a command with "
            "{file} in it, such as 'python score.py {file}'"
        )
    file = Path(path).resolve()
    return _loaded(named, file, file.stat().st_mtime_ns if file.is_file() else 0)


@functools.lru_cache(maxsize=8)
def _loaded(named: str, file: Path, changed: int) -> Callable[..., Any]:
    """The function of a file, loaded once for as long as the file is the same.

    Loaded again, the module would be another one, and its classes and functions no longer those that pickle finds.
    """
    return load_function(named, "evaluate", "def evaluate(text) -> score")


def _files_in(command: str) -> str:
    """The files that a command names, also inside what it gives to a shell; programs such as Python do not count."""
    found: dict[str, str] = {}
    for name in [part for word in shlex.split(command) for part in (word, *word.split())]:
        with contextlib.suppress(OSError, ValueError):
            if Path(name).is_file() and not (content := Path(name).read_bytes()).startswith(_PROGRAMS):
                found[name] = digest(content).hex()[:12]
    return ", ".join(f"{name} {content}" for name, content in found.items())


def read_result(value: Any) -> Outcome:
    """An evaluator's result as an outcome: a score, (score, feedback), or a mapping with a score."""
    if isinstance(value, Ok | Failed):
        return value
    feedback: Any = None
    metrics: dict[str, Any] = {}
    entries = _entries(value)
    if entries is None and isinstance(value, tuple | list) and len(value) == 2:
        value, feedback = value
    elif entries is not None:
        name = next((name for name in _SCORES if name in entries), None)
        if name is None:
            return Failed("bad-score", f"the evaluator returned a mapping without 'score'; it has {', '.join(entries)}")
        value = entries.pop(name)
        feedback = next((entries.pop(name) for name in _WORDS if name in entries), None)
        metrics = entries
    data: dict[str, Any] = {}
    words = [text for text in (_words(feedback), _words(metrics)) if text]
    if words:
        data["feedback"] = "\n".join(words)[-KEPT:]
    numbers = {name: float(number) for name, number in metrics.items() if _is_number(number)}
    return Ok(value, data | ({"metrics": numbers} if numbers else {}))


def _entries(value: Any) -> dict[str, Any] | None:
    """A result as a mapping: one that is, or an object with a score (or with metrics that have one) by its attributes.

    So are results of dspy (`Prediction`) and OpenEvolve (`EvaluationResult`), dataclasses and named tuples.
    """
    if isinstance(value, Mapping):
        return dict(value)
    metrics = getattr(value, "metrics", None)
    if isinstance(metrics, Mapping) and any(name in metrics for name in _SCORES):
        artifacts = getattr(value, "artifacts", None)
        return {**metrics, **({"feedback": artifacts} if isinstance(artifacts, Mapping) and artifacts else {})}
    if any(_is_number(getattr(value, name, None)) for name in _SCORES):
        names = (*_SCORES, *_WORDS, *getattr(value, "_fields", ()), *getattr(value, "__dataclass_fields__", ()))
        return {name: getattr(value, name) for name in dict.fromkeys(names) if hasattr(value, name)}
    return None


def needs_case(function: Callable[..., Any]) -> bool:
    """Whether a function cannot be called with a text alone."""
    try:
        inspect.signature(function).bind("")
    except TypeError:
        return True
    except ValueError:  # a builtin says nothing about its arguments
        pass
    return False


def _arguments(function: Callable[..., Any]) -> tuple[bool, bool, str]:
    """Whether a function takes a case after the text, whether it needs one, and what it calls the text."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False, False, ""
    if any(each.kind is each.VAR_POSITIONAL for each in parameters):
        return True, True, ""
    placed = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    required = [each for each in placed if each.default is each.empty]
    if not placed or len(required) > 2:
        raise ConfigError(
            f"the evaluator takes {len(required)} arguments: it must take a text, or a text and a case, as in "
            "def evaluate(text, case)"
        )
    return len(placed) > 1, len(required) > 1, placed[0].name


def _written(texts: Mapping[str, str], folder: str) -> list[Path]:
    """The texts as files of a folder, under their own names."""
    paths = [Path(folder, Path(name).name) for name in texts]
    for path, text in zip(paths, texts.values()):
        path.write_text(text, encoding="utf-8")
    return paths


def _filled(word: str, places: Mapping[str, str]) -> str:
    for place, path in places.items():
        word = word.replace(place, path)
    return word


def _result_of_line(line: str, feedback: str) -> Any:
    try:
        result = json.loads(line)
    except ValueError:
        result = None
    if isinstance(result, dict):
        return {"feedback": feedback[-KEPT:], **result} if feedback else result
    if isinstance(result, int | float) and not isinstance(result, bool):
        return (result, feedback[-KEPT:])
    return Failed(
        "bad-score", f"the last line that the command prints must be a number or JSON with a score, not {line!r:.200}"
    )


def _words(value: Any) -> str:
    if value is None or isinstance(value, str):
        return (value or "").strip()
    if isinstance(value, Mapping):
        return "\n".join(f"{name}: {_words(item)}" for name, item in value.items())
    if isinstance(value, list | tuple):
        return "\n".join(map(_words, value))
    return str(value)


def _is_number(value: Any) -> bool:
    try:
        return not isinstance(value, str | bytes) and math.isfinite(float(value))
    except (TypeError, ValueError, OverflowError):
        return False
