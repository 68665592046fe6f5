"""A ZooKeeper session as the rest of Folkmoot sees it.

Two implementations pass one contract suite: `KazooSession`, and `MemorySession` in the tests. A lost session
is over for good, and its owner opens another: no write of an old session ever runs in a new one.
"""

from collections.abc import Callable
from enum import Enum
from typing import Any, Final, Protocol

import msgspec

from folkmoot.coordination.zookeeper.operations import Operation, ZooKeeperError

SHORTEST_SESSION: Final = 0.1
LONGEST_SESSION: Final = 86_400.0
"""Bounds of a session timeout in seconds: ZooKeeper takes ms in 32 bits."""


class SessionState(Enum):
    """CONNECTED and SUSPENDED (no server answers; the session may live or not) alternate; LOST is the end."""

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    LOST = "lost"


class Outcome(msgspec.Struct, frozen=True):
    """How an operation ended: with a `result`, or an `error`."""

    result: Any
    error: ZooKeeperError | None


class Session(Protocol):
    """One ZooKeeper session. All methods may be called from any thread."""

    @property
    def chroot(self) -> str:
        """The prefix of all paths on the server: empty, or with a leading slash."""

    @property
    def state(self) -> SessionState: ...

    @property
    def session_timeout(self) -> float:
        """Seconds without contact after which ZooKeeper ends the session, as negotiated."""

    def last_acknowledged(self) -> float:
        """`time.monotonic()` at which the last operation that was answered had been *sent*.

        The session cannot have ended before this plus the session timeout.
        """

    def listen(self, listener: Callable[[SessionState], None]) -> None:
        """Call `listener` on every change of state, on any thread; it may only wake its owner."""

    def submit(self, operation: Operation, callback: Callable[[Outcome], None]) -> None:
        """Start an operation; `callback` is called exactly once, on any thread, perhaps at once.

        Operations of one session take effect in the order submitted. While SUSPENDED they wait for
        the connection or the session's end. After LOST their outcome is SessionLost.
        """

    def close(self) -> None:
        """End the session now, and its ephemeral nodes with it. Never raises, never hangs."""


Connect = Callable[[float], Session]
"""Opens a session with a session timeout in seconds. Raises ZooKeeperUnreachable."""
