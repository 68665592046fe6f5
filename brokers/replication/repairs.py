"""Getting back from other replicas what a disk has lost: bad batches below the high watermark."""

import logging
import os
from collections.abc import Callable, Generator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from folkmoot.brokers.jobs.jobs import Lane, Now, Submit
from folkmoot.brokers.replication.partition import Partition
from folkmoot.brokers.replication.partitions import Partitions
from folkmoot.brokers.storage.files.atomic_file import write_at
from folkmoot.brokers.storage.flusher import Flusher
from folkmoot.brokers.storage.log_manager import LogManager
from folkmoot.brokers.storage.recovery import CLEANER_CHECKPOINT_FILE
from folkmoot.brokers.storage.segment import Damage, Segment, SegmentName, SegmentReader
from folkmoot.brokers.storage.segment_swap import cleaned_path, commit, files_of, next_generation
from folkmoot.network.client import Reply
from folkmoot.protocol import batch_header
from folkmoot.protocol.errors import (
    CorruptBatch,
    FolkmootError,
    OffsetNotAvailable,
    OffsetOutOfRange,
    StorageError,
)
from folkmoot.protocol.messages import Api, RepairFetchRequest

logger = logging.getLogger(__name__)

LOOK_AFTER: Final = 0.5
AGAIN_AFTER: Final = 10.0
_COPIED_AT_ONCE: Final = 4 * 1024 * 1024
_FETCHED_SUFFIX: Final = ".fetched.cleaned"

Piece = tuple[Path, int, int]
"""A stretch of a file, from one position to another."""

_T = TypeVar("_T")
_Steps = Generator[Callable[[Callable[[Any], None]], object], Any, _T]
"""A repair waits where it yields: what it yields begins that, and has the outcome given to its argument."""


class _Fetched(NamedTuple):
    """What was taken of an answer: how far that goes, in the log and in the file, and where leader
    epochs begin in it."""

    next_offset: int
    size: int
    epochs: dict[int, int]


