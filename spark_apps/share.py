"""A query's share of its group: what the engine calls, turned into membership and back.

Everything happens inside the engine's calls, between two micro-batches, when nothing is in flight.
`start`, the end of the last batch in Spark's commit log, is the one truth about progress:

```
latest(start, limit)   1  take what the group thread said
                       2  commit what `start` says was processed: fenced, forward only
                       3  let go of what is being revoked, with its last offset
                       4  begin what was gained at the committed offset, or at `start`'s if that is
                          later: those records went through this query's sink before a crash
                       5  the next end, within the limit; `start` itself if there is nothing
```

A commit that is refused (another member owns the partition by now) or that nobody may make (the
partition was lost while its batch ran) is dropped and counted: the new owner has read those records
itself. A logged batch is replayed whole, whoever owns its partitions: reading takes no ownership.

Invariant: `_Held.resume` never goes back, and everything below it is committed, or may be.
Nothing that can pass (a broker, ZooKeeper) gets out of `latest`: an exception would end the query.
Owned by the engine's thread; the only thing done to it from elsewhere is setting `draining`.
"""

import logging
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from folkmoot.consumers.group.events import (
    Assigned,
    Committed,
    Left,
    Lost,
    Notice,
    Rebalanced,
    Revoking,
)
from folkmoot.consumers.group.group_thread import again
from folkmoot.coordination.wakeup import Wakeup
from folkmoot.protocol.errors import RequestTimeout, RetriableError
from folkmoot.protocol.messages import EARLIEST, LATEST
from folkmoot.protocol.records import TopicPartition
from folkmoot.spark_apps import planning
from folkmoot.spark_apps.config import SourceConfig
from folkmoot.spark_apps.offsets import Ends, Range, from_json, to_json
from folkmoot.spark_apps.planning import Slice

ASSIGNMENT_WAIT = 3.0
SETTLE_WAIT = 120.0
COMMIT_WAIT = 5.0
BROKER_WAIT = 30.0
_LOOK = 0.1

log = logging.getLogger(__name__)


class GroupMember(Protocol):
    """What is used of `consumers.member.Member`."""

    notices: deque[Notice]

    @property
    def error(self) -> BaseException | None: ...
    @property
    def name(self) -> str | None: ...
    @property
    def generation(self) -> int: ...
    def start(self) -> None: ...
    def commit(self, token: int, offsets: Mapping[Any, int], epochs: Mapping[Any, int]) -> None: ...
    def drained(self, partition: TopicPartition, epoch: int, offset: int | None) -> None: ...
    def begin_to_leave(self) -> None: ...
    def stop(self, timeout: float) -> None: ...


class Offsets(Protocol):
    """What is used of `lookups.Lookups`."""

    def ends(
        self, wanted: Mapping[TopicPartition, str], wait: float = ...
    ) -> dict[TopicPartition, int]: ...
    def find(
        self, wanted: Mapping[TopicPartition, str], place: int, wait: float = ...
    ) -> dict[TopicPartition, int]: ...
    def leader_address(self, partition: TopicPartition) -> str | None: ...
    def partitions(self, topic: str, wait: float) -> range: ...
    def topic_id(self, topic: str) -> str: ...
    def brokers(self) -> frozenset[str]: ...
    def close(self) -> None: ...


Planned = Callable[[], frozenset[TopicPartition] | None]
"""What the group's plan gives to this member; None while it does not know the member."""


@dataclass(slots=True)
class _Held:
    """A partition that is ours. `resume` is the next offset to read, None before it is looked up."""

    topic_id: str
    epoch: int
    committed: int | None
    resume: int | None
    committing: int | None = None
    revoking: bool = False


