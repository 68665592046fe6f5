"""What a log knows of its producers, over its stops and starts: snapshots, and the log behind them."""

import logging
from pathlib import Path
from typing import Final

import msgspec

from folkmoot.brokers.directories import SNAPSHOT_SUFFIX
from folkmoot.brokers.durable import note_checked, read_checked
from folkmoot.brokers.producer_states import Producers, ProducerState, Written
from folkmoot.brokers.segments import Segments

logger = logging.getLogger(__name__)

BATCHES_BETWEEN: Final = 1_000
"""After so many batches a checkpoint takes a snapshot: their headers are what a start may have to read."""


class _Snapshot(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Content of a snapshot: the clock that `idle_since` counts in, and all producers, in order."""

    clock: float
    producers: list[tuple[int, int, float | None, list[Written]]]


_encode = msgspec.msgpack.encode
_decoder = msgspec.msgpack.Decoder(_Snapshot)


class ProducerMemory:
    """The Producers of a log, and `<20-digit offset>.snapshot` beside its segments.

    A snapshot tells the state that the log gives up to its offset. It is taken before the first
    batch of a segment, at a checkpoint when BATCHES_BETWEEN were appended since the last one, by an
    orderly stop, and before segments are deleted that lie behind the newest one. It has a checksum and
    is not flushed: a kill leaves it, a power cut may not.

    Loading. The state is the newest snapshot that can be read, and the headers in the log behind it;
    no body is opened. A snapshot ahead of the log (its end was lost) is removed at the start, one
    that is torn is passed over, and without any the whole log is read. When there is nothing behind
    the newest snapshot, loading waits for the first append, so that idle partitions cost no memory.

    Crash. Before a snapshot is whole: the older one and a longer stretch of the log give the same.
    Behind that: it is used. A batch is in the state as soon as it is in the log, and only then.

    Kept are all snapshots up to the newest one within what is on disk, so that a power cut, which
    takes the log's end and the snapshots of it, leaves one. Segments that are deleted take nothing
    with them; those that compaction has rewritten are not asked, as long as there is a snapshot.

    Owner: the log, on the broker's reactor thread.
    """

    __slots__ = ("_directory", "_known", "_noted", "_segments", "_snapshots")

    def __init__(self, directory: Path, segments: Segments) -> None:
        self._directory = directory
        self._segments = segments
        self._snapshots: list[int] = []
        self._known: Producers | None = None
        self._noted = 0

    def start(self, snapshots: list[int]) -> None:
        """The log is open and whole: remove snapshots of what it lacks, load if that takes reading.

        Raises StorageError.
        """
        end = self._segments.end_offset
        for offset in snapshots:
            if offset > end:
                self._remove(offset)
        self._snapshots = [offset for offset in snapshots if offset <= end]
        if self._segments and self._newest != end:
            self.producers()
            for segment in self._segments:
                segment.release()

    @property
    def _newest(self) -> int:
        """The offset of the newest snapshot. At offset 0 all is known without one."""
        return self._snapshots[-1] if self._snapshots else 0

    def producers(self) -> Producers:
        """The state as of the log's end. Raises StorageError."""
        limit = self._segments.config.max_producers
        if self._known is None:
            self._known = self._load(limit)
        self._known.limit = limit
        return self._known

    def noted(self, batches: int) -> None:
        """So many batches were appended, and noted in the state."""
        self._noted += batches

    def expire(self, now: float) -> None:
        """Forget producers that were idle for too long; `now` is monotonic."""
        if self._known is not None:
            self._known.expire(now, self._segments.config.producer_id_expiry)

    def save_if_due(self, durable: int) -> None:
        """Take a snapshot if the last one lies far behind. The log is on disk up to `durable`."""
        if self._noted >= BATCHES_BETWEEN:
            self.save(durable)

    def save_before(self, offset: int, durable: int) -> None:
        """Segments before `offset` will go: see that their headers are not needed any more."""
        if self._newest < offset:
            self.save(durable)

    def save(self, durable: int) -> None:
        """Take a snapshot, unless there is one of the log's end. What cannot be written is left out."""
        end = self._segments.end_offset
        if self._known is not None and self._newest != end:
            states = [
                (each.producer_id, each.epoch, each.idle_since, list(each.batches))
                for each in self._known.states
            ]
            try:
                note_checked(self._path(end), _encode(_Snapshot(self._known.clock, states)))
            except OSError as error:
                logger.warning("%s: producers are not noted: %s", self._path(end), error)
                return
            self._snapshots.append(end)
            self._noted = 0
        while len(self._snapshots) > 1 and self._snapshots[1] <= durable:
            self._remove(self._snapshots.pop(0))

    def _load(self, limit: int) -> Producers:
        producers, offset = Producers(limit), 0
        while self._snapshots:
            found = self._read(self._snapshots[-1], limit)
            if found is not None:
                producers, offset = found, self._snapshots[-1]
                break
            self._remove(self._snapshots.pop())
        if offset < self._segments.end_offset:
            producers.replay(self._segments.headers(offset))
        return producers

    def _read(self, offset: int, limit: int) -> Producers | None:
        path = self._path(offset)
        try:
            data = read_checked(path)
            if data is None:
                raise ValueError("it does not match its checksum")
            snapshot = _decoder.decode(data)
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            logger.warning("%s: reading the log instead: %s", path, error)
            return None
        states = [
            ProducerState(producer_id, epoch, tuple(batches), idle)
            for producer_id, epoch, idle, batches in snapshot.producers
            if batches
        ]
        return Producers(limit, states, snapshot.clock)

    def _path(self, offset: int) -> Path:
        return self._directory / f"{offset:020}{SNAPSHOT_SUFFIX}"

    def _remove(self, offset: int) -> None:
        try:
            self._path(offset).unlink(missing_ok=True)
        except OSError as error:
            logger.warning("%s: left behind: %s", self._path(offset), error)
