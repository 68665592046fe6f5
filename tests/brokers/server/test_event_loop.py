"""The loop behind a real socket: answers, long polls, garbage, faults of its own, and its end."""

import os
import random
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgpack
import msgspec
import pytest

from folkmoot.brokers.jobs import job_pool
from folkmoot.brokers.jobs.job_pool import JobPool
from folkmoot.brokers.jobs.jobs import Lane, Now, Task
from folkmoot.brokers.server import event_loop, request_handlers
from folkmoot.brokers.server.event_loop import NO_CORRELATION, EventLoop
from folkmoot.brokers.server.fetch_sessions import FetchSessions
from folkmoot.brokers.server.metadata_cache import ClusterChange, ClusterView
from folkmoot.brokers.server.purgatory import Quota, Request
from folkmoot.brokers.server.request_handlers import RequestHandlers
from folkmoot.coordination.topic_config import LogConfig
from folkmoot.network.server import Message, ServerSocket
from folkmoot.protocol import batch_header, wire
from folkmoot.protocol.errors import (
    BrokerStopping,
    CorruptBatch,
    InvalidRequest,
    Overloaded,
    UnknownApi,
    UnknownServerError,
    UnsupportedVersion,
)
from folkmoot.protocol.messages import (
    Api,
    HelloRequest,
    ListOffsetsEntry,
    ListOffsetsRequest,
    ProduceRequest,
)
from tests.brokers.batches import append, timed_batch
from tests.brokers.hands import create
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

    def __init__(self, handlers: RequestHandlers, tasks: Sequence[Task] = ()) -> None:
        self.handlers = handlers
        self.failures: list[Exception] = []
        self.socket = ServerSocket()
        self.address = f"127.0.0.1:{self.socket.bind('127.0.0.1', 0)}"
        self.loop = EventLoop(self.socket, handlers, self.failures.append, tasks)

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
    assert [frame[batch_header.LEADER_BYTES :] for frame in frames] == [
        large[batch_header.LEADER_BYTES :],
        small[batch_header.LEADER_BYTES :],
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
    assert batch_header.check(frames[0]).record_count == 1


def test_a_fetch_that_waits_in_vain_is_answered_empty_at_its_deadline(peer: Peer) -> None:
    began = time.monotonic()
    response, frames = peer.call(Api.FETCH, fetch(out_of(0), max_wait=0.2))
    assert time.monotonic() - began >= 0.2
    assert (response.results, frames) == ([], [])


def test_requests_of_one_client_take_effect_in_order_and_acks_0_is_not_answered(peer: Peer) -> None:
    for _ in range(50):
        peer.ask(Api.PRODUCE, produce(into(0), acks=0), [make_batch(b"a")])
    request = ListOffsetsRequest([ListOffsetsEntry("t", "id-1", 0, -1)])
    response, _ = peer.call(Api.LIST_OFFSETS, request)
    assert response.results[0].offset == 50


def test_a_new_view_is_what_the_next_request_sees(served: Served, peer: Peer) -> None:
    served.loop.show(ClusterChange(brokers=BROKERS, topics={"t": None}))
    served.loop.call(lambda: None, 30.0)  # a turn that has begun may take a request before the view
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
        handlers.sessions = FetchSessions(Quota(1, 1))
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


def test_stopping_answers_those_whose_batches_are_not_on_disk_yet(tmp_path: Path) -> None:
    """Not that the time of their requests is up, which it is not."""
    with make_logs(tmp_path / "data", LogConfig(durability="fsync")) as logs:
        create(logs, "t", "id-1", 0)
        jobs = JobPool()
        served = Served(make_handlers(logs, submit=jobs.submit))
        served.loop.start()
        with Peer(served.address) as peer:
            peer.ask(Api.PRODUCE, ProduceRequest(1, 60.0, [into(0)]), [make_batch(b"a")])
            eventually(lambda: any(each.waiting_produces for each in served.handlers.partitions))
            served.loop.stop()
            assert peer.receive()[0].error == BrokerStopping.code


def _ask_and_wait_until_it_is_there(peer: Peer, served: Served) -> None:
    peer.ask(Api.HELLO, HelloRequest("too late"))
    assert served.socket._socket.poll(10_000), "the request did not arrive"
    eventually(lambda: served.loop._inbox)  # the word to stop, which is acted on before requests


def test_a_failure_of_the_loop_itself_is_reported_and_ends_it(tmp_path: Path) -> None:
    with make_logs(tmp_path / "data") as logs:
        served = Served(make_handlers(logs))
        served.loop.start()
        served.loop.post(served.socket.close)  # on its thread: no two may use a socket at once
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


# -- tasks, faults in deferred work, slow steps --------------------------------------------------------


def test_tasks_are_done_one_a_turn_when_they_are_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_loop, "LOOK_AT_CONNECTIONS", 60.0)
    done: list[str] = []

    def task(name: str, pause: float) -> Task:
        def run(now: Now) -> float:
            done.append(name)
            return pause

        return run

    with make_logs(tmp_path / "data") as logs:
        socket = ServerSocket()
        tasks = [task("a", 10.0), task("b", 3.0)]
        loop = EventLoop(socket, make_handlers(logs), lambda error: None, tasks)
        for moment in (0.0, 0.0, 0.0, 0.0, 2.9, 3.0, 6.5, 10.0, 10.0):
            loop._run_task(Now(moment, 0))
        assert done == ["a", "b", "b", "b", "b", "a"]
        loop.stop()
        socket.close()


