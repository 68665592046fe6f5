"""The cleaner's map of keys: what it answers, and when it is full."""

import numpy as np

from folkmoot.brokers.storage.compaction.offset_map import BYTES_PER_KEY, UNKNOWN, OffsetMap


def add(offsets: OffsetMap, first: int, count: int, keys: int) -> None:
    """Records at offsets from `first` on, of so many keys by turns."""
    some = [b"key-%d" % (number % keys) for number in range(first, first + count)]
    offsets.add(offsets.digests(some), np.arange(first, first + count))


def test_a_map_is_full_when_two_thirds_of_its_keys_are_known_though_nobody_has_looked() -> None:
    for at_once in (1, 100, 120):
        offsets = OffsetMap(300 * BYTES_PER_KEY)
        added = 0
        while not offsets.full:
            assert added <= 300, f"{at_once} at a time"
            add(offsets, added, at_once, keys=1_000_000)
            added += at_once
        assert added >= 200


def test_keys_that_come_again_need_no_more_room_and_have_their_last_offset() -> None:
    offsets = OffsetMap(300 * BYTES_PER_KEY)
    for first in range(0, 10_000, 50):
        add(offsets, first, 50, keys=100)
        assert not offsets.full
    keys = [b"key-%d" % number for number in range(101)]
    found = offsets.latest(offsets.digests(keys))
    assert found.tolist() == [*range(9_900, 10_000), UNKNOWN]
