"""A broker: all its parts, started in order and stopped in reverse."""

import logging
import resource
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from threading import Event
from types import TracebackType
from typing import Final, Self
from uuid import uuid4

from folkmoot.brokers.server.context import Context
from folkmoot.brokers.server.event_loop import Reactor
from folkmoot.brokers.server.job_queue import Background
from folkmoot.brokers.server.registration import ClusterWatcher, Identity, Reports
from folkmoot.brokers.server.scheduler import Upkeep
from folkmoot.brokers.storage.atomic_file import write_whole
from folkmoot.brokers.storage.checkpoints import Checkpoints
from folkmoot.brokers.storage.compaction.compactor import Compactor
from folkmoot.brokers.storage.config import BrokerConfig
from folkmoot.brokers.storage.deletions import Deletions
from folkmoot.brokers.storage.log_manager import Logs
from folkmoot.brokers.storage.openfiles import DESCRIPTORS, OpenFiles
from folkmoot.brokers.storage.retention import Retention
from folkmoot.brokers.storage.scrubber import Scrub
from folkmoot.brokers.storage.timelookups import TimeLookups
from folkmoot.coordination.zookeeper.session import Connect
from folkmoot.network.server import ServerSocket
from folkmoot.protocol.errors import FolkmootError, StorageError

logger = logging.getLogger(__name__)

DIRECTORY_ID_FILE: Final = "directory-id"
_OTHER_DESCRIPTORS = 400


class Broker:
    """One broker, in this process, from `start` to `close`.

    The order of starting is the order of trust: the data directory is locked and its logs recovered
    before a port is opened; the port is open before ZooKeeper tells others of it; the reactor runs
    before the registration, so that whoever finds the broker is answered. Stopping is the reverse:
    first out of ZooKeeper, then an answer for all who wait, then the logs are flushed and closed.

    Start and close it from one thread. `failed` is set when something ended it from within.
    """

    def __init__(self, config: BrokerConfig, connect: Connect) -> None:
        self._config = config
        self._connect = connect
        self._stack = ExitStack()
        self._ended = Event()
        self._failure: Exception | None = None
        self._listeners: dict[str, str] = {}

    @property
    def listeners(self) -> dict[str, str]:
        """Listener name → "host:port" as advertised; known once it has started."""
        return dict(self._listeners)

    def start(self) -> None:
        """Return when the broker is registered and serves.

        Raises DirectoryLocked, ConfigError, StorageError, AddressTaken, ZooKeeperUnreachable,
        BrokerIdTaken; then nothing is left running or locked.
        """
        try:
            self._start()
        except BaseException:
            with self._logged():
                self._stack.close()
            raise

    def _start(self) -> None:
        config = self._config
        background = Background(self._fail)
        files = OpenFiles(min(config.open_segments, _segments_affordable()))
        logs = Logs(config.data, config.broker_id, config.log, files, background.remove)
        logs.start()
        self._stack.callback(logs.close)
        socket = ServerSocket()
        self._stack.callback(socket.close)
        for listener in config.listeners:
            port = socket.bind(listener.bind_host, listener.bind_port)
            self._listeners[listener.name] = listener.advertised(port)
        directories = Background(self._fail, "directories")
        context = Context(
            *(config.broker_id, logs, config.log.max_batch_bytes),
            submit=directories.submit,
            deletions=Deletions(background.submit),
            times=TimeLookups(directories.submit),
        )
        self._stack.callback(background.close)
        self._stack.callback(directories.close)
        checkpoints = Checkpoints(logs, background)
        chores = (
            files.chore,
            Retention(logs).chore,
            checkpoints.chore,
            checkpoints.flush_chore,
            Scrub(logs, background, config.scrub_period).chore,
            partial(context.suspects.chore, background),
            Compactor(
                *(logs, background),
                *(config.compaction_memory_bytes, config.compaction_bytes_per_second),
            ).chore,
        )
        reactor = Reactor(socket, context, self._fail, Upkeep(chores))
        self._stack.callback(reactor.stop)
        identity = Identity(
            broker_id=config.broker_id,
            directory=_directory_id(config.data),
            listeners=self._listeners,
            session_timeout=config.session_timeout,
            rack=config.rack,
        )
        watcher = ClusterWatcher(
            self._connect, identity, Reports(view=reactor.show, failed=self._fail)
        )
        self._stack.callback(watcher.close)
        background.start(reactor.post)
        directories.start(reactor.post)
        reactor.start()
        watcher.start()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until something ends the broker from within; raises that. False when time is up."""
        if not self._ended.wait(timeout):
            return False
        assert self._failure is not None
        raise self._failure

    def close(self) -> None:
        """Stop in order. Raises StorageError if a log could not be flushed; stopped all the same.

        What has ended the broker from within, which `wait` raises, is not hidden by that.
        """
        with nullcontext() if self._failure is None else self._logged():
            self._stack.close()

    @contextmanager
    def _logged(self) -> Iterator[None]:
        """What goes wrong is said in the log alone, since something worse has before."""
        try:
            yield
        except FolkmootError as error:
            logger.error("%s", error)

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

    def _fail(self, error: Exception) -> None:
        self._failure = self._failure or error
        self._ended.set()


def _directory_id(data: Path) -> str:
    """What tells this data directory from any other, made when it is first used."""
    path = data / DIRECTORY_ID_FILE
    try:
        with suppress(FileNotFoundError):
            known = path.read_text(encoding="ascii", errors="replace").strip()
            if known:
                return known
        new = uuid4().hex
        write_whole(path, new.encode())
        return new
    except OSError as error:
        raise StorageError(f"{path} cannot be used: {error.strerror}") from error


def _segments_affordable() -> int:
    """How many segments may have files open, after raising the limit, which is meant for `select`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError) as error:
            logger.warning("the limit of open files stays at %d: %s", soft, error)
    return max(1, (soft - _OTHER_DESCRIPTORS) // DESCRIPTORS)
