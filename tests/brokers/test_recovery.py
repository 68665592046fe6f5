"""What is left of a log after a crash, bad bytes on disk, or a disk that takes no more."""

import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from folkmoot.brokers.storage.flushing import CleanEnd
from folkmoot.brokers.storage.log import Log
from folkmoot.protocol import batch_header
from folkmoot.protocol.errors import CorruptBatch
from tests.brokers.batches import (
    NAME,
    NOW,
    ONE_SEGMENT,
    a_batch,
    append,
    expected,
    flushed,
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
        for each in batches:
            append(log, each)
        self.batches = batches
        self.original = scratch / "original" / str(NAME)
        self.data = scratch / "copy"
        shutil.copytree(scratch / "original", self.data)
        self.file = self.data / str(NAME) / ACTIVE
        self.index = self.data / str(NAME) / INDEX
        self.bytes = (self.original / ACTIVE).read_bytes()
        self.presized_index = (self.original / INDEX).read_bytes()
        end = log.close()
        assert end is not None
        self.end = end
        self.trimmed_index = (self.original / INDEX).read_bytes()
        self.ends = [0]
        for each in batches:
            self.ends.append(self.ends[-1] + len(each))

    def opened(self, content: bytes, *, clean: bool = False) -> Log:
        """The log with this content of its only segment."""
        self.file.write_bytes(content)
        log = Log(self.data, NAME, "first", ONE_SEGMENT)
        size = len(content)
        log.start(CleanEnd(end_offset=self.end.end_offset, segment=0, size=size) if clean else None)
        return log

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
    offset = log.start_offset
    while offset < log.end_offset:
        try:
            found += values_of(log.read(offset, 400))
            offset = found[-1][0] + 1
        except CorruptBatch:
            refused.append(offset)
            offset += 1
    return found, refused


def test_a_batch_lost_from_the_middle_is_not_served_and_what_lies_behind_is(
    crashed: Crashed,
) -> None:
    first, second, third = crashed.ends[1:4]
    log = crashed.opened(crashed.bytes[:first] + crashed.bytes[second:third])
    lost = [
        offset for offset, _ in expected(crashed.batches[:2])[len(expected(crashed.batches[:1])) :]
    ]
    kept = [each for each in expected(crashed.batches[:3]) if each[0] not in lost]
    assert readable(log) == (kept, lost)
    more = a_batch(b"more")
    assert append(log, more) == [len(kept) + len(lost)]
    log.abandon()


def test_recovery_marks_any_flipped_bit_of_a_batch_and_keeps_those_behind_it(
    crashed: Crashed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("folkmoot.brokers.storage.atomic_file.os.fsync", lambda fd: None)
    right = expected(crashed.batches)
    note = crashed.file.with_suffix(".damage")
    for position in range(crashed.ends[-3], crashed.ends[-1]):
        for bit in range(8):
            note.unlink(missing_ok=True)
            content = bytearray(crashed.bytes)
            content[position] ^= 1 << bit
            log = crashed.opened(bytes(content))
            left = expected(crashed.whole_before(position))
            if position >= crashed.ends[-2]:
                # Nothing follows: a torn end, which is cut.
                assert log.size == crashed.ends[-2], f"bit {bit} of byte {position}"
                assert readable(log) == (left, [])
            else:
                behind = right[-len(values_of(memoryview(crashed.batches[-1]))) :]
                lost = [offset for offset, _ in right[len(left) : -len(behind)]]
                assert log.size == len(crashed.bytes)
                assert readable(log) == ([*left, *behind], lost), f"bit {bit} of byte {position}"
            log.abandon()


def test_marked_damage_is_known_to_the_next_start_and_goes_with_its_segment(
    crashed: Crashed,
) -> None:
    content = bytearray(crashed.bytes)
    content[crashed.ends[4] + 9] ^= 1
    log = crashed.opened(bytes(content))
    found, lost = readable(log)
    append(log, a_batch(b"more"))
    end = log.close()
    assert lost
    log = Log(crashed.data, NAME, "first", ONE_SEGMENT)
    log.start(end)
    with pytest.raises(CorruptBatch, match=f"go on at {lost[-1] + 1}"):
        log.read(lost[0], 1000)
    assert readable(log) == ([*found, (end.end_offset - 1 if end else 0, b"more")], lost)
    log.delete()
    assert not crashed.file.parent.exists()


def test_damage_that_was_cut_off_is_not_taken_for_what_is_written_there_later(
    crashed: Crashed,
) -> None:
    content = bytearray(crashed.bytes)
    content[crashed.ends[8] + 90] ^= 1
    log = crashed.opened(bytes(content))
    assert readable(log)[1]
    log.abandon()
    log = crashed.opened(crashed.bytes[: crashed.ends[4]])
    for each in crashed.batches[4:]:
        append(log, each)
    end = log.close()
    log = Log(crashed.data, NAME, "first", ONE_SEGMENT)
    log.start(end)
    assert readable(log) == (expected(crashed.batches), [])
    log.abandon()


def test_only_what_lies_behind_the_durable_end_is_checked(crashed: Crashed) -> None:
    position, offset = crashed.ends[6], len(expected(crashed.batches[:6]))
    durable = CleanEnd(end_offset=offset, segment=0, size=position)
    content = bytearray(crashed.bytes)
    content[crashed.ends[2] + 90] ^= 1
    content[-1] ^= 1
    crashed.file.write_bytes(content)
    log = Log(crashed.data, NAME, "first", ONE_SEGMENT)
    log.start(durable=durable)
    assert log.size == crashed.ends[-2]
    assert log.durable == durable
    assert values_of(log.read(offset, 10**6)) == expected(crashed.batches[:-1])[offset:]
    assert len(log.read(0, 10**6)) == crashed.ends[-2]
    log.abandon()


@pytest.mark.parametrize("left", [0, 5, 12])
@pytest.mark.parametrize(("segment", "size"), [(0, 10**9), (10**6, 84)])
def test_a_durable_end_that_was_lost_is_passed_over_and_its_offsets_are_not_given_again(
    crashed: Crashed, left: int, segment: int, size: int
) -> None:
    crashed.file.write_bytes(crashed.bytes[: crashed.ends[left]])
    durable = CleanEnd(end_offset=10**6 + 3, segment=segment, size=size)
    log = Log(crashed.data, NAME, "first", ONE_SEGMENT)
    log.start(durable=durable)
    whole = expected(crashed.batches[:left])
    assert append(log, a_batch(b"more")) == [10**6 + 3]
    for clean in (True, False):
        if left:
            assert values_of(log.read(0, 10**6)) == whole
        for offset in (len(whole), 10**6 + 2):
            with pytest.raises(CorruptBatch, match=f"go on at {10**6 + 3}"):
                log.read(offset, 1000)
        assert values_of(log.read(10**6 + 3, 1000)) == [(10**6 + 3, b"more")]
        assert log.offset_for_time(0) == (0 if left else 10**6 + 3)
        end = log.close() if clean else None
        log.abandon()
        log = Log(crashed.data, NAME, "first", ONE_SEGMENT)
        log.start(end, durable)
        assert log.end_offset == 10**6 + 4
    log.expire(2**45)
    flushed(log)
    log.expire(2**45)
    assert log.start_offset == 10**6 + 4
    log.abandon()


def test_a_batch_within_a_record_is_never_taken_for_one_of_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("folkmoot.brokers.storage.atomic_file.os.fsync", lambda fd: None)
    stowaway = (
        batch_header.leader_part(1, len(a_batch(b"x")), 3, NOW)
        + a_batch(b"x")[batch_header.LEADER_BYTES :]
    )
    crashed = Crashed(tmp_path, [a_batch(b"a"), a_batch(stowaway * 3), a_batch(b"b")])
    for position in range(crashed.ends[1] + batch_header.LEADER_BYTES, crashed.ends[2]):
        crashed.file.with_suffix(".damage").unlink(missing_ok=True)
        content = bytearray(crashed.bytes)
        content[position] ^= 1
        log = crashed.opened(bytes(content))
        assert readable(log) == ([(0, b"a"), (2, b"b")], [1])
        log.abandon()


def test_no_flipped_bit_under_an_open_log_makes_a_wrong_record(crashed: Crashed) -> None:
    right = dict(expected(crashed.batches))
    for position in range(crashed.ends[-4], crashed.ends[-1]):
        content = bytearray(crashed.bytes)
        content[position] ^= 1 << position % 8
        crashed.index.write_bytes(crashed.trimmed_index)
        log = crashed.opened(bytes(content), clean=True)
        damaged = len(crashed.whole_before(position))
        found_damage = False
        offset = 0
        while offset < log.end_offset:
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


def test_damage_in_the_middle_does_not_hide_what_lies_behind(tmp_path: Path) -> None:
    source = random.Random(3)
    crashed = Crashed(tmp_path, [random_batch(source) for _ in range(300)])
    right = expected(crashed.batches)
    content = bytearray(crashed.bytes)
    content[crashed.ends[150] + 9] ^= 64
    crashed.index.write_bytes(crashed.trimmed_index)
    log = crashed.opened(bytes(content), clean=True)
    lost = []
    for offset in range(log.end_offset):
        try:
            assert values_of(log.read(offset, 1))[0][0] <= offset
        except CorruptBatch:
            lost.append(offset)
    before, behind = (len(expected(crashed.batches[:number])) for number in (150, 151))
    assert lost == list(range(before, behind))
    assert right[behind] == values_of(log.read(behind, 1))[0]
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
    good = crashed.trimmed_index
    source = random.Random(11)
    entries = len(good) // 8
    yield "missing", None
    yield "empty", b""
    yield "presized", crashed.presized_index
    yield "short", good[: entries // 2 * 8]
    yield "torn", good[:-3]
    yield "zeros in the middle", good[:8] + bytes(16) + good[24:]
    yield "turned round", b"".join(good[n : n + 8] for n in range(len(good) - 8, -1, -8))
    yield "too far", good + (2**32 - 1).to_bytes(4, "big") * 2
    yield "too many", good * 2000
    # Rising, within the log, and wrong: only a look at the log can tell.
    yield "beside the batches", bytes(byte ^ (n % 8 == 7) for n, byte in enumerate(good))
    positions = [good[n + 4 : n + 8] for n in range(0, len(good), 8)]
    offsets = [good[n : n + 4] for n in range(0, len(good), 8)]
    shifted = zip(offsets[:-1], positions[1:], strict=True)
    yield "shifted ahead", b"".join(offset + position for offset, position in shifted)
    shifted = zip(offsets[1:], positions[:-1], strict=True)
    yield "shifted behind", b"".join(offset + position for offset, position in shifted)
    # The same with a good end, which a look at the last entry does not find.
    middle = list(zip(offsets, positions, strict=True))
    for what, step in (("ahead", 1), ("behind", -1)):
        moved = [(offsets[n], positions[n + step]) for n in range(2, entries - 2)]
        kept = middle[:1] + moved + middle[-1:]
        yield f"shifted {what} in the middle", b"".join(map(b"".join, kept))
    half = len(good) // 16 * 8
    yield "beside a batch in the middle", good[: half + 7] + b"\0" + good[half + 8 :]
    for number in range(10):
        yield f"random {number}", source.randbytes(len(good))


@pytest.mark.parametrize("clean", [True, False])
def test_every_offset_is_found_whatever_the_index_holds(
    tmp_path: Path, clean: bool, caplog: pytest.LogCaptureFixture
) -> None:
    source = random.Random(13)
    crashed = Crashed(tmp_path, [random_batch(source) for _ in range(120)])
    assert len(crashed.trimmed_index) > 20 * 8
    right = expected(crashed.batches)
    more = a_batch(b"more")
    for what, content in spoiled_indexes(crashed):
        crashed.index.unlink(missing_ok=True)
        if content is not None:
            crashed.index.write_bytes(content)
        log = crashed.opened(crashed.bytes, clean=clean)
        for offset in range(0, log.end_offset, 3):
            # First by the offsets of the index alone, then by its positions too.
            max_bytes = 1 if offset < log.end_offset // 2 else source.choice((1, 300, 1000))
            records = values_of(log.read(offset, max_bytes))
            assert records[0][0] <= offset <= records[-1][0], what
            assert records == right[records[0][0] : records[-1][0] + 1], what
        append(log, more)
        assert read_all(log) == expected([*crashed.batches, more]), what
        log.close()
        assert "damaged" not in caplog.text, what
        # What was rebuilt is what would have been written.
        assert crashed.index.read_bytes()[: len(crashed.trimmed_index)] == crashed.trimmed_index, (
            what
        )


def test_an_index_that_rots_while_it_is_mapped_is_rebuilt(crashed: Crashed) -> None:
    crashed.index.write_bytes(crashed.trimmed_index)
    log = crashed.opened(crashed.bytes, clean=True)
    log.read(1, 1)
    with crashed.index.open("r+b") as file:
        file.write(bytes(byte ^ (n % 8 == 7) for n, byte in enumerate(crashed.trimmed_index)))
    for offset in range(log.end_offset):
        assert values_of(log.read(offset, 1))[0][0] <= offset
    assert read_all(log) == expected(crashed.batches)
    log.close()
    assert crashed.index.read_bytes() == crashed.trimmed_index
