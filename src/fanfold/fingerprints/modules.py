"""Which modules are the project's own, and what they say."""

from __future__ import annotations

import ast
import functools
import sys
import sysconfig
import types
from collections.abc import Iterator, Mapping
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from fanfold.fingerprints.code import Chain, imported, syntax

_INSTALLED = ("site-packages", "dist-packages")
_FANFOLD = str(Path(__file__).parents[1])

#: Modules that `fanfold run FILE.py` loaded, and the name of the script in a process that multiprocessing has spawned.
SCRIPTS = {"__mp_main__"}


def counted(module: Any) -> Any:
    """The name by which a module counts: a script is the same to `python FILE.py` and to `fanfold run FILE.py`."""
    return "__main__" if isinstance(module, str) and module in SCRIPTS else module


@functools.cache
def _library_folders() -> tuple[str, ...]:
    return tuple({str(Path(sysconfig.get_path(name))) for name in ("stdlib", "platstdlib")})


class Modules:
    """Tells the project's own modules from the standard library, installed packages and Fanfold.

    A package that is installed and yet the evaluator's own (`package`) is the project's.
    """

    def __init__(self, package: str) -> None:
        self._package = package
        self._known: dict[tuple[str, str | None], bool] = {}
        self._read: set[str] = set()

    def holds(self, name: Any, namespace: Mapping[str, Any] | None) -> bool:
        """Whether the module of that name is the project's own."""
        if not isinstance(name, str):
            return False
        if namespace is None:
            module = sys.modules.get(name)
            namespace = vars(module) if isinstance(module, types.ModuleType) else {}
        file = namespace.get("__file__")
        return self._holds(name, file if isinstance(file, str) else None)

    def holds_code(self, function: types.FunctionType) -> bool:
        """Whether a function was written in the project: by its code, for decorators rename functions."""
        file, name = function.__code__.co_filename, function.__globals__.get("__name__")
        return self._holds(name if isinstance(name, str) else "", None if file.startswith("<") else file)

    def _holds(self, name: str, file: str | None) -> bool:
        key = name, file
        if key not in self._known:
            self._known[key] = self._decide(name, file)
        return self._known[key]

    def _decide(self, name: str, file: str | None) -> bool:
        top = name.partition(".")[0]
        if file is None:
            return top not in sys.stdlib_module_names and top not in sys.builtin_module_names and top != "fanfold"
        place = Path(file)
        if any(part in _INSTALLED for part in place.parts):
            return top == self._package and top != "fanfold"
        return not any(place.is_relative_to(folder) for folder in (_FANFOLD, *_library_folders()))

    def sources(self, package: str, level: int, name: str, wanted: Chain) -> Iterator[tuple[str, str]]:
        """Names and texts of the project's modules that an import reaches, each once.

        They are read, never imported: a module counts the same before and after it is loaded.
        """
        if level:
            parents = package.split(".")
            name = ".".join([*parents[: len(parents) - level + 1], *([name] if name else [])])
        for full in (name, *(f"{name}.{each}" for each in wanted)):
            if full in self._read or full == "__main__":
                continue
            self._read.add(full)
            file = _file_of(full)
            if file is None or not self._holds(full, str(file)):
                continue
            try:
                tree = ast.parse(file.read_text(encoding="utf-8"))
            except (OSError, SyntaxError, ValueError):
                continue
            yield full, syntax(tree)
            inside = full if file.name == "__init__.py" else full.rpartition(".")[0]
            for each in imported(tree):
                yield from self.sources(inside, *each)


def _file_of(name: str) -> Path | None:
    """The source file of a module, found without importing anything."""
    folders: list[str] | None = None
    spec = None
    for part in name.split("."):
        # By its own name: a folder without __init__.py would be looked up in its package, which may not be loaded.
        spec = PathFinder.find_spec(part, folders)
        if spec is None:
            return None
        folders = list(spec.submodule_search_locations or ())
    return Path(spec.origin) if spec is not None and spec.origin and spec.origin.endswith(".py") else None
