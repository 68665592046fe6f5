"""What a consumer looks up besides records: live brokers, topics, committed offsets.

Every question to ZooKeeper ends by itself, since it is asked on the thread that polls.
"""

import time
from collections.abc import Callable
from typing import Final, TypeVar

from folkmoot.coordination import topics
from folkmoot.coordination.brokers import live
from folkmoot.coordination.groups.ownership import committed
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.coordination.zookeeper.operations import Recipe
from folkmoot.coordination.zookeeper.session import Connect, Session, SessionState
from folkmoot.network.cluster import Cluster
from folkmoot.protocol.errors import UnknownTopicOrPartition, ZooKeeperUnreachable
from folkmoot.protocol.names import check_name
from folkmoot.protocol.records import TopicPartition

T = TypeVar("T")

ZOOKEEPER_WAIT: Final = 5.0
METADATA_WAIT: Final = 15.0
_TURN: Final = 1.0


class Directory:
    """Answers from ZooKeeper, through the member's session or one of its own, and from brokers.

    A member has a session already, which is borrowed; without one, a session is opened and, when it
    was lost, replaced at the next question. Owned by the thread that polls.
    """

    def __init__(self, connect: Connect, session_timeout: float, listener: str) -> None:
        self._connect = connect
        self._session_timeout = session_timeout
        self._listener = listener
        self._own: Session | None = None
        self._borrow: Callable[[], Session | None] | None = None

    def open(self) -> None:
        """Open a session of its own. Raises ZooKeeperUnreachable."""
        self._own = self._connect(self._session_timeout)

    def borrow(self, session: Callable[[], Session | None]) -> None:
        """Use the session that this returns from now on."""
        self._borrow = session

    @property
    def is_open(self) -> bool:
        return self._own is not None or self._borrow is not None

    def brokers(self) -> list[str]:
        """Addresses of live brokers for our listener. Raises ZooKeeperUnreachable."""
        name = self._listener
        found = self._ask(live()).values()
        return [each.listeners[name] for each in found if name in each.listeners]

    def committed(self, group: str, partition: TopicPartition) -> int | None:
        """A group's offset, None if there is none for the topic that has this name now.

        Raises ZooKeeperUnreachable.
        """
        state = self._ask(committed(group, partition))
        topic = None if state is None else self._ask(topics.read(partition.topic))
        if state is None or topic is None or state.topic_id not in ("", topic.topic_id):
            return None
        return state.offset

    def partitions(
        self, topic: str, cluster: Cluster, poll: Callable[[float], None]
    ) -> list[TopicPartition]:
        """All partitions of a topic, as soon as a broker has told; `poll` lets the cluster work.

        Raises UnknownTopicOrPartition, InvalidName, or why no broker told.
        """
        check_name("topic", topic)
        deadline = time.monotonic() + METADATA_WAIT
        cluster.want(topic)
        while not (known := cluster.partitions(topic)):
            # Brokers learn of a new topic a moment later than ZooKeeper.
            if cluster.is_missing(topic) and self._ask(topics.read(topic)) is None:
                cluster.forget(topic)
                raise UnknownTopicOrPartition(
                    f"topic {topic} does not exist: create it with `folkmoot topic create {topic}`"
                )
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                cluster.forget(topic)
                raise cluster.trouble or UnknownTopicOrPartition(
                    f"no broker told about topic {topic} within {METADATA_WAIT:g} s"
                )
            poll(min(remaining, _TURN))
        return [TopicPartition(topic, number) for number in known]

    def close(self) -> None:
        """End the session of its own."""
        if self._own is not None:
            self._own.close()

    def _ask(self, question: Recipe[T]) -> T:
        """The answer, in the session of the moment. Raises ZooKeeperUnreachable while there is none."""
        if self._borrow is not None:
            store = self._borrow()
        else:
            if self._own is None or self._own.state is SessionState.LOST:
                self._own = self._connect(self._session_timeout)
            store = self._own
        if store is None or store.state is not SessionState.CONNECTED:
            raise ZooKeeperUnreachable("ZooKeeper does not answer at the moment")
        return execute(store, question, ZOOKEEPER_WAIT)
