"""The state of a partition's producers: which batch is a duplicate, which one is next."""

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from folkmoot.brokers.jobs.jobs import SharedJob
from folkmoot.brokers.storage.files.atomic_file import read_checked
from folkmoot.protocol.batch_header import (
    MAX_SEQUENCE,
    NO_PRODUCER_ID,
    BatchHeader,
    following_sequence,
)
from folkmoot.protocol.errors import (
    FolkmootError,
    InvalidRequest,
    OutOfOrderSequence,
    ProducerFenced,
    UnknownProducer,
)

logger = logging.getLogger(__name__)

SNAPSHOT_SUFFIX: Final = ".snapshot"
RETAINED_BATCHES: Final = 5
"""Batches of a producer that are recognised as duplicates; the most that it may have in flight."""

SNAPSHOT_BATCHES: Final = 1_000
"""Batches after which a flush takes a snapshot: a start may have to read their headers."""


class Written(NamedTuple):
    """A batch that is in the log: its sequences, both inclusive, and where it is."""

    first: int
    last: int
    base_offset: int


class ProducerEntry(msgspec.Struct, array_like=True, gc=False, forbid_unknown_fields=True):
    """A producer's last batches in this partition, the newest last, all of the one epoch."""

    producer_id: int
    epoch: int
    idle_since: float | None
    """When `expire` first found that nothing had come since the time before, by the clock of the
    ProducerState that it belongs to; None: not yet."""
    batches: tuple[Written, ...]


