"""The loop behind a real socket: answers, long polls, garbage, faults of its own, and its end."""

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import msgspec
import pytest

from folkmoot.brokers.server.event_loop import NO_CORRELATION, EventLoop
from folkmoot.brokers.server.fetch_sessions import FetchSessions, Quota
from folkmoot.brokers.server.job_queue import JobQueue
from folkmoot.brokers.server.metadata_cache import ClusterView
from folkmoot.brokers.server.request_handlers import RequestHandlers
from folkmoot.network.server import ServerSocket
from folkmoot.protocol import batch, wire
from folkmoot.protocol.errors import (
    BrokerStopping,
    CorruptBatch,
    InvalidRequest,
    Overloaded,
    UnknownApi,
    UnknownServerError,
    UnsupportedVersion,
)
from folkmoot.protocol.requests import Api, HelloRequest, ListOffsetsEntry, ListOffsetsRequest
from tests.brokers.parts import (
    BROKERS,
    ME,
    Peer,
    fetch,
    into,
    make_batch,
    make_handlers,
    make_logs,
    out_of,
    produce,
)
from tests.protocol.messages import REQUESTS, random_value, with_one_part_replaced
from tests.seeds import new_seed
from tests.waiting import eventually


def packed(message: list[Any]) -> bytes:
    data: bytes = msgpack.packb(message)
    return data


class Served:
    """An event loop on a free port, and what became of it."""

    def __init__(self, handlers: RequestHandlers) -> None:
        self.handlers = handlers
        self.failures: list[Exception] = []
        self.socket = ServerSocket()
        self.address = f"127.0.0.1:{self.socket.bind('127.0.0.1', 0)}"
        self.loop = EventLoop(self.socket, handlers, self.failures.append)

    def is_well(self) -> bool:
        with Peer(self.address) as peer:
            response, _ = peer.call(Api.HELLO, HelloRequest("are you well?"))
        return bool(response.broker_id == ME) and not self.failures


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with make_logs(tmp_path / "data") as logs:
        made = Served(make_handlers(logs))
        made.loop.start()
        yield made
        made.loop.stop()
        made.socket.close()


@pytest.fixture
def peer(served: Served) -> Iterator[Peer]:
    with Peer(served.address) as made:
        yield made


def test_what_is_produced_is_fetched_byte_for_byte_behind_the_leaders_part(peer: Peer) -> None:
    large = make_batch(random.randbytes(300_000))
    small = make_batch(b"a", b"b")
    response, _ = peer.call(Api.PRODUCE, produce(into(0), into(1)), [small, large])
    assert [each.error for each in response.results] == [0, 0]
    _, frames = peer.call(Api.FETCH, fetch(out_of(1), out_of(0)))
    assert [frame[batch.LEADER_BYTES :] for frame in frames] == [
        large[batch.LEADER_BYTES :],
        small[batch.LEADER_BYTES :],
    ]


def test_a_fetch_that_waits_is_answered_by_the_append_of_another_client(
    served: Served, peer: Peer
) -> None:
    asked = peer.ask(Api.FETCH, fetch(out_of(0), max_wait=20.0))
    eventually(lambda: len(served.handlers.purgatory) == 1)
    with Peer(served.address) as other:
        other.call(Api.PRODUCE, produce(into(0)), [make_batch(b"a")])
    envelope, frames = peer.receive()
    assert envelope.correlation_id == asked
    assert batch.check(frames[0]).record_count == 1


def test_a_fetch_that_waits_in_vain_is_answered_empty_at_its_deadline(peer: Peer) -> None:
    began = time.monotonic()
    response, frames = peer.call(Api.FETCH, fetch(out_of(0), max_wait=0.2))
    assert 0.2 <= time.monotonic() - began < 5
    assert (response.results, frames) == ([], [])


def test_requests_of_one_client_take_effect_in_order_and_acks_0_is_not_answered(peer: Peer) -> None:
    for _ in range(50):
        peer.ask(Api.PRODUCE, produce(into(0), acks=0), [make_batch(b"a")])
    request = ListOffsetsRequest([ListOffsetsEntry("t", "id-1", 0, -1)])
    response, _ = peer.call(Api.LIST_OFFSETS, request)
    assert response.results[0].offset == 50


