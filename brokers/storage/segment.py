"""One segment of a log: a file of batches back to back, with an index beside it."""

import errno
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from functools import partial
from mmap import PAGESIZE
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from folkmoot.brokers.jobs.jobs import Lane, SharedJob
from folkmoot.brokers.storage.disk_room import DiskRoom
from folkmoot.brokers.storage.files.atomic_file import (
    disk_error,
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

_SKIPPED_BYTES: Final = 8 * 1024
_HEADERS_WINDOW: Final = 64 * 1024 + HEADER_BYTES
_BATCHES_WINDOW: Final = 4 * 1024 * 1024
_UNSAVED_BYTES: Final = 16 * 1024 * 1024
_NOTHING: Final = memoryview(b"")
_NAME = re.compile(
    r"(?P<base>[0-9]{20})(-(?P<end>[0-9]{20})-(?P<generation>[1-9][0-9]{0,8}))?\.log"
)


class SegmentName(NamedTuple):
    """`<base>.log`, or `<base>-<end>-<generation>.log` if compaction has made it.

    A compacted segment replaces all segments of a lower generation that begin in `[base, end)`. Once it
    is appended to again, `end` is `base`: it then replaces no other segment.
    """

    base: int
    end: int = 0
    generation: int = 0

    @classmethod
    def parse(cls, file_name: str) -> "SegmentName | None":
        """Return the name of a `.log`, None if `file_name` is none."""
        match = _NAME.fullmatch(file_name)
        if match is None or int(match["base"]) > MAX_OFFSET:
            return None
        return cls(int(match["base"]), int(match["end"] or 0), int(match["generation"] or 0))

    @property
    def appendable(self) -> "SegmentName":
        """Its name when it is appended to again."""
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
    producer_part: memoryview


class OpenSegments:
    """Segments with open files, in the order of their first use in a period between two `release_idle`.

    At most `limit` files: above it the first one is closed, and so is one that was not used for a
    period. The file of a segment that is not flushed yet stays open beyond the limit
    (`Segment.close_if_flushed`); many of these bring the next flush forward (`is_crowded`).

    Owner: the LogManager, on the broker's event loop.
    """

    def __init__(self, limit: int = 1_000) -> None:
        self.damaged: set[Path] = set()
        """Directories of logs with newly found damage; its consumer clears it."""
        self.room = DiskRoom()
        self.mapped = MappedFiles()
        self.may_wait = True
        """True if reads may wait for the disk. False where NotCached is caught (RequestHandlers)."""
        self.unflushed: dict[Segment, None] = {}
        """Released segments whose file stays open until it is flushed."""
        self.period = 0
        """Counts the calls of `release_idle`."""
        self._limit = max(1, limit)
        self._used: dict[Segment, None] = {}

    def __len__(self) -> int:
        return len(self._used)

    @property
    def is_crowded(self) -> bool:
        """Return whether too many segments wait for a flush to let it wait for its time."""
        return len(self.unflushed) > self._limit

    def use(self, segment: "Segment") -> None:
        """Note the first use of `segment` in this period: it has opened its file or is about to."""
        self.forget(segment)
        segment.used_in = self.period
        self._used[segment] = None
        if len(self._used) > self._limit:
            next(iter(self._used)).close_if_flushed()

    def keep(self, segment: "Segment") -> None:
        """Note that `segment` has released all but the file that is not flushed yet."""
        self.forget(segment)
        self.unflushed[segment] = None

    def forget(self, segment: "Segment") -> None:
        """Note that `segment` has closed its file."""
        segment.used_in = -1
        self._used.pop(segment, None)
        self.unflushed.pop(segment, None)

    def release_idle(self) -> None:
        """Release what was not used since the last call."""
        while self._used and (oldest := next(iter(self._used))).used_in < self.period:
            oldest.close_if_flushed()
        self.period += 1


class NotCached(Exception):
    """A read would wait for the disk: `job` loads the index or the bytes that it needs."""

    def __init__(self, job: SharedJob) -> None:
        super().__init__()
        self.job = job


class SegmentReader:
    """The file of a segment as it was when this was made, read by a descriptor of its own.

    For background jobs and tools: on any thread, one at a time. It maps nothing: a page that the disk
    cannot give would be a SIGBUS.

    Damage. Bytes that the disk cannot read (EIO) count as bad. A batch that does not match its
    checksums ends where its length says, if the length has a right checksum and a header follows there;
    else at the next entry of the index that leads to the batch it names; else at the segment's
    end. Bytes are never searched for something that looks like a header: a record may contain a whole
    batch.
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
        """Return whether compaction may have left no batch at its end."""
        return self.name.generation > 0

    @property
    def path(self) -> Path:
        return self.directory / (self.name.stem + LOG_SUFFIX)

    @property
    def index_path(self) -> Path:
        return self.directory / (self.name.stem + INDEX_SUFFIX)

    def close(self) -> None:
        """Close the file; the next read opens it again."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def read(self, position: int, count: int) -> memoryview:
        """Read up to `count` bytes, fewer at `size` or where the disk gives no more. Raises StorageError."""
        fd = self._fd if self._fd >= 0 else self._file()
        count = min(count, self.size - position)
        try:
            data = os.pread(fd, count, position)
            while 0 < len(data) < count:
                try:
                    more = os.pread(fd, count - len(data), position + len(data))
                except OSError:
                    break  # the bytes before the bad ones are good
                if not more:
                    break
                data += more
            return memoryview(data)
        except OSError as error:
            if error.errno == errno.EIO:
                logger.error("%s: cannot be read at position %d", self.path, position)
                return _NOTHING
            raise disk_error(f"{self.path} cannot be read", error) from error

    def walk(
        self,
        position: int = 0,
        offset: int | None = None,
        *,
        bodies: bool = True,
        window: int = _BATCHES_WINDOW,
    ) -> Iterator[tuple[BatchHeader, int] | Damage]:
        """Yield every batch from `position` on, where `offset` should be, with its position.

        Unreadable bytes are yielded as Damage, marked damage included. With `bodies` all bytes are
        checked, and so is that the segment reaches `end_offset`, unless it is sparse; without, only
        what headers can show. Offsets rise and need not be dense: a follower copies the gaps that
        compaction has left. `window`: bytes to read at a time. Raises StorageError.
        """
        offset = self.base_offset if offset is None else offset
        view, start = _NOTHING, position
        marked = {each.position: each for each in self.damage}
        while position < self.size:
            header, damage = None, marked.get(position)
            if damage is None:
                at = position - start
                left = len(view) - at
                if left < HEADER_BYTES or (bodies and left < batch_header.batch_length(view, at)):
                    view, start, at = self.read(position, window), position, 0
                    leader = _leader_in(view)
                    if bodies and leader is not None and leader[1] > len(view):
                        view = self.read(position, leader[1])
                try:
                    header = (batch_header.check if bodies else batch_header.read_header)(view, at)
                    if position + header.length > self.size:
                        raise CorruptBatch(f"it is cut off at {self.size - position} bytes")
                    if bodies and header.base_offset < offset:
                        raise CorruptBatch(f"it holds offset {header.base_offset}, not {offset}")
                except CorruptBatch:
                    damage = self.damage_at(position, offset)
            if damage is not None:
                yield damage
                offset, position = damage.next_offset, damage.end
                continue
            assert header is not None
            if not bodies and header.length > _SKIPPED_BYTES:
                window = HEADER_BYTES  # more would mostly be bodies
            yield header, position
            # The number of records may have rotted: only the body's checksum covers it.
            offset = header.next_offset if bodies else header.base_offset + 1
            position += header.length
        if bodies:
            missing = [each for each in self.damage if each.position >= self.size]
            if offset < self.end_offset and not self.sparse and not missing:
                missing = [Damage(offset, self.end_offset, self.size, self.size)]
            yield from missing

    def batches(
        self, position: int = 0, offset: int | None = None
    ) -> Iterator[tuple[BatchHeader, int] | Damage]:
        """Walk through all batches without the damage that is marked already. Raises StorageError."""
        known = self.damage
        return (found for found in self.walk(position, offset) if found not in known)

    def headers(self, position: int = 0) -> Iterator[tuple[BatchHeader, int]]:
        """Yield the headers that can be read from `position` on. Raises StorageError."""
        for found in self.walk(position, bodies=False, window=_HEADERS_WINDOW):
            if not isinstance(found, Damage):
                yield found

    def damage_at(self, position: int, offset: int) -> Damage:
        """Find the end of the damage at `position`, where `offset` should be. Raises StorageError."""
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
        """Return where a batch at or before `offset` begins, by the index if that can be believed."""
        index = self.load_index() if offset > self.base_offset else None
        if index is not None:
            entry, position = index.lookup(offset)
            leader = self._leader(position) if position else None
            if leader is not None and leader[0] == entry:
                return position
        return 0

    def end_before(self, offset: int) -> tuple[int, int]:
        """Return where file and log end without the batch that holds `offset` and all behind it.

        Without damage in front of it, too. Raises StorageError.
        """
        with closing(self):
            start = self.start_near(offset)
            position, end = start, self.base_offset
            for found in self.walk(start, bodies=False, window=_HEADERS_WINDOW):
                if isinstance(found, Damage):
                    return (position, end) if found.position > start else (0, self.base_offset)
                header, at = found
                if header.next_offset > offset:
                    return at, min(offset, header.base_offset)
                position, end = at + header.length, header.next_offset
        return position, end

    def load_index(self, interval: int = 1) -> SegmentIndex | None:
        """Read the index file, which may cover only a beginning of the log; None: missing or wrong."""
        try:
            data = self.index_path.read_bytes()
        except OSError:
            return None
        return SegmentIndex.decode(data, self.base_offset, interval, self.size)

    def open_index(self, interval: int) -> SegmentIndex:
        """Load the index and complete it by the headers behind it. Raises StorageError.

        A wrong file is removed before anything is appended: it may be of a longer log that was cut, and
        a later start would take it for the index of what was appended since.
        """
        index = self.load_index(interval)
        if index is None:
            index = SegmentIndex(self.base_offset, interval)
            try:
                self.index_path.unlink()
                sync_directory(self.directory)
                logger.warning("%s: wrong, building it anew", self.index_path)
            except FileNotFoundError:
                pass
            except OSError as error:
                raise disk_error(f"{self.index_path} cannot be removed", error) from error
        self.complete_index(index)
        # The first append since a start gets an entry: damage from before ends there.
        index.due = min(index.due, max(self.size, 1))
        return index

    def complete_index(self, index: SegmentIndex) -> None:
        """Add what the file lacks, by the headers. Raises StorageError."""
        end = index.saved_bytes
        for header, position in self.headers(end):
            if position > end:  # the batch behind damage gets an entry, to be found again
                index.due = position
            index.observe(header, position)
            end = position + header.length
        if index.last_append is None:  # all headers have rotted, or were compacted away
            with suppress(OSError):
                index.last_append = os.stat(self.path).st_mtime_ns // 1_000_000

    def write_index(self, index: SegmentIndex) -> None:
        """Write the file, over an older one, without a flush. Raises OSError.

        A file that was written in part has a wrong checksum and is built anew.
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
        """Return base offset and length of the batch at `position`, if their checksum is right."""
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
    """Return base offset and length of the batch at `position`, if their checksum is right."""
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
    `end_offset` (exclusive). These bytes are never written again: compaction makes another file.

    Append. One `pwritev` at `size`; `size` moves once all is written. If that fails, the file is cut
    back to `size`. If even that fails, `torn` says so, and the log takes no more until it is recovered.

    Index. It is in memory while it is used. The file is written when the segment is sealed, at an
    orderly stop, before the index is dropped (`OpenSegments`), and behind each 16 MiB of appends. It is
    never flushed: after a crash one that is missing, older than a part of the log, or written in part
    costs a look at the headers that it lacks.

    Reading. The index leads near, headers lead to the batch. The reader checks the body, and so does the
    scrubber in time. Unreadable bytes are marked as damage, in memory alone, and their offsets are answered
    with `CorruptBatch`, which names the next offset; all others are served. A later start
    finds the same damage again when it reads.

    Within `without_waiting` a read gives what is in the page cache, large ones as views of a mapping, and
    raises NotCached for the rest. The file is never shortened below a view: a failed append is cut back
    behind all of them, and a truncation calls `stop_mapping` first.

    Owner: the log, on the broker's event loop.
    """

    __slots__ = (
        *("_files", "_index_job", "_interval", "_is_mapped", "_limit", "_mapped", "_next"),
        *("_summary", "_was_tried"),
        *("durable_size", "index", "read_ahead", "read_jobs", "sealed", "torn", "used_in"),
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
        super().__init__(directory, name, size, name.base if end_offset is None else end_offset)
        self._files = files
        self._interval = interval
        self.index: SegmentIndex | None = None
        """None: it is not in memory (`use_index`)."""
        self._index_job: SharedJob | None = None
        # A job has loaded the index, or failed to, since it was used: the next use may wait for the disk.
        self._was_tried = False
        self._summary: Summary | None = None
        self._mapped: MappedFile | None = None
        self._is_mapped = True
        self.read_ahead: int | None = None
        """While set, a read that would wait for the disk raises NotCached. It is done again after the job,
        which reads so many bytes more into the page cache."""
        self.read_jobs: dict[int, tuple[int, SharedJob | None]] = {}
        """Jobs by position, with their end; None: it has ended, and a read up to there may wait."""
        self._next = (name.base, 0)  # offset and position where the last read ended
        self._limit = (name.base, 0)  # of the high watermark, if that lies in here
        self.sealed = end_offset is not None
        self.durable_size = size
        self.torn: str | None = None
        self.used_in = -1
        """The period of OpenSegments in which it was used last; -1: not since its file was closed."""

    @classmethod
    def create(
        cls, directory: Path, base_offset: int, interval: int, files: OpenSegments
    ) -> "Segment":
        """Make a new, empty, active segment. Raises StorageError, also if there is one."""
        segment = cls(directory, SegmentName(base_offset), interval, files)
        try:
            segment._fd = os.open(segment.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        except OSError as error:
            raise disk_error(f"{segment.path} cannot be created", error) from error
        segment.index = SegmentIndex(base_offset, interval)
        files.use(segment)
        return segment

    @property
    def dirty(self) -> bool:
        """Return whether anything was appended since the last flush."""
        return self.durable_size < self.size

    def reader(self) -> SegmentReader:
        """Return the file as it is now, for another thread to read."""
        return SegmentReader(self.directory, self.name, self.size, self.end_offset, self.damage)

    def files(self) -> list[Path]:
        """Return its files. The index first: without its log a later segment would take it over."""
        return [self.index_path, self.path]

    # -- writing ------------------------------------------------------------------------------------

    def append(self, batches: Sequence[Stamped], end_offset: int, now_ms: int) -> None:
        """Write `batches`, stamped with `now_ms`, behind the last one; all or nothing.

        Raises StorageError.
        """
        if self.used_in != self._files.period:
            self._files.use(self)
        index, self._was_tried = self.index or self.use_index(), False
        fd = self._fd if self._fd >= 0 else self._file()
        position, largest = self.size, index.largest_timestamp
        parts = [part for each in batches for part in (each.leader, each.producer_part)]
        try:
            self.size = write_at(fd, parts, position)
        except OSError as error:
            raise self._cut_back(fd, error) from error
        for base_offset, timestamp, leader, producer_part in batches:
            if position >= index.due:
                index.add(base_offset, position, largest)
            if timestamp > largest:
                largest = timestamp
            position += len(leader) + len(producer_part)
        self.end_offset, index.largest_timestamp = end_offset, largest
        if index.first_append is None:
            index.first_append = now_ms
        index.last_append = max(now_ms, index.last_append or now_ms)
        if self.size - index.saved_bytes > _UNSAVED_BYTES:
            self.save_index()

    def _cut_back(self, fd: int, cause: OSError) -> StorageError:
        try:
            os.ftruncate(fd, self.size)  # in place: no view reaches behind that
        except OSError:
            self.torn = f"{self.path} has a torn end and takes no more: {cause}"
            return StorageError(self.torn)
        return disk_error(f"{self.path} could not be appended to", cause)

    def seal(self) -> None:
        """Take no more appends."""
        self.save_index()
        self.sealed = True
        if self.used_in < 0:  # its file was closed before, when its index was not saved
            self.drop_index()

    def descriptor_to_flush(self) -> int:
        """Return a descriptor for a background job to flush and to close. Raises StorageError."""
        self._files.use(self)
        try:
            return os.dup(self._file())
        except OSError as error:
            raise disk_error(f"{self.path} cannot be opened", error) from error

    def flush(self) -> None:
        """Flush it here and now. Raises StorageError."""
        try:
            os.fdatasync(self._file())
        except OSError as error:
            raise disk_error(f"{self.path} could not be flushed", error) from error
        self.note_flushed(self.size)

    def note_flushed(self, size: int) -> None:
        """Note that the first `size` bytes are on disk."""
        self.durable_size = max(self.durable_size, size)
        if not self.dirty and self in self._files.unflushed:
            self._close_file()

    # -- files, opened when needed ------------------------------------------------------------------

    def save_index(self) -> None:
        """Write the index if its file lacks a part of it. If that fails, a later start builds it again."""
        if self.index is None or self.index.saved_bytes == self.size:
            return
        try:
            self.write_index(self.index)
        except OSError as error:
            if not self._files.room.is_missed(error):
                logger.warning("%s: it is not saved: %s", self.index_path, error)

    def close_if_flushed(self) -> None:
        """Close the file unless it is not flushed yet: the kernel reports a failed write only to those
        who have the file open. Drop the index, unless it is that of the active segment and not saved."""
        if self.sealed or (self.index is not None and self.index.saved_bytes == self.size):
            self.drop_index()
        if self.dirty and self._fd >= 0:
            self._files.keep(self)
        else:
            self._close_file()

    def release(self) -> None:
        """Close the file, and drop the index as it is: the segment may be deleted, and a file that is
        written now would be taken for that of a later segment of the same name."""
        self._index_job = None
        self.read_jobs.clear()
        self.drop_index()
        self._close_file()

    def drop_index(self) -> None:
        """Drop the index as it is. It is loaded again when needed."""
        if self.index is not None:
            self._summary, self.index = self.index.summary, None

    def _close_file(self) -> None:
        self._mapped = None
        self.close()
        self._files.forget(self)

    def cut_to(self, position: int, end_offset: int) -> "Segment":
        """Return the segment to append to in place of this one, whose file a job has cut there.

        It is another object: readers and jobs that hold this one know the bytes that were there.
        """
        self.release()
        name = self.name.appendable
        left = Segment(self.directory, name, self._interval, self._files, size=position)
        left.end_offset = end_offset
        left.durable_size = min(self.durable_size, position - 1)
        left.damage = tuple(each for each in self.damage if each.next_offset <= end_offset)
        return left

    # -- reading ------------------------------------------------------------------------------------

    def forget_ended_jobs(self) -> None:
        """A look-up has succeeded: the next one may have jobs again."""
        for position in [each for each, (_, job) in self.read_jobs.items() if job is None]:
            del self.read_jobs[position]

    def read(self, position: int, count: int) -> memoryview:
        """Read as a SegmentReader does, or from the page cache alone (`read_ahead`).

        Raises NotCached, StorageError.
        """
        end = min(position + count, self.size)
        is_large = end - position >= MAPPED_BYTES
        # Unflushed bytes are in the page cache.
        if self.read_ahead is not None and (is_large or position < self.durable_size):
            mapped = self._mapping()
            if mapped is not None and mapped.is_cached(position, end):
                if is_large:
                    return mapped.view(position, end)
            elif mapped is not None and not self._files.may_wait:
                ahead = self._interval + HEADER_BYTES + self.read_ahead
                job = self._read_job(position, max(end, position + ahead))
                if job is not None:
                    raise NotCached(job)
        return super().read(position, count)

    def _mapping(self) -> MappedFile | None:
        """Return a mapping of the whole file; None if there can be none."""
        if self._is_mapped and (self._mapped is None or self._mapped.size < self.size):
            self._mapped = self._files.mapped.map(self._file(), self.size, self)
        return self._mapped

    def stop_mapping(self) -> bool:
        """Give no more views; → whether some that were given are still in use."""
        self._mapped, self._is_mapped = None, False
        return self._files.mapped.is_used(self)

    def _read_job(self, position: int, end: int) -> SharedJob | None:
        end = min(end, self.size)
        known = self.read_jobs.get(position)
        if known is None or known[0] < end:  # a large batch needs more than its header
            job = SharedJob(
                partial(_read_through, self.reader(), position, end),
                partial(self._read_ended, position, end),
                Lane.READ,
            )
            known = self.read_jobs[position] = end, job
        return known[1]

    def _read_ended(self, position: int, end: int, job: SharedJob, _: object) -> None:
        if self.read_jobs.get(position) == (end, job):
            self.read_jobs[position] = end, None

    def fetch(
        self, offset: int, max_bytes: int, end: int, *, at_least_one: bool
    ) -> memoryview | None:
        """Read whole batches from the one that holds `offset` on, or the next behind a gap.

        As many as fit into `max_bytes`, up to offset `end` and the end of the segment; the first
        one comes whole even if it is larger, if `at_least_one`. None, if no batch is left from there
        on. `base_offset <= offset < end_offset`. Raises CorruptBatch, StorageError.
        """
        if self.used_in != self._files.period:
            self._files.use(self)
        limit = self.size if end >= self.end_offset else self._limit_at(end)
        if self.damage:
            self._refuse_damaged(offset)
        # One header more than asked for: it proves where the last batch ends.
        count = HEADER_BYTES + (max_bytes if at_least_one else 0)
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
            view = self.read(position, HEADER_BYTES + max_bytes)
        stop = min((d.position for d in self.damage if d.position > position), default=limit)
        stop = min(stop, limit)
        if position + max_bytes < stop:
            return view[: self._last_boundary(view, position, first, max_bytes)]
        if stop == self.size:
            self._next = (self.end_offset, stop)
        return view[: stop - position]

    def _last_boundary(
        self, view: memoryview, start: int, first: BatchHeader, max_bytes: int
    ) -> int:
        """Find where the last whole batch within `max_bytes` of `view` ends, by index and some headers.

        More of the segment follows: the header of the next batch proves the boundary. If that has
        rotted, the batches before are returned, and a read behind them meets the damage.
        """
        _, position = self.use_index().at_position(start + max_bytes)
        end = max(first.length, position - start)
        while (leader := _leader_in(view, end)) is not None:
            offset, length = leader
            if end + length > max_bytes:
                self._next = (offset, start + end)
                break
            end += length
        return end

    def _limit_at(self, high_watermark: int) -> int:
        """Return the position of the high watermark, which lies within this segment."""
        if self._limit[0] != high_watermark:
            inside = high_watermark > self.base_offset
            try:
                self._limit = high_watermark, self._find(high_watermark) if inside else 0
            except CorruptBatch:  # what lies before the damage can be read
                behind = (d.position for d in self.damage if d.next_offset > high_watermark)
                return min(behind, default=0)
        return self._limit[1]

    def _find(self, offset: int) -> int:
        """Return the position of the batch that holds `offset`, or of the next one behind a gap, or size.

        Unreadable bytes are marked as damage. Raises CorruptBatch, StorageError.
        """
        self._refuse_damaged(offset)
        entry, start = self.use_index().lookup(offset)
        near = self._limit[1] if entry < self._limit[0] <= offset else start
        window = self._interval + HEADER_BYTES
        before: tuple[BatchHeader, int] | None = None
        for found in self.walk(near, bodies=False, window=window):
            if isinstance(found, Damage) or found[0].base_offset > offset:
                break
            before = found
            if found[0].base_offset == offset:
                break
        if before is not None and before[0].next_offset > offset:
            return before[1]
        # Behind a gap, unless it is damage: whole batches show it.
        for found in self.walk(start, entry, window=window):
            if isinstance(found, Damage):
                self.mark(found)
                if found.next_offset > offset:
                    self._refuse_damaged(max(offset, found.offset))
            elif found[0].next_offset > offset:
                return found[1]
        return self.size

    def find_time(self, timestamp: int, log_start: int = 0) -> int | None:
        """Return the base offset of the first batch with a record of `timestamp` or later, if any.

        Batches wholly before `log_start` are passed over. Raises NotCached, StorageError.
        """
        summary = self.summary or self.use_index().summary
        if summary.largest_timestamp < timestamp:
            return None
        self._files.use(self)
        entry, start = self.use_index().before_time(timestamp)
        window = self._interval + HEADER_BYTES
        for found in self.walk(start, entry, bodies=False, window=window):
            if isinstance(found, Damage):
                self.mark(found)
            elif found[0].next_offset > log_start and largest_timestamp(found[0]) >= timestamp:
                return found[0].base_offset
        return None

    # -- damage -------------------------------------------------------------------------------------

    def mark(self, damage: Damage) -> None:
        """Never serve these bytes again."""
        if any(known.position == damage.position for known in self.damage):
            return
        logger.error(
            "%s: offsets %d to %d are damaged (bytes %d to %d) and not served any more",
            *(self.path, damage.offset, damage.next_offset - 1, damage.position, damage.end),
        )
        self._files.damaged.add(self.directory)
        self.damage = tuple(sorted((*self.damage, damage), key=lambda each: each.position))

    def is_damaged(self, offset: int) -> bool:
        """Return whether it is marked as damaged."""
        return any(known.offset <= offset < known.next_offset for known in self.damage)

    def _refuse_damaged(self, offset: int) -> None:
        for known in self.damage:
            if known.offset <= offset < known.next_offset:
                raise CorruptBatch(
                    f"offset {offset} is damaged on disk with all from {known.offset} on: "
                    f"go on at {known.next_offset}"
                )

    # -- recovery -----------------------------------------------------------------------------------

    def recover(
        self,
        position: int,
        offset: int,
        *,
        is_last: bool = True,
        flushed: int = MAX_OFFSET,
        before_cut: Callable[[bool], None] = lambda is_torn: None,
    ) -> bool:
        """Check what lies from `position` on, where `offset` should be → whether the end was cut.

        Only what lies before is known to be on disk. The last segment is cut at its first bad batch,
        another one only at a torn end from offset `flushed` on; other damage is marked. `before_cut`
        is called first, with whether the end is torn: if not, what goes may have been acknowledged.
        Raises StorageError.
        """
        self._files.use(self)
        if position > self.size:
            logger.error("%s: has %d bytes, %d were on disk", self.path, self.size, position)
            position, offset = 0, self.base_offset
        self._reread(position)
        self.durable_size, start = min(position, self.size - 1), position
        for found in self.batches(position, offset):
            if not isinstance(found, Damage):
                offset, position = found[0].next_offset, found[1] + found[0].length
                continue
            is_torn = self._is_torn(found.position)
            is_end = found.end == self.size and found.offset >= flushed and not self.sparse
            if is_last or (is_torn and is_end):
                if is_torn is None:
                    raise StorageError(f"{self.path} cannot be read behind position {position}")
                before_cut(is_torn)
                self._cut(position, offset)
                self.durable_size = min(start, position - 1)
                return True
            self.mark(found)
            offset, position = found.next_offset, found.end
        if is_last:
            self.end_offset = offset
        return False

    def _reread(self, position: int) -> None:
        """Drop what the page cache has from `position` on: behind a flush that has failed it may have
        clean pages that are not on the disk."""
        start = position - position % PAGESIZE  # the kernel keeps a page that is named in part
        with suppress(OSError):
            os.posix_fadvise(self._file(), start, 0, os.POSIX_FADV_DONTNEED)

    def _is_torn(self, position: int) -> bool | None:
        """Return whether `position` has the beginning of a batch, or only zeros: so an interrupted write
        leaves
        it, rot leaves something else. None: the disk cannot give what is there, which may be whole."""
        left = self.size - position
        view = self.read(position, _BATCHES_WINDOW)
        if len(view) < min(left, _BATCHES_WINDOW):
            return None
        if left < LEADER_BYTES or not any(view[:LEADER_BYTES]):
            return True
        right = crc32c(view[: LEADER_BYTES - 4]) == int.from_bytes(
            view[LEADER_BYTES - 4 : LEADER_BYTES], "big"
        )
        return right and batch_header.batch_length(view) > left

    def _cut(self, size: int, end_offset: int) -> None:
        """Cut the file in place, which has no views yet, and on disk before anything follows: a power cut
        would bring the torn end back behind that."""
        logger.warning(
            "%s: cut the last %d of %d bytes, where offset %d should be",
            *(self.path, self.size - size, self.size, end_offset),
        )
        self.size, self.end_offset = size, end_offset
        try:
            os.ftruncate(self._file(), size)
            os.fsync(self._file())
        except OSError as error:
            raise disk_error(f"{self.path} cannot be cut", error) from error

    # -- the index ----------------------------------------------------------------------------------

    @property
    def summary(self) -> Summary | None:
        """Times of appends and the largest timestamp; None if they were not read yet."""
        return self._summary if self.index is None else self.index.summary

    def learn(self, summary: Summary | None) -> None:
        """Take over what a SummaryJob has read; None: it could not."""
        self._summary = summary
        self._was_tried |= summary is None

    @property
    def is_unread(self) -> bool:
        """Return whether its summary is unknown, and no job has failed to read it."""
        return self.summary is None and not self._was_tried

    def index_job(self) -> SharedJob | None:
        """Return the job that loads or builds the index in the background; None: it is loaded.

        Also None if a job has just failed: then the use of the index raises the error.
        """
        if self.index is not None or self._was_tried or not (self.size or self.sealed):
            return None
        if self._index_job is None:
            work = partial(_load_index, self.reader(), self._interval)
            self._index_job = SharedJob(work, partial(self._index_loaded, self.sealed, self.size))
        return self._index_job

    def _index_loaded(
        self, sealed: bool, size: int, job: SharedJob, found: SegmentIndex | Exception | None
    ) -> None:
        """Take over the index, unless the segment has changed or was released since."""
        if self._index_job is not job:
            return
        self._index_job = None
        if (self.sealed, self.size) == (sealed, size):
            self._was_tried = True
            if self.index is None and isinstance(found, SegmentIndex):
                self._set_index(found)

    def use_index(self) -> SegmentIndex:
        """Return the index; it is loaded here if no job has done so. Raises NotCached, StorageError."""
        index = self.index
        if index is None and self.read_ahead is not None and not self._files.may_wait:
            job = self.index_job()
            if job is not None:
                raise NotCached(job)
        self._was_tried = False
        if index is None:
            self.read_ahead = None  # it waits for the disk, and so may the rest of the look-up
            index = self.open_index(self._interval)
            self._set_index(index)
        return index

    def _set_index(self, index: SegmentIndex) -> None:
        """Take it, and write its file: never in a job, which might do so behind a cut."""
        self.index = index
        self._files.use(self)
        self.save_index()

    def _entries_after(self, position: int) -> Iterator[tuple[int, int]]:
        if self.index is None:
            return super()._entries_after(position)
        return self.index.entries_after(position)


def flush_if_crowded(segments: Iterable[Segment], files: OpenSegments) -> None:
    """Flush some at a start, which may wait for the disk. Raises StorageError."""
    if files.is_crowded:
        for segment in segments:  # in order: what is not flushed lies at the end
            if segment in files.unflushed:
                segment.flush()


def _read_through(reader: SegmentReader, position: int, end: int) -> None:
    """Have the page cache read the bytes `[position, end)`, on any thread. Raises StorageError."""
    with closing(reader):
        reader.read(position, end - position)


def _load_index(reader: SegmentReader, interval: int) -> SegmentIndex | None:
    """Load an index, on any thread; None if that fails: its next use raises the error."""
    with closing(reader):
        try:
            return reader.open_index(interval)
        except StorageError as error:
            logger.warning("%s", error)
            return None


class SummaryJob:
    """Read the summaries of some segments in the background (Job)."""

    def __init__(self, segments: Iterable[Segment]) -> None:
        self._work = [(each, each.reader()) for each in segments]

    def run(self) -> list[Summary | None]:
        """Any thread. Unreadable ones stay unknown."""
        # The interval is larger than the log: an index that is built anew needs no entries here.
        indexes = (_load_index(reader, reader.size + 1) for _, reader in self._work)
        return [None if each is None else each.summary for each in indexes]

    def finish(self, summaries: Sequence[Summary | None] | Exception) -> None:
        """Give the summaries to the segments, unless they have changed since."""
        results = [None] * len(self._work) if isinstance(summaries, Exception) else summaries
        for (segment, reader), summary in zip(self._work, results, strict=True):
            if segment.size == reader.size:
                segment.learn(summary)


def headers_from(readers: Sequence[SegmentReader], offset: int) -> Iterator[BatchHeader]:
    """Yield the headers that can be read of the batches from `offset` on, in neighbouring segments.

    A batch in which `offset` lies comes first: a log may begin within it. Any thread, one at a time.
    Raises StorageError.
    """
    for reader in readers:
        with closing(reader):
            for header, _ in reader.headers(reader.start_near(offset)):
                if header.next_offset > offset:
                    yield header
