"""The segments of one log, in order: finding the right one, beginning a new one, giving up old ones."""

import logging
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import Final, overload

from folkmoot.brokers.storage import directories
from folkmoot.brokers.storage.atomic_file import sync_directory
from folkmoot.brokers.storage.compaction.segment_swap import Replacement
from folkmoot.brokers.storage.config import LogConfig
from folkmoot.brokers.storage.flushing import dirty_end
from folkmoot.brokers.storage.openfiles import OpenFiles
from folkmoot.brokers.storage.segment import Segment
from folkmoot.protocol.batch_header import BatchHeader
from folkmoot.protocol.errors import StorageError

logger = logging.getLogger(__name__)

_MAX_RELATIVE_OFFSET: Final = 2**32 - 1
_NOTHING: Final = memoryview(b"")

Remove = Callable[[Sequence[Path]], None]


class Segments(Sequence[Segment]):
    """What a log is made of. Every segment ends where the next one begins; the last one is active.

    `names` counts the files that were made, `names_on_disk` those of them that a flush of the
    directory has covered. A flush that failed leaves its segments in doubt for good, whatever was
    flushed since. Files given up are renamed at once, so that a later segment may have their names,
    and removed by `remove`.

    Owner: the log, on the broker's reactor thread.
    """

    __slots__ = (
        *("_directory", "_doubtful", "_files", "_list", "_remove"),
        *("config", "names", "names_on_disk"),
    )

    def __init__(
        self, directory: Path, config: LogConfig, files: OpenFiles, remove: Remove
    ) -> None:
        self._directory = directory
        self._files = files
        self._remove = remove
        self._list: list[Segment] = []
        self._doubtful: list[Segment] = []
        self.config = config
        self.names = self.names_on_disk = 0

    @overload
    def __getitem__(self, number: int) -> Segment: ...

    @overload
    def __getitem__(self, number: slice) -> list[Segment]: ...

    def __getitem__(self, number: int | slice) -> Segment | list[Segment]:
        return self._list[number]

    def __len__(self) -> int:
        return len(self._list)

    def find(
        self, found: Sequence[tuple[int, int]], damaged: Collection[int], sparse_before: int
    ) -> None:
        """Take over what lies in the directory: base offset and size of each, in order."""
        self._list = [
            Segment(
                *(self._directory, base, self.config, self._files),
                size=size,
                end_offset=end,
                active=False,
                sparse=base < sparse_before,
            )
            for (base, size), (end, _) in pairwise(found)
        ]
        for base, size in found[-1:]:
            self._list.append(Segment(self._directory, base, self.config, self._files, size=size))
        for segment in self._list:
            if segment.base_offset in damaged:
                segment.load_damage()

    # -- finding ------------------------------------------------------------------------------------

    @property
    def end_offset(self) -> int:
        """The offset that the next record gets."""
        return self._list[-1].end_offset if self._list else 0

    def containing(self, offset: int) -> Segment:
        """The segment that an offset of the log belongs to."""
        return self._list[bisect_right(self._list, offset, key=attrgetter("base_offset")) - 1]

    def read(self, offset: int, max_bytes: int) -> memoryview:
        """Whole batches from the one that contains `offset` on, or the next that is left; or nothing.

        Raises CorruptBatch, StorageError.
        """
        while offset < self.end_offset:
            segment = self.containing(offset)
            found = segment.read(offset, max_bytes)
            if found:
                return found
            offset = segment.end_offset
        return _NOTHING

    def find_time(self, timestamp: int) -> int:
        """Base offset of the first batch with a record of `timestamp` or later, else the end.

        Raises CorruptBatch, StorageError.
        """
        for segment in self._list:
            if segment.highest_timestamp() >= timestamp:
                found = segment.find_time(timestamp)
                if found is not None:
                    return found
        return self.end_offset

    def sealed(self, base_offset: int) -> Segment | None:
        """The sealed segment that begins there, if there is one."""
        number = bisect_left(self._list, base_offset, key=attrgetter("base_offset"))
        found = self._list[number] if number < len(self._list) - 1 else None
        return found if found is not None and found.base_offset == base_offset else None

    def headers(self, offset: int) -> Iterator[BatchHeader]:
        """The headers of the batches from `offset` on, as far as they can be read. Raises StorageError."""
        for segment in self._list:
            if segment.end_offset > offset:
                yield from segment.headers(offset)

    def dirty(self) -> list[Segment]:
        """Those that are not flushed yet."""
        return dirty_end(self._list)

    @property
    def new_names(self) -> bool:
        """Whether files were made since the directory was last flushed."""
        return self.names_on_disk < self.names

    def sound(self) -> bool:
        """Whether no flush has failed of what is not on disk: the next would succeed, proving nothing."""
        return not self._doubtful and all(segment.sound for segment in self.dirty())

    def below(self, offset: int) -> int:
        """How many segments lie wholly before `offset`; the active one never does."""
        return sum(segment.base_offset <= offset for segment in self._list[1:])

    # -- changing -----------------------------------------------------------------------------------

    def for_append(self, total: int, now: int) -> Segment:
        """The segment for an append of so many bytes: the active one, or a new one after it."""
        if not self._list:
            return self.roll()
        active = self._list[-1]
        for segment in (active, *self.dirty(), *self._doubtful):
            segment.require_sound()
        too_long = active.size > 0 and active.size + total > self.config.segment_bytes
        too_far = self.end_offset - active.base_offset > _MAX_RELATIVE_OFFSET
        began = active.began()
        # Or begun while the clock was far ahead: it would not grow old for as long.
        too_old = began is not None and abs(now - began) >= self.config.longest_active * 1000
        return self.roll() if too_long or too_far or too_old else active

    def roll(self, base_offset: int | None = None) -> Segment:
        """Begin a new segment, at the log's end unless told otherwise. Raises StorageError."""
        base = self.end_offset if base_offset is None else base_offset
        segment = Segment.create(self._directory, base, self.config, self._files)
        self.names += 1
        if self._list:
            self._list[-1].seal()
        self._list.append(segment)
        return segment

    def flush(self) -> None:
        """Return when all of them, and their names, are on disk. Raises StorageError."""
        for segment in self._doubtful:
            segment.require_sound()
        if self.new_names:
            try:
                sync_directory(self._directory)
            except OSError as error:
                raise StorageError(f"{self._directory} cannot be flushed: {error}") from error
            self.names_on_disk = self.names
        for segment in self.dirty():
            segment.flush()

    def doubt(self, segments: Sequence[Segment]) -> None:
        """A flush of these has failed: what became of it, no later one can tell."""
        self._doubtful += [segment for segment in segments if segment in self._list]

    def replace(self, old: Sequence[Segment], replacement: Replacement, size: int) -> list[Path]:
        """Put a compacted segment of `size` bytes, committed, in the place of `old` ones.

        → the old files, to be removed once the directory is flushed. Raises OSError; what is half
        done then is finished by the next start.
        """
        first = self._list.index(old[0])
        for segment in old:
            segment.release()
        doomed = replacement.put_aside()
        replacement.move_in()
        self._list[first : first + len(old)] = [
            Segment(
                *(self._directory, replacement.base, self.config, self._files),
                size=size,
                end_offset=replacement.end,
                active=False,
                sparse=True,
            )
        ]
        return doomed

    def drop(self, count: int) -> None:
        """Take the first segments out of the log; their files go, the oldest first.

        Their names are free when this returns: a later topic's files may soon have them.
        """
        dropped, self._list = self._list[:count], self._list[count:]
        self._doubtful = [segment for segment in self._doubtful if segment not in dropped]
        if dropped:
            logger.info(
                "%s: deleting %d segments, up to offset %d",
                *(self._directory.name, count, self._list[0].base_offset),
            )
            doomed = [path for segment in dropped for path in segment.remove()]
            try:
                self._remove(directories.put_aside(doomed))
            except OSError as error:
                logger.error("%s: files are left behind: %s", self._directory, error)
