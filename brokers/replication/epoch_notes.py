"""The leader epochs of a broker's replicas, put on disk before the replicas act in them."""

import errno
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from folkmoot.brokers.storage.files.atomic_file import save_json
from folkmoot.brokers.storage.leader_epochs import LEADER_EPOCHS_FILE
from folkmoot.brokers.storage.log import Log
from folkmoot.brokers.storage.log_manager import LogManager
from folkmoot.brokers.storage.recovery import NOTES_SPARE_FILE, note_incomplete
from folkmoot.protocol.errors import DiskFailed, FolkmootError

logger = logging.getLogger(__name__)

Noted = Callable[[OSError | None], None]


class _Wanted(NamedTuple):
    epoch: int
    lacks_something: Callable[[], bool]
    """Whether the replica may lack what it has acknowledged: so far its log was known by having no epoch."""
    done: Noted


class EpochNotes:
    """Notes the highest epoch that each replica acts in: one file, by one flush for all of a turn.

    Replicas that are incomplete are noted as such before the file: a death in between leaves them
    incomplete, as they are.

    Owner: the event loop.
    """

    def __init__(
        self,
        logs: LogManager,
        post: Callable[[Callable[[], None]], None],
        disk_failed: Callable[[FolkmootError], None],
    ) -> None:
        self._logs = logs
        self._disk_failed = disk_failed
        self._post = post
        self._wanted: dict[Log, _Wanted] = {}
        self._is_noting = False

    def note(self, log: Log, epoch: int, lacks_something: Callable[[], bool], done: Noted) -> None:
        """Note that this replica acts in `epoch`; `done` gets what went wrong, if it did."""
        self._wanted[log] = _Wanted(epoch, lacks_something, done)
        if len(self._wanted) == 1:
            self._post(self._begin)  # with all that this turn brings

    def forget(self, log: Log) -> None:
        """The replica is gone: its epoch is not noted any more, if that has not begun."""
        self._wanted.pop(log, None)

    def _begin(self) -> None:
        if self._is_noting or not self._wanted:
            return
        wanted, self._wanted = self._wanted, {}
        epochs = self._logs.leader_epochs
        for log, each in wanted.items():
            name = log.directory.name
            epochs[name] = max(each.epoch, epochs.get(name, each.epoch))
        incomplete = [log for log, each in wanted.items() if log.is_open and each.lacks_something()]
        self._is_noting = True
        path = self._logs.data / LEADER_EPOCHS_FILE
        work = partial(_save_epochs, path, dict(epochs), [log.directory for log in incomplete])
        self._logs.run_note(work, partial(self._ended, wanted, incomplete))

    def _ended(
        self, wanted: Mapping[Log, _Wanted], incomplete: Sequence[Log], error: OSError | None
    ) -> None:
        self._is_noting = False
        for log in incomplete:
            log.is_incomplete = error is None
        if error is not None and not self._logs.room.is_missed(error):
            logger.error("leader epochs were not noted, trying again: %s", error)
        for log, each in wanted.items():
            if error is None:
                log.leader_epoch = max(log.leader_epoch, each.epoch)
            each.done(error)
        if error is not None and error.errno in (errno.EIO, errno.EROFS):
            self._disk_failed(DiskFailed(f"leader epochs could not be noted: {error}"))
        self._begin()


def _save_epochs(path: Path, epochs: Mapping[str, int], incomplete: Sequence[Path]) -> None:
    for directory in incomplete:
        with suppress(FileNotFoundError):  # it may have been deleted meanwhile
            note_incomplete(directory)
    save_json(path, epochs, path.with_name(NOTES_SPARE_FILE))