def test_a_new_view_is_what_the_next_request_sees(served: Served, peer: Peer) -> None:
    served.loop.show(ClusterView(BROKERS, {}), ["t"], frozenset())
    response, _ = peer.call(Api.FETCH, fetch(out_of(0)))
    assert response.results[0].error


def test_every_kind_of_wrong_request_has_its_own_error_and_correlation(
    served: Served, peer: Peer
) -> None:
    for kind, correlation, frames in (
        (InvalidRequest, NO_CORRELATION, [b""]),
        (InvalidRequest, NO_CORRELATION, [b"\xc1"]),
        (InvalidRequest, NO_CORRELATION, [b"x" * (wire.MAX_ENVELOPE_BYTES + 1)]),
        (InvalidRequest, NO_CORRELATION, [packed([0, 0, -5, "c", ["x"]])]),
        (UnknownApi, 7, [packed([99, 0, 7, "c", ["x"]])]),
        (UnsupportedVersion, 7, [packed([0, 3, 7, "c", ["x"]])]),
        (InvalidRequest, 7, [packed([0, 0, 7, "c", None])]),
        (InvalidRequest, 7, [packed([0, 0, 7, "c", ["x"]]), b"surplus"]),
        (InvalidRequest, 7, [packed([2, 0, 7, "c", [1, 1.0, [["../x", "", 0, 0]]]]), b""]),
        (
            InvalidRequest,
            7,
            [packed([3, 0, 7, "c", [1.0, 1, 1, [["t", "", 0, 0, 0, 0]] * 10_001]])],
        ),
        (InvalidRequest, 7, [packed([1, 0, 7, "c", [None]]), *[b""] * (wire.MAX_FRAMES + 5)]),
    ):
        peer.send(*frames)
        envelope, payloads = peer.receive()
        assert (envelope.error, envelope.correlation_id) == (kind.code, correlation)
        assert not payloads
    assert served.is_well()


def test_random_garbage_costs_its_sender_an_error_and_nobody_else_anything(
    served: Served, peer: Peer
) -> None:
    seed = new_seed()
    rng = random.Random(seed)
    asked = peer.ask(Api.FETCH, fetch(out_of(0), max_wait=20.0))
    with Peer(served.address) as vandal:
        for _ in range(400):
            first = rng.choice((_random_bytes, _random_message, _damaged_request))(rng)
            payloads = [rng.randbytes(rng.randrange(200)) for _ in range(rng.randrange(3))]
            vandal.send(first, *payloads)
        asked_too = vandal.ask(Api.HELLO, HelloRequest("it was not me"))
        while vandal.receive()[0].correlation_id != asked_too:
            pass
    assert served.is_well()
    peer.ask(Api.PRODUCE, produce(into(0)), [make_batch(b"a")])
    assert {peer.receive()[0].correlation_id for _ in range(2)} == {asked, asked + 1}


def _random_bytes(rng: random.Random) -> bytes:
    return rng.randbytes(rng.randrange(60))


def _random_message(rng: random.Random) -> bytes:
    return packed([rng.randrange(-1, 6), 0, 77, "vandal", random_value(rng)])


def _damaged_request(rng: random.Random) -> bytes:
    api = rng.choice(list(Api))
    request = msgspec.to_builtins(rng.choice(REQUESTS[api]))
    return packed(with_one_part_replaced(rng, [api, 0, 77, "vandal", request]))


def test_every_damage_to_a_batch_on_its_way_is_found(peer: Peer) -> None:
    whole = make_batch(b"key and value")
    seed = new_seed()
    rng = random.Random(seed)
    damaged = [whole[:cut] for cut in rng.sample(range(len(whole)), 20)]
    for position in rng.sample(range(len(whole)), 40):
        flipped = bytearray(whole)
        flipped[position] ^= 1 << rng.randrange(8)
        damaged.append(bytes(flipped))
    response, _ = peer.call(Api.PRODUCE, produce(*[into(0)] * len(damaged)), damaged)
    assert {result.error for result in response.results} == {CorruptBatch.code}
    response, _ = peer.call(Api.PRODUCE, produce(into(0)), [whole])
    assert response.results[0].base_offset == 0


