"""What must hold after every step (groups.md, I1 to I7), and once all is calm (L)."""

from collections import defaultdict
from collections.abc import Sequence

import msgspec

from folkmoot.consumers.events import Assigned
from folkmoot.coordination import paths, plan_format
from folkmoot.coordination.members import MemberInfo, seat
from folkmoot.coordination.operations import Delete, Multi, Operation
from folkmoot.coordination.ownership import OffsetState, Owner
from folkmoot.coordination.plans import Plan
from folkmoot.coordination.topics import TopicInfo
from folkmoot.coordination.tree import Tree
from folkmoot.protocol.records import TopicPartition
from tests.simulation.administrator import NAME
from tests.simulation.world import World

GROUP = "g"
NEWEST = 99
"""The checkers understand every kind of plan that members make here."""
BRIEF = 1.0
"""Who is back for less than that may not have been seen by anybody: its grace goes on."""
_IDS = paths.members(GROUP) + "/"

_states = msgspec.json.Decoder(OffsetState)
_owners = msgspec.json.Decoder(Owner)
_topics = msgspec.json.Decoder(TopicInfo)
_members = msgspec.json.Decoder(MemberInfo)


class Violation(AssertionError):
    """The history broke a promise."""


class Checks:
    """Sees every write to the tree and every record that is processed. Raises Violation.

    Records below a committed offset have been processed; what an epoch commits lies where that epoch
    began and worked. A topic that is made anew has no history.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._states: dict[TopicPartition, OffsetState] = {}
        self._owners: dict[TopicPartition, tuple[Owner, str]] = {}
        self._starts: dict[tuple[TopicPartition, int], int | None] = {}
        self._worked: dict[tuple[TopicPartition, int], int] = {}
        self._processed: defaultdict[tuple[TopicPartition, str], set[int]] = defaultdict(set)
        self._written: set[tuple[str, TopicPartition, int]] = set()
        self._who: dict[str, str] = {}  # whose nonce it is
        self._seats = Seats(world)
        world.watchers.append(self)

    # -- what applications do ---------------------------------------------------------------------

    def assigned(self, who: str, notice: Assigned) -> None:
        partition, epoch = notice.partition, notice.epoch
        _check((partition, epoch) in self._starts, f"{who} was given {partition} in epoch {epoch}")
        started = self._starts[partition, epoch]
        _check(notice.offset == started, f"{partition} starts at {notice.offset}, not {started}")

    def told_committed(self, who: str, partition: TopicPartition, offset: int) -> None:
        known = (who, partition, offset) in self._written
        _check(known, f"{who} was told that {partition} {offset} was committed, and it was not")

    def processed(
        self, partition: TopicPartition, topic_id: str, epoch: int, first: int, count: int
    ) -> None:
        self._processed[partition, topic_id].update(range(first, first + count))
        before = self._worked.get((partition, epoch), 0)
        self._worked[partition, epoch] = max(before, first + count)

    def absent(self, who: str, held: list[TopicPartition]) -> None:
        _check(not held, f"{who} holds {held}, though its application is away for too long")

    # -- what happens in the tree -----------------------------------------------------------------

    def wrote(self, writer: str, operation: Operation | None, before: Tree, after: Tree) -> None:
        if operation is None:
            touched = [
                path for path in before if before[path].owner and path not in after
            ]  # an ended session
        elif isinstance(operation, Multi):
            touched = [write.path for write in operation.writes]
        else:
            touched = [operation.path]
        for path in touched:
            match path.split("/"):
                case ["", "groups", "g", "offsets", topic, number]:
                    self._offset(TopicPartition(topic, int(number)), path, writer, after)
        self._seats.wrote(touched, after)
        for path in touched:
            match path.split("/"):
                case ["", "groups", "g", "owners", topic, number]:
                    partition = TopicPartition(topic, int(number))
                    self._owner(partition, path, writer, operation, after)

    def _offset(self, partition: TopicPartition, path: str, writer: str, after: Tree) -> None:
        old = self._states.get(partition, OffsetState())
        new = self._states[partition] = _states.decode(after[path].data)
        what = f"{partition}: {old} became {new}, written by {writer}"
        _check(new.epoch >= old.epoch, f"I2: the epoch went back, {what}")
        if new.epoch > old.epoch and writer == NAME:
            self._reset(partition, new, what)
            self._world.seen["reset"] += 1
        elif new.epoch > old.epoch:
            self._claimed(partition, old, new, what, after)
            self._who[new.nonce] = writer
            self._world.seen["claim"] += 1
        elif new.epoch:
            self._committed(partition, old, new, what, writer)
            self._world.seen["commit"] += 1

    def _claimed(
        self, partition: TopicPartition, old: OffsetState, new: OffsetState, what: str, after: Tree
    ) -> None:
        kept = old.offset if old.topic_id in ("", new.topic_id) else None
        _check(new.offset == kept, f"I4: a claim starts elsewhere than at {kept}, {what}")
        plan = plan_format.decode(after[paths.plan(GROUP)].data, NEWEST)
        owners = plan.assignment[partition.topic]
        planned = owners[partition.partition]
        _check(planned == new.member, f"I7: claimed without a plan for it ({planned}), {what}")
        names = after[paths.members(GROUP)].children
        registered = any(new.nonce in name for name in names if seat(name) == new.member)
        _check(registered, f"claimed by no member, {what}")
        self._starts[partition, new.epoch] = new.offset
        self._worked[partition, new.epoch] = new.offset or 0

    def _reset(self, partition: TopicPartition, new: OffsetState, what: str) -> None:
        """The one way for an offset to go back: then all from there on is to be processed again."""
        _check(not new.member and new.offset is not None, f"a reset by a member, {what}")
        done = self._processed[partition, new.topic_id]
        done.difference_update([offset for offset in done if offset >= (new.offset or 0)])

    def _committed(
        self, partition: TopicPartition, old: OffsetState, new: OffsetState, what: str, writer: str
    ) -> None:
        same = (old.nonce, old.member, old.topic_id) == (new.nonce, new.member, new.topic_id)
        _check(same, f"I3: a commit by somebody else, {what}")
        _check(self._who[new.nonce] == writer, f"I3: not the holder, {what}")
        start = old.offset or 0
        end = new.offset or 0
        self._written.add((writer, partition, end))
        _check(end >= start, f"I5: the committed offset went back, {what}")
        done = self._processed[partition, new.topic_id]
        missing = [offset for offset in range(start, end) if offset not in done]
        _check(not missing, f"I6: {missing} were not processed, {what}")
        worked = self._worked[partition, new.epoch]
        _check(end <= worked, f"I6: this epoch has worked up to {worked} only, {what}")

    def _owner(
        self,
        partition: TopicPartition,
        path: str,
        writer: str,
        operation: Operation | None,
        after: Tree,
    ) -> None:
        state = self._states.get(partition, OffsetState())
        old = self._owners.pop(partition, None)
        node = after.get(path)
        if node is not None:
            new = _owners.decode(node.data)
            what = f"{partition}: owner {new}, {state}"
            fence = (state.epoch, state.nonce, state.member)
            _check((new.epoch, new.nonce, new.member) == fence, f"I2: not the fence's, {what}")
            if old is not None and old[0].member != new.member:
                self._seats.stolen(partition, old[0])
                self._world.seen["steal"] += 1
            self._owners[partition] = (new, writer)
        elif operation is not None and old is not None and writer != "admin":
            freed = isinstance(operation, Delete | Multi)
            _check(freed and old[1] == writer, f"{writer} took {partition} from {old[1]}")

    # -- once all is calm -------------------------------------------------------------------------

    def plan(self) -> Plan:
        node = self._world.versions[-1].get(paths.plan(GROUP))
        return Plan() if node is None or not node.data else plan_format.decode(node.data, NEWEST)

    def members(self) -> dict[str, MemberInfo]:
        """Who has a node now."""
        prefix = paths.members(GROUP) + "/"
        tree = self._world.versions[-1]
        found = [path.removeprefix(prefix) for path in tree if path.startswith(prefix)]
        return {name: _members.decode(tree[prefix + name].data) for name in found}

    def owners(self) -> dict[TopicPartition, Owner]:
        """Who owns what now."""
        return {partition: owner for partition, (owner, _) in self._owners.items()}

    def planned(self) -> dict[TopicPartition, str]:
        """Who shall own what."""
        return {
            TopicPartition(topic, number): owner
            for topic, owners in self.plan().assignment.items()
            for number, owner in enumerate(owners)
            if owner is not None
        }

    def wanted(self) -> set[TopicPartition]:
        """What a live member wants to be read."""
        tree = self._world.versions[-1]
        wishes = list(self.members().values())
        prefix = f"{paths.TOPICS}/"
        return {
            TopicPartition(path.removeprefix(prefix), number)
            for path, node in tree.items()
            if path.startswith(prefix)
            and any(wish.wants(path.removeprefix(prefix)) for wish in wishes)
            for number in range(len(_topics.decode(node.data).partitions))
        }

    def topic_id(self, topic: str) -> str:
        """Of the topic that has that name now, and that is there."""
        return _topics.decode(self._world.versions[-1][paths.topic(topic)].data).topic_id


class Seats:
    """What plans may do to those who are away, and to those who are slow.

    A seat that is kept is not dropped before its grace is over, and what it has is given to nobody
    meanwhile. Nothing is stolen before its owner's hand-over time has passed since it was taken away.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._plan = Plan()
        self._sitting: set[str] = set()
        self._came: dict[str, float] = {}
        self._left: dict[str, float] = {}  # when a seat became empty last
        self._taken_away: dict[TopicPartition, tuple[str, float]] = {}  # from whom, and when

    def wrote(self, touched: Sequence[str], after: Tree) -> None:
        if any(path.startswith(_IDS) for path in touched):
            node = after.get(paths.members(GROUP))
            sitting = {seat(name) for name in node.children} if node is not None else set()
            now = self._world.now
            self._came |= dict.fromkeys(sitting - self._sitting, now)
            for each in self._sitting - sitting:
                if each not in self._left or now - self._came[each] >= BRIEF:
                    self._left[each] = now
            self._sitting = sitting
        if paths.plan(GROUP) in touched and paths.plan(GROUP) in after:
            self._planned(plan_format.decode(after[paths.plan(GROUP)].data, NEWEST))

    def _planned(self, new: Plan) -> None:
        old, self._plan = self._plan, new
        now = self._world.now
        before, after = _owners_of(old), _owners_of(new)
        # Who does not understand the old plan cannot know for whom it waits.
        # Who missed a ring may not know that somebody was back for a while.
        blind = new.protocol < old.protocol or self._world.lost_rings > 0
        known = {} if blind else old.static
        for each in known.keys() - self._sitting:
            over = now >= self._left[each] + known[each].grace
            _check(over or each in new.members, f"S: {each} was not waited for: {new}")
            if each in new.static and new.static[each].absent:
                share = {p: owner for p, owner in before.items() if owner[0] == each}
                kept = all(
                    p not in after or after[p] == owner or after[p][1] != owner[1]
                    for p, owner in share.items()
                )
                _check(kept, f"S: what {each} had was given away: {new}")
        for partition in before.keys() | after.keys():
            owner, heir = before.get(partition), after.get(partition)
            if owner is not None and (heir is None or heir[0] != owner[0]):
                self._taken_away[partition] = (owner[0], now)

    def stolen(self, partition: TopicPartition, owner: Owner) -> None:
        whose, since = self._taken_away.get(partition, ("", 0.0))
        early = whose == owner.member and self._world.now < since + owner.hand_over
        _check(not early, f"H: {partition} was stolen from {owner} before its time")


def _owners_of(plan: Plan) -> dict[TopicPartition, tuple[str, str]]:
    """The seat that shall own it, and the topic's id."""
    return {
        TopicPartition(topic, number): (owner, plan.topics[topic].topic_id)
        for topic, owners in plan.assignment.items()
        for number, owner in enumerate(owners)
        if owner is not None
    }


def _check(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Violation(otherwise)