def test_a_fault_in_a_callback_or_a_task_is_logged_and_the_broker_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(event_loop, "TRY_TASK_AGAIN", 0.01)
    runs: list[Now] = []

    def broken_task(now: Now) -> float:
        runs.append(now)
        raise ZeroDivisionError("a bug in a task")

    def broken_callback() -> None:
        raise ZeroDivisionError("a bug in a callback")

    with make_logs(tmp_path / "data") as logs:
        served = Served(make_handlers(logs), [broken_task])
        served.loop.start()
        served.loop.post(broken_callback)
        eventually(lambda: len(runs) > 3)
        assert served.is_well()
        served.loop.stop()
    assert "a bug in a task" in caplog.text
    assert "a bug in a callback" in caplog.text


def test_a_fault_in_deferred_work_is_an_error_for_the_request_that_waits(tmp_path: Path) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    with make_logs(tmp_path / "data") as logs:
        jobs = JobPool()
        handlers = make_handlers(logs, submit=jobs.submit)
        served = Served(handlers)
        jobs.start(served.loop.post)
        handlers.flusher.note_appended = broken  # type: ignore[assignment, method-assign]
        served.loop.start()
        with Peer(served.address) as peer:
            peer.ask(Api.PRODUCE, produce(into(0)), [make_batch(b"a")])
            assert peer.receive()[0].error == UnknownServerError.code
        assert served.is_well()
        served.loop.stop()
        jobs.close()


def test_a_produce_of_a_topic_that_asks_for_it_is_answered_when_it_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with make_logs(tmp_path / "data", LogConfig(durability="fsync")) as logs:
        log = create(logs, "t", "id-1", 0)
        jobs = JobPool()
        served = Served(make_handlers(logs, submit=jobs.submit))
        disk = threading.Event()
        real = os.fdatasync

        def slow(descriptor: int) -> None:
            disk.wait()
            real(descriptor)

        monkeypatch.setattr(os, "fdatasync", slow)
        jobs.start(served.loop.post)
        served.loop.start()
        with Peer(served.address) as one, Peer(served.address) as other:
            patient = ProduceRequest(1, 60.0, [into(0)])
            one.ask(Api.PRODUCE, patient, [make_batch(b"a")])
            eventually(lambda: log.log_end == 1)
            for _ in range(3):
                other.ask(Api.PRODUCE, patient, [make_batch(b"b")])
            eventually(lambda: log.log_end == 4)
            assert log.high_watermark == 0
            assert one.hears_nothing(within=0.05)
            assert served.is_well()
            disk.set()
            answers = [each.receive()[0] for each in (one, other, other, other)]
            bodies = [wire.response_body(Api.PRODUCE, each) for each in answers]
            assert [each.results[0].error for each in bodies] == [0, 0, 0, 0]
        assert log.high_watermark == 4
        served.loop.stop()
        jobs.close()


