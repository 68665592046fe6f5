"""Reads without a copy: what they cost, what they wait for, and what may not happen to their file."""

import multiprocessing
import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import pytest
import zmq

from folkmoot.brokers.jobs.jobs import SharedJob
from folkmoot.brokers.storage.files.atomic_file import shorten
from folkmoot.brokers.storage.log import Log
from folkmoot.brokers.storage.mapped_file import MAPPED_BYTES, MappedFiles
from folkmoot.brokers.storage.recovery import list_segments
from folkmoot.brokers.storage.segment import NotCached
from folkmoot.coordination.topic_config import LogConfig
from folkmoot.protocol.errors import StorageError
from tests.brokers.batches import (
    NOW,
    a_batch,
    append,
    evict,
    flushed,
    make_log,
    reopened,
    timed_batch,
    values_of,
)

FRAMES: Final = 64
LARGE: Final = LogConfig(segment_bytes=64 * 1024 * 1024)


def large_batches(count: int, seed: int = 31) -> list[bytes]:
    source = random.Random(seed)
    return [a_batch(source.randbytes(MAPPED_BYTES + 4096)) for _ in range(count)]


def is_mapped(view: memoryview) -> bool:
    return not isinstance(view.obj, bytes)


# -- frames that are queued while their file is shortened --------------------------------------------


def cut_as_a_follower(log: Log) -> None:
    log.queue.run_now(log.cut(1))
    assert log.log_end == 1
    append(log, *large_batches(3, seed=5))  # the new end is written over


def roll_a_full_disk_back(log: Log) -> None:
    write = os.pwritev

    def fill(fd: int, parts: Sequence[bytes | memoryview], position: int) -> int:
        write(fd, [bytes(parts[1])[:5000]], position)
        raise OSError(28, "No space left on device")

    with pytest.MonkeyPatch.context() as full:
        full.setattr("os.pwritev", fill)
        with pytest.raises(StorageError, match="No space"):
            append(log, a_batch(b"refused" * 1000))
    append(log, a_batch(b"next"))


def begin_anew(log: Log) -> None:
    log.queue.run_now(log.begin_anew(log.log_end))
    append(log, a_batch(b"next"))


def recover(log: Log) -> None:
    log.abandon()
    with log.segments[-1].path.open("ab") as file:
        file.write(b"torn")
    reopened(log.directory.parent, LARGE)


def send_while(data: Path, change: Callable[[Log], None]) -> None:
    """In a process of its own: a SIGBUS would end it."""
    log = make_log(data, LARGE)
    append(log, *large_batches(FRAMES))
    if log.recovery_point is None:
        flushed(log)
    log.high_watermark = 0
    address = f"ipc://@folkmoot-{os.getpid()}"
    with (
        zmq.Context() as context,
        context.socket(zmq.PUSH) as push,
        context.socket(zmq.PULL) as pull,
    ):
        push.linger = pull.linger = 0
        push.sndhwm = FRAMES + 1
        push.connect(address)  # nobody is there yet: all frames wait in the queue
        sent = []
        for offset in range(FRAMES):
            view = log.read(offset, 1, committed=False)
            if not is_mapped(view):
                view = log.read(offset, MAPPED_BYTES, committed=False)
            assert is_mapped(view), offset
            sent.append(bytes(view))
            push.send(view, zmq.DONTWAIT, copy=False)
            del view
        change(log)
        pull.bind(address)
        for number, expected in enumerate(sent):
            assert pull.poll(10_000), number
            assert pull.recv() == expected, number


@pytest.mark.parametrize(
    "change",
    [cut_as_a_follower, roll_a_full_disk_back, begin_anew, recover],
)
def test_frames_that_are_queued_while_their_file_is_shortened_arrive_as_they_were(
    tmp_path: Path, change: Callable[[Log], None]
) -> None:
    process = multiprocessing.get_context("spawn").Process(
        target=send_while, args=(tmp_path, change)
    )
    process.start()
    process.join(20)
    if process.is_alive():
        process.kill()
    assert process.exitcode == 0  # -7 is a SIGBUS


def test_a_file_is_cut_in_place_when_no_view_is_in_use(tmp_path: Path) -> None:
    log = make_log(tmp_path, LARGE)
    append(log, *large_batches(4))
    flushed(log)
    log.high_watermark = 0
    path = log.segments[0].path
    first = path.stat().st_ino
    view = log.read(0, 4 * MAPPED_BYTES, committed=False)
    assert is_mapped(view)
    view.release()
    cut_as_a_follower(log)
    assert path.stat().st_ino == first
    log.high_watermark = 0
    view = log.read(0, 4 * MAPPED_BYTES, committed=False)
    before = bytes(view)
    cut_as_a_follower(log)
    assert path.stat().st_ino != first
    assert bytes(view) == before
    assert len(values_of(log.read(0, 8 * MAPPED_BYTES))) == 4
    log.close()
    assert values_of(reopened(tmp_path, LARGE).read(0, 1024 * 1024))[0][0] == 0


@pytest.mark.parametrize("call", ["os.sendfile", "os.fsync", "pathlib.Path.replace"])
def test_a_death_within_a_cut_by_a_new_file_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    class Died(BaseException):
        pass

    def die(*_: object) -> None:
        raise Died

    log = make_log(tmp_path, LARGE)
    append(log, *large_batches(3))
    flushed(log)
    path, whole = log.segments[0].path, log.segments[0].path.read_bytes()
    with monkeypatch.context() as dying:
        dying.setattr(call, die)
        with pytest.raises(Died):
            shorten(path, 1000, is_mapped=True)
    assert path.read_bytes() == whole
    assert [name.name for name in log.directory.glob("*.new")] == [path.name + ".new"]
    list_segments(log.directory)  # as the next start does
    assert not list(log.directory.glob("*.new"))


