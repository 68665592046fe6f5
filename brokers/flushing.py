"""Flushing a log from another thread: what is lent, and up to where the log is on disk then."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from folkmoot.brokers.durable import sync_directory
from folkmoot.brokers.segment import Segment

_Natural = Annotated[int, Meta(ge=0)]


class CleanEnd(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a log ended when all of it was on disk: the next offset, the file, its size."""

    end_offset: _Natural
    segment: _Natural
    size: _Natural


class Flushing(NamedTuple):
    """What another thread is to flush: the descriptors, to be closed, and the directory's names.

    `end` is where the log ended when it was lent.
    """

    descriptors: list[int]
    segments: list[tuple[Segment, int]]
    directory: Path
    new_names: int
    end: CleanEnd | None


def dirty_end(segments: Sequence[Segment]) -> list[Segment]:
    """Those of a log that are not flushed yet.

    They lie at its end, at most with an empty one behind, whose first append has failed.
    """
    end = len(segments)
    if end and segments[-1].size == 0:
        end -= 1
    first = end
    while first and segments[first - 1].dirty:
        first -= 1
    return list(segments[first:end])


def duplicates(segments: Sequence[Segment]) -> list[int]:
    """A descriptor of each for another thread, or of none. Raises StorageError."""
    descriptors: list[int] = []
    try:
        for segment in segments:
            descriptors.append(segment.duplicate())
    except BaseException:
        for fd in descriptors:
            os.close(fd)
        raise
    return descriptors


def flush_all(flushings: Sequence[Flushing]) -> list[OSError | None]:
    """Flush what was lent and close the descriptors; → for each what went wrong. Any thread."""
    return [_flush(each) for each in flushings]


def _flush(flushing: Flushing) -> OSError | None:
    failure: OSError | None = None
    for fd in flushing.descriptors:
        try:
            os.fdatasync(fd)
        except OSError as error:
            failure = error
        finally:
            os.close(fd)
    try:
        if flushing.new_names:
            sync_directory(flushing.directory)
    except FileNotFoundError:
        pass  # the partition was deleted meanwhile
    except OSError as error:
        failure = error
    return failure
