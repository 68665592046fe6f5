"""Handing out what is buffered: partitions take turns, one batch each."""

from collections import deque
from collections.abc import Callable, Mapping
from itertools import islice
from types import TracebackType
from typing import Final

from folkmoot.consumers.fetch.fetch_queue import Waiting
from folkmoot.consumers.fetch.partition_state import Fetched, Reading
from folkmoot.consumers.records.batch_view import RecordBatchView
from folkmoot.consumers.records.prefetch_decompression import Ahead, give
from folkmoot.protocol import compression, record_batch
from folkmoot.protocol.compression import Codec
from folkmoot.protocol.errors import FolkmootError
from folkmoot.protocol.records import TopicPartition

AHEAD: Final = 32
"""So many batches are decompressed together at most; their bytes are bounded besides."""
AHEAD_FROM_BYTES: Final = 4096
"""A batch that is smaller than this, compressed, is opened by itself."""

StartAt = Callable[[Reading, int, int | None], None]
Illegible = Callable[[Reading, FolkmootError], None]


class Turns:
    """Whose turn it is, and what was taken but may have to be read again.

    A batch is opened when its turn has come. Decompressing is most of the work of reading columns,
    and one batch keeps one processor busy only: so those whose turn comes next are decompressed
    with it, and those that follow beside the application while it has these: some MiB for each
    processor, so that none of them waits for the application to ask. That costs memory for one such
    piece more than there are processors (up to four), whatever the number of partitions.

    What was taken since `begin` is read again after `read_again`: nobody has seen it. The readings
    belong to the fetcher, whose thread this is; `start_at` and `illegible` are its, too.
    """

    def __init__(
        self,
        readings: Mapping[TopicPartition, Reading],
        waiting: Waiting,
        start_at: StartAt,
        illegible: Illegible,
    ) -> None:
        self._readings = readings
        self._waiting = waiting
        self._start_at = start_at
        self._illegible = illegible
        self._ready: dict[TopicPartition, None] = {}  # a queue without duplicates
        self._taken: dict[TopicPartition, tuple[int, int | None]] = {}  # from where on
        self._ahead: deque[Ahead] = deque()
        self._handing_out = _HandingOut(self)

    def add(self, partition: TopicPartition) -> None:
        """There may be something of this partition: it takes its turn."""
        self._ready[partition] = None

    def take(self, limit: int) -> RecordBatchView | None:
        """Up to `limit` records of the partition whose turn it is; it goes to the end of the queue."""
        while self._ready:
            partition = next(iter(self._ready))
            reading = self._readings.get(partition)
            if reading is None or reading.paused:
                del self._ready[partition]
                continue
            if reading.has_more:
                self._taken.setdefault(partition, (reading.hand_out, reading.since))
            try:
                if _is_worth_it(reading):
                    self._decompress(reading)
                taken = reading.take(limit)
            except FolkmootError as error:
                self._start_at(reading, reading.hand_out, None)
                self._illegible(reading, error)
                continue
            finally:
                del self._ready[partition]
                if reading.has_more:
                    self._ready[partition] = None
                self._waiting.offer(reading)
            if taken is not None:
                return taken
        return None

    def _decompress(self, reading: Reading) -> None:
        """Have the body of this reading's next batch, and begin with those that follow."""
        while self._ahead and not reading.bodies:
            self._ahead.popleft().finish()
        if not reading.bodies:
            found = self._following()
            give(found, record_batch.bodies_of([fetched for _, fetched in found]))
        piece = compression.TOGETHER_BYTES
        held = sum(len(body) for each in self._next() for body in each.bodies)
        while held + (len(self._ahead) + 1) * piece <= (compression.THREADS + 1) * piece:
            ahead = Ahead.begin(self._following())
            if ahead is None:
                return
            self._ahead.append(ahead)

    def _next(self) -> list[Reading]:
        """Those whose turns come next."""
        partitions = [self._readings.get(each) for each in islice(self._ready, AHEAD)]
        return [each for each in partitions if each is not None and not each.paused]

    def _following(self) -> list[tuple[Reading, Fetched]]:
        """Batches that nobody decompresses yet, in the order in which their turns come: by rounds."""
        found: list[tuple[Reading, Fetched]] = []
        planned = set[int]().union(*(each.planned for each in self._ahead))
        readings = self._next()
        turn = 0
        while readings and len(found) < AHEAD:
            readings = [each for each in readings if _is_zstd(each, turn)]
            missing = [each for each in readings if len(each.bodies) <= turn]
            batches = [(each, each.batches[turn]) for each in missing]
            found += [pair for pair in batches if id(pair[1]) not in planned]
            turn += 1
        return found[:AHEAD]

    def put_back(self, taken: RecordBatchView, row: int) -> None:
        """Of what was taken last only the rows before `row` were handed out after all."""
        reading = self._readings.get(taken.topic_partition)
        if reading is not None:
            self._ready[taken.topic_partition] = None
            reading.put_back(taken, row)

    # -- what nobody has seen -------------------------------------------------------------------------

    def handing_out(self) -> "_HandingOut":
        """What is taken in the block is read again if the block raises: nobody has seen it."""
        return self._handing_out

    def begin(self) -> None:
        """What was taken so far has been seen."""
        self._taken.clear()

    def read_again(self) -> None:
        """Go back to before what was taken since the last block began."""
        for partition, (offset, since) in self._taken.items():
            self._start_at(self._readings[partition], offset, since)
        self._taken.clear()

    def forget(self, partition: TopicPartition) -> None:
        """It is read from elsewhere now, or no more."""
        self._taken.pop(partition, None)


class _HandingOut:
    """A block for each batch: made by `contextmanager`, it would cost as much as taking the batch."""

    __slots__ = ("_turns",)

    def __init__(self, turns: Turns) -> None:
        self._turns = turns

    def __enter__(self) -> None:
        self._turns.begin()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self._turns.read_again()


def _is_worth_it(reading: Reading) -> bool:
    """Whether the batch to be opened next is one that should be decompressed with others."""
    if reading.opened is not None or reading.bodies or not _is_zstd(reading, 0):
        return False
    return reading.batches[0][0].length >= AHEAD_FROM_BYTES


def _is_zstd(reading: Reading, number: int) -> bool:
    """Whether there is such a batch, and it can be decompressed with others."""
    return number < len(reading.batches) and reading.batches[number][0].codec == Codec.ZSTD
