"""What a segment's reads cost, and where they begin and end."""

import os
import random
from pathlib import Path

import pytest

from folkmoot.brokers.storage.segment import SegmentName
from folkmoot.protocol.batch_header import MAX_OFFSET
from tests.brokers.batches import (
    ONE_SEGMENT,
    a_batch,
    append,
    expected,
    make_log,
    random_batch,
    read_all,
    reopened,
    values_of,
)


class CountedReads:
    """Stands for `os.pread` and counts, those of indexes left out."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = 0
        self._real = os.pread
        monkeypatch.setattr("folkmoot.brokers.storage.segment.os.pread", self)

    def __call__(self, fd: int, count: int, position: int) -> bytes:
        self.calls += os.readlink(f"/proc/self/fd/{fd}").endswith(".log")
        return self._real(fd, count, position)


def test_one_who_reads_on_costs_one_system_call_a_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = make_log(tmp_path, ONE_SEGMENT)
    source = random.Random(23)
    batches = [random_batch(source) for _ in range(500)]
    for each in batches:
        append(log, each)
    counted = CountedReads(monkeypatch)
    offset, reads, found = 0, 0, []
    while offset < log.log_end:
        found += values_of(log.read(offset, 1000))
        offset, reads = found[-1][0] + 1, reads + 1
        assert counted.calls == reads
    assert found == expected(batches)
    # At the end of the log too, where records come in between.
    for number in range(20):
        append(log, a_batch(bytes([number])))
        assert values_of(log.read(log.log_end - 1, 1000)) == [(log.log_end - 1, bytes([number]))]
    assert counted.calls == reads + 20
    log.close()


def test_any_offset_costs_one_stretch_of_headers_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = make_log(tmp_path, ONE_SEGMENT)
    source = random.Random(29)
    for _ in range(500):
        append(log, random_batch(source))
    counted = CountedReads(monkeypatch)
    for _ in range(200):
        counted.calls = 0
        offset = source.randrange(log.log_end)
        assert values_of(log.read(offset, 1000))[0][0] <= offset
        assert counted.calls <= 3
    log.close()


@pytest.mark.parametrize("index_interval", ["sparse", "dense"])
def test_a_chunk_ends_with_the_last_batch_that_fits(tmp_path: Path, index_interval: str) -> None:
    log = make_log(tmp_path, ONE_SEGMENT)
    length = 300 if index_interval == "dense" else 90
    values = [bytes(length) for _ in range(30)]
    size = len(a_batch(values[0]))
    for value in values:
        append(log, a_batch(value))
    for start in (0, 7):
        for max_bytes in range(4 * size + 2):
            chunk = log.read(start, max_bytes)
            assert len(chunk) == max(1, max_bytes // size) * size
            assert values_of(chunk)[0][0] == start
    log.close()


def test_a_batch_larger_than_asked_for_comes_whole(tmp_path: Path) -> None:
    log = make_log(tmp_path, ONE_SEGMENT)
    append(log, a_batch(b"small"), a_batch(b"L" * 200_000), a_batch(b"small"))
    for max_bytes in (0, 1, 83, 84, 5000, 200_000):
        assert values_of(log.read(1, max_bytes)) == [(1, b"L" * 200_000)]
    assert [offset for offset, _ in values_of(log.read(0, 210_000))] == [0, 1, 2]
    log.close()


def test_an_append_is_one_system_call_for_all_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = make_log(tmp_path, ONE_SEGMENT)
    calls = []
    real = os.pwritev

    def counted(fd: int, parts: list[bytes], position: int) -> int:
        calls.append(len(parts))
        return real(fd, parts, position)

    monkeypatch.setattr("folkmoot.brokers.storage.files.atomic_file.os.pwritev", counted)
    append(log, *[a_batch(b"a")] * 100)
    append(log, *[a_batch(b"b")] * 1000)
    # As many as the kernel takes at once.
    assert calls == [200, 1024, 976]
    assert len(values_of(log.read(0, 10**6))) == 1100
    log.close()


def test_a_sealed_segment_whose_index_has_zeros_behind_it_is_read(tmp_path: Path) -> None:
    log = make_log(tmp_path / "one")
    batches = [a_batch(bytes([n]) * 100) for n in range(60)]
    for each in batches:
        append(log, each)
    log.close()
    for index in log.directory.glob("*.index"):
        index.write_bytes(index.read_bytes() + bytes(4096))
    again = reopened(tmp_path / "one")
    assert read_all(again) == expected(batches)
    again.close()


def test_a_segment_may_begin_at_the_last_offset_that_there_can_be_and_not_behind_it() -> None:
    assert SegmentName.parse(f"{MAX_OFFSET:020}.log") == SegmentName(MAX_OFFSET)
    assert SegmentName.parse(f"{MAX_OFFSET + 1:020}.log") is None
