"""Batches whose turn comes next are decompressed together, and those that follow beside the application."""

import random
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from folkmoot.consumers.fetch import batch_rotation
from folkmoot.network.memory import keep_freed_memory
from folkmoot.protocol import compression
from folkmoot.protocol.errors import CorruptBatch
from folkmoot.protocol.records import TopicPartition
from tests.consumers.fake_cluster import a_batch
from tests.consumers.fetching import ALL, ONE, TWO, ZERO, Bench, large, spoiled_body
from tests.seeds import new_seed
from tests.waiting import eventually

THREE = TopicPartition("t", 3)


@pytest.fixture
def bench() -> Bench:
    return Bench()


# -- together -------------------------------------------------------------------------------------


@pytest.fixture
def opened_together(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bodies were opened at once, each time."""
    monkeypatch.setattr(compression, "THREADS", 2)
    numbers: list[int] = []
    decompress_together = compression.decompress_together

    def counting(bodies: Any, threads: int) -> Any:
        numbers.append(len(bodies))
        return decompress_together(bodies, threads)

    monkeypatch.setattr(compression, "decompress_together", counting)
    return numbers


def test_batches_whose_turn_comes_next_are_opened_together(
    bench: Bench, opened_together: list[int]
) -> None:
    bench.reading(ZERO, ONE, TWO)
    chunk = b"".join(large(200 * number, b"%d" % number) for number in range(3))
    bench.fetched(chunk, chunk, a_batch(0, b"small"))
    records = bench.everything()
    assert opened_together == [6]
    found = [(each.partition, each.offset, (each.value or b"")[:1]) for each in records]
    large_ones = [found[start : start + 200] for start in (0, 200, 401, 601, 801, 1001)]
    for turn, some in enumerate(large_ones):
        number, partition = divmod(turn, 2)
        assert some == [
            (partition, offset, b"%d" % number)
            for offset in range(200 * number, 200 * number + 200)
        ]
    assert [records[400].value, len(records)] == [b"small", 1201]


def test_what_was_opened_ahead_is_forgotten_with_a_seek_and_a_pause(
    bench: Bench, opened_together: list[int]
) -> None:
    bench.reading(ZERO, ONE)
    chunk = b"".join(large(200 * number, b"%d" % number) for number in range(3))
    bench.fetched(chunk, chunk)
    assert len(bench.take(ALL)) == 200
    bench.fetcher.pause(ONE, True)
    bench.fetcher.seek(ZERO, 200)
    bench.poll()
    bench.fetched(large(200, b"x"))
    assert [record.value[:1] for record in bench.everything() if record.value] == [b"x"] * 200
    bench.fetcher.pause(ONE, False)
    assert [record.offset for record in bench.everything()] == list(range(600))
    assert opened_together == [6, 3]


def test_an_illegible_body_among_those_opened_together_is_told_where_it_is(
    bench: Bench, opened_together: list[int]
) -> None:
    good, after = large(0, b"a"), large(400, b"c")
    bad = spoiled_body(large(200, b"b"))
    bench.reading(ZERO, ONE)
    bench.fetched(good + bad + after, good + large(200, b"b"))
    offsets = [(record.partition, record.offset) for record in bench.everything()]
    assert sorted(offsets) == [
        *((0, offset) for offset in range(200)),
        *((1, offset) for offset in range(400)),
    ]
    with pytest.raises(CorruptBatch, match="t-0, batch at 200"):
        bench.fetcher.check()
    assert opened_together in ([], [2])


# -- ahead ----------------------------------------------------------------------------------------


class Threads:
    """Who decompressed how many batches at once; others than this thread wait for `may_go`."""

    def __init__(self) -> None:
        self.here = threading.get_ident()
        self.counts: list[tuple[bool, int]] = []
        """Whether beside this thread, and how many."""
        self.may_go = threading.Event()
        self.may_go.set()
        self._do = compression.decompress_together

    def decompress_together(self, bodies: Sequence[Any], threads: int) -> Any:
        is_beside = threading.get_ident() != self.here
        self.counts.append((is_beside, len(bodies)))
        if is_beside:
            assert self.may_go.wait(20.0)
        return self._do(bodies, threads)


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Threads:
    """Two batches at once, and none by itself."""
    found = Threads()
    monkeypatch.setattr(compression, "THREADS", 2)
    monkeypatch.setattr(compression, "TOGETHER_BYTES", 400_000)
    monkeypatch.setattr(compression, "decompress_together", found.decompress_together)
    return found


def chunk_of(count: int, letter: bytes = b"x") -> bytes:
    return b"".join(large(200 * number, letter) for number in range(count))


def test_what_follows_is_decompressed_beside_the_application_in_the_order_of_turns(
    bench: Bench, threads: Threads, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.reading(ZERO, ONE, TWO)
    bench.fetched(*[chunk_of(4)] * 3)
    monkeypatch.setattr(compression, "decompress", None)  # nothing is decompressed by itself
    turns = []
    while some := bench.take(ALL):
        turns.append((some[0].partition, some[0].offset, len(some)))
    assert turns == [(number, 200 * turn, 200) for turn in range(4) for number in range(3)]
    assert threads.counts == [(False, 2)] + [(True, 2)] * 5


def test_nothing_of_a_paused_partition_is_decompressed_ahead(
    bench: Bench, threads: Threads
) -> None:
    bench.reading(ZERO, ONE)
    bench.fetched(*[chunk_of(4)] * 2)
    bench.fetcher.pause(ONE, True)
    assert len(bench.everything()) == 800
    assert sum(count for _, count in threads.counts) == 4


def test_the_application_goes_on_while_what_follows_is_decompressed(
    bench: Bench, threads: Threads
) -> None:
    threads.may_go.clear()
    bench.reading()
    bench.fetched(chunk_of(4))
    assert [len(bench.take(ALL)) for _ in range(2)] == [200, 200]
    eventually(lambda: threads.counts == [(False, 2), (True, 2)])
    threads.may_go.set()
    assert [record.offset for record in bench.everything()] == list(range(400, 800))


def test_as_many_pieces_as_there_are_processors_are_decompressed_at_once_and_no_more(
    bench: Bench, threads: Threads
) -> None:
    threads.may_go.clear()
    bench.reading()
    bench.fetched(chunk_of(12))
    assert len(bench.take(ALL)) == 200
    eventually(lambda: len(threads.counts) == 3)
    assert len(bench.take(ALL)) == 200
    assert threads.counts == [(False, 2), (True, 2), (True, 2)]
    threads.may_go.set()
    assert len(bench.take(ALL)) == 200
    eventually(lambda: len(threads.counts) == 4)
    assert [record.offset for record in bench.everything()] == list(range(600, 2_400))
    assert threads.counts == [(False, 2)] + [(True, 2)] * 5


@pytest.mark.parametrize("how", ["seek", "pause", "remove"])
def test_what_is_decompressed_when_a_partition_goes_elsewhere_is_not_handed_out(
    bench: Bench, threads: Threads, how: str
) -> None:
    threads.may_go.clear()
    bench.reading(ZERO, ONE)
    bench.fetched(chunk_of(3, b"a"), chunk_of(3, b"a"))
    assert {record.partition for _ in range(2) for record in bench.take(ALL)} == {0, 1}
    eventually(lambda: threads.counts[-1] == (True, 2))
    match how:
        case "seek":
            bench.fetcher.seek(ZERO, 200)
        case "pause":
            bench.fetcher.pause(ZERO, True)
        case _:
            bench.fetcher.remove(ZERO)
            bench.fetcher.add(ZERO, 200)
    threads.may_go.set()
    if how != "pause":
        bench.poll()
        later = b"".join(large(200 * number, b"b") for number in (1, 2, 3))
        asked = bench.cluster.next()
        bench.cluster.answer(
            asked, *[b"" if each.partition else later for each in asked.request.entries]
        )
        bench.poll()
    records = bench.everything()
    if how == "pause":
        assert {record.partition for record in records} == {1}
        bench.fetcher.pause(ZERO, False)
        records += bench.everything()
    for number in (0, 1):
        some = [record for record in records if record.partition == number]
        last = 800 if number == 0 and how != "pause" else 600
        assert [record.offset for record in some] == list(range(200, last))
        letter = b"b" if last == 800 else b"a"
        assert {(record.value or b"")[:1] for record in some} == {letter}


def test_an_illegible_body_among_those_decompressed_ahead_is_told_where_it_is(
    bench: Bench, threads: Threads
) -> None:
    bench.reading()
    bench.fetched(chunk_of(3) + spoiled_body(large(600, b"x")) + large(800, b"x"))
    assert [record.offset for record in bench.everything()] == list(range(600))
    with pytest.raises(CorruptBatch, match="t-0, batch at 600"):
        bench.fetcher.check()
    assert bench.fetcher.position(ZERO) == 600


def test_without_another_thread_everything_is_decompressed_here(
    bench: Bench, threads: Threads, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(function: Callable[[], None], arguments: tuple[()]) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(batch_rotation, "start_new_thread", refuse)
    bench.reading()
    bench.fetched(chunk_of(5))
    assert [record.offset for record in bench.everything()] == list(range(1_000))
    assert threads.counts == [(False, 2)] * 2


def test_a_thread_that_is_long_in_beginning_keeps_nobody_waiting(
    bench: Bench, threads: Threads, monkeypatch: pytest.MonkeyPatch
) -> None:
    late: list[Callable[[], None]] = []
    monkeypatch.setattr(
        batch_rotation, "start_new_thread", lambda function, arguments: late.append(function)
    )
    bench.reading()
    bench.fetched(chunk_of(6))
    assert [len(bench.take(ALL)) for _ in range(2)] == [200, 200]  # decompressed with each other
    assert len(late) == 2
    for function in late:
        threading.Thread(target=function).start()
    assert [record.offset for record in bench.everything()] == list(range(400, 1_200))


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_without_memory_for_several_each_is_decompressed_by_itself(
    bench: Bench, threads: Threads, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(bodies: Sequence[Any], number: int) -> Any:
        if threading.get_ident() != threads.here:
            raise MemoryError
        return threads.decompress_together(bodies, number)

    monkeypatch.setattr(compression, "decompress_together", refuse)
    bench.reading()
    bench.fetched(chunk_of(6))
    assert [record.offset for record in bench.everything()] == list(range(1_200))


def test_memory_is_kept_in_processes_that_decompress_ahead_and_no_others(
    bench: Bench, threads: Threads
) -> None:
    keep_freed_memory.cache_clear()
    bench.reading()
    bench.fetched(large(0, b"x"))
    assert len(bench.everything()) == 200
    assert not keep_freed_memory.cache_info().currsize
    bench.poll()
    bench.fetched(b"".join(large(200 * number, b"x") for number in range(1, 6)))
    assert len(bench.everything()) == 1_000
    assert any(is_beside for is_beside, _ in threads.counts)
    assert keep_freed_memory.cache_info().currsize


def test_takes_seeks_and_pauses_at_random_hand_out_what_is_at_each_position(
    threads: Threads,
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
