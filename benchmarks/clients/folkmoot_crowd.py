"""Many members of a Folkmoot group in one process, with consumers or without, and one that owns everything.

The requests to ZooKeeper are counted where each operation is submitted, by its kind.
"""

import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
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

_requests: Counter[str] = Counter()


def _count_requests() -> None:
    """Every session of this process counts from now on."""
    submit = KazooSession.submit

    def counted(self: KazooSession, operation: Operation, callback: Any) -> None:
        _requests[type(operation).__name__] += 1
        submit(self, operation, callback)

    KazooSession.submit = counted  # type: ignore[method-assign]


class _Reading:
    """A member with a consumer, which a thread of its own owns."""

    def __init__(self, given: Parameters) -> None:
        self.share = 0
        self.changed = 0.0
        """When it was last given a partition."""
        self._given = given
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._live)
        self.start = self._thread.start
        self.begin_to_leave = self._leaving.set
        self.wait_until_left = self.end = self._thread.join

    def _live(self) -> None:
        given = self._given
        with Consumer(
            zookeeper=given["address"],
            group=given["group"],
            topics=[given["topic"]],
            on_assign=self._assigned,
        ) as consumer:
            while not self._leaving.is_set():
                consumer.poll(TURN)
                self.share = len(consumer.assignment())

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.changed = time.monotonic()
        self.share = len(consumer.assignment())


class _Bare:
    """A member without a consumer: it owns partitions, and reads nothing of them."""

    def __init__(self, given: Parameters, wakeup: Wakeup) -> None:
        settings = MemberSettings(group=given["group"], topics=(given["topic"],))
        self.changed = 0.0
        self._owned: dict[TopicPartition, int] = {}
        self._member = Member(settings, connector(given["address"]), wakeup.wake)
        self.start = self._member.start
        self.begin_to_leave = self._member.begin_to_leave

    @property
    def share(self) -> int:
        return len(self._owned)

    def wait_until_left(self) -> None:
        while self._member.state.phase is not Phase.LEFT:
            time.sleep(0.001)

    def end(self) -> None:
        self._member.stop(5.0)

    def take_notices(self) -> None:
        notices = self._member.notices
        while notices:
            match notices.popleft():
                case Assigned(partition, _, _, epoch):
                    self._owned[partition] = epoch
                    self.changed = time.monotonic()
                case Revoking(partition) if partition in self._owned:
                    self._member.drained(partition, self._owned.pop(partition), None)
                case Lost(partition):
                    self._owned.pop(partition, None)


def crowd(given: Parameters) -> None:
    """Members with consumers."""
    _count_requests()
    _serve([_Reading(given) for _ in range(given["members"])])


def members(given: Parameters) -> None:
    """Bare members whose applications are all one thread, for as many as there can be."""
    _count_requests()
    wakeup = Wakeup()
    people = [_Bare(given, wakeup) for _ in range(given["members"])]

    def take_notices() -> None:
        while True:
            wakeup.wait(TURN)
            for each in people:
                each.take_notices()

    threading.Thread(target=take_notices, daemon=True).start()
    _serve(people)


def _serve(people: Sequence[_Reading | _Bare]) -> None:
    """They join at the word to go. Each line then is a question how it stands; "leave": without the first."""
    present = list(people)
    tell("ready")
    sys.stdin.readline()
    for each in present:
        each.start()
    for line in sys.stdin:
        if line.strip() == "leave":
            leaver = present.pop(0)
            leaver.begin_to_leave()
            leaver.wait_until_left()
        if line.strip() == "end":
            break
        tell(
            "standing",
            shares=[each.share for each in present],
            changed=max(each.changed for each in present),
            requests=_requests.total(),
            at=time.monotonic(),
        )
    for each in present:
        each.begin_to_leave()
    for each in present:
        each.end()
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
