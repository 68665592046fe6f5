"""What must hold after every step (groups.md, I1 to I7), and once all is calm (L)."""

from collections import defaultdict
from collections.abc import Sequence

from folkmoot.consumers.group.events import Assigned
from folkmoot.consumers.group.group_thread import Member
from folkmoot.consumers.lag import is_beyond
from folkmoot.coordination import paths
from folkmoot.coordination.groups.membership import MemberInfo
from folkmoot.coordination.groups.membership import assignee as seat
from folkmoot.coordination.groups.ownership import OffsetState, Owner
from folkmoot.coordination.groups.plan import Plan, StaticMember
from folkmoot.coordination.zookeeper.operations import Children, Delete, Get, Multi, Operation
from folkmoot.coordination.zookeeper.session import Outcome
from folkmoot.protocol.records import TopicPartition
from tests.memory_zookeeper import Tree
from tests.simulation.administrator import NAME
from tests.simulation.logs import Logs
from tests.simulation.standing import (
    GROUP,
    Standing,
    info_of,
    names_in,
    owner_of,
    plan_in,
    state_of,
    topic_of,
)
from tests.simulation.world import World

BRIEF = 3.0
"""Who is back for less than that may not have been seen by somebody who heard nothing meanwhile, and was
not fenced: its grace goes on."""
_IDS = paths.members(GROUP) + "/"
_PLAN = paths.plan(GROUP)


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
        self._highest: dict[TopicPartition, int] = {}  # epoch there ever was
        self._owners: dict[TopicPartition, tuple[Owner, str]] = {}
        self._starts: dict[tuple[TopicPartition, int], int | None] = {}
        self._worked: dict[tuple[TopicPartition, int], int] = {}
        self._processed: defaultdict[tuple[TopicPartition, str], set[int]] = defaultdict(set)
        self.went_back: set[tuple[TopicPartition, int]] = set()
        """Epochs whose owner has found a log to end below where it was."""
        self._gone: defaultdict[tuple[TopicPartition, str], set[int]] = defaultdict(set)
        """What was processed of those before."""
        self._written: set[tuple[str, TopicPartition, int]] = set()
        self.policy = "earliest"
        self._who: dict[str, str] = {}  # whose nonce it is
        self._ends_then: dict[
            tuple[TopicPartition, int], int
        ] = {}  # of an epoch's log, at its claim
        self._began: dict[tuple[TopicPartition, str], int] = {}
        """The first offset that was processed in the group's life."""
        self.logs = Logs()
        self.seats = Seats(world)
        self.past = Past(world)
        self._standing = Standing(world.versions[-1])
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
        if count:
            self.logs.reach(partition, topic_id, first + count)
            if (
                self._states.get(partition, OffsetState()).epoch == epoch
            ):  # else for an earlier group
                self._began.setdefault((partition, topic_id), first)
        before = self._worked.get((partition, epoch), 0)
        self._worked[partition, epoch] = max(before, first + count)

    def cut(self, partition: TopicPartition, topic_id: str) -> None:
        """An unclean election, or a new disk, takes the end of a log, and what was processed with it."""
        done = self._processed[partition, topic_id]
        end = self._world.random.randint(0, max(done, default=0))
        self.logs.cut(partition, topic_id, end)
        for each, then in self._ends_then.items():
            if each[0] == partition:
                self._ends_then[each] = min(then, end)
        gone = {offset for offset in done if offset >= end}
        done -= gone
        self._gone[partition, topic_id] |= gone

    def beyond(self) -> str:
        """What the group has committed of records that are on no log; nothing if all is well."""
        for partition in self.owned():
            state = self._states[partition]
            end = self.logs.end_after_cut(partition, state.topic_id)
            if is_beyond(state.offset, end):
                return f"{partition} ends at {end}, and {state} is committed"
        return ""

    def absent(self, who: str, held: list[TopicPartition]) -> None:
        _check(not held, f"{who} holds {held}, though its application is away for too long")

    def asked(self, who: str, operation: Operation) -> None:
        if isinstance(operation, Get) and operation.path == _PLAN and operation.watch is None:
            self.seats.begins(who)

    def told(self, who: str, operation: Operation, outcome: Outcome) -> None:
        if outcome.error is not None:
            return
        if isinstance(operation, Children) and operation.path == paths.members(GROUP):
            if operation.watch is not None:
                self.seats.listed(who, outcome.result)
        elif isinstance(operation, Get) and operation.path == _PLAN and operation.watch is None:
            self.seats.begun(who)

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
        self.past.wrote(touched, after)
        for path in touched:
            match path.split("/"):
                case ["", "groups", "g", "offsets", topic, number]:
                    self._offset(TopicPartition(topic, int(number)), path, writer, after)
        self.seats.wrote(writer, touched, after)
        for path in touched:
            match path.split("/"):
                case ["", "groups", "g", "owners", topic, number]:
                    partition = TopicPartition(topic, int(number))
                    self._owner(partition, path, writer, operation, after)

    def _offset(self, partition: TopicPartition, path: str, writer: str, after: Tree) -> None:
        old = self._states.get(partition, OffsetState())
        if path not in after:
            return self._deleted(partition, writer, after)
        new = self._states[partition] = state_of(after[path].data)
        what = f"{partition}: {old} became {new}, written by {writer}"
        _check(new.epoch >= old.epoch, f"I2: the epoch went back, {what}")
        if new.epoch > old.epoch:
            _check(new.epoch > self._highest.get(partition, 0), f"I2: an epoch comes again, {what}")
            self._highest[partition] = new.epoch
        if new.epoch > old.epoch and writer == NAME:
            self._reset(partition, new, what, after)
            self._world.seen["reset"] += 1
        elif new.epoch > old.epoch:
            self._claimed(partition, old, new, what, after)
            self._who[new.nonce] = writer
            self._world.seen["claim"] += 1
        elif new.epoch:
            self._committed(partition, old, new, what, writer)
            self._world.seen["commit"] += 1
        return None

    def _deleted(self, partition: TopicPartition, writer: str, after: Tree) -> None:
        """With its group, which has no members: the next one has epochs that were never there."""
        _check(writer == NAME, f"the offset of {partition} was deleted by {writer}")
        there = names_in(after)
        _check(not there, f"the offset of {partition} was deleted under the feet of {there}")
        self._world.seen["deleted offset"] += 1
        self._states.pop(partition, None)
        for (each, topic_id), done in self._processed.items():
            if each == partition:
                done.clear()
                self._began.pop((each, topic_id), None)

    def _claimed(
        self, partition: TopicPartition, old: OffsetState, new: OffsetState, what: str, after: Tree
    ) -> None:
        kept = old.offset if old.topic_id in ("", new.topic_id) else None
        if kept is None:
            self.past.starts(partition, new.topic_id, new.offset, what)
        else:
            _check(new.offset == kept, f"I4: a claim starts elsewhere than at {kept}, {what}")
        self._ends_then[partition, new.epoch] = self.logs.end(partition, new.topic_id)
        owners = plan_in(after).assignment.get(partition.topic, [])
        planned = owners[partition.partition] if partition.partition < len(owners) else None
        _check(planned == new.member, f"I7: claimed without a plan for it ({planned}), {what}")
        names = [name for name in names_in(after) if seat(name) == new.member]
        registered = any(new.nonce in name for name in names)
        _check(registered, f"claimed by no member, {what}")
        self._starts[partition, new.epoch] = new.offset
        self._worked[partition, new.epoch] = new.offset or 0

    def _reset(self, partition: TopicPartition, new: OffsetState, what: str, after: Tree) -> None:
        """The one way for an offset to go back: then all from there on is to be processed again."""
        _check(not new.member and new.offset is not None, f"a reset by a member, {what}")
        _check(
            paths.owner(GROUP, *partition) not in after, f"its owner does not hear of it, {what}"
        )
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
        gone = self._gone[partition, new.topic_id]
        may_go_back = (partition, new.epoch) in self.went_back
        if old.offset is None and new.offset is not None and self.policy == "latest":
            start = self._begins(partition, new, what)
        _check(end >= start or may_go_back, f"I5: the committed offset went back, {what}")
        done = self._processed[partition, new.topic_id] | gone
        missing = [offset for offset in range(start, end) if offset not in done]
        _check(not missing, f"I6: {missing} were not processed, {what}")
        worked = self._worked[partition, new.epoch]
        _check(end <= worked, f"I6: this epoch has worked up to {worked} only, {what}")

    def _begins(self, partition: TopicPartition, new: OffsetState, what: str) -> int:
        """The group commits where it starts: at an end that the log has had since the claim, or a cut.

        → where it began, which is earlier if something was processed before this was committed. (What
        becomes of a topic that is gone is nobody's business.)
        """
        start = new.offset or 0
        least = self._ends_then[partition, new.epoch]
        most = self.logs.highest(partition, new.topic_id)
        _check(least <= start <= most, f"B: the end was {least} to {most}, {what}")
        worked = (partition, new.epoch)
        self._worked[worked] = max(self._worked[worked], start)
        topic = self.standing().topics.get(partition.topic)
        if topic is None or topic.topic_id != new.topic_id:
            return start
        return self._began.get((partition, new.topic_id), start)

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
            new = owner_of(node.data)
            what = f"{partition}: owner {new}, {state}"
            fence = (state.epoch, state.nonce, state.member)
            _check((new.epoch, new.nonce, new.member) == fence, f"I2: not the fence's, {what}")
            if old is not None and old[0].member != new.member:
                self.seats.stolen(partition, old[0])
                self._world.seen["steal"] += 1
            self._owners[partition] = (new, writer)
        elif operation is not None and old is not None and writer != "admin":
            freed = isinstance(operation, Delete | Multi)
            _check(freed and old[1] == writer, f"{writer} took {partition} from {old[1]}")

    # -- what is there now --------------------------------------------------------------------------

    def standing(self) -> Standing:
        """How the group stands."""
        tree = self._world.versions[-1]
        if self._standing.tree is not tree:
            self._standing = Standing(tree)
        return self._standing

    def owned(self) -> list[TopicPartition]:
        """What has an owner."""
        return sorted(self._owners)


