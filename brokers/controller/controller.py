"""A candidate for the controller, and the controller: from watches to recipes."""

import logging
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from itertools import islice
from typing import Final

from folkmoot.brokers.controller.leadership import Leadership
from folkmoot.coordination import (
    brokers,
    controllers,
    partition_states,
    reassignments,
    topics,
)
from folkmoot.coordination.partition_states import (
    STATES_PER_TRANSACTION,
    StateWrite,
    Superseded,
    TopicIdPartition,
    VersionedState,
)
from folkmoot.coordination.topics import Reassignment, TopicInfo
from folkmoot.coordination.zookeeper.operations import Recipe, ZooKeeperError
from folkmoot.coordination.zookeeper.recipes import Malformed

logger = logging.getLogger(__name__)

_CONTROLLER: Final = object()
_BROKERS: Final = object()
_TOPICS: Final = object()
_TOPICS_WITH_STATES: Final = object()


class Deposed(ZooKeeperError):
    """Somebody else is the controller now, or nobody."""


class Controller:
    """One session's way: it stands for election, and works from then on until something is in doubt.

    `step` says what is to be asked of ZooKeeper, as recipes that may be carried out side by side; when
    all of them have ended comes the next step. A watch notes what to read again and wakes the owner.
    Whatever a recipe raises ends this controller: its owner closes the session and begins anew with
    another, which reads everything. So no doubt outlives a session.

    Whoever was elected has read nothing before: its first reads are not older than its election, after
    which no earlier controller has written. What it writes later checks its epoch.

    Death at any point: the states are those of the last transaction, each of which leaves every
    partition as it was or designated, and the next controller goes on from there (partition_states.py).
    """

    def __init__(
        self,
        broker: int,
        nonce: str,
        wake: Callable[[], None],
    ) -> None:
        """`broker`: in whose process it runs, or controllers.ALONE. `wake` may be called by any thread."""
        self._broker = broker
        self._nonce = nonce
        self._wake = wake
        self._rang: deque[object] = deque((_CONTROLLER,))
        # The same each time: it is armed again on the nodes of brokers that stay.
        self._brokers_rang = partial(self._ring, _BROKERS)
        self._stale: dict[
            object, None
        ] = {}  # in order, so that a simulated history can be repeated
        self._me: controllers.Controller | None = None
        self._leadership = Leadership(0)
        self._topics: dict[str, TopicInfo] = {}
        self._topics_differ = False
        self._illegible: set[str] = set()
        self._live: dict[int, int] = {}
        self.ask_again: float | None = None
        """When `step` is due although nothing rings."""

    @property
    def is_elected(self) -> bool:
        return self._me is not None

    def step(self, now: float) -> list[Recipe[None]]:
        """What is to be done now; nothing: wait for a ring, or until `ask_again`. Raises nothing itself.

        A recipe raises Deposed, GuardRefused, SessionLost, Malformed.
        """
        while self._rang:
            self._note(self._rang.popleft())
        self.ask_again = None
        if _CONTROLLER in self._stale:
            del self._stale[_CONTROLLER]
            return [self._stand()]
        if self._me is None:
            return []
        if self._stale:
            return self._reads(now)
        if self._topics_differ:
            self._topics_differ = False
            self._leadership.topics_are(self._topics.values())
        return self._writes(self._me, now)

    # -- election ---------------------------------------------------------------------------------

    def _stand(self) -> Recipe[None]:
        gone = partial(self._ring, _CONTROLLER)
        if self._me is not None:
            found = yield from controllers.current(gone)
            if found != self._me:
                raise Deposed(f"the controller's node is no longer ours: {found}")
            return
        found = yield from controllers.elect(self._broker, self._nonce, gone)
        if found.nonce == self._nonce:
            logger.info("elected as the controller in epoch %d", found.epoch)
            self._me = found
            self._leadership = Leadership(found.epoch)
            self._note(_BROKERS, _TOPICS, _TOPICS_WITH_STATES)

    # -- reading ----------------------------------------------------------------------------------

    def _reads(self, now: float) -> list[Recipe[None]]:
        """What rang. What a read finds may name more, which the next step reads."""
        stale, self._stale = self._stale, {}
        reads: list[Recipe[None]] = []
        topic_ids = {topic.topic_id for topic in self._topics.values()}
        for what in stale:
            if what is _BROKERS:
                reads.append(self._read_brokers(now))
            elif what is _TOPICS:
                reads.append(self._read_topics())
            elif what is _TOPICS_WITH_STATES:
                reads.append(self._read_topics_with_states())
            elif isinstance(what, TopicIdPartition):
                if what.topic_id in topic_ids:
                    reads.append(self._read_state(what))
            elif isinstance(what, str):
                reads.append(self._read_topic(what))
        return reads

    def _read_brokers(self, now: float) -> Recipe[None]:
        live = yield from brokers.live(self._brokers_rang)
        epochs = {broker: found.epoch for broker, found in live.items()}
        if epochs.keys() != self._live.keys():
            logger.info("brokers alive: %s", sorted(epochs))
        self._live = epochs
        leaving = [broker for broker, found in live.items() if found.leaving]
        self._leadership.brokers_are(epochs, now, leaving)

    def _read_topics(self) -> Recipe[None]:
        names = yield from topics.names(partial(self._ring, _TOPICS))
        known = self._topics.keys() | self._illegible
        self._note(*(name for name in names if name not in known))
        for name in known.difference(names):
            self._topics.pop(name, None)
            self._illegible.discard(name)
        self._topics_differ = True

    def _read_topics_with_states(self) -> Recipe[None]:
        """Once: what was deleted while nobody was the controller. Later ones are known from topics."""
        self._leadership.has_states((yield from partition_states.topic_ids()))

    def _read_topic(self, name: str) -> Recipe[None]:
        try:
            topic = yield from topics.read(name, partial(self._ring, name))
        except Malformed as error:
            logger.error("%s; nothing is decided about it", error)
            self._illegible.add(name)
            return
        self._illegible.discard(name)
        if topic is None:
            # Another of that name may be there by the time the names are read: that one is new.
            self._topics.pop(name, None)
            self._topics_differ = True
            self._note(_TOPICS)
            return
        before = self._topics.get(name)
        self._topics[name] = topic
        is_same = before is not None and before.topic_id == topic.topic_id
        first = len(before.partitions) if before is not None and is_same else 0
        for number in range(first, len(topic.partitions)):
            self._note(TopicIdPartition(topic.topic_id, number))
        self._topics_differ = True

    def _read_state(self, partition: TopicIdPartition) -> Recipe[None]:
        try:
            state = yield from partition_states.read(partition, partial(self._ring, partition))
        except Malformed as error:
            logger.error("%s; nobody is made its leader", error)
            self._leadership.state_is_illegible(partition)
        else:
            self._leadership.state_is(partition, state)

    # -- writing ----------------------------------------------------------------------------------

    def _writes(self, me: controllers.Controller, now: float) -> list[Recipe[None]]:
        decision = self._leadership.decide(now, all_legible=not self._illegible)
        self.ask_again = decision.ask_again
        writes, recipes = iter(decision.writes.items()), []
        while some := dict(islice(writes, STATES_PER_TRANSACTION)):
            recipes.append(self._write(me, some))
        names = {topic.topic_id: name for name, topic in self._topics.items()}
        endings: dict[str, dict[int, tuple[Reassignment, StateWrite]]] = {}
        for (topic_id, number), ending in decision.endings.items():
            of_topic = endings.setdefault(topic_id, {})
            if len(of_topic) < reassignments.AT_ONCE:  # all are judged again when these have ended
                of_topic[number] = ending
        recipes += [self._end(me, names[each], each, some) for each, some in endings.items()]
        recipes += [self._delete(me, topic_id) for topic_id in decision.deletions]
        return recipes

    def _write(
        self, me: controllers.Controller, writes: Mapping[TopicIdPartition, StateWrite]
    ) -> Recipe[None]:
        guard = controllers.is_in_epoch(me)
        answers = yield from partition_states.write(writes, guard)
        for partition, answer in answers.items():
            now = answer.found if isinstance(answer, Superseded) else answer
            if isinstance(now, VersionedState):
                self._leadership.state_is(partition, now)
            else:
                self._note(partition)  # gone or illegible
        logger.info("wrote the states of %d partitions", len(writes))

    def _end(
        self,
        me: controllers.Controller,
        name: str,
        topic_id: str,
        endings: Mapping[int, tuple[Reassignment, StateWrite]],
    ) -> Recipe[None]:
        guard = controllers.is_in_epoch(me)
        yield from reassignments.end(name, topic_id, endings, guard)
        # Whatever became of it: the topic is judged again when it and its states were read.
        self._note(name, *(TopicIdPartition(topic_id, number) for number in endings))
        logger.info("ended %d reassignments of topic %s", len(endings), name)

    def _delete(self, me: controllers.Controller, topic_id: str) -> Recipe[None]:
        yield from partition_states.delete(topic_id, controllers.is_in_epoch(me))
        self._leadership.has_no_states(topic_id)
        logger.info("removed the states of the deleted topic %s", topic_id)

    def _note(self, *what: object) -> None:
        """To be read by the next step."""
        self._stale.update(dict.fromkeys(what))

    def _ring(self, what: object) -> None:
        self._rang.append(what)
        self._wake()
