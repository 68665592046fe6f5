"""The controller's thread, over both ZooKeepers: elected, replaced, and begun anew when in doubt."""

from collections.abc import Iterator
from contextlib import ExitStack, suppress

import msgspec
import pytest

from folkmoot.brokers.controller import thread as module
from folkmoot.brokers.controller.thread import ControllerThread
from folkmoot.coordination import brokers, partition_states, paths, topics
from folkmoot.coordination.brokers import Registration
from folkmoot.coordination.cluster import controllers
from folkmoot.coordination.partition_states import (
    PartitionState,
    StateWrite,
    TopicIdPartition,
    VersionedState,
)
from folkmoot.coordination.topics import TopicInfo
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.coordination.zookeeper.operations import Create, Delete, Set
from folkmoot.coordination.zookeeper.recipes import ensure
from folkmoot.coordination.zookeeper.session import Session
from folkmoot.protocol.errors import ZooKeeperUnreachable
from tests.contracts.backends import Backend
from tests.waiting import eventually


class Cluster:
    """A ZooKeeper, a user of it, registered brokers without processes, and controllers."""

    def __init__(self, backend: Backend, stack: ExitStack) -> None:
        self.backend = backend
        self.user = backend.open()
        self.sessions: dict[int, list[Session]] = {}
        self.reachable = True
        self.refused = 0
        self._stack = stack

    def broker(self, number: int) -> Session:
        session = self.backend.open()
        execute(session, brokers.register(number, Registration({}, f"n{number}", f"d{number}")))
        return session

    def controller(self, number: int) -> ControllerThread:
        opened = self.sessions.setdefault(number, [])

        def connect(_: float) -> Session:
            if not self.reachable:
                self.refused += 1
                raise ZooKeeperUnreachable("nobody answers")
            opened.append(self.backend.open())
            return opened[-1]

        started = ControllerThread(connect, number, 5.0)
        started.start()
        self._stack.callback(started.close)
        return started

    def topic(self, name: str, partitions: int, *alive: int) -> TopicInfo:
        return execute(self.user, topics.create(name, partitions, alive))

    def state(self, topic: TopicInfo, partition: int = 0) -> VersionedState | None:
        each = TopicIdPartition(topic.topic_id, partition)
        return execute(self.user, partition_states.read(each))

    def leader(self, topic: TopicInfo, partition: int = 0) -> int | None:
        found = self.state(topic, partition)
        return None if found is None else found.state.leader

    def written(self, name: str, info: bytes) -> None:
        with suppress(msgspec.MsgspecError):
            topic = msgspec.json.decode(info, type=TopicInfo)
            execute(self.user, ensure(paths.partition_states(topic.topic_id)))
        execute(self.user, Create(paths.topic(name), info))