class Share:
    """The partitions of one running query; `start` before anything else, `leave` at the end."""

    def __init__(
        self,
        config: SourceConfig,
        member: GroupMember,
        offsets: Offsets,
        planned: Planned,
        wakeup: Wakeup,
    ) -> None:
        self.draining = False
        """Start no new batch, so that the query comes to rest with everything committed."""
        self.dropped_commits = 0
        """Ranges that were processed but not committed, since the partition had gone by then."""
        self._config = config
        self._member = member
        self._offsets = offsets
        self._planned = planned
        self._wakeup = wakeup
        self._held: dict[TopicPartition, _Held] = {}
        self._ends: dict[TopicPartition, int] = {}
        self._targets: dict[tuple[TopicPartition, str], int] | None = None
        self._planned_batch: Ends | None = None
        self._arrived = self._left = False
        self._trouble = ""
        self._token = 0

    # -- what the engine calls ----------------------------------------------------------------------

    def start(self) -> None:
        """Join the group. Raises ZooKeeperUnreachable."""
        self._member.start()

    def latest(self, start: dict[str, Any], limit: int | None) -> dict[str, Any]:
        """The end of the next batch; `start` itself if there is nothing to read.

        With targets (Trigger.AvailableNow) nothing to read ends the query, so it has to be true:
        raises RequestTimeout if the group or a broker keeps it from reaching them.
        """
        before = from_json(start, self._config.group)
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
            return start
        self._planned_batch = ends
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

    def slices(self, end: dict[str, Any]) -> list[Slice]:
        """The tasks of the batch that ends there. Raises why no broker is known."""
        ends = from_json(end, self._config.group)
        for topic in sorted({partition.topic for partition in ends.ranges}):
            try:
                self._offsets.partitions(topic, BROKER_WAIT)
            except RetriableError as error:
                log.warning("%s: executors will have to find its leaders", error)
        return planning.slices(ends, self._offsets, self._offsets.brokers())

    def prepare(self) -> None:
        """For Trigger.AvailableNow: wait for the whole assignment and note where everything ends.

        Raises UnknownTopicOrPartition, RequestTimeout, or why brokers cannot be asked.
        """
        self._await_settled()
        wanted: dict[TopicPartition, str] = {}
        for topic in self._config.topics:
            for number in self._offsets.partitions(topic, BROKER_WAIT):
                wanted[TopicPartition(topic, number)] = self._offsets.topic_id(topic)
        found = self._offsets.ends(wanted, BROKER_WAIT)
        unknown = ", ".join(str(each) for each in wanted if each not in found)
        if unknown:
            raise RequestTimeout(f"no broker could tell where these end: {unknown}")
        self._targets = {(each, wanted[each]): end for each, end in found.items()}

    def report(self) -> dict[str, Any]:
        """What `query.lastProgress` shows as this source's latest offset."""
        lags = {
            partition: max(0, self._ends[partition] - held.committed)
            for partition, held in sorted(self._held.items())
            if partition in self._ends and held.committed is not None
        }
        return {
            "ends": {str(partition): self._ends[partition] for partition in lags},
            "lag": {str(partition): lag for partition, lag in lags.items()},
            "member": self._member.name or "",
            "generation": self._member.generation,
            "droppedCommits": self.dropped_commits,
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
        self._offsets.close()
        self._wakeup.close()

    # -- the group ----------------------------------------------------------------------------------

    def _pump(self) -> None:
        """Take what the group thread said. Raises what ended it."""
        while self._member.notices:
            notice = self._member.notices.popleft()
            match notice:
                case Assigned(partition, topic_id, offset, epoch):
                    self._held[partition] = _Held(topic_id, epoch, offset, offset)
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
            self.dropped_commits += 1
            held = self._held.get(partition)
            if held is not None:
                held.committing = None

    def _advance(self, before: Ends, limit: int | None) -> Ends | None:
        """Steps 1 to 5; what can pass is a reason to have nothing."""
        try:
            self._pump()
            self._absorb(before)
            self._commit()
            self._hand_over()
            self._begin()
            self._commit()
            return None if self.draining else self._next(limit)
        except RetriableError as error:
            self._warn(error)
            return None

    def _absorb(self, before: Ends) -> None:
        """What the last batch processed need not be read again, even if it was not committed."""
        for partition, held in self._held.items():
            processed = before.processed(partition, held.topic_id)
            if processed is not None and (held.resume is None or held.resume < processed):
                held.resume = processed
        if before == self._planned_batch:
            self._planned_batch = None
            self.dropped_commits += sum(
                each.size > 0 and partition not in self._held
                for partition, each in before.ranges.items()
            )

    def _commit(self) -> None:
        """Bring the group's offsets up to what was processed, and wait for the answer a little."""
        wanted: dict[TopicPartition, int] = {}
        for partition, held in self._held.items():
            if not held.revoking and _is_ahead(held) and held.committing != held.resume:
                assert held.resume is not None
                wanted[partition] = held.committing = held.resume
        if wanted:
            self._token += 1
            self._member.commit(self._token, wanted, {p: self._held[p].epoch for p in wanted})
        if any(held.committing is not None for held in self._held.values()):
            self._wait(lambda: all(e.committing is None for e in self._held.values()), COMMIT_WAIT)

    def _hand_over(self) -> None:
        """Nothing is in flight now: whoever waits for a partition of ours gets it."""
        for partition, held in list(self._held.items()):
            if held.revoking:
                final = held.resume if _is_ahead(held) else None
                self._member.drained(partition, held.epoch, final)
                del self._held[partition]

    def _begin(self) -> None:
        """Find where to start in partitions in which the group has not committed anything.

        That place is committed at once: a successor must not start at a `latest` of its own.
        """
        missing = {
            partition: held.topic_id
            for partition, held in self._held.items()
            if held.resume is None
        }
        if missing:
            place = LATEST if self._config.starting_offsets == "latest" else EARLIEST
            for partition, offset in self._offsets.find(missing, place).items():
                self._held[partition].resume = offset

    # -- the next batch -----------------------------------------------------------------------------

    def _next(self, limit: int | None) -> Ends | None:
        """Step 5; None if there is nothing to read."""
        held = {
            partition: (each.topic_id, each.resume)
            for partition, each in self._held.items()
            if each.resume is not None
        }
        self._ends = self._offsets.ends({each: topic_id for each, (topic_id, _) in held.items()})
        lags = {}
        for partition, end in self._ends.items():
            topic_id, resume = held[partition]
            if self._targets is not None:
                end = min(end, self._targets.get((partition, topic_id), 0))
            lags[partition] = end - resume
        shares = planning.split(limit, lags)
        if not shares:
            return None
        # A partition whose end is known decides which id its topic has, if it was created anew.
        by_certainty = sorted(held, key=lambda partition: (partition in self._ends, partition))
        topic_ids = {partition.topic: held[partition][0] for partition in by_certainty}
        ranges = {
            partition: Range(resume, resume + shares.get(partition, 0))
            for partition, (topic_id, resume) in held.items()
            if topic_ids[partition.topic] == topic_id
        }
        return Ends(self._config.group, ranges, topic_ids)

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
        return self._planned() == self._held.keys()

    def _is_done(self) -> bool:
        """Whether having nothing to read may be said: with targets, when all of ours are reached."""
        if self._targets is None or self.draining:
            return True
        return self._is_settled() and all(
            held.resume is not None
            and held.resume >= self._targets.get((partition, held.topic_id), 0)
            for partition, held in self._held.items()
        )

    def _await_settled(self) -> None:
        if not self._wait(self._is_settled, SETTLE_WAIT):
            raise RequestTimeout(f"members of {self._config.group} did not hand over in time")

    def _warn(self, error: RetriableError) -> None:
        """Say what is wrong once, not with every trigger."""
        if str(error) != self._trouble:
            self._trouble = str(error)
            log.warning("group %s: %s", self._config.group, error)


def _is_ahead(held: _Held) -> bool:
    """Whether more is processed than committed, or a start was found that nobody has committed."""
    return held.resume is not None and (held.committed is None or held.resume > held.committed)
