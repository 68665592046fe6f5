"""What a log knows of its producers, over its stops and starts: snapshots, and the log behind them."""

import logging
from pathlib import Path
from typing import Final

import msgspec

from folkmoot.brokers.storage.atomic_file import note_checked, read_checked
from folkmoot.brokers.storage.directories import SNAPSHOT_SUFFIX
from folkmoot.brokers.storage.producer_state import Producers, ProducerState, Written
from folkmoot.brokers.storage.segments import Segments

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
    orderly stop, and before records are given up. It has a checksum and is written without waiting
    for the disk; whoever flushes the log flushes its newest snapshot, too (`to_flush`, `flushed`).

    `on_disk` is the offset of the newest one that is there, come what may. What only a snapshot can
    tell is given up for that one and no other: segments that lie wholly before it are deleted and
    compacted, those behind it are not, and older snapshots stay until it lies within what is on disk
    of the log, too. So a power cut, which takes the log's end and the newer snapshots, leaves one, and
    all headers behind it.

    Loading. The state is the newest snapshot that can be read, and the headers in the log behind it;
    no body is opened. A snapshot ahead of the log (its end was lost) is removed at the start, one
    that is torn is passed over, and without any the whole log is read. When there is nothing behind
    the newest snapshot, loading waits for the first append, so that idle partitions cost no memory.

    Crash. Before a snapshot is whole: the older one and a longer stretch of the log give the same.
    Behind that: it is used. A batch is in the state as soon as it is in the log, and only then.

    Of those found at a start it is not known whether they are on disk: the next flush sees to that,
    which comes when something is appended, or is to be given up (`covers`): ten thousand idle
    partitions cost no flush.

    Owner: the log, on the broker's reactor thread.
    """

    __slots__ = (
        *("_directory", "_known", "_noted", "_segments", "_snapshots", "_wanted"),
        "on_disk",
    )

    def __init__(self, directory: Path, segments: Segments) -> None:
        self._directory = directory
        self._segments = segments
        self._snapshots: list[int] = []
        self._known: Producers | None = None
        self._noted = 0
        # At offset 0 all is known without one.
        self.on_disk = self._wanted = 0

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

    def save_if_due(self, durable: int, told_before: int = 0) -> None:
        """Take a snapshot if the last one lies far behind, or before `told_before`.

        The log is on disk up to `durable`. Raises StorageError.
        """
        if self._noted >= BATCHES_BETWEEN or self._newest < max(self._active, told_before):
            self.save(durable)

    def save(self, durable: int) -> None:
        """Take a snapshot, unless there is one of the log's end. What cannot be written is left out.

        Raises StorageError.
        """
        end = self._segments.end_offset
        if self._newest != end:
            known = self.producers()
            states = [
                (each.producer_id, each.epoch, each.idle_since, list(each.batches))
                for each in known.states
            ]
            try:
                note_checked(self._path(end), _encode(_Snapshot(known.clock, states)))
            except OSError as error:
                logger.warning("%s: producers are not noted: %s", self._path(end), error)
                return
            self._snapshots.append(end)
            self._noted = 0
        self._tidy(durable)

    # -- onto the disk ------------------------------------------------------------------------------

    def covers(self, offset: int) -> bool:
        """Whether all that headers before `offset` tell is on disk; if not, the next flush sees to that."""
        self._wanted = max(self._wanted, offset)
        return offset <= self.on_disk

    @property
    def wants_flush(self) -> bool:
        """Whether somebody waits for a snapshot to come onto the disk."""
        return self.on_disk < self._wanted

    def to_flush(self) -> tuple[int, Path] | None:
        """The offset and the path of the snapshot that has to come onto the disk, if there is one."""
        return (self._newest, self._path(self._newest)) if self.on_disk < self._newest else None

    def flushed(self, offset: int, error: OSError | None, durable: int) -> None:
        """A snapshot is on disk, found whole, and so is the log up to `durable`; or that failed."""
        if error is None:
            self.on_disk = max(self.on_disk, offset)
            self._tidy(durable)
        elif offset in self._snapshots:
            # A second flush would succeed and prove nothing: another snapshot may do better.
            logger.warning("%s: producers are not noted: %s", self._path(offset), error)
            self._snapshots.remove(offset)
            self._remove(offset)

    @property
    def _active(self) -> int:
        return self._segments[-1].base_offset if self._segments else 0

    def _tidy(self, durable: int) -> None:
        while self.on_disk <= durable and self._snapshots and self._snapshots[0] < self.on_disk:
            self._remove(self._snapshots.pop(0))

    # -- from the disk ------------------------------------------------------------------------------

    def _load(self, limit: int) -> Producers:
        producers, offset = Producers(limit), 0
        while self._snapshots:
            found = self._read(self._snapshots[-1], limit)
            if found is not None:
                producers, offset = found, self._snapshots[-1]
                break
            torn = self._snapshots.pop()
            self._remove(torn)
            if torn == self.on_disk:
                self.on_disk = 0
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
