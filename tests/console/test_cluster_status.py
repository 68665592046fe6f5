"""`folkmoot cluster status`, `broker list` and `topic describe`, against a real ZooKeeper."""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from folkmoot.brokers.storage.log_manager import IDENTITY_FILE
from folkmoot.console.main import main
from folkmoot.console.options import cluster as options
from folkmoot.coordination import brokers, partition_states, paths, topics
from folkmoot.coordination.brokers import Registration
from folkmoot.coordination.cluster import controllers, events
from folkmoot.coordination.cluster.events import ClusterEvent
from folkmoot.coordination.connector import connect
from folkmoot.coordination.partition_states import (
    MISSING,
    PartitionState,
    StateWrite,
    TopicIdPartition,
)
from folkmoot.coordination.zookeeper import kazoo_adapter
from folkmoot.coordination.zookeeper.execute import execute, execute_all
from folkmoot.coordination.zookeeper.kazoo_adapter import KazooSession
from folkmoot.coordination.zookeeper.operations import Set
from folkmoot.protocol.records import TopicPartition

ALL = {1, 2, 3}
SESSION = 60.0


class Cluster:
    """Registered brokers without processes; what they lead is written by the test."""

    def __init__(self, connect_string: str) -> None:
        self.connect_string = connect_string
        self.session = connect(connect_string, SESSION)
        self.brokers: dict[int, KazooSession] = {}
        for number in sorted(ALL):
            self.brokers[number] = connect(connect_string, SESSION)
            mine = Registration({"client": f"host-{number}:9"}, f"n{number}", f"d{number}")
            execute(self.brokers[number], brokers.register(number, mine))
        execute(self.session, controllers.elect(2, "c", lambda: None))
        self.topic = execute(self.session, topics.create("t", 3, sorted(ALL), replicas=3))
        self.lead(0, (1, 2, 3))
        self.lead(1, (2, 3, 1))
        self.lead(2, (3, 1, 2))

    def lead(self, partition: int, isr: tuple[int, ...], *, active: bool = True) -> None:
        """The first of the ISR leads, in epoch 4."""
        each = TopicIdPartition(self.topic.topic_id, partition)
        found = execute(self.session, partition_states.read(each))
        stands_on = MISSING if found is None else found.partition_epoch
        state = PartitionState(isr[0], 4, isr, 1, active)
        execute(self.session, partition_states.write({each: StateWrite(state, stands_on)}))

    def close(self) -> None:
        for session in (self.session, *self.brokers.values()):
            session.close()


