"""What has rotted on one replica is found, and copied anew from another: nothing is lost or served."""

import errno
import logging
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from folkmoot.brokers.replication.leader_state import Position
from folkmoot.brokers.replication.partitions import LOOK_AFTER
from folkmoot.brokers.storage import flusher
from folkmoot.brokers.storage.compaction.cleaning_pass import CleanerCheckpoint
from folkmoot.brokers.storage.files.atomic_file import save_json
from folkmoot.brokers.storage.leader_epochs import EPOCH_STARTS_FILE
from folkmoot.brokers.storage.notes import load_notes, save_notes
from folkmoot.brokers.storage.recovery import CLEANER_CHECKPOINT_FILE, note_incomplete
from folkmoot.brokers.storage.segment import Damage, Segment
from folkmoot.coordination.partition_states import NOBODY
from folkmoot.protocol.errors import (
    CorruptBatch,
    FolkmootError,
    NotEnoughReplicasAfterAppend,
    OffsetNotAvailable,
)
from folkmoot.protocol.messages import ReportDamageEntry, ReportDamageRequest
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
    """But for what was given up."""
    found = [each for segment in node.log.segments for each in (*segment.damage, *bad_in(segment))]
    return all(each.next_offset <= node.log.log_start for each in found)


def by_scrub(cluster: Cluster, node: Node, offset: int) -> None:
    scrub(node)


def by_report(cluster: Cluster, node: Node, offset: int) -> None:
    node.ask(ReportDamageRequest([ReportDamageEntry("t", TOPIC_ID, 0, offset)]))


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
        with pytest.raises(OffsetNotAvailable, match="copied anew"):
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


def elect(cluster: Cluster) -> None:
    """A leader that has resigned is followed by another."""
    state = cluster.state.state
    if state.leader not in cluster.nodes or not state.active:
        live = [each for each in state.isr if each in cluster.nodes]
        cluster.designate(live[0], *state.isr)
    cluster.show()


def settle(cluster: Cluster) -> None:
    """Time passes, until all are in sync and whole."""
    for _ in range(30):
        elect(cluster)
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
        node.tend()
        elect(cluster)
        cluster.run(2)
        in_sync = [cluster.nodes[each] for each in cluster.state.state.isr]
        assert min(each.log.log_end for each in in_sync) >= RECORDS
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
    for node in cluster.nodes.values():
        node.logs.close()


def test_a_leader_whose_damage_is_not_committed_lets_another_lead(cluster: Cluster) -> None:
    cluster.cut |= {(2, 1), (3, 1)}
    lost = cluster.nodes[1].produce(b"x")
    segment = cluster.nodes[1].log.segments[-1]
    flip(segment.path, segment.size - 1)
    scrub(cluster.nodes[1])
    cluster.nodes[1].tend()
    assert cluster.state.state.leader == NOBODY
    assert set(cluster.state.state.isr) == {2, 3}
    assert lost[0].error == NotEnoughReplicasAfterAppend.code
    cluster.mend()
    settle(cluster)
    assert contents(cluster.nodes[1]) == contents(cluster.nodes[2])


