"""Requests to brokers and their replies, for the one thread that owns them."""

import itertools
import random
import select
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, inf
from typing import Any, Final, NamedTuple, Protocol, Self

import zmq

from folkmoot.network.connection import Connection, mismatch
from folkmoot.protocol import wire
from folkmoot.protocol.errors import (
    BatchTooLarge,
    BrokerUnreachable,
    ClosedError,
    FolkmootError,
    InvalidRequest,
    Overloaded,
    RequestTimeout,
)
from folkmoot.protocol.messages import Api, HelloRequest

CONNECT_TIMEOUT: Final = 5.0
REQUEST_TIMEOUT: Final = 30.0
MAX_IN_FLIGHT: Final = 64
FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 1.0
SILENT_FOR: Final = 10.0
"""Seconds without a message after which the first request that times out ends its connection."""

_Bytes = bytes | bytearray | memoryview
_SOFTWARE = "folkmoot-python"
_NO_EVENTS: Final[Mapping[int, int]] = {}


class SupportsFileno(Protocol):
    """Something whose descriptor becomes readable when the owner is to wake up."""

    def fileno(self) -> int: ...


class ClientConfig(Protocol):
    """The options of every client that concern its connections."""

    @property
    def client_id(self) -> str: ...


class Reply(NamedTuple):
    """The end of a request: a response with its payload frames, or an error.

    Both are None when a request without a reply was handed to the connection. `sent` is False if the
    broker cannot have got the request.
    """

    correlation_id: int
    address: str
    api: Api
    response: Any
    error: FolkmootError | None
    payloads: list[memoryview]
    sent: bool = True


@dataclass(slots=True, eq=False)
class _Request:
    """A request without its reply. `frames` is None once ZeroMQ has them."""

    correlation_id: int
    api: Api
    body: Any
    frames: tuple[bytes, Sequence[_Bytes]] | None
    started: float
    deadline: float
    expects_reply: bool


@dataclass(slots=True, eq=False)
class _Peer:
    """One address: its connection, if there is one, and its requests."""

    address: str
    connection: Connection | None = None
    connect_by: float = inf
    hello_id: int = -1
    failures: int = 0
    retry_at: float = -inf
    requests: dict[int, _Request] = field(default_factory=dict)
    unsent: deque[_Request] = field(default_factory=deque)
    """In the order of `send`; those that have ended have no frames."""
    deadline: float = inf
    """No request times out before."""
    received_at: float = -inf
    is_ipv6: bool = False
    """A name may have addresses of one family only: both are tried by turns until one answers."""

    def due(self) -> float:
        """The earliest time at which `_advance` has something to do."""
        if self.connection is None:
            return min(self.deadline, self.retry_at) if self.requests else inf
        return self.deadline if self.connection.is_ready else min(self.deadline, self.connect_by)


class _Watched:
    """The descriptors that a poller watches: two of each connection, and one that wakes the owner."""

    def __init__(self, poller: "select.poll") -> None:
        self.poller = poller
        self.peers: dict[int, _Peer] = {}
        self.wake: SupportsFileno | None = None
        self.wake_descriptor = -1

    def add(self, peer: _Peer, connection: Connection) -> None:
        for descriptor in connection.descriptor, connection.monitor_descriptor:
            self.poller.register(descriptor, select.POLLIN)
            self.peers[descriptor] = peer

    def remove(self, connection: Connection) -> None:
        """Before it is closed: its numbers may soon belong to other files."""
        for descriptor in connection.descriptor, connection.monitor_descriptor:
            self.poller.unregister(descriptor)
            del self.peers[descriptor]

    def set_wake(self, wake: SupportsFileno | None) -> None:
        if self.wake is not None:
            self.poller.unregister(self.wake_descriptor)
        self.wake, self.wake_descriptor = wake, -1 if wake is None else wake.fileno()
        if wake is not None:
            self.poller.register(self.wake_descriptor, select.POLLIN)


