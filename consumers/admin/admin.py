"""What is done to topics, records and groups as a whole, for applications and the command line."""

from collections.abc import Mapping
from datetime import datetime
from types import TracebackType
from typing import Final, Literal, Self, TypeVar

from folkmoot.consumers.admin.group_admin import GroupAdmin
from folkmoot.consumers.admin.offset_reset import whole_offset
from folkmoot.consumers.config import ConsumerConfig
from folkmoot.consumers.offsets.offset_lookup import first_offsets
from folkmoot.consumers.offsets.validation import whole
from folkmoot.coordination import brokers, topics
from folkmoot.coordination.connector import connector
from folkmoot.coordination.topics import TopicInfo
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.coordination.zookeeper.operations import Recipe
from folkmoot.coordination.zookeeper.session import Connect, Session
from folkmoot.network.client import Connections
from folkmoot.network.cluster import Cluster
from folkmoot.network.deletion import Before, Deletion
from folkmoot.protocol.errors import (
    ClosedError,
    ConfigError,
    OffsetOutOfRange,
    RecordsNotDeleted,
    UnknownTopicOrPartition,
)
from folkmoot.protocol.names import check_name
from folkmoot.protocol.records import TopicPartition
from folkmoot.protocol.requests import EARLIEST, LATEST

TIMEOUT: Final = 30.0
_PLACES: Final = {"beginning": EARLIEST, "end": LATEST}

T = TypeVar("T")


