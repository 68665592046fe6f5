"""What a log does for replicas: copies, a high watermark below its end, cuts, and group commit."""

import errno
import os
import random
import shutil
from dataclasses import replace
from functools import partial
from mmap import PAGESIZE
from pathlib import Path

import pytest

from folkmoot.brokers.jobs.jobs import Lane
from folkmoot.brokers.jobs.serial_queue import SerialQueue
from folkmoot.brokers.storage.log import Log
from folkmoot.brokers.storage.recovery import RecoveryPoint
from folkmoot.brokers.storage.segment import Damage
from folkmoot.protocol import batch_header
from folkmoot.protocol.errors import CorruptBatch, InvalidRequest, OutOfOrderSequence, StorageError
from tests.brokers.batches import (
    NAME,
    NOW,
    ONE_SEGMENT,
    SMALL,
    a_batch,
    append,
    expected,
    flush,
    flushed,
    make_log,
    random_batch,
    read_all,
    reopened,
    states_of,
    timed_batch,
    values_of,
)
from tests.brokers.hands import Hands, truncate


def sent(first: int, *, producer: int = 1, records: int = 1) -> bytes:
    values = [b"%d.%d" % (producer, first + n) for n in range(records)]
    return batch_header.reseal(a_batch(*values), producer, 0, first)


def write(log: Log, *batches: bytes) -> None:
    """Append as a leader whose replicas have nothing of it yet."""
    log.append_as_leader(batches, NOW, 3)


def copied(leader: Log, follower: Log, max_bytes: int = 700) -> None:
    """The follower fetches until it has all."""
    while follower.log_end < leader.log_end:
        chunk = leader.read(follower.log_end, max_bytes)
        if not chunk:
            break
        follower.append_as_follower(chunk)
    follower.advance_high_watermark(follower.log_end)


def files(log: Log) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in log.directory.glob("*.log")}


# -- copies -------------------------------------------------------------------------------------------


def test_a_follower_has_the_same_bytes_and_knows_the_same_producers(tmp_path: Path) -> None:
    leader, follower = make_log(tmp_path / "a"), make_log(tmp_path / "b")
    for first in range(60):
        append(leader, sent(first), sent(first, producer=2), timed_batch(NOW - first))
    copied(leader, follower)
    assert read_all(follower) == read_all(leader)
    assert b"".join(files(follower).values()) == b"".join(files(leader).values())
    assert states_of(follower) == states_of(leader)
    for timestamp in (NOW - 60, NOW - 30, NOW, NOW + 1):
        assert follower.offset_for_time(timestamp) == leader.offset_for_time(timestamp)
    follower.close()
    follower = reopened(tmp_path / "b")
    assert append(follower, sent(59)) == [177], "it may lead now: this one was there"
    for log in (leader, follower):
        log.close()


@pytest.mark.parametrize("stop", [None, "close", "abandon"])
def test_a_follower_copies_gaps(tmp_path: Path, stop: str | None) -> None:
    """Compaction has left them in the leader's log."""
    leader, follower = make_log(tmp_path / "a", ONE_SEGMENT), make_log(tmp_path / "b")
    for number in range(80):
        append(leader, a_batch(b"%d" % number, b"", bytes(50)))
    left = [number for number in range(0, 240, 3) if number % 4]
    for number in left:
        chunk = leader.read(number, 1)
        follower.append_as_follower(chunk)
    follower.advance_high_watermark(follower.log_end)
    if stop is not None:
        getattr(follower, stop)()
        follower = reopened(tmp_path / "b")
    assert len(follower.segments) > 2
    assert [at for at, _ in read_all(follower)] == [n + m for n in left for m in range(3)]
    for offset in range(follower.log_end):
        found = values_of(follower.read(offset, 1))
        assert found[-1][0] == min(n + 2 for n in left if n + 2 >= offset)
    for log in (leader, follower):
        log.abandon()


