"""A broker in a process of its own, to be killed: `python -m tests.brokers.killed_broker DATA`.

It waits for a line before it starts, so that its imports cost nobody time. Its ZooKeeper is in its
memory, so that it is up at once; what it does from time to time it does all the time, so that a kill
meets it.
"""

import os
import sys
import time
from pathlib import Path

import msgspec

from folkmoot.brokers.server.broker import Broker
from folkmoot.brokers.server.config import BrokerConfig
from folkmoot.brokers.storage import flusher, retention
from folkmoot.brokers.storage.compaction import log_cleaner
from folkmoot.coordination import paths
from folkmoot.coordination.layout import restore_cluster_id
from folkmoot.coordination.topic_config import LogConfig
from folkmoot.coordination.topics import TopicInfo
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.coordination.zookeeper.operations import Create, Recipe
from folkmoot.coordination.zookeeper.recipes import ensure
from tests.memory_zookeeper import MemoryZooKeeper

PARTITIONS = 3
PLAIN, COMPACTED = "plain", "compacted"
CONFIG = LogConfig(segment_bytes=4096, index_interval_bytes=256)
TOPICS = {
    PLAIN: TopicInfo("id-plain", [[1]] * PARTITIONS),
    COMPACTED: TopicInfo(
        "id-compacted", [[1]], {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0.01"}
    ),
}


def create(name: str, topic: TopicInfo) -> Recipe[None]:
    """A topic that has the same id in every life."""
    yield from ensure(paths.TOPICS)
    yield from ensure(paths.partition_states(topic.topic_id))
    yield Create(paths.topic(name), msgspec.json.encode(topic))


def main(data: Path) -> None:
    for module, name in (
        (flusher, "CHECKPOINT_INTERVAL"),
        (flusher, "SHORTEST_INTERVAL"),
        (flusher, "_TICK"),
        (log_cleaner, "COMPACTION_INTERVAL"),
        (retention, "RETENTION_INTERVAL"),
    ):
        setattr(module, name, 0.05)
    for name in ("fsync", "fdatasync"):  # a kill takes nothing of what was written
        setattr(os, name, lambda fd: None)
    ensemble = MemoryZooKeeper()
    session = ensemble.connect()
    execute(session, restore_cluster_id("the same in every life"))
    for name, topic in TOPICS.items():
        execute(session, create(name, topic))
    config = BrokerConfig(broker_id=1, data=data, zookeeper="in.memory:1", log=CONFIG)
    sys.stdin.readline()
    with Broker(config, ensemble.connect) as broker:
        print(broker.listeners["client"], flush=True)
        time.sleep(60)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
