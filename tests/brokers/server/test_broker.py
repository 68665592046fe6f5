"""A whole broker in this process: the order of starting and stopping, and what it refuses."""

import errno
import os
import socket
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from folkmoot.brokers.server.broker import Broker
from folkmoot.brokers.server.config import BrokerConfig, Listener
from folkmoot.brokers.storage.log_manager import LOCK_FILE, LogManager
from folkmoot.coordination import brokers, deletions, layout, partition_states, paths, topics
from folkmoot.coordination.partition_states import TopicIdPartition
from folkmoot.coordination.topic_config import LogConfig
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.coordination.zookeeper.operations import Children, Create, Delete, Exists, Get
from folkmoot.coordination.zookeeper.session import Connect, Session
from folkmoot.protocol import record_batch, wire
from folkmoot.protocol.columns import Columns
from folkmoot.protocol.compression import Codec
from folkmoot.protocol.errors import (
    AddressTaken,
    BrokerIdTaken,
    BrokerStopping,
    ConfigError,
    DirectoryLocked,
    FolkmootError,
    NoCluster,
    NoProducerId,
    StorageError,
    ZooKeeperUnreachable,
)
from folkmoot.protocol.messages import (
    Api,
    DeleteRecordsEntry,
    DeleteRecordsRequest,
    HelloRequest,
    InitProducerIdRequest,
    MetadataRequest,
    ProduceRequest,
)
from tests.brokers.batches import a_batch, append
from tests.brokers.full_disk import FILL, mounted
from tests.brokers.hands import create
from tests.brokers.parts import Peer, fetch, into, make_batch, out_of, produce
from tests.memory_zookeeper import MemorySession, MemoryZooKeeper
from tests.waiting import eventually


@pytest.fixture
def ensemble() -> MemoryZooKeeper:
    return MemoryZooKeeper()


def make_broker(
    ensemble: MemoryZooKeeper,
    data: Path,
    broker_id: int = 1,
    *listeners: str,
    connect: Connect | None = None,
) -> Broker:
    config = BrokerConfig(
        broker_id=broker_id,
        data=data,
        zookeeper="in.memory:1",
        listeners=tuple(map(Listener.parse, listeners or ["client=127.0.0.1:0"])),
        session_timeout=0.5,
        log=LogConfig(delete_delay=0.0),
    )
    return Broker(config, connect or ensemble.connect)


def starts_after_all(broker: Broker) -> bool:
    with broker, Peer(broker.listeners["client"]) as peer:
        peer.call(Api.HELLO, HelloRequest("x"))
    return True


def test_what_was_produced_is_there_after_a_restart(
    ensemble: MemoryZooKeeper, tmp_path: Path
) -> None:
    user = ensemble.connect()
    with make_broker(ensemble, tmp_path / "b") as broker:
        topic = execute(user, topics.create("t", 1, list(execute(user, brokers.live()))))
        with Peer(broker.listeners["client"]) as peer:
            eventually(lambda: peer.call(Api.METADATA, MetadataRequest(None))[0].topics)
            batch = make_batch(b"a", b"b")
            peer.call_leader(
                Api.PRODUCE, produce(into(0, topic_id=topic.topic_id, epoch=-1)), [batch]
            )
    assert execute(user, brokers.live()) == {}
    with (
        make_broker(ensemble, tmp_path / "b") as broker,
        Peer(broker.listeners["client"]) as peer,
    ):
        response, (chunk,) = peer.call_leader(
            Api.FETCH, fetch(out_of(0, topic_id=topic.topic_id, epoch=-1))
        )
    assert (response.results[0].high_watermark, len(chunk)) == (2, len(batch))


