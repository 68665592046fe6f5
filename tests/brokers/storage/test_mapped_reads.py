"""Readers that hold views of mappings while their segments are deleted, replaced and cut."""

import gc
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import zmq

from folkmoot.brokers.storage.config import DAY
from folkmoot.brokers.storage.log import Log
from folkmoot.protocol import batch_header, record_batch
from tests.brokers.compaction import COMPACT, Row, Upkept, records_in, rows
from tests.brokers.storage.compaction.test_log_cleaner import fill
from tests.seeds import new_seed

READERS = 4
Held = tuple[int, memoryview, bytes]


def held_views(log: Log, source: random.Random, count: int) -> list[Held]:
    """Views of sealed segments, as fetches under way hold them, with copies of what they show."""
    views = []
    end = log.sealed_segments[-1].end_offset
    for _ in range(count):
        offset = source.randrange(log.log_start, end)
        view = log.read(offset, source.randrange(1, 4000))
        views.append((offset, view, bytes(view)))
    return views


def is_good(offset: int, view: memoryview, copy: bytes) -> bool:
    """Whether a view shows whole batches, the same as ever."""
    found = list(batch_header.split(view))
    opened = [record_batch.records_of("t", 0, header, data) for header, data in found]
    return all(opened) and found[0][0].next_offset > offset and view == copy


def still_mapped(data: Path) -> list[str]:
    """Files below a directory that are gone and still mapped or open."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    found = [line for line in maps if str(data) in line and line.endswith("(deleted)")]
    for fd in Path("/proc/self/fd").iterdir():
        try:
            target = str(fd.readlink())
        except OSError:
            continue  # closed since
        if str(data) in target and target.endswith("(deleted)"):
            found.append(target)
    return found


@contextmanager
def readers_of(views: list[Held]) -> Iterator[list[str]]:
    """Threads that look at all views again and again; what they find wrong."""
    wrong: list[str] = []
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            for offset, view, copy in views:
                if view != copy:
                    wrong.append(f"the view from offset {offset} has changed")

    threads = [threading.Thread(target=look) for _ in range(READERS)]
    for thread in threads:
        thread.start()
    try:
        yield wrong
    finally:
        done.set()
        for thread in threads:
            thread.join()


def by_retention(upkept: Upkept) -> None:
    upkept.logs.configure("flights", "first", {"cleanup_policy": "delete"})
    upkept.later(8 * DAY)
    upkept.expire()


def by_request(upkept: Upkept) -> None:
    for offset in range(0, upkept.log.log_end + 1, 29):
        upkept.delete_before(max(offset, upkept.log.log_start))
    upkept.delete_before(upkept.log.log_end)


def by_compaction(upkept: Upkept) -> None:
    upkept.compact()


def with_the_topic(upkept: Upkept) -> None:
    upkept.logs.delete_topic("first")


def by_a_crash_and_recovery(upkept: Upkept) -> None:
    """The torn end is cut, by the next life of the log; what is sealed is not touched."""
    with (upkept.log.directory / f"{active_base(upkept):020}.log").open("ab") as file:
        file.write(b"torn" * 100)
    upkept.reopen(clean=False)
    upkept.compact()


def active_base(upkept: Upkept) -> int:
    return upkept.log.sealed_segments[-1].end_offset


WAYS: list[Callable[[Upkept], None]] = [
    by_retention,
    by_request,
    by_compaction,
    with_the_topic,
    by_a_crash_and_recovery,
]


@pytest.mark.parametrize("way", WAYS)
def test_views_show_what_they_showed_whatever_becomes_of_their_files(
    tmp_path: Path, way: Callable[[Upkept], None]
) -> None:
    seed = new_seed()
    source = random.Random(seed)
    upkept = Upkept(tmp_path / "data")
    written: list[Row] = []
    fill(upkept, written, 80, keys=9, seed=seed)
    views = held_views(upkept.log, source, 60)
    with readers_of(views) as wrong:
        way(upkept)
        upkept.hands.work_all()
        assert all(is_good(*each) for each in views)
    assert not wrong
    upkept.logs.close()
    directory = upkept.data / "flights-0"
    assert not list(directory.glob("*.deleted")) if directory.exists() else True
    assert still_mapped(upkept.data)  # by the views, and by nothing else:
    views.clear()
    gc.collect()
    assert still_mapped(upkept.data) == []


def test_a_frame_on_its_way_arrives_whole_after_its_segment_was_replaced(tmp_path: Path) -> None:
    upkept = Upkept(tmp_path / "data")
    written: list[Row] = []
    fill(upkept, written, 150, keys=9)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    receiver, sender = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    port = receiver.bind_to_random_port("tcp://127.0.0.1")
    sender.connect(f"tcp://127.0.0.1:{port}")
    expected = []
    for offset in range(0, active_base(upkept), 7):
        expected.append(bytes(upkept.log.read(offset, 2000)))
        sender.send(upkept.log.read(offset, 2000), copy=False)
    upkept.compact()
    upkept.delete_before(upkept.log.log_end)
    upkept.hands.work_all()
    assert [receiver.recv() for _ in expected] == expected
    context.destroy(linger=0)
    gc.collect()
    assert still_mapped(upkept.data) == []
    upkept.logs.close()


def test_reads_and_deletions_in_turns_never_disturb_each_other(tmp_path: Path) -> None:
    """Appends, compaction, deletion and reads of everything, with views of all ages held."""
    seed = new_seed()
    source = random.Random(seed)
    upkept = Upkept(tmp_path / "data", COMPACT)
    written: list[Row] = []
    fill(upkept, written, 40, keys=9, seed=seed)
    held: list[Held] = []
    for _ in range(25):
        fill(upkept, written, 12, keys=9, seed=seed)
        if upkept.log.sealed_segments:
            held += held_views(upkept.log, source, 5)
        upkept.checkpoint()
        for _ in range(source.randrange(30)):
            upkept.step()
        if source.random() < 0.3:
            upkept.delete_before(source.randrange(upkept.log.log_start, upkept.log.log_end))
        found = rows(records_in(upkept.log))
        assert set(found) <= {(at, *row) for at, row in enumerate(written)}
        assert all(view == copy for _, view, copy in held)
        del held[: source.randrange(4)]
    upkept.logs.close()
