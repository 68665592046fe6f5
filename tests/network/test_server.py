"""The server's socket: addresses, limits, and peers that do not read."""

import random
import socket
import time
from collections.abc import Iterator

import pytest
import zmq

from folkmoot.network import server as module
from folkmoot.network.server import Message, ServerSocket
from folkmoot.protocol.errors import AddressTaken
from folkmoot.protocol.wire import MAX_FRAME_BYTES, MAX_FRAMES
from tests.waiting import eventually


@pytest.fixture
def server() -> Iterator[ServerSocket]:
    made = ServerSocket()
    yield made
    made.close()


class Clients:
    """DEALER sockets, all closed after the test."""

    def __init__(self) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._sockets: list[zmq.Socket[bytes]] = []

    def connect(self, port: int, routing_id: bytes = b"") -> "zmq.Socket[bytes]":
        made = self.context.socket(zmq.DEALER)
        self._sockets.append(made)
        made.set(zmq.RCVTIMEO, 10_000)
        made.set(zmq.RCVHWM, 1)
        if routing_id:
            made.set(zmq.ROUTING_ID, routing_id)
        made.connect(f"tcp://127.0.0.1:{port}")
        return made


@pytest.fixture
def clients() -> Iterator[Clients]:
    made = Clients()
    yield made
    made.context.destroy(linger=0)


def take(server: ServerSocket, count: int = 1) -> list[Message]:
    messages: list[Message] = []

    def enough() -> bool:
        server.wait(0.1)
        messages.extend(server.receive(count - len(messages)))
        return len(messages) == count

    eventually(enough)
    return messages


def test_frames_arrive_whole_and_answers_find_their_way(
    server: ServerSocket, clients: Clients
) -> None:
    port = server.bind("127.0.0.1", 0)
    one, two = clients.connect(port), clients.connect(port)
    large = random.randbytes(3_000_000)
    one.send_multipart([b"one", b"", large])
    two.send_multipart([b"two"])
    for message in take(server, 2):
        view = memoryview(b"seen: " + bytes(message.frames[0]))
        server.send(message.peer, [view, *message.frames[1:]])
    assert one.recv_multipart() == [b"seen: one", b"", large]
    assert two.recv_multipart() == [b"seen: two"]


def test_every_address_is_served(server: ServerSocket, clients: Clients) -> None:
    ports = [server.bind("127.0.0.1", 0), server.bind("localhost", 0)]
    for port in ports:
        clients.connect(port).send(b"%d" % port)
    assert sorted(bytes(each.frames[0]) for each in take(server, 2)) == sorted(
        b"%d" % port for port in ports
    )


@pytest.mark.parametrize("host", ["192.0.2.1", "not-an-address.invalid"])
def test_an_address_of_another_machine_is_refused(server: ServerSocket, host: str) -> None:
    with pytest.raises(AddressTaken, match=host):
        server.bind(host, 0)


def test_a_taken_port_is_refused_with_its_name(server: ServerSocket) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(AddressTaken, match=f"127.0.0.1:{port} is in use"):
            server.bind("127.0.0.1", port)


def test_receiving_is_bounded_and_never_waits(server: ServerSocket, clients: Clients) -> None:
    assert server.receive(10) == []
    client = clients.connect(server.bind("127.0.0.1", 0))
    for number in range(5):
        client.send(b"%d" % number)
    assert [bytes(each.frames[0]) for each in take(server, 2)] == [b"0", b"1"]
    assert [bytes(each.frames[0]) for each in take(server, 3)] == [b"2", b"3", b"4"]


def test_waiting_says_whether_a_watched_descriptor_woke_it(server: ServerSocket) -> None:
    reader, writer = socket.socketpair()
    with reader, writer:
        server.watch(reader.fileno())
        assert not server.wait(0.0)
        writer.send(b"!")
        assert server.wait(10.0)


def test_waiting_ends_in_time_and_not_before(server: ServerSocket) -> None:
    began = time.monotonic()
    server.wait(0.0302)
    assert time.monotonic() - began >= 0.0302


