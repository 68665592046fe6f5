"""One pass of compaction over one log: the background's part."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from folkmoot.brokers.storage.atomic_file import write_at
from folkmoot.brokers.storage.compaction.batch_filter import BatchFilter
from folkmoot.brokers.storage.compaction.cleaner_checkpoint import CleanerCheckpoint
from folkmoot.brokers.storage.compaction.offset_map import OffsetMap
from folkmoot.brokers.storage.compaction.segment_swap import (
    cleaned_path,
    commit,
    next_generation,
)
from folkmoot.brokers.storage.log_manager import remove_files
from folkmoot.brokers.storage.segment import Damage, SegmentName, SegmentReader
from folkmoot.protocol.batch_header import BatchHeader
from folkmoot.protocol.errors import ClosedError

STEP_BYTES: Final = 4 * 1024 * 1024
MOST_OFFSETS: Final = 2**32 - 1

Pause = Callable[[float], bool]
"""Sleeps for so many seconds; True when the broker stops."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What a pass is to do, said by the log's owner.

    All of `sources` is sealed, on disk, and below the high watermark. `groups` are those of them that
    are written anew, neighbours together; damaged ones are in none and stay. Tombstones go that lie
    before `droppable_before`, unless something in front of them stays as it is: it may have older
    records of their keys, which would be the last ones then.
    """

    directory: Path
    checkpoint: CleanerCheckpoint
    sources: Sequence[SegmentReader]
    groups: Sequence[Sequence[SegmentReader]]
    segment_bytes: int
    droppable_before: int
    memory_bytes: int
    bytes_per_second: int
    index_interval_bytes: int


class CleanedSegment(NamedTuple):
    """A new segment is in its place on disk; the log has to take it over."""

    name: SegmentName
    size: int


class Finished(NamedTuple):
    """All was written, and this is noted on disk."""

    checkpoint: CleanerCheckpoint


class CorruptSegment(Exception):
    """What was found in the segment that begins at `base_offset`."""

    def __init__(self, base_offset: int, damage: Damage) -> None:
        super().__init__(f"segment {base_offset} is damaged at {damage.position}")
        self.base_offset = base_offset
        self.damage = damage


class CleaningPass:
    """First the keys of all that was not compacted yet are indexed, as many as there is room for; then
    every segment that begins before the last of them is written anew with what is to stay, several
    into one as long as they fit. What is left for want of room is for the next pass.

    `step` blocks, and sleeps as often as `bytes_per_second` asks for it. Any thread, one at a time.
    """

    def __init__(self, plan: Plan, pause: Pause) -> None:
        self._plan = plan
        self._pause = pause
        self._moved = 0
        self._filter = BatchFilter(OffsetMap(plan.memory_bytes))
        self._clean_before = -1
        self._left: list[list[SegmentReader]] = []
        self._droppable_before = plan.droppable_before
        self._tombstones = 0

    def step(self, doomed: Sequence[Path], now: int) -> CleanedSegment | Finished:
        """Remove what the segment before has replaced, and write the next one.

        Raises CorruptSegment, ClosedError when the broker stops, StorageError, OSError.
        """
        remove_files(doomed)
        if self._clean_before < 0:
            self._clean_before = self._index_keys()
            self._choose_groups()
        while self._left:
            cleaned = self._write_next()
            if cleaned is not None:
                return cleaned
        checkpoint = self._plan.checkpoint.after_pass(
            *(self._clean_before, self._tombstones, self._plan.droppable_before, now)
        )
        checkpoint.save(self._plan.directory)
        return Finished(checkpoint)

    def _index_keys(self) -> int:
        """→ the offset up to which all keys are known."""
        since = reached = self._plan.checkpoint.clean_before
        for source in self._plan.sources:
            if _end(source) <= since:
                continue
            for header, data in self._batches(source):
                if header.next_offset > since:
                    if self._filter.keys.full:
                        return reached
                    self._filter.index_keys(header, data, since)
                    reached = header.next_offset
            reached = max(reached, _end(source))
        return reached

    def _choose_groups(self) -> None:
        before = self._clean_before
        groups = [
            [each for each in group if each.base_offset < before] for group in self._plan.groups
        ]
        self._left = [group for group in groups if group]
        filtered = {each.base_offset for group in self._plan.groups for each in group}
        stay = [s.base_offset for s in self._plan.sources if s.base_offset not in filtered]
        self._droppable_before = min([self._droppable_before, *stay])

    def _write_next(self) -> CleanedSegment | None:
        """Write one new segment, of one old one at least, and more as long as all of the next would fit.

        None: it does not differ from what it was made from.
        """
        plan, group = self._plan, self._left[0]
        generation = next_generation(plan.directory)
        # The end is not known yet: a file that is being written is called by its beginning.
        written = cleaned_path(plan.directory, SegmentName(group[0].base_offset, 0, generation))
        size = removed = count = 0
        fd = os.open(written, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            for source in group:
                too_long = size + source.size > plan.segment_bytes
                too_far = _end(source) - group[0].base_offset > MOST_OFFSETS
                if count and (too_long or too_far):
                    break
                count += 1
                size, fewer = self._copy(source, fd, size)
                removed += fewer
            os.fsync(fd)
        except BaseException:
            written.unlink(missing_ok=True)
            raise
        finally:
            os.close(fd)
        made_of, self._left[0] = group[:count], list(group[count:])
        if not self._left[0]:
            del self._left[0]
        if not removed and count == 1:
            written.unlink()
            return None
        name = SegmentName(made_of[0].base_offset, _end(made_of[-1]), generation)
        return CleanedSegment(
            name, commit(plan.directory, written, name, plan.index_interval_bytes)
        )

    def _copy(self, source: SegmentReader, fd: int, size: int) -> tuple[int, int]:
        """Append what is to stay of a segment; → the size then, and how many records were left out."""
        removed = waiting = 0
        parts: list[bytes | memoryview] = []
        for header, data in self._batches(source):
            kept = self._filter.retain(header, data, self._droppable_before)
            if kept.closed:
                self._droppable_before = min(self._droppable_before, header.base_offset)
            removed += header.record_count - kept.records
            self._tombstones += kept.tombstones
            if kept.data:
                parts.append(kept.data)
                waiting += len(kept.data)
                self._count(len(kept.data))
            if waiting >= STEP_BYTES:
                size, parts, waiting = write_at(fd, parts, size), [], 0
                os.fdatasync(fd)
        return write_at(fd, parts, size), removed

    def _batches(self, source: SegmentReader) -> Iterator[tuple[BatchHeader, memoryview]]:
        try:
            for found in source.batches():
                if isinstance(found, Damage):
                    raise CorruptSegment(source.base_offset, found)
                header, position = found
                self._count(header.length)
                yield header, source.read(position, header.length)
        finally:
            source.close()

    def _count(self, moved: int) -> None:
        """So many bytes were read or written: sleep when they were many."""
        self._moved += moved
        if self._moved >= STEP_BYTES:
            seconds, self._moved = self._moved / self._plan.bytes_per_second, 0
            if self._pause(seconds):
                raise ClosedError("the broker is stopping")


def _end(source: SegmentReader) -> int:
    assert source.end_offset is not None
    return source.end_offset
