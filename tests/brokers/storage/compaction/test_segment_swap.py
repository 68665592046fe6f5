"""A kill before or after any step of a compaction, and deletions between any two of its steps."""

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest

from folkmoot.brokers.jobs.jobs import result_of
from folkmoot.brokers.storage import segment_swap
from folkmoot.brokers.storage.compaction import cleaning_pass
from folkmoot.brokers.storage.compaction.log_cleaner import COMPACTION_INTERVAL, RETRY_PAUSE
from folkmoot.brokers.storage.log_manager import REMOVE_AGAIN_AFTER
from folkmoot.brokers.storage.notes import save_notes
from folkmoot.brokers.storage.recovery import list_segments
from folkmoot.brokers.storage.segment import SegmentName
from folkmoot.protocol import batch_header, record_batch
from folkmoot.protocol.errors import CorruptBatch
from folkmoot.protocol.records import Record
from tests.brokers.compaction import Row, Upkept, keyed, last_of_each, records_in, rows
from tests.brokers.storage.compaction.test_log_cleaner import active, fill

_CHANGES = ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate")
_WRITES = os.O_CREAT | os.O_TRUNC
_watching: list[Callable[[], None]] = []
_hooked = False


def _on_event(event: str, arguments: tuple[Any, ...]) -> None:
    if not _watching or "folkmoot" not in str(arguments[:1]):
        return
    if event in _CHANGES or (event == "open" and (arguments[2] or 0) & _WRITES):
        watcher = _watching.pop()
        try:
            watcher()
        finally:
            _watching.append(watcher)


@contextmanager
def before_every_change(look: Callable[[], None]) -> Iterator[None]:
    """Call `look` before each change of a directory below one whose name has `folkmoot` in it."""
    global _hooked
    if not _hooked:
        sys.addaudithook(_on_event)
        _hooked = True
    _watching.append(look)
    try:
        yield
    finally:
        _watching.clear()


