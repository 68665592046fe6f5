"""Where each leader epoch begins in a log."""

import logging
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import Meta

from folkmoot.brokers.storage.files.atomic_file import load_json, write_checked

logger = logging.getLogger(__name__)

EPOCH_STARTS_FILE: Final = "leader-epoch-checkpoint"
"""In a partition's directory: where its epochs begin (`EpochStarts`)."""

NO_EPOCH: Final = -1

_Natural = Annotated[int, Meta(ge=0)]


class EpochEnd(NamedTuple):
    """Where the records of a leader epoch end in a log: the offset behind the last of them."""

    epoch: int
    offset: int


class EpochStarts:
    """The first offset of every leader epoch in a log; both rise from entry to entry.

    Batches carry their leader's epoch, so the log itself says all of it; this is the answer without a
    search. An epoch in which nothing was appended has no entry, and needs none: the end of the next
    lower one is the end of what both have.

    Crash story. The table of what lies below the recovery point is on disk before that point moves:
    the job that flushes a log writes it first, and where the disk has no room for it the point that
    is noted stays. What lies behind the point is read from the headers by
    the next start (`cut`, then `appended`). So an entry of records that were cut, or lost, is never
    believed: it lies behind the point, since a cut takes the point back before the log takes more.

    Where a start could not read the header of a batch, between two epochs, the later one may begin
    anywhere in there (`may_begin`). As long as that is so the file says nothing: so the next start
    reads all headers again, and finds the same.
    """

    def __init__(self, starts: Iterable[tuple[int, int]] = ()) -> None:
        self._epochs: list[int] = []
        self._offsets: list[int] = []
        self._unread: dict[int, int] = {}
        for epoch, offset in starts:
            self.appended(epoch, offset)
        self.changed = False
        """Whether it differs from what was last encoded."""

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._epochs, self._offsets, strict=True)

    @property
    def latest(self) -> int:
        """The epoch of the log's last record, NO_EPOCH if there is none."""
        return self._epochs[-1] if self._epochs else NO_EPOCH

    def appended(self, epoch: int, offset: int) -> None:
        """A batch of this epoch was appended at `offset`."""
        if epoch > self.latest:
            self._epochs.append(epoch)
            self._offsets.append(offset)
            self.changed = True

    def may_begin(self, earliest: int, offset: int) -> None:
        """The epoch that begins at `offset`, and others, may begin as early as at `earliest`."""
        self._unread[offset] = earliest
        self.changed = True

    def earliest(self, end: int) -> int:
        """Where the epoch that ends at `end`, by `end_of`, may end in truth at the earliest."""
        return self._unread.get(end, end)

    def before(self, offset: int) -> int:
        """The epoch of the last record before `offset`, NO_EPOCH if there is none."""
        number = bisect_left(self._offsets, offset)
        return self._epochs[number - 1] if number else NO_EPOCH

    def end_of(self, epoch: int, log_end: int) -> EpochEnd:
        """Where the records of `epoch`, or of the highest lower one that there is, end in this log.

        If all are higher, NO_EPOCH and where the first of them begins.
        """
        number = bisect_right(self._epochs, epoch)
        end = self._offsets[number] if number < len(self._offsets) else log_end
        return EpochEnd(self._epochs[number - 1] if number else NO_EPOCH, end)

    def cut(self, log_end: int) -> None:
        """The log ends there now."""
        while self._offsets and self._offsets[-1] >= log_end:
            self._offsets.pop()
            self._epochs.pop()
            self.changed = True
        self._keep_unread(0, log_end)

    def forget_before(self, log_start: int) -> None:
        """The log begins there now: epochs that end before it are forgotten.

        Not the one that ends right there: a follower that ends there shows by it that it has the same.
        """
        gone = max(0, bisect_left(self._offsets, log_start) - 1)
        if gone:
            del self._epochs[:gone], self._offsets[:gone]
            self.changed = True
        self._keep_unread(log_start, inf)

    def _keep_unread(self, begin: int, end: float) -> None:
        left = {to: since for to, since in self._unread.items() if begin < to <= end}
        self.changed |= len(left) < len(self._unread)
        self._unread = left

    def encode(self) -> bytes:
        """For the file; from here on it has not `changed`."""
        self.changed = False
        return msgspec.json.encode([] if self._unread else [*self])

    @classmethod
    def load(cls, directory: Path) -> "EpochStarts":
        """What the file says; nothing, if it is missing or is not trustworthy. Raises OSError."""
        path = directory / EPOCH_STARTS_FILE
        starts: list[tuple[int, int]] = load_json(path, list[tuple[_Natural, _Natural]]) or []
        if any(new[0] <= old[0] or new[1] <= old[1] for old, new in pairwise(starts)):
            logger.warning("%s: not in order, going on without it", path)
            starts = []
        return cls(starts)


def save_epoch_starts(directory: Path, encoded: bytes) -> None:
    """Write what `EpochStarts.encode` gave; on disk once the directory is flushed. Raises OSError."""
    write_checked(directory / EPOCH_STARTS_FILE, encoded, sync_name=False)
