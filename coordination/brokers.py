"""Registrations of brokers: one ephemeral node each, with the broker's addresses and identity.

A registration has the `nonce` of the session that made it, which recognises it after a lost reply, and the
data `directory` that it serves, which one process has locked. A node of the same directory under another
nonce was left by a dead incarnation, or by a lost session of this one, and goes when that session ends. A
node of another directory is another broker's.

Each registration gets a broker epoch, greater than all before it of this broker id: the version of a
persistent node that is written in the same transaction. A transaction that checks this version is refused
once the broker has registered again, so that a decision about one incarnation is not written about the next.
The node holds the data directory: another directory may lack what that one has acknowledged.
"""

from collections.abc import Mapping
from contextlib import suppress

import msgspec
from msgspec.structs import replace

from folkmoot.coordination import paths
from folkmoot.coordination.zookeeper import operations as zk
from folkmoot.coordination.zookeeper import recipes
from folkmoot.coordination.zookeeper.operations import Recipe, WatchCallback
from folkmoot.coordination.zookeeper.recipes import Malformed
from folkmoot.protocol.errors import BrokerIdTaken, ConfigError


class Registration(msgspec.Struct, frozen=True):
    """`listeners`: name → "host:port" as advertised. `register` sets `epoch`, and `leave` `leaving`.
    `default_replicas` is for new topics, `version` folkmoot's, `log` has `topic_config.own_options`."""

    listeners: dict[str, str]
    nonce: str
    directory: str = ""
    rack: str = ""
    epoch: int = 0
    leaving: bool = False
    default_replicas: int = 1
    version: str = ""
    log: dict[str, str] = {}

    def address_for_replicas(self) -> str | None:
        """The address at which followers fetch: of the listener `internal`, or else of `client`."""
        return self.listeners.get("internal") or self.listeners.get("client")


_decoder = msgspec.json.Decoder(Registration)


def last_directory(broker_id: int) -> Recipe[str]:
    """The data directory that had this broker id last; "" if there was none."""
    node = yield from recipes.get_node(paths.broker_epoch(broker_id))
    return "" if node is None else node.data.decode(errors="replace")


def note_directory(broker_id: int, directory: str) -> Recipe[None]:
    """Record the data directory that had the broker id last, if none is recorded."""
    yield from recipes.ensure(paths.broker_epoch(broker_id), directory.encode())


def register(
    broker_id: int,
    mine: Registration,
    watch: WatchCallback | None = None,
    former: str | None = None,
) -> Recipe[Registration | None]:
    """Register a broker → the registration with its broker epoch.

    None while an earlier registration of the same data directory is there: `watch` is called when it goes, at
    the latest when its session times out; then call again. Raises BrokerIdTaken, also if the data directory
    that had the id last is neither this one nor `former` (None: any may be).
    """
    path, epoch_path = paths.broker(broker_id), paths.broker_epoch(broker_id)
    while True:
        yield from recipes.ensure(paths.BROKERS)
        found = yield from read(broker_id, watch)
        if found is not None and found.nonce == mine.nonce:
            return found
        if found is not None and found.directory == mine.directory:
            return None
        if found is not None:
            where = ", ".join(sorted(found.listeners.values())) or "an unknown address"
            raise BrokerIdTaken(
                f"broker id {broker_id} is taken by the broker at {where}: "
                "stop that one or choose another --broker-id"
            )
        last = yield from recipes.get_or_create(epoch_path)
        had_it, directory = last.data.decode(errors="replace"), mine.directory
        if former is not None and had_it not in ("", directory, former):
            raise BrokerIdTaken(
                f"broker id {broker_id} was given to another data directory meanwhile, and this one "
                "may lack what that one has acknowledged: start it again, so that it fetches that first"
            )
        with_epoch = replace(mine, epoch=last.stat.version + 1)
        yield from recipes.begin_epoch(path, with_epoch, epoch_path, last, directory.encode())


def is_in_epoch(broker_id: int, epoch: int) -> zk.Check:
    """The check that refuses a transaction once the broker has registered again since that broker epoch."""
    return zk.Check(paths.broker_epoch(broker_id), epoch)


def read(broker_id: int, watch: WatchCallback | None = None) -> Recipe[Registration | None]:
    """A broker's registration, or None. Raises Malformed."""
    found, _ = yield from recipes.read(_decoder, paths.broker(broker_id), watch)
    return found


def default_replicas(live: Mapping[int, Registration]) -> int:
    """The default number of replicas of a new topic: the highest of all live brokers."""
    return max((found.default_replicas for found in live.values()), default=1)


def leave(broker_id: int, mine: Registration) -> Recipe[bool]:
    """Announce that the broker will stop, so that the controller designates other leaders. False if it is
    not registered as `mine` any more."""
    path = paths.broker(broker_id)
    while True:
        node = yield from recipes.get_node(path)
        found = None if node is None else recipes.decode(_decoder, path, node)
        if node is None or found is None or found.nonce != mine.nonce:
            return False
        if found.leaving:
            return True
        data = msgspec.json.encode(replace(found, leaving=True))
        # The version of the node alone could be that of the next incarnation's.
        writes = is_in_epoch(broker_id, found.epoch), zk.Set(path, data, node.stat.version)
        try:
            yield zk.Multi(writes)
        except zk.MultiFailed as refusal:
            recipes.check_foreseen(refusal)
        except zk.ConnectionLost:
            continue


def drained() -> Recipe[set[int]]:
    """The brokers that get no replicas, registered or not."""
    return set((yield from recipes.numbers(paths.DRAINED_BROKERS)))


def set_drained(broker_id: int, is_drained: bool) -> Recipe[None]:
    """Stop placing replicas on a broker, or allow it again."""
    path = paths.drained_broker(broker_id)
    yield from recipes.ensure(path) if is_drained else recipes.delete_node(path)


def usable() -> Recipe[dict[int, Registration]]:
    """The live brokers that may get replicas."""
    without = yield from drained()
    brokers = yield from live()
    return {number: found for number, found in brokers.items() if number not in without}


def live(watch: WatchCallback | None = None) -> Recipe[dict[int, Registration]]:
    """All registered brokers by id; `watch` is called when one comes, goes, or announces that it will stop.

    A malformed registration is left out.
    """
    brokers: dict[int, Registration] = {}
    for broker_id in (yield from recipes.numbers(paths.BROKERS, watch)):
        with suppress(Malformed):
            found = yield from read(broker_id, watch)
            if found is not None:
                brokers[broker_id] = found
    return brokers


def addresses(listener: str) -> Recipe[list[str]]:
    """The addresses of a listener, at all live brokers that have it. Raises ConfigError if none has."""
    brokers = (yield from live()).values()
    names = sorted({name for broker in brokers for name in broker.listeners})
    if names and listener not in names:
        raise ConfigError(f"no broker has a listener {listener!r}: they have {', '.join(names)}")
    return [broker.listeners[listener] for broker in brokers if listener in broker.listeners]
