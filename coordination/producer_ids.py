"""Producer ids: one counter, from which blocks are taken by compare-and-set; no id is given twice.

The counter's node holds the first id that nobody has. A taker that dies, or whose reply is lost, has
taken its block or not; either way the next one reads and takes what follows, so that at worst ids
are wasted, of which there are 2^63.

Logs remember producers by these ids, so none may come again when the node was deleted or set back. So a
taker says an id that the block is not to begin below: brokers say the time in us, which no counter has ever
overtaken, and what they have seen in batches, should their clocks be wrong.
"""

import msgspec

from folkmoot.coordination import paths
from folkmoot.coordination.zookeeper.operations import Recipe
from folkmoot.coordination.zookeeper.recipes import Malformed, update

LAST_ID = 2**63 - 1
HIGHEST_AT_LEAST = 2**62
"""A taker that asks for more is wrong: what it writes must leave room for all that come later."""


class _Counter(msgspec.Struct, frozen=True):
    """The counter's node: the first id of the next block."""

    next: int


_decoder = msgspec.json.Decoder(_Counter)


def take(count: int, at_least: int = 0) -> Recipe[range]:
    """`count` ids that nobody has had and nobody else will have, none below `at_least`. Raises Malformed."""

    def advance(counter: _Counter) -> _Counter:
        if not 0 <= counter.next <= LAST_ID - count:
            raise Malformed(f"{paths.PRODUCER_IDS} says {counter.next}, which is no producer id")
        return _Counter(max(counter.next, min(at_least, HIGHEST_AT_LEAST)) + count)

    taken = yield from update(_decoder, paths.PRODUCER_IDS, advance, _Counter(0))
    return range(taken.next - count, taken.next)
