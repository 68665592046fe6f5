"""One history: a group, a few minutes of its life cut short, faults, and then peace."""

from collections.abc import Callable
from functools import partial

import msgspec

from folkmoot.consumers.events import Committed, Rebalanced
from folkmoot.consumers.timing import Timing
from folkmoot.coordination import paths
from folkmoot.coordination.memory import MemoryStore
from folkmoot.coordination.operations import Create, Delete, Operation
from folkmoot.coordination.topics import TopicInfo
from tests.simulation.application import SESSION_TIMEOUT, Application
from tests.simulation.checks import Checks, Violation
from tests.simulation.world import World

TOPICS = {"a": 4, "b": 2}
UNREST = 6.0
FAULTS = 5
"""At least so many in each history."""
CALM = 0.5
"""So long it has to be settled: somebody may be about to hear of something."""
LOOK = 0.05
CALM_BOUND = 9.0
"""Session timeout, debounce and ranks, the slowest drain or hand-over with its margin, the longest that
an application does not look, a few slow round trips."""


class History:
    """Everything in it follows from the seed."""

    def __init__(self, seed: int) -> None:
        self.world = World(seed)
        self.checks = Checks(self.world)
        self.applications: list[Application] = []
        self.settled_after = 0.0
        self._admin: MemoryStore = self.world.zookeeper.connect()
        self._topic_ids = 0
        self._over_at = 0.0
        """When the last fault has passed."""

    def run(self) -> str:
        """Raises Violation. Returns the history's hash."""
        try:
            self._run()
        finally:
            for application in self.applications:
                application.member.stop(0.0)
        return self.world.hash()

    def _run(self) -> None:
        world = self.world
        random = world.random
        world.lag = random.choice((0.0, 0.0, 0.3))
        world.lost_rings = random.choice((0.0, 0.0, 0.02))
        self._write(Create("/topics"))
        for name, partitions in TOPICS.items():
            self._make_topic(name, partitions)
        for _ in range(random.randint(2, 3)):
            world.after(random.uniform(0, 0.5), self._join)
        end = world.now + UNREST
        for _ in range(FAULTS + random.randint(0, 4)):
            fault = random.choices(*zip(*_FAULTS, strict=True))[0]
            world.after(random.uniform(0.5, UNREST), partial(self._befall, fault))
        world.run(end)
        world.faults = False
        world.lag = 0.0
        world.run(self._over_at)
        self._make_peace()

    # -- peace ------------------------------------------------------------------------------------

    def _make_peace(self) -> None:
        world = self.world
        if not any(each.running and not each.leaving for each in self.applications):
            self._join()
        began = world.now
        bound = CALM_BOUND
        if world.lost_rings:
            bound += Timing().sweep * 1.3
        settled = False
        while not settled:
            while self._trouble():
                if world.now > began + bound:
                    raise Violation(f"L: not settled after {bound:.1f} s: {self._trouble()}")
                world.run(world.now + LOOK)
            self.settled_after = world.now - began
            world.run(world.now + CALM)
            settled = not self._trouble()
        tokens = {each.name: each.commit_all() for each in self.applications if each.running}
        world.run(world.now + 1.0)
        for each in self.applications:
            if each.running and tokens[each.name] in each.refused:
                raise Violation(f"{each.name} owns its partitions and may not commit")
        if self._trouble():
            raise Violation(f"settled, and then not: {self._trouble()}")

    def _trouble(self) -> str:
        """What is not as it should be in the end."""
        running = [each for each in self.applications if each.running]
        names = {each.member.name for each in running}
        if any(each.leaving for each in running):
            return "somebody has not left yet"
        unheard = [notice for each in running for notice in each.member.notices]
        if any(not isinstance(notice, Committed | Rebalanced) for notice in unheard):
            return "somebody has not heard of all"
        if names != self.checks.members().keys():
            return f"members: running {names}, registered {self.checks.members().keys()}"
        plan = self.checks.plan()
        if set(plan.members) != names:
            return f"planned for {plan.members}, running {names}"
        planned = self.checks.planned()
        if planned.keys() != self.checks.wanted():
            return f"planned {sorted(planned)}, wanted {sorted(self.checks.wanted())}"
        owners = self.checks.owners()
        if {partition: owner.member for partition, owner in owners.items()} != planned:
            return f"planned {planned}, owned {owners}"
        for each in running:
            read = {partition: reading.epoch for partition, reading in each.readings.items()}
            owned = {
                partition: owner.epoch
                for partition, owner in owners.items()
                if owner.member == each.member.name
            }
            if read != owned:
                return f"{each.name} reads {read} and owns {owned}"
            for partition, reading in each.readings.items():
                if reading.topic_id != plan.topics[partition.topic].topic_id:
                    return f"{each.name} still reads the old {partition.topic}"
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

    def _join(self) -> None:
        if sum(each.running for each in self.applications) >= 4:
            return
        topics = self.world.random.choice((("a", "b"), ("a", "b"), ("a",), ("b",)))
        name = f"m{len(self.applications)}"
        application = Application(self.world, name, topics, self.checks)
        self.applications.append(application)
        application.start()

    def _new_topic(self) -> None:
        """A topic is deleted and, soon or a little later, made anew with another id."""
        name = self.world.random.choice(("a", "b"))
        if paths.topic(name) not in self.world.versions[-1]:
            return
        self._write(Delete(paths.topic(name)))
        pause = self._for(0.0, self.world.random.choice((0.0, 0.02, 2.0)))
        self.world.after(pause, lambda: self._make_topic(name, TOPICS[name]))

    def _owner_removed_by_hand(self) -> None:
        owners = sorted(self.checks.owners())
        if owners:
            self._write(Delete(paths.owner("g", *self.world.random.choice(owners))))

    # -- the administrator ------------------------------------------------------------------------

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
]
FAULT_NAMES = frozenset(name for name, _ in _FAULTS) | {"lost ring"}
