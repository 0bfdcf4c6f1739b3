"""Where rows are read from: JSON, CSV, text, Parquet, Hugging Face datasets; errors name file, line and remedy."""

from __future__ import annotations

import csv
import importlib
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from fanfold.errors import ConfigError, MissingExtra, nearest
from fanfold.tables.documents import rows_in
from fanfold.tables.encodings import OTHERS, UTF16, mark_of
from fanfold.tables.given import label_names, named, plain
from fanfold.tables.tabs import TabbedRows

#: A row of a source, and where it stands there, in words.
Row: TypeAlias = tuple[Mapping[str, Any], str]

ENDINGS = {
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "json", ".csv": "csv", ".tsv": "tsv", ".txt": "txt",
    ".parquet": "parquet", ".pq": "parquet",
}  # fmt: skip
#: What may separate the columns of a CSV file, the likeliest first.
DELIMITERS = (",", ";", "\t", "|")
_SHEETS = (".xlsx", ".xls", ".xlsm", ".ods", ".numbers")
_PACKED = (".gz", ".bz2", ".xz", ".zst", ".zip")
#: What to do with JSON that is not one object on each line.
_DOCUMENT = "; if the whole file is one JSON document, let its name end in .json"
#: What a line of a text file is called as a column.
TEXT = "text"

csv.field_size_limit(min(sys.maxsize, 2**31 - 1))  # texts for models are longer than the 128 KiB that csv allows


@dataclass(frozen=True)
class Table:
    """The rows of a file or a dataset.  Each iteration reads them again, one after the other."""

    name: str
    format: str
    encoding: str = "utf-8"
    delimiter: str = ","

    def __iter__(self) -> Iterator[Row]:
        readers = {
            "jsonl": _json_lines,
            "json": _json_document,
            "csv": _csv,
            "tsv": _csv,
            "txt": _lines,
            "parquet": _parquet,
            "hf": _hugging_face,
        }
        return readers[self.format](self)

    @property
    def path(self) -> Path:
        return Path(self.name)

    @property
    def marked(self) -> bool:
        """Whether a file begins with a byte order mark, as those of Excel do, which needs one to read UTF-8."""
        return self.format in ("csv", "tsv") and bool(mark_of(self.path))

    @property
    def inferred(self) -> str:
        """What was found out about a file and is not usual, in words; mostly nothing."""
        encoding = "" if self.encoding == "utf-8" else f"its encoding is {self.encoding}"
        usual = self.format != "csv" or self.delimiter == ","
        delimiter = "" if usual else f"its columns are separated by {self.delimiter!r}"
        return ", ".join(filter(None, (encoding, delimiter)))


def rows_of(name: str) -> Iterator[Row]:
    """The rows of a file or a dataset, one after the other."""
    return iter(open_table(name))


def open_table(
    name: str, *, format: str | None = None, encoding: str | None = None, delimiter: str | None = None
) -> Table:
    """A file by its name, or a dataset: `hf:NAME[:CONFIG][:SPLIT]`, or a folder that `save_to_disk` wrote.

    Without a `format` the ending of the file decides.  What separates the columns of a CSV file is read from its first
    line unless it is said.
    """
    path = Path(name)
    if name.startswith("hf:") or any((path / saved).is_file() for saved in ("dataset_info.json", "dataset_dict.json")):
        return Table(name, "hf")
    format = format or ENDINGS.get(path.suffix.lower())
    if format is None:
        if path.is_dir():
            raise ConfigError(f"{name} is a folder, and no dataset was saved to it: name a file in it")
        saved = ": a spreadsheet program saves its sheet as CSV UTF-8" if path.suffix.lower() in _SHEETS else ""
        saved = ": unpack it first" if path.suffix.lower() in _PACKED else saved
        raise ConfigError(
            f"the ending of {name} names no format: use .jsonl, .json, .csv, .tsv, .txt or .parquet{saved}"
        )
    if format not in ENDINGS.values():
        raise ConfigError(f"there is no format {format!r}{nearest(format, ENDINGS.values())}")
    if not path.is_file():
        if "://" in name:
            raise ConfigError(f"{name} is an address: download it and name the file, or name a dataset as in hf:NAME")
        raise ConfigError(f"there is no file {name}: check the path")
    encoding = (encoding or ("utf-16" if mark_of(path) in UTF16 else "utf-8")).lower()
    try:
        with path.open(encoding=encoding, errors="replace") as file:
            file.read(1)
    except LookupError:
        raise ConfigError(f"there is no encoding {encoding!r}: utf-8, utf-16, latin-1 and cp1252 are usual") from None
    except UnicodeError as error:  # UTF-16 without its mark
        raise ConfigError(f"{path.name} is not in {encoding}: {error}") from error
    if format == "csv" and delimiter is None:
        delimiter = _delimiter(path, encoding)
    return Table(name, format, encoding, "\t" if format == "tsv" else delimiter or ",")


