"""Compaction keeps the last record of every key, at its offset, and loses nothing else."""

import os
import random
import time
from dataclasses import replace
from pathlib import Path

import pytest

from folkmoot.brokers.jobs.jobs import Now
from folkmoot.brokers.storage.compaction import batch_filter, cleaning_pass
from folkmoot.brokers.storage.compaction.cleaning_pass import load_checkpoint
from folkmoot.brokers.storage.compaction.log_cleaner import COMPACTION_INTERVAL, LogCleaner
from folkmoot.brokers.storage.notes import NOTES_FILE
from folkmoot.brokers.storage.recovery import CLEANER_CHECKPOINT_FILE
from folkmoot.brokers.storage.segment import SegmentReader
from folkmoot.coordination.topic_config import DAY, LogConfig
from folkmoot.protocol import batch_header, record_batch
from folkmoot.protocol.batch_header import LEADER_BYTES, BatchHeader
from folkmoot.protocol.columns import BinaryColumn, Columns
from folkmoot.protocol.compression import Codec
from folkmoot.protocol.errors import BatchTooLarge, OutOfOrderSequence, UnsupportedCodec
from folkmoot.protocol.records import Headers
from tests.brokers.batches import NOW
from tests.brokers.compaction import COMPACT, Row, Upkept, keyed, last_of_each, records_in, rows
from tests.brokers.hands import create, truncate


def fill(upkept: Upkept, written: list[Row], batches: int, keys: int, seed: int = 1) -> None:
    """Batches of four records with random keys."""
    source = random.Random(f"{seed}-{len(written)}")
    for _ in range(batches):
        some: list[Row] = [
            (b"key-%d" % source.randrange(keys), source.randbytes(source.randrange(60)))
            for _ in range(4)
        ]
        upkept.append(keyed(*some))
        written += some


def active(upkept: Upkept) -> int:
    """Where the segment begins that is written to."""
    return upkept.log.sealed_segments[-1].end_offset


@pytest.mark.parametrize("stop", [None, True, False])
def test_the_last_record_of_each_key_stays_where_it_was(tmp_path: Path, stop: bool | None) -> None:
    upkept = Upkept(tmp_path)
    written: list[Row] = []
    for _ in range(5):
        fill(upkept, written, 60, keys=20)
        before = upkept.log.size
        upkept.compact()
        assert upkept.log.size < before
        if stop is not None:
            upkept.reopen(clean=stop)
        found = records_in(upkept.log)
        assert rows(found) == last_of_each(written, active(upkept))
        assert (upkept.log.log_start, upkept.log.log_end) == (0, len(written))
        assert load_checkpoint(upkept.log.directory).clean_before == active(upkept)
        assert not any(segment.damage for segment in upkept.log.sealed_segments)
    left = {path.suffix for path in upkept.log.directory.iterdir() if path.is_file()}
    assert left == {".log", ".index", ".snapshot", ""}
    assert not [path for path in upkept.log.directory.iterdir() if path.is_dir()]
    found = records_in(upkept.log)
    # Every place can be read from, in a gap or not, and small reads lead to the end as well.
    for offset in range(len(written)):
        chunk = upkept.log.read(offset, 100)
        first, _ = next(batch_header.split(chunk))
        assert first.next_offset > offset
    for max_bytes in (1, 130, 5000):
        assert records_in(upkept.log, max_bytes=max_bytes) == found
    upkept.logs.close()


def test_a_time_is_found_in_a_compacted_log(tmp_path: Path) -> None:
    upkept = Upkept(tmp_path)
    for number in range(200):
        upkept.append(
            keyed((b"k%d" % (number % 7 if number < 190 else 9), b"v" * 50), timestamp=number)
        )
    upkept.compact()
    left = [(record.offset, record.timestamp) for record in records_in(upkept.log)]
    assert len(left) < 60
    for stamp in range(201):
        expected = next((offset for offset, each in left if each >= stamp), 200)
        assert upkept.log.offset_for_time(stamp) == expected
    upkept.logs.close()


