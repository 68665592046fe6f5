"""The server's end of the wire: one ROUTER socket, any number of addresses, whole messages in and out."""

import errno
import select
from collections import deque
from collections.abc import Sequence
from math import ceil
from typing import Any, Final, NamedTuple
from weakref import ReferenceType, ref

import zmq

from folkmoot.network.accepted import AcceptedConnections, ConnectionLimits
from folkmoot.network.memory import keep_freed_memory
from folkmoot.protocol.errors import AddressTaken
from folkmoot.protocol.wire import MAX_FRAME_BYTES, MAX_FRAMES

Payload = bytes | bytearray | memoryview

RECEIVE_QUEUE: Final = 100
"""Messages of one peer that wait to be received; more stay on its side."""
SEND_QUEUE: Final = 256
"""Answers that wait for one peer to read; more are dropped."""
PEER_UNSENT_BYTES: Final = 128 * 1024 * 1024
"""The most bytes under way to one peer; a message to a peer without any is always taken."""
UNSENT_BYTES: Final = 1024 * 1024 * 1024
"""The most bytes under way to all peers, likewise."""
KEEPALIVE_INTERVAL: Final = 10
"""Seconds of silence after which TCP probes the peer's machine, and between probes."""
USER_TIMEOUT: Final = 30.0
"""Seconds after which a connection ends whose peer's machine takes no bytes."""
HANDSHAKE_TIMEOUT: Final = 5.0
LARGE_BYTES: Final = 128 * 1024
"""Smaller frames are copied: that costs less than to learn when their memory is free again."""
FRAME_OVERHEAD: Final = 64
"""ZeroMQ's own bytes for a frame."""
_PEERS_COUNTED: Final = 10_000

# As plain integers: two of zmq's flags joined by `|` cost more than the call that they are for.
_NOBLOCK: Final = int(zmq.NOBLOCK)
_MORE: Final = int(zmq.NOBLOCK | zmq.SNDMORE)

_NOT_BINDABLE: Final = {
    errno.EADDRINUSE: "is in use: stop the program that listens there, or choose another port",
    errno.EADDRNOTAVAIL: "is not an address of this machine",
    errno.ENODEV: "is not an address of this machine",
    errno.EACCES: "may not be listened on by this user: choose a port above 1023",
}


class Message(NamedTuple):
    """A peer's message: its routing id, for the answer, and its frames (at least one), in ZeroMQ's memory."""

    peer: bytes
    frames: list[memoryview]


