"""What a broker that ZooKeeper does not answer hears from the others: whether it was replaced."""

import logging
from collections.abc import Callable
from itertools import cycle, islice
from typing import Final

from folkmoot.brokers.jobs.jobs import Now
from folkmoot.brokers.replication.partitions import Partitions
from folkmoot.network.client import Reply
from folkmoot.protocol.errors import ResponseTooLarge
from folkmoot.protocol.messages import Api, MetadataRequest

logger = logging.getLogger(__name__)

LOOK_AFTER: Final = 0.5
TOPICS_AT_ONCE: Final = 200


class SessionLoss:
    """While ZooKeeper does not answer this broker, asks the others in turns who leads, some topics at a time.

    Its followers have left it without a word where it was replaced, so what it takes would wait until
    it times out, and who reads there would wait for records that come elsewhere. Where nobody was replaced,
    as while ZooKeeper is down, all goes on. Only leader epochs are compared: any broker may be asked.

    Owner: the event loop.
    """

    def __init__(self, partitions: Partitions, is_cut_off: Callable[[], bool]) -> None:
        self._partitions = partitions
        self._is_cut_off = is_cut_off
        self._turn = 0
        self._at_once = TOPICS_AT_ONCE

    def task(self, _now: Now) -> float:
        partitions = self._partitions
        if not self._is_cut_off():
            partitions.shared.is_replaced = False
            return LOOK_AFTER
        others = sorted(partitions.live.keys() - {partitions.broker_id})
        topics = partitions.topics()
        if others and topics:
            first = self._turn // len(others) * self._at_once % len(topics)
            some = islice(cycle(topics), first, first + min(self._at_once, len(topics)))
            broker = others[self._turn % len(others)]
            self._turn += 1
            request = MetadataRequest([*some])
            partitions.fetcher.ask(broker, Api.METADATA, request, self._answered)
        return LOOK_AFTER

    def _answered(self, reply: Reply) -> None:
        if isinstance(reply.error, ResponseTooLarge):
            self._at_once = max(1, self._at_once // 2)
        if reply.error is not None or not self._is_cut_off():
            return
        for topic in reply.response.topics:
            for each in topic.partitions:
                self._partitions.heard(topic.topic_id, each)