def test_what_a_batch_says_of_itself_stays(tmp_path: Path) -> None:
    upkept = Upkept(tmp_path)
    headers: list[Headers] = [(("h", b"%d" % n),) for n in range(6)]
    keys = [b"a", b"b", b"a", b"c", None, b"z"]
    for number, codec in enumerate((Codec.ZSTD, Codec.NONE, Codec.GZIP)):
        columns = Columns(6, keys, [b"value"] * 6, [NOW + n for n in range(6)], headers)
        if number == 1:
            columns = Columns(
                6, BinaryColumn.of(keys), BinaryColumn.of([b"value"] * 6), NOW, headers
            )
        sent = record_batch.encode(
            columns, codec, schema_id=5, producer_id=7, producer_epoch=2, base_sequence=6 * number
        )
        upkept.append(sent)
    for number in range(100):
        upkept.append(keyed((b"z", b"%d" % number * 30)))
    before = dict(enumerate(batch_header.split(upkept.log.read(0, 2000))))
    upkept.compact()
    after = {
        header.base_offset: (header, data)
        for header, data in batch_header.split(upkept.log.read(0, 2000))
    }
    for number, (header, _) in list(before.items())[:3]:
        new, data = after[header.base_offset]
        same = ["base_offset", "leader_epoch", "append_time", "flags", "attributes", "schema_id"]
        same += ["last_offset_delta", "producer_id", "producer_epoch", "base_sequence"]
        assert [getattr(new, name) for name in same] == [getattr(header, name) for name in same]
        found = record_batch.records_of("t", 0, new, data)
        kept = (4,) if number < 2 else (1, 2, 3, 4)
        assert [each.offset - header.base_offset for each in found] == list(kept)
        assert [each.headers for each in found] == [headers[n] for n in kept]
        stamps = [NOW if number == 1 else NOW + n for n in kept]
        assert [each.timestamp for each in found] == stamps
    upkept.logs.close()


def test_a_tombstone_goes_once_readers_had_time_to_see_it(tmp_path: Path) -> None:
    upkept = Upkept(tmp_path)
    upkept.append(keyed((b"gone", b"value"), (b"stays", b"value")))
    upkept.append(keyed((b"gone", None)))
    for number in range(60):
        upkept.append(keyed((b"other", b"%d" % number * 30)))
    upkept.compact()

    def tombstones() -> list[int]:
        return [record.offset for record in records_in(upkept.log) if record.value is None]

    assert tombstones() == [2]
    assert b"gone" not in [r.key for r in records_in(upkept.log) if r.value is not None]
    upkept.later(DAY - 100)
    upkept.compact()
    assert tombstones() == [2]
    upkept.reopen(clean=False)
    # Nothing has been written since: that its time is over is reason enough.
    upkept.later(100)
    upkept.compact()
    assert tombstones() == []
    assert records_in(upkept.log)[0].offset == 1
    assert upkept.compacted().tombstones == 0
    upkept.logs.close()


def test_a_clock_that_is_set_forward_takes_no_tombstone_from_readers(tmp_path: Path) -> None:
    upkept = Upkept(tmp_path)
    upkept.append(keyed((b"gone", b"value"), (b"stays", b"value")))
    upkept.append(keyed((b"gone", None)))
    for number in range(60):
        upkept.append(keyed((b"other", b"%d" % number * 30)))
    upkept.compact()
    upkept.now = Now(upkept.now.monotonic, upkept.now.wall + round(10 * DAY * 1000))
    upkept.compact()
    assert None in [record.value for record in records_in(upkept.log)]
    upkept.later(DAY)
    upkept.compact()
    assert None not in [record.value for record in records_in(upkept.log)], "a day has passed"
    upkept.logs.close()


