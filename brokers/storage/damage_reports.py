"""A batch that a reader reports as damaged: read again here, and marked if it is bad on disk."""

import logging
from functools import partial

from folkmoot.brokers.jobs.jobs import Lane, SharedJob
from folkmoot.brokers.storage.log import Log
from folkmoot.brokers.storage.segment import Damage, Segment, SegmentReader

logger = logging.getLogger(__name__)


def damage_job(log: Log, offset: int) -> SharedJob | None:
    """The job that reads the batch with `offset`, which the log has; None: it is marked as damaged already.

    The job reads one batch, and what lies between it and the entry of the index before, on a descriptor of
    its own. It marks a bad batch, as the scrubber does. A batch that is good on disk was
    damaged on its way, or the reporter is wrong.
    """
    segment = log.segment_at(offset)
    if segment.is_damaged(offset):
        return None
    segment.save_index()  # the index says where a damaged batch ends
    work = partial(_read, segment.reader(), offset)
    return SharedJob(work, partial(_mark, log, segment, offset), Lane.REPORTS)


def _read(reader: SegmentReader, offset: int) -> list[Damage]:
    """The background's part: the damage up to the end of the batch that should hold `offset`."""
    try:
        bad = []
        for found in reader.batches(reader.start_near(offset)):
            if isinstance(found, Damage):
                bad.append(found)
            if (found if isinstance(found, Damage) else found[0]).next_offset > offset:
                break
        return bad
    finally:
        reader.close()


def _mark(
    log: Log, segment: Segment, offset: int, _job: SharedJob, outcome: list[Damage] | Exception
) -> None:
    if isinstance(outcome, Exception):
        logger.error("%s: %s", log.name, outcome)
    elif not outcome:
        logger.warning("%s: offset %d was reported as damaged and is not", log.name, offset)
    elif log.is_open and log.log_start <= offset < log.log_end:
        if log.segment_at(offset) is segment:  # else it was cut or compacted meanwhile
            for damage in outcome:
                segment.mark(damage)
