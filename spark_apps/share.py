"""A query's share of its group: what the engine calls, turned into membership and back.

Everything happens inside the engine's calls, between two micro-batches, when nothing is in flight.
`start`, the end of the last batch in Spark's commit log, is the one truth about progress:

```
latest(start, limit)   1  take what the group thread said
                       2  commit what `start` says was processed: fenced, forward only
                       3  let go of what is being revoked, with its last offset
                       4  begin what was gained at the committed offset, or at `start`'s if that is
                          later: those records went through this query's sink before a crash
                       5  the next end, within the limits; `start` itself if there is nothing
```

A commit that is refused (another member owns the partition by now) or that nobody may make (the
partition was lost while its batch ran, or reset) is dropped and counted: the new owner has read those
records itself. A logged batch is replayed whole, whoever owns its partitions: reading takes no ownership.

Invariant: everything below `_Held.resume` is committed, or may be, and it goes back only where records
are gone that were read, and the options allow that.
Nothing that can pass (a broker, ZooKeeper) gets out of `latest`: an exception would end the query.
Owned by the engine's thread; the only thing done to it from elsewhere is setting `draining`.
"""

import logging
import os
import re
import socket
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, Final, NamedTuple, Protocol

from folkmoot.consumers.group.events import (
    Assigned,
    Committed,
    Left,
    Lost,
    Notice,
    Rebalanced,
    Replaced,
    Revoking,
)
from folkmoot.consumers.group.group_thread import again
from folkmoot.consumers.lag import lag
from folkmoot.coordination.groups.plan import TopicBasis
from folkmoot.coordination.wakeup import Wakeup
from folkmoot.protocol.errors import (
    ConfigError,
    FolkmootError,
    InstanceReplaced,
    LogTruncated,
    OffsetOutOfRange,
    RequestTimeout,
    RetriableError,
    UnknownTopicOrPartition,
    ZooKeeperUnreachable,
)
from folkmoot.protocol.messages import EARLIEST
from folkmoot.protocol.records import TopicPartition
from folkmoot.spark_apps import bounds, planning
from folkmoot.spark_apps.batch_size import BatchSize
from folkmoot.spark_apps.config import Bound, StreamConfig
from folkmoot.spark_apps.log_watch import End, Place
from folkmoot.spark_apps.offsets import NO_EPOCH, AtStart, Ends, Range, from_json, to_json
from folkmoot.spark_apps.planning import Task

ASSIGNMENT_WAIT = 3.0
SETTLE_WAIT = 120.0
COMMIT_WAIT = 5.0
BROKER_WAIT = 30.0
IDLE_WAIT = 0.1
"""So long a call waits for records if there are none: who has just produced some finds them read."""
_LOOK = 0.1
_EARLIEST: Final = Bound(EARLIEST)
_GO_ON: Final = "failOnDataLoss=false goes on without them"

log = logging.getLogger(__name__)


class GroupMember(Protocol):
    """What is used of `consumers.group.group_thread.Member`."""

    notices: deque[Notice]

    @property
    def error(self) -> BaseException | None: ...
    @property
    def name(self) -> str | None: ...
    @property
    def generation(self) -> int: ...
    def start(self) -> None: ...
    def polled(self, now: float) -> None: ...
    def commit(self, offsets: Mapping[Any, int], epochs: Mapping[Any, int]) -> object: ...
    def drained(self, partition: TopicPartition, epoch: int, offset: int | None) -> None: ...
    def begin_to_leave(self) -> None: ...
    def stop(self, timeout: float) -> None: ...


class Logs(bounds.Offsets, planning.Logs, Protocol):
    """What is used of `log_watch.LogWatch`."""

    truncated: dict[TopicPartition, int]

    def watch(
        self, places: Mapping[TopicPartition, Place], wait: float, wake: Wakeup
    ) -> dict[TopicPartition, End]: ...
    def ends(
        self, wanted: Mapping[TopicPartition, str], wait: float
    ) -> dict[TopicPartition, int]: ...
    def partitions(self, topic: str, wait: float) -> range: ...
    def topic_id(self, topic: str) -> str: ...
    def why_silent(self, partitions: Collection[TopicPartition]) -> str: ...
    def brokers(self) -> frozenset[str]: ...
    def close(self) -> None: ...


