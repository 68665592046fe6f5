"""The part of `Admin` that is about groups: looked at, reset, deleted, while they run or not."""

import secrets
import time
from collections.abc import Iterable, Mapping
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from folkmoot.consumers.admin.group_views import GroupSummary, GroupView, MemberView, Progress
from folkmoot.consumers.admin.offset_reset import (
    Planned,
    Target,
    checked_target,
    planned,
    whole_offset,
)
from folkmoot.consumers.config import ConsumerConfig
from folkmoot.consumers.offsets.offset_lookup import first_offsets, first_timestamps
from folkmoot.coordination import topics
from folkmoot.coordination.groups import group_deletion, ownership
from folkmoot.coordination.groups import inspection as groups
from folkmoot.coordination.groups import offset_admin as resets
from folkmoot.coordination.groups import rebalance_history as chronicle
from folkmoot.coordination.groups.inspection import GroupState
from folkmoot.coordination.groups.membership import MemberInfo, instance_of
from folkmoot.coordination.groups.ownership import OffsetState
from folkmoot.coordination.groups.rebalance_history import Entry
from folkmoot.coordination.zookeeper.execute import execute_all
from folkmoot.coordination.zookeeper.operations import Recipe
from folkmoot.coordination.zookeeper.recipes import Malformed
from folkmoot.coordination.zookeeper.session import Session
from folkmoot.network.lookups import Lookups
from folkmoot.protocol.errors import (
    BrokerUnreachable,
    StaleTopicId,
    UnknownGroup,
    UnknownTopicOrPartition,
)
from folkmoot.protocol.names import check_name
from folkmoot.protocol.records import TopicPartition
from folkmoot.protocol.requests import EARLIEST, LATEST

T = TypeVar("T")

TIMEOUT = 30.0
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
PATIENCE = 5.0
"""So long the ends of partitions, and the ages of records, are waited for in a description."""


