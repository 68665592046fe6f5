"""Fetches that wait, and what is kept of one for the next, with a clock that is moved by hand."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from folkmoot.brokers.jobs.jobs import Now
from folkmoot.brokers.server import request_handlers
from folkmoot.brokers.server.fetch_sessions import FetchSessions
from folkmoot.brokers.server.metadata_cache import ClusterView, MetadataCache
from folkmoot.brokers.server.purgatory import Quota, Response
from folkmoot.brokers.server.request_handlers import RequestHandlers
from folkmoot.coordination.topic_config import LogConfig
from folkmoot.coordination.topics import TopicInfo
from folkmoot.protocol import batch_header, messages
from folkmoot.protocol.errors import (
    InvalidRequest,
    Overloaded,
    StorageError,
    UnknownFetch,
    UnknownTopicOrPartition,
)
from folkmoot.protocol.messages import FetchEntry, FetchRequest, FetchResponse
from tests.brokers.parts import (
    BROKERS,
    DELETED,
    ME,
    carried_out,
    fetch,
    into,
    make_batch,
    make_cold,
    make_handlers,
    make_logs,
    out_of,
    produce,
    show,
    the_log,
)
from tests.seeds import new_seed

PARTITIONS = 6
VIEW = ClusterView(BROKERS, {"t": TopicInfo("id-1", [[ME]] * PARTITIONS)})
WALL = 1_700_000_000_000


class Bench:
    """A broker's handlers, a clock, and a peer that numbers its fetches."""

    def __init__(self, handlers: RequestHandlers) -> None:
        self.handlers = handlers
        self.now = 100.0
        self.number = 0

    @property
    def moment(self) -> Now:
        return Now(self.now, WALL)

    def ask(self, request: FetchRequest, peer: bytes = b"peer") -> Response | None:
        self.number += 1
        given = carried_out(request, (), self.moment, self.handlers, peer=peer, number=self.number)
        assert given is None or isinstance(given, Response)
        return given

    def told(self, request: FetchRequest, peer: bytes = b"peer") -> FetchResponse:
        """The answer that is given at once."""
        given = self.ask(request, peer)
        assert given is not None
        response: FetchResponse = given.body
        return response

    def waits(self, request: FetchRequest, peer: bytes = b"peer") -> None:
        assert self.ask(request, peer) is None

    def woken(self) -> list[Response]:
        """What those are answered who wait no longer."""
        self.handlers.sessions.expire(self.now)
        return [
            answer
            for delayed in self.handlers.purgatory.take_completed(self.now, 1_000)
            if (answer := delayed.complete(self.moment)) is not None
        ]

    @property
    def watches(self) -> int:
        """How many sessions watch partitions, each counted once for each of them."""
        found = sum(len(each.sessions) for each in self.handlers.partitions)
        assert self.handlers.sessions._watches._total == found
        return found

    def append(self, partition: int, *batches: bytes) -> None:
        request = produce(*[into(partition) for _ in batches])
        carried_out(request, batches, self.moment, self.handlers)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with make_logs(tmp_path / "data", LogConfig(max_batch_bytes=1_000)) as logs:
        yield Bench(make_handlers(logs, VIEW))


ONE = make_batch(b"a")


def partitions(answer: Response | FetchResponse) -> list[int]:
    response = answer.body if isinstance(answer, Response) else answer
    return [each.partition for each in response.results]


def offsets_in(chunk: bytes | memoryview) -> list[int]:
    return [header.base_offset for header, _ in batch_header.split(chunk)]


# -- waiting ---------------------------------------------------------------------------------------


def test_a_fetch_without_data_waits_for_the_bytes_that_it_lacks(bench: Bench) -> None:
    bench.append(1, ONE)
    wanted = fetch(out_of(0), out_of(1), out_of(0), max_wait=2.0, min_bytes=3 * len(ONE))
    bench.waits(wanted)
    bench.append(0, ONE)
    assert not bench.woken()
    bench.append(0, ONE)
    (answer,) = bench.woken()
    assert partitions(answer) == [1, 0], "what it had is told of, too"
    assert [offsets_in(chunk) for chunk in answer.payloads] == [[0], [0, 1]]


def test_an_append_wakes_the_fetch_that_waits_for_it(bench: Bench) -> None:
    bench.waits(fetch(out_of(0), max_wait=2.0))
    bench.append(1, ONE)
    assert not bench.woken()
    bench.append(0, ONE)
    (answer,) = bench.woken()
    assert offsets_in(answer.payloads[0]) == [0]


