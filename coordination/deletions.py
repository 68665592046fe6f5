"""Deletions of topics: a record of each, until all brokers and the controller have carried it out.

The transaction that removes a topic's node writes the record, below the topic's *id*. Only a record lets data
go: a topic that is missing without one was lost, not deleted, and keeps its files and its states.

`pending` are the brokers that had replicas, which remove their directories, and the CONTROLLER, which
removes the partitions' states. Each removes itself from it after that; the last one removes the record. Each
broker that registers removes brokers that have been pending for FORGOTTEN_AFTER seconds: one that comes back
after that keeps its directories, as orphans.

If a process dies right before a step, the step is done again, which does no harm.
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
    """A topic was deleted at `at`, seconds since 1970 by the clock of the client that deleted it."""

    topic: str
    at: float
    by: str
    pending: tuple[int, ...]


def local_user() -> str:
    """The user and host of this process, for the record."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container whose user has no name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


_decoder = msgspec.json.Decoder(Deletion)


def create_record(topic_id: str, deletion: Deletion) -> zk.Create:
    """The write of a record, for the transaction that removes the topic's node."""
    return zk.Create(paths.deletion(topic_id), msgspec.json.encode(deletion))


def topic_ids(watch: WatchCallback | None = None) -> Recipe[list[str]]:
    """The ids of topics with a record; `watch` is called when one comes or goes."""
    return sorted((yield from recipes.children(paths.DELETIONS, watch)))


def read(topic_id: str) -> Recipe[Deletion | None]:
    """A record, or None. Raises Malformed."""
    found, _ = yield from recipes.read(_decoder, paths.deletion(topic_id))
    return found


def mark_carried_out(topic_id: str, by: Iterable[int]) -> Recipe[Deletion | None]:
    """Remove brokers, or the CONTROLLER, from `pending` → the rest of the record. Raises Malformed."""
    finished = frozenset(by)
    while True:
        found, stat = yield from recipes.read(_decoder, paths.deletion(topic_id))
        if found is None or stat is None:
            return None
        pending = tuple(each for each in found.pending if each not in finished)
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
    """Remove all brokers from `pending` in records from before that time."""
    for topic_id in (yield from topic_ids()):
        with suppress(recipes.Malformed):
            found = yield from read(topic_id)
            if found is not None and 0 < found.at < before:
                brokers = [each for each in found.pending if each != CONTROLLER]
                yield from mark_carried_out(topic_id, brokers)
