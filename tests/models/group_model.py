"""The group protocol as a model small enough to be explored whole.

Every operation in ZooKeeper is one step, since ZooKeeper puts all writes in one order; every read, and
every notice that a client takes of something, is a step of its own. So the steps of several members in
every possible order are all that can happen. The worst is assumed throughout:

- A zombie (its session has expired, it does not know yet) goes on processing and committing, and its
  writes arrive, as if a library had sent them again in a new session.
- Members plan from what they read earlier; only the plan's version protects the plan.
- A reply may be lost after the write was done.
- A partition may be stolen at any moment after the plan gave it to somebody else.
- The sink is one that honours fencing tokens: it keeps the highest epoch it has seen and takes no
  effect of a lower one.

`docs/groups.md` explains the protocol in words; `RULES` names what each mutation takes away. The real
code is held to the same rules, and to the same mutations, by `tests/simulation`.
"""

from collections.abc import Iterator
from functools import cache
from typing import Final

from tests.models.group_state import (
    NOBODY,
    Budget,
    Claim,
    Member,
    Offset,
    Owner,
    Plan,
    Sink,
    State,
    Step,
    put,
    with_claim,
    with_member,
)

RULES: Final = {
    "conditional commit": "a commit is conditional on the version that this owner wrote last",
    "fence on the offset": "it is the offset's node that is checked, not the owner's, which is made anew",
    "claim moves the fence": "a claim writes the offset's node, with the next epoch",
    "claim at the committed offset": "a claim is conditional on the offset that it starts at",
    "conditional release": "a release is conditional as a commit is",
    "watch of the own node": "an owner watches its own node",
    "refresh after refusal": "after a refused claim plan and offset are read anew",
    "claim under the plan": "a claim is conditional on the plan that it follows",
    "plan by compare-and-set": "a plan is written on condition of the version it was made from",
    "doubt is cleared": "after a lost reply the node is read before anything is built on it",
}


@cache
def assign(alive: tuple[int, ...], previous: tuple[int, ...]) -> tuple[int, ...]:
    """Who shall own what: balanced, and nobody gives up more than the balance asks for."""
    live = [member for member, incarnation in enumerate(alive) if incarnation]
    if not live:
        return (NOBODY,) * len(previous)
    ranked = sorted(live, key=lambda member: (-previous.count(member), member))
    least, more = divmod(len(previous), len(live))
    room = {member: least + (rank < more) for rank, member in enumerate(ranked)}
    owners = [NOBODY] * len(previous)
    for partition, member in enumerate(previous):
        if room.get(member, 0):
            owners[partition] = member
            room[member] -= 1
    for partition, owner in enumerate(owners):
        if owner == NOBODY:
            owners[partition] = next(member for member in ranked if room[member])
            room[owners[partition]] -= 1
    return tuple(owners)


