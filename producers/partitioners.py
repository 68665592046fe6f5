"""Which partition a record goes to, chosen for many records at once. Pure, but for the random source."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from random import Random
from typing import Any, Final, Literal, Protocol, cast

import numpy as np
import numpy.typing as npt

from folkmoot.producers.cells import NIL, Cells, SameCells, cells_of_list, has_nils
from folkmoot.protocol.errors import PartitionerFailed
from folkmoot.protocol.murmur2 import murmur2_column, murmur2_even, partition_for, partitions_of

KEYS_REMEMBERED: Final = 16_384
FEW_KEYS: Final = 64

Partitions = npt.NDArray[np.integer[Any]]
Strategy = Literal["key-hash", "sticky", "round-robin"]
STRATEGIES: Final = ("key-hash", "sticky", "round-robin")


class Choose(Protocol):
    """A partitioner of the application's own: one partition number, below `partitions`, per key.

    `keys` is a sequence of bytes or None, or the Arrow array of binary if `send_batch` was given one. It
    is called in the producer's thread; what it raises fails the records, not the producer.
    """

    def __call__(self, topic: str, keys: Any, partitions: int, /) -> Sequence[int] | Any: ...


class ColumnsToPlace(Protocol):
    """What is asked of a chunk of columns."""

    topic: str
    size: int
    partition: int | None
    cell_keys: Cells | None

    def __len__(self) -> int: ...


def by_key(keys: Sequence[bytes], count: int) -> Partitions:
    """Where Kafka's clients would put records with these keys, among `count` partitions."""
    if len(keys) > FEW_KEYS:
        return by_hash(cells_of_list(keys), count)
    return np.fromiter((_hash_of(key, count) for key in keys), np.uint16, len(keys))


def by_hash(keys: Cells, count: int) -> Partitions:
    """As `by_key`, of a column without nils."""
    if count == 1:
        return np.zeros(len(keys), np.uint8)
    if isinstance(keys, SameCells):
        hashes = murmur2_even(keys.data, keys.size, keys.start, keys.stride, len(keys))
    else:
        hashes = murmur2_column(keys.run(), keys.lengths)
    return partitions_of(hashes, count)


_hash_of = lru_cache(KEYS_REMEMBERED)(partition_for)


