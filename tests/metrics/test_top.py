"""`folkmoot top`: what two looks say, and the command over a real cluster."""

import os
import pty
import re
import select
import signal
import subprocess
import time

from folkmoot.admin.group_views import GroupSummary
from folkmoot.admin.replica_moves import ReplicaSize
from folkmoot.console.monitoring.frame import ClusterSnapshot, Group, frame
from folkmoot.console.running.processes import FOLKMOOT, EmbeddedCluster
from folkmoot.coordination.brokers import Registration
from folkmoot.coordination.cluster.cluster_status import ClusterStatus, PartitionStatus
from folkmoot.coordination.cluster.controllers import Controller
from folkmoot.protocol.records import TopicPartition
from tests.console.cluster import Shell

T0, T1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


def a_look(
    at: float,
    ends: tuple[int, int],
    committed: int,
    brokers: tuple[int, ...] = (1, 2),
    start: int = 0,
) -> ClusterSnapshot:
    live = {each: Registration({"client": f"host-{each}:9190"}, "nonce") for each in brokers}
    partitions = [
        PartitionStatus("orders", 0, 1, 0, [1, 2], [1, 2], 1),
        PartitionStatus("orders", 1, 2 if 2 in brokers else None, 0, [2], [*brokers][1:], 1),
    ]
    sizes = [
        ReplicaSize(1, T0, "id", 10 * ends[0], start, ends[0]),
        *(
            ReplicaSize(2, each, "id", 10 * end, min(start, end), end)
            for each, end in zip((T0, T1), ends, strict=True)
        ),
    ]
    summary = GroupSummary(name="billing", state="stable", members=3, partitions=2, generation=7)
    return ClusterSnapshot(
        at=at,
        cluster=ClusterStatus(live, Controller(1, "nonce", 1), partitions),
        sizes=sizes,
        groups=[Group(summary, {T0: committed, T1: 0})],
    )


def cells(line: str) -> list[str]:
    return line.split()


def test_rates_lag_and_sizes_come_from_two_looks() -> None:
    lines = frame(a_look(10.0, (100, 0), 40), a_look(12.0, (300, 20_000), 100), ["an event"])
    assert lines[0].endswith("2 brokers, controller 1, 2 partitions: all in sync")
    table = [cells(line) for line in lines]
    assert ["1", "host-1:9190", "1", "1", "0", "3000", "1000"] in table
    assert ["2", "host-2:9190", "1", "2", "0", "203k", "101k"] in table
    assert ["orders", "2", "0", "0", "20.3k", "10.1k", "206k"] in table
    assert ["billing", "stable", "3", "7", "2", "30", "20.2k"] in table
    assert lines[-2:] == ["rebalances, the last one first", "an event"]


def test_a_groups_lag_counts_what_is_on_the_log_and_a_log_that_ends_below_it_is_named() -> None:
    look = a_look(10.0, (100, 0), 10, start=60)
    assert ["billing", "stable", "3", "7", "2", "-", "40"] in [
        cells(each) for each in frame(look, look, [])
    ]
    look = a_look(10.0, (100, 0), 500)
    lines = frame(look, look, [])
    assert ["billing", "stable", "3", "7", "2", "-", "0"] in [cells(each) for each in lines]
    (line,) = [each for each in lines if "lost records" in each]
    assert "group billing: orders-0 ends at 100, below 500" in line


def test_what_is_down_or_shrinks_is_said_and_has_no_rate() -> None:
    lines = frame(a_look(10.0, (300, 9), 0), a_look(12.0, (300, 5), 0, brokers=(1,)), [])
    assert "1 leaderless, 1 below min-in-sync, 1 under-replicated" in lines[0]
    table = [cells(line) for line in lines]
    assert ["2", "DOWN", "0", "2", "1", "3050", "-"] in table
    assert ["orders", "2", "1", "1", "305", "-", "6050"] in table


def test_a_small_terminal_gets_the_first_rows() -> None:
    look = a_look(10.0, (1, 1), 0)
    lines = frame(look, look, [], limit=1)
    assert "… 1 more" in lines
    assert not any(line.startswith("     2") for line in lines)


def test_one_frame_of_a_real_cluster(shell: Shell, shared_cluster: EmbeddedCluster) -> None:
    shell.done("produce", shell.topic, stdin="a\nb\nc\n")
    shell.done("consume", shell.topic, "--group", shell.group)
    lines = shell.done("top", "--once", "--interval", "0.1", "--group", shell.group).splitlines()
    table = {cells[0]: cells[1:] for line in lines if (cells := line.split())}
    for broker in shared_cluster.brokers:
        assert table[str(broker.broker_id)][0] == broker.address
    assert table[shell.topic][:4] == ["2", "0", "0", "3"]
    state, members, _, committed, _, lag = table[shell.group]
    assert (state, members, lag) == ("empty", "0", "0")
    assert int(committed) >= 1
    (event,) = [line for line in lines if re.search(rf" {shell.group}: 1 joined, 0 left", line)]
    assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} UTC  generation 1  ", event)


def test_an_interval_that_is_none_is_refused(shell: Shell) -> None:
    for text in ("0", "nan", "often"):
        code, _, err = shell.run("top", "--interval", text)
        assert code == 2
        assert f"'--interval': {text!r} is no" in err


def test_a_group_that_does_not_exist_is_said(shell: Shell) -> None:
    said = shell.refused(1, "top", "--once", "--group", "nobody")
    assert "group nobody does not exist" in said


def test_a_terminal_is_left_as_it_was(shared_cluster: EmbeddedCluster) -> None:
    ours, theirs = pty.openpty()
    words = [*FOLKMOOT, "top", "--interval", "0.1", "--zookeeper", shared_cluster.zookeeper]
    with subprocess.Popen(words, stdout=theirs, stderr=theirs, close_fds=True) as process:
        os.close(theirs)
        poller = select.poll()  # `select.select` takes no descriptor above 1,023
        poller.register(ours, select.POLLIN)
        shown, stopped, deadline = b"", False, time.monotonic() + 60
        while time.monotonic() < deadline:
            if not poller.poll(1000):
                continue
            try:
                piece = os.read(ours, 65_536)
            except OSError:  # the other end is closed
                break
            shown += piece
            if shown.count(b"\x1b[H") >= 2 and not stopped:
                stopped = True
                process.send_signal(signal.SIGINT)
    os.close(ours)
    assert process.returncode == 0
    assert shown.startswith(b"\x1b[?1049h")
    assert shown.endswith(b"\x1b[?25h\x1b[?1049l")
    assert b"controller" in shown
