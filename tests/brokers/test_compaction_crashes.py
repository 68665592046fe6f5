"""A kill before or after any step of a compaction, and deletions between any two of its steps."""

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from folkmoot.brokers.storage.compaction.compactor import COMPACTION_INTERVAL
from folkmoot.protocol.errors import StorageError
from tests.brokers.batches import a_batch, append, delete_before, read_all
from tests.brokers.compaction import Row, Upkept, keyed, last_of_each, records_in, rows
from tests.brokers.test_compaction import active, fill

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


def check(copy: Path, written: list[Row], final: list[Any]) -> None:
    """Nothing is lost in it, nothing invented, and compacting again ends as it would have."""
    upkept = Upkept(copy)
    assert not any(segment.damage for segment in upkept.log.all_sealed())
    assert (upkept.log.start_offset, upkept.log.end_offset) == (0, len(written))
    found = rows(records_in(upkept.log))
    assert set(final) <= set(found)
    assert set(found) <= {(at, *row) for at, row in enumerate(written)}
    upkept.compact()
    assert set(rows(records_in(upkept.log))) >= set(final)
    left = {path.name.partition(".")[2] for path in upkept.log.directory.iterdir()}
    assert left <= {"log", "index", "timeindex", "snapshot", ""}, left
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
    states = {path.suffix for copy in snapshots.taken for path in (copy / "flights-0").iterdir()}
    assert {".cleaned", ".swap", ".deleted"} <= states
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
    interrupted = [copy for copy in first.taken if any((copy / "flights-0").glob("*.swap"))]
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
    """A compaction, step by step."""
    upkept.checkpoint()
    number = 0
    while upkept.step() < COMPACTION_INTERVAL:
        yield number
        number += 1


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
        start = 0
        for step in steps_of(upkept):
            if step != moment:
                continue
            if what == "delete_before":
                start = upkept.log.all_sealed()[0].end_offset + 3
                delete_before(upkept.log, start)
            elif what == "expire":
                start = upkept.log.end_offset
                upkept.logs.configure("first", {"cleanup_policy": "compact,delete"})
                upkept.later(10**9)
                upkept.log.expire(upkept.now.wall)
            elif what == "delete":
                upkept.logs.delete_topic("first")
                break
            else:
                records_in(upkept.log)
        for _ in range(5):
            upkept.step()
        if what == "delete":
            assert not (upkept.data / "flights-0").exists()
            upkept.logs.close()
            continue
        upkept.compact()
        upkept.log.expire(upkept.now.wall)
        for clean in (None, True, False):
            if clean is not None:
                upkept.reopen(clean=clean)
            assert (upkept.log.start_offset, upkept.log.end_offset) == (start, len(written))
            kept = (
                [row for row in last_of_each(written, active(upkept)) if row[0] >= start]
                if (upkept.log.all_sealed())
                else []
            )
            found = rows(records_in(upkept.log))
            assert set(kept) <= set(found)
            assert set(found) <= {(at, *row) for at, row in enumerate(written) if at >= start}
        upkept.logs.close()


def test_a_swap_that_fails_halfway_takes_its_log_out_of_use_and_the_next_start_finishes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that is read-only by now, or has no room for a name: other partitions are served."""
    counted = Upkept(tmp_path / "counted")
    fill(counted, [], 36, keys=6)
    real, renames = Path.rename, 0
    fails_at = -1

    def rename(self: Path, target: Path) -> Path:
        nonlocal renames
        if self.parent.suffix == ".swap" or target.suffix == ".deleted":
            renames += 1
            if renames == fails_at:
                raise OSError(30, "Read-only file system")
        return real(self, target)

    monkeypatch.setattr(Path, "rename", rename)
    counted.compact()
    assert renames > 8
    for fails_at in range(1, renames + 1, 5):
        renames = 0
        upkept = Upkept(tmp_path / str(fails_at))
        other = upkept.logs.create("other", "second", 0)
        written: list[Row] = []
        fill(upkept, written, 36, keys=6)
        final = last_of_each(written, active(upkept))
        upkept.compact()
        assert not upkept.log.is_open
        with pytest.raises(StorageError, match="restart the broker"):
            upkept.log.read(0, 100)
        with pytest.raises(StorageError, match="restart the broker"):
            upkept.append(keyed((b"a", b"b")))
        append(other, a_batch(b"still"))
        assert read_all(other) == [(0, b"still")]
        upkept.logs.close()
        upkept.open()
        assert set(final) <= set(rows(records_in(upkept.log)))
        upkept.append(keyed((b"a", b"b")))
        upkept.compact()
        assert set(final) <= set(rows(records_in(upkept.log)))
        upkept.logs.close()