class Admin(GroupAdmin):
    """Topics: created, grown, deleted, their oldest records given up. Groups: looked at, reset, deleted.

    ```
    with Admin(zookeeper="localhost:2181") as admin:
        admin.create_topic("orders", partitions=3)
        admin.delete_records({TopicPartition("orders", 0): 1_000})
        plan = admin.plan_reset("billing", to="earliest", topics=["orders"])
        admin.reset_offsets("billing", {each.partition: each.new for each in plan})
    ```

    Every call asks anew and waits for its answer; nothing is kept between two of them but the
    ZooKeeper session. One thread uses it.
    """

    def __init__(
        self,
        *,
        zookeeper: str | Connect,
        listener: str = "client",
        client_id: str = "admin",
        session_timeout: float = 10.0,
    ) -> None:
        self._config = ConsumerConfig(
            zookeeper=zookeeper,
            listener=listener,
            client_id=client_id,
            session_timeout=session_timeout,
        )
        self._connect = connector(zookeeper)
        self._store: Session | None = None

    def start(self) -> Self:
        """Connect to ZooKeeper. Raises ZooKeeperUnreachable."""
        if self._store is None:
            self._store = self._connect(self._config.session_timeout)
        return self

    def close(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # -- topics -----------------------------------------------------------------------------------

    def topics(self) -> list[str]:
        """The names of all topics, sorted."""
        return self._run(topics.names())

    def create_topic(self, topic: str, partitions: int = 1) -> None:
        """Raises TopicExists, BrokerUnreachable, ConfigError, InvalidName."""
        count = whole("number of partitions", partitions)
        self._run(topics.create(topic, count, self._alive()))

    def add_partitions(self, topic: str, partitions: int) -> None:
        """Have the topic have so many. Records of a key may go to another partition from then on.

        What was written stays where it is, so a key's records may then be in two partitions, with no
        order between them. Raises UnknownTopicOrPartition, BrokerUnreachable, ConfigError, InvalidName.
        """
        check_name("topic", topic)
        count = whole("number of partitions", partitions)
        self._run(topics.add_partitions(topic, count, self._alive()))

    def delete_topic(self, topic: str) -> None:
        """Raises UnknownTopicOrPartition, InvalidName."""
        check_name("topic", topic)
        self._run(topics.delete(topic))

    def partitions_of(self, topic: str) -> list[TopicPartition]:
        """Raises UnknownTopicOrPartition, InvalidName."""
        return [
            TopicPartition(topic, number) for number in range(len(self._topic(topic).partitions))
        ]

    # -- records ----------------------------------------------------------------------------------

    def offsets(
        self, topic: str, place: Literal["beginning", "end"], timeout: float = TIMEOUT
    ) -> dict[TopicPartition, int]:
        """Where each partition begins or ends.

        Raises UnknownTopicOrPartition, BrokerUnreachable, ConfigError, InvalidName.
        """
        if place not in _PLACES:
            raise ConfigError(f"{place!r} is no place in a partition: give 'beginning' or 'end'")
        info = self._topic(topic)
        wanted = dict.fromkeys(self.partitions_of(topic), info.topic_id)
        found = self._find_all(wanted, _PLACES[place], timeout)
        return {each: found[each] for each in wanted}

    def offsets_for_time(
        self, topic: str, moment: datetime, timeout: float = TIMEOUT
    ) -> dict[TopicPartition, int]:
        """The first offset at a time or later in each partition; its end if there is none.

        Raises UnknownTopicOrPartition, BrokerUnreachable, RequestTimeout, ConfigError, InvalidName.
        """
        times = dict.fromkeys(self.partitions_of(topic), moment)
        found = first_offsets(self._config, self._addresses, times, timeout)
        if None in found.values():
            ends = self.offsets(topic, "end", timeout)
            return {each: ends[each] if at is None else at for each, at in found.items()}
        return {each: at for each, at in found.items() if at is not None}

    def delete_records(
        self, before: Mapping[TopicPartition, int | Literal["end"]], timeout: float = TIMEOUT
    ) -> dict[TopicPartition, int]:
        """Give up all records before an offset, for good; returns where each partition begins now.

        Consumers that are further back go on as `auto_offset_reset` says. An offset before the
        beginning changes nothing. The offsets are checked first: UnknownTopicOrPartition,
        OffsetOutOfRange, ConfigError and InvalidName are raised before anything is deleted. What fails
        afterwards is told by RecordsNotDeleted: partitions are independent, and to ask again is harmless.
        """
        # Read before the offsets are: if the topic is created anew meanwhile, the new one is left alone.
        ids = {topic: self._topic(topic).topic_id for topic in sorted({each[0] for each in before})}
        wanted: dict[TopicPartition, Before] = {}
        for partition, offset in self.checked(before, timeout).items():
            wanted[partition] = Before(ids[partition.topic], offset)
        config = self._config
        connections = Connections(config.client_id)
        with Cluster(connections, self._addresses, listener=config.listener) as cluster:
            deletion = Deletion(cluster, wanted)
            deletion.run(timeout)
        if deletion.failed:
            said = "; ".join(f"{each}: {why}" for each, why in sorted(deletion.failed.items()))
            raise RecordsNotDeleted(
                f"not all records were deleted: {said}", deletion.starts, deletion.failed
            )
        return {each: deletion.starts[each] for each in wanted}

    def checked(
        self, before: Mapping[TopicPartition, int | Literal["end"]], timeout: float = TIMEOUT
    ) -> dict[TopicPartition, int]:
        """The offsets that `delete_records` would delete up to, in the order of the partitions.

        Raises UnknownTopicOrPartition, OffsetOutOfRange, ConfigError, InvalidName, BrokerUnreachable.
        """
        given = {TopicPartition(*each): _before(each, offset) for each, offset in before.items()}
        checked: dict[TopicPartition, int] = {}
        for topic in sorted({each.topic for each in given}):
            ends = self.offsets(topic, "end", timeout)
            for partition in sorted(each for each in given if each.topic == topic):
                if partition not in ends:
                    raise UnknownTopicOrPartition(
                        f"topic {topic} has no partition {partition.partition}, "
                        f"only 0 to {len(ends) - 1}"
                    )
                offset = given[partition]
                if offset != "end" and offset > ends[partition]:
                    raise OffsetOutOfRange(
                        f"{partition} ends at {ends[partition]}: nothing before {offset} can be "
                        "deleted yet"
                    )
                checked[partition] = ends[partition] if offset == "end" else offset
        return checked

    # -- inside -----------------------------------------------------------------------------------

    def _session(self) -> Session:
        if self._store is None:
            raise ClosedError("the admin is not open: use it in a with block, or call start()")
        return self._store

    def _run(self, recipe: Recipe[T]) -> T:
        return execute(self._session(), recipe)

    def _topic(self, topic: str) -> TopicInfo:
        check_name("topic", topic)
        info = self._run(topics.read(topic))
        if info is None:
            raise UnknownTopicOrPartition(f"topic {topic} does not exist")
        return info

    def _alive(self) -> list[int]:
        return list(self._run(brokers.live()))

    def _addresses(self) -> list[str]:
        found = self._run(brokers.live()).values()
        name = self._config.listener
        return [each.listeners[name] for each in found if name in each.listeners]


def _before(partition: tuple[str, int], offset: int | str) -> int | Literal["end"]:
    if offset == "end":
        return "end"
    if isinstance(offset, str):
        raise ConfigError(f"{offset!r} is no offset to delete up to: give a whole number, or 'end'")
    return whole_offset(partition, offset)
