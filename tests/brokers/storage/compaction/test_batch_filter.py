"""What compaction may not do: bring deleted keys back, mistake one topic for another, take for ever."""

import struct
import time
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from folkmoot.brokers.storage.compaction.batch_filter import BatchFilter
from folkmoot.brokers.storage.compaction.cleaning_pass import CleanerCheckpoint
from folkmoot.brokers.storage.segment import Damage
from folkmoot.protocol import batch_header, record_batch
from folkmoot.protocol.columns import Columns
from folkmoot.protocol.compression import Codec
from folkmoot.protocol.errors import CorruptBatch, UnsupportedCodec
from tests.brokers.batches import NOW
from tests.brokers.compaction import COMPACT, Upkept, keyed, records_in, rows
from tests.brokers.hands import create

CONFIG = replace(COMPACT, segment_bytes=512, delete_retention=60.0)


def with_a_deleted_key(data: Path, codec: Codec = Codec.NONE) -> Upkept:
    """`k` is written in the first segment and deleted in a later one."""
    upkept = Upkept(data, CONFIG)
    upkept.append(keyed((b"k", b"v" * 400), codec=codec))
    upkept.append(keyed((b"k", None)))
    fill(upkept, b"first")
    upkept.checkpoint()
    return upkept


def fill(upkept: Upkept, key: bytes) -> None:
    for number in range(5):
        upkept.append(keyed((b"%b-%d" % (key, number), b"v" * 400)))


def compact_until_tombstones_could_go(upkept: Upkept) -> None:
    for key in (b"second", b"third"):
        upkept.compact()
        upkept.later(100.0)
        fill(upkept, key)
    upkept.compact()


def values_of(upkept: Upkept, key: bytes) -> list[bytes | None]:
    return [value for _, found, value in rows(records_in(upkept.log)) if found == key]


def test_a_tombstone_stays_behind_a_damaged_segment(tmp_path: Path) -> None:
    upkept = with_a_deleted_key(tmp_path)
    first = upkept.log.sealed_segments[0]
    first.mark(Damage(first.end_offset, first.end_offset, first.size, first.size))
    compact_until_tombstones_could_go(upkept)
    assert values_of(upkept, b"k") == [b"v" * 400, None]
    steps = 0
    while upkept.step() == 0.0:
        steps += 1
        assert steps < 100, "it tries again and again"
    upkept.logs.close()


def test_a_tombstone_stays_behind_a_batch_that_cannot_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_it = record_batch.columns_of

    def without_gzip(header: batch_header.BatchHeader, data: memoryview) -> Columns:
        if header.codec == Codec.GZIP:
            raise UnsupportedCodec("its library is not installed")
        return open_it(header, data)

    upkept = with_a_deleted_key(tmp_path, Codec.GZIP)
    with monkeypatch.context() as patch:
        patch.setattr(
            "folkmoot.brokers.storage.compaction.batch_filter.record_batch.columns_of", without_gzip
        )
        compact_until_tombstones_could_go(upkept)
    assert values_of(upkept, b"k") == [b"v" * 400, None]
    upkept.logs.close()


def test_without_either_the_key_goes_as_a_whole(tmp_path: Path) -> None:
    upkept = with_a_deleted_key(tmp_path)
    compact_until_tombstones_could_go(upkept)
    assert values_of(upkept, b"k") == []
    upkept.logs.close()


def test_a_topic_created_anew_during_a_pass_does_not_inherit_its_progress(tmp_path: Path) -> None:
    for steps in range(12):
        upkept = Upkept(tmp_path / str(steps), CONFIG)
        for number in range(20):
            upkept.append(keyed((b"k%d" % (number % 2), b"v" * 400)))
        upkept.checkpoint()
        for _ in range(steps):
            upkept.step()
        upkept.cleaner.task(upkept.now)  # what it hands to the background comes too late
        upkept.logs.delete_topic("first")
        upkept.logs.deletion_task(upkept.now)
        upkept.log = create(upkept.logs, "flights", "second", 0)
        upkept.logs.configure("flights", "second", {})
        for _ in range(10):
            upkept.step()
        assert upkept.compacted() == CleanerCheckpoint()
        upkept.hands.work_all()
        upkept.logs.close()
        assert [path.name for path in upkept.data.iterdir() if path.is_dir()] == ["second-0"]


def test_retention_by_size_goes_on_behind_segments_that_compaction_has_emptied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("folkmoot.brokers.storage.compaction.cleaning_pass.MOST_OFFSETS", 20)
    both = {"cleanup_policy": "compact,delete", "retention": None, "retention_bytes": 1500}
    config = replace(CONFIG, **both)  # type: ignore[arg-type]
    upkept = Upkept(tmp_path, config)
    for _ in range(70):
        upkept.append(keyed((b"k", b"v" * 400)))
    upkept.compact()
    assert upkept.log.sealed_segments[0].size == 0
    fill(upkept, b"new")
    upkept.expire()
    assert 1500 <= upkept.log.size < 2500
    assert upkept.log.read(upkept.log.log_start, 1)
    upkept.logs.close()


def test_one_long_key_of_many_records_is_hashed_once() -> None:
    """Such a batch has a few hundred bytes: whoever sends it is not to occupy the background for hours."""
    columns = Columns(100_000, [b"k" * 1_000_000] * 100_000, [b"v"] * 100_000, NOW)
    data = memoryview(record_batch.encode(columns))
    assert len(data) < 1000
    header = batch_header.check(data)
    keep_last = BatchFilter(1_000_000)
    begun = time.thread_time()
    keep_last.index_keys(header, data, 0)
    kept = keep_last.retain(header, data, 0)
    assert time.thread_time() - begun < 5.0
    found = record_batch.records_of("t", 0, batch_header.check(kept.data), kept.data)
    assert [record.offset for record in found] == [99_999]


def test_a_batch_that_nobody_may_write_stays_as_it_is_and_stops_no_pass(tmp_path: Path) -> None:
    """A producer of its own kind: its header and its body are legal, its timestamps together are not."""
    pack = msgspec.msgpack.encode
    keys, values = b"\x01\x01\x01kj", b"\x01\x01\x0112"
    deltas = struct.pack("<Bqq", 8, 0, 2**62)
    body = pack(((2, keys), (2, values), (2, deltas), (0, None), (0, None)))
    unsigned = batch_header.UnsealedBatch([body], Codec.NONE, 1, 2, 2**61 - 1, 2**61)
    upkept = Upkept(tmp_path)
    upkept.append(batch_header.seal(unsigned, -1, -1, -1))
    for _ in range(60):
        upkept.append(keyed((b"k", b"x" * 60), (b"z", b"y" * 30)))
    before = upkept.log.size
    upkept.compact()
    assert upkept.log.size < before / 2
    assert [record.value for record in records_in(upkept.log, 0)][:2] == [b"1", b"2"]


def test_a_pass_that_ends_with_any_error_gives_up_its_log_and_not_the_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise CorruptBatch("nobody has thought of this")

    upkept = Upkept(tmp_path)
    for _ in range(60):
        upkept.append(keyed((b"k", b"x" * 60), (b"z", b"y" * 30)))
    with monkeypatch.context() as broken:
        broken.setattr(
            "folkmoot.brokers.storage.compaction.batch_filter.BatchFilter.retain", refuse
        )
        upkept.compact()
    assert upkept.log.is_open
    upkept.append(keyed((b"k", b"1")))
