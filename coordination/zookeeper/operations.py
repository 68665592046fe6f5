"""What can be asked of ZooKeeper, as plain values, and what it may answer.

A *recipe* is a generator that yields operations, is sent their results, has their errors thrown into
it, and returns its own result. Recipes do no I/O: `execute` carries one out on a session, the group
thread carries many out at a time, and a simulator may do it in any order it likes.

Each recipe ends with a definite answer, or SessionLost. If a reply is lost it reads back. What it reads may
be old, from a server that lags; then its next write is refused, and what is read after that is not older.
"""

import re
from collections.abc import Callable, Generator
from typing import Any, TypeVar

import msgspec

from folkmoot.protocol.errors import FolkmootError, RetriableError, ZooKeeperRefused

WatchCallback = Callable[[], None]
"""Called once, on any thread, when what was read may have changed; may only wake its owner.

The call may come before the answer of the read that armed it: the owner reads again afterwards. It
also comes when the connection breaks: nothing is watched any more then, so read again. What is armed
twice on one node is called once. It is called too often rather than too seldom.
"""

ANY_VERSION = -1

MAX_REQUEST_BYTES = 1_000_000
"""A little less than ZooKeeper's default `jute.maxbuffer`: it answers more with a broken connection."""

_PATH = re.compile(r"/|(?:/(?!\.{1,2}(?:/|$))[^/\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff]+)+")


class Stat(msgspec.Struct, frozen=True):
    """What ZooKeeper knows of a node besides its data; times in ms of the server's clock."""

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
    """Let the server that we are connected to catch up with the leader. → None.

    Reads of one session are in order, but a new session may land on a server that lags; what is
    read after a Sync is at least as new as every write that was answered before it.
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
    """ZooKeeper refused an operation, or could not be asked."""


class NoNode(ZooKeeperError):
    """The node, or the parent of the one to create, does not exist."""


class NodeExists(ZooKeeperError):
    """The node to create exists."""


class BadVersion(ZooKeeperError):
    """The node was written since the version named."""


class NotEmpty(ZooKeeperError):
    """The node to delete has children."""


class MultiFailed(ZooKeeperError):
    """None of a Multi's writes was done: the one at index `failed` could not be, because of `cause`."""

    def __init__(self, failed: int, cause: ZooKeeperError) -> None:
        super().__init__(f"write {failed} of a transaction was refused: {cause}")
        self.failed = failed
        self.cause = cause


class Refused(ZooKeeperRefused, ZooKeeperError):
    """The operation is not permitted, or its arguments are wrong: it fails again until somebody acts."""


class TooLarge(Refused):
    """The operation is more than ZooKeeper takes in one request."""


class ConnectionLost(ZooKeeperError, RetriableError):
    """The connection broke before the answer: the operation was done, or not. Read to find out."""


class SessionLost(ZooKeeperError):
    """The session is over: its ephemeral nodes are gone, and it will never do anything again.

    What was under way when it ended was done before that, or never will be.
    """


def refusal(operation: Operation, chroot: str = "") -> TooLarge | None:
    """Why an operation must not be sent, if so. Raises ValueError for a path that cannot be one."""
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


# -- how large things are, as ZooKeeper writes them: to its clients, its log and its followers ---------


def request_bytes(operation: Operation | Check, chroot: str = "") -> int:
    """Of a request; what the servers write of it is larger by less than a hundred bytes."""
    if isinstance(operation, Multi):
        # A header of 9 bytes before each write and after the last.
        return 17 + sum(request_bytes(write, chroot) + 1 for write in operation.writes)
    size = 8 + path_bytes(operation.path, chroot)
    match operation:
        case Create(_, data, _, sequence):
            return size + 4 + len(data) + 27 + 4 + 10 * sequence  # an ACL for everybody, flags
        case Set(_, data):
            return size + 4 + len(data) + 4
        case _:
            return size + 4


def path_bytes(path: str, chroot: str = "") -> int:
    """Of a path within a request or a transaction.

    The transaction that ends a session has the paths of all its ephemeral nodes. Its length is checked
    by nobody when it is written, and when it is read again: a server that finds more than
    `jute.maxbuffer` and another megabyte in its log does not start any more (ZOOKEEPER-4306). So what
    one session creates has to be bounded by this.
    """
    return 4 + len(chroot.encode()) + len(path.encode())