@pytest.mark.parametrize("why", ["an unclean election", "one, and a restart", "damage in front"])
def test_what_comes_where_a_compacted_log_was_cut_is_compacted_anew(
    tmp_path: Path, why: str
) -> None:
    upkept = Upkept(tmp_path)
    for number in range(200):
        upkept.append(keyed((b"other", b"%d" % number * 30)))
    upkept.compact()
    assert upkept.compacted().clean_before > 100
    upkept.later(2 * DAY)
    if why == "one, and a restart":
        upkept.reopen(clean=True)
        upkept.log.high_watermark = 0  # of a replica it is not known then
    cut = 20
    if why == "damage in front":
        compacted, active = upkept.log.segments[-2:]
        compacted.path.write_bytes(b"rotten" + compacted.path.read_bytes()[6:])
        cut = upkept.log.high_watermark = active.base_offset
    else:
        upkept.log.uncommit(cut, "an unclean election has lost")
    upkept.log.recovery_point = None
    truncate(upkept.log, cut)
    assert upkept.log.log_end <= 20
    upkept.append(keyed((b"gone", b"value")))
    for number in range(20):
        upkept.append(keyed((b"a", b"%d" % number * 30)))
    upkept.append(keyed((b"gone", None)))
    for number in range(200):
        upkept.append(keyed((b"other", b"%d" % number * 30)))
    upkept.compact()
    found = [(record.key, record.value) for record in records_in(upkept.log)]
    assert [key for key, _ in found].count(b"a") == 1
    assert [value for key, value in found if key == b"gone"] == [None]
    upkept.logs.close()


@pytest.mark.parametrize("why", ["a codec's library", "damage"])
def test_what_could_not_be_opened_is_gone_through_once_it_can_before_a_tombstone_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    upkept = Upkept(tmp_path)
    upkept.append(keyed((b"gone", b"value"), (b"a", b"1"), codec=Codec.GZIP))
    for number in range(60):
        upkept.append(keyed((b"other", b"%d" % number * 30)))
    upkept.append(keyed((b"gone", None), (b"a", b"2")))
    for number in range(60):
        upkept.append(keyed((b"other", b"%d" % number * 30)))
    real = record_batch.columns_of

    def without_gzip(header: BatchHeader, data: memoryview) -> Columns:
        if header.codec == Codec.GZIP:
            raise UnsupportedCodec("gzip is not installed")
        return real(header, data)

    first = upkept.log.sealed_segments[0]
    content = first.path.read_bytes()
    with monkeypatch.context() as missing:
        if why == "damage":
            first.path.write_bytes(content[:100] + b"rotten" + content[106:])
        else:
            missing.setattr(record_batch, "columns_of", without_gzip)
        upkept.compact()
        assert upkept.compacted().clean_before == active(upkept)
    if why == "damage":
        first.path.write_bytes(content)
    upkept.reopen(clean=True)
    for _ in range(3):
        upkept.later(2 * DAY)
        upkept.append(*(keyed((b"other", b"%d" % number * 30)) for number in range(60)))
        upkept.compact()
    found = [(record.key, record.value) for record in records_in(upkept.log)]
    assert [row for row in found if row[0] in (b"gone", b"a")] == [(b"a", b"2")]
    upkept.logs.close()


def test_a_tombstone_stays_behind_a_batch_that_stays_though_nothing_new_is_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(header: BatchHeader, columns: Columns) -> bytes:
        raise BatchTooLarge("the offsets that are left take more room than the records gave")

    monkeypatch.setattr(batch_filter, "_rewrite", no_room)
    upkept = Upkept(tmp_path)
    upkept.append(keyed((b"gone", b"value"), (b"stays", b"value")))
    upkept.append(keyed((b"gone", None)))
    for _ in range(4):
        upkept.append(*(keyed((b"other", b"%d" % number * 30)) for number in range(60)))
        upkept.compact()
        upkept.later(2 * DAY)
    found = [record.value for record in records_in(upkept.log) if record.key == b"gone"]
    assert found == [b"value", None]
    upkept.logs.close()


