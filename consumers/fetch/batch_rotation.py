"""Handing out what is buffered: partitions take turns, one batch each."""

from _thread import allocate_lock, start_new_thread
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Final

from folkmoot.consumers.fetch.fetch_queue import FetchQueue
from folkmoot.consumers.fetch.partition_state import Body, FetchedBatch, PartitionFetchState
from folkmoot.consumers.records.batch_view import RecordBatchView
from folkmoot.network.memory import keep_freed_memory
from folkmoot.protocol import compression, record_batch
from folkmoot.protocol.compression import Codec
from folkmoot.protocol.errors import FolkmootError
from folkmoot.protocol.records import TopicPartition

AHEAD: Final = 32
"""So many batches are decompressed together at most; their bytes are bounded besides."""
AHEAD_FROM_BYTES: Final = 4096
"""A batch that is smaller than this, compressed, is opened by itself."""
START_PATIENCE: Final = 0.0005
"""A thread is given so many seconds to begin before the application goes on."""

StartAt = Callable[[PartitionFetchState, int, int | None], None]
Fail = Callable[[PartitionFetchState, FolkmootError], None]
Following = list[tuple[PartitionFetchState, FetchedBatch]]


class BatchRotation:
    """Whose turn it is, and what was taken but may have to be read again.

    A batch is opened when its turn has come. Decompressing is most of the work of reading columns,
    and one batch keeps one processor busy only: so those whose turn comes next are decompressed
    with it, and those that follow beside the application while it has these: some MiB for each
    processor, so that none of them waits for the application to ask. That costs memory for one such
    piece more than there are processors (up to four), whatever the number of partitions.

    What was taken since `begin` is read again after `read_again`: nobody has seen it. The states
    belong to the fetcher, whose thread this is; `start_at` and `fail` are its, too.
    """

    def __init__(
        self,
        states: Mapping[TopicPartition, PartitionFetchState],
        queue: FetchQueue,
        start_at: StartAt,
        fail: Fail,
    ) -> None:
        self._states = states
        self._queue = queue
        self._start_at = start_at
        self._fail = fail
        self._ready: dict[TopicPartition, None] = {}  # a queue without duplicates
        self._taken: dict[TopicPartition, tuple[int, int | None]] = {}  # from where on
        self._prefetched: deque[_Prefetch] = deque()
        self.taken_bytes = 0
        """Taken since `begin`, decompressed."""

    @property
    def is_idle(self) -> bool:
        """Nothing can be taken: whatever is buffered is paused."""
        return not self._ready

    def add(self, partition: TopicPartition) -> None:
        """There may be something of this partition: it takes its turn."""
        self._ready[partition] = None

    def take(self, limit: int) -> RecordBatchView | None:
        """Up to `limit` records of the partition whose turn it is; it goes to the end of the queue."""
        while self._ready:
            partition = next(iter(self._ready))
            state = self._states.get(partition)
            if state is None or state.paused:
                del self._ready[partition]
                continue
            if state.has_more:
                self._taken.setdefault(partition, (state.hand_out, state.since))
            try:
                if _is_worth_it(state):
                    self._decompress(state)
                taken = state.take(limit)
            except FolkmootError as error:
                self._start_at(state, state.hand_out, None)
                self._fail(state, error)
                continue
            finally:
                del self._ready[partition]
                if state.has_more:
                    self._ready[partition] = None
                self._queue.offer(state)
            if taken is not None:
                self.taken_bytes += state.taken_bytes
                return taken
        return None

    def put_back(self, taken: RecordBatchView, row: int) -> None:
        """Of what was taken last only the rows before `row` were handed out after all."""
        state = self._states.get(taken.topic_partition)
        if state is not None:
            self._ready[taken.topic_partition] = None
            state.put_back(taken, row)

    def begin(self) -> None:
        """What was taken so far has been seen."""
        self._taken.clear()
        self.taken_bytes = 0

    def has_taken(self, partition: TopicPartition) -> bool:
        """Whether something was taken of it since `begin`."""
        return partition in self._taken

    def read_again(self) -> None:
        """Go back to before what was taken since `begin`."""
        for partition, (offset, since) in self._taken.items():
            self._start_at(self._states[partition], offset, since)
        self._taken.clear()

    def forget(self, partition: TopicPartition) -> None:
        """It is read from elsewhere now, or no more."""
        self._taken.pop(partition, None)

    # -- decompressing ahead ----------------------------------------------------------------------

    def _decompress(self, state: PartitionFetchState) -> None:
        """Have the body of this partition's next batch, and begin with those that follow."""
        while self._prefetched and not state.bodies:
            self._prefetched.popleft().finish()
        if not state.bodies:
            following = self._following()
            compressed = record_batch.openable_together([fetched for _, fetched in following])
            if len(compressed) > 1:
                _give(following, compression.decompress_together(compressed, compression.THREADS))
        piece = compression.TOGETHER_BYTES
        held = sum(len(body) for each in self._next() for body in each.bodies)
        while held + (len(self._prefetched) + 1) * piece <= (compression.THREADS + 1) * piece:
            following = self._following()
            compressed = record_batch.openable_together([fetched for _, fetched in following])
            if not compressed:
                return
            keep_freed_memory()
            prefetch = _Prefetch(following[: len(compressed)], compressed)
            if not prefetch.begin():
                return
            self._prefetched.append(prefetch)

    def _next(self) -> list[PartitionFetchState]:
        """Those whose turns come next."""
        states = [self._states.get(each) for each in islice(self._ready, AHEAD)]
        return [each for each in states if each is not None and not each.paused]

    def _following(self) -> Following:
        """Batches that nobody decompresses yet, in the order in which their turns come: by rounds."""
        found: Following = []
        planned = {id(fetched) for each in self._prefetched for _, fetched in each.following}
        states = self._next()
        turn = 0
        while states and len(found) < AHEAD:
            states = [each for each in states if _is_zstd(each, turn)]
            missing = [each for each in states if len(each.bodies) <= turn]
            batches = [(each, each.batches[turn]) for each in missing]
            found += [pair for pair in batches if id(pair[1]) not in planned]
            turn += 1
        return found[:AHEAD]


