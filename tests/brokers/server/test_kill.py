"""SIGKILL of a broker under load, at any moment: what was acknowledged is there, and nothing else.

FOLKMOOT_KILL_ROUNDS sets how often, FOLKMOOT_SEED repeats a run's load and moments.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from folkmoot.brokers.storage.compaction.cleaning_pass import load_checkpoint
from folkmoot.brokers.storage.log import Log
from folkmoot.brokers.storage.log_manager import LogManager
from folkmoot.brokers.storage.recovery import CLEANER_CHECKPOINT_FILE
from folkmoot.protocol import record_batch, wire
from folkmoot.protocol.columns import Columns
from folkmoot.protocol.compression import Codec
from folkmoot.protocol.messages import (
    Api,
    DeleteRecordsEntry,
    DeleteRecordsRequest,
    ProduceEntry,
    ProduceRequest,
)
from tests.brokers.compaction import records_in
from tests.brokers.hands import lead
from tests.brokers.killed_broker import COMPACTED, CONFIG, PARTITIONS, PLAIN, TOPICS
from tests.brokers.parts import Peer
from tests.seeds import new_seed

ROUNDS = int(os.environ.get("FOLKMOOT_KILL_ROUNDS", "50"))
CODECS = (Codec.NONE, Codec.ZSTD, Codec.LZ4, Codec.GZIP, Codec.SNAPPY)
IN_FLIGHT = 6
KEYS = 9

Place = tuple[str, int]
PLACES: list[Place] = [*((PLAIN, number) for number in range(PARTITIONS)), (COMPACTED, 0)]


class Load:
    """What was sent to each partition, in order, and what of it was acknowledged at which offset.

    A value says which partition it was sent to and how many records were before it.
    """

    def __init__(self, source: random.Random) -> None:
        self.source = source
        self.sent: dict[Place, int] = dict.fromkeys(PLACES, 0)
        self.acknowledged: dict[Place, dict[int, int]] = {place: {} for place in PLACES}
        self.starts: dict[Place, int] = dict.fromkeys(PLACES, 0)
        self.waiting: dict[int, list[tuple[Place, int, int]]] = {}  # by correlation id

    def send(self, peer: Peer) -> None:
        """Some batches for some partitions in one request."""
        source = self.source
        asked, entries, batches = [], [], []
        for place in source.sample(PLACES, source.randrange(1, len(PLACES) + 1)):
            first, count = self.sent[place], source.randrange(1, 12)
            keys = [b"%d" % source.randrange(KEYS) for _ in range(count)]
            values: list[bytes | None] = [
                self.value(place, number) for number in range(first, first + count)
            ]
            columns = Columns(count, keys, values, 1_700_000_000_000)
            asked.append((place, first, count))
            entries.append(ProduceEntry(place[0], TOPICS[place[0]].topic_id, place[1], -1))
            batches.append(record_batch.encode(columns, source.choice(CODECS)))
            self.sent[place] += count
        correlation_id = peer.ask(Api.PRODUCE, ProduceRequest(1, 5.0, entries), batches)
        self.waiting[correlation_id] = asked

    def value(self, place: Place, number: int) -> bytes:
        return b"%s-%d-%d " % (place[0].encode(), place[1], number) * (1 + number % 7)

    def take(self, peer: Peer) -> None:
        """One answer; those for new partitions come after later ones."""
        envelope, _ = peer.receive()
        response = wire.response_body(Api.PRODUCE, envelope)
        for (place, first, count), result in zip(
            self.waiting.pop(envelope.correlation_id), response.results, strict=True
        ):
            assert result.error == 0, result.message
            for number in range(count):
                self.acknowledged[place][result.base_offset + number] = first + number

    def delete(self, peer: Peer) -> None:
        """Give up the older records of a partition, once all requests are answered."""
        while self.waiting:
            self.take(peer)
        place = PLACES[0]
        before = max(self.acknowledged[place], default=0) // 2
        if before > self.starts[place]:
            entry = DeleteRecordsEntry(place[0], TOPICS[place[0]].topic_id, place[1], -1, before)
            self.starts[place] = before  # from here on it may be gone, answered or not
            (result,) = peer.call(Api.DELETE_RECORDS, DeleteRecordsRequest([entry]))[0].results
            assert (result.error, result.log_start) == (0, before)


class Brokers:
    """One broker after the other on the same data, the next one already waiting for its turn."""

    def __init__(self, data: Path) -> None:
        self._data = data
        # Compiled once for all of them, wherever this test runs.
        prefix = str(data.with_name("bytecode"))
        self._bytecode = {"PYTHONPYCACHEPREFIX": prefix, "PYTHONDONTWRITEBYTECODE": ""}
        self._next = self._spawn()

    def _spawn(self) -> subprocess.Popen[str]:
        root = Path(__file__).parents[3]
        paths = os.pathsep.join([str(root), str(root / "src")])
        return subprocess.Popen(
            [sys.executable, "-m", "tests.brokers.killed_broker", str(self._data)],
            env={**os.environ, "PYTHONPATH": paths, **self._bytecode},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    @contextmanager
    def started(self) -> Iterator[tuple[subprocess.Popen[str], Peer]]:
        process, self._next = self._next, self._spawn()
        with process:
            try:
                assert process.stdin is not None
                assert process.stdout is not None
                process.stdin.write("go\n")
                process.stdin.flush()
                with Peer(process.stdout.readline().strip()) as peer:
                    yield process, peer
            finally:
                process.kill()

    def close(self) -> None:
        with self._next as process:
            process.kill()


@pytest.mark.chaos
def test_what_was_acknowledged_outlives_any_number_of_kills(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    seed = new_seed()
    source = random.Random(seed)
    load = Load(source)
    brokers = Brokers(tmp_path / "data")
    request.addfinalizer(brokers.close)
    compactions = 0
    for number in range(1, ROUNDS + 1):
        load.waiting.clear()
        with brokers.started() as (process, peer):
            for name, topic in TOPICS.items():
                peer.wait_until_led(name, topic.topic_id, len(topic.partitions))
            if source.random() < 0.5:
                load.delete(peer)
            for _ in range(source.randrange(60)):
                load.send(peer)
                while len(load.waiting) > source.randrange(IN_FLIGHT):
                    load.take(peer)
            if number % 10 == 0:
                compactions += caught_compacting(tmp_path / "data", load, peer, number % 20 == 0)
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            while load.waiting and not peer.hears_nothing(0.01):
                load.take(peer)
    assert all(load.acknowledged.values())
    with LogManager(tmp_path / "data", 1, CONFIG) as logs:
        for place in PLACES:
            check(load, place, log_of(logs, place))
        assert compactions == ROUNDS // 10
        if ROUNDS >= 20:
            thinned = log_of(logs, (COMPACTED, 0))
            assert len(records_in(thinned)) < thinned.log_end


def caught_compacting(data: Path, load: Load, peer: Peer, done: bool) -> bool:
    """Go on with the load until a compaction has begun to write or, if asked, a whole pass is `done`."""
    before, end = clean_before(data), time.monotonic() + 30
    while time.monotonic() < end:
        load.send(peer)
        load.take(peer)
        if clean_before(data) > before if done else any(found(data, "*.cleaned")):
            return True
    return False


def clean_before(data: Path) -> int:
    """How far whole passes of compaction are noted to have come."""
    files = found(data, CLEANER_CHECKPOINT_FILE)
    return max((load_checkpoint(path.parent).clean_before for path in files), default=0)


def log_of(logs: LogManager, place: Place) -> Log:
    log = logs.find(TOPICS[place[0]].topic_id, place[1])
    assert log is not None
    return lead(log)


def found(data: Path, pattern: str) -> Iterator[Path]:
    """What lies in directories of partitions under a name like that, while a broker moves it about.

    `Path.rglob` would fail at a file that is gone when it asks whether that is a directory.
    """
    return (each for directory in data.iterdir() for each in directory.glob(pattern))


def check(load: Load, place: Place, log: Log) -> None:
    """Every acknowledged record at its offset, none invented, none out of order, none twice."""
    assert log.log_start <= load.starts[place]
    assert not any(segment.damage for segment in log.sealed_segments)
    found = records_in(log)
    numbers = []
    for record in found:
        words = (record.value or b"").split(b" ")[0].split(b"-")
        number = int(words[2])
        assert record.value == load.value(place, number)
        assert number < load.sent[place]
        numbers.append(number)
    assert numbers == sorted(set(numbers))
    by_offset = dict(zip((record.offset for record in found), numbers, strict=True))
    if place[0] == PLAIN:
        assert list(by_offset) == list(range(log.log_start, log.log_end))
    last = {record.key: record.offset for record in found}
    for offset, number in load.acknowledged[place].items():
        if offset >= load.starts[place] and offset in by_offset:
            assert by_offset[offset] == number
        elif offset >= load.starts[place]:
            # Only compaction may have taken it, for a later one of its key.
            assert place[0] == COMPACTED
            assert log.segment_at(offset).sparse
    if place[0] == COMPACTED:
        assert len(last) == KEYS
        assert log.log_end > max(load.acknowledged[place])
