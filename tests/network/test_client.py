"""Requests and replies over real sockets, against a broker that does as it is told."""

import math
import os
import select
import socket
import threading
import time
from contextlib import suppress
from functools import partial
from typing import Any, Self

import pytest
import zmq

from folkmoot.network import client as module
from folkmoot.network.client import MAX_IN_FLIGHT, Connections, Reply
from folkmoot.network.connection import Connection
from folkmoot.protocol import wire
from folkmoot.protocol.errors import (
    BatchTooLarge,
    BrokerUnreachable,
    InvalidRequest,
    NotLeader,
    Overloaded,
    RequestTimeout,
    UnsupportedVersion,
)
from folkmoot.protocol.messages import (
    Api,
    ApiVersions,
    FetchEntry,
    FetchRequest,
    FetchResponse,
    FetchResult,
    GetSchemaRequest,
    HelloResponse,
    MetadataRequest,
    MetadataResponse,
    ProduceEntry,
    ProduceRequest,
    ProduceResponse,
    ProduceResult,
)
from tests.network.stub import StubBroker, hello
from tests.waiting import eventually

ASK = MetadataRequest(None)
PRODUCE = ProduceRequest(1, 1.0, [ProduceEntry("t", "", 0, 0)])


def silence(envelope: Any, body: Any, payloads: list[bytes]) -> Any:
    return None


def metadata(envelope: Any, body: Any, payloads: list[bytes]) -> Any:
    return MetadataResponse([], [])


def collect(connections: Connections, count: int, timeout: float = 30.0) -> list[Reply]:
    replies: list[Reply] = []
    end = time.monotonic() + timeout
    while len(replies) < count:
        left = end - time.monotonic()
        assert left > 0, f"only {replies} within {timeout} s"
        replies += connections.poll(left)
    return replies


def unused_address() -> str:
    """Bound until this process ends, and not listening: nobody is given its port who does not ask for it."""
    probe = socket.socket()
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    probe.bind(("127.0.0.1", 0))
    port = probe.getsockname()[1]
    probe.detach()
    return f"127.0.0.1:{port}"


def test_a_request_is_answered_under_its_correlation_id() -> None:
    with StubBroker(metadata) as broker, Connections("me") as connections:
        ids = [connections.send(broker.address, Api.METADATA, ASK) for _ in range(5)]
        replies = collect(connections, 5)
        assert [reply.correlation_id for reply in replies] == ids
        assert all(reply.response == MetadataResponse([], []) for reply in replies)
        assert {reply.address for reply in replies} == {broker.address}


def test_payloads_travel_both_ways_as_they_are() -> None:
    body = os.urandom(300_000)

    def echo(envelope: Any, body: Any, payloads: list[bytes]) -> Any:
        results = [FetchResult("t", 0, 0, "", 0, 1), FetchResult("t", 1, 0, "", 0, 1)]
        response = wire.encode_response(envelope.correlation_id, FetchResponse(results))
        return [response, *payloads]

    request = FetchRequest(0, 0, 1, [FetchEntry("t", "", number, 0, 0, 1) for number in (0, 1)])
    with StubBroker(echo) as broker, Connections("me") as connections:
        connections.send(broker.address, Api.FETCH, request, [body, memoryview(b"small")])
        (reply,) = collect(connections, 1)
        assert [bytes(payload) for payload in reply.payloads] == [body, b"small"]


def test_a_request_without_an_answer_times_out_and_the_next_is_answered() -> None:
    answering = threading.Event()

    def later(envelope: Any, body: Any, payloads: list[bytes]) -> Any:
        return MetadataResponse([], []) if answering.is_set() else None

    with StubBroker(later) as broker, Connections("me") as connections:
        answering.set()
        connections.send(broker.address, Api.METADATA, ASK)
        collect(connections, 1)  # the connection stands, so that the next one leaves at once
        answering.clear()
        connections.send(broker.address, Api.METADATA, ASK, timeout=0.05)
        (reply,) = collect(connections, 1)
        assert isinstance(reply.error, RequestTimeout)
        assert reply.sent
        answering.set()
        connections.send(broker.address, Api.METADATA, ASK)
        (reply,) = collect(connections, 1)
        assert reply.error is None


