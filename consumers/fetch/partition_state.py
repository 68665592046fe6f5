"""One partition being read: where fetching and handing out are, and what lies between. No I/O."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from folkmoot.consumers.fetch.partition_buffer import PartitionBuffer
from folkmoot.consumers.lag import lag
from folkmoot.consumers.records.batch_view import RecordBatchView
from folkmoot.protocol import batch_header
from folkmoot.protocol.batch_header import BatchHeader
from folkmoot.protocol.errors import CorruptBatch, FolkmootError
from folkmoot.protocol.messages import EARLIEST
from folkmoot.protocol.records import TopicPartition


@dataclass(slots=True, eq=False)
class InFlightFetch:
    """A request to a broker, or what the broker has kept of one: the partitions that wait for an answer.

    `named` are those that this request names itself; the others were named by the request that it goes
    on with. `stale`: some of them are read from elsewhere now, or no more. `waits`: at the broker, for
    new records, as far as is known. `found_no_room`: some may have records that the last answer had no
    room for.
    """

    address: str
    named: Sequence["PartitionFetchState"]
    metadata_version: int
    """When all of them were named."""
    members: dict[TopicPartition, "PartitionFetchState"] = field(default_factory=dict)
    stale: bool = False
    waits: bool = False
    found_no_room: bool = False


@dataclass(slots=True)
class Start:
    """Where reading begins, as long as no offset is known for it, and what is special about it."""

    look_up: int = EARLIEST
    """A time (ms), EARLIEST or LATEST: what the leader is asked the offset of."""
    since: int | None = None
    """Nothing is handed out before the first record of this time (ms); the broker names its batch."""
    by_policy: bool = False
    """The end is looked up since the reset policy says that reading starts there."""
    uncommitted: bool = False
    """The group has yet to commit that it starts here: nothing is fetched before."""
    sought: int | None = None
    """The offset of the last seek: it is an error where the log does not reach so far."""


@dataclass(slots=True)
class Failing:
    """Why a partition brings nothing, and when it is asked for again; times are the fetcher's clock."""

    count: int = 0
    """Since the last answer that brought something, or said that there is nothing."""
    since: float = 0.0
    error: FolkmootError | None = None
    """The last one; None if nothing has failed since."""
    retry_at: float = 0.0
    from_leader_until: float = 0.0
    """A follower could not serve it: until then no other is asked."""
    gone_since: float | None = None
    """Since when the topic is missing or another one."""

    def failed(self, error: FolkmootError, now: float, pause: float) -> None:
        self.since = self.since if self.count else now
        self.count, self.error, self.retry_at = self.count + 1, error, now + pause

    def ended(self) -> None:
        """Something came, or there is nothing new."""
        self.count, self.error = 0, None


