"""The server's end of the wire: one ROUTER socket, any number of addresses, whole messages in and out."""

import errno
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import ceil
from typing import Final, NamedTuple

import zmq

from folkmoot.network.memory import keep_freed_memory
from folkmoot.protocol.errors import AddressTaken
from folkmoot.protocol.wire import MAX_FRAME_BYTES, MAX_FRAMES

Payload = bytes | bytearray | memoryview

LARGE_BYTES: Final = 64 * 1024
_LOOK_EVERY: Final = 64

# As plain integers: two of zmq's flags joined by `|` cost more than the call that they are for.
_NOBLOCK: Final = int(zmq.NOBLOCK)
_MORE: Final = int(zmq.NOBLOCK | zmq.SNDMORE)
_EVENTS: Final = int(zmq.EVENTS)
_READABLE: Final = (int(zmq.POLLIN), int(zmq.POLLIN | zmq.POLLOUT))

_NOT_BINDABLE: Final = {
    errno.EADDRINUSE: "is in use: stop what listens there, or choose another port",
    errno.EADDRNOTAVAIL: "is not an address of this machine",
    errno.ENODEV: "is not an address of this machine",
    errno.EACCES: "may not be listened on by this user: choose a port above 1023",
}


class Message(NamedTuple):
    """What a peer sent: its routing id, for the answer, and its frames, still in ZeroMQ's memory."""

    peer: bytes
    frames: list[memoryview]


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """Limits of a server's socket."""

    receive_queue: int = 100
    """Messages of one peer that wait to be received; more stay on its side."""

    send_queue: int = 256
    """Answers that wait for one peer to read; more are dropped."""

    peer_unsent_bytes: int = 128 * 1024 * 1024
    """Large payloads on their way to one peer; the first is always taken."""

    unsent_bytes: int = 1024 * 1024 * 1024
    """Large payloads on their way to all peers; the first of each is always taken."""

    heartbeat_interval: float = 10.0
    heartbeat_timeout: float = 30.0
    handshake_timeout: float = 5.0
    io_threads: int = 1