class _Snapshot(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Content of a snapshot: the clock that `idle_since` counts in, and all producers, in order."""

    clock: float
    producers: list[ProducerEntry]


_decoder = msgspec.msgpack.Decoder(_Snapshot)


class ProducerState:
    """The producers of one partition, by the headers in its log.

    Rules for a batch with a producer id, by its producer epoch:

    - The current epoch: a batch that equals one of the last RETAINED_BATCHES is a duplicate. Any other must
      begin with the next sequence, else it is out of order.
    - An older epoch: the batch is fenced.
    - A newer epoch, or an unknown producer: the batch must begin with sequence 0. If it says that
      sequences continue over epochs, a newer epoch begins with the next sequence: a producer that takes
      over asks for that first (`next_of`), and is refused if the former one has written since.

    `check` decides; `update` follows the log and refuses nothing, so that the headers of a log give the
    state that its leader had. Both take the same time however many producers there are.

    A producer is forgotten when it was idle for the expiry, and, above `limit`, the one that wrote longest
    ago, so that invented ids keep no new producers out. If it writes again, UnknownProducer is raised.
    Idleness is measured by `clock`, which `expire` moves on by the monotonic time between its calls and
    which stands while the broker is down: never too long.

    `_entries` is in the order of the last batch. Owner: the log, on the broker's event loop.
    """

    __slots__ = ("_entries", "_seen", "clock", "limit")

    def __init__(
        self, limit: int, entries: Iterable[ProducerEntry] = (), clock: float = 0.0
    ) -> None:
        self.limit = limit
        self.clock = clock
        self._seen: float | None = None
        self._entries = {entry.producer_id: entry for entry in entries if entry.batches}

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def entries(self) -> Sequence[ProducerEntry]:
        """All producers, the one that wrote last at the end."""
        return list(self._entries.values())

    def check(
        self,
        header: BatchHeader,
        before: dict[int, BatchHeader],
        refusal: FolkmootError | None = None,
    ) -> int | None:
        """Return None if the batch may be appended, the original's base offset if it is a duplicate.

        `before`: for each producer its last batch in the same call in front of this one, which is
        added. Raises OutOfOrderSequence, ProducerFenced, UnknownProducer, InvalidRequest, and `refusal`
        for a batch that could be appended otherwise.
        """
        producer_id, epoch, first = header.producer_id, header.producer_epoch, header.base_sequence
        if producer_id == NO_PRODUCER_ID:
            if refusal is not None:
                raise refusal
            return None
        if producer_id < 0 or epoch < 0 or first < 0:
            raise InvalidRequest(
                f"a batch of producer {producer_id}, epoch {epoch}, sequence {first}: none may be "
                "negative"
            )
        entry, ahead = self._entries.get(producer_id), before.get(producer_id)
        if ahead is not None:
            last_epoch, last = ahead.producer_epoch, ahead.last_sequence
        elif entry is not None:
            if epoch == entry.epoch:
                for written in entry.batches:
                    if written.first == first and written.last == header.last_sequence:
                        return written.base_offset
            last_epoch, last = entry.epoch, entry.batches[-1].last
        elif first == 0:
            last_epoch, last = epoch, MAX_SEQUENCE
        else:
            raise UnknownProducer(
                f"producer {producer_id} is not known here and continues with sequence {first}"
            )
        if epoch < last_epoch:
            raise ProducerFenced(
                f"producer {producer_id}, epoch {epoch}: epoch {last_epoch} has written already"
            )
        begins = epoch > last_epoch and not header.continues_sequences
        expected = 0 if begins else (last + 1) & MAX_SEQUENCE
        if first != expected:
            raise OutOfOrderSequence(
                f"producer {producer_id}, epoch {epoch}: sequence {first} came, {expected} is next"
            )
        if refusal is not None:
            raise refusal
        before[producer_id] = header
        return None

    def next_of(self, producer_id: int) -> tuple[int, int]:
        """Return the producer's last epoch and its next sequence; (-1, 0) if it is not known."""
        entry = self._entries.get(producer_id)
        if entry is None:
            return -1, 0
        return entry.epoch, following_sequence(entry.batches[-1].last, 1)

    def update(self, header: BatchHeader, base_offset: int) -> None:
        """Note that the batch is in the log."""
        producer_id = header.producer_id
        if producer_id < 0:
            return
        written = Written(header.base_sequence, header.last_sequence, base_offset)
        entry = self._entries.pop(producer_id, None)
        if entry is None or entry.epoch != header.producer_epoch:
            entry = ProducerEntry(producer_id, header.producer_epoch, None, (written,))
        else:
            entry.batches = (*entry.batches[1 - RETAINED_BATCHES :], written)
            entry.idle_since = None
        self._entries[producer_id] = entry
        while len(self._entries) > self.limit:
            del self._entries[next(iter(self._entries))]

    def expire(self, now: float, expiry: float) -> None:
        """Forget producers that were idle for `expiry` seconds. To be called now and then."""
        self.clock += 0.0 if self._seen is None else now - self._seen
        self._seen = now
        for entry in reversed(self._entries.values()):
            if entry.idle_since is not None:
                break
            entry.idle_since = self.clock
        while self._entries:
            oldest = next(iter(self._entries.values()))
            if oldest.idle_since is None or self.clock - oldest.idle_since < expiry:
                break
            del self._entries[oldest.producer_id]

    def encode(self) -> bytes:
        """Return the content of a snapshot."""
        return msgspec.msgpack.encode(_Snapshot(self.clock, list(self._entries.values())))


class ProducerSnapshots:
    """The state of a log's producers, and `<20-digit offset>.snapshot` files beside its segments.

    A snapshot has the state by all headers before its offset. A flush takes one when the log has begun a
    segment since the last one, after SNAPSHOT_BATCHES more batches, and before segments are deleted whose
    headers no snapshot covers; so does an orderly stop. The flush's job writes it behind the log
    itself, whole or not at all: the log is on disk up to the offset of any snapshot.

    The older ones go once a newer one is on disk, but for the last at or below the high watermark: a cut
    takes the state back to any offset from there on.

    Loading. A job reads the newest snapshot and the headers behind it, or those of the whole log. A
    snapshot that cannot be read is removed, and the next job takes the one before it. If nothing lies
    behind the newest snapshot, that waits for the first append: idle partitions cost no memory.

    Owner: the log, on the broker's event loop.
    """

    __slots__ = ("_directory", "_job", "_wanted", "appended_batches", "failure", "offsets", "state")

    def __init__(self, directory: Path, offsets: Sequence[int] = ()) -> None:
        self._directory = directory
        self.appended_batches = 0
        """Since the last snapshot."""
        self._wanted = 0
        self.offsets = list(offsets)
        """The offsets of those on disk, rising."""
        self.state: ProducerState | None = None
        self.failure: Exception | None = None
        """Why the last job could not load the state; the next use raises it."""
        self._job: SharedJob | None = None

    @property
    def newest(self) -> int:
        """The offset of the newest one; 0, where no producer is known yet, if there is none."""
        return self.offsets[-1] if self.offsets else 0

    @property
    def is_wanted(self) -> bool:
        """Return whether a deletion waits for a snapshot."""
        return self.newest < self._wanted

    def covers(self, offset: int, high_watermark: int) -> bool:
        """Return whether a snapshot replaces the headers before `offset`; if not, the next flush takes one.

        A snapshot above the high watermark goes with a cut, and the headers are needed again.
        """
        self._wanted = max(self._wanted, offset)
        return offset <= self._newest_at(high_watermark)

    def _newest_at(self, offset: int) -> int:
        return max((each for each in self.offsets if each <= offset), default=0)

    def is_due(self, active_base: int) -> bool:
        """Return whether the next flush must take one."""
        return (
            self.is_wanted or self.appended_batches >= SNAPSHOT_BATCHES or self.newest < active_base
        )

    def stale(self, offset: int, high_watermark: int) -> list[int]:
        """Return those that are not needed once one of `offset` is on disk.

        The last at the high watermark or below is needed behind a cut, the first above it later.
        """
        if offset <= high_watermark:
            return list(self.offsets)
        ahead = [each for each in self.offsets if each > high_watermark]
        needed = {self._newest_at(high_watermark), *ahead[:1]}
        return [each for each in self.offsets if each not in needed]

    def note_written(self, offset: int, stale: Sequence[int]) -> None:
        """Note that one of `offset` is on disk, and that `stale` ones are removed."""
        self.offsets = sorted({*self.offsets, offset} - set(stale))

    def go_back_to(self, offset: int) -> list[Path]:
        """Forget the state, and the snapshots ahead of `offset`; → their files, to be removed."""
        ahead = [each for each in self.offsets if each > offset]
        self.offsets = [each for each in self.offsets if each <= offset]
        self.state, self._job, self._wanted = None, None, 0
        return [self.path(each) for each in ahead]

    def job(self, limit: int, headers: Callable[[], Iterable[BatchHeader]]) -> SharedJob:
        """Return the job that loads the state as of the log's end, one for all that wait for it.

        `headers` gives those from the newest snapshot on, on any thread, or raises StorageError.
        """
        if self._job is None:
            path = self.path(self.newest) if self.offsets else None
            work = partial(_load_state, path, limit, headers)
            self._job = SharedJob(work, partial(self._finish_loading, self.newest))
        return self._job

    def _finish_loading(
        self, newest: int, job: SharedJob, outcome: ProducerState | Exception | None
    ) -> None:
        """Take over what a job has found, unless the log was cut since. None: no such snapshot."""
        if self._job is not job:
            return
        self._job = None
        if isinstance(outcome, Exception):
            self.failure = outcome
        elif outcome is not None:
            self.state = outcome
        else:
            self.offsets.remove(newest)

    def path(self, offset: int) -> Path:
        return self._directory / f"{offset:020}{SNAPSHOT_SUFFIX}"


def _load_state(
    path: Path | None, limit: int, headers: Callable[[], Iterable[BatchHeader]]
) -> ProducerState | None:
    """Load a snapshot and the headers behind it; None: the snapshot cannot be read. Any thread."""
    state = ProducerState(limit)
    if path is not None:
        try:
            data = read_checked(path)
            if data is None:
                raise ValueError("it does not match its checksum")
            snapshot = _decoder.decode(data)
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            logger.warning("%s: reading the log instead: %s", path, error)
            with suppress(OSError):
                path.unlink(missing_ok=True)
            return None
        state = ProducerState(limit, snapshot.producers, snapshot.clock)
    for header in headers():
        state.update(header, header.base_offset)
    return state