class _Prefetch:
    """Batches of several partitions, being decompressed by a thread that lives for them alone.

    Some MiB at a time, so the thread is cheap beside its work, and nobody has to end it. It touches
    nothing but the compressed bytes, which never change, and it holds the interpreter's lock only for
    a moment at each end. `begin` gives it that lock for the first of these moments, or a busy
    application would keep it waiting; but where all processors are busy, it waits no longer than
    START_PATIENCE. The second moment may come when the application waits: nobody needs it earlier.

    The thread is one without an object of `threading`, which costs as much again as the thread, and
    whose `start` waits as long as it takes.
    """

    def __init__(self, following: Following, compressed: Sequence[memoryview]) -> None:
        self.following = following
        self._compressed = compressed
        self._bodies: Sequence[Body] = ()
        self._has_begun, self._is_done = allocate_lock(), allocate_lock()

    def begin(self) -> bool:
        """False where no more threads are to be had: then it is done when its turn comes."""
        self._has_begun.acquire()
        self._is_done.acquire()
        try:
            start_new_thread(self._decompress, ())
        except RuntimeError:
            return False
        self._has_begun.acquire(timeout=START_PATIENCE)
        return True

    def finish(self) -> None:
        """Wait for the thread, then give the partitions what it made."""
        self._is_done.acquire()
        _give(self.following, self._bodies)

    def _decompress(self) -> None:
        try:
            self._has_begun.release()
            with suppress(
                MemoryError
            ):  # told by whoever opens them one by one, if there is none then
                self._bodies = compression.decompress_together(self._compressed, 1)
        finally:
            self._is_done.release()


def _give(following: Following, bodies: Sequence[Body]) -> None:
    """Each partition has these bodies now, but for those of batches that are not its next any more.

    So whatever happened to the partitions meanwhile (a seek, a pause) does no harm.
    """
    for (state, fetched), body in zip(following, bodies, strict=False):
        number = len(state.bodies)
        if number < len(state.batches) and state.batches[number] is fetched:
            state.bodies.append(body)


def _is_worth_it(state: PartitionFetchState) -> bool:
    """Whether the batch to be opened next is one that should be decompressed with others."""
    if state.opened is not None or state.bodies or not _is_zstd(state, 0):
        return False
    return state.batches[0][0].length >= AHEAD_FROM_BYTES


def _is_zstd(state: PartitionFetchState, number: int) -> bool:
    """Whether there is such a batch, and it can be decompressed with others."""
    return number < len(state.batches) and state.batches[number][0].codec == Codec.ZSTD
