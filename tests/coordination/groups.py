"""Members of a group on real or simulated ZooKeeper, without any that runs."""

from collections.abc import Callable

from folkmoot.coordination import paths
from folkmoot.coordination.groups import inspection, ownership, planning
from folkmoot.coordination.groups import membership as members
from folkmoot.coordination.groups import plan as plans
from folkmoot.coordination.groups.membership import MemberInfo
from folkmoot.coordination.groups.ownership import (
    Answer,
    Claim,
    Claimant,
    ClaimRequest,
    Fenced,
    OffsetState,
    Owner,
)
from folkmoot.coordination.groups.plan import Plan, TopicBasis
from folkmoot.coordination.groups.planning import GroupSnapshot
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.coordination.zookeeper.operations import Exists, Get, Recipe, Set, TooLarge
from folkmoot.coordination.zookeeper.session import Session
from folkmoot.protocol.records import TopicPartition

GROUP = "g"
TOPIC_ID = "id-1"
REVOKE_TIMEOUT = 2.0

P0 = TopicPartition("t", 0)
P1 = TopicPartition("t", 1)


def nothing() -> None:
    """A ring that nobody hears."""


def _alone(claiming: Recipe[dict[TopicPartition, Answer]]) -> Recipe[Answer]:
    (answer,) = (yield from claiming).values()
    return answer


class Someone:
    """A member with its session; `nonce` marks its incarnation."""

    def __init__(self, session: Session, nonce: str) -> None:
        self.session = session
        self.nonce = nonce
        info = MemberInfo(("t",), "host", REVOKE_TIMEOUT)
        self.name = execute(session, members.join(GROUP, f"m-{nonce}", info))
        self.me = Claimant(GROUP, self.name, nonce, REVOKE_TIMEOUT)

    def claiming(
        self,
        partition: TopicPartition = P0,
        ring: Callable[[], None] = nothing,
        steal_from: Owner | None = None,
        topic_id: str = TOPIC_ID,
        version: int | None = None,
        start: int | None = None,
    ) -> Recipe[Answer]:
        """A claim under the plan of the moment, or under that of an older `version`."""
        now = execute(self.session, planning.get(GROUP)).version
        request = {partition: ClaimRequest(topic_id, steal_from, start)}
        return _alone(
            ownership.claim(self.me, request, now if version is None else version, lambda _: ring)
        )

    def claim(self, partition: TopicPartition = P0) -> Claim:
        answer = execute(self.session, self.claiming(partition))
        assert isinstance(answer, Claim), answer
        return answer

    def commit(self, held: Claim, offset: int, partition: TopicPartition = P0) -> Claim | Fenced:
        return execute(self.session, ownership.commit(self.me, {partition: (held, offset)}))[
            partition
        ]

    def committed(self, held: Claim, offset: int, partition: TopicPartition = P0) -> Claim:
        answer = self.commit(held, offset, partition)
        assert isinstance(answer, Claim)
        return answer

    def release(self, held: Claim, offset: int | None, partition: TopicPartition = P0) -> None:
        execute(self.session, ownership.release(self.me, {partition: (held, offset)}))


def make_plan(session: Session, *owners: str, topic_id: str = TOPIC_ID) -> int:
    """A plan that gives t-0, t-1… to these members; returns its version."""
    before = execute(session, planning.get(GROUP))
    plan = Plan(
        before.plan.generation + 1,
        tuple(dict.fromkeys(owners)),
        {"t": TopicBasis(topic_id, len(owners))},
        {"t": list(owners)},
    )
    version: int = execute(session, Set(paths.plan(GROUP), plans.encode(plan), before.version))
    return version


def owner(session: Session, partition: TopicPartition = P0) -> Owner | None:
    return execute(session, ownership.owner_of(GROUP, partition))


def state(session: Session, partition: TopicPartition = P0) -> OffsetState:
    found = execute(session, ownership.committed(GROUP, partition))
    return OffsetState() if found is None else found


def offsets(session: Session) -> dict[TopicPartition, OffsetState]:
    """What is known of the group's offsets."""
    every = execute(session, inspection.with_offsets(GROUP))
    return {each: state(session, each) for each in every}


def replace(
    group: str,
    planner: str,
    known: dict[str, MemberInfo],
    decide: Callable[[Plan, GroupSnapshot], Plan | None],
    expired: tuple[str, ...] = (),
    seen: tuple[int, int] | None = None,
) -> Recipe[bool | TooLarge]:
    """The next plan, if one is due."""
    snapshot = yield from planning.read_snapshot(group, known, expired, seen)
    plan = None if snapshot is None else decide(snapshot.current.plan, snapshot)
    if snapshot is None or plan is None:
        return False
    return (yield from planning.write(group, planner, snapshot, plan))


def version_of(session: Session, path: str) -> int:
    version: int = execute(session, Get(path)).stat.version
    return version


def born(session: Session, partition: TopicPartition = P0) -> int:
    """The transaction that made the offset's node: epochs are counted from there."""
    made: int = execute(session, Get(paths.offset(GROUP, *partition))).stat.czxid
    return made


def turn(session: Session, partition: TopicPartition = P0) -> int:
    """How many epochs the offset's node has had."""
    epoch = state(session, partition).epoch
    return epoch - born(session, partition) if epoch else 0


def left_behind(someone: Someone) -> None:
    """It has committed 17 and 18, and left."""
    for partition, offset in ((P0, 17), (P1, 18)):
        someone.release(someone.claim(partition), offset, partition)
    execute(someone.session, members.remove(GROUP, someone.name))


def is_gone(session: Session) -> bool:
    return execute(session, Exists(paths.group(GROUP))) is None
