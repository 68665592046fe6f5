"""One segment of a log: a file of batches back to back, with an index beside it."""

import errno
import logging
import os
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from mmap import PAGESIZE
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from folkmoot.brokers.jobs.jobs import Lane, SharedJob
from folkmoot.brokers.storage.disk_room import DiskRoom
from folkmoot.brokers.storage.files.atomic_file import (
    disk_error,
    read_at,
    sync_directory,
    write_at,
)
from folkmoot.brokers.storage.mapped_file import MAPPED_BYTES, MappedFile, MappedFiles
from folkmoot.brokers.storage.segment_index import SegmentIndex, Summary, largest_timestamp
from folkmoot.protocol import batch_header
from folkmoot.protocol.batch_header import HEADER_BYTES, LEADER_BYTES, MAX_OFFSET, BatchHeader
from folkmoot.protocol.checksum import crc32c
from folkmoot.protocol.errors import CorruptBatch, StorageError

logger = logging.getLogger(__name__)

LOG_SUFFIX: Final = ".log"
INDEX_SUFFIX: Final = ".index"
OPEN_FILES_PER_SEGMENT: Final = 1
"""The most that one segment holds: its log."""
MAX_INDEX_BYTES: Final = 256 * 1024 * 1024
"""The most memory of loaded indexes, at least one of them: 256 KiB are those of a GiB of log."""

_SKIPPED_BYTES: Final = 8 * 1024
_HEADERS_WINDOW: Final = 64 * 1024 + HEADER_BYTES
_BATCHES_WINDOW: Final = 4 * 1024 * 1024
_UNSAVED_BYTES: Final = 16 * 1024 * 1024
_KEPT_BYTES: Final = 64 * 1024 * 1024
_NOTHING: Final = memoryview(b"")
_NAME = re.compile(
    r"(?P<base>[0-9]{20})(-(?P<end>[0-9]{20})-(?P<generation>[1-9][0-9]{0,8}))?\.log"
)


class SegmentName(NamedTuple):
    """`<base>.log`, or `<base>-<end>-<generation>.log` if compaction has made it.

    A compacted segment stands for all segments of a lower generation that begin in `[base, end)`. One
    that is the last again has `end` = `base`: what comes behind it is never taken for what it replaced.
    """

    base: int
    end: int = 0
    generation: int = 0

    @classmethod
    def parse(cls, file_name: str) -> "SegmentName | None":
        """The name of a `.log`; None if it is none."""
        match = _NAME.fullmatch(file_name)
        if match is None or int(match["base"]) > MAX_OFFSET:
            return None
        return cls(int(match["base"]), int(match["end"] or 0), int(match["generation"] or 0))

    @property
    def opened(self) -> "SegmentName":
        """Its name when it is appended to again: it stands for no other then."""
        return self._replace(end=self.base) if self.generation else self

    @property
    def stem(self) -> str:
        if not self.generation:
            return f"{self.base:020}"
        return f"{self.base:020}-{self.end:020}-{self.generation}"


class Damage(msgspec.Struct, frozen=True):
    """Bytes `[position, end)` of a `.log`, where the records `[offset, next_offset)` should be."""

    offset: int
    next_offset: int
    position: int
    end: int


class Stamped(NamedTuple):
    """A batch ready for the file: the leader's part, and the producer's bytes behind it untouched."""

    base_offset: int
    largest_timestamp: int
    leader: bytes | memoryview
    rest: memoryview


class OpenSegments:
    """Segments with open files, in the order of their last use.

    At most `limit` of them: who comes on top makes the one used longest ago release its files. What
    was not used between two calls of `release_idle` is released too, so that a partition without
    traffic holds no descriptor. What is not flushed yet keeps its log's on top of the limit, until it is
    (`Segment.rest`); with many of these the next flush comes earlier (`is_crowded`).

    Loaded indexes take `index_limit` bytes at most: the one used longest ago is dropped.

    Owner: the LogManager, on the broker's event loop.
    """

    def __init__(self, limit: int = 1_000, index_limit: int = MAX_INDEX_BYTES) -> None:
        self.damaged: set[Path] = set()
        """Directories of logs in which something bad was found, until somebody has looked after them."""
        self.room = DiskRoom()
        self.mapped = MappedFiles()
        self.may_wait = True
        """Whether reads may wait for the disk. Not where NotCached is caught (RequestHandlers)."""
        self.unflushed: dict[Segment, None] = {}
        """Those that were released and have their log open until it is flushed."""
        self._limit = max(1, limit)
        self._round = 0
        self._used: OrderedDict[Segment, int] = OrderedDict()
        self.index_bytes = 0
        self._index_limit = index_limit
        self._indexes: OrderedDict[Segment, int] = OrderedDict()
        self.kept_bytes = 0
        """What jobs have read and readers have not yet: above 64 MiB it is left to the page cache."""

    def __len__(self) -> int:
        return len(self._used)

    @property
    def is_crowded(self) -> bool:
        """Whether so many wait for a flush that it should not wait for its time."""
        return len(self.unflushed) > self._limit

    def use(self, segment: "Segment") -> None:
        """This one is used now, and has or is about to open files."""
        self.unflushed.pop(segment, None)
        self._used[segment] = self._round
        self._used.move_to_end(segment)
        if len(self._used) > self._limit:
            next(iter(self._used)).rest()

    def keep(self, segment: "Segment") -> None:
        """This one has released all but what is to be flushed."""
        self._used.pop(segment, None)
        self.unflushed[segment] = None

    def forget(self, segment: "Segment") -> None:
        """This one has released its files."""
        self._used.pop(segment, None)
        self.unflushed.pop(segment, None)

    def use_index(self, segment: "Segment", memory_bytes: int) -> None:
        """This one's index is used now, and takes as many bytes."""
        self.index_bytes += memory_bytes - self._indexes.get(segment, 0)
        self._indexes[segment] = memory_bytes
        self._indexes.move_to_end(segment)
        while self.index_bytes > self._index_limit and len(self._indexes) > 1:
            oldest = next(iter(self._indexes))
            oldest.save_index()
            oldest.drop_index()

    def forget_index(self, segment: "Segment") -> None:
        """This one has dropped its index."""
        self.index_bytes -= self._indexes.pop(segment, 0)

    def release_idle(self) -> None:
        """Release what was not used since the last call."""
        while self._used:
            oldest, used = next(iter(self._used.items()))
            if used == self._round:
                break
            oldest.rest()
        self._round += 1


