"""Asking the leaders of partitions, each for all of its own, until every one has answered."""

import math
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from folkmoot.network.client import Reply
from folkmoot.network.cluster import Cluster
from folkmoot.network.leaderless import said_of
from folkmoot.protocol.errors import (
    FolkmootError,
    RequestTimeout,
    RetriableError,
    StaleTopicId,
    from_wire,
)
from folkmoot.protocol.messages import Api
from folkmoot.protocol.records import TopicPartition

ENTRIES: Final = 1_000
PAUSE: Final = 0.1


class LeaderRequests:
    """Asks until every partition has answered, or time is over. One thread uses it, once.

    For what is harmless to ask again: a lost answer and a leader that has moved are followed by another
    attempt. A topic that was created anew meanwhile is left alone, if the entry names its id.

    `entries` makes what is asked for a partition of its leader epoch, `request` a request of entries
    and of a timeout in seconds.
    """

    def __init__(
        self,
        cluster: Cluster,
        api: Api,
        entries: Mapping[TopicPartition, Callable[[int], Any]],
        request: Callable[[list[Any], float], Any],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.results: dict[TopicPartition, Any] = {}
        """Of each partition that has answered without an error."""
        self.failed: dict[TopicPartition, FolkmootError] = {}
        """Why each of the others has not, or perhaps has not."""
        self._cluster = cluster
        self._api = api
        self._entries = entries
        self._request = request
        self._clock = clock
        self._left = dict.fromkeys(entries)
        self._asked: dict[int, list[TopicPartition]] = {}
        self._ask_at = -math.inf

    def run(self, timeout: float) -> None:
        """Fills `results` and `failed`; between them they have all partitions."""
        deadline = self._clock() + timeout
        while self._left or self._asked:
            now = self._clock()
            if now >= deadline:
                break
            if self._left and now >= self._ask_at:
                self._ask_at = now + PAUSE
                self._ask(deadline - now)
            pause = self._ask_at - now if self._left else deadline - now
            for reply in self._cluster.poll(max(0.0, min(pause, deadline - now))):
                self._take(reply)
        for partition in self._entries.keys() - self.results.keys() - self.failed.keys():
            why = f"no leader of {partition} answered within {timeout:g} s"
            if (awaited := self._cluster.leaderless.get(partition)) is not None:
                why = said_of({partition: awaited})
            self.failed[partition] = self._cluster.trouble or RequestTimeout(why)

    def _ask(self, timeout: float) -> None:
        by_leader: dict[str, list[TopicPartition]] = {}
        for partition in self._left:
            address = self._cluster.leader_address(partition)
            if address is not None:
                by_leader.setdefault(address, []).append(partition)
        for address, partitions in by_leader.items():
            some = partitions[:ENTRIES]
            entries = [self._entries[each](self._cluster.leader_epoch(each)) for each in some]
            request = self._request(entries, timeout)
            try:
                number = self._cluster.send(address, self._api, request, timeout=timeout)
            except RetriableError as error:
                self.failed.update(dict.fromkeys(some, error))
                continue
            self._asked[number] = some
            for partition in some:
                del self._left[partition]

    def _take(self, reply: Reply) -> None:
        partitions = self._asked.pop(reply.correlation_id, None)
        if partitions is None:
            return  # to a question that somebody else has given up
        if reply.error is not None:
            for partition in partitions:
                self._refused(partition, reply.error)
            return
        for partition, result in zip(partitions, reply.response.results, strict=True):
            if result.error:
                self._refused(partition, from_wire(result.error, result.message))
            else:
                self.results[partition] = result
                self.failed.pop(partition, None)

    def _refused(self, partition: TopicPartition, error: FolkmootError) -> None:
        self.failed[partition] = error
        if isinstance(error, RetriableError) and not isinstance(error, StaleTopicId):
            self._left[partition] = None
