"""One pass of compaction over one log, in small pieces, on the background's thread."""

import os
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from folkmoot.brokers.storage.atomic_file import write_at
from folkmoot.brokers.storage.compaction.batch_filter import remember, thin
from folkmoot.brokers.storage.compaction.offset_map import KeyMap
from folkmoot.brokers.storage.compaction.passes import (
    Cleaned,
    Done,
    Noted,
    Outcome,
    Piece,
    Plan,
    Rotten,
    Source,
)
from folkmoot.brokers.storage.compaction.segment_swap import Replacement
from folkmoot.brokers.storage.damage import Damage, examine
from folkmoot.brokers.storage.indexes import SegmentIndexes
from folkmoot.brokers.storage.logfile import LogFile
from folkmoot.protocol.batch_header import BatchHeader

STEP_BYTES: Final = 4 * 1024 * 1024
STEP_RECORDS: Final = 100_000
MOST_OFFSETS: Final = 2**32 - 1
MOST_SEGMENTS: Final = 50
"""How many segments become one at most: each costs the reactor a few renames."""


class _Left(NamedTuple):
    """What a new segment was made from, and what it has."""

    sources: Sequence[Source]
    size: int
    removed: int
    tombstones: int
    droppable_before: int


class _IsRotten(Exception):
    def __init__(self, found: Rotten) -> None:
        self.found = found


def cleaning(plan: Plan) -> Iterator[Outcome]:
    """Do a pass; each `next` is a bounded piece of work. Raises StorageError, OSError.

    First the keys of all that was not compacted yet are remembered, as many as there is room for; then
    every segment that begins before the last of them is written anew with what is to stay, several
    into one as long as they fit. What is left for want of room is for the next pass.
    """
    try:
        keymap = KeyMap(plan.memory_bytes)
        clean_before = yield from _remembering(plan, keymap)
        runs = [[source for source in run if source.base < clean_before] for run in plan.runs]
        sparse_before = max((source.end for run in runs for source in run), default=0)
        if sparse_before > plan.state.sparse_before:
            # Before the first replacement: gaps are never found where none are allowed.
            state = msgspec.structs.replace(plan.state, sparse_before=sparse_before)
            state.save(plan.directory)
            yield Noted(state)
        tombstones = 0
        thinned = {source.base for run in plan.runs for source in run}
        stay = [source.base for source in plan.sources if source.base not in thinned]
        droppable_before = min([plan.droppable_before, *stay])
        for run in runs:
            while run:
                left = yield from _write(plan, run, keymap, droppable_before)
                tombstones += left.tombstones
                droppable_before = left.droppable_before
                run = run[len(left.sources) :]
        yield Done(clean_before, tombstones, plan.droppable_before)
    except _IsRotten as rotten:
        yield rotten.found
    finally:
        for source in plan.sources:
            source.log.release()


def _remembering(plan: Plan, keymap: KeyMap) -> Generator[Outcome, None, int]:
    """Remember keys; → the offset up to which all are."""
    since = plan.state.clean_before
    reached = since
    pace = _Pace()
    for source in plan.sources:
        if source.end <= since:
            continue
        for header, position in _batches(source):
            if header.next_offset > since:
                if keymap.full:
                    return reached
                remember(keymap, header, source.log.read(header.length, position), since)
                reached = header.next_offset
            if pace.is_due(header.length, header.record_count):
                yield Piece(pace.taken())
        reached = max(reached, source.end)
        source.log.release()
    return reached


def _write(
    plan: Plan, run: Sequence[Source], keymap: KeyMap, droppable_before: int
) -> Generator[Outcome, None, _Left]:
    """Write a new segment of the first ones of a run."""
    replacement = Replacement(plan.directory, run[0].base, run[0].end)
    path = replacement.begin()
    try:
        left = yield from _copy(plan, run, path, keymap, droppable_before)
        replacement = replacement._replace(end=left.sources[-1].end)
        log = LogFile(path, left.size, read_only=True)
        log.sparse = True
        try:
            indexes = SegmentIndexes(log, replacement.base, plan.index_interval_bytes, 0)
            indexes.offsets()
            indexes.times(replacement.end)
            indexes.close(replacement.end)
        finally:
            log.release()
        is_new = left.removed > 0 or len(left.sources) > 1
        if is_new:
            replacement.written()
    except Exception:  # a pass that is merely given up leaves its files to the next start
        replacement.undo()
        raise
    yield Cleaned(replacement, left.size, is_new)
    return left


def _copy(
    plan: Plan, run: Sequence[Source], path: Path, keymap: KeyMap, droppable_before: int
) -> Generator[Outcome, None, _Left]:
    """Write what is to stay of a run's batches to `path`; each piece is on disk when it is done.

    One segment at least, and more as long as all of the next one would fit.
    """
    size = removed = tombstones = count = 0
    pace = _Pace()
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        for source in run:
            too_long = size + source.log.size > plan.segment_bytes
            too_far = source.end - run[0].base > MOST_OFFSETS
            if count and (too_long or too_far or count == MOST_SEGMENTS):
                break
            count += 1
            parts: list[bytes | memoryview] = []
            for header, position in _batches(source):
                data = source.log.read(header.length, position)
                thinned = thin(header, data, keymap, droppable_before)
                if thinned.closed:
                    droppable_before = min(droppable_before, header.base_offset)
                removed += header.record_count - thinned.records
                tombstones += thinned.tombstones
                if thinned.data:
                    parts.append(thinned.data)
                if pace.is_due(header.length + len(thinned.data), header.record_count):
                    size = write_at(fd, parts, size)
                    parts = []
                    os.fdatasync(fd)
                    yield Piece(pace.taken())
            size = write_at(fd, parts, size)
            source.log.release()
    finally:
        os.close(fd)
    return _Left(run[:count], size, removed, tombstones, droppable_before)


def _batches(source: Source) -> Iterator[tuple[BatchHeader, int]]:
    for found in examine(source.log, 0, source.base, source.end):
        if isinstance(found, Damage):
            raise _IsRotten(Rotten(source.base, found))
        yield found


class _Pace:
    """Cuts the work into pieces."""

    def __init__(self) -> None:
        self._bytes = self._records = 0

    def is_due(self, moved: int, records: int) -> bool:
        """Whether enough has been done, with this on top, for one piece."""
        self._bytes += moved
        self._records += records
        return self._bytes >= STEP_BYTES or self._records >= STEP_RECORDS

    def taken(self) -> int:
        """The bytes since the last time."""
        moved, self._bytes, self._records = self._bytes, 0, 0
        return moved
