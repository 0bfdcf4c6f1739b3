"""The code blocks of a document as programs: found in its text, given their new import lines, and run one by one."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DOCUMENTS = Path(__file__).parents[1] / "data" / "documents"

#: The documents' modules and ours; docs/migration.md has the same table.
MODULES = {
    "src.genetics.evolution": "fanfold.legacy",
    "src.genetics.async_evolution": "fanfold.legacy",
    "src.evaluation.async_llm_interface": "fanfold.legacy",
    "src.evaluation.async_pipeline": "fanfold.legacy",
    "scripts.test_async_performance": "fanfold.legacy",
    "prompt_rl.utils": "fanfold.legacy.prompt_rl",
    "prompt_rl.utils.parallel": "fanfold.legacy.prompt_rl",
}
#: What the environment says where a document's program says nothing: a model that costs nothing, and fewer problems.
ENVIRONMENT = {
    "FANFOLD_MODEL": "simulated/solver",
    "FANFOLD_RATE_LIMIT": "none",
    "FANFOLD_MAX_PROBLEMS": "24",
}

_FENCE = re.compile(r"^(?P<indent>[ \t]*)```(?P<language>\w*)[ \t]*\n(?P<text>.*?)^(?P=indent)```[ \t]*$", re.M | re.S)
_IMPORT = re.compile(r"^(?P<head>\s*(?:from|import)\s+)(?P<module>[\w.]+)", re.M)


@dataclass(frozen=True)
class Block:
    """A fenced block: its number in the document, the line it begins on, its language and its text."""

    number: int
    line: int
    language: str
    text: str


def blocks_of(path: Path, language: str | None = None) -> list[Block]:
    """The fenced blocks of a document in order, also those inside list items; numbers count blocks of all languages."""
    text = path.read_text(encoding="utf-8")
    found = [
        Block(number, text.count("\n", 0, match.start()) + 2, match["language"], textwrap.dedent(match["text"]))
        for number, match in enumerate(_FENCE.finditer(text))
    ]
    return [block for block in found if language in (None, block.language)]


def ported(text: str, modules: Mapping[str, str]) -> str:
    """The text with the modules of its import lines renamed by the table, and nothing else changed."""
    return _IMPORT.sub(lambda match: match["head"] + modules.get(match["module"], match["module"]), text)


def filled(text: str, elided: Mapping[str, str]) -> str:
    """The text with what its author left out put in; each elision must be there, exactly once."""
    for left_out, meant in elided.items():
        if text.count(left_out) != 1:
            raise AssertionError(f"{left_out!r} stands {text.count(left_out)} times in the block:\n{text}")
        text = text.replace(left_out, meant)
    return text


def run(text: str, names: Mapping[str, Any], where: str = "<block>") -> dict[str, Any]:
    """Run a program text with some names given, and give all names it leaves behind.

    An `await` at the top level is run to its end by `asyncio.run`, statement by statement, so that a block may await in
    one line and call `asyncio.run` in the next, as fragments of documents do.  The value of a last line that is an
    expression is left behind as `_`.
    """
    left: dict[str, Any] = {"__name__": "__main__", **names}
    body = ast.parse(text, where).body
    if body and isinstance(last := body[-1], ast.Expr):
        body[-1] = ast.copy_location(ast.Assign([ast.Name("_", ast.Store())], last.value), last)
    for statement in body:
        module = ast.fix_missing_locations(ast.Module([statement], []))
        code = compile(module, where, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        if code.co_flags & inspect.CO_COROUTINE:
            asyncio.run(_awaited(eval(code, left)))
        else:
            exec(code, left)
    return left


async def _awaited(statement: Any) -> None:
    await statement
