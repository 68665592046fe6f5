"""One segment of a log: a file of batches back to back, and its offset index."""

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from folkmoot.brokers.config import LogConfig
from folkmoot.brokers.durable import write_at
from folkmoot.brokers.index import OffsetIndex
from folkmoot.protocol import batch
from folkmoot.protocol.batch import HEADER_BYTES, BatchHeader
from folkmoot.protocol.errors import CorruptBatch, StorageError

logger = logging.getLogger(__name__)

LOG_SUFFIX: Final = ".log"
INDEX_SUFFIX: Final = ".index"
_HEADER_WINDOW_BYTES = 64 * 1024
_WINDOW_BYTES = 4 * 1024 * 1024


class Stamped(NamedTuple):
    """A batch ready for the file: the leader's part, and the producer's bytes behind it untouched."""

    base_offset: int
    leader: bytes
    rest: memoryview


class Segment:
    """`<20-digit base offset>.log` and `.index`.

    Invariants. `[0, size)` of the file is whole batches, their offsets dense from `base_offset` up to
    `end_offset` (exclusive). Bytes in there are never written again. Nobody looks beyond `size`.

    Append. One `pwritev` at `size` for all batches of a call; `size` moves once all is written. If
    that fails, the file is cut back to `size`, so that what follows joins on. If even that fails, the
    segment takes no more (`StorageError`) until it is recovered; reads go on.

    Crash. Only the tail of the active segment can be torn. `recover` keeps the longest prefix of
    batches with right checksums and offsets that follow each other, and cuts the rest with a line in
    the broker's log. This is the one place that shortens a `.log`, before anybody reads it: a mapped
    `.log` must never be cut in place.

    Read. The index leads near, headers lead on. What the index says is checked against the header
    found there; on any contradiction the index is rebuilt from the log, once, and then it is the log
    that is damaged (`CorruptBatch`). Bodies are not looked at: their reader compares the checksum.

    Files are opened when first needed; `release` closes them until they are needed again.
    Owner: the log, on the broker's reactor thread.
    """

    __slots__ = (
        "_active",
        "_failure",
        "_fd",
        "_index",
        "_index_is_from_log",
        "_next",
        "_path",
        "base_offset",
        "config",
        "dirty",
        "end_offset",
        "size",
    )

    def __init__(
        self,
        directory: Path,
        base_offset: int,
        config: LogConfig,
        *,
        size: int = 0,
        end_offset: int | None = None,
        active: bool = True,
    ) -> None:
        self._path = directory / f"{base_offset:020}{LOG_SUFFIX}"
        self.config = config
        self.base_offset = base_offset
        self.end_offset = base_offset if end_offset is None else end_offset
        self.size = size
        self.dirty = False
        self._active = active
        self._fd = -1
        self._index: OffsetIndex | None = None
        self._index_is_from_log = False
        self._failure: str | None = None
        # Offset and position where the last read ended: the next one most often begins there.
        self._next = (base_offset, 0)

    @classmethod
    def create(cls, directory: Path, base_offset: int, config: LogConfig) -> "Segment":
        """A new, empty segment. Raises StorageError."""
        segment = cls(directory, base_offset, config)
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
            segment._fd = os.open(segment._path, flags, 0o644)
        except OSError as error:
            raise segment._storage_error("cannot be created", error) from error
        return segment

    # -- writing ------------------------------------------------------------------------------------

    def append(self, batches: Sequence[Stamped], end_offset: int) -> None:
        """Write `batches` behind the last one; all or nothing. Raises StorageError."""
        self.require_sound()
        fd, index = self._file(), self._opened_index()
        parts: list[bytes | memoryview] = []
        for stamped in batches:
            parts += (stamped.leader, stamped.rest)
        try:
            end = write_at(fd, parts, self.size)
        except OSError as error:
            raise self._cut_back(fd, error) from error
        position = self.size
        for base_offset, leader, rest in batches:
            index.offer(base_offset, position)
            position += len(leader) + len(rest)
        self._save(index)
        self.size, self.end_offset, self.dirty = end, end_offset, True

    def flush(self) -> None:
        """Return when all that was appended is on disk. Raises StorageError, then at each append too."""
        if not self.dirty:
            return
        self.require_sound()
        try:
            os.fdatasync(self._file())
        except OSError as error:
            # The kernel may have dropped the pages: a second fsync would succeed and prove nothing.
            raise self._fail("could not be flushed and takes no more", error) from error
        self.dirty = False

    def seal(self) -> None:
        """No more appends will come; the index needs no more room."""
        self._active = False
        self._close_index()

    def release(self) -> None:
        """Close the files. They are opened again when needed."""
        self._close_index()
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def _cut_back(self, fd: int, cause: OSError) -> StorageError:
        try:
            os.ftruncate(fd, self.size)
        except OSError:
            return self._fail("has a torn end and takes no more", cause)
        return self._storage_error("could not be appended to", cause)

    def _fail(self, what: str, error: OSError) -> StorageError:
        failure = self._storage_error(what, error)
        self._failure = str(failure)
        logger.error("%s", failure)
        return failure

    def require_sound(self) -> None:
        """Raises StorageError if a failure has left the end of the file in doubt."""
        if self._failure is not None:
            raise StorageError(self._failure)

    # -- reading ------------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int) -> memoryview:
        """Whole batches, from the one that contains `offset`, up to `max_bytes` or the segment's end.

        The first batch comes whole even if it is larger. `base_offset <= offset < end_offset`.
        Raises CorruptBatch, StorageError.
        """
        try:
            return self._read(offset, max_bytes)
        except CorruptBatch as error:
            if self._index_is_from_log:
                raise CorruptBatch(f"offset {offset} is damaged on disk: {error}") from error
            logger.warning("%s: rebuilding the index: %s", self._path, error)
        self._rebuild_index()
        return self.read(offset, max_bytes)

    def _read(self, offset: int, max_bytes: int) -> memoryview:
        start = self._next[1] if self._next[0] == offset else self._locate(offset)
        # One header more than asked for: with it the batch behind the last one can be recognised.
        wanted = max(max_bytes, HEADER_BYTES) + HEADER_BYTES
        view = self._pread(wanted, start)
        first = batch.read_header(view)
        if not first.base_offset <= offset < first.next_offset:
            raise CorruptBatch(f"position {start} holds offset {first.base_offset}, not {offset}")
        if first.length > len(view):
            view = self._pread(first.length, start)
            if first.length > len(view):
                raise CorruptBatch(f"a batch of {first.length} bytes is cut off at {len(view)}")
        if first.length >= max_bytes:
            self._next = (first.next_offset, start + first.length)
            return view[: first.length]
        if start + max_bytes >= self.size:
            self._next = (self.end_offset, self.size)
            return view[: self.size - start]
        return view[: self._last_boundary(view, start, first, max_bytes)]

    def _last_boundary(
        self, view: memoryview, start: int, first: BatchHeader, max_bytes: int
    ) -> int:
        """Where the last whole batch within `max_bytes` of `view` ends, by index and a few headers.

        More of the segment follows, so there is a batch behind; its header proves the boundary.
        """
        offset, position = self._opened_index().at_position(start + max_bytes)
        end = position - start
        if end < first.length:
            offset, end = first.next_offset, first.length
        while True:
            header = batch.read_header(view, end)
            if header.base_offset != offset:
                raise CorruptBatch(
                    f"position {start + end} holds offset {header.base_offset}, not {offset}"
                )
            if end + header.length > max_bytes:
                self._next = (offset, start + end)
                return end
            offset, end = header.next_offset, end + header.length

    def _locate(self, offset: int) -> int:
        """Position of the last batch whose base offset is at or below `offset`."""
        known, found, behind = self._opened_index().stretch(offset)
        if known == offset:
            return found
        # Every batch between two entries begins within an interval of the first.
        window_bytes = self.config.index_interval_bytes + HEADER_BYTES
        for header, position in self._walk(found, window_bytes, batch.read_header):
            if header.base_offset > offset:
                break
            found = position
            if position + header.length == behind:
                break
        return found

    def _walk(
        self, position: int, window_bytes: int, parse: Callable[[memoryview, int], BatchHeader]
    ) -> Iterator[tuple[BatchHeader, int]]:
        """Header and position of each batch from `position` on, read in windows.

        `parse` is `read_header`, or `check` which needs the whole batch. Raises CorruptBatch.
        """
        view, start, whole = memoryview(b""), position, parse is batch.check
        while position < self.size:
            at = position - start
            left = len(view) - at
            if left < HEADER_BYTES or (whole and left < batch.batch_length(view, at)):
                view, start, at = self._pread(window_bytes, position), position, 0
                # A length is believed, and so much memory taken, only after its own checksum.
                length = batch.read_header(view).length
                if whole and length > len(view):
                    view = self._pread(length, position)
            header = parse(view, at)
            if position + header.length > self.size:
                raise CorruptBatch(f"a batch is cut off at {self.size - position} bytes")
            yield header, position
            position += header.length

    # -- recovery and index -------------------------------------------------------------------------

    def recover(self) -> None:
        """Check every batch, cut what is not whole, rebuild the index. Raises StorageError."""
        fd = self._file()
        found = os.fstat(fd).st_size
        self.size, self.end_offset = found, self.base_offset
        index = self._empty_index()
        valid, reason = 0, ""
        try:
            for header, position in self._walk(0, _WINDOW_BYTES, batch.check):
                if header.base_offset != self.end_offset:
                    raise CorruptBatch(f"it holds offset {header.base_offset}")
                index.offer(header.base_offset, position)
                self.end_offset, valid = header.next_offset, position + header.length
        except CorruptBatch as error:
            reason = str(error)
        self.size, self._failure, self.dirty = valid, None, True
        self._save(index)
        if valid < found:
            logger.warning(
                "%s: cut the last %d of %d bytes, where offset %d should be: %s",
                *(self._path, found - valid, found, self.end_offset, reason),
            )
            try:
                os.ftruncate(fd, valid)
            except OSError as error:
                raise self._storage_error("cannot be cut", error) from error

    def _opened_index(self) -> OffsetIndex:
        """The index, opened, with entries up to the end of the log. Raises StorageError."""
        if self._index is None:
            index = self._open_index()
            if self._holds(*index.last()):
                self._complete(index)
            else:
                self._rebuild_index()
        assert self._index is not None
        return self._index

    def _open_index(self, *, anew: bool = False) -> OffsetIndex:
        config, path = self.config, self._path.with_suffix(INDEX_SUFFIX)
        index = OffsetIndex(path, self.base_offset, config.index_interval_bytes)
        reserve = config.segment_bytes // config.index_interval_bytes + 2 if self._active else 0
        try:
            if anew:
                path.unlink(missing_ok=True)
            if not index.open(self.size, reserve):
                logger.warning("%s: not trustworthy, rebuilding it", path)
        except OSError as error:
            index.close()
            raise self._storage_error("has an index that cannot be opened", error) from error
        self._index, self._index_is_from_log = index, index.count == 0
        return index

    def _empty_index(self) -> OffsetIndex:
        self._close_index()
        self._next = (self.base_offset, 0)
        return self._open_index(anew=True)

    def _rebuild_index(self) -> None:
        """Make the index anew; what the old one had right is the way past damage in the log."""
        known = self._index.entries() if self._index is not None else ()
        self._complete(self._empty_index(), known)

    def _complete(self, index: OffsetIndex, known: Sequence[tuple[int, int]] = ()) -> None:
        """Add the entries that lack behind the last one; after damage go on at one that is `known`."""
        start = index.last()[1]
        while start < self.size:
            position = start
            try:
                for header, position in self._walk(start, _HEADER_WINDOW_BYTES, batch.read_header):
                    index.offer(header.base_offset, position)
                break
            except CorruptBatch as error:
                logger.error("%s: damaged behind position %d: %s", self._path, position, error)
            beyond = (at for offset, at in known if at > position and self._holds(offset, at))
            start = next(beyond, self.size)
        self._save(index)

    def _holds(self, offset: int, position: int) -> bool:
        """Whether a batch that begins with `offset` lies at `position`, or nothing was written yet."""
        if position == self.size == 0:
            return True
        try:
            return batch.read_header(self._pread(HEADER_BYTES, position)).base_offset == offset
        except CorruptBatch:
            return False

    def _save(self, index: OffsetIndex) -> None:
        try:
            index.save()
        except OSError as error:
            # The batches are safe and can be found without: lookups scan a longer stretch.
            logger.warning("%s: index entries left out: %s", self._path, error)

    def _close_index(self) -> None:
        if self._index is not None:
            index, self._index = self._index, None
            try:
                index.close()
            except OSError as error:
                logger.warning("%s: its index was not trimmed: %s", self._path, error)

    # -- the file -----------------------------------------------------------------------------------

    def _file(self) -> int:
        if self._fd < 0:
            try:
                self._fd = os.open(self._path, os.O_RDWR)
            except OSError as error:
                raise self._storage_error("cannot be opened", error) from error
        return self._fd

    def _pread(self, count: int, position: int) -> memoryview:
        """Up to `count` bytes, none beyond `size`."""
        try:
            return memoryview(os.pread(self._file(), min(count, self.size - position), position))
        except OSError as error:
            raise self._storage_error("cannot be read", error) from error

    def _storage_error(self, what: str, error: OSError) -> StorageError:
        return StorageError(f"{self._path} {what}: {error.strerror or error}")