def _delimiter(path: Path, encoding: str) -> str:
    """The separator that occurs most often in the first line of a file, outside quotes."""
    with path.open(encoding=encoding, errors="replace") as file:
        head = "".join(file.readline(65_536).split('"')[::2])
    return max(DELIMITERS, key=head.count)  # of equals the first


def _json_lines(table: Table) -> Iterator[Row]:
    """The objects in a file of JSON lines; empty lines are passed over."""
    path, encoding = table.path, table.encoding
    with path.open("rb") if encoding == "utf-8" else _transcoded(table) as lines:
        for number, raw in enumerate(lines, 1):
            try:
                row = msgspec.json.decode(raw)
            except (ValueError, RecursionError):
                row = _slowly(raw, f"{path.name}, line {number}", first=number == 1)
                if row is None:
                    continue
            if isinstance(row, str):
                row = {TEXT: row}
            if type(row) is not dict:
                raise ConfigError(
                    f"{path.name}, line {number} is not an object but {row!r:.60}: "
                    'write {"input": ..., "answer": ...}' + (_DOCUMENT if number == 1 else "")
                )
            yield row, f"{path.name}, line {number}"


def _transcoded(table: Table) -> Any:
    """A file in another encoding, as lines in UTF-8."""
    import contextlib

    def lines() -> Iterator[bytes]:
        with table.path.open(encoding=table.encoding, newline="\n") as file:
            try:
                for line in file:
                    yield line.encode("utf-8", "surrogatepass")
            except UnicodeError as error:
                raise ConfigError(f"{table.path.name} is not in {table.encoding}: {error}") from error

    return contextlib.closing(lines())


def _slowly(raw: bytes, where: str, *, first: bool) -> Any:
    """A line that is empty (None), begins with a byte order mark, or has what only Python takes for JSON."""
    try:
        text = raw.decode("utf-8-sig" if first else "utf-8")
    except UnicodeDecodeError as error:
        raise _not_utf8(where, error) from error
    if not text.strip():
        return None
    try:
        return _any_json(text)
    except (ValueError, RecursionError) as error:
        said = f"{error.msg} at column {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)
        raise ConfigError(
            f"{where} is not JSON: {said}. Each line must be one object, all on one line{_DOCUMENT if first else ''}"
        ) from None


def _json_document(table: Table) -> Iterator[Row]:
    """The objects in one JSON document; a file with an object on each line is read as JSON lines."""
    path = table.path
    with path.open("rb") as file:
        head = file.read(4096).decode(table.encoding, "replace").lstrip("\ufeff \t\r\n")
    if not head.startswith("[") and _has_lines(table):
        yield from _json_lines(table)
        return
    try:
        text = path.read_bytes().decode(table.encoding).lstrip("\ufeff")
        try:
            document = msgspec.json.decode(text)
        except (ValueError, RecursionError):
            document = _any_json(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path.name} is not JSON: {error}") from error
    for number, row in enumerate(rows_in(document, path.name), 1):
        if isinstance(row, str):
            row = {TEXT: row}
        if not isinstance(row, dict):
            raise ConfigError(
                f'item {number} of {path.name} is not an object or a text but {row!r:.60}: write {{"text": ...}}'
            )
        yield row, f"{path.name}, item {number}"


def _has_lines(table: Table) -> bool:
    """Whether the first line of a file is JSON by itself, and others follow."""
    with table.path.open(encoding=_marked(table.encoding), errors="replace") as lines:
        written = (line for line in lines if line.strip())
        first = next(written, "")
        try:
            msgspec.json.decode(first.encode("utf-8", "replace"))
        except (ValueError, RecursionError):
            return False
        return next(written, None) is not None


def _lines(table: Table) -> Iterator[Row]:
    """The lines of a text; empty lines are passed over."""
    with table.path.open(encoding=_marked(table.encoding), newline=None) as lines:
        try:
            for number, line in enumerate(lines, 1):
                if text := line.rstrip("\n"):
                    yield {TEXT: text}, f"{table.path.name}, line {number}"
        except UnicodeError:
            raise _find_not_utf8(table.path) from None


def _uneven(where: str, values: list[str], names: list[str]) -> ConfigError:
    """Why a line with more or fewer values than names cannot be read; above the names there may be a title."""
    more = "more" if len(values) > len(names) else "fewer"
    columns, title = f"{len(names)} columns", ""
    if len(names) == 1:
        columns = f"only column {names[0]!r:.60}"
        title = "; if a line further down names the columns, delete those above it"
    return ConfigError(
        f"{where} has {more} values than the {columns}: put texts with commas or line breaks in double quotes{title}"
    )


