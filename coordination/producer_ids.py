"""Producer ids: one counter, from which blocks are taken by compare-and-set; no id is given twice.

The counter's node holds the first id that nobody has. A taker that dies, or whose reply is lost, has
taken its block or not; either way the next one reads and takes what follows, so that at worst ids
are wasted, of which there are 2^63. The node may never be deleted or set back while topics exist:
their logs remember producers by these ids.
"""

import msgspec

from folkmoot.coordination import paths
from folkmoot.coordination.zookeeper.operations import NoNode, Recipe
from folkmoot.coordination.zookeeper.recipes import Malformed, ensure, update

LAST_ID = 2**63 - 1


class _Counter(msgspec.Struct, frozen=True):
    """The counter's node: the first id of the next block."""

    next: int


_decoder = msgspec.json.Decoder(_Counter)


def take(count: int) -> Recipe[range]:
    """`count` ids that nobody has had and nobody else will have. Raises Malformed."""

    def advance(counter: _Counter) -> _Counter:
        if not 0 <= counter.next <= LAST_ID - count:
            raise Malformed(f"{paths.PRODUCER_IDS} says {counter.next}, which is no producer id")
        return _Counter(counter.next + count)

    while True:
        try:
            taken = yield from update(_decoder, paths.PRODUCER_IDS, advance)
        except NoNode:
            yield from ensure(paths.PRODUCER_IDS, msgspec.json.encode(_Counter(0)))
            continue
        return range(taken.next - count, taken.next)
