"""Which segments have had their time."""

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from folkmoot.brokers.server.scheduler import Now
from folkmoot.brokers.storage.config import LogConfig
from folkmoot.brokers.storage.segment import Segment
from folkmoot.protocol.errors import StorageError

if TYPE_CHECKING:
    from folkmoot.brokers.storage.log import Log
    from folkmoot.brokers.storage.log_manager import Logs

logger = logging.getLogger(__name__)

RETENTION_INTERVAL: Final = 60.0
LOGS_AT_ONCE: Final = 100
_MORE = 0.05


def expired(segments: Sequence[Segment], config: LogConfig, now: int) -> int:
    """How many segments, from the oldest on, retention no longer covers. Raises StorageError.

    Age counts from the append, not from the records' timestamps: those of a log of old flights lie
    far back on the day that they are written. By size, so many bytes stay at least, and the active
    segment always does.
    """
    if not config.deletes:
        return 0
    excess = 0
    if config.retention_bytes is not None:
        excess = sum(segment.size for segment in segments) - config.retention_bytes
    count = 0
    for number, segment in enumerate(segments):
        old = config.retention is not None and _is_older(
            segments[number:], now - config.retention * 1000, now
        )
        # One that compaction has emptied goes with what lies behind it.
        surplus = segment.size <= excess and excess > 0 and segment is not segments[-1]
        if not (old or surplus):
            break
        excess -= segment.size
        count += 1
    return count


def last_append(segments: Sequence[Segment], now: int) -> int | None:
    """When the first of some segments, followed by the others, was appended to last; None: not known.

    A time that has not come is that of a clock that was ahead: then it is when the next one began
    that says otherwise, which was later. Raises StorageError.
    """
    ended = segments[0].ended()
    if ended is None or ended <= now:
        return ended
    began = (segment.began() for segment in segments[1:])
    return next((each for each in began if each is not None and each <= now), None)


def _is_older(segments: Sequence[Segment], limit: float, now: int) -> bool:
    ended = last_append(segments, now)
    if ended is None or ended > limit:
        return False
    # A clock that went back and forth again has not made the segment end before it began.
    began = segments[0].began()
    return began is None or not limit < began <= now


class Retention:
    """Goes through all logs every RETENTION_INTERVAL, some at a time. The reactor's thread.

    Producers of which nothing came for long are forgotten by the way. Of each log only the oldest
    segment is looked at, unless that goes; the time of its last append is
    read once and then known. A log whose topic's own options are not known yet keeps all. Files are
    removed in the background.
    """

    def __init__(self, logs: "Logs") -> None:
        self._logs = logs
        self._round: list[Log] = []

    def chore(self, now: Now) -> float:
        """Some logs; then a pause."""
        if not self._round:
            self._round = list(self._logs)
        some, self._round = self._round[:LOGS_AT_ONCE], self._round[LOGS_AT_ONCE:]
        for log in some:
            try:
                if log.configured and log.is_open:
                    log.forget_producers(now.monotonic)
                    log.expire(now.wall)
            except StorageError as error:
                logger.warning("%s: old segments are kept for now: %s", log.name, error)
        return _MORE if self._round else RETENTION_INTERVAL
