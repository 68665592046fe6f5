"""What a data directory knows of its cluster: read as it is, whoever runs on it."""

from pathlib import Path

from folkmoot.brokers.server.inventory import take_inventory
from folkmoot.brokers.storage.log_manager import LogManager
from folkmoot.coordination.cluster.restoring import ReplicaOnDisk
from folkmoot.coordination.topics import TopicInfo
from tests.brokers.batches import SMALL, a_batch, append
from tests.brokers.hands import create

TOPIC = TopicInfo("first", [[1, 2], [2]], {"retention": "7"}, revision=3)


def contents(data: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}


def test_an_inventory_says_where_each_log_ends_and_changes_nothing(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with LogManager(data, 1, SMALL, cluster="c") as logs:
        logs.configure("flights", "first", TOPIC.config, TOPIC)
        log = create(logs, "flights", "first", 0)
        append(log, a_batch(b"a", b"b"), a_batch(b"c"))
        found = take_inventory(data)
        assert not found.stopped
        assert found.replicas[0].log_end == 3
        append(log, a_batch(b"d"))
        append(log, a_batch(b"e" * 100))
        logs.abandon()
    newest = max((data / "first-0").glob("*.log"))
    newest.write_bytes(newest.read_bytes()[:-10])
    before = contents(data)
    found = take_inventory(data)
    assert contents(data) == before
    assert (found.broker, found.cluster, found.stopped) == (1, "c", True)
    assert found.replicas == [
        ReplicaOnDisk(
            *(1, "flights", "first", 0),
            leader_epoch=0,
            last_epoch=found.replicas[0].last_epoch,
            log_end=4,
            partitions=2,
            replicas=(1, 2),
            config={"retention": "7"},
            revision=3,
        )
    ]


def test_a_log_whose_records_are_all_gone_ends_where_it_did(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with LogManager(data, 1, SMALL, cluster="c") as logs:
        append(create(logs, "flights", "first", 0), a_batch(b"a", b"b"))
    (segment,) = (data / "first-0").glob("*.log")
    segment.unlink()
    assert take_inventory(data).replicas[0].log_end == 2
