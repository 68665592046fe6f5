"""What a partition's log takes, what it refuses, and how it is laid out."""

import random
import shutil
from pathlib import Path

import pytest
from crc32c import crc32c

from folkmoot.brokers.storage.log import Appended
from folkmoot.brokers.storage.segment_index import SegmentIndex
from folkmoot.coordination.topic_config import LogConfig
from folkmoot.protocol import batch_header, record_batch
from folkmoot.protocol.columns import Columns
from folkmoot.protocol.errors import (
    BatchTooLarge,
    ClosedError,
    CorruptBatch,
    FolkmootError,
    InvalidRequest,
    OffsetOutOfRange,
    UnsupportedCodec,
)
from tests.brokers.batches import (
    NAME,
    NOW,
    ONE_SEGMENT,
    SMALL,
    a_batch,
    append,
    expected,
    flush,
    make_log,
    random_batch,
    read_all,
    reopened,
    values_of,
)
from tests.processes import open_below


def with_a_gap() -> bytes:
    return record_batch.encode(Columns(2, None, [b"a", b"b"], NOW, offsets=[0, 5]), 0)


def with_codec(number: int) -> bytes:
    data = bytearray(a_batch(b"a"))
    data[39] = number
    data[32:36] = crc32c(data[36:]).to_bytes(4, "big")
    return bytes(data)


def control() -> bytes:
    """As only a broker writes it."""
    data = bytearray(a_batch(b"commit"))
    data[39] |= 1 << 4
    data[32:36] = crc32c(data[36:]).to_bytes(4, "big")
    return bytes(data)


def flipped(data: bytes, position: int) -> bytes:
    changed = bytearray(data)
    changed[position] ^= 1
    return bytes(changed)


def test_the_leader_stamps_its_part_and_leaves_the_rest_as_it_came(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    append(log, a_batch(b"a", b"b"))
    sent = a_batch(b"c")
    assert append(log, sent) == [2]
    stored = log.read(2, 1000)
    header = batch_header.check(stored)
    assert (header.base_offset, header.leader_epoch, header.append_time) == (2, 3, NOW)
    assert stored[batch_header.LEADER_BYTES :] == sent[batch_header.LEADER_BYTES :]
    log.close()


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (b"", CorruptBatch),
        (a_batch(b"a")[:-1], CorruptBatch),
        (a_batch(b"a") + b"x", CorruptBatch),
        (flipped(a_batch(b"a"), 90), CorruptBatch),
        (flipped(a_batch(b"a"), 3), CorruptBatch),
        (a_batch(b"a" * 5000), BatchTooLarge),
        (with_a_gap(), InvalidRequest),
        (control(), InvalidRequest),
        *((with_codec(unknown), UnsupportedCodec) for unknown in range(5, 8)),
    ],
)
def test_a_bad_batch_is_refused_and_those_beside_it_are_appended(
    tmp_path: Path, bad: bytes, error: type[FolkmootError]
) -> None:
    log = make_log(tmp_path)
    append(log, a_batch(b"before"))
    first, refused, second = log.append_as_leader([a_batch(b"one"), bad, a_batch(b"two")], NOW, 3)
    assert (first, second) == (Appended(1), Appended(2))
    assert type(refused) is error
    log.advance_high_watermark(log.log_end)
    assert read_all(log) == [(0, b"before"), (1, b"one"), (2, b"two")]
    log.close()


def test_appending_no_batch_changes_nothing(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    assert append(log) == []
    assert log.close() is None
    assert list(log.directory.iterdir()) == []


def test_any_bytes_like_object_can_be_appended(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    data = a_batch(b"a")
    append(log, data, bytearray(data), memoryview(data))
    assert read_all(log) == [(0, b"a"), (1, b"a"), (2, b"a")]
    log.close()


def test_a_full_segment_is_followed_by_one_named_by_its_first_offset(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    batches = [a_batch(bytes([n]) * 300) for n in range(20)]
    for each in batches:
        append(log, each)
    names = sorted(path.name for path in log.directory.glob("*.log"))
    assert names[:2] == ["00000000000000000000.log", "00000000000000000005.log"]
    assert all(path.stat().st_size <= SMALL.segment_bytes for path in log.directory.iterdir())
    assert len(log.segments) == len(names) == 4
    for segment in log.segments:  # the file of an index is written when its segment is sealed
        assert segment.index_path.exists() == segment.sealed
        if segment.sealed:
            data = segment.index_path.read_bytes()
            index = SegmentIndex.decode(data, segment.base_offset, 256, segment.size)
            assert index is not None
            assert len(list(index.entries_after(0))) == 4
    assert read_all(log) == expected(batches)
    log.close()


def test_the_batches_of_one_call_stay_in_one_segment_however_many(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    batches = [random_batch(random.Random(n)) for n in range(1200)]
    append(log, batches[0])
    append(log, *batches[1:])
    assert len(log.segments) == 2
    assert read_all(log) == expected(batches)
    append(log, a_batch(b"next"))
    assert len(log.segments) == 3
    log.close()


def test_an_offset_beyond_the_end_or_before_the_start_is_out_of_range(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    assert len(log.read(0, 100)) == 0
    with pytest.raises(OffsetOutOfRange, match=r"flights-0 has offsets 0 to 0, not 1"):
        log.read(1, 100)
    log.close()


def test_a_closed_log_neither_reads_nor_appends(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    append(log, a_batch(b"a"))
    log.close()
    with pytest.raises(ClosedError):
        log.read(0, 100)
    with pytest.raises(ClosedError):
        append(log, a_batch(b"b"))


def test_a_chunk_read_stays_as_it_was_when_the_log_goes_on_and_is_deleted(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    append(log, a_batch(b"a"))
    chunk = log.read(0, 1000)
    for _ in range(20):
        append(log, a_batch(b"b" * 200))
    log.abandon()
    shutil.rmtree(log.directory)
    assert values_of(chunk) == [(0, b"a")]


def test_files_are_opened_only_when_something_is_asked_of_them(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    for _ in range(20):
        append(log, a_batch(b"b" * 300))
    flush(log)
    point = log.recovery_point
    log.abandon()
    again = reopened(tmp_path, point=point)
    assert open_below(tmp_path) == []
    again.read(0, 100)
    assert {path.stem for path in open_below(tmp_path)} == {f"{0:020}"}
    again.close()
    assert open_below(tmp_path) == []


def test_segment_settings_may_change_between_two_starts(tmp_path: Path) -> None:
    log = make_log(tmp_path, ONE_SEGMENT)
    source = random.Random(5)
    batches = [random_batch(source) for _ in range(100)]
    for each in batches[:50]:
        append(log, each)
    end = log.close()
    finer = LogConfig(segment_bytes=100_000, index_interval_bytes=1)
    log = reopened(tmp_path, finer)
    assert end is not None
    for each in batches[50:]:
        append(log, each)
    assert read_all(log) == expected(batches)
    assert log.name == NAME
    log.close()
