"""The version of what lies below a chroot, so that no process reads or writes another one's layout.

It is written by the first broker or controller on a chroot, before anything else, and never changed. Every
session looks at it once, and a client that finds none has been given the wrong address. A chroot without
one that holds something of ours is from before there were versions: version 0. Of two that use a new chroot
first one creates the node, the other one reads it. Who dies right after creating it has left an empty
chroot of this version.
"""

import msgspec

from folkmoot.coordination import paths
from folkmoot.coordination.zookeeper.operations import ConnectionLost, Create, NodeExists, Recipe
from folkmoot.coordination.zookeeper.recipes import children, read
from folkmoot.protocol.errors import ConfigError, NoCluster

VERSION = 1


class _Layout(msgspec.Struct, frozen=True):
    """The node's contents."""

    version: int


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
            raise ConfigError(
                f"the chroot of {zookeeper} has layout version {layout.version}, this Folkmoot "
                f"needs {VERSION}: use another chroot, or the Folkmoot that wrote this one"
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