class Partitioner:
    """Chooses for one topic. A record with a partition of its own goes there; for others it depends.

    - "key-hash": a record with a key goes where Kafka's clients would put it (murmur2), whether or
      not that partition has a leader now: the order of a key's records depends on it. Records
      without one are spread as by "sticky".
    - "sticky": about `batch_bytes` of records go to one partition, then another is drawn among those
      that have a leader, so that batches are large and the load is even in the long run.
    - "round-robin": record by record to the next partition that has a leader.
    - a function of the application's own: see `Choose`.

    Keys are hashed in bulk, which costs no more than looking up those seen before would. A handful is
    hashed one by one, and remembered: numpy needs more to start.

    One thread may call.
    """

    def __init__(
        self, random: Random, batch_bytes: int, strategy: Strategy | Choose = "key-hash"
    ) -> None:
        self._random = random
        self._batch_bytes = batch_bytes
        self._strategy = strategy
        self._sticky = -1
        self._next = 0

    @property
    def spreads(self) -> bool:
        """Records with a key, too, go to any partition that is available."""
        return self._strategy in ("sticky", "round-robin")

    def choose(
        self,
        keys: Sequence[bytes | None],
        explicit: Mapping[int, int],
        *,
        topic: str = "",
        keyless: bool,
        record_bytes: int,
        count: int,
        available: Sequence[int],
    ) -> Partitions:
        """A partition for every key, in order.

        `explicit` maps positions to partitions asked for; `keyless` says whether any key is None;
        `record_bytes` is the average size of a record; `count` partitions exist, `available` ones
        have leaders. Raises PartitionerFailed.
        """
        chosen: Partitions
        if count == 1:
            chosen = np.zeros(len(keys), dtype=np.int64)
        elif self._strategy != "key-hash":
            chosen = self._spread(topic, keys, len(keys), record_bytes, count, available)
        elif keys[0] is None and keys.count(None) == len(keys):
            chosen = self._stick(len(keys), record_bytes, count, available)
        elif not keyless:
            chosen = by_key(cast(Sequence[bytes], keys), count)
        else:
            chosen = np.empty(len(keys), dtype=np.int64)
            bare = np.fromiter((key is None for key in keys), dtype=bool, count=len(keys))
            with_key = [key for key in keys if key is not None]
            if with_key:
                chosen[~bare] = by_key(with_key, count)
            chosen[bare] = self._stick(len(keys) - len(with_key), record_bytes, count, available)
        for position, partition in explicit.items():
            chosen[position] = partition
        return chosen

    def choose_for_columns(
        self, chunk: ColumnsToPlace, count: int, available: Sequence[int]
    ) -> Partitions:
        """As `choose`, for the records of a `send_batch`."""
        records, keys = len(chunk), chunk.cell_keys
        record_bytes = chunk.size // records
        if chunk.partition is not None or count == 1:
            return np.full(records, chunk.partition or 0, dtype=np.int64)
        if self._strategy != "key-hash":
            column = [None] * records if keys is None else keys.column
            return self._spread(chunk.topic, column, records, record_bytes, count, available)
        if keys is None:
            return self._stick(records, record_bytes, count, available)
        if not has_nils(keys):
            return by_hash(keys, count)
        bare = keys.lengths == NIL
        chosen = np.empty(records, dtype=np.int64)
        chosen[bare] = self._stick(int(bare.sum()), record_bytes, count, available)
        if not bare.all():
            with_key = keys.take(np.flatnonzero(~bare))
            chosen[~bare] = by_hash(with_key, count)
        return chosen

    def _spread(
        self,
        topic: str,
        keys: Any,
        records: int,
        record_bytes: int,
        count: int,
        available: Sequence[int],
    ) -> Partitions:
        """What a strategy other than "key-hash" says."""
        if callable(self._strategy):
            return self._own(self._strategy, topic, keys, records, count)
        if self._strategy == "sticky":
            return self._stick(records, record_bytes, count, available)
        candidates = np.array(available or range(count), dtype=np.int64)
        chosen: Partitions = candidates[(np.arange(records) + self._next) % len(candidates)]
        self._next += records
        return chosen

    def _own(self, choose: Choose, topic: str, keys: Any, records: int, count: int) -> Partitions:
        """What the application's function says, if it is what it should be."""
        try:
            chosen = np.asarray(choose(topic, keys, count))
        except Exception as error:
            raise PartitionerFailed(f"the partitioner has failed: {error!r}") from error
        if chosen.shape != (records,) or chosen.dtype.kind not in "iu":
            raise PartitionerFailed(
                f"the partitioner gave {chosen.dtype} of shape {chosen.shape} for {records} records: "
                "give one partition number for each"
            )
        if int(chosen.min()) < 0 or int(chosen.max()) >= count:
            raise PartitionerFailed(
                f"the partitioner chose {chosen.min()} to {chosen.max()} of {count} partitions"
            )
        return chosen.astype(np.int64)

    def _stick(
        self, records: int, record_bytes: int, count: int, available: Sequence[int]
    ) -> Partitions:
        """Partitions for records that may go anywhere, in runs of about one batch."""
        run = max(1, self._batch_bytes // max(1, record_bytes))
        candidates = list(available) or list(range(count))
        runs = [self._draw(candidates) for _ in range(0, records, run)]
        return np.repeat(np.array(runs, dtype=np.int64), run)[:records]

    def _draw(self, candidates: list[int]) -> int:
        """Any candidate but the last one drawn, if there is a choice."""
        others = [number for number in candidates if number != self._sticky]
        self._sticky = self._random.choice(others or candidates)
        return self._sticky
