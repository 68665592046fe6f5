"""Getting back from other replicas what a disk has lost: bad batches below the high watermark."""

import logging
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from folkmoot.brokers.replication.replica_manager import Asker, Replica, ReplicaManager
from folkmoot.brokers.storage.atomic_file import write_at
from folkmoot.brokers.storage.flusher import Flusher
from folkmoot.brokers.storage.jobs import Now, Submit
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


class _Fetched(NamedTuple):
    """What was taken of an answer: how far that goes, in the log and in the file, and where leader
    epochs begin in it."""

    next_offset: int
    size: int
    epochs: dict[int, int]


class _Repair:
    """One segment's repair; `ranges` are still to be fetched, `fetched` is where they lie in the file."""

    def __init__(self, replica: Replica, segment: Segment) -> None:
        self.replica = replica
        self.segment = segment
        self.size = segment.size
        self.bad: list[Damage] = []
        self.ranges: list[Damage] = []
        self.fetched: list[tuple[int, int]] = []
        self.offset = self.file_begin = self.file_end = 0
        self.peers: list[int] = []
        self.refused = 0
        self.epochs: dict[int, int] = {}
        self.path = segment.directory / f"{segment.name.stem}{_FETCHED_SUFFIX}"

    @property
    def is_current(self) -> bool:
        """Whether the segment is still the one that was looked at."""
        log, segment = self.replica.log, self.segment
        return log.sealed(segment.base_offset) is segment and segment.size == self.size


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
    answered with CorruptBatch, and asked for again and again; so is all of a partition with one replica.

    Owner: the event loop.
    """

    def __init__(
        self, logs: LogManager, replicas: ReplicaManager, flusher: Flusher, submit: Submit
    ) -> None:
        self._damaged = logs.files.damaged
        self._flusher = flusher
        self._logs = logs
        self._replicas = replicas
        self._submit = submit
        self.asker: Asker | None = None
        self._repair: _Repair | None = None
        self.repaired = 0
        """So many ranges were bad and are whole again."""

    def task(self, now: Now) -> float:
        """Begin the next repair that is due."""
        if self._damaged and self._repair is None:
            # Who waits longest: many that cannot be repaired now are not to keep the others waiting.
            segment = min(self._damaged, key=self._damaged.__getitem__)
            if self._damaged[segment] <= now.monotonic:
                self._damaged[segment] = now.monotonic + AGAIN_AFTER
                self._begin(segment)
        return LOOK_AFTER

    def _begin(self, segment: Segment) -> None:
        topic_id, _, partition = segment.directory.name.rpartition("-")
        replica = self._replicas.find(topic_id, int(partition))
        log = self._logs.find(topic_id, int(partition)) if replica is None else replica.log
        if log is None or segment not in log.segments or not segment.damage:
            del self._damaged[segment]  # it is gone
        if log is None or replica is None or segment not in self._damaged or replica.is_busy:
            return
        if not log.is_open or log.failed is not None:
            return
        last = max(each.next_offset for each in segment.damage)
        if last > log.high_watermark:  # it may be cut, and others may have something else there
            if replica.leader is not None:
                self._replicas.give_up(replica)
            else:
                self._damaged[segment] -= AGAIN_AFTER - LOOK_AFTER
            return
        try:
            if segment is log.segments[-1]:
                log.roll()
                self._logs.dirty[log] = None
        except StorageError as error:
            logger.warning("%s: not repaired yet: %s", segment.path, error)
            return
        self._repair = _Repair(replica, segment)
        name, end = segment.name, segment.end_offset
        reader = SegmentReader(segment.directory, name, segment.size, end)
        self._submit("repair", partial(_look, reader), self._looked)

    def _looked(self, outcome: list[Damage] | Exception) -> None:
        repair = self._repair
        assert repair is not None
        segment = repair.segment
        if isinstance(outcome, Exception) or not repair.is_current:
            self._end(outcome)
            return
        known = outcome[-1].next_offset if outcome else segment.base_offset
        beyond = [
            each
            for each in segment.damage
            if each.position == each.end == segment.size and each.next_offset > known
        ]
        repair.bad = [*outcome, *beyond] if segment.sparse else outcome
        if repair.bad and repair.bad[-1].next_offset > repair.replica.log.high_watermark:
            for each in repair.bad:  # more than was known: it waits with the rest
                segment.mark(each)
            self._end(None)
            return
        if not repair.bad:
            logger.warning("%s: can be read again", segment.path)
            segment.damage = ()
            self._replicas.is_whole(repair.replica)
            self._end(None)
            return
        repair.ranges = list(repair.bad)
        self._next_range()

    # -- fetching -----------------------------------------------------------------------------------

    def _next_range(self) -> None:
        repair = self._repair
        assert repair is not None
        repair.file_begin = repair.file_end
        if not repair.ranges:
            for epoch, offset in repair.epochs.items():
                repair.replica.log.epoch_starts.found(epoch, offset)
            self._flusher.flush(repair.replica.log, self._epochs_noted)
            return
        # What lies before the log's start was given up, here and by the others.
        repair.offset = max(repair.ranges[0].offset, repair.replica.log.log_start)
        follower = repair.replica.state.follower
        first = None if follower is None else follower.leader
        others = [each for each in repair.replica.replicas if each != self._replicas.broker_id]
        repair.peers = sorted(others, key=lambda each: each != first)
        repair.refused = 0
        self._ask()

    def _ask(self) -> None:
        repair = self._repair
        assert repair is not None
        wanted = repair.ranges[0]
        if repair.offset >= wanted.next_offset:
            self._range_done()
            return
        nonce = self._replicas.nonce
        if not nonce or self.asker is None or not repair.peers:
            if repair.refused == len(repair.replica.replicas) - 1:
                repair.segment.is_lost = True
            self._end(StorageError(f"no other replica gives offset {repair.offset} now"))
            return
        name, partition = repair.replica.log.name, repair.replica.partition
        request = RepairFetchRequest(
            *(self._replicas.broker_id, nonce, name.topic, *partition, repair.offset)
        )
        self.asker.ask(repair.peers[0], Api.REPAIR_FETCH, request, partial(self._answered, repair))

    def _answered(self, repair: _Repair, reply: Reply) -> None:
        wanted = repair.ranges[0]
        if reply.error is not None:
            # It has lost the same, or has given it up: not just out of reach for a while.
            repair.refused += isinstance(reply.error, OffsetNotAvailable | OffsetOutOfRange)
            self._next_peer(reply.error)
        elif len(reply.payloads[0]):
            chunk, end = bytes(reply.payloads[0]), wanted.next_offset
            is_first = repair.file_end == repair.file_begin
            begin = wanted.offset if is_first else repair.offset
            work = partial(_take, repair.path, repair.file_end, chunk, begin, end)
            self._submit("repair", work, self._taken)
        elif reply.response.high_watermark >= wanted.next_offset:
            self._range_done()  # compaction has left nothing there
        else:
            self._next_peer(f"committed up to {reply.response.high_watermark}")

    def _taken(self, outcome: _Fetched | Exception) -> None:
        repair = self._repair
        assert repair is not None
        if isinstance(outcome, _Fetched):
            repair.offset, repair.file_end, epochs = outcome
            repair.epochs = {**epochs, **repair.epochs}
            self._ask()
        elif isinstance(outcome, CorruptBatch):
            self._next_peer(outcome)
        else:
            self._end(outcome)

    def _next_peer(self, why: object) -> None:
        repair = self._repair
        assert repair is not None
        peer = repair.peers.pop(0)
        logger.warning("%s: not repaired by broker %d: %s", repair.segment.path, peer, why)
        self._ask()

    def _range_done(self) -> None:
        repair = self._repair
        assert repair is not None
        repair.fetched.append((repair.file_begin, repair.file_end))
        repair.ranges.pop(0)
        self._next_range()

    # -- rebuilding ---------------------------------------------------------------------------------

    def _epochs_noted(self, error: FolkmootError | None) -> None:
        """A start that could not read a bad batch has not seen whether a leader epoch begins with it."""
        repair = self._repair
        assert repair is not None
        if error is not None or not repair.is_current:
            self._end(error)
            return
        segment, position = repair.segment, 0
        pieces: list[Piece] = []
        for bad, (begin, end) in zip(repair.bad, repair.fetched, strict=True):
            pieces += [(segment.path, position, bad.position), (repair.path, begin, end)]
            position = bad.end
        pieces.append((segment.path, position, segment.size))
        log = repair.replica.log
        name = SegmentName(segment.base_offset, segment.end_offset, 1)
        interval = log.config.index_interval_bytes
        work = partial(write_anew, log.directory, name, pieces, interval, repair.path)
        repair.replica.is_rewritten = True
        # With compaction in turns: both give new segments a generation of their own.
        self._submit("cleaner", work, self._rebuilt)

    def _rebuilt(self, outcome: tuple[SegmentName, int] | Exception) -> None:
        repair = self._repair
        assert repair is not None
        log = repair.replica.log
        repair.replica.is_rewritten = False
        if isinstance(outcome, Exception):
            self._end(outcome)
            return
        name, size = outcome
        if repair.is_current:
            replaced = log.replace_segments([repair.segment], name, size)
            log.forgets_compaction = True
            self._logs.remove(replaced, "cleaner")
            for bad in repair.bad:
                logger.warning(
                    "%s: repaired offsets %d to %d",
                    *(log.name, bad.offset, bad.next_offset - 1),
                )
            self._damaged.pop(repair.segment, None)
            self.repaired += len(repair.bad)
            if log.dirty:
                self._logs.dirty[log] = None
            self._replicas.is_whole(repair.replica)
        else:
            self._logs.remove(files_of(log.directory, name), "cleaner")
        self._end(None)

    def _end(self, why: object) -> None:
        repair, self._repair = self._repair, None
        if repair is not None:
            self._logs.remove([repair.path], "cleaner")
            if isinstance(why, FolkmootError | Exception) and repair.is_current:
                logger.error("%s: not repaired yet: %s", repair.segment.path, why)


# -- the background's part -------------------------------------------------------------------------


def _look(reader: SegmentReader) -> list[Damage]:
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
