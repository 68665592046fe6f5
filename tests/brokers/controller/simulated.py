"""Controllers and brokers over a simulated ZooKeeper: who leads what, whatever breaks on the way.

The controllers are the real ones. The brokers register, watch, activate themselves and change ISRs by
the real recipes; they hold no records.
"""

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial

import msgspec

from folkmoot.brokers.controller.controller import Controller
from folkmoot.coordination import brokers, partition_states, paths, topics
from folkmoot.coordination.brokers import Registration
from folkmoot.coordination.cluster import reassignments
from folkmoot.coordination.cluster.controllers import Controller as ControllerNode
from folkmoot.coordination.partition_states import (
    PartitionState,
    StateWrite,
    TopicIdPartition,
    VersionedState,
)
from folkmoot.coordination.topics import TopicInfo
from folkmoot.coordination.zookeeper.execute import advance
from folkmoot.coordination.zookeeper.operations import (
    Multi,
    Operation,
    Recipe,
    Set,
)
from folkmoot.coordination.zookeeper.recipes import ensure
from folkmoot.coordination.zookeeper.session import Outcome, SessionState
from folkmoot.protocol.errors import FolkmootError
from tests.memory_zookeeper import Tree
from tests.simulation.checks import Violation
from tests.simulation.line import Line
from tests.simulation.world import World

SESSION_TIMEOUT = 3.0
_STATES = f"{paths.PARTITIONS}/"
_state = msgspec.json.Decoder(PartitionState)
_controller = msgspec.json.Decoder(ControllerNode)
_registration = msgspec.json.Decoder(Registration)
_topic = msgspec.json.Decoder(TopicInfo)


class Process:
    """Something with one session at a time, which carries out recipes side by side, then looks again."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.incarnation = 0
        self.line: Line | None = None
        self._under_way = 0

    @property
    def is_alive(self) -> bool:
        return self.line is not None and self.line.state is not SessionState.LOST

    @property
    def who(self) -> str:
        """This incarnation, as the history calls it."""
        return f"{self.name}/{self.incarnation}"

    def start(self) -> None:
        """Begin anew, with another session."""
        self.incarnation += 1
        self._under_way = 0
        self.line = Line(self.world, self.who, SESSION_TIMEOUT)
        self.begin()
        self.line.holder_hears = partial(self._look, self.incarnation)
        self._look(self.incarnation)

    def begin(self) -> None:
        raise NotImplementedError

    def step(self) -> list[Recipe[None]]:
        raise NotImplementedError

    def _look(self, incarnation: int) -> None:
        if incarnation != self.incarnation or self._under_way or self.line is None:
            return
        if self.line.state is SessionState.LOST:
            self.fail()
            return
        recipes = self.step()
        self._under_way += len(recipes)
        for recipe in recipes:
            self._go_on(incarnation, recipe, None)

    def _go_on(self, incarnation: int, recipe: Recipe[None], outcome: Outcome | None) -> None:
        if incarnation != self.incarnation or self.line is None:
            return
        try:
            operation = advance(recipe, outcome)
        except StopIteration:
            self._under_way -= 1
            if not self._under_way:
                self.world.after(0.0, partial(self._look, incarnation))
        except FolkmootError as error:
            self.world.note(f"{self.who} begins anew: {error}")
            self.world.seen[f"{type(self).__name__} {type(error).__name__}"] += 1
            self.fail()
        else:
            self.line.submit(operation, partial(self._go_on, incarnation, recipe))

    def fail(self) -> None:
        """Close the session and begin anew after a pause."""
        line, self.line = self.line, None
        self.incarnation += 1
        if line is not None:
            line.close()
        self.world.after(self.world.random.uniform(0.1, 1.0), self._restart(self.incarnation))

    def die(self, guarded: bool) -> None:
        """Kill the process; it is started again after a while."""
        if self.line is None:
            return
        self.world.note(f"{self.who} dies")
        line, self.line = self.line, None
        self.incarnation += 1
        line.vanish(guarded)
        self.world.after(self.world.random.uniform(0.1, 8.0), self._restart(self.incarnation))

    def _restart(self, incarnation: int) -> Callable[[], None]:
        def restart() -> None:
            if incarnation == self.incarnation:
                self.start()

        return restart


class ControllerProcess(Process):
    """A candidate: the real thing, driven by this world's time."""

    def begin(self) -> None:
        self.controller = Controller(int(self.name[1:]), self.who, self._woken)

    def step(self) -> list[Recipe[None]]:
        recipes = self.controller.step(self.world.now)
        due = self.controller.ask_again
        if not recipes and due is not None:
            self.world.at(max(due, self.world.now), partial(self._look, self.incarnation))
        return recipes

    def _woken(self) -> None:
        self.world.after(0.0, partial(self._look, self.incarnation))