@pytest.mark.parametrize("woken_by", ["another partition", "its deadline"])
def test_a_fetch_woken_before_an_index_is_read_does_not_tell_that_partition_as_one_at_its_end(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, woken_by: str
) -> None:
    bench.append(1, ONE)
    cold = the_log(bench.handlers.logs, 1)
    make_cold(monkeypatch, cold)
    bench.waits(fetch(out_of(0), out_of(1), max_wait=2.0, keep=True))
    if woken_by == "its deadline":
        bench.now += request_handlers.MAX_WAIT
    else:
        bench.append(0, ONE)
    (answer,) = bench.woken()
    told = {each.partition: each.high_watermark for each in answer.body.results}
    assert told[1] == 1, "there is something to read"


def test_a_woken_fetch_is_answered_with_all_that_its_turn_brought(bench: Bench) -> None:
    bench.waits(fetch(out_of(0), out_of(1), max_wait=2.0))
    bench.append(1, ONE)
    bench.append(0, ONE, ONE)
    (answer,) = bench.woken()
    assert partitions(answer) == [1, 0]
    assert [offsets_in(chunk) for chunk in answer.payloads] == [[0], [0, 1]]
    bench.append(0, ONE)
    assert not bench.woken()


def test_a_fetch_never_waits_when_it_has_something_to_say(bench: Bench) -> None:
    bench.append(0, ONE)
    for request in (
        fetch(out_of(0), max_wait=9.0),
        fetch(out_of(0, offset=1), out_of(9), max_wait=9.0),
        fetch(out_of(0, offset=1), max_wait=0.0),
        fetch(out_of(0, offset=1), max_wait=9.0, min_bytes=0),
        fetch(max_wait=9.0),
    ):
        bench.told(request)


def test_a_wait_is_never_longer_than_the_brokers_own_limit(bench: Bench) -> None:
    bench.waits(fetch(out_of(0), max_wait=3_600.0))
    assert bench.handlers.purgatory.next_deadline() == bench.now + request_handlers.MAX_WAIT
    bench.now += request_handlers.MAX_WAIT
    assert [partitions(answer) for answer in bench.woken()] == [[]]


def test_a_deleted_topics_logs_go_and_those_who_wait_for_it_hear_of_it(bench: Bench) -> None:
    bench.append(0, ONE)
    bench.waits(fetch(out_of(0, offset=1), max_wait=9.0))
    show(bench.handlers, ClusterView(BROKERS, {}), DELETED)
    (answer,) = bench.woken()
    assert answer.body.results[0].error == UnknownTopicOrPartition.code
    bench.handlers.logs.deletion_task(Now(0.0, 0))
    bench.handlers.logs.deletion_task(Now(60.0, 0))
    assert len(bench.handlers.logs) == 0


# -- what is kept for the next fetch -----------------------------------------------------------------


def test_the_next_fetch_names_only_what_has_changed(bench: Bench) -> None:
    every = [out_of(number) for number in range(PARTITIONS)]
    bench.waits(fetch(*every, max_wait=2.0, keep=True))
    bench.append(2, ONE)
    (answer,) = bench.woken()
    assert (partitions(answer), answer.body.has_session) == ([2], True)
    ((_, kept),) = bench.handlers.sessions._cached.values()
    assert (len(kept.entries), kept.changed) == (PARTITIONS - 1, {})
    bench.waits(fetch(out_of(2, offset=1), max_wait=2.0, keep=True, after=bench.number))
    bench.append(4, ONE)
    bench.append(2, ONE)
    (answer,) = bench.woken()
    assert partitions(answer) == [4, 2]
    assert [offsets_in(chunk) for chunk in answer.payloads] == [[0], [1]]


def test_what_happens_between_two_fetches_is_told_at_once(bench: Bench) -> None:
    assert bench.told(fetch(out_of(0), out_of(1), out_of(2), keep=True)).has_session
    for number in (2, 0):
        bench.append(number, ONE)
    response = bench.told(fetch(max_wait=2.0, keep=True, after=bench.number))
    assert (partitions(response), response.has_session) == ([2, 0], True)
    bench.waits(fetch(max_wait=2.0, after=bench.number))
    bench.append(1, ONE)
    (answer,) = bench.woken()
    assert (partitions(answer), answer.body.has_session) == ([1], False)


