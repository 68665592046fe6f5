"""A fault of one partition stays with it: it is tried again once at a time, and the others go on."""

import logging
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from errno import EIO
from pathlib import Path

import pytest
from msgspec.structs import replace

from folkmoot.brokers.replication.partition import (
    DISK_AGAIN_AFTER,
    MAX_LAG,
    Partition,
    WaitingProduce,
)
from folkmoot.brokers.server.replica_fetches import NOTIFY_WITHIN
from folkmoot.brokers.storage.log import Log
from folkmoot.brokers.storage.retention import Retention
from folkmoot.brokers.storage.segment import Segment
from folkmoot.coordination.partition_states import VersionedState
from folkmoot.protocol.errors import (
    DiskFull,
    NotEnoughReplicasAfterAppend,
    RequestTimeout,
    StorageError,
)
from tests.brokers.batches import read_now, values_of
from tests.brokers.replication.brokers import PRODUCE_TIMEOUT, TOPIC_ID, Cluster, Node


@pytest.fixture(autouse=True)
def silence() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    yield made
    made.stop()


def timers(node: Node) -> int:
    return sum(timer.__name__ != "_expire" for *_, timer in node.partitions.shared._timers)


def tell_of_deletions(cluster: Cluster) -> None:
    cluster.now += NOTIFY_WITHIN
    cluster.run()


# -- tried again ----------------------------------------------------------------------------------------


def test_flushes_that_fail_are_tried_again_by_one_timer_and_answered_when_one_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(tmp_path, {"durability": "fsync"})
    one = cluster.nodes[1]
    real, has_descriptors = Segment.descriptor_to_flush, False

    def descriptor(segment: Segment) -> int:
        if segment.directory == one.log.directory and not has_descriptors:
            raise StorageError("too many open files")
        return real(segment)

    monkeypatch.setattr(Segment, "descriptor_to_flush", descriptor)
    answers = []
    for _ in range(5):
        answers.append(one.produce(b"a"))
        cluster.run()
    assert timers(one) == 1
    cluster.later(DISK_AGAIN_AFTER)
    assert (timers(one), answers) == (1, [[]] * 5)
    has_descriptors = True
    cluster.later(DISK_AGAIN_AFTER)
    assert (timers(one), [each[0].error for each in answers]) == (0, [0] * 5)
    cluster.stop()


