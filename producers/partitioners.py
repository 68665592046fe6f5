"""Which partition a record goes to, chosen for many records at once. Pure, but for the random source."""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Final, cast

import numpy as np
import numpy.typing as npt

from folkmoot.protocol.murmur2 import partition_for, partitions_for

KEYS_REMEMBERED: Final = 65_536
FEW_KEYS: Final = 64

Partitions = npt.NDArray[np.int64]


class Partitioner:
    """Chooses for one topic.

    A record with a partition of its own goes there. One with a key goes where Kafka's clients would
    put it (murmur2), whether or not that partition has a leader now: the order of a key's records
    depends on it. Records with neither stick together: about `batch_bytes` of them go to one
    partition, then another is drawn among those that have a leader, so that batches are large and
    the load is even in the long run.

    Keys seen before are looked up, which costs a third of hashing them in bulk, as long as that
    pays: a chunk with a new key is hashed, and when new keys fill the table, no more are remembered
    for as many chunks as it took. A handful of keys is hashed one by one: numpy needs more to start.

    One thread may call.
    """

    def __init__(self, random: Random, batch_bytes: int) -> None:
        self._random = random
        self._batch_bytes = batch_bytes
        self._sticky = -1
        self._count = 0
        self._seen: dict[bytes, int] = {}
        self._chunks = 0
        self._remember_again_at = 0

    def choose(
        self,
        keys: Sequence[bytes | None],
        explicit: Mapping[int, int],
        *,
        keyless: bool,
        record_bytes: int,
        count: int,
        available: Sequence[int],
    ) -> Partitions:
        """A partition for every key, in order.

        `explicit` maps positions to partitions asked for; `keyless` says whether any key is None;
        `record_bytes` is the average size of a record; `count` partitions exist, `available` ones
        have leaders.
        """
        if count == 1:
            chosen = np.zeros(len(keys), dtype=np.int64)
        elif not keyless:
            chosen = self._hash(cast(Sequence[bytes], keys), count)
        else:
            chosen = np.empty(len(keys), dtype=np.int64)
            bare = np.fromiter((key is None for key in keys), dtype=bool, count=len(keys))
            with_key = [key for key in keys if key is not None]
            if with_key:
                chosen[~bare] = self._hash(with_key, count)
            chosen[bare] = self._stick(len(keys) - len(with_key), record_bytes, count, available)
        for position, partition in explicit.items():
            chosen[position] = partition
        return chosen

    def _hash(self, keys: Sequence[bytes], count: int) -> Partitions:
        if count != self._count:
            self._count = count
            self._seen = {}
        self._chunks += 1
        try:
            return np.fromiter(map(self._seen.__getitem__, keys), dtype=np.int64, count=len(keys))
        except KeyError:
            pass
        if len(keys) <= FEW_KEYS:
            chosen = np.array([partition_for(key, count) for key in keys], dtype=np.int64)
        else:
            chosen = partitions_for(keys, count)
        if self._chunks >= self._remember_again_at:
            self._seen.update(zip(keys, chosen.tolist(), strict=True))
            if len(self._seen) > KEYS_REMEMBERED:
                self._seen = {}
                self._remember_again_at = 2 * self._chunks
        return chosen

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