def test_a_tombstone_goes_once_the_batch_that_could_not_be_rewritten_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(header: BatchHeader, columns: Columns) -> bytes:
        raise BatchTooLarge("the offsets that are left take more room than the records gave")

    upkept = Upkept(tmp_path)
    upkept.append(keyed((b"gone", b"value"), (b"stays", b"value")))
    upkept.append(keyed((b"gone", None)))
    with monkeypatch.context() as full:
        full.setattr(batch_filter, "_rewrite", no_room)
        upkept.append(*(keyed((b"other", b"%d" % number * 30)) for number in range(60)))
        upkept.compact()
    upkept.append(keyed((b"gone", None), (b"stays", b"anew")))
    upkept.reopen(clean=True)
    for _ in range(5):
        upkept.append(*(keyed((b"other", b"%d" % number * 30)) for number in range(60)))
        upkept.compact()
        upkept.later(2 * DAY)
    assert [record.offset for record in records_in(upkept.log) if record.key == b"gone"] == []
    upkept.logs.close()


def test_records_without_a_key_and_batches_that_cannot_be_opened_stay(tmp_path: Path) -> None:
    upkept = Upkept(tmp_path)
    written: list[Row] = []
    for number in range(80):
        some: list[Row] = [(None, b"%d" % number * 9), (b"a", b"%d" % number * 9)]
        upkept.append(keyed(*some))
        written += some
    upkept.append(keyed((None, b"all without"), (None, b"keys")))
    written += [(None, b"all without"), (None, b"keys")]
    fill(upkept, written, 60, keys=3)
    upkept.compact()
    assert rows(records_in(upkept.log)) == last_of_each(written, active(upkept))
    upkept.logs.close()


def test_more_keys_than_there_is_memory_for_take_several_passes(tmp_path: Path) -> None:
    upkept = Upkept(tmp_path, memory_bytes=165 * 60)
    written: list[Row] = []
    fill(upkept, written, 150, keys=250)
    passes = []
    upkept.checkpoint()
    while upkept.step() < COMPACTION_INTERVAL:
        done = upkept.compacted().clean_before
        passes += [done] if done not in passes else []
    assert len(passes) > 3
    assert passes == sorted(passes)
    assert rows(records_in(upkept.log)) == last_of_each(written, active(upkept))
    upkept.logs.close()


def test_small_segments_become_one(tmp_path: Path) -> None:
    upkept = Upkept(tmp_path)
    written: list[Row] = []
    fill(upkept, written, 400, keys=5)
    assert len(upkept.log.segments) > 20
    upkept.compact()
    assert len(upkept.log.segments) <= 3
    assert rows(records_in(upkept.log)) == last_of_each(written, active(upkept))
    upkept.logs.close()


def test_a_log_is_compacted_when_enough_of_it_is_new_or_has_waited_too_long(tmp_path: Path) -> None:
    config = replace(COMPACT, min_cleanable_dirty_ratio=0.5, max_compaction_lag=3600.0)
    upkept = Upkept(tmp_path, config)
    written: list[Row] = []
    fill(upkept, written, 200, keys=200)
    upkept.compact()
    first = upkept.compacted().clean_before
    assert first > 0
    fill(upkept, written, 30, keys=200)
    upkept.compact()
    assert upkept.compacted().clean_before == first
    upkept.later(3600.0)
    upkept.compact()
    assert upkept.compacted().clean_before > first
    upkept.logs.close()


def test_what_is_young_is_left_alone(tmp_path: Path) -> None:
    upkept = Upkept(tmp_path, replace(COMPACT, min_compaction_lag=600.0))
    written: list[Row] = []
    fill(upkept, written, 100, keys=5)
    upkept.compact()
    assert upkept.compacted().clean_before == 0
    boundary = active(upkept)
    upkept.later(300.0)
    fill(upkept, written, 100, keys=5)
    upkept.later(300.0)
    upkept.compact()
    assert 0 < upkept.compacted().clean_before <= boundary + 40
    assert rows(records_in(upkept.log)) == last_of_each(written, upkept.compacted().clean_before)
    upkept.logs.close()


