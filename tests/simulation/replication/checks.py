"""What must hold of the records of a partition after every turn of a broker's event loop."""

from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import NamedTuple

from folkmoot.brokers.storage.log import Log
from folkmoot.brokers.storage.segment import Damage, SegmentReader
from folkmoot.protocol import batch_header, record_batch
from folkmoot.protocol.errors import FolkmootError
from tests.brokers.batches import read_now
from tests.client_history import ClientHistory, Seen
from tests.simulation.checks import Violation


class Record(NamedTuple):
    """What lies at an offset."""

    epoch: int
    value: int
    timestamp: int = 0


Contents = Callable[[int, int], list[tuple[int, Record]]]
"""The records of a log between two offsets, as far as it goes."""


class ReplicationChecks:
    """Sees every high watermark, acknowledgement, read and activation. Raises Violation.

    A record is committed once a replica's high watermark has passed it. From then on it is at its offset
    for ever: no other record is committed there, every later leader has it, and so has every replica
    below its own high watermark. What clients have seen is judged in the end (`at_rest`).
    """

    def __init__(self) -> None:
        self.committed: list[Record] = []
        self.rotten: set[int] = set()
        """Offsets that have rotted on any replica, whether that is known there or not."""
        self.committed_in: list[int] = []
        """The leader epoch in which each of them was."""
        self.clients = ClientHistory()
        self.epochs: dict[int, str] = {}
        self.to_be_deleted = 0
        """Records before it may be gone."""
        self._deleted: list[tuple[int, int]] = []

    def deleted(self, epoch: int, offset: int) -> None:
        """Who has deleted records is told so by the leader of an epoch."""
        self._deleted.append((epoch, offset))

    def leads(self, who: str, epoch: int, contents: Contents, log_start: int = 0) -> None:
        """A broker has become the leader. It may have stood still since it was, while others led: what
        they have committed it need not have, and nobody follows it any more."""
        if self.epochs.setdefault(epoch, who) != who:
            raise Violation(f"{who} and {self.epochs[epoch]} lead in epoch {epoch}")
        before = sum(1 for each in self.committed_in if each < epoch)
        self._has_committed(f"leader {who} of epoch {epoch}", contents, before)
        gone = max((offset for at, offset in self._deleted if at < epoch), default=0)
        if log_start < gone:
            raise Violation(f"leader {who} of epoch {epoch} has {log_start}, deleted up to {gone}")

    def advanced(self, who: str, contents: Contents, before: int, after: int, epoch: int) -> None:
        """A replica's high watermark may have moved, in a leader epoch."""
        self.clients.high_watermark(who, after)
        if after < before:
            raise Violation(f"hw-regress: that of {who} went from {before} to {after}")
        if after == before:
            return
        found = contents(before, after)
        first = found[0][0] if found else after
        if len(found) < after - first or first > max(before, self.to_be_deleted):
            raise Violation(f"{who} has {len(found)} records from {before} to {after}")
        for offset, record in found:
            if offset == len(self.committed):
                self.committed.append(record)
                self.committed_in.append(epoch)
            elif offset > len(self.committed):
                raise Violation(f"{record} is committed at {offset}, behind a hole")
            elif self.committed[offset] != record:
                other = self.committed[offset]
                raise Violation(f"{other} and {record} are both committed at {offset}")

    def shortened(self, who: str, high_watermark: int, log_end: int) -> None:
        """A replica has cut its log."""
        if log_end < high_watermark:
            raise Violation(f"{who} has cut at {log_end}, committed up to {high_watermark}")

    def acknowledged(self, producer: str, number: int, value: int, offset: int) -> None:
        """A producer is told that all in-sync replicas have it."""
        self.clients.acknowledge(producer, number, 0, 0, offset, value)
        there = self.committed[offset : offset + 1]
        if not there or there[0].value != value:
            raise Violation(f"{value} is acknowledged at {offset}, where {there} is committed")

    def sought(self, who: str, moment: int, offset: int) -> None:
        """A consumer that looked for the first record of a time (ms) was given this one.

        What has rotted may be passed over until it is found (docs/guarantees.md)."""
        for at, record in enumerate(self.committed[: offset + 1]):
            is_there = at == offset or (at >= self.to_be_deleted and at not in self.rotten)
            if is_there and (record.timestamp >= moment) != (at == offset):
                raise Violation(f"{who} sought {moment} and got {offset}: {record} is at {at}")

    def at_rest(self, logs: dict[int, Log]) -> None:
        """All is well in the end: every log is the same, and clients have seen nothing wrong."""
        for who, log in logs.items():
            self._has_committed(f"replica {who}", partial(records_of, log), len(self.committed))
        start = max(log.log_start for log in logs.values())
        contents = {tuple(records_of(log, start, log.log_end)) for log in logs.values()}
        if len(contents) > 1:
            raise Violation(f"the logs differ: {[log.log_end for log in logs.values()]}")
        [records] = contents
        records = (*enumerate(self.committed[:start]), *records)  # as if none were deleted
        self.clients.finally_read(Seen(0, offset, record.value) for offset, record in records)
        self.clients.forgotten = self.to_be_deleted
        faults = self.clients.faults()
        if faults:
            kind, said = next(iter(faults.items()))
            raise Violation(f"{kind}: {said[0]} ({', '.join(faults)})")

    def _has_committed(self, who: str, contents: Contents, count: int) -> None:
        there = dict(contents(0, count))
        first = min(min(there, default=count), self.to_be_deleted)
        for offset, record in enumerate(self.committed[:count]):
            if offset >= first and there.get(offset) != record:
                raise Violation(
                    f"{who} has {there.get(offset)} where {record} is committed: {offset}"
                )


def whole_records_of(log: Log) -> dict[int, Record]:
    """All that is not damaged on disk, whatever the log knows of it."""
    found: dict[int, Record] = {}
    for segment in log.segments:
        if not segment.path.exists():  # the log is being cut
            continue
        with closing(
            SegmentReader(segment.directory, segment.name, segment.size, segment.end_offset)
        ) as reader:
            for each in reader.batches():
                if not isinstance(each, Damage):
                    header, data = each[0], reader.read(each[1], each[0].length)
                    for record in record_batch.records_of("t", 0, header, data):
                        value = int(record.value or b"0")
                        found[record.offset] = Record(header.leader_epoch, value, record.timestamp)
    return found


def records_of(log: Log, offset: int, end: int) -> list[tuple[int, Record]]:
    """What lies between two offsets, whether committed or not, as far as the log goes."""
    found: list[tuple[int, Record]] = []
    offset, end = max(offset, log.log_start), min(end, log.log_end)
    while offset < end:
        try:
            chunk = read_now(log, offset, 1 << 20, committed=False)
        except FolkmootError as error:
            raise Violation(f"offset {offset} cannot be read: {error}") from error
        before = offset
        for header, data in batch_header.split(chunk):
            for each in record_batch.records_of("t", 0, header, data):
                if before <= each.offset < end:
                    value = int(each.value or b"0")
                    record = Record(header.leader_epoch, value, each.timestamp)
                    found.append((each.offset, record))
            offset = header.next_offset
        if offset == before:
            raise Violation(f"{log.name} has nothing at {offset}, and ends at {log.log_end}")
    return found
