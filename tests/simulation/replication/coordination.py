"""Simulated processes' threads towards ZooKeeper: a broker's watcher, and a controller."""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from folkmoot.brokers.controller.leadership import Leadership
from folkmoot.coordination import brokers, partition_states, paths, topics
from folkmoot.coordination.brokers import Registration
from folkmoot.coordination.cluster import controllers, reassignments
from folkmoot.coordination.partition_states import (
    MISSING,
    NOBODY,
    PartitionState,
    StateWrite,
    TopicIdPartition,
    VersionedState,
)
from folkmoot.coordination.topics import TopicInfo
from folkmoot.coordination.zookeeper.execute import advance
from folkmoot.coordination.zookeeper.operations import (
    ConnectionLost,
    Operation,
    Recipe,
    SessionLost,
    Sync,
    ZooKeeperError,
)
from folkmoot.coordination.zookeeper.recipes import GuardRefused, retry_on_connection_loss
from folkmoot.coordination.zookeeper.session import Outcome, SessionState
from folkmoot.protocol.errors import BrokerIdTaken, StorageError
from tests.memory_zookeeper import Tree
from tests.simulation.checks import Violation
from tests.simulation.line import Line
from tests.simulation.world import World

TOPIC = "t"
PARTITION = TopicIdPartition("id", 0)
SESSION_TIMEOUT = 0.5
REOPEN_AFTER = 0.05
MOMENT = 1e-9
"""What is due at the same time happens in any order."""
_STATE = paths.partition_state(*PARTITION)
_state = msgspec.json.Decoder(PartitionState)
_topic = msgspec.json.Decoder(TopicInfo)


class IsrCheck:
    """Who is in sync is one of the topic's replicas, after every write. Raises Violation.

    `leads_alone` is told who has become the leader with nobody else in sync.
    """

    def __init__(self, leads_alone: Callable[[int], None]) -> None:
        self._leads_alone = leads_alone

    def wrote(self, writer: str, operation: Operation | None, before: Tree, after: Tree) -> None:
        node = after.get(_STATE)
        if node is None or node is before.get(_STATE):
            return
        state = _state.decode(node.data)
        isr = state.isr
        replicas = _topic.decode(after[paths.topic(TOPIC)].data).partitions[PARTITION.partition]
        if not set(isr) <= set(replicas):
            raise Violation(f"{writer} has {isr} in sync, of the replicas {replicas}")
        if state.active and isr == (state.leader,):
            self._leads_alone(state.leader)

    def asked(self, who: str, operation: Operation) -> None:
        pass

    def told(self, who: str, operation: Operation, outcome: Outcome) -> None:
        pass


class Coordination:
    """One session after the other, and recipes on it, one at a time, in the order asked for.

    `session_begins` has the recipe that each session begins with.
    """

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.running = True
        self._told = 0.0
        self._queue: deque[tuple[Callable[[], Recipe[Any]], Callable[[Any], None]]] = deque()
        self._busy = False
        self._open()

    def session_begins(self) -> None:
        """A new session is there."""

    def _open(self) -> None:
        if self.running:
            self.line = Line(self.world, self.name, SESSION_TIMEOUT)
            self._busy = False
            waiting, self._queue = self._queue, deque()
            self.session_begins()
            self._queue += waiting
            self._begin()

    def stop(self, *, guarded: bool) -> None:
        """The process dies."""
        self.running = False
        self._queue.clear()
        self.line.vanish(guarded)

    def ask(self, recipe: Callable[[], Recipe[Any]], done: Callable[[Any], None]) -> None:
        """Carry a recipe out; `done` gets its result, or the ZooKeeperError, some time later."""
        self._queue.append((recipe, done))
        self._begin()

    def _begin(self) -> None:
        if self._queue and not self._busy and self.running:
            self._busy = True
            make, done = self._queue.popleft()
            self._proceed(make(), None, done)

    def _proceed(
        self, recipe: Recipe[Any], outcome: Outcome | None, done: Callable[[Any], None]
    ) -> None:
        if not self.running:
            return
        result: Any
        if outcome is not None and isinstance(outcome.error, SessionLost | ConnectionLost):
            # All lines have the same one, which would keep every history by its frames.
            outcome = Outcome(None, type(outcome.error)(str(outcome.error)))
        try:
            operation = advance(recipe, outcome)
        except StopIteration as stop:
            result = stop.value
        except (ZooKeeperError, BrokerIdTaken, StorageError) as error:
            result = error
        else:
            self.line.submit(operation, lambda answer: self._proceed(recipe, answer, done))
            return
        # In the order of what was read: one thread tells another.
        self._told = max(self._told + MOMENT, self.world.now + self.world.delay())
        self.world.at(self._told, partial(self._tell, done, result))
        if isinstance(result, SessionLost):  # busy until there is another
            self.world.after(REOPEN_AFTER + self.world.delay(), self._open)
        else:
            self._busy = False
            self._begin()

    def _tell(self, done: Callable[[Any], None], result: Any) -> None:
        if self.running:
            done(result)


