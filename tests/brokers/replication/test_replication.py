"""Brokers with a replica each: what is committed, who may lead, and what clients and impostors are told."""

import os
import shutil
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from errno import EIO, EMFILE, ENOSPC, EROFS
from math import inf
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from folkmoot.brokers.replication import partition as partition_module
from folkmoot.brokers.replication.leader_state import Position
from folkmoot.brokers.replication.partition import (
    DELETED_WITHIN,
    DISK_AGAIN_AFTER,
    MAX_LAG,
)
from folkmoot.brokers.server.metadata_cache import ClusterChange, ClusterView
from folkmoot.brokers.server.purgatory import Request, Response
from folkmoot.brokers.server.replica_fetches import NOTIFY_WITHIN
from folkmoot.brokers.server.request_table import handle
from folkmoot.brokers.storage import log as log_module
from folkmoot.brokers.storage.files.atomic_file import disk_error
from folkmoot.brokers.storage.log import Log
from folkmoot.brokers.storage.log_manager import LogManager
from folkmoot.brokers.storage.notes import load_notes
from folkmoot.brokers.storage.recovery import save_log_start
from folkmoot.brokers.storage.segment import Segment, SegmentReader
from folkmoot.coordination.deletions import Deletion
from folkmoot.coordination.partition_states import (
    NOBODY,
    BrokerReplaced,
    PartitionState,
    TopicIdPartition,
    VersionedState,
)
from folkmoot.coordination.topic_config import LogConfig
from folkmoot.coordination.topics import TopicInfo
from folkmoot.protocol import batch_header
from folkmoot.protocol.batch_header import LEADER_BYTES, leader_part
from folkmoot.protocol.errors import (
    DiskFull,
    FencedLeaderEpoch,
    FolkmootError,
    LogTruncated,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeader,
    OffsetNotAvailable,
    OffsetOutOfRange,
    RequestTimeout,
    StorageError,
    UnknownFetch,
    UnknownLeaderEpoch,
    UnknownReplica,
)
from folkmoot.protocol.messages import (
    LATEST,
    ListOffsetsEntry,
    ListOffsetsRequest,
    MetadataRequest,
    PartitionMetadata,
    ReplicaFetchEntry,
    ReplicaFetchRequest,
    ReplicaFetchResponse,
    ReplicaFetchResult,
)
from tests.brokers.batches import read_all, read_now, values_of
from tests.brokers.hands import Hands, create
from tests.brokers.parts import (
    carried_out,
    fetch,
    into,
    make_batch,
    make_handlers,
    out_of,
    produce,
)
from tests.brokers.replication.brokers import (
    PRODUCE_TIMEOUT,
    REPLICAS,
    TOPIC_ID,
    Cluster,
    Node,
)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    yield made
    made.stop()


def committed(node: Node) -> list[bytes | None]:
    """What a consumer reads of a leader."""
    found: list[tuple[int, bytes | None]] = []
    offset = node.log.log_start
    while offset < node.log.high_watermark:
        request = fetch(out_of(0, offset, topic_id=TOPIC_ID, epoch=-1))
        outcome = handle(node.handlers, Request(b"consumer", 1, request), (), node.now)
        if isinstance(outcome, Response):  # else an index is read by a job first
            for chunk in outcome.payloads:
                found += values_of(memoryview(chunk))
            offset = found[-1][0] + 1
    return [value for _, value in found]


def latest(node: Node, timestamp: int = LATEST) -> tuple[int, int]:
    """(error, offset) behind the newest record, or of the first one of that time (ms) or later."""
    entries = [ListOffsetsEntry("t", TOPIC_ID, 0, timestamp)]
    result = node.ask(ListOffsetsRequest(entries)).results[0]
    return result.error, result.offset


def isr(cluster: Cluster) -> tuple[int, ...]:
    """Who is in sync, as ZooKeeper has it."""
    return cluster.state.state.isr


def leads(node: Node) -> bool:
    return node.replica.leader is not None


def same_logs(cluster: Cluster) -> bool:
    contents = {
        b"".join(path.read_bytes() for path in sorted(node.log.directory.glob("*.log")))
        for node in cluster.nodes.values()
    }
    return len(contents) == 1


# -- records --------------------------------------------------------------------------------------------


