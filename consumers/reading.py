"""One partition being read: where fetching and handing out are, and what lies between. No I/O."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from folkmoot.protocol import batch
from folkmoot.protocol.batch import BatchHeader
from folkmoot.protocol.errors import FolkmootError
from folkmoot.protocol.records import Record, TopicPartition
from folkmoot.protocol.requests import EARLIEST

Fetched = tuple[BatchHeader, memoryview]


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
    batches: deque[Fetched] = field(default_factory=deque)
    records: list[Record] = field(default_factory=list)
    taken: int = 0
    resume: int = 0
    """Where to go on after the batch that was opened; behind its last record, there may be a gap."""

    def start_at(self, place: int, turn: int) -> None:
        """Forget what is buffered or in flight; go on at an offset, or at EARLIEST or LATEST."""
        self.turn = turn
        self.in_flight = self.stuck = False
        self.batches.clear()
        self.records = []
        self.taken = self.buffered_bytes = 0
        if place < 0:
            self.offset, self.look_up = None, place
        else:
            self.offset = self.hand_out = place

    def buffer(self, fetched: Sequence[Fetched]) -> None:
        """These batches follow what is buffered."""
        self.batches.extend(fetched)
        self.buffered_bytes += sum(header.length for header, _ in fetched)
        self.offset = fetched[-1][0].next_offset

    @property
    def has_more(self) -> bool:
        return self.taken < len(self.records) or bool(self.batches)

    def take(self, limit: int) -> list[Record]:
        """Up to `limit` records of one batch. Raises what makes the next batch illegible."""
        while self.taken == len(self.records):
            if not self.batches:
                return []
            self._open_next()
        records = self.records[self.taken : self.taken + limit]
        self.taken += len(records)
        at_end = self.taken == len(self.records)
        self.hand_out = self.resume if at_end else self.records[self.taken].offset
        return records

    def put_back(self, rest: Sequence[Record]) -> None:
        """The last of the records just taken were not handed out; nothing if they are forgotten."""
        if rest and self.taken and self.records[self.taken - 1] is rest[-1]:
            self.taken -= len(rest)
            self.hand_out = rest[0].offset

    def _open_next(self) -> None:
        """Open the next batch; its first records may lie before the place where we started."""
        header, data = self.batches.popleft()
        self.buffered_bytes -= header.length
        try:
            records = batch.records_of(*self.partition, header, data)
        except FolkmootError as error:
            where = f"{self.partition}, batch at {header.base_offset}"
            raise type(error)(f"{where}: {error}") from None
        if header.base_offset < self.hand_out:
            records = [record for record in records if record.offset >= self.hand_out]
        self.records, self.taken, self.resume = records, 0, header.next_offset
        if not records:
            self.hand_out = max(self.hand_out, header.next_offset)
