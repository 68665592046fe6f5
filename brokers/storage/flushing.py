"""Flushing a log from another thread: what is lent, and up to where the log is on disk then."""

import errno
import os
from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import msgspec
from msgspec import Meta

from folkmoot.brokers.storage.atomic_file import flush_file, read_checked, sync_directory
from folkmoot.brokers.storage.segment import Segment

if TYPE_CHECKING:
    from folkmoot.brokers.storage.segments import Segments

SEGMENTS_AT_ONCE: Final = 50
"""As many are flushed of one log at a time, however many an unclean start has left in doubt."""

_Natural = Annotated[int, Meta(ge=0)]


class CleanEnd(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a log ended when all of it was on disk: the next offset, the file, its size."""

    end_offset: _Natural
    segment: _Natural
    size: _Natural


class Flushing(NamedTuple):
    """What another thread is to flush: the descriptors, to be closed, a snapshot of producers (its
    offset and path) behind them, and the directory's names.

    `end` is where the log ends for all that it vouches for, once the flush has succeeded; `durable` is
    what was vouched for when it was lent. `names` is how many files had been made.
    """

    descriptors: list[int]
    segments: list[tuple[Segment, int]]
    directory: Path
    names: int
    new_names: bool
    end: CleanEnd | None
    durable: CleanEnd | None
    snapshot: tuple[int, Path] | None


class Flushed(NamedTuple):
    """What went wrong, with the log or with the snapshot alone."""

    error: OSError | None
    snapshot_error: OSError | None


def end_of(segment: Segment) -> CleanEnd:
    """Where a log ends that ends with this segment."""
    return CleanEnd(segment.end_offset, segment.base_offset, segment.size)


def later(one: CleanEnd | None, other: CleanEnd | None) -> CleanEnd | None:
    """The one that vouches for more."""
    if one is None or other is None:
        return one or other
    return max(one, other, key=attrgetter("end_offset", "segment"))


def lent(
    segments: "Segments",
    directory: Path,
    durable: CleanEnd | None,
    snapshot: tuple[int, Path] | None,
) -> Flushing:
    """What has to be flushed of a log, the oldest first, so many segments at once. Raises StorageError.

    The snapshot, which tells of the log up to somewhere, comes with the last of them.
    """
    dirty = segments.dirty()
    some = dirty[:SEGMENTS_AT_ONCE]
    last = some[-1:] if len(some) < len(dirty) else segments[-1:]
    ends = [end_of(segment) for segment in last]
    return Flushing(
        descriptors=duplicates(some),
        segments=[(segment, segment.size) for segment in some],
        directory=directory,
        names=segments.names,
        new_names=segments.new_names,
        end=ends[0] if ends else None,
        durable=durable,
        snapshot=snapshot if len(some) == len(dirty) else None,
    )


def taken_back(segments: "Segments", flushing: Flushing, outcome: Flushed) -> bool:
    """The flush of what was lent has ended so; → whether all that it vouches for is on disk."""
    sound, error = segments.sound(), outcome.error
    if sound or error is not None:
        for segment, size in flushing.segments:
            segment.flushed(size, error)
    if error is not None:
        # Somebody else may have flushed since, in good faith: the kernel tells of an error once.
        segments.doubt([segment for segment, _ in flushing.segments])
    elif sound:
        segments.names_on_disk = max(segments.names_on_disk, flushing.names)
    return sound and error is None


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


def flush_all(flushings: Sequence[Flushing]) -> list[Flushed]:
    """Flush what was lent and close the descriptors. Any thread."""
    return [_flush(each) for each in flushings]


def _flush(flushing: Flushing) -> Flushed:
    failure = snapshot_failure = None
    for fd in flushing.descriptors:
        try:
            os.fdatasync(fd)
        except OSError as error:
            failure = error
        finally:
            os.close(fd)
    if flushing.snapshot is not None:
        try:
            _flush_whole(flushing.snapshot[1])
        except OSError as error:
            snapshot_failure = error
    try:
        if flushing.new_names or flushing.snapshot is not None:
            sync_directory(flushing.directory)
    except FileNotFoundError:
        pass  # the partition was deleted meanwhile
    except OSError as error:
        failure = error
    return Flushed(failure, snapshot_failure)


def _flush_whole(path: Path) -> None:
    """A snapshot that an earlier life has left may be torn, and is then not worth keeping."""
    if read_checked(path) is None:
        raise OSError(errno.EIO, "it is torn, or gone")
    flush_file(path)