def test_damage_behind_a_gap_is_told_to_who_comes_from_the_gap(tmp_path: Path) -> None:
    leader, follower = make_log(tmp_path / "a", ONE_SEGMENT), make_log(tmp_path / "b", ONE_SEGMENT)
    for number in range(30):
        append(leader, a_batch(b"%d" % number))
    for number in (0, 10, 20):
        follower.append_as_follower(leader.read(number, 1))
    follower.advance_high_watermark(21)
    size = len(leader.read(0, 1))
    path = follower.segments[0].path
    content = bytearray(path.read_bytes())
    content[size + 90] ^= 1
    path.write_bytes(content)
    for each in follower.segments[0].reader().batches():  # as the scrubber looks
        if isinstance(each, Damage):
            follower.segments[0].mark(each)
    for offset in range(1, 11):
        with pytest.raises(CorruptBatch, match="go on at 20"):
            follower.read(offset, 1000)
    assert [at for at, _ in values_of(follower.read(0, 1000))] == [0]
    assert [at for at, _ in values_of(follower.read(20, 1000))] == [20]
    for log in (leader, follower):
        log.close()


def test_what_does_not_follow_or_is_no_batch_is_not_copied(tmp_path: Path) -> None:
    leader, follower = make_log(tmp_path / "a"), make_log(tmp_path / "b")
    append(leader, a_batch(b"a"), a_batch(b"b"), a_batch(b"c"))
    chunk = bytes(leader.read(0, 10_000))
    with pytest.raises(CorruptBatch):
        follower.append_as_follower(chunk[:-1])
    with pytest.raises(CorruptBatch):
        follower.append_as_follower(chunk[:-1] + b"?")
    assert follower.log_end == 0, "all of a call or none"
    follower.append_as_follower(chunk)
    with pytest.raises(InvalidRequest, match="does not follow"):
        follower.append_as_follower(chunk)
    assert follower.log_end == 3
    for log in (leader, follower):
        log.close()


# -- the high watermark -------------------------------------------------------------------------------


