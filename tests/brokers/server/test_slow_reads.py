"""A disk that answers a read after a second (FUSE): who reads nothing from it does not wait for it."""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from folkmoot.brokers.server.broker import Broker
from folkmoot.brokers.server.config import BrokerConfig
from folkmoot.brokers.storage.log_manager import LogManager
from folkmoot.coordination.partition_states import TopicIdPartition, read
from folkmoot.coordination.topic_config import LogConfig
from folkmoot.coordination.topics import TopicInfo
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.protocol.messages import (
    Api,
    HelloRequest,
    ListOffsetsEntry,
    ListOffsetsRequest,
)
from tests.brokers.batches import append, timed_batch
from tests.brokers.hands import create
from tests.brokers.killed_broker import create as create_topic
from tests.brokers.parts import Peer, fetch, into, make_batch, out_of, produce
from tests.memory_zookeeper import MemoryZooKeeper
from tests.waiting import eventually

BATCH = 400_000
BATCHES = 16
LATE = 4_000_000_000_000
LONGEST_STALL = 0.5  # the disk takes a second for each read


def _built(directory: Path) -> Path:
    """The file system's program; skips where it cannot be built or mounted."""
    source, program = Path(__file__).parents[2] / "slow_disk.c", directory / "slow_disk"
    command = ["cc", "-O1", "-D_FILE_OFFSET_BITS=64", "-I/usr/include/fuse3", str(source)]
    is_there = all(map(shutil.which, ("cc", "fusermount3"))) and os.access("/dev/fuse", os.W_OK)
    if not (is_there and Path("/usr/include/fuse3/fuse.h").exists()):
        if os.environ.get("FOLKMOOT_REQUIRE_FUSE"):
            pytest.fail("cc, libfuse3-dev, fuse3 or /dev/fuse is missing")
        pytest.skip("FUSE is not installed")
    subprocess.run([*command, "-o", str(program), "-lfuse3"], check=True)
    return program


@contextmanager
def mounted(program: Path, directory: Path) -> Iterator[Path]:
    """Have `directory` on a slow disk; → where a file `slow` makes it so."""
    behind = directory.with_name(directory.name + "-behind")
    directory.rename(behind)
    directory.mkdir()
    process = subprocess.Popen([str(program), str(behind), "-f", str(directory)])
    try:
        eventually(lambda: os.path.ismount(directory))
        yield behind
    finally:
        (behind / "slow").unlink(missing_ok=True)
        subprocess.run(["fusermount3", "-u", "-z", str(directory)], check=True)
        process.wait(20)


def broker_config(number: int, data: Path, log: LogConfig) -> BrokerConfig:
    return BrokerConfig(broker_id=number, data=data, zookeeper="in.memory:1", log=log)


def _in_sync(ensemble: MemoryZooKeeper) -> set[int]:
    """The in-sync replicas of the partition with a follower."""
    found = execute(ensemble.connect(), read(TopicIdPartition("id-1", 1)))
    return set() if found is None else {*found.state.isr}


@pytest.mark.slow
@pytest.mark.parametrize("what", ["a fetch", "a small fetch", "a time"])
def test_a_read_from_a_slow_disk_stalls_only_who_reads_it(tmp_path: Path, what: str) -> None:
    program = _built(tmp_path)
    config = LogConfig(index_interval_bytes=65536, retention=None)
    with LogManager(tmp_path / "data", 1, config) as logs:
        cold = create(logs, "t", "id-1", 0)
        for _ in range(BATCHES):
            append(cold, make_batch(os.urandom(BATCH)))
        append(cold, timed_batch(LATE))
        directory = cold.directory
        warm = create(logs, "t", "id-1", 1)
        append(warm, make_batch(os.urandom(BATCH)))
    ensemble = MemoryZooKeeper()
    execute(ensemble.connect(), create_topic("t", TopicInfo("id-1", [[1], [1, 2]])))
    with ExitStack() as stack:
        behind = stack.enter_context(mounted(program, directory))
        broker, _ = (
            stack.enter_context(Broker(broker_config(number, data, config), ensemble.connect))
            for number, data in ((1, tmp_path / "data"), (2, tmp_path / "follower"))
        )
        reader, other = (stack.enter_context(Peer(broker.listeners["client"])) for _ in range(2))
        most = 64 if what == "a small fetch" else 2**20

        def look_at_others() -> bool:
            """Ask for the health, produce what a follower has to copy, and fetch."""
            other.call(Api.HELLO, HelloRequest("test"))
            assert broker.health().event_loop
            produced, _ = other.call(
                Api.PRODUCE, produce(into(1, epoch=-1), acks=-1), [make_batch(b"x")]
            )
            fetched, frames = other.call(Api.FETCH, fetch(out_of(1)))
            is_fine = produced.results[0].error == fetched.results[0].error == 0
            return is_fine and len(frames[0]) > BATCH

        eventually(look_at_others)
        eventually(lambda: _in_sync(ensemble) == {1, 2})
        reader.call(Api.FETCH, fetch(out_of(0, 0, 64)))  # the index is loaded
        behind.joinpath("slow").touch()
        begun = time.monotonic()
        if what == "a time":
            entry = ListOffsetsEntry("t", "id-1", 0, LATE)
            reader.ask(Api.LIST_OFFSETS, ListOffsetsRequest([entry]))
        else:
            reader.ask(Api.FETCH, fetch(out_of(0, BATCHES - 3, most), max_wait=30.0))
        longest = 0.0
        while reader.hears_nothing(0.0):
            asked = time.monotonic()
            assert look_at_others()
            longest = max(longest, time.monotonic() - asked)
        assert time.monotonic() - begun > 0.9, "it was cached"
        _, frames = reader.receive()
        assert longest < LONGEST_STALL
        assert what == "a time" or len(frames[0]) > BATCH
