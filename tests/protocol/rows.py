"""The records of columns as plain tuples, to be compared whatever form each column has."""

from typing import Any

from folkmoot.protocol.columns import Columns
from folkmoot.protocol.records import Headers


def rows(columns: Columns) -> list[tuple[Any, ...]]:
    """Offset, timestamp, key, value and headers of each record."""
    count, stamps = columns.count, columns.timestamps
    nothing: Headers = ()
    return list(
        zip(
            range(count) if columns.offsets is None else columns.offsets,
            [stamps] * count if isinstance(stamps, int) else stamps,
            [None] * count if columns.keys is None else columns.keys,
            columns.values,
            [nothing] * count if columns.headers is None else columns.headers,
            strict=True,
        )
    )