class Watcher(Coordination):
    """Keeps a broker registered, and tells it of brokers, of the topic, and of the partition's state.

    `name` is where it listens, and its data directory's; `on_new_directory` is called before it registers if
    another directory had its id last, `refused` if another one has it.
    """

    def __init__(
        self,
        world: World,
        broker_id: int,
        shown: Callable[
            [dict[int, Registration], TopicInfo, VersionedState | None, bool, bool], None
        ],
        name: str,
        on_new_directory: Callable[[], None],
        refused: Callable[[Exception], None],
    ) -> None:
        self.broker_id = broker_id
        self._name = name
        self._former: str | None = None
        self._on_new_directory = on_new_directory
        self._shown = shown
        self._refused = refused
        super().__init__(world, f"broker {broker_id}")

    def session_begins(self) -> None:
        self._fresh = True
        self._asked = self._registered = False
        nonce = f"{self.world.random.random()}"
        self.line.listen(self._state_changed)
        self._mine = Registration({"client": self._name}, nonce, self._name)
        self.look()

    def _state_changed(self, state: SessionState) -> None:
        if state is SessionState.LOST:
            self.look()

    def look(self) -> None:
        """Something rang."""
        if not self._asked:
            self._asked = True
            self.ask(self._read, self._have_read)

    def _read(self) -> Recipe[Any]:
        """As the real one: a first view, and then it registers."""
        self._asked = False
        fresh = self._fresh
        if fresh:
            yield from retry_on_connection_loss(Sync())
        else:
            yield from self._register()
        live = yield from brokers.live(self.look)
        topic = yield from topics.read(TOPIC, self.look)
        found = yield from partition_states.read(PARTITION, self.look)
        self._fresh = False
        return live, topic, found, fresh

    def _register(self) -> Recipe[None]:
        """As the real one: what another directory has acked may be missing in this one."""
        if self._former is None:
            self._former = yield from brokers.last_directory(self.broker_id)
            if self._former not in ("", self._name):
                self._on_new_directory()
        number, former = self.broker_id, self._former
        registered = yield from brokers.register(number, self._mine, self.look, former)
        if registered is not None:
            self._former = self._name

    @property
    def is_registered(self) -> bool:
        """In the session of the moment."""
        return self._registered

    def write(self, recipe: Callable[[], Recipe[Any]], done: Callable[[Any], None]) -> None:
        """As `ask`, once it is registered: before that another process may be, under the same id."""

        def begin() -> Recipe[Any]:
            return (yield from recipe()) if self.is_registered else None

        def ended(result: Any) -> None:
            if result is None:
                self.world.after(REOPEN_AFTER, partial(self.write, recipe, done))
            else:
                done(result)

        self.ask(begin, ended)

    def _have_read(self, result: Any) -> None:
        if isinstance(result, BrokerIdTaken | StorageError):
            self._refused(result)
            return
        if isinstance(result, ZooKeeperError):
            self.world.after(REOPEN_AFTER, self.look)
            return
        live, topic, found, fresh = result
        mine = live.get(self.broker_id)
        self._registered = mine is not None and mine.nonce == self._mine.nonce
        self._shown(live, topic, found, fresh, self._registered)
        if fresh:
            self.look()


class Controller(Coordination):
    """Stands for election, and designates leaders while it is elected; a plain one, which looks often.

    When a reassignment ends, and with which state, the real one's rules say.
    """

    def __init__(self, world: World, number: int) -> None:
        self.replicas: tuple[int, ...] = ()
        self.unclean = False
        self.restless = 0.0
        """How often it moves the leadership for no reason."""
        self._nonce = ""
        super().__init__(world, f"controller {number}")
        self._look()

    def session_begins(self) -> None:
        self._nonce = f"{self.world.random.random()}"

    def _look(self) -> None:
        if self.running:
            self.ask(self._govern, lambda result: None)
            self.world.after(0.05 + self.world.delay(), self._look)

    def _govern(self) -> Recipe[None]:
        elected = yield from controllers.elect(NOBODY, self._nonce, lambda: None)
        if elected.nonce != self._nonce:
            return
        live = yield from brokers.live()
        topic = yield from topics.read(TOPIC)
        found = yield from partition_states.read(PARTITION)
        assert topic is not None
        self.replicas = tuple(topic.partitions[PARTITION.partition])
        rules = Leadership(elected.epoch)
        rules.update_brokers({each: broker.epoch for each, broker in live.items()}, 0.0)
        rules.update_topics([topic])
        rules.update_state(PARTITION, found)
        ending = rules._ending(PARTITION)
        wanted = None if ending is not None else self._decide(live.keys(), found, elected.epoch)
        guard = controllers.is_in_epoch(elected)
        try:
            if ending is not None:
                self.world.seen["cancelled" if ending[0].is_cancelled else "reassigned"] += 1
                endings = {PARTITION.partition: ending}
                yield from reassignments.end(TOPIC, PARTITION.topic_id, endings, guard)
            elif wanted is not None:
                yield from partition_states.write({PARTITION: wanted}, guard)
        except GuardRefused:
            return

    def _decide(
        self, live: Any, found: VersionedState | None, controller_epoch: int
    ) -> StateWrite | None:
        """Rule 1: a live member of the ISR, which stays as it is; if there is none, nobody."""
        if found is None:
            if not set(self.replicas) <= set(live):
                return None
            first = PartitionState(self.replicas[0], 0, self.replicas[:1], controller_epoch)
            return StateWrite(first, MISSING)
        state, random = found.state, self.world.random
        isr: Sequence[int] = state.isr
        candidates = [each for each in isr if each in live]
        if state.leader in live and random.random() >= self.restless:
            return None
        if (self.unclean or not state.leader_epoch) and not candidates:
            candidates = isr = [each for each in self.replicas if each in live][:1]
        candidates = [each for each in candidates if each != state.leader] or candidates
        if not candidates:
            if state.leader == NOBODY:
                return None
            nobody = state.designate(NOBODY, state.isr, controller_epoch)
            return StateWrite(nobody, found.partition_epoch)
        leader = random.choice(candidates)
        return StateWrite(state.designate(leader, isr, controller_epoch), found.partition_epoch)