@pytest.fixture(autouse=True)
def several_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass makes several segments."""
    monkeypatch.setattr(cleaning_pass, "MOST_OFFSETS", 40)


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill takes nothing that was written, flushed or not."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    monkeypatch.setattr(os, "fdatasync", lambda fd: None)


class Snapshots:
    """Copies of a data directory, as a kill at that moment would leave it."""

    def __init__(self, data: Path, into: Path) -> None:
        self.data = data
        self.into = into
        self.taken: list[Path] = []

    def take(self) -> None:
        copy = self.into / str(len(self.taken))
        shutil.copytree(self.data, copy)
        self.taken.append(copy)


def both_lie_there(copy: Path) -> bool:
    """Whether a compacted segment lies beside one that it stands for."""
    names = [SegmentName.parse(path.name) for path in (copy / "first-0").glob("*.log")]
    known = [name for name in names if name is not None]
    return any(
        new.generation > old.generation and new.base <= old.base < new.end
        for new in known
        for old in known
    )


def check(copy: Path, written: list[Row], final: list[Any]) -> None:
    """Nothing is lost in it, nothing invented, and compacting again ends as it would have."""
    upkept = Upkept(copy)
    assert not any(segment.damage for segment in upkept.log.sealed_segments)
    assert (upkept.log.log_start, upkept.log.log_end) == (0, len(written))
    found = rows(records_in(upkept.log))
    assert set(final) <= set(found)
    assert set(found) <= {(at, *row) for at, row in enumerate(written)}
    upkept.compact()
    assert set(rows(records_in(upkept.log))) >= set(final)
    left = {path.name.partition(".")[2] for path in upkept.log.directory.iterdir()}
    assert left <= {"log", "index", "snapshot", ""}, left
    bases = [path.name[:20] for path in upkept.log.directory.glob("*.log")]
    assert len(bases) == len(set(bases)) == len(upkept.log.segments)
    upkept.logs.close()
    shutil.rmtree(copy)


def test_a_kill_before_or_after_any_step_of_a_compaction_loses_nothing(tmp_path: Path) -> None:
    upkept = Upkept(tmp_path / "folkmoot")
    written: list[Row] = []
    fill(upkept, written, 36, keys=6)
    upkept.compact()
    fill(upkept, written, 36, keys=6)
    final = last_of_each(written, active(upkept))
    snapshots = Snapshots(upkept.data, tmp_path / "copies")
    upkept.checkpoint()
    with before_every_change(snapshots.take):
        upkept.compact()
    snapshots.take()
    assert rows(records_in(upkept.log)) == final
    assert any(list((copy / "first-0").glob("*.cleaned")) for copy in snapshots.taken)
    assert any(both_lie_there(copy) for copy in snapshots.taken)
    for copy in snapshots.taken:
        check(copy, written, final)
    upkept.logs.close()


def test_a_second_kill_while_a_compaction_is_being_finished_loses_nothing(tmp_path: Path) -> None:
    upkept = Upkept(tmp_path / "folkmoot")
    written: list[Row] = []
    fill(upkept, written, 36, keys=6)
    final = last_of_each(written, active(upkept))
    first = Snapshots(upkept.data, tmp_path / "copies-of-folkmoot")
    upkept.checkpoint()
    with before_every_change(first.take):
        upkept.compact()
    interrupted = [
        copy
        for copy in first.taken
        if list((copy / "first-0").glob("*.cleaned")) or both_lie_there(copy)
    ]
    assert len(interrupted) > 5
    for number, copy in enumerate(interrupted[:: len(interrupted) // 5]):
        second = Snapshots(copy, tmp_path / f"again-{number}")
        with before_every_change(second.take):
            Upkept(copy).logs.abandon()
        assert second.taken
        for again in second.taken[number::4]:
            check(again, written, final)
    upkept.logs.close()


def steps_of(upkept: Upkept) -> Iterator[int]:
    """A compaction, step by step: what the event loop does, and what the background does."""
    upkept.checkpoint()
    number = 0
    while upkept.cleaner.task(upkept.now) < COMPACTION_INTERVAL:
        while upkept.hands.jobs:
            _, work, done = upkept.hands.jobs.pop(0)
            yield number
            result = result_of(work)
            yield number + 1
            done(result)
            number += 2
    yield number


@pytest.mark.parametrize("what", ["delete_before", "expire", "delete", "read"])
def test_whatever_is_deleted_between_any_two_steps_stays_deleted(tmp_path: Path, what: str) -> None:
    counted = Upkept(tmp_path / "counted")
    fill(counted, [], 36, keys=6)
    steps = len(list(steps_of(counted)))
    assert steps > 8
    for moment in range(steps):
        upkept = Upkept(tmp_path / f"{what}-{moment}")
        written: list[Row] = []
        fill(upkept, written, 36, keys=6)
        start, answers = 0, list[Exception | None]()
        for step in steps_of(upkept):
            if step != moment:
                continue
            if what == "delete_before":
                start = upkept.log.sealed_segments[0].end_offset + 3
                upkept.retention.delete_records(upkept.log, start, answers.append)
                upkept.hands.work_all()
            elif what == "expire":
                start = upkept.log.log_end
                upkept.logs.configure("flights", "first", {"cleanup_policy": "compact,delete"})
                upkept.later(10**9)
                for _ in range(3):
                    upkept.retention.task(upkept.now)
                    upkept.hands.work_all()
            elif what == "delete":
                upkept.logs.delete_topic("first")
                upkept.logs.deletion_task(upkept.now)
            else:
                records_in(upkept.log)
        for _ in range(5):
            upkept.step()
        assert answers == [None] * (what == "delete_before")
        if what == "delete":
            upkept.logs.deletion_task(upkept.now)
            upkept.hands.work_all()
            assert not (upkept.data / "first-0").exists()
            upkept.logs.close()
            continue
        upkept.compact()
        upkept.expire()
        for clean in (None, True, False):
            if clean is not None:
                upkept.reopen(clean=clean)
            assert (upkept.log.log_start, upkept.log.log_end) == (start, len(written))
            kept = (
                [row for row in last_of_each(written, active(upkept)) if row[0] >= start]
                if (upkept.log.sealed_segments)
                else []
            )
            found = rows(records_in(upkept.log))
            assert set(kept) <= set(found)
            assert set(found) <= {(at, *row) for at, row in enumerate(written) if at >= start}
        upkept.logs.close()


@pytest.mark.parametrize("fails", ["rename", "write_index", "sync_directory", "unlink"])
def test_a_swap_that_fails_halfway_leaves_the_log_in_use_and_the_next_start_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    """A disk that is read-only by now, or has no room for a name."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    upkept = Upkept(tmp_path / "data")
    written: list[Row] = []
    fill(upkept, written, 36, keys=6)
    final = last_of_each(written, active(upkept))
    upkept.checkpoint()
    where = {"rename": os, "write_index": cleaning_pass, "unlink": Path}.get(fails, segment_swap)
    with monkeypatch.context() as broken:
        broken.setattr(where, fails, refuse)
        for _ in range(20):
            upkept.step()
    assert (upkept.compacted().clean_before == 0) == (fails != "unlink")
    assert set(final) <= set(rows(records_in(upkept.log)))
    # What the log did not take over must not be there when retention has deleted the old ones.
    names = {each.name.stem for each in upkept.log.segments}
    left = {path.stem for path in upkept.log.directory.glob("*.log")}
    assert {stem for stem in left if "-" in stem} <= names
    upkept.append(keyed((b"a", b"b")))
    upkept.later(RETRY_PAUSE)
    upkept.compact()
    assert upkept.compacted().clean_before > 0
    for clean in (True, False):
        assert set(final) <= set(rows(records_in(upkept.log)))
        upkept.reopen(clean=clean)
        upkept.compact()
    upkept.logs.close()