def test_what_was_told_of_and_not_named_again_is_not_waited_for(bench: Bench) -> None:
    bench.append(0, ONE)
    assert partitions(bench.told(fetch(out_of(0), out_of(1), keep=True))) == [0]
    bench.waits(fetch(max_wait=2.0, keep=True, after=bench.number))
    bench.append(0, ONE)
    assert not bench.woken()
    bench.append(1, ONE)
    assert [partitions(answer) for answer in bench.woken()] == [[1]]


def test_a_topic_that_goes_between_two_fetches_is_an_error_in_the_second(bench: Bench) -> None:
    assert bench.told(fetch(out_of(0), keep=True)).has_session
    show(bench.handlers, ClusterView(BROKERS, {}), DELETED)
    response = bench.told(fetch(max_wait=2.0, keep=True, after=bench.number))
    assert [each.error for each in response.results] == [UnknownTopicOrPartition.code]
    assert not response.has_session


def test_nothing_is_kept_unless_asked_for_nor_where_all_was_told(bench: Bench) -> None:
    bench.append(0, ONE)
    assert not bench.told(fetch(out_of(1))).has_session
    assert not bench.told(fetch(out_of(0), keep=True)).has_session
    for number in (1, 2):
        with pytest.raises(UnknownFetch):
            bench.ask(fetch(after=number))
    assert bench.watches == 0


def test_a_fetch_is_gone_on_with_once_and_by_the_connection_that_made_it(bench: Bench) -> None:
    assert bench.told(fetch(out_of(0), keep=True)).has_session
    kept = bench.number
    with pytest.raises(UnknownFetch):
        bench.ask(fetch(keep=True, after=kept), b"another")
    assert bench.told(fetch(keep=True, after=kept)).has_session
    with pytest.raises(UnknownFetch):
        bench.ask(fetch(keep=True, after=kept))


def test_what_nobody_goes_on_with_is_forgotten(bench: Bench) -> None:
    assert bench.told(fetch(out_of(0), keep=True)).has_session
    bench.now += request_handlers.FORGET_AFTER
    assert not bench.woken()
    assert bench.watches == 0
    with pytest.raises(UnknownFetch):
        bench.ask(fetch(after=bench.number))


def test_all_partitions_are_named_again_from_time_to_time(bench: Bench) -> None:
    begun = bench.now
    assert bench.told(fetch(out_of(0), keep=True)).has_session
    while bench.told(fetch(keep=True, after=bench.number)).has_session:
        bench.now += 1.0
    assert bench.now == begun + request_handlers.KEEP_FOR
    assert bench.watches == 0


def test_room_for_those_who_wait_is_made_by_forgetting_the_oldest(bench: Bench) -> None:
    bench.handlers.sessions = FetchSessions(Quota(4, 4))
    for number in (0, 2):
        peer = b"%d" % number
        assert bench.told(fetch(out_of(number), out_of(number + 1), keep=True), peer).has_session
    bench.waits(fetch(out_of(4), max_wait=2.0))
    with pytest.raises(UnknownFetch):
        bench.ask(fetch(after=1), b"0")
    bench.waits(fetch(max_wait=2.0, after=2), b"2")
    with pytest.raises(Overloaded):
        bench.ask(fetch(out_of(0), out_of(1), max_wait=2.0))
    assert not bench.told(fetch(out_of(0), out_of(1), keep=True)).has_session


def test_a_connection_has_one_kept_fetch_the_last_one(bench: Bench) -> None:
    for _ in range(2):
        assert bench.told(fetch(out_of(0), keep=True)).has_session
    with pytest.raises(UnknownFetch):
        bench.ask(fetch(after=1))
    bench.waits(fetch(max_wait=2.0, after=2))


def test_no_more_partitions_gather_than_one_request_may_name(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "MAX_ENTRIES", 2)
    assert bench.told(fetch(out_of(0), out_of(1), keep=True)).has_session
    with pytest.raises(InvalidRequest):
        bench.ask(fetch(out_of(2), keep=True, after=bench.number))
    assert bench.watches == 0