class BrokerProcess(Process):
    """A broker as the controller sees it: registered, obedient, and with opinions about its ISRs."""

    def __init__(self, world: World, number: int) -> None:
        super().__init__(world, f"b{number}")
        self.number = number
        self.begin()

    def begin(self) -> None:
        self.mine = Registration({}, self.who, f"directory of {self.number}")
        self.registered: Registration | None = None
        self.rang: deque[object] = deque(("register", "topics"))
        self.stale: dict[object, None] = {}
        self.states: dict[TopicIdPartition, VersionedState] = {}
        self.replicas: dict[TopicIdPartition, list[int]] = {}
        self.led: dict[TopicIdPartition, int] = {}
        """What this incarnation has activated: partition → leader epoch."""

    def step(self) -> list[Recipe[None]]:
        while self.rang:
            self.stale[self.rang.popleft()] = None
        stale, self.stale = self.stale, {}
        recipes: list[Recipe[None]] = []
        for what in stale:
            if what == "register":
                recipes.append(self._register())
            elif what == "topics":
                recipes.append(self._read_topics())
            elif isinstance(what, TopicIdPartition):
                recipes.append(self._read_state(what))
        if not recipes and self.registered is not None:
            due = {each: known for each, known in self.states.items() if self._is_to_lead(each)}
            if due:
                recipes.append(self._activate(due))
        return recipes

    def _ring(self, what: object) -> None:
        self.rang.append(what)

    def _register(self) -> Recipe[None]:
        ring = partial(self._ring, "register")
        self.registered = yield from brokers.register(self.number, self.mine, ring)

    def _read_topics(self) -> Recipe[None]:
        for name in (yield from topics.names(partial(self._ring, "topics"))):
            topic = yield from topics.read(name, partial(self._ring, "topics"))
            if topic is not None:
                for number, replicas in enumerate(topic.partitions):
                    each = TopicIdPartition(topic.topic_id, number)
                    if self.number in replicas:
                        self.replicas[each] = replicas
                        self.stale[each] = None
                    else:
                        for kept in (self.replicas, self.states, self.led):
                            kept.pop(each, None)

    def _read_state(self, partition: TopicIdPartition) -> Recipe[None]:
        found = yield from partition_states.read(partition, partial(self._ring, partition))
        if found is not None and partition in self.replicas:
            self.states[partition] = found

    def _is_to_lead(self, partition: TopicIdPartition) -> bool:
        state = self.states[partition].state
        leads = state.active and self.led.get(partition) == state.leader_epoch
        is_mine = state.leader == self.number and self.number in state.isr
        return is_mine and not leads

    def _activate(self, due: dict[TopicIdPartition, VersionedState]) -> Recipe[None]:
        writes = {
            each: StateWrite(known.state.activate(), known.partition_epoch)
            for each, known in due.items()
        }
        for each, answer in (yield from partition_states.write(writes)).items():
            if isinstance(answer, VersionedState):
                self.states[each] = answer
                self.led[each] = answer.state.leader_epoch
            else:
                self.states.pop(each, None)
                self.stale[each] = None

    def change_isr(self, others: Iterable["BrokerProcess"], *, only_join: bool = False) -> None:
        """Take a replica out of the ISR of something that it leads, or have one join."""
        leading = [each for each in self.led if each in self.states and self._leads(each)]
        if self.line is None or self._under_way or not leading:
            return
        each = self.world.random.choice(sorted(leading))
        known = self.states[each]
        alive = {
            other.number: other.registered.epoch
            for other in others
            if other.registered is not None and other.number in self.replicas[each]
        }
        absent = sorted(alive.keys() - set(known.state.isr))
        isr = list(known.state.isr)
        joins: dict[int, int] = {}
        strangers = [other for other in isr if other not in self.replicas[each]]
        if strangers:
            isr.remove(strangers[0])
        elif absent and (only_join or self.world.random.random() < 0.7):
            joined = self.world.random.choice(absent)
            joins = {joined: alive[joined]}
            isr.append(joined)
        elif len(isr) > 1 and not only_join:
            isr.remove(self.world.random.choice([other for other in isr if other != self.number]))
        else:
            return
        write = StateWrite(known.state.with_isr(isr), known.partition_epoch, joins)
        self._under_way += 1
        self._go_on(self.incarnation, self._write_isr(each, write), None)

    def _leads(self, partition: TopicIdPartition) -> bool:
        state = self.states[partition].state
        is_mine = state.leader == self.number and state.active
        return is_mine and self.led.get(partition) == state.leader_epoch

    def _write_isr(self, partition: TopicIdPartition, write: StateWrite) -> Recipe[None]:
        answers = yield from partition_states.write({partition: write})
        answer = answers[partition]
        self.world.seen[f"ISR {type(answer).__name__}"] += 1
        if isinstance(answer, VersionedState):
            self.states[partition] = answer
        else:
            self.stale[partition] = None


