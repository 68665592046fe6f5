"""Brokers: one ephemeral node each; it says where the broker listens and which process it is.

A registration names the session that made it (`nonce`, so that a lost reply is recognised) and the
data directory that it serves (`directory`). A directory is locked by its process: a node of our own
directory under another nonce is what a dead incarnation, or our own lost session, has left behind,
and goes when that session ends. A node of any other directory is another broker.

Each registration gets a broker epoch, greater than any that this broker id had: the version of a node
that stays, which is written in the same transaction. A transaction that checks that version is refused
once the broker has registered again, so that nothing that was decided about one incarnation is written
about the next. That node holds the data directory: who comes behind another one may lack what it acked.
"""

from collections.abc import Mapping
from contextlib import suppress

import msgspec
from msgspec.structs import replace

from folkmoot.coordination import paths
from folkmoot.coordination.zookeeper import recipes
from folkmoot.coordination.zookeeper.operations import (
    Check,
    ConnectionLost,
    Multi,
    MultiFailed,
    Recipe,
    Set,
    WatchCallback,
)
from folkmoot.coordination.zookeeper.recipes import Malformed
from folkmoot.protocol.errors import BrokerIdTaken, ConfigError


class Registration(msgspec.Struct, frozen=True):
    """What a broker publishes: listener name → "host:port" as advertised; which process it is; where
    it stands; its broker epoch, which `register` fills in; whether it is to stop (`leave`); how many
    replicas a new topic gets that says nothing else; its version of folkmoot; and its own options for
    topics (`topic_config.own_options`)."""

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
        """Where followers fetch: the listener `internal` if there is one, else that of clients."""
        return self.listeners.get("internal") or self.listeners.get("client")


_decoder = msgspec.json.Decoder(Registration)


def last_directory(broker_id: int) -> Recipe[str]:
    """The data directory that had this broker id last; "" if none had."""
    node = yield from recipes.get_node(paths.broker_epoch(broker_id))
    return "" if node is None else node.data.decode(errors="replace")


def note_directory(broker_id: int, directory: str) -> Recipe[None]:
    """That data directory had the broker id last, if nothing is known of it."""
    yield from recipes.ensure(paths.broker_epoch(broker_id), directory.encode())


def register(
    broker_id: int,
    mine: Registration,
    gone: WatchCallback | None = None,
    former: str | None = None,
) -> Recipe[Registration | None]:
    """The registration as it stands, with the broker epoch that it has got.

    None when an earlier registration of the same data directory is still there: `gone` is called when
    it goes, at the latest when its session times out; then call again. Raises BrokerIdTaken, also if
    the data directory that had the id last is neither this one nor `former` (None: be it any).
    """
    path, epoch_path = paths.broker(broker_id), paths.broker_epoch(broker_id)
    while True:
        yield from recipes.ensure(paths.BROKERS)
        found = yield from read(broker_id, gone)
        if found is not None:
            return _judge(broker_id, mine, found)
        last = yield from recipes.ensured(epoch_path)
        had_it, directory = last.data.decode(errors="replace"), mine.directory
        if former is not None and had_it not in ("", directory, former):
            raise BrokerIdTaken(
                f"broker id {broker_id} was given to another data directory meanwhile, and this one "
                "may lack what that one has acknowledged: start it again, so that it fetches that first"
            )
        with_epoch = replace(mine, epoch=last.stat.version + 1)
        yield from recipes.begin_epoch(path, with_epoch, epoch_path, last, directory.encode())


def _judge(broker_id: int, mine: Registration, found: Registration) -> Registration | None:
    """Whose registration was found: ours, that of our earlier incarnation, or another broker's."""
    if found.nonce == mine.nonce:
        return found
    if found.directory == mine.directory:
        return None
    where = ", ".join(sorted(found.listeners.values())) or "an unknown address"
    raise BrokerIdTaken(
        f"broker id {broker_id} is taken by the broker at {where}: "
        "stop that one or choose another --broker-id"
    )


def is_in_epoch(broker_id: int, epoch: int) -> Check:
    """Refuses a transaction once the broker has registered again since that broker epoch."""
    return Check(paths.broker_epoch(broker_id), epoch)


def read(broker_id: int, watch: WatchCallback | None = None) -> Recipe[Registration | None]:
    """A broker's registration, or None if it is not there. Raises Malformed."""
    found, _ = yield from recipes.read(_decoder, paths.broker(broker_id), watch)
    return found


def default_replicas(live: Mapping[int, Registration]) -> int:
    """How many replicas a new topic gets that says nothing else: the most that a live broker asks for."""
    return max((found.default_replicas for found in live.values()), default=1)


def leave(broker_id: int, mine: Registration) -> Recipe[bool]:
    """Say that the broker is to stop, so that the controller has others lead. False if it is not
    registered as `mine` any more."""

    path = paths.broker(broker_id)
    while True:
        node = yield from recipes.get_node(path)
        found = None if node is None else recipes.decode(_decoder, path, node)
        if node is None or found is None or found.nonce != mine.nonce:
            return False
        if found.leaving:
            return True
        data = msgspec.json.encode(replace(found, leaving=True))
        # The node of the next incarnation begins with the same version.
        writes = is_in_epoch(broker_id, found.epoch), Set(path, data, node.stat.version)
        try:
            yield Multi(writes)
        except MultiFailed as refusal:
            recipes.check_foreseen(refusal)
        except ConnectionLost:
            continue


def drained() -> Recipe[set[int]]:
    """The brokers that are to get no replicas, whether they are registered or not."""
    return set((yield from recipes.numbers(paths.DRAINED_BROKERS)))


def set_drained(broker_id: int, is_drained: bool) -> Recipe[None]:
    """Whether a broker is to get no replicas from here on. To say it twice does no harm."""
    path = paths.drained_broker(broker_id)
    if is_drained:
        yield from recipes.ensure(path)
        return
    yield from recipes.delete_node(path)


def usable() -> Recipe[dict[int, Registration]]:
    """The live brokers that may get replicas."""
    out_of_use = yield from drained()
    return {
        number: found for number, found in (yield from live()).items() if number not in out_of_use
    }


def live(watch: WatchCallback | None = None) -> Recipe[dict[int, Registration]]:
    """All brokers that are registered and legible, by id; `watch` is called when one comes, goes, or says
    that it leaves."""
    brokers: dict[int, Registration] = {}
    for broker_id in (yield from recipes.numbers(paths.BROKERS, watch)):
        with suppress(Malformed):
            found = yield from read(broker_id, watch)
            if found is not None:
                brokers[broker_id] = found
    return brokers


def addresses(listener: str) -> Recipe[list[str]]:
    """Where the brokers that are registered listen, of those that have such a listener.

    Raises ConfigError if none of them has.
    """
    found = (yield from live()).values()
    names = sorted({name for each in found for name in each.listeners})
    if names and listener not in names:
        raise ConfigError(f"no broker has a listener {listener!r}: they have {', '.join(names)}")
    return [each.listeners[listener] for each in found if listener in each.listeners]