class GroupPlan(NamedTuple):
    """What the group's plan gives to this member, and the topics that it divides."""

    mine: frozenset[TopicPartition]
    topics: Mapping[str, TopicBasis]


Planned = Callable[[], GroupPlan | None]
"""None while the plan does not know the member."""


@dataclass(slots=True)
class _Held:
    """A partition that is ours. `resume` is the next offset to read, None before it is looked up.

    `claim` is the fencing token, `reset` the mark of the last reset, `epoch` that of the leader under
    which all before `resume` was read. `heeded` is what the checkpoint last said of it.
    """

    topic_id: str
    claim: int
    committed: int | None
    resume: int | None
    reset: str = ""
    epoch: int = NO_EPOCH
    heeded: Range | None = None
    committing: int | None = None
    revoking: bool = False

    @property
    def told(self) -> int | None:
        """What the group has committed, or was asked to."""
        return self.committed if self.committing is None else self.committing

    def go_back(self, offset: int) -> None:
        """What the group has committed is gone behind that offset: the next commit goes back, too."""
        self.resume, self.epoch, self.committed, self.committing = offset, NO_EPOCH, None, None


class Share:
    """The partitions of one running query; `start` before anything else, `leave` at the end."""

    def __init__(
        self,
        config: StreamConfig,
        member: GroupMember,
        logs: Logs,
        planned: Planned,
        wakeup: Wakeup,
        reader_schema: int = 0,
    ) -> None:
        """`reader_schema`: the id of the schema that values are read with, 0 where there is none."""
        self.draining = False
        """Start no new batch, so that the query comes to rest with everything committed."""
        self.dropped_commits: dict[TopicPartition, int] = {}
        """How often ranges were processed but not committed, since the partition had gone by then."""
        self._config = config
        self._member = member
        self._logs = logs
        self._planned = planned
        self._wakeup = wakeup
        self._reader_schema = reader_schema
        self._held: dict[TopicPartition, _Held] = {}
        self._ends: dict[TopicPartition, End] = {}
        self._at_start: Mapping[str, AtStart] | None = None
        self._targets: dict[tuple[TopicPartition, str], int] | None = None
        self._planned_batch: Ends | None = None
        self._resting: tuple[dict[str, Any], Mapping[TopicPartition, Place]] | None = None
        """The start with which there was nothing to read or to say, and where the next records will be."""
        self._report: dict[str, Any] | None = None
        self._batch_size = BatchSize(config.revokeTimeout, config.maxOffsetsPerTrigger)
        self._last_batch = -inf
        self._arrived = self._left = self._has_looked = False
        self._said: set[str] = set()
        self._trouble = ""

    # -- what the engine calls ----------------------------------------------------------------------

    def start(self) -> None:
        """Join the group. Raises ZooKeeperUnreachable."""
        self._member.start()

    def latest(self, start: dict[str, Any], limit: int | None) -> dict[str, Any]:
        """The end of the next batch; `start` itself if there is nothing to read. None: no limit at all.

        With targets (Trigger.AvailableNow) nothing to read ends the query, so it has to be true:
        raises RequestTimeout if the group or a broker keeps it from reaching them. Raises
        OffsetOutOfRange or LogTruncated when records are gone that were to be read.
        """
        if self._resting is not None and self._rests(start, self._resting):
            return start
        self._resting = self._report = None
        before = from_json(start, self._config.group)
        self._batch_size.ended(time.time())
        if not self._arrived:
            # What others have to hand over first may come later; they may take their time.
            self._arrived = self._wait(self._is_settled, ASSIGNMENT_WAIT) or True
        ends = self._advance(before, limit)
        deadline = time.monotonic() + SETTLE_WAIT
        while ends is None and not self._is_done():
            if time.monotonic() > deadline:
                raise RequestTimeout(f"nothing could be read for {SETTLE_WAIT:g} s")
            self._wakeup.wait(_LOOK)
            ends = self._advance(before, limit)
        if ends is None:
            self._wait(self._has_committed, COMMIT_WAIT)
            self._resting = (start, self._places()) if self._is_at_rest() else None
            return start
        self._planned_batch = ends
        if records := sum(each.size for each in ends.ranges.values()):
            self._last_batch = time.monotonic()
            self._batch_size.begins(time.time(), records)
        return to_json(ends)

    def commit(self, end: dict[str, Any]) -> None:
        """The engine says that the batch that ends there is done; mostly `latest` knew before."""
        before = from_json(end, self._config.group)
        try:
            self._pump()
            self._absorb(before)
            self._commit()
        except RetriableError as error:
            self._warn(error)

    def tasks(self, end: dict[str, Any]) -> list[Task]:
        """The tasks of the batch that ends there. Raises why no broker is known."""
        ends = from_json(end, self._config.group)
        for topic in sorted({partition.topic for partition in ends.ranges}):
            try:
                self._logs.partitions(topic, BROKER_WAIT)
            except FolkmootError as error:
                if not self._may_pass(error):
                    raise
                log.warning("%s: executors will have to find its leaders", error)
        ranges = {partition: each for partition, each in ends.ranges.items() if each.size}
        brokers = self._logs.brokers()
        return planning.tasks(ranges, ends.topic_ids, ends.task_records, self._logs, brokers)

    def prepare(self) -> None:
        """For Trigger.AvailableNow: wait for the whole assignment and note where everything ends.

        Raises UnknownTopicOrPartition, RequestTimeout, ZooKeeperUnreachable, or why brokers cannot be asked.
        """
        self._await_settled()
        wanted = self._wanted()
        found = self._logs.ends(wanted, BROKER_WAIT)
        if unknown := wanted.keys() - found.keys():
            raise RequestTimeout(self._logs.why_silent(unknown))
        self._targets = {(each, wanted[each]): end for each, end in found.items()}

    def report(self) -> dict[str, Any]:
        """What `query.lastProgress` shows as this source's latest offset."""
        if self._report is None:
            self._report = self._reported()
        return self._report

    def _reported(self) -> dict[str, Any]:
        ends = {each: end.offset for each, end in sorted(self._ends.items()) if each in self._held}
        lags = {
            partition: unread
            for partition, end in ends.items()
            if (told := self._held[partition].told) is not None
            and (unread := lag(told, self._ends[partition].start, end)) is not None
        }
        behind = list(lags.values()) or [0]
        return {
            "ends": _by_topic(ends),
            "lag": _by_topic(lags),
            "minOffsetsBehindLatest": min(behind),
            "maxOffsetsBehindLatest": max(behind),
            "avgOffsetsBehindLatest": sum(behind) / len(behind),
            "droppedCommits": _by_topic(self.dropped_commits),
            "member": self._member.name or "",
            "generation": self._member.generation,
            "runner": {"host": socket.gethostname(), "pid": os.getpid()},
        }

    def leave(self, timeout: float) -> None:
        """Give everything up at what is known to be processed, and leave the group. Never raises."""
        deadline = time.monotonic() + timeout
        try:
            self._member.begin_to_leave()
            self._wait(self._has_left, timeout)
        except Exception:
            log.exception("leaving group %s was not orderly", self._config.group)
        self._member.stop(max(0.1, deadline - time.monotonic()))
        self._logs.close()
        self._wakeup.close()

    # -- the group ----------------------------------------------------------------------------------

    def _pump(self) -> None:
        """Show that the engine calls, and take what the group thread said. Raises what ended it."""
        self._member.polled(time.monotonic())
        while self._member.notices:
            notice = self._member.notices.popleft()
            match notice:
                case Assigned(partition, topic_id, offset, claim, reset):
                    self._held[partition] = _Held(topic_id, claim, offset, offset, reset)
                case Revoking(partition):
                    if partition in self._held:
                        self._held[partition].revoking = True
                case Lost(partition, reason):
                    if self._held.pop(partition, None) is not None:
                        log.warning("%s is no longer ours: %s", partition, reason)
                case Committed(_, offsets, refused):
                    self._committed(offsets, refused)
                case Rebalanced(generation, members, partitions):
                    share = ", ".join(map(str, partitions)) or "nothing"
                    log.info("generation %d of %d members: %s", generation, members, share)
                case Replaced():
                    raise InstanceReplaced(
                        f"another process has joined group {self._config.group} as "
                        f"{self._config.instanceId}, and it is the younger one"
                    )
                case Left():
                    self._left = True
        if self._member.error is not None:
            raise again(self._member.error) from self._member.error

    def _committed(
        self, offsets: Mapping[TopicPartition, int], refused: Iterable[TopicPartition]
    ) -> None:
        for partition, offset in offsets.items():
            held = self._held.get(partition)
            if held is not None and held.committing == offset:
                held.committed, held.committing = offset, None
        for partition in refused:
            self._dropped(partition)
            held = self._held.get(partition)
            if held is not None:
                held.committing = None

    def _dropped(self, partition: TopicPartition) -> None:
        self.dropped_commits[partition] = self.dropped_commits.get(partition, 0) + 1

    def _advance(self, before: Ends, limit: int | None) -> Ends | None:
        """Steps 1 to 5; what can pass is a reason to have nothing."""
        try:
            self._pump()
            self._absorb(before)
            self._commit()
            self._hand_over()
            if not self._knows_start():
                return None
            self._begin()
            self._commit()
            if not self._has_begun():
                self._wait(self._has_begun, IDLE_WAIT)
            rests = self.draining or self._has_reached_targets()
            ends = None if rests else self._next(limit)
            return self._beginnings(before) if ends is None else ends
        except FolkmootError as error:
            if not self._may_pass(error):
                raise
            self._warn(error)
            return None

    def _may_pass(self, error: FolkmootError) -> bool:
        """Brokers without the listener, and a chroot without a cluster, are mistakes at the start alone."""
        is_trouble = isinstance(error, ConfigError) and self._has_looked
        return isinstance(error, RetriableError) or is_trouble

    def _absorb(self, before: Ends) -> None:
        """What the last batch processed need not be read again, even if it was not committed."""
        if before.ranges:
            self._at_start = before.at_start
            if before.reader_schema not in (0, self._reader_schema):
                self._say(
                    "values are read with another schema than they were before the query was started anew: "
                    f"readerSchema={before.reader_schema} would stay with that"
                )
        for partition, held in self._held.items():
            if before.topic_ids.get(partition.topic, held.topic_id) != held.topic_id:
                self._say(
                    f"topic {partition.topic} was created anew: it is read from its beginning"
                )
            done = before.processed(partition, held.topic_id, held.reset)
            if done is None or done == held.heeded:
                continue
            held.heeded = done
            if held.resume is None or held.resume <= done.end:
                held.resume, held.epoch = done.end, done.epoch
        if before == self._planned_batch:
            self._planned_batch = None
            for partition, each in before.ranges.items():
                now = self._held.get(partition)
                if each.size and (now is None or now.heeded != each):
                    self._dropped(partition)

    def _commit(self) -> None:
        """Have the group's offsets brought up to what was processed; the next batch does not wait for it."""
        wanted: dict[TopicPartition, int] = {}
        for partition, held in self._held.items():
            if not held.revoking and _is_ahead(held) and held.committing != held.resume:
                assert held.resume is not None
                wanted[partition] = held.committing = held.resume
        if wanted:
            self._member.commit(wanted, {p: self._held[p].claim for p in wanted})

    def _has_committed(self) -> bool:
        return all(held.committing is None for held in self._held.values())

    def _hand_over(self) -> None:
        """Nothing is in flight now: whoever waits for a partition of ours gets it."""
        for partition, held in list(self._held.items()):
            if held.revoking:
                final = held.resume if _is_ahead(held) else None
                self._member.drained(partition, held.claim, final)
                del self._held[partition]

    # -- where to begin -----------------------------------------------------------------------------

    def _begin(self) -> None:
        """Find where to start in partitions in which the group has not committed anything.

        That place is committed before anything is read: a successor must not start at a `latest` of its
        own. What was added since the query began for the first time is read from its beginning; what
        appeared since the group began comes with an offset.
        """
        missing = {
            partition: held.topic_id
            for partition, held in self._held.items()
            if held.resume is None
        }
        if not missing:
            return
        old = {each: missing[each] for each in missing if self._was_there(each, missing[each])}
        new = {each: missing[each] for each in missing if each not in old}
        starting = self._config.starting()
        for wanted, bound in ((old, starting), (new, _EARLIEST)):
            if wanted:
                found = bounds.resolved(bound, wanted, self._logs)
                for partition, offset in bounds.existing(bound, found, wanted, self._logs).items():
                    self._held[partition].resume = offset

    def _has_begun(self) -> bool:
        """Whether all starts that were found are committed."""
        return all(
            each.committed is not None for each in self._held.values() if each.resume is not None
        )

    def _was_there(self, partition: TopicPartition, topic_id: str) -> bool:
        known = (self._at_start or {}).get(partition.topic)
        if known is None or known.topic_id != topic_id:
            return False
        return partition.partition < known.partitions

    def _knows_start(self) -> bool:
        """Whether the topics are known that were there when the query began; they are noted once."""
        if self._at_start is None and (plan := self._planned()) is not None:
            self._at_start = {
                topic: AtStart(basis.topic_id, basis.partitions)
                for topic, basis in plan.topics.items()
                if self._wants(topic)
            }
            counts = {topic: each.partitions for topic, each in self._at_start.items()}
            bounds.check_existing(self._config.starting(), counts, "startingOffsets")
        return self._at_start is not None

    def _wants(self, topic: str) -> bool:
        pattern = self._config.subscribePattern
        return topic in self._config.topics or (
            bool(pattern) and re.fullmatch(pattern, topic) is not None
        )

    def _wanted(self) -> dict[TopicPartition, str]:
        """All partitions that the options name, with their topics' ids, whoever owns them.

        Raises UnknownTopicOrPartition, ZooKeeperUnreachable, or why no broker tells.
        """
        if self._config.assign:
            return {each: self._logs.topic_id(each.topic) for each in self._config.assigned}
        names: Collection[str] = self._config.topics
        if not names:
            if (plan := self._planned()) is None:
                raise ZooKeeperUnreachable("which topics there are could not be read in ZooKeeper")
            names = sorted(each for each in plan.topics if self._wants(each))
        if not names:
            raise UnknownTopicOrPartition(f"no topic matches {self._config.subscribePattern!r}")
        return {
            TopicPartition(topic, number): self._logs.topic_id(topic)
            for topic in names
            for number in self._logs.partitions(topic, BROKER_WAIT)
        }

    # -- the next batch -----------------------------------------------------------------------------

    def _next(self, limit: int | None) -> Ends | None:
        """Step 5; None if there is nothing to read."""
        places = self._places()
        self._ends = self._look(places, limit)
        self._has_looked = self._has_looked or bool(self._ends)
        self._heed_losses()
        lags = {}
        for partition, at in self._ends.items():
            held = self._held[partition]
            assert held.resume is not None
            end = at.offset
            if self._targets is not None:
                end = min(end, self._targets.get((partition, held.topic_id), 0))
            lags[partition] = end - held.resume
            if held.epoch == NO_EPOCH and at.offset >= held.resume:
                held.epoch = at.epoch
        shares = planning.split(self._limit(limit, lags), lags)
        if not shares or (limit is not None and self._is_too_little(sum(lags.values()))):
            return None
        return self._batch(places, shares)

    def _beginnings(self, before: Ends) -> Ends | None:
        """A batch of nothing that has the checkpoint know where partitions begin; None if it does.

        A group has that committed; without one a query that starts anew would look for the end once more.
        """
        places = self._places()
        if self._config.group or self.draining or places.keys() <= before.ranges.keys():
            return None
        return self._batch(places, {})

    def _batch(
        self, places: Mapping[TopicPartition, Place], shares: Mapping[TopicPartition, int]
    ) -> Ends:
        """So many records of each of these, of all others where they are."""
        # A partition whose end is known decides which id its topic has, if it was created anew.
        by_certainty = sorted(places, key=lambda partition: (partition in self._ends, partition))
        topic_ids = {partition.topic: places[partition].topic_id for partition in by_certainty}
        ranges = {}
        for partition, held in self._held.items():
            if held.resume is not None and topic_ids.get(partition.topic) == held.topic_id:
                size = shares.get(partition, 0)
                epoch = self._ends[partition].epoch if size else held.epoch
                ranges[partition] = Range(held.resume, held.resume + size, epoch, held.reset)
        records = planning.task_records(shares, self._config, self._logs)
        at_start = self._at_start or {}
        group, schema = self._config.group, self._reader_schema
        return Ends(group, ranges, topic_ids, at_start, records, schema)

    def _places(self) -> dict[TopicPartition, Place]:
        return {
            partition: Place(each.topic_id, each.resume, each.epoch)
            for partition, each in self._held.items()
            if each.resume is not None and each.committed is not None
        }

    def _look(
        self, places: Mapping[TopicPartition, Place], limit: int | None
    ) -> dict[TopicPartition, End]:
        """Where these partitions end. Without a limit there is one look only, which has to be true."""
        if limit is not None:
            return self._logs.watch(places, IDLE_WAIT, self._wakeup)
        topic_ids = {partition: place.topic_id for partition, place in places.items()}
        found = self._logs.ends(topic_ids, COMMIT_WAIT)
        told = {each: End(topic_ids[each], end, NO_EPOCH) for each, end in found.items()}
        beyond = {each: topic_ids[each] for each in found if found[each] < places[each].offset}
        for each, start in (self._logs.find(beyond, EARLIEST) if beyond else {}).items():
            told[each] = told[each]._replace(start=start, refused=places[each].offset)
        return told

    def _heed_losses(self) -> None:
        """Go on at what is left. Raises LogTruncated, OffsetOutOfRange if records may not get lost."""
        for partition, end in self._ends.items():
            held = self._held[partition]
            if held.resume is not None and held.resume < end.start:
                what = f"{partition}: records {held.resume} to {end.start - 1} are gone (retention)"
                self._lost(OffsetOutOfRange(f"{what}: {_GO_ON}"))
                held.resume, held.epoch = end.start, NO_EPOCH
            elif held.resume is not None and end.offset < end.refused <= held.resume:
                what = (
                    f"{partition} ends at {end.offset}, below {held.resume}, where reading goes on: it has "
                    "lost records, or the group has committed what never was (reset the group)"
                )
                self._lost(
                    OffsetOutOfRange(f"{what}: failOnDataLoss=false reads all that is there")
                )
                held.go_back(end.start)
        truncated, self._logs.truncated = self._logs.truncated, {}
        for partition, offset in truncated.items():
            lost = self._held.get(partition)
            if lost is not None and lost.resume is not None and offset < lost.resume:
                what = (
                    f"{partition}: records {offset} to {lost.resume - 1}, which were read, are gone"
                )
                self._lost(LogTruncated(f"{what}: {_GO_ON}"))
                lost.go_back(offset)
                self._ends.pop(partition, None)

    def _lost(self, error: FolkmootError) -> None:
        if self._config.failOnDataLoss:
            raise error
        log.warning("%s", error)

    def _limit(self, limit: int | None, lags: Mapping[TopicPartition, int]) -> int | None:
        """How many records the batch may have: what the engine says, its time, its bytes."""
        if limit is None:
            return None
        behind = {partition: lag for partition, lag in lags.items() if lag > 0}
        records = sum(behind.values())
        size = sum(lag * self._logs.record_bytes(each.topic) for each, lag in behind.items())
        limits = [limit, int(self._batch_size.limit)]
        if size > self._config.maxBytesPerTrigger:
            limits.append(max(1, int(records * self._config.maxBytesPerTrigger / size)))
        return min(limits)

    def _is_too_little(self, records: int) -> bool:
        """Whether more records are waited for."""
        least = self._config.minOffsetsPerTrigger
        waited = time.monotonic() - self._last_batch
        may_wait = self._targets is None and waited < self._config.maxTriggerDelay
        return least is not None and records < least and may_wait

    # -- nothing to read ----------------------------------------------------------------------------

    def _is_at_rest(self) -> bool:
        """Whether all was read and committed, and nothing but news can change that."""
        return (
            self._targets is None
            and self._at_start is not None
            and all(
                partition in self._ends
                and self._ends[partition].offset == held.resume
                and not (held.revoking or _is_ahead(held))
                for partition, held in self._held.items()
            )
        )

    def _rests(
        self, start: dict[str, Any], resting: tuple[dict[str, Any], Mapping[TopicPartition, Place]]
    ) -> bool:
        """Whether all is as it was at the last call: an idle query costs what this does."""
        known, places = resting
        self._member.polled(time.monotonic())
        if self._has_news() or start != known:
            return False
        try:
            ends = self._logs.watch(places, IDLE_WAIT, self._wakeup)
        except (RetriableError, ConfigError):
            return False
        return ends == self._ends and not self._has_news()

    def _has_news(self) -> bool:
        found = self._member.notices or self._member.error or self._logs.truncated
        return bool(found) or self.draining

    # -- waiting ------------------------------------------------------------------------------------

    def _wait(self, condition: Callable[[], bool], timeout: float) -> bool:
        """Until the condition holds, while the group thread is listened to."""
        deadline = time.monotonic() + timeout
        while True:
            self._pump()
            if condition():
                return True
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self._wakeup.wait(min(left, _LOOK))

    def _has_left(self) -> bool:
        for held in self._held.values():
            held.revoking = True
        self._hand_over()
        return self._left

    def _is_settled(self) -> bool:
        """Whether all that the plan gives us is ours, and nothing else is."""
        self._pump()
        self._hand_over()
        plan = self._planned()
        return plan is not None and plan.mine == self._held.keys()

    def _is_done(self) -> bool:
        """Whether having nothing to read may be said: with targets, when all of ours are reached."""
        if self._targets is None or self.draining:
            return True
        return self._is_settled() and self._has_reached_targets()

    def _has_reached_targets(self) -> bool:
        return self._targets is not None and all(
            held.resume is not None
            and held.resume >= self._targets.get((partition, held.topic_id), 0)
            for partition, held in self._held.items()
        )

    def _await_settled(self) -> None:
        if not self._wait(self._is_settled, SETTLE_WAIT):
            raise RequestTimeout(f"members of {self._config.group} did not hand over in time")

    def _say(self, what: str) -> None:
        """Once, not with every trigger."""
        if what not in self._said:
            self._said.add(what)
            log.warning("%s", what)

    def _warn(self, error: FolkmootError) -> None:
        """Say what is wrong once, not with every trigger."""
        if str(error) != self._trouble:
            self._trouble = str(error)
            log.warning("group %s: %s", self._config.group, error)


def _by_topic(numbers: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """As Spark's Kafka source shows offsets: `{"flights": {"0": 7}}`."""
    found: dict[str, dict[str, int]] = {}
    for partition, number in sorted(numbers.items()):
        found.setdefault(partition.topic, {})[str(partition.partition)] = number
    return found


def _is_ahead(held: _Held) -> bool:
    """Whether more is processed than committed, or a start was found that nobody has committed."""
    return held.resume is not None and (held.committed is None or held.resume > held.committed)