class ServerSocket:
    """A ROUTER socket that never waits for a peer.

    Frames arrive as views of ZeroMQ's own memory. Large ones are sent without a copy, and kept alive until
    their last byte is out.

    An answer to a peer that is gone or does not read is dropped: its client asks again. `send` refuses
    answers that exceed the bytes allowed under way, so that such peers cannot fill the memory.

    A frame beyond MAX_FRAME_BYTES costs its sender the connection. Frames beyond MAX_FRAMES of a message are
    thrown away; the others fail as a request. ZeroMQ collects all frames of a message before it hands over
    the first: `look` ends connections whose messages do not end. A routing id that another peer has is
    refused.

    Any one thread at a time may call; `bind` and `watch` before the loop, then the loop's thread only.
    """

    def __init__(self, limits: ConnectionLimits | None = None) -> None:
        keep_freed_memory()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = socket = self._context.socket(zmq.ROUTER)
        # pyzmq's Python code around these is not needed here, and costs as much as the sending.
        plain: Any = super(zmq.Socket, socket)
        self._send, self._recv = plain.send, plain.recv
        self._item = [(socket, int(zmq.POLLIN))]
        self._descriptor = socket.fileno()
        self.poller = select.poll()
        """`wait` waits with it; others may register descriptors of their own."""
        self._unsent = _Unsent()
        self._open = True
        socket.set(zmq.LINGER, 0)
        socket.set(zmq.ROUTER_MANDATORY, 0)
        socket.set(zmq.ROUTER_HANDOVER, 0)
        socket.set(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
        socket.set(zmq.RCVHWM, RECEIVE_QUEUE)
        socket.set(zmq.SNDHWM, SEND_QUEUE)
        socket.set(zmq.HANDSHAKE_IVL, round(HANDSHAKE_TIMEOUT * 1000))
        # No heartbeats of ZeroMQ's: with a limit on what is received, libzmq 4.3.5 aborts the process.
        socket.set(zmq.TCP_KEEPALIVE, 1)
        socket.set(zmq.TCP_KEEPALIVE_IDLE, KEEPALIVE_INTERVAL)
        socket.set(zmq.TCP_KEEPALIVE_INTVL, KEEPALIVE_INTERVAL)
        socket.set(zmq.TCP_MAXRT, round(USER_TIMEOUT * 1000))
        self.accepted = AcceptedConnections(self._context, socket, limits or ConnectionLimits())
        self._active_peers: dict[bytes, zmq.Frame] = {}
        self._round_number, self._limit, self._all_received = 0, 1, False
        self.watch(self._descriptor)
        self.watch(self.accepted.descriptor)

    def bind(self, host: str, port: int) -> int:
        """Listen on one more address and return the port; port 0 is a free one. Raises AddressTaken.

        IPv6 hosts are written in brackets.
        """
        self._socket.set(zmq.IPV6, int(host.startswith("[")))
        try:
            self._socket.bind(f"tcp://{host}:{port}")
        except zmq.ZMQError as error:
            why = _NOT_BINDABLE.get(error.errno or 0, f"cannot be listened on: {error.strerror}")
            raise AddressTaken(f"address {host}:{port} {why}") from None
        endpoint = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        return int(endpoint.rstrip("\0").rpartition(":")[2])

    def watch(self, descriptor: int) -> None:
        """Let `wait` end when a descriptor becomes readable too."""
        self.poller.register(descriptor, select.POLLIN)

    def wait(self, timeout: float | None) -> dict[int, int]:
        """Wait for a message or another event of the poller, at most `timeout` seconds; rarely, for less.

        Returns the other events: descriptor → events.
        """
        if zmq.zmq_poll(self._item, 0):
            timeout = 0.0  # its descriptor is readable for new messages, not for waiting ones
        # Rounded up, so that a loop with a deadline does not spin through its last millisecond.
        ready = dict(self.poller.poll(None if timeout is None else ceil(timeout * 1000)))
        ready.pop(self._descriptor, None)
        if ready.pop(self.accepted.descriptor, None):
            self.accepted.update()
        return ready

    def receive(self, limit: int) -> list[Message]:
        """The messages that have arrived, at most `limit`; never waits."""
        messages: list[Message] = []
        receive = self._recv
        is_readable, item = zmq.zmq_poll, self._item
        while len(messages) < limit and is_readable(item, 0):
            frame = receive(_NOBLOCK, copy=False)
            peer = frame.bytes
            self._active_peers[peer] = frame
            frames: list[memoryview] = []
            while frame.more:
                frame = receive(_NOBLOCK, copy=False)
                if len(frames) < MAX_FRAMES:
                    frames.append(frame.buffer)
            messages.append(Message(peer, frames))
        self._round_number += 1
        self._limit, self._all_received = limit, len(messages) < limit
        return messages

    def end_stalled_connections(self) -> bool:
        """End connections that hold memory without sending whole messages; call it a few times a second.

        True: some may hold memory; look again after the next `receive`.
        """
        active = [int(frame.get(zmq.SRCFD)) for frame in self._active_peers.values()]
        self._active_peers.clear()
        return self.accepted.end_stalled(
            active, self._round_number, all_received=self._all_received, batch=self._limit
        )

    def send(self, peer: bytes, frames: Sequence[Payload]) -> bool:
        """Send a message, or drop it if the peer is gone or does not read.

        False, and nothing is sent, if too many bytes are under way already.
        """
        send = self._send
        size = self._unsent.count(peer, sum(map(len, frames)) + FRAME_OVERHEAD * len(frames))
        if size and not self._unsent.has_room(peer, size):
            return False
        try:
            send(peer, _MORE)
            for frame in frames[:-1]:
                send(frame, _MORE, copy=len(frame) < LARGE_BYTES)
            if not size:
                send(frames[-1], _NOBLOCK)
                return True
            # A message's last frame leaves after all its others, and after earlier messages.
            last = memoryview(frames[-1])
            send(zmq.Frame(last, copy=False), _NOBLOCK, copy=False)
            self._unsent.watch(peer, size, last)
        except zmq.Again:
            pass
        return True

    def close(self, linger: float = 0.0) -> None:
        """Stop listening; answers not sent yet have `linger` seconds left."""
        if self._open:
            self._open = False
            self._context.destroy(linger=round(linger * 1000))


class _Unsent:
    """Bytes that ZeroMQ still holds, by peer.

    To watch a message leave costs more than to send a small one. So the bytes to a peer are counted, and
    one message is watched for every LARGE_BYTES: messages leave in order.
    """

    def __init__(self) -> None:
        self._watched: dict[bytes, deque[tuple[int, ReferenceType[memoryview]]]] = {}
        self._held_bytes: dict[bytes, int] = {}
        self._bytes = 0
        self._since_watched: dict[bytes, int] = {}

    def count(self, peer: bytes, size: int) -> int:
        """The bytes that a message of this size stands for if it has to be watched, else 0."""
        size += self._since_watched.get(peer, 0)
        if size >= LARGE_BYTES:
            return size
        if len(self._since_watched) >= _PEERS_COUNTED:
            self._since_watched.clear()  # most of them are gone
        self._since_watched[peer] = size
        return 0

    def watch(self, peer: bytes, size: int, frame: memoryview) -> None:
        """Count these bytes until ZeroMQ lets go of this frame, to which there is no other reference."""
        self._since_watched.pop(peer, None)
        self._watched.setdefault(peer, deque()).append((size, ref(frame)))
        self._held_bytes[peer] = self._held_bytes.get(peer, 0) + size
        self._bytes += size

    def has_room(self, peer: bytes, size: int) -> bool:
        self._count_sent(peer)
        if self._bytes + size > UNSENT_BYTES:
            for other in list(self._watched):
                self._count_sent(other)
        held = self._held_bytes.get(peer, 0)
        return not held or (held + size <= PEER_UNSENT_BYTES and self._bytes + size <= UNSENT_BYTES)

    def _count_sent(self, peer: bytes) -> None:
        """Stop counting the bytes that have left."""
        watched = self._watched.get(peer, ())
        while watched and watched[0][1]() is None:
            size, _ = watched.popleft()
            self._bytes -= size
            self._held_bytes[peer] -= size
        if not watched and peer in self._watched:
            del self._watched[peer], self._held_bytes[peer]