def test_what_was_written_while_the_clock_was_ahead_is_compacted_with_what_is_behind_it(
    tmp_path: Path,
) -> None:
    years = 10 * 365 * DAY
    upkept = Upkept(tmp_path, replace(COMPACT, min_compaction_lag=600.0))
    written: list[Row] = []
    upkept.now = Now(upkept.now.monotonic, upkept.now.wall + round(years * 1000))
    fill(upkept, written, 100, keys=5)
    upkept.now = Now(upkept.now.monotonic, upkept.now.wall - round(years * 1000))
    fill(upkept, written, 100, keys=5)
    upkept.compact()
    assert upkept.compacted().clean_before == 0
    upkept.later(600.0)
    fill(upkept, written, 1, keys=5)
    upkept.compact()
    assert upkept.compacted().clean_before > 100
    assert rows(records_in(upkept.log)) == last_of_each(written, upkept.compacted().clean_before)
    upkept.logs.close()


def test_nothing_is_compacted_that_a_power_cut_could_take(tmp_path: Path) -> None:
    upkept = Upkept(tmp_path)
    written: list[Row] = []
    fill(upkept, written, 100, keys=5)
    for _ in range(50):
        upkept.step()  # without a checkpoint
    assert upkept.compacted().clean_before == 0
    assert rows(records_in(upkept.log)) == [(n, *row) for n, row in enumerate(written)]
    upkept.logs.close()


def test_only_topics_that_ask_for_it_are_compacted_and_their_old_segments_stay(
    tmp_path: Path,
) -> None:
    upkept = Upkept(tmp_path, replace(COMPACT, cleanup_policy="delete", retention=60.0))
    written: list[Row] = []
    fill(upkept, written, 100, keys=5)
    upkept.compact()
    assert upkept.compacted().clean_before == 0
    upkept.logs.configure("flights", "first", {"cleanup_policy": "compact"})
    upkept.compact()
    assert upkept.compacted().clean_before > 0
    upkept.later(3600.0)
    upkept.expire()
    assert upkept.log.log_start == 0
    upkept.logs.configure("flights", "first", {"cleanup_policy": "compact,delete"})
    upkept.expire()
    assert upkept.log.log_start == upkept.log.log_end
    upkept.logs.close()


def test_a_damaged_segment_is_left_as_it_is(tmp_path: Path) -> None:
    upkept = Upkept(tmp_path)
    written: list[Row] = []
    fill(upkept, written, 100, keys=5)
    second = upkept.log.sealed_segments[1]
    path = upkept.log.directory / f"{second.base_offset:020}.log"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    upkept.compact()
    assert upkept.compacted().clean_before == active(upkept)
    (damage,) = upkept.log.find_sealed(second.base_offset).damage  # type: ignore[union-attr]
    assert path.read_bytes() == content
    gone = range(damage.offset, damage.next_offset)
    kept = [row for row in last_of_each(written, active(upkept)) if row[0] not in gone]
    found = rows(records_in(upkept.log, damage.next_offset))
    assert [row for row in kept if row[0] >= second.end_offset] == [
        row for row in found if row[0] >= second.end_offset
    ]
    upkept.logs.close()


