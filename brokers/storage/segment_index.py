"""The index of a segment: where in its `.log` some batches lie, and the latest timestamp before each."""

import errno
import os
import struct
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from folkmoot.brokers.storage.files.atomic_file import read_at
from folkmoot.protocol.batch_header import HEADER_BYTES, BatchHeader
from folkmoot.protocol.checksum import crc32c

NO_TIMESTAMP: Final = -(2**63)

_COLUMNS = struct.Struct(">IIq")
_ENTRY = struct.Struct(">IIq4x")
_FOOTER = struct.Struct(">4sIqqqqI")
_CRC = struct.Struct(">I")
_MAGIC: Final = b"FIX2"
_MAX_RELATIVE: Final = 2**32 - 1
_UNKNOWN: Final = -1
_STRETCH: Final = 128

ENTRY_BYTES: Final = _ENTRY.size
FOOTER_BYTES: Final = _FOOTER.size + _CRC.size


class Summary(NamedTuple):
    """What is known of a segment without a look at its batches. Times are ms since the epoch."""

    first_append: int | None
    last_append: int | None
    largest_timestamp: int
    """Of all records; NO_TIMESTAMP if there are none."""


def largest_timestamp(header: BatchHeader) -> int:
    """The largest timestamp of a batch's records."""
    return header.append_time if header.uses_append_time else header.max_timestamp