@pytest.mark.parametrize("lacking", FILL)
def test_a_broker_starts_on_a_full_disk_and_records_are_deleted_there(
    ensemble: MemoryZooKeeper, tmp_path: Path, lacking: str
) -> None:
    user = ensemble.connect()
    with mounted(tmp_path / "disk", "size=4m,nr_inodes=1000") as disk:
        with make_broker(ensemble, disk / "b") as broker:
            topic = execute(user, topics.create("t", 1, list(execute(user, brokers.live()))))
            with Peer(broker.listeners["client"]) as peer:
                eventually(lambda: peer.call(Api.METADATA, MetadataRequest(None))[0].topics)
                for _ in range(3):
                    to_it = produce(into(0, topic_id=topic.topic_id, epoch=-1))
                    peer.call_leader(Api.PRODUCE, to_it, [make_batch(b"a" * 1000)])
        FILL[lacking](disk)
        with (
            make_broker(ensemble, disk / "b") as broker,
            Peer(broker.listeners["client"]) as peer,
        ):
            response, _ = peer.call_leader(
                Api.FETCH, fetch(out_of(0, topic_id=topic.topic_id, epoch=-1))
            )
            assert response.results[0].high_watermark == 3
            request = DeleteRecordsRequest([DeleteRecordsEntry("t", topic.topic_id, 0, -1, 2)])
            answer, _ = peer.call_leader(Api.DELETE_RECORDS, request)
            assert (answer.results[0].error, answer.results[0].log_start) == (0, 2)


def test_a_deleted_topics_directories_go(ensemble: MemoryZooKeeper, tmp_path: Path) -> None:
    user = ensemble.connect()
    with (
        make_broker(ensemble, tmp_path / "b") as broker,
        Peer(broker.listeners["client"]) as peer,
    ):
        topic = execute(user, topics.create("t", 1, [1]))
        eventually(lambda: peer.call(Api.METADATA, MetadataRequest(None))[0].topics)
        wanted = produce(into(0, topic_id=topic.topic_id, epoch=-1))
        peer.call_leader(Api.PRODUCE, wanted, [make_batch(b"a")])
        directory = tmp_path / "b" / f"{topic.topic_id}-0"
        assert directory.exists()
        execute(user, topics.delete("t"))
        eventually(lambda: not directory.exists())


def contents(data: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(data)): path.read_bytes()
        for path in data.rglob("*")
        if path.is_file() and path.name not in (LOCK_FILE,)
    }


def test_a_directory_of_another_cluster_is_refused_before_anything_in_it_is_touched(
    ensemble: MemoryZooKeeper, tmp_path: Path
) -> None:
    with make_broker(ensemble, tmp_path / "b"):
        topic = execute(ensemble.connect(), topics.create("t", 1, [1]))
        eventually((tmp_path / "b" / f"{topic.topic_id}-0").exists)
    other = MemoryZooKeeper()
    with make_broker(other, tmp_path / "c", 2):
        execute(other.connect(), topics.create("t", 1, [2]))
    ours, theirs = (execute(each.connect(), layout.cluster_id()) for each in (ensemble, other))
    # Torn, and of a topic that the other cluster has under another id: what a recovery would cut.
    (tmp_path / "b" / f"{topic.topic_id}-0" / f"{0:020}.log").write_bytes(b"torn")
    before = contents(tmp_path / "b")
    with pytest.raises(ConfigError, match=rf"cluster {ours}, .* cluster {theirs}") as refused:
        make_broker(other, tmp_path / "b").start()
    assert "\n" not in str(refused.value)
    assert contents(tmp_path / "b") == before
    emptied = MemoryZooKeeper()
    with pytest.raises(NoCluster, match=rf"cluster {ours}.*emptied.*folkmoot cluster restore"):
        make_broker(emptied, tmp_path / "b").start()
    assert contents(tmp_path / "b") == before
    assert execute(emptied.connect(), Children("/")) == [], "no cluster was made anew"


