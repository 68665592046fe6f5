"""What is left of a log after a crash, bad bytes on disk, or a disk that takes no more."""

import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from folkmoot.brokers.storage.log import Log
from folkmoot.brokers.storage.recovery import RecoveryPoint
from folkmoot.protocol import batch_header
from folkmoot.protocol.errors import CorruptBatch
from tests.brokers.batches import (
    NAME,
    NOW,
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

ACTIVE = f"{0:020}.log"
INDEX = f"{0:020}.index"


class Crashed:
    """A log that was killed, to be damaged and opened again and again."""

    def __init__(self, scratch: Path, batches: list[bytes]) -> None:
        log = make_log(scratch / "original", ONE_SEGMENT)
        for number, each in enumerate(batches, start=1):
            append(log, each)
            if number == (len(batches) + 1) // 2:
                log.segments[0].save_index()
        self.batches = batches
        self.original = scratch / "original" / str(NAME)
        self.data = scratch / "copy"
        shutil.copytree(scratch / "original", self.data)
        self.file = self.data / str(NAME) / ACTIVE
        self.index = self.data / str(NAME) / INDEX
        self.bytes = (self.original / ACTIVE).read_bytes()
        self.early_index = (self.original / INDEX).read_bytes()
        end = log.close()
        assert end is not None
        self.end = end
        self.sealed_index = (self.original / INDEX).read_bytes()
        self.ends = [0]
        for each in batches:
            self.ends.append(self.ends[-1] + len(each))

    def opened(self, content: bytes, *, clean: bool = False) -> Log:
        """The log with this content of its only segment."""
        self.file.write_bytes(content)
        point = RecoveryPoint(end_offset=self.end.end_offset, segment=0, size=len(content))
        return reopened(self.data, ONE_SEGMENT, point if clean else None)

    def whole_before(self, position: int) -> list[bytes]:
        """The batches that end at or before `position`."""
        return [
            each for each, end in zip(self.batches, self.ends[1:], strict=True) if end <= position
        ]


@pytest.fixture
def crashed(tmp_path: Path) -> Crashed:
    source = random.Random(7)
    return Crashed(tmp_path, [random_batch(source) for _ in range(12)])


def test_a_log_cut_at_any_byte_of_its_last_batches_recovers_to_a_batch_boundary(
    crashed: Crashed,
) -> None:
    more = a_batch(b"more")
    for cut in range(crashed.ends[-5], crashed.ends[-1] + 1):
        log = crashed.opened(crashed.bytes[:cut])
        left = crashed.whole_before(cut)
        assert log.size == sum(map(len, left)) == crashed.file.stat().st_size
        append(log, more)
        assert read_all(log) == expected([*left, more])
        log.abandon()


def test_garbage_behind_the_last_batch_is_cut_with_a_line_that_says_so(
    crashed: Crashed, caplog: pytest.LogCaptureFixture
) -> None:
    for garbage in (b"\0" * 5000, b"\xff" * 200, crashed.bytes[:300], b"x"):
        caplog.clear()
        log = crashed.opened(crashed.bytes + garbage)
        assert read_all(log) == expected(crashed.batches)
        line = f"cut the last {len(garbage)} of {len(crashed.bytes) + len(garbage)} bytes"
        assert line in caplog.text
        assert ACTIVE in caplog.text
        log.abandon()


def readable(log: Log) -> tuple[list[tuple[int, bytes]], list[int]]:
    """All records that can be read, and the offsets that are answered with CorruptBatch."""
    found: list[tuple[int, bytes]] = []
    refused = []
    offset = log.log_start
    while offset < log.log_end:
        try:
            found += values_of(log.read(offset, 400))
            offset = found[-1][0] + 1
        except CorruptBatch:
            refused.append(offset)
            offset += 1
    return found, refused


def test_recovery_cuts_the_log_at_any_flipped_bit_and_goes_on_from_there(
    crashed: Crashed,
) -> None:
    """Nothing behind the recovery point was promised: what follows the first bad batch goes, too.

    All bits of one header; of all other bytes, which a checksum covers as a whole, one bit each.
    """
    right = expected(crashed.batches)
    header = crashed.ends[-3] + batch_header.HEADER_BYTES
    for position in range(crashed.ends[-3], crashed.ends[-1]):
        for bit in range(8) if position < header else (position % 8,):
            content = bytearray(crashed.bytes)
            content[position] ^= 1 << bit
            log = crashed.opened(bytes(content))
            left = crashed.whole_before(position)
            assert log.size == sum(map(len, left)) == crashed.file.stat().st_size
            assert readable(log) == (right[: len(expected(left))], []), f"bit {bit} of {position}"
            log.abandon()


def test_what_was_cut_is_not_taken_for_what_is_written_there_later(crashed: Crashed) -> None:
    content = bytearray(crashed.bytes)
    content[crashed.ends[8] + 90] ^= 1
    log = crashed.opened(bytes(content))
    for each in crashed.batches[8:]:
        append(log, each)
    end = log.close()
    log = reopened(crashed.data, ONE_SEGMENT, end)
    assert readable(log) == (expected(crashed.batches), [])
    log.abandon()


@pytest.mark.parametrize("flushed_up_to", [0, 9])
def test_damage_below_the_recovery_point_is_answered_as_such_in_every_life(
    crashed: Crashed, flushed_up_to: int
) -> None:
    content = bytearray(crashed.bytes)
    content[crashed.ends[4] + 9] ^= 1
    crashed.index.write_bytes(crashed.sealed_index)
    before = len(expected(crashed.batches[:4]))
    point: RecoveryPoint | None = crashed.end
    if flushed_up_to:  # after a kill; else after an orderly stop
        crashed.index.write_bytes(crashed.early_index)
        offset = len(expected(crashed.batches[:flushed_up_to]))
        point = RecoveryPoint(offset, 0, crashed.ends[flushed_up_to])
    crashed.file.write_bytes(content)
    end = crashed.end.end_offset
    for _ in range(3):
        log = reopened(crashed.data, ONE_SEGMENT, point)
        found, lost = readable(log)
        with pytest.raises(CorruptBatch, match=f"go on at {lost[-1] + 1}"):
            log.read(before, 1000)
        # No more is lost than up to the next entry of the index.
        [damage] = log.segments[0].damage
        assert damage.end - crashed.ends[5] < ONE_SEGMENT.index_interval_bytes
        assert lost == list(range(before, damage.next_offset))
        assert damage.next_offset < end
        assert found[-1][0] == log.log_end - 1
        assert append(log, a_batch(b"more")) == [end]
        point, end = log.close(), end + 1


def test_only_what_lies_behind_the_recovery_point_is_checked(crashed: Crashed) -> None:
    position, offset = crashed.ends[6], len(expected(crashed.batches[:6]))
    point = RecoveryPoint(end_offset=offset, segment=0, size=position)
    content = bytearray(crashed.bytes)
    content[crashed.ends[2] + 90] ^= 1
    content[-1] ^= 1
    crashed.file.write_bytes(content)
    log = reopened(crashed.data, ONE_SEGMENT, point)
    assert log.size == crashed.ends[-2]
    assert log.recovery_point == point
    assert values_of(log.read(offset, 10**6)) == expected(crashed.batches[:-1])[offset:]
    assert len(log.read(0, 10**6)) == crashed.ends[-2]
    log.abandon()


@pytest.mark.parametrize("left", [0, 5, 12])
@pytest.mark.parametrize(("segment", "size"), [(0, 10**9), (10**6, 84)])
def test_a_log_that_has_lost_what_was_on_disk_says_so_and_goes_on_where_it_ends(
    crashed: Crashed, left: int, segment: int, size: int
) -> None:
    """It is fetched again, or given again in a later leader epoch, which tells who has read it."""
    crashed.file.write_bytes(crashed.bytes[: crashed.ends[left]])
    point = RecoveryPoint(end_offset=10**6 + 3, segment=segment, size=size)
    whole = expected(crashed.batches[:left])
    for _ in range(2):
        log = reopened(crashed.data, ONE_SEGMENT, point)
        assert log.is_incomplete
        log.abandon()
    log = reopened(crashed.data, ONE_SEGMENT, point)
    assert append(log, a_batch(b"more")) == [len(whole)]
    whole.append((len(whole), b"more"))
    assert values_of(log.read(0, 10**6)) == whole
    end = log.close()
    log = reopened(crashed.data, ONE_SEGMENT, end)
    assert (log.log_end, log.is_incomplete) == (len(whole), True)
    log.abandon()


def stowaway(offset: int) -> bytes:
    """A batch that could follow in the log, for a record's value."""
    data = a_batch(b"x")
    return batch_header.leader_part(offset, len(data), 3, NOW) + data[batch_header.LEADER_BYTES :]


@pytest.mark.parametrize("clean", [True, False])
def test_a_batch_within_a_record_is_never_taken_for_one_of_the_log(
    tmp_path: Path, clean: bool
) -> None:
    """Also where the header of the batch around it has rotted, so that nothing says how long it is."""
    crashed = Crashed(tmp_path, [a_batch(b"a"), a_batch(stowaway(1) * 3), a_batch(b"b")])
    served = {(0, b"a"), (2, b"b")}
    for position in range(crashed.ends[1], crashed.ends[2]):
        content = bytearray(crashed.bytes)
        content[position] ^= 1
        log = crashed.opened(bytes(content), clean=clean)
        if clean:  # nothing was checked: the reader compares the body's checksum
            for offset in range(3):
                try:
                    chunk = log.read(offset, 1)
                    assert batch_header.read_header(chunk).base_offset == offset
                    assert set(values_of(chunk)) <= served
                except CorruptBatch:
                    pass
        else:
            assert (readable(log), log.log_end) == (([(0, b"a")], []), 1)
        log.abandon()


def test_in_a_sealed_segment_above_the_recovery_point_damage_costs_no_other_segment(
    tmp_path: Path,
) -> None:
    log = make_log(tmp_path)
    for number in range(20):
        append(log, a_batch(bytes([number]) * 300))
    log.abandon()
    path = log.directory / ACTIVE
    content = bytearray(path.read_bytes())
    content[len(a_batch(bytes(300))) + 3] ^= 1
    path.write_bytes(content)
    log = reopened(tmp_path)
    found, lost = readable(log)
    assert log.log_end == 20
    assert lost == [1], "the index of the segment says where the next one begins"
    assert [offset for offset, _ in found] == [0, *range(2, 20)]
    log.abandon()


def test_no_flipped_bit_under_an_open_log_makes_a_wrong_record(crashed: Crashed) -> None:
    right = dict(expected(crashed.batches))
    for position in range(crashed.ends[-4], crashed.ends[-1]):
        content = bytearray(crashed.bytes)
        content[position] ^= 1 << position % 8
        crashed.index.write_bytes(crashed.sealed_index)
        log = crashed.opened(bytes(content), clean=True)
        damaged = len(crashed.whole_before(position))
        found_damage = False
        offset = 0
        while offset < log.log_end:
            try:
                records = values_of(log.read(offset, 400))
            except CorruptBatch:
                found_damage = True
                offset += 1
                continue
            assert records
            assert all(right[at] == value for at, value in records)
            assert records[0][0] <= offset <= records[-1][0]
            offset = records[-1][0] + 1
        assert found_damage, f"byte {position} of batch {damaged}"
        log.abandon()


def test_damage_in_the_middle_does_not_hide_what_lies_behind_the_next_entry(
    tmp_path: Path,
) -> None:
    source = random.Random(3)
    crashed = Crashed(tmp_path, [random_batch(source) for _ in range(300)])
    right = expected(crashed.batches)
    content = bytearray(crashed.bytes)
    content[crashed.ends[150] + 9] ^= 64
    crashed.index.write_bytes(crashed.sealed_index)
    log = crashed.opened(bytes(content), clean=True)
    lost = []
    for offset in range(log.log_end):
        try:
            assert values_of(log.read(offset, 1))[0][0] <= offset
        except CorruptBatch:
            lost.append(offset)
    [damage] = log.segments[0].damage
    assert lost == list(range(len(expected(crashed.batches[:150])), damage.next_offset))
    assert damage.end - crashed.ends[151] < ONE_SEGMENT.index_interval_bytes
    assert right[damage.next_offset] == values_of(log.read(damage.next_offset, 1))[0]
    log.abandon()


def test_a_segment_that_lost_its_end_is_reported_and_not_skipped(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    for number in range(12):
        append(log, a_batch(bytes([number]) * 400))
    log.close()
    first = log.directory / ACTIVE
    os.truncate(first, first.stat().st_size - 10)
    again = reopened(tmp_path)
    assert values_of(again.read(0, 1)) == [(0, bytes(400))]
    lost = int(sorted(path.stem for path in log.directory.glob("*.log"))[1]) - 1
    with pytest.raises(CorruptBatch, match=f"offset {lost} is damaged on disk"):
        again.read(lost, 1000)
    assert values_of(again.read(lost + 1, 1)) == [(lost + 1, bytes([lost + 1]) * 400)]
    again.close()


# -- the index ----------------------------------------------------------------------------------------


def spoiled_indexes(crashed: Crashed) -> Iterator[tuple[str, bytes | None]]:
    good = crashed.sealed_index
    source = random.Random(11)
    yield "missing", None
    yield "empty", b""
    yield "of a beginning", crashed.early_index
    yield "short", good[: len(good) // 2]
    yield "torn", good[:-3]
    yield "zeros in the middle", good[:60] + bytes(40) + good[100:]
    yield "too many", good * 2000
    for number in range(10):
        yield f"random {number}", source.randbytes(len(good))


@pytest.mark.parametrize("clean", [True, False])
def test_every_offset_is_found_whatever_the_index_holds(
    tmp_path: Path, clean: bool, caplog: pytest.LogCaptureFixture
) -> None:
    source = random.Random(13)
    crashed = Crashed(tmp_path, [random_batch(source) for _ in range(120)])
    right = expected(crashed.batches)
    more = a_batch(b"more")
    for what, content in spoiled_indexes(crashed):
        crashed.index.unlink(missing_ok=True)
        if content is not None:
            crashed.index.write_bytes(content)
        log = crashed.opened(crashed.bytes, clean=clean)
        for offset in range(0, log.log_end, 3):
            # First by the offsets of the index alone, then by its positions too.
            max_bytes = 1 if offset < log.log_end // 2 else source.choice((1, 300, 1000))
            records = values_of(log.read(offset, max_bytes))
            assert records[0][0] <= offset <= records[-1][0], what
            assert records == right[records[0][0] : records[-1][0] + 1], what
        append(log, more)
        assert read_all(log) == expected([*crashed.batches, more]), what
        log.close()
        assert "damaged" not in caplog.text, what
