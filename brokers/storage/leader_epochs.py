"""The leader epochs of a log: the offset at which each begins."""

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
    """The offset behind the last record of a leader epoch in a log."""

    epoch: int
    offset: int


class EpochStarts:
    """The first offset of every leader epoch in a log; both rise from entry to entry.

    Batches carry their leader's epoch: this is the answer without a search. An epoch in which nothing
    was appended has no entry: its end is that of the next lower one.

    Crash story. The job that flushes a log writes the table first, so entries below the recovery point
    are on disk before that point moves; if the disk has no room, the noted point stays. The next start
    reads the headers behind the point (`cut`, then `note_batch`). An entry of records that were cut or
    lost lies behind the point, since a cut takes that back first, and so is never believed.

    If a start could not read the headers between two epochs, the later one may begin anywhere in there
    (`may_begin`). The file is empty as long: the next start reads all headers again, and finds the
    same.
    """

    def __init__(self, starts: Iterable[tuple[int, int]] = ()) -> None:
        self._epochs: list[int] = []
        self._offsets: list[int] = []
        self._unread: dict[int, int] = {}
        self.latest = NO_EPOCH
        """The epoch of the log's last record, NO_EPOCH if there is none."""
        for epoch, offset in starts:
            self.note_batch(epoch, offset)
        self.changed = False
        """True if it differs from the last `encode`."""

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._epochs, self._offsets, strict=True)

    def note_batch(self, epoch: int, offset: int) -> None:
        """Note a batch of `epoch` at `offset`."""
        if epoch > self.latest:
            self._epochs.append(epoch)
            self._offsets.append(offset)
            self.latest, self.changed = epoch, True

    def may_begin(self, earliest: int, offset: int) -> None:
        """Note that the epoch that begins at `offset`, and others, may begin as early as `earliest`."""
        self._unread[offset] = earliest
        self.changed = True

    def earliest(self, end: int) -> int:
        """Return the lowest offset at which the epoch may end that ends at `end` by `end_of`."""
        return self._unread.get(end, end)

    def before(self, offset: int) -> int:
        """Return the epoch of the last record before `offset`, NO_EPOCH if there is none."""
        number = bisect_left(self._offsets, offset)
        return self._epochs[number - 1] if number else NO_EPOCH

    def end_of(self, epoch: int, log_end: int) -> EpochEnd:
        """Return the end of `epoch`, or of the highest lower one that there is.

        If all are higher, NO_EPOCH and the start of the first of them.
        """
        number = bisect_right(self._epochs, epoch)
        end = self._offsets[number] if number < len(self._offsets) else log_end
        return EpochEnd(self._epochs[number - 1] if number else NO_EPOCH, end)

    def cut(self, log_end: int) -> None:
        """Forget what begins at `log_end` or behind."""
        while self._offsets and self._offsets[-1] >= log_end:
            self._offsets.pop()
            self._epochs.pop()
            self.changed = True
        self.latest = self._epochs[-1] if self._epochs else NO_EPOCH
        self._keep_unread(0, log_end)

    def forget_before(self, log_start: int) -> None:
        """Forget the epochs that end before `log_start`.

        The one that ends right there stays: a follower that ends there shows by it that it has the same.
        """
        dropped = max(0, bisect_left(self._offsets, log_start) - 1)
        if dropped:
            del self._epochs[:dropped], self._offsets[:dropped]
            self.changed = True
        self._keep_unread(log_start, inf)

    def _keep_unread(self, begin: int, end: float) -> None:
        left = {to: since for to, since in self._unread.items() if begin < to <= end}
        self.changed |= len(left) < len(self._unread)
        self._unread = left

    def encode(self) -> bytes:
        """Return the file's content; `changed` is False from here on."""
        self.changed = False
        return msgspec.json.encode([] if self._unread else [*self])

    @classmethod
    def load(cls, directory: Path) -> "EpochStarts":
        """Read the file; no entries, if it is missing or not trustworthy. Raises OSError."""
        path = directory / EPOCH_STARTS_FILE
        starts: list[tuple[int, int]] = load_json(path, list[tuple[_Natural, _Natural]]) or []
        if any(new[0] <= old[0] or new[1] <= old[1] for old, new in pairwise(starts)):
            logger.warning("%s: not in order, going on without it", path)
            starts = []
        return cls(starts)


def save_epoch_starts(directory: Path, encoded: bytes) -> None:
    """Write the file's content; it is on disk once the directory is flushed. Raises OSError."""
    write_checked(directory / EPOCH_STARTS_FILE, encoded, sync_name=False)
