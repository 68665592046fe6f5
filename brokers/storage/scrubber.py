"""Looking for rot in sealed segments, one after another, all of them within a set period."""

import heapq
import logging
from functools import partial
from typing import Final, NamedTuple

from msgspec.structs import replace

from folkmoot.brokers.jobs.jobs import Lane, Now, Submit
from folkmoot.brokers.storage.log import Log
from folkmoot.brokers.storage.log_manager import LogManager
from folkmoot.brokers.storage.notes import ScrubProgress
from folkmoot.brokers.storage.segment import Damage, Segment, SegmentReader

logger = logging.getLogger(__name__)

STEP_BYTES: Final = 8 * 1024 * 1024
LOGS_AT_ONCE: Final = 200
NOTHING_TO_DO: Final = 600.0
LEAST_FRACTION: Final = 0.1
"""The rest of a late pass takes at least this part of its period: it leaves the disk to others."""

_BUSY: Final = 0.1
_SHORTEST_PAUSE: Final = 0.01


class _Step(NamedTuple):
    """The end of a step, and the damage that it found."""

    position: int
    offset: int
    damage: list[Damage]


class Scrubber:
    """Reads every sealed segment within `period` seconds and marks batches that do not match their checksums.

    A job reads STEP_BYTES at a time, on descriptors of its own. The pauses between jobs make a pass take
    its period. A pass visits logs in the order of their directories' names, so that its position means the
    same after a restart. Each checkpoint notes the position; a crash repeats what came since. Segments that
    are sealed after a pass has listed their log belong to the next pass.
    """

    def __init__(self, logs: LogManager, submit: Submit, period: float) -> None:
        self._logs = logs
        self._submit = submit
        self._period = period
        self._progress: ScrubProgress | None = None
        self._busy = False
        self._unlisted: list[Log] = []
        self._left: list[tuple[str, int, int, Log]] = []
        self._listed_bytes = self._left_bytes = 0
        self._log: Log | None = None
        self._last_base = 0
        self._segment: Segment | None = None
        self._position = self._offset = 0

    @property
    def fraction_read(self) -> float:
        """How much of the bytes that this pass has listed is read: 0 to 1."""
        if self._progress is None or self._unlisted:
            return 0.0
        return 1.0 - max(0, self._left_bytes) / self._listed_bytes if self._listed_bytes else 1.0

    def task(self, now: Now) -> float:
        """Start one step in the background; → the pause that keeps the pace."""
        if self._busy:
            return _BUSY
        if self._progress is None:
            saved = self._logs.notes.scrub
            is_behind = saved is not None and saved.began <= now.wall
            self._begin_pass(saved if saved is not None and is_behind else ScrubProgress(now.wall))
            return 0.0
        if self._progress.began > now.wall:  # the clock was ahead then
            self._progress = replace(self._progress, began=now.wall)
        if self._unlisted:
            self._list_some(self._progress)
            return 0.0
        if self._segment is None and not self._next_segment(self._progress):
            return self._end_pass(self._progress, now)
        segment = self._segment
        assert segment is not None
        size = max(
            1, min(STEP_BYTES, segment.size - self._position)
        )  # compaction may have emptied it
        time_left = self._progress.began / 1000 + self._period - now.wall / 1000
        time_left = min(max(time_left, 0.0), self._period)
        pause = time_left * size / max(size, self._left_bytes)
        least = self._period * LEAST_FRACTION * size / max(size, self._listed_bytes)
        self._left_bytes -= size
        self._busy = True
        step = partial(_read_step, segment.reader(), self._position, self._offset)
        self._submit(Lane.SCRUB, step, self._finish_step)
        return max(_SHORTEST_PAUSE, pause, least)

    # -- a pass -------------------------------------------------------------------------------------

    def _begin_pass(self, progress: ScrubProgress) -> None:
        self._progress = progress
        self._unlisted = list(self._logs)
        self._listed_bytes = self._left_bytes = 0

    def _list_some(self, progress: ScrubProgress) -> None:
        """Put some logs in the order of their directories' names."""
        for _ in range(min(LOGS_AT_ONCE, len(self._unlisted))):
            log = self._unlisted.pop()
            name = log.directory.name
            sealed = log.sealed_segments
            if sealed and name >= progress.directory:
                heapq.heappush(self._left, (name, id(log), sealed[-1].base_offset, log))
                first = progress.base_offset if name == progress.directory else 0
                found = sum(each.size for each in sealed if each.base_offset >= first)
                self._listed_bytes += found
                self._left_bytes += found

    def _next_segment(self, progress: ScrubProgress) -> bool:
        while True:
            if self._log is None:
                if not self._left:
                    return False
                name, _, self._last_base, self._log = heapq.heappop(self._left)
                base = progress.base_offset if name == progress.directory else 0
                progress = ScrubProgress(progress.began, name, base)
            for segment in self._log.sealed_segments if self._log.is_open else ():
                if progress.base_offset <= segment.base_offset <= self._last_base:
                    self._segment = segment
                    self._position, self._offset = 0, segment.base_offset
                    self._progress = ScrubProgress(
                        progress.began, progress.directory, segment.base_offset
                    )
                    self._logs.notes.scrub = self._progress
                    return True
            self._log = None

    def _end_pass(self, progress: ScrubProgress, now: Now) -> float:
        pass_end = progress.began + round(self._period * 1000)
        if now.wall < pass_end:
            return min(NOTHING_TO_DO, self._period, (pass_end - now.wall) / 1000)
        self._begin_pass(ScrubProgress(now.wall))
        return _SHORTEST_PAUSE

    # -- a step -------------------------------------------------------------------------------------

    def _finish_step(self, outcome: _Step | Exception) -> None:
        self._busy = False
        segment, log, progress = self._segment, self._log, self._progress
        assert segment is not None
        assert log is not None
        assert progress is not None
        if isinstance(outcome, _Step):
            self._position, self._offset = outcome.position, outcome.offset
        if not log.is_open or log.find_sealed(segment.base_offset) is not segment:
            self._position = segment.size  # it was deleted, or compacted, meanwhile
        elif isinstance(outcome, Exception):
            logger.error("%s: cannot be read to its end: %s", segment.path, outcome)
            self._position = segment.size
        else:
            for damage in outcome.damage:
                segment.mark(damage)
        if self._position >= segment.size:
            self._segment = None
            self._progress = ScrubProgress(
                progress.began, progress.directory, segment.base_offset + 1
            )


def _read_step(reader: SegmentReader, position: int, offset: int) -> _Step:
    """Check STEP_BYTES of a sealed segment. The background's part."""
    damage = []
    begin = position
    try:
        for found in reader.batches(position, offset):
            if isinstance(found, Damage):
                damage.append(found)
                position, offset = found.end, found.next_offset
            else:
                header, at = found
                position, offset = at + header.length, header.next_offset
            if position < reader.size and position - begin >= STEP_BYTES:
                return _Step(position, offset, damage)
        return _Step(reader.size, reader.end_offset or offset, damage)
    finally:
        reader.close()