@pytest.fixture
def cluster(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setattr(module, "PAUSE", 0.01)
    with ExitStack() as stack:
        yield Cluster(backend, stack)


def test_new_topics_and_added_partitions_get_leaders_and_deleted_ones_lose_their_states(
    cluster: Cluster,
) -> None:
    cluster.broker(1)
    before = cluster.topic("before", 2, 1)
    thread = cluster.controller(1)
    eventually(lambda: cluster.leader(before, 1) == 1)
    assert thread.is_elected
    after = cluster.topic("after", 1, 1)
    eventually(lambda: cluster.leader(after) == 1)
    execute(cluster.user, topics.add_partitions("after", 3, [1]))
    eventually(lambda: cluster.leader(after, 2) == 1)
    execute(cluster.user, topics.delete("before"))
    eventually(lambda: execute(cluster.user, partition_states.topic_ids()) == [after.topic_id])
    again = cluster.topic("before", 1, 1)
    eventually(lambda: cluster.leader(again) == 1)


def test_a_lost_leader_is_replaced_by_a_replica_in_sync(cluster: Cluster) -> None:
    first, _ = cluster.broker(1), cluster.broker(2)
    execute(cluster.user, Create(paths.TOPICS))
    cluster.written("t", b'{"id": "id", "partitions": [[1, 2]]}')
    cluster.controller(1)
    topic = TopicInfo("id", [[1, 2]])
    eventually(lambda: cluster.leader(topic) == 1)
    cluster.backend.expire(first)
    eventually(lambda: cluster.leader(topic) == 2)
    found = cluster.state(topic)
    assert found is not None
    assert found.state == PartitionState(2, 0, (2,), 1)


def test_what_the_leader_changes_is_what_the_next_election_stands_on(cluster: Cluster) -> None:
    first, _, _ = cluster.broker(1), cluster.broker(2), cluster.broker(3)
    execute(cluster.user, Create(paths.TOPICS))
    cluster.written("t", b'{"id": "id", "partitions": [[1, 2, 3]]}')
    cluster.controller(1)
    topic, each = TopicInfo("id", [[1, 2, 3]]), TopicIdPartition("id", 0)
    eventually(lambda: cluster.leader(topic) == 1)
    created = cluster.state(topic)
    assert created is not None
    shrunk = created.state.activate().with_isr((1, 3))
    execute(first, partition_states.write({each: StateWrite(shrunk, 0)}))
    cluster.backend.expire(first)
    eventually(lambda: cluster.leader(topic) == 3)


def test_when_the_controller_stops_another_goes_on(cluster: Cluster) -> None:
    cluster.broker(1)
    first = cluster.controller(1)
    eventually(lambda: first.is_elected)
    second = cluster.controller(2)
    eventually(lambda: len(cluster.sessions[2]) == 1)
    assert not second.is_elected
    first.close()
    eventually(lambda: second.is_elected)
    topic = cluster.topic("t", 1, 1)
    eventually(lambda: cluster.leader(topic) == 1)


def test_a_controller_whose_session_ends_is_replaced_and_stands_again(cluster: Cluster) -> None:
    cluster.broker(1)
    first = cluster.controller(1)
    eventually(lambda: first.is_elected)
    second = cluster.controller(2)
    eventually(lambda: len(cluster.sessions[2]) == 1)
    cluster.backend.expire(cluster.sessions[1][0])
    eventually(lambda: first.is_elected != second.is_elected)
    eventually(lambda: len(cluster.sessions[1]) == 2)
    eventually(lambda: _epoch(cluster) == 2)


def _epoch(cluster: Cluster) -> int | None:
    elected = execute(cluster.user, controllers.current())
    return None if elected is None else elected.epoch


def test_a_controller_whose_node_somebody_removes_begins_anew(cluster: Cluster) -> None:
    cluster.broker(1)
    thread = cluster.controller(1)
    eventually(lambda: thread.is_elected)
    execute(cluster.user, Delete(paths.CONTROLLER))
    eventually(lambda: len(cluster.sessions[1]) == 2 and thread.is_elected)
    topic = cluster.topic("t", 1, 1)
    eventually(lambda: cluster.leader(topic) == 1)


def test_a_candidate_goes_on_trying_while_zookeeper_is_out_of_reach(cluster: Cluster) -> None:
    cluster.reachable = False
    thread = cluster.controller(1)
    eventually(lambda: cluster.refused > 1)
    cluster.reachable = True
    eventually(lambda: thread.is_elected)


def test_what_is_illegible_is_left_alone_and_mended_later(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.broker(1)
    good, bad = cluster.topic("good", 1, 1), cluster.topic("bad", 1, 1)
    node = paths.partition_state(bad.topic_id, 0)
    execute(cluster.user, Create(node, b"scribble"))
    execute(cluster.user, Create(paths.partition_states("of-an-illegible-topic")))
    cluster.written("illegible", b"scribble")
    cluster.controller(1)
    eventually(lambda: cluster.leader(good) == 1)
    eventually(lambda: f"{node} holds something else" in caplog.text)
    assert "/topics/illegible holds something else" in caplog.text
    ids = execute(cluster.user, partition_states.topic_ids())
    assert ids == sorted([good.topic_id, bad.topic_id, "of-an-illegible-topic"])

    execute(cluster.user, Delete(paths.topic("illegible")))
    state = PartitionState(1, 0, (1,), 1)
    execute(cluster.user, Set(node, msgspec.json.encode(state)))
    eventually(lambda: cluster.state(bad))
    execute(cluster.user, Set(node, b"scribble"))
    eventually(lambda: caplog.text.count(f"{node} holds something else") == 2)
    ids = execute(cluster.user, partition_states.topic_ids())
    assert "of-an-illegible-topic" in ids, "nobody has deleted that"


def test_closing_gives_the_controller_up_at_once(cluster: Cluster) -> None:
    thread = cluster.controller(1)
    eventually(lambda: thread.is_elected)
    thread.close()
    assert execute(cluster.user, controllers.current()) is None
    assert not thread.is_elected