def test_an_error_that_the_broker_answers_is_raised_as_its_class() -> None:
    def refuse(envelope: Any, body: Any, payloads: list[bytes]) -> Any:
        raise NotLeader("broker 2 leads t-0")

    with StubBroker(refuse) as broker, Connections("me") as connections:
        connections.send(broker.address, Api.METADATA, ASK)
        (reply,) = collect(connections, 1)
        assert isinstance(reply.error, NotLeader)
        assert str(reply.error) == "broker 2 leads t-0"


def test_nobody_listening_fails_everything_in_flight_at_once() -> None:
    address = unused_address()
    with Connections("me") as connections:
        ids = [connections.send(address, Api.METADATA, ASK) for _ in range(3)]
        replies = collect(connections, 3)
        assert [reply.correlation_id for reply in replies] == ids
        assert all(isinstance(reply.error, BrokerUnreachable) for reply in replies)
        assert not any(reply.sent for reply in replies), "no broker can have got them"
        assert address in str(replies[0].error)


@pytest.mark.parametrize("address", ["nonsense", "127.0.0.1:99999", "no such host:1"])
def test_an_address_that_is_none_is_a_typed_error(address: str) -> None:
    with Connections("me") as connections:
        connections.send(address, Api.METADATA, ASK)
        (reply,) = collect(connections, 1)
        assert isinstance(reply.error, BrokerUnreachable)


def test_a_broker_that_goes_away_fails_what_is_in_flight_and_is_found_again() -> None:
    with Connections("me") as connections:
        with StubBroker(silence) as broker:
            connections.send(broker.address, Api.METADATA, ASK)
            connections.send(broker.address, Api.METADATA, ASK)
            while len(broker.seen) < 2:
                assert connections.poll(0.01) == []
        replies = collect(connections, 2)
        assert all(isinstance(reply.error, BrokerUnreachable) for reply in replies)
        assert all(reply.sent for reply in replies)
        with StubBroker(metadata, port=broker.port) as again:
            connections.send(again.address, Api.METADATA, ASK)
            (reply,) = collect(connections, 1)
            assert reply.error is None
            assert len(again.seen) == 1


def test_a_request_that_failed_is_never_sent_later() -> None:
    address = unused_address()
    with Connections("me") as connections:
        connections.send(address, Api.PRODUCE, PRODUCE, [b"batch"])
        (reply,) = collect(connections, 1)
        assert isinstance(reply.error, BrokerUnreachable)
        with StubBroker(metadata, port=int(address.rpartition(":")[2])) as broker:
            connections.send(address, Api.METADATA, ASK)
            (reply,) = collect(connections, 1)
            assert reply.error is None
            assert [api for api, _, _ in broker.seen] == [Api.METADATA]


def test_an_unreadable_envelope_costs_the_peer_its_connection() -> None:
    def garbage(envelope: Any, body: Any, payloads: list[bytes]) -> Any:
        return [b"\xc1 this is no MessagePack"]

    with StubBroker(garbage) as broker, Connections("me") as connections:
        connections.send(broker.address, Api.METADATA, ASK)
        (reply,) = collect(connections, 1)
        assert isinstance(reply.error, BrokerUnreachable)
        assert "does not speak" in str(reply.error)


def test_a_body_of_the_wrong_shape_is_a_typed_error_on_that_request() -> None:
    def answer(envelope: Any, body: Any, payloads: list[bytes]) -> Any:
        if envelope.api == Api.METADATA:
            return MetadataResponse([], [])
        return [wire.encode_response(envelope.correlation_id, MetadataResponse([], []))]

    with StubBroker(answer) as broker, Connections("me") as connections:
        connections.send(broker.address, Api.PRODUCE, PRODUCE, [b"batch"])
        connections.send(broker.address, Api.METADATA, ASK)
        bad, good = collect(connections, 2)
        assert isinstance(bad.error, InvalidRequest)
        assert good.error is None


@pytest.mark.parametrize(
    "results",
    [[], [ProduceResult("t", 1, 0, "", 0, 0)], [ProduceResult("u", 0, 0, "", 0, 0)]],
    ids=["too few", "another partition", "another topic"],
)
def test_results_for_what_was_not_asked_are_an_error(results: list[ProduceResult]) -> None:
    with (
        StubBroker(lambda *_: ProduceResponse(results)) as broker,
        Connections("me") as connections,
    ):
        connections.send(broker.address, Api.PRODUCE, PRODUCE, [b"batch"])
        (reply,) = collect(connections, 1)
        assert isinstance(reply.error, InvalidRequest)