def test_a_running_broker_takes_nothing_from_an_emptied_zookeeper_and_goes_on_with_its_own(
    ensemble: MemoryZooKeeper, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    emptied, now = MemoryZooKeeper(), [ensemble]
    sessions: list[MemorySession] = []

    def connect(session_timeout: float) -> MemorySession:
        sessions.append(now[0].connect(session_timeout))
        return sessions[-1]

    with make_broker(ensemble, tmp_path / "b", connect=connect) as broker:
        topic = execute(ensemble.connect(), topics.create("t", 1, [1]))
        wanted = produce(into(0, topic_id=topic.topic_id, epoch=-1))
        with Peer(broker.listeners["client"]) as peer:
            peer.call_leader(Api.PRODUCE, wanted, [make_batch(b"a")])
            now[0] = emptied
            for session in sessions:
                ensemble.expire(session)
            eventually(lambda: "was it emptied" in caplog.text)
            peer.call_leader(Api.PRODUCE, wanted, [make_batch(b"a")])
            assert execute(emptied.connect(), Children("/")) == []
            now[0] = ensemble
            eventually(lambda: 1 in execute(ensemble.connect(), brokers.live()))
            peer.call_leader(Api.PRODUCE, wanted, [make_batch(b"a")])


def producer_id(peer: Peer) -> int:
    """One that the broker gives, once it has some."""
    found: list[int] = []

    def ask() -> bool:
        with suppress(NoProducerId):
            answer, _ = peer.call(Api.INIT_PRODUCER_ID, InitProducerIdRequest())
            found.append(answer.producer_id)
        return bool(found)

    eventually(ask)
    return found[0]


def test_ids_begin_above_those_that_were_seen_when_zookeeper_has_lost_its_counters(
    ensemble: MemoryZooKeeper, tmp_path: Path
) -> None:
    """They made new batches duplicates of old ones, and old records of another schema."""
    user = ensemble.connect()
    given: list[int] = []
    seen = record_batch.encode(
        Columns(1, None, [b"a"], 1000),
        Codec.NONE,
        schema_id=7,
        producer_id=2**60,
        producer_epoch=0,
        base_sequence=0,
    )
    for life in range(2):
        with (
            make_broker(ensemble, tmp_path / "b") as broker,
            Peer(broker.listeners["client"]) as peer,
        ):
            if not life:
                given.append(producer_id(peer))
                topic = execute(user, topics.create("t", 1, [1]))
                eventually(lambda: peer.call(Api.METADATA, MetadataRequest(None))[0].topics)
                peer.call_leader(
                    Api.PRODUCE, produce(into(0, topic_id=topic.topic_id, epoch=-1)), [seen]
                )
                eventually(lambda: execute(user, Exists(paths.SEEN_SCHEMA_ID)))
                execute(user, Delete(paths.PRODUCER_IDS))
                execute(user, Delete(paths.SEEN_SCHEMA_ID))
            else:
                assert execute(user, Get(paths.SEEN_SCHEMA_ID)).data == b'{"last":7}'
                assert given[0] < 2**60 < producer_id(peer)


def test_a_deletion_is_carried_out_by_a_broker_that_was_away_and_its_record_goes_then(
    ensemble: MemoryZooKeeper, tmp_path: Path
) -> None:
    user = ensemble.connect()
    with make_broker(ensemble, tmp_path / "b"):
        topic = execute(user, topics.create("t", 1, [1]))
        directory = tmp_path / "b" / f"{topic.topic_id}-0"
        eventually(directory.exists)
    execute(user, topics.delete("t"))
    assert execute(user, deletions.topic_ids()) == [topic.topic_id]
    with make_broker(ensemble, tmp_path / "b"):
        eventually(lambda: not directory.exists())
        eventually(lambda: not execute(user, deletions.topic_ids()))
        assert execute(user, partition_states.topic_ids()) == []


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("anew", [False, True])
def test_a_topic_that_is_gone_without_a_deletion_keeps_its_directories_and_is_served_again(
    ensemble: MemoryZooKeeper,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    restarted: bool,
    anew: bool,
) -> None:
    """All was removed within 60 ms; as it was when a topic of the same name was made anew."""
    user, batch = ensemble.connect(), make_batch(b"a")
    with ExitStack() as stack:
        broker = stack.enter_context(make_broker(ensemble, tmp_path / "b"))
        topic = execute(user, topics.create("t", 1, [1]))
        directory = tmp_path / "b" / f"{topic.topic_id}-0"
        with Peer(broker.listeners["client"]) as peer:
            eventually(directory.exists)
            peer.call_leader(
                Api.PRODUCE, produce(into(0, topic_id=topic.topic_id, epoch=-1)), [batch]
            )
        if restarted:
            stack.close()
        execute(user, Delete(paths.topic("t")))
        other = execute(user, topics.create("t", 1, [1])) if anew else None
        if restarted:
            broker = stack.enter_context(make_broker(ensemble, tmp_path / "b"))
        lines = ["not in ZooKeeper"] if restarted else ["put aside", "is gone from"]
        eventually(lambda: any(line in caplog.text for line in lines))
        if other is not None:
            new = tmp_path / "b" / f"{other.topic_id}-0"
            eventually(new.exists)
            execute(user, topics.delete("t"))
            eventually(lambda: not new.exists())
        assert directory.exists()
        execute(user, Create(paths.topic("t"), topics.written("t", topic, 0).data))
        with Peer(broker.listeners["client"]) as peer:

            def read() -> bytes:
                wanted = fetch(out_of(0, topic_id=topic.topic_id, epoch=-1))
                return peer.call(Api.FETCH, wanted)[1][0]

            eventually(lambda: len(read()) == len(batch))


def test_every_listener_is_bound_and_advertised(ensemble: MemoryZooKeeper, tmp_path: Path) -> None:
    listeners = ("client=127.0.0.1:0", "inside=127.0.0.1:0@broker-1:0", "far=0.0.0.0:0@far:7")
    with make_broker(ensemble, tmp_path / "b", 1, *listeners) as broker:
        found = execute(ensemble.connect(), brokers.live())[1].listeners
        assert found == broker.listeners
        for address in (found["client"], f"127.0.0.1:{found['inside'].removeprefix('broker-1:')}"):
            with Peer(address) as peer:
                peer.call(Api.HELLO, HelloRequest("x"))
        assert found["far"] == "far:7"


def test_who_waits_while_the_broker_stops_is_told_so(
    ensemble: MemoryZooKeeper, tmp_path: Path
) -> None:
    user = ensemble.connect()
    topic = execute(user, topics.create("t", 1, [1]))
    broker = make_broker(ensemble, tmp_path / "b")
    broker.start()
    with Peer(broker.listeners["client"]) as peer:
        peer.wait_until_led("t", topic.topic_id)
        peer.ask(Api.FETCH, fetch(out_of(0, topic_id=topic.topic_id, epoch=-1), max_wait=20.0))
        eventually(lambda: len(broker.event_loop.handlers.purgatory) == 1)
        broker.close()
        envelope, _ = peer.receive()
    assert envelope.error == BrokerStopping.code


def test_a_second_broker_on_the_same_id_is_refused_and_leaves_nothing_behind(
    ensemble: MemoryZooKeeper, tmp_path: Path
) -> None:
    with make_broker(ensemble, tmp_path / "b") as first:
        second = make_broker(ensemble, tmp_path / "c")
        with pytest.raises(BrokerIdTaken, match=first.listeners["client"]):
            second.start()
        with Peer(first.listeners["client"]) as peer:
            peer.call(Api.HELLO, HelloRequest("still there?"))
    assert starts_after_all(make_broker(ensemble, tmp_path / "c"))


def test_a_second_broker_on_the_same_directory_is_refused_before_it_registers(
    ensemble: MemoryZooKeeper, tmp_path: Path
) -> None:
    with make_broker(ensemble, tmp_path / "b"):
        with pytest.raises(DirectoryLocked, match="in use by process"):
            make_broker(ensemble, tmp_path / "b", 2).start()
        assert list(execute(ensemble.connect(), brokers.live())) == [1]


def test_a_directory_of_another_broker_is_refused(
    ensemble: MemoryZooKeeper, tmp_path: Path
) -> None:
    assert starts_after_all(make_broker(ensemble, tmp_path / "b"))
    with pytest.raises(ConfigError, match="belongs to broker 1"):
        make_broker(ensemble, tmp_path / "b", 2).start()


def test_a_taken_port_is_refused_and_leaves_nothing_behind(
    ensemble: MemoryZooKeeper, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        listener = f"client=127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(AddressTaken, match="is in use"):
            make_broker(ensemble, tmp_path / "b", 1, listener).start()
    assert execute(ensemble.connect(), brokers.live()) == {}
    assert starts_after_all(make_broker(ensemble, tmp_path / "b", 1, listener))


def test_a_log_out_of_use_neither_hides_why_a_start_failed_nor_makes_a_stop_fail(
    ensemble: MemoryZooKeeper, tmp_path: Path
) -> None:
    data = tmp_path / "b"
    with LogManager(data, 1, LogConfig()) as logs:
        for partition in range(2):
            append(create(logs, "t", "first", partition), a_batch(b"a"))
    segment = data / "first-1" / f"{0:020}.log"
    segment.unlink()
    segment.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as other:
        listener = f"client=127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(AddressTaken, match="is in use"):
            make_broker(ensemble, data, 1, listener).start()
    assert starts_after_all(make_broker(ensemble, data))


def test_an_unreachable_zookeeper_is_refused_and_leaves_nothing_behind(
    ensemble: MemoryZooKeeper, tmp_path: Path
) -> None:
    def nobody(session_timeout: float) -> Session:
        raise ZooKeeperUnreachable("no ZooKeeper answers at in.memory:1")

    config = BrokerConfig(broker_id=1, data=tmp_path / "b", zookeeper="in.memory:1")
    with pytest.raises(ZooKeeperUnreachable):
        Broker(config, nobody).start()
    assert starts_after_all(make_broker(ensemble, tmp_path / "b"))


def test_a_broker_that_loses_its_id_ends_with_the_reason(
    ensemble: MemoryZooKeeper, tmp_path: Path
) -> None:
    sessions: list[MemorySession] = []
    is_gone = False

    def connect(session_timeout: float) -> Session:
        if is_gone:
            taken = brokers.Registration({"client": "elsewhere:1"}, "n", "another directory")
            execute(ensemble.connect(), brokers.register(1, taken))
        session = ensemble.connect(session_timeout)
        sessions.append(session)
        return session

    config = BrokerConfig(broker_id=1, data=tmp_path / "b", zookeeper="in.memory:1")
    with Broker(config, connect) as broker:
        assert not broker.wait(0.0)
        is_gone = True
        for session in sessions:
            ensemble.expire(session)
        with pytest.raises(FolkmootError, match="taken by the broker at elsewhere:1"):
            broker.wait(10.0)


def test_replicas_of_a_directory_whose_id_another_one_has_had_count_as_incomplete(
    ensemble: MemoryZooKeeper, tmp_path: Path
) -> None:
    """What the other one has acknowledged meanwhile is not there."""
    user, first, second = ensemble.connect(), tmp_path / "first", tmp_path / "second"
    execute(ensemble.connect(), brokers.register(2, brokers.Registration({}, "n", "d2")))

    def leads(partition: TopicIdPartition) -> bool:
        found = execute(user, partition_states.read(partition))
        return found is not None and found.state.active and found.state.leader == 1

    with make_broker(ensemble, first):
        topic = execute(user, topics.create("t", 1, [1, 2], replicas=2))
        eventually(lambda: leads(TopicIdPartition(topic.topic_id, 0)))
    for directory in (first, second):
        with make_broker(ensemble, directory):
            assert not list(first.glob("*/incomplete"))
    with make_broker(ensemble, first):
        assert [each.parent.name for each in first.glob("*/incomplete")] == [f"{topic.topic_id}-0"]


def test_a_failed_flush_ends_the_broker_and_nothing_is_acknowledged_behind_it(
    ensemble: MemoryZooKeeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    broker = make_broker(ensemble, tmp_path / "b")
    broker.start()
    topic = execute(ensemble.connect(), topics.create("t", 2, [1], {"durability": "fsync"}))
    request = ProduceRequest(1, 60.0, [into(0, topic_id=topic.topic_id, epoch=-1)])
    with Peer(broker.listeners["client"]) as peer, Peer(broker.listeners["client"]) as other:
        eventually(lambda: peer.call(Api.METADATA, MetadataRequest(None))[0].topics)
        peer.call_leader(Api.PRODUCE, request, [make_batch(b"a")])
        with monkeypatch.context() as broken:
            broken.setattr(os, "fdatasync", refuse)
            peer.ask(Api.PRODUCE, request, [make_batch(b"b")])
            envelope, _ = peer.receive()
            if not envelope.error:
                response = wire.response_body(Api.PRODUCE, envelope)
                assert [each.error for each in response.results] == [StorageError.code]
            with pytest.raises(StorageError, match="could not be flushed"):
                broker.wait(10.0)
            other.ask(
                Api.PRODUCE, produce(into(1, topic_id=topic.topic_id, epoch=-1)), [make_batch(b"c")]
            )
            assert other.hears_nothing(within=0.2) or other.receive()[0].error
            broker.close()


def test_a_broker_tells_once_of_logs_whose_topics_went_while_it_was_away(
    ensemble: MemoryZooKeeper, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with LogManager(tmp_path / "b", 1, LogConfig()) as logs:
        append(create(logs, "gone", "id-gone", 0), a_batch(b"a"))
    assert starts_after_all(make_broker(ensemble, tmp_path / "b"))
    assert caplog.text.count("1 topics that have logs") == 1


def test_a_broker_starts_without_what_it_does_not_need() -> None:
    """numpy only when it compacts; `email` came along with the version of the checksum's package."""
    probe = (
        "import sys, folkmoot.brokers.server.broker, folkmoot.coordination.zookeeper.kazoo_adapter\n"
        "sys.exit(' '.join({'numpy', 'email', 'importlib.metadata'} & sys.modules.keys()) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
