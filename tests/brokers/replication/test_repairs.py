"""What has rotted on one replica is found, and comes back from another: nothing is lost or served."""

import errno
import logging
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from folkmoot.brokers.replication.repairs import LOOK_AFTER, Repairs
from folkmoot.brokers.storage import flusher
from folkmoot.brokers.storage.compaction.cleaning_pass import CleanerCheckpoint
from folkmoot.brokers.storage.files.atomic_file import save_json
from folkmoot.brokers.storage.notes import load_notes, save_notes
from folkmoot.brokers.storage.recovery import CLEANER_CHECKPOINT_FILE, note_incomplete
from folkmoot.brokers.storage.segment import Damage, OpenSegments, Segment, SegmentName
from folkmoot.coordination.partition_states import NOBODY
from folkmoot.network.client import Reply
from folkmoot.protocol import batch_header
from folkmoot.protocol.errors import (
    CorruptBatch,
    FolkmootError,
    NotEnoughReplicasAfterAppend,
    OffsetNotAvailable,
)
from folkmoot.protocol.messages import Api, ReportDamageEntry, ReportDamageRequest
from tests.brokers.batches import read_now, values_of
from tests.brokers.replication.brokers import REPLICAS, TOPIC_ID, Cluster, Node
from tests.seeds import new_seed

RECORDS = 60


@pytest.fixture(autouse=True)
def silence() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody's power goes here."""
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda fd: None)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = filled(tmp_path)
    yield made
    made.stop()


def filled(directory: Path, source: random.Random | None = None) -> Cluster:
    """Three replicas of some segments, all committed and on disk."""
    source = source or random.Random(5)
    cluster = Cluster(directory)
    for number in range(RECORDS):
        done = cluster.nodes[1].produce(b"%d " % number + source.randbytes(30))
        cluster.run(4)
        assert done[0].error == 0
    cluster.later(1.0)
    assert set(cluster.ends()) == {RECORDS}
    assert all(len(node.log.segments) > 3 for node in cluster.nodes.values())
    return cluster


def contents(node: Node) -> list[tuple[int, bytes | None]]:
    found: list[tuple[int, bytes | None]] = []
    while len(found) < node.log.log_end:
        found += values_of(read_now(node.log, len(found), 1 << 20, committed=False))
    return found


def flip(path: Path, position: int, bit: int = 1) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= bit
    path.write_bytes(content)


def bad_in(segment: Segment) -> list[Damage]:
    reader = segment.reader()
    try:
        return [found for found in reader.batches() if isinstance(found, Damage)]
    finally:
        reader.close()


def scrub(node: Node) -> None:
    """What the scrub finds, all at once; the active segment has its turn when it is sealed."""
    for segment in node.log.segments:
        for found in bad_in(segment):
            segment.mark(found)


def is_whole(node: Node) -> bool:
    return not any(segment.damage or bad_in(segment) for segment in node.log.segments)


def by_scrub(cluster: Cluster, node: Node, offset: int) -> None:
    scrub(node)


def by_report(cluster: Cluster, node: Node, offset: int) -> None:
    node.handlers.damage_reports.report(node.log, offset)
    node.handlers.damage_reports.task(node.now)


def by_start(cluster: Cluster, node: Node, offset: int) -> None:
    """The recovery points were not noted, so all of it is checked."""
    cluster.kill(node.number)
    notes = load_notes(node.logs.data)
    notes.recovery_points.clear()
    save_notes(node.logs.data, notes)
    cluster.start(node.number)
    cluster.show()
    cluster.run()


