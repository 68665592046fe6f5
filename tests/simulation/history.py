"""One history: a group, a few minutes of its life cut short, faults, and then peace."""

from collections.abc import Callable
from functools import partial

import msgspec

from folkmoot.consumers.assignors.next_plan import assignors_of
from folkmoot.consumers.group.events import Committed, Rebalanced
from folkmoot.consumers.group.liveness import Timing
from folkmoot.consumers.group.member_state import MemberSettings
from folkmoot.coordination import paths
from folkmoot.coordination.groups.membership import assignee
from folkmoot.coordination.topics import TopicInfo
from folkmoot.coordination.zookeeper.operations import Create, Delete, Operation, Set
from folkmoot.protocol.records import TopicPartition
from tests.memory_zookeeper import MemorySession
from tests.simulation.administrator import Administrator
from tests.simulation.application import HAND_OVER, SESSION_TIMEOUT, Application
from tests.simulation.checks import Checks, Violation
from tests.simulation.world import World

TOPICS = {"a": 4, "b": 2}
UNREST = 6.0
FAULTS = 5
"""At least so many in each history."""
CALM = 0.5
"""So long it has to be settled: somebody may be about to hear of something."""
LOOK = 0.05
GRACE = 2.0
ADMINISTRATION_BOUND = 30.0
LOST_RING_BOUND = (4 + Timing().verifications) * SESSION_TIMEOUT / Timing().heartbeats
"""Signs of life that look after everything once."""
CALM_BOUND = 9.0 + GRACE
"""Session timeout, grace, debounce and ranks, the slowest drain or hand-over with its margin, the longest
that an application does not look, a few slow round trips."""


