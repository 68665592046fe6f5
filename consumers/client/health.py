"""How a consumer stands, for probes and displays: a value made of what is known at the moment."""

import time
from dataclasses import dataclass
from enum import Enum

from folkmoot.consumers.client.subscription import Subscription
from folkmoot.consumers.fetch.fetcher import Fetcher
from folkmoot.consumers.group.liveness import PollState
from folkmoot.consumers.group.member_state import Phase
from folkmoot.coordination.zookeeper.session import SessionState
from folkmoot.protocol.errors import NotAssigned
from folkmoot.protocol.records import TopicPartition


class State(Enum):
    """What a consumer is doing."""

    ALONE = "alone"
    """It has no group."""
    JOINING = "joining"
    MEMBER = "member"
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
    lag: dict[TopicPartition, int]
    """Records between the next to be handed out and the end, as the last fetches saw it."""
    last_poll_age: float | None
    """Seconds since the application last asked for records; None before the start."""
    fenced_commits: int
    """Commits refused because another member held the partition."""
    lost_partitions: int
    """Partitions that went without being given up."""

    @property
    def is_well(self) -> bool:
        return self.state in (State.ALONE, State.MEMBER, State.JOINING)


def health_of(subscription: Subscription | None, fetcher: Fetcher, closed: bool) -> Health:
    """From any thread: everything that is looked at is replaced by its owner, never taken apart."""
    member = None if subscription is None else subscription.member
    store = None if member is None else member.session
    lag = {}
    for partition in fetcher.partitions():
        try:
            position, end = fetcher.position(partition), fetcher.end(partition)
        except NotAssigned:
            continue  # just given up
        if position is not None and end >= 0:
            lag[partition] = max(0, end - position)
    polled_at = None if member is None else member.polled_at
    return Health(
        state=_state(subscription, closed),
        session=None if store is None else store.state,
        member=None if member is None else member.name,
        generation=0 if member is None else member.generation,
        assignment=frozenset(fetcher.partitions()),
        lag=lag,
        last_poll_age=None if polled_at is None else max(0.0, time.monotonic() - polled_at),
        fenced_commits=0 if member is None else member.fenced_commits,
        lost_partitions=0 if member is None else member.lost_partitions,
    )


def _state(subscription: Subscription | None, closed: bool) -> State:
    if closed:
        return State.CLOSED
    if subscription is None:
        return State.ALONE
    member = subscription.member
    if member.error is not None or subscription.replaced:
        return State.FAILED
    if member.poll_state is PollState.EXPIRED:
        return State.STALLED
    return _STATES[member.phase] if not member.is_fenced else State.FENCED


_STATES = {
    Phase.JOINING: State.JOINING,
    Phase.MEMBER: State.MEMBER,
    Phase.LEAVING: State.LEAVING,
    Phase.LEFT: State.CLOSED,
}