def test_nothing_at_or_behind_the_high_watermark_is_read(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    source = random.Random(3)
    batches = [random_batch(source, value_bytes=80) for _ in range(100)]
    bases = [0]
    for each in batches:
        write(log, each)
        bases.append(log.log_end)
    assert len(log.segments) > 3
    right = expected(batches)
    assert (log.high_watermark, len(log.read(0, 10_000))) == (0, 0)
    for watermark in bases:
        log.advance_high_watermark(watermark)
        offset = 0
        while offset < watermark:
            found = values_of(log.read(offset, source.randrange(2000)))
            assert found == right[offset : offset + len(found)]
            offset += len(found)
        assert offset == watermark
        assert len(log.read(watermark, 10_000)) == 0
    log.close()


@pytest.mark.parametrize("committed", [2, 3])
def test_what_is_committed_is_read_in_front_of_damage_that_is_not(
    tmp_path: Path, committed: int
) -> None:
    """A batch of two records has rotted, of which none, or one, is committed."""
    log = make_log(tmp_path, ONE_SEGMENT)
    batches = [a_batch(b"0"), a_batch(b"1"), a_batch(b"2", b"3"), a_batch(b"4")]
    write(log, *batches)
    log.advance_high_watermark(committed)
    path = log.segments[0].path
    rotten = bytearray(path.read_bytes())
    rotten[len(b"".join(batches[:2])) + 3] ^= 1
    path.write_bytes(rotten)
    for _ in range(2):  # the first time it is found
        assert values_of(log.read(0, 1 << 20)) == [(0, b"0"), (1, b"1")]
    log.abandon()


def test_a_time_is_looked_up_below_the_high_watermark(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    for number in range(100):
        write(log, timed_batch(NOW + number))
    for watermark in (0, 10, 57, 100):
        log.advance_high_watermark(watermark)
        for number in (0, 9, 10, 56, 57, 99, 100):
            assert log.offset_for_time(NOW + number) == min(number, watermark)
    log.close()


def test_the_high_watermark_neither_falls_nor_passes_the_end(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    write(log, a_batch(b"a", b"b"))
    log.advance_high_watermark(2)
    log.advance_high_watermark(1)
    assert log.high_watermark == 2
    with pytest.raises(ValueError, match="cannot be committed"):
        log.advance_high_watermark(3)
    log.close()


# -- cuts ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [SMALL, ONE_SEGMENT])
@pytest.mark.parametrize("stop", [None, "close", "abandon"])
def test_a_log_can_be_cut_at_any_offset_and_goes_on_from_there(
    tmp_path: Path, config: object, stop: str | None
) -> None:
    source = random.Random(17)
    batches = [random_batch(source, value_bytes=100) for _ in range(60)]
    more = [random_batch(source, value_bytes=100) for _ in range(20)]
    right = expected(batches)
    for turn in range(12):
        data = tmp_path / str(turn)
        log = make_log(data, config)  # type: ignore[arg-type]
        bases = []
        for each in batches:
            bases.append(log.log_end)
            write(log, each)
            if source.random() < 0.1 and log.dirty:
                flushed(log)
        offset = source.randrange(log.log_end)
        truncate(log, offset)
        left = max(base for base in bases if base <= offset)
        assert (log.log_end, log.size) == (left, sum(map(len, batches[: bases.index(left)])))
        assert log.recovery_point_offset <= left
        for each in more:
            append(log, each)
        if stop is not None:
            point = log.recovery_point
            getattr(log, stop)()
            log = reopened(data, config, log.recovery_point if stop == "close" else point)  # type: ignore[arg-type]
        assert read_all(log) == right[:left] + [(left + at, value) for at, value in expected(more)]
        for at in (0, left // 2, left, log.log_end - 1):
            assert values_of(log.read(at, 1))[0][0] <= at
        log.abandon()


def test_a_segment_that_was_cut_is_as_old_as_what_is_left_of_it(tmp_path: Path) -> None:
    log = make_log(tmp_path, ONE_SEGMENT)
    for number in range(3):
        log.append_as_leader([a_batch(b"a")], NOW + number, 3)
    log.roll()
    truncate(log, 1)
    assert log.segments[0].use_index().summary.last_append == NOW
    log.abandon()


def test_nothing_counts_as_on_disk_that_a_cut_took_with_damage_in_front(tmp_path: Path) -> None:
    log = make_log(tmp_path, ONE_SEGMENT)
    batches = [a_batch(b"%d" % number) for number in range(8)]
    for number, each in enumerate(batches):
        write(log, each)
        if number == 6:
            flushed(log)
    assert log.recovery_point_offset == 7
    path = log.segments[0].path
    rotten = bytearray(path.read_bytes())
    rotten[len(b"".join(batches[:6])) + 3] ^= 1
    path.write_bytes(rotten)
    truncate(log, 7)
    assert log.log_end == 6, "what is damaged goes as well"
    write(log, batches[6])
    assert log.dirty
    assert log.recovery_point_offset <= 6, "what was appended since is in the page cache alone"
    flushed(log)
    assert log.recovery_point_offset == 7
    log.close()


def test_what_follows_a_cut_within_what_a_segment_has_lost_is_not_taken_for_lost(
    tmp_path: Path,
) -> None:
    log = make_log(tmp_path)
    batches = [a_batch(b"%d " % number + bytes(80)) for number in range(40)]
    for each in batches:
        write(log, each)
    flush(log, snapshot=True)
    log.abandon()
    short = log.segments[1]
    os.truncate(short.path, short.size - 2 * len(batches[-1]))
    log = Log(log.directory, NAME, "first", SMALL)
    log.start()
    assert log.is_damaged
    truncate(log, short.end_offset - 1)
    assert log.log_end == short.end_offset - 2
    offset = append(log, a_batch(b"again"))[0]
    log.advance_high_watermark(log.log_end)
    assert values_of(log.read(offset, 1 << 20)) == [(offset, b"again")]
    assert not any(segment.damage for segment in log.segments)
    log.close()


def test_producers_go_back_with_the_log(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    states = {}
    for first in range(60):
        states[log.log_end] = states_of(log)
        write(log, sent(first), sent(first, producer=2))
        if first == 20:
            log.advance_high_watermark(log.log_end)
        if first in (5, 20, 40):
            log.snapshot_covers(log.log_end)
            flushed(log)
    assert sorted(int(path.stem) for path in log.directory.glob("*.snapshot")) == [42, 82]
    for offset in (100, 82, 60, 44):
        truncate(log, offset)
        assert states_of(log) == states[offset]
    with pytest.raises(OutOfOrderSequence):
        append(log, sent(23))
    assert append(log, sent(22), sent(22, producer=2)) == [44, 45]
    log.close()


def test_headers_stay_as_long_as_a_cut_may_need_them_to_know_producers(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    for first in range(21):
        write(log, sent(first))
        if first in (8, 20):
            log.snapshot_covers(log.log_end)
            flushed(log)
    known, committed = states_of(log), log.log_end
    log.advance_high_watermark(committed)
    for first in range(40):
        write(log, sent(first, producer=2))
    log.snapshot_covers(log.log_end)
    flushed(log)
    assert not log.snapshot_covers(log.log_end), "a cut takes that snapshot along"
    log.delete_segments(len(log.segments))
    truncate(log, committed)
    assert states_of(log) == known
    log.close()


def test_snapshots_of_producers_stay_few_while_the_high_watermark_stands(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    for first in range(60):
        write(log, sent(first))
        log.snapshot_covers(log.log_end)
        flushed(log)
        if first % 20 == 10:
            log.advance_high_watermark(log.log_end)
        assert len(list(log.directory.glob("*.snapshot"))) <= 3
    log.close()


@pytest.mark.parametrize("stop", [False, True])
def test_producers_go_back_behind_damage_that_a_cut_took_along(tmp_path: Path, stop: bool) -> None:
    log = make_log(tmp_path, ONE_SEGMENT)
    for first in range(8):
        write(log, sent(first))
        if first == 6:
            log.snapshot_covers(7)
            flushed(log)
    path = log.segments[0].path
    rotten = bytearray(path.read_bytes())
    rotten[-2 * len(sent(0)) + 3] ^= 1
    path.write_bytes(rotten)
    truncate(log, 7)
    assert log.log_end == 6
    assert append(log, sent(6), sent(7), sent(8)) == [6, 7, 8]
    if stop:
        log.abandon()
        log = reopened(tmp_path, ONE_SEGMENT)
    assert append(log, sent(6), sent(9)) == [6, 9]
    assert [offset for offset, _ in read_all(log)] == [*range(10)]
    log.close()


def test_what_is_committed_is_never_cut(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    write(log, a_batch(b"a"), a_batch(b"b"), a_batch(b"c"))
    log.advance_high_watermark(2)
    with pytest.raises(ValueError, match="committed up to 2, not 1"):
        truncate(log, 1)
    truncate(log, 3)
    assert log.log_end == 3
    truncate(log, 2)
    assert (log.log_end, read_all(log)) == (2, [(0, b"a"), (1, b"b")])
    log.close()


def test_a_crash_while_a_log_is_cut_leaves_it_too_long_and_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = make_log(tmp_path / "0")
    batches = [a_batch(bytes([number]) * 200) for number in range(40)]
    for each in batches:
        write(log, each)
    assert len(log.segments) > 3

    class Killed(BaseException):
        pass

    steps = 0
    left: int | None = None
    real = Path.unlink

    def unlink(path: Path, missing_ok: bool = False) -> None:
        nonlocal left
        if left == 0:
            raise Killed
        left = None if left is None else left - 1
        real(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", unlink)
    while True:
        steps += 1
        data = tmp_path / str(steps)
        shutil.copytree(log.directory, data / str(NAME))
        copy = reopened_without_watermark(data)
        left = steps
        try:
            truncate(copy, 3)
            break
        except Killed:
            left = None
        again = reopened_without_watermark(data)
        again.advance_high_watermark(again.log_end)
        assert again.log_end >= 3
        assert read_all(again) == expected(batches)[: again.log_end]
        again.abandon()
    assert steps > 4


def reopened_without_watermark(data: Path, point: RecoveryPoint | None = None) -> Log:
    log = Log(data / str(NAME), NAME, "first", SMALL)
    log.start(point)
    return log


def a_replica(data: Path) -> Log:
    (data / str(NAME)).mkdir(parents=True, exist_ok=True)
    log = Log(data / str(NAME), NAME, "first", SMALL)
    log.leader_epoch = 3
    log.start()
    return log


def test_a_replica_ends_where_a_power_cut_has_left_less_than_of_the_segments_behind(
    tmp_path: Path,
) -> None:
    """They were not on disk either: so nothing is missing, and nothing lies behind a hole."""
    log = a_replica(tmp_path / "whole")
    batches = [a_batch(b"%d " % number + bytes(80)) for number in range(60)]
    for each in batches:
        write(log, each)
    log.abandon()
    second, length = log.segments[1], len(batches[-1])
    assert len(log.segments) > 3
    for size in (0, *(second.size - length + more for more in (-1, 0, 1, 30, 90, length - 1))):
        data = tmp_path / f"{size}"
        shutil.copytree(tmp_path / "whole", data)
        os.truncate(data / str(NAME) / second.path.name, size)
        log = a_replica(data)
        assert log.log_end == second.base_offset + size // length
        assert not log.is_incomplete
        assert not log.is_damaged
        left = batches[: log.log_end]
        for _ in range(2):
            write(log, *batches[:2])
            left += batches[:2]
            log.close()
            log = a_replica(data)
            log.advance_high_watermark(log.log_end)
            assert read_all(log) == expected(left)
        log.abandon()


def test_what_a_replica_had_on_disk_is_not_given_up_with_a_segment_that_has_become_shorter(
    tmp_path: Path,
) -> None:
    """A snapshot of producers behind it says that it was there: this is another fault than a power cut."""
    log = a_replica(tmp_path)
    for number in range(60):
        write(log, sent(3 * number, records=3))
    log.snapshot_covers(log.log_end)
    flushed(log)
    end, second = log.log_end, log.segments[1]
    log.abandon()
    os.truncate(second.path, second.size - 1)
    log = a_replica(tmp_path)
    assert (log.log_end, log.is_incomplete) == (end, False)
    assert log.damaged_at == [second.end_offset - 3]
    log.abandon()


def test_a_death_while_segments_behind_a_torn_end_are_given_up_leaves_the_same_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = a_replica(tmp_path)
    for number in range(60):
        write(log, a_batch(b"%d " % number + bytes(80)))
    log.abandon()
    second = log.segments[1]
    os.truncate(second.path, second.size - 1)
    assert len(log.segments) > 4
    real, left = Path.unlink, len(log.segments)

    def unlink(path: Path, missing_ok: bool = False) -> None:
        nonlocal left
        left -= 1
        if not left:
            raise OSError(errno.EIO, "dead")
        real(path, missing_ok=missing_ok)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", unlink)
        with pytest.raises(StorageError, match="dead"):
            a_replica(tmp_path)
    log = a_replica(tmp_path)
    assert (log.log_end, log.is_damaged) == (second.end_offset - 1, False)
    log.close()


# -- group commit -------------------------------------------------------------------------------------


def test_what_is_appended_while_a_flush_is_under_way_is_in_the_next_one(tmp_path: Path) -> None:
    log, hands = make_log(tmp_path), Hands()
    log.queue = SerialQueue(partial(hands.submit, Lane.DISK))
    append(log, a_batch(b"a"))
    assert log.recovery_point_offset == 0
    for _ in range(2):
        log.queue.add(flush_some(log))
    append(log, a_batch(b"b"))
    assert hands.keys() == ["flush"], "one flush at a time"
    hands.work()
    assert (log.recovery_point_offset, log.dirty) == (1, True)
    hands.work()
    assert (log.recovery_point_offset, log.dirty, hands.jobs) == (2, False, [])
    log.close()


async def flush_some(log: Log) -> None:
    await log.flush_some()


@pytest.mark.parametrize("longer", [0, 40])
def test_a_recovery_point_of_before_a_log_began_anew_says_nothing_of_it(
    tmp_path: Path, longer: int
) -> None:
    """A segment with the same name may begin with the batch in which the new start lies."""
    log = make_log(tmp_path)
    write(log, a_batch(b"0", b"1"))
    log.roll()
    write(log, a_batch(b"2" * 60, b"3"))
    flushed(log)
    point = log.recovery_point
    assert point is not None
    log.queue.run_now(log.begin_anew(4))
    sizes = {
        len(batch): batch for n in range(200) if (batch := a_batch(b"2" * n, b"3", b"4", b"5"))
    }
    batch = sizes[point.size + longer]
    leader = batch_header.leader_part(2, len(batch), 4, 0)
    log.append_as_follower(leader + batch[batch_header.LEADER_BYTES :])
    assert (log.segments[0].base_offset, log.log_start, log.log_end) == (point.segment, 4, 6)
    flushed(log)
    log.abandon()
    log = reopened(tmp_path, SMALL, point)
    assert (log.log_start, log.log_end) == (4, 6)
    assert read_all(log)[-2:] == [(4, b"4"), (5, b"5")]
    log.close()


def test_a_stop_while_a_flush_is_under_way_vouches_for_what_was_before(tmp_path: Path) -> None:
    """Its error, if there is one, is known to that flush alone."""
    log, hands = make_log(tmp_path), Hands()
    append(log, a_batch(b"a"))
    flushed(log)
    append(log, a_batch(b"b"))
    log.queue = SerialQueue(partial(hands.submit, Lane.DISK))
    log.queue.add(flush_some(log))
    point = log.close()
    assert point is not None
    assert point.end_offset == 1
    hands.work()
    log = reopened(tmp_path, SMALL, point)
    assert read_all(log) == [(0, b"a"), (1, b"b")]
    log.close()


def test_a_read_that_may_not_exceed_its_room_reads_no_batch_that_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = make_log(tmp_path, replace(ONE_SEGMENT, max_batch_bytes=1_000_000))
    append(log, a_batch(b"small"), a_batch(b"L" * 500_000), a_batch(b"small"))
    read: list[int] = []
    real = log.segments[0].read.__func__  # type: ignore[attr-defined]

    def counted(segment: object, position: int, count: int) -> memoryview:
        view: memoryview = real(segment, position, count)
        read.append(len(view))
        return view

    monkeypatch.setattr("folkmoot.brokers.storage.segment.Segment.read", counted)
    assert len(log.read(1, 100_000, at_least_one=False)) == 0
    assert sum(read) < 2000
    assert values_of(log.read(0, 100_000, at_least_one=False)) == [(0, b"small")]
    assert values_of(log.read(1, 100_000)) == [(1, b"L" * 500_000)]
    assert [at for at, _ in values_of(log.read(1, 600_000, at_least_one=False))] == [1, 2]
    log.close()


def test_a_start_reads_whole_pages_from_the_disk_behind_the_recovery_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel keeps a page in its cache that it is asked to drop in part."""
    log = make_log(tmp_path, ONE_SEGMENT)
    write(log, a_batch(b"a"))
    flushed(log)
    write(log, a_batch(b"b"))
    point = log.recovery_point
    assert point is not None
    assert 0 < point.size < PAGESIZE
    log.abandon()
    dropped: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda fd, *where: dropped.append(where[:2]))
    reopened(tmp_path, ONE_SEGMENT, point).abandon()
    assert dropped == [(0, 0)]
