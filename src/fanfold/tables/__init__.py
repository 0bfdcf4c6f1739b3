"""Rows of any kind of table: read from files and datasets, and written to files, one after the other."""

from fanfold.tables.columns import columns_in_words, inside
from fanfold.tables.encodings import spreadsheet_encoding
from fanfold.tables.given import plain_row, plain_rows, records
from fanfold.tables.reading import (
    ENDINGS,
    TEXT,
    Row,
    Table,
    column_types,
    open_table,
    rows_of,
)
from fanfold.tables.writing import kinds_of, write_rows

__all__ = [
    "ENDINGS",
    "TEXT",
    "Row",
    "Table",
    "column_types",
    "columns_in_words",
    "inside",
    "kinds_of",
    "open_table",
    "plain_row",
    "plain_rows",
    "records",
    "rows_of",
    "spreadsheet_encoding",
    "write_rows",
]