class Connections:
    """The connections of one client to any number of brokers.

    `send` never waits: a request leaves at once, or when both sides of a new connection have agreed on
    versions. `poll` gives out exactly one reply for each request: the answer; the broker's typed error;
    `RequestTimeout`; `BrokerUnreachable` as soon as the connection breaks or cannot be made;
    `InvalidRequest` for an answer that breaks the protocol. Unreadable envelopes end the connection.

    Requests are never repeated here. After a break, pauses before the next attempt to connect grow to
    LONGEST_PAUSE, and new requests wait for it. A peer whose process stands still keeps its connection
    until a request times out: see SILENT_FOR.

    At most MAX_IN_FLIGHT requests per address are under way; envelopes and frames are bounded as in
    `wire`. Large payloads are not copied, and must not change before the reply.

    `poll` goes through the peers only when something may be due, and reads only sockets that have news or
    were used.

    One thread owns it, `close` included.
    """

    def __init__(self, client_id: str, *, poller: "select.poll | None" = None) -> None:
        """With a `poller` of its own the owner calls `handle_events` instead of `poll`."""
        self._client_id = client_id
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._closed = False
        self._watched = _Watched(select.poll() if poller is None else poller)
        self._peers: dict[str, _Peer] = {}
        # Sockets that were used since they were read: the poller may miss their news.
        self._unread: set[_Peer] = set()
        self._due = inf
        self._ids = itertools.count(1)
        self._replies: list[Reply] = []
        self.owed = 0
        """The number of requests without their replies."""

    @classmethod
    def of(cls, config: ClientConfig, poller: Any = None) -> Self:
        """The connections of a client with this configuration."""
        return cls(config.client_id, poller=poller)

    def send(
        self,
        address: str,
        api: Api,
        request: Any,
        payloads: Sequence[_Bytes] = (),
        *,
        timeout: float = REQUEST_TIMEOUT,
        expect_reply: bool = True,
    ) -> int:
        """Start a request and return its correlation id.

        Raises BatchTooLarge, InvalidRequest, Overloaded, ClosedError; then nothing was started.
        """
        if self._closed:
            raise ClosedError("the connections are closed")
        peer = self._peers.get(address)
        if peer is None:
            peer = self._peers[address] = _Peer(address)
        if len(peer.requests) >= MAX_IN_FLIGHT:
            raise Overloaded(f"{MAX_IN_FLIGHT} requests to broker {address} wait for an answer")
        number = next(self._ids)
        envelope = wire.encode_request(api, number, self._client_id, request)
        for payload in payloads:
            if len(payload) > wire.MAX_FRAME_BYTES:
                raise BatchTooLarge(
                    f"a batch of {len(payload)} bytes exceeds the limit of {wire.MAX_FRAME_BYTES} bytes "
                    "per frame"
                )
        now = time.monotonic()
        deadline = now + timeout
        started = _Request(number, api, request, (envelope, payloads), now, deadline, expect_reply)
        peer.requests[number] = started
        self.owed += 1
        peer.unsent.append(started)
        if deadline < peer.deadline:
            peer.deadline = deadline
        connection = peer.connection
        if connection is not None and connection.is_ready:
            self._due = min(self._due, peer.deadline)
            self._send_waiting(peer, connection)
        else:
            self._advance(peer, now)
            self._due = min(self._due, peer.due())
        return number

    def poll(self, timeout: float, wake: SupportsFileno | None = None) -> list[Reply]:
        """The replies that have come; waits for the first one, for `wake` or for `timeout` seconds.

        The owner clears `wake`.
        """
        if self._closed:
            raise ClosedError("the connections are closed")
        if wake is not self._watched.wake:
            self._watched.set_wake(wake)
        now = time.monotonic()
        end = now + timeout
        self._catch_up(now)
        while True:
            until = 0.0 if self._replies else max(0.0, min(end, self._due) - now)
            events = dict(self._watched.poller.poll(ceil(until * 1000)))
            now = time.monotonic()
            self._catch_up(now, events)
            if self._replies or self._watched.wake_descriptor in events or now >= end:
                replies, self._replies = self._replies, []
                return replies

    def handle_events(self, events: Mapping[int, int]) -> list[Reply]:
        """The replies that have come, after the owner's poller has found these events; never waits."""
        self._catch_up(time.monotonic(), events)
        replies, self._replies = self._replies, []
        return replies

    def next_event(self) -> float:
        """The latest time for `handle_events`, in `time.monotonic`'s time; call this right before waiting."""
        self._catch_up(time.monotonic())
        return -inf if self._replies else self._due

    def late(self, since: float) -> dict[str, list[Any]]:
        """Brokers that owe an answer to a request from before then: address → all requests under way there.

        A fetch is owed no answer before its `max_wait`.
        """
        return {
            peer.address: [request.body for request in peer.requests.values()]
            for peer in self._peers.values()
            if any(
                request.started + getattr(request.body, "max_wait", 0.0) < since
                for request in peer.requests.values()
            )
        }

    def has_in_flight(self, address: str, api: Api) -> bool:
        """True if a request of this kind is under way there."""
        peer = self._peers.get(address)
        return peer is not None and any(request.api is api for request in peer.requests.values())

    def drop(self, address: str, reason: str) -> None:
        """End the connection to a broker, and all requests under way there."""
        self._break(self._peers[address], reason)

    def close(self, *, linger: float = 0.0) -> None:
        """Drop all connections and replies. Sent messages have `linger` seconds to leave."""
        self._closed = True
        for peer in self._peers.values():
            if peer.connection is not None:
                self._watched.remove(peer.connection)
                peer.connection.close(linger)
        self._peers.clear()
        self._unread.clear()
        self._replies.clear()
        if self._context is not None:
            self._context.term()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    # -- waiting ------------------------------------------------------------------------------------

    def _catch_up(self, now: float, events: Mapping[int, int] = _NO_EVENTS) -> None:
        """Read the connections that have news, do all that is due, and read those whose news the poller
        may miss."""
        for descriptor in events:
            peer = self._watched.peers.get(descriptor)
            if peer is not None and peer.connection is not None:
                self._receive(peer, monitor=descriptor == peer.connection.monitor_descriptor)
        if now >= self._due:
            for peer in list(self._peers.values()):
                self._advance(peer, now)
            self._due = min((peer.due() for peer in self._peers.values()), default=inf)
        while self._unread:
            for peer in list(self._unread):
                self._receive(peer)

    # -- a peer's life ------------------------------------------------------------------------------

    def _advance(self, peer: _Peer, now: float) -> None:
        """Time out, connect or break, whichever is due."""
        if peer.deadline <= now:
            self._time_out(peer, now)
        if peer.connection is not None:
            if not peer.connection.is_ready and peer.connect_by <= now:
                self._break(peer, f"it did not answer within {CONNECT_TIMEOUT:g} s")
        elif peer.requests and peer.retry_at <= now:
            self._connect(peer, now)

    def _time_out(self, peer: _Peer, now: float) -> None:
        """End requests whose time is over, and a connection that was silent meanwhile."""
        self._receive(peer)  # the owner may have stood still: answers that have come count
        late = [request for request in peer.requests.values() if request.deadline <= now]
        for request in late:
            error = RequestTimeout(f"broker {peer.address} did not answer in time")
            self._finish(peer, request, error)
        deadlines = (request.deadline for request in peer.requests.values())
        peer.deadline = min(deadlines, default=inf)
        since, is_open = now - SILENT_FOR, peer.connection is not None and peer.connection.is_ready
        if (
            is_open
            and peer.received_at <= since
            and any(request.started <= since for request in late)
        ):
            self._break(peer, f"it has been silent for {SILENT_FOR:g} s")

    def _connect(self, peer: _Peer, now: float) -> None:
        try:
            if self._context is None:
                self._context = zmq.Context()
            peer.connection = connection = Connection(self._context, peer.address)
        except zmq.ZMQError as error:
            self._break(peer, str(error))  # as for too many open files
            return
        self._watched.add(peer, connection)
        peer.connect_by = now + CONNECT_TIMEOUT
        peer.hello_id = next(self._ids)
        try:
            connection.open(ipv6=peer.is_ipv6)
        except BrokerUnreachable as error:
            self._break(peer, str(error))
            return
        self._unread.add(peer)
        hello = HelloRequest(_SOFTWARE)
        envelope = wire.encode_request(Api.HELLO, peer.hello_id, self._client_id, hello)
        connection.try_send(envelope, ())

    def _break(self, peer: _Peer, reason: str, error: FolkmootError | None = None) -> None:
        """End the connection, and all requests under way there."""
        connection, peer.connection = peer.connection, None
        if connection is not None:
            peer.is_ipv6 ^= not connection.is_ready
            self._watched.remove(connection)
            connection.close()
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(peer.failures, 10))
        peer.retry_at = time.monotonic() + pause * random.uniform(0.8, 1.2)
        peer.failures += 1
        error = error or BrokerUnreachable(f"broker {peer.address} is not reachable: {reason}")
        for request in list(peer.requests.values()):
            self._finish(peer, request, error)
        peer.unsent.clear()
        peer.deadline = inf

    def _send_waiting(self, peer: _Peer, connection: Connection) -> None:
        """Hand over unsent requests in order, as far as ZeroMQ's queue takes them."""
        self._unread.add(peer)
        unsent = peer.unsent
        while unsent:
            request = unsent[0]
            if request.frames is not None:
                is_older = request.api in connection.older or request.api in connection.refused
                error = self._adapt(connection, request) if is_older else None
                if error is not None:
                    self._finish(peer, request, error)
                elif connection.try_send(*request.frames):
                    request.frames = None
                    if not request.expects_reply:
                        self._finish(peer, request, None)
                else:
                    return
            unsent.popleft()

    def _adapt(self, connection: Connection, request: _Request) -> FolkmootError | None:
        """Encode a request anew for a peer of an older version. Return why it cannot be sent, or None."""
        version = connection.older.get(request.api)
        if version is None or request.frames is None:
            return connection.refused.get(request.api)
        number, body = request.correlation_id, request.body
        try:
            envelope = wire.encode_request(request.api, number, self._client_id, body, version)
        except FolkmootError as error:
            return type(error)(f"broker {connection.address}: {error}")
        request.frames = envelope, request.frames[1]
        return None

    def _receive(self, peer: _Peer, *, monitor: bool = False) -> None:
        """Read a connection; `monitor`: its monitor may report a break."""
        connection = peer.connection
        if connection is None:
            self._unread.discard(peer)
            return
        self._unread.add(peer)  # until all is read, in spite of interruptions
        # The monitor is asked before the socket is read: messages that came before a break count.
        reason = connection.broken() if monitor or not connection.is_ready else None
        for frames in connection.messages():
            if not self._handle_message(peer, connection, frames):
                return
        self._unread.discard(peer)
        if reason is not None:
            self._break(peer, reason)
        elif peer.unsent and connection.is_ready and connection.has_room:
            self._send_waiting(peer, connection)

    def _handle_message(
        self, peer: _Peer, connection: Connection, frames: list[memoryview]
    ) -> bool:
        """Match one message to its request. False if that ended the connection."""
        try:
            envelope = wire.decode_response(frames[0])
        except InvalidRequest as error:
            self._break(peer, f"it does not speak Folkmoot's protocol ({error})")
            return False
        peer.received_at = time.monotonic()
        request = peer.requests.get(envelope.correlation_id)
        if request is None:
            return envelope.correlation_id != peer.hello_id or self._greet(
                peer, connection, envelope
            )
        if request.frames is not None:
            return True  # it was not sent: this answers another request
        peer.failures = 0
        payloads = frames[1:]
        try:
            version = connection.older.get(request.api)
            response = wire.response_body(request.api, envelope, version)
            wrong = mismatch(request.api, request.body, response, payloads)
            if wrong is not None:
                raise InvalidRequest(f"broker {peer.address} sent {wrong}")
        except FolkmootError as error:
            self._finish(peer, request, error)
        else:
            self._finish(peer, request, None, response, payloads)
        return True

    def _greet(self, peer: _Peer, connection: Connection, envelope: wire.ResponseEnvelope) -> bool:
        """Take the answer to the HELLO. False if that ended the connection."""
        try:
            connection.welcome(wire.response_body(Api.HELLO, envelope))
        except FolkmootError as error:
            self._break(peer, "", error)
            return False
        self._send_waiting(peer, connection)
        return True

    def _finish(
        self,
        peer: _Peer,
        request: _Request,
        error: FolkmootError | None,
        response: Any = None,
        payloads: list[memoryview] | None = None,
    ) -> None:
        number, sent = request.correlation_id, request.frames is None
        del peer.requests[number]
        self.owed -= 1
        request.frames = None
        self._replies.append(
            Reply(number, peer.address, request.api, response, error, payloads or [], sent)
        )
