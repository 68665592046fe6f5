"""A broker: all its parts, started in order and stopped in reverse."""

import logging
import resource
import time
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from threading import Event
from typing import Final, Self

from folkmoot import __version__
from folkmoot.brokers.controller.thread import ControllerThread
from folkmoot.brokers.jobs.job_pool import JobPool
from folkmoot.brokers.jobs.jobs import Lane, Now
from folkmoot.brokers.replication.partitions import Partitions
from folkmoot.brokers.replication.replica_fetcher import ReplicaFetcher
from folkmoot.brokers.replication.session_loss import SessionLoss
from folkmoot.brokers.replication.shared import Shared
from folkmoot.brokers.server.config import BrokerConfig
from folkmoot.brokers.server.event_loop import EventLoop
from folkmoot.brokers.server.metadata_cache import MetadataCache
from folkmoot.brokers.server.producer_ids import ProducerIds
from folkmoot.brokers.server.purgatory import Purgatory
from folkmoot.brokers.server.registration import ClusterWatcher
from folkmoot.brokers.server.request_handlers import RequestHandlers
from folkmoot.brokers.server.schemas import Key, Schemas, describe_schema
from folkmoot.brokers.server.snapshots import BrokerHealth, BrokerSnapshot, Snapshots
from folkmoot.brokers.server.zookeeper_link import ZooKeeperLink
from folkmoot.brokers.storage.compaction.log_cleaner import LogCleaner
from folkmoot.brokers.storage.files.cluster_facts import HighestIds
from folkmoot.brokers.storage.flusher import Flusher
from folkmoot.brokers.storage.log_manager import LogManager, cluster_of
from folkmoot.brokers.storage.partition_creation import PartitionCreation
from folkmoot.brokers.storage.retention import Retention
from folkmoot.brokers.storage.scrubber import Scrubber
from folkmoot.brokers.storage.segment import OPEN_FILES_PER_SEGMENT, OpenSegments
from folkmoot.coordination import layout, producer_ids
from folkmoot.coordination.brokers import Registration
from folkmoot.coordination.schemas import lookups, registering
from folkmoot.coordination.schemas.names import parse_subject
from folkmoot.coordination.topic_config import own_options
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.coordination.zookeeper.operations import WatchCallback
from folkmoot.coordination.zookeeper.session import Connect, Session
from folkmoot.network.accepted import ConnectionLimits
from folkmoot.network.client import Connections
from folkmoot.network.server import ServerSocket
from folkmoot.protocol.errors import ConfigError, FolkmootError, NoCluster, RequestTimeout
from folkmoot.protocol.messages import GetSchemaResponse

logger = logging.getLogger(__name__)

RELEASE_FILES_AFTER: Final = 60.0
LEAVE_TIMEOUT: Final = 5.0
MARK_TIMEOUT: Final = 300.0
"""Noting a thousand replicas as incomplete takes some seconds."""
IDS_WAIT: Final = 5.0
JOIN_TIMEOUT: Final = 15.0
SNAPSHOT_TIMEOUT: Final = 5.0
_OTHER_DESCRIPTORS: Final = 400
_OWN_DESCRIPTORS: Final = 100
_FILES_PER_SEGMENT: Final = OPEN_FILES_PER_SEGMENT + 1
"""One of them for a file that waits to be flushed."""


