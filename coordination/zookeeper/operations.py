"""ZooKeeper's operations as plain values, and its errors.

A *recipe* is a generator that yields operations, is sent their results or has their errors thrown into it,
and returns its own result. It does no I/O: `execute` carries it out on a session, the group's thread many at
a time, and a simulator in any order.

Each recipe ends with a definite answer, or SessionLost. After a lost reply it reads back. It may read an old
state, from a server that lags; then its next write is refused, and what it reads after that is not older.
"""

import re
from collections.abc import Callable, Generator
from typing import Any, TypeVar

import msgspec

from folkmoot.protocol.errors import FolkmootError, RetriableError, ZooKeeperRefused

WatchCallback = Callable[[], None]
"""Called once, on any thread, when what was read may have changed; may only wake its owner, who reads again.

The call may come before the answer of the read that armed it, and comes when the connection breaks. A
callback that is armed twice on one node is called once. There may be needless calls.
"""

ANY_VERSION = -1

MAX_REQUEST_BYTES = 1_000_000
"""A little less than ZooKeeper's default `jute.maxbuffer`: it answers more with a broken connection."""

_PATH = re.compile(r"/|(?:/(?!\.{1,2}(?:/|$))[^/\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff]+)+")


class Stat(msgspec.Struct, frozen=True):
    """A node's metadata; times in ms of the server's clock."""

    version: int
    czxid: int
    ctime: int
    ephemeral_owner: int
    mtime: int = 0
    births_and_deaths: int = 0
    """How many children were created and deleted, ever."""
    children: int = 0


class Node(msgspec.Struct, frozen=True):
    """A node as read."""

    data: bytes
    stat: Stat


class Get(msgspec.Struct, frozen=True):
    """Read a node → Node. Raises NoNode (then nothing is watched: `Exists` watches absent nodes)."""

    path: str
    watch: WatchCallback | None = None


class Exists(msgspec.Struct, frozen=True):
    """Look for a node → Stat or None. The watch also fires when an absent node is created."""

    path: str
    watch: WatchCallback | None = None


class Children(msgspec.Struct, frozen=True):
    """The names of a node's children → list of str, in no order. Raises NoNode."""

    path: str
    watch: WatchCallback | None = None


class Sync(msgspec.Struct, frozen=True):
    """Let the server of this session catch up with the leader. → None.

    A later read is at least as new as every write that was answered before the Sync, to any session.
    """

    path: str = "/"


class Create(msgspec.Struct, frozen=True):
    """Create a node → its path (with the number that a sequence appends). Raises NodeExists, NoNode."""

    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequence: bool = False


class Set(msgspec.Struct, frozen=True):
    """Write a node → its new version, if it still has `version`. Raises BadVersion, NoNode."""

    path: str
    data: bytes
    version: int = ANY_VERSION


class Delete(msgspec.Struct, frozen=True):
    """Delete a node → None, if it still has `version`. Raises BadVersion, NoNode, NotEmpty."""

    path: str
    version: int = ANY_VERSION


class Check(msgspec.Struct, frozen=True):
    """Within a Multi: the node exists and has `version`. → None. Raises BadVersion, NoNode."""

    path: str
    version: int = ANY_VERSION


Write = Create | Set | Delete | Check


class Multi(msgspec.Struct, frozen=True):
    """All writes or none, in one step → list of their results. Raises MultiFailed."""

    writes: tuple[Write, ...]


Operation = Get | Exists | Children | Sync | Create | Set | Delete | Multi

_T = TypeVar("_T")
Recipe = Generator[Operation, Any, _T]


class ZooKeeperError(FolkmootError):
    """ZooKeeper refused an operation, or is out of reach."""


class NoNode(ZooKeeperError):
    """The node, or the parent of the one to create, does not exist."""


class NodeExists(ZooKeeperError):
    """The node to create exists."""


class BadVersion(ZooKeeperError):
    """The node was written since the version named."""


class NotEmpty(ZooKeeperError):
    """The node to delete has children."""


class MultiFailed(ZooKeeperError):
    """None of a Multi's writes was done: the one at index `failed` was refused, because of `cause`."""

    def __init__(self, failed: int, cause: ZooKeeperError) -> None:
        super().__init__(f"write {failed} of a transaction was refused: {cause}")
        self.failed = failed
        self.cause = cause


class Refused(ZooKeeperRefused, ZooKeeperError):
    """The operation is not permitted, or its arguments are wrong: trying again does not help."""


class TooLarge(Refused):
    """The operation is larger than ZooKeeper takes in one request."""


class ConnectionLost(ZooKeeperError, RetriableError):
    """The connection broke before the answer: the operation was done, or not. Read to find out."""


class SessionLost(ZooKeeperError):
    """The session is over, and its ephemeral nodes are gone.

    An operation that was under way was done before that, or never will be.
    """


def refusal(operation: Operation, chroot: str = "") -> TooLarge | None:
    """Why an operation must not be sent, or None. Raises ValueError for a path that cannot be one."""
    for write in operation.writes if isinstance(operation, Multi) else (operation,):
        if _PATH.fullmatch(write.path) is None:
            raise ValueError(f"not a path below the chroot: {write.path!r}")
    size = request_bytes(operation, chroot)
    if size <= MAX_REQUEST_BYTES:
        return None
    first = operation.writes[0].path if isinstance(operation, Multi) else operation.path
    return TooLarge(
        f"{first}: {size} bytes in one request, ZooKeeper takes {MAX_REQUEST_BYTES} at most"
    )


def request_bytes(operation: Operation | Check, chroot: str = "") -> int:
    """The size of a request; what the servers write of it is larger by less than a hundred bytes."""
    if isinstance(operation, Multi):
        # A header of 9 bytes before each write and after the last.
        return 17 + sum(request_bytes(write, chroot) + 1 for write in operation.writes)
    size = 8 + path_bytes(operation.path, chroot)
    match operation:
        case Create(_, data, _, sequence):
            return size + 4 + len(data) + 27 + 4 + 10 * sequence  # an open ACL, flags, a number
        case Set(_, data):
            return size + 4 + len(data) + 4
        case _:
            return size + 4


def path_bytes(path: str, chroot: str = "") -> int:
    """The size of a path within a request or a transaction.

    The transaction that ends a session has the paths of all its ephemeral nodes. ZooKeeper writes it
    whatever its size, but does not start again with one above `jute.maxbuffer` and a megabyte in its log
    (ZOOKEEPER-4306). So the sum of these sizes has to be bounded for each session.
    """
    return 4 + len(chroot.encode()) + len(path.encode())
