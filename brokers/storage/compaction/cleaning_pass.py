"""One pass of compaction over one log, and what is noted of it: the background's part."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from folkmoot.brokers.storage.files.atomic_file import load_json, write_at
from folkmoot.brokers.storage.recovery import CLEANER_CHECKPOINT_FILE
from folkmoot.brokers.storage.segment import Damage, SegmentName, SegmentReader
from folkmoot.brokers.storage.segment_swap import (
    cleaned_path,
    files_of,
    next_generation,
    write_index,
)
from folkmoot.coordination.topic_config import LogConfig
from folkmoot.protocol.batch_header import BatchHeader
from folkmoot.protocol.errors import ClosedError, StorageError

if TYPE_CHECKING:
    from folkmoot.brokers.storage.compaction.batch_filter import BatchFilter

STEP_BYTES: Final = 4 * 1024 * 1024
MOST_OFFSETS: Final = 2**32 - 1

Pause = Callable[[float], bool]
"""Sleeps for some seconds; True when the broker stops."""

_Natural = Annotated[int, Meta(ge=0)]


class CleanerCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The file `cleaner-checkpoint` of a partition, behind a first line with its checksum.

    `clean_before`: before it no key has two records. Moves when a whole pass is done; a pass that was
    interrupted is done again, and finds less to do. If the file is lost, so is every pass.

    `horizon`, `horizon_at`: at that time (ms) all records before that offset had been gone through,
    which is when the time of the tombstones there begins. Those behind it wait until these have gone.

    `tombstones`: how many of these were left before `clean_before`, and will be dropped.

    `is_partial`: a damaged segment, or a batch that could not be opened, stayed as it is. It may have older
    records of any key, so no tombstone is dropped. The next start compacts the whole log again.
    """

    clean_before: _Natural = 0
    horizon: _Natural = 0
    horizon_at: int = 0
    tombstones: _Natural = 0
    is_partial: bool = False

    def droppable_before(self, delete_retention: float, now: int) -> int:
        """Tombstones before this offset have been there for long enough."""
        return self.horizon if self.horizon_at <= now - delete_retention * 1000 else 0

    def after_pass(
        self, clean_before: int, tombstones: int, dropped_before: int, now: int
    ) -> "CleanerCheckpoint":
        """The checkpoint after a pass that left no tombstone before `dropped_before`."""
        horizon, at = self.horizon, self.horizon_at
        if horizon <= dropped_before or at > now:
            horizon, at = clean_before, now
        return CleanerCheckpoint(
            clean_before=clean_before, horizon=horizon, horizon_at=at, tombstones=tombstones
        )


def load_checkpoint(directory: Path) -> CleanerCheckpoint:
    """Return what is noted beside a partition's segments; an empty one if nothing is, or something stayed
    that can perhaps be opened now. Raises OSError."""
    checkpoint = load_json(directory / CLEANER_CHECKPOINT_FILE, CleanerCheckpoint)
    return CleanerCheckpoint() if checkpoint is None or checkpoint.is_partial else checkpoint


class CleanedSegment(NamedTuple):
    """A new segment is on disk; the log has to put it in its place (segment_swap)."""

    name: SegmentName
    size: int


class CorruptSegment(Exception):
    """The segment that begins at `base_offset` is damaged."""

    def __init__(self, base_offset: int, damage: Damage) -> None:
        super().__init__(f"segment {base_offset} is damaged at {damage.position}")
        self.base_offset = base_offset
        self.damage = damage


