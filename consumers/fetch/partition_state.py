"""The state of one partition being read: its offsets, its buffer and its failures. No I/O."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from folkmoot.consumers.fetch.partition_buffer import PartitionBuffer
from folkmoot.consumers.lag import lag
from folkmoot.protocol import batch_header
from folkmoot.protocol.batch_header import BatchHeader
from folkmoot.protocol.errors import CorruptBatch, FolkmootError
from folkmoot.protocol.messages import EARLIEST
from folkmoot.protocol.records import TopicPartition


@dataclass(slots=True, eq=False)
class InFlightFetch:
    """A request to a broker, or the session that a broker has kept of one.

    `named` are the partitions that this request names; earlier requests of the session have named the
    others. `stale`: a partition is now read from elsewhere, or no more. `waits`: at the broker, for new
    records. `was_full`: the last answer was full, so that others may have records, too.
    """

    address: str
    named: Sequence["PartitionFetchState"]
    metadata_version: int
    """The time when all of them were named."""
    members: dict[TopicPartition, "PartitionFetchState"] = field(default_factory=dict)
    """The partitions that wait for an answer."""
    stale: bool = False
    waits: bool = False
    was_full: bool = False


@dataclass(slots=True)
class Start:
    """The start of reading while the offset is unknown."""

    look_up: int = EARLIEST
    """A time (ms), EARLIEST or LATEST, whose offset the leader is asked for."""
    since: int | None = None
    """Skip records before this time (ms): the broker only names its batch."""
    by_policy: bool = False
    """The reset policy starts at the end."""
    uncommitted: bool = False
    """The group has yet to commit this start: nothing is fetched before."""
    sought: int | None = None
    """The offset of the last seek: an error if the log does not have it."""


@dataclass(slots=True)
class Failing:
    """Why fetches of a partition fail, and when to try again; times are the fetcher's clock."""

    count: int = 0
    """Failures since the last success."""
    since: float = 0.0
    error: FolkmootError | None = None
    """The last error since the last success."""
    retry_at: float = 0.0
    from_leader_until: float = 0.0
    """A follower failed: until then only the leader is asked."""
    missing_since: float | None = None
    """Since when the topic is missing, or another one."""

    def record_failure(self, error: FolkmootError, now: float, pause: float) -> None:
        self.since = self.since if self.count else now
        self.count, self.error, self.retry_at = self.count + 1, error, now + pause

    def clear(self) -> None:
        """A fetch succeeded."""
        self.count, self.error = 0, None


@dataclass(slots=True, eq=False)
class PartitionFetchState:
    """`position` is the next offset to hand out, `offset` the next one to fetch; the `buffer` has the
    records between them.

    After a `start_at` the answer of the request `in_flight` does not count. `stopped` ends with the next
    `start_at`, `paused` by the application.
    """

    buffer: PartitionBuffer
    partition: TopicPartition = field(init=False)
    topic_id: str = ""
    pinned: bool = False
    """The id was given, not learned: a topic with another id is ignored."""
    offset: int | None = None
    """None while `start.look_up` is in flight."""
    epochs: list[tuple[int, int]] = field(default_factory=list)
    """The leader epochs of the records before `offset`, each with its first offset."""
    start: Start = field(default_factory=Start)
    failing: Failing = field(default_factory=Failing)
    in_flight: InFlightFetch | None = None
    paused: bool = False
    stopped: bool = False
    """An error stopped reading; the application has yet to seek."""
    log_start: int = -1
    """By the partition's last fetch, -1 before the first."""
    end: int = -1

    def __post_init__(self) -> None:
        self.partition = self.buffer.partition

    @property
    def position(self) -> int:
        return self.buffer.next_offset

    @property
    def is_at_end(self) -> bool:
        """Return whether all known records are fetched: the next fetch waits at the broker."""
        return self.offset is not None and 0 <= self.end <= self.offset

    @property
    def lag(self) -> int | None:
        """Records between the next to hand out and the end, by the last fetch."""
        end = None if self.offset is None or self.end < 0 else self.end
        return lag(self.position, max(0, self.log_start), end)

    @property
    def last_epoch(self) -> int:
        """The leader epoch of the record before `offset`, -1 if unknown."""
        return self.epochs[-1][0] if self.epochs else -1

    def about(self, error: FolkmootError) -> str:
        """Return the error's message with the partition's name in it."""
        name, message = str(self.partition), str(error)
        return message if name in message else f"{name}: {message}"

    def start_at(self, offset: int, since: int | None = None) -> None:
        """Drop the buffer and the request in flight; continue at an offset, or at EARLIEST or LATEST.

        With `since`, at the first record of that time (ms) or later: from the offset on, or after a look-up.
        """
        self.stopped = False
        self._leave_fetch()
        self.start = Start(since=since, sought=self.start.sought)
        self._cut_epochs(offset)
        if offset < 0:
            self.start.look_up = offset
            if since is not None:
                # EARLIEST and LATEST are times before 1970 on the wire; an earlier time does no harm.
                self.start.look_up = min(since, EARLIEST - 1) if since < 0 else since
        before = self.buffer
        next_offset = offset if offset >= 0 else self.position
        empty = PartitionBuffer(self.partition, before.budget, next_offset)
        # In one step: an interrupt must not part the next offset to fetch from the next to hand out.
        self.buffer, self.offset = empty, offset if offset >= 0 else None
        before.drop_fetched()

    def _leave_fetch(self) -> None:
        if self.in_flight is not None:
            self.in_flight.stale = True
            self.in_flight = None

    def _cut_epochs(self, offset: int) -> None:
        """Forget the epochs after `offset`, and all of them where the records before it are unknown."""
        if self.offset is None or not 0 <= offset <= self.offset:
            self.epochs.clear()
        while self.epochs and self.epochs[-1][1] >= offset:
            self.epochs.pop()

    def parts_at(self, epoch: int, end: int) -> int:
        """Return where our records and the log part: the log has epochs up to this one, which ends at
        `end`."""
        newer = (first for known, first in self.epochs if known > epoch)
        return min(end, next(newer, end))

    def add(self, fetched: Sequence[tuple[BatchHeader, memoryview]]) -> None:
        """Append these batches to the buffer."""
        for header, _ in fetched:
            if header.leader_epoch > self.last_epoch:
                self.epochs.append((header.leader_epoch, max(header.base_offset, self.offset or 0)))
        self.buffer.add(fetched)  # interrupted before, they are fetched again
        self.offset = fetched[-1][0].next_offset

    def fetch_again(self) -> None:
        """Drop what was not taken, and the request in flight, and fetch from there."""
        self._leave_fetch()
        self._cut_epochs(self.position)
        self.offset = self.position  # after an interrupt here, records fetched twice are skipped
        self.buffer.drop_rest()


def intact_batches(
    data: memoryview,
) -> tuple[list[tuple[BatchHeader, memoryview]], CorruptBatch | None]:
    """Return the batches before the first damaged one, and its error.

    A batch that overlaps the one before counts as damaged: its records would be taken for read.
    """
    fetched: list[tuple[BatchHeader, memoryview]] = []
    try:
        for header, view in batch_header.split(data):
            if fetched and header.base_offset < (behind := fetched[-1][0].next_offset):
                raise CorruptBatch(f"a batch from {header.base_offset} on came behind {behind - 1}")
            fetched.append((header, view))
    except CorruptBatch as error:
        return fetched, error
    return fetched, None
