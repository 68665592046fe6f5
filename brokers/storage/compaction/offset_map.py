"""Which offset is the last one of each key, for more keys than a dict has room for."""

import os
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from folkmoot.protocol.columns import Int64s

BYTES_PER_KEY: Final = 96
"""Three numbers of 8 bytes, and what sorting them takes for a moment."""

UNKNOWN: Final = -1


class Digests(NamedTuple):
    """128 bits of each key, in two halves."""

    first: Int64s
    second: Int64s


class OffsetMap:
    """Keys, as digests, and the highest offset of each; bounded by `memory_bytes`.

    A digest is two keyed 64-bit hashes (Python's SipHash) of the key, the second with a random prefix:
    hashing is then one `map` in C. The digests lie sorted by their first half, in arrays; what is
    added waits until sorting it in is worth it. That takes a quarter of a dict's room.

    Two keys with equal digests would cost the older one its last record: for ten million keys the
    odds are 1 to 10^24. Keys that share their first half only may be answered with an older offset,
    or none: a record too many is kept.

    Any thread, one at a time.
    """

    def __init__(self, memory_bytes: int) -> None:
        capacity = max(3, memory_bytes // BYTES_PER_KEY)
        self._most = capacity * 2 // 3
        self._most_waiting = capacity - self._most
        self._prefix = os.urandom(16)
        empty = np.empty(0, np.int64)
        self._known: tuple[Int64s, Int64s, Int64s] = (empty, empty, empty)
        self._waiting: list[tuple[Int64s, Int64s, Int64s]] = []
        self._count_waiting = 0

    @property
    def full(self) -> bool:
        """Whether no more should be added. One call of `add` may go beyond."""
        return len(self._known[0]) >= self._most

    def digests(self, keys: Sequence[bytes]) -> Digests:
        """Of each key; another map gives other ones."""
        count = len(keys)
        if count > 1 and keys[0] is keys[-1] and keys.count(keys[0]) == count:
            # A few bytes can say one long key for a million rows: it is hashed once.
            return Digests(*(np.repeat(half, count) for half in self.digests(keys[:1])))
        salted = map(self._prefix.__add__, keys)
        return Digests(
            np.fromiter(map(hash, keys), np.int64, count),
            np.fromiter(map(hash, salted), np.int64, count),
        )

    def add(self, digests: Digests, offsets: Int64s) -> None:
        """These keys have records at these offsets, which are higher than all before."""
        self._waiting.append((*digests, offsets))
        self._count_waiting += len(offsets)
        if self._count_waiting >= self._most_waiting:
            self._sort_in()

    def latest(self, digests: Digests) -> Int64s:
        """The highest offset of each key, UNKNOWN where it was not added."""
        if self._waiting:
            self._sort_in()
        first, second, offsets = self._known
        if not len(first):
            return np.full(len(digests.first), UNKNOWN, np.int64)
        places = np.searchsorted(first, digests.first)
        places[places == len(first)] = 0
        found = (first[places] == digests.first) & (second[places] == digests.second)
        return np.where(found, offsets[places], UNKNOWN)

    def _sort_in(self) -> None:
        first, second, offsets = (
            np.concatenate(parts) for parts in zip(self._known, *self._waiting, strict=True)
        )
        self._waiting.clear()
        self._count_waiting = 0
        # Stable: of equal keys the one added last, which has the highest offset, stays last.
        order = np.argsort(first, kind="stable")
        first, second, offsets = first[order], second[order], offsets[order]
        last = np.ones(len(first), np.bool_)
        last[:-1] = (first[1:] != first[:-1]) | (second[1:] != second[:-1])
        self._known = first[last], second[last], offsets[last]
