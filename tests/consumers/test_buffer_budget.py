"""What arrives is decompressed beside the application, as far as the buffer's bound allows."""

import multiprocessing
import random
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from folkmoot.consumers.fetch import fetched_batch
from folkmoot.consumers.fetch.fetched_batch import FetchedBatch
from folkmoot.network.memory import keep_freed_memory
from folkmoot.protocol import batch_header, compression, record_batch
from folkmoot.protocol.batch_header import HEADER_BYTES, MAX_BODY_BYTES
from folkmoot.protocol.errors import CorruptBatch
from folkmoot.protocol.records import TopicPartition
from tests.consumers.fake_cluster import a_batch
from tests.consumers.fetching import (
    ALL,
    ONE,
    TWO,
    ZERO,
    Bench,
    in_zstd,
    large,
    spoiled_body,
    with_body,
)
from tests.seeds import new_seed
from tests.waiting import eventually

THREE = TopicPartition("t", 3)
BODY = 160_000
"""Bytes of a `large` batch when it is open, less some."""


class Opened:
    """Which batches were decompressed, and where; other threads than this one wait for `may_go`."""

    def __init__(self) -> None:
        self.here = threading.get_ident()
        self.beside: list[int] = []
        """The base offsets of those that other threads began with."""
        self.by_itself: list[int] = []
        self.may_go = threading.Event()
        self.may_go.set()
        self._do = record_batch.body_of

    def body_of(self, header: batch_header.BatchHeader, data: memoryview) -> Any:
        is_here = threading.get_ident() == self.here
        (self.by_itself if is_here else self.beside).append(header.base_offset)
        if not is_here:
            assert self.may_go.wait(20.0)
        return self._do(header, data)


def _end_jobs(queue: Any) -> None:
    """Wait until both threads have done what was asked of them: it would count in the next test."""
    both = threading.Barrier(3)
    last = SimpleNamespace(_claim=SimpleNamespace(setdefault=lambda *_: both.wait(20.0)))
    for _ in range(2):
        queue.put((last, None, None))
    both.wait(20.0)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[Opened]:
    """A pool of two threads of the test's own."""
    found = Opened()
    monkeypatch.setattr(compression, "THREADS", 2)
    monkeypatch.setattr(record_batch, "body_of", found.body_of)
    fetched_batch._pool.cache_clear()
    yield found
    found.may_go.set()
    if fetched_batch._pool.cache_info().currsize and (queue := fetched_batch._pool()) is not None:
        _end_jobs(queue)
    fetched_batch._pool.cache_clear()


@pytest.fixture
def bench(opened: Opened) -> Bench:
    return Bench()


def chunk_of(count: int, letter: bytes = b"x") -> bytes:
    return b"".join(large(200 * number, letter) for number in range(count))


def test_what_arrives_is_decompressed_beside_the_application(bench: Bench, opened: Opened) -> None:
    bench.reading(ZERO, ONE, TWO)
    bench.fetched(*[chunk_of(4)] * 3)
    eventually(lambda: len(opened.beside) == 12)
    turns = []
    while some := bench.take(ALL):
        turns.append((some[0].partition, some[0].offset, len(some)))
    assert turns == [(number, 200 * turn, 200) for turn in range(4) for number in range(3)]
    assert sorted(opened.beside) == sorted([0, 200, 400, 600] * 3)
    assert opened.by_itself == []


def test_no_more_is_decompressed_than_the_buffer_may_hold(opened: Opened) -> None:
    bench = Bench(buffer_bytes=3 * BODY + 10_000)
    bench.reading()
    bench.fetched(chunk_of(6))
    assert len(bench.take(ALL)) == 200
    eventually(lambda: len(opened.beside + opened.by_itself) == 4)
    assert len(bench.take(ALL)) == 200
    eventually(lambda: len(opened.beside + opened.by_itself) == 5)
    assert [record.offset for record in bench.everything()] == list(range(400, 1_200))


def test_a_buffer_that_is_full_of_open_bytes_is_not_filled_further(opened: Opened) -> None:
    bench = Bench(buffer_bytes=2 * BODY)
    bench.reading()
    bench.fetched(chunk_of(4))
    bench.poll()
    assert not bench.cluster.asked
    assert len(bench.take(ALL)) == len(bench.take(ALL)) == len(bench.take(ALL)) == 200
    bench.poll()
    assert len(bench.cluster.asked) == 1