class SegmentIndex:
    """`<segment>.index`: entries of 20 bytes, and a footer once the segment is sealed.

    ```
    entry   relative offset u32, position u32, largest timestamp of all records before it i64,
            checksum of these u32
    footer  "FIX2", bytes of the log u32, end offset i64, first and last append time i64 (-1: unknown),
            largest timestamp i64, checksum of the entries u32, checksum of the footer u32
    ```

    The file is made with the first entry, or with the footer. At least `interval` bytes of log lie
    between two entries; the batch at position 0 has none. All three columns rise, whatever order the
    records' own timestamps have.

    Sealed, with both checksums right, an index is `trusted`, and so is one that this process has
    written. What a crash leaves of an unsealed one is taken if it rises, and doubted as soon as it
    contradicts the log. An index that is missing or wrong is built anew from the log's headers. What
    rots while it is in use is found by its own checksum.

    Crash. An index is never flushed: a power cut leaves an unsealed one that does not rise or lacks
    entries, or a sealed one whose checksum is wrong, and either is built anew. Entries for which a full
    disk has no room stay in memory, and are lost with the process.

    Owner: the segment. A background job may load or build one, and hands it over when it is done.
    """

    __slots__ = (
        *("_base", "_checksum", "_fd", "_has_rest", "_interval"),
        *("_path", "_pending", "_saved", "_stretch", "due", "first_append", "last_append"),
        *("largest_timestamp", "trusted"),
    )

    def __init__(self, path: Path, base_offset: int, interval: int) -> None:
        self._path = path
        self._base = base_offset
        self._interval = interval
        self._saved = 0  # how many entries are in the file
        self._pending = bytearray()  # those behind them
        self._stretch = 0, b""  # some entries, and the number of the first
        self._fd = -1
        self._checksum = 0
        self._has_rest = True  # something may lie behind the entries, in the file
        self.due = interval  # the position from which on the next batch gets an entry
        self.first_append: int | None = None
        self.last_append: int | None = None
        self.largest_timestamp = NO_TIMESTAMP
        self.trusted = True

    @property
    def summary(self) -> Summary:
        return Summary(self.first_append, self.last_append, self.largest_timestamp)

    @property
    def count(self) -> int:
        """How many entries it has."""
        return self._saved + len(self._pending) // ENTRY_BYTES

    # -- from the disk ------------------------------------------------------------------------------

    @classmethod
    def load_sealed(
        cls, path: Path, base_offset: int, interval: int, log_bytes: int, end_offset: int
    ) -> "SegmentIndex | None":
        """The index of a segment that ends so; None if a checksum is wrong or it is of another one.

        Raises OSError. Reads the whole file.
        """
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        footer = _footer(data[-FOOTER_BYTES:], log_bytes, end_offset)
        entries = data[:-FOOTER_BYTES]
        if footer is None or len(entries) % ENTRY_BYTES or crc32c(entries) != footer[1]:
            return None
        index = cls(path, base_offset, interval)
        index._saved, index._checksum = len(entries) // ENTRY_BYTES, footer[1]
        index.first_append, index.last_append, index.largest_timestamp = footer[0]
        if index.count:
            index.due = _ENTRY.unpack_from(entries, len(entries) - ENTRY_BYTES)[1] + interval
        return index

    @classmethod
    def load_unsealed(
        cls, path: Path, base_offset: int, interval: int, log_bytes: int
    ) -> "SegmentIndex":
        """What a crash has left of an index: its entries as far as they rise. Raises OSError.

        The batches from the last entry on are still to be observed.
        """
        index = cls(path, base_offset, interval)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return index
        # Batches have a least size, so entries have a greatest number; more is not worth reading.
        most = min(len(data) // ENTRY_BYTES, log_bytes // HEADER_BYTES + 1)
        last = (0, 0, NO_TIMESTAMP)
        for entry in _ENTRY.iter_unpack(data[: most * ENTRY_BYTES]):
            rises = entry[0] > last[0] and entry[2] >= last[2]
            if not rises or not last[1] < entry[1] < log_bytes:
                break
            last = entry
            index._saved += 1
        while index.count and not _is_right(data, index.count - 1):  # others when they are used
            index._saved -= 1
        start = (index.count - 1) * ENTRY_BYTES
        last = _ENTRY.unpack_from(data, start) if index.count else (0, 0, NO_TIMESTAMP)
        index.trusted = False
        index._checksum = crc32c(data[: index.count * ENTRY_BYTES])
        index.due, index.largest_timestamp = last[1] + interval, last[2]
        return index

    @staticmethod
    def load_summary(path: Path, log_bytes: int, end_offset: int) -> Summary | None:
        """What the footer alone says; None if it is missing or wrong. Raises OSError."""
        try:
            fd = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            return None
        try:
            data = read_at(fd, FOOTER_BYTES, max(0, os.fstat(fd).st_size - FOOTER_BYTES))
        finally:
            os.close(fd)
        footer = _footer(data, log_bytes, end_offset)
        return None if footer is None else footer[0]

    # -- looking up ---------------------------------------------------------------------------------

    def lookup(self, offset: int) -> tuple[int, int, int | None]:
        """The last entry at or below `offset` (or the segment's start), and where the next one points.

        That is None behind the last entry. Raises OSError.
        """
        number = self._rank(offset - self._base, column=0)
        following = number + 1 < self.count
        return *self._entry(number), self._entry(number + 1)[1] if following else None

    def at_position(self, position: int) -> tuple[int, int]:
        """Offset and position of the last entry at or below `position`, or of the start.

        Raises OSError.
        """
        return self._entry(self._rank(position, column=1))

    def before_time(self, timestamp: int) -> tuple[int, int]:
        """Offset and position of the last entry before which no record is of `timestamp` or later.

        Raises OSError.
        """
        return self._entry(self._rank(timestamp - 1, column=2))

    def entries_after(self, position: int) -> Iterator[tuple[int, int]]:
        """Offset and position of the entries behind `position`. Raises OSError."""
        for number in range(self._rank(position, column=1) + 1, self.count):
            yield self._entry(number)

    def _rank(self, value: int, column: int) -> int:
        """The last entry of which the column is at most `value`, -1 if there is none.

        One who reads on finds it among the entries that were read last. Whatever a rotten entry has said
        to the search, the answer lies between two that are right. Raises OSError if they are not.
        """
        rank = self._rank_among(*self._stretch, value, column)
        if rank is None:

            def key(number: int) -> int:
                found: int = _ENTRY.unpack(self._read(number, 1))[column]
                return found

            rank = bisect_right(range(self.count), value, key=key) - 1
            first = max(0, rank)
            self._stretch = first, self._read(first, min(_STRETCH, self.count - first))
        first, entries = self._stretch
        for number in range(max(rank, 0), min(rank + 2, self.count)):
            if not _is_right(entries, number - first):
                raise OSError(errno.EIO, "an entry has rotted")
        return rank

    def _rank_among(self, first: int, entries: bytes, value: int, column: int) -> int | None:
        """The same, if it is certain by these entries alone."""
        values = [each[column] for each in _ENTRY.iter_unpack(entries)]
        place = bisect_right(values, value)
        if (place == 0 and first) or not values:
            return None
        return first + place - 1 if place < len(values) or first + place == self.count else None

    def _entry(self, number: int) -> tuple[int, int]:
        if number < 0:
            return self._base, 0
        first, entries = self._stretch
        place = (number - first) * ENTRY_BYTES
        if not 0 <= place < len(entries):
            place, entries = 0, self._read(number, 1)
        relative, position, _ = _ENTRY.unpack_from(entries, place)
        return self._base + relative, position

    def _read(self, number: int, count: int) -> bytes:
        """Some entries, from the page cache as a rule. Raises OSError."""
        if number + count > self._saved:
            before = self._read(number, self._saved - number) if number < self._saved else b""
            start = max(0, number - self._saved) * ENTRY_BYTES
            return before + self._pending[start : start + count * ENTRY_BYTES - len(before)]
        length = count * ENTRY_BYTES
        found = read_at(self._file(), length, number * ENTRY_BYTES) if length else b""
        if len(found) < length:
            raise OSError(errno.EIO, "shorter than it was")
        return found

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
            columns = _COLUMNS.pack(offset - self._base, position, timestamp)
            self._pending += columns + _CRC.pack(crc32c(columns))
            self.due = position + self._interval

    def discard(self, size: int) -> None:
        """The batches behind `size` were not written: leave out their entries."""
        while self._pending and _ENTRY.unpack_from(self._pending, -ENTRY_BYTES)[1] >= size:
            del self._pending[-ENTRY_BYTES:]
        self.due = min(self.due, max(size, self._interval))

    def save(self) -> None:
        """Write what was added. Raises OSError; then these entries stay in memory until the next time."""
        if not self._pending:
            return
        self._write(bytes(self._pending), at_end=False)
        self._checksum = crc32c(self._pending, self._checksum)
        self._saved = self.count
        self._pending.clear()

    def seal(self, log_bytes: int, end_offset: int) -> None:
        """Write the footer, over an older one: the log ends so. Raises OSError."""
        self.save()
        times = (_UNKNOWN if each is None else each for each in self.summary)
        footer = _FOOTER.pack(_MAGIC, log_bytes, end_offset, *times, self._checksum)
        self._has_rest = True
        self._write(footer + _CRC.pack(crc32c(footer)), at_end=True)
        self._has_rest = True

    def replace(self, log_bytes: int, end_offset: int) -> None:
        """Write the file anew, with a footer; what finds no room on the disk stays in memory."""
        with suppress(OSError):
            self._path.unlink(missing_ok=True)
            self.seal(log_bytes, end_offset)

    def _write(self, data: bytes, *, at_end: bool) -> None:
        """Put `data` behind the entries, and nothing behind it, or zeros at most. Raises OSError.

        An older footer is written over: to cut it off would cost a millisecond, of each of ten thousand
        logs that are appended to for the first time.
        """
        fd, position = self._file(os.O_CREAT), self._saved * ENTRY_BYTES
        if self._has_rest:
            rest = os.fstat(fd).st_size - position - len(data)
            if rest > (0 if at_end else FOOTER_BYTES):
                os.ftruncate(fd, position)
            else:
                data += bytes(max(0, rest))
            self._has_rest = False
        if os.pwrite(fd, data, position) != len(data):
            raise OSError(errno.EIO, "short write")

    def _file(self, flags: int = 0) -> int:
        if self._fd < 0:
            self._fd = os.open(self._path, os.O_RDWR | flags, 0o644)
        return self._fd

    def release(self) -> None:
        """Close; what was found out about the file is kept. It is opened again when needed."""
        self._stretch = 0, b""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)


def _is_right(entries: bytes, number: int) -> bool:
    """Whether that one is as it was written."""
    start, end = number * ENTRY_BYTES, (number + 1) * ENTRY_BYTES
    return _CRC.pack(crc32c(entries[start : end - _CRC.size])) == entries[end - _CRC.size : end]


def _footer(data: bytes, log_bytes: int, end_offset: int) -> tuple[Summary, int] | None:
    """The summary, and the checksum of the entries; None if the footer is not that of this log."""
    if len(data) != FOOTER_BYTES or _CRC.unpack_from(data, _FOOTER.size)[0] != crc32c(
        data[: _FOOTER.size]
    ):
        return None
    magic, size, end, first, last, largest, checksum = _FOOTER.unpack_from(data)
    if (magic, size, end) != (_MAGIC, log_bytes, end_offset):
        return None
    known = [None if each == _UNKNOWN else each for each in (first, last)]
    return Summary(known[0], known[1], largest), checksum
