"""Records that were to be read, or were read, and are gone."""

import logging
from collections.abc import Mapping
from typing import Final

from folkmoot.protocol.errors import FolkmootError, LogTruncated, OffsetOutOfRange
from folkmoot.protocol.records import TopicPartition
from folkmoot.spark_apps.offsets.checkpoint import NO_EPOCH
from folkmoot.spark_apps.offsets.log_watch import End
from folkmoot.spark_apps.stream.held_partitions import HeldPartition

_SKIP_THEM: Final = "failOnDataLoss=false continues without them"

log = logging.getLogger(__name__)


def skip_lost_records(
    partitions: Mapping[TopicPartition, HeldPartition],
    ends: dict[TopicPartition, End],
    truncated: Mapping[TopicPartition, int],
    *,
    fails: bool,
) -> None:
    """Continue at what is left, with a warning. Raises LogTruncated, OffsetOutOfRange if it `fails`.

    `truncated` says where a log parts from what was read of it; its end is not known then.
    """
    for partition, end in ends.items():
        held = partitions[partition]
        if held.position is not None and held.position < end.start:
            what = f"{partition}: records {held.position} to {end.start - 1} are gone (retention)"
            _report(OffsetOutOfRange(f"{what}: {_SKIP_THEM}"), fails)
            held.position, held.epoch = end.start, NO_EPOCH
        elif held.position is not None and end.offset < end.refused <= held.position:
            what = (
                f"{partition} ends at {end.offset}, below the position {held.position}: it has "
                "lost records, or the group has committed what never was (reset the group)"
            )
            _report(
                OffsetOutOfRange(f"{what}: failOnDataLoss=false reads all that is there"), fails
            )
            held.rewind(end.start)
    for partition, offset in truncated.items():
        lost = partitions.get(partition)
        if lost is not None and lost.position is not None and offset < lost.position:
            what = (
                f"{partition}: records {offset} to {lost.position - 1}, which were read, are gone"
            )
            _report(LogTruncated(f"{what}: {_SKIP_THEM}"), fails)
            lost.rewind(offset)
            ends.pop(partition, None)


def _report(error: FolkmootError, fails: bool) -> None:
    if fails:
        raise error
    log.warning("%s", error)
