"""The version of a chroot's layout, and the cluster's id.

The first broker or controller on a chroot writes the version, before anything else; it never changes. Every
session checks it once, so that no process reads or writes another layout; a client that finds none has a
wrong address. A chroot without a version that holds nodes of ours has version 0.

The first broker without a cluster id in its data directory makes the id, which never changes. A broker with
one joins that cluster alone: where it finds none, or another one, all that it knows of topics, epochs and
ids would be wrong.
"""

from uuid import uuid4

import msgspec

from folkmoot.coordination import paths
from folkmoot.coordination.zookeeper.operations import ConnectionLost, Create, NodeExists, Recipe
from folkmoot.coordination.zookeeper.recipes import children, read, update
from folkmoot.protocol.errors import ConfigError, NoCluster

VERSION = 1


class _Layout(msgspec.Struct, frozen=True, omit_defaults=True):
    version: int
    cluster: str = ""


_decoder = msgspec.json.Decoder(_Layout)


def check(zookeeper: str, *, create: bool = False) -> Recipe[None]:
    """Check the version of the session's chroot, or `create` it; errors name the chroot by `zookeeper`.

    Raises NoCluster if no cluster was ever made there, ConfigError for another version, Malformed.
    """
    while True:
        layout, _ = yield from read(_decoder, paths.LAYOUT)
        if layout is None and not paths.ROOTS.isdisjoint((yield from children("/"))):
            # The version is created before those, and may have been since the first read.
            layout, _ = yield from read(_decoder, paths.LAYOUT)
            layout = layout or _Layout(0)
        if layout is not None and layout.version == VERSION:
            return
        if layout is not None:
            raise ConfigError(
                f"the chroot of {zookeeper} has layout version {layout.version}, this Folkmoot needs "
                f"{VERSION}: use another chroot, or the Folkmoot that wrote this one; or, if its /layout "
                "was deleted, `folkmoot cluster restore`"
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
    """The id of the cluster, for a broker whose directory `data` belongs to the cluster `known`; with "", a
    missing id is made.

    Raises NoCluster if there is no cluster any more, ConfigError if there is another one, Malformed.
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


def restore_cluster_id(cluster: str) -> Recipe[None]:
    """Write a cluster's id to a chroot that has lost it. Raises ConfigError if there is another cluster with
    topics, Malformed."""
    topics = yield from children(paths.TOPICS)

    def restored(layout: _Layout) -> _Layout:
        if layout.version != VERSION:
            raise ConfigError(f"ZooKeeper has layout version {layout.version}, not {VERSION}")
        if layout.cluster not in ("", cluster) and topics:
            raise ConfigError(
                f"ZooKeeper has cluster {layout.cluster} there, with topics of its own, not {cluster}: use "
                "another chroot"
            )
        return _Layout(VERSION, cluster)

    yield from update(_decoder, paths.LAYOUT, restored, _Layout(VERSION))


def missing() -> Recipe[list[str]]:
    """The lost data that brokers cannot restore, as nouns."""
    found = set((yield from children("/")))
    names = {"groups": "offsets of groups", "schemas": "schemas"}
    return [name for root, name in names.items() if root not in found]
