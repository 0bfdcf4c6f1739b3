"""Mutations of Python source: small changes, each of which a good test suite should notice."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
}
#: Calls whose arguments may change places without any effect, and calls that only say something.
SYMMETRIC = {"min", "max", "isinstance", "zip", "getattr"}
#: Dropping these changes nothing but the timing.
NO_EFFECT = {"asyncio.sleep"}
#: Texts for people and for debuggers: what they say is not what is tested here.
UNTESTED = {"__repr__", "__str__"}


@dataclass(frozen=True, slots=True)
class Mutation:
    """One change: the source between two offsets becomes something else."""

    kind: str
    #: Where: the function (`SearchLoop._tell`), the line's text, and the lines of the statement.
    place: str
    text: str
    lines: tuple[int, int]
    #: Whether it is executed when the module is imported, and by no test.
    at_import: bool
    start: int
    end: int
    was: str
    now: str

    def apply(self, source: bytes) -> bytes:
        return source[: self.start] + self.now.encode() + source[self.end :]

    @property
    def line(self) -> int:
        return self.lines[0]


def mutations(source: bytes) -> list[Mutation]:
    """Every mutation of a module's functions and class attributes, in the order of the source."""
    finder = _Finder(source)
    finder.visit(ast.parse(source))
    unique = {(m.start, m.end, m.now): m for m in finder.found}
    return sorted(unique.values(), key=lambda m: (m.start, m.end, m.now))


