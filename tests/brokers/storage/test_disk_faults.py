"""A disk that takes less than it is given, or nothing more."""

import errno
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from folkmoot.brokers.storage.segment import Segment
from folkmoot.protocol.errors import StorageError
from tests.brokers.batches import (
    ONE_SEGMENT,
    a_batch,
    append,
    expected,
    flush,
    make_log,
    random_batch,
    read_all,
    reopened,
)

ACTIVE = f"{0:020}.log"

RealWrite = Callable[[int, list[bytes], int], int]


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = random.Random(17)

    def write_some(fd: int, parts: list[bytes], position: int) -> int:
        whole = b"".join(parts)
        return os.pwrite(fd, whole[: source.randrange(1, len(whole) + 1)], position)

    monkeypatch.setattr("folkmoot.brokers.storage.files.atomic_file.os.pwritev", write_some)
    log = make_log(tmp_path)
    batches = [random_batch(source) for _ in range(40)]
    for number in range(0, 40, 4):
        append(log, *batches[number : number + 4])
    assert read_all(log) == expected(batches)
    log.close()


def test_short_reads_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = random.Random(17)
    batches = [random_batch(source) for _ in range(60)]
    log = make_log(tmp_path)
    for each in batches:
        append(log, each)
    log.abandon()
    read = os.pread

    def read_some(fd: int, count: int, position: int) -> bytes:
        return read(fd, source.randrange(1, count + 1) if count else 0, position)

    monkeypatch.setattr("folkmoot.brokers.storage.files.atomic_file.os.pread", read_some)
    log = reopened(tmp_path)
    assert read_all(log) == expected(batches)
    assert not log.is_damaged
    log.close()


def test_a_start_that_cannot_read_the_whole_of_a_batch_cuts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first bytes of a batch lie in a sector that can be read, the others do not."""
    log = make_log(tmp_path, ONE_SEGMENT)
    batches = [a_batch(b"%d" % number * 100) for number in range(5)]
    append(log, *batches)
    log.abandon()
    read, bad = os.pread, len(b"".join(batches[:3])) + 90

    def read_sectors(fd: int, count: int, position: int) -> bytes:
        if position >= bad and count:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(fd, max(0, min(count, bad - position)), position)

    with monkeypatch.context() as broken:
        broken.setattr("folkmoot.brokers.storage.files.atomic_file.os.pread", read_sectors)
        with pytest.raises(StorageError, match="cannot be read behind position"):
            reopened(tmp_path, ONE_SEGMENT)
    assert read_all(reopened(tmp_path, ONE_SEGMENT)) == expected(batches)


def fail_after(taken: int) -> RealWrite:
    """A disk that takes so many bytes more and is full then."""
    left = [taken]

    def write(fd: int, parts: list[bytes], position: int) -> int:
        if left[0] == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = os.pwrite(fd, b"".join(parts)[: left[0]], position)
        left[0] -= written
        return written

    return write


def test_a_write_that_fails_after_any_byte_leaves_no_torn_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = make_log(tmp_path, ONE_SEGMENT)
    kept = [a_batch(b"a", b"b"), a_batch(b"c")]
    refused = [a_batch(b"d"), a_batch(b"e")]
    append(log, *kept)
    for taken in range(sum(map(len, refused))):
        with monkeypatch.context() as broken:
            broken.setattr(
                "folkmoot.brokers.storage.files.atomic_file.os.pwritev", fail_after(taken)
            )
            with pytest.raises(StorageError, match="No space left"):
                append(log, *refused)
        assert (log.directory / ACTIVE).stat().st_size == log.size == sum(map(len, kept))
    more = a_batch(b"f")
    assert append(log, more) == [3]
    assert read_all(log) == expected([*kept, more])
    log.abandon()
    assert read_all(reopened(tmp_path, ONE_SEGMENT)) == expected([*kept, more])


def test_a_torn_end_that_cannot_be_cut_back_takes_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(fd: int, length: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    log = make_log(tmp_path)
    kept = a_batch(b"a" * 1500)
    append(log, kept)
    with monkeypatch.context() as broken:
        broken.setattr("folkmoot.brokers.storage.files.atomic_file.os.pwritev", fail_after(50))
        broken.setattr("folkmoot.brokers.storage.segment.os.ftruncate", refuse)
        with pytest.raises(StorageError, match="torn end"):
            append(log, a_batch(b"b"))
    # Not even into a new segment, which would leave the torn one in the middle.
    for more in (a_batch(b"b"), a_batch(b"c" * 1500)):
        with pytest.raises(StorageError, match="torn end"):
            append(log, more)
    assert read_all(log) == [(0, b"a" * 1500)]
    log.abandon()
    again = reopened(tmp_path)
    assert append(again, a_batch(b"b")) == [1]
    assert [offset for offset, _ in read_all(again)] == [0, 1]
    again.close()


def test_a_flush_that_failed_is_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    log = make_log(tmp_path)
    append(log, a_batch(b"a"))
    with monkeypatch.context() as broken:
        broken.setattr("folkmoot.brokers.storage.log.os.fdatasync", refuse)
        with pytest.raises(StorageError, match="could not be flushed"):
            flush(log)
    for action in (lambda: flush(log), lambda: append(log, a_batch(b"b")), log.close):
        with pytest.raises(StorageError, match="could not be flushed"):
            action()


def test_an_index_that_cannot_be_written_costs_nothing_but_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    log = make_log(tmp_path)
    source = random.Random(19)
    batches = [random_batch(source) for _ in range(60)]
    with monkeypatch.context() as full:
        full.setattr(Segment, "write_index", refuse)
        for each in batches:
            append(log, each)
        assert len(log.segments) > 2
        assert read_all(log) == expected(batches)
        log.close()
    assert not list(log.directory.glob("*.index"))
    log = reopened(tmp_path)
    assert read_all(log) == expected(batches)
    log.close()


def test_a_segment_that_cannot_be_opened_refuses_the_append_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the process has no descriptor left: that is no torn end."""
    log = make_log(tmp_path)
    append(log, a_batch(b"a"))
    log.release()
    real = os.open

    def refuse(path: Path, flags: int, mode: int = 0o777) -> int:
        if Path(path).suffix == ".log":
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return real(path, flags, mode)

    with monkeypatch.context() as broken:
        broken.setattr("os.open", refuse)
        with pytest.raises(StorageError, match="cannot be opened"):
            append(log, a_batch(b"b"))
    assert append(log, a_batch(b"c")) == [1]
    assert read_all(log) == [(0, b"a"), (1, b"c")]
    log.close()