@pytest.mark.parametrize(
    ("told", "right"), [([0, 1, 2], 1), ([2], 1), ([], 1), ([1, 0], 1), ([1, 1], 0), ([3], 0)]
)
def test_a_fetch_may_leave_partitions_out_and_nothing_else(told: list[int], right: int) -> None:
    def some(envelope: Any, body: Any, payloads: list[bytes]) -> Any:
        response = FetchResponse([FetchResult("t", number, 0, "", 0, 1) for number in told])
        return [wire.encode_response(envelope.correlation_id, response), *[b"chunk"] * len(told)]

    request = FetchRequest(0, 0, 1, [FetchEntry("t", "", number, 0, 0, 1) for number in range(3)])
    with StubBroker(some) as broker, Connections("me") as connections:
        connections.send(broker.address, Api.FETCH, request)
        (reply,) = collect(connections, 1)
        assert isinstance(reply.error, type(None) if right else InvalidRequest)


def test_a_frame_beyond_the_limit_is_refused_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MAX_FRAME_BYTES", 1000)
    with StubBroker(metadata) as broker, Connections("me") as connections:
        with pytest.raises(BatchTooLarge):
            connections.send(broker.address, Api.PRODUCE, PRODUCE, [bytes(1001)])
        just_fits = [bytes(1000)]
        connections.send(broker.address, Api.PRODUCE, PRODUCE, just_fits, expect_reply=False)
        connections.send(broker.address, Api.METADATA, ASK)
        assert [reply.error for reply in collect(connections, 2)] == [None, None]


def test_a_frame_beyond_the_limit_from_a_broker_is_a_broken_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wire, "MAX_FRAME_BYTES", 1000)
    with (
        StubBroker(lambda *_: [bytes(2000)]) as broker,
        Connections("me") as connections,
    ):
        connections.send(broker.address, Api.METADATA, ASK)
        (reply,) = collect(connections, 1)
        assert isinstance(reply.error, BrokerUnreachable)


def test_no_shared_version_is_said_before_anything_is_sent() -> None:
    with StubBroker(metadata) as broker, Connections("me") as connections:
        broker.greeting = hello(lowest=7, highest=9)
        connections.send(broker.address, Api.METADATA, ASK)
        (reply,) = collect(connections, 1)
        assert isinstance(reply.error, UnsupportedVersion)
        for fact in ("METADATA", broker.address, "7 to 9", "0 to 0", "upgrade the client"):
            assert fact in str(reply.error)
        assert broker.seen == []


def test_an_api_that_the_broker_does_not_know_is_refused_and_others_are_not() -> None:
    with StubBroker(metadata) as broker, Connections("me") as connections:
        known = [each for each in hello().apis if each.api != Api.GET_SCHEMA]
        # A later broker may know apis and versions that are not known here.
        broker.greeting = HelloResponse(1, 1000, [*known, ApiVersions(77, 0, 5)])
        connections.send(broker.address, Api.GET_SCHEMA, GetSchemaRequest(1))
        connections.send(broker.address, Api.METADATA, ASK)
        refused, answered = collect(connections, 2)
        assert isinstance(refused.error, UnsupportedVersion)
        assert "GET_SCHEMA" in str(refused.error)
        assert "upgrade the broker" in str(refused.error)
        assert answered.error is None


def test_a_broker_that_does_not_greet_is_unreachable_within_the_connect_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("folkmoot.network.client.CONNECT_TIMEOUT", 0.2)
    with StubBroker(metadata) as broker, Connections("me") as connections:
        broker.greeting = None
        connections.send(broker.address, Api.METADATA, ASK)
        (reply,) = collect(connections, 1)
        assert isinstance(reply.error, BrokerUnreachable)
        assert not reply.sent
        assert "0.2 s" in str(reply.error)


def test_requests_in_flight_are_bounded() -> None:
    with StubBroker(silence) as broker, Connections("me") as connections:
        for _ in range(MAX_IN_FLIGHT):
            connections.send(broker.address, Api.METADATA, ASK)
        with pytest.raises(Overloaded):
            connections.send(broker.address, Api.METADATA, ASK)
        assert connections.owed == MAX_IN_FLIGHT


def test_a_request_without_reply_is_done_when_it_was_handed_over() -> None:
    with StubBroker(silence) as broker, Connections("me") as connections:
        sent = [
            connections.send(broker.address, Api.PRODUCE, PRODUCE, [b"batch"], expect_reply=False)
            for _ in range(20)
        ]
        replies = collect(connections, 20)
        assert [reply.correlation_id for reply in replies] == sent
        assert all(reply.error is None and reply.response is None for reply in replies)
        while len(broker.seen) < 20:
            connections.poll(0.01)


