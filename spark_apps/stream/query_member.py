"""A running query as a member of its group: what the engine calls, turned into membership and back.

Everything happens inside the engine's calls, between two micro-batches, when nothing is in flight.
`start`, the end of the last batch in Spark's commit log, is the one truth about progress:

```
latest(start, limit)   1  apply the events of the group
                       2  commit what `start` says was processed: fenced, forward only
                       3  release what is revoked, with its last offset
                       4  begin what was gained at the committed offset, or at `start`'s if that is
                          later: those records went through this query's sink before a crash
                       5  the next end, within the limits; `start` itself if there is nothing
```

A logged batch is replayed whole, whichever member owns its partitions: reading takes no ownership.
No error that can pass (of a broker, of ZooKeeper) leaves `latest`: an exception would end the query.
Owned by the engine's thread; the only thing done to it from elsewhere is setting `is_draining`.
"""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from folkmoot.coordination.wakeup import Wakeup
from folkmoot.protocol.errors import (
    ConfigError,
    FolkmootError,
    RequestTimeout,
    RetriableError,
)
from folkmoot.protocol.messages import EARLIEST, LATEST
from folkmoot.protocol.records import TopicPartition
from folkmoot.spark_apps.offsets.checkpoint import NO_EPOCH, Ends, QueryOffsets
from folkmoot.spark_apps.offsets.log_watch import BROKER_WAIT, End, LogWatch, ReadPosition
from folkmoot.spark_apps.options.config import StreamConfig
from folkmoot.spark_apps.stream import next_batch
from folkmoot.spark_apps.stream.batch_limits import BatchLimits
from folkmoot.spark_apps.stream.data_loss import skip_lost_records
from folkmoot.spark_apps.stream.group_member import GroupMember, ReadPlan
from folkmoot.spark_apps.stream.owned_partitions import OwnedPartitions
from folkmoot.spark_apps.stream.progress_report import progress_report
from folkmoot.spark_apps.stream.start_offsets import StartOffsets
from folkmoot.spark_apps.stream.targets import Targets, find_targets
from folkmoot.spark_apps.tasks import planning
from folkmoot.spark_apps.tasks.planning import Task

ASSIGNMENT_WAIT = 3.0
SETTLE_WAIT = 120.0
COMMIT_WAIT = 5.0
IDLE_WAIT = 0.1
"""How long a call waits for records where there are none: those just produced are read at once."""
_CHECK_INTERVAL = 0.1

log = logging.getLogger(__name__)