class Checker:
    """Looks at every write to a state: whether its writer may do that."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._elected: dict[int, str] = {}
        self.activated: dict[tuple[TopicIdPartition, int], str] = {}

    def asked(self, who: str, operation: Operation) -> None:
        pass

    def told(self, who: str, operation: Operation, outcome: Outcome) -> None:
        pass

    def wrote(self, writer: str, operation: Operation | None, before: Tree, after: Tree) -> None:
        if operation is not None and not isinstance(operation, Multi):
            return
        if operation is None:
            return
        for write in operation.writes:
            if write.path.startswith("/topics/") and writer.startswith("c"):
                self._topic_by_the_controller(writer, write.path, before, after)
        for write in operation.writes:
            if write.path == paths.CONTROLLER_EPOCH and isinstance(write, Set):
                self._elected[after[write.path].version] = writer
            if write.path.startswith(_STATES) and write.path.count("/") == 3:
                was, now = before.get(write.path), after.get(write.path)
                self._judge(
                    writer,
                    _partition(write.path),
                    None if was is None else _state.decode(was.data),
                    None if now is None else _state.decode(now.data),
                    after,
                )

    def _topic_by_the_controller(self, writer: str, path: str, before: Tree, after: Tree) -> None:
        """It ends reassignments, each with what its state is to be, and changes nothing else."""
        was, now = _topic.decode(before[path].data), _topic.decode(after[path].data)
        ended = was.reassignments.keys() - now.reassignments.keys()
        kept = {number: move for number, move in was.reassignments.items() if number not in ended}
        partitions = list(was.partitions)
        for number in ended:
            move = was.reassignments[number]
            partitions[number] = move.target
            node = paths.partition_state(was.topic_id, number)
            earlier, state = _state.decode(before[node].data), _state.decode(after[node].data)
            missing = set(move.target) - set(earlier.isr)
            if missing and not move.is_cancelled:
                raise Violation(f"{writer} ended {path}-{number} without {missing}: {earlier}")
            is_within = set(state.isr) <= set(move.target) and state.leader in state.isr
            is_counted = state.reassigned == now.reassigned == was.reassigned + 1
            if state.active or not is_within or not is_counted:
                raise Violation(f"{writer} ended {path}-{number} with {state}: {move}")
            self._world.seen["cancelled" if move.is_cancelled else "reassigned"] += 1
        ended_as = {
            "partitions": partitions,
            "reassignments": kept,
            "reassigned": now.reassigned,
            "revision": was.revision + 1,
        }
        if now != msgspec.structs.replace(was, **ended_as):
            raise Violation(f"{writer} changed {path} from {was} to {now}")

    def _judge(
        self,
        writer: str,
        partition: TopicIdPartition,
        was: PartitionState | None,
        now: PartitionState | None,
        tree: Tree,
    ) -> None:
        broker = writer.split("/")[0]
        if now is None or was is None:
            self._by_the_controller(writer, partition, tree)
            if now is not None and (now.leader_epoch or now.active):
                raise Violation(f"{writer} created {partition} as {now}")
        elif now.leader_epoch == was.leader_epoch + 1:
            if not (now.active and now == was.activate()):
                raise Violation(f"{writer} activated {partition} as {now}, it was {was}")
            if broker != f"b{now.leader}" or now.leader not in now.isr:
                raise Violation(f"{writer} was not to activate {partition}: {was}")
            earlier = self.activated.setdefault((partition, now.leader_epoch), writer)
            if earlier != writer:
                raise Violation(f"{earlier} and {writer} lead {partition} in one epoch: {now}")
            self._world.seen["activation"] += 1
        elif now.leader_epoch != was.leader_epoch:
            raise Violation(f"{writer} changed the epoch of {partition} from {was} to {now}")
        elif now.active:
            if broker != f"b{was.leader}" or now != was.with_isr(now.isr):
                raise Violation(f"{writer} changed {partition} from {was} to {now}")
        else:
            self._by_the_controller(writer, partition, tree)
            is_subset = now.leader in was.isr and set(now.isr) <= set(was.isr)
            is_first = not was.leader_epoch and now.isr == (now.leader,)
            if not (is_subset or is_first):
                raise Violation(f"{writer} designated for {partition} {now}, it was {was}")
            self._world.seen["designation"] += 1

    def _by_the_controller(self, writer: str, partition: TopicIdPartition, tree: Tree) -> None:
        epoch = tree[paths.CONTROLLER_EPOCH].version
        if self._elected.get(epoch) != writer:
            raise Violation(
                f"{writer} wrote {partition} in the epoch {epoch} of {self._elected.get(epoch)}"
            )


def _partition(path: str) -> TopicIdPartition:
    topic_id, number = path.removeprefix(_STATES).split("/")
    return TopicIdPartition(topic_id, int(number))


class ClusterHistory:
    """One history of a small cluster: faults for a while, then peace, in which all must come right."""

    def __init__(self, seed: int) -> None:
        self.world = world = World(seed)
        random = world.random
        world.lag = random.choice((0.0, 0.1, 0.3))
        self.checker = Checker(world)
        world.watchers.append(self.checker)
        self.brokers = [BrokerProcess(world, number) for number in range(1, random.randint(3, 5))]
        self.controllers = [ControllerProcess(world, f"c{number}") for number in (1, 2, 3)]
        self._admin = world.zookeeper.connect()
        self._topics = 0
        self._end_of_faults = world.now + random.uniform(10.0, 40.0)

    def run(self) -> None:
        world = self.world
        for process in (*self.brokers, *self.controllers):
            world.after(world.random.uniform(0.0, 2.0), process.start)
        for _ in range(2):
            self._create_topic()
        world.after(1.0, self._something_happens)
        world.run(self._end_of_faults)
        world.faults = False
        self._all_join()
        world.run(self._end_of_faults + 120.0)
        self.check_peace()

    # -- what happens -----------------------------------------------------------------------------

    def _something_happens(self) -> None:
        world, random = self.world, self.world.random
        if not world.faults:
            return
        acts: tuple[Callable[[], object], ...] = (
            self._break_a_connection,
            self._end_a_session,
            self._make_a_zombie,
            self._kill,
            self._ambush,
            self._ambush,
            self._change_an_isr,
            self._change_an_isr,
            self._change_an_isr,
            self._change_topics,
            self._reassign,
            self._reassign,
        )
        random.choice(acts)()
        world.after(random.expovariate(2.0), self._something_happens)

    def _some(self) -> Process:
        """Mostly one that matters."""
        random = self.world.random
        if random.random() < 0.6:
            elected = [
                each for each in self.controllers if each.line and each.controller.is_elected
            ]
            return random.choice(elected or self.controllers)
        return random.choice(self.brokers)

    def _break_a_connection(self) -> None:
        line = self._some().line
        if line is not None:
            line.break_off(self.world.random.choice((0.05, 0.5, 5.0)))

    def _end_a_session(self) -> None:
        line = self._some().line
        if line is not None:
            line.expire()

    def _make_a_zombie(self) -> None:
        """Its session ends, it does not know, and what it writes arrives; in the end it hears of it."""
        line = self._some().line
        if line is not None and line.is_sound:
            self.world.seen["zombie"] += 1
            line.expire(zombie=True, blind=self.world.random.random() < 0.5)
            self.world.after(self.world.random.uniform(0.5, 10.0), line.lose)

    def _kill(self) -> None:
        self._some().die(guarded=self.world.random.random() < 0.5)

    def _ambush(self) -> None:
        """Right at its next write it dies, or its connection breaks: the write was done, or not."""
        process, random = self._some(), self.world.random
        line = process.line
        if line is None:
            return
        if random.random() < 0.5:
            line.ambush = partial(process.die, random.random() < 0.5)
        else:
            line.ambush = partial(line.break_off, random.choice((0.05, 0.5, 5.0)))

    def _change_an_isr(self) -> None:
        self.world.random.choice(self.brokers).change_isr(self.brokers)

    def _all_join(self) -> None:
        """In peace every replica comes into sync."""
        for broker in self.brokers:
            broker.change_isr(self.brokers, only_join=True)
        self.world.after(0.3, self._all_join)

    def _reassign(self) -> None:
        """Move a partition's replicas, or, rather seldom, take that back."""
        random = self.world.random
        names = [path for path in self.world.versions[-1] if path.startswith("/topics/")]
        if names:
            path = random.choice(names)
            topic = _topic.decode(self.world.versions[-1][path].data)
            name = path.removeprefix("/topics/")
            if topic.reassignments and random.random() < 0.3:
                self._ask(reassignments.cancel(name))
            else:
                number = random.randrange(len(topic.partitions))
                self._ask(reassignments.start(name, {number: self._placed(1)[0]}))

    def _change_topics(self) -> None:
        random = self.world.random
        names = [path for path in self.world.versions[-1] if path.startswith("/topics/")]
        if len(names) < 2 or random.random() < 0.4:
            self._create_topic()
            return
        name = random.choice(names).removeprefix("/topics/")
        if random.random() < 0.5:
            self._ask(topics.delete(name))
        else:
            topic = _topic.decode(self.world.versions[-1][paths.topic(name)].data)
            grown = msgspec.structs.replace(
                topic, partitions=[*topic.partitions, self._placed(1)[0]]
            )
            self._ask(_overwrite(paths.topic(name), msgspec.json.encode(grown)))

    def _create_topic(self) -> None:
        self._topics += 1
        topic = TopicInfo(
            f"{self.world.random.getrandbits(64):016x}",
            self._placed(self.world.random.randint(1, 4)),
        )
        name = f"t{self.world.random.randint(1, 3)}"
        self._ask(ensure(paths.TOPICS))
        self._ask(ensure(paths.partition_states(topic.topic_id)))
        if paths.topic(name) not in self.world.versions[-1]:
            self._ask(ensure(paths.topic(name), msgspec.json.encode(topic)))

    def _placed(self, partitions: int) -> list[list[int]]:
        numbers = [broker.number for broker in self.brokers]
        random = self.world.random
        return [
            random.sample(numbers, random.randint(1, min(3, len(numbers))))
            for _ in range(partitions)
        ]

    def _ask(self, recipe: Recipe[object]) -> None:
        """By somebody whose connection never breaks."""
        outcome: Outcome | None = None
        try:
            while True:
                operation = advance(recipe, outcome)
                outcome, _ = self.world.execute("admin", self._admin, operation, None)
        except (StopIteration, FolkmootError):
            pass

    # -- what must be true in the end ---------------------------------------------------------------

    def check_peace(self) -> None:
        """Everybody is back: each partition has a live, active leader in its ISR; no more states."""
        tree = self.world.versions[-1]
        if paths.CONTROLLER not in tree:
            raise Violation("there is no controller")
        live = {
            int(path.removeprefix(f"{paths.BROKERS}/")): _registration.decode(node.data)
            for path, node in tree.items()
            if path.startswith(f"{paths.BROKERS}/")
        }
        if live.keys() != {broker.number for broker in self.brokers}:
            raise Violation(f"brokers {sorted(live)} are registered")
        found = [_topic.decode(tree[path].data) for path in tree if path.startswith("/topics/")]
        expected = {
            TopicIdPartition(topic.topic_id, number): replicas
            for topic in found
            for number, replicas in enumerate(topic.partitions)
        }
        states = {
            _partition(path): _state.decode(node.data)
            for path, node in tree.items()
            if path.startswith(_STATES) and path.count("/") == 3
        }
        if states.keys() != expected.keys():
            raise Violation(f"states {sorted(states)} for partitions {sorted(expected)}")
        if any(topic.reassignments for topic in found):
            raise Violation(f"a reassignment has not ended: {found}")
        for partition, state in states.items():
            if not set(state.isr) <= set(expected[partition]):
                raise Violation(f"{partition} is on {expected[partition]}, and {state}")
            leader = live.get(state.leader)
            activated = self.checker.activated.get((partition, state.leader_epoch))
            if leader is None or not state.active or state.leader not in state.isr:
                raise Violation(f"{partition} is led by nobody: {state}")
            if activated != leader.nonce:
                raise Violation(f"{partition} was activated by {activated}, not by {leader.nonce}")
            preferred = expected[partition][0]
            if state.leader != preferred and preferred in state.isr:
                raise Violation(f"{partition} never went back to {preferred}: {state}")
        self.world.seen["partitions in peace"] += len(states)


def _overwrite(path: str, data: bytes) -> Recipe[None]:
    yield Set(path, data)
