"""A broker's notes about its partitions: one file in its data directory, replaced as a whole."""

import logging
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from folkmoot.brokers.storage.files.atomic_file import load_json, save_json
from folkmoot.brokers.storage.files.cluster_facts import HighestIds
from folkmoot.brokers.storage.recovery import RecoveryPoint

logger = logging.getLogger(__name__)

NOTES_FILE: Final = "notes"
NOTES_SPARE_FILE: Final = "spare-notes"
"""Room for the notes on a full disk: a start needs them."""


class ScrubProgress(msgspec.Struct, frozen=True):
    """When the scrub's pass began (ms), and its next segment."""

    began: int
    directory: str = ""
    base_offset: int = 0


class Notes(msgspec.Struct):
    """The content of the file; partitions are known by the names of their directories.

    Crash story: a death while the file is written leaves the one before. Steps that need a note wait
    until the file is on disk (Flusher.note): a replica before it acts in a leader epoch, a follower
    before it cuts its log behind the recovery point.
    """

    recovery_points: dict[str, RecoveryPoint] = {}
    """The end of each log on disk; a start checks the rest."""
    leader_epochs: dict[str, Annotated[int, Meta(ge=0)]] = {}
    """The highest leader epoch in which each replica has followed or led."""
    ids: HighestIds = msgspec.field(default_factory=HighestIds)
    scrub: ScrubProgress | None = None

    def copy(self) -> "Notes":
        """Return a copy for another thread to write."""
        points, epochs = dict(self.recovery_points), dict(self.leader_epochs)
        return Notes(points, epochs, replace(self.ids), self.scrub)


def save_notes(data: Path, notes: Notes) -> None:
    """Put them on disk. Raises OSError."""
    save_json(data / NOTES_FILE, notes, data / NOTES_SPARE_FILE)


def load_notes(data: Path) -> Notes:
    """Read the file; empty notes, if it is missing or damaged. Raises OSError.

    Without it a replica might act in an epoch that it has left: the broker is as one with an empty disk.
    """
    path = data / NOTES_FILE
    notes = load_json(path, Notes)
    if notes is None and path.exists():
        logger.error("%s is damaged: replicas here lead only after they have followed again", path)
    return Notes() if notes is None else notes