@pytest.fixture
def cluster(chroot: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setenv(options.ENVIRONMENT, chroot)
    monkeypatch.setattr(kazoo_adapter, "CLOSE_TIMEOUT", SESSION)  # what is closed is gone
    made = Cluster(chroot)
    yield made
    made.close()


class Command:
    """Runs commands with JSON as output."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *words: str, code: int = 0) -> list[dict[str, Any]]:
        assert main([*words, "-o", "json"]) == code
        rows: list[dict[str, Any]] = json.loads(self._capsys.readouterr().out)
        return rows


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)


def test_a_cluster_that_is_well_says_so(cluster: Cluster, command: Command) -> None:
    assert command("cluster", "status") == [
        {
            "controller": "broker 2, epoch 1",
            "brokers": [1, 2, 3],
            "missing_brokers": [],
            "partitions": 3,
            "leaderless": 0,
            "under_replicated": 0,
            "below_min_in_sync": 0,
            "being_moved": 0,
            "versions": ["unknown"],
        }
    ]


def test_a_lost_broker_a_lost_leader_and_a_small_isr_are_told(
    cluster: Cluster, command: Command
) -> None:
    cluster.lead(0, (2, 3))
    (status,) = command("cluster", "status", code=5)
    assert (status["under_replicated"], status["below_min_in_sync"]) == (1, 0)
    cluster.lead(0, (2,))
    (status,) = command("cluster", "status", code=5)
    assert (status["under_replicated"], status["below_min_in_sync"]) == (1, 1)
    cluster.brokers[3].close()
    (status,) = command("cluster", "status", code=5)
    assert (status["brokers"], status["missing_brokers"]) == ([1, 2], [3])
    assert (status["leaderless"], status["under_replicated"]) == (1, 3)


def test_without_a_controller_or_brokers_a_cluster_is_degraded(
    cluster: Cluster, command: Command
) -> None:
    cluster.session.close()
    (status,) = command("cluster", "status", code=5)
    assert status["controller"] is None
    cluster.session = connect(cluster.connect_string, SESSION)
    execute(cluster.session, controllers.elect(controllers.ALONE, "c2", lambda: None))
    (status,) = command("cluster", "status")
    assert status["controller"] == "a process of its own, epoch 2"


def test_partitions_are_described_and_filtered(cluster: Cluster, command: Command) -> None:
    described = command("topic", "describe", "t")
    assert described[0] == {
        "partition": 0,
        "leader": 1,
        "address": "host-1:9",
        "leader_epoch": 4,
        "replicas": cluster.topic.partitions[0],
        "in_sync": [1, 2, 3],
        "being_moved_to": None,
    }
    cluster.lead(1, (2, 3))
    cluster.lead(2, (3, 1, 2), active=False)
    other = execute(cluster.session, topics.create("other", 1, [1]))
    assert other.partitions == [[1]]

    def described_as(*words: str) -> set[TopicPartition]:
        rows = command("topic", "describe", *words)
        return {TopicPartition(each["topic"], each["partition"]) for each in rows}

    assert len(described_as()) == 4
    new = TopicPartition("other", 0)
    assert described_as("--under-replicated") == {TopicPartition("t", 1), new}
    assert described_as("--leaderless") == {TopicPartition("t", 2), new}
    assert described_as("--leaderless", "--under-replicated") == {new}
    assert [each["leader"] for each in command("topic", "describe", "t")] == [1, 2, None]


def test_a_partition_whose_state_is_missing_or_illegible_is_led_by_nobody(
    cluster: Cluster, command: Command
) -> None:
    execute(cluster.session, topics.add_partitions("t", 4, sorted(ALL)))
    path = paths.partition_state(cluster.topic.topic_id, 0)
    execute(cluster.session, Set(path, b"scribble"))
    rows = command("topic", "describe", "t", "--leaderless")
    assert [(each["partition"], each["in_sync"]) for each in rows] == [(0, []), (3, [])]


def test_brokers_are_listed_with_what_they_lead(cluster: Cluster, command: Command) -> None:
    cluster.lead(1, (3, 1))
    listed = command("broker", "list")
    assert [each["broker"] for each in listed] == [1, 2, 3]
    assert [each["leads"] for each in listed] == [1, 0, 2]
    assert [each["out_of_sync"] for each in listed] == [0, 1, 0]
    assert [each["replicas"] for each in listed] == [3, 3, 3]
    assert (listed[0]["address"], listed[0]["epoch"]) == ("host-1:9", 1)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--replicas", "4"], "4 replicas of topic u are not possible: brokers 1, 2, 3 are alive"),
        (["--replicas", "2", "--min-in-sync", "3"], "min_in_sync=3 is above the 2 replicas"),
        (["--min-in-sync", "0"], "min_in_sync"),
        (["--replicas", "3", "--config", "durability=maybe"], "durability='maybe'"),
    ],
)
def test_a_replicated_topic_that_cannot_be_is_refused_in_one_line(
    cluster: Cluster, words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["topic", "create", "u", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert sentence in line
    assert execute(cluster.session, topics.names()) == ["t"]


def test_a_topic_gets_the_replicas_and_the_minimum_that_it_was_given(
    cluster: Cluster, command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    soon = ["--timeout", "1"]  # no broker here ever leads
    assert main(["topic", "create", "u", "--replicas", "3", "--partitions", "2", *soon]) == 0
    assert capsys.readouterr().out == "created topic u with 2 partitions of 3 replicas\n"
    assert all(set(each["replicas"]) == ALL for each in command("topic", "describe", "u"))

    def own(topic: str) -> dict[str, str]:
        rows = command("topic", "config", topic)
        return {each["option"]: each["value"] for each in rows if each["source"] == "topic"}

    assert own("u") == {"durability": "fsync", "min_in_sync": "2"}
    words = ["--replicas", "2", "--min-in-sync", "2", "--config", "durability=page-cache"]
    assert main(["topic", "create", "v", *words, *soon]) == 0
    capsys.readouterr()
    assert own("v") == {"durability": "page-cache", "min_in_sync": "2"}
    assert main(["topic", "config", "v", "min_in_sync=3"]) == 2
    assert "min_in_sync=3 is above the 2 replicas" in capsys.readouterr().err
    assert main(["topic", "config", "v", "min_in_sync=1", "durability=fsync"]) == 0


def test_preferred_leaders_are_elected_on_demand(
    cluster: Cluster, command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    preferred = [each[0] for each in cluster.topic.partitions]
    for number, (first, second, third) in enumerate(cluster.topic.partitions):
        cluster.lead(number, (second, first, third) if number else (first, second, third))
    assert main(["topic", "elect", "t"]) == 0
    assert capsys.readouterr().out == "elected leaders of 2 partitions of t\n"
    for number, leader in enumerate(preferred):
        each = TopicIdPartition(cluster.topic.topic_id, number)
        found = execute(cluster.session, partition_states.read(each))
        assert found is not None
        assert found.state.leader == leader


def test_an_unclean_election_asks_for_the_partitions_name(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, third = cluster.topic.partitions[1]
    cluster.lead(1, (first, second))
    for lost in (first, second):
        cluster.brokers[lost].close()
    words = ["topic", "elect", "t", "--unclean", str(third)]
    for wrong in ([], ["--partition", "1", "--partition", "2"]):
        assert main([*words, *wrong]) == 2
    assert main([*words, "--partition", "9"]) == 1
    capsys.readouterr()
    # A loss is confirmed only where it could follow.
    monkeypatch.setattr("sys.stdin", io.StringIO("t-1\n"))
    assert main(["topic", "elect", "t", "--unclean", "77", "--partition", "1"]) != 0
    assert "Records of" not in capsys.readouterr().err
    for typed, code, leader in (("t\n", 4, first), ("t-1\n", 0, third)):
        monkeypatch.setattr("sys.stdin", io.StringIO(typed))
        assert main([*words, "--partition", "1"]) == code
        each = TopicIdPartition(cluster.topic.topic_id, 1)
        found = execute(cluster.session, partition_states.read(each))
        assert found is not None
        assert found.state.leader == leader
    assert f"Records of t-1 that broker {third} does not have are lost" in capsys.readouterr().err


def test_one_broker_is_well_when_it_is_registered_and_in_sync_wherever_it_has_a_replica(
    cluster: Cluster, command: Command
) -> None:
    cluster.lead(0, (1, 3))
    for number, code, behind in ((1, 0, 0), (2, 5, 1), (3, 0, 0)):
        (row,) = command("cluster", "status", "--broker", str(number), code=code)
        assert row == {
            "broker": number,
            "registered": True,
            "replicas": 3,
            "out_of_sync": behind,
        }
    (row,) = command("cluster", "status", "--broker", "9", code=5)
    assert row["registered"] is False


def test_a_broker_that_does_not_stop_in_time_is_told_of(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["broker", "stop", "3", "--within", "1ms"]) == 3
    assert "broker 3 was asked to stop, and is still registered" in capsys.readouterr().err
    assert execute(cluster.session, brokers.live())[3].leaving


def test_cluster_events_are_shown_with_their_times(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    for text in ("broker 3 left", "broker 3 joined"):
        event = ClusterEvent("broker-left" if "left" in text else "broker-joined", text, broker=3)
        execute(cluster.session, events.record([event]))
    assert main(["cluster", "events"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.endswith("UTC  broker 3 left")
    assert main(["cluster", "events", "-n", "1", "-o", "json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["kind"], row["broker"], row["text"]) == ("broker-joined", 3, "broker 3 joined")
    assert row["time_ms"] > 0
    assert second.endswith(row["text"])


@pytest.mark.parametrize("words", [["topic", "list"], ["log", "orphans", "DIR"]])
def test_many_topics_are_read_side_by_side(
    words: list[str],
    cluster: Cluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for number in range(30):
        execute(cluster.session, topics.create(f"t{number}", 1, [1]))
    (tmp_path / IDENTITY_FILE).write_text("{}")
    waits = 0

    def counted(*arguments: Any, **options: Any) -> Any:
        nonlocal waits
        waits += 1
        return execute_all(*arguments, **options)

    monkeypatch.setattr("folkmoot.coordination.zookeeper.execute.execute_all", counted)
    assert main([word.replace("DIR", str(tmp_path)) for word in words]) == 0
    assert 1 <= waits <= 5
    capsys.readouterr()