def test_a_body_larger_than_the_buffer_is_opened_when_its_turn_comes(opened: Opened) -> None:
    bench = Bench(buffer_bytes=BODY // 2)
    bench.reading()
    bench.fetched(chunk_of(2))
    assert [record.offset for record in bench.everything()] == list(range(400))
    assert (opened.beside, opened.by_itself) == ([], [0, 200])


def test_a_batch_whose_job_has_not_begun_is_opened_by_the_application(
    bench: Bench, opened: Opened
) -> None:
    opened.may_go.clear()
    other = Bench()
    other.reading()
    other.fetched(chunk_of(2))
    eventually(lambda: len(opened.beside) == 2)
    bench.reading()
    bench.fetched(chunk_of(3))
    assert [record.offset for record in bench.everything()] == list(range(600))
    assert opened.by_itself == [0, 200, 400]
    opened.may_go.set()
    assert len(other.everything()) == 400
    assert len(opened.beside) == 2


def test_few_bytes_and_a_single_processor_are_not_worth_a_thread(
    bench: Bench, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.reading()
    bench.fetched(a_batch(0, *[b"small"] * 10))
    assert len(bench.everything()) == 10
    monkeypatch.setattr(compression, "THREADS", 1)
    bench.poll()
    bench.fetched(large(200, b"x"))
    assert len(bench.everything()) == 200
    assert (opened.beside, opened.by_itself) == ([], [0, 200])


def test_batches_of_a_few_kilobytes_wake_no_thread(bench: Bench, opened: Opened) -> None:
    batches = [in_zstd(40 * number, b"x", 40) for number in range(30)]
    assert all(8_000 < len(batch) < 10_000 for batch in batches)
    bench.reading(ZERO, ONE, TWO)
    bench.fetched(*[b"".join(batches)] * 3)
    assert len(bench.everything()) == 3 * 30 * 40
    assert opened.beside == []
    assert not fetched_batch._pool.cache_info().currsize


@pytest.mark.parametrize("how", ["seek", "remove"])
def test_what_is_decompressed_when_a_partition_goes_elsewhere_is_not_handed_out(
    bench: Bench, opened: Opened, how: str
) -> None:
    opened.may_go.clear()
    bench.reading(ZERO, ONE)
    bench.fetched(chunk_of(3, b"a"), chunk_of(3, b"a"))
    eventually(lambda: len(opened.beside) == 2)
    if how == "seek":
        bench.fetcher.seek(ZERO, 200)
    else:
        bench.fetcher.remove(ZERO)
        bench.fetcher.add(ZERO, 200)
    opened.may_go.set()
    bench.poll()
    later = b"".join(large(200 * number, b"b") for number in (1, 2, 3))
    asked = bench.cluster.next()
    bench.cluster.answer(
        asked, *[b"" if each.partition else later for each in asked.request.entries]
    )
    bench.poll()
    records = bench.everything()
    for number, last, letter in ((0, 800, b"b"), (1, 600, b"a")):
        some = [record for record in records if record.partition == number]
        assert [record.offset for record in some] == list(range(200 * (1 - number), last))
        assert {(record.value or b"")[:1] for record in some} == {letter}
    # What had not begun was not begun any more: two of three of the first partition's, at most.
    assert len(opened.beside + opened.by_itself) <= 2 + 3 + 3
    assert bench.fetcher._budget.used == 0


def test_a_paused_partition_keeps_what_is_open_and_hands_it_out_later(
    bench: Bench, opened: Opened
) -> None:
    bench.reading(ZERO, ONE)
    bench.fetched(*[chunk_of(2)] * 2)
    bench.fetcher.pause(ONE, True)
    assert {record.partition for record in bench.everything()} == {0}
    bench.fetcher.pause(ONE, False)
    assert [record.offset for record in bench.everything()] == list(range(400))
    assert len(opened.beside + opened.by_itself) == 4


def test_an_illegible_body_is_told_where_it_is(bench: Bench) -> None:
    bench.reading()
    bench.fetched(chunk_of(3) + spoiled_body(large(600, b"x")) + large(800, b"x"))
    assert [record.offset for record in bench.everything()] == list(range(600))
    with pytest.raises(CorruptBatch, match="t-0, batch at 600"):
        bench.fetcher.check()
    assert bench.fetcher.position(ZERO) == 600


@pytest.mark.parametrize("declared", [MAX_BODY_BYTES + 1, 2**40, 2**64 - 1])
def test_a_body_that_declares_too_much_takes_no_room_and_is_told_at_its_turn(
    bench: Bench, declared: int
) -> None:
    frame = (0xFD2FB528).to_bytes(4, "little") + b"\xe0" + declared.to_bytes(8, "little")
    bomb = with_body(large(200, b"x"), frame + bytes(5_000))
    bench.reading()
    bench.fetched(large(0, b"x") + bomb)
    assert bench.fetcher._budget.used < BODY + 10_000
    assert len(bench.everything()) == 200
    with pytest.raises(CorruptBatch, match="t-0, batch at 200"):
        bench.fetcher.check()


def test_without_another_thread_everything_is_decompressed_here(
    bench: Bench, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    bench.reading()
    bench.fetched(chunk_of(5))
    assert [record.offset for record in bench.everything()] == list(range(1_000))
    assert opened.by_itself == [0, 200, 400, 600, 800]


def test_without_memory_beside_the_application_it_is_tried_again_here(
    bench: Bench, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(header: batch_header.BatchHeader, data: memoryview) -> Any:
        if threading.get_ident() != opened.here:
            raise MemoryError
        return opened.body_of(header, data)

    monkeypatch.setattr(record_batch, "body_of", refuse)
    bench.reading()
    bench.fetched(chunk_of(6))
    assert [record.offset for record in bench.everything()] == list(range(1_200))


def test_memory_is_kept_in_processes_that_decompress_ahead_and_no_others(
    bench: Bench, opened: Opened
) -> None:
    keep_freed_memory.cache_clear()
    bench.reading()
    bench.fetched(a_batch(0, *[b"small"] * 200))
    assert len(bench.everything()) == 200
    assert not keep_freed_memory.cache_info().currsize
    bench.poll()
    bench.fetched(b"".join(large(200 * number, b"x") for number in range(1, 6)))
    assert len(bench.everything()) == 1_000
    assert keep_freed_memory.cache_info().currsize


def opens_a_batch() -> None:
    data = memoryview(large(0, b"x"))
    batch = FetchedBatch(batch_header.check(data), data)
    batch.open_ahead()
    eventually(lambda: batch.ahead is not None and batch.ahead.done())
    assert HEADER_BYTES + len(batch.body()) == batch.size > BODY


def test_a_forked_child_has_threads_of_its_own(opened: Opened) -> None:
    opens_a_batch()
    child = multiprocessing.get_context("fork").Process(target=opens_a_batch)
    child.start()
    child.join(30.0)
    assert child.exitcode == 0


def test_takes_seeks_and_pauses_at_random_hand_out_what_is_at_each_position(
    opened: Opened,
) -> None:
    seed = new_seed()
    chance = random.Random(seed)
    every = (ZERO, ONE, TWO, THREE)
    batches = {
        partition: [large(200 * number, b"%d" % partition.partition) for number in range(6)]
        for partition in every
    }
    bench = Bench()
    bench.reading(*every)
    expected = dict.fromkeys(every, 0)
    paused: set[TopicPartition] = set()
    for _ in range(200):
        for asked in list(bench.cluster.asked):
            bench.cluster.asked.remove(asked)
            chunks = [
                b"".join(batches[TopicPartition("t", entry.partition)][entry.offset // 200 :])
                for entry in asked.request.entries
            ]
            bench.cluster.answer(asked, *chunks)
        bench.poll()
        partition = chance.choice(every)
        match chance.randrange(10):
            case 0:
                expected[partition] = chance.randrange(1_200)
                bench.fetcher.seek(partition, expected[partition])
            case 1:
                bench.fetcher.pause(partition, partition not in paused)
                paused ^= {partition}
            case _:
                for record in bench.take(chance.choice((50, ALL))):
                    assert record.topic_partition not in paused
                    assert record.offset == expected[record.topic_partition]
                    assert (record.value or b"")[:1] == b"%d" % record.partition
                    expected[record.topic_partition] += 1