def test_more_than_zeromq_s_queue_takes_waits_here_and_keeps_its_order() -> None:
    begin = threading.Event()

    def slow(envelope: Any, body: Any, payloads: list[bytes]) -> Any:
        begin.wait()
        return ProduceResponse([ProduceResult("t", 0, 0, "", len(payloads[0]), 0)])

    with StubBroker(slow) as broker, Connections("me") as connections:
        connections.send(broker.address, Api.PRODUCE, PRODUCE, [b""])
        eventually(lambda: connections.poll(0.0) or broker.seen)  # busy with the first
        batches = [bytes(1_000_000 + number) for number in range(MAX_IN_FLIGHT - 1)]
        for batch in batches:
            connections.send(broker.address, Api.PRODUCE, PRODUCE, [batch])
        assert connections._peers[broker.address].unsent
        begin.set()
        replies = collect(connections, MAX_IN_FLIGHT)
        offsets = [reply.response.results[0].base_offset for reply in replies]
        assert offsets == [0, *map(len, batches)]


def test_poll_ends_when_woken_and_when_its_time_is_over() -> None:
    reader, writer = os.pipe()
    with open(reader, "rb", buffering=0) as wake, Connections("me") as connections:
        threading.Timer(0.05, os.write, (writer, b"!")).start()
        begun = time.monotonic()
        assert connections.poll(30.0, wake) == []
        assert time.monotonic() - begun < 10.0
        os.read(reader, 1)
        assert connections.poll(0.02, wake) == []
        os.close(writer)


def test_an_owner_that_waits_for_other_things_too_takes_replies_in_turns() -> None:
    poller = select.poll()
    reader, writer = os.pipe()
    poller.register(reader, select.POLLIN)
    os.write(writer, b"!")
    silent = unused_address()
    with StubBroker(metadata) as broker, Connections("me", poller=poller) as connections:
        assert connections.next_event() == math.inf
        connections.send(broker.address, Api.METADATA, ASK)
        connections.send(silent, Api.METADATA, ASK)
        replies: dict[str, Reply] = {}
        end = time.monotonic() + 10.0
        while len(replies) < 2:
            left = min(connections.next_event(), end) - time.monotonic()
            events = dict(poller.poll(max(0.0, left) * 1000))
            assert reader in events
            replies |= {reply.address: reply for reply in connections.handle_events(events)}
            assert time.monotonic() < end
        assert replies[broker.address].error is None
        assert isinstance(replies[silent].error, BrokerUnreachable)
    os.close(reader)
    os.close(writer)


def test_a_reply_that_arrived_before_the_break_counts() -> None:
    with Connections("me") as connections:
        with StubBroker(metadata) as broker:
            connections.send(broker.address, Api.METADATA, ASK)
            collect(connections, 1)  # the connection stands
            connections.send(broker.address, Api.METADATA, ASK)
            connection = connections._peers[broker.address].connection
            assert connection is not None
            assert connection.socket.poll(10_000)
        # Answer and break both lie unread by now.
        (reply,) = collect(connections, 1)
        assert reply.error is None


def test_a_connection_that_was_silent_ends_with_the_first_request_that_times_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "SILENT_FOR", 0.2)
    with StubBroker(silence) as broker, Connections("me") as connections:
        first = connections.send(broker.address, Api.METADATA, ASK, timeout=1.0)
        second = connections.send(broker.address, Api.METADATA, ASK)
        replies = {reply.correlation_id: reply for reply in collect(connections, 2)}
        assert isinstance(replies[first].error, RequestTimeout)
        assert isinstance(replies[second].error, BrokerUnreachable)
        assert "silent" in str(replies[second].error)
        assert replies[second].sent
        broker.handler = metadata
        connections.send(broker.address, Api.METADATA, ASK)
        assert collect(connections, 1)[0].error is None