class GroupAdmin:
    """Calls about groups. What they need of the rest of Admin is at the end."""

    _config: ConsumerConfig

    # -- looking ----------------------------------------------------------------------------------

    def groups(self) -> list[GroupSummary]:
        """All groups, by name."""
        found = []
        for name in self._run(groups.names()):
            state = groups.describe(self._session(), name)
            if state is not None:
                found.append(
                    GroupSummary(
                        name=name,
                        state=state.state,
                        members=len(state.members),
                        partitions=len(state.partitions),
                        generation=state.generation,
                    )
                )
        return found

    def describe_group(self, group: str, timeout: float = PATIENCE) -> GroupView:
        """A group with its members, who owns what, and how far it is. Raises UnknownGroup."""
        state = self._group(group)
        ids = self._topic_ids(each.partition.topic for each in state.partitions)
        wanted = {
            each.partition: ids[each.partition.topic]
            for each in state.partitions
            if each.partition.topic in ids
        }
        deadline = time.monotonic() + timeout
        ends = self._find_some(wanted, LATEST, deadline)
        committed = {
            each.partition: each.offset.offset
            for each in state.partitions
            if each.offset is not None
            and each.offset.offset is not None
            and each.offset.topic_id == ids.get(each.partition.topic)
        }
        unread = {p: at for p, at in committed.items() if at < ends.get(p, 0)}
        left = max(0.0, deadline - time.monotonic())
        stamps = first_timestamps(self._config, self._addresses, unread, left) if unread else {}
        now = time.time() * 1000
        rows = []
        for each in state.partitions:
            end, at = ends.get(each.partition), committed.get(each.partition)
            lag = _lag(at, end)
            stamp = stamps.get(each.partition)
            behind = None if stamp is None else round(max(0.0, now - stamp) / 1000, 3)
            rows.append(
                Progress(
                    partition=each.partition,
                    owner=each.owner,
                    epoch=None if each.offset is None else each.offset.epoch,
                    committed=at,
                    end=end,
                    lag=lag,
                    behind=0.0 if lag == 0 else behind,
                    state=state.state_of(each),
                )
            )
        return GroupView(
            name=group,
            state=state.state,
            generation=state.generation,
            assignor=state.plan.assignor,
            protocol=state.plan.protocol,
            members=tuple(_member(state, seat, info) for seat, info in state.members.items()),
            partitions=tuple(rows),
        )

    def group_offsets(self, group: str) -> dict[TopicPartition, int]:
        """What a group has committed, of topics that exist. Raises UnknownGroup."""
        self._known(group)
        found = groups.offsets(self._session(), group)
        ids = self._topic_ids(each.topic for each in found)
        return {
            each: state.offset
            for each, state in found.items()
            if state.offset is not None and state.topic_id == ids.get(each.topic)
        }

    def group_events(self, group: str) -> list[Entry]:
        """What the group has noted of its last rebalances and resets, oldest first.

        For people: entries may be missing, and nothing depends on them. Raises UnknownGroup.
        """
        self._known(group)
        return self._run(chronicle.entries(group))

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
        ids = self._existing(wanted)
        states = execute_all(self._session(), (_legible(group, each) for each in wanted))
        committed: dict[TopicPartition, int | None] = {}
        for each, state in zip(wanted, states, strict=True):
            is_current = state is not None and state.topic_id in ("", ids[each])
            committed[each] = state.offset if state is not None and is_current else None
        beginnings = self._find_all(ids, EARLIEST, timeout)
        ends = self._find_all(ids, LATEST, timeout)
        moment = _before_now(to) if isinstance(to, timedelta) else to
        by_time: dict[TopicPartition, int] = {}
        if isinstance(moment, datetime):
            times = dict.fromkeys(ids, moment)
            places = first_offsets(self._config, self._addresses, times, timeout)
            by_time = {each: ends[each] if at is None else at for each, at in places.items()}
        return planned(to, committed, beginnings, ends, by_time)

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
        ids = self._existing(wanted)
        self.plan_reset(group, wanted, timeout=timeout)
        mark = secrets.token_hex(8)
        moves = [
            resets.reset(group, each, ids[each], at, mark) for each, at in sorted(wanted.items())
        ]
        execute_all(self._session(), moves)
        self._run(chronicle.record_reset(group, self._config.client_id, wanted))

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """The ids of those topics that exist: a topic that is made anew gets another one.

        Raises InvalidName.
        """
        return self._topic_ids(topics)

    def check_topic_ids(self, known: Mapping[TopicPartition, str]) -> None:
        """Raises StaleTopicId if a topic is not the one any more that offsets were noted of."""
        ids = self._topic_ids(each.topic for each in known)
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
        self._run(group_deletion.delete(group, force))

    # -- inside -----------------------------------------------------------------------------------

    def _group(self, group: str) -> GroupState:
        check_name("group", group)
        state = groups.describe(self._session(), group)
        if state is None:
            raise UnknownGroup(f"group {group} does not exist: see `folkmoot group list`")
        return state

    def _known(self, group: str) -> None:
        check_name("group", group)
        if group not in self._run(groups.names()):
            raise UnknownGroup(f"group {group} does not exist: see `folkmoot group list`")

    def _scope(
        self, group: str, named: Iterable[str] | None, partitions: set[TopicPartition]
    ) -> set[TopicPartition]:
        if named is None and not partitions:
            self._known(group)
            with_offsets = {each.topic for each in self._run(groups.with_offsets(group))}
            exist = set(self._run(topics.names()))
            named = (with_offsets | self._run(groups.planned_topics(group))) & exist
        return partitions.union(*(self.partitions_of(topic) for topic in named or ()))

    def _existing(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, str]:
        """The ids of the partitions' topics. Raises UnknownTopicOrPartition, InvalidName."""
        found: dict[TopicPartition, str] = {}
        sizes: dict[str, int] = {}
        for each in sorted(partitions):
            if each.topic not in sizes:
                sizes[each.topic] = len(self.partitions_of(each.topic))
            if not 0 <= each.partition < sizes[each.topic]:
                raise UnknownTopicOrPartition(
                    f"topic {each.topic} has no partition {each.partition}, "
                    f"only 0 to {sizes[each.topic] - 1}"
                )
            found[each] = ""
        ids = self._topic_ids(sizes)
        return {each: ids[each.topic] for each in found}

    def _topic_ids(self, names: Iterable[str]) -> dict[str, str]:
        """Of the topics that exist. Raises InvalidName."""
        names = {check_name("topic", name) for name in names}
        found = {name: self._run(topics.read(name)) for name in names}
        return {name: topic.topic_id for name, topic in found.items() if topic is not None}

    def _find_all(
        self, wanted: Mapping[TopicPartition, str], place: int, timeout: float
    ) -> dict[TopicPartition, int]:
        """Where partitions begin or end. Raises BrokerUnreachable, or why no broker told."""
        with closing(self._lookups()) as lookups:
            found = _find(lookups, wanted, place, time.monotonic() + timeout)
            if missing := sorted(wanted.keys() - found.keys()):
                some = ", ".join(map(str, missing))
                raise lookups.trouble or BrokerUnreachable(
                    f"no leader answers within {timeout:g} s for {some}"
                )
        return found

    def _find_some(
        self, wanted: Mapping[TopicPartition, str], place: int, deadline: float
    ) -> dict[TopicPartition, int]:
        """The same as far as leaders answer in time; nothing at once if there is no broker."""
        if not wanted or not self._addresses():
            return {}
        with closing(self._lookups()) as lookups:
            return _find(lookups, wanted, place, deadline)

    def _lookups(self) -> Lookups:
        return Lookups(self._config.client_id, self._config.listener, self._addresses)

    # -- what Admin does --------------------------------------------------------------------------

    def _session(self) -> Session:
        raise NotImplementedError

    def _run(self, recipe: Recipe[T]) -> T:
        raise NotImplementedError

    def _addresses(self) -> list[str]:
        raise NotImplementedError

    def partitions_of(self, topic: str) -> list[TopicPartition]:
        raise NotImplementedError