def test_a_fault_of_the_brokers_own_is_an_error_for_one_request(
    served: Served, peer: Peer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(self: ClusterView, names: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(ClusterView, "metadata", broken)
    peer.ask(Api.METADATA, [None])
    envelope, _ = peer.receive()
    assert envelope.error == UnknownServerError.code
    assert "a bug" not in envelope.message
    assert "ZeroDivisionError: a bug" in caplog.text
    assert served.is_well()


def test_more_waiting_requests_than_the_broker_keeps_are_told_so(tmp_path: Path) -> None:
    with make_logs(tmp_path / "data") as logs:
        handlers = make_handlers(logs)
        purgatory = handlers.purgatory
        purgatory.sessions = FetchSessions(purgatory._complete, Quota(1, 1))
        served = Served(handlers)
        served.loop.start()
        with Peer(served.address) as peer:
            first = peer.ask(Api.FETCH, fetch(out_of(0), max_wait=20.0))
            peer.ask(Api.FETCH, fetch(out_of(0), max_wait=20.0))
            envelope, _ = peer.receive()
            assert (envelope.correlation_id, envelope.error) == (first + 1, Overloaded.code)
            served.loop.stop()


def test_stopping_answers_those_who_wait_and_those_who_still_ask(served: Served) -> None:
    with Peer(served.address) as peer:
        peer.ask(Api.FETCH, fetch(out_of(0), max_wait=20.0))
        eventually(lambda: len(served.handlers.purgatory) == 1)
        served.loop.post(lambda: _ask_and_wait_until_it_is_there(peer, served))
        served.loop.stop()
        answers = [peer.receive()[0] for _ in range(2)]
    assert {(each.correlation_id, each.error) for each in answers} == {
        (1, BrokerStopping.code),
        (2, BrokerStopping.code),
    }


def test_stopping_answers_those_whose_partitions_are_still_being_made(tmp_path: Path) -> None:
    with make_logs(tmp_path / "data") as logs:
        jobs = JobQueue()
        served = Served(make_handlers(logs, submit=jobs.submit))
        served.loop.start()
        with Peer(served.address) as peer:
            peer.ask(Api.PRODUCE, produce(into(0)), [make_batch(b"a")])
            eventually(lambda: jobs._queues)
            served.loop.stop()
            assert peer.receive()[0].error == BrokerStopping.code


def test_a_produce_to_a_new_partition_is_answered_when_its_directory_is_there(
    tmp_path: Path,
) -> None:
    with make_logs(tmp_path / "data") as logs:
        jobs = JobQueue()
        served = Served(make_handlers(logs, submit=jobs.submit))
        jobs.start(served.loop.post)
        served.loop.start()
        with Peer(served.address) as peer:
            response, _ = peer.call(Api.PRODUCE, produce(into(0)), [make_batch(b"a")])
            assert [each.base_offset for each in response.results] == [0]
        served.loop.stop()
        jobs.close()


def _ask_and_wait_until_it_is_there(peer: Peer, served: Served) -> None:
    peer.ask(Api.HELLO, HelloRequest("too late"))
    assert served.socket._socket.poll(10_000), "the request did not arrive"
    eventually(lambda: served.loop._inbox)  # the word to stop, which is acted on before requests


def test_a_failure_of_the_loop_itself_is_reported_and_ends_it(tmp_path: Path) -> None:
    with make_logs(tmp_path / "data") as logs:
        served = Served(make_handlers(logs))
        served.loop.start()
        served.socket.close()
        served.loop.post(lambda: None)
        eventually(lambda: served.failures)
        served.loop.stop()


def test_work_may_be_posted_from_any_thread_and_is_done_on_the_event_loop(served: Served) -> None:
    seen: list[str] = []
    threads = [
        threading.Thread(
            target=lambda: served.loop.post(lambda: seen.append(threading.current_thread().name))
        )
        for _ in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    eventually(lambda: len(seen) == 20)
    assert set(seen) == {"event-loop"}
