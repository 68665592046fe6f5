"""Brokers: one ephemeral node each; it says where the broker listens and which process it is.

A registration names the session that made it (`nonce`, so that a lost reply is recognised) and the
data directory that it serves (`directory`). A directory is locked by its process: a node of our own
directory under another nonce is what a dead incarnation, or our own lost session, has left behind,
and goes when that session ends. A node of any other directory is another broker.
"""

from contextlib import suppress

import msgspec

from folkmoot.coordination import paths
from folkmoot.coordination.zookeeper import recipes
from folkmoot.coordination.zookeeper.operations import (
    ConnectionLost,
    Create,
    NodeExists,
    Recipe,
    WatchCallback,
)
from folkmoot.coordination.zookeeper.recipes import Malformed
from folkmoot.protocol.errors import BrokerIdTaken


class Registration(msgspec.Struct, frozen=True):
    """What a broker publishes: listener name → "host:port" as advertised; which process it is; and
    where it stands."""

    listeners: dict[str, str]
    nonce: str
    directory: str = ""
    rack: str = ""


_decoder = msgspec.json.Decoder(Registration)


def register(broker_id: int, mine: Registration, gone: WatchCallback | None = None) -> Recipe[bool]:
    """True when the broker is registered as `mine`. Raises BrokerIdTaken.

    False when an earlier registration of the same data directory is still there: `gone` is called when
    it goes, at the latest when its session times out; then call again.
    """
    yield from recipes.ensure(paths.BROKERS)
    path = paths.broker(broker_id)
    while True:
        try:
            yield Create(path, msgspec.json.encode(mine), ephemeral=True)
            return True
        except (NodeExists, ConnectionLost):
            found = yield from read(broker_id, gone)
        if found is None:
            continue
        if found == mine:
            return True
        if found.directory == mine.directory:
            return False
        where = ", ".join(sorted(found.listeners.values())) or "an unknown address"
        raise BrokerIdTaken(
            f"broker id {broker_id} is taken by the broker at {where}: "
            "stop that one or choose another --id"
        )


def read(broker_id: int, watch: WatchCallback | None = None) -> Recipe[Registration | None]:
    """A broker's registration, or None if it is not there. Raises Malformed."""
    found, _ = yield from recipes.read(_decoder, paths.broker(broker_id), watch)
    return found


def live(watch: WatchCallback | None = None) -> Recipe[dict[int, Registration]]:
    """All brokers that are registered and legible, by id; `watch` is called when one comes or goes."""
    brokers: dict[int, Registration] = {}
    names = yield from recipes.children(paths.BROKERS, watch)
    for broker_id in sorted(int(name) for name in names if name.isascii() and name.isdecimal()):
        with suppress(Malformed):
            found = yield from read(broker_id)
            if found is not None:
                brokers[broker_id] = found
    return brokers
