"""The partitions of keys that come again and again."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from folkmoot.producers.cells import Cells, ListCells
from folkmoot.producers.partitioners import Partitions, by_hash

KEYS_KNOWN: Final = 65_536
MOST_PARTITIONS: Final = 256
MOST_NEW: Final = 0.9
LONGEST_REST: Final = 1024


class KeyMemory:
    """Remembers where keys of one topic belong: looking up costs a third of hashing in bulk.

    Only as long as that pays. A chunk with an unknown key is hashed, and learnt if its keys repeat,
    among themselves or from the chunk that was looked at before; if they do not, or too many are known,
    as many chunks as so far go by before that is looked at again. A partition's number fits into a
    byte, or nothing is remembered.

    Any thread may call, several at a time: what is known of a key never changes for one number of
    partitions, and all else is only about speed.
    """

    def __init__(self) -> None:
        self._known: tuple[int, dict[bytes | None, int]] = (0, {})
        self._chunks = 0
        self._seen: set[bytes | None] = set()  # in the chunk that was looked at last
        self._look_again_at = 0

    def recall(self, keys: Sequence[bytes | None], count: int) -> Partitions | None:
        """Their partitions, of `count`, if every one is known."""
        known_count, known = self._known
        if count != known_count:
            return None
        try:
            return np.frombuffer(bytes(map(known.__getitem__, keys)), np.uint8)
        except KeyError:
            return None

    def learn(self, keys: Sequence[bytes | None], partitions: Partitions, count: int) -> None:
        """These keys, none of them missing, were hashed."""
        self._chunks += 1
        if count > MOST_PARTITIONS or self._chunks < self._look_again_at:
            return
        known_count, known = self._known
        if count != known_count:
            known = {}
        before, self._seen = self._seen, set(keys)
        if len(self._seen - before) > MOST_NEW * len(keys) or len(known) > KEYS_KNOWN:
            known = {}
            self._look_again_at = self._chunks + min(self._chunks, LONGEST_REST)
        else:
            known.update(zip(keys, partitions.tolist(), strict=True))
        self._known = (count, known)


def remembered(keys: Cells, count: int, memory: KeyMemory | None) -> Partitions:
    """Where keys, none of them missing, belong among `count` partitions, hashed if that is not known.

    Keys of one length are hashed quicker than they are looked up.
    """
    if memory is None or not isinstance(keys, ListCells):
        return by_hash(keys, count)
    partitions = memory.recall(keys.column, count)
    if partitions is None:
        partitions = by_hash(keys, count)
        memory.learn(keys.column, partitions, count)
    return partitions