class _Finder(ast.NodeVisitor):
    """Walks the tree and collects mutations; knows in which function and statement it is."""

    def __init__(self, source: bytes) -> None:
        self.found: list[Mutation] = []
        self._source = source
        self._lines = source.splitlines(keepends=True)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))
        self._names: list[str] = []
        self._functions = 0
        self._statement: ast.stmt | None = None

    # -- where we are ------------------------------------------------------------------------------------------------

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        if node.name in UNTESTED:
            return
        self._names.append(node.name)
        self._functions += 1
        for statement in node.body:
            self._visit_statement(statement)
        self._functions -= 1
        self._names.pop()

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._names.append(node.name)
        for statement in node.body:
            # Of the attributes of a class only plain switches and numbers: the rest is types and declarations.
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                self.visit(statement)
            elif isinstance(statement, ast.AnnAssign) and isinstance(statement.value, ast.Constant):
                self._statement = statement
                self.visit(statement.value)
        self._names.pop()

    def visit_Module(self, node: ast.Module) -> None:
        for statement in node.body:
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                self.visit(statement)

    def _visit_statement(self, node: ast.stmt) -> None:
        before, self._statement = self._statement, node
        self.visit(node)
        self._statement = before

    def generic_visit(self, node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.stmt):
                self._visit_statement(child)
            else:
                self.visit(child)

    # -- what is left alone ------------------------------------------------------------------------------------------

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Texts: and their parts have no exact place in the source before Python 3.12."""

    def visit_Raise(self, node: ast.Raise) -> None:
        """The words of an error are not tested; whether it is raised is, by its condition."""
        if self._functions:
            self._add("raise", node, "pass")

    def visit_Assert(self, node: ast.Assert) -> None:
        """For the type checker and the reader."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    # -- operators ---------------------------------------------------------------------------------------------------

    def visit_Compare(self, node: ast.Compare) -> None:
        for index, op in enumerate(node.ops):
            for other in COMPARISONS[type(op)]:
                ops = [*node.ops[:index], other(), *node.ops[index + 1 :]]
                self._replace("comparison", node, ast.Compare(node.left, ops, node.comparators))
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        self._replace("and/or", node, ast.BoolOp(op, node.values))
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not | ast.USub):
            self._replace("not" if isinstance(node.op, ast.Not) else "sign", node, node.operand)
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        other = ARITHMETIC.get(type(node.op))
        texts = any(isinstance(part, ast.JoinedStr) or _is_text(part) for part in (node.left, node.right))
        if other is not None and not texts:
            self._replace("arithmetic", node, ast.BinOp(node.left, other(), node.right))
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        other = ARITHMETIC.get(type(node.op))
        if other is not None:
            self._replace("arithmetic", node, ast.AugAssign(node.target, other(), node.value))
        self.visit(node.value)

    def visit_Constant(self, node: ast.Constant) -> None:
        value = node.value
        if isinstance(value, bool):
            self._replace("constant", node, ast.Constant(not value))
        elif isinstance(value, int | float):
            self._replace("constant", node, ast.Constant(type(value)(0 if value == 1 else value + 1)))

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._replace("condition", node, node.body)
        self._replace("condition", node, node.orelse)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        simple = [arg for arg in node.args if isinstance(arg, ast.Name | ast.Attribute)]
        if len(node.args) == len(simple) == 2 and _name(node.func).rpartition(".")[2] not in SYMMETRIC:
            self._replace("arguments", node, ast.Call(node.func, node.args[::-1], node.keywords))
        self.generic_visit(node)

    # -- statements --------------------------------------------------------------------------------------------------

    def visit_If(self, node: ast.If) -> None:
        for value in ("True", "False"):
            self._add("condition", node.test, value)
        self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        if not isinstance(node.test, ast.Constant):
            self._add("condition", node.test, "False")
        if isinstance(node.test, ast.Constant):
            for statement in node.body:
                self._visit_statement(statement)
        else:
            self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        call = node.value.value if isinstance(node.value, ast.Await) else node.value
        if isinstance(call, ast.Call) and _name(call.func) not in NO_EFFECT:
            self._add("dropped", node, "pass")
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        starting = self._names and self._names[-1] in ("__init__", "__post_init__")
        if not starting and any(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets):
            self._add("dropped", node, "pass")
        self.visit(node.value)

    def visit_Return(self, node: ast.Return) -> None:
        value = node.value
        if value is None or (isinstance(value, ast.Constant) and value.value is None):
            return
        # None is as false as False.
        if not isinstance(value, ast.Await) and not (isinstance(value, ast.Constant) and not value.value):
            self._add("return", node, "return None")
        self.visit(value)

    # -- writing it down ---------------------------------------------------------------------------------------------

    def _replace(self, kind: str, node: ast.expr | ast.stmt, new: ast.expr | ast.stmt) -> None:
        text = ast.unparse(ast.fix_missing_locations(new))
        self._add(kind, node, text if isinstance(new, ast.stmt | ast.Constant) else f"({text})")

    def _add(self, kind: str, node: ast.expr | ast.stmt, now: str) -> None:
        assert node.end_lineno is not None and node.end_col_offset is not None and self._statement is not None
        start = self._starts[node.lineno - 1] + node.col_offset
        end = self._starts[node.end_lineno - 1] + node.end_col_offset
        was = self._source[start:end].decode()
        text = self._lines[node.lineno - 1].decode().strip()
        place = ".".join(self._names)
        self.found.append(Mutation(kind, place, text, self._extent(), not self._functions, start, end, was, now))

    def _extent(self) -> tuple[int, int]:
        """The lines of the statement, or of its head where it has a body."""
        statement = self._statement
        assert statement is not None
        body = getattr(statement, "body", None)
        last = body[0].lineno - 1 if isinstance(body, list) and body else statement.end_lineno
        return statement.lineno, max(statement.lineno, last or statement.lineno)


def _name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_name(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)


def names_of(found: list[Mutation]) -> Iterator[tuple[str, Mutation]]:
    """Each mutation with a name that stays the same while the code around it changes."""
    counts: dict[str, int] = {}
    for mutation in found:
        name = "\t".join((mutation.place, mutation.text, mutation.was, mutation.now))
        counts[name] = counts.get(name, 0) + 1
        yield f"{name}\t{counts[name]}", mutation
