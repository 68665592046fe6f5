"""The tree of znodes as a value, and writes on it: what ZooKeeper does to one, and refuses."""

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any

import msgspec

from folkmoot.coordination.zookeeper import operations
from folkmoot.coordination.zookeeper.operations import (
    ANY_VERSION,
    BadVersion,
    Check,
    Create,
    Delete,
    MultiFailed,
    NodeExists,
    NoNode,
    NotEmpty,
    Set,
    Stat,
    StoreError,
)


class Znode(msgspec.Struct, frozen=True):
    """A node. `births` counts all children ever created: the next sequence number below it."""

    data: bytes = b""
    version: int = 0
    czxid: int = 0
    ctime: int = 0
    mtime: int = 0
    owner: int = 0
    births: int = 0
    children: frozenset[str] = frozenset()

    def stat(self) -> Stat:
        return Stat(self.version, self.czxid, self.ctime, self.owner, self.mtime)


Tree = dict[str, Znode]
"""All nodes by path. Nodes are values, so that a shallow copy is the tree as it was."""


class Watched(Enum):
    """What of a node is watched. An absent node's data is its absence."""

    DATA = "data"
    CHILDREN = "children"


def seen(kind: Watched, znode: Znode | None) -> object:
    """What a watch of this kind is about; differs whenever it would have fired in between."""
    if znode is None:
        return None
    if kind is Watched.DATA:
        return znode.czxid, znode.version
    return znode.czxid, znode.births, znode.children


class Write:
    """One transaction being made: `changes` over a tree (None = deleted), `events` for watches.

    The tree itself is not touched, so a transaction that fails has done nothing. The order of the
    checks is ZooKeeper's, and so the error of a write that has two faults.
    """

    def __init__(self, tree: Mapping[str, Znode], zxid: int, now_ms: int, session_id: int) -> None:
        self.changes: dict[str, Znode | None] = {}
        self.events: list[tuple[Watched, str]] = []
        self._tree = tree
        self._zxid = zxid
        self._now_ms = now_ms
        self._session_id = session_id

    def carry_out(self, writes: Iterable[operations.Write]) -> list[Any]:
        """Their results. Raises MultiFailed."""
        results: list[Any] = []
        for index, write in enumerate(writes):
            try:
                results.append(self._carry_out_one(write))
            except StoreError as error:
                raise MultiFailed(index, error) from None
        return results

    def end_session(self) -> None:
        """Delete the session's ephemeral nodes."""
        for path in [path for path, node in self._tree.items() if node.owner == self._session_id]:
            self._remove(path)

    def _carry_out_one(self, write: operations.Write) -> str | int | None:
        match write:
            case Create():
                return self._create(write)
            case Set(path, data, version):
                node = self._existing(path, version)
                self._put(path, node, data=data, version=node.version + 1)
                self.events.append((Watched.DATA, path))
                return node.version + 1
            case Delete(path, version):
                if self._existing(path, version).children:
                    raise NotEmpty(f"{path}: the node has children")
                self._remove(path)
                return None
            case Check(path, version):
                self._existing(path, version)
                return None

    def _create(self, write: Create) -> str:
        path, (parent_path, name) = write.path, _split(write.path)
        parent = self._existing(parent_path, ANY_VERSION)
        if write.sequence:
            path, name = (f"{text}{parent.births:010d}" for text in (path, name))
        if self._find(path) is not None:
            raise NodeExists(f"{path}: the node exists")
        if parent.owner:
            raise StoreError(f"{path}: an ephemeral node has no children")
        owner = self._session_id if write.ephemeral else 0
        self.changes[path] = Znode(write.data, 0, self._zxid, self._now_ms, self._now_ms, owner)
        self._put(parent_path, parent, births=parent.births + 1, children=parent.children | {name})
        self.events += [(Watched.DATA, path), (Watched.CHILDREN, parent_path)]
        return path

    def _remove(self, path: str) -> None:
        parent_path, name = _split(path)
        parent = self._existing(parent_path, ANY_VERSION)
        self.changes[path] = None
        self._put(parent_path, parent, children=parent.children - {name})
        self.events += [
            (Watched.DATA, path),
            (Watched.CHILDREN, path),
            (Watched.CHILDREN, parent_path),
        ]

    def _find(self, path: str) -> Znode | None:
        return self.changes[path] if path in self.changes else self._tree.get(path)

    def _existing(self, path: str, version: int) -> Znode:
        node = self._find(path)
        if node is None:
            raise NoNode(f"{path}: no such node")
        if version not in (ANY_VERSION, node.version):
            raise BadVersion(f"{path}: the node was written since version {version}")
        return node

    def _put(self, path: str, node: Znode, **changed: Any) -> None:
        self.changes[path] = msgspec.structs.replace(node, **changed)


def _split(path: str) -> tuple[str, str]:
    parent, name = path.rsplit("/", 1)
    return parent or "/", name