def test_a_replica_that_has_all_is_never_noted_as_incomplete_when_leaders_change(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Had all brokers died right behind such a note, nobody would lead."""
    noted: list[Path] = []
    monkeypatch.setattr(partition_module, "note_incomplete", noted.append)
    cluster.nodes[1].produce(b"a")
    cluster.run()
    for leader in (2, 3, 1):
        cluster.designate(leader, *REPLICAS)
        cluster.show()
        cluster.run()
        assert leads(cluster.nodes[leader])
    assert noted == []


def test_a_record_is_acknowledged_and_seen_once_all_in_sync_replicas_have_it(
    cluster: Cluster,
) -> None:
    one = cluster.nodes[1]
    answer = one.produce(b"a")
    assert answer == []
    assert committed(one) == []
    cluster.run()
    assert answer[0].error == 0
    assert committed(one) == [b"a"]
    assert cluster.ends() == [1, 1, 1]
    assert same_logs(cluster)


def test_how_far_a_producer_got_is_told_once_all_of_it_is_committed(cluster: Cluster) -> None:
    def told(results: list[Any]) -> tuple[int, ...]:
        [result] = results
        return result.error, result.producer_epoch, result.next_sequence, result.log_end

    one = cluster.nodes[1]
    assert told(one.describe_producer(7)) == (0, -1, 0, 0)
    one.send(batch_header.reseal(make_batch(b"a", b"b"), 7, 3, 0))
    waiting = one.describe_producer(7)
    assert waiting == []
    cluster.run()
    assert told(waiting) == told(one.describe_producer(7)) == (0, 3, 2, 2)
    # What is not committed dies with the leader, and who has waited for it asks the next one.
    cluster.cut = {(2, 1), (3, 1)}
    one.send(batch_header.reseal(make_batch(b"c"), 7, 3, 2))
    waiting = one.describe_producer(7)
    cluster.designate(2, 1, 2, 3)
    cluster.show()
    cluster.cut = set()
    cluster.run()
    assert waiting[0].error == NotEnoughReplicasAfterAppend.code
    assert told(cluster.nodes[2].describe_producer(7)) == (0, 3, 2, 2)


def test_acks_1_is_answered_by_the_leader_alone_and_seen_later(cluster: Cluster) -> None:
    one = cluster.nodes[1]
    [result] = one.produce(b"a", acks=1)
    assert (result.error, committed(one)) == (0, [])
    cluster.run()
    assert committed(one) == [b"a"]


def test_what_is_not_on_the_leaders_disk_is_not_committed(cluster: Cluster) -> None:
    one = cluster.nodes[1]
    one.by_hand = True
    answer = one.produce(b"a")
    cluster.run()
    assert cluster.ends() == [1, 1, 1]
    assert (answer, committed(one)) == ([], [])
    one.hands.work_all()
    assert answer[0].error == 0
    one.by_hand = False


@pytest.mark.parametrize("number", [1, 2])
def test_a_record_whose_flush_could_not_begin_is_committed_by_the_next_try(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """The process of the leader, or of a follower, has no descriptor to spare for a moment."""

    async def without_descriptors() -> None:
        raise StorageError("too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(cluster.nodes[number].log, "flush_some", without_descriptors)
        answer = cluster.nodes[1].produce(b"a")
        cluster.run()
        assert answer == []
    cluster.later(DISK_AGAIN_AFTER)
    assert answer[0].error == 0


def test_what_is_not_on_a_followers_disk_does_not_count(cluster: Cluster) -> None:
    one, two = cluster.nodes[1], cluster.nodes[2]
    two.by_hand = True
    answer = one.produce(b"a")
    cluster.run()
    assert (two.log.log_end, answer) == (1, [])
    two.hands.work_all()
    two.by_hand = False
    cluster.run()
    assert answer[0].error == 0


def test_with_page_cache_nobody_waits_for_a_disk(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, {"durability": "page-cache"})
    for node in cluster.nodes.values():
        node.by_hand = True
    answer = cluster.nodes[1].produce(b"a")
    cluster.run()
    assert answer[0].error == 0
    for node in cluster.nodes.values():
        node.hands.work_all()
        node.by_hand = False
    cluster.stop()


def test_a_topic_that_asks_for_fsync_has_all_on_disk_before_the_next_record_is_acknowledged(
    tmp_path: Path,
) -> None:
    cluster = Cluster(tmp_path, {"durability": "page-cache"})
    one = cluster.nodes[1]
    one.produce(b"a")
    cluster.run()
    assert committed(one) == [b"a"]
    for node in cluster.nodes.values():
        node.by_hand = True
    cluster.topic.config["durability"] = "fsync"
    cluster.show()
    answer = one.produce(b"b")
    for node in cluster.nodes.values():
        cluster.run()
        assert answer == [], f"broker {node.number} has flushed neither of them"
        node.by_hand = False
        node.hands.work_all()
    cluster.run()
    assert answer[0].error == 0
    for node in cluster.nodes.values():
        assert node.log.recovery_point_offset == 2
    cluster.stop()


def test_who_waits_for_a_topic_that_asks_for_fsync_meanwhile_waits_for_no_checkpoint(
    tmp_path: Path,
) -> None:
    cluster = Cluster(tmp_path, {"durability": "page-cache"})
    cluster.cut = {(2, 1), (3, 1)}
    answer = cluster.nodes[1].produce(b"a")
    cluster.topic.config["durability"] = "fsync"
    cluster.show()
    cluster.mend()
    for _ in range(3):
        cluster.later(1.0)
    assert answer[0].error == 0
    for node in cluster.nodes.values():
        assert node.log.recovery_point_offset == 1
    cluster.stop()


def test_who_waits_is_told_of_what_is_committed_later_though_nothing_is_produced_any_more(
    cluster: Cluster,
) -> None:
    one, two = cluster.nodes[1], cluster.nodes[2]
    one.produce(b"a")
    cluster.run()
    cluster.kill(1)
    cluster.cut = {(3, 2)}
    cluster.designate(2, 2, 3)
    cluster.show()
    cluster.run()
    assert leads(two)
    offset = two.log.high_watermark
    assert offset < two.log.log_end, "it knows already that all is committed"
    request = Request(
        b"consumer", 1, fetch(out_of(0, offset, topic_id=TOPIC_ID, epoch=-1), max_wait=5.0)
    )
    assert handle(two.handlers, request, (), two.now) is None
    cluster.mend()
    cluster.run()
    cluster.now += 1.0
    cluster.run()
    assert two.log.high_watermark == two.log.log_end
    [answer] = two.consumed
    assert [len(chunk) > 0 for chunk in answer.payloads] == [True]


@pytest.mark.parametrize("cause", ["it leaves the ISR", "its replica moves away"])
def test_a_fetch_that_waits_at_a_follower_hears_that_it_may_not_read_there_any_more(
    cluster: Cluster, cause: str
) -> None:
    one, two = cluster.nodes[1], cluster.nodes[2]
    one.produce(b"a")
    cluster.run()
    cluster.later(1.0)
    end = two.log.high_watermark
    request = Request(
        b"consumer", 1, fetch(out_of(0, end, topic_id=TOPIC_ID, epoch=1), max_wait=30.0)
    )
    assert handle(two.handlers, request, (), two.now) is None
    cluster.run()
    assert not two.consumed
    if cause == "it leaves the ISR":
        shrunk = replace(cluster.state.state, isr=(1, 3))
        cluster.state = VersionedState(shrunk, cluster.state.partition_epoch + 1)
    else:
        cluster.topic = replace(cluster.topic, partitions=[[1, 3]])
    cluster.show(2)
    cluster.run()
    [answer] = two.consumed
    assert [each.error for each in answer.body.results] == [NotLeader.code]


def test_a_follower_s_fetch_that_waits_is_answered_with_nothing_when_it_fetches_again(
    cluster: Cluster,
) -> None:
    one, now = cluster.nodes[1], cluster.now
    nonce = cluster.registrations[2].nonce
    fetches = one.handlers.replica_fetches
    waiting = one.handlers.purgatory
    peer = b"another connection"
    begins = ReplicaFetchRequest(2, nonce, True, 5.0, 1000, [])
    assert fetches.fetch(Request(peer, 1, begins), now) is None
    goes_on = ReplicaFetchRequest(2, nonce, False, 5.0, 1000, [])
    assert fetches.fetch(Request(peer, 2, goes_on), now) is None
    former, superseded = waiting.take_completed(now, 10)
    assert former.request.peer != peer, "the session before has ended"
    assert superseded.request.correlation_id == 1
    for each in (former, superseded):
        answer = each.complete(one.now)
        assert answer is not None
        assert answer.body.results == []
    assert peer not in {each.request.peer for each in waiting.take_completed(now + 4.9, 10)}
    [last] = waiting.take_completed(now + 5.0, 10)
    assert (last.request.peer, last.request.correlation_id) == (peer, 2)


def test_nothing_is_kept_of_a_produce_with_acks_1_while_the_high_watermark_stands(
    cluster: Cluster,
) -> None:
    one = cluster.nodes[1]
    cluster.cut = {(2, 1), (3, 1)}
    payload = bytearray(make_batch(b"a"))
    request = produce(into(0, topic_id=TOPIC_ID, epoch=-1), acks=1)
    answer = carried_out(request, [memoryview(payload)], one.now, one.handlers)  # type: ignore[list-item]
    assert isinstance(answer, Response)
    assert (one.log.high_watermark, one.log.log_end) == (0, 1)
    payload.clear()  # raises BufferError if somebody still looks at it


# -- in-sync replicas -----------------------------------------------------------------------------------


def test_a_replica_whose_broker_is_gone_leaves_the_isr_and_comes_back_with_all(
    cluster: Cluster,
) -> None:
    one = cluster.nodes[1]
    cluster.kill(3)
    answer = one.produce(b"a")
    cluster.run()
    assert answer == [], "it is in sync still"
    cluster.show()
    cluster.run()
    assert isr(cluster) == (1, 2)
    assert answer[0].error == 0
    cluster.start(3)
    cluster.show()
    cluster.run()
    assert isr(cluster) == (1, 2, 3)
    assert same_logs(cluster)


def test_a_replica_whose_broker_is_about_to_stop_leaves_the_isr_at_once_and_for_good(
    cluster: Cluster,
) -> None:
    """Else the records that come when it goes wait until its end was noticed, and written."""
    cluster.registrations[3] = replace(cluster.registrations[3], leaving=True)
    cluster.show()
    cluster.run()
    assert isr(cluster) == (1, 2)
    answer = cluster.nodes[1].produce(b"a")
    cluster.run()
    assert answer[0].error == 0
    assert cluster.nodes[3].log.log_end == 1, "it has all, and is there still"
    cluster.later(1.0)
    assert isr(cluster) == (1, 2)


def test_a_replica_that_lags_leaves_the_isr(cluster: Cluster) -> None:
    one = cluster.nodes[1]
    cluster.cut = {(3, 1)}
    answer = one.produce(b"a")
    cluster.later(5.0)
    assert isr(cluster) == (1, 2, 3)
    cluster.later(6.0)
    assert isr(cluster) == (1, 2)
    assert answer[0].error == 0


def test_a_refusal_of_a_former_incarnation_takes_nothing_from_the_next_one(
    cluster: Cluster,
) -> None:
    """A partition at rest is named once, so what was said then has to stay."""
    one = cluster.nodes[1]
    cluster.kill(3)
    cluster.show()
    leader = one.replica.leader
    assert leader is not None
    cluster.start(3)
    registered = cluster.registrations[3].epoch
    position = Position(1, -1, 0)
    leader.handle_fetch(3, registered - 1, position, 0, cluster.now)
    refused = leader.propose((1, 2, 3), cluster.now)
    assert refused is not None
    leader.handle_fetch(3, registered, position, 0, cluster.now)
    leader.finish_proposal(BrokerReplaced(3))
    again = leader.propose((1, 2, 3), cluster.now)
    assert again is not None
    assert again.in_sync == {3: registered}
    leader.finish_proposal(BrokerReplaced(3))
    assert leader.propose((1, 2, 3), cluster.now) is None, "nobody has fetched since"


def test_a_partition_at_rest_keeps_its_replicas_in_sync_and_lag_counts_from_the_next_record(
    cluster: Cluster,
) -> None:
    one = cluster.nodes[1]
    one.produce(b"a")
    cluster.run()
    cluster.later(1_000.0)
    assert isr(cluster) == (1, 2, 3)
    cluster.cut = {(3, 1)}
    answer = one.produce(b"b")
    cluster.later(5.0)
    assert (isr(cluster), answer) == ((1, 2, 3), [])
    cluster.later(6.0)
    assert isr(cluster) == (1, 2)
    assert answer[0].error == 0


def test_below_min_in_sync_nothing_is_appended_with_acks_all_and_nothing_is_committed(
    cluster: Cluster,
) -> None:
    one = cluster.nodes[1]
    waiting = one.produce(b"a")
    cluster.kill(2)
    cluster.kill(3)
    cluster.show()
    assert isr(cluster) == (1,)
    assert waiting[0].error == NotEnoughReplicasAfterAppend.code
    [result] = one.produce(b"b")
    assert result.error == NotEnoughReplicas.code
    assert "1 replica in sync, and needs 2" in result.message
    [result] = one.produce(b"c", acks=1)
    assert (result.error, result.base_offset) == (0, 1)
    assert committed(one) == []
    cluster.start(2)
    cluster.show()
    cluster.run()
    assert committed(one) == [b"a", b"c"]


def test_what_is_not_committed_in_time_is_refused_and_committed_later(cluster: Cluster) -> None:
    one = cluster.nodes[1]
    cluster.cut = {(2, 1), (3, 1)}
    waiting = one.produce(b"a")
    cluster.now += PRODUCE_TIMEOUT
    one.partitions.shared.run_timers(cluster.now)
    assert waiting[0].error == RequestTimeout.code
    assert "it waits for the in-sync replicas of broker 2 and 3" in waiting[0].message
    cluster.mend()
    cluster.run()
    cluster.later(1.0)
    assert committed(one) == [b"a"]


def test_after_an_unclean_election_a_replica_that_is_ahead_cuts_what_was_committed(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    one, two, three = (cluster.nodes[number] for number in (1, 2, 3))
    one.produce(b"a")
    cluster.run()
    cluster.cut = {(3, 1)}
    cluster.later(5.0)
    one.produce(b"lost")
    cluster.later(11.0)
    assert isr(cluster) == (1, 2)
    assert committed(one) == [b"a", b"lost"]
    cluster.later(1.0)
    assert two.log.high_watermark == 2
    cluster.kill(1)
    epoch = cluster.state.state.leader_epoch + 1
    cluster.designate(3, 3)
    unclean = replace(cluster.state.state, unclean_epoch=epoch)
    cluster.state = VersionedState(unclean, cluster.state.partition_epoch)
    cluster.show()
    cluster.run()
    assert three.replica.leader is not None
    assert "has lost what was committed from offset 1 to 2" in caplog.text
    assert [each.partitions.counters.elected_unclean for each in (one, three)] == [0, 1]
    assert [each.partitions.counters.elected for each in (one, three)] == [1, 1]
    cluster.later(1.0)
    three.produce(b"b")
    cluster.run()
    assert (two.log.failed, committed(three)) == (None, [b"a", b"b"])
    assert two.log.log_end == 2


@pytest.mark.parametrize("deleted", [4, 7])
def test_after_an_unclean_election_a_replica_that_begins_behind_the_leaders_end_copies_all_that_is_left(
    cluster: Cluster, deleted: int
) -> None:
    cluster.nodes[1].produce(b"old")
    cluster.run()
    cluster.kill(3)
    cluster.show()
    for number in range(6):
        cluster.nodes[1].produce(b"%d" % number)
        cluster.run()
    cluster.nodes[1].delete_records(deleted)
    cluster.later(1.0)
    assert cluster.nodes[2].log.log_start == deleted
    cluster.kill(1)
    cluster.kill(2)
    cluster.start(3)
    unclean = replace(cluster.state.state, unclean_epoch=cluster.state.state.leader_epoch + 1)
    cluster.state = VersionedState(unclean, cluster.state.partition_epoch)
    cluster.designate(3, 3)
    cluster.show()
    cluster.start(2)
    for _ in range(3):
        cluster.show()
        cluster.later(1.0)
    assert set(isr(cluster)) == {2, 3}
    values = [b"new %d" % number for number in range(9)]
    for value in values:
        answer = cluster.nodes[3].produce(value)
        cluster.run()
        assert answer[0].error == 0
    cluster.kill(2)
    cluster.start(2)
    cluster.designate(2, 2, 3)
    cluster.show()
    cluster.run()
    assert leads(cluster.nodes[2])
    assert committed(cluster.nodes[2]) == [b"old", *values]


@pytest.mark.parametrize("another_disk", [False, True])
def test_after_an_unclean_election_a_replica_without_records_does_not_begin_behind_new_ones(
    cluster: Cluster, tmp_path: Path, another_disk: bool
) -> None:
    """All that it had was deleted; on another disk it knows of no leader epoch, either."""
    cluster.topic = replace(cluster.topic, config={"min_in_sync": "1"})
    cluster.kill(3)
    cluster.show()
    for number in range(3):
        cluster.nodes[1].produce(b"%d" % number)
        cluster.run()
    cluster.nodes[1].delete_records(3)
    cluster.later(1.0)
    if another_disk:
        cluster.kill(2)
        cluster.show()
        shutil.rmtree(tmp_path / "2")
        cluster.start(2)
        for _ in range(3):
            cluster.show()
            cluster.later(1.0)
        assert list(cluster.nodes[2].log.epoch_starts) == []
    assert (set(isr(cluster)), cluster.nodes[2].log.log_start) == ({1, 2}, 3)
    cluster.kill(1)
    cluster.kill(2)
    cluster.start(3)
    unclean = replace(cluster.state.state, unclean_epoch=cluster.state.state.leader_epoch + 1)
    cluster.state = VersionedState(unclean, cluster.state.partition_epoch)
    cluster.designate(3, 3)
    cluster.show()
    values = [b"new %d" % number for number in range(5)]
    for value in values:
        answer = cluster.nodes[3].produce(value)
        cluster.run()
        assert answer[0].error == 0
    cluster.start(2)
    for _ in range(3):
        cluster.show()
        cluster.later(1.0)
    assert set(isr(cluster)) == {2, 3}
    cluster.kill(3)
    cluster.designate(2, 2)
    cluster.show()
    assert leads(cluster.nodes[2])
    assert committed(cluster.nodes[2]) == values


def test_min_in_sync_can_be_changed_while_brokers_run(cluster: Cluster) -> None:
    cluster.kill(2)
    cluster.kill(3)
    cluster.show()
    [result] = cluster.nodes[1].produce(b"a")
    assert result.error == NotEnoughReplicas.code
    cluster.topic = msgspec.structs.replace(cluster.topic, config={"min_in_sync": "1"})
    cluster.show()
    [result] = cluster.nodes[1].produce(b"b")
    assert result.error == 0


# -- leaders --------------------------------------------------------------------------------------------


def test_an_epoch_is_on_disk_before_the_activation_is_written(cluster: Cluster) -> None:
    two = cluster.nodes[2]
    two.by_hand = True
    cluster.designate(2, 1, 2, 3)
    before = len(cluster.writes)
    cluster.show()
    assert len(cluster.writes) == before
    assert two.hands.keys() == ["notes"]
    two.hands.work_all()
    two.by_hand = False
    assert cluster.writes[before].state.leader_epoch == 2
    noted = load_notes(two.logs.data).leader_epochs
    assert noted == {f"{TOPIC_ID}-0": 2}


def test_the_epochs_of_all_partitions_of_a_turn_are_put_on_disk_by_two_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hands = Hands()
    posted: deque[Callable[[], None]] = deque()
    topic = TopicInfo(TOPIC_ID, [[1, 2]] * 20)
    state = VersionedState(PartitionState(2, 2, (1, 2), 1, active=True), 2)
    states = {TopicIdPartition(TOPIC_ID, number): state for number in range(20)}
    change = ClusterChange(full_view=ClusterView({}, {"t": topic}, states), is_registered=True)
    with LogManager(tmp_path, 1, LogConfig(), submit=hands.submit) as logs:
        handlers = make_handlers(logs, submit=hands.submit)
        for number in range(20):
            create(logs, "t", TOPIC_ID, number)
        monkeypatch.setattr(handlers.partitions.shared, "post", posted.append)
        handlers.updates.show(change, posted.append)
        while posted:
            posted.popleft()()
        for _ in range(2):  # what comes while the first is written is in the second
            [number] = [each for each, kind in enumerate(hands.keys()) if kind == "notes"]
            hands.jobs.insert(0, hands.jobs.pop(number))
            hands.work()
        assert hands.keys().count("notes") == 0
        assert load_notes(tmp_path).leader_epochs == dict.fromkeys(
            (f"{TOPIC_ID}-{number}" for number in range(20)), 2
        )


def test_who_is_not_leader_any_more_says_so_and_cuts_what_nobody_else_has(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = cluster.nodes[1], cluster.nodes[2]
    first = one.produce(b"a")
    cluster.run()
    cluster.cut = {(2, 1), (3, 1)}
    lost = one.produce(b"lost 1") + one.produce(b"lost 2")
    cluster.designate(2, 1, 2, 3)
    cluster.show(2, 3)
    cluster.run()
    assert (first[0].error, lost) == (0, [])
    [zombie] = one.produce(b"lost 3", acks=1)
    assert zombie.error == 0, "it does not know yet, and acks=1 promises no more"
    waiting = one.produce(b"lost 4")
    cluster.show(1)
    assert waiting[0].error == NotEnoughReplicasAfterAppend.code
    [result] = one.produce(b"no")
    assert result.error == NotLeader.code
    cluster.run()
    assert two.replica.leader is not None
    kept = two.produce(b"b")
    cluster.run()
    assert kept[0].error == 0
    assert "cut from offset 5 to 1" in caplog.text
    assert same_logs(cluster)
    assert committed(two) == [b"a", b"b"]


def test_a_new_leader_tells_no_offset_before_it_knows_what_is_committed(cluster: Cluster) -> None:
    cluster.nodes[1].produce(b"a")
    cluster.run()
    cluster.cut = {(1, 2), (3, 2)}
    cluster.designate(2, 1, 2, 3)
    cluster.show()
    two = cluster.nodes[2]
    two.log.high_watermark = 0
    assert two.replica.leader is not None
    two.replica.leader.high_watermark = 0
    assert latest(two) == latest(two, timestamp=0) == (OffsetNotAvailable.code, -1)
    request = fetch(out_of(0, 1, topic_id=TOPIC_ID, epoch=-1), max_wait=10.0)
    waiting = handle(two.handlers, Request(b"consumer", 1, request), (), two.now)
    assert waiting is None, "an offset that is committed is not out of range"
    cluster.mend()
    cluster.later(1.0)
    cluster.kill(1)
    cluster.kill(3)
    cluster.start(1)
    cluster.start(3)
    cluster.show()
    cluster.run()
    assert latest(two) == latest(two, timestamp=2**60) == (0, 1)
    assert latest(two, timestamp=0) == (0, 0)


def test_an_activation_whose_outcome_is_not_known_is_done_again_in_a_new_epoch(
    cluster: Cluster,
) -> None:
    two = cluster.nodes[2]
    cluster.designate(2, 1, 2, 3)
    cluster.lose_answers = True
    cluster.show(2)
    assert cluster.state.state.leader_epoch == 2
    assert not leads(two)
    cluster.lose_answers = False
    cluster.show(2)
    assert leads(two)
    assert two.log.leader_epoch == 3


def test_an_isr_change_whose_outcome_is_not_known_counts_until_the_state_is_read_again(
    cluster: Cluster,
) -> None:
    one = cluster.nodes[1]
    cluster.kill(3)
    cluster.lose_answers = True
    cluster.show()
    assert one.replica.leader is not None
    answer = one.produce(b"a")
    cluster.run()
    assert answer == [], "3 may be in sync still"
    assert one.replica.leader.maximal_isr == {1, 2, 3}
    cluster.lose_answers = False
    cluster.show()
    cluster.run()
    assert one.replica.leader.isr == (1, 2)
    assert answer[0].error == 0


def test_an_isr_change_whose_outcome_is_not_known_is_not_settled_by_what_was_read_before(
    cluster: Cluster,
) -> None:
    """A view of many topics is taken over in steps, and its session may end meanwhile."""
    one = cluster.nodes[1]
    cluster.kill(3)
    cluster.show()
    cluster.run()
    assert isr(cluster) == (1, 2)
    others = {f"other-{number}": TopicInfo(f"id-{number + 2}", [[9]]) for number in range(60)}
    states = {TopicIdPartition(TOPIC_ID, 0): cluster.state}
    cluster.start(3)
    whole = ClusterView(cluster.registrations, {**others, "t": cluster.topic}, states)
    steps: deque[Callable[[], None]] = deque()
    one.handlers.updates.show(
        ClusterChange(full_view=whole, is_settled=True, is_registered=True), steps.append
    )
    assert steps, "t is still to come"
    cluster.lose_answers = True
    cluster.show(2, 3)
    cluster.run()
    assert isr(cluster) == (1, 2, 3), "it was written, and that is not known"
    while steps:
        steps.popleft()()
    cluster.cut = {(3, 1)}
    answer = one.produce(b"a")
    cluster.run()
    assert answer == [], "3 may be in sync, and lead next"
    cluster.lose_answers = False
    cluster.mend()
    cluster.show(1)
    for _ in range(2):
        cluster.later(1.0)
    assert answer[0].error == 0


def test_who_cannot_lead_since_zookeeper_was_set_back_says_so(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    before = cluster.state
    for leader in (2, 1, 2, 1):
        cluster.designate(leader, 1, 2, 3)
        cluster.show()
        cluster.run()
    assert caplog.text.count("set back") == 0
    for number in REPLICAS:
        cluster.kill(number)
    cluster.state = before
    for number in REPLICAS:
        cluster.start(number)
    cluster.show()
    assert not leads(cluster.nodes[1])
    assert "t-0: cannot lead: leader epoch 1, which ZooKeeper knows, is behind 5" in caplog.text


def test_all_brokers_killed_at_once_come_back_with_all_that_was_acknowledged(
    cluster: Cluster,
) -> None:
    answers = [cluster.nodes[1].produce(b"%d" % number) for number in range(20)]
    cluster.run()
    assert all(answer[0].error == 0 for answer in answers)
    for number in (1, 2, 3):
        cluster.kill(number)
    for number in (1, 2, 3):
        cluster.start(number)
    cluster.show()
    cluster.run()
    one = cluster.nodes[1]
    assert one.replica.leader is not None
    assert one.replica.leader.epoch == 2
    assert committed(one) == [b"%d" % number for number in range(20)]


def test_a_replica_that_has_lost_what_it_had_on_disk_does_not_lead(
    cluster: Cluster, tmp_path: Path
) -> None:
    for number in range(5):
        cluster.nodes[1].produce(b"%d" % number)
    cluster.run()
    path = cluster.nodes[2].log.segments[0].path
    cluster.nodes[2].logs.close()
    del cluster.nodes[2]
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    cluster.start(2)
    cluster.designate(2, 1, 2, 3)
    cluster.show()
    two = cluster.nodes[2]
    assert 0 < two.log.log_end < 5
    assert two.replica.leader is None
    cluster.designate(1, 1, 2, 3)
    cluster.show()
    cluster.later(1.0)
    assert two.log.log_end == 5, "it fetches what it lacks"
    assert two.replica.state.may_lead


def test_a_leader_takes_out_of_the_isr_who_has_lost_what_is_committed(cluster: Cluster) -> None:
    one = cluster.nodes[1]
    one.produce(b"a")
    cluster.run()
    assert committed(one) == [b"a"]
    cluster.kill(3)
    [path] = (cluster.directory / "3").glob("*/*.log")
    path.write_bytes(b"")
    cluster.start(3)
    cluster.nodes[3].by_hand = True
    cluster.show()
    for _ in range(9):
        while cluster.nodes[3].log.log_end == 0 and cluster.nodes[3].hands.jobs:
            cluster.nodes[3].hands.work()
        cluster.run(1)
    cluster.later(1.0)
    assert isr(cluster) == (1, 2), "it has copied that again, but not onto its disk"
    cluster.nodes[3].by_hand = False
    cluster.nodes[3].hands.work_all()
    for _ in range(3):
        cluster.later(1.0)
    assert set(isr(cluster)) == {1, 2, 3}


def test_a_broker_with_another_disk_does_not_lead_though_it_was_in_sync(
    cluster: Cluster, tmp_path: Path
) -> None:
    """It would make all others cut what they have."""
    answer = cluster.nodes[1].produce(b"a")
    cluster.run()
    assert answer[0].error == 0
    for number in (1, 2, 3):
        cluster.kill(number)
    shutil.rmtree(tmp_path / "1")
    for number in (1, 2, 3):
        cluster.start(number)
    cluster.show()
    assert not leads(cluster.nodes[1])
    assert (cluster.state.state.leader, isr(cluster)) == (-1, (2, 3))
    cluster.designate(2, 2, 3)
    cluster.show()
    cluster.run()
    assert committed(cluster.nodes[2]) == [b"a"]
    cluster.later(1.0)
    assert isr(cluster) == (2, 1, 3)
    assert cluster.nodes[1].replica.state.may_lead
    assert same_logs(cluster)


def test_a_broker_with_another_disk_does_not_lead_after_a_second_restart_either(
    cluster: Cluster, tmp_path: Path
) -> None:
    """The first start has followed, and so it has an epoch on that disk."""
    answer = cluster.nodes[1].produce(b"a")
    cluster.run()
    assert answer[0].error == 0
    for number in (1, 2, 3):
        cluster.kill(number)
    shutil.rmtree(tmp_path / "1")
    for number in (1, 2):
        cluster.start(number)
    cluster.designate(2, 1, 2)
    cluster.cut = {(1, 2)}
    cluster.show()
    assert leads(cluster.nodes[2])
    assert isr(cluster) == (1, 2), "nobody knows yet that it has nothing"
    cluster.kill(1)
    cluster.start(1)
    assert cluster.nodes[1].log.leader_epoch > 0
    cluster.kill(2)
    cluster.designate(1, 1, 2)
    cluster.show()
    assert not leads(cluster.nodes[1])
    assert (cluster.state.state.leader, isr(cluster)) == (-1, (2,))
    cluster.mend()
    cluster.start(2)
    cluster.designate(2, 2)
    cluster.show()
    cluster.run()
    cluster.later(1.0)
    cluster.later(1.0)
    assert isr(cluster) == (2, 1)
    assert same_logs(cluster)
    cluster.kill(1)
    cluster.start(1)
    cluster.designate(1, 1, 2)
    cluster.show()
    assert leads(cluster.nodes[1]), "it has all by now"


@pytest.mark.parametrize("killed_again", [False, True])
def test_a_disk_in_whose_place_another_one_was_in_sync_meanwhile_does_not_lead_before_it_has_all(
    cluster: Cluster, tmp_path: Path, killed_again: bool
) -> None:
    cluster.nodes[1].produce(b"a")
    cluster.run()
    cluster.kill(3)
    (tmp_path / "3").rename(tmp_path / "first")
    cluster.start(3)
    for _ in range(4):
        cluster.show()
        cluster.later(1.0)
    answer = cluster.nodes[1].produce(b"b")
    cluster.run()
    assert (answer[0].error, set(isr(cluster))) == (0, {1, 2, 3})
    cluster.kill(3)
    (tmp_path / "3").rename(tmp_path / "second")
    (tmp_path / "first").rename(tmp_path / "3")
    cluster.start(3)
    cluster.nodes[3].logs.mark_incomplete()
    if killed_again:
        cluster.kill(3)
        cluster.start(3)
    cluster.designate(3, 1, 2, 3)
    cluster.show()
    assert not leads(cluster.nodes[3])
    assert (cluster.state.state.leader, isr(cluster)) == (NOBODY, (1, 2))
    cluster.designate(1, 1, 2)
    for _ in range(4):
        cluster.show()
        cluster.later(1.0)
    assert (cluster.ends(), set(isr(cluster))) == ([2, 2, 2], {1, 2, 3})
    cluster.designate(3, 1, 2, 3)
    cluster.show()
    assert leads(cluster.nodes[3]), "it has all by now"


def test_a_process_does_not_fetch_with_the_nonce_of_another_one_that_has_its_id_by_now(
    cluster: Cluster,
) -> None:
    """It has lost its session, and reads of its successor before it is refused: what it fetched would
    be counted for the disk of that one, which would lead then without it."""
    three = cluster.nodes[3]
    cluster.registrations[3] = replace(cluster.registrations[3], nonce="another process", epoch=2)
    cluster.show(1, 2)
    cluster.show(3, registered=False)
    cluster.run()
    answer = three.cluster.nodes[1].produce(b"a")
    cluster.run()
    assert three.log.log_end == 0
    assert answer == [], "nobody has counted it for the other disk"
    cluster.show(3)
    cluster.run()
    assert answer[0].error == 0, "that was its own registration, in a new session"


def test_a_broker_that_is_not_registered_waits_to_fetch_until_it_is(cluster: Cluster) -> None:
    """A turn that is due at once, and asks nobody, would be taken again and again."""
    three = cluster.nodes[3]
    mine = cluster.registrations[3]
    cluster.registrations[3] = replace(mine, nonce="another process")
    cluster.show(3, registered=False)
    three.wire.broke(1, RequestTimeout("it did not answer"))
    cluster.run()
    assert three.fetcher.next_event() == inf
    cluster.registrations[3] = mine
    cluster.show(3)
    assert three.fetcher.next_event() < inf


def test_a_leader_at_another_address_is_asked_there_at_once(cluster: Cluster) -> None:
    """Nobody may be left at the former one who could say that it is gone."""
    cluster.cut |= {(2, 1), (3, 1)}
    answer = cluster.nodes[1].produce(b"a")
    cluster.run()
    assert answer == [], "what followers have asked since was lost"
    cluster.cut.clear()
    moved = replace(cluster.registrations[1], listeners={"client": "01"})
    cluster.registrations[1] = moved
    cluster.show()
    cluster.run()
    assert answer[0].error == 0


def test_who_cannot_write_any_more_has_another_lead(cluster: Cluster) -> None:
    one = cluster.nodes[1]
    waiting = one.produce(b"a")
    one.log.fail("a write was torn", readable=True)
    cluster.later(1.0)
    assert not leads(one)
    assert waiting[0].error != 0
    assert (cluster.state.state.leader, isr(cluster)) == (-1, (2, 3))
    cluster.designate(2, 2, 3)
    cluster.show()
    answer = cluster.nodes[2].produce(b"b")
    cluster.run()
    assert answer[0].error == 0


def test_who_is_alone_in_sync_and_cannot_write_any_more_can_be_read(cluster: Cluster) -> None:
    one = cluster.nodes[1]
    one.produce(b"a")
    cluster.run()
    cluster.kill(2)
    cluster.kill(3)
    cluster.show()
    cluster.later(1.0)
    assert isr(cluster) == (1,)
    one.log.fail("a write was torn", readable=True)
    cluster.later(1.0)
    assert leads(one)
    assert committed(one) == [b"a"]


def test_who_cannot_open_its_log_has_another_lead(cluster: Cluster) -> None:
    cluster.nodes[1].produce(b"a")
    cluster.run()
    cluster.kill(1)
    cluster.start(1)
    cluster.nodes[1].log.fail("it cannot be read")
    cluster.show()
    assert (cluster.state.state.leader, isr(cluster)) == (-1, (2, 3))
    # Nor does it lead where a command asks for that.
    state = replace(cluster.state.state, unclean_epoch=cluster.state.state.leader_epoch + 1)
    cluster.state = replace(cluster.state, state=state)
    cluster.designate(1, 1)
    for _ in range(3):
        cluster.show()
        cluster.later(1.0)
    assert not cluster.state.state.active


def test_who_is_alone_in_sync_and_has_lost_its_disk_leads_nothing(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.kill(2)
    cluster.kill(3)
    cluster.show()
    assert isr(cluster) == (1,)
    cluster.kill(1)
    shutil.rmtree(tmp_path / "1")
    cluster.start(1)
    cluster.show()
    assert not leads(cluster.nodes[1])
    assert isr(cluster) == (1,), "only a command that says what it costs elects another"
    assert not cluster.state.state.active, "and who looks for leaderless partitions finds it"


@pytest.mark.parametrize("lost", ["all", "the end"])
def test_who_is_alone_in_sync_and_has_lost_something_leads_with_the_rest_by_command(
    cluster: Cluster, tmp_path: Path, lost: str
) -> None:
    one = cluster.nodes[1]
    for value in (b"a", b"b"):
        one.produce(value)
        cluster.run()
    cluster.kill(2)
    cluster.kill(3)
    cluster.show()
    assert isr(cluster) == (1,)
    [path] = one.log.directory.glob("*.log")
    one.logs.close()
    cluster.kill(1)
    if lost == "all":
        shutil.rmtree(tmp_path / "1")
    else:
        os.truncate(path, path.stat().st_size - 1)
    cluster.start(1)
    cluster.show()
    one = cluster.nodes[1]
    assert not leads(one)
    state = cluster.state.state
    cluster.state = replace(
        cluster.state, state=replace(state, unclean_epoch=state.leader_epoch + 1)
    )
    cluster.designate(1, 1)
    cluster.show()
    assert leads(one)
    end = one.log.log_end
    assert end == (0 if lost == "all" else 1)
    for number in (2, 3):
        cluster.start(number)
    for _ in range(3):
        cluster.show()
        cluster.later(1.0)
    assert set(isr(cluster)) == {1, 2, 3}
    assert cluster.ends() == [end, end, end]
    answer = one.produce(b"c")
    cluster.run()
    assert answer[0].error == 0
    cluster.kill(1)
    cluster.start(1)
    cluster.show()
    assert leads(cluster.nodes[1]), "it has all that is committed now"


def test_who_is_not_in_sync_and_knows_it_takes_nothing_for_replaced_by_what_the_others_say(
    cluster: Cluster,
) -> None:
    """It answers clients while ZooKeeper is down, and so do the others."""
    three, said = cluster.nodes[3], PartitionMetadata(0, 1, 1, [*REPLICAS], [1, 2])
    cluster.cut = {(3, 1)}
    cluster.nodes[1].produce(b"a")
    cluster.run()
    cluster.later(MAX_LAG + 1.0)
    assert isr(cluster) == (1, 2)
    three.replica.observe_metadata(said)
    assert three.partitions.shared.is_replaced, "it has not read of that yet"
    three.partitions.shared.is_replaced = False
    cluster.show(3)
    three.replica.observe_metadata(said)
    assert three.ask(MetadataRequest(["t"]))
    three.replica.observe_metadata(PartitionMetadata(0, 2, 2, [*REPLICAS], [1, 2]))
    with pytest.raises(NotLeader):
        three.ask(MetadataRequest(["t"]))


# -- followers ------------------------------------------------------------------------------------------


def test_a_follower_takes_the_log_start_of_its_leader(cluster: Cluster) -> None:
    one, two = cluster.nodes[1], cluster.nodes[2]
    for number in range(6):
        one.produce(b"%d" % number)
    cluster.run()
    one.handlers.retention.delete_records(one.log, 4, lambda error: None)
    assert one.log.log_start == 4
    one.produce(b"6")
    cluster.run()
    cluster.later(1.0)
    assert two.log.log_start == 4


def test_records_are_deleted_when_whoever_may_lead_next_has_deleted_them(cluster: Cluster) -> None:
    for value in (b"a", b"b", b"c"):
        cluster.nodes[1].produce(value)
        cluster.run()
    cluster.nodes[3].by_hand = True
    answer = cluster.nodes[1].delete_records(2)
    cluster.now += NOTIFY_WITHIN
    cluster.run()
    assert cluster.nodes[2].log.log_start == 2
    assert not answer, "broker 3 has not deleted them"
    cluster.nodes[3].by_hand = False
    cluster.nodes[3].hands.work_all()
    cluster.run()
    assert answer[0].error == 0
    cluster.kill(1)
    cluster.designate(3, 2, 3)
    cluster.show()
    assert leads(cluster.nodes[3])
    assert cluster.nodes[3].log.log_start == 2


def test_who_deletes_records_does_not_wait_for_ever_for_a_replica(cluster: Cluster) -> None:
    cluster.nodes[1].produce(b"a")
    cluster.run()
    cluster.nodes[3].by_hand = True
    answer = cluster.nodes[1].delete_records(1)
    for _ in range(3):
        cluster.later(1.0)
    assert not answer
    cluster.later(DELETED_WITHIN)
    assert answer[0].error == RequestTimeout.code
    again = cluster.nodes[1].delete_records(1)
    cluster.nodes[3].hands.work_all()
    cluster.later(1.0)
    assert again[0].error == 0


def test_a_follower_without_room_to_delete_records_does_so_when_there_is_some(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is produced meanwhile that the leader would tell it of."""
    one, three = cluster.nodes[1], cluster.nodes[3]
    for _ in range(4):
        one.produce(b"a")
        cluster.run()
    cluster.later(1.0)
    refused: list[int] = []

    def save(directory: Path, offset: int) -> None:
        if directory == three.log.directory and not refused:
            refused.append(offset)
            raise OSError(ENOSPC, os.strerror(ENOSPC))
        save_log_start(directory, offset)

    monkeypatch.setattr("folkmoot.brokers.storage.retention.save_log_start", save)
    answers = one.delete_records(3)
    cluster.run()
    cluster.now += NOTIFY_WITHIN
    cluster.run()
    assert (refused, answers, three.log.log_start) == ([3], [], 0)
    for _ in range(3):
        cluster.later(DISK_AGAIN_AFTER)
    assert three.log.log_start == 3
    assert [each.error for each in answers] == [0]


def test_who_deletes_records_is_sent_to_the_next_leader(cluster: Cluster) -> None:
    cluster.nodes[1].produce(b"a")
    cluster.run()
    cluster.cut |= {(1, 2), (1, 3)}
    answer = cluster.nodes[1].delete_records(1)
    cluster.designate(2, 2, 3)
    cluster.show()
    assert answer[0].error == NotLeader.code


def test_who_deletes_records_is_sent_on_when_the_replica_was_moved_away_meanwhile(
    cluster: Cluster,
) -> None:
    one = cluster.nodes[1]
    one.produce(b"a")
    cluster.run()
    one.by_hand = True
    answer = one.delete_records(1)
    cluster.topic = replace(cluster.topic, partitions=[[2, 3]], reassigned=1)
    cluster.show(1)
    one.hands.work_all()
    assert answer[0].error == NotLeader.code


def test_who_has_records_that_were_deleted_is_not_in_sync(cluster: Cluster) -> None:
    for value in (b"a", b"b"):
        cluster.nodes[1].produce(value)
        cluster.run()
    cluster.kill(3)
    cluster.show()
    cluster.later(1.0)
    assert isr(cluster) == (1, 2)
    answer = cluster.nodes[1].delete_records(1)
    cluster.later(1.0)
    assert answer[0].error == 0
    cluster.start(3)
    node = cluster.nodes[3]
    node.by_hand = True
    for _ in range(10):
        cluster.show()
        while node.hands.keys()[:1] not in ([], ["log starts"]):
            node.hands.work()
        cluster.later(0.5)
    assert node.log.log_end == 2
    assert isr(cluster) == (1, 2)
    node.by_hand = False
    node.hands.work_all()
    cluster.later(1.0)
    assert set(isr(cluster)) == {1, 2, 3}
    assert node.log.log_start == 1


def test_who_was_in_sync_does_not_lead_with_records_that_were_deleted_meanwhile(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Its disk is back in the place of another one, and lacks nothing but that they are gone."""
    for value in (b"a", b"b"):
        cluster.nodes[1].produce(value)
        cluster.run()
    cluster.kill(3)
    shutil.copytree(tmp_path / "3", tmp_path / "first")
    cluster.start(3)
    cluster.show()
    cluster.run()
    answer = cluster.nodes[1].delete_records(1)
    for _ in range(2):
        cluster.later(1.0)
    assert (answer[0].error, set(isr(cluster))) == (0, {1, 2, 3})
    cluster.kill(3)
    shutil.rmtree(tmp_path / "3")
    (tmp_path / "first").rename(tmp_path / "3")
    cluster.start(3)
    node = cluster.nodes[3]
    node.logs.mark_incomplete()
    node.by_hand = True
    for _ in range(10):
        cluster.show()
        while node.hands.keys()[:1] not in ([], ["log starts"]):
            node.hands.work()
        cluster.later(0.5)
    assert (node.log.log_start, set(isr(cluster))) == (0, {1, 2, 3})
    node.by_hand = False
    deletion, node.hands.jobs = node.hands.jobs, []
    cluster.designate(3, 1, 2, 3)
    cluster.show()
    assert not leads(node), "who reads there would see what was deleted"
    assert (cluster.state.state.leader, isr(cluster)) == (NOBODY, (1, 2))
    cluster.designate(1, 1, 2)
    node.hands.jobs += deletion
    for _ in range(4):
        cluster.show()
        node.hands.work_all()
        cluster.later(1.0)
    assert set(isr(cluster)) == {1, 2, 3}
    cluster.designate(3, 1, 2, 3)
    cluster.show()
    assert leads(node)
    assert committed(node) == [b"b"]


@pytest.mark.parametrize("batches", [6, 2, 1])
def test_a_follower_goes_on_where_its_leaders_log_begins_be_it_within_a_batch(
    cluster: Cluster, batches: int
) -> None:
    one = cluster.nodes[1]
    cluster.kill(3)
    cluster.show()
    for _ in range(batches):
        one.produce(*[b"%d" % number for number in range(6 // batches)])
    cluster.run()
    one.handlers.retention.delete_records(one.log, 4, lambda error: None)
    cluster.start(3)
    cluster.show()
    cluster.later(1.0)
    three = cluster.nodes[3]
    assert (three.log.log_start, three.log.log_end, three.log.high_watermark) == (4, 6, 6)
    assert isr(cluster) == (1, 2, 3)
    cluster.kill(3)
    cluster.start(3)
    cluster.show()
    cluster.run()
    assert (cluster.nodes[3].log.log_start, cluster.nodes[3].log.log_end) == (4, 6)
    there = committed(one)  # whole batches: a client leaves out what lies before its offset
    cluster.designate(3, 1, 2, 3)
    cluster.show()
    cluster.run()
    assert committed(cluster.nodes[3]) == there


@pytest.mark.parametrize("job", ["log starts", "begin anew"])
def test_a_follower_that_dies_while_it_goes_on_where_its_leaders_log_begins_does_so_again(
    cluster: Cluster, job: str
) -> None:
    """Its start finds the log's start, and in front of that what it had: alone, or with the new segment."""
    one = cluster.nodes[1]
    one.produce(b"early")
    cluster.run()
    cluster.kill(3)
    cluster.show()
    one.produce(*[b"%d" % number for number in range(6)])
    cluster.run()
    one.handlers.retention.delete_records(one.log, 4, lambda error: None)
    cluster.start(3)
    three = cluster.nodes[3]
    three.by_hand = True
    cluster.show()
    while three.hands.keys()[:1] != [job]:
        three.hands.work()
        cluster.run()
    if job == "log starts":
        save_log_start(three.log.directory, 4, anew=True)
    cluster.kill(3)
    cluster.start(3)
    three = cluster.nodes[3]
    assert (three.log.log_start, three.log.log_end, three.log.size) == (4, 4, 0)
    cluster.show()
    cluster.later(1.0)
    assert (three.log.log_start, three.log.log_end, three.log.failed) == (4, 7, None)
    assert not three.log.is_damaged
    assert set(isr(cluster)) == {1, 2, 3}


def test_a_follower_that_died_where_it_was_to_begin_anew_follows_a_leader_that_begins_before(
    cluster: Cluster,
) -> None:
    """Retention comes to each replica's log at another moment."""
    one, two = cluster.nodes[1], cluster.nodes[2]
    one.produce(b"0")
    cluster.run()
    cluster.kill(3)
    cluster.show()
    for leader in (2, 1):
        cluster.designate(leader, 1, 2)
        cluster.show()
        cluster.run()
        cluster.nodes[leader].produce(b"1", b"2")
        cluster.run()
        one.log.roll()
    one.log.snapshot_covers(5)
    one.handlers.flusher.flush(one.log)
    one.log.queue.add(one.logs.remove(one.log, one.log.delete_segments(2)))
    assert (one.log.log_start, two.log.log_start, two.log.log_end) == (5, 0, 5)
    cluster.start(3)
    three = cluster.nodes[3]
    three.by_hand = True
    cluster.show()
    while three.hands.keys()[:1] != ["log starts"]:
        three.hands.work()
        cluster.run()
    three.hands.jobs[0][1]()
    cluster.kill(3)
    cluster.designate(2, 1, 2)
    cluster.show()
    cluster.run()
    two.produce(b"5")
    cluster.start(3)
    cluster.show()
    cluster.later(1.0)
    three = cluster.nodes[3]
    assert (three.log.log_start, three.log.log_end, three.log.failed) == (5, 6, None)
    assert set(isr(cluster)) == {1, 2, 3}


def test_a_follower_that_begins_anew_waits_until_files_that_are_to_go_are_gone(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its new segment may have the name of one."""
    cluster.kill(3)
    cluster.show()
    one = cluster.nodes[1]
    one.produce(*[b"%d" % number for number in range(6)])
    cluster.run()
    one.handlers.retention.delete_records(one.log, 4, lambda error: None)
    cluster.start(3)
    three = cluster.nodes[3]
    old, real, is_well = three.log.directory / f"{0:020}.log", Path.unlink, False
    old.touch()

    def unlink(path: Path, missing_ok: bool = False) -> None:
        if path == old and not is_well:
            raise OSError(EIO, "input/output error")
        real(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", unlink)
    three.log.queue.add(three.logs.remove(three.log, [old]))
    cluster.show()
    for _ in range(3):
        cluster.later(1.0)
    assert (old.exists(), three.log.log_end, three.log.failed) == (True, 0, None)
    is_well = True
    for _ in range(3):
        cluster.later(1.0)
    assert (three.log.log_start, three.log.log_end, three.log.high_watermark) == (4, 6, 6)


def copies_behind_each_step(
    patch: pytest.MonkeyPatch, data: Path, into: Path
) -> Callable[[], list[Path]]:
    """Copy a data directory whenever a file there was made, renamed or removed → what there is by now."""
    copies: list[Path] = []

    def seen(name: str, owner: type, path_of: Callable[..., Path]) -> None:
        real = getattr(owner, name)

        def done(*arguments: Any, **named: Any) -> Any:
            result = real(*arguments, **named)
            if path_of(*arguments).is_relative_to(data):
                copies.append(into / f"{len(copies)}")
                shutil.copytree(data, copies[-1])
            return result

        patch.setattr(owner, name, done)

    seen("unlink", Path, lambda path: path)
    seen("replace", Path, lambda path, _: path)
    create = Segment.create.__func__  # type: ignore[attr-defined]

    def created(kind: type[Segment], *arguments: Any) -> Segment:
        made: Segment = create(kind, *arguments)
        if made.directory.is_relative_to(data):
            copies.append(into / f"{len(copies)}")
            shutil.copytree(data, copies[-1])
        return made

    patch.setattr(Segment, "create", classmethod(created))
    return lambda: copies


@pytest.mark.parametrize("deleted", [12, 3], ids=["behind its end", "at its end"])
def test_a_follower_killed_at_any_step_of_beginning_anew_reports_no_damage(
    cluster: Cluster, tmp_path: Path, caplog: pytest.LogCaptureFixture, deleted: int
) -> None:
    """Also one that is killed again while its start removes what was left."""
    one = cluster.nodes[1]
    for number in range(3):
        one.produce(b"%d" % number * 900)
        cluster.run()
    cluster.kill(3)
    cluster.show()
    for number in range(3, 14):
        one.produce(b"%d" % number * 400)
        cluster.run()
    cluster.designate(2, 1, 2)
    cluster.show()
    cluster.designate(1, 1, 2)
    cluster.show()
    one.produce(b"last")
    one.delete_records(deleted)
    cluster.later(1.0)
    assert one.log.log_start == deleted
    with pytest.MonkeyPatch.context() as patch:
        steps = copies_behind_each_step(patch, tmp_path / "3", tmp_path / "first")
        cluster.start(3)
        cluster.show()
        cluster.later(1.0)
    left = [*steps()]
    if deleted == 12:
        assert len(left) > 10
        with pytest.MonkeyPatch.context() as patch:
            steps = copies_behind_each_step(patch, tmp_path / "data", tmp_path / "second")
            for copy in tuple(left):
                shutil.copytree(copy, tmp_path / "data")
                with LogManager(tmp_path / "data", 3, LogConfig()):
                    pass
                shutil.rmtree(tmp_path / "data")
        assert len(steps()) > 20
        left += steps()
    caplog.clear()
    for copy in left:
        cluster.kill(3)
        cluster.show()
        shutil.rmtree(tmp_path / "3")
        copy.rename(tmp_path / "3")
        cluster.start(3)
        three = cluster.nodes[3]
        for _ in range(3):
            cluster.show()
            cluster.later(1.0)
        assert [each for each in caplog.records if each.levelname in ("ERROR", "CRITICAL")] == []
        assert (three.log.log_start, three.log.log_end) == (deleted, 15)
        assert (three.log.is_damaged, three.log.is_incomplete) == (False, False)
        assert read_all(three.log) == read_all(one.log)
        assert set(isr(cluster)) == {1, 2, 3}


def elected_uncleanly(cluster: Cluster, leader: int) -> None:
    unclean = replace(cluster.state.state, unclean_epoch=cluster.state.state.leader_epoch + 1)
    cluster.state = VersionedState(unclean, cluster.state.partition_epoch)
    cluster.designate(leader, leader)
    cluster.show()
    cluster.later(1.0)


@pytest.mark.parametrize("leader", [3, 2], ids=["it leads", "it follows another"])
@pytest.mark.parametrize("then", ["it goes on", "it dies"])
def test_a_replica_that_was_to_begin_anew_keeps_its_log_when_an_unclean_election_comes_first(
    cluster: Cluster, leader: int, then: str
) -> None:
    """Where its leader's log began is on disk, and not taken over yet."""
    cluster.topic = replace(cluster.topic, config={"min_in_sync": "1"})
    one = cluster.nodes[1]
    for number in range(3):
        one.produce(b"%d" % number)
        cluster.run()
    cluster.kill(3)
    cluster.kill(2)
    cluster.show()
    for number in range(3, 12):
        one.produce(b"%d" % number)
        cluster.run()
    one.delete_records(10)
    cluster.start(3)
    three = cluster.nodes[3]
    three.by_hand = True
    cluster.show()
    while three.hands.keys()[:1] != ["log starts"]:
        three.hands.work()
        cluster.run()
    [(_, note, taken_over)] = three.hands.jobs
    outcome = note()
    three.hands.jobs.clear()
    three.by_hand = False
    cluster.kill(1)
    cluster.start(2)
    elected_uncleanly(cluster, leader)
    early = cluster.nodes[leader].produce(b"while the note is under way")
    cluster.later(1.0)
    if then == "it goes on":
        taken_over(outcome)
    else:
        cluster.kill(3)
        cluster.start(3)
    for _ in range(4):
        cluster.show()
        cluster.later(1.0)
    late = cluster.nodes[leader].produce(b"behind it")
    cluster.run()
    assert late[0].error == 0
    values = [b"while the note is under way"] * (early[0].error == 0) + [b"behind it"]
    kept = [b"0", b"1", b"2"] if (then, leader) != ("it dies", 3) else []
    for number in (3, 2):  # what is on disk says the same
        cluster.kill(number)
        cluster.start(number)
    for _ in range(4):
        cluster.show()
        cluster.later(1.0)
    assert committed(cluster.nodes[leader]) == [*kept, *values]
    assert cluster.nodes[3].log.log_end == cluster.nodes[2].log.log_end


@pytest.mark.parametrize("then", ["it goes on", "it dies"])
@pytest.mark.parametrize("was_leader", [False, True])
def test_a_log_is_not_cut_below_a_start_that_is_being_noted(
    cluster: Cluster, was_leader: bool, then: str
) -> None:
    """Records are deleted slowly; meanwhile an unclean election makes one lead that has less."""
    cluster.topic = replace(cluster.topic, config={"min_in_sync": "1"})
    for number in range(3):
        cluster.nodes[1].produce(b"%d" % number)
        cluster.run()
    cluster.kill(2)
    cluster.show()
    for number in range(3, 12):
        cluster.nodes[1].produce(b"%d" % number)
        cluster.run()
    slow, other = (1, 3) if was_leader else (3, 1)
    node = cluster.nodes[slow]
    node.by_hand = True
    cluster.nodes[1].delete_records(8)
    while node.hands.keys()[:1] != ["log starts"]:
        if node.hands.jobs:
            node.hands.work()
        cluster.later(0.2)
    [(_, note, noted)] = node.hands.jobs
    node.hands.jobs.clear()
    node.by_hand = False
    outcome = note()
    cluster.kill(other)
    cluster.start(2)
    elected_uncleanly(cluster, 2)
    assert leads(cluster.nodes[2])
    for _ in range(3):
        cluster.later(1.0)
    if then == "it goes on":
        noted(outcome)
    else:
        cluster.kill(slow)
        cluster.start(slow)
    log = cluster.nodes[slow].log
    for _ in range(6):
        cluster.show()
        cluster.later(1.0)
        assert log.log_start <= log.high_watermark <= log.log_end
    cluster.nodes[2].produce(b"new")
    for _ in range(3):
        cluster.later(1.0)
    assert set(isr(cluster)) == {2, slow}
    assert cluster.nodes[2].log.high_watermark == log.high_watermark == 4
    assert read_all(log) == read_all(cluster.nodes[2].log)


@pytest.mark.parametrize("then", ["it goes on", "it dies"])
def test_a_follower_that_finds_no_room_for_its_leaders_first_batch_begins_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    one = cluster.nodes[1]
    cluster.kill(3)
    cluster.show()
    one.produce(*[b"%d" % number for number in range(6)])
    cluster.run()
    one.handlers.retention.delete_records(one.log, 4, lambda error: None)
    real = Log._roll_at
    refused: list[int] = []

    def full(log: Log, base_offset: int) -> Segment:
        if base_offset == 0 and log is not one.log and not refused:
            refused.append(base_offset)
            raise DiskFull("no room")
        return real(log, base_offset)

    monkeypatch.setattr(Log, "_roll_at", full)
    cluster.start(3)
    cluster.show()
    cluster.run()
    assert refused
    if then == "it dies":
        cluster.kill(3)
        cluster.start(3)
        cluster.show()
    for _ in range(20):
        cluster.later(1.0)
    three = cluster.nodes[3].log
    assert (three.log_start, three.log_end, three.high_watermark) == (4, 6, 6)
    assert isr(cluster) == (1, 2, 3)


def test_a_follower_without_room_gives_up_what_its_leader_has_and_goes_on(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, three = cluster.nodes[1], cluster.nodes[3]
    for _ in range(6):
        one.produce(bytes(1000))
        cluster.run()
    room, real = used(three), os.pwritev

    def write(fd: int, parts: list[bytes], position: int) -> int:
        is_there = Path(os.readlink(f"/proc/self/fd/{fd}")).parent == three.log.directory
        if is_there and used(three) + sum(map(len, parts)) > room:
            raise OSError(ENOSPC, os.strerror(ENOSPC))
        return real(fd, parts, position)

    monkeypatch.setattr("folkmoot.brokers.storage.files.atomic_file.os.pwritev", write)
    one.produce(b"more")
    cluster.later(1.0)
    assert cluster.ends() == [7, 7, 6]
    one.handlers.retention.delete_records(one.log, 5, lambda error: None)
    for _ in range(4):
        cluster.later(1.0)
    assert cluster.ends() == [7, 7, 7]
    assert three.log.log_start == 5


def test_a_follower_knows_nothing_as_committed_that_it_does_not_have(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.kill(3)
    cluster.show()
    for _ in range(5):
        cluster.nodes[1].produce(b"a")
        cluster.run()
    assert cluster.nodes[1].log.high_watermark == 5
    monkeypatch.setattr("folkmoot.brokers.replication.replica_fetcher.MAX_BYTES", 1)
    cluster.start(3)
    cluster.show()
    seen = set()
    for _ in range(40):
        cluster.run(1)
        log = cluster.nodes[3].log
        seen.add((log.log_end, log.high_watermark, log.failed))
    assert {(2, 2, None), (4, 4, None)} <= seen


def test_a_log_that_has_grown_behind_where_it_was_to_begin_anew_stays(cluster: Cluster) -> None:
    """Its broker has become the leader meanwhile, say."""
    one = cluster.nodes[1]
    one.produce(b"0", b"1")
    cluster.run()
    cluster.kill(3)
    cluster.show()
    one.produce(b"2", b"3")
    cluster.run()
    there = bytes(read_now(one.log, 2, 1000, committed=False))
    one.handlers.retention.delete_records(one.log, 3, lambda error: None)
    cluster.start(3)
    three = cluster.nodes[3]
    three.by_hand = True
    cluster.show()
    while three.hands.keys()[:1] != ["log starts"]:
        three.hands.work()
        cluster.run()
    assert (three.replica._in_flight, three.log.log_end) == (None, 2)
    three.log.append_as_follower(memoryview(there))
    three.hands.work()
    assert three.log.log_end == 4
    assert values_of(read_now(three.log, 0, 1000, committed=False))[0] == (0, b"0")
    three.by_hand = False
    three.hands.work_all()
    cluster.later(1.0)


def answer(follower: Node, result: ReplicaFetchResult, chunk: bytes | memoryview = b"") -> None:
    """Have its leader answer the fetch that waits."""
    [number] = follower.wire._waiting
    follower.wire.reply(number, Response(ReplicaFetchResponse([result]), [chunk]))
    follower.partitions.replicate({}, follower.now)


def test_a_log_does_not_begin_anew_where_its_leaders_begins_before_or_did_when_it_ended_elsewhere(
    cluster: Cluster,
) -> None:
    cluster.nodes[1].produce(b"a", b"b")
    cluster.run()
    three = cluster.nodes[3]
    assert three.replica._in_flight == Position(1, 1, 2)
    three.by_hand = True
    code = OffsetOutOfRange.code
    for epoch, log_end, log_start in ((1, 2, 1), (1, 1, 2), (0, 2, 2)):
        refused = ReplicaFetchResult(
            *("t", 0, code, "", epoch, log_end, -1, -1, log_start, -1, False)
        )
        answer(three, refused)
        assert not three.hands.jobs
        cluster.later(1.0)
        assert three.replica._in_flight == Position(1, 1, 2), "it asks again"
    three.by_hand = False


@pytest.mark.parametrize("batches", [1, 2])
@pytest.mark.parametrize("is_rolled", [False, True])
def test_a_follower_that_ends_where_its_leaders_log_begins_keeps_nothing_of_another_epoch(
    cluster: Cluster, batches: int, is_rolled: bool
) -> None:
    """The leader does not know any more what lay there: here within a batch, or before it."""
    one = cluster.nodes[1]
    one.produce(b"0", b"1")
    cluster.run()
    cluster.cut = {(2, 1), (3, 1), (1, 2), (1, 3)}
    one.produce(b"never committed", b"neither")
    if is_rolled:
        one.log.roll()
    cluster.designate(2, 2, 3)
    cluster.show(2, 3)
    cluster.run()
    two = cluster.nodes[2]
    if batches == 2:
        two.produce(b"2", b"3")
        cluster.run()
        cluster.designate(3, 2, 3)
        cluster.show(2, 3)
        cluster.run()
        cluster.designate(2, 2, 3)
        cluster.show(2, 3)
        cluster.run()
        two.produce(b"4", b"5")
    else:
        two.produce(b"2", b"3", b"4", b"5")
    cluster.run()
    assert two.log.high_watermark == 6
    two.handlers.retention.delete_records(two.log, 4, lambda error: None)
    cluster.run()
    assert (two.log.log_start, one.log.log_end) == (4, 4)
    cluster.mend()
    one.by_hand = True
    cluster.show(1)
    for _ in range(30):
        cluster.run(1)
        assert one.log.high_watermark <= 2 or one.log.log_start == 4, "these were never committed"
        one.hands.work_all()
    one.by_hand = False
    cluster.later(1.0)
    assert (one.log.log_start, one.log.log_end, one.log.failed) == (4, 6, None)
    assert [*one.log.epoch_starts][-1] == [*two.log.epoch_starts][-1]
    assert set(isr(cluster)) == {1, 2, 3}


def used(node: Node) -> int:
    """Bytes of a replica's segments."""
    return sum(path.stat().st_size for path in node.log.directory.glob("*.log"))


@pytest.mark.parametrize("more", [0, 3])
def test_a_follower_from_epochs_that_the_leader_has_given_up_goes_on_where_the_log_begins(
    cluster: Cluster, more: int
) -> None:
    for number in range(3):
        cluster.nodes[1].produce(b"%d" % number)
    cluster.run()
    cluster.kill(3)
    cluster.show()
    cluster.designate(2, 1, 2)
    cluster.show()
    cluster.run()
    two = cluster.nodes[2]
    for number in range(4):
        two.produce(b"later %d" % number)
    cluster.run()
    two.handlers.retention.delete_records(two.log, 7, lambda error: None)
    assert (two.log.log_start, two.log.log_end) == (7, 7)
    for number in range(more):
        two.produce(b"last %d" % number)
    cluster.start(3)
    cluster.show()
    cluster.later(1.0)
    three = cluster.nodes[3]
    assert (three.log.log_start, three.log.log_end, three.log.failed) == (7, 7 + more, None)
    assert set(isr(cluster)) == {1, 2, 3}


@pytest.mark.parametrize("is_running", [False, True])
@pytest.mark.parametrize("earlier", [False, True])
def test_a_follower_of_whose_epoch_compaction_has_left_nothing_elsewhere_copies_what_is_left(
    cluster: Cluster, earlier: bool, is_running: bool
) -> None:
    """A replica that was added since has seen nothing of that epoch, or of all of its, and leads now. Who
    was started since knows of nothing to be committed."""
    for node in cluster.nodes.values():
        batches = [(0, 2)] if earlier else []
        batches.append((1, 3) if node.number == 3 else (9, 5))
        for offset, written_in in batches:
            batch = make_batch(b"%d" % offset)
            leader = leader_part(offset, len(batch), written_in, 0)
            node.log.append_as_follower(leader + batch[LEADER_BYTES:])
    if is_running:
        cluster.nodes[3].log.advance_high_watermark(2)
    while cluster.nodes[1].replica.state.epoch < 6:
        cluster.designate(1, 1, 2)
        cluster.show()
    cluster.later(1.0)
    assert set(isr(cluster)) == {1, 2, 3}
    assert same_logs(cluster)


def test_a_recovery_point_behind_a_cut_is_taken_back_before_the_cut(cluster: Cluster) -> None:
    one = cluster.nodes[1]
    cluster.cut = {(2, 1), (3, 1)}
    for number in range(4):
        one.produce(b"lost %d" % number)
    one.logs.notes.recovery_points[one.log.directory.name] = one.log.recovery_point  # type: ignore[assignment]
    assert one.log.recovery_point_offset == 4
    one.by_hand = True
    cluster.designate(2, 1, 2, 3)
    cluster.show()
    one.hands.work_all()
    cluster.run(2)
    assert one.hands.keys() == ["notes"]
    assert one.log.log_end == 4
    one.hands.work_all()
    noted = load_notes(one.logs.data).recovery_points
    assert noted == {}
    assert one.log.log_end == 0
    one.by_hand = False
    cluster.run()


def test_a_log_is_not_cut_before_its_recovery_point_is_taken_back(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    one = cluster.nodes[1]
    cluster.cut = {(2, 1), (3, 1)}
    one.produce(b"nobody else has it", acks=1)
    one.handlers.flusher.flush(one.log)
    assert one.log.recovery_point_offset == 1

    def full(*_: object) -> None:
        raise OSError(ENOSPC, os.strerror(ENOSPC))

    with monkeypatch.context() as patch:
        one.by_hand = True
        cluster.designate(2, 1, 2, 3)
        cluster.show()
        one.hands.work_all()  # the leader epoch, which comes first, finds room
        patch.setattr("folkmoot.brokers.storage.flusher.save_notes", full)
        one.by_hand = False
        for _ in range(4):
            cluster.later(1.0)
        assert cluster.ends() == [1, 0, 0]
    assert caplog.text.count("the disk is full") == 1
    assert "cut from offset" not in caplog.text
    for _ in range(2):
        cluster.later(1.0)
    assert cluster.ends() == [0, 0, 0]


def test_who_is_told_to_lead_while_its_log_is_cut_leads_when_that_has_ended(
    cluster: Cluster,
) -> None:
    one = cluster.nodes[1]
    cluster.cut = {(2, 1), (3, 1)}
    one.produce(b"nobody else has it", acks=1)
    cluster.designate(2, 1, 2, 3)
    cluster.show()
    one.by_hand = True
    cluster.run()
    while one.hands.keys()[:1] != ["cut_files"]:  # the cut has begun
        one.hands.work()
        cluster.run()
    cluster.designate(1, 1, 2, 3)
    cluster.show()
    one.hands.jobs.reverse()
    led = []
    while one.hands.jobs:
        led.append((one.replica._blocking > 0, leads(one)))
        one.hands.work()
    assert (True, True) not in led
    one.by_hand = False
    one.hands.work_all()
    cluster.later(1.0)
    assert leads(one)
    assert cluster.ends() == [0, 0, 0]


def test_a_log_is_never_cut_below_what_is_committed_but_by_an_unclean_election(
    cluster: Cluster,
) -> None:
    one, two = cluster.nodes[1], cluster.nodes[2]
    for value in (b"a", b"b"):
        one.produce(value)
        cluster.run()
    cluster.later(1.0)
    assert two.log.high_watermark == 2
    os.truncate(one.log.segments[0].path, 0)
    one.log.note_cut(1, 0, 0)  # a leader whose disk has lost all, and that has not noticed
    cluster.kill(3)
    two.replica._in_flight = None
    two.replica._fetch_next()
    cluster.run()
    assert two.log.log_end == 2
    assert two.log.failed is not None


def test_a_log_is_cut_when_the_flush_that_is_under_way_has_ended(tmp_path: Path) -> None:
    """Its snapshot tells of producers whose batches go: no later life may believe it."""
    cluster = Cluster(tmp_path, {"durability": "page-cache"})
    one = cluster.nodes[1]
    cluster.cut = {(2, 1), (3, 1)}
    one.produce(b"lost", acks=1)
    one.log.snapshot_covers(1)
    one.by_hand = True
    one.handlers.flusher.flush(one.log)
    [(_, flush, flushed)] = one.hands.jobs
    one.hands.jobs.clear()
    one.by_hand = False
    cluster.designate(2, 2, 3)
    cluster.show()
    cluster.run()
    assert one.replica.state.follower is not None
    assert one.log.log_end == 1
    flushed(flush())
    cluster.run()
    assert one.log.log_end == 0
    assert not [*one.log.directory.glob("*.snapshot")]
    cluster.stop()


def test_who_could_not_cut_its_log_has_another_lead(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = cluster.nodes[1]
    cluster.cut = {(2, 1), (3, 1)}
    one.produce(b"lost")
    cluster.designate(2, 1, 2, 3)

    def broken(*_: object) -> None:
        raise OSError(EIO, "input/output error")

    monkeypatch.setattr("folkmoot.brokers.storage.log.cut_files", broken)
    cluster.show()
    cluster.run()
    assert one.log.failed is not None
    cluster.designate(1, 1, 2, 3)
    cluster.show()
    cluster.later(0.6)
    assert (cluster.state.state.leader, isr(cluster)) == (-1, (2, 3))


@pytest.mark.parametrize("lacking", [EMFILE, ENOSPC])
@pytest.mark.parametrize(
    ("what", "is_done"),
    [("shorten", False), ("shorten", True), ("sync_directory", False), ("end_before", False)],
)
def test_a_cut_waits_for_room_and_for_descriptors(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, what: str, lacking: int, is_done: bool
) -> None:
    one = cluster.nodes[1]
    one.produce(b"a")
    cluster.run()
    cluster.cut = {(2, 1), (3, 1)}
    one.produce(b"lost")
    cluster.designate(2, 1, 2, 3)
    owner: Any = SegmentReader if what == "end_before" else log_module
    real, tried = getattr(owner, what), list[int]()

    def failing(*arguments: Any, **named: Any) -> Any:
        tried.append(1)
        if len(tried) > 2:
            return real(*arguments, **named)
        if is_done:
            real(*arguments, **named)
        error = OSError(lacking, os.strerror(lacking))
        if owner is SegmentReader:
            raise disk_error("it cannot be opened", error) from error
        raise error

    monkeypatch.setattr(owner, what, failing)
    cluster.show()
    cluster.cut.clear()
    cluster.run()
    assert (one.replica._blocking, one.log.log_end) == (1, 2)
    for _ in range(4):
        cluster.later(1.0)
    assert (one.log.failed, one.replica._blocking, len(tried)) == (None, 0, 3)
    answer = cluster.nodes[2].produce(b"b")
    cluster.run()
    assert ([each.error for each in answer], isr(cluster)) == ([0], (1, 2, 3))
    assert same_logs(cluster)


def test_a_log_is_cut_once_the_files_that_were_to_go_before_are_gone(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of segments that were compacted would come back: what replaced them is appended to again."""
    one = cluster.nodes[1]
    one.produce(b"a")
    cluster.run()
    cluster.cut = {(2, 1), (3, 1)}
    one.produce(b"lost")
    old, real, is_well = one.log.directory / f"{7:020}.log", Path.unlink, False
    old.touch()

    def unlink(path: Path, missing_ok: bool = False) -> None:
        if path == old and not is_well:
            raise OSError(EIO, "input/output error")
        real(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", unlink)
    one.log.queue.add(one.logs.remove(one.log, [old]))
    cluster.designate(2, 1, 2, 3)
    cluster.show()
    cluster.cut.clear()
    for _ in range(3):
        cluster.later(1.0)
    assert (old.exists(), one.log.log_end, one.log.failed) == (True, 2, None)
    is_well = True
    for _ in range(3):
        cluster.later(1.0)
    assert (old.exists(), one.log.log_end) == (False, 1)
    assert same_logs(cluster)


def test_a_follower_outlives_a_leader_that_reads_something_else_than_it_wrote(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When it is reported the leader finds nothing."""
    monkeypatch.setattr("folkmoot.brokers.server.request_handlers.damage_job", lambda *_: None)
    one, three = cluster.nodes[1], cluster.nodes[3]
    answer = one.produce(b"a")
    [path] = one.log.directory.glob("*.log")
    content = path.read_bytes()
    with path.open("r+b") as file:
        file.write(content[:-1] + bytes([content[-1] ^ 1]))
    cluster.run()
    assert (cluster.ends(), three.log.failed, answer) == ([1, 0, 0], None, [])
    with path.open("r+b") as file:
        file.write(content)
    cluster.later(2.0)
    assert answer[0].error == 0
    assert same_logs(cluster)


def test_a_replica_whose_log_has_failed_asks_its_leader_no_more(cluster: Cluster) -> None:
    three = cluster.nodes[3]
    three.log.fail("a write was torn", readable=True)
    cluster.nodes[1].produce(b"a")
    cluster.later(2.0)
    asked = three.wire.sent
    for _ in range(5):
        cluster.later(2.0)
    assert three.wire.sent - asked <= 1, "it is asked again and again"


# -- power cuts without fsync -----------------------------------------------------------------------


def lose_power(cluster: Cluster, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine goes down, and with it what was in its page cache."""
    directory = cluster.nodes[number].log.directory
    cluster.kill(number)
    for path in directory.glob("*.log"):
        path.write_bytes(b"")
    boot = f"boot {cluster.now}".encode()
    monkeypatch.setattr("folkmoot.brokers.storage.log_manager.boot_id", lambda: boot)


@pytest.mark.parametrize("durability_since", ["page-cache", "fsync"])
@pytest.mark.parametrize("killed_again", [False, True])
def test_who_has_lost_its_page_cache_does_not_lead_before_it_has_all_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed_again: bool, durability_since: str
) -> None:
    cluster = Cluster(tmp_path, {"durability": "page-cache"})
    answer = cluster.nodes[1].produce(b"a")
    cluster.run()
    assert answer[0].error == 0
    lose_power(cluster, 1, monkeypatch)
    options = {"durability": durability_since}
    cluster.topic = replace(cluster.topic, config=options, had_page_cache=True)
    cluster.start(1)
    if killed_again:
        cluster.kill(1)
        cluster.start(1)
    cluster.show()  # it is still designated, and in the ISR
    assert cluster.state.state.leader == NOBODY
    assert set(cluster.state.state.isr) == {2, 3}
    cluster.designate(2, 2, 3)
    for _ in range(4):
        cluster.show()
        cluster.later(1.0)
    assert cluster.ends() == [1, 1, 1]
    assert set(cluster.state.state.isr) == {1, 2, 3}
    assert not cluster.nodes[1].logs.suspects
    cluster.designate(1, 1, 2, 3)
    cluster.show()
    assert cluster.nodes[1].replica.leader is not None
    cluster.stop()


def test_who_has_lost_its_page_cache_takes_no_isr_from_before_its_registration_for_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What its last incarnation had brings it into the ISR between that read and the registration."""
    cluster = Cluster(tmp_path, {"durability": "page-cache"})
    answer = cluster.nodes[1].produce(b"a")
    cluster.run()
    assert answer[0].error == 0
    in_sync = cluster.state
    cluster.state = replace(in_sync, state=in_sync.state.with_isr((1, 2)))
    lose_power(cluster, 3, monkeypatch)
    cluster.start(3)
    cluster.show(3, registered=False)
    cluster.state = replace(in_sync, partition_epoch=in_sync.partition_epoch + 1)
    cluster.designate(3, 1, 2, 3)
    cluster.show()
    assert not leads(cluster.nodes[3])
    assert (cluster.state.state.leader, isr(cluster)) == (NOBODY, (1, 2))
    cluster.stop()


@pytest.mark.parametrize("noted", [False, True])
def test_who_was_alone_in_sync_leads_without_its_page_cache_but_not_without_its_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, noted: bool
) -> None:
    cluster = Cluster(tmp_path, {"durability": "page-cache", "min_in_sync": "1"})
    cluster.designate(1, 1)
    cluster.show()
    one = cluster.nodes[1]
    one.produce(b"a")
    if noted:
        one.handlers.flusher.flush(one.log)
        for _ in range(3):
            one.handlers.flusher.task(one.now)
        assert one.logs.saved_notes.recovery_points
    lose_power(cluster, 1, monkeypatch)
    cluster.start(1)
    cluster.show()
    assert leads(cluster.nodes[1]) is not noted
    cluster.stop()


@pytest.mark.parametrize("end", ["killed", "stopped", "failed to stop"])
def test_who_ended_since_a_flush_failed_has_lost_its_page_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """The kernel gives up what it could not write, and the boot is the same."""
    cluster = Cluster(tmp_path, {"durability": "page-cache"})
    answer = cluster.nodes[1].produce(b"a")
    cluster.run()
    assert answer[0].error == 0
    logs, log = cluster.nodes[1].logs, cluster.nodes[1].log
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fails)
        patch.setattr(os, "fsync", fails)
        if end == "failed to stop":
            with pytest.raises(StorageError):
                logs.close()
        else:
            cluster.nodes[1].handlers.flusher.flush(log)
            assert log.failed is not None
    if end == "stopped":
        logs.close()
    cluster.kill(1)
    for path in log.directory.glob("*.log"):
        path.write_bytes(b"")
    cluster.start(1)
    cluster.show()
    assert (cluster.state.state.leader, isr(cluster)) == (NOBODY, (2, 3))
    cluster.stop()


def test_who_loses_its_power_behind_a_stop_that_left_a_flush_does_not_lead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody hears of the end of a flush that is under way when the event loop has ended."""
    cluster = Cluster(tmp_path, {"durability": "page-cache"})
    one = cluster.nodes[1]
    one.by_hand = True
    answer = one.produce(b"a")
    one.handlers.flusher.flush(one.log)
    cluster.run()
    assert answer[0].error == 0
    [(_, flush, _)] = one.hands.jobs
    [path] = one.log.directory.glob("*.log")
    flush()
    one.logs.close()
    cluster.kill(1)
    path.write_bytes(b"")
    monkeypatch.setattr("folkmoot.brokers.storage.log_manager.boot_id", lambda: b"another")
    cluster.start(1)
    cluster.show()
    assert (cluster.state.state.leader, isr(cluster)) == (NOBODY, (2, 3))
    cluster.stop()


def fails(fd: int) -> None:
    raise OSError(EIO, "Input/output error")


@pytest.mark.parametrize("end", ["killed", "stopped"])
def test_a_broker_that_ends_without_its_machine_leads_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    cluster = Cluster(tmp_path, {"durability": "page-cache"})
    cluster.nodes[1].produce(b"a")
    cluster.run()
    if end == "stopped":
        cluster.nodes[1].logs.close()
        monkeypatch.setattr("folkmoot.brokers.storage.log_manager.boot_id", lambda: b"another")
    cluster.kill(1)
    cluster.start(1)
    cluster.show()
    assert cluster.nodes[1].replica.leader is not None
    assert cluster.nodes[1].log.log_end == 1
    cluster.stop()


# -- impostors ------------------------------------------------------------------------------------------


def ask(node: Node, entry: ReplicaFetchEntry, **changed: Any) -> object:
    """What a replica fetch of broker 2 comes to: the first result, or the error."""
    mine = node.cluster.registrations[2].nonce
    request = ReplicaFetchRequest(2, mine, True, 0.0, 1000, [entry])
    request = msgspec.structs.replace(request, **changed)
    try:
        response = handle(node.handlers, Request(b"2", 77, request), (), node.now)
    except FolkmootError as error:
        return type(error)
    assert isinstance(response, Response)
    return response.body.results[0].error


def test_who_is_not_a_registered_replica_is_refused(cluster: Cluster) -> None:
    one = cluster.nodes[1]
    entry = ReplicaFetchEntry("t", TOPIC_ID, 0, 1, -1, 0, 0)
    assert ask(one, entry, nonce="of a former life") is UnknownReplica
    assert ask(one, entry, replica=7) is UnknownReplica
    assert ask(one, entry, replica=1) is UnknownReplica, "it is this broker itself"
    assert ask(one, entry, begins=False, nonce=cluster.registrations[3].nonce) is UnknownReplica
    leader = one.replica.leader
    assert leader is not None
    assert one.log.high_watermark == 0


def test_a_fetch_of_a_broker_that_has_no_replica_any_more_is_refused(cluster: Cluster) -> None:
    cluster.topic = replace(cluster.topic, partitions=[[1, 3]])
    cluster.show(1)
    entry = ReplicaFetchEntry("t", TOPIC_ID, 0, 1, -1, 0, 0)
    assert ask(cluster.nodes[1], entry) == NotLeader.code


@pytest.mark.parametrize(("epoch", "log_end"), [(0, 1), (1, 0)])
def test_an_answer_to_an_earlier_question_is_passed_over(
    cluster: Cluster, epoch: int, log_end: int
) -> None:
    cluster.nodes[1].produce(b"a")
    cluster.run()
    two = cluster.nodes[2]
    assert two.replica._in_flight == Position(1, 1, 1)
    result = ReplicaFetchResult("t", 0, 0, "", epoch, log_end, -1, -1, 0, 1, True)
    chunk = read_now(two.log, 0, 1000, committed=False)
    answer(two, result, chunk)
    assert two.replica._in_flight == Position(1, 1, 1), "the answer to that is still to come"
    assert (two.log.failed, two.log.log_end) == (None, 1)


def test_a_follower_learns_in_each_epoch_anew_what_is_committed(cluster: Cluster) -> None:
    """The leader stays, nothing is produced, and what it answered last was for the epoch before."""
    one, two = cluster.nodes[1], cluster.nodes[2]
    one.produce(b"a")
    cluster.run()
    cluster.now += 0.02
    one.turn()
    one.turn()  # both followers' requests are answered now
    cluster.designate(1, 1, 2, 3)
    cluster.show()
    cluster.run()
    cluster.later(1.0)
    follower = two.replica.state.follower
    assert follower is not None
    assert (follower.epoch, follower.has_committed) == (cluster.state.state.leader_epoch, True)
    assert two.log.high_watermark == 1


def test_an_answer_counts_though_its_position_is_about_to_be_named_again(cluster: Cluster) -> None:
    """As behind a deletion of records: the leader does not repeat what it has answered."""
    one, two = cluster.nodes[1], cluster.nodes[2]
    one.produce(b"a")
    cluster.run()
    assert (one.log.high_watermark, two.log.high_watermark) == (1, 0)
    cluster.now += 0.02
    one.turn()  # which has the followers' requests of that high watermark answered
    one.turn()
    two.replica._fetch_next(again=True)
    cluster.run()
    cluster.later(1.0)
    assert two.log.high_watermark == 1


def test_a_fetch_that_goes_on_with_nothing_names_all_again(cluster: Cluster) -> None:
    one = cluster.nodes[1]
    request = ReplicaFetchRequest(2, cluster.registrations[2].nonce, False, 0.0, 1000, [])
    with pytest.raises(UnknownFetch, match="name all partitions again"):
        handle(one.handlers, Request(b"another connection", 1, request), (), one.now)


def test_a_follower_that_its_leader_has_forgotten_names_all_again_at_once(
    cluster: Cluster,
) -> None:
    """A leader that was started anew: all that is produced waits for its followers."""
    one = cluster.nodes[1]
    for follower in (2, 3):
        session = one.handlers.replica_fetches._sessions.pop(follower)
        session.supersede()
        session.forget(*session.entries)
    cluster.run()
    answer = one.produce(b"a")
    cluster.run()
    assert answer[0].error == 0


@pytest.mark.parametrize("is_fetched", [True, False])
def test_nothing_is_kept_of_a_replica_whose_topic_was_deleted(
    cluster: Cluster, is_fetched: bool
) -> None:
    one = cluster.nodes[1]
    one.produce(b"a")
    cluster.run()
    cluster.later(1.0)
    if not is_fetched:  # its followers were told of a record, and do not come for the next one
        one.produce(b"b")
        one.turn()
    log = weakref.ref(one.log)
    gone = ClusterChange(
        brokers=cluster.registrations,
        topics={"t": None},
        deleted={TOPIC_ID: Deletion("t", 0.0, "", (1,))},
        is_registered=True,
    )
    for node in cluster.nodes.values():
        node.handlers.updates.show(gone, lambda work: work())
    cluster.run()
    cluster.later(PRODUCE_TIMEOUT)
    one.handlers.purgatory.take_completed(cluster.now, 10)
    one.logs.deletion_task(one.now)
    assert log() is None


def test_a_fetch_of_another_leader_epoch_is_refused(cluster: Cluster) -> None:
    one = cluster.nodes[1]
    one.produce(b"a")
    for epoch, error in ((0, FencedLeaderEpoch), (2, UnknownLeaderEpoch)):
        entry = ReplicaFetchEntry("t", TOPIC_ID, 0, epoch, -1, 0, 0)
        assert ask(one, entry) == error.code
    entry = ReplicaFetchEntry("t", "another id", 0, 1, -1, 0, 0)
    assert ask(one, entry) == NotLeader.code
    assert ask(cluster.nodes[3], ReplicaFetchEntry("t", TOPIC_ID, 0, 1, -1, 0, 0)) == NotLeader.code


def test_nobody_acknowledges_more_than_the_log_has(cluster: Cluster) -> None:
    """A position behind the end is not on the log: it is told where that ends, and does not count."""
    one = cluster.nodes[1]
    answer = one.produce(b"a")
    assert ask(one, ReplicaFetchEntry("t", TOPIC_ID, 0, 1, 1, 99, 0)) == 0
    assert ask(one, ReplicaFetchEntry("t", TOPIC_ID, 0, 1, -1, 99, 0)) == 0
    assert answer == []


def fetched(node: Node, offset: int, *, epoch: int, last_epoch: int = -1) -> Any:
    """What a consumer is told of a position, None if it waits."""
    entry = msgspec.structs.replace(
        out_of(0, offset, topic_id=TOPIC_ID, epoch=epoch), last_epoch=last_epoch
    )
    outcome = node.ask(fetch(entry))
    return outcome.results[0] if outcome.results else None


def test_a_follower_serves_what_is_committed_as_far_as_it_has_heard_and_only_while_it_is_in_sync(
    cluster: Cluster,
) -> None:
    leader, follower = cluster.nodes[1], cluster.nodes[2]
    leader.produce(b"a", b"b")
    cluster.run()
    assert (leader.log.high_watermark, follower.log.high_watermark) == (2, 0)
    assert fetched(follower, 0, epoch=1) is None, "it does not know yet that it is committed"
    cluster.later(NOTIFY_WITHIN)
    assert fetched(follower, 0, epoch=1).high_watermark == 2, "and hears of it soon"
    assert fetched(follower, 2, epoch=1) is None
    assert fetched(follower, 3, epoch=1).error == OffsetNotAvailable.code
    assert fetched(leader, 3, epoch=1).error == OffsetOutOfRange.code
    for epoch in (0, 2, -1):
        assert fetched(follower, 0, epoch=epoch).error == NotLeader.code, "another epoch's"
    cluster.cut = {(2, 1)}
    leader.produce(b"c")
    cluster.later(11.0)
    cluster.show()
    assert cluster.state.state.isr == (1, 3)
    assert fetched(follower, 0, epoch=1).error == NotLeader.code
    assert fetched(cluster.nodes[3], 0, epoch=1).error == 0


def test_a_consumer_is_told_where_its_position_has_left_the_log(cluster: Cluster) -> None:
    first = cluster.nodes[1]
    first.produce(b"a", b"b")
    cluster.run()
    cluster.later(1.0)
    cluster.cut = {(2, 1), (3, 1)}
    first.produce(b"lost", b"lost", acks=1)
    cluster.kill(1)
    cluster.cut.clear()
    cluster.designate(2, 2, 3)
    cluster.show()
    cluster.run()
    second = cluster.nodes[2]
    epoch = second.replica.state.epoch

    def parts(offset: int, last_epoch: int) -> tuple[int, int] | None:
        found = fetched(second, offset, epoch=epoch, last_epoch=last_epoch)
        if found is None or found.error == 0:
            return None
        assert found.error == LogTruncated.code
        return found.diverging_epoch, found.diverging_end

    assert parts(4, 1) == (1, 2), "behind its end"
    second.produce(b"c", b"d", b"e")
    cluster.run()
    cluster.later(1.0)
    assert parts(4, 1) == (1, 2), "and where others are now"
    assert parts(2, 1) is None
    assert parts(3, epoch) is None
    assert parts(3, -1) is None
    assert parts(3, 1) == (1, 2)


def test_a_consumer_is_told_nothing_of_records_that_compaction_has_removed(
    cluster: Cluster,
) -> None:
    """A topic that was compacted once hands out with gaps whatever else it is now."""
    first = cluster.nodes[1]
    chunk = b""
    for offset, written_in in ((0, 1), (2, 3)):  # that of epoch 2 is gone
        batch = make_batch(b"%d" % offset)
        chunk += leader_part(offset, len(batch), written_in, 0) + batch[LEADER_BYTES:]
    for node in cluster.nodes.values():
        node.log.append_as_follower(chunk)
    while first.replica.state.epoch < 4:
        cluster.designate(1, *REPLICAS)
        cluster.show()
    first.produce(b"3")
    cluster.run()
    assert (first.log.high_watermark, first.log.config.compacts) == (4, False)

    def told(offset: int, last_epoch: int) -> int:
        return int(fetched(first, offset, epoch=4, last_epoch=last_epoch).error)

    assert told(2, 2) == 0, "what it has read is gone, and nothing else is there"
    assert told(1, 1) == told(3, 3) == 0
    assert told(1, 2) == told(3, 2) == LogTruncated.code, "others have written that"


@pytest.mark.parametrize(("number", "ends"), [(EIO, True), (EROFS, True), (ENOSPC, False)])
def test_a_broker_whose_disk_fails_at_a_cut_ends_and_one_whose_disk_is_full_does_not(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, number: int, ends: bool
) -> None:
    first, ended = cluster.nodes[1], list[Exception]()
    first.handlers.flusher.failed = ended.append
    cluster.cut = {(2, 1), (3, 1)}
    first.produce(b"lost", acks=1)
    cluster.designate(2, 2, 3)

    def fails(path: Path, size: int, *, is_mapped: bool) -> None:
        raise OSError(number, "the disk")

    monkeypatch.setattr(log_module, "shorten", fails)
    cluster.mend()
    cluster.show()
    cluster.run()
    assert (first.log.failed is not None) is ends
    assert ["cut" in str(each) for each in ended] == [True] * ends
