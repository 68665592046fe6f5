"""Connections that a server's socket accepts: bounded, and ended where memory grows without messages."""

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress

import pytest
import zmq

from folkmoot.network import accepted as module
from folkmoot.network.accepted import ConnectionLimits
from folkmoot.network.server import ServerSocket
from tests.waiting import eventually

KIB = 1024
LIMITS = ConnectionLimits(
    connections=6,
    connections_per_address=4,
    unfinished_bytes=2_000 * KIB,
    unfinished_bytes_per_connection=1_000 * KIB,
)
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
READY = b"\x04\x1c\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER"


@pytest.fixture
def server() -> Iterator[ServerSocket]:
    made = ServerSocket(LIMITS)
    yield made
    made.close()


@pytest.fixture
def connect(server: ServerSocket) -> Iterator[Callable[..., "Raw"]]:
    port = server.bind("127.0.0.1", 0)
    with ExitStack() as stack:

        def made(host: str = "127.0.0.1") -> Raw:
            raw = Raw(port, host)
            stack.callback(raw.socket.close)
            return raw

        yield made


class Raw:
    """A peer that sends frames of ZMTP as it likes."""

    def __init__(self, port: int, host: str) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), 10.0, (host, 0))
        with suppress(OSError):  # it may be refused
            self.socket.sendall(GREETING + READY)
            answer = b""
            while b"ROUTER" not in answer and (more := self.socket.recv(4096)):
                answer += more
        self.name = f"{host}:{self.socket.getsockname()[1]}"

    def send(self, size: int, *, more: bool) -> None:
        with suppress(OSError):
            self.socket.sendall(bytes([2 | more]) + size.to_bytes(8, "big") + bytes(size))

    def is_ended(self) -> bool:
        self.socket.settimeout(0.001)
        try:
            while self.socket.recv(4096):
                pass
        except TimeoutError:
            return False
        except OSError:
            pass
        return True


def turn(server: ServerSocket, limit: int = 64) -> int:
    """As an event loop does; → how many messages came."""
    server.wait(0.001)
    received = len(server.receive(limit))
    server.end_stalled_connections()
    return received


def test_a_connection_whose_message_does_not_end_is_ended_and_no_other(
    server: ServerSocket, connect: Callable[..., Raw], caplog: pytest.LogCaptureFixture
) -> None:
    vandal, other = connect(), connect()
    other.send(900 * KIB, more=True)

    def is_over() -> bool:
        vandal.send(50 * KIB, more=True)
        turn(server)
        return vandal.is_ended()

    eventually(is_over)
    assert vandal.name in caplog.text
    assert other.name not in caplog.text
    other.send(1, more=False)
    eventually(lambda: turn(server) == 1)
    assert not other.is_ended()
    eventually(lambda: turn(server) == 0 and len(server.accepted) == 1)


def test_of_many_connections_with_unfinished_messages_the_largest_is_ended(
    server: ServerSocket, connect: Callable[..., Raw], caplog: pytest.LogCaptureFixture
) -> None:
    raws = [connect() for _ in range(3)]
    for raw in raws:
        raw.send(600 * KIB, more=True)
    raws[1].send(300 * KIB, more=True)
    eventually(lambda: turn(server) == 0 and raws[1].is_ended())
    assert len(caplog.records) == 1
    assert not raws[0].is_ended()
    assert not raws[2].is_ended()
    eventually(lambda: turn(server) == 0 and len(server.accepted) == 2)


@pytest.mark.parametrize("limit", [64, 1], ids=["all are received", "most of them wait"])
def test_a_connection_that_sends_whole_messages_may_send_any_number(
    server: ServerSocket,
    connect: Callable[..., Raw],
    caplog: pytest.LogCaptureFixture,
    limit: int,
) -> None:
    raws = [connect() for _ in range(3)]
    received = 0
    for _ in range(20):
        for raw in raws:
            raw.send(100 * KIB, more=True)
            raw.send(100 * KIB, more=False)
        received += turn(server, limit)
    while received < 60:
        received += turn(server, limit)
    assert not caplog.records
    assert not any(raw.is_ended() for raw in raws)


def test_what_is_received_late_is_no_unfinished_message(
    server: ServerSocket, connect: Callable[..., Raw], caplog: pytest.LogCaptureFixture
) -> None:
    """The owner of the socket stood still, and looks before it has received all."""
    raws = [connect() for _ in range(3)]
    for raw in raws:
        for _ in range(40):
            raw.send(50 * KIB, more=False)
    received = 0
    while received < 120:
        received += turn(server, 1)
    assert not caplog.records


@pytest.mark.parametrize("hosts", [["127.0.0.1"] * 9, [f"127.0.0.{n}" for n in range(1, 10)]])
def test_connections_are_bounded_by_address_and_in_all(
    server: ServerSocket,
    connect: Callable[..., Raw],
    caplog: pytest.LogCaptureFixture,
    hosts: list[str],
) -> None:
    most = 4 if len(set(hosts)) == 1 else 6
    raws = [connect(host) for host in hosts]
    eventually(lambda: turn(server) == 0 and sum(raw.is_ended() for raw in raws) == 9 - most)
    assert not any(raw.is_ended() for raw in raws[:most]), "the first ones stay"
    eventually(lambda: turn(server) == 0 and len(server.accepted) == most)
    assert "refused" in caplog.text
    assert "127.0.0.1" in caplog.text
    raws[0].socket.close()
    eventually(lambda: turn(server) == 0 and len(server.accepted) == most - 1)
    again = connect(hosts[0])
    again.send(1, more=False)
    eventually(lambda: turn(server) == 1)


def test_a_descriptor_that_is_another_connections_by_now_is_not_shut_down(
    server: ServerSocket, connect: Callable[..., Raw]
) -> None:
    raw = connect()
    eventually(lambda: turn(server) == 0 and len(server.accepted) == 1)
    (known,) = server.accepted._connections.values()
    known.port += 1
    server.accepted._end(known)
    raw.send(1, more=False)
    eventually(lambda: turn(server) == 1)


def test_a_peer_of_zeromq_that_comes_and_goes_is_counted_and_forgotten(
    server: ServerSocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOKS_AT_ONCE", 2)
    port = server.bind("127.0.0.1", 0)
    with zmq.Context() as context:
        for _ in range(3):
            with ExitStack() as stack:
                for _ in range(3):
                    peer = stack.enter_context(context.socket(zmq.DEALER))
                    peer.connect(f"tcp://127.0.0.1:{port}")
                    peer.send(b"x")
                eventually(lambda: turn(server) == 0 and len(server.accepted) == 3)
            eventually(lambda: turn(server) == 0 and len(server.accepted) == 0)
    assert len(server.accepted._order) <= 3, "what is gone is not kept"


def test_what_is_known_of_others_from_before_ends_no_connection() -> None:
    """With more connections than are counted in a look, what was counted of some is old."""
    server = ServerSocket(LIMITS)
    try:
        found = server.accepted
        peers = [module._Accepted(number, "h", number) for number in range(3)]
        for peer in peers:
            found._connections[peer.descriptor] = peer
            peer.unfinished = 800 * KIB
            found._unfinished += peer.unfinished
        assert found._unfinished > LIMITS.unfinished_bytes
        found.end_stalled([0, 1], 1, all_received=True, batch=10)
        assert found._unfinished == 800 * KIB, "whole messages have come of two of them"
        assert not any(peer.is_ended for peer in peers)
    finally:
        server.close()
