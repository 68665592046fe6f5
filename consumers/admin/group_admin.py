"""The part of `Admin` that is about groups: looked at, reset, deleted, while they run or not."""

import secrets
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta

from folkmoot.consumers.admin.group_views import GroupSummary, GroupView, MemberView, Progress
from folkmoot.consumers.admin.offset_reset import (
    Planned,
    Target,
    checked_target,
    planned,
    whole_offset,
)
from folkmoot.consumers.admin.session import TIMEOUT, AdminSession
from folkmoot.consumers.offsets.offset_lookup import first_offsets, first_timestamps
from folkmoot.coordination import topics
from folkmoot.coordination.groups import group_deletion, history, inspection, offset_admin, planning
from folkmoot.coordination.groups.history import Entry
from folkmoot.coordination.groups.inspection import GroupState, PartitionState
from folkmoot.coordination.groups.membership import instance_of
from folkmoot.protocol.errors import StaleTopicId, UnknownGroup, ZooKeeperUnreachable
from folkmoot.protocol.messages import EARLIEST, LATEST
from folkmoot.protocol.names import check_name
from folkmoot.protocol.records import TopicPartition

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
PATIENCE = 5.0
"""So long the ends of partitions, and the ages of records, are waited for in a description."""


class GroupAdmin(AdminSession):
    """Calls about groups."""

    # -- looking ----------------------------------------------------------------------------------

    def groups(self) -> list[GroupSummary]:
        """All groups, by name."""
        found = (self._described(name) for name in self._execute(inspection.names()))
        return [
            GroupSummary(
                name=state.name,
                state=state.state,
                members=len(state.members),
                partitions=len(state.partitions),
                generation=state.plan.generation,
            )
            for state in found
            if state is not None
        ]

    def describe_group(self, group: str, timeout: float = PATIENCE) -> GroupView:
        """A group with its members, who owns what, and how far it is. Raises UnknownGroup."""
        check_name("group", group)
        state = self._described(group)
        if state is None:
            raise _unknown(group)
        ids = self.topic_ids(each.partition.topic for each in state.partitions)
        wanted = {
            each.partition: ids[each.partition.topic]
            for each in state.partitions
            if each.partition.topic in ids
        }
        deadline = time.monotonic() + timeout
        latest = self._find(wanted, LATEST, timeout, some=True)
        committed = _committed(state.partitions, ids)
        unread = {each: at for each, at in committed.items() if at < latest.get(each, 0)}
        left = max(0.0, deadline - time.monotonic())
        discover = self._discover(timeout)
        stamps = first_timestamps(self._config, discover, unread, left) if unread else {}
        now = time.time() * 1000
        rows = []
        for each in state.partitions:
            at, end = committed.get(each.partition), latest.get(each.partition)
            stamp = stamps.get(each.partition)
            behind = None if stamp is None else round(max(0.0, now - stamp) / 1000, 3)
            lag = _lag(at, end)
            rows.append(
                Progress(
                    partition=each.partition,
                    owner=each.owner,
                    epoch=None if each.offset is None else each.offset.epoch,
                    committed=at,
                    latest=end,
                    lag=lag,
                    behind=0.0 if lag == 0 else behind,
                    state=state.state_of(each),
                )
            )
        return GroupView(
            name=group,
            state=state.state,
            generation=state.plan.generation,
            assignor=state.plan.assignor,
            protocol=state.plan.protocol,
            members=tuple(_member(state, assignee) for assignee in state.members),
            partitions=tuple(rows),
        )

    def group_offsets(self, group: str) -> dict[TopicPartition, int]:
        """What a group has committed, of topics that exist. Raises UnknownGroup."""
        self._check_known(group)
        partitions = sorted(self._execute(inspection.with_offsets(group)))
        ids = self.topic_ids(each.topic for each in partitions)
        return _committed(self._offsets(group, partitions), ids)

    def group_events(self, group: str) -> list[Entry]:
        """What the group has noted of its last rebalances and resets, oldest first.

        For people: entries may be missing, and nothing depends on them. Raises UnknownGroup.
        """
        self._check_known(group)
        return self._execute(history.entries(group))

    # -- resets -----------------------------------------------------------------------------------

    def plan_reset(
        self,
        group: str,
        to: Target | Mapping[TopicPartition, int],
        topics: Iterable[str] | None = None,
        partitions: Iterable[TopicPartition] = (),
        timeout: float = TIMEOUT,
    ) -> list[Planned]:
        """What `reset_offsets` would be given; nothing is changed.

        In the partitions named, and in all of the `topics` named; without both, in all topics of the
        group. A group that does not exist yet can be given offsets: then something must be named.
        Raises UnknownGroup, UnknownTopicOrPartition, OffsetOutOfRange, NoOffset, BrokerUnreachable,
        ConfigError, InvalidName.
        """
        check_name("group", group)
        to = checked_target(to)
        if isinstance(to, Mapping):
            wanted = set(to)
        else:
            wanted = self._scope(group, topics, {TopicPartition(*each) for each in partitions})
        ids = self._topic_ids(wanted)
        by_name = {each.topic: topic_id for each, topic_id in ids.items()}
        found = _committed(self._offsets(group, ids), by_name)
        committed = {each: found.get(each) for each in ids}
        earliest = self._find(ids, EARLIEST, timeout)
        latest = self._find(ids, LATEST, timeout)
        moment = _before_now(to) if isinstance(to, timedelta) else to
        by_time: dict[TopicPartition, int] = {}
        if isinstance(moment, datetime):
            times = dict.fromkeys(ids, moment)
            places = first_offsets(self._config, self._discover(timeout), times, timeout)
            by_time = {each: latest[each] if at is None else at for each, at in places.items()}
        return planned(to, committed, earliest, latest, by_time)

    def reset_offsets(
        self,
        group: str,
        offsets: Mapping[TopicPartition, int],
        timeout: float = TIMEOUT,
    ) -> None:
        """Have a group go on at these offsets, also while it runs.

        Its owners are fenced: what they have under way cannot be committed any more, they hear
        `on_lost` and then `on_assign`, and go on there. All offsets are checked first; partitions are
        then reset each for itself, and to do it again is harmless. Raises
        UnknownTopicOrPartition, OffsetOutOfRange, BrokerUnreachable, ConfigError, InvalidName.
        """
        wanted = {
            TopicPartition(*each): whole_offset(each, offset) for each, offset in offsets.items()
        }
        ids = self._topic_ids(wanted)
        self.plan_reset(group, wanted, timeout=timeout)
        mark = secrets.token_hex(8)
        moves = [
            offset_admin.reset(group, each, topic_id, wanted[each], mark)
            for each, topic_id in ids.items()
        ]
        self._execute_all(moves, timeout)
        with suppress(ZooKeeperUnreachable):  # it is done, noted or not
            self._execute(history.record_reset(group, self._config.client_id, wanted), timeout)

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """The ids of those topics that exist: a topic that is made anew gets another one.

        Raises InvalidName.
        """
        return {name: topic.topic_id for name, topic in self._topics(topics).items()}

    def check_topic_ids(self, known: Mapping[TopicPartition, str]) -> None:
        """Raises StaleTopicId if a topic is not the one any more that offsets were noted of."""
        ids = self.topic_ids(each.topic for each in known)
        for each, topic_id in known.items():
            if ids.get(each.topic, topic_id) != topic_id:
                raise StaleTopicId(
                    f"topic {each.topic} was made anew since: old offsets mean nothing in it"
                )

    def delete_group(self, group: str, force: bool = False) -> None:
        """Forget all that a group has committed. Raises UnknownGroup, GroupNotEmpty.

        With `force` also while members live: they join anew, and start as those of a new group do.
        """
        check_name("group", group)
        self._execute(group_deletion.delete(group, force))

    # -- inside -----------------------------------------------------------------------------------

    def _described(self, group: str) -> GroupState | None:
        with self._opened() as session:
            return inspection.describe(session, group, self._timeout)

    def _check_known(self, group: str) -> None:
        check_name("group", group)
        if group not in self._execute(inspection.names()):
            raise _unknown(group)

    def _offsets(self, group: str, partitions: Iterable[TopicPartition]) -> list[PartitionState]:
        return self._execute_all(inspection.partition(group, each) for each in partitions)

    def _scope(
        self, group: str, named: Iterable[str] | None, partitions: set[TopicPartition]
    ) -> set[TopicPartition]:
        if named is None and not partitions:
            self._check_known(group)
            divided = self._execute(planning.get(group)).plan.topics.keys()
            with_offsets = {each.topic for each in self._execute(inspection.with_offsets(group))}
            named = (with_offsets | divided) & set(self._execute(topics.names()))
        return partitions.union(*(self.partitions_of(topic) for topic in named or ()))


