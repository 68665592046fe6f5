"""Having the leaders of partitions give up their oldest records."""

import math
import time
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

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
from folkmoot.protocol.messages import Api, DeleteRecordsEntry, DeleteRecordsRequest
from folkmoot.protocol.records import TopicPartition

ENTRIES: Final = 1_000
PAUSE: Final = 0.1


class Before(NamedTuple):
    """Give up what lies before `offset` (LATEST: everything) in a partition of this very topic."""

    topic_id: str
    offset: int


class Deletion:
    """Asks until every partition has answered, or time is over. One thread uses it, once.

    To ask again is harmless, so a lost answer and a leader that has moved are followed by another
    attempt. A topic that was created anew meanwhile is left alone: its id is not the one given.
    """

    def __init__(
        self,
        cluster: Cluster,
        wanted: Mapping[TopicPartition, Before],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.starts: dict[TopicPartition, int] = {}
        """The first offset that can be read now, of each partition that did as it was told."""
        self.failed: dict[TopicPartition, FolkmootError] = {}
        """Why each of the others has not, or perhaps has not."""
        self._cluster = cluster
        self._wanted = wanted
        self._clock = clock
        self._left = dict(wanted)
        self._asked: dict[int, list[TopicPartition]] = {}
        self._ask_at = -math.inf

    def run(self, timeout: float) -> None:
        """Fills `starts` and `failed`; between them they have all partitions."""
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
        for partition in self._wanted.keys() - self.starts.keys() - self.failed.keys():
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
            entries = [
                DeleteRecordsEntry(
                    *(partition.topic, self._wanted[partition].topic_id, partition.partition),
                    *(self._cluster.leader_epoch(partition), self._wanted[partition].offset),
                )
                for partition in some
            ]
            request = DeleteRecordsRequest(entries)
            try:
                number = self._cluster.send(address, Api.DELETE_RECORDS, request, timeout=timeout)
            except RetriableError as error:
                self.failed.update(dict.fromkeys(some, error))
                continue
            self._asked[number] = some
            for partition in some:
                del self._left[partition]

    def _take(self, reply: Reply) -> None:
        partitions = self._asked.pop(reply.correlation_id, ())
        if reply.error is not None:
            for partition in partitions:
                self._refused(partition, reply.error)
            return
        for partition, result in zip(partitions, reply.response.results, strict=True):
            if result.error:
                self._refused(partition, from_wire(result.error, result.message))
            else:
                self.starts[partition] = result.log_start
                self.failed.pop(partition, None)

    def _refused(self, partition: TopicPartition, error: FolkmootError) -> None:
        self.failed[partition] = error
        if isinstance(error, RetriableError) and not isinstance(error, StaleTopicId):
            self._left[partition] = self._wanted[partition]