class ServerSocket:
    """A ROUTER socket that never waits for a peer.

    - Frames arrive as views of ZeroMQ's own memory and are sent without a copy when they are large;
      a sent payload is kept alive until the last byte is out.
    - An answer to a peer that is gone, or whose queue is full because it does not read, is dropped:
      its client asks again. Nobody else notices. Payloads too large for what else is on its way are
      refused by `send`, so that peers that ask and do not read cannot fill the memory.
    - A frame beyond MAX_FRAME_BYTES costs its sender the connection. Of a message with more than
      MAX_FRAMES frames the rest is thrown away; what is left fails as a request. (ZeroMQ itself
      collects a message's frames, however many, before it hands over the first.)
    - A routing id that a peer chose for itself and another one has is refused, never handed over.

    Any one thread at a time may call; `bind` and `watch` before the loop, then the loop's thread only.
    """

    def __init__(self, config: ServerConfig | None = None) -> None:
        keep_freed_memory()
        self._config = config or ServerConfig()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(self._config.io_threads)
        self._socket = self._context.socket(zmq.ROUTER)
        self._poller = zmq.Poller()
        self._unsent = _Unsent(self._config)
        self._open = True
        self._set_options()
        self._poller.register(self._socket, zmq.POLLIN)

    def _set_options(self) -> None:
        config, socket = self._config, self._socket
        socket.set(zmq.LINGER, 0)
        socket.set(zmq.ROUTER_MANDATORY, 0)
        socket.set(zmq.ROUTER_HANDOVER, 0)
        socket.set(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
        socket.set(zmq.RCVHWM, config.receive_queue)
        socket.set(zmq.SNDHWM, config.send_queue)
        socket.set(zmq.HANDSHAKE_IVL, round(config.handshake_timeout * 1000))
        socket.set(zmq.HEARTBEAT_IVL, round(config.heartbeat_interval * 1000))
        socket.set(zmq.HEARTBEAT_TIMEOUT, round(config.heartbeat_timeout * 1000))
        socket.set(zmq.TCP_KEEPALIVE, 1)

    def bind(self, host: str, port: int) -> int:
        """Listen on an address too; port 0 is a free one. → the port. Raises AddressTaken.

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
        self._poller.register(descriptor, zmq.POLLIN)

    def wait(self, timeout: float | None) -> bool:
        """Wait for a message or a watched descriptor, at most `timeout` seconds.

        True if a watched descriptor is readable.
        """
        # Rounded up, so that a loop with a deadline does not spin through its last millisecond.
        ready = self._poller.poll(None if timeout is None else ceil(timeout * 1000))
        return any(found is not self._socket for found, _ in ready)

    def receive(self, limit: int) -> list[Message]:
        """What has arrived, at most `limit` messages; never waits."""
        messages: list[Message] = []
        receive = self._socket.recv
        waiting = self._socket.getsockopt
        while len(messages) < limit and waiting(_EVENTS) in _READABLE:
            frame = receive(_NOBLOCK, copy=False)
            peer = frame.bytes
            frames: list[memoryview] = []
            while frame.more:
                frame = receive(_NOBLOCK, copy=False)
                if len(frames) < MAX_FRAMES:
                    frames.append(frame.buffer)
            messages.append(Message(peer, frames))
        return messages

    def send(self, peer: bytes, frames: Sequence[Payload]) -> bool:
        """Send a message, or drop it if the peer is gone or does not read.

        False, and nothing is sent, if its payloads are too large for now.
        """
        large = sum(len(frame) for frame in frames if len(frame) >= LARGE_BYTES)
        if large and not self._unsent.has_room(peer, large):
            return False
        with suppress(zmq.Again):
            self._socket.send(peer, _MORE)
            for number, frame in enumerate(frames, start=1):
                flags = _MORE if number < len(frames) else _NOBLOCK
                if len(frame) < LARGE_BYTES:
                    self._socket.send(frame, flags)
                else:
                    tracker = self._socket.send(frame, flags, copy=False, track=True)
                    self._unsent.add(peer, len(frame), tracker)
        return True

    def close(self, linger: float = 0.0) -> None:
        """Stop listening; answers not sent yet have `linger` seconds left."""
        if self._open:
            self._open = False
            self._context.destroy(linger=round(linger * 1000))


class _Unsent:
    """Large payloads that ZeroMQ still holds, by peer; looked through when it matters, not before."""

    def __init__(self, config: ServerConfig) -> None:
        self._config = config
        self._payloads: list[tuple[bytes, int, zmq.MessageTracker]] = []
        self._by_peer: dict[bytes, int] = {}
        self._bytes = 0
        self._look_at = _LOOK_EVERY

    def add(self, peer: bytes, size: int, tracker: zmq.MessageTracker) -> None:
        self._payloads.append((peer, size, tracker))
        self._by_peer[peer] = self._by_peer.get(peer, 0) + size
        self._bytes += size
        if len(self._payloads) >= self._look_at:
            self._look_through()
            self._look_at = 2 * len(self._payloads) + _LOOK_EVERY

    def has_room(self, peer: bytes, size: int) -> bool:
        if not self._fits(peer, size):
            self._look_through()
        return self._fits(peer, size)

    def _fits(self, peer: bytes, size: int) -> bool:
        held = self._by_peer.get(peer, 0)
        return not held or (
            held + size <= self._config.peer_unsent_bytes
            and self._bytes + size <= self._config.unsent_bytes
        )

    def _look_through(self) -> None:
        self._payloads = [each for each in self._payloads if not each[2].done]
        self._by_peer.clear()
        for peer, size, _ in self._payloads:
            self._by_peer[peer] = self._by_peer.get(peer, 0) + size
        self._bytes = sum(self._by_peer.values())
