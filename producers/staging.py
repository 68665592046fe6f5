"""From the columns that `send_batch` is given to chunks that the sender takes."""

import time
from collections.abc import Iterator, Sequence
from threading import Condition
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from folkmoot.producers.batches import RECORD_OVERHEAD_BYTES
from folkmoot.producers.cells import Cells, bytes_per_row, cells_of, unboxed
from folkmoot.producers.column_chunks import ColumnChunk
from folkmoot.producers.given import as_int, headers_of_rows
from folkmoot.protocol.errors import RecordTooLarge

MAX_RECORD_TIMESTAMP: Final = 2**50
MOST_ROWS: Final = 500_000


class Staging:
    """Columns of equal length, checked as far as their types tell; rows are checked chunk by chunk.

    Chunks are cut by rows, so that most have about the size wanted: the first few rows say how large a
    record is, and each chunk says it for the next.
    """

    def __init__(
        self,
        values: Any,
        keys: Any,
        timestamps: Any,
        headers: Sequence[Any] | None,
        partition: int | None,
    ) -> None:
        values, keys = unboxed("values", values), unboxed("keys", keys)
        self._values = cells_of("values", values)
        self._count = len(values)
        self._keys = None if keys is None else cells_of("keys", keys)
        self._columns = [values] if keys is None else [values, keys]
        self._stamps = _stamps(timestamps, self._count)
        self.partition = None if partition is None else as_int("partition", partition)
        self._headers = None if headers is None else headers_of_rows(headers)
        for name, column in (("keys", keys), ("headers", headers)):
            if column is not None and len(column) != self._count:
                raise ValueError(f"{len(column)} {name} do not belong to {self._count} values")

    def chunks(
        self, topic: str, completed: Condition, most_bytes: int, max_record_bytes: int
    ) -> Iterator[ColumnChunk]:
        """All rows, in chunks of about `most_bytes`. Raises TypeError, RecordTooLarge."""
        if not self._count:
            return
        guess = RECORD_OVERHEAD_BYTES + sum(map(bytes_per_row, self._columns))
        start, rows = 0, _fitting(most_bytes, guess)
        while start < self._count:
            end = min(self._count, start + rows)
            chunk = self._chunk(topic, completed, start, end, max_record_bytes)
            rows = _fitting(most_bytes, chunk.size // len(chunk))
            if chunk.size > 2 * most_bytes and rows < end - start:
                continue
            yield chunk
            start = end

    def _chunk(
        self, topic: str, completed: Condition, start: int, end: int, max_record_bytes: int
    ) -> ColumnChunk:
        values = self._values(start, end)
        keys = None if self._keys is None else self._keys(start, end)
        headers = None if self._headers is None else self._headers[start:end]
        if headers is not None and not any(headers):
            headers = None
        _check_sizes(values, keys, max_record_bytes)
        stamps = self._stamps[start:end]
        return ColumnChunk(topic, completed, values, keys, stamps, headers, self.partition)


def _fitting(most_bytes: int, per_row: int) -> int:
    return max(1, min(MOST_ROWS, most_bytes // max(1, per_row)))


def _check_sizes(values: Cells, keys: Cells | None, limit: int) -> None:
    if values.size is not None and (keys is None or keys.size is not None):
        largest = values.size + (0 if keys is None else keys.size or 0)
    else:
        sizes = values.lengths
        largest = int((sizes if keys is None else sizes + np.maximum(keys.lengths, 0)).max())
    if largest > limit:
        raise RecordTooLarge(f"a record of {largest} bytes is larger than max_record_bytes={limit}")


def _stamps(given: Any, count: int) -> npt.NDArray[np.int64]:
    """One timestamp in ms per row, whatever they are given as."""
    if given is None:
        given = round(time.time() * 1000)
    if isinstance(given, int | np.integer):
        # One that is too large for a column of numbers is too large for a timestamp.
        within = max(-MAX_RECORD_TIMESTAMP - 1, min(int(given), MAX_RECORD_TIMESTAMP + 1))
        stamps = np.full(count, within, np.int64)
    else:
        if hasattr(given, "to_numpy"):
            given = given.to_numpy(
                **({"zero_copy_only": False} if hasattr(given, "buffers") else {})
            )
        array = np.asarray(given)
        if array.dtype.kind == "M":
            array = array.astype("datetime64[ms]").astype(np.int64)
        if array.dtype.kind not in "iu":
            raise ValueError(
                f"timestamps must be integers in ms since the epoch, not {array.dtype}"
            )
        stamps = array.astype(np.int64)
    if stamps.shape != (count,):
        raise ValueError(f"{len(stamps)} timestamps do not belong to {count} values")
    if (
        count
        and not -MAX_RECORD_TIMESTAMP
        <= int(stamps.min())
        <= int(stamps.max())
        <= MAX_RECORD_TIMESTAMP
    ):
        raise ValueError("timestamps must be in milliseconds since the epoch")
    return stamps
