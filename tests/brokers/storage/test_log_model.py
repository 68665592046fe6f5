"""The log against a plain list: whatever is done to both, both hold the same."""

import random
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from folkmoot.brokers.storage.log import Log
from folkmoot.brokers.storage.recovery import RecoveryPoint
from folkmoot.brokers.storage.retention import count_expired
from folkmoot.brokers.storage.segment import OpenSegments
from folkmoot.coordination.topic_config import LogConfig
from folkmoot.protocol import batch_header, record_batch
from folkmoot.protocol.columns import Columns
from folkmoot.protocol.compression import Codec
from folkmoot.protocol.errors import OffsetOutOfRange
from tests.brokers.batches import NAME, NOW, append, flush, removed, values_of

RETENTION = 30.0
CONFIG = LogConfig(
    segment_bytes=1024,
    segment_age=60.0,
    retention=RETENTION,
    index_interval_bytes=150,
    max_batch_bytes=4096,
)


class LogAgainstList(RuleBasedStateMachine):
    """The model is a list of records, one of batch boundaries, and one of the segments' first offsets."""

    def __init__(self) -> None:
        super().__init__()
        self.scratch = Path(tempfile.mkdtemp(prefix="folkmoot-log-"))
        self.lives = 0
        self.now = NOW
        self.files = OpenSegments(2)
        self.data = self.scratch / "0"
        (self.data / str(NAME)).mkdir(parents=True)
        self.open(None)
        self.values: list[bytes] = []
        self.begin = 0
        self.starts: list[int] = []
        self.lengths: list[int] = []
        self.times: list[int] = []
        self.appended: list[int] = []

    def open(self, point: RecoveryPoint | None) -> None:
        self.log = Log(self.data / str(NAME), NAME, "first", CONFIG, self.files)
        self.log.start(point)
        self.log.advance_high_watermark(self.log.log_end)

    def teardown(self) -> None:
        self.log.abandon()
        shutil.rmtree(self.scratch)

    @rule(
        sizes=st.lists(
            st.lists(st.integers(0, 60), min_size=1, max_size=5), min_size=1, max_size=6
        ),
        seed=st.integers(0, 2**32),
    )
    def append(self, sizes: list[list[int]], seed: int) -> None:
        source = random.Random(seed)
        batches = []
        bases = []
        for lengths in sizes:
            values = [source.randbytes(length) for length in lengths]
            times = [NOW + source.randrange(-50, 50) for _ in values]
            batches.append(
                record_batch.encode(Columns(len(values), None, values, times), Codec.NONE)
            )
            self.times.append(max(times))
            self.appended.append(self.now)
            bases.append(len(self.values))
            self.values += values
        self.starts += bases
        self.lengths += [len(each) for each in batches]
        assert append(self.log, *batches, now=self.now) == bases

    @precondition(lambda self: self.begin < len(self.values))
    @rule(where=st.floats(0, 1, exclude_max=True), max_bytes=st.integers(0, 3000))
    def read(self, where: float, max_bytes: int) -> None:
        offset = self.begin + int(where * (len(self.values) - self.begin))
        number = max(n for n, start in enumerate(self.starts) if start <= offset)
        while True:
            chunk = self.log.read(offset, max_bytes)
            found = [header.base_offset for header, _ in batch_header.split(chunk)]
            assert found == self.starts[number : number + len(found)]
            assert values_of(chunk) == [
                (at, self.values[at]) for at in range(found[0], found[0] + len(values_of(chunk)))
            ]
            assert len(found) == 1 or len(chunk) <= max_bytes
            number += len(found)
            if number == len(self.starts):
                break
            # As much as fits was given, unless the segment ended there.
            assert len(chunk) + self.lengths[number] > max_bytes or self.begins_segment(number)
            offset = self.starts[number]

    @rule()
    def read_outside(self) -> None:
        assert len(self.log.read(len(self.values), 1000)) == 0
        for offset in (-1, self.begin - 1, len(self.values) + 1):
            with pytest.raises(OffsetOutOfRange):
                self.log.read(offset, 1000)

    @rule()
    def release_files(self) -> None:
        self.files.release_idle()
        self.files.release_idle()
        assert len(self.files) == 0

    @rule(later=st.integers(0, 40))
    def time_passes(self, later: int) -> None:
        self.now += later * 1000

    @rule()
    def expire(self) -> None:
        """Whole segments go: all that ended so long ago, and none behind one that did not."""
        bases = [at for number, at in enumerate(self.starts) if self.begins_segment(number)]
        young = [
            at
            for at, appended in zip(self.starts, self.appended, strict=True)
            if self.now - appended < RETENTION * 1000
        ]
        for _ in range(2):
            for segment in self.log.segments:
                segment.use_index()
            count = count_expired(self.log.segments, CONFIG, self.now)
            removed(self.log.delete_segments(count))
            flush(self.log)  # with what the headers that go tell of producers
        kept = young[0] if young else len(self.values)
        self.begin = max(
            [self.begin, *(base for base in [*bases, len(self.values)] if base <= kept)]
        )

    @rule(timestamp=st.integers(NOW - 50, NOW + 50))
    def look_up_time(self, timestamp: int) -> None:
        found = [
            at
            for at, time in zip(self.starts, self.times, strict=True)
            if at >= self.begin and time >= timestamp
        ]
        assert self.log.offset_for_time(timestamp) == (found or [len(self.values)])[0]

    @rule()
    def flush(self) -> None:
        flush(self.log)

    @rule()
    def close_and_open(self) -> None:
        end = self.log.close()
        self.open(end)

    @rule()
    def kill_and_open(self) -> None:
        self.lives += 1
        killed, self.data = self.data, self.scratch / str(self.lives)
        shutil.copytree(killed, self.data)
        self.log.abandon()
        self.open(None)

    @invariant()
    def ends_agree(self) -> None:
        assert (self.log.log_start, self.log.log_end) == (self.begin, len(self.values))
        assert self.log.high_watermark == self.log.log_end
        left = zip(self.starts, self.lengths, strict=True)
        assert self.log.size == sum(length for at, length in left if at >= self.begin)

    def begins_segment(self, number: int) -> bool:
        return (self.data / str(NAME) / f"{self.starts[number]:020}.log").exists()


LogAgainstList.TestCase.settings = settings(
    max_examples=80, stateful_step_count=25, deadline=None, derandomize=True, database=None
)
TestLogAgainstList = LogAgainstList.TestCase