class Repairs:
    """Damaged segments of replicated partitions, made whole one after another, whoever leads.

    However damage was found (the scrub, a start, a read, a report), the segment is among
    `OpenSegments.damaged`, and nothing of the bad range is served. The repair, of which all but 4
    waits beside the event loop:

    1. If the segment is the active one, a new one is begun. It is read from end to end: what is bad?
    2. Bad ranges are fetched from the other replicas, the leader first, each batch compared with its
       checksum, into `.fetched.cleaned`. A replica gives what lies below its high watermark: that is
       committed, and the same everywhere but for what compaction has removed.
       Leader epochs that begin there are noted on disk with the others.
    3. The good stretches and the fetched ones are written to a new segment with the same offsets, which
       gets its name as a compacted one does (`segment_swap`).
    4. The log takes it in the place of the old one, whose files are removed.

    A death before 3 has ended leaves `.cleaned` files, which the next start removes, and behind it both
    segments, of which it keeps the new one: the damage is found again, or gone. A leader whose damage
    is not committed resigns if others are in sync, since they may lack it: it is cut, and was never
    acknowledged by all. A follower's waits until its leader says that it is committed: before that it
    may be cut, and what others have in its place is no part of this log. What no other replica has is
    answered with CorruptBatch, and asked for again and again; so is all of a partition with one partition.

    Owner: the event loop.
    """

    def __init__(
        self, logs: LogManager, partitions: Partitions, flusher: Flusher, submit: Submit
    ) -> None:
        self._damaged = logs.files.damaged
        self._flusher = flusher
        self._logs = logs
        self._partitions = partitions
        self._submit = submit
        self._steps: _Steps[None] | None = None
        self.repaired = 0
        """So many ranges were bad and are whole again."""

    def task(self, now: Now) -> float:
        """Begin the next repair that is due."""
        if self._damaged and self._steps is None:
            # Who waits longest: many that cannot be repaired now are not to keep the others waiting.
            segment = min(self._damaged, key=self._damaged.__getitem__)
            if self._damaged[segment] <= now.monotonic:
                self._damaged[segment] = now.monotonic + AGAIN_AFTER
                self._begin(segment)
        return LOOK_AFTER

    def _begin(self, segment: Segment) -> None:
        topic_id, _, number = segment.directory.name.rpartition("-")
        partition = self._partitions.find(topic_id, int(number))
        log = self._logs.find(topic_id, int(number)) if partition is None else partition.log
        if log is None or segment not in log.segments or not segment.damage:
            del self._damaged[segment]  # it is gone
        if log is None or partition is None or segment not in self._damaged:
            return
        if partition.is_blocked:
            return
        if log.is_alone or not log.is_open or log.failed is not None:
            return
        last = max(each.next_offset for each in segment.damage)
        if last > log.high_watermark:  # it may be cut, and others may have something else there
            if partition.leader is not None:
                partition.resign()
            else:
                self._damaged[segment] -= AGAIN_AFTER - LOOK_AFTER
            return
        try:
            if segment is log.segments[-1]:
                log.roll()
                self._logs.dirty[log] = None
        except StorageError as error:
            if not self._logs.room.is_missed(error):
                logger.warning("%s: not repaired yet: %s", segment.path, error)
            return
        self._steps = self._carried_out(_Repair(partition, segment))
        self._go_on(None)

    def _go_on(self, outcome: Any) -> None:
        """Carry the repair on, with the outcome of what it has waited for."""
        assert self._steps is not None
        try:
            begin = self._steps.send(outcome)
        except StopIteration:
            self._steps = None
        else:
            begin(self._go_on)

    def _carried_out(self, repair: "_Repair") -> "_Steps[None]":
        try:
            yield from self._look(repair)
        except (FolkmootError, OSError) as error:
            if repair.is_current() and not self._logs.room.is_missed(error):
                logger.error("%s: not repaired yet: %s", repair.segment.path, error)
        except Exception:
            logger.exception("%s: not repaired yet", repair.segment.path)
        self._logs.remove(repair.partition.log, [repair.path])

    def _look(self, repair: "_Repair") -> "_Steps[None]":
        """What is bad, if anything is, and may be repaired now?"""
        segment, log = repair.segment, repair.partition.log
        reader = SegmentReader(segment.directory, segment.name, segment.size, segment.end_offset)
        bad = _sure((yield partial(self._submit, Lane.READ, partial(_bad_in, reader))))
        if not repair.is_current():
            return
        known = bad[-1].next_offset if bad else segment.base_offset
        if segment.sparse:
            bad += [
                each
                for each in segment.damage
                if each.position == each.end == segment.size and each.next_offset > known
            ]
        if not bad:
            logger.warning("%s: can be read again", segment.path)
            segment.damage = ()
            repair.partition.is_whole()
        elif bad[-1].next_offset > log.high_watermark:
            for each in bad:  # more than was known: it waits with the rest
                segment.mark(each)
        else:
            pieces = yield from self._fetch(repair, bad)
            if not repair.is_current():
                return  # it was cut, and what the log says of leader epochs with it
            # A start that could not read a bad batch has not seen whether a leader epoch begins with it.
            for epoch, offset in repair.epochs.items():
                log.epoch_starts.found(epoch, offset)
            _sure((yield partial(self._flusher.flush, log)))
            if repair.is_current():
                yield from self._rebuild(repair, bad, pieces)

    # -- fetching -----------------------------------------------------------------------------------

    def _fetch(self, repair: "_Repair", bad: Sequence[Damage]) -> "_Steps[list[Piece]]":
        """Fetch all that is bad → what the segment is to be made of."""
        segment, pieces = repair.segment, list[Piece]()
        position = begin = 0
        for each in bad:
            end = yield from self._fetch_range(repair, each, begin)
            pieces += [(segment.path, position, each.position), (repair.path, begin, end)]
            position, begin = each.end, end
        return [*pieces, (segment.path, position, segment.size)]

    def _fetch_range(self, repair: "_Repair", wanted: Damage, begin: int) -> "_Steps[int]":
        """Fetch a range into the file, from the position `begin` on → where it ends there."""
        partition, end = repair.partition, begin
        # What lies before the log's start was given up, here and by the others.
        offset = max(wanted.offset, partition.log.log_start)
        follower = partition.state.follower
        first = None if follower is None else follower.leader
        others = [each for each in partition.replicas if each != self._partitions.broker_id]
        peers = sorted(others, key=lambda each: each != first)
        refused = 0
        while offset < wanted.next_offset:
            nonce = self._partitions.nonce
            if not nonce or not peers:
                if refused == len(partition.replicas) - 1:
                    repair.segment.is_lost = True
                raise StorageError(f"no other replica gives offset {offset} now")
            request = RepairFetchRequest(
                *(self._partitions.broker_id, nonce, partition.log.name.topic),
                *(*partition.id, offset),
            )
            ask = self._partitions.fetcher.ask
            reply: Reply = yield partial(ask, peers[0], Api.REPAIR_FETCH, request)
            why: object = reply.error
            # It has lost the same, or has given it up: not just out of reach for a while.
            refused += isinstance(why, OffsetNotAvailable | OffsetOutOfRange)
            if why is None and len(reply.payloads[0]):
                expected = wanted.offset if end == begin else offset
                chunk = bytes(reply.payloads[0])
                work = partial(_take, repair.path, end, chunk, expected, wanted.next_offset)
                taken = yield partial(self._submit, Lane.READ, work)
                if not isinstance(taken, CorruptBatch):
                    offset, end, epochs = _sure(taken)
                    repair.epochs = {**epochs, **repair.epochs}
                    continue
                why = taken
            elif why is None:
                committed = reply.response.high_watermark
                if committed >= wanted.next_offset:
                    break  # compaction has left nothing there
                why = f"committed up to {committed}"
            peer = peers.pop(0)
            logger.warning("%s: not repaired by broker %d: %s", repair.segment.path, peer, why)
        return end

    # -- rebuilding ---------------------------------------------------------------------------------

    def _rebuild(
        self, repair: "_Repair", bad: Sequence[Damage], pieces: Sequence[Piece]
    ) -> "_Steps[None]":
        segment, partition = repair.segment, repair.partition
        log = partition.log
        name = SegmentName(segment.base_offset, segment.end_offset, 1)
        interval = log.config.index_interval_bytes
        work = partial(write_anew, log.directory, name, pieces, interval, repair.path)
        partition.is_rewritten = True
        # With compaction in turns: both give new segments a generation of their own.
        outcome = yield partial(self._submit, Lane.COMPACTION, work)
        partition.is_rewritten = False
        name, size = _sure(outcome)
        if not repair.is_current():
            self._logs.remove(log, files_of(log.directory, name))
            return
        replaced = log.replace_segments([segment], name, size)
        log.forgets_compaction = True
        self._logs.remove(log, replaced)
        for each in bad:
            logger.warning(
                "%s: repaired offsets %d to %d", log.name, each.offset, each.next_offset - 1
            )
        self._damaged.pop(segment, None)
        self.repaired += len(bad)
        if log.dirty:
            self._logs.dirty[log] = None
        partition.is_whole()