def _csv(table: Table) -> Iterator[Row]:
    path = table.path
    with path.open(encoding=_marked(table.encoding), newline="") as file:
        tabbed = TabbedRows(file) if table.delimiter == "\t" else None
        reader = tabbed or csv.reader(file, strict=True, delimiter=table.delimiter)
        line = 0
        try:
            names = _names(reader)
            repeated = {name for name in names if names.count(name) > 1}
            if repeated:
                raise ConfigError(f"{path.name}: two columns are called {sorted(repeated)[0]!r}: rename one")
            if tabbed is not None:
                tabbed.width = len(names)
            line = reader.line_num
            blank: list[Row] = []
            for values in filter(None, reader):
                line = reader.line_num
                where = f"{path.name}, line {line}"
                while len(values) > len(names) and not values[-1]:
                    values.pop()
                if len(values) != len(names):
                    raise _uneven(where, values, names)
                row = dict(zip(names, values)), where
                if len(names) > 1 and not any(values):
                    blank.append(row)  # a row of its own only where others follow: spreadsheets end with such
                    continue
                yield from blank
                blank.clear()
                yield row
        except csv.Error as error:
            where = f"{path.name}, line {line + 1}"  # where the row begins that could not be read
            raise ConfigError(f"{where} is not CSV: {error}. Is every double quote closed?") from error
        except UnicodeError:
            raise _find_not_utf8(path) from None


def _names(reader: Iterator[list[str]]) -> list[str]:
    """The names of the columns, without the line that tells a spreadsheet the separator and empty ones at the end."""
    lines = filter(None, reader)
    names = next(lines, [])
    if names == ["sep=", ""]:
        names = next(lines, [])
    names = [name.strip() for name in names]
    if names.count("") > 1:
        while names and not names[-1]:
            names.pop()
    return names


def _marked(encoding: str) -> str:
    """The encoding that also takes a byte order mark."""
    return "utf-8-sig" if encoding == "utf-8" else encoding


def _find_not_utf8(path: Path) -> ConfigError:
    with path.open("rb") as lines:
        for number, raw in enumerate(lines, 1):
            try:
                raw.decode("utf-8")
            except UnicodeDecodeError as error:
                return _not_utf8(f"{path.name}, line {number}", error)
    return ConfigError(f"{path.name} is not in the encoding that was named: name another")


def _not_utf8(where: str, error: UnicodeDecodeError) -> ConfigError:
    return ConfigError(
        f"{where} is not in UTF-8 ({error.reason} at byte {error.start + 1} of the line): save the file as UTF-8 (in "
        "Excel as `CSV UTF-8`, or with iconv -f WINDOWS-1252 -t UTF-8), or name its encoding, as in --encoding cp1252, "
        f"{OTHERS}"
    )


def _parquet(table: Table) -> Iterator[Row]:
    path = table.path
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise MissingExtra("pyarrow", "parquet", f"reading {path.name}") from None
    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=1024):
                for row in batch.to_pylist():
                    number += 1
                    yield row, f"{path.name}, row {number}"
    except (ArrowException, OSError) as error:
        raise ConfigError(f"{path.name} cannot be read as Parquet: {error}. Was it copied whole?") from error


def column_types(path: Path) -> dict[str, Any]:
    """The columns of a Parquet file with their Arrow types."""
    from pyarrow import parquet

    return {field.name: field.type for field in parquet.read_schema(path)}


def _hugging_face(table: Table) -> Iterator[Row]:
    name = table.name
    parts = name.split(":")[1:] if name.startswith("hf:") else []
    if name.startswith("hf:") and (not parts[0] or len(parts) > 3 or not all(parts)):
        raise ConfigError(f"{name!r} names no dataset: write hf:NAME, hf:NAME:SPLIT or hf:NAME:CONFIG:SPLIT")
    try:
        library = importlib.import_module("datasets")
    except ImportError:
        raise MissingExtra("datasets", "datasets", f"loading {name}") from None
    split = parts[-1] if len(parts) > 1 else "train"
    try:
        if parts:
            rows = library.load_dataset(parts[0], parts[1] if len(parts) == 3 else None, split=split)
        else:
            rows = library.load_from_disk(name)
    except Exception as error:  # whatever the library and the network have to say
        raise ConfigError(
            f"{name} cannot be loaded ({type(error).__name__}: {str(error)[:300]}): check the name, its configuration "
            f"and its split, and whether the hub can be reached"
        ) from error
    if isinstance(rows, dict):
        raise ConfigError(f"{name} has several splits: name the folder of one, {', '.join(rows)}")
    labels = label_names(rows.features)
    for number, row in enumerate(rows, 1):
        yield named(row, labels), f"{name}, row {number}"


def _any_json(text: str) -> Any:
    """What only Python takes for JSON, such as half a character, as a value that can be written down."""
    return plain(json.loads(text, parse_constant=_no_constant))


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON value")