def test_a_compacted_segment_that_was_left_behind_gives_way_to_a_later_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first old segment was deleted, then the pass was given up, and the files were not removed."""
    monkeypatch.setattr(cleaning_pass, "MOST_OFFSETS", 2**32 - 1)
    upkept = Upkept(tmp_path / "data")
    written: list[Row] = []
    fill(upkept, written, 36, keys=6)
    upkept.compact()
    directory = upkept.log.directory
    compacted = min(directory.glob("*-1.log"))
    left = compacted.read_bytes()
    fill(upkept, written, 36, keys=6)
    upkept.compact()
    final = rows(records_in(upkept.log))
    upkept.logs.close()
    compacted.write_bytes(left)
    upkept.open()
    assert rows(records_in(upkept.log)) == final
    assert not compacted.exists()
    upkept.logs.close()


def test_what_gives_way_to_a_later_pass_takes_nothing_else_along(tmp_path: Path) -> None:
    """The first pass, of three segments, was left behind; the second one found the third damaged."""
    kept, left = SegmentName(0, 20, 2), SegmentName(0, 30, 1)
    for name in (SegmentName(0), SegmentName(10), SegmentName(20), SegmentName(30), kept, left):
        (tmp_path / f"{name.stem}.log").touch()
    found = [name for name, _ in list_segments(tmp_path).segments]
    assert found == [kept, SegmentName(20), SegmentName(30)]
    assert len(list(tmp_path.glob("*.log"))) == 3


def test_what_is_missing_behind_a_compacted_segment_is_told_to_who_reads_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It was deleted while its neighbour was being compacted, and a kill has left that one behind."""
    upkept = Upkept(tmp_path / "folkmoot")
    written: list[Row] = []
    fill(upkept, written, 90, keys=200)
    upkept.compact()
    first, second = next(
        pair
        for pair in pairwise(upkept.log.sealed_segments)
        if pair[0].size and pair[0].sparse and pair[1].sparse
    )
    left = [(header.base_offset, header.next_offset) for header, _ in first.reader().headers(0)]
    upkept.logs.abandon()
    for path in second.files():
        path.unlink()
    upkept.open()
    assert f"offsets {second.base_offset} to {second.end_offset - 1}" in caplog.text
    go_on = f"go on at {second.end_offset}"
    for offset in (left[-1][1], second.base_offset - 1, second.base_offset, second.end_offset - 1):
        with pytest.raises(CorruptBatch, match=go_on):
            upkept.log.read(offset, 10_000)
    assert rows(records_in(upkept.log, second.end_offset)) == [
        row for row in last_of_each(written, active(upkept)) if row[0] >= second.end_offset
    ]
    last, end = left[-1]
    found = [at for at, *_ in rows(_records(upkept.log.read(last, 10_000)))]
    assert found
    assert set(found) <= set(range(last, end)), "what is left is served"
    upkept.logs.close()


