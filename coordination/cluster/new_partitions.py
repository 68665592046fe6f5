"""Waiting until new partitions of a topic have had a leader."""

import time
from typing import Final

from folkmoot.coordination import partition_states
from folkmoot.coordination.cluster import controllers
from folkmoot.coordination.partition_states import TopicIdPartition
from folkmoot.coordination.topics import TopicInfo
from folkmoot.coordination.wakeup import Wakeup
from folkmoot.coordination.zookeeper.execute import AT_ONCE, execute, execute_all
from folkmoot.coordination.zookeeper.recipes import Malformed
from folkmoot.coordination.zookeeper.session import Session
from folkmoot.protocol.errors import ZooKeeperUnreachable

WITHOUT_CONTROLLER: Final = 0.25
"""Seconds between looks for a controller: the next one is elected at once when one ends."""
WITHOUT_PROGRESS: Final = 5.0
"""Seconds without a new state or leader after which its broker counts as dead."""


def wait_until_led(session: Session, topic: TopicInfo, timeout: float) -> bool:
    """Wait until each partition of the topic has begun a leader epoch, and return whether that is so.

    Returns False after `timeout` seconds, or WITHOUT_PROGRESS, or if there is no controller, or if ZooKeeper
    does not answer: the topic exists nevertheless, and clients wait for its leaders.
    """
    deadline = time.monotonic() + timeout
    new = [TopicIdPartition(topic.topic_id, number) for number in range(len(topic.partitions))]
    wakeup = Wakeup()
    try:
        while new:
            batch = new[:AT_ONCE]
            reads = [partition_states.read(each, wakeup.wake) for each in batch]
            left = max(0.0, deadline - time.monotonic())
            states = zip(batch, execute_all(session, reads, timeout=left), strict=True)
            led = {each for each, found in states if found and found.state.leader_epoch > 0}
            new = [each for each in new if each not in led]
            idle = min(deadline, time.monotonic() + WITHOUT_PROGRESS)
            while not led and not wakeup.wait(min(WITHOUT_CONTROLLER, idle - time.monotonic())):
                left = idle - time.monotonic()
                if left <= 0 or execute(session, controllers.current(), left) is None:
                    return False
        return True
    except (ZooKeeperUnreachable, Malformed):
        return False
    finally:
        wakeup.close()
