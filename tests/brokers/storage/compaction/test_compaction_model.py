"""A compacted log against a plain list: whatever is done to both, the last of every key is there."""

import random
import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from folkmoot.coordination.topic_config import LogConfig
from folkmoot.protocol import batch_header, record_batch
from folkmoot.protocol.columns import Columns
from folkmoot.protocol.compression import Codec
from tests.brokers.batches import NOW
from tests.brokers.compaction import Upkept, records_in

CONFIG = LogConfig(
    cleanup_policy="compact",
    segment_bytes=700,
    index_interval_bytes=150,
    max_batch_bytes=4096,
    min_cleanable_dirty_ratio=0.01,
    delete_retention=3600.0,
)
KEYS = [b"a", b"b", b"c", b"d", b"long " * 20, b""]


class CompactedLogAgainstList(RuleBasedStateMachine):
    """The model is the list of all records ever written, and the first offset not given up."""

    def __init__(self) -> None:
        super().__init__()
        self.scratch = Path(tempfile.mkdtemp(prefix="folkmoot-compaction-"))
        self.lives = 0
        self.upkept = Upkept(self.scratch / "0", CONFIG, memory_bytes=165 * 4)
        self.written: list[tuple[bytes | None, bytes | None, int]] = []
        self.begin = 0

    def teardown(self) -> None:
        self.upkept.logs.abandon()
        shutil.rmtree(self.scratch)

    @rule(
        sizes=st.lists(st.integers(1, 5), min_size=1, max_size=8),
        seed=st.integers(0, 2**32),
        codec=st.sampled_from([Codec.NONE, Codec.ZSTD]),
    )
    def append(self, sizes: list[int], seed: int, codec: Codec) -> None:
        source = random.Random(seed)
        for size in sizes:
            keys = [source.choice([*KEYS, None]) for _ in range(size)]
            values = [
                source.choice([None, source.randbytes(source.randrange(50))]) for _ in range(size)
            ]
            times = [NOW + source.randrange(-50, 50) for _ in range(size)]
            self.upkept.append(record_batch.encode(Columns(size, keys, values, times), codec))
            self.written += zip(keys, values, times, strict=True)

    @rule()
    def checkpoint(self) -> None:
        self.upkept.checkpoint()

    @rule(steps=st.integers(1, 12))
    def compact_a_little(self, steps: int) -> None:
        for _ in range(steps):
            self.upkept.step()

    @rule()
    def compact(self) -> None:
        self.upkept.compact()

    @rule(hours=st.floats(0, 2))
    def time_passes(self, hours: float) -> None:
        self.upkept.later(hours * 3600)

    @precondition(lambda self: self.written)
    @rule(where=st.floats(0, 1))
    def delete_before(self, where: float) -> None:
        offset = self.begin + int(where * (len(self.written) - self.begin) / 3)
        self.upkept.delete_before(offset)
        self.begin = max(self.begin, offset)

    @rule()
    def close_and_open(self) -> None:
        self.upkept.reopen(clean=True)

    @rule()
    def kill_and_open(self) -> None:
        self.lives += 1
        copy = self.scratch / str(self.lives)
        shutil.copytree(self.upkept.data, copy)
        self.upkept.logs.abandon()
        self.upkept.data = copy
        self.upkept.open()

    @rule(timestamp=st.integers(NOW - 50, NOW + 50))
    def look_up_time(self, timestamp: int) -> None:
        log = self.upkept.log
        found = log.offset_for_time(timestamp)
        later = [r.offset for r in records_in(log) if r.timestamp >= timestamp]
        assert not [offset for offset in later if offset < found]
        if later and found < log.log_end:
            header, data = next(batch_header.split(log.read(found, 1)))
            stamps = [r.timestamp for r in record_batch.records_of("t", 0, header, data)]
            assert max(stamps) >= timestamp or header.base_offset < self.begin

    @precondition(lambda self: self.written)
    @rule(where=st.floats(0, 1), max_bytes=st.integers(1, 2000))
    def read_from_anywhere(self, where: float, max_bytes: int) -> None:
        log = self.upkept.log
        offset = log.log_start + int(where * (log.log_end - log.log_start))
        found = [r.offset for r in records_in(log, offset, max_bytes)]
        assert found == [r.offset for r in records_in(log) if r.offset >= offset]

    @invariant()
    def the_last_of_every_key_is_there_and_nothing_is_invented(self) -> None:
        log = self.upkept.log
        assert (log.log_start, log.log_end) == (self.begin, len(self.written))
        assert not any(segment.damage for segment in log.sealed_segments)
        found = {r.offset: (r.key, r.value, r.timestamp) for r in records_in(log)}
        assert all(self.written[offset] == row for offset, row in found.items())
        last = {key: offset for offset, (key, _, _) in enumerate(self.written)}
        for offset in range(self.begin, len(self.written)):
            key, value, _ = self.written[offset]
            if (
                key is None
                or (value is not None and last[key] == offset)
                or log.segment_at(offset).name.generation == 0
            ):
                assert offset in found

    @invariant()
    def before_the_mark_no_key_comes_twice(self) -> None:
        state = self.upkept.compacted()
        keys = [
            r.key
            for r in records_in(self.upkept.log)
            if r.offset < state.clean_before and r.key is not None
        ]
        assert len(keys) == len(set(keys))


CompactedLogAgainstList.TestCase.settings = settings(
    max_examples=40, stateful_step_count=25, deadline=None, derandomize=True, database=None
)
TestCompactedLogAgainstList = CompactedLogAgainstList.TestCase
