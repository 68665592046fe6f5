"""One segment of a log: a file of batches back to back, and its indexes."""

import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from folkmoot.brokers.storage.config import LogConfig
from folkmoot.brokers.storage.damage import DAMAGE_SUFFIX, Damage, examine, load, save
from folkmoot.brokers.storage.directories import LOG_SUFFIX
from folkmoot.brokers.storage.indexes import INDEX_SUFFIX, TIME_INDEX_SUFFIX, SegmentIndexes
from folkmoot.brokers.storage.logfile import LogFile
from folkmoot.brokers.storage.openfiles import OpenFiles
from folkmoot.brokers.storage.reading import BatchReader
from folkmoot.brokers.storage.times import highest_timestamp, last_word
from folkmoot.protocol import batch_header
from folkmoot.protocol.batch_header import HEADER_BYTES, BatchHeader
from folkmoot.protocol.errors import CorruptBatch

logger = logging.getLogger(__name__)

_WINDOW_BYTES = 16 * 1024


class Stamped(NamedTuple):
    """A batch ready for the file: the leader's part, and the producer's bytes behind it untouched."""

    base_offset: int
    highest_timestamp: int
    leader: bytes
    rest: memoryview


class Segment:
    """`<20-digit base offset>.log`, `.index` and `.timeindex`.

    Invariants. `[0, size)` of the file is whole batches, their offsets dense from `base_offset` up to
    `end_offset` (exclusive), or rising where compaction has left gaps (`sparse`), at either end too.
    Bytes in there are never written again (see LogFile): compaction makes another file.

    Crash. What lies behind the last durable checkpoint is checked by `recover`: batches with right
    checksums and offsets that follow each other stay, an end that is none is cut with a line in the
    broker's log. This is the one place that shortens a `.log`, before anybody reads it: a mapped
    `.log` must never be cut in place.

    Damage. Bytes that are no batch any more, with whole batches behind them, are marked, in memory
    and in `<base offset>.damage`. Offsets in there are answered with `CorruptBatch`, which says where
    to go on; all others are served.

    Read. The index leads near, headers lead on. What the index says is checked against the header
    found there; on any contradiction the index is rebuilt from the log, once, and then it is the log
    that is damaged. Bodies are not looked at: their reader compares the checksum, and so does the
    scrub in time.

    Files are open while they are needed. Owner: the log, on the broker's reactor thread.
    """

    __slots__ = (
        *("_began", "_ended", "_files", "_highest", "_indexes", "_log", "_reader"),
        *("base_offset", "end_offset"),
    )

    def __init__(
        self,
        directory: Path,
        base_offset: int,
        config: LogConfig,
        files: OpenFiles,
        *,
        size: int = 0,
        end_offset: int | None = None,
        active: bool = True,
        sparse: bool = False,
    ) -> None:
        self._files = files
        self.base_offset = base_offset
        self.end_offset = base_offset if end_offset is None else end_offset
        self._log = LogFile(directory / f"{base_offset:020}{LOG_SUFFIX}", size, sealed=not active)
        self._log.sparse = sparse
        interval = config.index_interval_bytes
        reserve = config.segment_bytes // interval + 2 if active else 0
        self._indexes = SegmentIndexes(self._log, base_offset, interval, reserve)
        self._began: int | None = (
            None  # when the first batch was appended, and the last, once known
        )
        self._ended: int | None = None
        self._highest: int | None = None  # the highest timestamp, known once no more batches come
        self._reader = BatchReader(self._log, self._indexes, base_offset)

    @classmethod
    def create(
        cls, directory: Path, base_offset: int, config: LogConfig, files: OpenFiles
    ) -> "Segment":
        """A new, empty segment. Raises StorageError."""
        segment = cls(directory, base_offset, config, files)
        segment._log.create()
        files.use(segment)
        return segment

    @property
    def size(self) -> int:
        """Bytes of the log."""
        return self._log.size

    @property
    def dirty(self) -> bool:
        """Whether something was appended since the last flush."""
        return self._log.dirty

    @property
    def sound(self) -> bool:
        """Whether no failure has left the end of the file in doubt."""
        return self._log.sound

    # -- writing ------------------------------------------------------------------------------------

    def append(self, batches: Sequence[Stamped], end_offset: int, now: int) -> None:
        """Write `batches`, stamped with `now`, behind the last one; all or nothing. Raises StorageError."""
        self._log.require_sound()
        self._files.use(self)
        indexes = self._indexes
        indexes.offsets()
        indexes.times(self.end_offset)
        parts: list[bytes | memoryview] = []
        for stamped in batches:
            parts += (stamped.leader, stamped.rest)
        position = self._log.size
        self._log.append(parts)
        for base_offset, highest, leader, rest in batches:
            indexes.offer(base_offset, position, highest)
            position += len(leader) + len(rest)
        indexes.save()
        self.end_offset, self._ended = end_offset, max(now, self._ended or now)

    def flush(self) -> None:
        """Return when all that was appended is on disk. Raises StorageError, then at each append too."""
        if self._log.dirty:
            self._files.use(self)
            self._log.flush()

    def duplicate(self) -> int:
        """A descriptor for another thread to flush. Raises StorageError."""
        self._files.use(self)
        return self._log.duplicate()

    def flushed(self, size: int, error: OSError | None) -> None:
        """Another thread has flushed what there was up to `size`, or failed to."""
        if error is None:
            self._log.flushed(size)
        else:
            self._log.flush_failed(error)

    def copy_to_read(self) -> LogFile:
        """The file as it is, for another thread to read."""
        copy = LogFile(self._log.path, self._log.size, read_only=True)
        copy.damage, copy.sparse = self._log.damage, self._log.sparse
        return copy

    def seal(self) -> None:
        """No more appends will come; the indexes need no more room."""
        self._indexes.seal(self.end_offset)
        self._log.release()
        self._log.sealed = True

    def release(self) -> None:
        """Close the files. They are opened again when needed."""
        self._indexes.suspend(self.end_offset)
        self._log.release()
        self._files.forget(self)

    def close(self) -> None:
        """Close the files and trim the indexes."""
        self._indexes.close(self.end_offset)
        self.release()

    def require_sound(self) -> None:
        """Raises StorageError if a failure has left the end of the file in doubt."""
        self._log.require_sound()

    # -- reading ------------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int) -> memoryview:
        """Whole batches, from the one that contains `offset`, up to `max_bytes` or the segment's end.

        The first batch comes whole even if it is larger. `base_offset <= offset < end_offset`.
        Nothing, if compaction has left no record from there on. Raises CorruptBatch, StorageError.
        """
        self._files.use(self)
        self._refuse_damaged(offset)
        try:
            return self._reader.read(offset, max_bytes, self.end_offset)
        except CorruptBatch as error:
            logger.warning("%s: at offset %d: %s", self._log.path, offset, error)
        self._reader.forget()
        self._indexes.rebuild()
        try:
            return self._reader.read(offset, max_bytes, self.end_offset)
        except CorruptBatch:
            self._find_damage(offset, lambda header: header.base_offset > offset)
            self._refuse_damaged(offset)
        try:  # what is damaged lies before or behind it, and is passed over now
            return self._reader.read(offset, max_bytes, self.end_offset)
        except CorruptBatch as error:
            raise CorruptBatch(f"offset {offset} is damaged on disk: {error}") from error

    def near(self, offset: int) -> tuple[int, int]:
        """A position at or before `offset`, and the offset that is there, if the index is right."""
        self._files.use(self)
        known, position, _ = self._indexes.offsets().stretch(offset)
        return position, known

    def is_damaged(self, offset: int) -> bool:
        """Whether it is so marked."""
        return self._log.damage_at(offset) is not None

    def _refuse_damaged(self, offset: int) -> None:
        damage = self._log.damage_at(offset)
        if damage is not None:
            raise CorruptBatch(
                f"offset {offset} is damaged on disk with all from {damage.offset} on: "
                f"go on at {damage.next_offset}"
            )

    def _find_damage(self, offset: int, is_enough: Callable[[BatchHeader], bool]) -> None:
        """Mark what is damaged from near `offset` on, up to a batch that is enough."""
        known, position, _ = self._indexes.offsets().stretch(offset)
        for found in examine(self._log, position, known, self.end_offset):
            if isinstance(found, Damage):
                self.mark(found)
            elif is_enough(found[0]):
                break

    def headers(self, offset: int) -> Iterator[BatchHeader]:
        """The headers of the batches from `offset` on, as far as they can be read. Raises StorageError."""
        self._files.use(self)
        indexes = self._indexes
        # Without room for more, which is made when the segment is opened for appends.
        reserve, indexes.reserve = indexes.reserve, 0
        try:
            yield from indexes.headers(offset)
        finally:
            indexes.close(self.end_offset)
            indexes.reserve = reserve

    def times_to_read(self) -> tuple[Path, int] | None:
        """The time index whose `last_word` for that end is still to be read; None: it is known."""
        known = self._highest is not None or not self._log.sealed
        return None if known else (self._log.path.with_suffix(TIME_INDEX_SUFFIX), self.end_offset)

    def reaches(self, highest: int | None) -> None:
        """Take over the `last_word` that another thread has read."""
        self._highest = highest

    def highest_timestamp(self) -> int:
        """The highest timestamp of all records. Raises StorageError."""
        unread = self.times_to_read()
        if unread is not None:
            self._highest = last_word(*unread)
        if self._highest is not None:
            return self._highest
        self._files.use(self)
        highest = self._indexes.times(self.end_offset).highest
        if not self._indexes.reserve:
            self._highest = highest
        return highest

    def began(self) -> int | None:
        """When the first batch was appended (ms); None if there is none. Raises StorageError."""
        if self._began is None and self.size:
            self._files.use(self)
            try:
                self._began = batch_header.read_header(self._log.read(HEADER_BYTES, 0)).append_time
            except CorruptBatch:
                return None
        return self._began

    def ended(self) -> int | None:
        """When the last batch was appended (ms); None if there is none. Raises StorageError."""
        if self._ended is None and (self.size or self._log.sealed):
            self._files.use(self)
            try:
                start = self._indexes.offsets().last()[1]
                for header, _ in self._log.walk(start, _WINDOW_BYTES):
                    self._ended = header.append_time
            except CorruptBatch:
                self._ended = None
            if self._ended is None:  # what could tell has rotted
                self._ended = self._log.modified()
        return self._ended

    def remove(self) -> list[Path]:
        """Close the files, for good; → the paths to give up, the log last, so that no index is left."""
        self.close()
        suffixes = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, DAMAGE_SUFFIX, LOG_SUFFIX)
        return [self._log.path.with_suffix(suffix) for suffix in suffixes]

    def find_time(self, timestamp: int) -> int | None:
        """Base offset of the first batch with a record of `timestamp` or later.

        None if there is none, against what the time index said. Raises CorruptBatch, StorageError.
        """
        self._files.use(self)
        try:
            return self._indexes.find_time(timestamp, self.end_offset)
        except CorruptBatch as error:
            logger.warning("%s: rebuilding the indexes: %s", self._log.path, error)
        self._indexes.rebuild()
        if self._rebuilt_highest() < timestamp:
            return None
        start = self._indexes.times(self.end_offset).before(timestamp)
        self._find_damage(start, lambda header: highest_timestamp(header) >= timestamp)
        if self._rebuilt_highest() < timestamp:  # without what is marked now
            return None
        return self._indexes.find_time(timestamp, self.end_offset)

    def _rebuilt_highest(self) -> int:
        self._indexes.rebuild_times(self.end_offset)
        highest = self._indexes.times(self.end_offset).highest
        if self._highest is not None:
            self._highest = highest
        return highest

    # -- damage and recovery ------------------------------------------------------------------------

    @property
    def damage(self) -> tuple[Damage, ...]:
        """What is marked as damaged, in order."""
        return self._log.damage

    def mark(self, damage: Damage) -> None:
        """Never serve these bytes again."""
        logger.error(
            "%s: offsets %d to %d are damaged (bytes %d to %d) and not served any more",
            *(self._log.path, damage.offset, damage.next_offset - 1, damage.position, damage.end),
        )
        self._log.mark(damage)
        save(self._log.path.with_suffix(DAMAGE_SUFFIX), self._log.damage)

    def load_damage(self) -> None:
        """Take over what was marked in an earlier life."""
        self._log.damage = load(self._log.path.with_suffix(DAMAGE_SUFFIX))

    def verify(self, position: int, offset: int) -> None:
        """Check a sealed segment from `position`, where `offset` lies, and mark what is damaged.

        Only what lies before is known to be on disk: the rest may be in the page cache alone, where a
        broker that was killed has left it.
        """
        self._log.flushed_only(position)
        for found in examine(self._log, position, offset, self.end_offset):
            if isinstance(found, Damage):
                self.mark(found)

    def recover(self, position: int, offset: int) -> None:
        """Check the active segment from `position`, where `offset` lies; up to there it is on disk.

        What no batch follows is cut; damage with batches behind is marked. Raises StorageError.
        """
        self._files.use(self)
        log, indexes = self._log, self._indexes
        found = log.found_size()
        if position > found:
            logger.error("%s: has %d bytes, %d were on disk", log.path, found, position)
            position, offset = 0, self.base_offset
        log.size, self.end_offset = position, offset
        kept = tuple(each for each in log.damage if each.end <= position)
        if kept != log.damage:
            log.damage = kept
            save(log.path.with_suffix(DAMAGE_SUFFIX), kept)
        self._reader.forget()
        if position < found or not found:
            # Without room for more, which is made when the segment is opened for appends.
            reserve, indexes.reserve = indexes.reserve, 0
            indexes.offsets()
            indexes.times(offset)
            log.size = found
            found = self._recover_rest(position, offset)
            indexes.save()
            indexes.close(self.end_offset)
            indexes.reserve = reserve
        log.recovered(found, durable=position)

    def _recover_rest(self, position: int, offset: int) -> int:
        """Mark damage, take over what is whole. → where that ends."""
        log, valid = self._log, position
        for found in examine(log, position, offset):
            if not isinstance(found, Damage):
                header, valid = found
                self._indexes.offer(header.base_offset, valid, highest_timestamp(header))
                self.end_offset, valid = header.next_offset, valid + header.length
            elif found.end < log.size or found.next_offset > found.offset:
                self.mark(found)
            else:
                logger.warning(
                    "%s: cut the last %d of %d bytes, where offset %d should be",
                    *(log.path, log.size - valid, log.size, self.end_offset),
                )
        return valid
