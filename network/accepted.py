"""The connections that a server's socket has accepted, and the memory that they hold."""

import logging
import socket
import struct
import time
from collections import Counter, deque
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import zmq

from folkmoot.network.tcp import borrowed, byte_counts, unread_bytes

LOOKS_AT_ONCE: Final = 400
REPORT_REFUSED: Final = 60.0
_EVENTS: Final = int(zmq.Event.ACCEPTED) + int(zmq.Event.DISCONNECTED)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ConnectionLimits:
    """Limits of the connections of a server's socket."""

    connections: int = 10_000
    connections_per_address: int = 5_000

    unfinished_bytes: int = 512 * 1024 * 1024
    """Bytes of unfinished messages, of all connections together."""

    unfinished_bytes_per_connection: int = 128 * 1024 * 1024
    """The same of one connection; larger than any request of a client."""


@dataclass(slots=True, eq=False)
class _Accepted:
    descriptor: int
    host: str
    port: int
    counted: int = 0
    """Bytes received up to its last known message."""
    unfinished: int = 0
    suspected_in: int | None = None
    """The round of receiving after which it held too much."""
    is_ended: bool = False


class AcceptedConnections:
    """Ends, with a log line, connections beyond the limits.

    ZeroMQ bounds each frame, and collects the frames of an unfinished message without a bound. The kernel
    counts the bytes that a connection has received; those since its last message are an unfinished one.

    The monitor reports each descriptor before it is closed. A descriptor that another connection has by
    now is recognised by its peer's address.

    Owner: the thread that receives.
    """

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        router: "zmq.Socket[bytes]",
        limits: ConnectionLimits,
    ) -> None:
        address = f"inproc://accepted-{id(self)}"
        router.monitor(address, _EVENTS)
        self._monitor = context.socket(zmq.PAIR)
        # ZeroMQ's own thread must never wait for room here.
        self._monitor.set(zmq.RCVHWM, 0)
        self._monitor.connect(address)
        self.descriptor = self._monitor.fileno()
        self._limits = limits
        self._connections: dict[int, _Accepted] = {}
        self._of_host: Counter[str] = Counter()
        self._order: deque[_Accepted] = deque()
        self._unfinished = 0
        self._refused = 0
        self._report_at = 0.0

    def __len__(self) -> int:
        return len(self._connections)

    def update(self) -> None:
        """Take in new and ended connections, and end those beyond the limits."""
        with suppress(zmq.Again):
            while True:
                event = self._monitor.recv_multipart(zmq.NOBLOCK)[0]
                number, descriptor = struct.unpack("=HI", event)
                connection = self._connections.pop(descriptor, None)
                if connection is not None:
                    self._unfinished -= connection.unfinished
                    connection.is_ended = True
                    self._of_host[connection.host] -= 1
                    if not self._of_host[connection.host]:
                        del self._of_host[connection.host]
                if number == zmq.Event.ACCEPTED:
                    self._accept(descriptor)
        if self._refused and time.monotonic() >= self._report_at:
            self._report_at = time.monotonic() + REPORT_REFUSED
            limits = self._limits
            logger.warning(
                "refused %d connections: the limits are %d (fewer with a low `ulimit -n`), and "
                "%d from one address; most are from %s",
                *(self._refused, limits.connections, limits.connections_per_address),
                ", ".join(f"{host} ({count})" for host, count in self._of_host.most_common(3)),
            )
            self._refused = 0

    def _accept(self, descriptor: int) -> None:
        try:
            with borrowed(descriptor) as connection:
                host, port = connection.getpeername()[:2]
        except OSError:
            return  # it is gone already
        accepted = self._connections[descriptor] = _Accepted(descriptor, host, port)
        self._of_host[host] += 1
        limits = self._limits
        if (
            len(self._connections) > limits.connections
            or self._of_host[host] > limits.connections_per_address
        ):
            self._refused += 1
            self._end(accepted)
        else:
            self._order.append(accepted)

    def end_stalled(
        self, active: Collection[int], round_number: int, *, all_received: bool, batch: int
    ) -> bool:
        """End connections that hold too much without messages. True: some may; look again soon.

        `active` are the descriptors of messages since the last look. A round of receiving takes up to
        `batch` messages, from all peers by turns; `round_number` is its number. `all_received`: the last
        round left no whole message.
        """
        self.update()
        for descriptor in active:
            sender = self._connections.get(descriptor)
            if sender is not None:
                sender.counted, sender.suspected_in = -1, None
                self._unfinished -= sender.unfinished  # until its bytes are counted again
                sender.unfinished = 0
        for _ in range(min(len(self._order), LOOKS_AT_ONCE)):
            connection = self._order.popleft()
            if not connection.is_ended:
                self._order.append(connection)
                self._count(connection)
        limits, connections = self._limits, self._connections.values()
        suspects = [
            connection
            for connection in connections
            if connection.unfinished > limits.unfinished_bytes_per_connection
        ]
        if not suspects and self._unfinished > limits.unfinished_bytes:
            suspects = [max(connections, key=lambda connection: connection.unfinished)]
        for suspect in suspects:
            if suspect.suspected_in is None:
                suspect.suspected_in = round_number
            # Messages that were whole by then have been received since: peers have their turns.
            elif round_number - suspect.suspected_in > (
                0 if all_received else len(connections) // batch + 1
            ):
                self._count(suspect)
                if suspect.unfinished > limits.unfinished_bytes_per_connection or (
                    self._unfinished > limits.unfinished_bytes
                ):
                    self._end_unfinished(suspect)
        return bool(suspects)

    def _count(self, connection: _Accepted) -> None:
        try:
            # In this order: the bytes left in the kernel are at most the bytes received.
            waiting = unread_bytes(connection.descriptor)
            received = byte_counts(connection.descriptor)[1] - waiting
        except OSError:
            return  # it is gone
        if connection.counted < 0:
            connection.counted = received
        unfinished = max(0, received - connection.counted)
        self._unfinished += unfinished - connection.unfinished
        connection.unfinished = unfinished

    def _end_unfinished(self, connection: _Accepted) -> None:
        logger.warning(
            "ended the connection from %s:%d: %d MiB of a message had come without its end",
            *(connection.host, connection.port, connection.unfinished >> 20),
        )
        self._unfinished -= connection.unfinished
        connection.unfinished = 0
        self._end(connection)

    def _end(self, connection: _Accepted) -> None:
        """Shut a connection down: ZeroMQ closes the descriptor, and the monitor reports it."""
        connection.is_ended = True
        with suppress(OSError), borrowed(connection.descriptor) as peer_socket:
            if peer_socket.getpeername()[:2] == (connection.host, connection.port):
                peer_socket.shutdown(socket.SHUT_RDWR)
