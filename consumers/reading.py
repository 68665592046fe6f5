"""One partition being read: where fetching and handing out are, and what lies between. No I/O."""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import dropwhile

from folkmoot.consumers.views import RecordBatchView
from folkmoot.protocol import batch
from folkmoot.protocol.batch import BatchHeader
from folkmoot.protocol.errors import CorruptBatch, FolkmootError
from folkmoot.protocol.records import Record, TopicPartition
from folkmoot.protocol.requests import EARLIEST

Fetched = tuple[BatchHeader, memoryview]


@dataclass(slots=True)
class Room:
    """How many bytes the readings that share it have buffered."""

    used: int = 0


@dataclass(slots=True)
class Reading:
    """`hand_out` is the next offset to hand out, `offset` the next one to fetch.

    Between them lie the rest of the batch that was opened (`records` from `taken` on) and the
    `batches` that were not. `turn` changes with every `start_at`: what is in flight for an earlier
    turn no longer counts. `stuck` ends with the next `start_at`, `paused` only when the application
    says so.
    """

    partition: TopicPartition
    topic_id: str = ""
    pinned: bool = False
    """The id was given, not learned: another id is a topic that does not concern us."""
    turn: int = 0
    offset: int | None = None
    """None while `look_up` is being asked for."""
    look_up: int = EARLIEST
    since: int | None = None
    """Nothing is handed out before the first record of this time (ms); the broker names its batch."""
    hand_out: int = 0
    in_flight: bool = False
    failures: int = 0
    retry_at: float = 0.0
    gone_since: float | None = None
    """Since when the topic is missing or another one."""
    paused: bool = False
    stuck: bool = False
    end: int = -1
    buffered_bytes: int = 0
    room: Room = field(default_factory=Room)
    batches: deque[Fetched] = field(default_factory=deque)
    opened: Fetched | None = None
    """The batch that `records` are of."""
    records: list[Record] = field(default_factory=list)
    taken: int = 0
    view: RecordBatchView | None = None
    """What is left of a batch that was opened in columns; then there are no `records`."""
    resume: int = 0
    """Where to go on after the batch that was opened; behind its last record, there may be a gap."""

    @property
    def key(self) -> tuple[str, str, int]:
        """The first three fields of a request's entry: topic, its id, partition."""
        return self.partition.topic, self.topic_id, self.partition.partition

    def about(self, error: FolkmootError) -> str:
        """The error's sentence with the partition's name in it."""
        name, said = str(self.partition), str(error)
        return said if name in said else f"{name}: {said}"

    def start_at(self, place: int, turn: int, since: int | None = None) -> None:
        """Forget what is buffered or in flight; go on at an offset, or at EARLIEST or LATEST."""
        self.turn = turn
        self.in_flight = self.stuck = False
        self.since = since
        self.batches.clear()
        self.records = []
        self.opened = self.view = None
        self.taken = 0
        self._hold(-self.buffered_bytes)
        if place < 0:
            self.offset, self.look_up = None, place
        else:
            self.offset = self.hand_out = place

    def start_at_time(self, timestamp: int, turn: int) -> None:
        """Forget what is buffered or in flight; go on at the first record of a time (ms) or later."""
        self.start_at(EARLIEST, turn, timestamp)
        # Two times before 1970 mean something else to a broker; an earlier one does no harm.
        self.look_up = min(timestamp, EARLIEST - 1) if timestamp < 0 else timestamp

    def buffer(self, fetched: Sequence[Fetched]) -> None:
        """These batches follow what is buffered."""
        self.batches.extend(fetched)
        self._hold(sum(header.length for header, _ in fetched))
        self.offset = fetched[-1][0].next_offset

    @property
    def has_more(self) -> bool:
        return self.taken < len(self.records) or self.view is not None or bool(self.batches)

    def take(self, limit: int) -> list[Record]:
        """Up to `limit` records of one batch. Raises what makes the next batch illegible."""
        if self.view is not None:
            self.records, self.taken, self.view = self.view.records(), 0, None
        while self.taken == len(self.records):
            if not self.batches:
                return []
            self._open_next()
        records = self.records[self.taken : self.taken + limit]
        self.taken += len(records)
        at_end = self.taken == len(self.records)
        self.hand_out = self.resume if at_end else self.records[self.taken].offset
        return records

    def take_view(self, limit: int) -> RecordBatchView | None:
        """Up to `limit` records of one batch in columns. Raises what makes a batch illegible."""
        if self.taken < len(self.records) and self.opened is not None:
            # Some of it was handed out as records: the rest of it comes in columns.
            self.view = RecordBatchView.of(self.partition, *self.opened).from_offset(self.hand_out)
        self.records, self.taken = [], 0
        while self.view is None:
            if not self.batches:
                return None
            header, data = self.batches[0]
            with self._about(header):
                view = RecordBatchView.of(self.partition, header, data)
            self._pop()
            rest = view.from_offset(self.hand_out)
            if self.since is not None and rest is not None:
                rest = rest.from_time(self.since)
                self.since = self.since if rest is None else None
            self.view = rest
            self.opened, self.resume = (header, data), header.next_offset
            if self.view is None:
                self.hand_out = max(self.hand_out, header.next_offset)
        whole = self.view
        taken = whole.part(0, limit)
        self.view = whole.part(limit, len(whole)) if limit < len(whole) else None
        self.hand_out = self.resume if self.view is None else self.view.offsets[0]
        return taken

    def put_back(self, rest: Sequence[Record]) -> None:
        """The last of the records just taken were not handed out; nothing if they are forgotten."""
        if rest and self.taken and self.records[self.taken - 1] is rest[-1]:
            self.taken -= len(rest)
            self.hand_out = rest[0].offset

    def _open_next(self) -> None:
        """Open the next batch; its first records may lie before the place where we started."""
        header, data = self.batches[0]
        with self._about(header):
            records = batch.records_of(*self.partition, header, data)
        self._pop()
        self.opened = header, data
        if header.base_offset < self.hand_out:
            records = [record for record in records if record.offset >= self.hand_out]
        if self.since is not None:
            since = self.since
            records = list(dropwhile(lambda record: record.timestamp < since, records))
            if records:
                self.hand_out, self.since = records[0].offset, None
        self.records, self.taken, self.resume = records, 0, header.next_offset
        if not records:
            self.hand_out = max(self.hand_out, header.next_offset)

    def _pop(self) -> None:
        """The first batch is open: interrupted before, it is still there."""
        self._hold(-self.batches.popleft()[0].length)

    def _hold(self, more: int) -> None:
        self.buffered_bytes += more
        self.room.used += more

    @contextmanager
    def _about(self, header: BatchHeader) -> Iterator[None]:
        """What makes a batch illegible says which one it is."""
        try:
            yield
        except FolkmootError as error:
            where = f"{self.partition}, batch at {header.base_offset}"
            raise type(error)(f"{where}: {error}") from None


def whole_batches(data: memoryview) -> tuple[list[Fetched], CorruptBatch | None]:
    """The batches in front of the first damaged one, and what is wrong with that one."""
    fetched: list[Fetched] = []
    try:
        for header, view in batch.split(data):
            fetched.append((header, view))
    except CorruptBatch as error:
        return fetched, error
    return fetched, None
