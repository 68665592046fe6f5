"""Whether rows that are about to be written are the ones that an earlier attempt has written already."""

from collections.abc import Iterator
from hashlib import blake2b
from typing import Any

import numpy as np

from folkmoot.producers.columns import encode_headers
from folkmoot.protocol import record_batch
from folkmoot.protocol.batch_header import BatchHeader
from folkmoot.protocol.columns import BinaryColumn
from folkmoot.protocol.records import Headers

_NIL = np.int64(-1)


class RowsDigest:
    """Of keys, values and headers of rows in order, however they were cut into columns."""

    def __init__(self) -> None:
        self.count = 0
        self._hashes = [blake2b(digest_size=16) for _ in range(6)]

    def add(self, keys: Any, values: Any, headers: list[bytes] | None) -> None:
        """Columns of equal length: cells as in a batch, None for a column of nils."""
        count = len(values)
        self.count += count
        cells = keys, values, headers
        for number, column in enumerate(cells):
            lengths, run = _run(column, count)
            self._hashes[2 * number].update(lengths)
            self._hashes[2 * number + 1].update(run)

    def digest(self) -> bytes:
        return b"".join(each.digest() for each in self._hashes)


def written_by(
    batches: Iterator[tuple[BatchHeader, memoryview]], producer_id: int, since: int, rows: int
) -> RowsDigest:
    """Of the first `rows` records that a producer has in these batches since an epoch, or of fewer if
    there are no more."""
    found = RowsDigest()
    for header, data in batches:
        if header.producer_id != producer_id or header.producer_epoch < since:
            continue
        columns = record_batch.columns_of(header, data)
        columns = columns.rows(0, rows - found.count)
        found.add(columns.keys, columns.values, _encoded(columns.headers))
        if found.count >= rows:
            break
    return found


def _encoded(headers: Any) -> list[bytes] | None:
    rows: list[Headers] | None = headers
    return None if rows is None else [encode_headers(row) for row in rows]


def _run(column: Any, count: int) -> tuple[bytes, Any]:
    if column is None:
        return np.full(count, _NIL).tobytes(), b""
    cells = column if isinstance(column, BinaryColumn) else BinaryColumn.of(list(column))
    lengths = np.diff(cells.offsets).astype(np.int64)
    if cells.nulls is not None:
        lengths[cells.nulls] = _NIL
    return lengths.tobytes(), cells.run()