def test_a_fetch_that_fails_leaves_nothing_behind(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert bench.told(fetch(out_of(0), out_of(1), keep=True)).has_session
    bench.append(0, ONE)

    def broken(*_: object) -> None:
        raise RuntimeError("a fault of ours")

    with monkeypatch.context() as patch:
        patch.setattr(MetadataCache, "find_led", broken)
        with pytest.raises(RuntimeError):
            bench.ask(fetch(after=bench.number))
    assert bench.watches == 0
    bench.waits(fetch(out_of(1), max_wait=2.0))
    bench.append(1, ONE)
    with monkeypatch.context() as patch:
        patch.setattr(MetadataCache, "find_led", broken)
        with pytest.raises(RuntimeError):
            bench.woken()
    assert bench.watches == 0


def test_what_found_no_room_is_told_by_the_next_fetch_before_all_else(bench: Bench) -> None:
    for number in range(4):
        bench.append(number, ONE)
    every = [out_of(number) for number in range(PARTITIONS)]
    response = bench.told(fetch(*every, max_bytes=2 * len(ONE), keep=True))
    assert (partitions(response), response.has_session) == ([0, 1], True)
    bench.append(5, ONE)
    bench.append(0, ONE)
    again = [out_of(number, offset=1) for number in (0, 1)]
    response = bench.told(fetch(*again, max_wait=2.0, keep=True, after=bench.number))
    assert partitions(response) == [2, 3, 5, 0]
    bench.waits(fetch(max_wait=2.0, keep=True, after=bench.number))


def test_an_entry_that_failed_is_not_kept(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.append(0, ONE)
    log = the_log(bench.handlers.logs, 0)

    def unreadable(*_: object, **__: object) -> memoryview:
        raise StorageError("a bad disk")

    with monkeypatch.context() as patch:
        patch.setattr(type(log), "read", unreadable)
        response = bench.told(fetch(out_of(0), out_of(1), max_wait=2.0, keep=True))
    assert ([each.error for each in response.results], response.has_session) == (
        [StorageError.code],
        True,
    )
    bench.waits(fetch(max_wait=2.0, after=bench.number))


def test_a_client_that_goes_on_reads_what_one_does_that_names_all(bench: Bench) -> None:
    """Against a list of what was appended, whatever is lost on the way."""
    seed = new_seed()
    rng = random.Random(seed)
    reader = _Reader(bench, rng)
    appended = [0] * PARTITIONS
    for _ in range(1_500):
        step = rng.random()
        if step < 0.4:
            number = rng.randrange(PARTITIONS)
            bench.append(number, ONE)
            appended[number] += 1
        elif step < 0.5:
            bench.now += rng.choice(
                (0.1, 1.0, request_handlers.KEEP_FOR, request_handlers.FORGET_AFTER)
            )
        elif step < 0.55:
            reader.lose_connection()
        reader.step()
    for _ in range(20):  # some of them with little room
        bench.now += request_handlers.MAX_WAIT
        reader.step()
    assert reader.offsets == appended
    assert reader.went_on > 100


class _Reader:
    """Reads all partitions, one fetch after the other; sometimes it has no room for one of them."""

    def __init__(self, bench: Bench, rng: random.Random) -> None:
        self.bench = bench
        self.rng = rng
        self.offsets = [0] * PARTITIONS
        self.went_on = 0
        self._peer = 0
        self._free = set(range(PARTITIONS))
        self._kept: int | None = None
        self._waits = False

    def lose_connection(self) -> None:
        self._peer += 1
        self._free, self._kept, self._waits = set(range(PARTITIONS)), None, False

    def step(self) -> None:
        peer = b"%d" % self._peer
        handlers, now = self.bench.handlers, self.bench.now
        handlers.sessions.expire(now)
        for delayed in handlers.purgatory.take_completed(now, 1_000):
            answer = delayed.complete(self.bench.moment)
            if delayed.request.peer == peer and answer is not None:
                self._take(answer)
        if self._waits:
            return
        named = [each for each in self._free if self.rng.random() < 0.8]
        entries: list[FetchEntry] = [out_of(each, offset=self.offsets[each]) for each in named]
        most = self.rng.choice((1, 2**20))
        request = fetch(*entries, max_wait=1.0, max_bytes=most, keep=True, after=self._kept)
        try:
            given = self.bench.ask(request, peer)
        except UnknownFetch:
            self._free, self._kept = set(range(PARTITIONS)), None
            return
        self.went_on += self._kept is not None
        self._free -= set(named)
        self._waits = True
        if given is not None:
            self._take(given)

    def _take(self, answer: Response) -> None:
        self._waits = False
        for result, chunk in zip(answer.body.results, answer.payloads, strict=True):
            assert not result.error
            assert result.partition not in self._free, "it was not asked for"
            self._free.add(result.partition)
            for header, _ in batch_header.split(chunk):
                assert header.base_offset == self.offsets[result.partition]
                self.offsets[result.partition] = header.next_offset
        self._kept = self.bench.number if answer.body.has_session else None
        if self._kept is None:
            self._free = set(range(PARTITIONS))