class GroupModel:
    """`members` share `partitions` of `records` records each; `budget` bounds the faults.

    `without` names a rule of RULES that is taken away.
    """

    def __init__(
        self,
        members: int,
        partitions: int,
        records: int,
        budget: Budget,
        without: str | None = None,
    ) -> None:
        assert without is None or without in RULES
        self.members = members
        self.partitions = partitions
        self.records = records
        self.budget = budget
        self._without = without

    def initial(self) -> State:
        count = self.partitions
        return State(
            Plan(0, None, (NOBODY,) * count),
            (1,) * self.members,
            (None,) * count,
            (Offset(0, 0, 0),) * count,
            (Sink(0, 0),) * count,
            (self._joined(1),) * self.members,
            self.budget,
        )

    def _joined(self, incarnation: int) -> Member:
        none = (None,) * self.partitions
        return Member(incarnation, -1, (NOBODY,) * self.partitions, none, none, None)

    def _has(self, rule: str) -> bool:
        return self._without != rule

    # -- steps --------------------------------------------------------------------------------------

    def steps(
        self, state: State, *, faults: bool = True, processing: bool = True
    ) -> Iterator[Step]:
        """All that can happen next. Without `faults` and `processing` only what leads to rest."""
        for number in range(self.members):
            yield from self._session(state, number, faults)
            yield from self._planning(state, number)
            for partition in range(self.partitions):
                if state.members[number].claims[partition] is None:
                    yield from self._claiming(state, number, partition, faults)
                else:
                    yield from self._owning(state, number, partition, faults, processing)

    def _session(self, state: State, number: int, faults: bool) -> Iterator[Step]:
        incarnation, budget = state.members[number].incarnation, state.budget
        if state.alive[number] != incarnation:
            anew = state._replace(alive=put(state.alive, number, incarnation + 1))
            yield Step(
                f"join anew {number}", with_member(anew, number, self._joined(incarnation + 1))
            )
        elif faults and budget.expiries:
            mine = Owner(number, incarnation)
            yield Step(
                f"EXPIRE {number}",
                state._replace(
                    alive=put(state.alive, number, 0),
                    owners=tuple(None if owner == mine else owner for owner in state.owners),
                    budget=budget._replace(expiries=budget.expiries - 1),
                ),
            )

    def _planning(self, state: State, number: int) -> Iterator[Step]:
        member, plan = state.members[number], state.plan
        is_live = state.alive[number] == member.incarnation
        if member.draft is None:
            if plan.basis != state.alive and is_live:
                draft = (plan.version, state.alive, plan.owners)
                yield Step(
                    f"read for a plan {number}",
                    with_member(state, number, member._replace(draft=draft)),
                )
        else:
            version, basis, owners = member.draft
            after = with_member(state, number, member._replace(draft=None))
            if version == plan.version or not self._has("plan by compare-and-set"):
                # Written over a newer plan, it comes from an older one: its version is used twice.
                fresh = Plan(version + 1, basis, assign(basis, owners))
                fault = None
                if version != plan.version:
                    fault = (
                        f"PLAN {plan.version} is overwritten by what was made from plan {version}"
                    )
                yield Step(f"plan {number}", after._replace(plan=fresh), fault)
            else:
                yield Step(f"plan refused {number}", after)
        if member.seen != plan.version and is_live and plan.basis is not None:
            follows = member._replace(
                seen=plan.version, assigned=plan.owners, read=(None,) * self.partitions
            )
            yield Step(f"see plan {number}", with_member(state, number, follows))

    def _claiming(self, state: State, number: int, partition: int, faults: bool) -> Iterator[Step]:
        member, offset = state.members[number], state.offsets[partition]
        where = f"{number}/{partition}"
        if state.alive[number] != member.incarnation:
            return
        read = member.read[partition]
        if read is None:
            if member.assigned[partition] == number and member.seen >= 0:
                looked = member._replace(read=put(member.read, partition, offset))
                yield Step(f"read offset {where}", with_member(state, number, looked))
            return
        at_plan = member.seen == state.plan.version or not self._has("claim under the plan")
        moves = self._has("claim moves the fence")
        checks = self._has("claim at the committed offset") and moves
        if not at_plan or (checks and read.version != offset.version):
            refused = member._replace(read=put(member.read, partition, None))
            if self._has("refresh after refusal"):
                plan = state.plan
                refused = member._replace(
                    read=(None,) * self.partitions, seen=plan.version, assigned=plan.owners
                )
            yield Step(f"claim refused {where}", with_member(state, number, refused))
            return
        owner, me, budget = state.owners[partition], Owner(number, member.incarnation), state.budget
        if owner == me:
            return
        if owner is not None and owner.member != number and faults:
            # Its hand-over time is over. One's own earlier incarnation is not waited for.
            if not budget.steals:
                return
            budget = budget._replace(steals=budget.steals - 1)
        fence = Offset(offset.version + 1, offset.epoch + 1, offset.committed) if moves else offset
        claim = Claim(fence.version, fence.epoch, read.committed, read.committed, False)
        held = member._replace(
            claims=put(member.claims, partition, claim), read=put(member.read, partition, None)
        )
        after = with_member(state, number, held)._replace(
            owners=put(state.owners, partition, me),
            offsets=put(state.offsets, partition, fence),
            budget=budget,
        )
        yield Step(
            f"{'claim' if owner is None else 'STEAL'} {where}",
            after,
            _claim_violation(state, number, partition, read),
        )

    def _owning(
        self, state: State, number: int, partition: int, faults: bool, processing: bool
    ) -> Iterator[Step]:
        member, offset = state.members[number], state.offsets[partition]
        claim = member.claims[partition]
        assert claim is not None
        where = f"{number}/{partition}"
        dropped = with_member(
            state, number, member._replace(claims=put(member.claims, partition, None))
        )
        is_live = state.alive[number] == member.incarnation
        mine = state.owners[partition] == Owner(number, member.incarnation)
        if is_live and not mine and self._has("watch of the own node"):
            yield Step(f"own node is gone {where}", dropped)
        is_assigned = member.assigned[partition] == number
        if processing and is_assigned and claim.position < self.records:
            yield self._process(state, number, partition, claim)
        if claim.doubt and self._has("doubt is cleared"):
            # A release that was done has deleted the owner's node; a zombie is assumed to see nothing.
            if offset.epoch == claim.epoch and (mine or not is_live):
                known = claim._replace(
                    version=offset.version, committed=offset.committed, doubt=False
                )
                yield Step(f"read back {where}", with_claim(state, number, partition, known))
            else:
                yield Step(f"fenced {where}", dropped)
            return
        if claim.position != claim.committed:
            yield from self._commit(state, number, partition, dropped, faults)
        if not is_assigned and member.seen >= 0:
            yield from self._release(state, number, partition, dropped, faults)

    def _process(self, state: State, number: int, partition: int, claim: Claim) -> Step:
        sink = state.sinks[partition]
        if claim.epoch >= sink.epoch:
            sink = Sink(claim.epoch, sink.effects | 1 << claim.position)
        further = with_claim(state, number, partition, claim._replace(position=claim.position + 1))
        name = f"process {number}/{partition}@{claim.position}"
        return Step(name, further._replace(sinks=put(state.sinks, partition, sink)))

    def _commit(
        self, state: State, number: int, partition: int, dropped: State, faults: bool
    ) -> Iterator[Step]:
        offset, claim = state.offsets[partition], state.members[number].claims[partition]
        assert claim is not None
        where = f"{number}/{partition}"
        if not self._has("conditional commit"):
            accepted = True
        elif not self._has("fence on the offset"):
            accepted = state.owners[partition] is not None
        else:
            accepted = offset.version == claim.version
        if not accepted:
            yield Step(f"commit refused {where}", dropped)
            return
        written = Offset(offset.version + 1, offset.epoch, claim.position)
        violation = _commit_violation(claim, offset)
        after = state._replace(offsets=put(state.offsets, partition, written))
        done = claim._replace(version=written.version, committed=claim.position, doubt=False)
        yield Step(
            f"commit {where}={claim.position}",
            with_claim(after, number, partition, done),
            violation,
        )
        if faults and state.budget.lost_replies:
            yield self._unanswered(f"commit {where}", after, number, partition, violation)

    def _release(
        self, state: State, number: int, partition: int, dropped: State, faults: bool
    ) -> Iterator[Step]:
        """The last commit and the owner's node in one transaction."""
        offset, claim = state.offsets[partition], state.members[number].claims[partition]
        assert claim is not None
        where = f"{number}/{partition}"
        gone = put(state.owners, partition, None)
        if not self._has("conditional release"):
            yield Step(f"release {where}", dropped._replace(owners=gone))
        elif offset.version != claim.version or state.owners[partition] is None:
            yield Step(f"release refused {where}", dropped)
        else:
            written = Offset(offset.version + 1, offset.epoch, claim.position)
            offsets = put(state.offsets, partition, written)
            violation = _commit_violation(claim, offset)
            yield Step(
                f"release {where}", dropped._replace(owners=gone, offsets=offsets), violation
            )
            if faults and state.budget.lost_replies:
                after = state._replace(owners=gone, offsets=offsets)
                yield self._unanswered(f"release {where}", after, number, partition, violation)

    def _unanswered(
        self, name: str, after: State, number: int, partition: int, violation: str | None
    ) -> Step:
        """The write was done, and its reply is lost."""
        claim = after.members[number].claims[partition]
        assert claim is not None
        doubtful = claim._replace(doubt=True)
        if not self._has(
            "doubt is cleared"
        ):  # taken for a success, with the version it should have
            doubtful = claim._replace(version=after.offsets[partition].version + 1)
        budget = after.budget._replace(lost_replies=after.budget.lost_replies - 1)
        state = with_claim(after, number, partition, doubtful)._replace(budget=budget)
        return Step(f"{name}, REPLY LOST", state, violation)

    # -- promises -----------------------------------------------------------------------------------

    def violation(self, state: State) -> str | None:
        """What this state breaks: no loss (I6), one live holder of the current epoch (I1, I8)."""
        for partition in range(self.partitions):
            committed, effects = state.offsets[partition].committed, state.sinks[partition].effects
            below = (1 << committed) - 1
            if effects & below != below:
                return (
                    f"LOSS: committed {committed}, and of the records only {effects:b} had effect"
                )
            holders = 0
            for number, member in enumerate(state.members):
                claim = member.claims[partition]
                is_live = state.alive[number] == member.incarnation
                if claim is None or not is_live or claim.epoch != state.offsets[partition].epoch:
                    continue
                holders += 1
                if claim.doubt:
                    continue  # it may have released; it reads back before it does anything else
                if state.owners[partition] != Owner(number, member.incarnation):
                    return f"{number} holds the current epoch, and its owner node is gone"
            if holders > 1:
                return "two live holders of one epoch"
        return None

    def is_at_rest(self, state: State) -> bool:
        """Everybody follows a plan for who is there, and holds what it gives them."""
        plan = state.plan
        if plan.basis != state.alive:
            return False
        for partition, number in enumerate(plan.owners):
            if number == NOBODY or state.owners[partition] != Owner(number, state.alive[number]):
                return False
            claim = state.members[number].claims[partition]
            if claim is None or claim.epoch != state.offsets[partition].epoch:
                return False
        return all(
            member.incarnation == state.alive[number] and member.seen == plan.version
            for number, member in enumerate(state.members)
        )


def _claim_violation(state: State, number: int, partition: int, read: Offset) -> str | None:
    committed = state.offsets[partition].committed
    if read.committed != committed:
        return f"CLAIM starts at {read.committed}, committed is {committed}"
    if state.plan.owners[partition] != number:
        return f"CLAIM by {number}, the plan names {state.plan.owners[partition]}"
    return None


def _commit_violation(claim: Claim, offset: Offset) -> str | None:
    if claim.epoch != offset.epoch:
        return f"ZOMBIE COMMIT of epoch {claim.epoch} accepted in epoch {offset.epoch}"
    if claim.position < offset.committed:
        return f"OFFSET went back from {offset.committed} to {claim.position}"
    return None
