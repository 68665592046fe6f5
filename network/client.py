"""Requests to brokers and their replies, for whichever one thread owns them."""

import itertools
import math
import random
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple, Protocol, Self

import zmq

from folkmoot.network.connection import Connection, misfit
from folkmoot.network.memory import keep_freed_memory
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
FORGET_AFTER: Final = 60.0

# As plain integers, which cost a tenth of zmq's flags.
_IN: Final = int(zmq.POLLIN)
_OUT: Final = int(zmq.POLLOUT)

_Bytes = bytes | bytearray | memoryview
_SOFTWARE = "folkmoot-python"


class SupportsFileno(Protocol):
    """Something whose descriptor becomes readable when the owner is to wake up."""

    def fileno(self) -> int: ...


class Reply(NamedTuple):
    """How a request ended: with `response` and payload frames, or with `error`.

    Both are None when a request that expects no reply was handed to the connection. `sent` is False
    if it never was, so that the broker cannot have got it.
    """

    correlation_id: int
    address: str
    api: Api
    response: Any
    error: FolkmootError | None
    payloads: list[memoryview]
    sent: bool = True


class _Request:
    """A request whose reply has not come. `frames` is let go once ZeroMQ has them."""

    __slots__ = ("api", "body", "correlation_id", "deadline", "expects_reply", "frames")

    def __init__(
        self, correlation_id: int, api: Api, body: Any, deadline: float, expects_reply: bool
    ) -> None:
        self.correlation_id = correlation_id
        self.api = api
        self.body = body
        self.deadline = deadline
        self.expects_reply = expects_reply
        self.frames: tuple[bytes, Sequence[_Bytes]] | None = None


