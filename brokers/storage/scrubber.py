"""Looking for rot where nobody reads: sealed segments, one after another, all within a set period."""

import logging
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import Final

from folkmoot.brokers.server.job_queue import Background
from folkmoot.brokers.server.scheduler import Now
from folkmoot.brokers.storage.damage import Damage, examine
from folkmoot.brokers.storage.log import Log
from folkmoot.brokers.storage.log_manager import Logs
from folkmoot.brokers.storage.logfile import LogFile
from folkmoot.brokers.storage.segment import Segment
from folkmoot.protocol.errors import StorageError

logger = logging.getLogger(__name__)

STEP_BYTES: Final = 8 * 1024 * 1024
NOTHING_TO_DO: Final = 600.0
_BUSY: Final = 0.1
_SHORTEST_PAUSE: Final = 0.01


@dataclass(frozen=True, slots=True)
class _Seen:
    """How far a step came, and what it found."""

    position: int
    offset: int
    damage: list[Damage]


class Scrub:
    """Reads every sealed segment within `period` seconds and marks what does not match its checksum.

    The background reads, on descriptors of its own (a mapping would make a disk that cannot be read
    a SIGBUS), STEP_BYTES at a time; the pauses between are such that a round takes the period. What
    was sealed since the round began is read in the next one. The reactor's thread.
    """

    def __init__(self, logs: Logs, background: Background, period: float) -> None:
        self._logs = logs
        self._background = background
        self._period = period
        self._left: deque[tuple[Log, int]] = deque()
        self._round_bytes = 0
        self._busy = False
        self._segment: Segment | None = None
        self._log: Log | None = None
        self._position = self._offset = 0

    def chore(self, now: Now) -> float:
        """Hand one step to the background; → the pause that keeps the pace."""
        if self._busy:
            return _BUSY
        if self._segment is None and not self._next_segment():
            return min(NOTHING_TO_DO, self._period)
        segment = self._segment
        assert segment is not None
        step = partial(
            _look, segment.copy_to_read(), self._position, self._offset, segment.end_offset
        )
        self._busy = True
        self._background.submit(step, self._looked)
        share = min(STEP_BYTES, segment.size - self._position) / max(1, self._round_bytes)
        return max(_SHORTEST_PAUSE, self._period * share)

    def _next_segment(self) -> bool:
        if not self._left:
            self._begin_round()
        while self._left:
            log, base_offset = self._left.popleft()
            segment = log.sealed(base_offset)
            if segment is not None:
                self._log, self._segment = log, segment
                self._position, self._offset = 0, base_offset
                return True
        return False

    def _begin_round(self) -> None:
        self._round_bytes = 0
        for log in self._logs:
            for segment in log.all_sealed():
                self._left.append((log, segment.base_offset))
                self._round_bytes += segment.size

    def _looked(self, outcome: _Seen | StorageError) -> None:
        self._busy = False
        segment, log = self._segment, self._log
        assert segment is not None
        assert log is not None
        if log.sealed(segment.base_offset) is not segment:
            self._segment = None  # deleted meanwhile
            return
        if isinstance(outcome, StorageError):
            logger.error("%s", outcome)
            self._segment = None
            return
        for damage in outcome.damage:
            segment.mark(damage)
        self._position, self._offset = outcome.position, outcome.offset
        if self._position >= segment.size:
            self._segment = None


def _look(log: LogFile, position: int, offset: int, end_offset: int) -> _Seen:
    """Check a stretch of a sealed segment. On the background's thread, on a LogFile of its own."""
    damage = []
    begin = position
    try:
        for found in examine(log, position, offset, end_offset):
            if isinstance(found, Damage):
                damage.append(found)
                position, offset = found.end, found.next_offset
            else:
                header, at = found
                position, offset = at + header.length, header.next_offset
            if position - begin >= STEP_BYTES:
                return _Seen(position, offset, damage)
        return _Seen(log.size, end_offset, damage)
    finally:
        log.release()
