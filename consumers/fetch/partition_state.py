"""One partition being read: where fetching and handing out are, and what lies between. No I/O."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from folkmoot.consumers.fetch.buffer_budget import BufferBudget
from folkmoot.consumers.fetch.fetched_batch import FetchedBatch
from folkmoot.consumers.lag import lag
from folkmoot.consumers.records.batch_view import RecordBatchView, view_of_batch
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


@dataclass(slots=True, eq=False)
class PartitionFetchState:
    """`hand_out` is the next offset to hand out, `offset` the next one to fetch.

    Between them lie what is left of the batch that was opened (`opened` from `row` on, None if nothing
    is) and the `batches` that were not. A `start_at` takes the partition out of the request that is
    `in_flight`: that answer no longer counts. `failed` ends with the next `start_at`, `paused` only
    when the application says so.
    """

    partition: TopicPartition
    topic_id: str = ""
    pinned: bool = False
    """The id was given, not learned: a topic with another id does not concern us."""
    offset: int | None = None
    """None while `look_up` is being asked for."""
    epochs: list[tuple[int, int]] = field(default_factory=list)
    """The leader epochs of what was fetched in front of `offset`, each with its first offset."""
    look_up: int = EARLIEST
    since: int | None = None
    """Nothing is handed out before the first record of this time (ms); the broker names its batch."""
    hand_out: int = 0
    in_flight: InFlightFetch | None = None
    """The request whose answer it waits for."""
    from_leader_until: float = 0.0
    """A follower could not serve it: until then no other is asked."""
    failures: int = 0
    """Since the last answer that brought something, or said that there is nothing."""
    failing_since: float = 0.0
    trouble: FolkmootError | None = None
    """The last failure."""
    retry_at: float = 0.0
    gone_since: float | None = None
    """Since when the topic is missing or another one."""
    paused: bool = False
    by_policy: bool = False
    """The end is looked up since the reset policy says that reading starts there."""
    uncommitted: bool = False
    """The group has yet to commit that it starts here: nothing is fetched before."""
    failed: bool = False
    sought: int | None = None
    """The offset of the last seek: it is an error where the log does not reach so far."""
    log_start: int = -1
    """As the last fetch of its own saw it, -1 before the first."""
    end: int = -1
    buffered_bytes: int = 0
    budget: BufferBudget = field(default_factory=BufferBudget)
    batches: deque[FetchedBatch] = field(default_factory=deque)
    opened: RecordBatchView | None = None
    row: int = 0
    opened_bytes: int = 0
    """Of the batch that was opened, decompressed."""
    taken_bytes: int = 0
    """Of what was taken last, decompressed."""
    resume: int = 0
    """Where to go on after the batch that was opened; behind its last record, there may be a gap."""
    may_return: bool = False
    """Whether what was handed out last may come back: reading does not go on elsewhere since."""

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
        return self.opened is not None or bool(self.batches)

    def about(self, error: FolkmootError) -> str:
        """The error's sentence with the partition's name in it."""
        name, said = str(self.partition), str(error)
        return said if name in said else f"{name}: {said}"

    def start_at(self, place: int, since: int | None = None) -> None:
        """Forget what is buffered or in flight; go on at an offset, or at EARLIEST or LATEST.

        With `since`, at the first record of that time (ms) or later: from the offset on, if it is known
        where, else wherever a look-up finds it.
        """
        self.failed = self.may_return = self.by_policy = self.uncommitted = False
        if self.in_flight is not None:
            self.in_flight.stale = True
            self.in_flight = None
        self.since = since
        for batch in reversed(self.batches):
            self.budget.remove(batch)
        self.batches.clear()
        self.opened, self.row = None, 0
        self.buffered_bytes = 0
        self.cut_epochs(place)
        if place >= 0:
            self.offset = self.hand_out = place
        else:
            self.offset, self.look_up = None, place
            if since is not None:
                # Two times before 1970 mean something else to a broker; an earlier one does no harm.
                self.look_up = min(since, EARLIEST - 1) if since < 0 else since

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

    def buffer(self, fetched: Sequence[tuple[BatchHeader, memoryview]]) -> None:
        """These batches follow what is buffered."""
        for header, _ in fetched:
            if header.leader_epoch > self.last_epoch:
                self.epochs.append((header.leader_epoch, max(header.base_offset, self.offset or 0)))
        batches = [FetchedBatch(header, data) for header, data in fetched]
        self.batches.extend(batches)
        self.offset = batches[-1].header.next_offset
        self.buffered_bytes += sum(batch.header.length for batch in batches)
        self.budget.add(batches)

    def take(self, limit: int) -> RecordBatchView | None:
        """Up to `limit` records of one batch. Raises what makes the next batch illegible."""
        while self.opened is None:
            if not self.batches:
                return None
            self._open_next()
        whole, start = self.opened, self.row
        end = min(start + limit, len(whole))
        part = whole.part(start, end)
        self.may_return = True
        self.taken_bytes = self.opened_bytes * (end - start) // len(whole)
        if end < len(whole):
            self.row, self.hand_out = end, whole.offsets[end]
        else:
            self.opened, self.hand_out = None, self.resume
        return part

    def put_back(self, taken: RecordBatchView, row: int) -> None:
        """Of what was taken last, or of its first rows, only those before `row` were handed out.

        An interrupted call may be made again, as one that says less of the same.
        """
        if self.may_return and row < len(taken):
            self.hand_out = taken.offsets[row]
            if self.opened is None:
                self.opened, self.opened_bytes = taken, self.taken_bytes
            self.row = self.opened.row_of_offset(self.hand_out)

    def _open_next(self) -> None:
        """Open the next batch; its first records may lie before the place where we started."""
        batch = self.batches[0]
        header = batch.header
        try:
            body = batch.body()
            view = view_of_batch(self.partition, header, batch.data, body)
        except FolkmootError as error:
            where = f"{self.partition}, batch at {header.base_offset}"
            raise type(error)(f"{where}: {error}") from None
        # The batch is open: interrupted before, it is still there.
        self.batches.popleft()
        self.buffered_bytes -= header.length
        self.budget.remove(batch)
        row = view.row_of_offset(self.hand_out)
        if self.since is not None:
            row = view.row_of_time(self.since, row)
        self.resume = header.next_offset
        if row == len(view):
            self.hand_out = max(self.hand_out, header.next_offset)
            return
        if self.since is not None:
            self.hand_out, self.since = view.offsets[row], None
        self.opened, self.row, self.opened_bytes = view, row, len(body)


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
