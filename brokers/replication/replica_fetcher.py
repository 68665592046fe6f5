"""Fetches the records of leaders for the followers on this broker, over one connection to each leader."""

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

_Key = tuple[str, int]


class _Leader:
    """The fetches from one broker: `sent` are not answered yet, `ready` will be sent."""

    def __init__(self, address: str | None) -> None:
        self.address = address
        self.ready: dict[_Key, ReplicaFetchEntry] = {}
        self.sent: dict[_Key, ReplicaFetchEntry] = {}
        self.in_flight: set[int] = set()
        self.has_session = False
        """The leader keeps the positions in `sent`."""
        self.not_before = -inf

    @property
    def wants(self) -> bool:
        """A request should be sent: with new positions, or for those that the leader keeps."""
        return bool(self.ready) or (bool(self.sent) and not self.in_flight)

    def reset_session(self, until: float) -> None:
        """The leader keeps nothing (any more): everything is asked anew from `until` on."""
        self.ready = {**self.sent, **self.ready}
        self.sent.clear()
        self.has_session, self.not_before = False, until


class ReplicaFetcher:
    """The followers' requests, sent in the event loop's own turns.

    A leader keeps each position until it has answered it. So a request contains only the positions that
    followers have reached since the last one. While one request waits at the leader, the next is sent as soon
    as there is a new position; that ends the first one's wait. So the leader knows within moments what has
    come onto this broker's disk. After a request has failed, everything is asked anew.

    Owner: the event loop, which polls the connections' sockets with its own.
    """

    def __init__(self, broker_id: int, connections: Connections) -> None:
        self._broker_id = broker_id
        self._connections = connections
        self.follows = False
        """Something was sent once; before that a turn has nothing to do."""
        self._nonce = ""
        self._leaders: dict[int, _Leader] = {}
        self._others: dict[int, Callable[[Reply], None]] = {}
        self._brokers: Mapping[int, Registration] = {}

    def update_brokers(self, live: Mapping[int, Registration], nonce: str) -> None:
        """Take over the registered brokers, and this one's nonce; "" while it is not registered."""
        self._brokers = live
        for number, leader in self._leaders.items():
            # A leader that is gone keeps its address, to be asked when it is back.
            address = self._address_of(number) or leader.address
            if address != leader.address:
                leader.in_flight.clear()  # they may never be answered
            if address != leader.address or nonce != self._nonce:
                leader.address = address
                leader.reset_session(leader.not_before)
        self._nonce = nonce

    def _address_of(self, broker: int) -> str | None:
        found = self._brokers.get(broker)
        return None if found is None else found.address_for_replicas()

    def fetch(self, leader: int, entry: ReplicaFetchEntry) -> None:
        """Ask that broker for the records behind this position."""
        self.follows = True
        self.forget(entry.topic, entry.partition)
        if leader not in self._leaders:
            self._leaders[leader] = _Leader(self._address_of(leader))
        self._leaders[leader].ready[entry.topic, entry.partition] = entry

    def ask(self, broker: int, api: Api, request: Any, answered: Callable[[Reply], None]) -> None:
        """Send that broker another request; `answered` is called once, with its reply."""
        self.follows = True
        try:
            if (address := self._address_of(broker)) is None:
                raise BrokerUnreachable(f"broker {broker} is not registered")
            number = self._connections.send(address, api, request, timeout=TIMEOUT)
        except FolkmootError as error:
            answered(Reply(-1, "", api, None, error, []))
        else:
            self._others[number] = answered

    def forget(self, topic: str, partition: int) -> None:
        """Ask for this partition no more."""
        for leader in self._leaders.values():
            leader.ready.pop((topic, partition), None)
            leader.sent.pop((topic, partition), None)

    def next_event(self) -> float:
        """Return when to call `Partitions.replicate` at the latest."""
        pauses = (
            leader.not_before
            for leader in self._leaders.values()
            if self._nonce and leader.wants and not leader.in_flight and leader.address is not None
        )
        return min(self._connections.next_event(), min(pauses, default=inf))

    def receive(
        self, events: Mapping[Any, int], now: Now
    ) -> Iterator[tuple[str, ReplicaFetchResult, memoryview]]:
        """Yield the leaders' answers: the topic's id, the result and its batches."""
        for reply in self._connections.handle_events(events):
            if reply.correlation_id in self._others:
                self._others.pop(reply.correlation_id)(reply)
                continue
            for leader in self._leaders.values():
                if reply.correlation_id in leader.in_flight:
                    yield from self._handle_reply(leader, reply, now)
                    break

    def send(self, now: Now) -> None:
        """Send the requests that are ready."""
        for leader in self._leaders.values():
            if leader.wants and leader.address is not None and self._nonce:
                self._send(leader, leader.address, now)

    def close(self) -> None:
        self._connections.close()

    def _send(self, leader: _Leader, address: str, now: Now) -> None:
        most = _IN_FLIGHT if leader.has_session else 1
        if len(leader.in_flight) >= most or now.monotonic < leader.not_before:
            return
        entries = list(islice(leader.ready.items(), ENTRIES_AT_ONCE))
        request = ReplicaFetchRequest(
            *(self._broker_id, self._nonce, not leader.has_session, MAX_WAIT, MAX_BYTES),
            [entry for _, entry in entries],
        )
        try:
            number = self._connections.send(address, Api.REPLICA_FETCH, request, timeout=TIMEOUT)
        except FolkmootError:
            leader.reset_session(now.monotonic + PAUSE)
            return
        leader.has_session = True
        leader.in_flight.add(number)
        for key, entry in entries:
            leader.sent[key] = entry
            del leader.ready[key]

    def _handle_reply(
        self, leader: _Leader, reply: Reply, now: Now
    ) -> Iterator[tuple[str, ReplicaFetchResult, memoryview]]:
        leader.in_flight.discard(reply.correlation_id)
        if reply.error is not None:
            # UnknownFetch mostly follows a restart: the next request begins with all, and is accepted.
            forgot = isinstance(reply.error, UnknownFetch)
            leader.reset_session(now.monotonic + (0.0 if forgot else PAUSE))
            return
        if not leader.has_session:
            return
        for result, chunk in zip(reply.response.results, reply.payloads, strict=True):
            key = result.topic, result.partition
            # A position that will be sent again counts as well: the leader answers it only once.
            for entries in (leader.sent, leader.ready):
                entry = entries.get(key)
                if entry is not None and (entry.leader_epoch, entry.log_end) == (
                    *(result.leader_epoch, result.log_end),
                ):
                    del entries[key]
                    yield entry.topic_id, result, chunk
                    break