def test_a_connection_over_which_other_answers_come_outlives_a_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "SILENT_FOR", 0.5)

    def some(envelope: Any, body: Any, payloads: list[bytes]) -> Any:
        return None if envelope.api == Api.PRODUCE else MetadataResponse([], [])

    with StubBroker(some) as broker, Connections("me") as connections:
        connections.send(broker.address, Api.PRODUCE, PRODUCE, [b"batch"], timeout=1.0)
        replies: list[Reply] = []
        while not any(each.api is Api.PRODUCE for each in replies):
            connections.send(broker.address, Api.METADATA, ASK)
            replies += connections.poll(0.1)
        (late,) = (each for each in replies if each.api is Api.PRODUCE)
        assert all(each.error is None for each in replies if each is not late)
        assert isinstance(late.error, RequestTimeout)
        assert connections._peers[broker.address].connection is not None


def test_an_owner_that_stood_still_takes_the_answers_that_came_meanwhile() -> None:
    with StubBroker(metadata) as broker, Connections("me") as connections:
        connections.send(broker.address, Api.METADATA, ASK)
        collect(connections, 1)

        def has_seen(count: int) -> bool:
            return len(broker.seen) >= count

        for _ in range(5):
            wanted = len(broker.seen) + 1
            connections.send(broker.address, Api.METADATA, ASK, timeout=0.1)
            eventually(partial(has_seen, wanted))
            time.sleep(0.2)
            (reply,) = collect(connections, 1)
            assert reply.error is None


class ByHand:
    """A broker of plain TCP, which sees and sends bytes."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.received = b""

    def accept(self, connections: Connections) -> socket.socket:
        """Go through ZMTP's handshake and answer the HELLO."""
        peer = self._listener.accept()[0]
        peer.setblocking(False)
        greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
        peer.sendall(greeting + b"\x04\x1c\x05READY\x0bSocket-Type\x00\x00\x00\x06ROUTER")

        def has_greeted() -> bool:
            connections.poll(0.01)
            self.take(peer)
            return b"folkmoot-python" in self.received

        eventually(has_greeted)
        answer = wire.encode_response(2, hello())  # 1 is the request that it waits for
        peer.sendall(b"\x02" + len(answer).to_bytes(8, "big") + answer)
        return peer

    def take(self, peer: socket.socket) -> None:
        with suppress(BlockingIOError):
            while more := peer.recv(65536):
                self.received += more

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()


def test_a_client_sends_no_ping_of_zeromqs_which_would_abort_a_broker() -> None:
    """`Assertion failed: !_io_error`: libzmq 4.3.5, where what is received has a limit."""
    with ByHand() as broker, Connections("me") as connections:
        connections.send(broker.address, Api.METADATA, ASK)
        peer = broker.accept(connections)
        (known,) = connections._peers.values()
        assert known.connection is not None
        assert known.connection.socket.get(zmq.HEARTBEAT_IVL) == 0
        peer.close()


def test_an_answer_that_comes_in_small_pieces_is_waited_for() -> None:
    answer = wire.encode_response(1, MetadataResponse([], []))
    framed = b"\x00" + bytes([len(answer)]) + answer
    with ByHand() as broker, Connections("me") as connections:
        connections.send(broker.address, Api.METADATA, ASK)
        peer = broker.accept(connections)
        for place in range(len(framed)):
            assert place == 0 or not connections.poll(0.02)
            peer.sendall(framed[place : place + 1])
        (reply,) = collect(connections, 1)
        assert reply.error is None
        peer.close()


def test_a_name_is_looked_up_in_both_families_by_turns_until_one_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """This machine may have no name with an IPv6 address alone: what counts is what ZeroMQ is told."""
    asked: list[bool] = []
    original = Connection.open

    def noted(self: Connection, *, ipv6: bool = False) -> None:
        asked.append(ipv6)
        original(self)

    monkeypatch.setattr(Connection, "open", noted)
    monkeypatch.setattr(module, "LONGEST_PAUSE", 0.01)
    with Connections("me") as connections:
        address = unused_address()
        for _ in range(3):
            connections.send(address, Api.METADATA, MetadataRequest(None))
            assert not connections.poll(10.0)[0].sent
        assert asked == [False, True, False]
        with StubBroker(lambda envelope, body, payloads: MetadataResponse([], [])) as broker:
            connections.send(broker.address, Api.METADATA, MetadataRequest(None))
            assert connections.poll(10.0)[0].error is None
        connections.send(broker.address, Api.METADATA, MetadataRequest(None))
        assert connections.poll(10.0)[0].error is not None
        connections.send(broker.address, Api.METADATA, MetadataRequest(None))
        connections.poll(10.0)
        assert asked[3:5] == [False, False], "it has answered like that"
