"""A broker that ZooKeeper does not answer asks the others whether it was replaced as a leader."""

from collections.abc import Callable
from itertools import cycle, islice
from typing import Final

from folkmoot.brokers.jobs.jobs import Now
from folkmoot.brokers.replication.partitions import Partitions
from folkmoot.network.client import Reply
from folkmoot.protocol.errors import ResponseTooLarge
from folkmoot.protocol.messages import Api, MetadataRequest

LOOK_AFTER: Final = 0.5
TOPICS_AT_ONCE: Final = 200


class SessionLoss:
    """While ZooKeeper does not answer this broker, asks the others in turns for the leaders of some topics.

    A leader that was replaced is not notified: its followers leave it, its producers time out, and its
    consumers miss the new records. If no leader was replaced, as while ZooKeeper is down, all continues.
    The answers are compared by leader epoch, so any broker may be asked.

    Owner: the event loop.
    """

    def __init__(self, partitions: Partitions, is_cut_off: Callable[[], bool]) -> None:
        self._partitions = partitions
        self._is_cut_off = is_cut_off
        self._request_count = 0
        self._at_once = TOPICS_AT_ONCE

    def task(self, _now: Now) -> float:
        partitions = self._partitions
        if not self._is_cut_off():
            partitions.shared.is_replaced = False
            return LOOK_AFTER
        others = sorted(partitions.live.keys() - {partitions.broker_id})
        topics = partitions.topics()
        if others and topics:
            first = self._request_count // len(others) * self._at_once % len(topics)
            some = islice(cycle(topics), first, first + min(self._at_once, len(topics)))
            broker = others[self._request_count % len(others)]
            self._request_count += 1
            request = MetadataRequest([*some])
            partitions.fetcher.ask(broker, Api.METADATA, request, self._handle_metadata)
        return LOOK_AFTER

    def _handle_metadata(self, reply: Reply) -> None:
        if isinstance(reply.error, ResponseTooLarge):
            self._at_once = max(1, self._at_once // 2)
        if reply.error is not None or not self._is_cut_off():
            return
        for topic in reply.response.topics:
            for known in topic.partitions:
                partition = self._partitions.find(topic.topic_id, known.partition)
                if partition is not None:
                    partition.observe_metadata(known)
