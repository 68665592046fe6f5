"""The `.log` of a segment: whole batches back to back, and nothing known of what is in them."""

import errno
import logging
import mmap
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from folkmoot.brokers.storage.atomic_file import write_at
from folkmoot.brokers.storage.damage import Damage
from folkmoot.protocol import batch_header
from folkmoot.protocol.batch_header import HEADER_BYTES, BatchHeader
from folkmoot.protocol.errors import CorruptBatch, DiskFull, StorageError

logger = logging.getLogger(__name__)

_SKIPPED_BYTES = 8 * 1024


class LogFile:
    """A file that grows at its end.

    `[0, size)` is what was appended; nobody looks beyond, and bytes in there are never written again.

    Append. One `pwritev` at `size`; `size` moves once all is written. If that fails, the file is cut
    back to `size`, so that what follows joins on. If even that fails, it takes no more
    (`StorageError`) until it is recovered; reads go on.

    Reading. As long as it grows, `read` copies out of the page cache. Once sealed, the file never
    changes again, and `read` gives views of a mapping, which go to the socket without a copy; they
    keep the mapping alive, also when the file was released or deleted since. So a `.log` must never
    be cut in place while a broker runs: looking at a page that is gone is SIGBUS.

    Opened when first needed; `release` closes it until it is needed again.
    Owner: the segment, on the broker's reactor thread.
    """

    __slots__ = (
        "_durable",
        "_failure",
        "_fd",
        "_map",
        "_mode",
        "damage",
        "path",
        "sealed",
        "size",
        "sparse",
    )

    def __init__(
        self, path: Path, size: int, *, sealed: bool = False, read_only: bool = False
    ) -> None:
        self.path = path
        self.size = size
        self.sealed = sealed
        self.damage: tuple[Damage, ...] = ()
        # Compaction has taken offsets out: batches rise, but need not follow upon each other.
        self.sparse = False
        self._durable = size
        self._mode = os.O_RDONLY if read_only else os.O_RDWR
        self._map: mmap.mmap | None = None
        self._fd = -1
        self._failure: str | None = None

    def create(self) -> None:
        """Make the file, empty. Raises StorageError, also if there is one."""
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
            self._fd = os.open(self.path, flags, 0o644)
        except OSError as error:
            raise self.error("cannot be created", error) from error

    def release(self) -> None:
        """Close the file. It is opened again when needed."""
        self._map = None  # unmapped with the last view of it
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    # -- what is known of it ------------------------------------------------------------------------

    @property
    def sound(self) -> bool:
        """Whether no failure has left the end of the file in doubt."""
        return self._failure is None

    @property
    def dirty(self) -> bool:
        """Whether anything was appended since the last flush."""
        return self._durable < self.size

    def mark(self, damage: Damage) -> None:
        """Remember what has rotted; whoever walks passes over it from now on."""
        others = [known for known in self.damage if known.offset != damage.offset]
        self.damage = tuple(sorted((*others, damage), key=lambda each: each.position))

    def damage_at(self, offset: int) -> Damage | None:
        """The damage that an offset lies in."""
        for known in self.damage:
            if known.offset <= offset < known.next_offset:
                return known
        return None

    def past_damage(self, position: int) -> int:
        """Where the next whole batch is, if one should begin at `position`."""
        for known in self.damage:
            if known.position == position < known.end:
                position = known.end
        return position

    def stop(self, position: int) -> int:
        """How far whole batches reach from `position` on: to the next damage, or to the end."""
        return min((d.position for d in self.damage if d.position > position), default=self.size)

    # -- reading ------------------------------------------------------------------------------------

    def read(self, count: int, position: int) -> memoryview:
        """Up to `count` bytes, none beyond `size`. Raises StorageError."""
        if self.sealed:
            return memoryview(self._map or self._mapped())[position : position + count]
        try:
            return memoryview(os.pread(self._file(), min(count, self.size - position), position))
        except OSError as error:
            raise self.error("cannot be read", error) from error

    def walk(
        self,
        position: int,
        window_bytes: int,
        parse: Callable[[memoryview, int], BatchHeader] = batch_header.read_header,
    ) -> Iterator[tuple[BatchHeader, int]]:
        """Header and position of each batch from `position` on, read in windows; marked damage is
        passed over.

        `parse` is `read_header`, or `check` which needs the whole batch. Raises CorruptBatch,
        StorageError.
        """
        view, start, whole = memoryview(b""), position, parse is batch_header.check
        jumps = {each.position: each.end for each in self.damage if each.end > each.position}
        while position < self.size:
            if position in jumps:
                position = jumps[position]
                continue
            at = position - start
            left = len(view) - at
            if left < HEADER_BYTES or (whole and left < batch_header.batch_length(view, at)):
                view, start, at = self.read(window_bytes, position), position, 0
                if (
                    whole
                    and len(view) >= HEADER_BYTES
                    and batch_header.batch_length(view) > len(view)
                ):
                    # A length is believed, and so much memory taken, only after its own checksum.
                    view = self.read(batch_header.read_header(view).length, position)
            header = parse(view, at)
            if not whole and header.length > _SKIPPED_BYTES:
                window_bytes = HEADER_BYTES  # more would mostly be bodies, which nobody looks at
            if position + header.length > self.size:
                raise CorruptBatch(f"a batch is cut off at {self.size - position} bytes")
            yield header, position
            position += header.length

    # -- writing ------------------------------------------------------------------------------------

    def append(self, parts: list[bytes | memoryview]) -> None:
        """Write `parts` at the end, all or nothing; they are used up. Raises StorageError."""
        self.require_sound()
        fd = self._file()
        try:
            self.size = write_at(fd, parts, self.size)
        except OSError as error:
            raise self._cut_back(fd, error) from error

    def flush(self) -> None:
        """Return when all that was appended is on disk. Raises StorageError, then at each append too."""
        if not self.dirty:
            return
        self.require_sound()
        try:
            os.fdatasync(self._file())
        except OSError as error:
            raise self.flush_failed(error) from error
        self._durable = self.size

    def duplicate(self) -> int:
        """A descriptor of its own, for another thread to flush. Raises StorageError."""
        try:
            return os.dup(self._file())
        except OSError as error:
            raise self.error("cannot be opened", error) from error

    def flushed(self, size: int) -> None:
        """Another thread has flushed it, when it was so long."""
        self._durable = max(self._durable, size)

    def flushed_only(self, size: int) -> None:
        """No more than this is known to be on disk, and not that the file ends where it seems to: an
        earlier life may have cut it and died before that was on disk."""
        self._durable = min(self._durable, size, self.size - 1)

    def flush_failed(self, error: OSError) -> StorageError:
        """A flush has failed. It is not tried again: the kernel may have dropped the pages, so that a
        second one would succeed and prove nothing.
        """
        return self._fail("could not be flushed and takes no more", error)

    def found_size(self) -> int:
        """How long the file is, whatever `size` says. Raises StorageError."""
        try:
            return os.fstat(self._file()).st_size
        except OSError as error:
            raise self.error("cannot be read", error) from error

    def modified(self) -> int:
        """When the file was written to last (ms). Raises StorageError."""
        try:
            return os.stat(self.path).st_mtime_ns // 1_000_000
        except OSError as error:
            raise self.error("cannot be read", error) from error

    def recovered(self, size: int, durable: int) -> None:
        """The file is whole up to `size`; cut what is behind. Before anybody reads it, only then.

        Up to `durable` it is known to be on disk; that it is cut has to get there, too. Raises
        StorageError.
        """
        self.size, self._durable, self._failure = size, size, None
        self.flushed_only(durable)
        try:
            if os.fstat(self._file()).st_size > size:
                os.ftruncate(self._file(), size)
        except OSError as error:
            raise self.error("cannot be cut", error) from error

    def require_sound(self) -> None:
        """Raises StorageError if a failure has left the end of the file in doubt."""
        if self._failure is not None:
            raise StorageError(self._failure)

    def _cut_back(self, fd: int, cause: OSError) -> StorageError:
        try:
            os.ftruncate(fd, self.size)
        except OSError:
            return self._fail("has a torn end and takes no more", cause)
        return self.error("could not be appended to", cause)

    def _fail(self, what: str, error: OSError) -> StorageError:
        failure = self.error(what, error)
        self._failure = str(failure)
        logger.error("%s", failure)
        return failure

    def _mapped(self) -> mmap.mmap | bytes:
        try:
            fd = os.open(self.path, os.O_RDONLY)
            try:
                # No more than is there, should the file have lost its end.
                length = min(self.size, os.fstat(fd).st_size)
                if length == 0:
                    return b""
                self._map = mmap.mmap(fd, length, prot=mmap.PROT_READ)
                return self._map
            finally:
                os.close(fd)
        except OSError as error:
            raise self.error("cannot be opened", error) from error

    def _file(self) -> int:
        if self._fd < 0:
            try:
                self._fd = os.open(self.path, self._mode)
            except OSError as error:
                raise self.error("cannot be opened", error) from error
        return self._fd

    def error(self, what: str, error: OSError) -> StorageError:
        return disk_error(f"{self.path} {what}", error)


def disk_error(what: str, error: OSError) -> StorageError:
    """What to raise for an OSError: that the disk is full may pass, and is said as such."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return (DiskFull if full else StorageError)(f"{what}: {error.strerror or error}")
