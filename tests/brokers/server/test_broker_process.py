"""`folkmoot broker` as a process, with a real ZooKeeper."""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from folkmoot.console.main import main
from folkmoot.console.running.embedded import EmbeddedZooKeeper
from folkmoot.console.running.processes import BrokerProcess, EmbeddedCluster
from folkmoot.coordination import brokers, topics
from folkmoot.coordination.connector import connect
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.protocol.errors import NotLeader
from folkmoot.protocol.messages import Api, MetadataRequest, ProduceRequest, TopicMetadata
from tests.brokers.parts import Peer, fetch, into, make_batch, out_of, produce
from tests.processes import children
from tests.waiting import eventually


def broker_command(data: Path, zookeeper: str, broker_id: int = 1, *more: str) -> list[str]:
    return [
        *("broker", "--broker-id", str(broker_id), "--data", str(data), "--zookeeper", zookeeper),
        *more,
    ]


def test_brokers_serve_their_own_partitions_and_name_the_others_leaders(
    start_cluster: Callable[..., EmbeddedCluster], chroot: str
) -> None:
    cluster = start_cluster(brokers=2)
    assert main(["topic", "create", "t", "--partitions", "4", "--zookeeper", chroot]) == 0
    with Peer(cluster.brokers[0].address) as peer:

        def leaders_of(topics: list[TopicMetadata]) -> list[int]:
            return [each.leader for topic in topics for each in topic.partitions]

        def ask() -> list[TopicMetadata]:
            found: list[TopicMetadata] = peer.call(Api.METADATA, MetadataRequest(None))[0].topics
            return found

        eventually(lambda: sorted(leaders_of(ask())) == [1, 1, 2, 2])
        [topic] = ask()
        leaders = leaders_of([topic])
        entries = [into(number, topic_id=topic.topic_id, epoch=-1) for number in range(4)]
        response, _ = peer.call(Api.PRODUCE, produce(*entries), [make_batch(b"a")] * 4)
    for result, leader in zip(response.results, leaders, strict=True):
        if leader == 1:
            assert result.error == 0
        else:
            assert result.error == NotLeader.code
            assert result.leader.listeners["client"] == cluster.brokers[1].address


def test_sigterm_stops_a_broker_in_order(tmp_path: Path, chroot: str) -> None:
    broker = BrokerProcess(1, tmp_path / "b", chroot)
    broker.start()
    session = connect(chroot, 30.0)
    assert list(execute(session, brokers.live())) == [1]
    broker.stop()
    assert execute(session, brokers.live()) == {}
    assert (tmp_path / "b" / "notes").exists(), "the orderly stop's note"
    session.close()


def test_a_broker_can_be_stopped_in_order_from_anywhere(
    tmp_path: Path, chroot: str, capsys: pytest.CaptureFixture[str]
) -> None:
    broker = BrokerProcess(1, tmp_path / "b", chroot)
    broker.start()
    assert main(["broker", "stop", "1", "--zookeeper", chroot]) == 0
    assert "broker 1 has left the cluster" in capsys.readouterr().out
    eventually(lambda: not broker.is_running)
    assert broker.exit_code == 0
    assert (tmp_path / "b" / "notes").exists(), "the orderly stop's note"
    assert main(["broker", "stop", "1", "--zookeeper", chroot]) == 3
    assert "no broker 1 is registered" in capsys.readouterr().err


def test_ctrl_c_twice_is_one_orderly_stop(tmp_path: Path, chroot: str) -> None:
    broker = BrokerProcess(1, tmp_path / "b", chroot)
    broker.start()
    os.kill(broker.pid, signal.SIGINT)
    os.kill(broker.pid, signal.SIGINT)
    eventually(lambda: not broker.is_running)
    assert broker.exit_code == 0
    assert (tmp_path / "b" / "notes").exists(), "the orderly stop's note"


def test_a_killed_broker_comes_back_with_what_it_had_acknowledged(
    tmp_path: Path, chroot: str
) -> None:
    broker = BrokerProcess(1, tmp_path / "b", chroot, session_timeout=1.0)
    broker.start()
    session = connect(chroot, 30.0)
    topic = execute(session, topics.create("t", 1, [1]))
    session.close()
    entry = into(0, topic_id=topic.topic_id, epoch=-1)
    with Peer(broker.address) as peer:
        eventually(lambda: peer.call(Api.METADATA, MetadataRequest(None))[0].topics)
        for _ in range(20):
            response, _ = peer.call_leader(Api.PRODUCE, produce(entry), [make_batch(b"x" * 1_000)])
            assert response.results[0].error == 0
    broker.kill()
    broker.restart()
    with Peer(broker.address) as peer:
        response, _ = peer.call_leader(
            Api.FETCH, fetch(out_of(0, topic_id=topic.topic_id, epoch=-1))
        )
        assert (response.results[0].error, response.results[0].high_watermark) == (0, 20)
    broker.stop()


