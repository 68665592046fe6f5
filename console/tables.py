"""Tables for people and programs: rich on a terminal, aligned text in a pipe, JSON when asked for."""

import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import chain, islice
from typing import Any, Final

_GAP: Final = "  "
WIDTHS_OF: Final = 100
"""Rows that decide the widths of a table that is printed as it comes."""


def show(columns: Sequence[str], rows: Sequence[Sequence[Any]], output: str = "table") -> None:
    """Print rows under their columns. As JSON it is a list with one object per row, `in sync` in_sync."""
    if output == "json":
        names = [re.sub("[ -]", "_", column) for column in columns]
        objects = [dict(zip(names, row, strict=True)) for row in rows]
        print(json.dumps(objects, indent=2))
    elif sys.stdout.isatty():
        _show_rich(columns, rows)
    else:
        print(plain(columns, rows))


def stream(columns: Sequence[str], rows: Iterable[Sequence[Any]], output: str = "table") -> None:
    """As `show`, but print rows as they come; the first ones decide how wide a plain table's columns are."""
    if output == "json":
        names = [re.sub("[ -]", "_", column) for column in columns]
        separator = "["
        for row in rows:
            print(separator, json.dumps(dict(zip(names, row, strict=True))), sep="\n", flush=True)
            separator = ","
        print("[]" if separator == "[" else "]")
        return
    for line in _lines(columns, rows, WIDTHS_OF):
        print(line, flush=True)


def moment_of(at_ms: int) -> str:
    """Milliseconds since 1970 as people read them, in UTC."""
    moment = datetime.fromtimestamp(at_ms / 1000, UTC)
    return moment.strftime("%Y-%m-%d %H:%M:%S.") + f"{at_ms % 1000:03d} UTC"


def plain(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """The table as lines of text; numbers are set to the right."""
    return "\n".join(_lines(columns, rows, len(rows)))


def _lines(columns: Sequence[str], rows: Iterable[Sequence[Any]], widths_of: int) -> Iterator[str]:
    """Lines of text, as wide as the first `widths_of` rows want them."""
    remaining = iter(rows)
    first = list(islice(remaining, widths_of))
    texts = [list(columns), *([_text(cell) for cell in row] for row in first)]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    right_aligned = _numeric(columns, first)
    for line in chain(texts, ([_text(cell) for cell in row] for row in remaining)):
        yield _GAP.join(
            text.rjust(width) if number else text.ljust(width)
            for text, width, number in zip(line, widths, right_aligned, strict=True)
        ).rstrip()


def _numeric(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[bool]:
    return [
        bool(rows) and all(isinstance(row[number], int | float) for row in rows)
        for number in range(len(columns))
    ]


def _text(cell: Any) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, list | tuple):
        return ",".join(map(str, cell)) or "-"
    if isinstance(cell, dict):
        return " ".join(f"{key}={_text(value)}" for key, value in cell.items()) or "-"
    return str(cell)


def _show_rich(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name, number in zip(columns, _numeric(columns, rows), strict=True):
        table.add_column(name, justify="right" if number else "left")
    for row in rows:
        table.add_row(*(Text(_text(cell)) for cell in row))
    Console().print(table)
