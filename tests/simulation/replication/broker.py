"""A broker with one replica: the real event loop, handlers, logs and fetcher; only what is around is not."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from math import inf
from typing import Any

from folkmoot.brokers.jobs.jobs import Lane, result_of
from folkmoot.brokers.replication.partition import Partition
from folkmoot.brokers.replication.partitions import Partitions
from folkmoot.brokers.replication.replica_fetcher import ReplicaFetcher
from folkmoot.brokers.replication.shared import Shared, Written
from folkmoot.brokers.server.event_loop import EventLoop
from folkmoot.brokers.server.metadata_cache import ClusterChange, ClusterView, MetadataCache
from folkmoot.brokers.server.producer_ids import ProducerIds
from folkmoot.brokers.server.purgatory import Purgatory
from folkmoot.brokers.server.request_handlers import RequestHandlers
from folkmoot.brokers.storage.damage_reports import damage_job
from folkmoot.brokers.storage.flusher import Flusher
from folkmoot.brokers.storage.log import Log
from folkmoot.brokers.storage.log_manager import LogManager
from folkmoot.brokers.storage.mapped_file import MappedFiles
from folkmoot.brokers.storage.partition_creation import PartitionCreation
from folkmoot.brokers.storage.retention import Retention
from folkmoot.brokers.storage.segment import Damage
from folkmoot.coordination import partition_states
from folkmoot.coordination.brokers import Registration
from folkmoot.coordination.partition_states import StateWrite, TopicIdPartition, VersionedState
from folkmoot.coordination.topic_config import LogConfig
from folkmoot.coordination.topics import TopicInfo
from tests.brokers.parts import no_schemas
from tests.simulation.replication.coordination import PARTITION, TOPIC, Watcher
from tests.simulation.replication.disk import Disk, Disks
from tests.simulation.replication.network import BrokerSocket, Client, Network
from tests.simulation.world import World

LOGS = LogConfig(
    segment_bytes=4096, index_interval_bytes=256, max_batch_bytes=4096, delete_delay=0.0
)
THREAD_DELAY = 0.001
_lives = count()


class Broker:
    """One life of a broker process. `looks` is called after each turn of its event loop,
    `died` when it has ended by itself."""

    def __init__(
        self,
        world: World,
        network: Network,
        disks: Disks,
        disk: Disk,
        broker_id: int,
        looks: Callable[[Broker], None],
        died: Callable[[Broker], None],
    ) -> None:
        self.world = world
        self.broker_id = broker_id
        self.disk = disk
        self.running = True
        self.paused: list[Callable[[], None]] | None = None
        self.life = next(_lives)
        self.seen_log: Log | None = None
        self.committed = 0
        self.log_end = 0
        self.led: int | None = None
        self._disks = disks
        self._looks = looks
        self._died = died
        self._next_turn = inf
        self._shows: tuple[Any, ...] = ()
        self._lanes: dict[Lane, deque[tuple[Callable[[], Any], Callable[[Any], None]]]] = {
            lane: deque() for lane in Lane
        }
        self._working: Counter[Lane] = Counter()
        name = self.name = disk.data.name
        with disks.of(disk):
            self.logs = LogManager(disk.data, broker_id, LOGS, submit=self._submit)
            # What the page cache has is no part of a history: nothing is mapped or looked for there.
            self.logs.files.mapped = MappedFiles(limit=0)
            self.logs.start()
        self.socket = BrokerSocket(network, name, self.wake)
        self.client = Client(network, name, self.wake)
        self.loop = self._event_loop(network)
        self.watcher = Watcher(
            *(world, broker_id, self.soon(self._shown), name),
            *(self._take_over, self.soon(self._failed)),
        )
        self.wake()

    def _event_loop(self, network: Network) -> EventLoop:
        """As `Broker` puts it together, less what this one has no use for."""
        logs, submit = self.logs, self._submit
        flusher = Flusher(logs, self._failed)
        creation = PartitionCreation(logs, submit)
        retention = Retention(logs, flusher, submit)
        fetcher = ReplicaFetcher(self.broker_id, self.client)  # type: ignore[arg-type]
        shared = Shared(
            *(self.broker_id, logs, flusher, retention, fetcher),
            *(self.write_states, self.post, self.world.clock),
        )
        partitions = self.partitions = Partitions(shared, creation)
        self._ids = ProducerIds(submit, network.take_ids)
        self.handlers = RequestHandlers(
            max_batch_bytes=LOGS.max_batch_bytes,
            metadata=MetadataCache(self.broker_id, partitions),
            flusher=flusher,
            retention=retention,
            producer_ids=self._ids,
            schemas=no_schemas(),
            logs=logs,
            purgatory=Purgatory(),
            partitions=partitions,
            submit=submit,
        )
        tasks = (
            *(logs.deletion_task, creation.task, flusher.task, retention.task),
            partitions.task,
        )
        return EventLoop(self.socket, self.handlers, self._failed, tasks)  # type: ignore[arg-type]

    # -- the process --------------------------------------------------------------------------------

    def soon(self, work: Callable[..., None]) -> Callable[..., None]:
        """A callback that does nothing in a process that died, and waits in one that was stopped."""

        def call(*given: Any) -> None:
            if self.paused is not None:
                self.paused.append(lambda: call(*given))
            elif self.running:
                with self._disks.of(self.disk):
                    work(*given)

        return call

    def stop(self, *, guarded: bool) -> None:
        """The process is killed."""
        self.running = False
        self.watcher.stop(guarded=guarded)
        self.socket.close()
        self.client.close()
        self.logs.abandon()
        self.loop.stop()

    def pause(self) -> None:
        self.paused = []

    def resume(self) -> None:
        held, self.paused = self.paused or [], None
        for each in held:
            each()

    def _take_over(self) -> None:
        self.world.seen["id of another directory"] += 1
        with self._disks.of(self.disk):
            self.logs.mark_incomplete()

    def _failed(self, error: Exception) -> None:
        """It ends from within: a flush has failed, or another process has its id."""
        self.world.seen[f"ended by {type(error).__name__}"] += 1
        self.world.after(0.0, partial(self._end, error))

    def _end(self, error: Exception) -> None:
        if self.running:
            self.world.note(f"{self.broker_id} ends: {type(error).__name__}")
            self.stop(guarded=False)
            self._died(self)

    # -- its event loop, and the threads beside it --------------------------------------------------

    def wake(self) -> None:
        self._turn_at(self.world.now + THREAD_DELAY * self.world.random.random())

    def _turn_at(self, time: float) -> None:
        if self.running and time < self._next_turn:
            self._next_turn = time
            self.world.at(time, partial(self.soon(self._turn), time))

    def _turn(self, time: float) -> None:
        if time != self._next_turn:
            return  # an earlier one was asked for since
        self._next_turn = inf
        self.loop._run_once()
        self._looks(self)
        if self.running:
            self._turn_at(self.world.now + max(self.loop._time_left() or 0.0, THREAD_DELAY / 10))

    def post(self, work: Callable[[], None]) -> None:
        self.loop.post(work)
        self.wake()

    def _submit(self, lane: Lane, work: Callable[[], Any], done: Callable[[Any], None], /) -> None:
        """A job in the background: as many at a time as its lane has threads, begun in their order."""
        if lane is Lane.FACTS:
            # For people, and for a ZooKeeper that is lost, which none is here: it would only put names of
            # segments on disk that a power cut is to take.
            return
        self._lanes[lane].append((work, done))
        self._begin_jobs(lane)

    def _begin_jobs(self, lane: Lane) -> None:
        waiting = self._lanes[lane]
        while waiting and self._working[lane] < lane.threads:
            self._working[lane] += 1
            work, done = waiting.popleft()
            self.world.after(self.world.delay(), self.soon(partial(self._work, lane, work, done)))

    def _work(self, lane: Lane, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        result = result_of(work)
        self.world.after(self.world.delay(), self.soon(partial(self._worked, lane, done, result)))

    def _worked(self, lane: Lane, done: Callable[[Any], None], result: Any) -> None:
        self.post(partial(done, result))
        self._working[lane] -= 1
        self._begin_jobs(lane)

    def _shown(
        self,
        live: dict[int, Registration],
        topic: TopicInfo,
        found: VersionedState | None,
        fresh: bool,
        registered: bool,
    ) -> None:
        shown = (live, topic, found, registered)
        if shown == self._shows and not fresh:
            return
        self._shows = shown
        states = {} if found is None else {PARTITION: found}
        change = ClusterChange(
            brokers=live,
            topics={TOPIC: topic},
            states={PARTITION: found},
            full_view=ClusterView(live, {TOPIC: topic}, states) if fresh else None,
            is_settled=fresh,
            is_registered=registered,
        )
        self.loop.show(change)
        self.wake()

    def write_states(self, writes: Mapping[TopicIdPartition, StateWrite], done: Written) -> None:
        [wanted] = writes.values()
        self.world.note(lambda: f"{self.broker_id} wants {wanted}")

        def written(result: Any) -> None:
            answers = result if isinstance(result, dict) else None
            kind = "nothing" if answers is None else type(answers[PARTITION]).__name__
            self.world.seen[f"state {kind}"] += 1
            self.post(partial(done, answers))

        self.watcher.write(lambda: partition_states.write(writes), self.soon(written))

    # -- how it stands ------------------------------------------------------------------------------

    @property
    def replica(self) -> Partition | None:
        return self.partitions.find(*PARTITION)

    @property
    def log(self) -> Log | None:
        return self.logs.find(*PARTITION)

    def scrub(self) -> None:
        """Find all that is damaged."""
        log = self.log
        if log is None or not log.is_open or not log.queue.is_idle:
            return
        with self._disks.of(self.disk):
            for segment in log.segments:
                reader = segment.reader()
                for found in list(reader.batches()):
                    if isinstance(found, Damage):
                        segment.mark(found)
                reader.close()

    def check_reported(self, log: Log, offset: int) -> None:
        """A reader has reported a batch as damaged."""
        with self._disks.of(self.disk):
            job = damage_job(log, offset)
        if job is not None:
            self._submit(job.lane, job.run, job.finish)

    def begins_anew(self) -> None:
        """What it knew as committed is forgotten."""
        self.life, self.committed = next(_lives), 0

    def sees(self, log: Log | None) -> None:
        """A replica that was moved away, and comes back, begins with nothing."""
        if log is not self.seen_log:
            if self.seen_log is not None:
                self.world.seen["deleted"] += 1
                self.world.note(f"{self.broker_id} has deleted its log")
                self.life = next(_lives)
            self.seen_log, self.committed, self.log_end, self.led = log, 0, 0, None