@dataclass(eq=False, kw_only=True, slots=True)
class CleaningPass:
    """A pass, as the log's owner has planned it.

    First it indexes the keys of all records that were not compacted yet, as many as there is room for. Then
    it writes every segment that begins before the last of them anew, several into one if they fit. A later
    pass does the rest.

    All of `sources` is sealed, on disk, and below the high watermark. Damaged ones stay; the others are
    rewritten in groups of neighbours. Tombstones before `droppable_before` are dropped, unless something
    stays as it is (`CleanerCheckpoint.is_partial`).

    `step` blocks, and pauses as often as `bytes_per_second` asks for it. Any thread, one at a time.
    """

    directory: Path
    config: LogConfig
    checkpoint: CleanerCheckpoint
    sources: Sequence[SegmentReader]
    droppable_before: int
    memory_bytes: int
    bytes_per_second: int
    pause: Pause
    _filter: "BatchFilter" = field(init=False)
    _groups: list[list[SegmentReader]] = field(init=False)
    _is_partial: bool = field(init=False)
    clean_before: int = field(default=-1, init=False)
    """Others are dropped for the sake of records before this offset; -1 until the first step has ended."""
    _tombstones: int = 0
    _moved: int = 0

    def step(self, now: int) -> CleanedSegment | CleanerCheckpoint:
        """Write the next segment; → at the end the checkpoint.

        Raises CorruptSegment, ClosedError when the broker stops, StorageError, OSError.
        """
        if self.clean_before < 0:
            self._filter = _make_filter(self.memory_bytes)
            self.clean_before = self._index_keys()
            self._is_partial = self.checkpoint.is_partial or any(
                source.damage for source in self.sources
            )
            indexed = (each for each in self.sources if each.base_offset < self.clean_before)
            neighbours = groupby(indexed, key=lambda each: bool(each.damage))
            self._groups = [list(group) for is_damaged, group in neighbours if not is_damaged]
        while self._groups:
            cleaned = self._write_next()
            if cleaned is not None:
                return cleaned
        checkpoint = self.checkpoint.after_pass(
            *(self.clean_before, self._tombstones, self.droppable_before, now)
        )
        if self._is_partial:
            checkpoint = replace(checkpoint, tombstones=0, is_partial=True)
        return checkpoint

    def _index_keys(self) -> int:
        """→ the offset up to which all keys are known."""
        since = reached = self.checkpoint.clean_before
        for source in self.sources:
            if source.end_offset <= since:
                continue
            for header, data in self._batches(source):
                if header.next_offset > since:
                    if self._filter.is_full:
                        return reached
                    self._filter.index_keys(header, data, since)
                    reached = header.next_offset
            reached = max(reached, source.end_offset)
        return reached

    def _write_next(self) -> CleanedSegment | None:
        """Write one new segment, of one old one at least, and more as long as all of the next would fit.

        None: it does not differ from what it was made from.
        """
        group = self._groups[0]
        generation = next_generation(self.directory)
        written = cleaned_path(self.directory, SegmentName(group[0].base_offset, 0, generation))
        size = removed = count = 0
        fd = os.open(written, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            for source in group:
                too_long = size + source.size > self.config.segment_bytes
                too_far = source.end_offset - group[0].base_offset > MOST_OFFSETS
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
        replaced, rest = group[:count], group[count:]
        self._groups[:1] = [rest] if rest else []
        if not removed and count == 1:
            written.unlink()
            return None
        name = SegmentName(replaced[0].base_offset, replaced[-1].end_offset, generation)
        try:
            write_index(self.directory, name, size, self.config.index_interval_bytes)
        except BaseException:
            for path in files_of(self.directory, name):
                path.unlink(missing_ok=True)
            raise
        return CleanedSegment(name, size)

    def _copy(self, source: SegmentReader, fd: int, size: int) -> tuple[int, int]:
        """Append what is to stay of a segment; → the size then, and how many records were left out."""
        removed = waiting = 0
        parts: list[bytes | memoryview] = []
        for header, data in self._batches(source):
            droppable_before = 0 if self._is_partial else self.droppable_before
            retained = self._filter.retain(header, data, droppable_before)
            self._is_partial |= retained.closed
            removed += header.record_count - retained.records
            self._tombstones += retained.tombstones
            if retained.data:
                parts.append(retained.data)
                waiting += len(retained.data)
                self._count(len(retained.data))
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
                data = source.read(position, header.length)
                if len(data) < header.length:  # it was there a moment ago
                    raise StorageError(f"{source.path} cannot be read at position {position}")
                yield header, data
        finally:
            source.close()

    def _count(self, moved: int) -> None:
        """Add the bytes read or written, and sleep after STEP_BYTES of them."""
        self._moved += moved
        if self._moved >= STEP_BYTES:
            seconds, self._moved = self._moved / self.bytes_per_second, 0
            if self.pause(seconds):
                raise ClosedError("the broker is stopping")


def _make_filter(memory_bytes: int) -> "BatchFilter":
    """Import what opens batches, and with it numpy: at the first pass, not at the broker's start."""
    from folkmoot.brokers.storage.compaction.batch_filter import BatchFilter

    return BatchFilter(memory_bytes)
