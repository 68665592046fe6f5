"""Notice that the disk of a data directory is full, and that it has room again."""

import logging
import os
from pathlib import Path
from typing import Final

from folkmoot.brokers.jobs.jobs import Now
from folkmoot.brokers.storage.files.atomic_file import is_full
from folkmoot.protocol.errors import DiskFull

logger = logging.getLogger(__name__)

QUIET: Final = 10.0
"""Seconds without a write that found no room, after which the disk is looked at again."""
_LOOK_AFTER: Final = 1.0


class DiskRoom:
    """Log one line when the disk is full, and one when it has room again, however many writes fail.

    Owner: the LogManager, on the broker's event loop.
    """

    def __init__(self) -> None:
        self.data = Path()
        self.is_full = False
        self._has_missed = False
        self._missed_at = 0.0

    def is_missed(self, error: object) -> bool:
        """Return whether `error` is that there is no room, which is logged here: the caller logs others."""
        no_room = isinstance(error, DiskFull) or (isinstance(error, OSError) and is_full(error))
        if no_room and not self.is_full:
            self.is_full = True
            logger.error(
                "%s: the disk is full: what is there is served, and nothing is added until there is room: %s",
                *(self.data, error),
            )
        self._has_missed |= no_room
        return no_room

    def task(self, now: Now) -> float:
        """Check whether there is room again."""
        if self._has_missed:
            self._has_missed, self._missed_at = False, now.monotonic
        elif self.is_full and now.monotonic - self._missed_at >= QUIET and _has_room(self.data):
            self.is_full = False
            logger.warning("%s: the disk has room again", self.data)
        return _LOOK_AFTER


def _has_room(data: Path) -> bool:
    found = os.statvfs(data)
    return found.f_bavail > 0 and (found.f_favail > 0 or not found.f_files)
