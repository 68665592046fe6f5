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
"""The connection ends when the peer's machine has taken none of the bytes sent for so long."""
KEEPALIVE_IDLE: Final = 10
KEEPALIVE_INTERVAL: Final = 5
SEND_QUEUE: Final = 8
COPY_BELOW: Final = 128 * 1024
"""A payload below this is copied: that costs less than to be told when its memory is free again."""

_NEVER_MS = 3_600_000
_BROKEN = {
    zmq.Event.DISCONNECTED: "the connection was closed",
    zmq.Event.CONNECT_RETRIED: "nobody listens there, or the name is not known",
    zmq.Event.CLOSED: "nobody listens there",
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

    ZeroMQ would reconnect by itself and send what it still holds to whoever listens then, without a
    HELLO and after the request was reported as failed. So it is kept from reconnecting: the monitor
    tells of the break, the owner closes this object and, after a pause, opens another. Frames beyond
    MAX_FRAME_BYTES cost the connection.

    ZeroMQ's own heartbeats stay off: libzmq 4.3.5 aborts a process that limits what it receives and
    takes in a PING after its sender has gone. TCP notices a machine that is gone; requests that time out
    show a process that was stopped.

    The owner waits for `descriptor` (messages, room in the queue) and `monitor_descriptor` (a break)
    with the system's own `poll`. They become readable once for what is new, and any other call may
    take that note: so after each one the owner asks for all `messages`, and only then may wait.

    One thread may call. `is_ready` once the peer has answered the HELLO.
    """

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", address: str) -> None:
        self.address = address
        self.socket: zmq.Socket[bytes] = context.socket(zmq.DEALER)
        self.monitor: zmq.Socket[bytes] = self.socket.get_monitor_socket(sum(_BROKEN))
        self._socket_item, self._monitor_item = [(self.socket, _IN | _OUT)], [(self.monitor, _IN)]
        self.descriptor = self.socket.fileno()
        self.monitor_descriptor = self.monitor.fileno()
        self.has_room = True
        self.is_ready = False
        self.refused: dict[Api, UnsupportedVersion] = {}
        """The apis of which both sides share no version, and why."""
        self.older: dict[Api, int] = {}
        """The version of each api of which the peer does not speak our highest one."""
        # What pyzmq does in Python before it sends or receives is not needed here, and costs as much
        # as the sending.
        plain: Any = super(zmq.Socket, self.socket)
        self._send, self._recv = plain.send, plain.recv

    def open(self, *, ipv6: bool = False) -> None:
        """Start to connect, to a name's IPv6 address if that is asked for. Raises BrokerUnreachable if the
        address is not one."""
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
        """Disconnect; what was handed over has `linger` seconds to leave, in the background."""
        self.socket.disable_monitor()
        self.monitor.close(linger=0)
        self.socket.close(linger=int(linger * 1000))

    def hand_over(self, envelope: bytes, payloads: Sequence[_Bytes]) -> bool:
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
        """The messages that have arrived, each as the views of its frames; then `has_room` is up to date."""
        receive = self._recv
        while (events := _events(self._socket_item)) & _IN:
            frame = receive(_NOBLOCK, copy=False)
            frames = [frame.buffer]
            while frame.more:
                frame = receive(_NOBLOCK, copy=False)
                frames.append(frame.buffer)
            yield frames
        self.has_room = bool(events & _OUT)

    def broken(self) -> str | None:
        """Why the connection is over, or None."""
        while _events(self._monitor_item):
            # zmq.utils.monitor would import asyncio, a fifth of what a client imports.
            number, _ = struct.unpack("=HI", self.monitor.recv_multipart()[0])
            event = zmq.Event(number)
            if event in _BROKEN:
                return _BROKEN[event]
        return None

    def welcome(self, hello: HelloResponse) -> None:
        """Take the highest version of each api that both sides speak: from here on requests may be sent."""
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


def _events(item: "list[tuple[zmq.Socket[bytes], int]]") -> int:
    """What a socket has now; this way it costs half of asking for its option EVENTS."""
    found = zmq.zmq_poll(item, 0)
    return found[0][1] if found else 0


def misfit(api: Api, request: Any, response: Any, payloads: Sequence[memoryview]) -> str | None:
    """Why a well-formed response cannot be the answer to this request, or None.

    Whoever has partitions kept from one fetch to the next looks itself whether it has asked for them.
    """
    if api in _WITH_RESULTS and not (api is Api.FETCH and request.keep):
        told = [(each.topic, each.partition) for each in response.results]
        asked = [(each.topic, each.partition) for each in request.entries]
        if api is not Api.FETCH:
            fits = told == asked
        else:  # in any order, and what there is nothing to tell of is left out
            fits = len(set(told)) == len(told) and set(told) <= set(asked)
        if not fits:
            return "results for other partitions than were asked for"
    expected = len(response.results) if api in (Api.FETCH, Api.REPLICA_FETCH) else 0
    if len(payloads) != expected:
        return f"{len(payloads)} payload frames instead of {expected}"
    return None