class Broker:
    """One broker, in this process, from `start` to `close`.

    The order of starting: check that ZooKeeper belongs to the cluster of the data directory; lock it and
    recover its logs; open the ports; run the event loop; register. So others find a broker that answers.
    Stopping is the reverse: hand partitions over, end the registration, answer all requests that wait,
    flush and close the logs.

    Start and close it from one thread.
    """

    def __init__(self, config: BrokerConfig, connect: Connect) -> None:
        self._config = config
        self._connect_anywhere = connect
        self._cluster = ""
        self._logs: LogManager | None = None
        self._stack = ExitStack()
        self._ended = Event()
        self._failure: Exception | None = None
        self._listeners: dict[str, str] = {}
        self._loop: EventLoop | None = None
        self._link = ZooKeeperLink()
        self._watcher: ClusterWatcher | None = None
        self._controller: ControllerThread | None = None
        self._snapshots: Snapshots | None = None

    @property
    def listeners(self) -> dict[str, str]:
        """Listener name → "host:port" as advertised; known once it has started."""
        return dict(self._listeners)

    @property
    def event_loop(self) -> EventLoop:
        """The event loop, from `start` on."""
        assert self._loop is not None
        return self._loop

    def snapshot(self, timeout: float = SNAPSHOT_TIMEOUT) -> BrokerSnapshot:
        """Its present state, for metrics. From any thread but its event loop's, while it runs.

        Raises RequestTimeout if its event loop stands still for `timeout` seconds, or has not begun.
        """
        if self._snapshots is None or self._watcher is None:
            raise RequestTimeout("the broker has not started yet")
        found = self._snapshots.take(timeout)
        controller = self._controller
        found.values.update(
            controller=controller is not None and controller.is_elected,
            zookeeper=self._link.is_connected,
            zookeeper_sessions=self._watcher.sessions_opened,
        )
        return found

    def health(self, timeout: float = SNAPSHOT_TIMEOUT) -> BrokerHealth:
        """Its health. From any thread but its event loop's, for which it waits at most
        `timeout` seconds."""
        watcher, loop = self._watcher, self._loop
        started = loop is not None and loop.is_started
        moves, view = not started, False
        if loop is not None and started:
            with suppress(RequestTimeout):
                brokers = loop.call(lambda: loop.handlers.metadata.view.brokers, timeout)
                moves, view = True, self._config.broker_id in brokers
        return BrokerHealth(
            event_loop=moves,
            started=started,
            registered=watcher is not None and watcher.is_registered,
            zookeeper=self._link.is_connected,
            view=view,
        )

    def start(self) -> None:
        """Return when the broker is registered and serves.

        Raises DirectoryLocked, ConfigError, StorageError, AddressTaken, ZooKeeperUnreachable,
        BrokerIdTaken; then nothing is left running or locked.
        """
        try:
            self._start()
        except BaseException:
            with self._log_errors():
                self._stack.close()
            raise

    def _start(self) -> None:
        config, stack = self._config, self._stack
        jobs = JobPool()
        open_files = _raise_open_files()
        segments = min(config.open_segments, _segments_affordable(open_files))
        files = OpenSegments(segments)
        stack.callback(self._link.close)
        try:
            self._cluster = cluster_of(config.data)
        except OSError as error:
            raise ConfigError(
                f"data={config.data}: {error.strerror}: use another directory"
            ) from error
        self._connect(config.session_timeout).close()  # to learn which cluster this is
        logs = LogManager(
            *(config.data, config.broker_id, config.log, files, jobs.submit),
            cluster=self._cluster,
            is_cut_off=self._link.is_cut_off,
            on_deleted=self._link.note_deletion_finished,
            on_ids_saved=partial(self._note_seen, jobs),
        )
        logs.start()
        self._logs = logs
        stack.callback(logs.close)
        socket = ServerSocket(_connection_limits(open_files, segments))
        stack.callback(socket.close)
        for listener in config.listeners:
            port = socket.bind(listener.bind_host, listener.bind_port)
            self._listeners[listener.name] = listener.advertised(port)
        stack.callback(jobs.close)
        self._producer_ids = ProducerIds(jobs.submit, self._allocate_producer_ids)
        loop = self._event_loop(logs, files, jobs, socket)
        mine = Registration(
            *(self.listeners, "", logs.directory_id, config.rack),
            default_replicas=config.default_replicas,
            version=__version__,
            log=own_options(config.log),
        )
        watcher = ClusterWatcher(
            *(self._connect, self._link, config.broker_id, mine, config.session_timeout),
            *(loop.show, loop.post),
            failed=self._fail,
            stop_requested=self._ended.set,
            on_new_directory=partial(self._mark_incomplete, logs),
        )
        self._watcher = watcher
        stack.callback(watcher.close)
        jobs.start(loop.post)
        loop.start()
        watcher.start()
        loop.post(self._producer_ids.refill)
        controller = ControllerThread(self._connect, config.broker_id, config.session_timeout)
        self._controller = controller
        stack.callback(controller.close)
        controller.start()
        stack.callback(self._move_leaderships, watcher)

    def _connect(self, session_timeout: float) -> Session:
        """Open a session with the ZooKeeper of the directory's cluster: an emptied one, or another
        cluster's, is refused."""
        try:
            session = self._connect_anywhere(session_timeout)
        except NoCluster as error:
            if not self._cluster:
                raise
            raise NoCluster(
                f"{error}. data={self._config.data} belongs to cluster {self._cluster}: was ZooKeeper "
                "emptied? `folkmoot cluster restore` puts the cluster back"
            ) from None
        try:
            joined = layout.join(self._cluster, self._config.data)
            self._cluster = execute(session, joined, JOIN_TIMEOUT)
            if self._logs is not None:
                execute(session, registering.note_seen(self._logs.notes.ids.schema), JOIN_TIMEOUT)
        except BaseException:
            session.close()
            raise
        return session

    def _event_loop(
        self, logs: LogManager, files: OpenSegments, jobs: JobPool, socket: ServerSocket
    ) -> EventLoop:
        """Make the event loop and its parts; it is stopped before the logs are closed."""
        config, submit = self._config, jobs.submit
        flusher = Flusher(logs, self._disk_failed)
        creation = PartitionCreation(logs, submit)
        retention = Retention(logs, flusher, submit)
        connections = Connections(f"broker-{config.broker_id}", poller=socket.poller)
        fetcher = ReplicaFetcher(config.broker_id, connections)
        shared = Shared(
            *(config.broker_id, logs, flusher, retention, fetcher),
            *(self._link.write_states, lambda work: self.event_loop.post(work), time.monotonic),
        )
        partitions = Partitions(shared, creation)
        schemas = Schemas(self._live_ids, self._schema, submit, jobs.pause)
        scrubber = Scrubber(logs, submit, config.scrub_period)
        cleaner = LogCleaner(
            *(logs, submit, jobs.pause),
            *(config.compaction_memory_bytes, config.compaction_bytes_per_second),
        )
        tasks = (
            partial(_release_idle, files),
            logs.deletion_task,
            creation.task,
            flusher.task,
            retention.task,
            logs.room.task,
            scrubber.task,
            cleaner.task,
            schemas.task,
            partitions.task,
            SessionLoss(partitions, self._link.is_cut_off).task,
        )
        handlers = RequestHandlers(
            max_batch_bytes=config.log.max_batch_bytes,
            metadata=MetadataCache(config.broker_id, partitions),
            flusher=flusher,
            retention=retention,
            producer_ids=self._producer_ids,
            schemas=schemas,
            logs=logs,
            purgatory=Purgatory(),
            partitions=partitions,
            submit=jobs.submit_for_request,
        )
        loop = self._loop = EventLoop(socket, handlers, self._fail, tasks)
        self._stack.callback(loop.stop)
        self._snapshots = Snapshots(loop=loop, handlers=handlers, files=files, scrubber=scrubber)
        return loop

    def _mark_incomplete(self, logs: LogManager) -> None:
        """Another data directory had this broker id: mark all logs, before any replica begins."""
        logger.warning("broker id %d belonged to another data directory", self._config.broker_id)
        self.event_loop.call(logs.mark_incomplete, MARK_TIMEOUT)

    def _allocate_producer_ids(self, count: int) -> range:
        """Take ids from ZooKeeper, on any thread. Raises ZooKeeperUnreachable, ZooKeeperError."""
        seen = -1 if self._logs is None else self._logs.notes.ids.producer
        recipe = producer_ids.allocate(count, max(time.time_ns() // 1000, seen + 1))
        return self._link.execute(recipe, IDS_WAIT)

    def _note_seen(self, jobs: JobPool, ids: HighestIds) -> None:
        """Have new schemas get higher ids. If this fails, the next session does it."""
        work = partial(self._link.execute, registering.note_seen(ids.schema), IDS_WAIT)
        jobs.submit(Lane.ZOOKEEPER, work, lambda outcome: None)

    def _live_ids(self, subject: str, watch: WatchCallback) -> Collection[int]:
        """Read a subject's live ids, as `_allocate_producer_ids`."""
        found = self._link.execute(lookups.subject_of(parse_subject(subject), watch), IDS_WAIT)
        return {version.id for version in found.live()}

    def _schema(self, key: Key) -> GetSchemaResponse:
        return self._link.execute(describe_schema(*key), IDS_WAIT)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until a failure ends the broker, which is raised, or its registration asks it to stop. False
        when time is up."""
        if not self._ended.wait(timeout):
            return False
        if self._failure is not None:
            raise self._failure
        return True

    def close(self) -> None:
        """Stop in order. Raises StorageError if a log could not be flushed; it is stopped all the same.

        After a failure, which `wait` raises, later errors are only logged.
        """
        with nullcontext() if self._failure is None else self._log_errors():
            self._stack.close()

    @contextmanager
    def _log_errors(self) -> Iterator[None]:
        """Only log errors, since a worse one came before."""
        try:
            yield
        except FolkmootError as error:
            logger.error("%s", error)

    def _move_leaderships(self, watcher: ClusterWatcher) -> None:
        """Have others lead its partitions while all its parts still work."""
        if self._failure is None and not watcher.leave(LEAVE_TIMEOUT):
            logger.warning(
                "partitions get other leaders only after the broker's end: is there a controller?"
            )

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _fail(self, error: Exception) -> None:
        self._failure = self._failure or error
        self._ended.set()

    def _disk_failed(self, error: Exception) -> None:
        """A flush has failed, so that the disk's content is unknown: acknowledge nothing from here on."""
        logger.critical("the broker stops: %s", error)
        if self._loop is not None:
            self._loop.end()
        self._fail(error)


def _release_idle(files: OpenSegments, _now: Now) -> float:
    files.release_idle()
    return RELEASE_FILES_AFTER


def _raise_open_files() -> int:
    """Raise the soft limit of open files, which is low for the sake of `select`, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError) as error:
            logger.warning("the limit of open files stays at %d: %s", soft, error)
    return soft


def _segments_affordable(open_files: int) -> int:
    """The number of segments that may have files open; a quarter of all files stays for connections."""
    others = max(_OTHER_DESCRIPTORS, open_files // 4)
    return max(1, (open_files - others) // _FILES_PER_SEGMENT)


def _connection_limits(open_files: int, segments: int) -> ConnectionLimits:
    """Limits of connections that leave the limit of open files unreached."""
    affordable = open_files - segments * _FILES_PER_SEGMENT - _OWN_DESCRIPTORS
    connections = max(1, min(ConnectionLimits().connections, affordable))
    return ConnectionLimits(
        connections=connections, connections_per_address=max(1, connections * 3 // 4)
    )
