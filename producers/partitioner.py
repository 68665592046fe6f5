"""The partition of a record. Pure, but for the random source."""

from collections.abc import Iterable, Sequence
from random import Random
from typing import Any, Final, Literal, Protocol

import numpy as np
import numpy.typing as npt

from folkmoot.protocol.columns import Int64s
from folkmoot.protocol.errors import PartitionerFailed
from folkmoot.protocol.murmur2 import partition_for

Strategy = Literal["key-hash", "sticky", "round-robin"]
"""How a topic's records that name no partition are placed:

- "key-hash": records with a key go where Kafka's clients would put them (murmur2), even if that partition
  has no leader now, to keep the order of the key's records. The others are placed as by "sticky".
- "sticky": about `batch_bytes` of records go to one partition, then another is drawn among those
  that have a leader, so that batches are large and the load is even in the long run.
- "round-robin": record by record to the next partition that has a leader.
"""
STRATEGIES: Final = ("key-hash", "sticky", "round-robin")


class Choose(Protocol):
    """A partitioner of the application's own: one partition number, below `partitions`, per key.

    `keys` is a sequence of bytes or None, with one for `send`, or the Arrow array of binary that
    `send_batch` got. It is called in the thread that sends; an error is raised there as
    PartitionerFailed, and nothing was taken. For records whose partition is gone it is called again, in the
    producer's thread; after an error there they fail with PartitionerFailed.
    """

    def __call__(self, topic: str, keys: Any, partitions: int, /) -> Sequence[int] | Any: ...


def draw(random: Random, candidates: Sequence[int], last: int) -> int:
    """Return any candidate but the one drawn last, if there is a choice."""
    others = [number for number in candidates if number != last]
    return random.choice(others or candidates)


def by_key(keys: Iterable[bytes], count: int) -> list[int]:
    """Return the partitions, of `count`, where Kafka's clients would put records with these keys."""
    return [partition_for(key, count) for key in keys]


def choose_again(
    strategy: Strategy | Choose,
    topic: str,
    count: int,
    available: Sequence[int],
    random: Random,
    keys: Sequence[bytes | None],
) -> list[int]:
    """Return the partitions, of `count`, for records whose partition is gone. Those that may go anywhere
    stay together. Raises PartitionerFailed."""
    if callable(strategy):
        chosen: list[int] = by_function(strategy, topic, keys, len(keys), count).tolist()
        return chosen
    anywhere = draw(random, available, -1)
    if strategy != "key-hash":
        return [anywhere] * len(keys)
    hashed = iter(by_key([key for key in keys if key is not None], count))
    return [anywhere if key is None else next(hashed) for key in keys]


def by_function(
    choose: Choose, topic: str, keys: Any, records: int, count: int
) -> npt.NDArray[np.int64]:
    """Return what the application's partitioner chooses, checked. Raises PartitionerFailed."""
    try:
        chosen = np.asarray(choose(topic, keys, count))
    except Exception as error:
        raise PartitionerFailed(f"the partitioner has failed: {error!r}") from error
    if chosen.shape != (records,) or chosen.dtype.kind not in "iu":
        raise PartitionerFailed(
            f"the partitioner gave {chosen.dtype} of shape {chosen.shape} for {records} records: "
            "give one partition number for each"
        )
    if records and (int(chosen.min()) < 0 or int(chosen.max()) >= count):
        raise PartitionerFailed(
            f"the partitioner chose {chosen.min()} to {chosen.max()} of {count} partitions"
        )
    numbers: Int64s = chosen.astype(np.int64)
    return numbers
