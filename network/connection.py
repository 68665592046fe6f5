"""One TCP connection from a client to a broker: a DEALER socket, its monitor and its HELLO."""

import struct
from collections.abc import Iterator, Sequence
from typing import Any, Final

import zmq

from folkmoot.protocol import wire
from folkmoot.protocol.errors import BrokerUnreachable, UnsupportedVersion
from folkmoot.protocol.messages import APIS, Api, HelloResponse

HANDSHAKE_TIMEOUT: Final = 5.0
TCP_USER_TIMEOUT: Final = 10.0
"""Seconds after which the connection ends if the peer's machine takes none of the sent bytes."""
KEEPALIVE_IDLE: Final = 10
KEEPALIVE_INTERVAL: Final = 5
SEND_QUEUE: Final = 8
COPY_BELOW: Final = 128 * 1024
"""Smaller payloads are copied: that costs less than to learn when their memory is free again."""

_NEVER_MS = 3_600_000
_BROKEN = {
    zmq.Event.DISCONNECTED: "the connection was closed",
    zmq.Event.CONNECT_RETRIED: "no process listens there, or the name is not known",
    zmq.Event.CLOSED: "no process listens there",
    zmq.Event.HANDSHAKE_FAILED_NO_DETAIL: "the handshake failed: is it a Folkmoot broker?",
    zmq.Event.HANDSHAKE_FAILED_PROTOCOL: "the handshake failed: it does not speak ZeroMQ",
    zmq.Event.HANDSHAKE_FAILED_AUTH: "the handshake failed: it refused us",
}

# As plain integers: two of zmq's flags joined by `|` cost more than the call that they are for.
_NOBLOCK: Final = int(zmq.NOBLOCK)
_MORE: Final = int(zmq.NOBLOCK | zmq.SNDMORE)
_IN: Final = int(zmq.POLLIN)
_OUT: Final = int(zmq.POLLOUT)
_WITH_RESULTS: Final = frozenset(
    (
        *(Api.PRODUCE, Api.FETCH, Api.LIST_OFFSETS, Api.DELETE_RECORDS, Api.REPORT_DAMAGE),
        Api.DESCRIBE_PRODUCERS,
    )
)
_NO_VERSION: Final = 0, -1
_Bytes = bytes | bytearray | memoryview


