"""All logs of a broker: its data directory."""

import fcntl
import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import msgspec

from folkmoot.brokers.storage import directories
from folkmoot.brokers.storage.atomic_file import (
    make_directory,
    read_checked,
    sync_directory,
    write_checked,
    write_whole,
)
from folkmoot.brokers.storage.config import LogConfig
from folkmoot.brokers.storage.flushing import CleanEnd
from folkmoot.brokers.storage.log import Log
from folkmoot.brokers.storage.logfile import disk_error
from folkmoot.brokers.storage.openfiles import OpenFiles
from folkmoot.brokers.storage.options import topic_config
from folkmoot.brokers.storage.segments import Remove
from folkmoot.protocol.errors import (
    ConfigError,
    DirectoryLocked,
    FolkmootError,
    StorageError,
    UnknownTopicOrPartition,
)
from folkmoot.protocol.records import TopicPartition

logger = logging.getLogger(__name__)

LOCK_FILE: Final = ".lock"
IDENTITY_FILE: Final = "broker.json"
CLEAN_SHUTDOWN_FILE: Final = "clean-shutdown"
DURABLE_FILE: Final = "durable"


class _Identity(msgspec.Struct, frozen=True):
    """Content of `broker.json`; fields that a later version adds are passed over."""

    broker_id: int


