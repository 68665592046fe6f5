"""The version of what lies below a chroot, so that no process reads or writes another one's layout.

It is written with the first use of a chroot, before anything else, and never changed; every session
looks at it once. A chroot without one that holds something of ours is from before there were versions:
version 0. Of two that use a new chroot first one creates the node, the other one reads it. Who dies
right after creating it has left an empty chroot of this version.
"""

import msgspec

from folkmoot.coordination import paths
from folkmoot.coordination.zookeeper.operations import ConnectionLost, Create, NodeExists, Recipe
from folkmoot.coordination.zookeeper.recipes import children, read
from folkmoot.protocol.errors import ConfigError

VERSION = 1


class LayoutMismatch(ConfigError):
    """A chroot holds the layout version `found`, and this Folkmoot knows `expected` alone."""

    def __init__(self, chroot: str, found: int, expected: int) -> None:
        super().__init__(
            f"the chroot {chroot or '/'} has layout version {found}, this Folkmoot needs {expected}: "
            "use another chroot, or the Folkmoot that wrote this one"
        )
        self.chroot = chroot
        self.found = found
        self.expected = expected


class _Layout(msgspec.Struct, frozen=True):
    """The node's contents."""

    version: int


_decoder = msgspec.json.Decoder(_Layout)


def check(chroot: str) -> Recipe[None]:
    """Make sure that what lies below the chroot is ours to use. Raises LayoutMismatch, Malformed."""
    while True:
        layout, _ = yield from read(_decoder, paths.LAYOUT)
        if layout is None:
            used = not paths.ROOTS.isdisjoint((yield from children("/")))
            layout, _ = yield from read(
                _decoder, paths.LAYOUT
            )  # whoever was first made it before those
            if layout is None and used:
                raise LayoutMismatch(chroot, 0, VERSION)
        if layout is not None:
            if layout.version != VERSION:
                raise LayoutMismatch(chroot, layout.version, VERSION)
            return
        try:
            yield Create(paths.LAYOUT, msgspec.json.encode(_Layout(VERSION)))
            return
        except (NodeExists, ConnectionLost):
            continue
