"""Many members without threads on one ZooKeeper in memory, in virtual time, with every operation counted."""

from collections import Counter
from collections.abc import Iterable
from random import Random
from typing import Any

import msgspec

from folkmoot.consumers.group.events import (
    Assigned,
    Committed,
    Left,
    Lost,
    Notice,
    Replaced,
    Revoking,
)
from folkmoot.consumers.group.group_thread import Member
from folkmoot.consumers.group.member_state import MemberSettings, Phase
from folkmoot.coordination import paths, topics
from folkmoot.coordination.groups import membership, ownership, planning
from folkmoot.coordination.groups.plan import Plan
from folkmoot.coordination.topics import TopicInfo
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.coordination.zookeeper.operations import Create, Multi, Set
from folkmoot.coordination.zookeeper.session import Session
from folkmoot.protocol.records import TopicPartition
from tests.memory_zookeeper import MemorySession, MemoryZooKeeper, Request

ROUND = 0.001
"""So long a round trip takes."""
LOOK = 0.1
"""So often, at least, an application asks for records."""


class Person:
    """A member and an application that does nothing but to take notice; it may `doze`."""

    def __init__(self, crowd: "Crowd", settings: MemberSettings) -> None:
        self.crowd = crowd
        self.sessions: list[MemorySession] = []
        self.held: dict[TopicPartition, Assigned] = {}
        self.notices: list[Notice] = []
        self.dozing = False
        self.over = False
        self.due = 0.0
        self.replaced = False
        self.drains = True
        self.member = Member(
            settings, self._connect, lambda: None, lambda: crowd.now, Random(len(crowd.people))
        )

    def _connect(self, session_timeout: float) -> Session:
        self.sessions.append(self.crowd.zookeeper.connect(session_timeout))
        return self.sessions[-1]

    @property
    def partitions(self) -> set[TopicPartition]:
        return set(self.held)

    def turn(self) -> None:
        self.due = self.member.run_once()
        if self.member.state.phase is Phase.LEFT and not self.over:
            self.over = True
            self.look()
            self.sessions[-1].close()

    def look(self) -> None:
        """The application asks for records."""
        self.member.polled(self.crowd.now)
        while self.member.notices:
            notice = self.member.notices.popleft()
            self.notices.append(notice)
            match notice:
                case Assigned(partition):
                    self.held[partition] = notice
                case Revoking(partition):
                    held = self.held.pop(partition, None)
                    if held is not None:
                        self.member.draining(partition, held.epoch)
                        if self.drains:
                            self.member.drained(partition, held.epoch, None)
                case Lost(partition):
                    self.held.pop(partition, None)
                case Replaced():
                    self.replaced = True
                case Left() | Committed():
                    pass

    def leave(self) -> None:
        self.member.begin_to_leave()

    def die(self) -> None:
        """Its process is gone, and so is its session."""
        self.over = True
        self.crowd.zookeeper.expire(self.sessions[-1])

    def count(self, kind: type[Notice]) -> int:
        return sum(isinstance(notice, kind) for notice in self.notices)


class Crowd:
    """People and the ZooKeeper between them."""

    def __init__(self) -> None:
        self.now = 100.0
        self.operations: Counter[str] = Counter()
        self.plans_written = 0
        self.zookeeper = MemoryZooKeeper(clock=lambda: self.now, deliver=self._deliver)
        self.admin = self.zookeeper.connect()
        self.people: list[Person] = []
        self._look_at = self.now

    def _deliver(self, request: Request) -> None:
        operation = request.operation
        if request.session is not self.admin:
            self.operations[type(operation).__name__] += 1
            writes = operation.writes if isinstance(operation, Multi) else ()
            self.plans_written += any(
                isinstance(write, Set) and write.path == paths.plan("g") for write in writes
            )
        request.execute()
        request.reply()

    def topic(self, name: str, partitions: int) -> None:
        execute(self.admin, topics.create(name, partitions, [1]))

    def grow(self, name: str, partitions: int) -> None:
        """Add partitions to a topic, up to so many."""
        topic = execute(self.admin, topics.read(name))
        assert topic is not None
        info = TopicInfo(topic.topic_id, [[1]] * partitions, topic.config)
        execute(self.admin, Set(paths.topic(name), msgspec.json.encode(info)))

    def make_anew(self, name: str, partitions: int) -> None:
        execute(self.admin, topics.delete(name))
        self.topic(name, partitions)

    def broker(self, number: int, rack: str) -> None:
        data = msgspec.json.encode({"listeners": {}, "nonce": "n", "directory": "", "rack": rack})
        if number == 1:
            execute(self.admin, _ensured("/brokers/ids"))
        execute(self.admin, Create(paths.broker(number), data))

    def add(self, *wanted: str, **settings: Any) -> Person:
        person = Person(self, MemberSettings(group="g", topics=wanted, **settings))
        self.people.append(person)
        person.member.open()
        return person

    @property
    def awake(self) -> Iterable[Person]:
        return [each for each in self.people if not each.over]

    def pass_time(self, seconds: float) -> None:
        """Everything that is due happens; nothing waits for longer than it must."""
        end = self.now + seconds
        while self.now < end:
            busy = False
            for person in self.awake:
                person.turn()
                busy = busy or bool(person.member._inbox)
            if self.now >= self._look_at or busy:
                self._look_at = self.now + LOOK
                for person in self.awake:
                    if not person.dozing:
                        person.look()
                        busy = busy or bool(person.member._inbox)
            if busy:
                self.now += ROUND
                continue
            due = [person.due for person in self.awake]
            self.now = max(self.now + ROUND, min([*due, self._look_at, end]))

    def settle(self, within: float = 10.0) -> float:
        """Until everybody owns what is planned, for all who are there; how long it took."""
        began = self.now
        while not self.is_settled():
            assert self.now - began < within, "it does not settle"
            self.pass_time(0.02)
        return self.now - began

    def is_settled(self) -> bool:
        plan = self.plan()
        awake = [each for each in self.awake if each.member.state.phase is not Phase.LEFT]
        seats = {membership.assignee(name) for each in awake if (name := each.member.name)}
        if len(seats) != len(awake) or not seats <= set(plan.members):
            return False
        absent = {seat for seat, standing in plan.static.items() if seat not in seats}
        if set(plan.members) - seats - absent:
            return False
        return all(each.partitions == self.planned(each) for each in awake)

    def plan(self) -> Plan:
        """Of whatever kind it is."""
        return execute(self.admin, planning.get("g", understands=99)).plan

    def planned(self, person: Person) -> set[TopicPartition]:
        return set(self.plan().partitions_of(membership.assignee(person.member.name or "")))

    def owner(self, partition: TopicPartition) -> str | None:
        found = execute(self.admin, ownership.owner_of("g", partition))
        return None if found is None else found.member


def _ensured(path: str) -> Any:
    from folkmoot.coordination.zookeeper.recipes import ensure

    return ensure(path)