class _Peer:
    """What is known of one address: its connection, if there is one, and what waits for it."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.connection: Connection | None = None
        self.connect_by = math.inf
        self.is_full = False
        self.hello_id = -1
        self.failures = 0
        self.retry_at = -math.inf
        self.requests: dict[int, _Request] = {}

    def unsent(self) -> list[_Request]:
        return [request for request in self.requests.values() if request.frames is not None]


class Connections:
    """The connections of one client to any number of brokers.

    `send` never waits: a request leaves at once, or as soon as the connection stands and both sides
    have agreed on versions. Every request has exactly one reply, given out by `poll`: the answer, the
    typed error that the broker answered, `RequestTimeout` after its timeout, `BrokerUnreachable` as
    soon as the connection breaks or cannot be made, `InvalidRequest` for an answer that breaks the
    protocol. A peer whose envelopes cannot be read loses its connection.

    After a break nothing is sent again by itself: whether a request may be repeated is known to
    whoever made it. New requests to that address wait for the next attempt to connect, whose pauses
    grow to LONGEST_PAUSE, so that a caller without a pause of its own does no harm.

    Bounds: MAX_IN_FLIGHT requests per address (then `send` raises Overloaded), frames and envelopes
    of the sizes of `wire` (refused before they cost the connection). Payloads are neither joined nor
    copied; they may not change until the reply is there.

    One thread owns it, `close` included.
    """

    def __init__(
        self,
        client_id: str,
        *,
        connect_timeout: float = CONNECT_TIMEOUT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        keep_freed_memory()
        self._client_id = client_id
        self._connect_timeout = connect_timeout
        self._clock = clock
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._closed = False
        self._poller = zmq.Poller()
        self._wake: SupportsFileno | None = None
        self._peers: dict[str, _Peer] = {}
        self._ids = itertools.count(1)
        self._replies: list[Reply] = []

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
        correlation_id = next(self._ids)
        envelope = wire.encode_request(api, correlation_id, self._client_id, request)
        _check_sizes(envelope, payloads)
        now = self._clock()
        started = _Request(correlation_id, api, request, now + timeout, expect_reply)
        started.frames = (envelope, payloads)
        peer.requests[correlation_id] = started
        self._advance(peer, now)
        return correlation_id

    def poll(self, timeout: float, wake: SupportsFileno | None = None) -> list[Reply]:
        """The replies that are there; waits for the first one, for `wake` or for `timeout` seconds.

        `wake` is only looked at: silencing it is the owner's business.
        """
        if self._closed:
            raise ClosedError("the connections are closed")
        self._watch(wake)
        end = self._clock() + timeout
        while True:
            now = self._clock()
            for peer in list(self._peers.values()):
                self._advance(peer, now)
            until = 0.0 if self._replies else min(end, self._next_event()) - now
            events = dict(self._poller.poll(math.ceil(max(0.0, until) * 1000)))
            for peer in list(self._peers.values()):
                self._receive(peer, events)
            woken = wake is not None and wake.fileno() in events
            if self._replies or woken or self._clock() >= end:
                replies, self._replies = self._replies, []
                return replies

    def in_flight(self, address: str) -> int:
        """How many requests to that address wait for a reply."""
        peer = self._peers.get(address)
        return 0 if peer is None else len(peer.requests)

    def max_batch_bytes(self, address: str) -> int | None:
        """The largest batch that broker takes, once it has said so."""
        peer = self._peers.get(address)
        return None if peer is None or peer.connection is None else peer.connection.max_batch_bytes

    def close(self, *, linger: float = 0.0) -> None:
        """Drop all connections and replies. What was handed over has `linger` seconds to leave."""
        self._closed = True
        for peer in self._peers.values():
            if peer.connection is not None:
                peer.connection.close(linger)
        self._peers.clear()
        self._replies.clear()
        if self._context is not None:
            self._context.term()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    # -- a peer's life ------------------------------------------------------------------------------

    def _advance(self, peer: _Peer, now: float) -> None:
        """Whatever time or a new request makes due: time out, connect, send."""
        for request in [late for late in peer.requests.values() if late.deadline <= now]:
            self._finish(
                peer, request, RequestTimeout(f"broker {peer.address} did not answer in time")
            )
        if peer.connection is None:
            if now < peer.retry_at:
                return
            if peer.requests:
                self._connect(peer, now)
            elif now > peer.retry_at + FORGET_AFTER:
                del self._peers[peer.address]
        elif peer.connection.versions is not None:
            self._send_waiting(peer, peer.connection)
        elif peer.connect_by <= now:
            self._break(peer, f"it did not answer within {self._connect_timeout:g} s")

    def _connect(self, peer: _Peer, now: float) -> None:
        try:
            if self._context is None:
                self._context = zmq.Context()
            peer.connection = connection = Connection(self._context, peer.address)
        except zmq.ZMQError as error:
            self._break(peer, str(error))  # too many open files, it may be
            return
        self._poller.register(connection.socket, zmq.POLLIN)
        self._poller.register(connection.monitor, zmq.POLLIN)
        peer.connect_by = now + self._connect_timeout
        peer.is_full = False
        peer.hello_id = next(self._ids)
        try:
            connection.open()
        except BrokerUnreachable as error:
            self._break(peer, str(error))
            return
        hello = HelloRequest(_SOFTWARE)
        envelope = wire.encode_request(Api.HELLO, peer.hello_id, self._client_id, hello)
        connection.hand_over(envelope, ())

    def _break(self, peer: _Peer, reason: str, error: FolkmootError | None = None) -> None:
        """End the connection: everything in flight there fails now, with the reason."""
        connection, peer.connection = peer.connection, None
        if connection is not None:
            self._poller.unregister(connection.socket)
            self._poller.unregister(connection.monitor)
            connection.close()
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(peer.failures, 10))
        peer.retry_at = self._clock() + pause * random.uniform(0.8, 1.2)
        peer.failures += 1
        error = error or BrokerUnreachable(f"broker {peer.address} is not reachable: {reason}")
        for request in list(peer.requests.values()):
            self._finish(peer, request, error)

    def _send_waiting(self, peer: _Peer, connection: Connection) -> None:
        """Hand over what waits, in order, as far as ZeroMQ's queue takes it."""
        full = False
        for request in peer.unsent():
            refusal = connection.refusal(request.api)
            if refusal is not None:
                self._finish(peer, request, refusal)
                continue
            assert request.frames is not None
            full = not connection.hand_over(*request.frames)
            if full:
                break
            request.frames = None
            if not request.expects_reply:
                self._finish(peer, request, None)
        if full is not peer.is_full:
            peer.is_full = full
            self._poller.modify(connection.socket, zmq.POLLIN | (zmq.POLLOUT if full else 0))

    def _receive(self, peer: _Peer, events: dict[Any, int]) -> None:
        connection = peer.connection
        if connection is None:
            return
        # The monitor is asked first and the socket read after it: what arrived before the break counts.
        reason = connection.broken() if connection.monitor in events else None
        found = events.get(connection.socket, 0)
        if reason is not None or found & _IN:
            for frames in connection.messages():
                if not self._take(peer, connection, frames):
                    return
        if reason is not None:
            self._break(peer, reason)
        elif found & _OUT:
            self._send_waiting(peer, connection)

    def _take(self, peer: _Peer, connection: Connection, frames: list[memoryview]) -> bool:
        """Match one message to its request. False if that ended the connection."""
        try:
            envelope = wire.decode_response(frames[0])
        except InvalidRequest as error:
            self._break(peer, f"it does not speak Folkmoot's protocol ({error})")
            return False
        if envelope.correlation_id == peer.hello_id:
            try:
                connection.welcome(wire.response_body(Api.HELLO, envelope))
            except FolkmootError as error:
                self._break(peer, "", error)
                return False
            self._send_waiting(peer, connection)
            return True
        request = peer.requests.get(envelope.correlation_id)
        if request is None or request.frames is not None:
            return True  # the late answer to a request that has timed out, or to none
        peer.failures = 0
        payloads = frames[1:]
        try:
            response = wire.response_body(request.api, envelope)
            wrong = misfit(request.api, request.body, response, payloads)
            if wrong is not None:
                raise InvalidRequest(f"broker {peer.address} sent {wrong}")
        except FolkmootError as error:
            self._finish(peer, request, error)
        else:
            self._finish(peer, request, None, response, payloads)
        return True

    def _finish(
        self,
        peer: _Peer,
        request: _Request,
        error: FolkmootError | None,
        response: Any = None,
        payloads: list[memoryview] | None = None,
    ) -> None:
        del peer.requests[request.correlation_id]
        reply = (request.correlation_id, peer.address, request.api, response, error, payloads or [])
        self._replies.append(Reply(*reply, sent=request.frames is None))

    # -- waiting ------------------------------------------------------------------------------------

    def _watch(self, wake: SupportsFileno | None) -> None:
        if wake is not self._wake:
            if self._wake is not None:
                self._poller.unregister(self._wake)
            if wake is not None:
                self._poller.register(wake, zmq.POLLIN)
            self._wake = wake

    def _next_event(self) -> float:
        """When the next thing falls due without any message."""
        return min(itertools.chain.from_iterable(map(_due, self._peers.values())), default=math.inf)


def _due(peer: _Peer) -> Iterable[float]:
    yield from (request.deadline for request in peer.requests.values())
    if peer.connection is None:
        if peer.requests:
            yield peer.retry_at
    elif peer.connection.versions is None:
        yield peer.connect_by


def _check_sizes(envelope: bytes, payloads: Sequence[_Bytes]) -> None:
    if len(envelope) > wire.MAX_ENVELOPE_BYTES:
        raise InvalidRequest(
            f"a request of {len(envelope)} bytes exceeds {wire.MAX_ENVELOPE_BYTES}: name fewer partitions"
        )
    if len(payloads) >= wire.MAX_FRAMES:
        raise InvalidRequest(
            f"{len(payloads)} batches in one request, at most {wire.MAX_FRAMES - 1}"
        )
    for payload in payloads:
        size = memoryview(payload).nbytes
        if size > wire.MAX_FRAME_BYTES:
            raise BatchTooLarge(
                f"a batch of {size} bytes exceeds the limit of {wire.MAX_FRAME_BYTES} bytes per frame"
            )
