"""Deletions of topics: what was asked for, by whom, and who has still to carry it out.

A record is written in the transaction that removes a topic's node, below the topic's *id*. It alone lets
data go: a topic that is missing without one was lost, not deleted, and keeps its files and its states.

`pending` are the brokers that had replicas, which remove their directories, and the CONTROLLER, which
removes the partitions' states. Each takes itself out when it has; the last one removes the record. A broker
that is gone for good never does: FORGOTTEN_AFTER seconds after the deletion nobody waits for it any more,
which any broker sees to that registers. If it comes back all the same it keeps its directories, as orphans.

A death right before a step leaves the record as it was, and the step is done again, which does no harm.
"""

import getpass
import os
import socket
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

import msgspec
from msgspec.structs import replace

from folkmoot.coordination import paths
from folkmoot.coordination.zookeeper import operations as zk
from folkmoot.coordination.zookeeper import recipes
from folkmoot.coordination.zookeeper.operations import Recipe, WatchCallback

CONTROLLER: Final = -1
FORGOTTEN_AFTER: Final = 30 * 86_400.0


class Deletion(msgspec.Struct, frozen=True):
    """A topic was deleted at `at`, seconds since 1970 by the clock of who asked for it."""

    topic: str
    at: float
    by: str
    pending: tuple[int, ...]


def asked_by() -> str:
    """Who runs this process, and where, for the record."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container whose user has no name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


_decoder = msgspec.json.Decoder(Deletion)


def recorded(topic_id: str, deletion: Deletion) -> zk.Create:
    """Writes the record: part of the transaction that removes the topic's node."""
    return zk.Create(paths.deletion(topic_id), msgspec.json.encode(deletion))


def topic_ids(watch: WatchCallback | None = None) -> Recipe[list[str]]:
    """The ids of topics whose deletion is not carried out yet; `watch` is called when one comes or goes."""
    return sorted((yield from recipes.children(paths.DELETIONS, watch)))


def read(topic_id: str) -> Recipe[Deletion | None]:
    """A record, None if there is none. Raises Malformed."""
    found, _ = yield from recipes.read(_decoder, paths.deletion(topic_id))
    return found


def carried_out(topic_id: str, by: Iterable[int]) -> Recipe[Deletion | None]:
    """Brokers, or the CONTROLLER, have done their part → what is left of the record. Raises Malformed."""
    done = frozenset(by)
    while True:
        found, stat = yield from recipes.read(_decoder, paths.deletion(topic_id))
        if found is None or stat is None:
            return None
        pending = tuple(each for each in found.pending if each not in done)
        if pending == found.pending:
            return found
        left = replace(found, pending=pending)
        path, data = paths.deletion(topic_id), msgspec.json.encode(left)
        try:
            yield zk.Set(path, data, stat.version) if pending else zk.Delete(path, stat.version)
        except (zk.BadVersion, zk.NoNode, zk.ConnectionLost):
            continue
        return left if pending else None


def forget(before: float) -> Recipe[None]:
    """Wait no longer for the brokers to carry deletions out that were asked for earlier than that."""
    for topic_id in (yield from topic_ids()):
        with suppress(recipes.Malformed):
            found = yield from read(topic_id)
            if found is not None and 0 < found.at < before:
                brokers = [each for each in found.pending if each != CONTROLLER]
                yield from carried_out(topic_id, brokers)
