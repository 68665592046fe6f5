"""Administration of topics, records and groups, for applications and the command line."""

import math
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final, Literal, Self, TypeVar

from folkmoot.admin.config import AdminConfig
from folkmoot.admin.group_views import GroupSummary, GroupView, PartitionEnds, view_of
from folkmoot.admin.offset_reset import PlannedReset, Target, check_offset, check_target, planned
from folkmoot.admin.replica_moves import PlannedMove, ReplicaMoves, ReplicaSize, RunningMove
from folkmoot.consumers.config import ConsumerConfig, names_of
from folkmoot.consumers.lag import lag
from folkmoot.consumers.offsets.offset_lookup import first_offsets, first_timestamps, offsets_at
from folkmoot.consumers.offsets.seek_target import ENDS
from folkmoot.consumers.offsets.validation import check_int, partition_of
from folkmoot.coordination import brokers, topics
from folkmoot.coordination.brokers import Registration
from folkmoot.coordination.cluster import events, reassignments
from folkmoot.coordination.cluster.cluster_status import (
    ClusterStatus,
    PartitionStatus,
    read_cluster,
)
from folkmoot.coordination.cluster.events import ClusterEvent
from folkmoot.coordination.cluster.new_partitions import wait_until_led
from folkmoot.coordination.connector import connector
from folkmoot.coordination.deletions import local_user
from folkmoot.coordination.groups import (
    group_deletion,
    history,
    inspection,
    membership,
    offset_admin,
    planning,
)
from folkmoot.coordination.groups.history import Entry
from folkmoot.coordination.groups.inspection import GroupState, PartitionState
from folkmoot.coordination.placement import racks_of
from folkmoot.coordination.topic_config import LogConfig, as_texts, build_changes
from folkmoot.coordination.topics import TopicInfo
from folkmoot.coordination.zookeeper.execute import execute_all
from folkmoot.coordination.zookeeper.operations import Recipe
from folkmoot.coordination.zookeeper.session import Session, SessionState
from folkmoot.network.ask_leaders import ask_leaders
from folkmoot.network.cluster import Cluster
from folkmoot.network.leaderless import Waiting
from folkmoot.protocol import errors
from folkmoot.protocol.messages import (
    EARLIEST,
    LATEST,
    Api,
    DeleteRecordsEntry,
    DeleteRecordsRequest,
)
from folkmoot.protocol.names import check_name
from folkmoot.protocol.options import configured, parse
from folkmoot.protocol.quantities import EPOCH
from folkmoot.protocol.records import TopicPartition

TIMEOUT: Final = 30.0
PATIENCE: Final = 5.0
"""Seconds to wait for the ends of partitions and the ages of records in a description."""

T = TypeVar("T")


