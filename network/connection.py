"""One TCP connection from a client to a broker: a DEALER socket, its monitor and its HELLO."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import zmq
from zmq.utils.monitor import recv_monitor_message

from folkmoot.protocol import wire
from folkmoot.protocol.errors import BrokerUnreachable, UnsupportedVersion
from folkmoot.protocol.messages import APIS, Api, HelloResponse

HEARTBEAT_INTERVAL: Final = 1.0
HEARTBEAT_TIMEOUT: Final = 5.0
HANDSHAKE_TIMEOUT: Final = 5.0
SEND_QUEUE: Final = 8

_NEVER_MS = 3_600_000
_BROKEN = {
    zmq.Event.DISCONNECTED: "the connection was closed, or its heartbeat stopped",
    zmq.Event.CONNECT_RETRIED: "nobody listens there, or the name is not known",
    zmq.Event.CLOSED: "nobody listens there",
    zmq.Event.HANDSHAKE_FAILED_NO_DETAIL: "the handshake failed: is it a Folkmoot broker?",
    zmq.Event.HANDSHAKE_FAILED_PROTOCOL: "the handshake failed: it does not speak ZeroMQ",
    zmq.Event.HANDSHAKE_FAILED_AUTH: "the handshake failed: it refused us",
}

# As plain integers: two of zmq's flags joined by `|` cost more than the call that they are for.
_NOBLOCK: Final = int(zmq.NOBLOCK)
_MORE: Final = int(zmq.NOBLOCK | zmq.SNDMORE)
_EVENTS: Final = int(zmq.EVENTS)
_READABLE: Final = (int(zmq.POLLIN), int(zmq.POLLIN | zmq.POLLOUT))
_WITH_RESULTS: Final = (
    *(Api.PRODUCE, Api.FETCH, Api.LIST_OFFSETS, Api.DELETE_RECORDS, Api.REPORT_DAMAGE),
)
_OTHERS: Final = "results for other partitions than were asked for"
_Bytes = bytes | bytearray | memoryview


class Connection:
    """A socket that lives exactly as long as one TCP connection.

    ZeroMQ would reconnect by itself and send what it still holds to whoever listens then, without a
    HELLO and after the request was reported as failed. So it is kept from reconnecting: the monitor
    tells of the break, the owner closes this object and, after a pause, opens another. Heartbeats
    are answered by the peer's ZeroMQ thread, so they notice a process that was stopped or a machine
    that is gone, and not one that is merely busy. Frames beyond MAX_FRAME_BYTES cost the connection.

    One thread may call. `versions` is None until the peer has answered the HELLO.
    """

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", address: str) -> None:
        self.address = address
        self.socket: zmq.Socket[bytes] = context.socket(zmq.DEALER)
        self.monitor: zmq.Socket[bytes] = self.socket.get_monitor_socket(sum(_BROKEN))
        self.versions: dict[int, tuple[int, int]] | None = None
        self.max_batch_bytes: int | None = None

    def open(self) -> None:
        """Start to connect. Raises BrokerUnreachable if the address is not one."""
        options = {
            zmq.LINGER: 0,
            zmq.MAXMSGSIZE: wire.MAX_FRAME_BYTES,
            zmq.SNDHWM: SEND_QUEUE,
            zmq.RCVHWM: 0,  # bounded by the requests in flight
            zmq.RECONNECT_IVL: _NEVER_MS,
            zmq.HANDSHAKE_IVL: int(HANDSHAKE_TIMEOUT * 1000),
            zmq.HEARTBEAT_IVL: int(HEARTBEAT_INTERVAL * 1000),
            zmq.HEARTBEAT_TIMEOUT: int(HEARTBEAT_TIMEOUT * 1000),
            zmq.IPV6: int(self.address.startswith("[")),
        }
        for option, value in options.items():
            self.socket.setsockopt(option, value)
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
        send = self.socket.send
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
        """The messages that have arrived, each as the views of its frames."""
        receive = self.socket.recv
        while self.socket.getsockopt(_EVENTS) in _READABLE:
            frame = receive(_NOBLOCK, copy=False)
            frames = [frame.buffer]
            while frame.more:
                frame = receive(_NOBLOCK, copy=False)
                frames.append(frame.buffer)
            yield frames

    def broken(self) -> str | None:
        """Why the connection is over, or None."""
        while self.monitor.poll(0):
            event = zmq.Event(recv_monitor_message(self.monitor)["event"])
            if event in _BROKEN:
                return _BROKEN[event]
        return None

    def welcome(self, hello: HelloResponse) -> None:
        """Take the peer's versions: from here on requests may be sent."""
        self.versions = {api.api: (api.lowest, api.highest) for api in hello.apis}
        self.max_batch_bytes = hello.max_batch_bytes

    def refusal(self, api: Api) -> UnsupportedVersion | None:
        """Why a request of this api makes no sense to the peer, or None."""
        version = APIS[api].highest
        lowest, highest = (self.versions or {}).get(api, (1, 0))
        if lowest <= version <= highest:
            return None
        return UnsupportedVersion(
            f"broker {self.address} does not speak version {version} of {api.name}: "
            "use a client and brokers of neighbouring releases"
        )


def misfit(api: Api, request: Any, response: Any, payloads: Sequence[memoryview]) -> str | None:
    """Why a well-formed response cannot be the answer to this request, or None.

    Whoever has partitions kept from one fetch to the next looks itself whether it has asked for them.
    """
    if api in _WITH_RESULTS and not (api is Api.FETCH and request.keep):
        told = [(each.topic, each.partition) for each in response.results]
        asked = [(each.topic, each.partition) for each in request.entries]
        if api is Api.FETCH:  # in any order, and what there is nothing to tell of is left out
            if len(set(told)) < len(told) or not set(told) <= set(asked):
                return _OTHERS
        elif told != asked:
            return _OTHERS
    expected = len(response.results) if api is Api.FETCH else 0
    if len(payloads) != expected:
        return f"{len(payloads)} payload frames instead of {expected}"
    return None