def test_a_disk_without_room_for_the_new_file_leaves_the_old_one_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 5000)
    with monkeypatch.context() as full:

        def refuse(*_: object) -> int:
            raise OSError(28, "No space left on device")

        full.setattr("os.sendfile", refuse)
        with pytest.raises(OSError, match="No space"):
            shorten(path, 1000, is_mapped=True)
    assert os.listdir(tmp_path) == ["file"]
    assert path.stat().st_size == 5000


# -- what is mapped, and for how long -----------------------------------------------------------------


def test_large_reads_are_views_and_small_ones_are_copies(tmp_path: Path) -> None:
    log = make_log(tmp_path, LARGE)
    append(log, *large_batches(4), a_batch(b"small"))
    assert is_mapped(log.read(0, 4 * MAPPED_BYTES))
    assert not is_mapped(log.read(4, 1000))
    log.close()


def test_the_views_of_a_growing_segment_show_what_was_appended(tmp_path: Path) -> None:
    log = make_log(tmp_path, LARGE)
    kept = []
    for number, batch in enumerate(large_batches(5)):
        append(log, batch)
        view = log.read(number, 2 * MAPPED_BYTES)
        assert is_mapped(view)
        kept.append(view)
    for number, view in enumerate(kept):
        [(offset, _)] = values_of(view)
        assert offset == number
    log.close()


def test_a_mapping_ends_with_its_last_view_and_their_number_is_bounded(tmp_path: Path) -> None:
    log = make_log(tmp_path, LARGE)
    append(log, *large_batches(3))
    files = log._files
    view = log.read(0, 4 * MAPPED_BYTES)
    assert is_mapped(view)
    assert len(files.mapped) == 1
    log.release()
    assert len(files.mapped) == 1
    view.release()
    del view
    assert len(files.mapped) == 0
    files.mapped = MappedFiles(limit=0)
    copied = log.read(0, 4 * MAPPED_BYTES)
    assert not is_mapped(copied)
    assert values_of(copied)[0][0] == 0
    log.close()


# -- what is not in the page cache --------------------------------------------------------------------


def cold_job(log: Log, offset: int = 3) -> SharedJob:
    log._files.may_wait = False
    with pytest.raises(NotCached) as cold:
        log.read(offset, 4 * MAPPED_BYTES)
    return cold.value.job


def test_a_read_that_its_jobs_have_brought_into_the_page_cache_is_a_view(tmp_path: Path) -> None:
    log = make_log(tmp_path, LARGE)
    append(log, *large_batches(8))
    flushed(log)
    evict(log)
    job = cold_job(log)
    assert cold_job(log) is job
    ran: list[SharedJob] = []
    found = memoryview(b"")
    while not found:
        job.finish(job.run())
        ran.append(job)
        try:
            found = log.read(3, 4 * MAPPED_BYTES)
        except NotCached as cold:
            job = cold.job
    assert 0 < len(ran) < 3
    assert is_mapped(found)
    assert values_of(found)[0][0] == 3
    log.close()


def test_a_read_waits_for_the_disk_when_its_job_was_in_vain_and_only_once(tmp_path: Path) -> None:
    """The page cache has lost what the job has read: the machine is short of memory."""
    log = make_log(tmp_path, LARGE)
    append(log, *large_batches(8))
    flushed(log)
    evict(log)
    first = log.segments[0]._find(3)
    evict(log)
    job = cold_job(log)
    job.finish(job.run())
    while first not in log.segments[0].read_jobs:
        job = cold_job(log)
        job.finish(job.run())
    evict(log, keep_open=True)
    found = log.read(3, 4 * MAPPED_BYTES)
    assert not is_mapped(found)
    assert values_of(found)[0][0] == 3
    evict(log)
    assert cold_job(log) is not job
    log.close()


def test_a_read_whose_job_has_failed_is_a_copy(tmp_path: Path) -> None:
    log = make_log(tmp_path, LARGE)
    append(log, *large_batches(8))
    flushed(log)
    evict(log)
    cold_job(log).finish(StorageError("no descriptor is left"))
    assert values_of(log.read(3, 4 * MAPPED_BYTES))[0][0] == 3
    log.close()


@pytest.mark.parametrize("what", ["time", "high watermark"])
def test_a_look_up_of_what_is_not_cached_is_a_job_as_well(tmp_path: Path, what: str) -> None:
    log = make_log(tmp_path, LARGE)
    append(log, *large_batches(64), timed_batch(NOW + 1))
    flushed(log)
    evict(log)
    for _ in range(2):  # the bytes, then the index
        job = cold_job(log, 0)
        job.finish(job.run())
    assert len(values_of(log.read(0, 4 * MAPPED_BYTES))) == 3
    log.high_watermark = 64  # within the segment: its position is looked up
    with pytest.raises(NotCached) as cold:
        log.offset_for_time(NOW + 1) if what == "time" else log.read(0, 4 * MAPPED_BYTES)
    cold.value.job.finish(cold.value.job.run())
    assert log.offset_for_time(NOW + 1) == 64
    assert len(values_of(log.read(0, 4 * MAPPED_BYTES))) == 3
    log.close()