def test_an_answer_to_a_peer_that_does_not_read_is_dropped_and_nothing_waits(
    clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SEND_QUEUE", 10)
    server = ServerSocket()
    port = server.bind("127.0.0.1", 0)
    lazy, busy = clients.connect(port), clients.connect(port)
    lazy.send(b"lazy")
    (message,) = take(server)
    payload = bytes(1_000)
    began = time.monotonic()
    for _ in range(20_000):
        server.send(message.peer, [payload])
    assert time.monotonic() - began < 20
    busy.send(b"busy")
    (message,) = take(server)
    server.send(message.peer, [b"at once"])
    assert busy.recv() == b"at once"
    server.close()


def test_payloads_for_a_peer_that_does_not_read_are_refused_beyond_a_limit(
    clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PEER_UNSENT_BYTES", 10_000_000)
    monkeypatch.setattr(module, "UNSENT_BYTES", 12_000_000)
    server = ServerSocket()
    port = server.bind("127.0.0.1", 0)
    lazy, other = clients.connect(port), clients.connect(port)
    lazy.send(b"lazy")
    (asked,) = take(server)
    other.send(b"other")
    (asked_too,) = take(server)
    payload = bytes(4_000_000)
    eventually(lambda: not server.send(asked.peer, [b"", payload]))
    assert server.send(asked.peer, [b"small"])
    assert server.send(asked_too.peer, [payload])
    assert other.recv() == payload
    while lazy.recv_multipart() != [b"small"]:
        pass
    eventually(lambda: server.send(asked.peer, [payload]))
    server.close()


def test_small_frames_count_too_and_a_peer_that_does_not_read_holds_no_more_than_its_share(
    clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Frames below what is sent without a copy: a message of a thousand of them is megabytes."""
    limit = 10_000_000
    monkeypatch.setattr(module, "PEER_UNSENT_BYTES", limit)
    monkeypatch.setattr(module, "UNSENT_BYTES", 4 * limit)
    server = ServerSocket()
    port = server.bind("127.0.0.1", 0)
    lazy, other = clients.connect(port), clients.connect(port)
    lazy.send(b"lazy")
    (asked,) = take(server)
    frames = [bytes(4_000)] * 100
    sent = sum(server.send(asked.peer, frames) for _ in range(200))
    assert sent * 400_000 < limit + 20_000_000, "besides what the kernel's buffers hold"
    other.send(b"other")
    (asked_too,) = take(server)
    assert server.send(asked_too.peer, frames)
    assert other.recv_multipart() == frames
    for _ in range(sent):
        assert len(lazy.recv_multipart()) == 100
    eventually(lambda: server.send(asked.peer, frames))
    server.close()


def test_small_answers_are_counted_together_and_refused_when_nobody_reads_them(
    clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = 1_000_000
    monkeypatch.setattr(module, "PEER_UNSENT_BYTES", limit)
    monkeypatch.setattr(module, "SEND_QUEUE", 1_000_000)
    server = ServerSocket()
    lazy = clients.connect(server.bind("127.0.0.1", 0))
    lazy.send(b"lazy")
    (asked,) = take(server)
    eventually(lambda: not server.send(asked.peer, [bytes(30_000)]))
    server.close()


def test_an_answer_to_a_peer_that_is_gone_is_dropped(server: ServerSocket) -> None:
    server.send(b"nobody", [b"hello?", bytes(100_000)])


def test_a_frame_beyond_the_limit_costs_its_sender_the_connection_and_nobody_else(
    server: ServerSocket, clients: Clients
) -> None:
    port = server.bind("127.0.0.1", 0)
    glutton, other = clients.connect(port), clients.connect(port)
    monitor = glutton.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    glutton.send(bytes(MAX_FRAME_BYTES + 1), copy=False)
    assert monitor.poll(10_000)
    other.send(b"hello")
    assert bytes(take(server)[0].frames[0]) == b"hello"


def test_frames_beyond_the_limit_of_a_message_are_thrown_away(
    server: ServerSocket, clients: Clients
) -> None:
    client = clients.connect(server.bind("127.0.0.1", 0))
    client.send_multipart([b""] * (MAX_FRAMES + 100))
    client.send(b"next")
    flood, following = take(server, 2)
    assert len(flood.frames) == MAX_FRAMES
    assert [bytes(frame) for frame in following.frames] == [b"next"]


def test_a_routing_id_that_another_has_is_not_handed_over(
    server: ServerSocket, clients: Clients
) -> None:
    port = server.bind("127.0.0.1", 0)
    first = clients.connect(port, b"me")
    first.send(b"first")
    (message,) = take(server)
    thief = clients.connect(port, b"me")
    thief.send(b"thief")
    server.send(message.peer, [b"for the first"])
    assert first.recv() == b"for the first"
    server.wait(0.1)
    assert server.receive(1) == []