def _legible(group: str, partition: TopicPartition) -> Recipe[OffsetState | None]:
    """What is committed; None, too, for what somebody has written over, which a reset mends."""
    try:
        return (yield from ownership.committed(group, partition))
    except Malformed:
        return None


def _find(
    lookups: Lookups, wanted: Mapping[TopicPartition, str], place: int, deadline: float
) -> dict[TopicPartition, int]:
    found: dict[TopicPartition, int] = {}
    while missing := {each: wanted[each] for each in wanted if each not in found}:
        left = deadline - time.monotonic()
        if left <= 0:
            break
        found.update(lookups.find(missing, place, min(left, 1.0)))
    return found


def _before_now(length: timedelta) -> datetime:
    """What is longer ago than there are dates was before everything."""
    try:
        return max(_EPOCH, datetime.now(UTC) - length)
    except OverflowError:
        return _EPOCH


def _lag(committed: int | None, end: int | None) -> int | None:
    """A partition that never had a record leaves nothing to do, wherever the group begins."""
    if end is None or (committed is None and end > 0):
        return None
    return max(0, end - (committed or 0))


def _member(state: GroupState, seat: str, info: MemberInfo) -> MemberView:
    return MemberView(
        name=state.seated[seat].name,
        host=info.host,
        instance_id=instance_of(seat),
        topics=info.topics,
        pattern=info.pattern,
        assignors=info.assignors,
        protocol=info.protocol,
        weight=info.weight,
        rack=info.rack,
        partitions=tuple(each.partition for each in state.partitions if each.owner == seat),
        age=round(max(0.0, time.time() - state.seated[seat].joined_ms / 1000), 1),
        hand_over=info.hand_over,
        grace=info.grace,
    )