@pytest.mark.parametrize("is_let_go", [False, True])
def test_a_follower_is_not_cut_before_it_does_not_count_as_in_sync(
    cluster: Cluster, is_let_go: bool
) -> None:
    follower, leader = cluster.nodes[2], cluster.nodes[1]
    if not is_let_go:
        leader.partitions.shared.write_states = lambda writes, done: None
    segment = follower.log.segments[1]
    flip(segment.path, segment.size // 2)
    scrub(follower)
    for _ in range(20):
        cluster.later(0.2)
        assert follower.log.log_end == RECORDS or 2 not in cluster.writes[-1].state.isr
    assert [follower.partitions.counters.repaired] == [int(is_let_go)]
    assert is_whole(follower) is is_let_go


def test_a_fetch_from_before_the_damage_was_found_counts_for_nothing(cluster: Cluster) -> None:
    leader, follower = cluster.nodes[1].replica.leader, cluster.nodes[2]
    assert leader is not None
    late = Position(leader.epoch, leader.epoch, RECORDS)
    damaged = Position(leader.epoch, leader.epoch, 20)
    told = 2, cluster.registrations[2].epoch
    with pytest.raises(OffsetNotAvailable):
        leader.handle_fetch(*told, damaged, RECORDS, 0.0, is_damaged=True)
    cluster.nodes[1].replica.look_after_isr()
    assert 2 not in cluster.state.state.isr
    assert leader.handle_fetch(*told, damaged, RECORDS, 0.0, is_damaged=True) is None
    with pytest.raises(OffsetNotAvailable):
        leader.handle_fetch(*told, late, RECORDS, 0.0)
    assert leader.propose(REPLICAS, 0.0) is None
    assert leader.handle_fetch(*told, damaged, RECORDS, 0.0) is None
    assert leader.handle_fetch(*told, late, RECORDS, 0.0) is None
    wanted = leader.propose(REPLICAS, 0.0)
    assert wanted is not None
    assert 2 in wanted.state.isr
    assert follower.log.log_end == RECORDS


def test_a_follower_that_dies_and_forgets_its_damage_counts_again(cluster: Cluster) -> None:
    leader = cluster.nodes[1].replica.leader
    assert leader is not None
    with pytest.raises(OffsetNotAvailable):
        leader.handle_fetch(
            *(2, cluster.registrations[2].epoch, Position(leader.epoch, leader.epoch, 20)),
            *(RECORDS, 0.0),
            is_damaged=True,
        )
    cluster.kill(2)
    cluster.start(2)
    settle(cluster)


def test_no_replica_is_cut_while_its_leader_is_damaged_elsewhere(cluster: Cluster) -> None:
    """What has rotted at the leader, and nobody knows yet, is whole at who would be cut."""
    cluster.kill(3)
    one, two = cluster.nodes[1], cluster.nodes[2]
    right = contents(one)
    for node, number in ((one, 3), (two, 1)):
        segment = node.log.segments[number]
        flip(segment.path, segment.size // 2)
    cluster.designate(1, 1, 2)
    cluster.show()
    scrub(two)
    for _ in range(12):
        elect(cluster)
        cluster.later(1.0)
    assert one.log.is_damaged
    assert two.log.is_damaged
    assert cluster.ends() == [RECORDS] * 2
    assert one.partitions.counters.repaired == two.partitions.counters.repaired == 0
    assert len(cluster.state.state.isr) == 1
    leader = cluster.nodes[cluster.state.state.leader]
    assert leader.replica.leader is not None
    [offset] = leader.log.damaged_at
    with pytest.raises(OffsetNotAvailable, match="copied anew"):
        read_now(leader.log, offset, 1)
    cluster.start(3)
    settle(cluster)
    assert contents(one) == contents(two) == right


def test_a_leader_that_is_alone_in_sync_keeps_what_it_has_until_another_one_is(
    cluster: Cluster,
) -> None:
    right = contents(cluster.nodes[1])
    for number in (2, 3):
        cluster.kill(number)
    cluster.designate(1, 1)
    one = cluster.nodes[1]
    segment = one.log.segments[1]
    flip(segment.path, segment.size // 2)
    scrub(one)
    for _ in range(4):
        elect(cluster)
        cluster.later(1.0)
    [offset] = one.log.damaged_at
    assert one.replica.leader is not None
    with pytest.raises(OffsetNotAvailable, match="copied anew"):
        read_now(one.log, offset, 1)
    assert values_of(read_now(one.log, offset + 1, 1)) == right[offset + 1 : offset + 2]
    for number in (2, 3):
        cluster.start(number)
    settle(cluster)
    assert contents(one) == right


@pytest.mark.parametrize("position", [2, 40])
def test_damage_at_the_start_of_a_log_whose_first_records_were_given_up_has_all_of_it_copied(
    cluster: Cluster, position: int
) -> None:
    leader = cluster.nodes[1]
    results = leader.produce(*(b"%d" % number for number in range(5)))
    cluster.run()
    start = results[0].base_offset + 2
    leader.handlers.retention.delete_records(leader.log, start, lambda error: None)
    leader.produce(b"tell of it")
    cluster.run()
    cluster.later(1.0)
    node = cluster.nodes[2]
    assert node.log.log_start == start
    segment = node.log.segment_at(start)
    [at] = [
        at for header, at in segment.headers(0) if header.base_offset < start < header.next_offset
    ]
    flip(segment.path, at + position)
    scrub(node)
    settle(cluster)
    assert node.log.log_start == start
    assert values_of(read_now(node.log, start, 1 << 20)) == values_of(
        read_now(leader.log, start, 1 << 20)
    )


def test_a_leader_that_has_given_up_what_is_damaged_has_its_follower_copy_what_is_left(
    cluster: Cluster,
) -> None:
    node, leader = cluster.nodes[2], cluster.nodes[1]
    flip(node.log.segments[1].path, 40)
    cluster.cut |= {(2, 1)}
    start = leader.log.segments[3].base_offset + 1
    leader.handlers.retention.delete_records(leader.log, start, lambda error: None)
    scrub(node)
    cluster.mend()
    settle(cluster)
    assert node.log.log_start == start
    assert contents_from(node, start) == contents_from(leader, start)


def contents_from(node: Node, offset: int) -> list[tuple[int, bytes | None]]:
    found: list[tuple[int, bytes | None]] = []
    while offset + len(found) < node.log.log_end:
        found += values_of(read_now(node.log, offset + len(found), 1 << 20, committed=False))
    return found


def test_what_no_other_replica_has_is_told_as_damaged(cluster: Cluster) -> None:
    for node in cluster.nodes.values():
        flip(node.log.segments[1].path, 40)
        scrub(node)
    offset = cluster.nodes[1].log.segments[1].damage[0].offset
    for _ in range(10):
        elect(cluster)
        cluster.later(1.0)
    assert cluster.state.state.isr == (3,)
    assert cluster.ends() == [RECORDS] * 3
    with pytest.raises(CorruptBatch, match="go on at"):
        read_now(cluster.nodes[3].log, offset, 1)


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
        is_bad = (
            not node.partitions.counters.repaired and Path(f"/proc/self/fd/{fd}").readlink() == bad
        )
        if is_bad and position + count > 300:
            if position >= 300:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            count = 300 - position
        return real(fd, count, position)

    monkeypatch.setattr(os, "pread", pread)
    scrub(node)
    settle(cluster)
    assert contents(node) == right


@pytest.mark.parametrize("number", REPLICAS)
def test_a_reader_reports_a_bad_batch_to_whoever_sent_it(cluster: Cluster, number: int) -> None:
    node = cluster.nodes[number]
    flip(node.log.segments[1].path, 40)
    [damage] = bad_in(node.log.segments[1])
    node.ask(ReportDamageRequest([ReportDamageEntry("t", TOPIC_ID, 0, damage.offset)]))
    settle(cluster)
    assert is_whole(node)


def test_a_segment_that_is_missing_comes_back(cluster: Cluster) -> None:
    right = contents(cluster.nodes[2])
    gone = cluster.nodes[2].log.segments[2]
    cluster.kill(2)
    for path in gone.files():
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


def test_damage_in_what_was_deleted_meanwhile_is_forgotten(cluster: Cluster) -> None:
    node = cluster.nodes[1]
    node.logs.files.damaged |= {node.log.directory, Path("no-such-topic-0")}
    cluster.later(1.0)
    assert not node.logs.files.damaged
    assert node.replica.leader is not None


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
        node.tend()
        cluster.show()
        cluster.run(20)
    assert is_whole(node)
    assert node.replica.state.may_lead


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
    one.replica.observe(one.replica.last_read)
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


def test_a_replica_that_lacks_a_batch_by_its_start_does_not_lead(cluster: Cluster) -> None:
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


def test_a_leader_that_cannot_read_where_epochs_begin_has_nobody_cut_there(
    cluster: Cluster,
) -> None:
    """Of the epoch that it cannot read another one may have the only whole copy."""

    def append(number: int) -> None:
        cluster.designate(number, *(each for each in REPLICAS if each in cluster.nodes))
        cluster.show()
        cluster.run()
        done = cluster.nodes[number].produce(b"of %d" % number)
        cluster.later(1.0)
        assert done[0].error == 0

    append(2)
    cluster.kill(3)
    append(1)
    right = contents(cluster.nodes[1])
    segment = cluster.nodes[1].log.segment_at(RECORDS)
    [at] = [at for header, at in segment.headers(0) if header.base_offset == RECORDS]
    cluster.nodes[1].log.roll()  # in the last segment it would be cut by the start
    for number in (1, 2):
        cluster.kill(number)
    flip(segment.path, at)
    (segment.directory / EPOCH_STARTS_FILE).unlink(missing_ok=True)
    cluster.designate(1, 1)
    for number in (1, 3):
        cluster.start(number)
    cluster.show()
    for _ in range(4):
        cluster.later(1.0)
    one, three = cluster.nodes[1], cluster.nodes[3]
    assert one.replica.leader is not None, "it is the only one in sync"
    assert one.log.damaged_at == [RECORDS]
    assert contents(three) == right[: RECORDS + 1]
    for _ in range(2):  # as long as it does not know more it says the same
        cluster.kill(1)
        cluster.start(1)
        cluster.show()
        for _ in range(4):
            cluster.later(1.0)
        assert contents(three) == right[: RECORDS + 1]
    cluster.start(2)
    cluster.show()
    settle(cluster)
    assert [contents(each) for each in cluster.nodes.values()] == [right] * 3
