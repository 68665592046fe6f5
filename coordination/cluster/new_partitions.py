"""Waiting until the partitions of a new topic, or those added to one, have had a leader."""

import time
from collections.abc import Iterator
from functools import partial
from queue import Empty, SimpleQueue
from typing import Final

from folkmoot.coordination import partition_states
from folkmoot.coordination.cluster import controllers
from folkmoot.coordination.partition_states import TopicIdPartition
from folkmoot.coordination.topics import TopicInfo
from folkmoot.coordination.zookeeper.execute import execute, execute_all
from folkmoot.coordination.zookeeper.recipes import Malformed
from folkmoot.coordination.zookeeper.session import Session
from folkmoot.protocol.errors import ZooKeeperUnreachable

WITHOUT_CONTROLLER: Final = 0.25
"""Seconds to wait for a controller: the next one is elected at once when one ends."""
WITHOUT_PROGRESS: Final = 5.0
"""Seconds in which no new partition got a state or a leader: then its broker does not answer."""


def wait_until_led(session: Session, topic: TopicInfo, timeout: float) -> bool:
    """Return once each partition of the topic has begun a leader epoch → whether that is so.

    False after `timeout` seconds, or WITHOUT_PROGRESS, earlier where there is no controller, or where
    ZooKeeper does not answer: the topic exists all the same, and clients wait for its leaders. A partition
    that was led before is not waited for. The watches that are left do nothing.
    """
    deadline = time.monotonic() + timeout
    new = {TopicIdPartition(topic.topic_id, number) for number in range(len(topic.partitions))}
    fired: SimpleQueue[TopicIdPartition] = SimpleQueue()
    stale = sorted(new)
    try:
        while True:
            reads = [partition_states.read(each, partial(fired.put, each)) for each in stale]
            left = max(0.0, deadline - time.monotonic())
            states = execute_all(session, reads, timeout=left)
            for each, found in zip(stale, states, strict=True):
                if found is not None and found.state.leader_epoch > 0:
                    new.discard(each)
            if not new:
                return True
            idle = min(deadline, time.monotonic() + WITHOUT_PROGRESS)
            while not (stale := sorted(new.intersection(_watches_fired(fired, idle)))):
                left = idle - time.monotonic()
                if left <= 0 or execute(session, controllers.current(), left) is None:
                    return False
    except (ZooKeeperUnreachable, Malformed):
        return False


def _watches_fired(
    fired: "SimpleQueue[TopicIdPartition]", deadline: float
) -> Iterator[TopicIdPartition]:
    """The partitions whose watches have fired. Waits a moment for the first."""
    left = max(0.0, deadline - time.monotonic())
    try:
        yield fired.get(timeout=min(WITHOUT_CONTROLLER, left))
        while True:
            yield fired.get_nowait()
    except Empty:
        return
