"""The log of the cluster for people: `folkmoot cluster events`. No protocol reads it.

```
/controller/events/e-<number>  the changes that the controller saw within about a second
```

Changes without a controller are missing, and so is the last second of a controller that dies. The last
ENTRIES nodes are kept; ZooKeeper's clock gives the time.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import msgspec

from folkmoot.coordination import paths
from folkmoot.coordination.zookeeper import operations as zk
from folkmoot.coordination.zookeeper.operations import Recipe
from folkmoot.coordination.zookeeper.recipes import Malformed, children, ensure, read

ENTRIES: Final = 200


class ClusterEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """One change. `text` is a sentence; `topic` and `partition`, or `broker`, are what has changed.

    Kinds: controller-elected; broker-joined, broker-stopping, broker-left; topic-created, topic-grown,
    topic-changed, topic-deleted; leader-elected, unclean-election, in-sync; reassignment-started,
    reassignment-cancelled, reassignment-ended; more (changes that were only counted). `at_ms` (milliseconds
    since 1970) is set when an event is read.
    """

    kind: str
    text: str
    topic: str | None = None
    partition: int | None = None
    broker: int | None = None
    age_ms: int = 0
    """Time between the change and its record."""
    at_ms: int = 0


_decoder = msgspec.json.Decoder(list[ClusterEvent])


def record(events: Sequence[ClusterEvent]) -> Recipe[None]:
    """Add events and remove the oldest ones, unless ZooKeeper refuses."""
    with suppress(zk.ZooKeeperError):
        yield from ensure(paths.CLUSTER_EVENTS)
        there = sorted((yield from children(paths.CLUSTER_EVENTS)))
        data = msgspec.json.encode(list(events))
        creation = zk.Create(f"{paths.CLUSTER_EVENTS}/e-", data, sequence=True)
        old = [zk.Delete(f"{paths.CLUSTER_EVENTS}/{name}") for name in there[: 1 - ENTRIES]]
        yield zk.Multi((creation, *old))


def entries() -> Recipe[list[ClusterEvent]]:
    """Return all events, oldest first."""
    found: list[ClusterEvent] = []
    for name in sorted((yield from children(paths.CLUSTER_EVENTS))):
        with suppress(Malformed):
            events, stat = yield from read(_decoder, f"{paths.CLUSTER_EVENTS}/{name}")
            for each in events or ():
                at_ms = (stat.ctime if stat else 0) - each.age_ms
                found.append(msgspec.structs.replace(each, at_ms=at_ms))
    return found