def _unknown(group: str) -> UnknownGroup:
    return UnknownGroup(f"group {group} does not exist: see `folkmoot group list`")


def _committed(
    partitions: Iterable[PartitionState], ids: Mapping[str, str]
) -> dict[TopicPartition, int]:
    """What is committed in the topics with these ids: in one that was made anew it means nothing."""
    return {
        each.partition: each.offset.offset
        for each in partitions
        if each.offset is not None
        and each.offset.offset is not None
        and each.offset.topic_id == ids.get(each.partition.topic)
    }


def _before_now(length: timedelta) -> datetime:
    """What is longer ago than there are dates was before everything."""
    try:
        return max(_EPOCH, datetime.now(UTC) - length)
    except OverflowError:
        return _EPOCH


def _lag(committed: int | None, latest: int | None) -> int | None:
    """A partition that never had a record leaves nothing to do, wherever the group begins."""
    if latest is None or (committed is None and latest > 0):
        return None
    return max(0, latest - (committed or 0))


def _member(state: GroupState, assignee: str) -> MemberView:
    member = state.members[assignee]
    info = member.info
    return MemberView(
        name=member.name,
        host=info.host,
        instance_id=instance_of(assignee),
        topics=info.topics,
        pattern=info.pattern,
        assignors=info.assignors,
        protocol=info.protocol,
        rack=info.rack,
        partitions=tuple(each.partition for each in state.partitions if each.owner == assignee),
        age=round(max(0.0, time.time() - member.joined_ms / 1000), 1),
        revoke_timeout=info.revoke_timeout,
        rejoin_timeout=info.rejoin_timeout,
    )