def test_a_deletion_that_fails_is_tried_again_by_one_timer_however_often_the_leader_answers(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, three = cluster.nodes[1], cluster.nodes[3]
    for _ in range(4):
        one.produce(b"a")
        cluster.run()
    real, tried, is_full = Retention.delete_before, list[int](), True

    async def delete_before(retention: Retention, log: Log, offset: int) -> None:
        if log is three.log:
            tried.append(offset)
            if is_full:
                raise DiskFull("no room")
        await real(retention, log, offset)

    monkeypatch.setattr(Retention, "delete_before", delete_before)
    one.delete_records(2)
    tell_of_deletions(cluster)
    one.delete_records(3)
    for _ in range(5):
        one.produce(b"a")
        cluster.run()
    assert (tried, timers(three)) == ([2], 1)
    cluster.later(DISK_AGAIN_AFTER)
    assert (tried, timers(three)) == ([2, 3], 1)
    is_full = False
    cluster.later(DISK_AGAIN_AFTER)
    assert (tried, timers(three), three.log.log_start) == ([2, 3, 3], 0, 3)


def test_one_operation_deletes_what_a_leader_has_deleted_until_it_has_ended(
    tmp_path: Path,
) -> None:
    cluster = Cluster(tmp_path, {"durability": "page-cache"})
    one, three = cluster.nodes[1], cluster.nodes[3]
    for _ in range(4):
        one.produce(b"a")
        cluster.run()
    three.by_hand = True
    for start in (2, 3):
        one.delete_records(start)
        tell_of_deletions(cluster)
        for _ in range(3):
            one.produce(b"a")
            cluster.run()
    assert len(three.log.queue._waiting) == 0, "the one that runs takes the last start"
    three.by_hand = False
    three.hands.work_all()
    assert (three.log.log_start, three.log.queue.is_idle) == (3, True)
    cluster.stop()


def test_a_follower_that_was_cut_in_front_of_its_start_deletes_what_its_next_leader_deletes(
    tmp_path: Path,
) -> None:
    """It has deleted up to 3; an unclean election takes one that ends at 1, and deletes up to 2."""
    cluster = Cluster(tmp_path, {"min_in_sync": "1"})
    cluster.nodes[1].produce(b"a")
    cluster.run()
    cluster.kill(3)
    cluster.show()
    for value in (b"b", b"c", b"d"):
        cluster.nodes[1].produce(value)
        cluster.run()
    cluster.nodes[1].delete_records(3)
    tell_of_deletions(cluster)
    two = cluster.nodes[2]
    assert two.log.log_start == 3
    cluster.kill(1)
    cluster.start(3)
    unclean = cluster.state.state.designate(3, (3,), 1)
    unclean = replace(unclean, unclean_epoch=unclean.leader_epoch + 1)
    cluster.state = VersionedState(unclean, cluster.state.partition_epoch + 1)
    for _ in range(3):
        cluster.show()
        cluster.later(1.0)
    assert (two.log.log_start, two.log.log_end) == (0, 1)
    for value in (b"x", b"y", b"z"):
        cluster.nodes[3].produce(value)
        cluster.run()
    answer = cluster.nodes[3].delete_records(2)
    tell_of_deletions(cluster)
    assert (two.log.log_start, [each.error for each in answer]) == (2, [0])
    cluster.stop()


def test_a_produce_that_appends_nothing_wakes_no_follower(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = cluster.nodes[1]
    one.produce(b"a")
    cluster.later(1.0)
    leader = one.replica.leader
    assert leader is not None
    assert leader.is_idle

    def refuse(log: Log, batches: Sequence[bytes], *_: object) -> list[DiskFull]:
        return [DiskFull("no room") for _ in batches]

    monkeypatch.setattr(Log, "append_as_leader", refuse)
    sent = [node.wire.sent for node in cluster.nodes.values()]
    answer = one.produce(b"b")
    assert answer[0].error == DiskFull.code
    assert leader.is_idle
    cluster.run()
    assert [node.wire.sent for node in cluster.nodes.values()] == sent


def test_a_leader_writes_once_where_zookeeper_was_set_back(cluster: Cluster) -> None:
    one, before = cluster.nodes[1], cluster.state
    for _ in range(2):
        cluster.designate(1, 1, 2, 3)
        cluster.show()
    assert one.replica.leader is not None
    cluster.kill(3)
    cluster.state = VersionedState(before.state, before.partition_epoch - 1)
    written = len(cluster.writes)
    cluster.show(1)
    cluster.later(1.0)
    assert len(cluster.writes) - written == 1
    assert one.replica.state.leader is None


def test_a_leader_in_whose_epoch_another_leads_after_zookeeper_was_set_back_acks_nothing(
    cluster: Cluster,
) -> None:
    one, three, before = cluster.nodes[1], cluster.nodes[3], cluster.state
    cluster.designate(1, 1, 3)
    for _ in range(2):
        cluster.show()
    cluster.kill(2)
    cluster.show()
    cluster.run()
    cluster.later(1.0)
    cluster.cut |= {(3, 1)}
    answer = one.produce(b"a")
    assert one.replica.leader is not None
    assert not answer

    cluster.state = VersionedState(before.state, before.partition_epoch)
    cluster.designate(2, 1, 2, 3)
    cluster.start(2)
    for _ in range(2):
        cluster.show(2)
    cluster.nodes[2].turn()
    leading = cluster.state
    cluster.state = VersionedState(leading.state, leading.partition_epoch + 9)
    for broker in (1, 1, 3):
        cluster.show(broker)
    cluster.mend()
    cluster.cut |= {(2, 1)}
    for node in (three, one) * 3:
        node.turn()
    cluster.run()
    assert [result.error for result in answer] == [NotEnoughReplicasAfterAppend.code]


# -- exceptions -----------------------------------------------------------------------------------------


def test_a_fault_in_what_a_leader_answers_puts_that_partition_alone_out_of_use(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, three = cluster.nodes[1], cluster.nodes[3]
    one.produce(b"a")
    cluster.run()
    real = Log.append_as_follower

    def append(log: Log, chunk: memoryview) -> None:
        if log is three.log:
            raise OSError(EIO, os.strerror(EIO))
        real(log, chunk)

    monkeypatch.setattr(Log, "append_as_follower", append)
    answer = one.produce(b"b")
    cluster.run()
    assert three.log.failed is not None
    assert (three.log.is_open, three.log.log_end) == (True, 1)
    cluster.later(MAX_LAG + 1)
    cluster.later(1.0)
    assert (answer[0].error, set(cluster.state.state.isr)) == (0, {1, 2})


def test_a_produce_that_cannot_be_refused_holds_up_no_other_that_has_waited_too_long(
    cluster: Cluster,
) -> None:
    one = cluster.nodes[1]
    cluster.cut |= {(2, 1), (3, 1)}
    refused: list[object] = []

    def fail(error: object) -> None:
        refused.append(error)
        raise RuntimeError("a fault")

    one.replica.wait(WaitingProduce(1, 0, cluster.now + 1.0, fail))
    answer = one.produce(b"a")
    cluster.now += PRODUCE_TIMEOUT
    for _ in range(3):
        cluster.now += 1.0
        one.tend()
    assert (answer[0].error, len(refused)) == (RequestTimeout.code, 1)
    assert one.replica.waiting_produces == 0


def test_a_partition_that_cannot_be_looked_after_holds_up_no_other(cluster: Cluster) -> None:
    one = cluster.nodes[1]
    cluster.cut.add((3, 1))
    answer = one.produce(b"a")
    cluster.run()
    partitions, posted = one.partitions, deque[Callable[[], None]]()
    partitions.shared.post = posted.append
    looked_at: list[float] = []

    class Faulty:
        def look_after_isr(self) -> None:
            looked_at.append(cluster.now)
            raise RuntimeError("a fault")

    for _ in range(3):
        cluster.now += MAX_LAG
        assert one.replica.is_restless
        one.tend()
        partitions._isr_checks.appendleft(Faulty())  # type: ignore[arg-type]
        while posted:
            with suppress(RuntimeError):  # the event loop logs it
                posted.popleft()()
    assert answer[0].error == 0
    assert len(looked_at) == 3


@pytest.mark.parametrize("what", ["timer", "resign", "damage"])
def test_a_fault_in_what_is_looked_after_from_time_to_time_ends_no_round(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    one = cluster.nodes[1]
    cluster.cut.add((3, 1))
    one.produce(b"a")
    cluster.run()
    failed_at: list[float] = []

    def fail(*_: object) -> None:
        failed_at.append(cluster.now)
        raise RuntimeError("a fault")

    partitions = one.partitions
    if what == "damage":
        one.logs.files.damaged.add(one.log.directory)
        monkeypatch.setattr(Partition, "look_after_damage", fail)
    elif what == "resign":
        one.log.fail("a fault", readable=True)
        monkeypatch.setattr(Partition, "resign", fail)
    rounds: list[float] = []
    monkeypatch.setattr(Partition, "look_after_isr", lambda _: rounds.append(cluster.now))
    for _ in range(3):
        if what == "timer":
            partitions.shared.later(0.0, fail)
        cluster.now += MAX_LAG
        one.tend()
        cluster.run()
    assert len(set(failed_at)) == 3
    assert len(set(rounds)) == 3


# -- a partition that comes back ------------------------------------------------------------------------


@pytest.mark.parametrize("then", ["it goes on", "it dies"])
@pytest.mark.parametrize("away", ["moved", "set back"])
def test_a_replica_that_comes_back_acts_behind_what_it_had_begun_before_it_was_gone(
    cluster: Cluster, away: str, then: str
) -> None:
    """It was to begin anew at 10, and that is on disk: a death removes what lies before."""
    config = {"min_in_sync": "1", "durability": "page-cache"}
    cluster.topic = replace(cluster.topic, config=config)
    cluster.show()
    one = cluster.nodes[1]
    for number in range(3):
        one.produce(b"%d" % number)
        cluster.run()
    cluster.kill(3)
    cluster.show()
    for number in range(3, 12):
        one.produce(b"%d" % number)
        cluster.run()
    one.delete_records(10)
    cluster.run()
    cluster.start(3)
    three = cluster.nodes[3]
    three.by_hand = True
    cluster.show()
    while three.hands.keys()[:1] != ["log starts"]:
        three.hands.work()
        cluster.run()
    [begun] = three.hands.jobs
    three.hands.jobs.clear()
    outcome = begun[1]()
    three.by_hand = False
    there = cluster.topic
    if away == "moved":
        cluster.designate(1, 1, 2, 3)
        cluster.topic = replace(there, partitions=[[1, 2]], reassigned=1, revision=1)
        cluster.show(3)
        cluster.topic = replace(there, reassigned=2, revision=2)
    else:
        three.partitions.drop_topic(TOPIC_ID)
    for number in (1, 2):
        cluster.kill(number)
    unclean = cluster.state.state.designate(3, (3,), 1)
    unclean = replace(unclean, unclean_epoch=unclean.leader_epoch + 1)
    cluster.state = VersionedState(unclean, cluster.state.partition_epoch + 1)
    for _ in range(3):
        cluster.show(3)
        cluster.later(1.0)
    answers = {b"early": three.produce(b"early")}
    cluster.run()
    if then == "it goes on":
        begun[2](outcome)
    else:
        cluster.kill(3)
        cluster.start(3)
        three = cluster.nodes[3]
    for _ in range(3):
        cluster.show(3)
        cluster.later(1.0)
    answers[b"late"] = three.produce(b"late")
    cluster.run()
    kept = [b"0", b"1", b"2"] if then == "it goes on" else []
    acknowledged = [
        value for value, answer in answers.items() if [each.error for each in answer] == [0]
    ]
    assert acknowledged[-1:] == [b"late"]
    for _ in range(2):  # what is on disk says the same
        found = values_of(read_now(three.log, three.log.log_start, 1 << 20))
        assert [value for _, value in found] == [*kept, *acknowledged]
        cluster.kill(3)
        cluster.start(3)
        cluster.show(3)
        three = cluster.nodes[3]
