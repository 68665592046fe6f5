"""Finding whole batches in the file of one segment, by index and headers."""

from folkmoot.brokers.storage.indexes import SegmentIndexes
from folkmoot.brokers.storage.logfile import LogFile
from folkmoot.protocol import batch_header
from folkmoot.protocol.batch_header import HEADER_BYTES, BatchHeader
from folkmoot.protocol.errors import CorruptBatch

_NOTHING = memoryview(b"")


class BatchReader:
    """The index leads near, headers lead on; what the index says is checked against the header there.

    Where a read ended is remembered, since the next one most often begins there. Owner: the segment,
    on the broker's reactor thread.
    """

    __slots__ = ("_base", "_indexes", "_log", "_next")

    def __init__(self, log: LogFile, indexes: SegmentIndexes, base_offset: int) -> None:
        self._log = log
        self._indexes = indexes
        self._base = base_offset
        # Offset and position where the last read ended.
        self._next = (base_offset, 0)

    def forget(self) -> None:
        """What was found before may be wrong."""
        self._next = (self._base, 0)

    def read(self, offset: int, max_bytes: int, end_offset: int) -> memoryview:
        """Whole batches, from the one that contains `offset`, up to `max_bytes` or the segment's end.

        The first batch comes whole even if it is larger. The segment ends with `end_offset`. Where
        compaction has left gaps, the first batch is the next one that is left; nothing, if there is
        none. Raises CorruptBatch on any contradiction, StorageError.
        """
        log = self._log
        if log.sparse and not log.size:
            return _NOTHING
        # One header more than asked for: with it the batch behind the last one can be recognised.
        wanted = max(max_bytes, HEADER_BYTES) + HEADER_BYTES
        known = self._next[0] == offset
        start = self._next[1] if known else self._indexes.locate(offset)
        if log.sparse and start == log.size:
            return _NOTHING
        view = log.read(wanted, start)
        first = batch_header.read_header(view)
        if log.sparse and first.next_offset <= offset:
            start, known = log.past_damage(start + first.length), True
            if start == log.size:
                self._next = (end_offset, start)
                return _NOTHING
            view = log.read(wanted, start)
            first = batch_header.read_header(view)
        behind_a_gap = log.sparse and (known or start == 0)
        if not (first.base_offset <= offset or behind_a_gap) or offset >= first.next_offset:
            raise CorruptBatch(f"position {start} holds offset {first.base_offset}, not {offset}")
        if first.length > len(view):
            view = log.read(first.length, start)
            if first.length > len(view):
                raise CorruptBatch(f"a batch of {first.length} bytes is cut off at {len(view)}")
        if first.length >= max_bytes:
            self._next = (first.next_offset, start + first.length)
            return view[: first.length]
        stop = log.stop(start)
        if start + max_bytes >= stop:
            if stop == log.size:
                self._next = (end_offset, stop)
            return view[: stop - start]
        return view[: self._last_boundary(view, start, first, max_bytes)]

    def _last_boundary(
        self, view: memoryview, start: int, first: BatchHeader, max_bytes: int
    ) -> int:
        """Where the last whole batch within `max_bytes` of `view` ends, by index and a few headers.

        More of the segment follows, so there is a batch behind; its header proves the boundary. If it
        has rotted, what headers have led to is whole, and if it contradicts the one before, either
        may have: then that is left out, too. Who comes for more is told.
        """
        log = self._log
        offset, position = self._indexes.offsets().at_position(start + max_bytes)
        end = position - start
        led_here = end < first.length
        if led_here:
            offset, end = first.next_offset, first.length
        sure: tuple[int, int] | None = None
        while True:
            try:
                header = batch_header.read_header(view, end)
            except CorruptBatch:
                if not led_here:
                    raise
                self._next = (offset, start + end)
                return end
            if header.base_offset != offset and not (log.sparse and header.base_offset > offset):
                if sure is None:
                    raise CorruptBatch(
                        f"position {start + end} holds offset {header.base_offset}, not {offset}"
                    )
                self._next = (sure[0], start + sure[1])
                return sure[1]
            led_here, sure = True, (offset, end)
            if end + header.length > max_bytes:
                self._next = (offset, start + end)
                return end
            offset, end = header.next_offset, end + header.length
