"""Files that are there whole or not at all, and that only their owner can read; and Python files of the user."""

from __future__ import annotations

import contextlib
import errno
import importlib
import importlib.util
import inspect
import os
import secrets
import stat
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import IO, Any

from fanfold.errors import ConfigError, FanfoldError, nearest

#: The file that is being imported, if one is.
_IMPORTED: ContextVar[str | None] = ContextVar("_IMPORTED", default=None)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file that takes the place of `path` when it is complete, and never before.

    A new file is for its owner only; one that is replaced leaves its mode to the next.  A link is replaced, not
    followed; pipes and devices (/dev/stdout) are written to as they are.
    """
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if _is_device(path):
        with path.open("wb") as file:
            yield file
        return
    draft = path.with_name(f".{secrets.token_hex(8)}.part")  # not a name that a program would take for the file
    try:
        with open(draft, "xb", opener=private) as file:
            yield file
            file.flush()
            with contextlib.suppress(OSError):  # nothing is there yet, or it is not ours to ask
                before = path.lstat().st_mode
                if stat.S_ISREG(before):
                    os.fchmod(file.fileno(), stat.S_IMODE(before))
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def check_place(path: Path) -> None:
    """Raise what `replacing` raises where a file cannot be made, before there is anything to write."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not _is_device(path):
        draft = path.with_name(f".{secrets.token_hex(8)}.part")
        open(draft, "xb", opener=private).close()
        draft.unlink()


def private(path: str, flags: int) -> int:
    """Open as `open(..., opener=private)`: what is made here, only its owner can read."""
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def make_folder(place: Path) -> None:
    """Make a folder, and those above it, where they are missing: for their owner only."""
    for folder in (*reversed(place.parents), place):
        folder.mkdir(mode=0o700, exist_ok=True)


def check_results(results: str | None) -> None:
    """Refuse a folder for results that nothing can be written into, before anything is learnt."""
    if results is None:
        return
    folder = Path(results).absolute()
    there = next(each for each in (folder, *folder.parents) if os.access(each, os.F_OK))
    if not there.is_dir():
        raise ConfigError(f"results={results!r} cannot be written: {there} is a file; name another folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ConfigError(f"results={results!r} cannot be written: {there} is not yours to write; name another folder")


def write_files(place: Path, files: Mapping[str, bytes]) -> None:
    """Write files into a folder, which is made where it is missing; each takes its place when it is complete."""
    make_folder(place)
    for name, data in files.items():
        with replacing(place / name) as file:
            file.write(data)


def _is_device(path: Path) -> bool:
    special = path.exists() and not path.is_file()
    return special or path.absolute().parts[1:2] in (("dev",), ("proc",))


def import_file(path: Path) -> Any:
    """The module of a file, under its own name and with its folder on the path: worker processes find it so too."""
    if not path.is_file():
        raise ConfigError(f"there is no file {path}: check the path")
    name = path.stem
    taken = name in sys.modules and getattr(sys.modules[name], "__file__", None) != str(path)
    if taken or name in sys.stdlib_module_names or "." in name:
        problem = "has a dot" if "." in name else "is the name of another module"
        raise ConfigError(f"{path} cannot be imported: {name!r} {problem}; rename the file")
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    loader = spec.loader
    within = _IMPORTED.set(path.name)
    try:
        guarded(path.name, path, lambda: loader.exec_module(module))
    except BaseException:
        del sys.modules[name]
        raise
    finally:
        _IMPORTED.reset(within)
    return module


def check_not_imported() -> None:
    """Refuse a run that a script would start because something in it is wanted."""
    if (script := _IMPORTED.get()) is not None:
        raise ConfigError(
            f"{script} starts a run when something in it is named: put what it does below "
            'if __name__ == "__main__":, and leave functions and classes above'
        )


def load_function(named: str, usual: str, form: str) -> Callable[..., Any]:
    """The function that `file.py` or `file.py:name` names, by default the `usual` one; a class is made once."""
    path, _, attribute = named.partition(":")
    module = import_file(Path(path).resolve())
    attribute = attribute or usual
    function = getattr(module, attribute, None)
    if function is None:
        known = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
        raise ConfigError(
            f"{path} has no {attribute!r}{nearest(attribute, known)}: write {form}, or name another function as "
            f"{path}:NAME"
        )
    made: Callable[..., Any] = guarded(named, None, function) if inspect.isclass(function) else function
    return made


def imported(name: str, takes: str) -> Any:
    """The function that `module:function` or `file.py:function` names; `takes` says what it must take and give."""
    module, _, function = name.partition(":")
    try:
        if module.endswith(".py") or not _importable(module):
            value = getattr(import_file(Path(module.removesuffix(".py") + ".py").resolve()), function)
        else:
            value = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"{name!r} names no function ({error}): write module:function, of a module that can be imported, or "
            "file.py:function"
        ) from error
    if not callable(value):
        raise ConfigError(f"{name!r} is not a function: it must {takes}")
    return value


def _importable(module: str) -> bool:
    """Whether a module is to be imported; one that cannot be, and lies in the current folder, is read from there."""
    return not Path(f"{module}.py").is_file() or importlib.util.find_spec(module) is not None


def guarded(what: str, path: Path | None, call: Callable[[], Any]) -> Any:
    """The result of code that is not ours; its errors are shown with its traceback, without our part of it."""
    try:
        return call()
    except FanfoldError:
        raise
    except (Exception, SystemExit) as error:
        frames = error.__traceback__.tb_next if error.__traceback__ is not None else None
        while frames is not None and path is not None and frames.tb_frame.f_code.co_filename != str(path):
            frames = frames.tb_next
        text = "".join(traceback.format_exception(error.with_traceback(frames))).rstrip()
        raise ConfigError(f"{what} could not be loaded:\n{text}{_remedy(error, path)}") from None


def _remedy(error: BaseException, path: Path | None) -> str:
    """What to do about a module that is not found, where it can be seen from here."""
    if path is None or not isinstance(error, ImportError):
        return ""
    if not isinstance(error, ModuleNotFoundError):
        relative = "relative import" in str(error)
        return "\nThe file is loaded by its path: import by the name of the package, not by dots" if relative else ""
    top = (error.name or "").partition(".")[0]
    near = (
        folder for folder in (Path.cwd(), *path.parents) if (folder / top).is_dir() or (folder / f"{top}.py").is_file()
    )
    folder = next(near, None) if top else None
    return "" if folder is None else f"\n{top} is in {folder}, where Python does not look: set PYTHONPATH={folder}"