class Admin:
    """Creates, changes, describes and deletes topics, replicas, records and groups.

    ```
    with Admin(zookeeper="localhost:2181") as admin:
        admin.create_topic("orders", partitions=3)
        admin.delete_records({TopicPartition("orders", 0): 1_000})
        plan = admin.plan_reset("billing", to="earliest", topics=["orders"])
        admin.reset_offsets("billing", {each.partition: each.new for each in plan})
    ```

    Every call reads ZooKeeper anew and waits for `timeout` seconds at most. It then raises
    ZooKeeperUnreachable, and the next call connects anew; a change may have been made all the same.
    Only the ZooKeeper session lives between two calls. One thread uses it. In a forked child it is closed.

    Options: docs/configuration.md.
    """

    # -- life -------------------------------------------------------------------------------------

    @configured(AdminConfig)
    def __init__(self, config: AdminConfig) -> None:
        self.config = config
        self._timeout = config.timeout
        # For look-ups of times, which read records as consumers do.
        self._reading = ConsumerConfig(
            zookeeper=config.zookeeper,
            listener=config.listener,
            client_id=config.client_id,
            session_timeout=config.session_timeout,
            request_timeout=config.request_timeout,
        )
        self._connect = connector(config.zookeeper, connect_timeout=config.timeout)
        self._is_open = False
        self._process: int | None = None
        self._session: Session | None = None

    def start(self) -> Self:
        """Connect to ZooKeeper. Raises ZooKeeperUnreachable."""
        self._is_open, self._process = True, self._process or os.getpid()
        with self._open_session():
            return self

    def close(self) -> None:
        if self._is_forked:
            return
        self._is_open = False
        if self._session is not None:
            self._session.close()
            self._session = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- the cluster ------------------------------------------------------------------------------

    def cluster(self) -> ClusterStatus:
        """Return the live brokers, the controller, and the leader and in-sync replicas of each partition."""
        return self._cluster(None)

    def cluster_events(self) -> list[ClusterEvent]:
        """Return the last changes of brokers, leaders, in-sync replicas and topics, oldest first.

        For people: entries may be missing, and nothing depends on them.
        """
        return self._execute(events.entries())

    # -- topics -----------------------------------------------------------------------------------

    def topics(self) -> list[str]:
        """Return the names of all topics, sorted."""
        return self._execute(topics.names())

    def partitions_of(self, topic: str) -> list[TopicPartition]:
        """Raises UnknownTopicOrPartition, InvalidName."""
        count = len(self._topic(topic).partitions)
        return [TopicPartition(topic, number) for number in range(count)]

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """Return the ids of the topics that exist. A topic that is made anew has another id.

        Raises InvalidName.
        """
        infos = self._topics(names_of("topics", topics))
        return {name: topic.topic_id for name, topic in infos.items()}

    def create_topic(
        self,
        topic: str,
        partitions: int = 1,
        *,
        replicas: int | None = None,
        options: Mapping[str, object] | None = None,
    ) -> None:
        """Create a topic, spread over the live brokers; the replicas of a partition are on different racks.

        Without `replicas` each partition has the brokers' `default_replicas`. `options` are the topic's
        own, such as `{"retention": 86_400, "cleanup_policy": "compact"}`; the brokers' options count for
        all others (`LogConfig` has them all).

        Returns once each partition has a leader; after the admin's `timeout`, 5 s without progress, or
        where there is no controller, it returns all the same: the topic exists.

        Raises TopicExists, BrokerUnreachable, InvalidReplicationFactor if fewer brokers are alive than
        `replicas`, ConfigError, InvalidName.
        """
        count = check_int("number of partitions", partitions)
        live = self._execute(brokers.usable())
        copies = brokers.default_replicas(live)
        if replicas is not None:
            copies = check_int("number of replicas", replicas)
        own = as_texts(options or {})
        creation = topics.create(topic, count, racks_of(live), own, replicas=copies)
        self._execute_until_led(creation)

    def topic_options(self, topic: str) -> dict[str, object]:
        """Return a topic's own options. Raises UnknownTopicOrPartition, InvalidName."""
        return {**parse(LogConfig, self._topic(topic).config)}

    def set_topic_options(
        self, topic: str, options: Mapping[str, object], *, unset: Iterable[str] = ()
    ) -> dict[str, object]:
        """Change a topic's own options, remove those in `unset`, and return the options that it then has.

        Brokers need no restart. Raises UnknownTopicOrPartition, InvalidName, and ConfigError for an option
        that is unknown, out of its range, or in conflict with the others.
        """
        changes = build_changes(self._topic(topic).config, options, unset)
        return {**parse(LogConfig, self._execute(topics.configure(topic, changes)).config)}

    def describe_topics(
        self, topics: Sequence[str] | None = None
    ) -> dict[str, list[PartitionStatus]]:
        """Return the leader and the in-sync replicas of each partition of these topics, or of all.

        Raises UnknownTopicOrPartition, InvalidName.
        """
        by_topic: dict[str, list[PartitionStatus]] = {}
        for status in self._cluster(topics).partitions:
            by_topic.setdefault(status.topic, []).append(status)
        return by_topic

    def describe_brokers(self) -> dict[int, Registration]:
        """Return the live brokers by their ids, with their listeners, racks and options."""
        return self._cluster(()).brokers

    def _cluster(self, topics: Sequence[str] | None) -> ClusterStatus:
        with self._open_session() as session:
            return read_cluster(session, self._timeout, names_of("topics", topics))

    def add_partitions(self, topic: str, partitions: int) -> None:
        """Raise the number of a topic's partitions to `partitions`. Keys may go to other partitions then.

        Records stay where they are, so a key's records may be in two partitions, with no order between
        them. Waits for leaders as `create_topic`. Raises UnknownTopicOrPartition,
        BrokerUnreachable, InvalidReplicationFactor, ConfigError, InvalidName.
        """
        check_name("topic", topic)
        count = check_int("number of partitions", partitions)
        alive = racks_of(self._execute(brokers.usable()))
        self._execute_until_led(topics.add_partitions(topic, count, alive))

    def delete_topic(self, topic: str) -> None:
        """Raises UnknownTopicOrPartition, InvalidName."""
        check_name("topic", topic)
        self._execute(topics.delete(topic, by=local_user(), at=time.time()))

    # -- replicas ---------------------------------------------------------------------------------

    def plan_reassignment(
        self,
        topic: str,
        partitions: Iterable[int] | None = None,
        *,
        brokers: Sequence[int] | None = None,
        replicas: int | None = None,
    ) -> list[PlannedMove]:
        """Plan to move replicas of a topic, or of some of its partitions; nothing is changed.

        `brokers`: each partition is on all of these, the preferred leader first; without `partitions` the
        partitions prefer them in turns. `replicas`: the number for each partition, with as few moves as
        possible. Raises what `reassign` would raise: UnknownTopicOrPartition, InvalidReplicationFactor,
        InvalidReplicaAssignment, ReassignmentInProgress, ConfigError, InvalidName.
        """
        check_name("topic", topic)
        if (brokers is None) is (replicas is None):
            raise errors.ConfigError("say where to: either brokers, or a number of replicas")
        count = None if replicas is None else check_int("number of replicas", replicas)
        on = None if brokers is None else _broker_ids(brokers)
        with self._moves() as moves:
            return moves.plan(topic, partitions, on, count)

    def reassign(
        self, topic: str, targets: Mapping[int, Sequence[int]], *, throttle: int = 0
    ) -> None:
        """Start to move partitions' replicas to these brokers: partition → brokers, preferred first.

        All moves are started or none. The controller carries them out, and `reassignments` returns their
        progress. Records stay readable and writable meanwhile. `throttle` limits how many bytes a second
        each broker copies for replicas that are not in sync yet; 0: no limit. Raises UnknownTopicOrPartition,
        InvalidReplicaAssignment, ReassignmentInProgress, ConfigError if the topic's `min_in_sync` is
        above the number of replicas, InvalidName.
        """
        check_name("topic", topic)
        rate = check_int("throttle", throttle)
        checked = {
            check_int("partition", number): _broker_ids(on) for number, on in targets.items()
        }
        self._execute(reassignments.start(topic, checked, rate))

    def throttle_reassignments(self, topic: str, throttle: int) -> list[int]:
        """Change the throttle of a topic's moves, and return the partitions that are being moved.

        Raises UnknownTopicOrPartition, NoReassignmentInProgress, ConfigError, InvalidName.
        """
        check_name("topic", topic)
        return self._execute(reassignments.set_throttle(topic, check_int("throttle", throttle)))

    def cancel_reassignments(
        self, topic: str, partitions: Iterable[int] | None = None
    ) -> list[int]:
        """Move replicas of a topic back to where they were, and return their partitions.

        Nothing is lost: a move ends when enough of the original replicas are in sync. Raises
        UnknownTopicOrPartition, NoReassignmentInProgress, InvalidName.
        """
        check_name("topic", topic)
        return self._execute(reassignments.cancel(topic, partitions))

    def reassignments(self, topics: Sequence[str] | None = None) -> list[RunningMove]:
        """Return the moves of these topics, or of all, with their progress.

        Raises UnknownTopicOrPartition, InvalidName.
        """
        with self._moves() as moves:
            return moves.running(names_of("topics", topics))

    def plan_drain(self, broker: int) -> list[PlannedMove]:
        """Plan to move all replicas of a broker to others; nothing is changed.

        Raises InvalidReplicationFactor if too few others are alive, InvalidReplicaAssignment if the
        broker is the last in-sync replica of a partition, ReassignmentInProgress.
        """
        with self._moves() as moves:
            return moves.plan_drain(check_int("broker id", broker))

    def drain(self, broker: int, *, throttle: int = 0) -> list[PlannedMove]:
        """Give a broker no new replicas until `cancel_drain`, and start to move its replicas away.

        Raises what `plan_drain` raises; then nothing was changed.
        """
        rate = check_int("throttle", throttle)
        with self._moves() as moves:
            return moves.drain(check_int("broker id", broker), rate)

    def cancel_drain(self, broker: int) -> list[TopicPartition]:
        """Give a broker replicas again, cancel the moves away from it, and return their partitions."""
        with self._moves() as moves:
            return moves.cancel_drain(check_int("broker id", broker))

    def log_sizes(self, topics: Sequence[str] | None = None) -> list[ReplicaSize]:
        """Return the sizes of the logs of these topics, or of all, on the brokers that answer.

        Raises UnknownTopicOrPartition.
        """
        with self._moves() as moves:
            return moves.sizes(names_of("topics", topics))

    @contextmanager
    def _moves(self) -> Iterator[ReplicaMoves]:
        with self._open_session() as session:
            yield ReplicaMoves(session, self.config, self._timeout)

    # -- records ----------------------------------------------------------------------------------

    def offsets(
        self,
        topic: str | Iterable[TopicPartition],
        end: Literal["earliest", "latest"],
        timeout: float = TIMEOUT,
    ) -> dict[TopicPartition, int]:
        """Return the first offset, or the one behind the last, of a topic's partitions or of those given.

        Raises UnknownTopicOrPartition, BrokerUnreachable, ConfigError, InvalidName.
        """
        return self._find(self._ids_of(topic), _end(end), timeout)

    def known_offsets(
        self,
        topic: str | Iterable[TopicPartition],
        end: Literal["earliest", "latest"],
        timeout: float = TIMEOUT,
    ) -> tuple[dict[TopicPartition, int | None], Waiting]:
        """As `offsets`, with None where no leader answers in time, and the partitions without a leader.

        Raises UnknownTopicOrPartition, ConfigError, InvalidName.
        """
        ids = self._ids_of(topic)
        offsets, leaderless = self._find_known(ids, _end(end), timeout)
        return {partition: offsets.get(partition) for partition in ids}, leaderless

    def _ids_of(self, topic: str | Iterable[TopicPartition]) -> dict[TopicPartition, str]:
        """Return the topic's id of each partition. Raises UnknownTopicOrPartition, InvalidName."""
        named = self.partitions_of(topic) if isinstance(topic, str) else map(partition_of, topic)
        return self._topic_ids(named)

    def offsets_for_times(
        self, times: Mapping[TopicPartition, datetime], timeout: float = TIMEOUT
    ) -> dict[TopicPartition, int | None]:
        """Return the first offset at each time or later; None: none yet. As `Consumer` has it.

        Raises UnknownTopicOrPartition, RequestTimeout, ConfigError, InvalidName.
        """
        self._topic_ids(map(partition_of, times))
        return first_offsets(self._reading, self._discover(timeout), times, timeout)

    def delete_records(
        self, before: Mapping[TopicPartition, int | Literal["latest"]], timeout: float = TIMEOUT
    ) -> dict[TopicPartition, int]:
        """Delete all records before an offset, and return the first offset of each partition after that.

        Consumers that are further back continue there, unless their `auto_offset_reset` is "error". An
        offset before the earliest changes nothing. The offsets are checked first: UnknownTopicOrPartition,
        OffsetOutOfRange, ConfigError and InvalidName are raised before anything is deleted. A later failure
        is raised as RecordsNotDeleted: partitions are independent, and a second call is harmless.
        """
        deadline = _Deadline(timeout)
        # Read before the offsets: if the topic is created anew meanwhile, the new one is left alone.
        ids = self._topic_ids(map(partition_of, before))
        checked = self._deletion_offsets(ids, before, timeout)
        wanted = {
            partition: partial(
                DeleteRecordsEntry,
                partition.topic,
                ids[partition],
                partition.partition,
                offset=offset,
            )
            for partition, offset in checked.items()
        }
        with Cluster.of(self.config, self._discover(timeout)) as cluster:
            deletion = ask_leaders(
                *(cluster, Api.DELETE_RECORDS, wanted),
                *(lambda entries, _: DeleteRecordsRequest(entries), deadline.left),
            )
        starts = {partition: result.log_start for partition, result in deletion.results.items()}
        if deletion.failed:
            reasons = "; ".join(
                f"{partition}: {why}" for partition, why in sorted(deletion.failed.items())
            )
            raise errors.RecordsNotDeleted(
                f"not all records were deleted: {reasons}", starts, deletion.failed
            )
        return {partition: starts[partition] for partition in wanted}

    def plan_delete_records(
        self, before: Mapping[TopicPartition, int | Literal["latest"]], timeout: float = TIMEOUT
    ) -> dict[TopicPartition, int]:
        """Return the offsets that `delete_records` would delete up to, in the order of the partitions.

        Raises UnknownTopicOrPartition, OffsetOutOfRange, ConfigError, InvalidName, BrokerUnreachable.
        """
        return self._deletion_offsets(self._topic_ids(map(partition_of, before)), before, timeout)

    def _deletion_offsets(
        self,
        ids: Mapping[TopicPartition, str],
        before: Mapping[TopicPartition, int | Literal["latest"]],
        timeout: float,
    ) -> dict[TopicPartition, int]:
        checked = {
            partition_of(partition): _before(partition, offset)
            for partition, offset in before.items()
        }
        latest = self._find(ids, LATEST, timeout)
        for partition, offset in checked.items():
            if offset != "latest" and offset > latest[partition]:
                raise errors.OffsetOutOfRange(
                    f"{partition} ends at {latest[partition]}: nothing before {offset} can be "
                    "deleted yet"
                )
        offsets = {partition: checked[partition] for partition in latest}
        return {
            partition: latest[partition] if at == "latest" else at
            for partition, at in offsets.items()
        }

    # -- groups -----------------------------------------------------------------------------------

    def group_names(self) -> list[str]:
        """Return the names of all groups, sorted: one read, however many there are."""
        return self._execute(inspection.names())

    def groups(self, names: Iterable[str] | None = None) -> list[GroupSummary]:
        """Return all groups, by name, or those of these names that exist. Raises InvalidName."""
        return [
            GroupSummary(
                name=state.name,
                state=state.state,
                members=len(state.members),
                partitions=len(state.partitions),
                generation=state.plan.generation,
            )
            for state in self._described(names)
        ]

    def describe_group(self, group: str, timeout: float = PATIENCE) -> GroupView:
        """Return a group with its members, owners and progress. Raises UnknownGroup."""
        for view in self.describe_groups((group,), timeout):
            return view
        raise _unknown(group)

    def describe_groups(
        self, names: Iterable[str] | None = None, timeout: float = PATIENCE
    ) -> list[GroupView]:
        """`describe_group` of all groups, or of those of these names that exist.

        Brokers are asked once for all groups, and have `timeout` seconds in all. `latest`, `lag` and
        `behind` are None for partitions of a broker that does not answer. Raises InvalidName.
        """
        states = self._described(names)
        keys = {status.partition for state in states for status in state.partitions}
        by_topic = self.topic_ids({partition.topic for partition in keys})
        ids = {
            partition: by_topic[partition.topic]
            for partition in sorted(keys)
            if partition.topic in by_topic
        }
        deadline = _Deadline(timeout)
        # A broker that does not answer leaves half of the time for the answers of the others.
        latest, leaderless = self._find_known(ids, LATEST, timeout / 2)
        committed = {state.name: _committed(state.partitions, by_topic) for state in states}
        behind_end = {
            status.partition: ids[status.partition]
            for state in states
            for status in state.partitions
            if committed[state.name].get(status.partition, 0) < latest.get(status.partition, 0)
        }
        earliest, _ = self._find_known(behind_end, EARLIEST, deadline.left / 2)
        unread = {
            (partition, max(at, earliest.get(partition, 0)))
            for offsets in committed.values()
            for partition, at in offsets.items()
            if lag(at, earliest.get(partition, 0), latest.get(partition))
        }
        discover = self._discover(timeout)
        stamps = first_timestamps(self._reading, discover, unread, deadline.left)
        ends = PartitionEnds(ids, earliest, latest, leaderless, stamps)
        now = time.time()
        return [view_of(state, committed[state.name], ends, now) for state in states]

    def group_offsets(self, group: str) -> dict[TopicPartition, int]:
        """Return the committed offsets of a group, in topics that exist. Raises UnknownGroup."""
        self._check_known(group)
        partitions = sorted(self._execute(inspection.with_offsets(group)))
        ids = self.topic_ids(partition.topic for partition in partitions)
        return _committed(self._offsets(group, partitions), ids)

    def group_events(self, group: str) -> list[Entry]:
        """Return the notes of a group's last rebalances and resets, oldest first.

        For people: entries may be missing, and nothing depends on them. Raises UnknownGroup.
        """
        self._check_known(group)
        members = self._execute(membership.names(group))
        plan = self._execute(planning.get(group)).plan
        last = self._execute(history.departure(group, plan, members))
        names = self._execute(history.entry_names(group))
        read = self._execute_all(history.entry(group, name) for name in names)
        entries = [*filter(None, read), *([last] if last else [])]
        return sorted(entries, key=lambda entry: entry.at_ms or math.inf)

    # -- resets -----------------------------------------------------------------------------------

    def plan_reset(
        self,
        group: str,
        to: Target | Mapping[TopicPartition, int],
        topics: Iterable[str] | None = None,
        partitions: Iterable[TopicPartition] = (),
        timeout: float = TIMEOUT,
    ) -> list[PlannedReset]:
        """Plan a reset, for `reset_offsets`; nothing is changed.

        It covers the given `partitions`, and all partitions of the given `topics`; without both, all topics
        of the group. For a group that does not exist yet, one of them must be given.
        Raises UnknownGroup, UnknownTopicOrPartition, OffsetOutOfRange, NoOffset, BrokerUnreachable,
        ConfigError, InvalidName.
        """
        check_name("group", group)
        deadline = _Deadline(timeout)
        to = check_target(to)
        if isinstance(to, Mapping):
            wanted = set(to)
        else:
            named = {partition_of(partition) for partition in partitions}
            wanted = self._scope(group, names_of("topics", topics), named)
        ids = self._topic_ids(wanted)
        by_name = {partition.topic: topic_id for partition, topic_id in ids.items()}
        by_partition = _committed(self._offsets(group, ids), by_name)
        committed = {partition: by_partition.get(partition) for partition in ids}
        earliest = self._find(ids, EARLIEST, deadline.left)
        latest = self._find(ids, LATEST, deadline.left)
        moment = _before_now(to) if isinstance(to, timedelta) else to
        by_time: dict[TopicPartition, int] = {}
        if isinstance(moment, datetime):
            at_time = self.offsets_for_times(dict.fromkeys(ids, moment), deadline.left)
            by_time = {
                partition: latest[partition] if at is None else at
                for partition, at in at_time.items()
            }
        return planned(to, committed, earliest, latest, by_time)

    def reset_offsets(
        self,
        group: str,
        offsets: Mapping[TopicPartition, int],
        timeout: float = TIMEOUT,
    ) -> None:
        """Commit these offsets for a group, also while it runs.

        Its owners are fenced: they cannot commit the records under way, get `on_lost` and then
        `on_assign`, and continue at the new offsets. All offsets are checked first. Each partition is then
        reset by itself, and a second call is harmless. Raises UnknownTopicOrPartition, OffsetOutOfRange,
        BrokerUnreachable, ConfigError, InvalidName.
        """
        check_name("group", group)
        wanted = {
            partition_of(partition): check_offset(partition, offset)
            for partition, offset in offsets.items()
        }
        deadline = _Deadline(timeout)
        ids = self._topic_ids(wanted)
        if not wanted:
            return
        earliest = self._find(ids, EARLIEST, deadline.left)
        latest = self._find(ids, LATEST, deadline.left)
        planned(wanted, dict.fromkeys(ids), earliest, latest, {})
        mark = secrets.token_hex(8)
        moves = [
            offset_admin.reset(group, partition, topic_id, wanted[partition], mark)
            for partition, topic_id in ids.items()
        ]
        self._execute_all(moves, deadline.left)
        with suppress(errors.ZooKeeperUnreachable):  # the reset is done, with or without a note
            record = history.record_reset(group, self.config.client_id, wanted)
            self._execute(record, deadline.left)

    def delete_group(self, group: str, force: bool = False) -> None:
        """Delete a group with all its offsets. Raises UnknownGroup, GroupNotEmpty.

        With `force` also while it has members: they join again, and start as members of a new group.
        """
        check_name("group", group)
        self._execute(group_deletion.delete(group, force))

    def delete_group_offsets(self, group: str, topic: str) -> None:
        """Delete a group's offsets in one topic, whether the topic exists or not.

        Raises UnknownGroup, GroupNotEmpty while live members subscribe to the topic,
        UnknownTopicOrPartition if the group has no offsets there, InvalidName.
        """
        check_name("topic", topic)
        self._execute(group_deletion.delete_offsets(check_name("group", group), topic))

    # -- ZooKeeper --------------------------------------------------------------------------------

    @property
    def _is_forked(self) -> bool:
        """Return whether this is a forked child, without the threads that a call needs."""
        return self._process not in (None, os.getpid())

    def _check_process(self) -> None:
        if self._is_forked:
            raise errors.ClosedError("the admin was made before a fork: make one in each process")

    @contextmanager
    def _open_session(self) -> Iterator[Session]:
        """The session; a new one if the last one is over.

        A session that does not answer is closed: what it has not sent must not be done after the caller
        got an error. What it has sent may be done.
        """
        self._check_process()
        if not self._is_open:
            raise errors.ClosedError(
                "the admin is not open: use it in a with block, or call start()"
            )
        if self._session is None or self._session.state is SessionState.LOST:
            self._session = self._connect(self.config.session_timeout)
        try:
            yield self._session
        except errors.ZooKeeperUnreachable:
            self._session.close()
            self._session = None
            raise

    def _execute_until_led(self, recipe: Recipe[TopicInfo]) -> None:
        """Make partitions and wait for their leaders; the call succeeds without them, too."""
        topic = self._execute(recipe)
        with self._open_session() as session:
            wait_until_led(session, topic, self._timeout)

    def _execute(self, recipe: Recipe[T], timeout: float | None = None) -> T:
        """Raises ZooKeeperUnreachable after the timeout, and what the recipe raises."""
        (result,) = self._execute_all((recipe,), timeout)
        return result

    def _execute_all(self, recipes: Iterable[Recipe[T]], timeout: float | None = None) -> list[T]:
        with self._open_session() as session:
            limit = self._timeout if timeout is None else timeout
            return execute_all(session, recipes, timeout=limit)

    def _topics(self, names: Iterable[str]) -> dict[str, TopicInfo]:
        """Return the topics that exist. Raises InvalidName."""
        wanted = sorted({check_name("topic", name) for name in names})
        infos = self._execute_all(map(topics.read, wanted))
        return {name: info for name, info in zip(wanted, infos, strict=True) if info is not None}

    def _topic(self, name: str) -> TopicInfo:
        """Raises UnknownTopicOrPartition, InvalidName."""
        info = self._topics((name,)).get(name)
        if info is None:
            raise topics.unknown(name)
        return info

    def _topic_ids(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, str]:
        """Return the ids of the partitions' topics, in the order of the partitions.

        Raises UnknownTopicOrPartition, InvalidName.
        """
        ordered = sorted(partitions)
        infos = self._topics(partition.topic for partition in ordered)
        for topic, number in ordered:
            if topic not in infos:
                raise topics.unknown(topic)
            count = len(infos[topic].partitions)
            if not 0 <= number < count:
                raise errors.UnknownTopicOrPartition(
                    f"topic {topic} has no partition {number}, only 0 to {count - 1}"
                )
        return {partition: infos[partition.topic].topic_id for partition in ordered}

    def _discover(self, timeout: float) -> Callable[[], list[str]]:
        return lambda: self._execute(brokers.addresses(self.config.listener), timeout)

    def _find(
        self, wanted: Mapping[TopicPartition, str], timestamp: int, timeout: float
    ) -> dict[TopicPartition, int]:
        """Return the offsets at EARLIEST or LATEST, of partitions with their topics' ids.

        Raises BrokerUnreachable, or why no broker answered.
        """
        return offsets_at(timestamp, self.config, self._discover(timeout), wanted, timeout)[0]

    def _find_known(
        self, wanted: Mapping[TopicPartition, str], timestamp: int, timeout: float
    ) -> tuple[dict[TopicPartition, int], Waiting]:
        """Return the offsets that leaders answer in time, and the partitions without a leader."""
        discover = self._discover(timeout)
        if not (wanted and discover()):
            return {}, {}
        return offsets_at(timestamp, self.config, discover, wanted, timeout, need_all=False)

    def _described(self, names: Iterable[str] | None) -> list[GroupState]:
        """Return all groups, or those of these names that exist. Raises InvalidName."""
        named = self.group_names() if names is None else names_of("names", names)
        wanted = [check_name("group", name) for name in named]
        with self._open_session() as session:
            return inspection.describe(session, wanted, self._timeout)

    def _check_known(self, group: str) -> None:
        check_name("group", group)
        if group not in self._execute(inspection.names()):
            raise _unknown(group)

    def _offsets(self, group: str, partitions: Iterable[TopicPartition]) -> list[PartitionState]:
        return self._execute_all(inspection.partition(group, partition) for partition in partitions)

    def _scope(
        self, group: str, named: Iterable[str] | None, partitions: set[TopicPartition]
    ) -> set[TopicPartition]:
        if named is None and not partitions:
            self._check_known(group)
            divided = self._execute(planning.get(group)).plan.topics.keys()
            with_offsets = {
                partition.topic for partition in self._execute(inspection.with_offsets(group))
            }
            named = (with_offsets | divided) & set(self._execute(topics.names()))
        return partitions.union(*(self.partitions_of(topic) for topic in named or ()))


