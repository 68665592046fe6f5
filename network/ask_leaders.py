"""Requests to the leaders of partitions, repeated until every partition has an answer."""

import math
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from folkmoot.network.client import REQUEST_TIMEOUT, Reply
from folkmoot.network.cluster import Cluster
from folkmoot.network.leaderless import describe_waiting
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

Entries = Mapping[TopicPartition, Callable[[int], Any]]
"""For each partition a function that makes its entry from the known leader epoch."""


class LeaderRequests:
    """One question to every partition's leader, repeated after retriable errors. One thread.

    Only for requests that are harmless to repeat. A broker that owes an answer to the same kind of request
    is not asked meanwhile. Errors of the types `final` are not retried.
    """

    def __init__(
        self,
        cluster: Cluster,
        api: Api,
        entries: Entries,
        request: Callable[[list[Any], float], Any],
        *,
        clock: Callable[[], float] = time.monotonic,
        final: tuple[type[FolkmootError], ...] = (StaleTopicId,),
    ) -> None:
        """`request` makes a request of entries and of a timeout in seconds."""
        self.results: dict[TopicPartition, Any] = {}
        """The results without an error."""
        self.failed: dict[TopicPartition, FolkmootError] = {}
        """The last errors of the other partitions, which may be asked again."""
        self._cluster = cluster
        self._api = api
        self._entries = entries
        self._request = request
        self.clock = clock
        self._final = final
        self._remaining = dict.fromkeys(entries)
        self._in_flight: dict[int, list[TopicPartition]] = {}
        self._ask_at = -math.inf
        self._answers = -1

    @property
    def is_done(self) -> bool:
        return not self._remaining and not self._in_flight

    @property
    def is_stuck(self) -> bool:
        """True if nothing is under way and no partition left has a leader that is free."""
        return not self._in_flight and all(
            partition in self._cluster.leaderless
            or self._is_busy(self._cluster.leader_address(partition))
            for partition in self._remaining
        )

    def ask(self, timeout: float) -> None:
        """Ask the leaders of the partitions left, once metadata is new or PAUSE is over."""
        now = self.clock()
        if not self._remaining or (now < self._ask_at and self._answers == self._cluster.answers):
            return
        self._ask_at, self._answers = now + PAUSE, self._cluster.answers
        by_leader: dict[str, list[TopicPartition]] = {}
        for partition in self._remaining:
            address = self._cluster.leader_address(partition)
            if address is not None:
                by_leader.setdefault(address, []).append(partition)
        for address, partitions in by_leader.items():
            if not self._is_busy(address):
                for first in range(0, len(partitions), ENTRIES):
                    self._send(address, partitions[first : first + ENTRIES], timeout)

    def take(self, reply: Reply) -> bool:
        """Take a reply in. False if it answers another request."""
        partitions = self._in_flight.pop(reply.correlation_id, None)
        if partitions is None:
            return False
        if reply.error is not None:
            for partition in partitions:
                self._refused(partition, reply.error)
            return True
        for partition, result in zip(partitions, reply.response.results, strict=True):
            if result.error:
                self._refused(partition, from_wire(result.error, result.message))
            else:
                self.results[partition] = result
                self.failed.pop(partition, None)
        return True

    def end(self, timeout: float) -> None:
        """Set the errors of the partitions without an answer."""
        for partition in self._entries.keys() - self.results.keys() - self.failed.keys():
            why = f"no leader of {partition} answered within {timeout:g} s"
            if (awaited := self._cluster.leaderless.get(partition)) is not None:
                why = describe_waiting({partition: awaited})
            self.failed[partition] = self._cluster.metadata_error or RequestTimeout(why)

    def _is_busy(self, address: str | None) -> bool:
        return address is not None and self._cluster.has_in_flight(address, self._api)

    def _send(self, address: str, partitions: list[TopicPartition], timeout: float) -> None:
        entries = [
            self._entries[partition](self._cluster.leader_epoch(partition))
            for partition in partitions
        ]
        request = self._request(entries, timeout)
        try:
            number = self._cluster.send(address, self._api, request, timeout=timeout)
        except RetriableError as error:
            self.failed.update(dict.fromkeys(partitions, error))
            return
        self._in_flight[number] = partitions
        for partition in partitions:
            del self._remaining[partition]

    def _refused(self, partition: TopicPartition, error: FolkmootError) -> None:
        self.failed[partition] = error
        if isinstance(error, RetriableError) and not isinstance(error, self._final):
            self._remaining[partition] = None


def ask_leaders(
    cluster: Cluster,
    api: Api,
    entries: Entries,
    request: Callable[[list[Any], float], Any],
    timeout: float,
    *,
    patient: bool = True,
    others: Callable[[Reply], object] = lambda _: None,
    **options: Any,
) -> LeaderRequests:
    """Ask until all partitions have answered, or `timeout` seconds are over; see LeaderRequests.

    Then each partition is in `results` or `failed`. Without `patient` the call waits neither for leaders to
    be elected nor for brokers that owe the answer to an earlier call. `others` gets the replies to other
    requests.
    """
    requests = LeaderRequests(cluster, api, entries, request, **options)
    deadline = requests.clock() + timeout
    while not requests.is_done and (remaining := deadline - requests.clock()) > 0:
        # An impatient caller's request outlives the call: its broker is busy until it answers.
        requests.ask(remaining if patient else REQUEST_TIMEOUT)
        is_stuck = not patient and requests.is_stuck
        for reply in cluster.poll(0.0 if is_stuck else min(PAUSE, remaining)):
            if not requests.take(reply):
                others(reply)
        if is_stuck:
            break
    requests.end(timeout)
    return requests
