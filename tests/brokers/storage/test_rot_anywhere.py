"""Bits that flip anywhere in the files of a log, after any lives: whole records are served and found."""

import random
import re
import shutil
from dataclasses import replace
from pathlib import Path

from folkmoot.brokers.storage.log import Log
from folkmoot.brokers.storage.recovery import RecoveryPoint
from folkmoot.brokers.storage.segment import Damage
from folkmoot.coordination.topic_config import LogConfig
from folkmoot.protocol import batch_header
from folkmoot.protocol.errors import CorruptBatch
from tests.brokers.batches import NAME, append, flush, timed_batch
from tests.seeds import new_seed

LOGS = 30
_GO_ON = re.compile(r"go on at (\d+)")


class History:
    """Some lives of one log, then bits that flip, and what is left whole."""

    def __init__(self, seed: int, directory: Path) -> None:
        self.random = random.Random(seed)
        self.data = directory / "data"
        self.data.mkdir(parents=True)
        self.point: RecoveryPoint | None = None
        interval = self.random.choice((64, 256, 4096))
        self.config = replace(
            LogConfig(),
            segment_bytes=self.random.choice((600, 2000, 100_000)),
            index_interval_bytes=interval,
        )
        self.rows: list[tuple[int, int, range]] = []
        """First and next offset of each batch, and its timestamps' bounds."""
        self.clock = 1000
        for _ in range(self.random.randint(1, 3)):
            self._live()

    def opened(self) -> Log:
        """A new life, which is told how far the log was on disk."""
        log = Log(self.data, NAME, "first", self.config)
        log.start(self.point)
        log.advance_high_watermark(log.log_end)
        return log

    def _live(self) -> None:
        log = self.opened()
        for _ in range(self.random.randint(1, 30)):
            self._append(log)
        flush(log)
        self.was_killed = self.random.random() >= 0.5
        if not self.was_killed:
            self.point = log.close()
            return
        self.point = log.recovery_point
        for _ in range(self.random.choice((0, 0, 1, 5))):
            self._append(log)
        killed = self.data.with_name("killed")
        shutil.copytree(self.data, killed)
        log.abandon()
        shutil.rmtree(self.data)
        killed.rename(self.data)

    def _append(self, log: Log) -> None:
        stamps = []
        for _ in range(self.random.choice((1, 1, 3))):
            self.clock += self.random.choice((-3, 0, 1, 5))
            stamps.append(self.clock)
        (base,) = append(log, timed_batch(*stamps))
        self.rows.append((base, base + len(stamps), range(min(stamps), max(stamps) + 1)))

    def flip(self) -> None:
        """Some bits; batches that they hit are not expected back.

        Nor are those that nothing tells apart from one that was hit: up to the next entry of the index
        in its segment, and all behind the recovery point. A kill takes the entries of the last segment.
        """
        files = sorted(self.data.glob("*.log"))
        hit: dict[Path, list[int]] = {}
        for _ in range(self.random.choice((1, 1, 1, 3))):
            path = self.random.choice([each for each in files if each.stat().st_size])
            content = bytearray(path.read_bytes())
            position = self.random.randrange(len(content))
            content[position] ^= 1 << self.random.randrange(8)
            path.write_bytes(content)
            hit.setdefault(path, []).append(position)
        self.left, self.doubtful = [], set()
        for path in files:
            whole = _whole_batches(path.read_bytes(), self.rows)
            reach = self.config.index_interval_bytes + 300
            if path == files[-1] and self.was_killed:
                reach = len(path.read_bytes())
            for row in self.rows:
                if row[0] in whole:
                    at = whole[row[0]]
                    if any(0 <= at - position <= reach for position in hit.get(path, [])):
                        self.doubtful.add(row[0])
                    if path == files[-1] and self._is_cut(path, at, hit.get(path, [])):
                        continue
                    self.left.append(row)

    def _is_cut(self, active: Path, at: int, hit: list[int]) -> bool:
        """Whether a start cuts the active segment in front of a position."""
        size = 0
        if self.point is not None and self.point.segment == int(active.stem):
            size = self.point.size
        return any(size <= position < at for position in hit)

    def read(self, log: Log, most: int) -> set[int]:
        """The first offsets of all batches that a consumer gets, which reports those that are bad."""
        found: set[int] = set()
        offset, tries = log.log_start, 0
        while offset < log.log_end:
            tries += 1
            assert tries < 10_000, f"no way past {offset}"
            try:
                chunk = log.read(offset, most)
            except CorruptBatch as error:
                offset = _where_to_go_on(str(error), offset)
                continue
            try:
                for header, data in batch_header.split(chunk):
                    batch_header.check(data)
                    found.add(header.base_offset)
                    offset = header.next_offset
            except CorruptBatch:
                self._report(log, offset)
        return found

    def _report(self, log: Log, offset: int) -> None:
        """The broker reads the batch again, as after a report."""
        segment = log.segment_at(offset)
        for each in segment.reader().batches():
            if isinstance(each, Damage):
                segment.mark(each)


def _where_to_go_on(said: str, offset: int) -> int:
    found = _GO_ON.search(said)
    assert found is not None, said
    assert int(found[1]) > offset
    return int(found[1])


def _whole_batches(content: bytes, rows: list[tuple[int, int, range]]) -> dict[int, int]:
    """Where each batch lies is known by their lengths, which did not change."""
    found = {}
    for base, following, _ in rows:
        for at in range(len(content) - batch_header.HEADER_BYTES + 1):
            if content[at : at + 8] == base.to_bytes(8, "big"):
                try:
                    header = batch_header.check(memoryview(content)[at:])
                except CorruptBatch:
                    continue
                if (header.base_offset, header.next_offset) == (base, following):
                    found[base] = at
                    break
    return found


def test_whole_records_are_served_and_found_whatever_has_rotted_beside_them(
    tmp_path: Path,
) -> None:
    first = new_seed()
    for seed in range(first, first + LOGS):
        print(f"seed {seed}")
        history = History(seed, tmp_path / str(seed))
        history.flip()
        for _ in range(2):
            log = history.opened()
            _check_times(history, log)
            most = history.random.choice((50, 150, 400, 100_000))
            found, whole = history.read(log, most), {row[0] for row in history.left}
            assert found <= whole
            assert whole - found <= history.doubtful
            _check_times(history, log)
            (base,) = append(log, timed_batch(history.clock))
            assert base >= max((row[1] for row in history.left), default=0)
            history.rows.append((base, base + 1, range(history.clock, history.clock + 1)))
            history.left.append(history.rows[-1])
            if history.random.random() < 0.5:
                history.point = log.close()
            else:
                history.point = log.recovery_point
                log.abandon()


def _check_times(history: History, log: Log) -> None:
    """No whole record of that time or later lies before the answer."""
    certain = [row for row in history.left if row[0] not in history.doubtful]
    for timestamp in {row[2][-1] for row in certain}:
        at = log.offset_for_time(timestamp)
        missed = [row for row in certain if row[2][-1] >= timestamp and row[1] <= at]
        assert not missed, f"{timestamp} is said to be at {at}, and {missed[0]} is before it"
