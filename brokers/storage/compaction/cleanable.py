"""Whether a log should be compacted, and which segments of it."""

from collections.abc import Sequence
from typing import Final

from folkmoot.brokers.storage.log import Log
from folkmoot.brokers.storage.retention import last_append
from folkmoot.brokers.storage.segment import Segment

OVERDUE: Final = 2.0
TOMBSTONES: Final = 0.0


def cleanable(log: Log, now: int) -> list[Segment]:
    """The segments that may be compacted, the oldest first. Raises StorageError.

    They lie before the one that the file `durable` names, which has a record: so they are sealed and
    on disk, no unclean start looks into them, and behind what compaction removes a record is left. What
    they tell of producers is in a snapshot on disk. They end where `min_compaction_lag` begins.
    """
    noted = log.noted
    if noted is None or noted.end_offset <= noted.segment:
        return []
    end = log.dispensable(noted.segment)
    found: list[Segment] = []
    youngest = now - log.config.min_compaction_lag * 1000
    sealed = log.all_sealed()
    for number, segment in enumerate(sealed):
        if segment.end_offset > end:
            break
        if log.config.min_compaction_lag and segment.end_offset > log.compacted.clean_before:
            ended = last_append(sealed[number:], now)
            if ended is None or ended > youngest:
                break
        found.append(segment)
    return found


def urgency(log: Log, now: int) -> float | None:
    """How much a log is in need of compaction; None: not at all. Raises StorageError.

    As a rule the part of its bytes that was not gone through yet, if the log's options find that
    enough; more if records have waited for too long; least if there are only tombstones to drop.
    """
    segments = cleanable(log, now)
    config, state = log.config, log.compacted
    dirty = [segment for segment in segments if segment.end_offset > state.clean_before]
    dirty_bytes = sum(segment.size for segment in dirty)
    if dirty_bytes:
        ratio = dirty_bytes / sum(segment.size for segment in segments)
        if config.max_compaction_lag is not None:
            began = dirty[0].began()
            if began is not None and abs(now - began) >= config.max_compaction_lag * 1000:
                return OVERDUE + ratio
        if ratio >= config.min_cleanable_dirty_ratio:
            return ratio
    if segments and state.tombstones and state.droppable_before(config.delete_retention, now):
        return TOMBSTONES
    return None


def runs(segments: Sequence[Segment]) -> list[list[Segment]]:
    """Neighbours that may become one segment. Damaged ones are in none."""
    found: list[list[Segment]] = [[]]
    for segment in segments:
        if segment.damage:
            found.append([])
        else:
            found[-1].append(segment)
    return [run for run in found if run]