class QueryMember:
    """`start` before anything else, `leave` at the end."""

    def __init__(
        self,
        config: StreamConfig,
        member: GroupMember,
        logs: LogWatch,
        read_plan: ReadPlan,
        wakeup: Wakeup,
        reader_schema: int = 0,
    ) -> None:
        """`reader_schema`: the id of the schema that values are read with, 0 where there is none."""
        self.is_draining = False
        """Start no new batch, so that the query becomes idle with everything committed."""
        self._config = config
        self._member = member
        self._logs = logs
        self._read_plan = read_plan
        self._wakeup = wakeup
        self._reader_schema = reader_schema
        self._offsets = QueryOffsets(config.group)
        self._owned = OwnedPartitions(member, config)
        self._starts = StartOffsets(config, logs, read_plan)
        self._limits = BatchLimits(config, logs)
        self._targets: Targets | None = None
        self._ends: dict[TopicPartition, End] = {}
        self._planned_batch: Ends | None = None
        self._has_joined = self._has_read_ends = False
        self._warnings: set[str] = set()
        self._trouble = ""

    # -- what the engine calls ----------------------------------------------------------------------

    def start(self) -> None:
        """Join the group. Raises ZooKeeperUnreachable."""
        self._member.start()

    def latest(self, start: dict[str, Any], limit: int | None) -> dict[str, Any]:
        """Return the end of the next batch; `start` itself if there is nothing to read.

        `limit` None: no limit at all. With targets (Trigger.AvailableNow) nothing to read ends the query,
        so it has to be true: raises RequestTimeout if the group or a broker keeps it from reaching them.
        Raises OffsetOutOfRange or LogTruncated when records are gone that were to be read.
        """
        last = self._offsets.parse(start)
        self._limits.end_batch()
        if not self._has_joined:
            # Partitions that others have to release first may come later: they may take their time.
            self._wait_until(self._is_settled, ASSIGNMENT_WAIT)
            self._has_joined = True
        batch = self._next(last, limit)
        if batch is None:
            self._wait_until(self._owned.has_committed, COMMIT_WAIT)
            return start
        self._planned_batch = batch
        if records := sum(each.size for each in batch.ranges.values()):
            self._limits.begin_batch(records)
        return self._offsets.to_json(batch)

    def tasks(self, end: dict[str, Any]) -> list[Task]:
        """Return the tasks of the batch that ends there. Raises why no broker is known."""
        batch = self._offsets.parse(end)
        for topic in sorted({partition.topic for partition in batch.ranges}):
            try:
                self._logs.partitions(topic, BROKER_WAIT)
            except FolkmootError as error:
                if not self._is_transient(error):
                    raise
                log.warning("%s: executors will have to find its leaders", error)
        ranges = {partition: each for partition, each in batch.ranges.items() if each.size}
        brokers = self._logs.brokers()
        return planning.tasks(ranges, batch.topic_ids, batch.task_records, self._logs, brokers)

    def prepare(self) -> None:
        """For Trigger.AvailableNow: wait for the whole assignment and note where everything ends.

        Raises UnknownTopicOrPartition, RequestTimeout, ZooKeeperUnreachable, or why brokers cannot be asked.
        """
        if not self._wait_until(self._is_settled, SETTLE_WAIT):
            raise RequestTimeout(f"members of {self._config.group} did not hand over in time")
        self._targets = find_targets(self._config, self._logs, self._read_plan)

    def report(self) -> dict[str, Any]:
        """Return what `query.lastProgress` shows as this source's latest offset."""
        return progress_report(self._owned, self._ends, self._member)

    def leave(self, timeout: float) -> None:
        """Release everything at what is known to be processed, and leave the group. Never raises."""
        deadline = time.monotonic() + timeout
        try:
            self._owned.begin_to_leave()
            self._wait_until(lambda: self._owned.has_left, timeout)
        except Exception:
            log.exception("leaving group %s was not orderly", self._config.group)
        self._member.stop(max(0.1, deadline - time.monotonic()))
        self._logs.close()
        self._wakeup.close()

    # -- one call -------------------------------------------------------------------------------------

    def _next(self, last: Ends, limit: int | None) -> Ends | None:
        """Return the next batch; None if there is nothing to read, with targets only if that is true."""
        batch = self._advance(last, limit)
        deadline = time.monotonic() + SETTLE_WAIT
        while batch is None and not self._is_done():
            if time.monotonic() > deadline:
                raise RequestTimeout(f"nothing could be read for {SETTLE_WAIT:g} s")
            self._wakeup.wait(_CHECK_INTERVAL)
            batch = self._advance(last, limit)
        return batch

    def _advance(self, last: Ends, limit: int | None) -> Ends | None:
        """Steps 1 to 5; an error that can pass is a reason to have nothing."""
        try:
            self._commit_processed(last)
            self._owned.release_revoked()
            self._starts.note_topics()
            if self._starts.topics is None:
                return None
            self._find_starts()
            may_read = not (self.is_draining or self._has_reached_targets())
            batch = self._plan(limit) if may_read else None
            return self._note_starts(last) if batch is None else batch
        except FolkmootError as error:
            if not self._is_transient(error):
                raise
            self._log_trouble(error)
            return None

    def _commit_processed(self, last: Ends) -> None:
        """Steps 1 and 2."""
        self._owned.process_events()
        self._starts.restore(last)
        self._warn_of_changes(last)
        self._owned.mark_processed(last)
        if last == self._planned_batch:
            self._planned_batch = None
            self._owned.count_dropped(last)
        self._owned.commit()

    def _find_starts(self) -> None:
        """Step 4: nothing is read before its start is committed."""
        if missing := self._owned.without_position():
            for partition, offset in self._starts.find(missing).items():
                self._owned.by_partition[partition].position = offset
        self._owned.commit()
        if not self._owned.has_committed_starts():
            self._wait_until(self._owned.has_committed_starts, IDLE_WAIT)

    def _plan(self, limit: int | None) -> Ends | None:
        """Step 5; None if there is nothing to read."""
        positions = self._owned.read_positions()
        self._ends = self._read_ends(positions, limit)
        self._has_read_ends = self._has_read_ends or bool(self._ends)
        owned = self._owned.by_partition
        truncated, self._logs.truncated = self._logs.truncated, {}
        skip_lost_records(owned, self._ends, truncated, fails=self._config.failOnDataLoss)
        lags = next_batch.lags(owned, self._ends, self._targets)
        for partition, at in self._ends.items():
            owned[partition].note_epoch(at)
        if limit is None:
            quotas = planning.split(None, lags)
        else:
            quotas = planning.split(self._limits.records(limit, lags), lags)
            if self._targets is None and self._limits.is_too_small(sum(lags.values())):
                return None
        return self._batch(positions, quotas) if quotas else None

    def _read_ends(
        self, positions: Mapping[TopicPartition, ReadPosition], limit: int | None
    ) -> dict[TopicPartition, End]:
        """Return where these partitions end. Without a limit there is one look only, which has to be true."""
        if limit is not None:
            return self._logs.watch(positions, IDLE_WAIT, self._wakeup)
        ids = {partition: position.topic_id for partition, position in positions.items()}
        offsets = self._logs.find(ids, LATEST, COMMIT_WAIT)
        ends = {each: End(ids[each], offset, NO_EPOCH) for each, offset in offsets.items()}
        beyond = {each: ids[each] for each in ends if offsets[each] < positions[each].offset}
        for each, start in (self._logs.find(beyond, EARLIEST) if beyond else {}).items():
            ends[each] = ends[each]._replace(start=start, refused=positions[each].offset)
        return ends

    def _note_starts(self, last: Ends) -> Ends | None:
        """Return a batch of nothing that has the checkpoint know where partitions begin; None if it does.

        A group has that committed; without one a query that starts anew would look for the end once more.
        """
        positions = self._owned.read_positions()
        if self._config.group or self.is_draining or positions.keys() <= last.ranges.keys():
            return None
        return self._batch(positions, {})

    def _batch(
        self, positions: Mapping[TopicPartition, ReadPosition], quotas: Mapping[TopicPartition, int]
    ) -> Ends:
        ranges, ids = next_batch.ranges(self._owned.by_partition, positions, self._ends, quotas)
        records = planning.task_records(quotas, self._config, self._logs)
        topics = self._starts.topics or {}
        return Ends(self._config.group, ranges, ids, topics, records, self._reader_schema)

    # -- conditions -----------------------------------------------------------------------------------

    def _wait_until(self, condition: Callable[[], bool], timeout: float) -> bool:
        """Follow the group until the condition holds, and release what it revokes meanwhile."""
        deadline = time.monotonic() + timeout
        while True:
            self._owned.process_events()
            self._owned.release_revoked()
            if condition():
                return True
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return False
            self._wakeup.wait(min(remaining, _CHECK_INTERVAL))

    def _is_settled(self) -> bool:
        """Return whether all that the plan gives us is ours, and nothing else is."""
        plan = self._read_plan()
        return plan is not None and plan.assignment == self._owned.by_partition.keys()

    def _is_done(self) -> bool:
        """Return whether nothing to read is a true answer: with targets, when all of ours are reached."""
        if self._targets is None or self.is_draining:
            return True
        return self._is_settled() and self._has_reached_targets()

    def _has_reached_targets(self) -> bool:
        return self._targets is not None and self._targets.are_reached(self._owned.by_partition)

    def _is_transient(self, error: FolkmootError) -> bool:
        """Brokers without the listener, and a chroot without a cluster, are mistakes at the start alone."""
        is_late_config_error = isinstance(error, ConfigError) and self._has_read_ends
        return isinstance(error, RetriableError) or is_late_config_error

    # -- warnings, once and not with every trigger ------------------------------------------------------

    def _warn_of_changes(self, last: Ends) -> None:
        if last.ranges and last.reader_schema not in (0, self._reader_schema):
            self._warn(
                "values are read with another schema than they were before the query was started anew: "
                f"readerSchema={last.reader_schema} would stay with that"
            )
        for partition, owned in self._owned.by_partition.items():
            if last.topic_ids.get(partition.topic, owned.topic_id) != owned.topic_id:
                self._warn(
                    f"topic {partition.topic} was created anew: it is read from its beginning"
                )

    def _warn(self, message: str) -> None:
        if message not in self._warnings:
            self._warnings.add(message)
            log.warning("%s", message)

    def _log_trouble(self, error: FolkmootError) -> None:
        if str(error) != self._trouble:
            self._trouble = str(error)
            log.warning("group %s: %s", self._config.group, error)
