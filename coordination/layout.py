"""The version of what lies below a chroot, so that no process reads or writes another one's layout, and
the id of the cluster, so that no broker serves another one's directories.

It is written by the first broker or controller on a chroot, before anything else, and never changed. Every
session looks at it once, and a client that finds none has been given the wrong address. A chroot without
one that holds something of ours is from before there were versions: version 0. Of two that use a new chroot
first one creates the node, the other one reads it. Who dies right after creating it has left an empty
chroot of this version.

The cluster's id comes with the first broker that has none in its data directory, and never changes. A
broker that has one joins that cluster alone: it does not make a cluster anew where it finds none, or another
one, since all that it knows of topics, epochs and ids would be wrong there. Who dies right behind writing
the id finds it when it starts again.
"""

from uuid import uuid4

import msgspec

from folkmoot.coordination import paths
from folkmoot.coordination.zookeeper.operations import ConnectionLost, Create, NodeExists, Recipe
from folkmoot.coordination.zookeeper.recipes import children, read, update
from folkmoot.protocol.errors import ConfigError, NoCluster

VERSION = 1


class _Layout(msgspec.Struct, frozen=True, omit_defaults=True):
    """The node's contents."""

    version: int
    cluster: str = ""


_decoder = msgspec.json.Decoder(_Layout)


def check(zookeeper: str, *, create: bool = False) -> Recipe[None]:
    """Make sure that what lies below the session's chroot is ours to use; `zookeeper` names it in errors.

    Raises NoCluster if no cluster was ever made there and it is not to be `create`d, ConfigError,
    Malformed.
    """
    while True:
        layout, _ = yield from read(_decoder, paths.LAYOUT)
        if layout is None and not paths.ROOTS.isdisjoint((yield from children("/"))):
            # Whoever used the chroot first has made the version before those.
            layout, _ = yield from read(_decoder, paths.LAYOUT)
            layout = layout or _Layout(0)
        if layout is not None:
            if layout.version == VERSION:
                return
            lost = "; or, if its /layout was deleted, `folkmoot cluster restore`" * (
                not layout.version
            )
            raise ConfigError(
                f"the chroot of {zookeeper} has layout version {layout.version}, this Folkmoot "
                f"needs {VERSION}: use another chroot, or the Folkmoot that wrote this one{lost}"
            )
        if not create:
            raise NoCluster(
                f"no cluster was ever made at zookeeper={zookeeper}: check the address and the chroot "
                "behind it, or start a broker there"
            )
        try:
            yield Create(paths.LAYOUT, msgspec.json.encode(_Layout(VERSION)))
            return
        except (NodeExists, ConnectionLost):
            continue


def cluster_id() -> Recipe[str]:
    """The id of the cluster, "" if there is none yet. Raises Malformed."""
    layout, _ = yield from read(_decoder, paths.LAYOUT)
    return "" if layout is None else layout.cluster


def join(known: str, data: object) -> Recipe[str]:
    """The id of the cluster that a broker belongs to whose directory `data` names the cluster `known`; ""
    names none, and makes one where there is none.

    Raises NoCluster if that cluster is not there any more, ConfigError if there is another one, Malformed.
    """

    def joined(layout: _Layout) -> _Layout:
        found = layout.cluster
        if known and not found:
            raise NoCluster(
                f"data={data} belongs to cluster {known}, of which ZooKeeper has nothing: was it emptied "
                "or set back, or is this another address? `folkmoot cluster restore` puts the cluster back"
            )
        if known and found != known:
            raise ConfigError(
                f"data={data} belongs to cluster {known}, and zookeeper= is that of cluster {found}: use "
                "the address of its own cluster, or another directory"
            )
        return layout if found else _Layout(VERSION, uuid4().hex)

    return (yield from update(_decoder, paths.LAYOUT, joined, _Layout(VERSION))).cluster


def take_back(cluster: str) -> Recipe[None]:
    """Have a chroot be that cluster's which has lost it, or of another one that has no topics. Raises
    ConfigError, Malformed."""
    topics = yield from children(paths.TOPICS)

    def taken_back(layout: _Layout) -> _Layout:
        if layout.version != VERSION:
            raise ConfigError(f"ZooKeeper has layout version {layout.version}, not {VERSION}")
        if layout.cluster not in ("", cluster) and topics:
            raise ConfigError(
                f"ZooKeeper has cluster {layout.cluster} there, with topics of its own, not {cluster}: use "
                "another chroot"
            )
        return _Layout(VERSION, cluster)

    yield from update(_decoder, paths.LAYOUT, taken_back, _Layout(VERSION))


def missing() -> Recipe[list[str]]:
    """What brokers do not know, and is not there."""
    found = set((yield from children("/")))
    names = {"groups": "offsets of groups", "schemas": "schemas"}
    return [name for root, name in names.items() if root not in found]
