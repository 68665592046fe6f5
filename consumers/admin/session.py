"""What all of `Admin` stands on: its ZooKeeper session, and questions to brokers."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from types import TracebackType
from typing import Final, Self, TypeVar

from folkmoot.consumers.config import ConsumerConfig
from folkmoot.coordination import brokers, topics
from folkmoot.coordination.connector import connect
from folkmoot.coordination.topics import TopicInfo
from folkmoot.coordination.zookeeper.execute import execute_all
from folkmoot.coordination.zookeeper.operations import Recipe
from folkmoot.coordination.zookeeper.session import Connect, Session, SessionState
from folkmoot.network.lookups import Lookups
from folkmoot.protocol.errors import (
    BrokerUnreachable,
    ClosedError,
    UnknownTopicOrPartition,
    ZooKeeperUnreachable,
)
from folkmoot.protocol.names import check_name
from folkmoot.protocol.records import TopicPartition

TIMEOUT: Final = 30.0
_TURN: Final = 1.0

T = TypeVar("T")


class AdminSession:
    """Opened and closed once or several times; asks ZooKeeper and brokers, each time anew."""

    def __init__(
        self,
        *,
        zookeeper: str | Connect,
        listener: str = "client",
        client_id: str = "admin",
        session_timeout: float = 10.0,
        timeout: float = TIMEOUT,
    ) -> None:
        self._config = ConsumerConfig(
            zookeeper=zookeeper,
            listener=listener,
            client_id=client_id,
            session_timeout=session_timeout,
        )
        self._timeout = timeout
        self._connect: Connect = (
            partial(connect, zookeeper, connect_timeout=timeout)
            if isinstance(zookeeper, str)
            else zookeeper
        )
        self._is_open = False
        self._session: Session | None = None

    def start(self) -> Self:
        """Connect to ZooKeeper. Raises ZooKeeperUnreachable."""
        self._is_open = True
        with self._opened():
            return self

    def close(self) -> None:
        self._is_open = False
        if self._session is not None:
            self._session.close()
            self._session = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def partitions_of(self, topic: str) -> list[TopicPartition]:
        """Raises UnknownTopicOrPartition, InvalidName."""
        count = len(self._topic(topic).partitions)
        return [TopicPartition(topic, number) for number in range(count)]

    # -- for those that build on it ---------------------------------------------------------------

    @contextmanager
    def _opened(self) -> Iterator[Session]:
        """The session, another one if it is over.

        One that does not answer is given up: what waits in it to be sent would be done later, when the
        caller has been told that it was not. What was sent already may be done.
        """
        if not self._is_open:
            raise ClosedError("the admin is not open: use it in a with block, or call start()")
        if self._session is None or self._session.state is SessionState.LOST:
            self._session = self._connect(self._config.session_timeout)
        try:
            yield self._session
        except ZooKeeperUnreachable:
            self._session.close()
            self._session = None
            raise

    def _execute(self, recipe: Recipe[T], timeout: float | None = None) -> T:
        """Raises ZooKeeperUnreachable after the timeout, and what the recipe raises."""
        (result,) = self._execute_all((recipe,), timeout)
        return result

    def _execute_all(self, recipes: Iterable[Recipe[T]], timeout: float | None = None) -> list[T]:
        with self._opened() as session:
            limit = self._timeout if timeout is None else timeout
            return execute_all(session, recipes, timeout=limit)

    def _topics(self, names: Iterable[str]) -> dict[str, TopicInfo]:
        """Those that exist. Raises InvalidName."""
        wanted = sorted({check_name("topic", name) for name in names})
        found = self._execute_all(map(topics.read, wanted))
        return {name: info for name, info in zip(wanted, found, strict=True) if info is not None}

    def _topic(self, topic: str) -> TopicInfo:
        """Raises UnknownTopicOrPartition, InvalidName."""
        found = self._topics((topic,))
        if topic not in found:
            raise UnknownTopicOrPartition(f"topic {topic} does not exist")
        return found[topic]

    def _topic_ids(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, str]:
        """The ids of the partitions' topics, in the order of the partitions.

        Raises UnknownTopicOrPartition, InvalidName.
        """
        ordered = sorted(partitions)
        found = {topic: self._topic(topic) for topic in sorted({each.topic for each in ordered})}
        for topic, number in ordered:
            count = len(found[topic].partitions)
            if not 0 <= number < count:
                raise UnknownTopicOrPartition(
                    f"topic {topic} has no partition {number}, only 0 to {count - 1}"
                )
        return {each: found[each.topic].topic_id for each in ordered}

    def _discover(self, timeout: float) -> Callable[[], list[str]]:
        """Finds the addresses of live brokers."""
        name = self._config.listener

        def addresses() -> list[str]:
            found = self._execute(brokers.live(), timeout).values()
            return [each.listeners[name] for each in found if name in each.listeners]

        return addresses

    def _find(
        self, wanted: Mapping[TopicPartition, str], place: int, timeout: float, some: bool = False
    ) -> dict[TopicPartition, int]:
        """The offsets at EARLIEST or LATEST, of partitions with their topics' ids.

        Raises BrokerUnreachable, or why no broker told; with `some`, only as far as they are told in time.
        """
        discover = self._discover(timeout)
        if some and not (wanted and discover()):
            return {}
        deadline = time.monotonic() + timeout
        found: dict[TopicPartition, int] = {}
        with closing(Lookups(self._config.client_id, self._config.listener, discover)) as lookups:
            while (missing := {each: wanted[each] for each in wanted if each not in found}) and (
                left := deadline - time.monotonic()
            ) > 0:
                found.update(lookups.find(missing, place, min(left, _TURN)))
            if missing and not some:
                raise lookups.trouble or BrokerUnreachable(
                    f"no leader answers within {timeout:g} s for {', '.join(map(str, sorted(missing)))}"
                )
        return {each: found[each] for each in wanted if each in found}
