"""Records that were to be read, or were read, and are gone."""

import logging
from collections.abc import Mapping
from typing import Final

from folkmoot.protocol.errors import FolkmootError, LogTruncated, OffsetOutOfRange
from folkmoot.protocol.records import TopicPartition
from folkmoot.spark_apps.offsets.checkpoint import NO_EPOCH
from folkmoot.spark_apps.offsets.log_watch import End
from folkmoot.spark_apps.stream.owned_partitions import OwnedPartition

_SKIP_THEM: Final = "failOnDataLoss=false continues without them"

log = logging.getLogger(__name__)


def skip_lost_records(
    partitions: Mapping[TopicPartition, OwnedPartition],
    ends: dict[TopicPartition, End],
    truncated: Mapping[TopicPartition, int],
    *,
    fails: bool,
) -> None:
    """Continue at what is left, with a warning. Raises LogTruncated, OffsetOutOfRange if it `fails`.

    `truncated` says where a log parts from what was read of it; its end is not known then.
    """
    for partition, end in ends.items():
        owned = partitions[partition]
        if owned.position is not None and owned.position < end.start:
            message = (
                f"{partition}: records {owned.position} to {end.start - 1} are gone (retention)"
            )
            _report(OffsetOutOfRange(f"{message}: {_SKIP_THEM}"), fails)
            owned.position, owned.epoch = end.start, NO_EPOCH
        elif owned.position is not None and end.offset < end.refused <= owned.position:
            message = (
                f"{partition} ends at {end.offset}, below the position {owned.position}: it has "
                "lost records, or the group has committed what never was (reset the group)"
            )
            _report(
                OffsetOutOfRange(f"{message}: failOnDataLoss=false reads all that is there"), fails
            )
            owned.rewind(end.start)
    for partition, offset in truncated.items():
        diverged = partitions.get(partition)
        if diverged is not None and diverged.position is not None and offset < diverged.position:
            message = f"{partition}: records {offset} to {diverged.position - 1}, which were read, are gone"
            _report(LogTruncated(f"{message}: {_SKIP_THEM}"), fails)
            diverged.rewind(offset)
            ends.pop(partition, None)


def _report(error: FolkmootError, fails: bool) -> None:
    if fails:
        raise error
    log.warning("%s", error)
