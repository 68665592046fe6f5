"""Tables for people and programs: rich on a terminal, aligned text in a pipe, JSON when asked for."""

import json
import re
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

_GAP: Final = "  "


def show(columns: Sequence[str], rows: Sequence[Sequence[Any]], output: str = "table") -> None:
    """Print rows under their columns. As JSON it is a list with one object per row, `in sync` in_sync."""
    if output == "json":
        names = [re.sub("[ -]", "_", column) for column in columns]
        objects = [dict(zip(names, row, strict=True)) for row in rows]
        print(json.dumps(objects, indent=2))
    elif not (sys.stdout.isatty() and _show_rich(columns, rows)):
        print(plain(columns, rows))


def moment_of(at_ms: int) -> str:
    """Milliseconds since 1970 as people read them, in UTC."""
    moment = datetime.fromtimestamp(at_ms / 1000, UTC)
    return moment.strftime("%Y-%m-%d %H:%M:%S.") + f"{at_ms % 1000:03d} UTC"


def plain(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """The table as lines of text; numbers are set to the right."""
    texts = [[_text(cell) for cell in row] for row in rows]
    lines = [list(columns), *texts]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    right = _numeric(columns, rows)
    return "\n".join(
        _GAP.join(
            text.rjust(width) if number else text.ljust(width)
            for text, width, number in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in lines
    )


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


def _show_rich(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> bool:
    """False if rich is not installed: plain text does as well."""
    try:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError:
        return False
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name, number in zip(columns, _numeric(columns, rows), strict=True):
        table.add_column(name, justify="right" if number else "left")
    for row in rows:
        table.add_row(*(Text(_text(cell)) for cell in row))
    Console().print(table)
    return True
