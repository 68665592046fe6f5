"""Questions to the cluster that the demo asks as an onlooker, in a ZooKeeper session of its own."""

from collections.abc import Sequence
from typing import Final, Self

from folkmoot.consumers.config import ConsumerConfig
from folkmoot.consumers.offsets.offset_lookup import offsets_at
from folkmoot.coordination import brokers, topics
from folkmoot.coordination.cluster.new_partitions import wait_until_led
from folkmoot.coordination.connector import connect
from folkmoot.coordination.groups import inspection as groups
from folkmoot.coordination.groups.inspection import GroupState
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.coordination.zookeeper.session import Session
from folkmoot.protocol.messages import LATEST
from folkmoot.protocol.records import TopicPartition

SESSION_TIMEOUT: Final = 10.0
ENDS_WAIT: Final = 10.0


class Onlooker:
    """Creates topics, looks at groups, asks for the ends of partitions. One thread uses it."""

    def __init__(self, zookeeper: str) -> None:
        self._zookeeper = zookeeper
        self._store: Session | None = None
        self._topic_ids: dict[str, str] = {}

    def create_topic(self, name: str, partitions: int) -> None:
        store = self._session()
        alive = list(execute(store, brokers.live()))
        info = execute(store, topics.create(name, partitions, alive))
        wait_until_led(store, info, ENDS_WAIT)
        self._topic_ids[name] = info.topic_id

    def group(self, name: str) -> GroupState | None:
        return next(iter(groups.describe(self._session(), [name])), None)

    def committed(self, group: str, topic: str) -> dict[TopicPartition, int]:
        """The next offset of every partition for which one was committed."""
        state = self.group(group)
        return {
            each.partition: each.offset.offset
            for each in (state.partitions if state is not None else ())
            if each.partition.topic == topic
            and each.offset is not None
            and each.offset.offset is not None
        }

    def ends(self, topic: str, partitions: int) -> dict[TopicPartition, int]:
        """The end of every partition, as its leader knows it. Raises BrokerUnreachable."""
        wanted = {
            TopicPartition(topic, number): self._topic_ids[topic] for number in range(partitions)
        }
        config = ConsumerConfig[bytes, bytes](zookeeper=self._zookeeper, client_id="demo")
        return offsets_at(LATEST, config, self._addresses, wanted, ENDS_WAIT)[0]

    def __enter__(self) -> Self:
        self._store = connect(self._zookeeper, SESSION_TIMEOUT)
        return self

    def __exit__(self, *_: object) -> None:
        if self._store is not None:
            self._store.close()

    def _session(self) -> Session:
        assert self._store is not None, "used outside of its with block"
        return self._store

    def _addresses(self) -> Sequence[str]:
        live = execute(self._session(), brokers.live())
        return [each.listeners["client"] for each in live.values() if "client" in each.listeners]
