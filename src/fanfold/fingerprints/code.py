"""What code is and what it reaches: its syntax as text, the names it reads, and what it changes itself."""

from __future__ import annotations

import ast
import dis
import linecache
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

Chain = tuple[str, ...]

#: Methods that change the container they are called on.
_CHANGING = frozenset(
    [
        "add",
        "append",
        "appendleft",
        "clear",
        "discard",
        "extend",
        "insert",
        "pop",
        "popitem",
        "popleft",
        "put",
        "put_nowait",
        "remove",
        "setdefault",
        "update",
    ]
)
_GLOBAL = frozenset(("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"))
_ATTRIBUTE = frozenset(("LOAD_ATTR", "LOAD_METHOD"))
_BETWEEN = frozenset(("PUSH_NULL", "CACHE", "PRECALL", "EXTENDED_ARG", "NOP"))


@dataclass(frozen=True, slots=True)
class Code:
    """What a function's code is: `text` is equal for code that differs in comments, formatting and docstrings only."""

    text: str
    #: Global names it reads, each with the attributes read from it: `helpers.K` is ("helpers", "K").
    reads: frozenset[Chain]
    #: Modules it imports itself, as (level, name, names imported from it).
    imports: frozenset[tuple[int, str, Chain]]
    #: Variables, or attributes of variables, that it changes: a counter, a cache.
    changes: frozenset[Chain]
    #: Every attribute it names.
    mentions: frozenset[str]


def read_code(code: CodeType) -> Code:
    """What a code object is: by its source, or by its instructions where there is no source."""
    reads, changes, imports, mentions = set[Chain](), set[Chain](), set[tuple[int, str, Chain]](), set[str]()
    for each in _nested(code):
        for chain, free in _chains(each):
            mentions.update(chain[1:])
            if not free:
                reads.add(chain)
            if len(chain) > 1 and chain[-1] in _CHANGING:
                changes.add(chain[:-1])
        imports.update(_imports(each))
        mentions.update(each.co_names)
    node = _node_of(code)
    if node is None:
        return Code(_instructions(code), frozenset(reads), frozenset(imports), frozenset(changes), frozenset(mentions))
    changes.update(_changes(node))
    for decorator in getattr(node, "decorator_list", ()):
        found = {chain for part in ast.walk(decorator) if (chain := _chain(part))}
        reads |= found - {chain[:end] for chain in found for end in range(1, len(chain))}
    return Code(syntax(node), frozenset(reads), frozenset(imports), frozenset(changes), frozenset(mentions))


def syntax(node: Any) -> str:
    """A syntax tree as text, the same in every version of Python that has the syntax."""
    if isinstance(node, ast.AST):
        fields = [
            f"{name}={syntax(value)}"
            for name, value in ast.iter_fields(node)
            if value is not None and value != [] and name not in ("kind", "type_comment", "ctx")
        ]
        return f"{type(node).__name__}({', '.join(fields)})"
    if isinstance(node, list):
        kept = node[1:] if node and _is_docstring(node[0]) else node
        return f"[{', '.join(map(syntax, kept))}]"
    return repr(node)


