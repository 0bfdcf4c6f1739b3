"""Print the shape of the source: module and function lengths, shared class names, busy classes, lines per package.

python tools/shape.py            fails where a target that was reached is missed again
python tools/shape.py --strict   fails where any target is missed
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "fanfold"

#: A class with such a name holds options, one attribute per option. scikit-learn asks the same of a classifier.
SETTINGS = ("Config", "Options", "Settings", "Params", "Weights", "Classifier", "Estimator")


@dataclass(frozen=True)
class Module:
    path: str  # relative to the package, "ledger/store.py"
    lines: int
    tree: ast.Module

    @property
    def package(self) -> str:
        parts = self.path.split("/")
        return "/".join(parts[: 2 if parts[0] == "studies" and len(parts) > 2 else 1]) if len(parts) > 1 else "."


@dataclass(frozen=True)
class Measure:
    name: str
    value: int
    most: int
    examples: list[str]
    reached: bool  # missing it again is an error, also without --strict

    def show(self, examples: int) -> str:
        text = f"{self.name:<44} {self.value:>7,}  target {self.most:,}{'' if self.value <= self.most else '  MISSED'}"
        lines = [text, *(f"    {line}" for line in self.examples[:examples])]
        if len(self.examples) > examples:
            lines.append(f"    and {len(self.examples) - examples} more (--all lists them)")
        return "\n".join(lines)


def read(source: Path) -> list[Module]:
    modules = []
    for path in sorted(source.rglob("*.py")):
        text = path.read_text()
        modules.append(Module(path.relative_to(source).as_posix(), text.count("\n"), ast.parse(text)))
    return modules


def functions(module: Module) -> Iterator[tuple[str, int]]:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, (node.end_lineno or node.lineno) - node.lineno + 1


def classes(module: Module) -> Iterator[ast.ClassDef]:
    return (node for node in ast.walk(module.tree) if isinstance(node, ast.ClassDef))


def attributes(node: ast.ClassDef) -> set[str]:
    """The names a class stores: fields of a dataclass, and everything assigned to `self`.

    A frozen dataclass is a value or settings, and has no state that anybody could get lost in.
    """
    names: set[str] = set()
    if any("frozen=True" in ast.unparse(decorator) for decorator in node.decorator_list):
        return names
    if any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list):
        names |= {
            part.target.id
            for part in node.body
            if isinstance(part, ast.AnnAssign)
            and isinstance(part.target, ast.Name)
            and "ClassVar" not in ast.unparse(part.annotation)
        }
    for part in ast.walk(node):
        if (
            isinstance(part, ast.Attribute)
            and isinstance(part.ctx, ast.Store)
            and isinstance(part.value, ast.Name)
            and part.value.id == "self"
        ):
            names.add(part.attr)
    return names


def measure(modules: list[Module]) -> list[Measure]:
    homes = defaultdict(list)
    busy: list[tuple[int, str]] = []
    for module in modules:
        for node in classes(module):
            homes[node.name].append(module.path)
            if not node.name.endswith(SETTINGS):
                busy.append((len(attributes(node)), f"{module.path}: {node.name}"))
    busy.sort(reverse=True)
    long_modules = sorted(((module.lines, module.path) for module in modules if module.lines > 400), reverse=True)
    long_functions = sorted(
        ((lines, f"{module.path}: {name}") for module in modules for name, lines in functions(module) if lines > 60),
        reverse=True,
    )
    shared = sorted((name, paths) for name, paths in homes.items() if len(paths) > 1)
    legacy = sum(module.lines for module in modules if module.package == "legacy")
    return [
        Measure("modules over 400 lines", len(long_modules), 0, [f"{n} {at}" for n, at in long_modules], True),
        Measure("functions over 60 lines", len(long_functions), 0, [f"{n} {at}" for n, at in long_functions], True),
        Measure("class names used twice", len(shared), 5, [f"{name}: {', '.join(at)}" for name, at in shared], True),
        Measure("attributes of the busiest class", busy[0][0], 14, [f"{n} {at}" for n, at in busy if n > 14], True),
        Measure("lines of legacy", legacy, 2_200, [], True),
        Measure("lines of src", sum(module.lines for module in modules), 40_000, [], False),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strict", action="store_true", help="fail where any target is missed")
    parser.add_argument("--all", action="store_true", help="list every module, function and class over a target")
    options = parser.parse_args()
    modules = read(SOURCE)
    packages = Counter[str]()
    for module in modules:
        packages[module.package] += module.lines
    for package, lines in packages.most_common():
        print(f"{package:<44} {lines:>7,}")
    print()
    measures = measure(modules)
    for target in measures:
        print(target.show(len(target.examples) if options.all else 6))
    return int(any(target.value > target.most and (target.reached or options.strict) for target in measures))


if __name__ == "__main__":
    sys.exit(main())