class NotCached(Exception):
    """A read would wait for the disk: `job` loads the index or the bytes that it needs."""

    def __init__(self, job: SharedJob) -> None:
        super().__init__()
        self.job = job


class _Broken(CorruptBatch):
    """No batch can be read at a position, where `offset` should be."""

    def __init__(self, position: int, offset: int, why: object) -> None:
        super().__init__(str(why))
        self.position = position
        self.offset = offset


class SegmentReader:
    """The file of a segment as it was when this was made, read by a descriptor of its own.

    For background jobs and tools: on any thread, one at a time. This class maps nothing: a page that the
    disk cannot give would be a SIGBUS.

    Damage. What the disk cannot give (EIO) counts as bad bytes. A batch that does not match its
    checksums ends where its length says, if that is under a right checksum and a header follows there;
    else at the next entry of the index that leads to the batch it names; else at the segment's
    end. Bytes are never searched for something that looks like a header: a record may hold anything, a
    whole batch for instance.
    """

    __slots__ = ("_fd", "base_offset", "damage", "directory", "end_offset", "name", "size")

    _flags = os.O_RDONLY

    def __init__(
        self, directory: Path, name: SegmentName, size: int, end_offset: int, damage: Any = ()
    ) -> None:
        self.directory = directory
        self.name = name
        self.base_offset = name.base
        self.size = size
        self.end_offset = end_offset
        self.damage: tuple[Damage, ...] = damage
        self._fd = -1

    @property
    def sparse(self) -> bool:
        """Whether compaction may have left no batch at its end."""
        return self.name.generation > 0

    @property
    def path(self) -> Path:
        return self.directory / (self.name.stem + LOG_SUFFIX)

    @property
    def index_path(self) -> Path:
        return self.directory / (self.name.stem + INDEX_SUFFIX)

    def close(self) -> None:
        """Close the file. It is opened again when needed."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def read(self, position: int, count: int) -> memoryview:
        """Up to `count` bytes, none behind `size`, nor behind what the disk can give.

        Raises StorageError.
        """
        fd = self._file()
        try:
            return memoryview(read_at(fd, min(count, self.size - position), position))
        except OSError as error:
            if error.errno == errno.EIO:
                logger.error("%s: cannot be read at position %d", self.path, position)
                return _NOTHING
            raise disk_error(f"{self.path} cannot be read", error) from error

    def headers(
        self, position: int, window: int = _HEADERS_WINDOW
    ) -> Iterator[tuple[BatchHeader, int]]:
        """Header and position of each batch from `position` on; marked damage is passed over.

        Raises CorruptBatch, StorageError.
        """
        view, start, window = _NOTHING, position, min(window, _HEADERS_WINDOW)
        marked = {each.position: each for each in self.damage if each.end > each.position}
        offset = self.base_offset
        while position < self.size:
            if position in marked:
                offset, position = marked[position].next_offset, marked[position].end
                continue
            at = position - start
            if len(view) - at < HEADER_BYTES:
                view, start, at = self.read(position, window), position, 0
            try:
                header = batch_header.read_header(view, at)
            except CorruptBatch as error:
                raise _Broken(position, offset, error) from error
            if position + header.length > self.size:
                why = f"a batch is cut off at {self.size - position} bytes"
                raise _Broken(position, header.base_offset, why)
            if header.length > _SKIPPED_BYTES:
                window = HEADER_BYTES  # more would mostly be bodies, which nobody looks at
            yield header, position
            # How many records it has may have rotted: that is behind the body's checksum.
            offset = header.base_offset + 1
            position += header.length

    def batches(
        self, position: int = 0, offset: int | None = None
    ) -> Iterator[tuple[BatchHeader, int] | Damage]:
        """Every batch from `position` on, where `offset` should be, with its position, wholly checked.

        What is no batch comes as Damage, and so does what is missing at the end unless the segment is
        sparse; damage that is marked already is passed over in silence. Offsets rise, and need not be
        dense: what a follower copies has the gaps that compaction has left. Raises StorageError.
        """
        offset = self.base_offset if offset is None else offset
        view, start = _NOTHING, position
        marked = {each.position: each for each in self.damage if each.end > each.position}
        while position < self.size:
            if position in marked:
                offset, position = marked[position].next_offset, marked[position].end
                continue
            at = position - start
            left = len(view) - at
            if left < HEADER_BYTES or left < batch_header.batch_length(view, at):
                view, start, at = self.read(position, _BATCHES_WINDOW), position, 0
                leader = self._leader(position)
                if leader is not None and leader[1] > len(view):
                    view = self.read(position, leader[1])
            try:
                header = batch_header.check(view, at)
                if header.base_offset < offset:
                    raise CorruptBatch(f"it holds offset {header.base_offset}, not {offset}")
            except CorruptBatch:
                damage = self.damage_at(position, offset)
                yield damage
                offset, position = damage.next_offset, damage.end
                continue
            yield header, position
            offset, position = header.next_offset, position + header.length
        known = any(each.offset <= offset < each.next_offset for each in self.damage)
        if offset < self.end_offset and not self.sparse and not known:
            yield Damage(offset, self.end_offset, self.size, self.size)

    def damage_at(self, position: int, offset: int) -> Damage:
        """How far the damage goes that begins at `position`, where `offset` should be.

        Raises StorageError.
        """
        found = self._leader(position)
        if found is not None and found[0] >= offset:
            offset, end = found[0], position + found[1]
            following = self._leader(end)
            if following is not None and following[0] > offset:
                return Damage(offset, following[0], position, end)
            if end == self.size:
                return Damage(offset, max(offset + 1, self.end_offset), position, end)
        for entry, at in self._entries_after(position):
            leader = self._leader(at)
            if entry > offset and leader is not None and leader[0] == entry:
                return Damage(offset, entry, position, at)
        return Damage(offset, max(offset, self.end_offset), position, self.size)

    def start_near(self, offset: int) -> int:
        """Where a batch at or before `offset` begins: by the index, if it leads to the batch it names."""
        index = self.load_index() if offset > self.base_offset else None
        if index is not None:
            entry, position = index.lookup(offset)
            leader = self._leader(position) if position else None
            if leader is not None and leader[0] == entry:
                return position
        return 0

    def end_before(self, offset: int) -> tuple[int, int]:
        """Where the file and the log end without the batch that holds `offset` and all behind it.

        What is damaged in front of it goes, too. Raises StorageError.
        """
        start = self.start_near(offset)
        position, end = start, self.base_offset
        try:
            for header, at in self.headers(start):
                position, end = at, min(offset, header.base_offset)
                if header.next_offset > offset:
                    break
                position, end = at + header.length, header.next_offset
        except _Broken as broken:
            if broken.position == start:
                position, end = 0, self.base_offset
        finally:
            self.close()
        return position, end

    def headers_left(self, position: int = 0) -> Iterator[tuple[BatchHeader, int]]:
        """As `headers`, passing over whatever is damaged. Raises StorageError."""
        while position < self.size:
            try:
                for header, at in self.headers(position):
                    yield header, at
                    position = at + header.length
                return
            except _Broken as broken:
                logger.error("%s: damaged at position %d: %s", self.path, broken.position, broken)
                position = self.damage_at(broken.position, broken.offset).end

    def load_index(self, interval: int = 1) -> SegmentIndex | None:
        """The index in the file, which may cover a beginning of the log; None if it is missing or wrong."""
        try:
            data = self.index_path.read_bytes()
        except OSError:
            return None
        return SegmentIndex.decode(data, self.base_offset, interval, self.size)

    def open_index(self, interval: int) -> SegmentIndex:
        """The index, completed by the headers up to the segment's end. Raises StorageError.

        A file that is wrong goes before anything is appended: it may be of a log that was longer, which
        was cut, and a later life would take it for a beginning of what was appended since.
        """
        index = self.load_index(interval)
        if index is None:
            index = SegmentIndex(self.base_offset, interval)
            try:
                self.index_path.unlink()
                sync_directory(self.directory)
                logger.warning("%s: it is wrong, building it anew", self.index_path)
            except FileNotFoundError:
                pass
            except OSError as error:
                raise disk_error(f"{self.index_path} cannot be removed", error) from error
        self.complete_index(index)
        # The first append of a life gets an entry: no damage from before it reaches behind it.
        index.due = min(index.due, max(self.size, 1))
        return index

    def complete_index(self, index: SegmentIndex) -> None:
        """Add what the file lacked, by the headers. Raises StorageError."""
        end = index.saved_bytes
        for header, position in self.headers_left(end):
            if position > end:  # what is found behind damage gets an entry, to be found again
                index.due = position
            index.observe(header, position)
            end = position + header.length
        if index.last_append is None:  # what could tell has rotted, or was compacted away
            with suppress(OSError):
                index.last_append = os.stat(self.path).st_mtime_ns // 1_000_000

    def write_index(self, index: SegmentIndex) -> None:
        """Write the file, over an older one. Raises OSError.

        It is not flushed. A file that was written in part is built anew: its checksum is wrong.
        """
        data = index.encode(self.size, self.end_offset)
        fd = os.open(self.index_path, os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            write_at(fd, [data], 0)
            if os.fstat(fd).st_size > len(data):
                os.ftruncate(fd, len(data))
        finally:
            os.close(fd)
        index.saved_bytes = self.size

    def _entries_after(self, position: int) -> Iterator[tuple[int, int]]:
        index = self.load_index()
        return iter(()) if index is None else index.entries_after(position)

    def _leader(self, position: int) -> tuple[int, int] | None:
        """Base offset and length of the batch at `position`, if they are under a right checksum."""
        found = _leader_in(self.read(position, LEADER_BYTES) if position < self.size else _NOTHING)
        return None if found is None or found[1] > self.size - position else found

    def _file(self) -> int:
        if self._fd < 0:
            try:
                self._fd = os.open(self.path, self._flags)
            except OSError as error:
                raise disk_error(f"{self.path} cannot be opened", error) from error
        return self._fd


def _leader_in(view: memoryview, position: int = 0) -> tuple[int, int] | None:
    """Base offset and length of the batch at `position`, if they are under a right checksum."""
    leader = view[position : position + LEADER_BYTES]
    if len(leader) < LEADER_BYTES:
        return None
    if crc32c(leader[:-4]) != int.from_bytes(leader[-4:], "big"):
        return None
    length = batch_header.batch_length(leader)
    return None if length < HEADER_BYTES else (int.from_bytes(leader[:8], "big"), length)


class Segment(SegmentReader):
    """A segment of an open log: `<name>.log` and `<name>.index`.

    Invariants. `[0, size)` of the file is whole batches whose offsets rise from `base_offset` up to
    `end_offset` (exclusive). Bytes in there are never written again: compaction makes another file.

    Append. One `pwritev` at `size`; `size` moves once all is written. If that fails, the file is cut
    back to `size`, so that what follows joins on; if even that fails, `torn` says so, and the log
    takes no more until it is recovered.

    Index. It is in memory while it is used. The file is written when the segment is sealed, at an orderly
    stop, before the index is dropped (`OpenSegments`), and behind each 16 MiB of appends.

    Crash. The file of an index is never flushed. One that is missing, older than a part of the log, or
    written in part costs a look at the headers that it lacks.

    Reading. The index leads near, headers lead on. Bodies are not looked at: their reader compares the
    checksum, and so does the scrubber in time. What cannot be read is marked as damage, in memory
    alone, and its offsets are answered with `CorruptBatch`, which says where to go on; all others are
    served. A later life finds the same damage again when it reads.

    Within `without_waiting` a read gives what is in the page cache, large ones as views of a mapping, and
    raises NotCached for what is not. The file is never shortened below a view: a failed append is cut back
    behind all of them, and a truncation calls `stop_mapping` first.

    Files are open while they are needed. Owner: the log, on the broker's event loop.
    """

    __slots__ = (
        *("_files", "_index", "_interval", "_is_mapped", "_job", "_limit", "_mapped", "_next"),
        *("_read_ahead", "_read_jobs", "_summary", "_was_read"),
        *("durable_size", "is_checked", "sealed", "torn"),
    )

    _flags = os.O_RDWR

    def __init__(
        self,
        directory: Path,
        name: SegmentName,
        interval: int,
        files: OpenSegments,
        *,
        size: int = 0,
        end_offset: int | None = None,
    ) -> None:
        end = name.base if end_offset is None else end_offset
        super().__init__(directory, name, size, end)
        self._files = files
        self._interval = interval
        self._index: SegmentIndex | None = None
        self._job: SharedJob | None = None
        self._summary: Summary | None = None
        self._mapped: MappedFile | None = None
        self._is_mapped = True
        self._read_ahead: int | None = (
            None  # bytes that a job brings at least; None: reads may wait
        )
        self._read_jobs: dict[int, SharedJob] = {}  # by position
        # By position: what a job has read; None: it is not kept, and the next read may wait for the disk.
        self._was_read: dict[int, memoryview | None] = {}
        self._next = (name.base, 0)  # offset and position where the last read ended
        self._limit = (name.base, 0)  # of the high watermark, if that lies in here
        self.sealed = end_offset is not None
        self.is_checked = False  # a background job has looked at the index since it was used
        self.durable_size = size
        self.torn: str | None = None

    @classmethod
    def create(
        cls, directory: Path, base_offset: int, interval: int, files: OpenSegments
    ) -> "Segment":
        """A new, empty, active segment. Raises StorageError, also if there is one."""
        segment = cls(directory, SegmentName(base_offset), interval, files)
        try:
            segment._fd = os.open(segment.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        except OSError as error:
            raise disk_error(f"{segment.path} cannot be created", error) from error
        segment._index = SegmentIndex(base_offset, interval)
        files.use(segment)
        return segment

    @property
    def dirty(self) -> bool:
        """Whether anything was appended since the last flush."""
        return self.durable_size < self.size

    def reader(self) -> SegmentReader:
        """The file as it is, for another thread to read."""
        return SegmentReader(self.directory, self.name, self.size, self.end_offset, self.damage)

    def files(self) -> list[Path]:
        """The index first: without its log it would be taken for that of another one."""
        return [self.index_path, self.path]

    # -- writing ------------------------------------------------------------------------------------

    def append(self, batches: Sequence[Stamped], end_offset: int, now_ms: int) -> None:
        """Write `batches`, stamped with `now_ms`, behind the last one; all or nothing.

        Raises StorageError.
        """
        self._files.use(self)
        index, fd = self._used_index(), self._file()
        position, largest = self.size, index.largest_timestamp
        parts = [part for each in batches for part in (each.leader, each.rest)]
        try:
            self.size = write_at(fd, parts, position)
        except OSError as error:
            raise self._cut_back(fd, error) from error
        for base_offset, timestamp, leader, rest in batches:
            if position >= index.due:
                index.add(base_offset, position, largest)
            if timestamp > largest:
                largest = timestamp
            position += len(leader) + len(rest)
        self.end_offset, index.largest_timestamp = end_offset, largest
        if index.first_append is None:
            index.first_append = now_ms
        index.last_append = max(now_ms, index.last_append or now_ms)
        if self.size - index.saved_bytes > _UNSAVED_BYTES:
            self.save_index()  # a kill costs a look at as many bytes at most

    def descriptor_to_flush(self) -> int:
        """A descriptor for a background job to flush and to close. Raises StorageError."""
        self._files.use(self)
        fd = self._file()
        try:
            return os.dup(fd)
        except OSError as error:
            raise disk_error(f"{self.path} cannot be opened", error) from error

    def seal(self) -> None:
        """No more appends will come."""
        self.save_index()
        self.rest()
        self.sealed = True

    def save_index(self) -> None:
        """Write the index if its file lacks a part of it. One that cannot be written is built again later."""
        if self._index is None or self._index.saved_bytes == self.size:
            return
        try:
            self.write_index(self._index)
        except OSError as error:
            if not self._files.room.is_missed(error):
                logger.warning("%s: it is not saved: %s", self.index_path, error)

    def drop_index(self) -> None:
        """Have the index in memory no more. It is loaded again when needed."""
        if self._index is not None:
            self._summary = self._index.summary
            self._index = None
        self._files.forget_index(self)

    def flush(self) -> None:
        """Return when it is on disk. Raises StorageError."""
        try:
            os.fdatasync(self._file())
        except OSError as error:
            raise disk_error(f"{self.path} could not be flushed", error) from error
        self.flushed(self.size)

    def flushed(self, size: int) -> None:
        """So much of it is on disk."""
        self.durable_size = max(self.durable_size, size)
        if not self.dirty and self in self._files.unflushed:
            self._close_file()

    def rest(self) -> None:
        """As `release`, but a file that is not flushed yet stays open: the kernel tells whoever has it open
        that it could not be written, and may forget that when nobody has."""
        if not self.dirty or self._fd < 0:
            self._close_file()
        else:
            self._files.keep(self)

    def release(self) -> None:
        """Close the file, and drop the index as it is. Both are opened again when needed.

        A job that loads the index has no effect any more: the segment may be gone for good, and a file
        that is written now would be taken for that of a later segment of the same name.
        """
        self._job = None
        self._read_jobs.clear()
        self.drop_index()
        self._close_file()

    def _close_file(self) -> None:
        self._mapped = None
        self._forget_read()
        self.close()
        self._files.forget(self)

    def cut_to(self, position: int, end_offset: int) -> "Segment":
        """What is appended to in place of this one, whose file was cut there, beside the event loop.

        It is another object: what others know of this one holds for the bytes that were there.
        """
        self.release()
        name = self.name.opened
        left = Segment(self.directory, name, self._interval, self._files, size=position)
        left.end_offset = end_offset
        left.durable_size = min(self.durable_size, position - 1)
        left.damage = tuple(each for each in self.damage if each.next_offset <= end_offset)
        return left

    def _cut_back(self, fd: int, cause: OSError) -> StorageError:
        try:
            os.ftruncate(fd, self.size)  # in place: no view reaches behind that
        except OSError:
            self.torn = f"{self.path} has a torn end and takes no more: {cause}"
            return StorageError(self.torn)
        return disk_error(f"{self.path} could not be appended to", cause)

    def _cut(self, size: int) -> None:
        self.size = size  # in place: this log has given no views yet
        fd = self._file()
        try:
            if os.fstat(fd).st_size > size:
                os.ftruncate(fd, size)
                os.fsync(fd)
        except OSError as error:
            raise disk_error(f"{self.path} cannot be cut", error) from error

    # -- reading ------------------------------------------------------------------------------------

    @contextmanager
    def without_waiting(self, max_bytes: int) -> Iterator[None]:
        """Have no read in here wait for the disk: NotCached is raised instead, and all is done again after
        its job, which brings `max_bytes` more, for what is read next.

        Its bytes are kept until then: the page cache may lose them at once where memory is short.
        """
        self._read_ahead = self._interval + HEADER_BYTES + max_bytes
        try:
            yield
        finally:
            self._read_ahead = None
        self._forget_read()

    def read(self, position: int, count: int) -> memoryview:
        """As the reader does, or from the page cache alone (`without_waiting`). Raises NotCached, too."""
        end = min(position + count, self.size)
        is_large = end - position >= MAPPED_BYTES
        # What is not on disk yet is in the page cache.
        if self._read_ahead is not None and (is_large or position < self.durable_size):
            for start, found in self._was_read.items():
                if found is not None and start <= position and end <= start + len(found):
                    return found[position - start : end - start]
            mapped = self._mapping()
            if mapped is not None and mapped.is_cached(position, end):
                if is_large:
                    return mapped.view(position, end)
            elif not (
                mapped is None
                or self._files.may_wait
                or self._was_read.get(position, _NOTHING) is None
            ):
                raise NotCached(self._read_job(position, max(end, position + self._read_ahead)))
        return super().read(position, count)

    def _mapping(self) -> MappedFile | None:
        """A mapping of the whole file; None if there can be none."""
        if self._is_mapped and (self._mapped is None or self._mapped.size < self.size):
            self._mapped = self._files.mapped.map(self._file(), self.size, self)
        return self._mapped

    def stop_mapping(self) -> bool:
        """Give no more views; → whether some that were given are still in use."""
        self._mapped, self._is_mapped = None, False
        return self._files.mapped.is_used(self)

    def _read_job(self, position: int, end: int) -> SharedJob:
        if position not in self._read_jobs:
            end = min(end, self.size)
            self._read_jobs[position] = SharedJob(
                partial(_read_through, self.reader(), position, end),
                partial(self._read_ended, position, end - position),
                Lane.READ,
            )
        return self._read_jobs[position]

    def _read_ended(self, position: int, count: int, job: SharedJob, outcome: object) -> None:
        if self._read_jobs.get(position) is job:
            del self._read_jobs[position]
            self._files.kept_bytes -= len(self._was_read.pop(position, None) or _NOTHING)
            is_kept = self._files.kept_bytes + count <= _KEPT_BYTES
            if is_kept and isinstance(outcome, memoryview) and len(outcome) == count:
                self._files.kept_bytes += count
                self._was_read[position] = outcome
            else:
                self._was_read[position] = None

    def _forget_read(self) -> None:
        self._files.kept_bytes -= sum(map(len, filter(None, self._was_read.values())))
        self._was_read.clear()

    def fetch(
        self, offset: int, max_bytes: int, end: int, *, at_least_one: bool
    ) -> memoryview | None:
        """Whole batches from the one that holds `offset` on, or the next behind a gap.

        As many as fit into `max_bytes`, up to offset `end` and the end of the segment; the first
        one comes whole even if it is larger, if `at_least_one`. None, if no batch is left from there
        on. `base_offset <= offset < end_offset`. Raises CorruptBatch, StorageError.
        """
        self._files.use(self)
        limit = self.size if end >= self.end_offset else self._limit_at(end)
        if self.damage:
            self._refuse_damaged(offset)
        # One header more than asked for: with it the batch behind the last one can be recognised.
        count = HEADER_BYTES + (max_bytes if at_least_one and max_bytes > HEADER_BYTES else 0)
        # Most often at the segment's start, or where the last read ended.
        position, view, first = self._next[1], _NOTHING, None
        if offset == self.base_offset:
            position = 0
        if offset in (self.base_offset, self._next[0]) and position < limit:
            view = self.read(position, count)
            with suppress(CorruptBatch):
                first = batch_header.read_header(view)
        if first is None or first.base_offset != offset:
            position = self._find(offset)
            if position >= limit:
                return None if limit == self.size else _NOTHING
            view = self.read(position, count)
            first = batch_header.read_header(view)
        length = first.length
        if length >= max_bytes:
            if length > max_bytes and not at_least_one:
                return _NOTHING
            self._next = (first.next_offset, position + length)
            return (view if length <= len(view) else self.read(position, length))[:length]
        if not at_least_one:
            view = self.read(position, max_bytes + HEADER_BYTES)
        stop = min((d.position for d in self.damage if d.position > position), default=limit)
        if position + max_bytes >= min(stop, limit):
            if stop >= self.size == limit:
                self._next = (self.end_offset, limit)
            return view[: min(stop, limit) - position]
        return view[: self._last_boundary(view, position, first, max_bytes)]

    def _last_boundary(
        self, view: memoryview, start: int, first: BatchHeader, max_bytes: int
    ) -> int:
        """Where the last whole batch within `max_bytes` of `view` ends, by index and some headers.

        More of the segment follows, so there is a batch behind; its header proves the boundary. If it
        has rotted, what headers have led to is whole. Who comes for more is told.
        """
        _, position = self._used_index().at_position(start + max_bytes)
        end = max(first.length, position - start)
        while (leader := _leader_in(view, end)) is not None:
            offset, length = leader
            if end + length > max_bytes:
                self._next = (offset, start + end)
                break
            end += length
        return end

    def _limit_at(self, high_watermark: int) -> int:
        """The position of the high watermark, which lies within this segment."""
        if self._limit[0] != high_watermark:
            inside = high_watermark > self.base_offset
            try:
                self._limit = high_watermark, self._find(high_watermark) if inside else 0
            except CorruptBatch:  # what lies in front of that can be read all the same
                behind = (d.position for d in self.damage if d.next_offset > high_watermark)
                return min(behind, default=0)
        return self._limit[1]

    def _find(self, offset: int) -> int:
        """Position of the batch that holds `offset`, or of the next one behind a gap; or the size.

        What cannot be read is marked as damage. Raises CorruptBatch, StorageError.
        """
        while True:
            try:
                return self._locate(offset)
            except _Broken as broken:
                self.mark(self.damage_at(broken.position, broken.offset))
            self._refuse_damaged(offset)

    def _locate(self, offset: int) -> int:
        entry, position = self._used_index().lookup(offset)
        if entry < self._limit[0] <= offset:
            entry, position = self._limit
        for damage in self.damage:
            if damage.next_offset <= offset and damage.end > position:
                entry, position = damage.next_offset, damage.end
        start = position
        before: BatchHeader | None = None
        try:
            for header, at in self.headers(start, self._interval + HEADER_BYTES):
                if header.base_offset > offset:
                    break
                before, position = header, at
                if header.base_offset == offset:
                    break
        except _Broken as broken:
            if before is None or before.next_offset <= offset:
                wanted = entry if before is None else min(before.next_offset, offset)
                raise _Broken(broken.position, wanted, broken) from broken
        known, position = self.base_offset, start if before is None else position
        if before is not None:
            if before.next_offset > offset:
                return position
            # A gap, if the batch in front of it is as long as it says: else its records would be missed.
            try:
                batch_header.check(self.read(position, before.length))
            except CorruptBatch as error:
                raise _Broken(position, before.base_offset, error) from error
            known, position = before.next_offset, position + before.length
        for damage in self.damage:
            # Behind the gap, or at the end of what is there.
            if damage.position == position and (position < damage.end or position == self.size):
                self._refuse_damaged(damage.offset)
        if position == self.size and self.sealed and not self.sparse:
            raise _Broken(position, known, "the end of the segment is missing")
        return position

    def find_time(self, timestamp: int, log_start: int = 0) -> int | None:
        """Base offset of the first batch with a record of `timestamp` or later, if there is one.

        Batches wholly before `log_start` were given up. Raises StorageError.
        """
        self._files.use(self)
        while True:
            entry, start = self._used_index().before_time(timestamp)
            try:
                for header, _ in self.headers(start, self._interval + HEADER_BYTES):
                    if header.next_offset > log_start and largest_timestamp(header) >= timestamp:
                        return header.base_offset
                return None
            except _Broken as broken:
                offset = entry if broken.position == start else broken.offset
                self.mark(self.damage_at(broken.position, offset))

    # -- damage and recovery ------------------------------------------------------------------------

    def mark(self, damage: Damage) -> None:
        """Never serve these bytes again."""
        logger.error(
            "%s: offsets %d to %d are damaged (bytes %d to %d) and not served any more",
            *(self.path, damage.offset, damage.next_offset - 1, damage.position, damage.end),
        )
        others = [known for known in self.damage if known.position != damage.position]
        self._files.damaged.add(self.directory)
        self.damage = tuple(sorted((*others, damage), key=lambda each: each.position))

    def is_damaged(self, offset: int) -> bool:
        """Whether it is so marked."""
        return any(known.offset <= offset < known.next_offset for known in self.damage)

    def _reread(self, position: int) -> None:
        """Let the checks that follow see the disk: behind a flush that has failed the page cache may have
        clean pages that are not there."""
        start = position - position % PAGESIZE  # the kernel keeps a page that is named in part
        with suppress(OSError):
            os.posix_fadvise(self._file(), start, 0, os.POSIX_FADV_DONTNEED)

    def verify(self, position: int, offset: int, flushed: int = MAX_OFFSET) -> bool:
        """Check a sealed segment from `position`, where `offset` lies, and mark what is damaged.

        Only what lies before is known to be on disk: the rest may be in the page cache alone, where a
        broker that was killed has left it. → Whether it has a torn end, from offset `flushed` on, which
        is not marked. Raises StorageError.
        """
        self.durable_size = min(position, self.size - 1)
        self._reread(position)
        for found in self.batches(position, offset):
            if isinstance(found, Damage):
                if found.offset >= flushed and self._has_torn_end(found):
                    return True
                self.mark(found)
        return False

    def _has_torn_end(self, damage: Damage) -> bool:
        is_end = damage.end == self.size and not self.sparse
        return is_end and self._is_legible(damage.position) and self._is_torn(damage.position)

    def recover(
        self, position: int, offset: int, before_loss: Callable[[], None] = lambda: None
    ) -> None:
        """Take over the active segment from `position`, where `offset` lies; up to there it is on disk.

        It is cut at the first bad batch: if that is no torn end, what goes may have been acknowledged,
        and `before_loss` is called first. Raises StorageError.
        """
        self._files.use(self)
        found = self.size
        if position > found:
            logger.error("%s: has %d bytes, %d were on disk", self.path, found, position)
            position, offset = 0, self.base_offset
        self._reread(position)
        valid, self.end_offset = position, offset
        for each in self.batches(position, offset):
            if isinstance(each, Damage):
                if not self._is_legible(valid):
                    raise StorageError(f"{self.path} cannot be read behind position {valid}")
                if not self._is_torn(valid):
                    before_loss()
                logger.warning(
                    "%s: cut the last %d of %d bytes, where offset %d should be",
                    *(self.path, found - valid, found, self.end_offset),
                )
                break
            header, at = each
            self.end_offset, valid = header.next_offset, at + header.length
        # On disk before anything follows: a power cut would bring the torn end back behind that.
        self._cut(valid)
        self.durable_size = min(position, valid - 1)

    def _is_torn(self, position: int) -> bool:
        """Whether what is there is the beginning of a batch, or nothing but zeros: so a write leaves it
        that was interrupted. Rot leaves something else."""
        left = self.size - position
        view = self.read(position, LEADER_BYTES)
        if left < LEADER_BYTES or not any(view):
            return True
        right = crc32c(view[: LEADER_BYTES - 4]) == int.from_bytes(view[LEADER_BYTES - 4 :], "big")
        return right and batch_header.batch_length(view) > left

    def _is_legible(self, position: int) -> bool:
        """Whether the disk gives what is there: what it does not may be whole."""
        count = min(self.size - position, _BATCHES_WINDOW)
        return len(self.read(position, count)) == count

    def _refuse_damaged(self, offset: int) -> None:
        for known in self.damage:
            if known.offset <= offset < known.next_offset:
                raise CorruptBatch(
                    f"offset {offset} is damaged on disk with all from {known.offset} on: "
                    f"go on at {known.next_offset}"
                )

    # -- the index ----------------------------------------------------------------------------------

    @property
    def summary(self) -> Summary | None:
        """Times of appends and the largest timestamp; None if they were not read yet."""
        return self._summary if self._index is None else self._index.summary

    def learn(self, summary: Summary | None) -> None:
        """Take over what a background job has read; None: it could not, and nobody tries for ever."""
        self._summary = summary
        self.is_checked |= summary is None

    def index_job(self) -> SharedJob | None:
        """What loads the index in the background, or builds it anew; None: it is loaded.

        Also None if that was tried in vain: then who asks is told why.
        """
        if self._index is not None or self.is_checked or not (self.size or self.sealed):
            return None
        if self._job is None:
            work = partial(_load_index, self.reader(), self._interval)
            self._job = SharedJob(work, partial(self._index_loaded, self.sealed, self.size))
        return self._job

    def _index_loaded(
        self, sealed: bool, size: int, job: SharedJob, found: SegmentIndex | Exception | None
    ) -> None:
        """Take over the index, unless the segment has changed, was released or was dropped since."""
        if self._job is not job:
            return
        self._job = None
        if (self.sealed, self.size) == (sealed, size):
            self.is_checked = True
            if self._index is None and isinstance(found, SegmentIndex):
                self._take_index(found)

    def load_summary(self) -> Summary:
        """The summary, with the index if it was not read yet. Raises StorageError."""
        if self.summary is None:
            self._files.use(self)
            self._used_index()
        assert self.summary is not None
        return self.summary

    def _used_index(self) -> SegmentIndex:
        """The index; it is loaded here where no job has done so. Raises NotCached, StorageError."""
        index = self._index
        if index is None and self._read_ahead is not None and not self._files.may_wait:
            job = self.index_job()
            if job is not None:
                raise NotCached(job)
        self.is_checked = False
        if index is None:
            self._read_ahead = None  # it waits for the disk, and so may the rest of the look-up
            index = self.open_index(self._interval)
            self._take_index(index)
        else:
            self._files.use_index(self, index.memory_bytes)
        return index

    def _take_index(self, index: SegmentIndex) -> None:
        """Here and never in a job, so that none is written behind a cut."""
        self._index = index
        self._files.use_index(self, index.memory_bytes)
        self.save_index()

    def _entries_after(self, position: int) -> Iterator[tuple[int, int]]:
        if self._index is None:
            return super()._entries_after(position)
        return self._index.entries_after(position)


def flush_if_crowded(segments: Iterable[Segment], files: OpenSegments) -> None:
    """Flush some at a start, where nobody waits for the disk. Raises StorageError."""
    if not files.is_crowded:
        return
    for segment in segments:  # in order: what is not flushed lies at the end
        if segment in files.unflushed:
            segment.flush()


def _read_through(reader: SegmentReader, position: int, end: int) -> memoryview:
    """The bytes `[position, end)` of a file, on any thread. Raises StorageError."""
    try:
        return reader.read(position, end - position)
    finally:
        reader.close()


def _load_index(reader: SegmentReader, interval: int) -> SegmentIndex | None:
    """The background's part. What cannot be read is left to who asks for it, who is told."""
    try:
        return reader.open_index(interval)
    except StorageError as error:
        logger.warning("%s", error)
        return None
    finally:
        reader.close()