def _is_docstring(node: Any) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def imported(tree: ast.AST) -> Iterator[tuple[int, str, Chain]]:
    """Every import in a syntax tree, as `Code.imports` has them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((0, alias.name, ()) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.level, node.module or "", tuple(alias.name for alias in node.names)


# -- by instructions -------------------------------------------------------------------------------------------------


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from _nested(const)


def _chains(code: CodeType) -> Iterator[tuple[Chain, bool]]:
    """Variables from outside that are read, with the attributes read from them; True for those of a closure."""
    chain: list[str] = []
    free = False
    for step in dis.get_instructions(code):
        name = step.opname
        if chain and name in _ATTRIBUTE:
            chain.append(step.argval)
        elif name not in _BETWEEN:
            if chain:
                yield tuple(chain), free
            chain, free = [], name == "LOAD_DEREF"
            if name in _GLOBAL or free:
                chain = [step.argval]
    if chain:
        yield tuple(chain), free


def _imports(code: CodeType) -> Iterator[tuple[int, str, Chain]]:
    if not any(op == dis.opmap["IMPORT_NAME"] for op in code.co_code[::2]):
        return
    steps = [step for step in dis.get_instructions(code) if step.opname not in _BETWEEN]
    for place, step in enumerate(steps):
        if step.opname == "IMPORT_NAME":
            level, names = steps[place - 2].argval, steps[place - 1].argval
            yield level if isinstance(level, int) else 0, step.argval, names if isinstance(names, tuple) else ()


def _instructions(code: CodeType) -> str:
    consts = [
        _instructions(const)
        if isinstance(const, CodeType)
        else repr(sorted(map(repr, const)) if isinstance(const, frozenset) else const)
        for const in code.co_consts
    ]
    return f"{code.co_code.hex()} {code.co_names} {code.co_varnames} {code.co_freevars} {consts}"


# -- by source -------------------------------------------------------------------------------------------------------

_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_Key = tuple[str, int]


@dataclass(slots=True)
class _File:
    """The functions of a file by name and first line, as syntax and compiled."""

    lines: list[str]
    nodes: dict[_Key, list[_Function]] = field(default_factory=dict)
    codes: dict[_Key, list[str]] = field(default_factory=dict)


_FILES: dict[str, _File] = {}


def _node_of(code: CodeType) -> _Function | None:
    """The part of its file's syntax tree that a code object was compiled from, if that can be told for certain."""
    file, key = _file(code.co_filename), (code.co_name, code.co_firstlineno)
    found = file.nodes.get(key, [])
    if _instructions(code) not in file.codes.get(key, ()):
        return None  # the file was edited since it was loaded, and says something else than what runs
    if len(found) == 1:
        return found[0]
    spans = [(a, c, b, d) for a, b, c, d in code.co_positions() if a and b and c is not None and d is not None and d]
    if not found or not spans:
        return None
    begin, end = min((a, c) for a, c, _, _ in spans), max((b, d) for _, _, b, d in spans)
    around = [node for node in found if isinstance(node, ast.Lambda) and _spans(node.body, begin, end)]
    return min(around, key=_size) if around else None  # of lambdas inside lambdas the innermost that holds all of it


def _spans(node: ast.expr, begin: tuple[int, int], end: tuple[int, int]) -> bool:
    first, last = (node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0)
    return first <= begin and end <= last


def _size(node: _Function) -> tuple[int, int]:
    return (node.end_lineno or 0) - node.lineno, (node.end_col_offset or 0) - node.col_offset


def _file(name: str) -> _File:
    linecache.checkcache(name)
    lines = linecache.getlines(name)
    known = _FILES.get(name)
    if known is not None and known.lines is lines:
        return known
    file = _FILES[name] = _File(lines)
    try:
        tree = ast.parse("".join(lines))
        compiled = compile(tree, name, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError):
        return file
    for code in _nested(compiled):
        file.codes.setdefault((code.co_name, code.co_firstlineno), []).append(_instructions(code))
    for node in ast.walk(tree):
        if isinstance(node, _Function):
            called = "<lambda>" if isinstance(node, ast.Lambda) else node.name
            first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", ()))])
            file.nodes.setdefault((called, first), []).append(node)
    return file


def _changes(function: ast.AST) -> Iterator[Chain]:
    """What a function assigns to, deletes from or calls a changing method of, beyond its own local variables."""
    outer = {name for node in ast.walk(function) if isinstance(node, ast.Global | ast.Nonlocal) for name in node.names}
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CHANGING:
            if chain := _chain(node.func.value):
                yield chain
        elif isinstance(getattr(node, "ctx", None), ast.Store | ast.Del):
            chain = _chain(node)
            if chain and (len(chain) > 1 or not isinstance(node, ast.Name) or node.id in outer):
                yield chain


def _chain(node: ast.AST) -> Chain:
    """`a.b` as ("a", "b"); of `a.b[0].c` what is before the index, for that is what is changed."""
    names: list[str] = []
    while not isinstance(node, ast.Name):
        if isinstance(node, ast.Attribute):
            names.append(node.attr)
        elif isinstance(node, ast.Subscript):
            names.clear()
        else:
            return ()
        node = node.value
    return (node.id, *reversed(names))


def under(changes: Iterable[Chain], name: str) -> frozenset[Chain]:
    """What is changed below an attribute."""
    return frozenset(chain[1:] for chain in changes if chain[0] == name and len(chain) > 1)
