"""What a fetch goes on with: partitions of which the last answer had nothing to tell."""

import random

import pytest

from folkmoot.consumers.fetch import fetcher as module
from folkmoot.protocol.errors import BrokerUnreachable, InvalidRequest, UnknownFetch
from folkmoot.protocol.records import TopicPartition
from tests.consumers.fake_cluster import Asked, a_batch
from tests.consumers.fetching import ONE, TWO, ZERO, Bench
from tests.seeds import new_seed

ALL = (ZERO, ONE, TWO)


@pytest.fixture
def bench() -> Bench:
    """Its first fetch was answered with a record of ONE, and the broker has kept the others."""
    bench = Bench()
    bench.reading(*ALL)
    first = bench.cluster.next()
    assert (first.request.keep, first.request.after) == (True, None)
    bench.cluster.answer_some(first, {ONE: a_batch(0, b"a")}, has_session=True)
    bench.poll()
    bench.poll()
    return bench


def goes_on(asked: Asked, number: int | None, *named: TopicPartition) -> bool:
    return asked.request.after == number and asked.partitions == [*named]


def test_the_next_fetch_names_what_has_moved_and_goes_on_with_the_rest(bench: Bench) -> None:
    second = bench.cluster.next()
    assert goes_on(second, 1, ONE)
    bench.cluster.answer_some(
        second, {TWO: a_batch(0, b"b"), ONE: a_batch(1, b"c")}, has_session=True
    )
    bench.poll()
    assert [each.value for each in bench.everything()] == [b"a", b"b", b"c"]
    bench.poll()
    assert goes_on(bench.cluster.next(), 2, TWO, ONE)
    assert not bench.cluster.asked
    assert {bench.fetcher.end(each) for each in ALL} == {0, 1_000}


def test_an_answer_without_news_is_gone_on_with_as_it_is(bench: Bench) -> None:
    bench.cluster.answer_some(bench.cluster.next(), {}, has_session=True)
    bench.poll()
    bench.poll()
    assert goes_on(bench.cluster.next(), 2)


def test_what_found_no_room_in_an_answer_is_not_taken_to_be_at_its_end() -> None:
    size = len(a_batch(0, b"a"))
    bench = Bench(fetch_max_bytes=2 * size, partition_fetch_bytes=size)
    bench.reading(*ALL)
    first, full = bench.cluster.next(), {ONE: a_batch(0, b"a") + a_batch(1, b"b")}
    bench.cluster.answer_some(first, full, has_session=True)
    bench.poll()
    assert [bench.fetcher.end(each) for each in ALL] == [-1, 1_000, -1]
    assert [each.value for each in bench.everything()] == [b"a", b"b"]
    bench.poll()
    second = bench.cluster.next()
    assert goes_on(second, 1, ONE)
    bench.cluster.answer_some(second, {ZERO: a_batch(0, b"c")}, has_session=True)
    bench.poll()
    assert [bench.fetcher.end(each) for each in ALL] == [1_000, 2, 0]


def test_what_the_broker_did_not_keep_is_named_again(bench: Bench) -> None:
    bench.cluster.answer_some(bench.cluster.next(), {TWO: a_batch(0, b"b")})
    bench.poll()
    bench.poll()
    assert goes_on(bench.cluster.next(), None, ZERO, ONE, TWO)


@pytest.mark.parametrize("error", [UnknownFetch("what?"), BrokerUnreachable("gone")])
def test_a_fetch_that_fails_has_all_of_its_partitions_named_again(
    bench: Bench, error: UnknownFetch | BrokerUnreachable
) -> None:
    bench.cluster.fail(bench.cluster.next(), error)
    bench.poll()
    bench.poll()
    if not isinstance(error, UnknownFetch):
        assert not bench.cluster.asked
        bench.now += module.RETRY_PAUSE
        bench.poll()
    asked = bench.cluster.next()
    assert asked.request.after is None
    assert sorted(asked.partitions) == [*ALL]


def test_a_connection_that_takes_nothing_has_all_partitions_named_again(bench: Bench) -> None:
    bench.cluster.answer_some(bench.cluster.next(), {ONE: a_batch(1, b"b")}, has_session=True)
    bench.poll()
    bench.cluster.overloaded = True
    bench.poll()
    bench.cluster.overloaded = False
    bench.now += module.RETRY_PAUSE
    bench.poll()
    asked = bench.cluster.next()
    assert asked.request.after is None
    assert sorted(asked.partitions) == [*ALL]


@pytest.mark.parametrize("before_the_answer", [True, False])
def test_after_a_seek_all_are_named_again(bench: Bench, before_the_answer: bool) -> None:
    second = bench.cluster.next()
    if before_the_answer:
        bench.fetcher.seek(ZERO, 50)
    bench.cluster.answer_some(second, {ONE: b""}, has_session=True)
    bench.poll()
    if not before_the_answer:
        bench.fetcher.seek(ZERO, 50)
    bench.poll()
    asked = [bench.cluster.next() for _ in range(len(bench.cluster.asked))]
    assert {each.request.after for each in asked} == {None}
    entries = [entry for each in asked for entry in each.request.entries]
    assert len(entries) == len(ALL)
    offsets = {TopicPartition(each.topic, each.partition): each.offset for each in entries}
    assert offsets == {ZERO: 50, ONE: 1, TWO: 0}