def test_a_segment_that_cannot_be_created_refuses_the_append_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = make_log(tmp_path)
    append(log, a_batch(b"a" * 1500))
    log.read(0, 1)
    with monkeypatch.context() as broken:
        broken.setattr("folkmoot.brokers.storage.segment.os.O_EXCL", 2**31 - 1)
        with pytest.raises(StorageError, match="cannot be created"):
            append(log, a_batch(b"b" * 1500))
    assert append(log, a_batch(b"c" * 1500)) == [1]
    assert [value[:1] for _, value in read_all(log)] == [b"a", b"c"]
    log.close()


def test_an_append_that_fails_in_a_new_segment_does_not_hide_what_is_to_be_flushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(fd: int, parts: list[bytes], position: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    flushed: list[int] = []
    log = make_log(tmp_path)
    append(log, a_batch(b"a" * 1500))
    with monkeypatch.context() as broken:
        broken.setattr("folkmoot.brokers.storage.segment.write_at", refuse)
        with pytest.raises(StorageError, match="could not be appended to"):
            append(log, a_batch(b"b" * 1500))
    assert len(log.segments) == 2
    monkeypatch.setattr("folkmoot.brokers.storage.log.os.fdatasync", flushed.append)
    assert log.queue.run_now(log.flush_some()) is not None
    assert len(flushed) == 1
    assert log.recovery_point_offset == 1
    assert log.queue.run_now(log.flush_some()) is None
    log.close()


FULL_DISK = """
import resource, sys
from pathlib import Path
from folkmoot.brokers.storage.segment import Segment
from folkmoot.protocol.errors import StorageError
from tests.brokers.batches import ONE_SEGMENT, a_batch, append, make_log, read_all

hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
log = make_log(Path(sys.argv[1]), ONE_SEGMENT)
acknowledged, refused = 0, 0
resource.setrlimit(resource.RLIMIT_FSIZE, (50_011, hard))
while not refused:
    try:
        acknowledged += len(append(log, a_batch(b"x" * 700), a_batch(b"y" * 123)))
    except StorageError:
        refused += 1
assert len(read_all(log)) == acknowledged > 90
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
acknowledged += len(append(log, a_batch(b"x" * 700), a_batch(b"y" * 123)))
print(acknowledged)
"""


def test_a_file_that_may_not_grow_loses_nothing_and_goes_on_when_it_may(tmp_path: Path) -> None:
    root = Path(__file__).parents[3]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), str(root / "src")])}
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    log = reopened(tmp_path, ONE_SEGMENT)
    found = read_all(log)
    assert [value for _, value in found] == [b"x" * 700, b"y" * 123] * (int(done.stdout) // 2)
    log.close()
