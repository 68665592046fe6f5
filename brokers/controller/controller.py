"""A candidate for the controller, and the controller: from watches to recipes."""

import logging
from collections.abc import Callable, Mapping
from functools import partial
from itertools import islice
from math import inf
from typing import Final

from folkmoot.brokers.controller.cluster_reader import BROKERS, TOPICS, ClusterReader
from folkmoot.brokers.controller.history import History
from folkmoot.brokers.controller.leadership import Ending, Leadership
from folkmoot.coordination import deletions, partition_states
from folkmoot.coordination.cluster import controllers, events, reassignments
from folkmoot.coordination.deletions import CONTROLLER
from folkmoot.coordination.partition_states import (
    MISSING,
    STATES_PER_TRANSACTION,
    StateWrite,
    Superseded,
    TopicIdPartition,
    VersionedState,
)
from folkmoot.coordination.zookeeper.operations import Recipe, ZooKeeperError

logger = logging.getLogger(__name__)

READ_BROKERS_EVERY: Final = 30.0
"""Seconds after which the live brokers are read again although no watch rang."""
_CONTROLLER: Final = object()


class Deposed(ZooKeeperError):
    """Another candidate is the controller now, or none."""


class Controller:
    """Stands for election in one session, and controls the cluster from then on, until it is in doubt.

    `step` returns recipes for ZooKeeper, which may be carried out side by side; the next step comes when
    all have ended. An exception of a recipe ends this controller: its owner closes the session and starts
    another controller, which reads everything. So no doubt outlives a session.

    A candidate reads nothing before its election. So no read is older than that, and after it no earlier
    controller has written. Each later write checks the controller's epoch.

    A death at any point leaves the states of the last transaction. Each transaction leaves every
    partition as it was or designated, and the next controller continues from there (partition_states.py).
    """

    def __init__(self, broker: int, nonce: str, wake: Callable[[], None]) -> None:
        """`broker`: the one in whose process it runs, or controllers.ALONE. Any thread may call `wake`."""
        self._broker = broker
        self._nonce = nonce
        self._reader = ClusterReader(wake)
        self._reader.note(_CONTROLLER)
        self._me: controllers.Controller | None = None
        self._leadership = Leadership(0)
        self._history = History()
        self._read_brokers_at = -inf
        self._is_reading = False
        self.ask_again: float | None = None
        """When `step` is due although no watch rings."""

    @property
    def is_elected(self) -> bool:
        return self._me is not None

    def step(self, now: float) -> list[Recipe[None]]:
        """Return what to do now; nothing: wait until a watch rings, or until `ask_again`. Raises nothing.

        A recipe raises Deposed, GuardRefused, SessionLost, Malformed.
        """
        if self._is_reading:
            if reads := self._reader.reads():
                return reads
            # Watches that rang meanwhile come later: states that keep changing delay no decision.
            self._is_reading = False
            if (writes := self._decide(now)) or not self._reader.listen():
                return writes
        stale = self._reader.listen()
        if self._me is not None and now >= self._read_brokers_at:
            self._read_brokers_at = now + READ_BROKERS_EVERY
            stale[BROKERS] = None
        self.ask_again = None
        if _CONTROLLER in stale:
            del stale[_CONTROLLER]
            return [self._stand()]
        if self._me is None:
            return []
        if reads := self._reader.reads():
            self._is_reading = True
            return reads
        return self._decide(now)

    # -- election ---------------------------------------------------------------------------------

    def _stand(self) -> Recipe[None]:
        on_change = partial(self._reader.ring, _CONTROLLER)
        if self._me is not None:
            found = yield from controllers.current(on_change)
            if found != self._me:
                raise Deposed(f"the controller's node is no longer ours: {found}")
            return
        found = yield from controllers.elect(self._broker, self._nonce, on_change)
        if found.nonce == self._nonce:
            logger.info("elected as the controller in epoch %d", found.epoch)
            self._me = found
            self._leadership = Leadership(found.epoch)
            self._history = History(found.describe())
            self._reader.note(BROKERS, TOPICS)

    # -- decisions --------------------------------------------------------------------------------

    def _decide(self, now: float) -> list[Recipe[None]]:
        if self._me is None:
            return []
        self._pass_on_changes(now)
        due = self._history.take(now) if self._history.due <= now else []
        recorded = [events.record(due)] if due else []
        return [*self._writes(self._me, now), *recorded]

    def _pass_on_changes(self, now: float) -> None:
        """Pass on what was read."""
        reader, leadership = self._reader, self._leadership
        changed, reader.changed = reader.changed, {}
        self._history.compare(reader, changed, now)
        if BROKERS in changed:
            epochs = {broker: found.epoch for broker, found in reader.brokers.items()}
            leaving = [broker for broker, found in reader.brokers.items() if found.leaving]
            leadership.update_brokers(epochs, now, leaving)
        if any(isinstance(each, str) for each in changed):
            leadership.update_topics(reader.topics.values())
        for each in changed:
            if not isinstance(each, TopicIdPartition):
                continue
            if each in reader.malformed:
                leadership.mark_malformed(each)
            else:
                leadership.update_state(each, reader.states.get(each))

    def _writes(self, me: controllers.Controller, now: float) -> list[Recipe[None]]:
        decision = self._leadership.decide(now)
        ask_again = inf if decision.ask_again is None else decision.ask_again
        self.ask_again = min(ask_again, self._read_brokers_at, self._history.due)
        writes, recipes = iter(decision.writes.items()), []
        while some := dict(islice(writes, STATES_PER_TRANSACTION)):
            recipes.append(self._write(me, some))
        names = {topic.topic_id: name for name, topic in self._reader.topics.items()}
        endings: dict[str, dict[int, Ending]] = {}
        for (topic_id, number), ending in decision.endings.items():
            of_topic = endings.setdefault(topic_id, {})
            if (
                len(of_topic) < reassignments.AT_ONCE
            ):  # the others are judged again when these have ended
                of_topic[number] = ending
        recipes += [self._end(me, names[each], each, ended) for each, ended in endings.items()]
        recipes += [
            self._delete(me, topic_id)
            for topic_id, found in self._reader.deletions.items()
            if CONTROLLER in found.pending and topic_id not in names
        ]
        return recipes

    def _write(
        self, me: controllers.Controller, writes: Mapping[TopicIdPartition, StateWrite]
    ) -> Recipe[None]:
        writes = yield from self._without_lost(writes)
        answers = yield from partition_states.write(writes, controllers.is_in_epoch(me))
        for partition, answer in answers.items():
            now = answer.current if isinstance(answer, Superseded) else answer
            if isinstance(now, VersionedState):
                self._leadership.update_state(partition, now)
            else:
                self._reader.note(partition)  # gone or malformed
        logger.info("wrote the states of %d partitions", len(writes))

    def _without_lost(
        self, writes: Mapping[TopicIdPartition, StateWrite]
    ) -> Recipe[dict[TopicIdPartition, StateWrite]]:
        """Leave out first states of partitions that have had one. In a first epoch any replica might lead,
        and have committed records cut."""
        new = {each.topic_id for each, write in writes.items() if write.stands_on == MISSING}
        lost = set()
        for topic_id in sorted(new):
            if not (yield from partition_states.is_intact(topic_id)):
                lost.add(topic_id)
                logger.error(
                    "topic id %s: states of its partitions are gone from ZooKeeper: these have no "
                    "leader until `folkmoot topic restore` puts them back",
                    topic_id,
                )
        remaining = {}
        for each, write in writes.items():
            if each.topic_id in lost and write.stands_on == MISSING:
                self._leadership.mark_malformed(each)
            else:
                remaining[each] = write
        return remaining

    def _end(
        self,
        me: controllers.Controller,
        name: str,
        topic_id: str,
        endings: Mapping[int, Ending],
    ) -> Recipe[None]:
        yield from reassignments.end(name, topic_id, endings, controllers.is_in_epoch(me))
        # Written or not: the topic is judged again when it and its states were read.
        self._reader.note(name, *(TopicIdPartition(topic_id, number) for number in endings))
        logger.info("ended %d reassignments of topic %s", len(endings), name)

    def _delete(self, me: controllers.Controller, topic_id: str) -> Recipe[None]:
        yield from partition_states.delete(topic_id, controllers.is_in_epoch(me))
        yield from deletions.mark_carried_out(topic_id, [CONTROLLER])
        self._reader.deletions.pop(topic_id, None)
        logger.info("removed the states of the deleted topic %s", topic_id)
