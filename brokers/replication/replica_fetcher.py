"""What brings the records of leaders to the followers on this broker, over one connection to each leader."""

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from math import inf
from typing import Any, Final

from folkmoot.brokers.jobs.jobs import Now
from folkmoot.coordination.brokers import Registration
from folkmoot.network.client import Connections, Reply
from folkmoot.protocol.errors import BrokerUnreachable, FolkmootError, UnknownFetch
from folkmoot.protocol.messages import (
    Api,
    ReplicaFetchEntry,
    ReplicaFetchRequest,
    ReplicaFetchResult,
)

MAX_WAIT: Final = 0.5
MAX_BYTES: Final = 4 * 1024 * 1024
ENTRIES_AT_ONCE: Final = 500
"""A leader carries a request out in one step."""
TIMEOUT: Final = 5.0
PAUSE: Final = 0.1
_IN_FLIGHT: Final = 2

Partition = tuple[str, int]


class _Leader:
    """What is asked of one broker: `asked` was sent to it and is not answered, `ready` is to be sent."""

    def __init__(self) -> None:
        self.address: str | None = None
        self.ready: dict[Partition, ReplicaFetchEntry] = {}
        self.asked: dict[Partition, ReplicaFetchEntry] = {}
        self.in_flight: set[int] = set()
        self.begun = False
        self.not_before = -inf

    @property
    def wants(self) -> bool:
        """Whether there is something to send: to name, or for the leader to answer what it has kept."""
        return bool(self.ready) or (bool(self.asked) and not self.in_flight)

    def lost(self, until: float) -> None:
        """It knows nothing (any more) of what it was asked: all is asked anew, a little later."""
        self.ready = {**self.asked, **self.ready}
        self.asked.clear()
        self.begun, self.not_before = False, until


class ReplicaFetcher:
    """The followers' requests, in the event loop's own turns.

    A leader keeps what it was asked until it has told of it, so a request names only what has moved: the
    positions that followers have come to since the last one. While one request waits at the leader, the
    next is sent as soon as there is something to name, which ends the first one's wait: what has come
    onto this broker's disk is known to the leader a moment later. When a request fails, all is asked
    anew.

    Owner: the event loop, which polls the connections' sockets with its own.
    """

    def __init__(self, broker_id: int, connections: Connections) -> None:
        self._broker_id = broker_id
        self._connections = connections
        self.follows = False
        """Whether there was anything to fetch yet; before there is nothing to do in a turn."""
        self._nonce = ""
        self._leaders: dict[int, _Leader] = {}
        self._others: dict[int, Callable[[Reply], None]] = {}
        self._brokers: Mapping[int, Registration] = {}

    def brokers_are(self, live: Mapping[int, Registration], nonce: str) -> None:
        """These brokers are registered, this one with that nonce; with none as long as it is ""."""
        self._brokers = live
        for number, leader in self._leaders.items():
            found = live.get(number)
            address = leader.address if found is None else found.address_for_replicas()
            if address != leader.address:
                leader.in_flight.clear()  # nobody may be there to answer, nor to say so
            if address != leader.address or nonce != self._nonce:
                leader.address = address
                leader.lost(leader.not_before)
        self._nonce = nonce

    def fetch(self, leader: int, entry: ReplicaFetchEntry) -> None:
        """Ask that broker for what follows this position."""
        self.follows = True
        self.forget(entry.topic, entry.partition)
        asked = self._leaders.get(leader)
        if asked is None:
            asked = self._leaders[leader] = _Leader()
            found = self._brokers.get(leader)
            asked.address = None if found is None else found.address_for_replicas()
        asked.ready[entry.topic, entry.partition] = entry

    def ask(self, broker: int, api: Api, request: Any, answered: Callable[[Reply], None]) -> None:
        """Send that broker a request beside the fetches; `answered` is called once, with its reply."""
        self.follows = True
        found = self._brokers.get(broker)
        address = None if found is None else found.address_for_replicas()
        try:
            if address is None:
                raise BrokerUnreachable(f"broker {broker} is not registered")
            number = self._connections.send(address, api, request, timeout=TIMEOUT)
        except FolkmootError as error:
            answered(Reply(-1, "", api, None, error, []))
        else:
            self._others[number] = answered

    def forget(self, topic: str, partition: int) -> None:
        """Whatever was asked of it is not asked any more."""
        for each in self._leaders.values():
            each.ready.pop((topic, partition), None)
            each.asked.pop((topic, partition), None)

    def next_event(self) -> float:
        """When to call `turn` at the latest."""
        pauses = (
            leader.not_before
            for leader in self._leaders.values()
            if self._nonce and leader.wants and not leader.in_flight and leader.address is not None
        )
        return min(self._connections.next_event(), min(pauses, default=inf))

    def receive(
        self, events: Mapping[Any, int], now: Now
    ) -> Iterator[tuple[str, ReplicaFetchResult, memoryview]]:
        """What leaders have answered of partitions: the topic's id, the result and its batches."""
        for reply in self._connections.turn(events):
            yield from self._take(reply, now)

    def send(self, now: Now) -> None:
        """Send what is ready."""
        for leader in self._leaders.values():
            if leader.wants and leader.address is not None and self._nonce:
                self._send(leader, leader.address, now)

    def close(self) -> None:
        self._connections.close()

    def _send(self, leader: _Leader, address: str, now: Now) -> None:
        may_begin = leader.begun or not leader.in_flight
        if (
            len(leader.in_flight) >= _IN_FLIGHT
            or not may_begin
            or now.monotonic < leader.not_before
        ):
            return
        entries = list(islice(leader.ready.items(), ENTRIES_AT_ONCE))
        request = ReplicaFetchRequest(
            *(self._broker_id, self._nonce, not leader.begun, MAX_WAIT, MAX_BYTES),
            [entry for _, entry in entries],
        )
        try:
            number = self._connections.send(address, Api.REPLICA_FETCH, request, timeout=TIMEOUT)
        except FolkmootError:
            leader.lost(now.monotonic + PAUSE)
            return
        leader.begun = True
        leader.in_flight.add(number)
        for key, entry in entries:
            leader.asked[key] = entry
            del leader.ready[key]

    def _take(self, reply: Reply, now: Now) -> Iterator[tuple[str, ReplicaFetchResult, memoryview]]:
        if reply.correlation_id in self._others:
            self._others.pop(reply.correlation_id)(reply)
            return
        leader = next(
            (each for each in self._leaders.values() if reply.correlation_id in each.in_flight),
            None,
        )
        if leader is None:
            return
        leader.in_flight.discard(reply.correlation_id)
        if reply.error is not None:
            # It was started anew, mostly: the next request begins with all, and cannot be refused so.
            forgot = isinstance(reply.error, UnknownFetch)
            leader.lost(now.monotonic + (0.0 if forgot else PAUSE))
            return
        for result, chunk in zip(reply.response.results, reply.payloads, strict=True):
            key = result.topic, result.partition
            # The position may be about to be named again; the leader does not repeat what it has answered.
            for entries in (leader.asked, leader.ready) if leader.begun else ():
                entry = entries.get(key)
                if entry is not None and (entry.leader_epoch, entry.log_end) == (
                    *(result.leader_epoch, result.log_end),
                ):
                    del entries[key]
                    yield entry.topic_id, result, chunk
                    break
