"""A member's ZooKeeper sessions, one after another."""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from folkmoot.coordination import paths
from folkmoot.coordination.zookeeper.operations import Create, WatchCallback
from folkmoot.coordination.zookeeper.session import Session

RECONNECT_PAUSE: Final = 0.5
LONGEST_PAUSE: Final = 30.0
"""Between two sessions, if ZooKeeper refuses a member's requests. The pause doubles each time."""


class Sessions:
    """The current session, and when the next one opens. Owned by the group thread.

    `number` changes when a session opens and when it ends: a late answer has an older one.
    """

    def __init__(self, connect: Callable[[], Session]) -> None:
        self.connect = connect
        self.current: Session | None = None
        """Any thread may read in it."""
        self.number = 0
        self.joined_as = ""
        """The name under which the member joined in the current session."""
        self.is_connecting = False
        self._watches: dict[tuple[Any, ...], WatchCallback] = {}
        self._connect_at = 0.0
        self._pause = RECONNECT_PAUSE
        self._error = ""

    @property
    def due(self) -> float:
        """When to open a session, if none is open."""
        return self._connect_at

    def open(self, session: Session) -> None:
        self.is_connecting, self._error = False, ""
        self.number += 1
        self.current = session
        self._watches.clear()

    def fail(self, error: Exception, now: float) -> bool:
        """No session could be opened. Return whether the error is a new one."""
        self.is_connecting, self._connect_at = False, now + RECONNECT_PAUSE
        is_new, self._error = str(error) != self._error, str(error)
        return is_new

    def watch(
        self, post: Callable[..., None], call: Callable[..., None], *arguments: Any
    ) -> WatchCallback:
        """Make a watch's callback, the same one for the same arguments: repeated reads of a node then set
        one watch."""
        key = (call, *arguments)
        if key not in self._watches:
            self._watches[key] = partial(post, self.number, *key)
        return self._watches[key]

    def end(self, group: str, why: str, now: float, *, has_failed: bool) -> None:
        """End the current session. The next one opens at once if the member had joined.

        If a request `has_failed`, it opens after a pause, which doubles with each failure, and starts anew
        after some time without one. With a `why`, a note about the departure is left in the group.
        """
        session, self.current = self.current, None
        self.number += 1
        if session is not None:
            if why and self.joined_as:
                note = Create(paths.departure(group, self.joined_as), why.encode())
                session.submit(note, lambda outcome: None)
            session.close()
        if has_failed:
            is_again = now < self._connect_at + 2 * LONGEST_PAUSE
            self._pause = min(LONGEST_PAUSE, 2 * self._pause) if is_again else RECONNECT_PAUSE
            self._connect_at = now + self._pause
        else:
            self._connect_at = 0.0 if self.joined_as else now + RECONNECT_PAUSE
        self.joined_as = ""