class SummaryJob:
    """Reads the summaries of some segments in the background (Job)."""

    def __init__(self, segments: Iterable[Segment]) -> None:
        self._work = [(each, each.reader()) for each in segments]

    def run(self) -> list[Summary | None]:
        """Any thread. What cannot be read stays unknown."""
        # Of one that is built anew the entries are not needed.
        indexes = (_load_index(reader, reader.size + 1) for _, reader in self._work)
        return [None if each is None else each.summary for each in indexes]

    def finish(self, found: Sequence[Summary | None] | Exception) -> None:
        """Hand over what was found to the segments, unless they have changed since."""
        results = [None] * len(self._work) if isinstance(found, Exception) else found
        for (segment, reader), summary in zip(self._work, results, strict=True):
            if segment.size == reader.size:
                segment.learn(summary)


def headers_from(readers: Sequence[SegmentReader], offset: int) -> Iterator[BatchHeader]:
    """The headers of the batches from `offset` on, as far as they can be read, in neighbouring segments.

    A batch in which `offset` lies comes first: a log may begin within it, and know it from there alone.
    Any thread, one at a time. Raises StorageError.
    """
    for reader in readers:
        try:
            for header, _ in reader.headers_left(reader.start_near(offset)):
                if header.next_offset > offset:
                    yield header
        finally:
            reader.close()