def _broker_ids(values: Iterable[object]) -> list[int]:
    return [check_int("broker id", value) for value in values]


def _end(end: str) -> int:
    if end not in ENDS:
        raise errors.ConfigError(f"{end!r} is no end of a log: give 'earliest' or 'latest'")
    return ENDS[end]


def _before(partition: tuple[str, int], offset: int | str) -> int | Literal["latest"]:
    if offset == "latest":
        return "latest"
    if isinstance(offset, str):
        raise errors.ConfigError(
            f"{offset!r} is no offset to delete up to: give a whole number, or 'latest'"
        )
    return check_offset(partition, offset)


def _unknown(group: str) -> errors.UnknownGroup:
    return errors.UnknownGroup(f"group {group} does not exist: see `folkmoot group list`")


def _committed(
    partitions: Iterable[PartitionState], ids: Mapping[str, str]
) -> dict[TopicPartition, int]:
    """Return the offsets in topics with these ids: in a topic that was made anew they mean nothing."""
    return {
        state.partition: state.offset.offset
        for state in partitions
        if state.offset is not None
        and state.offset.offset is not None
        and state.offset.topic_id == ids.get(state.partition.topic)
    }


class _Deadline:
    """The end of a call's timeout; each step of the call gets what is left of it."""

    def __init__(self, timeout: float) -> None:
        self._at = time.monotonic() + timeout

    @property
    def left(self) -> float:
        return max(0.0, self._at - time.monotonic())


def _before_now(length: timedelta) -> datetime:
    try:
        return max(EPOCH, datetime.now(UTC) - length)
    except OverflowError:
        return EPOCH