@dataclass(slots=True, eq=False)
class PartitionFetchState:
    """`hand_out` is the next offset to hand out, `offset` the next one to fetch: between them lies what
    is left in the `buffer`.

    A `start_at` takes the partition out of the request that is `in_flight`: that answer no longer counts.
    `stopped` ends with the next `start_at`, `paused` only when the application says so.
    """

    buffer: PartitionBuffer
    partition: TopicPartition = field(init=False)
    topic_id: str = ""
    pinned: bool = False
    """The id was given, not learned: a topic with another id does not concern us."""
    offset: int | None = None
    """None while `start.look_up` is being asked for."""
    epochs: list[tuple[int, int]] = field(default_factory=list)
    """The leader epochs of what was fetched in front of `offset`, each with its first offset."""
    start: Start = field(default_factory=Start)
    failing: Failing = field(default_factory=Failing)
    in_flight: InFlightFetch | None = None
    """The request whose answer it waits for."""
    paused: bool = False
    stopped: bool = False
    """Nothing is read before the next `start_at`: the application is to hear why."""
    log_start: int = -1
    """As the last fetch of its own saw it, -1 before the first."""
    end: int = -1

    def __post_init__(self) -> None:
        self.partition = self.buffer.partition

    @property
    def hand_out(self) -> int:
        return self.buffer.next_offset

    @property
    def is_at_end(self) -> bool:
        """Whether all was fetched that its broker was last heard to have: the next fetch waits there."""
        return self.offset is not None and 0 <= self.end <= self.offset

    @property
    def lag(self) -> int | None:
        """Records between the next to be handed out and the end, as the last fetch saw them."""
        end = None if self.offset is None or self.end < 0 else self.end
        return lag(self.hand_out, max(0, self.log_start), end)

    @property
    def last_epoch(self) -> int:
        """The leader epoch of the record before `offset`, -1 if that is not known."""
        return self.epochs[-1][0] if self.epochs else -1

    @property
    def has_more(self) -> bool:
        return self.buffer.has_more

    def about(self, error: FolkmootError) -> str:
        """The error's sentence with the partition's name in it."""
        name, said = str(self.partition), str(error)
        return said if name in said else f"{name}: {said}"

    def start_at(self, place: int, since: int | None = None) -> None:
        """Forget what is buffered or in flight; go on at an offset, or at EARLIEST or LATEST.

        With `since`, at the first record of that time (ms) or later: from the offset on, if it is known
        where, else wherever a look-up finds it.
        """
        self.stopped = False
        self._leave_fetch()
        self.start = Start(since=since, sought=self.start.sought)
        self.cut_epochs(place)
        if place < 0:
            self.start.look_up = place
            if since is not None:
                # Two times before 1970 mean something else to a broker; an earlier one does no harm.
                self.start.look_up = min(since, EARLIEST - 1) if since < 0 else since
        before = self.buffer
        empty = before.emptied(place if place >= 0 else self.hand_out)
        # In one step: what is fetched next follows what is handed out next, whatever is interrupted.
        self.buffer, self.offset = empty, place if place >= 0 else None
        before.drop_fetched()

    def _leave_fetch(self) -> None:
        if self.in_flight is not None:
            self.in_flight.stale = True
            self.in_flight = None

    def cut_epochs(self, place: int) -> None:
        """Reading goes on at `place`: what was fetched before it is known, and nothing behind the end."""
        if self.offset is None or not 0 <= place <= self.offset:
            self.epochs.clear()
        while self.epochs and self.epochs[-1][1] >= place:
            self.epochs.pop()

    def parts_at(self, epoch: int, end: int) -> int:
        """Where to go on if the log has records of no higher epoch than this one, up to `end`, of those
        before `offset`: behind that nothing which was fetched is known to be on it."""
        newer = (first for known, first in self.epochs if known > epoch)
        return min(end, next(newer, end))

    def add(self, fetched: Sequence[tuple[BatchHeader, memoryview]]) -> None:
        """These batches follow what is buffered."""
        for header, _ in fetched:
            if header.leader_epoch > self.last_epoch:
                self.epochs.append((header.leader_epoch, max(header.base_offset, self.offset or 0)))
        self.buffer.add(fetched)  # interrupted before, they are fetched again
        self.offset = fetched[-1][0].next_offset

    def take(self, limit: int) -> tuple[RecordBatchView, int] | None:
        """Up to `limit` records of one batch, and their bytes, decompressed. Raises what makes the next
        batch illegible."""
        return self.buffer.take(limit) if self.buffer.open_next(self.start.since) else None

    def keep(self) -> None:
        """What was taken is in the application's hands for good."""
        if self.buffer.has_taken:
            self.start.since = None
        self.buffer.keep()

    def fetch_again(self) -> None:
        """Forget what was not taken, or is in flight, and go on there."""
        self._leave_fetch()
        self.cut_epochs(self.hand_out)
        self.offset = self.hand_out  # interrupted behind this, what is fetched twice is passed over
        self.buffer.drop_rest()


def whole_batches(
    data: memoryview,
) -> tuple[list[tuple[BatchHeader, memoryview]], CorruptBatch | None]:
    """The batches in front of the first damaged one, and what is wrong with that one.

    So is one that does not lie behind those before it: its records would be taken for read.
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
