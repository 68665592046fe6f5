"""Many members of a Folkmoot group in one process, with consumers or without, and one that owns everything.

What is asked of ZooKeeper is counted where each operation is submitted, by its kind.
"""

import sys
import threading
import time
from collections import Counter
from typing import Any, Final

from benchmarks.clients.program import Parameters, main, tell
from folkmoot import Consumer, Producer, TopicPartition
from folkmoot.consumers.group.events import Assigned, Lost, Revoking
from folkmoot.consumers.group.group_thread import Member
from folkmoot.consumers.group.member_state import MemberSettings, Phase
from folkmoot.coordination.connector import connector
from folkmoot.coordination.wakeup import Wakeup
from folkmoot.coordination.zookeeper.kazoo_adapter import KazooSession
from folkmoot.coordination.zookeeper.operations import Operation

TURN: Final = 0.25

_asked: Counter[str] = Counter()


def _count() -> None:
    """Has every session of this process count from now on."""
    submit = KazooSession.submit

    def counted(self: KazooSession, operation: Operation, done: Any) -> None:
        _asked[type(operation).__name__] += 1
        submit(self, operation, done)

    KazooSession.submit = counted  # type: ignore[method-assign]


class _Person:
    """A member in a thread of its own, which owns its consumer."""

    def __init__(self, given: Parameters) -> None:
        self.owned: frozenset[TopicPartition] = frozenset()
        self.changed = 0.0
        """When it was last given a partition."""
        self.leave = threading.Event()
        self._given = given
        self._thread = threading.Thread(target=self._live)

    def start(self) -> None:
        self._thread.start()

    def gone(self) -> None:
        self.leave.set()
        self._thread.join()

    def _live(self) -> None:
        given = self._given
        with Consumer(
            zookeeper=given["address"],
            group=given["group"],
            topics=[given["topic"]],
            on_assign=self._assigned,
        ) as consumer:
            while not self.leave.is_set():
                consumer.poll(TURN)
                self.owned = consumer.assignment()

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.changed = time.monotonic()
        self.owned = consumer.assignment()


def crowd(given: Parameters) -> None:
    """Joins at the word to go; then tells how it stands, or has its first member leave, as it is told."""
    _count()
    people = [_Person(given) for _ in range(given["members"])]
    tell("ready")
    sys.stdin.readline()
    for person in people:
        person.start()
    for line in sys.stdin:
        if line.strip() == "leave":
            people.pop(0).gone()
        if line.strip() == "end":
            break
        tell(
            "standing",
            shares=[len(person.owned) for person in people],
            changed=max(person.changed for person in people),
            asked=dict(_asked),
            at=time.monotonic(),
        )
    for person in people:
        person.leave.set()
    tell("done")


class _Bare:
    """A member without a consumer: it owns partitions, and reads nothing of them."""

    def __init__(self, given: Parameters, wakeup: Wakeup) -> None:
        settings = MemberSettings(group=given["group"], topics=(given["topic"],))
        self.owned: dict[TopicPartition, int] = {}
        self.changed = 0.0
        self.member = Member(settings, connector(given["address"]), wakeup.wake)

    def take_notice(self) -> None:
        while self.member.notices:
            match self.member.notices.popleft():
                case Assigned(partition, _, _, epoch):
                    self.owned[partition] = epoch
                    self.changed = time.monotonic()
                case Revoking(partition) if partition in self.owned:
                    self.member.drained(partition, self.owned.pop(partition), None)
                case Lost(partition):
                    self.owned.pop(partition, None)


def members(given: Parameters) -> None:
    """As `crowd`, of bare members whose applications are all one thread, for as many as there can be."""
    _count()
    wakeup, ending = Wakeup(), threading.Event()
    people = [_Bare(given, wakeup) for _ in range(given["members"])]

    def serve() -> None:
        while not ending.is_set():
            wakeup.wait(TURN)
            for each in list(people):
                each.take_notice()

    tell("ready")
    sys.stdin.readline()
    threading.Thread(target=serve, daemon=True).start()
    for each in people:
        each.member.start()
    for line in sys.stdin:
        if line.strip() == "leave":
            people[0].member.begin_to_leave()
            while people[0].member.state.phase is not Phase.LEFT:
                time.sleep(0.001)
            people.pop(0)
        if line.strip() == "end":
            break
        tell(
            "standing",
            shares=[len(each.owned) for each in people],
            changed=max(each.changed for each in people),
            asked=dict(_asked),
            at=time.monotonic(),
        )
    ending.set()
    for each in people:
        each.member.begin_to_leave()
    for each in people:
        each.member.stop(5.0)
    tell("done")


def commit(given: Parameters) -> None:
    """Owns all partitions and commits an offset of each, again and again."""
    topic, partitions = given["topic"], given["partitions"]
    # An offset behind a log's end is refused.
    with Producer(zookeeper=given["address"]) as producer:
        for partition in range(partitions):
            for _ in range(given["times"]):
                producer.send(topic, value=b"", partition=partition)
    with Consumer(
        zookeeper=given["address"], group=given["group"], topics=[topic], auto_commit=False
    ) as consumer:
        while len(consumer.assignment()) < partitions:
            consumer.poll(TURN)
        mine = sorted(consumer.assignment())
        tell("ready")
        sys.stdin.readline()
        took = []
        cpu = time.process_time()
        for offset in range(1, given["times"] + 1):
            begun = time.perf_counter()
            consumer.commit(dict.fromkeys(mine, offset))
            took.append(time.perf_counter() - begun)
        tell("done", took=took, cpu=(time.process_time() - cpu) / given["times"])


if __name__ == "__main__":
    main({"crowd": crowd, "members": members, "commit": commit})