def test_steps_that_take_too_long_are_counted_and_logged(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert served.is_well()
    caplog.set_level("DEBUG", logger=event_loop.logger.name)
    before: list[int] = []

    def begin() -> None:
        served.loop._report_slow_steps(Now(0.0, 0))
        caplog.clear()
        before.append(served.loop.slow_steps)
        monkeypatch.setattr(event_loop, "SLOW_STEP", -1.0)

    served.loop.post(begin)
    eventually(lambda: bool(before) and served.loop.slow_steps > before[0])
    served.loop.post(lambda: monkeypatch.setattr(event_loop, "SLOW_STEP", 3600.0))
    # Else it may be set behind the test's end, and for all tests that follow.
    eventually(lambda: event_loop.SLOW_STEP == 3600.0)
    pause = served.loop._report_slow_steps(Now(0.0, 0))
    assert pause > 0
    said = [each for each in caplog.records if "steps of the event loop took" in each.msg]
    logged: list[Any] = [each.args[0] for each in said if isinstance(each.args, tuple)]
    assert sum(logged) == served.loop.slow_steps - before[0]
    assert served.loop.longest_step > 0


def test_only_steps_that_clients_notice_are_warned_of_and_each_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with make_logs(tmp_path / "data") as logs:
        served = Served(make_handlers(logs))
        caplog.clear()
        served.loop._slow_since = [(0.1, "request")]
        served.loop._report_slow_steps(Now(0.0, 0))
        assert not caplog.records
        monkeypatch.setattr(event_loop, "SLOW_STEP", -1.0)
        monkeypatch.setattr(event_loop, "WARN_OF_STEP", 0.0)
        served.loop._step_ended("followers' fetches")
        served.loop._report_slow_steps(Now(0.0, 0))
        assert caplog.text.rstrip().endswith("followers' fetches")
        served.loop.stop()
        served.socket.close()


# -- requests of many entries --------------------------------------------------------------------------


def test_a_request_of_many_entries_goes_in_steps_and_others_are_answered_in_between(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[int] = []
    answered_at: list[int] = []
    begun, is_there, both_have_asked = threading.Event(), threading.Event(), threading.Event()
    append_some, send = RequestHandlers._append, EventLoop._send

    def counted(self: RequestHandlers, *args: Any, **kwargs: Any) -> None:
        append_some(self, *args, **kwargs)
        steps.append(1)
        if len(steps) == 1:
            begun.set()
            assert served.socket._socket.poll(10_000), "the other's request did not arrive"
            is_there.set()
            both_have_asked.wait(10)

    def noted(self: EventLoop, request: Any, response: Any) -> None:
        if isinstance(request.body, HelloRequest):
            answered_at.append(len(steps))
        send(self, request, response)

    monkeypatch.setattr(RequestHandlers, "_append", counted)
    monkeypatch.setattr(EventLoop, "_send", noted)
    monkeypatch.setattr(request_handlers, "ENTRIES_PER_STEP", 1)
    monkeypatch.setattr(event_loop, "STEP_TIME", 0.0)
    with Peer(served.address) as greedy, Peer(served.address) as other:
        greedy.ask(Api.PRODUCE, produce(*[into(0), into(1)] * 20), [make_batch(b"a")] * 40)
        assert begun.wait(10)
        other.ask(Api.HELLO, HelloRequest("x"))
        assert is_there.wait(10)
        greedy.ask(Api.LIST_OFFSETS, ListOffsetsRequest([ListOffsetsEntry("t", "id-1", 1, -1)]))
        both_have_asked.set()
        other.receive()
        first, _ = greedy.receive()
        second, _ = greedy.receive()
    assert answered_at[0] < 40 <= len(steps)
    assert (first.correlation_id, second.correlation_id) == (1, 2)
    listed = wire.response_body(Api.LIST_OFFSETS, second)
    assert listed.results[0].offset == 20, "what was sent later sees what was sent before"


@pytest.mark.parametrize("begins", [True, False], ids=["begin", "go on"])
def test_many_requests_of_many_entries_hold_up_the_next_messages_for_a_moment_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, begins: bool
) -> None:
    requests, steps_each = 50, 3
    order: list[int] = []

    def steps(number: int) -> Iterator[None]:
        for _ in range(steps_each):
            order.append(number)
            clock[0] += 0.004
            yield None

    clock = [100.0]
    monkeypatch.setattr("folkmoot.brokers.server.event_loop.time.monotonic", lambda: clock[0])
    with make_logs(tmp_path / "data") as logs:
        served = Served(make_handlers(logs))
        loop = served.loop
        monkeypatch.setattr(loop, "_run_task", lambda now: None)
        work: list[tuple[Request, Any]] = [
            (Request(b"%d" % each, each, None), steps(each)) for each in range(requests)
        ]
        if begins:
            queue = iter(work)
            monkeypatch.setattr(
                loop, "_handle_message", lambda message, now: loop._advance(*next(queue))
            )
            messages = [Message(b"", [])] * requests
            monkeypatch.setattr(served.socket, "receive", lambda limit: messages)
        else:
            loop._unfinished.extend((*each, None) for each in work)
            loop._held.update((request.peer, (request, deque())) for request, _ in work)
        loop._run_once()
        assert len(order) < (requests if begins else 0) + 20, "all but a few gave way"
        monkeypatch.setattr(served.socket, "receive", lambda limit: [])
        monkeypatch.setattr(loop, "_conclude", lambda request, outcome: None)
        turns = 1
        while loop._unfinished:
            loop._run_once()
            turns += 1
        assert len(order) == requests * steps_each, "none is forgotten"
        assert turns > 10
        loop.stop()
        served.socket.close()


def test_a_hello_is_answered_while_the_same_clients_request_waits_for_a_job(tmp_path: Path) -> None:
    config = LogConfig(segment_bytes=512)
    with make_logs(tmp_path / "data", config) as logs:
        log = create(logs, "t", "id-1", 0)
        for number in range(30):
            append(log, timed_batch(*[1000 + number] * 9))
    with make_logs(tmp_path / "data", config) as logs:
        jobs = JobPool()
        served = Served(make_handlers(logs, submit=jobs.submit))
        served.loop.start()
        with Peer(served.address) as peer:
            look_up = ListOffsetsRequest([ListOffsetsEntry("t", "id-1", 0, 1005)])
            asked = peer.ask(Api.LIST_OFFSETS, look_up)
            eventually(lambda: any(jobs._lanes[each].qsize() for each in Lane))
            ping = peer.ask(Api.HELLO, HelloRequest("a ping"))
            assert peer.receive()[0].correlation_id == ping
            jobs.start(served.loop.post)
            assert peer.receive()[0].correlation_id == asked
        served.loop.stop()
        jobs.close()


def test_a_request_whose_job_finds_no_room_is_refused_once_and_the_next_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its job ran later all the same, and the second answer ended the event loop."""
    config = LogConfig(segment_bytes=512)
    with make_logs(tmp_path / "data", config) as logs:
        log = create(logs, "t", "id-1", 0)
        for number in range(30):
            append(log, timed_batch(*[1000 + number] * 9))
    with make_logs(tmp_path / "data", config) as logs:
        jobs = JobPool()
        served = Served(make_handlers(logs, submit=jobs.submit_for_request))
        jobs.start(served.loop.post)
        served.loop.start()
        with Peer(served.address) as peer:
            look_up = ListOffsetsRequest([ListOffsetsEntry("t", "id-1", 0, 1005)])
            with monkeypatch.context() as patch:
                patch.setattr(job_pool, "MAX_WAITING", 0)
                asked = peer.ask(Api.LIST_OFFSETS, look_up)
                refusal = peer.receive()[0]
            assert (refusal.correlation_id, refusal.error) == (asked, Overloaded.code)
            response, _ = peer.call(Api.LIST_OFFSETS, look_up)
            assert [each.offset for each in response.results] == [9 * 5]
            assert peer.hears_nothing(within=0.05)
        assert served.is_well()
        served.loop.stop()
        jobs.close()


def test_a_look_up_of_times_waits_for_cold_indexes_and_nobody_else_does(tmp_path: Path) -> None:
    config = LogConfig(segment_bytes=512)
    with make_logs(tmp_path / "data", config) as logs:
        log = create(logs, "t", "id-1", 0)
        for number in range(30):
            append(log, timed_batch(*[1000 + number] * 9))
    with make_logs(tmp_path / "data", config) as logs:
        jobs = JobPool()
        served = Served(make_handlers(logs, submit=jobs.submit))
        served.loop.start()
        with Peer(served.address) as peer, Peer(served.address) as other:
            entries = [ListOffsetsEntry("t", "id-1", 0, 1000 + number) for number in (5, 17)]
            peer.ask(Api.LIST_OFFSETS, ListOffsetsRequest(entries))
            other.ask(Api.FETCH, fetch(out_of(0), max_bytes=1))
            eventually(lambda: any(jobs._lanes[each].qsize() for each in Lane))
            assert served.is_well()
            jobs.start(served.loop.post)
            response = wire.response_body(Api.LIST_OFFSETS, peer.receive()[0])
            assert [each.offset for each in response.results] == [9 * 5, 9 * 17]
            _, (chunk,) = other.receive()
            assert batch_header.check(chunk).base_offset == 0
        served.loop.stop()
        jobs.close()
