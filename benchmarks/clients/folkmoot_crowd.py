"""Many members of a Folkmoot group in one process, with consumers or without, and one that owns everything.

The requests to ZooKeeper are counted where each operation is submitted, by its kind.
"""

import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from benchmarks.clients.program import Parameters, main, report_event
from folkmoot import Consumer, Producer, TopicPartition
from folkmoot.consumers.group.events import Assigned, Lost, Revoking
from folkmoot.consumers.group.group_thread import Member
from folkmoot.consumers.group.member_state import MemberSettings, Phase
from folkmoot.coordination.connector import connector
from folkmoot.coordination.wakeup import Wakeup
from folkmoot.coordination.zookeeper.kazoo_adapter import KazooSession
from folkmoot.coordination.zookeeper.operations import Operation

POLL_TIMEOUT: Final = 0.25

_requests: Counter[str] = Counter()


def _count_requests() -> None:
    """Every session of this process counts from now on."""
    submit = KazooSession.submit

    def counted(self: KazooSession, operation: Operation, callback: Any) -> None:
        _requests[type(operation).__name__] += 1
        submit(self, operation, callback)

    KazooSession.submit = counted  # type: ignore[method-assign]


class _ConsumingMember:
    """A member with a consumer, which a thread of its own owns."""

    def __init__(self, parameters: Parameters) -> None:
        self.owned_count = 0
        self.changed = 0.0
        """When it was last given a partition."""
        self._parameters = parameters
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._live)
        self.start = self._thread.start
        self.begin_to_leave = self._leaving.set
        self.wait_until_left = self.end = self._thread.join

    def _live(self) -> None:
        parameters = self._parameters
        with Consumer(
            zookeeper=parameters["address"],
            group=parameters["group"],
            topics=[parameters["topic"]],
            on_assign=self._assigned,
        ) as consumer:
            while not self._leaving.is_set():
                consumer.poll(POLL_TIMEOUT)
                self.owned_count = len(consumer.assignment())

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.changed = time.monotonic()
        self.owned_count = len(consumer.assignment())


class _BareMember:
    """A member without a consumer: it owns partitions, and reads nothing of them."""

    def __init__(self, parameters: Parameters, wakeup: Wakeup) -> None:
        settings = MemberSettings(group=parameters["group"], topics=(parameters["topic"],))
        self.changed = 0.0
        self._owned: dict[TopicPartition, int] = {}
        self._member = Member(settings, connector(parameters["address"]), wakeup.wake)
        self.start = self._member.start
        self.begin_to_leave = self._member.begin_to_leave

    @property
    def owned_count(self) -> int:
        return len(self._owned)

    def wait_until_left(self) -> None:
        while self._member.state.phase is not Phase.LEFT:
            time.sleep(0.001)

    def end(self) -> None:
        self._member.stop(5.0)

    def handle_notices(self) -> None:
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


def crowd(parameters: Parameters) -> None:
    """Members with consumers."""
    _count_requests()
    _serve([_ConsumingMember(parameters) for _ in range(parameters["members"])])


def members(parameters: Parameters) -> None:
    """Bare members whose applications are all one thread, for as many as there can be."""
    _count_requests()
    wakeup = Wakeup()
    all_members = [_BareMember(parameters, wakeup) for _ in range(parameters["members"])]

    def handle_notices() -> None:
        while True:
            wakeup.wait(POLL_TIMEOUT)
            for each in all_members:
                each.handle_notices()

    threading.Thread(target=handle_notices, daemon=True).start()
    _serve(all_members)


def _serve(all_members: Sequence[_ConsumingMember | _BareMember]) -> None:
    """They join at the word to go. Each line then is a question how it stands; "leave": without the first."""
    present = list(all_members)
    report_event("ready")
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
        report_event(
            "standing",
            shares=[each.owned_count for each in present],
            changed=max(each.changed for each in present),
            requests=_requests.total(),
            at=time.monotonic(),
        )
    for each in present:
        each.begin_to_leave()
    for each in present:
        each.end()
    report_event("done")


def commit(parameters: Parameters) -> None:
    """Owns all partitions and commits an offset of each, again and again."""
    topic, partitions = parameters["topic"], parameters["partitions"]
    # An offset behind a log's end is refused.
    with Producer(zookeeper=parameters["address"]) as producer:
        for partition in range(partitions):
            for _ in range(parameters["times"]):
                producer.send(topic, value=b"", partition=partition)
    with Consumer(
        zookeeper=parameters["address"],
        group=parameters["group"],
        topics=[topic],
        auto_commit=False,
    ) as consumer:
        while len(consumer.assignment()) < partitions:
            consumer.poll(POLL_TIMEOUT)
        assigned = sorted(consumer.assignment())
        report_event("ready")
        sys.stdin.readline()
        durations = []
        cpu = time.process_time()
        for offset in range(1, parameters["times"] + 1):
            started_at = time.perf_counter()
            consumer.commit(dict.fromkeys(assigned, offset))
            durations.append(time.perf_counter() - started_at)
        report_event("done", took=durations, cpu=(time.process_time() - cpu) / parameters["times"])


if __name__ == "__main__":
    main({"crowd": crowd, "members": members, "commit": commit})