@pytest.mark.parametrize("number", REPLICAS)
@pytest.mark.parametrize("found", [by_scrub, by_report, by_start])
def test_a_bad_batch_comes_back_from_another_replica_whoever_leads(
    cluster: Cluster, number: int, found: Callable[[Cluster, Node, int], None]
) -> None:
    node = cluster.nodes[number]
    right = contents(node)
    segment = node.log.segments[1]
    flip(segment.path, segment.size // 2)
    offset = bad_in(segment)[0].offset
    found(cluster, node, offset)
    node = cluster.nodes[number]
    if found is not by_start:
        with pytest.raises(OffsetNotAvailable, match="about to be repaired"):
            read_now(node.log, offset, 1)
    settle(cluster)
    assert contents(node) == right
    assert is_whole(node)


def test_a_repaired_log_is_compacted_anew_since_others_may_not_be_as_far(cluster: Cluster) -> None:
    node = cluster.nodes[2]
    checkpoint = node.log.directory / CLEANER_CHECKPOINT_FILE
    save_json(checkpoint, CleanerCheckpoint(clean_before=RECORDS // 2))
    segment = node.log.segments[1]
    flip(segment.path, segment.size // 2)
    scrub(node)
    settle(cluster)
    assert is_whole(node)
    assert node.log.forgets_compaction
    assert not checkpoint.exists()


def settle(cluster: Cluster) -> None:
    """Time passes; a leader that has resigned is followed by another."""
    for _ in range(30):
        state = cluster.state.state
        if state.leader not in cluster.nodes or not state.active:
            live = [each for each in state.isr if each in cluster.nodes]
            cluster.designate(live[0], *state.isr)
        cluster.show()
        cluster.later(1.0)
        leader = cluster.nodes.get(cluster.state.state.leader)
        ends = set(cluster.ends())
        in_sync = len(cluster.state.state.isr) == 3 and len(ends) == 1
        in_sync = in_sync and leader is not None and leader.log.high_watermark in ends
        if in_sync and all(map(is_whole, cluster.nodes.values())):
            return
    raise AssertionError(f"no peace: {cluster.state}, {cluster.ends()}")


def die_at(cluster: Cluster, node: Node, jobs: int, *, behind: bool) -> bool:
    """Carry so many of the repair's jobs out and die, right before the next one or behind it, with
    nobody left to hear of its end; → whether there was a next one."""
    node.by_hand = True
    for _ in range(100):
        cluster.now += 0.1
        node.repairs.task(node.now)
        cluster.run(2)
        if not node.hands.jobs:
            continue
        if not jobs:
            if behind:
                node.hands.jobs[0][1]()
            return True
        jobs -= 1
        node.hands.work()
    return False


@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("number", REPLICAS)
def test_a_broker_that_dies_at_any_step_of_a_repair_has_it_done_in_its_next_life(
    tmp_path: Path, number: int, behind: bool
) -> None:
    cluster = filled(tmp_path)
    right = contents(cluster.nodes[1])
    steps, goes_on = 0, True
    while goes_on:
        node = cluster.nodes[number]
        segment = node.log.segments[1]
        flip(segment.path, segment.size // 2)
        scrub(node)
        goes_on = die_at(cluster, node, steps, behind=behind)
        cluster.kill(number)
        cluster.start(number)
        scrub(cluster.nodes[number])
        settle(cluster)
        node = cluster.nodes[number]
        assert contents(node) == right
        left = [path.name for path in node.log.directory.iterdir() if "cleaned" in path.name]
        assert (left, len(node.log.segments)) == ([], len(list(node.log.directory.glob("*.log"))))
        steps += 1
    assert steps >= 5
    cluster.stop()


def test_a_leader_whose_damage_is_not_committed_lets_another_lead(cluster: Cluster) -> None:
    cluster.cut |= {(2, 1), (3, 1)}
    lost = cluster.nodes[1].produce(b"x")
    segment = cluster.nodes[1].log.segments[-1]
    flip(segment.path, segment.size - 1)
    scrub(cluster.nodes[1])
    cluster.nodes[1].repairs.task(cluster.nodes[1].now)
    assert cluster.state.state.leader == NOBODY
    assert set(cluster.state.state.isr) == {2, 3}
    assert lost[0].error == NotEnoughReplicasAfterAppend.code
    cluster.mend()
    settle(cluster)
    assert contents(cluster.nodes[1]) == contents(cluster.nodes[2])


def test_what_no_other_replica_has_is_told_as_damaged(cluster: Cluster) -> None:
    for node in cluster.nodes.values():
        flip(node.log.segments[1].path, 40)
        scrub(node)
    offset = cluster.nodes[1].log.segments[1].damage[0].offset
    for _ in range(10):
        cluster.later(3.0)
    with pytest.raises(CorruptBatch, match="go on at"):
        read_now(cluster.nodes[1].log, offset, 1)


def _rotten(chunk: bytes) -> bytes:
    end = next(batch_header.split(chunk))[0].length
    return chunk[: end - 1] + bytes([chunk[end - 1] ^ 1]) + chunk[end:]


def _with_its_first_batch_twice(chunk: bytes) -> bytes:
    return chunk[: next(batch_header.split(chunk))[0].length] + chunk


@pytest.mark.parametrize("spoil", [_rotten, _with_its_first_batch_twice])
def test_what_a_repair_gets_is_looked_at_and_taken_from_the_next_one_if_it_is_bad(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[bytes], bytes]
) -> None:
    node = cluster.nodes[3]
    right = contents(node)
    segment = node.log.segments[1]
    flip(segment.path, 40)
    flip(segment.path, segment.size // 2)
    scrub(node)
    ask, asked = node.fetcher.ask, list[int]()

    def spoilt(broker: int, api: Api, request: Any, answered: Callable[[Reply], None]) -> None:
        def taken(reply: Reply) -> None:
            asked.append(broker)
            if broker == 1:
                assert reply.payloads[0], "it was to be spoilt"
                reply = reply._replace(payloads=[memoryview(spoil(bytes(reply.payloads[0])))])
            answered(reply)

        ask(broker, api, request, taken)

    monkeypatch.setattr(node.fetcher, "ask", spoilt)
    cluster.later(1.0)
    cluster.run(20)
    assert {1, 2} == set(asked)
    assert is_whole(node)
    assert contents(node) == right


def test_a_bad_batch_that_a_follower_gets_is_looked_at_by_its_leader(cluster: Cluster) -> None:
    right = contents(cluster.nodes[1])
    cluster.kill(3)
    shutil.rmtree(cluster.directory / "3")
    flip(cluster.nodes[1].log.segments[1].path, 100)
    cluster.start(3)
    settle(cluster)
    assert contents(cluster.nodes[3]) == right == contents(cluster.nodes[1])


def test_a_sector_that_cannot_be_read_is_repaired(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = cluster.nodes[2]
    right = contents(node)
    segment = node.log.segments[1]
    bad, real = segment.path, os.pread

    def pread(fd: int, count: int, position: int) -> bytes:
        if Path(f"/proc/self/fd/{fd}").readlink() == bad and position + count > 300:
            if position >= 300:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            count = 300 - position
        return real(fd, count, position)

    monkeypatch.setattr(os, "pread", pread)
    scrub(node)
    settle(cluster)
    assert contents(node) == right
    assert not bad.exists()


@pytest.mark.parametrize("number", REPLICAS)
def test_a_reader_reports_a_bad_batch_to_whoever_sent_it(cluster: Cluster, number: int) -> None:
    node = cluster.nodes[number]
    flip(node.log.segments[1].path, 40)
    [damage] = bad_in(node.log.segments[1])
    node.ask(ReportDamageRequest([ReportDamageEntry("t", TOPIC_ID, 0, damage.offset)]))
    settle(cluster)
    assert is_whole(node)


def test_what_is_missing_behind_a_segment_comes_back_with_what_is_bad_in_it(
    cluster: Cluster,
) -> None:
    right = contents(cluster.nodes[2])
    flip(cluster.nodes[2].log.segments[1].path, 40)
    scrub(cluster.nodes[2])
    settle(cluster)
    rewritten, next_one = cluster.nodes[2].log.segments[1:3]
    cluster.kill(2)
    flip(rewritten.path, 40)
    for path in next_one.files():
        path.unlink()
    cluster.start(2)
    scrub(cluster.nodes[2])
    settle(cluster)
    assert contents(cluster.nodes[2]) == right


def test_what_was_given_up_is_not_missed_by_a_repair(cluster: Cluster) -> None:
    segment = cluster.nodes[2].log.segments[1]
    start = segment.base_offset + 1
    right = contents(cluster.nodes[2])[start:]
    leader = cluster.nodes[1]
    leader.handlers.retention.delete_records(leader.log, start, lambda error: None)
    told = leader.produce(b"tell of it")
    cluster.run()
    assert told[0].error == 0
    cluster.later(1.0)
    assert {node.log.log_start for node in cluster.nodes.values()} == {start}
    for position in (40, segment.size - 1):
        flip(segment.path, position)
    scrub(cluster.nodes[2])
    settle(cluster)
    found: list[tuple[int, bytes | None]] = []
    while len(found) < len(right):
        found += values_of(read_now(cluster.nodes[2].log, start + len(found), 1 << 20))
    assert found[: len(right)] == right


def test_many_segments_that_cannot_be_repaired_keep_no_other_one_waiting(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = cluster.nodes[1]
    begun: set[Segment] = set()
    monkeypatch.setattr(Repairs, "_begin", lambda self, segment: begun.add(segment))
    some = [Segment(Path(), SegmentName(number), 1, OpenSegments()) for number in range(50)]
    node.logs.files.damaged.update(dict.fromkeys(some, 0.0))
    for _ in some:
        cluster.now += LOOK_AFTER
        node.repairs.task(node.now)
    assert begun == set(some)


def test_damage_in_what_was_deleted_meanwhile_is_forgotten(cluster: Cluster) -> None:
    node = cluster.nodes[1]
    for directory in (node.log.directory, Path("no-such-topic-0")):
        gone = Segment(directory, SegmentName(10**6), 1, OpenSegments())
        gone.damage = (Damage(10**6, 10**6 + 1, 0, 100),)
        node.logs.files.damaged[gone] = 0.0
    for _ in range(2):
        cluster.now += LOOK_AFTER
        node.repairs.task(node.now)
    assert not node.logs.files.damaged


def test_a_log_is_not_cut_while_a_segment_of_it_is_written_anew(cluster: Cluster) -> None:
    cluster.cut |= {(2, 1), (3, 1)}
    cluster.nodes[1].produce(b"x")
    cluster.designate(3, 2, 3)
    segment = cluster.nodes[1].log.segments[-1]
    flip(segment.path, 40)
    scrub(cluster.nodes[1])
    cluster.mend()
    one = cluster.nodes[1]
    one.replica.is_rewritten = True
    cluster.show()
    cluster.later(1.0)
    assert one.replica.state.follower is not None
    assert one.log.log_end == RECORDS + 1
    one.replica.is_rewritten = False
    settle(cluster)
    assert one.log.log_end == RECORDS
    assert contents(one) == contents(cluster.nodes[2])


def test_a_replica_is_marked_while_a_segment_of_it_is_written_anew(cluster: Cluster) -> None:
    node = cluster.nodes[2]
    flip(node.log.segments[1].path, 40)
    scrub(node)
    assert die_at(cluster, node, 2, behind=False)
    while node.hands.keys()[0] != "cleaner":
        assert [node.replica.is_rewritten] == [False]
        node.hands.work()
        cluster.run(2)
    marks = [node.replica.is_rewritten]
    node.hands.work_all()
    marks.append(node.replica.is_rewritten)
    assert marks == [True, False]
    assert is_whole(node)


def test_a_replica_that_was_repaired_may_lead_again_though_nobody_writes(cluster: Cluster) -> None:
    segment = cluster.nodes[2].log.segments[1]
    flip(segment.path, segment.size // 2)
    cluster.kill(2)
    cluster.start(2)
    cluster.show()
    for _ in range(3):
        cluster.run()
        cluster.now += 1.0
    node = cluster.nodes[2]
    assert node.log.is_damaged
    assert not node.replica.state.may_lead
    for _ in range(3):
        cluster.now += LOOK_AFTER
        node.repairs.task(node.now)
        cluster.run(20)
    assert is_whole(node)
    assert node.replica.state.may_lead


def test_a_replica_does_not_lead_before_all_of_its_damage_is_repaired(cluster: Cluster) -> None:
    node = cluster.nodes[2]
    for segment in node.log.segments[1:3]:
        flip(segment.path, segment.size // 2)
    by_start(cluster, node, 0)
    node = cluster.nodes[2]
    seen = set()
    for _ in range(6):
        damaged = sum(bool(segment.damage) for segment in node.log.segments)
        seen.add((damaged, node.replica.state.may_lead))
        cluster.now += LOOK_AFTER
        node.repairs.task(node.now)
        cluster.run(20)
    assert seen == {(2, False), (1, False), (0, True)}


def test_a_repair_whose_file_is_removed_halfway_begins_again(cluster: Cluster) -> None:
    """The removal of what an earlier try has left waits its turn behind compactions."""
    node = cluster.nodes[2]
    right = contents(node)
    segment = node.log.segments[1]
    flip(segment.path, 40)
    flip(segment.path, segment.size - 10)
    scrub(node)
    node.by_hand = True
    node.repairs.task(node.now)
    while not (fetched := list(segment.directory.glob("*.fetched.cleaned"))):
        cluster.run(1)
        node.hands.work()
    fetched[0].unlink()
    node.by_hand = False
    node.hands.work_all()
    cluster.run(20)
    assert not any(map(bad_in, (each for each in node.log.segments if not each.damage)))
    settle(cluster)
    assert contents(node) == right


def test_a_repair_tells_a_log_that_has_begun_anew_of_no_leader_epochs(cluster: Cluster) -> None:
    """The log would say that they begin before it does, and its leader would have it cut there."""
    node = cluster.nodes[2]
    flip(node.log.segments[1].path, 40)
    scrub(node)
    node.by_hand = True
    node.repairs.task(node.now)
    node.hands.work()
    cluster.run(2)
    assert node.hands.keys() == ["repair"], "it takes what another replica has given"
    node.logs.remove(node.log, node.log.begin_anew(node.log.log_end))
    node.hands.work_all()
    assert [*node.log.epoch_starts] == []
    assert not list(node.log.directory.glob("*.fetched.cleaned"))


def test_a_repair_alone_lets_nobody_lead_who_has_lost_more(cluster: Cluster) -> None:
    cluster.kill(2)
    data = cluster.directory / "2"
    first, *_, last = sorted(data.glob("*/*.log"))
    flip(first, 40)
    os.truncate(last, last.stat().st_size - 1)
    cluster.cut = {(2, 1)}
    cluster.start(2)
    cluster.show()
    node = cluster.nodes[2]
    assert node.log.is_incomplete
    node.log.advance_high_watermark(node.log.log_end)  # as if its leader had said so, and no more
    for _ in range(6):
        cluster.later(1.0)
    assert is_whole(node), "it was not repaired from broker 3"
    assert node.replica.state.follower is not None
    assert not node.replica.state.may_lead


def test_a_disk_that_takes_no_leader_epoch_ends_the_broker_and_a_full_one_does_not(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = cluster.nodes[2]
    ended: list[Exception] = []
    node.handlers.flusher.failed = ended.append
    reason = errno.ENOSPC

    def refuse(*_: object) -> None:
        raise OSError(reason, os.strerror(reason))

    monkeypatch.setattr(flusher, "save_notes", refuse)
    cluster.designate(2, 1, 2, 3)
    cluster.show(2)
    assert not ended
    reason = errno.EIO
    cluster.later(2.0)
    assert "notes" in str(ended[0])
    assert node.replica.leader is None


def tail_of(cluster: Cluster, number: int) -> Segment:
    """One more record that this leader alone has → the segment, which holds committed ones as well."""
    cluster.nodes[number].produce(b"committed")
    cluster.run()
    cluster.later(1.0)
    cluster.cut |= {(other, number) for other in REPLICAS}
    cluster.nodes[number].produce(b"never committed")
    segment = cluster.nodes[number].log.segments[-1]
    assert segment.base_offset < cluster.nodes[number].log.high_watermark
    return segment


def test_what_is_appended_behind_a_repaired_segment_that_was_cut_is_there_after_a_start(
    cluster: Cluster,
) -> None:
    segment = tail_of(cluster, 1)
    flip(segment.path, 40)
    scrub(cluster.nodes[1])
    for pair in ((1, 2), (1, 3)):
        cluster.cut.discard(pair)
    while cluster.nodes[1].log.is_damaged:
        cluster.later(1.0)
    cluster.designate(2, 2, 3)
    cluster.mend()
    settle(cluster)
    one = cluster.nodes[1]
    one.log.roll()
    for _ in range(3):
        cluster.nodes[2].produce(b"later")
        cluster.run()
    settle(cluster)
    end = one.log.log_end
    cluster.kill(1)
    cluster.start(1)
    one = cluster.nodes[1]
    assert one.log.log_end == end
    assert not one.log.is_damaged
    assert contents(one) == contents(cluster.nodes[2])


@pytest.mark.parametrize("known", [slice(None), slice(1)])
def test_what_may_still_be_cut_is_not_repaired(cluster: Cluster, known: slice) -> None:
    """Else records of the next leader would stand among those that it has never had."""
    one, two = cluster.nodes[1], cluster.nodes[2]
    segment = tail_of(cluster, 1)
    one.produce(b"never committed either")
    flip(segment.path, 40)
    flip(segment.path, segment.size - 1)
    for found in bad_in(segment)[known]:
        segment.mark(found)
    cluster.cut = {(1, 2)}
    cluster.designate(2, 2, 3)
    cluster.show()
    cluster.run()
    for _ in range(3):
        two.produce(b"committed later")
        cluster.run()
    for _ in range(3):
        cluster.later(1.0)
    assert one.log.log_end > one.log.high_watermark
    cluster.mend()
    settle(cluster)
    assert contents(one) == contents(two)


@pytest.mark.parametrize("then", ["it dies", "it goes on"])
def test_a_replica_that_is_cut_behind_damage_does_not_lead_before_it_has_all_again(
    cluster: Cluster, then: str
) -> None:
    segment = tail_of(cluster, 1)
    flip(segment.path, 2)
    cluster.designate(2, 1, 2, 3)
    cluster.show()
    cluster.mend()
    one = cluster.nodes[1]
    one.by_hand = True
    cluster.now += 1.0
    for _ in range(9):
        cluster.run(1)
        while one.hands.jobs and one.log.log_end > RECORDS:
            one.hands.work()
    assert one.log.log_end == RECORDS
    if then == "it dies":
        cluster.kill(1)
        cluster.start(1)
    one = cluster.nodes[1]
    assert one.log.is_incomplete
    cluster.designate(1, 1, 2, 3)
    cluster.show()
    assert (cluster.state.state.leader, cluster.state.state.isr) == (NOBODY, (2, 3))
    one.by_hand = False
    one.hands.work_all()
    settle(cluster)
    for _ in range(3):
        cluster.later(0.5)
    one = cluster.nodes[1]
    assert one.replica.state.may_lead
    assert contents(one) == contents(cluster.nodes[2])


def test_what_a_cut_says_of_a_log_is_not_taken_back_by_what_was_said_before(
    cluster: Cluster,
) -> None:
    """Jobs end in any order, but for those of one key."""
    segment = tail_of(cluster, 1)
    flip(segment.path, 2)
    one = cluster.nodes[1]
    cluster.designate(2, 1, 2, 3)
    cluster.show()
    assert one.replica.state.follower is not None
    one.log.is_incomplete = True
    note_incomplete(one.log.directory)
    one.by_hand = True
    one.replica.observe(one.replica.found)
    assert one.hands.keys()
    assert [one.log.is_incomplete] == [False]
    cluster.mend()
    cluster.now += 1.0
    for _ in range(9):
        cluster.run(1)
        while one.log.log_end > RECORDS and len(keys := one.hands.keys()) > 1:
            one.hands.jobs.insert(0, one.hands.jobs.pop(keys.index(keys[-1])))
            one.hands.work()
    one.hands.work_all()
    assert one.log.is_incomplete
    cluster.kill(1)
    cluster.start(1)
    assert cluster.nodes[1].log.is_incomplete


def test_a_replica_that_lacks_a_batch_does_not_lead_though_it_is_in_sync_by_what_lies_behind(
    cluster: Cluster,
) -> None:
    cluster.designate(2, 1, 2, 3)
    cluster.show()
    cluster.run()
    segment = cluster.nodes[1].log.segments[1]
    flip(segment.path, segment.size // 2)
    by_start(cluster, cluster.nodes[1], 0)
    cluster.designate(1, 1, 2, 3)
    cluster.show()
    cluster.run()
    assert (cluster.state.state.leader, cluster.state.state.isr) == (NOBODY, (2, 3))
    cluster.designate(2, 2, 3)
    cluster.show()
    cluster.run(30)
    assert set(cluster.state.state.isr) == set(REPLICAS)
    assert cluster.nodes[1].log.is_damaged
    cluster.designate(1, 1, 2, 3)
    cluster.show()
    cluster.run()
    assert (cluster.state.state.leader, cluster.state.state.isr) == (NOBODY, (2, 3))
    settle(cluster)
    for _ in range(3):
        cluster.later(0.5)
    assert cluster.nodes[1].replica.state.may_lead


# -- one flipped bit anywhere -----------------------------------------------------------------------

FLIPS = 50  # in a cluster


class Rot:
    """Bits that flip in the files of one replica of three, one after another, each found and mended."""

    def __init__(self, directory: Path, source: random.Random) -> None:
        self.cluster = filled(directory, source)
        self.source = source
        self.acknowledged = dict(contents(self.cluster.nodes[1]))
        self.hit: Counter[str] = Counter()
        self.emptied = 0

    def step(self) -> None:
        number = self.source.choice(REPLICAS)
        node = self.cluster.nodes[number]
        ways: list[Callable[[Node], None]] = [self.kill, self.kill, self.stop, self.run_on]
        self.source.choice(ways)(node)
        settle(self.cluster)
        self.produce()
        self.check(number)

    def flip(self, node: Node) -> None:
        data = self.cluster.directory / f"{node.number}"
        paths = [each for each in sorted(data.rglob("*")) if each.is_file() and each.stat().st_size]
        kinds = sorted({each.suffix or each.name for each in paths} - {".lock"})
        kind = self.source.choice([*kinds, ".log", ".log"])
        path = self.source.choice([each for each in paths if (each.suffix or each.name) == kind])
        self.hit[kind] += 1
        flip(path, self.source.randrange(path.stat().st_size), 1 << self.source.randrange(8))

    def kill(self, node: Node) -> None:
        self.cluster.kill(node.number)
        self.flip(node)
        self.start(node.number)

    def stop(self, node: Node) -> None:
        node.logs.close()
        self.kill(node)

    def run_on(self, node: Node) -> None:
        self.flip(node)
        scrub(node)

    def start(self, number: int) -> None:
        try:
            self.cluster.start(number)
        except FolkmootError:
            # It says which file, and what an operator is to do: give it an empty directory.
            shutil.rmtree(self.cluster.directory / f"{number}")
            self.emptied += 1
            self.cluster.start(number)
        self.cluster.show()
        scrub(self.cluster.nodes[number])

    def produce(self) -> None:
        value = self.source.randbytes(20)
        leader = self.cluster.nodes[self.cluster.state.state.leader]
        results = leader.produce(value)
        self.cluster.run()
        assert results[0].error == 0
        self.acknowledged[results[0].base_offset] = value

    def check(self, number: int) -> None:
        assert set(self.cluster.state.state.isr) == set(REPLICAS)
        node = self.cluster.nodes[number]
        scrub(node)
        settle(self.cluster)
        assert is_whole(node)
        found: dict[int, bytes | None] = {}
        while len(found) < node.log.log_end:
            found.update(values_of(read_now(node.log, len(found), 1 << 20, committed=False)))
        assert found == self.acknowledged


@pytest.mark.parametrize("clusters", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_one_flipped_bit_anywhere_on_one_replica_loses_nothing_and_is_repaired(
    tmp_path: Path, clusters: int
) -> None:
    first = new_seed()
    hit: Counter[str] = Counter()
    emptied = 0
    for seed in range(first, first + clusters):
        rot = Rot(tmp_path / str(seed), random.Random(seed))
        for number in range(FLIPS):
            print(f"seed {seed}, flip {number}")
            rot.step()
        hit += rot.hit
        emptied += rot.emptied
        rot.cluster.stop()
        shutil.rmtree(tmp_path / str(seed))
    print(dict(hit), f"{emptied} directories emptied")
    assert hit.total() == clusters * FLIPS
    assert len(hit) > 6
