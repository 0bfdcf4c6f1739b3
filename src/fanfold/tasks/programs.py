"""Problems whose answers are tests of code: how files hold tests and solutions."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fanfold.tasks import reading
from fanfold.tasks.task import Problem


def asserts_in(value: Any) -> list[str] | None:
    """The tests that an answer holds, as a list or as a text of Python; None where it is something else.

    Asserts alone are a test each; with other statements (a setup, a function that is called) all is one test.
    """
    if isinstance(value, list):
        tests = [item for item in value if isinstance(item, str) and (item.startswith("assert ") or asserts_in(item))]
        return tests if 0 < len(tests) == len(value) else None
    if not isinstance(value, str) or "assert" not in value:
        return None
    if value.lstrip()[:1] == "[":
        return asserts_in(reading.value_in(value))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(value)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return None
    if not any(isinstance(node, ast.Assert) for node in ast.walk(tree)):
        return None
    if all(isinstance(statement, ast.Assert) for statement in tree.body):
        return [ast.get_source_segment(value, statement) or "" for statement in tree.body]
    calls = (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call) for statement in tree.body)
    return [value] if any(calls) or any(isinstance(statement, ast.Assert) for statement in tree.body) else None


def called(cells: Mapping[str, Any]) -> Mapping[str, Any]:
    """A row; of one like those of HumanEval, where `test` defines `check`, with the call and the whole solution.

    Of one like those of MBPP each test begins with the row's setup or imports.
    """
    test, name = cells.get("test"), cells.get("entry_point")
    setup = cells.get("test_setup_code") or cells.get("test_imports")
    if setup and (tests := asserts_in(cells.get("test_list"))):
        lines = reading.value_in(setup) if isinstance(setup, str) else setup
        begin = "\n".join(lines) if isinstance(lines, list) else str(setup)
        return {**cells, "test_list": [f"{begin}\n{test}" for test in tests]}
    if not (isinstance(test, str) and isinstance(name, str) and "def check(" in test):
        return cells
    begun, rest = cells.get("prompt"), cells.get("canonical_solution")
    whole = {"canonical_solution": begun + rest} if isinstance(begun, str) and isinstance(rest, str) else {}
    return {**cells, "test": f"{test.rstrip()}\n\ncheck({name})", **whole}


def fenced(solution: Any) -> str:
    """A solution as an example shows it: what a reply is to look like."""
    text = str(solution).strip("\n")
    return text if "```" in text or not text else f"```python\n{text}\n```"


def solved(problems: Sequence[Problem]) -> tuple[Problem, ...]:
    """The problems with their solutions to show, where there are some, and never their tests."""
    return tuple(replace(problem, note={"shown": "", **(problem.note or {})}) for problem in problems)
