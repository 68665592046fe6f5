"""Replicas that compact by themselves, and an unclean election between them."""

from errno import EIO
from itertools import count
from pathlib import Path

import pytest
from msgspec.structs import replace

from folkmoot.brokers.storage.compaction.log_cleaner import LogCleaner
from folkmoot.brokers.storage.flusher import CHECKPOINT_INTERVAL
from folkmoot.brokers.storage.recovery import COMPACTED_FOR_FILE, load_compacted_for
from folkmoot.coordination.partition_states import VersionedState
from tests.brokers.compaction import keyed
from tests.brokers.replication.brokers import Cluster, Node

CONFIG = {"cleanup_policy": "compact", "min_in_sync": "1", "min_cleanable_dirty_ratio": "0.01"}


def compact(cluster: Cluster, node: Node) -> None:
    cleaner = LogCleaner(node.logs, node._submit, lambda seconds: False, 1_000_000, 2**40)
    for _ in range(3):
        cluster.now += CHECKPOINT_INTERVAL
        node.handlers.flusher.task(node.now)
        cleaner.task(node.now)
        cleaner.task(node.now)


def send(cluster: Cluster, key: bytes, value: bytes) -> None:
    answers = cluster.nodes[1].send(keyed((key, value)))
    cluster.run()
    assert answers[0].error == 0


def with_compacted_two(directory: Path) -> Cluster:
    """Broker 2 alone has the key's later record, and has dropped the earlier one, which broker 3 has."""
    cluster = Cluster(directory, CONFIG)
    send(cluster, b"key", b"earlier")
    send(cluster, b"another", b"0")
    cluster.run()
    cluster.kill(3)
    cluster.show()
    send(cluster, b"key", b"later")
    for number in range(30):
        send(cluster, b"another", b"%d" % number * 30)
    cluster.later(1.0)
    cluster.kill(1)
    two = cluster.nodes[2]
    compact(cluster, two)
    assert two.log.segments[0].sparse
    assert contents(two)[0].startswith((2).to_bytes(8, "big"))
    cluster.start(3)
    unclean = replace(cluster.state.state, unclean_epoch=cluster.state.state.leader_epoch + 1)
    cluster.state = VersionedState(unclean, cluster.state.partition_epoch)
    cluster.designate(3, 3)
    cluster.show(3)
    return cluster


def contents(node: Node) -> list[bytes]:
    found = []
    for segment in node.log.segments:
        reader = segment.reader()
        for header, position in reader.headers(0):
            found.append(bytes(reader.read(position, header.length)))
        reader.close()
    return found


def settle(cluster: Cluster) -> None:
    for _ in range(5):
        cluster.show()
        cluster.later(1.0)


def elect_three(cluster: Cluster) -> None:
    unclean = cluster.state.state.designate(3, (3,), 1)
    unclean = replace(unclean, unclean_epoch=unclean.leader_epoch + 1)
    cluster.state = VersionedState(unclean, cluster.state.partition_epoch + 1)
    cluster.show(3)


@pytest.mark.parametrize("note", ["there", "gone", "illegible"])
def test_a_compacted_log_is_merely_cut_where_no_record_was_dropped_for_what_is_lost(
    tmp_path: Path, note: str
) -> None:
    """And again, when it has lost some once more. Where that is not known it is copied anew."""
    cluster = Cluster(tmp_path, CONFIG)
    for number in range(30):
        send(cluster, b"key", b"%d" % number * 30)
    cluster.later(1.0)
    two = cluster.nodes[2]
    compact(cluster, two)
    assert two.log.segments[0].sparse
    former = list(two.log.sealed_segments)
    path = two.log.directory / COMPACTED_FOR_FILE
    if note == "gone":
        path.unlink()
    elif note == "illegible":
        path.write_bytes(b"30")
    for _ in range(2):
        end = cluster.nodes[3].log.log_end
        cluster.kill(3)
        cluster.show()
        leader = next(iter(cluster.nodes.values()))
        leader.send(keyed((b"key", b"lost")))
        cluster.run()
        assert two.log.log_end == end + 1
        if leader is not two:
            cluster.kill(1)
        cluster.start(3)
        elect_three(cluster)
        settle(cluster)
        assert set(cluster.state.state.isr) == {2, 3}
        assert cluster.nodes[3].replica.leader is not None
        assert two.log.log_end == end
        if note != "there":
            break
        cluster.designate(2, 2, 3)
        settle(cluster)
    kept = list(two.log.segments[: len(former)])
    assert (kept == former) is (note == "there")
    cluster.stop()


def test_what_records_are_dropped_for_is_noted_by_a_pass_that_is_interrupted_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, noted = Cluster(tmp_path, CONFIG), list[int | None]()

    def fail(*_: object) -> None:
        raise OSError(EIO, "input/output error")

    two = cluster.nodes[2]
    for _ in range(2):
        for number in range(30):
            send(cluster, b"key", b"%d" % number * 30)
        cluster.later(1.0)
        former = [*two.log.segments]
        compact(cluster, two)
        assert two.log.segments[0] is not former[0]
        noted.append(load_compacted_for(two.log.directory))
        monkeypatch.setattr("folkmoot.brokers.storage.compaction.log_cleaner.save_json", fail)
    first, second = noted
    assert first is not None
    assert second is not None
    assert first < 30 < second == two.log.segments[-1].base_offset
    cluster.stop()


@pytest.mark.parametrize("more", [0, 40])
@pytest.mark.parametrize("behind", [False, True])
def test_after_an_unclean_election_a_replica_has_what_it_dropped_for_records_that_are_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, behind: bool, more: int
) -> None:
    """It dies before or behind each of its jobs, and its leader's log may have grown past its own."""
    for steps in count():
        cluster = with_compacted_two(tmp_path / f"{steps}")
        for number in range(more):
            cluster.nodes[3].produce(b"%d" % number)
        two = cluster.nodes[2]
        two.by_hand = True
        cluster.show()
        for _ in range(steps):
            while not two.hands.jobs and set(cluster.state.state.isr) != {2, 3}:
                cluster.later(0.2)
            if two.hands.jobs:
                two.hands.work()
        while not two.hands.jobs and set(cluster.state.state.isr) != {2, 3}:
            cluster.later(0.2)
        is_done = not two.hands.jobs
        if behind and not is_done:
            two.hands.jobs[0][1]()
        cluster.kill(2)
        cluster.start(2)
        settle(cluster)
        two, three = cluster.nodes[2], cluster.nodes[3]
        assert set(cluster.state.state.isr) == {2, 3}
        assert contents(two) == contents(three)
        assert (two.log.log_start, two.log.is_incomplete) == (0, False)
        for node in cluster.nodes.values():
            node.logs.close()
        assert "lost what was committed from offset 0" not in caplog.text
        if is_done:
            break
    assert "an unclean election has lost offsets from 2 on" in caplog.text
    assert steps > 3
