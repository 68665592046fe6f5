"""What is done to topics, records and groups as a whole, for applications and the command line."""

from collections.abc import Mapping
from datetime import datetime
from typing import Final, Literal

from folkmoot.consumers.admin.group_admin import GroupAdmin
from folkmoot.consumers.admin.offset_reset import whole_offset
from folkmoot.consumers.admin.session import TIMEOUT
from folkmoot.consumers.offsets.offset_lookup import first_offsets
from folkmoot.consumers.offsets.validation import whole
from folkmoot.coordination import brokers, topics
from folkmoot.network.client import Connections
from folkmoot.network.cluster import Cluster
from folkmoot.network.deletion import Before, Deletion
from folkmoot.protocol.errors import ConfigError, OffsetOutOfRange, RecordsNotDeleted
from folkmoot.protocol.messages import EARLIEST, LATEST
from folkmoot.protocol.names import check_name
from folkmoot.protocol.records import TopicPartition

_ENDS: Final = {"earliest": EARLIEST, "latest": LATEST}


class Admin(GroupAdmin):
    """Topics: created, grown, deleted, their oldest records given up. Groups: looked at, reset, deleted.

    ```
    with Admin(zookeeper="localhost:2181") as admin:
        admin.create_topic("orders", partitions=3)
        admin.delete_records({TopicPartition("orders", 0): 1_000})
        plan = admin.plan_reset("billing", to="earliest", topics=["orders"])
        admin.reset_offsets("billing", {each.partition: each.new for each in plan})
    ```

    Every call asks anew and waits for its answer, for `timeout` seconds at most: where ZooKeeper does
    not answer by then it raises ZooKeeperUnreachable, and the next call connects anew. What a call was
    to change may have been changed all the same. Nothing is kept between two calls but the ZooKeeper
    session. One thread uses it.
    """

    # -- topics -----------------------------------------------------------------------------------

    def topics(self) -> list[str]:
        """The names of all topics, sorted."""
        return self._execute(topics.names())

    def create_topic(self, topic: str, partitions: int = 1) -> None:
        """Raises TopicExists, BrokerUnreachable, ConfigError, InvalidName."""
        count = whole("number of partitions", partitions)
        self._execute(topics.create(topic, count, self._alive()))

    def add_partitions(self, topic: str, partitions: int) -> None:
        """Have the topic have so many. Records of a key may go to another partition from then on.

        What was written stays where it is, so a key's records may then be in two partitions, with no
        order between them. Raises UnknownTopicOrPartition, BrokerUnreachable, ConfigError, InvalidName.
        """
        check_name("topic", topic)
        count = whole("number of partitions", partitions)
        self._execute(topics.add_partitions(topic, count, self._alive()))

    def delete_topic(self, topic: str) -> None:
        """Raises UnknownTopicOrPartition, InvalidName."""
        check_name("topic", topic)
        self._execute(topics.delete(topic))

    # -- records ----------------------------------------------------------------------------------

    def offsets(
        self, topic: str, place: Literal["earliest", "latest"], timeout: float = TIMEOUT
    ) -> dict[TopicPartition, int]:
        """The first offset of each partition, or the one behind its last.

        Raises UnknownTopicOrPartition, BrokerUnreachable, ConfigError, InvalidName.
        """
        if place not in _ENDS:
            raise ConfigError(f"{place!r} is no end of a log: give 'earliest' or 'latest'")
        return self._find(self._topic_ids(self.partitions_of(topic)), _ENDS[place], timeout)

    def offsets_for_times(
        self, topic: str, moment: datetime, timeout: float = TIMEOUT
    ) -> dict[TopicPartition, int]:
        """The first offset at a time or later in each partition; the latest one if there is none.

        Raises UnknownTopicOrPartition, BrokerUnreachable, RequestTimeout, ConfigError, InvalidName.
        """
        times = dict.fromkeys(self.partitions_of(topic), moment)
        found = first_offsets(self._config, self._discover(timeout), times, timeout)
        latest = self.offsets(topic, "latest", timeout) if None in found.values() else {}
        return {each: latest[each] if at is None else at for each, at in found.items()}

    def delete_records(
        self, before: Mapping[TopicPartition, int | Literal["latest"]], timeout: float = TIMEOUT
    ) -> dict[TopicPartition, int]:
        """Give up all records before an offset, for good; returns where each partition begins now.

        Consumers that are further back go on as `auto_offset_reset` says. An offset before the
        earliest changes nothing. The offsets are checked first: UnknownTopicOrPartition,
        OffsetOutOfRange, ConfigError and InvalidName are raised before anything is deleted. What fails
        afterwards is told by RecordsNotDeleted: partitions are independent, and to ask again is harmless.
        """
        # Read before the offsets are: if the topic is created anew meanwhile, the new one is left alone.
        ids = self._topic_ids(TopicPartition(*each) for each in before)
        checked = self.checked(before, timeout)
        wanted = {each: Before(ids[each], offset) for each, offset in checked.items()}
        config = self._config
        with Cluster(
            Connections(config.client_id), self._discover(timeout), listener=config.listener
        ) as cluster:
            deletion = Deletion(cluster, wanted)
            deletion.run(timeout)
        if deletion.failed:
            said = "; ".join(f"{each}: {why}" for each, why in sorted(deletion.failed.items()))
            raise RecordsNotDeleted(
                f"not all records were deleted: {said}", deletion.starts, deletion.failed
            )
        return {each: deletion.starts[each] for each in wanted}

    def checked(
        self, before: Mapping[TopicPartition, int | Literal["latest"]], timeout: float = TIMEOUT
    ) -> dict[TopicPartition, int]:
        """The offsets that `delete_records` would delete up to, in the order of the partitions.

        Raises UnknownTopicOrPartition, OffsetOutOfRange, ConfigError, InvalidName, BrokerUnreachable.
        """
        given = {TopicPartition(*each): _before(each, offset) for each, offset in before.items()}
        latest = self._find(self._topic_ids(given), LATEST, timeout)
        for partition, offset in given.items():
            if offset != "latest" and offset > latest[partition]:
                raise OffsetOutOfRange(
                    f"{partition} ends at {latest[partition]}: nothing before {offset} can be "
                    "deleted yet"
                )
        offsets = {each: given[each] for each in latest}
        return {each: latest[each] if at == "latest" else at for each, at in offsets.items()}

    def _alive(self) -> list[int]:
        return list(self._execute(brokers.live()))


def _before(partition: tuple[str, int], offset: int | str) -> int | Literal["latest"]:
    if offset == "latest":
        return "latest"
    if isinstance(offset, str):
        raise ConfigError(
            f"{offset!r} is no offset to delete up to: give a whole number, or 'latest'"
        )
    return whole_offset(partition, offset)
