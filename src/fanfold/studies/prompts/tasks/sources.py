"""Where problems are read from: JSON lines, CSV, Parquet, Hugging Face datasets; errors name file, line and remedy."""

from __future__ import annotations

import csv
import importlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from fanfold.errors import ConfigError, MissingExtra

#: A row of a source, and where it stands there, in words.
Row: TypeAlias = tuple[Mapping[str, Any], str]


def rows_of(name: str) -> Iterator[Row]:
    """The rows of a file or a dataset, one after the other."""
    if name.startswith("hf:"):
        return _hugging_face(name)
    path = Path(name)
    readers: dict[str, Callable[[Path], Iterator[Row]]] = {
        ".jsonl": _json_lines,
        ".ndjson": _json_lines,
        ".csv": _csv,
        ".tsv": _csv,
        ".parquet": _parquet,
        ".pq": _parquet,
    }
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise ConfigError(f"the ending of {name} names no format: use .jsonl, .csv, .tsv or .parquet")
    if not path.is_file():
        raise ConfigError(f"there is no file {name}: check the path")
    return reader(path)


def _json_lines(path: Path) -> Iterator[Row]:
    """The objects in a file of JSON lines; empty lines are passed over."""
    with path.open("rb") as lines:
        for number, raw in enumerate(lines, 1):
            where = f"{path.name}, line {number}"
            try:
                text = raw.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise _not_utf8(where, error) from error
            if not text.strip():
                continue
            try:
                row = json.loads(text, parse_constant=_no_constant)
            except (ValueError, RecursionError) as error:
                said = f"{error.msg} at column {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)
                raise ConfigError(
                    f"{where} is not JSON: {said}. Each line must be one object, all on one line"
                ) from None
            if not isinstance(row, dict):
                raise ConfigError(f'{where} is not an object but {row!r:.60}: write {{"input": ..., "answer": ...}}')
            yield row, where


def _csv(path: Path) -> Iterator[Row]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file, strict=True, delimiter="\t" if path.suffix.lower() == ".tsv" else ",")
        try:
            names = reader.fieldnames or []
            repeated = {name for name in names if names.count(name) > 1}
            if repeated:
                raise ConfigError(f"{path.name}: two columns are called {sorted(repeated)[0]!r}: rename one")
            for row in reader:
                where = f"{path.name}, line {reader.line_num}"
                extra, lacking = row.get(None), None in row.values()
                if extra is not None or lacking:
                    raise ConfigError(
                        f"{where} has {'more' if extra is not None else 'fewer'} values than the {len(names)} columns: "
                        f"put texts with commas or line breaks in double quotes"
                    )
                yield row, where
        except csv.Error as error:
            where = f"{path.name}, line {reader.line_num + 1}"  # where the row begins that could not be read
            raise ConfigError(f"{where} is not CSV: {error}. Is every double quote closed?") from error
        except UnicodeDecodeError:
            raise _find_not_utf8(path) from None


def _find_not_utf8(path: Path) -> ConfigError:
    with path.open("rb") as lines:
        for number, raw in enumerate(lines, 1):
            try:
                raw.decode("utf-8")
            except UnicodeDecodeError as error:
                return _not_utf8(f"{path.name}, line {number}", error)
    return ConfigError(f"{path.name} is not in UTF-8: save it in that encoding")


def _not_utf8(where: str, error: UnicodeDecodeError) -> ConfigError:
    utf16 = error.object[:2] in (b"\xff\xfe", b"\xfe\xff")
    return ConfigError(
        f"{where} is not in UTF-8 ({error.reason} at byte {error.start + 1} of the line): save the file in that "
        f"encoding, for instance with iconv -f {'UTF-16' if utf16 else 'LATIN1'} -t UTF-8"
    )


def _parquet(path: Path) -> Iterator[Row]:
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


def _hugging_face(name: str) -> Iterator[Row]:
    parts = name.split(":")[1:]
    if not parts[0] or len(parts) > 3 or not all(parts):
        raise ConfigError(f"{name!r} names no dataset: write hf:NAME, hf:NAME:SPLIT or hf:NAME:CONFIG:SPLIT")
    split = parts[-1] if len(parts) > 1 else "train"
    try:
        library = importlib.import_module("datasets")
    except ImportError:
        raise MissingExtra("datasets", "datasets", f"loading {name}") from None
    try:
        rows = library.load_dataset(parts[0], parts[1] if len(parts) == 3 else None, split=split)
    except Exception as error:  # whatever the library and the network have to say
        raise ConfigError(
            f"{name} cannot be loaded ({type(error).__name__}: {str(error)[:300]}): check the name, its configuration "
            f"and its split, and whether the hub can be reached"
        ) from error
    labels = {field: kind.names for field, kind in rows.features.items() if getattr(kind, "names", None)}
    for number, row in enumerate(rows, 1):
        known = {field: names[row[field]] for field, names in labels.items() if row.get(field) in range(len(names))}
        yield {**row, **known}, f"{name}, row {number}"


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON value")