def test_a_killed_broker_is_gone_at_once_and_not_after_its_session_timeout(
    tmp_path: Path, chroot: str
) -> None:
    """Its guardian has seen it die."""
    broker = BrokerProcess(1, tmp_path / "b", chroot, session_timeout=30.0)
    broker.start()
    assert len(children(broker.pid)) == 1
    session = connect(chroot, 30.0)
    assert list(execute(session, brokers.live())) == [1]
    broker.kill()
    eventually(lambda: execute(session, brokers.live()) == {}, timeout=10.0)
    session.close()


FAILING = """
import errno, os, pathlib, sys
real = os.fdatasync
def fdatasync(descriptor):
    if pathlib.Path(sys.argv[1]).exists():
        raise OSError(errno.EIO, os.strerror(errno.EIO))
    real(descriptor)
os.fdatasync = fdatasync
from folkmoot.console.main import main
sys.exit(main(sys.argv[2:]))
"""


def test_a_broker_whose_disk_cannot_flush_leaves_the_cluster_and_says_so_by_its_exit_code(
    tmp_path: Path, chroot: str
) -> None:
    broker = BrokerProcess(1, tmp_path / "b", chroot, session_timeout=30.0)
    command = broker.command
    words = command[command.index("broker") :]
    broker.command = (sys.executable, "-c", FAILING, str(tmp_path / "fails"), *words)
    broker.start()
    session = connect(chroot, 30.0)
    topic = execute(session, topics.create("t", 1, [1], {"durability": "fsync"}))
    with Peer(broker.address) as peer:
        eventually(lambda: peer.call(Api.METADATA, MetadataRequest(None))[0].topics)
        request = ProduceRequest(1, 60.0, [into(0, topic_id=topic.topic_id, epoch=-1)])
        response, _ = peer.call_leader(Api.PRODUCE, request, [make_batch(b"a")])
        assert response.results[0].error == 0
        (tmp_path / "fails").touch()
        peer.ask(Api.PRODUCE, request, [make_batch(b"b")])
        eventually(lambda: not broker.is_running)
    assert broker.exit_code == 6
    assert execute(session, brokers.live()) == {}, "it has left; nobody waits for its session"
    session.close()


def test_a_broker_has_no_guardian_if_it_shall_not(tmp_path: Path, chroot: str) -> None:
    broker = BrokerProcess(1, tmp_path / "b", chroot)
    broker.command += ("--no-guardian",)
    broker.start()
    assert children(broker.pid) == []
    broker.stop()


def test_a_broker_outlives_its_zookeeper_and_registers_again(
    tmp_path: Path, private_zookeeper: EmbeddedZooKeeper
) -> None:
    broker = BrokerProcess(1, tmp_path / "b", private_zookeeper.address, session_timeout=1.0)
    broker.start()
    with Peer(broker.address) as peer:
        private_zookeeper.kill()
        peer.call(Api.METADATA, MetadataRequest(None))
        private_zookeeper.restart()
        session = connect(private_zookeeper.address, 30.0)
        eventually(lambda: 1 in execute(session, brokers.live()), timeout=20)
        topic = execute(session, topics.create("t", 1, [1]))
        eventually(lambda: peer.call(Api.METADATA, MetadataRequest(None))[0].topics)
        entry = into(0, topic_id=topic.topic_id, epoch=-1)
        response, _ = peer.call_leader(Api.PRODUCE, produce(entry), [make_batch(b"a")])
        assert response.results[0].error == 0
        session.close()
    broker.stop()


def test_each_refusal_to_start_is_one_line_and_an_exit_code(
    tmp_path: Path, chroot: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with BrokerProcess(1, tmp_path / "b", chroot) as first:
        for code, words, sentence in (
            (4, broker_command(tmp_path / "c", chroot), "broker id 1 is taken"),
            (4, broker_command(tmp_path / "b", chroot, 2), "is in use by process"),
            (
                1,
                broker_command(tmp_path / "d", chroot, 3, "--listeners", f"client={first.address}"),
                "is in use",
            ),
            (2, broker_command(tmp_path / "e", "/nowhere", 4), "zookeeper"),
        ):
            assert main(words) == code
            captured = capsys.readouterr()
            assert captured.out == ""
            (line,) = captured.err.splitlines()
            assert line.startswith("folkmoot: ")
            assert sentence in line


def test_an_unreachable_zookeeper_at_the_start_is_exit_code_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(broker_command(tmp_path / "b", "127.0.0.1:1", 1, "--timeout", "0.3")) == 3
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("folkmoot: ")
    assert "127.0.0.1:1" in captured.err
