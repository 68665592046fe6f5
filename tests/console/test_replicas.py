"""`folkmoot topic reassign`, `broker drain` and `log sizes`, against a real ZooKeeper and real brokers."""

import pytest

from folkmoot.console.main import main
from folkmoot.console.running.processes import EmbeddedCluster
from folkmoot.coordination import brokers, topics
from folkmoot.coordination.cluster import reassignments
from folkmoot.coordination.zookeeper.execute import execute
from tests.console.cluster import Shell
from tests.console.test_cluster_status import Cluster, Command, cluster, command
from tests.waiting import eventually

__all__ = ["cluster", "command"]


def test_without_execute_the_plan_is_shown_and_nothing_is_moved(
    cluster: Cluster, command: Command
) -> None:
    before = execute(cluster.session, topics.read("t"))
    assert before is not None
    (row,) = command("topic", "reassign", "t", "--partition", "0", "--brokers", "3,1")
    assert row == {
        "topic": "t",
        "partition": 0,
        "from": before.partitions[0],
        "to": [3, 1],
        "bytes_to_copy": None,
    }
    assert len(command("topic", "reassign", "t", "--replicas", "2")) == 3
    assert execute(cluster.session, topics.read("t")) == before


def test_what_is_being_moved_is_told_and_can_be_taken_back(
    cluster: Cluster, command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    rotated = command("topic", "reassign", "t", "--brokers", "3,2,1")
    assert [each["to"] for each in rotated] == [[3, 2, 1], [2, 1, 3], [1, 3, 2]]
    command("topic", "reassign", "t", "--replicas", "2", "--execute", "--throttle", "9")
    assert command("cluster", "status")[0]["being_moved"] == 3
    moved = command("topic", "describe", "t")
    assert all(each["being_moved_to"] == each["replicas"][:2] for each in moved)
    running = command("topic", "reassign", "t")
    assert [(each["throttle"], each["cancelled"]) for each in running] == [(9, None)] * 3
    assert main(["topic", "reassign", "t", "--brokers", "1,2,3"]) == 1
    assert "wait until that has ended, or cancel it" in capsys.readouterr().err
    assert main(["topic", "reassign", "t", "--throttle", "5"]) == 0
    assert main(["topic", "reassign", "t", "--partition", "1", "--cancel"]) == 0
    assert "back to where they were: 1 partition of t" in capsys.readouterr().out
    running = command("topic", "reassign", "t")
    assert [(each["throttle"], each["cancelled"]) for each in running] == [
        *((5, None), (5, "yes"), (5, None)),
    ]


def test_a_drained_broker_gets_nothing_new_until_that_is_taken_back(
    cluster: Cluster, command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    execute(cluster.session, topics.delete("t"))
    execute(cluster.session, topics.create("t", 3, [1, 2, 3], replicas=2))
    found = execute(cluster.session, topics.read("t"))
    assert found is not None
    cluster.topic = found
    for number, replicas in enumerate(found.partitions):
        cluster.lead(number, (replicas[0], replicas[1]))
    plan = command("broker", "drain", "3")
    assert plan
    assert all(3 in each["from"] and 3 not in each["to"] for each in plan)
    assert execute(cluster.session, brokers.drained()) == set()
    assert command("broker", "drain", "3", "--execute") == plan
    assert command("broker", "drain", "3") == [], "all of it goes away already"
    assert [each["drained"] for each in command("broker", "list")] == [None, None, "yes"]
    assert (
        main(["topic", "create", "u", "--partitions", "9", "--replicas", "2", "--timeout", "1"])
        == 0
    )
    made = execute(cluster.session, topics.read("u"))
    assert made is not None
    assert all(set(each) == {1, 2} for each in made.partitions)
    assert main(["topic", "create", "v", "--replicas", "3"]) == 2
    assert main(["broker", "drain", "3", "--cancel"]) == 0
    out = capsys.readouterr()
    assert f"broker 3 gets replicas again, and keeps {len(plan)} partition" in out.out
    assert "3 replicas of topic v are not possible" in out.err
    assert main(["topic", "create", "v", "--replicas", "3", "--timeout", "1"]) == 0


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("topic", "reassign", "t", "--brokers", "1,1"), "names a broker twice"),
        (("topic", "reassign", "t", "--brokers", "1,9"), "broker 9 is not registered"),
        (("topic", "reassign", "t", "--brokers", "1,x"), "'1,x' is not understood: write 1,2,3"),
        (
            ("topic", "reassign", "t", "--replicas", "4"),
            "4 replicas of t-0 are not possible",
        ),
        (
            ("topic", "reassign", "t", "--replicas", "0"),
            "0 replicas of t-0 are not possible",
        ),
        (("topic", "reassign", "t", "--replicas", "1"), "min_in_sync=2 is above the 1 replica"),
        (("topic", "reassign", "nix", "--replicas", "2"), "topic nix does not exist"),
        (("topic", "reassign", "t", "--partition", "7", "--replicas", "2"), "no partition 7"),
        (("topic", "reassign", "t"), "say where to: either --brokers, or --replicas"),
        (("broker", "drain", "1"), "3 replicas of t-0 are not possible: brokers 2, 3 can"),
        (("broker", "drain", "9"), "broker 9 is not registered and holds nothing"),
    ],
)
def test_what_cannot_be_moved_is_one_line_and_nothing_is_done(
    cluster: Cluster, words: tuple[str, ...], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = execute(cluster.session, topics.read("t"))
    # The plan is refused as well, but where without --execute it is something else that is asked for.
    asked = [[*words, "--execute"], *([[*words]] if words != ("topic", "reassign", "t") else [])]
    for each in asked:
        assert main(each) != 0
        err = capsys.readouterr().err
        assert (err.count("\n"), why in err) == (1, True), err
    assert execute(cluster.session, topics.read("t")) == before
    assert execute(cluster.session, brokers.drained()) == set()


def test_the_last_replica_in_sync_is_not_drained_nor_what_is_being_moved_to_the_broker(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.lead(0, (2,))
    assert main(["broker", "drain", "2", "--execute"]) == 1
    assert (
        "broker 2 is the last in-sync replica of t-0: wait until others of ["
        in capsys.readouterr().err
    )
    assert main(["topic", "reassign", "t", "--cancel"]) == 1
    assert "no partition of topic t is being moved" in capsys.readouterr().err
    execute(cluster.session, reassignments.start("t", {0: [3, 2]}))
    assert main(["broker", "drain", "2", "--execute"]) == 1
    assert "t-0 is being moved to [3, 2]: wait until that has ended" in capsys.readouterr().err
    assert (
        main(["topic", "reassign", "t", "--partition", "0", "--brokers", "1,2", "--execute"]) == 1
    )
    assert "t-0 is being moved from" in capsys.readouterr().err
    assert execute(cluster.session, brokers.drained()) == set()


def test_sizes_are_told_by_partition_topic_and_broker(
    shell: Shell, shared_cluster: EmbeddedCluster
) -> None:
    shell.done("produce", shell.topic, stdin="a\nb\n")

    def told() -> bool:
        sizes = shell.done("log", "sizes", shell.topic).splitlines()
        return len(sizes) == 3

    eventually(told, 30.0)
    lines = shell.done("log", "sizes", shell.topic).splitlines()
    assert lines[0].split() == ["broker", "topic", "partition", "bytes", "log", "end"]
    ends = [int(line.split()[-1]) for line in lines[1:]]
    assert sum(ends) == 2
    assert "topic nix does not exist" in shell.refused(1, "log", "sizes", "nix")
    total = sum(int(line.split()[3]) for line in lines[1:])
    by_topic = shell.done("log", "sizes", shell.topic, "--by", "topic").splitlines()[1:]
    assert sum(int(line.split()[-1]) for line in by_topic) == total > 0
    by_broker = shell.done("log", "sizes", "--by", "broker").splitlines()[1:]
    assert sum(int(line.split()[-1]) for line in by_broker) >= total