class History:
    """Everything in it follows from the seed."""

    def __init__(self, seed: int) -> None:
        self.world = World(seed)
        self.checks = Checks(self.world)
        self.applications: list[Application] = []
        self.administrators: list[Administrator] = []
        self.settled_after = 0.0
        self._admin: MemorySession = self.world.zookeeper.connect()
        self._topic_ids = 0
        self._policy = "earliest"
        self._over_at = 0.0
        """When the last fault has passed."""

    def run(self) -> None:
        """Raises Violation."""
        try:
            self._run()
        finally:
            for application in self.applications:
                application.member.stop(0.0)

    def _run(self) -> None:
        world = self.world
        random = world.random
        world.lag = random.choice((0.0, 0.0, 0.3))
        world.lost_rings = random.choice((0.0, 0.0, 0.02))
        self.checks.policy = self._policy = random.choice(("earliest", "latest"))
        self._write(Create("/topics"))
        for name, partitions in TOPICS.items():
            self._make_topic(name, partitions)
            for number in range(partitions):
                self._send(TopicPartition(name, number))
        world.after(0.0, self._send_now_and_then)
        for _ in range(random.randint(2, 3)):
            world.after(random.uniform(0, 0.5), self._join)
        end = world.now + UNREST
        for _ in range(FAULTS + random.randint(0, 4)):
            fault = random.choices(*zip(*_FAULTS, strict=True))[0]
            world.after(random.uniform(0.5, UNREST), partial(self._befall, fault))
        world.run(end)
        world.faults = False
        world.lag = 0.0
        slow = [each.works_at for each in self.applications if each.running]
        world.run(max(self._over_at, *slow, 0.0))
        self._await_administrators()
        self._make_peace()

    # -- peace ------------------------------------------------------------------------------------

    def _await_administrators(self) -> None:
        """There is no peace before: a deletion takes its time to look at all that it will delete."""
        late = self.world.now + ADMINISTRATION_BOUND
        while any(each.is_at_work for each in self.administrators):
            if self.world.now > late:
                raise Violation("L: an administrator has not come to an end")
            self.world.run(self.world.now + LOOK)

    def _make_peace(self) -> None:
        world = self.world
        began = world.now
        bound = CALM_BOUND
        if world.lost_rings:
            bound += LOST_RING_BOUND
        settled = False
        while not settled:
            while self._trouble():
                if not any(each.running and not each.leaving for each in self.applications):
                    self._join()
                    began = world.now
                if world.now > began + bound:
                    raise Violation(f"L: not settled after {bound:.1f} s: {self._trouble()}")
                world.run(world.now + LOOK)
            self.settled_after = world.now - began
            world.run(world.now + CALM)
            settled = not self._trouble()
        outcomes = {each.name: each.commit_all() for each in self.applications if each.running}
        world.run(world.now + 1.0)
        for each in self.applications:
            outcome = outcomes.get(each.name)
            if each.running and outcome is not None and outcome.result(0.0).refused:
                raise Violation(f"{each.name} owns its partitions and may not commit")
        if beyond := self.checks.beyond():
            raise Violation(f"E: nobody goes back to what a log has: {beyond}")
        if self._trouble():
            raise Violation(f"settled, and then not: {self._trouble()}")

    def _trouble(self) -> str:
        """What is not as it should be in the end."""
        running = [each for each in self.applications if each.running]
        if any(each.leaving for each in running):
            return "somebody has not left yet"
        unheard = [notice for each in running for notice in each.member.notices]
        if any(not isinstance(notice, Committed | Rebalanced) for notice in unheard):
            return "somebody has not heard of all"
        held = [owned for each in running for owned in each.member.state.owned._owned.values()]
        if any(owned.stage for owned in held):
            return "somebody is about to let go of something"
        standing = self.checks.standing()
        names = {each.member.name for each in running}
        if names != standing.members.keys():
            return f"members: running {names}, registered {standing.members.keys()}"
        if standing.trouble:
            return standing.trouble
        for each in running:
            read = {
                partition: (reading.epoch, reading.topic_id)
                for partition, reading in each.readings.items()
            }
            owned = standing.shares.get(assignee(each.member.name or ""), {})
            if read != owned:
                return f"{each.name} reads {read} and owns {owned}"
        return ""

    # -- faults -----------------------------------------------------------------------------------

    def _befall(self, fault: str) -> None:
        running = [each for each in self.applications if each.running]
        world = self.world
        if not world.faults or (not running and fault != "join"):
            return
        chosen = world.random.choice(running) if running else None
        world.seen[f"fault {fault}"] += 1
        world.note(f"fault: {fault}")
        done: Callable[[], None] | None = getattr(self, f"_{fault.replace(' ', '_')}", None)
        if done is not None:
            done()
        elif chosen is not None:
            self._befall_one(fault, chosen)

    def _befall_one(self, fault: str, chosen: Application) -> None:
        line = chosen.line
        assert line is not None
        match fault:
            case "expiry":
                line.expire()
            case "zombie" | "blind zombie":
                line.expire(zombie=True, blind=fault == "blind zombie")
                self.world.after(self._for(0.5, 4.0), line.lose)
            case "break":
                pause = self._for(0.0, 0.5)
                line.ambush = lambda: line.break_off(pause)
            case "silence":
                line.break_off(self._for(0.5 * SESSION_TIMEOUT, 1.5 * SESSION_TIMEOUT))
            case "freeze":
                chosen.freeze(self._for(0.1 * SESSION_TIMEOUT, 2.0 * SESSION_TIMEOUT))
            case "crash":
                chosen.crash()
            case "crash at a write":
                line.ambush = chosen.crash
            case "leave":
                chosen.leave()
            case "stall":
                chosen.stall(self._for(0.5, 5.0))
            case "slow drain":
                chosen.slow = self.world.random.uniform(0.0, 3.0)
            case "removal by hand":
                if chosen.member.name is not None:
                    self._write(Delete(paths.member("g", chosen.member.name)))

    def _for(self, least: float, most: float) -> float:
        """How long a fault lasts."""
        duration = self.world.random.uniform(least, most)
        self._over_at = max(self._over_at, self.world.now + duration)
        return duration

    def _join(self, instance_id: str | None = None, like: Application | None = None) -> None:
        if sum(each.running for each in self.applications) >= 4 and like is None:
            return
        name = f"m{len(self.applications)}"
        settings = like.settings if like is not None else self._settings(name, instance_id)
        by_hand = self.world.random.random() < 0.3
        self.world.seen["commits by hand"] += by_hand
        application = Application(
            *(self.world, name, settings, self.checks), policy=self._policy, by_hand=by_hand
        )
        self.applications.append(application)
        application.start()

    def _settings(self, name: str, instance_id: str | None) -> MemberSettings:
        random = self.world.random
        topics, pattern = random.choice(_WISHES)
        if instance_id is None and random.random() < 0.4:
            instance_id = random.choice(self._free_instances() or [None])
        return MemberSettings(
            group="g",
            topics=topics,
            pattern=pattern,
            client_id=name,
            instance_id=instance_id,
            rejoin_timeout=GRACE,
            revoke_timeout=HAND_OVER,
            session_timeout=SESSION_TIMEOUT,
            max_processing_time=random.choice((None, 1.5)),
            assignors=random.choice(_ASSIGNORS),
            rack=random.choice(("", "r1")),
            protocol=random.choice((1, 2)),
        )

    def _free_instances(self) -> list[str | None]:
        taken = {each.settings.instance_id for each in self.applications if each.running}
        return [each for each in ("s0", "s1") if each not in taken]

    def _static(self) -> list[Application]:
        running = [each for each in self.applications if each.running and not each.leaving]
        return [each for each in running if each.settings.instance_id is not None]

    def _restart(self) -> None:
        """A static member dies, or leaves, and a process like it comes soon, or too late."""
        found = self._static()
        if not found:
            return self._join(self.world.random.choice(self._free_instances() or [None]))
        old = self.world.random.choice(found)
        if self.world.random.random() < 0.5:
            old.crash(guarded=self.world.random.random() < 0.7)
        else:
            old.leave()
        self.world.after(self._for(0.0, 1.5 * GRACE), partial(self._join_instead_of, old))
        return None

    def _join_instead_of(self, old: Application) -> None:
        instance_id = old.settings.instance_id
        there = [each.settings.instance_id for each in self.applications if each.running]
        if not old.leaving or instance_id not in there:
            self._join(instance_id, like=old if self.world.random.random() < 0.8 else None)

    def _second_process(self) -> None:
        """Somebody starts a process with an instance id that another one has."""
        found = self._static()
        if found:
            self._join(like=self.world.random.choice(found))
        else:
            self._join(self.world.random.choice(self._free_instances() or [None]))

    def _new_topic(self) -> None:
        """A topic is deleted and, soon or a little later, made anew with another id."""
        name = self.world.random.choice(("a", "b"))
        if paths.topic(name) not in self.world.versions[-1]:
            return
        self._write(Delete(paths.topic(name)))
        pause = self._for(0.0, self.world.random.choice((0.0, 0.02, 2.0)))
        self.world.after(pause, lambda: self._make_topic(name, TOPICS[name]))

    def _matching_topic(self) -> None:
        """A topic comes that only patterns want, or goes again."""
        if paths.topic("aa") in self.world.versions[-1]:
            self._write(Delete(paths.topic("aa")))
        else:
            self._make_topic("aa", 2)

    def _more_partitions(self) -> None:
        name = self.world.random.choice(("a", "b"))
        node = self.world.versions[-1].get(paths.topic(name))
        if node is not None:
            topic = msgspec.json.decode(node.data, type=TopicInfo)
            more = [*topic.partitions, *[[1]] * self.world.random.randint(1, 2)]
            info = TopicInfo(topic.topic_id, more)
            self._write(Set(paths.topic(name), msgspec.json.encode(info)))

    def _owner_removed_by_hand(self) -> None:
        owned = self.checks.owned()
        if owned:
            self._write(Delete(paths.owner("g", *self.world.random.choice(owned))))

    def _log_cut(self) -> None:
        """A log loses its end, and ends below what the group has committed."""
        name = self.world.random.choice(("a", "b"))
        node = self.world.versions[-1].get(paths.topic(name))
        if node is not None:
            topic = msgspec.json.decode(node.data, type=TopicInfo)
            number = self.world.random.randrange(len(topic.partitions))
            self.checks.cut(TopicPartition(name, number), topic.topic_id)

    # -- the administrator ------------------------------------------------------------------------

    def _reset(self) -> None:
        """An offset is moved, to where the group has been or not yet, while members are at work."""
        name = self.world.random.choice(("a", "b"))
        node = self.world.versions[-1].get(paths.topic(name))
        if node is not None:
            topic = msgspec.json.decode(node.data, type=TopicInfo)
            number = self.world.random.randrange(len(topic.partitions))
            partition = TopicPartition(name, number)
            end = self.checks.logs.end_after_cut(partition, topic.topic_id)
            offset = self.world.random.randint(0, 30 if end is None else min(end, 30))
            self._administrator().reset("g", partition, topic.topic_id, offset)

    def _group_deleted(self) -> None:
        """Mostly by force: who lives joins anew, and begins anew. Often somebody is not to know.

        And often all the others were ended before, and others come after it.
        """
        random = self.world.random
        running = [each for each in self.applications if each.running]
        if random.random() < 0.5:
            zombie = random.choice(running)
            self._befall_one("blind zombie", zombie)
            if random.random() < 0.5:
                for each in running:
                    if each is not zombie:
                        each.crash(guarded=True)
                        self.world.after(self._for(0.0, 0.3), self._join)
        self._administrator().delete("g", force=random.random() < 0.9)

    def _administrator(self) -> Administrator:
        self.administrators.append(Administrator(self.world))
        return self.administrators[-1]

    def _send_now_and_then(self) -> None:
        topics = self.checks.standing().topics
        if topics:
            name = self.world.random.choice(sorted(topics))
            count = len(topics[name].partitions)
            self._send(TopicPartition(name, self.world.random.randrange(count)))
        if self.world.faults:
            self.world.after(self.world.random.uniform(0.0, 0.3), self._send_now_and_then)

    def _send(self, partition: TopicPartition) -> None:
        topic = self.checks.standing().topics[partition.topic]
        self.checks.logs.send(partition, topic.topic_id, self.world.random.randint(0, 3))

    def _make_topic(self, name: str, partitions: int) -> None:
        self._topic_ids += 1
        info = TopicInfo(f"id-{self._topic_ids}", [[1]] * partitions)
        self._write(Create(paths.topic(name), msgspec.json.encode(info)))

    def _write(self, operation: Operation) -> None:
        self.world.execute("admin", self._admin, operation, None)


_FAULTS = [
    ("expiry", 2),
    ("zombie", 4),
    ("blind zombie", 2),
    ("break", 6),
    ("silence", 2),
    ("freeze", 2),
    ("crash", 1),
    ("crash at a write", 2),
    ("join", 4),
    ("leave", 2),
    ("slow drain", 3),
    ("removal by hand", 1),
    ("owner removed by hand", 1),
    ("new topic", 2),
    ("reset", 4),
    ("group deleted", 1),
    ("matching topic", 1),
    ("more partitions", 1),
    ("restart", 3),
    ("second process", 2),
    ("stall", 2),
    ("log cut", 2),
]
_WISHES: list[tuple[tuple[str, ...], str]] = [
    (("a", "b"), ""),
    (("a", "b"), ""),
    (("a",), ""),
    (("b",), ""),
    ((), "a+"),
    (("b",), "a+"),
]
_ASSIGNORS = [assignors_of(names) for names in ((), (), ("range",), ("range", "round-robin"))]
FAULT_NAMES = frozenset(name for name, _ in _FAULTS) | {"lost ring"}
