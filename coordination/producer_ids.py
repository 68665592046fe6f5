"""Producer ids: blocks are taken from one counter by compare-and-set; no id is given twice.

The counter's node holds the first free id. After a death or a lost reply at worst a block of the 2^63 ids is
wasted.

Logs remember producers by these ids, so none may come again when the node was deleted or set back. So a
caller passes a lower bound: brokers pass the time in µs, which no counter has ever overtaken, or the highest
id that they have seen, if that is more.
"""

import msgspec

from folkmoot.coordination import paths
from folkmoot.coordination.zookeeper.operations import Recipe
from folkmoot.coordination.zookeeper.recipes import Malformed, update

LAST_ID = 2**63 - 1
HIGHEST_AT_LEAST = 2**62
"""The highest lower bound that counts, so that a wrong one leaves room for later ids."""


class _Counter(msgspec.Struct, frozen=True):
    next: int


_decoder = msgspec.json.Decoder(_Counter)


def allocate(count: int, at_least: int = 0) -> Recipe[range]:
    """Take `count` unused ids, none below `at_least`. Raises Malformed."""

    def advance(counter: _Counter) -> _Counter:
        if not 0 <= counter.next <= LAST_ID - count:
            raise Malformed(f"{paths.PRODUCER_IDS} holds {counter.next}, which is no producer id")
        return _Counter(max(counter.next, min(at_least, HIGHEST_AT_LEAST)) + count)

    counter = yield from update(_decoder, paths.PRODUCER_IDS, advance, _Counter(0))
    return range(counter.next - count, counter.next)
