"""Producer ids: one counter, from which blocks are taken by compare-and-set; no id is given twice.

The counter's node holds the first id that nobody has. A taker that dies, or whose reply is lost, has
taken its block or not; either way the next one reads and takes what follows, so that at worst ids
are wasted, of which there are 2^63. The node may never be deleted or set back while topics exist:
their logs remember producers by these ids.
"""

import msgspec

from folkmoot.coordination import paths
from folkmoot.coordination.zookeeper.operations import (
    BadVersion,
    ConnectionLost,
    Create,
    Get,
    NodeExists,
    NoNode,
    Recipe,
    Set,
)
from folkmoot.coordination.zookeeper.recipes import (
    Malformed,
    decode,
    ensure,
    retry_on_connection_loss,
)

LAST_ID = 2**63 - 1


class _Counter(msgspec.Struct, frozen=True):
    """The counter's node: the first id of the next block."""

    next: int


_encode = msgspec.json.encode
_decoder = msgspec.json.Decoder(_Counter)


def take(count: int) -> Recipe[range]:
    """`count` ids that nobody has had and nobody else will have. Raises Malformed."""
    while True:
        try:
            node = yield from retry_on_connection_loss(Get(paths.PRODUCER_IDS))
        except NoNode:
            yield from _lay_out()
            continue
        first = decode(_decoder, paths.PRODUCER_IDS, node).next
        if not 0 <= first <= LAST_ID - count:
            raise Malformed(f"{paths.PRODUCER_IDS} says {first}, which is no producer id")
        try:
            yield Set(paths.PRODUCER_IDS, _encode(_Counter(first + count)), node.stat.version)
        except (BadVersion, ConnectionLost, NoNode):
            continue  # another one was faster; or the block is ours and nobody knows: take the next
        return range(first, first + count)


def _lay_out() -> Recipe[None]:
    yield from ensure(paths.PRODUCERS)
    while True:
        try:
            yield Create(paths.PRODUCER_IDS, _encode(_Counter(0)))
        except NodeExists:
            pass
        except ConnectionLost:
            continue
        return