class Past:
    """What was there before the group began with it, and what appeared later.

    Counted in writes. A partition that came after a plan for somebody who subscribes to its topic starts
    at 0; one that came before anybody who does was a member starts where the policy says. (What came in
    between may do either; and where servers lag, whoever plans may not have seen it.)
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._writes = 0
        self._births: dict[tuple[TopicPartition, str], int] = {}
        self._joined: dict[MemberInfo, int] = {}
        self._planned: dict[MemberInfo, int] = {}

    def wrote(self, touched: Sequence[str], after: Tree) -> None:
        self._writes += 1
        for path in touched:
            node = after.get(path)
            if path == _PLAN and node is None:  # another group begins
                self._joined.clear()
                self._planned.clear()
            elif node is None:
                continue
            elif path == _PLAN:
                for each in plan_in(after).subscriptions.values():
                    self._planned.setdefault(each, self._writes)
            elif path.startswith(paths.TOPICS + "/"):
                topic = topic_of(node.data)
                for number in range(len(topic.partitions)):
                    partition = TopicPartition(path.rpartition("/")[2], number)
                    self._births.setdefault((partition, topic.topic_id), self._writes)
        if any(path.startswith(_IDS) for path in touched):
            for name in names_in(after):
                info = info_of(after[_IDS + name].data).subscription()
                self._joined.setdefault(info, self._writes)

    def starts(
        self, partition: TopicPartition, topic_id: str, offset: int | None, what: str
    ) -> None:
        """A claim of what the group has committed nothing of."""
        born, topic = self._births[partition, topic_id], partition.topic
        _check(offset in (None, 0), f"I4: a claim starts at {offset}, {what}")
        if any(at < born for each, at in self._planned.items() if each.wants(topic)):
            self._world.seen["start of what appeared"] += 1
            _check(offset == 0, f"B: {partition} has appeared since the group began, {what}")
        elif all(at > born for each, at in self._joined.items() if each.wants(topic)):
            seen = offset is None or self._world.lag > 0.0
            _check(seen, f"B: {partition} was there before the group, {what}")


class Seats:
    """What plans may do to those who are away, and to those who are slow.

    Only members plan. No plan is of a kind that a member does not understand for whom it is made. (In a
    seat that is kept another process may sit by then.) A seat that is kept is not dropped by anybody who
    has not known it to be empty for its grace; nor, where everybody hears everything, before it has been
    empty for so long. What it has is given to nobody meanwhile. Nothing is stolen before its owner's
    hand-over time has passed since it was taken away.
    """

    def __init__(self, world: World) -> None:
        self.members: dict[str, Member] = {}
        """Of each application."""
        self._world = world
        self._plan = Plan()
        self._planned_at = 0.0
        self._sitting: set[str] = set()
        self._came: dict[str, float] = {}
        self._left: dict[str, float] = {}  # when a seat became empty last
        self._informed: dict[str, float] = {}  # when an application first heard who is there
        self._heard: defaultdict[str, dict[str, float]] = defaultdict(dict)
        """When an application heard last of each seat that it is taken."""
        self._knew: dict[str, dict[str, float]] = {}  # the same, when it began to make a plan
        self._beginning: set[str] = set()
        self._taken_away: dict[TopicPartition, tuple[str, float]] = {}  # from whom, and when

    def listed(self, reader: str, names: Sequence[str]) -> None:
        """An application's member was told who is there."""
        now = self._world.now
        self._informed.setdefault(reader, now)
        self._heard[reader].update((seat(name), now) for name in names)

    def begins(self, planner: str) -> None:
        """It reads the plan, to make the next one, for what it knows now; or reads it again."""
        if planner not in self._beginning:
            self._beginning.add(planner)
            self._knew[planner] = self._heard[planner].copy()

    def begun(self, planner: str) -> None:
        """It has read the plan."""
        self._beginning.discard(planner)

    def wrote(self, writer: str, touched: Sequence[str], after: Tree) -> None:
        if any(path.startswith(_IDS) for path in touched):
            sitting = {seat(name) for name in names_in(after)}
            now = self._world.now
            self._came |= dict.fromkeys(sitting - self._sitting, now)
            for each in self._sitting - sitting:
                if each not in self._left or now - self._came[each] >= BRIEF:
                    self._left[each] = now
            self._sitting = sitting
        if _PLAN in touched and _PLAN not in after:
            members = names_in(after)
            _check(not members, f"the plan was deleted under the feet of {members}")
        if _PLAN in touched and (plan := plan_in(after)) != self._plan:
            self._planned(writer, plan)
            if writer in self.members:
                there = self.members[writer].name in names_in(after)
                _check(there, f"P: planned by {writer}, who is no member: {plan}")
            for name in names_in(after):
                info = info_of(after[_IDS + name].data)
                known = name not in plan.members or info.protocol >= plan.protocol
                _check(known, f"K: {name} does not understand {plan}")

    def _planned(self, writer: str, new: Plan) -> None:
        old, self._plan = self._plan, new
        before, after = _owners_of(old), _owners_of(new)
        # Who does not understand the old plan cannot know for whom it waits.
        if writer in self.members and self.members[writer].state.settings.protocol >= old.protocol:
            for each, standing in old.static.items():
                if each not in new.members:
                    self._dropped(writer, each, standing, new)
                elif each in new.static and new.static[each].absent:
                    kept = all(
                        p not in after or after[p] == owner or after[p][1] != owner[1]
                        for p, owner in before.items()
                        if owner[0] == each
                    )
                    _check(kept, f"S: what {each} had was given away: {new}")
        now = self._planned_at = self._world.now
        for partition in before.keys() | after.keys():
            owner, heir = before.get(partition), after.get(partition)
            if owner is not None and (heir is None or heir[0] != owner[0]):
                self._taken_away[partition] = (owner[0], now)

    def _dropped(self, writer: str, each: str, standing: StaticMember, new: Plan) -> None:
        """Who plans counts from when it finds a seat empty; a plan for who sits there begins anew."""
        since = max(self._informed[writer], self._knew[writer].get(each, 0.0))
        if not standing.absent:
            since = max(since, self._planned_at)
        over = self._world.now >= since + standing.rejoin_timeout
        _check(over, f"S: {writer} did not wait for {each}: {new}")
        if each not in self._sitting and not self._world.lost_rings:
            over = self._world.now >= self._left[each] + standing.rejoin_timeout
            _check(over, f"S: {each} was not waited for: {new}")

    def stolen(self, partition: TopicPartition, owner: Owner) -> None:
        whose, since = self._taken_away.get(partition, ("", 0.0))
        early = whose == owner.member and self._world.now < since + owner.release_timeout
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