class Logs:
    """A broker's data directory.

    ```
    .lock                   held by flock as long as the broker lives; names its process
    broker.json             {"broker_id": 1}: whose directory this is
    clean-shutdown          where each log ended, written by an orderly stop, removed by the next start
    durable                 up to where each log is on disk, written from time to time (Checkpoints)
    <topic>-<partition>/    see directories.py and Log
    ```

    Start: lock, compare the identity, finish what was interrupted, take the clean-shutdown file (and
    remove it: from here on only another orderly stop vouches for the logs), open every log. Of a log
    that the file does not vouch for, all that lies behind its durable end is checked. One that cannot be
    opened is out of use until the next start, and the others are served, unless it is all of them. Stop is
    the reverse.

    A partition is known by its topic's id. A directory with another id under the same name belongs
    to a topic that was deleted and is never served: `make_way` puts it away. A directory without a
    readable id is neither served nor touched.

    Owner: the broker's reactor thread.
    """

    def __init__(
        self,
        data: Path,
        broker_id: int,
        config: LogConfig,
        files: OpenFiles | None = None,
        remove: Remove = directories.remove,
    ) -> None:
        self._data = data
        self._broker_id = broker_id
        self._config = config
        self._remove = remove
        self.files = OpenFiles() if files is None else files
        self._lock = -1
        self._logs: dict[TopicPartition, Log] = {}
        self._topics: dict[str, LogConfig] = {}
        # What `durable` says of logs that are not served.
        self._unserved: dict[str, CleanEnd] = {}
        self.appended_bytes = 0
        """What producers have brought since the start, over all logs."""

    def start(self) -> None:
        """Raises DirectoryLocked, ConfigError, StorageError; then nothing is left open or locked."""
        try:
            self._take_lock()
            self._check_identity()
            self._open_all()
        except OSError as error:
            self.abandon()
            raise StorageError(f"{self._data} cannot be used: {error}") from error
        except BaseException:
            self.abandon()
            raise

    def close(self) -> None:
        """Flush and close all logs, leave word that it was done. Raises the first StorageError, closed."""
        if self._lock < 0:
            return
        ends: dict[str, CleanEnd] = {}
        failures: list[StorageError] = []
        for log in self._logs.values():
            if log.failure is not None:
                continue  # which was said when it came to that
            try:
                end = log.close()
            except StorageError as error:
                failures.append(error)
                continue
            if end is not None:
                ends[str(log.name)] = end
        try:
            write_checked(self._data / DURABLE_FILE, msgspec.json.encode(self.durable_ends()))
            write_checked(self._data / CLEAN_SHUTDOWN_FILE, msgspec.json.encode(ends))
        except OSError as error:
            failures.append(StorageError(f"{self._data}: no orderly stop was noted: {error}"))
        self._release_lock()
        if failures:
            raise failures[0]

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # -- logs ---------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._logs)

    def __iter__(self) -> Iterator[Log]:
        return iter(list(self._logs.values()))

    def get(self, topic: str, partition: int) -> Log:
        """The log of a partition. Raises UnknownTopicOrPartition."""
        log = self._logs.get(TopicPartition(topic, partition))
        if log is None:
            raise UnknownTopicOrPartition(f"{topic}-{partition} has no log on this broker")
        return log

    def find(self, topic: str, topic_id: str, partition: int) -> Log | None:
        """The log of a partition if there is one; asked for each entry of each request."""
        log = self._logs.get(TopicPartition(topic, partition))
        return log if log is not None and log.topic_id == topic_id else None

    def create(self, topic: str, topic_id: str, partition: int) -> Log:
        """The log of a partition, made if it is not there; one of an older topic of the name goes.

        Raises InvalidName, InvalidRequest, StorageError.
        """
        log = self.find(topic, topic_id, partition)
        if log is not None:
            return log
        name = self.make_way(topic, topic_id, partition)
        try:
            directories.create(self._data, name, topic_id)
        except OSError as error:
            raise disk_error(f"{self._data / str(name)} cannot be created", error) from error
        return self.adopt(name, topic_id)

    def make_way(self, topic: str, topic_id: str, partition: int) -> TopicPartition:
        """Free a new partition's name from an older topic's log; → the name.

        Raises InvalidName, InvalidRequest, StorageError.
        """
        name = directories.check_partition(topic, topic_id, partition)
        log = self._logs.get(name)
        if log is not None and log.topic_id != topic_id:
            logger.warning("%s: deleting topic %s, it is %s now", name, log.topic_id, topic_id)
            self._delete(log)
        return name

    def adopt(self, name: TopicPartition, topic_id: str) -> Log:
        """Serve a directory that was just made. Raises StorageError."""
        config = self._topics.get(topic_id)
        log = Log(self._data, name, topic_id, config or self._config, self.files, self._remove)
        log.start()
        log.configured = config is not None
        self._logs[name] = log
        return log

    def configure(self, topic_id: str, options: Mapping[str, str]) -> None:
        """Take over a topic's own options, over the broker's. What is not allowed leaves all as it is.

        Until then a topic's retention is not known, and nothing of it is deleted.
        """
        try:
            config = topic_config(self._config, options)
        except ConfigError as error:
            logger.error("topic %s keeps its former options: %s", topic_id, error)
            return
        self._topics[topic_id] = config
        for log in self._logs.values():
            if log.topic_id == topic_id:
                log.config, log.configured = config, True

    def flushed_by_time(self) -> list[Log]:
        """The logs whose topics ask for a flush by interval."""
        timed = {id for id, config in self._topics.items() if config.flush_interval is not None}
        return [log for log in self._logs.values() if log.topic_id in timed] if timed else []

    def delete_topic(self, topic_id: str) -> None:
        """Delete all logs of a topic. Raises StorageError; what is left then goes at the next start."""
        self._topics.pop(topic_id, None)
        for log in self:
            if log.topic_id == topic_id:
                self._delete(log)

    @property
    def data(self) -> Path:
        """The directory of all of them."""
        return self._data

    def flush(self) -> None:
        """Return when all that was appended to any log is on disk. Raises StorageError."""
        for log in self._logs.values():
            log.flush()

    def durable_ends(self) -> dict[str, CleanEnd]:
        """What the file `durable` is to hold."""
        ends = ((durable_key(log), log.durable_end()) for log in self._logs.values())
        return self._unserved | {key: end for key, end in ends if end is not None}

    def _delete(self, log: Log) -> None:
        del self._logs[log.name]
        log.delete()

    # -- start and stop -----------------------------------------------------------------------------

    def _take_lock(self) -> None:
        try:
            make_directory(self._data)
            lock = os.open(self._data / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise ConfigError(
                f"data={self._data}: {error.strerror}: use another directory"
            ) from error
        self._lock = lock
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            owner = os.read(lock, 20).decode("ascii", "replace").strip() or "unknown"
            raise DirectoryLocked(
                f"data={self._data} is in use by process {owner}: stop it or use another directory"
            ) from error
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)

    def _check_identity(self) -> None:
        path = self._data / IDENTITY_FILE
        try:
            identity = msgspec.json.decode(path.read_bytes(), type=_Identity)
        except FileNotFoundError:
            write_whole(path, msgspec.json.encode(_Identity(self._broker_id)) + b"\n")
            return
        except msgspec.MsgspecError as error:
            raise ConfigError(f"{path} is not a broker's identity: {error}") from error
        if identity.broker_id != self._broker_id:
            raise ConfigError(
                f"broker_id={self._broker_id} is not allowed with data={self._data}, which belongs "
                f"to broker {identity.broker_id}: use that id or another directory"
            )

    def _open_all(self) -> None:
        directories.finish(self._data)
        ends = self._take_clean_ends()
        durable = _ends_in(self._data / DURABLE_FILE)
        failure: FolkmootError | None = None
        for name, topic_id in directories.served(self._data):
            if not topic_id:
                logger.error("%s: not served, its topic id cannot be read", self._data / str(name))
                ours = f"{name}."
                self._unserved |= {key: end for key, end in durable.items() if key.startswith(ours)}
                continue
            log = Log(self._data, name, topic_id, self._config, self.files, self._remove)
            self._logs[name] = log
            try:
                log.start(ends.get(str(name)), durable.get(durable_key(log)))
            except FolkmootError as error:
                logger.error("%s", error)
                log.fail(str(error))
                failure = failure or error
        if failure is not None and not any(log.is_open for log in self):
            raise failure  # it is not about one file

    def _take_clean_ends(self) -> dict[str, CleanEnd]:
        """What the last orderly stop vouched for; its word holds for one start.

        Names of partitions that a life before has made, and was killed over, are on disk then, too.
        """
        path = self._data / CLEAN_SHUTDOWN_FILE
        ends = _ends_in(path)
        path.unlink(missing_ok=True)
        sync_directory(self._data)
        return ends

    def abandon(self) -> None:
        """Close all files as they are, as after a crash, and let go of the directory."""
        for log in self._logs.values():
            log.abandon()
        self._release_lock()

    def _release_lock(self) -> None:
        self._logs.clear()
        if self._lock >= 0:
            lock, self._lock = self._lock, -1
            os.close(lock)


def durable_key(log: Log) -> str:
    """What a log is called in the file `durable`; a later topic of the same name is another one."""
    return f"{log.name}.{log.topic_id}"


def _ends_in(path: Path) -> dict[str, CleanEnd]:
    """What a file says about where logs ended; nothing if it is missing or not to be trusted."""
    data = read_checked(path)
    if data is None:
        return {}
    try:
        return msgspec.json.decode(data, type=dict[str, CleanEnd])
    except msgspec.MsgspecError as error:
        logger.warning("%s: not understood, checking all logs: %s", path, error)
        return {}
