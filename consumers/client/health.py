"""A consumer's health, for probes and displays."""

import time
from dataclasses import dataclass
from enum import Enum

from folkmoot.consumers.client.rebalance_listener import RebalanceListener
from folkmoot.consumers.fetch.fetcher import Fetcher
from folkmoot.consumers.group.events import Replaced
from folkmoot.consumers.group.liveness import PollState
from folkmoot.consumers.group.member_state import Phase
from folkmoot.consumers.offsets.progress import Positions
from folkmoot.coordination.zookeeper.session import SessionState
from folkmoot.network.leaderless import describe_unreadable, describe_waiting
from folkmoot.protocol.errors import NotAssigned
from folkmoot.protocol.records import TopicPartition


class State(Enum):
    """A consumer's state."""

    ALONE = "alone"
    """It has no group."""
    JOINING = "joining"
    MEMBER = "member"
    WAITING = "waiting"
    """A member; none of its topics exists: see `missing`."""
    FENCED = "fenced"
    """ZooKeeper has been silent for too long: the consumer owns nothing."""
    STALLED = "stalled"
    """The application did not poll for `max_processing_time`: others have its partitions."""
    LEAVING = "leaving"
    CLOSED = "closed"
    FAILED = "failed"
    """The next poll raises the error that ended it."""


@dataclass(frozen=True, kw_only=True)
class Health:
    """A consumer at one moment. `is_well`: it reads, or is about to."""

    state: State
    session: SessionState | None
    """The ZooKeeper session's state; None while there is none."""
    member: str | None
    generation: int
    assignment: frozenset[TopicPartition]
    lag: dict[TopicPartition, int | None]
    """Records between the position and the end, by the last fetches. None where it is unknown: before the
    first fetch, without a leader, while fetches fail, or if the log ends below the position."""
    leaderless: dict[TopicPartition, tuple[int, ...]]
    """Assigned partitions without a leader, with the brokers of which one has to come back."""
    unreadable: dict[TopicPartition, str]
    """Partitions with a leader whose fetches fail, and why, such as a leader that is not reachable."""
    missing: tuple[str, ...]
    """Wanted topics that do not exist; a pattern without a match is between slashes."""
    last_poll_age: float | None
    """Seconds since the application last polled; None before the start."""
    fenced_commits: int
    """Commits refused because another member held the partition."""
    lost_partitions: int
    """Partitions lost without a release."""
    alarms: tuple[str, ...] = ()
    """Problems for people, as sentences, such as a partition whose offset cannot be read."""

    @property
    def is_well(self) -> bool:
        return self.state in (State.ALONE, State.MEMBER, State.JOINING)


def health_of(
    listener: RebalanceListener | None, fetcher: Fetcher, positions: Positions, closed: bool
) -> Health:
    """From any thread: all that is read here is copied at once, or replaced as a whole by its owner."""
    member = None if listener is None else listener.member
    session = None if member is None else member.sessions.current
    assignment = fetcher.partitions()
    waiting = fetcher.leaderless
    leaderless = {partition: waiting[partition] for partition in assignment if partition in waiting}
    failures = fetcher.lasting_errors().items()
    unreadable = {partition: str(why) for partition, why in failures if partition not in leaderless}
    lag: dict[TopicPartition, int | None] = {}
    for partition in assignment:
        try:
            behind = fetcher.lag(partition)
        except NotAssigned:
            continue  # just given up
        lag[partition] = behind if partition not in leaderless | unreadable else None
    alarms = () if member is None else member.state.alarms
    alarms += (describe_waiting(leaderless),) if leaderless else ()
    alarms += tuple(describe_unreadable(unreadable))
    alarms += tuple(
        f"{partition}: the log ends at {end}, below {committed}, which the group has committed: it has lost "
        "records. A commit of what is there, or `folkmoot group reset`, ends that"
        for partition, (committed, end) in sorted(positions.group.beyond().items())
    )
    polled_at = None if member is None else member.polls.polled_at
    return Health(
        state=_state(listener, closed),
        session=None if session is None else session.state,
        member=None if member is None else member.name,
        generation=0 if member is None else member.generation,
        assignment=frozenset(assignment),
        lag=lag,
        leaderless=leaderless,
        unreadable=unreadable,
        missing=() if member is None else member.state.view.missing,
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
    if member.error is not None or isinstance(listener.ended, Replaced):
        return State.FAILED
    liveness = member.state.liveness
    if liveness.poll_state is PollState.EXPIRED:
        return State.STALLED
    if liveness.fenced:
        return State.FENCED
    if member.state.phase is Phase.MEMBER and member.state.view.is_without_topics:
        return State.WAITING
    return State.CLOSED if member.state.phase is Phase.LEFT else State(member.state.phase.value)
