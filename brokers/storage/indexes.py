"""Both indexes of a segment, kept in step with its log."""

import logging
from collections.abc import Callable, Iterator
from typing import Final

from folkmoot.brokers.storage.damage import next_batch
from folkmoot.brokers.storage.entries import EntryFile
from folkmoot.brokers.storage.index import OffsetIndex
from folkmoot.brokers.storage.logfile import LogFile
from folkmoot.brokers.storage.times import TimeIndex, highest_timestamp
from folkmoot.protocol import batch_header
from folkmoot.protocol.batch_header import HEADER_BYTES, BatchHeader
from folkmoot.protocol.errors import CorruptBatch

logger = logging.getLogger(__name__)

INDEX_SUFFIX: Final = ".index"
TIME_INDEX_SUFFIX: Final = ".timeindex"
_HEADER_WINDOW_BYTES = 64 * 1024


class SegmentIndexes:
    """`.index` and `.timeindex` beside a `.log`, each opened when it is first asked for.

    What is missing at their ends when they are opened is added from the log's headers; what
    contradicts the log makes them be built anew.

    They are opened with room for `reserve` entries more, none once the segment is sealed.
    Owner: the segment, on the broker's reactor thread.
    """

    __slots__ = ("_base", "_interval_bytes", "_log", "_offsets", "_times", "reserve")

    def __init__(self, log: LogFile, base_offset: int, interval_bytes: int, reserve: int) -> None:
        self._log = log
        self._base = base_offset
        self._interval_bytes = interval_bytes
        self._offsets: OffsetIndex | None = None
        self._times: TimeIndex | None = None
        self.reserve = reserve

    # -- looking up ---------------------------------------------------------------------------------

    def offsets(self) -> OffsetIndex:
        """The offset index, open, with entries up to the end of the log. Raises StorageError."""
        if self._offsets is not None and not self._is_resumed(self._offsets):
            self._offsets = None
        if self._offsets is None:
            index = self._open_offsets()
            if self._holds(*index.last()):
                self._complete(index)
            else:
                self.rebuild()
        assert self._offsets is not None
        return self._offsets

    def times(self, end_offset: int) -> TimeIndex:
        """The time index of a segment that ends with `end_offset`, open and complete.

        Raises StorageError.
        """
        if self._times is not None and not self._is_resumed(self._times):
            self._times = None
        if self._times is None:
            index = self._open_times(end_offset)
            if not self._complete_times(index, end_offset):
                logger.warning("%s: rebuilding its time index, which is wrong", self._log.path)
                self._try("its index was not trimmed", index.close)
                index = self._new_times(end_offset)
            self._times = index
        return self._times

    def locate(self, offset: int) -> int:
        """Position of the last batch whose base offset is at or below `offset`.

        Raises CorruptBatch, StorageError.
        """
        known, found, behind = self.offsets().stretch(offset)
        for damage in self._log.damage:
            if damage.next_offset <= offset and damage.end > found:
                known, found = damage.next_offset, damage.end
        if known == offset:
            return found
        reached = known
        # Every batch between two entries begins within an interval of the first.
        try:
            for header, position in self._log.walk(found, self._interval_bytes + HEADER_BYTES):
                if header.base_offset > offset:
                    break
                found, reached = position, header.next_offset
                if position + header.length == behind:
                    break
        except CorruptBatch:
            if reached <= offset:
                raise  # else the batch was found in front of it
        return found

    def find_time(self, timestamp: int, end_offset: int) -> int:
        """Base offset of the first batch with a record of `timestamp` or later.

        There is one: the segment's highest timestamp is not before it. Raises CorruptBatch,
        StorageError.
        """
        start = self.times(end_offset).before(timestamp)
        for header, _ in self._log.walk(self.locate(start), self._interval_bytes + HEADER_BYTES):
            if highest_timestamp(header) >= timestamp:
                return header.base_offset
        raise CorruptBatch(f"{self._log.path}: no batch is as late as its time index says")

    def headers(self, offset: int) -> Iterator[BatchHeader]:
        """The headers of the batches from `offset` on, as far as they can be read. Raises StorageError."""
        start = 0
        if offset > self._base and self._log.size > _HEADER_WINDOW_BYTES:
            start = self.offsets().stretch(offset)[1]
        for header, _ in self._headers(start):
            if header.base_offset >= offset:
                yield header

    # -- following the log --------------------------------------------------------------------------

    def offer(self, offset: int, position: int, highest: int) -> None:
        """A batch was appended; `save` writes the entries that were due. Both are open."""
        assert self._offsets is not None
        assert self._times is not None
        if self._offsets.offer(offset, position):
            self._times.add(offset)
        self._times.see(highest)

    def save(self) -> None:
        """Write what was taken as entries. What cannot be written is left out."""
        for index in (self._offsets, self._times):
            if index is not None:
                self._try("index entries left out", index.save)

    def seal(self, end_offset: int) -> None:
        """No more batches will come."""
        self.reserve = 0
        self.close(end_offset)

    def close(self, end_offset: int) -> None:
        """Unmap and trim both; the time index tells up to `end_offset` then."""
        if self._times is not None and self._is_resumed(self._times):
            self._times.add(end_offset)
            self._try("index entries left out", self._times.save)
        if self._offsets is not None:
            self._is_resumed(self._offsets)
        self.drop()

    def suspend(self, end_offset: int) -> None:
        """Unmap both. While more batches may come their room is kept, so that going on is cheap."""
        if not self.reserve:
            self.close(end_offset)
        for index in (self._offsets, self._times):
            if index is not None:
                index.suspend()

    def drop(self) -> None:
        """Unmap and trim both as they are."""
        for index in (self._offsets, self._times):
            if index is not None:
                self._try("its index was not trimmed", index.close)
        self._offsets = self._times = None

    def rebuild(self) -> None:
        """Make the offset index anew. Raises StorageError."""
        index, self._offsets = self._offsets, None
        if index is not None:
            self._try("its index was not trimmed", index.close)
        self._complete(self._open_offsets(anew=True))

    def rebuild_times(self, end_offset: int) -> None:
        """Make the time index anew. Raises StorageError."""
        index, self._times = self._times, None
        if index is not None:
            self._try("its index was not trimmed", index.close)
        self._times = self._new_times(end_offset)

    # -- inside -------------------------------------------------------------------------------------

    def _open_offsets(self, *, anew: bool = False) -> OffsetIndex:
        path = self._log.path.with_suffix(INDEX_SUFFIX)
        index = OffsetIndex(path, self._base, self._interval_bytes)
        try:
            if anew:
                path.unlink(missing_ok=True)
            if not index.open(self._log.size, self.reserve) and self._log.size:
                logger.warning("%s: not trustworthy, rebuilding it", path)
        except OSError as error:
            index.close()
            raise self._log.error("has an index that cannot be opened", error) from error
        self._offsets = index
        return index

    def _open_times(self, end_offset: int, *, anew: bool = False) -> TimeIndex:
        path = self._log.path.with_suffix(TIME_INDEX_SUFFIX)
        index = TimeIndex(path, self._base)
        try:
            if anew:
                path.unlink(missing_ok=True)
            if not index.open(self._log.size, end_offset, self.reserve) and self._log.size:
                logger.warning("%s: not trustworthy, rebuilding it", path)
        except OSError as error:
            index.close()
            raise self._log.error("has a time index that cannot be opened", error) from error
        return index

    def _new_times(self, end_offset: int) -> TimeIndex:
        index = self._open_times(end_offset, anew=True)
        self._complete_times(index, end_offset)
        return index

    def _complete(self, index: OffsetIndex) -> None:
        """Add the entries that lack behind the last one."""
        for header, position in self._headers(index.last()[1]):
            index.offer(header.base_offset, position)
        self._finish(index)

    def _complete_times(self, index: TimeIndex, end_offset: int) -> bool:
        """Add the entries that lack behind the last one. False if that one does not fit the log."""
        start = index.reach()
        if start == end_offset:
            self._finish(index)
            return True
        try:
            position = 0 if start == self._base else self.locate(start)
        except CorruptBatch:
            return False
        due = position + self._interval_bytes
        for header, at in self._headers(position):
            if at == position and header.base_offset != start and start != self._base:
                return False
            if at >= due:
                index.add(header.base_offset)
                due = at + self._interval_bytes
            index.see(highest_timestamp(header))
        if not self.reserve:
            index.add(end_offset)
        self._finish(index)
        return True

    def _headers(self, position: int) -> Iterator[tuple[BatchHeader, int]]:
        """Header and position of all batches from `position` on; what has rotted is passed over."""
        offset = self._base
        while position < self._log.size:
            try:
                for header, at in self._log.walk(position, _HEADER_WINDOW_BYTES):
                    yield header, at
                    # How many records it has may have rotted: that is behind the body's checksum.
                    offset, position = header.base_offset + 1, at + header.length
                return
            except CorruptBatch as error:
                logger.error("%s: damaged behind position %d: %s", self._log.path, position, error)
            following = next_batch(self._log, self._log.past_damage(position), offset)
            position = self._log.size if following is None else following.position

    def _finish(self, index: EntryFile) -> None:
        self._try("index entries left out", index.save)
        if not self.reserve:
            self._try("its index was not trimmed", index.trim)

    def _is_resumed(self, index: EntryFile) -> bool:
        try:
            return index.resume()
        except OSError as error:
            logger.warning("%s: its index is opened anew: %s", self._log.path, error)
            return False

    def _holds(self, offset: int, position: int) -> bool:
        """Whether a batch that begins with `offset` lies at `position`, or nothing was written yet."""
        if position == self._log.size == 0:
            return True
        try:
            found = batch_header.read_header(self._log.read(HEADER_BYTES, position)).base_offset
        except CorruptBatch:
            return False
        # The first records of a segment may have been compacted away.
        return found == offset or (self._log.sparse and position == 0 and found > offset)

    def _try(self, what: str, action: Callable[[], None]) -> None:
        """The batches are safe and can be found without: lookups scan a longer stretch."""
        try:
            action()
        except OSError as error:
            logger.warning("%s: %s: %s", self._log.path, what, error)
