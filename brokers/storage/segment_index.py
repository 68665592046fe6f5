"""The index of a segment: where in its `.log` some batches lie, and the latest timestamp before each."""

import struct
import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from typing import Final, NamedTuple

from folkmoot.protocol.batch_header import BatchHeader
from folkmoot.protocol.checksum import crc32c

NO_TIMESTAMP: Final = -(2**63)
ENTRY_BYTES: Final = 16

_HEADER = struct.Struct(">4sIqqqqq")
_CRC = struct.Struct(">I")
_MAGIC: Final = b"FIX3"
_MAX_RELATIVE: Final = 2**32 - 1
_UNKNOWN: Final = -1


class Summary(NamedTuple):
    """Times of a segment, without a look at its batches; ms since the epoch."""

    first_append: int | None
    last_append: int | None
    largest_timestamp: int
    """Of all records; NO_TIMESTAMP if there are none."""


def largest_timestamp(header: BatchHeader) -> int:
    """Return the largest timestamp of a batch's records."""
    return header.append_time if header.uses_append_time else header.max_timestamp


class SegmentIndex:
    """The content of `<segment>.index`, in memory; the segment reads and writes the file.

    ```
    header    "FIX3", bytes of the log u32, base offset i64, end offset i64,
              first and last append time i64 (-1: unknown), largest timestamp i64
    entries   relative offsets u32 ..., positions u32 ..., largest timestamps of all records before i64 ...
    checksum  of all before it u32
    ```

    At least `interval` bytes of log lie between two entries; the batch at position 0 has none. All three
    columns rise, whatever order the records' own timestamps have. The file may cover a beginning of the
    log; `saved_bytes` is the length of that.

    Owner: the segment. A background job may make one, and hands it over when it is done.
    """

    __slots__ = (
        *("_base", "_interval", "_offsets", "_positions", "_times", "due", "first_append"),
        *("largest_timestamp", "last_append", "saved_bytes"),
    )

    def __init__(self, base_offset: int, interval: int) -> None:
        self._base = base_offset
        self._interval = interval
        self._offsets = array("I")
        self._positions = array("I")
        self._times = array("q")
        self.due = interval  # the position from which on the next batch gets an entry
        self.first_append: int | None = None
        self.last_append: int | None = None
        self.largest_timestamp = NO_TIMESTAMP
        self.saved_bytes = 0

    @property
    def summary(self) -> Summary:
        return Summary(self.first_append, self.last_append, self.largest_timestamp)

    # -- the file -----------------------------------------------------------------------------------

    @classmethod
    def decode(
        cls, data: bytes, base_offset: int, interval: int, log_bytes: int
    ) -> "SegmentIndex | None":
        """Decode a file; None if a byte of it is wrong, or the log is shorter than it was then."""
        size = len(data) - _HEADER.size - _CRC.size
        if size < 0 or size % ENTRY_BYTES or _CRC.pack(crc32c(data[:-4])) != data[-4:]:
            return None
        magic, covered, base, end, first, last, largest = _HEADER.unpack_from(data)
        if (magic, base) != (_MAGIC, base_offset) or covered > log_bytes:
            return None
        index = cls(base_offset, interval)
        start = _HEADER.size
        for column in index._columns:
            stop = start + size // ENTRY_BYTES * column.itemsize
            column.frombytes(data[start:stop])
            _swap_bytes(column)
            start = stop
        index.saved_bytes, index.largest_timestamp = covered, largest
        index.first_append, index.last_append = (
            None if each == _UNKNOWN else each for each in (first, last)
        )
        if index._positions:
            index.due = index._positions[-1] + interval
        if 0 < covered < log_bytes:  # a batch begins there
            index.add(end, covered, largest)
        return index

    def encode(self, log_bytes: int, end_offset: int) -> bytes:
        """Encode the file, for a log of `log_bytes` that ends at `end_offset`."""
        first, last = (
            _UNKNOWN if each is None else each for each in (self.first_append, self.last_append)
        )
        data = _HEADER.pack(
            *(_MAGIC, log_bytes, self._base, end_offset, first, last, self.largest_timestamp)
        )
        for column in self._columns:
            written = column[:]
            _swap_bytes(written)
            data += written.tobytes()
        return data + _CRC.pack(crc32c(data))

    @property
    def _columns(self) -> "tuple[array[int], ...]":
        return self._offsets, self._positions, self._times

    # -- looking up ---------------------------------------------------------------------------------

    def lookup(self, offset: int) -> tuple[int, int]:
        """Return offset and position of the last entry at or below `offset`, or of the start."""
        return self._entry(bisect_right(self._offsets, offset - self._base) - 1)

    def at_position(self, position: int) -> tuple[int, int]:
        """Return offset and position of the last entry at or below `position`, or of the start."""
        return self._entry(bisect_right(self._positions, position) - 1)

    def before_time(self, timestamp: int) -> tuple[int, int]:
        """Return offset and position of the last entry before which all records are older."""
        return self._entry(bisect_right(self._times, timestamp - 1) - 1)

    def entries_after(self, position: int) -> Iterator[tuple[int, int]]:
        """Yield offset and position of the entries behind `position`."""
        for number in range(bisect_right(self._positions, position), len(self._positions)):
            yield self._entry(number)

    def _entry(self, number: int) -> tuple[int, int]:
        if number < 0:
            return self._base, 0
        return self._base + self._offsets[number], self._positions[number]

    # -- following the log --------------------------------------------------------------------------

    def observe(self, header: BatchHeader, position: int) -> None:
        """Take the next batch of the log, adding an entry if one is due."""
        if position >= self.due:
            self.add(header.base_offset, position, self.largest_timestamp)
        self.largest_timestamp = max(self.largest_timestamp, largest_timestamp(header))
        if self.first_append is None:
            self.first_append = header.append_time
        self.last_append = header.append_time

    def add(self, offset: int, position: int, timestamp: int) -> None:
        """Add the batch at `position`, before which all records are of `timestamp` at most."""
        if offset - self._base <= _MAX_RELATIVE:
            self._offsets.append(offset - self._base)
            self._positions.append(position)
            self._times.append(timestamp)
            self.due = position + self._interval


def _swap_bytes(column: "array[int]") -> None:
    """Convert between the machine's order and the file's, which is big-endian."""
    if sys.byteorder == "little":
        column.byteswap()
