"""`folkmoot controller` as processes, with a real ZooKeeper: killed, and the next one goes on."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from folkmoot.console.main import main
from folkmoot.console.running.children import ChildProcess
from folkmoot.console.running.processes import FOLKMOOT
from folkmoot.coordination import brokers, partition_states, topics
from folkmoot.coordination.brokers import Registration
from folkmoot.coordination.cluster import controllers
from folkmoot.coordination.connector import connect
from folkmoot.coordination.partition_states import PartitionState, TopicIdPartition
from folkmoot.coordination.topics import TopicInfo
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.coordination.zookeeper.session import Session
from tests.waiting import eventually

READY = "controller ready\n"


@pytest.fixture
def session(chroot: str) -> Iterator[Session]:
    made = connect(chroot, 30.0)
    yield made
    made.close()


def started(stack: ExitStack, tmp_path: Path, chroot: str, name: str) -> ChildProcess:
    command = [*FOLKMOOT, "controller", "--zookeeper", chroot]
    child = ChildProcess(name, command, tmp_path / f"{name}.log", {"PYTHONUNBUFFERED": "1"})
    child.start()
    stack.callback(child.kill)
    child.wait_until(lambda: READY in child.output(), 30.0)
    return child


def state(session: Session, topic: TopicInfo) -> PartitionState | None:
    read = partition_states.read(TopicIdPartition(topic.topic_id, 0))
    found = execute(session, read)
    return None if found is None else found.state


def epoch(session: Session) -> int:
    found = execute(session, controllers.current())
    return 0 if found is None else found.epoch


def test_a_controller_that_is_killed_is_replaced_at_once_and_the_leader_that_died_with_it_too(
    tmp_path: Path, chroot: str, session: Session
) -> None:
    one, two = connect(chroot, 30.0), connect(chroot, 30.0)
    for number, each in ((1, one), (2, two)):
        execute(each, brokers.register(number, Registration({}, f"n{number}", f"d{number}")))
    with ExitStack() as stack:
        first = started(stack, tmp_path, chroot, "first")
        eventually(lambda: epoch(session) == 1)
        second = started(stack, tmp_path, chroot, "second")
        topic = execute(session, topics.create("t", 1, [1, 2], replicas=2))
        eventually(lambda: state(session, topic))
        leader, other = topic.partitions[0]
        first.kill()
        (one if leader == 1 else two).close()
        eventually(lambda: state(session, topic) == PartitionState(other, 0, (other,), 2))
        assert epoch(session) == 2
        assert second.stop(10.0) == 0
        assert epoch(session) == 0
    for each in (one, two):
        each.close()


def test_a_connect_string_that_is_none_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["controller", "--zookeeper", "no spaces"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "no spaces" in line
