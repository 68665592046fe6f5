"""What the group protocol's model is made of: one state of ZooKeeper and of all members."""

from typing import Final, NamedTuple, TypeVar

NOBODY: Final = -1


class Plan(NamedTuple):
    version: int
    basis: tuple[int, ...] | None
    owners: tuple[int, ...]


class Offset(NamedTuple):
    version: int
    epoch: int
    committed: int


class Sink(NamedTuple):
    epoch: int
    effects: int  # bit n: record n was processed


class Claim(NamedTuple):
    version: int  # that this owner wrote last
    epoch: int
    position: int
    committed: int
    doubt: bool  # a reply was lost


class Owner(NamedTuple):
    member: int
    incarnation: int


class Member(NamedTuple):
    incarnation: int
    seen: int  # version of the plan followed
    assigned: tuple[int, ...]
    claims: tuple[Claim | None, ...]
    read: tuple[Offset | None, ...]  # before a claim
    draft: tuple[int, tuple[int, ...], tuple[int, ...]] | None  # version, members, owners as read


class Budget(NamedTuple):
    expiries: int
    lost_replies: int
    steals: int


class State(NamedTuple):
    plan: Plan
    alive: tuple[int, ...]  # the incarnation whose session lives, or 0
    owners: tuple[Owner | None, ...]
    offsets: tuple[Offset, ...]
    sinks: tuple[Sink, ...]
    members: tuple[Member, ...]
    budget: Budget


class Step(NamedTuple):
    name: str
    state: State
    violation: str | None = None


T = TypeVar("T")


def put(items: tuple[T, ...], index: int, item: T) -> tuple[T, ...]:
    return (*items[:index], item, *items[index + 1 :])


def with_member(state: State, number: int, member: Member) -> State:
    return state._replace(members=put(state.members, number, member))


def with_claim(state: State, number: int, partition: int, claim: Claim) -> State:
    member = state.members[number]
    return with_member(state, number, member._replace(claims=put(member.claims, partition, claim)))