def _records(chunk: memoryview) -> list[Record]:
    return [
        record
        for header, data in batch_header.split(chunk)
        for record in record_batch.records_of("t", 0, header, data)
    ]


def test_replaced_segments_that_cannot_be_removed_are_removed_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else they would be back when retention lets go of what has replaced them."""
    upkept = Upkept(tmp_path / "folkmoot")
    written: list[Row] = []
    fill(upkept, written, 36, keys=6)

    def refuse(*_: object, **__: object) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(Path, "unlink", refuse)
        upkept.checkpoint()
        for _ in range(20):
            upkept.step()
    assert any(segment.sparse for segment in upkept.log.sealed_segments)
    assert both_lie_there(upkept.data)
    upkept.later(REMOVE_AGAIN_AFTER)
    upkept.logs.deletion_task(upkept.now)
    upkept.hands.work_all()
    assert not both_lie_there(upkept.data)
    upkept.later(RETRY_PAUSE)
    upkept.compact()
    assert rows(records_in(upkept.log)) == last_of_each(written, active(upkept))
    upkept.logs.close()


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_log_that_is_cut_between_any_two_steps_has_what_came_after_the_cut(
    tmp_path: Path, is_killed: bool
) -> None:
    """What is cut and what follows have the same offsets, and the last segment that stays is sealed again."""
    once = (0, b"once", b"here")
    for moment in count():
        upkept = Upkept(tmp_path / f"{moment}")
        written: list[Row] = [(b"once", b"here")]
        upkept.append(keyed(*written))
        fill(upkept, written, 30, keys=6)
        offset = len(written)
        written.append((b"once", b"there"))
        upkept.append(keyed(written[-1]))
        fill(upkept, written, 20, keys=6)
        assert upkept.log.segment_at(offset).sealed
        is_cut = has_once = False
        for step in steps_of(upkept):
            if step == moment:
                begin_cut(upkept, offset)
            if step >= moment and not is_cut and upkept.log.log_end == offset:
                is_cut = True
                del written[offset:]
                fill(upkept, written, 36, keys=6, seed=2)
                has_once = once in rows(records_in(upkept.log))
            if is_killed and is_cut and step > moment:
                break
        if not is_cut:
            break
        if is_killed:
            upkept.reopen(clean=False)
        found = rows(records_in(upkept.log))
        assert behind(offset, found) == behind(offset, last_of_each(written, 0))
        upkept.later(RETRY_PAUSE)
        upkept.compact()
        found = rows(records_in(upkept.log))
        assert behind(offset, found) == behind(offset, last_of_each(written, active(upkept)))
        assert (once in found) == has_once, "what replaced it is cut"
        assert not upkept.log.is_damaged
        assert not upkept.log.is_incomplete
        upkept.logs.close()
    assert moment > 8


def begin_cut(upkept: Upkept, offset: int) -> None:
    """As a follower is behind an unclean election: the noted recovery point is taken back first."""
    upkept.logs.notes.recovery_points.clear()
    save_notes(upkept.data, upkept.logs.notes)

    async def cut() -> None:
        upkept.log.uncommit(offset, "an unclean election has lost")
        await upkept.log.cut(offset)

    upkept.log.queue.add(cut())
    upkept.hands.work_all()


def behind(offset: int, found: list[Any]) -> list[Any]:
    return [row for row in found if row[0] >= offset]