class _Repair:
    """What is repaired, the file for what is fetched, and where leader epochs begin in that."""

    def __init__(self, partition: Partition, segment: Segment) -> None:
        self.partition = partition
        self.segment = segment
        self.path = segment.directory / f"{segment.name.stem}{_FETCHED_SUFFIX}"
        self.epochs: dict[int, int] = {}
        self._size = segment.size

    def is_current(self) -> bool:
        """Whether the segment is still the one that was looked at."""
        log, segment = self.partition.log, self.segment
        return log.sealed(segment.base_offset) is segment and segment.size == self._size


def _sure(outcome: Any) -> Any:
    """What a job has found. Raises what it has raised."""
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


# -- the background's part -------------------------------------------------------------------------


def _bad_in(reader: SegmentReader) -> list[Damage]:
    """All that is bad in a segment."""
    try:
        return [each for each in reader.batches() if isinstance(each, Damage)]
    finally:
        reader.close()


def _take(path: Path, size: int, chunk: bytes, offset: int, limit: int) -> _Fetched:
    """Put the batches of `[offset, limit)` at `size` of the file. Raises CorruptBatch, OSError."""
    parts: list[bytes | memoryview] = []
    epochs: dict[int, int] = {}
    for header, data in batch_header.split(chunk):
        if header.base_offset >= limit:
            offset = limit
            break
        if header.base_offset < offset or header.next_offset > limit:
            raise CorruptBatch(
                f"its batch of offsets {header.base_offset} to {header.last_offset} does not fit "
                f"between {offset} and {limit}"
            )
        parts.append(data)
        epochs.setdefault(header.leader_epoch, header.base_offset)
        offset = header.next_offset
    # What an earlier try has left may be removed at any moment: none begins in the middle of a file.
    fd = os.open(path, os.O_WRONLY | (0 if size else os.O_CREAT), 0o644)
    try:
        return _Fetched(offset, write_at(fd, parts, size), epochs)
    finally:
        os.close(fd)


def write_anew(
    directory: Path, name: SegmentName, pieces: Sequence[Piece], interval_bytes: int, spent: Path
) -> tuple[SegmentName, int]:
    """Write a segment made of these pieces, in its place on disk; → its name and size.

    Raises OSError, StorageError.
    """
    name = name._replace(generation=next_generation(directory))
    written = cleaned_path(directory, name)
    size = 0
    try:
        fd = os.open(written, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            for path, begin, end in pieces:
                size = _copy(path, begin, end, fd, size)
            os.fsync(fd)
        finally:
            os.close(fd)
    except BaseException:
        written.unlink(missing_ok=True)
        raise
    # What another replica gave may not be compacted there yet. Before it is in its place.
    (directory / CLEANER_CHECKPOINT_FILE).unlink(missing_ok=True)
    size = commit(directory, written, name, interval_bytes)
    spent.unlink(missing_ok=True)
    return name, size


def _copy(path: Path, begin: int, end: int, to: int, size: int) -> int:
    if begin < end:
        with path.open("rb") as file:
            file.seek(begin)
            while begin < end:
                data = file.read(min(_COPIED_AT_ONCE, end - begin))
                if not data:
                    raise StorageError(f"{path} has become shorter")
                begin += len(data)
                size = write_at(to, [data], size)
    return size
