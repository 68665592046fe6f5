"""A broker's session with ZooKeeper, and the writes that wait for it."""

from collections import deque
from collections.abc import Mapping
from typing import TypeVar

from folkmoot.brokers.replication.shared import Written
from folkmoot.coordination.partition_states import StateWrite, TopicIdPartition
from folkmoot.coordination.wakeup import Wakeup
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.coordination.zookeeper.operations import Recipe
from folkmoot.coordination.zookeeper.session import Session, SessionState
from folkmoot.protocol.errors import ZooKeeperUnreachable

_T = TypeVar("_T")


class ZooKeeperLink:
    """The way of a broker's parts to ZooKeeper, from any thread.

    The cluster watcher opens one session after another, puts each in `session`, and carries out the
    waiting writes.
    """

    def __init__(self) -> None:
        self.wakeup = Wakeup()
        """Wakes the watcher."""
        self.session: Session | None = None
        self.writes: deque[tuple[Mapping[TopicIdPartition, StateWrite], Written]] = deque()
        self.finished_deletions: deque[str] = deque()

    def write_states(
        self, writes: Mapping[TopicIdPartition, StateWrite], callback: Written
    ) -> None:
        """Have partitions' states written. `callback` gets the answers on the event loop, None if they are
        not known; a view of a new session follows then.

        States written side by side get their answers together."""
        self.writes.append((writes, callback))
        self.wakeup.wake()

    def note_deletion_finished(self, topic_id: str) -> None:
        """Note that this broker has deleted all files of a deleted topic."""
        self.finished_deletions.append(topic_id)
        self.wakeup.wake()

    @property
    def is_connected(self) -> bool:
        """True if ZooKeeper answers at the moment."""
        session = self.session
        return session is not None and session.state is SessionState.CONNECTED

    def is_cut_off(self) -> bool:
        """True if a session was opened, and ZooKeeper does not answer at the moment."""
        return self.session is not None and not self.is_connected

    def execute(self, recipe: Recipe[_T], timeout: float) -> _T:
        """Carry a recipe out in the current session. Raises ZooKeeperUnreachable.

        For recipes that do no harm when they stop in the middle.
        """
        session = self.session
        if session is None or not self.is_connected:
            raise ZooKeeperUnreachable("ZooKeeper does not answer this broker at the moment")
        return execute(session, recipe, timeout)

    def close_session(self) -> None:
        if self.session is not None:
            self.session.close()

    def close(self) -> None:
        self.close_session()
        self.wakeup.close()