def test_a_partition_that_was_removed_is_not_gone_on_with(bench: Bench) -> None:
    bench.cluster.answer_some(bench.cluster.next(), {}, has_session=True)
    bench.poll()
    bench.fetcher.remove(ZERO)
    bench.poll()
    asked = bench.cluster.next()
    assert asked.request.after is None
    assert sorted(asked.partitions) == [ONE, TWO]


def test_new_metadata_have_all_named_again(bench: Bench) -> None:
    bench.cluster.answer_some(bench.cluster.next(), {}, has_session=True)
    bench.poll()
    bench.cluster.version += 1
    bench.cluster.leaders[TWO] = "two:1"
    bench.poll()
    first, second = bench.cluster.next(), bench.cluster.next()
    assert {first.address, second.address} == {"one:1", "two:1"}
    assert (first.request.after, second.request.after) == (None, None)
    assert sorted([*first.partitions, *second.partitions]) == [*ALL]


def test_what_was_kept_waits_while_the_buffer_is_full() -> None:
    batch = a_batch(0, b"x" * 100)
    bench = Bench(buffer_bytes=len(batch))
    bench.reading(ZERO, ONE)
    bench.cluster.answer_some(bench.cluster.next(), {ONE: batch}, has_session=True)
    bench.poll()
    bench.poll()
    assert not bench.cluster.asked
    bench.values()
    bench.poll()
    assert goes_on(bench.cluster.next(), 1, ONE)


@pytest.mark.parametrize("told", [[ZERO, ZERO], [TopicPartition("t", 9)]])
def test_news_of_what_nobody_asked_for_are_an_error(
    bench: Bench, told: list[TopicPartition]
) -> None:
    bench.cluster.answer_each(bench.cluster.next(), told)
    bench.poll()
    with pytest.raises(InvalidRequest):
        bench.fetcher.check()


def test_what_is_left_of_one_fetch_takes_in_no_more_than_a_request_may_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "ENTRIES", 2)
    bench = Bench()
    bench.reading(*ALL)
    first, second = bench.cluster.next(), bench.cluster.next()
    assert (first.partitions, second.partitions) == ([ZERO, ONE], [TWO])
    bench.cluster.answer_some(second, {TWO: a_batch(0, b"a")})
    bench.cluster.answer_some(first, {}, has_session=True)
    bench.poll()
    bench.poll()
    assert goes_on(bench.cluster.next(), 1)
    assert goes_on(bench.cluster.next(), None, TWO)


class _Broker:
    """Keeps what it says that it keeps, and knows what each fetch waits for, at which offset."""

    def __init__(self, bench: Bench, rng: random.Random) -> None:
        self.bench = bench
        self.rng = rng
        self.under_way: list[tuple[Asked, dict[TopicPartition, int]]] = []
        self._kept: dict[int, dict[TopicPartition, int]] = {}

    def take(self) -> None:
        while self.bench.cluster.asked:
            asked = self.bench.cluster.next()
            after = asked.request.after
            offsets = {} if after is None else self._kept.pop(after)
            entries = asked.request.entries
            named = {TopicPartition(each.topic, each.partition): each.offset for each in entries}
            assert not named.keys() & offsets.keys(), "what is kept is not named"
            self.under_way.append((asked, {**offsets, **named}))

    def fail(self) -> None:
        asked, _ = self._any()
        self.bench.cluster.fail(
            asked, self.rng.choice((UnknownFetch("?"), BrokerUnreachable("gone")))
        )

    def answer(self) -> None:
        asked, offsets = self._any()
        told = [each for each in offsets if self.rng.random() < 0.4]
        keeps = self.rng.random() < 0.8 and len(told) < len(offsets)
        chunks = {each: a_batch(offsets[each], b"x") for each in told}
        self.bench.cluster.answer_some(asked, chunks, has_session=keeps)
        if keeps:
            self._kept[asked.number] = {p: o for p, o in offsets.items() if p not in told}

    def _any(self) -> tuple[Asked, dict[TopicPartition, int]]:
        return self.under_way.pop(self.rng.randrange(len(self.under_way)))


def test_whatever_a_broker_keeps_each_partition_is_asked_for_and_no_record_is_lost() -> None:
    seed = new_seed()
    rng = random.Random(seed)
    bench = Bench()
    broker = _Broker(bench, rng)
    partitions = {TopicPartition("t", number) for number in range(5)}
    seen: dict[TopicPartition, list[int]] = {each: [] for each in partitions}
    for each in sorted(partitions):
        bench.fetcher.add(each, 0)
    for _ in range(2_000):
        bench.poll()
        broker.take()
        step = rng.random()
        if step < 0.05:
            moved = rng.choice(sorted(partitions))
            bench.fetcher.seek(moved, 0)
            seen[moved] = []
        elif step < 0.1:
            bench.cluster.version += 1
        elif step < 0.15:
            bench.now += module.RETRY_PAUSE
        elif broker.under_way and step < 0.25:
            broker.fail()
        elif broker.under_way:
            broker.answer()
        bench.poll()
        for record in bench.everything():
            seen[TopicPartition(record.topic, record.partition)].append(record.offset)
    assert all(offsets == [*range(len(offsets))] for offsets in seen.values())
    while broker.under_way:  # so many at a time: the others wait until these have ended
        broker.fail()
    bench.poll()
    bench.now += module.RETRY_PAUSE
    bench.poll()
    broker.take()
    assert partitions == {each for _, offsets in broker.under_way for each in offsets}
