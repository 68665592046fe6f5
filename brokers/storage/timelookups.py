"""Looking up times without keeping others waiting for what a log has not read yet."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from folkmoot.brokers.storage.log import Log
from folkmoot.brokers.storage.partition_creation import Submit, at_once
from folkmoot.brokers.storage.segment import Segment
from folkmoot.brokers.storage.times import last_word
from folkmoot.protocol.errors import FolkmootError, Overloaded, UnknownTopicOrPartition

MOST_WAITING: Final = 100_000

Then = Callable[[int | FolkmootError], None]


class TimeLookups:
    """Answers which offset a time has, in logs of any number of segments.

    Timestamps need not rise, so the first segment that reaches a time is only known by the highest
    timestamp of each before it. A log reads it once from the end of a sealed segment's time index; a
    thousand of those, after a start, are read by a job beside the reactor, one for each log, which
    all look-ups in that log wait for. When they are known a look-up is done at once.

    Crash story: nothing is written. A topic that is deleted meanwhile is answered as such, and a
    segment that was compacted meanwhile is another one, which is read by the look-up itself.

    Owner: the reactor's thread.
    """

    def __init__(self, submit: Submit = at_once) -> None:
        self._submit = submit
        self._waiting: dict[Log, list[tuple[int, Then]]] = {}
        self._count = 0

    def ask(self, log: Log, timestamp: int, then: Then) -> None:
        """Have `then` called with the offset that `log` has for a time, or with what went wrong.

        Raises Overloaded.
        """
        if log in self._waiting:
            self._wait(log, timestamp, then)
            return
        unread = [each for each in log.all_sealed() if each.times_to_read() is not None]
        if not unread:
            then(_look_up(log, timestamp))
            return
        self._wait(log, timestamp, then)
        paths = [to_read for each in unread if (to_read := each.times_to_read()) is not None]
        self._submit(partial(_read, paths), partial(self._done, log, unread))

    def _wait(self, log: Log, timestamp: int, then: Then) -> None:
        if self._count >= MOST_WAITING:
            raise Overloaded("too many look-ups of times wait: ask again later")
        self._count += 1
        self._waiting.setdefault(log, []).append((timestamp, then))

    def _done(self, log: Log, segments: Sequence[Segment], highest: Sequence[int | None]) -> None:
        for segment, each in zip(segments, highest, strict=True):
            segment.reaches(each)
        asked = self._waiting.pop(log)
        self._count -= len(asked)
        for timestamp, then in asked:
            then(_look_up(log, timestamp))


def _look_up(log: Log, timestamp: int) -> int | FolkmootError:
    if not log.is_open:
        return UnknownTopicOrPartition(f"{log.name} was deleted meanwhile")
    try:
        return log.offset_for_time(timestamp)
    except FolkmootError as error:
        return error


def _read(time_indexes: Sequence[tuple[Path, int]]) -> list[int | None]:
    """The background's part."""
    return [last_word(path, end_offset) for path, end_offset in time_indexes]
