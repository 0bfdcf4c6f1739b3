"""Bytes by name at an address: a folder, or anything that fsspec reaches (`s3://bucket/prefix`, `gs://`, `sftp://`).

What is put is there whole or not at all.  An address never holds a password: packages behind fsspec read credentials
from their own files and variables, or from `FSSPEC_<PROTOCOL>_<ARGUMENT>`.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import secrets
import shutil
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, TypeVar
from urllib.parse import unquote

from fanfold.addresses import shown
from fanfold.errors import ConfigError, MissingExtra, NotInStore, StoreError, nearest
from fanfold.files import make_folder, replacing
from fanfold.redaction import know

T = TypeVar("T")

#: Is told the bytes that are copied so far, and how many there are.
Progress = Callable[[int, int], None]

#: Bytes that a copy takes at a time.
CHUNK = 2**22
#: Protocols where what is put appears at once, and that no password is sent over.  Elsewhere it is put under another
#: name first, and renamed.
OBJECTS = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "oss", "oci", "hf", "memory"})
_NAME = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)*")


class Store(ABC):
    """Bytes by name.  Names are words with dots, dashes and slashes.

    A name that is not there raises NotInStore, and a store that cannot be reached, or refuses, StoreError.
    """

    #: Where it is, for people and for ledgers.
    address: str
    #: Whether several threads may use it at once.
    threads: bool = True

    @abstractmethod
    def put(self, name: str, data: bytes) -> None:
        """Keep the bytes under the name, in place of what may be there."""

    @abstractmethod
    def get(self, name: str) -> bytes: ...

    @abstractmethod
    def size(self, name: str) -> int | None:
        """The number of bytes; None where there are none of that name."""

    @abstractmethod
    def delete(self, name: str) -> None:
        """Remove the bytes; nothing happens where there are none."""

    @abstractmethod
    def names(self, under: str = "") -> Iterator[str]:
        """Every name, or those in one folder of names."""

    @abstractmethod
    def upload(self, name: str, path: Path, progress: Progress | None = None) -> None:
        """Keep a whole file under the name, without reading it into memory."""

    @abstractmethod
    def download(self, name: str, path: Path, progress: Progress | None = None) -> None:
        """Write what is kept to a file, which is there when it is complete and not before."""

    def has(self, name: str) -> bool:
        return self.size(name) is not None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.address!r})"


def opened(address: str | Path, *, create: bool = True) -> Store:
    """The store at an address; with `create`, a folder that is missing is made."""
    text = str(address)
    protocol, separator, rest = text.partition("://")
    if separator and protocol in ("file", "local"):
        text, separator = unquote(rest), ""
    if separator:
        return RemoteStore(text)
    if not text:
        raise ConfigError("a store needs an address: a folder, or a URL such as s3://bucket/prefix")
    return FolderStore(Path(text), create=create)


class FolderStore(Store):
    """A folder of this machine, or one that several machines share."""

    def __init__(self, folder: Path, *, create: bool = True) -> None:
        self._folder = folder.expanduser().absolute()
        self.address = str(self._folder)
        with self._reached():
            if create:
                make_folder(self._folder)
            if not self._folder.is_dir():
                raise FileNotFoundError("there is no such folder")

    def put(self, name: str, data: bytes) -> None:
        with self._reached(), self._written(name) as file:
            file.write(data)

    def get(self, name: str) -> bytes:
        with self._reached(name):
            path = self._path(name)
            if not stat.S_ISREG(path.stat().st_mode):  # a ledger of a stranger may name a device
                raise FileNotFoundError(f"{path} is not a file")
            return path.read_bytes()

    def size(self, name: str) -> int | None:
        try:
            with self._reached(name):
                return self._path(name).stat().st_size
        except NotInStore:
            return None

    def delete(self, name: str) -> None:
        with self._reached():
            self._path(name).unlink(missing_ok=True)

    def names(self, under: str = "") -> Iterator[str]:
        with self._reached():
            for folder, folders, files in os.walk(self._path(under) if under else self._folder):
                folders.sort()
                found = (Path(folder, file).relative_to(self._folder).as_posix() for file in sorted(files))
                yield from (name for name in found if _NAME.fullmatch(name))  # not what is half written

    def upload(self, name: str, path: Path, progress: Progress | None = None) -> None:
        with self._reached(), path.open("rb") as source, self._written(name) as file:
            _copy(source, file, path.stat().st_size, progress)

    def download(self, name: str, path: Path, progress: Progress | None = None) -> None:
        with self._reached(name), self._path(name).open("rb") as source, replacing(path) as file:
            _copy(source, file, os.fstat(source.fileno()).st_size, progress)

    def _path(self, name: str) -> Path:
        return self._folder / _checked(name)

    @contextlib.contextmanager
    def _written(self, name: str) -> Iterator[IO[bytes]]:
        """A file that survives a power cut once it is complete, with its name."""
        path = self._path(name)
        make_folder(path.parent)
        with replacing(path) as file:
            yield file
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    @contextlib.contextmanager
    def _reached(self, name: str | None = None) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if name is not None and isinstance(error, FileNotFoundError) and self._folder.is_dir():
                raise NotInStore(f"the store {self.address} has no {name}") from error
            raise away(self.address, error) from error


class RemoteStore(Store):
    """Whatever fsspec reaches under an address."""

    def __init__(self, address: str) -> None:
        self.address = _public(address)
        protocol = address.partition("://")[0]
        self._fs, path = _file_system(address, protocol)
        self._root = path.rstrip("/")
        self._renames = protocol not in OBJECTS
        self.threads = bool(getattr(self._fs, "async_impl", False)) or protocol == "memory"

    def put(self, name: str, data: bytes) -> None:
        self._appear(name, lambda path: self._fs.pipe_file(path, data))

    def get(self, name: str) -> bytes:
        data: bytes = self._told(lambda: self._fs.cat_file(self._path(name)), name)
        return data

    def size(self, name: str) -> int | None:
        self._told(self._fs.invalidate_cache)  # others write, too
        try:
            return int(self._told(lambda: self._fs.info(self._path(name)), name)["size"])
        except NotInStore:
            return None

    def delete(self, name: str) -> None:
        with contextlib.suppress(NotInStore):
            self._told(lambda: self._fs.rm_file(self._path(name)), name)

    def names(self, under: str = "") -> Iterator[str]:
        self._told(self._fs.invalidate_cache)
        where = self._path(under) if under else self._root
        for path in sorted(self._told(lambda: self._fs.find(where))):
            name = path.removeprefix(self._root).lstrip("/")
            if _NAME.fullmatch(name):
                yield name

    def upload(self, name: str, path: Path, progress: Progress | None = None) -> None:
        def written(where: str) -> None:
            with path.open("rb") as source, self._fs.open(where, "wb") as file:
                _copy(source, file, path.stat().st_size, progress)

        self._appear(name, written)

    def download(self, name: str, path: Path, progress: Progress | None = None) -> None:
        def read() -> None:
            with self._fs.open(self._path(name), "rb") as source, replacing(path) as file:
                _copy(source, file, size, progress)

        size = self.size(name) or 0
        self._told(read, name)

    def _path(self, name: str) -> str:
        return f"{self._root}/{_checked(name)}"

    def _appear(self, name: str, write: Callable[[str], None]) -> None:
        """Write so that the name stands for all of it, or for nothing."""
        path = self._path(name)
        if not self._renames:
            self._told(lambda: write(path))
            return
        folder, _, file = path.rpartition("/")
        draft = f"{folder}/.{file}.{secrets.token_hex(4)}.part"

        def renamed() -> None:
            self._fs.makedirs(folder, exist_ok=True)
            try:
                write(draft)
                self._fs.mv(draft, path)
            except BaseException:
                with contextlib.suppress(Exception):
                    self._fs.rm_file(draft)
                raise

        self._told(renamed)

    def _told(self, call: Callable[[], T], name: str | None = None) -> T:
        """The result of a call of fsspec, whose packages raise errors of their own."""
        try:
            return call()
        except FileNotFoundError as error:
            if name is not None:
                raise NotInStore(f"the store {self.address} has no {name}") from error
            raise away(self.address, error) from error
        except Exception as error:
            raise away(self.address, error) from error


def away(address: str, error: Exception) -> StoreError:
    """Why a store could not do something."""
    reason = str(error).strip().partition("\n")[0][:300] or type(error).__name__
    return StoreError(f"the store {address} cannot be used ({type(error).__name__}: {reason})")


def _copy(source: IO[bytes], target: IO[bytes], size: int, progress: Progress | None) -> None:
    if progress is None:
        shutil.copyfileobj(source, target, CHUNK)
        return
    done = 0
    for chunk in iter(functools.partial(source.read, CHUNK), b""):
        target.write(chunk)
        done += len(chunk)
        progress(done, size)


def _checked(name: str) -> str:
    if _NAME.fullmatch(name) is None:
        raise ConfigError(f"{name!r} is not a name in a store: use letters, digits, '.', '-', '_' and '/'")
    return name


def _public(address: str) -> str:
    """The address, if it holds nothing secret."""
    authority = address.partition("://")[2].partition("/")[0]
    user, _, _ = authority.rpartition("@")
    _, colon, password = user.partition(":")
    query = re.search(r"[?#]", address)
    if not colon and query is None:
        return address
    for secret in (password, *re.findall(r"=([^&#;]*)", address)):
        know(secret)
        know(unquote(secret))
    protocol = re.sub(r"\W", "_", address.partition("://")[0]).upper()
    raise ConfigError(
        f"the store {shown(address)!r} is given with {'a password' if colon else 'a query'}, which would be written to "
        f"ledgers: leave it out, and set FSSPEC_{protocol}_<ARGUMENT> or what its package reads"
    )


def _file_system(address: str, protocol: str) -> tuple[Any, str]:
    """What fsspec has for an address, and the path there."""
    what = f"the store {shown(address)}"
    try:
        import fsspec
        from fsspec.registry import known_implementations as known
    except ImportError as error:
        raise MissingExtra("fsspec", "cloud", what) from error
    if protocol not in fsspec.available_protocols():
        raise ConfigError(f"{what}: fsspec knows no protocol {protocol!r}{nearest(protocol, known)}")
    try:
        found: tuple[Any, str] = fsspec.core.url_to_fs(address)
        return found
    except ImportError as error:
        missing = getattr(error.__cause__, "name", None) or error.name
        package = missing or str(known.get(protocol, {}).get("class", protocol)).partition(".")[0]
        raise MissingExtra(package, "cloud", what, then=f"pip install {package}") from error
    except Exception as error:
        raise away(shown(address), error) from error