def test_what_cannot_be_read_any_more_while_it_is_copied_is_not_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sector that could be read a moment ago, when its batch was compared with its checksum."""
    upkept = Upkept(tmp_path)
    written: list[Row] = []
    fill(upkept, written, 100, keys=5)
    before = records_in(upkept.log)
    real = SegmentReader.read
    cut_short: list[int] = []

    def read(reader: SegmentReader, position: int, count: int) -> memoryview:
        found: memoryview = real(reader, position, count)
        if count >= COMPACT.segment_bytes or count <= LEADER_BYTES:
            return found
        cut_short.append(position)
        return found[:0]

    with monkeypatch.context() as broken:
        broken.setattr(SegmentReader, "read", read)
        upkept.compact()
    assert cut_short
    assert records_in(upkept.log) == before
    upkept.logs.close()


def test_without_its_checkpoint_a_log_is_read_as_before_and_compacted_anew(tmp_path: Path) -> None:
    upkept = Upkept(tmp_path)
    written: list[Row] = []
    fill(upkept, written, 100, keys=5)
    upkept.compact()
    before = records_in(upkept.log)
    upkept.logs.close()
    (upkept.log.directory / CLEANER_CHECKPOINT_FILE).unlink()
    (tmp_path / NOTES_FILE).unlink()
    upkept.open()
    assert records_in(upkept.log) == before
    assert not any(segment.damage for segment in upkept.log.segments)
    upkept.compact()
    assert rows(records_in(upkept.log)) == last_of_each(written, active(upkept))
    upkept.logs.close()


@pytest.mark.parametrize("clean", [True, False])
def test_a_producer_is_known_after_all_that_it_wrote_was_compacted_away(
    tmp_path: Path, clean: bool
) -> None:
    def sent(producer_id: int, sequence: int) -> bytes:
        columns = Columns(1, [b"key"], [b"v" * 100], NOW)
        return record_batch.encode(
            columns, producer_id=producer_id, producer_epoch=0, base_sequence=sequence
        )

    upkept = Upkept(tmp_path)
    upkept.append(sent(7, 0), sent(7, 1))
    for number in range(60):
        upkept.append(sent(8, number))
    upkept.compact()
    assert 7 not in {
        header.producer_id for header, _ in batch_header.split(upkept.log.read(0, 10_000))
    }
    upkept.reopen(clean=clean)
    with pytest.raises(OutOfOrderSequence):
        upkept.append(sent(7, 3))
    assert upkept.append(sent(7, 1)) == [1]  # a duplicate
    assert upkept.append(sent(7, 2)) == [62]
    upkept.logs.close()


def test_a_million_records_of_ten_thousand_keys_are_compacted_in_seconds(tmp_path: Path) -> None:
    config = LogConfig(cleanup_policy="compact", segment_bytes=8 * 1024 * 1024)
    upkept = Upkept(tmp_path, config, memory_bytes=4 * 1024 * 1024)
    source = random.Random(5)
    batches = []
    for _ in range(50):
        keys = BinaryColumn.of([b"key-%05d" % source.randrange(10_000) for _ in range(2000)])
        values = BinaryColumn.of([source.randbytes(30) * 3 for _ in range(2000)])
        batches.append(record_batch.encode(Columns(2000, keys, values, NOW)))
    for number in range(0, 500, 5):
        upkept.append(*(batches * 10)[number : number + 5])
    before = upkept.log.size
    began = time.process_time()
    upkept.compact()
    taken = time.process_time() - began
    assert taken < 20.0  # about one second of a quiet machine
    clean = upkept.compacted().clean_before
    assert clean > 900_000
    found = [record for record in records_in(upkept.log, max_bytes=2**20) if record.offset < clean]
    assert len(found) == len({record.key for record in found}) <= 10_000
    assert upkept.log.size < before / 4
    upkept.logs.close()


def test_the_work_is_done_at_a_rate_with_pauses_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cleaning_pass, "STEP_BYTES", 2000)
    upkept = Upkept(tmp_path)
    written: list[Row] = []
    fill(upkept, written, 100, keys=5)
    size = upkept.log.size
    upkept.checkpoint()
    upkept.cleaner = LogCleaner(upkept.logs, upkept.hands.submit, upkept.pause, 1_000_000, 1000)
    upkept.compact()
    # All was read twice, and hardly anything written, at 1,000 bytes a second.
    assert 1.5 * size / 1000 < sum(upkept.pauses) < 3 * size / 1000
    assert 2.0 < max(upkept.pauses) < 4.0
    upkept.logs.close()


def test_what_stays_is_written_as_it_is_copied_and_not_gathered_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, pwritev = 400, os.pwritev
    upkept = Upkept(tmp_path, replace(COMPACT, segment_bytes=16_384))
    for number in range(400):
        upkept.append(keyed((b"key-%d" % (number // 2), b"x" * 40)))
    upkept.checkpoint()
    sizes: list[int] = []

    def write(fd: int, parts: list[bytes], position: int) -> int:
        sizes.append(sum(map(len, parts)))
        return pwritev(fd, parts, position)

    monkeypatch.setattr(cleaning_pass, "STEP_BYTES", step)
    monkeypatch.setattr(os, "pwritev", write)
    upkept.compact()
    assert sum(sizes) > 20 * step
    assert max(sizes) < step + 150, "a step, and no more than one batch beyond it"
    upkept.logs.close()


def test_a_broker_that_stops_is_not_kept_waiting_by_a_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cleaning_pass, "STEP_BYTES", 2000)
    upkept = Upkept(tmp_path)
    written: list[Row] = []
    fill(upkept, written, 100, keys=5)
    upkept.checkpoint()

    def stop(seconds: float) -> bool:
        upkept.pauses.append(seconds)
        return True

    upkept.cleaner = LogCleaner(upkept.logs, upkept.hands.submit, stop, 1_000_000, 1000)
    upkept.compact()
    assert len(upkept.pauses) == 1
    assert rows(records_in(upkept.log)) == [(n, *row) for n, row in enumerate(written)]
    assert not list(upkept.log.directory.glob("*.cleaned"))
    upkept.logs.close()


def test_nothing_of_it_touches_the_disk_on_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    upkept = Upkept(tmp_path)
    written: list[Row] = []
    fill(upkept, written, 100, keys=5)
    upkept.reopen(clean=True)
    fill(upkept, written, 10, keys=5)
    upkept.checkpoint()
    names = ("fsync", "fdatasync", "rename", "replace", "unlink", "open", "scandir", "pread")
    for _ in range(40):
        with monkeypatch.context() as slow:
            for name in names:
                slow.setattr(os, name, None)
            upkept.cleaner.task(upkept.now)
        while upkept.hands.jobs:
            _, work, done = upkept.hands.jobs.pop(0)
            result = work()
            with monkeypatch.context() as slow:
                for name in names:
                    slow.setattr(os, name, None)
                done(result)
        upkept.checkpoint()
    assert upkept.compacted().clean_before > 0
    upkept.logs.close()


def test_a_checkpoint_that_cannot_be_read_keeps_no_other_log_from_being_compacted(
    tmp_path: Path,
) -> None:
    upkept = Upkept(tmp_path / "data")
    other = create(upkept.logs, "flights", "first", 1)
    (other.directory / CLEANER_CHECKPOINT_FILE).mkdir()
    written: list[Row] = []
    fill(upkept, written, 30, keys=5)
    upkept.compact()
    assert upkept.compacted().clean_before == active(upkept)
    assert other not in upkept.cleaner.checkpoints
    upkept.logs.close()


def test_a_segment_that_cannot_be_read_keeps_no_other_log_from_being_compacted(
    tmp_path: Path,
) -> None:
    upkept = Upkept(tmp_path)
    other = create(upkept.logs, "flights", "first", 1)
    for number in range(60):
        other.append_as_leader([keyed((b"a", b"%d" % number * 30))], NOW, 3)
    written: list[Row] = []
    fill(upkept, written, 30, keys=5)
    upkept.reopen(clean=True)
    (other,) = (log for log in upkept.logs if log.name.partition == 1)
    for path in other.sealed_segments[0].files():
        path.unlink(missing_ok=True)
    upkept.compact()
    assert upkept.compacted().clean_before == active(upkept)
    upkept.logs.close()