class Connection:
    """A socket that lives exactly as long as one TCP connection.

    ZeroMQ would reconnect, without a HELLO, and send messages of requests that were reported as failed. So
    it is kept from that: the monitor reports a break, the owner closes this object and, after a pause,
    opens another. Frames beyond MAX_FRAME_BYTES cost the connection.

    ZeroMQ's own heartbeats stay off: libzmq 4.3.5 aborts a process that limits what it receives and
    takes in a PING after its sender has gone. TCP notices a machine that is gone; requests that time out
    show a process that was stopped.

    The owner polls `descriptor` (messages, room in the queue) and `monitor_descriptor` (a break). Each
    becomes readable once per event, and any other call may clear it. So after each call the owner reads all
    `messages` before it waits.

    One thread may call. `is_ready` once the peer has answered the HELLO.
    """

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", address: str) -> None:
        self.address = address
        self.socket: zmq.Socket[bytes] = context.socket(zmq.DEALER)
        self.monitor: zmq.Socket[bytes] = self.socket.get_monitor_socket(sum(_BROKEN))
        self._item = [(self.socket, _IN | _OUT)]
        self.descriptor = self.socket.fileno()
        self.monitor_descriptor = self.monitor.fileno()
        self.has_room = True
        self.is_ready = False
        self.refused: dict[Api, UnsupportedVersion] = {}
        """The apis without a version that both sides speak, and the error."""
        self.older: dict[Api, int] = {}
        """The version of each api whose highest one the peer does not speak."""
        # pyzmq's Python code around these is not needed here, and costs as much as the sending.
        plain: Any = super(zmq.Socket, self.socket)
        self._send, self._recv = plain.send, plain.recv

    def open(self, *, ipv6: bool = False) -> None:
        """Start to connect, to a name's IPv6 address with `ipv6`. Raises BrokerUnreachable if the address is
        malformed."""
        options = {
            zmq.LINGER: 0,
            zmq.MAXMSGSIZE: wire.MAX_FRAME_BYTES,
            zmq.SNDHWM: SEND_QUEUE,
            zmq.RCVHWM: 0,  # bounded by the requests in flight
            zmq.RECONNECT_IVL: _NEVER_MS,
            zmq.HANDSHAKE_IVL: int(HANDSHAKE_TIMEOUT * 1000),
            zmq.TCP_KEEPALIVE: 1,
            zmq.TCP_KEEPALIVE_IDLE: KEEPALIVE_IDLE,
            zmq.TCP_KEEPALIVE_INTVL: KEEPALIVE_INTERVAL,
            zmq.TCP_MAXRT: int(TCP_USER_TIMEOUT * 1000),
            zmq.IPV6: int(ipv6 or self.address.startswith("[")),
        }
        for option, value in options.items():
            self.socket.setsockopt(option, value)
        self.socket.copy_threshold = COPY_BELOW
        try:
            self.socket.connect(f"tcp://{self.address}")
        except zmq.ZMQError as error:
            raise BrokerUnreachable(f"{self.address!r} is not an address: {error}") from None

    def close(self, linger: float = 0.0) -> None:
        """Disconnect; sent messages have `linger` seconds to leave, in the background."""
        self.socket.disable_monitor()
        self.monitor.close(linger=0)
        self.socket.close(linger=int(linger * 1000))

    def try_send(self, envelope: bytes, payloads: Sequence[_Bytes]) -> bool:
        """Give a message to ZeroMQ, payloads without a copy. False if its queue is full."""
        send = self._send
        try:
            if not payloads:
                send(envelope, _NOBLOCK)
                return True
            send(envelope, _MORE)
            for payload in payloads[:-1]:
                send(payload, _MORE, copy=False)
            send(payloads[-1], _NOBLOCK, copy=False)
        except zmq.Again:
            return False  # only the first frame can be refused
        return True

    def messages(self) -> Iterator[list[memoryview]]:
        """The messages that have arrived, as views of their frames; then `has_room` is up to date."""
        receive = self._recv
        # A socket's option EVENTS costs twice as much as this.
        while (ready := zmq.zmq_poll(self._item, 0)) and ready[0][1] & _IN:
            frame = receive(_NOBLOCK, copy=False)
            frames = [frame.buffer]
            while frame.more:
                frame = receive(_NOBLOCK, copy=False)
                frames.append(frame.buffer)
            yield frames
        self.has_room = bool(ready)

    def broken(self) -> str | None:
        """The reason of a break, or None."""
        while zmq.zmq_poll([(self.monitor, _IN)], 0):
            # zmq.utils.monitor would import asyncio, a fifth of a client's imports.
            number, _ = struct.unpack("=HI", self.monitor.recv_multipart()[0])
            event = zmq.Event(number)
            if event in _BROKEN:
                return _BROKEN[event]
        return None

    def welcome(self, hello: HelloResponse) -> None:
        """Take the highest version of each api that both sides speak; then requests may be sent."""
        spoken = {api.api: (api.lowest, api.highest) for api in hello.apis}
        for api, spec in APIS.items():
            lowest, highest = spoken.get(api, _NO_VERSION)
            version = min(spec.highest, highest)
            if version < max(spec.lowest, lowest):
                theirs = f"versions {lowest} to {highest}" if api in spoken else "no version"
                self.refused[api] = UnsupportedVersion(
                    f"broker {self.address} speaks {theirs} of {api.name}, this client {spec.lowest} to "
                    f"{spec.highest}: upgrade the {'client' if lowest > spec.highest else 'broker'}"
                )
            elif version < spec.highest:
                self.older[api] = version
        self.is_ready = True


def mismatch(api: Api, request: Any, response: Any, payloads: Sequence[memoryview]) -> str | None:
    """Why a well-formed response cannot be the answer to this request, or None.

    A fetch with `keep` may be answered for partitions of earlier fetches: its sender checks those.
    """
    if api in _WITH_RESULTS and not (api is Api.FETCH and request.keep):
        returned = [(result.topic, result.partition) for result in response.results]
        requested = [(entry.topic, entry.partition) for entry in request.entries]
        if api is Api.FETCH:  # in any order, without partitions that have no news
            is_match = len(set(returned)) == len(returned) and set(returned) <= set(requested)
        else:
            is_match = returned == requested
        if not is_match:
            return "results for other partitions than the request's"
    expected = len(response.results) if api in (Api.FETCH, Api.REPLICA_FETCH) else 0
    if len(payloads) != expected:
        return f"{len(payloads)} payload frames instead of {expected}"
    return None
