"""How a consumer stands, for probes and displays: a value made of what is known at the moment."""

import time
from dataclasses import dataclass
from enum import Enum

from folkmoot.consumers.client.rebalance_listener import RebalanceListener
from folkmoot.consumers.fetch.fetcher import Fetcher
from folkmoot.consumers.group.liveness import PollState
from folkmoot.consumers.group.member_state import Phase
from folkmoot.coordination.zookeeper.session import SessionState
from folkmoot.network.leaderless import said_of, unreadable_said
from folkmoot.protocol.errors import NotAssigned
from folkmoot.protocol.records import TopicPartition


class State(Enum):
    """What a consumer is doing."""

    ALONE = "alone"
    """It has no group."""
    JOINING = "joining"
    MEMBER = "member"
    WAITING = "waiting"
    """A member, and none of the topics that it wants exists: see `missing`."""
    FENCED = "fenced"
    """ZooKeeper has been silent for so long that nothing is held."""
    STALLED = "stalled"
    """The application did not ask for records for `max_processing_time`: others have its partitions."""
    LEAVING = "leaving"
    CLOSED = "closed"
    FAILED = "failed"
    """What ended it is raised by the next poll."""


@dataclass(frozen=True, kw_only=True)
class Health:
    """A consumer at one moment. `is_well`: it reads, or is about to."""

    state: State
    session: SessionState | None
    """The ZooKeeper session's; None while there is none."""
    member: str | None
    generation: int
    assignment: frozenset[TopicPartition]
    lag: dict[TopicPartition, int | None]
    """Records between the next to be handed out and the end, as the last fetches saw it; None where it is
    not known: nothing was fetched yet, nobody leads the partition, nothing comes of it, or its log ends
    below what was read."""
    leaderless: dict[TopicPartition, tuple[int, ...]]
    """Partitions of the assignment that nobody leads, and the brokers of which one has to come back."""
    unreadable: dict[TopicPartition, str]
    """Partitions that have a leader, of which nothing comes all the same, and why: it is not reachable, and
    nobody has said yet that it leads no more, as without ZooKeeper nobody can."""
    missing: tuple[str, ...]
    """Of what it wants, topics that do not exist; a pattern that matches none stands between slashes."""
    last_poll_age: float | None
    """Seconds since the application last asked for records; None before the start."""
    fenced_commits: int
    """Commits refused because another member held the partition."""
    lost_partitions: int
    """Partitions that went without being given up."""
    alarms: tuple[str, ...] = ()
    """What somebody must look at, in sentences, such as a partition whose offset cannot be read."""

    @property
    def is_well(self) -> bool:
        return self.state in (State.ALONE, State.MEMBER, State.JOINING)


def health_of(listener: RebalanceListener | None, fetcher: Fetcher, closed: bool) -> Health:
    """From any thread: what is looked at is copied at once, or replaced by its owner as a whole."""
    member = None if listener is None else listener.member
    session = None if member is None else member.session
    assignment = fetcher.partitions()
    waiting = fetcher.leaderless
    leaderless = {each: waiting[each] for each in assignment if each in waiting}
    troubles = fetcher.troubles().items()
    unreadable = {each: str(why) for each, why in troubles if each not in leaderless}
    lag: dict[TopicPartition, int | None] = {}
    for partition in assignment:
        try:
            behind = fetcher.lag(partition)
        except NotAssigned:
            continue  # just given up
        lag[partition] = behind if partition not in leaderless | unreadable else None
    alarms = () if member is None else member.state.alarms
    alarms += (said_of(leaderless),) if leaderless else ()
    alarms += tuple(unreadable_said(unreadable))
    alarms += () if listener is None else tuple(listener.beyond_said())
    polled_at = None if member is None else member.polled_at
    return Health(
        state=_state(listener, closed),
        session=None if session is None else session.state,
        member=None if member is None else member.name,
        generation=0 if member is None else member.generation,
        assignment=frozenset(assignment),
        lag=lag,
        leaderless=leaderless,
        unreadable=unreadable,
        missing=() if member is None else member.state.missing,
        last_poll_age=None if polled_at is None else max(0.0, time.monotonic() - polled_at),
        fenced_commits=0 if member is None else member.state.owned.fenced_commits,
        lost_partitions=0 if member is None else member.state.owned.lost,
        alarms=alarms,
    )


def _state(listener: RebalanceListener | None, closed: bool) -> State:
    if closed:
        return State.CLOSED
    if listener is None:
        return State.ALONE
    member = listener.member
    if member.error is not None or listener.is_replaced:
        return State.FAILED
    liveness = member.state.liveness
    if liveness.poll_state is PollState.EXPIRED:
        return State.STALLED
    if liveness.fenced:
        return State.FENCED
    if member.state.phase is Phase.MEMBER and member.state.is_without_topics:
        return State.WAITING
    return _STATES[member.state.phase]


_STATES = {
    Phase.JOINING: State.JOINING,
    Phase.MEMBER: State.MEMBER,
    Phase.LEAVING: State.LEAVING,
    Phase.LEFT: State.CLOSED,
}
