"""Broker processes and clusters of them: order, addresses, failures. The broker is a stand-in."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from folkmoot.console import processes
from folkmoot.console.children import StartFailed
from folkmoot.console.processes import BrokerProcess, EmbeddedCluster
from folkmoot.protocol.errors import ConfigError, DirectoryLocked
from tests.processes import children, state, told
from tests.servers import FOR_TESTS

# Says what a broker says, and writes down what it was told.
STAND_IN = """
import argparse, os, signal, sys
from pathlib import Path
parser = argparse.ArgumentParser()
parser.add_argument("command")
for option in ("--id", "--data", "--zookeeper", "--session-timeout"):
    parser.add_argument(option)
parser.add_argument("--listener", action="append")
args = parser.parse_args()
data = Path(args.data)
data.mkdir(exist_ok=True)
(data / "arguments").write_text(" ".join(sys.argv[1:]))
if args.id == os.environ.get("FAILS"):
    sys.exit("folkmoot: disk is full: make room")
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # or it could come right before the wait
print("a line before it")
print(f"broker {args.id} ready client=127.0.0.1:900{args.id} inside=b:1")
signal.sigwait([signal.SIGTERM])
sys.exit(int(os.environ.get("EXITS", 0)))
"""
DEV = """
import argparse, sys
from folkmoot.console import dev, processes
processes.FOLKMOOT = (sys.executable, "-c", sys.argv[1])
parser = argparse.ArgumentParser()
dev.add_arguments(parser)
sys.exit(dev.run(parser.parse_args(sys.argv[2:])))
"""
NOWHERE = "127.0.0.1:1/none"


@pytest.fixture(autouse=True)
def _stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "FOLKMOOT", (sys.executable, "-S", "-c", STAND_IN))


def test_a_broker_process_is_ready_when_it_says_so_and_tells_its_addresses(tmp_path: Path) -> None:
    with BrokerProcess(3, tmp_path / "b", NOWHERE, ["client=127.0.0.1:0"], 1.5) as broker:
        assert broker.address == "127.0.0.1:9003"
        assert broker.listeners == {"client": "127.0.0.1:9003", "inside": "b:1"}
        assert (tmp_path / "b" / "arguments").read_text() == (
            f"broker --id 3 --data {tmp_path}/b --zookeeper {NOWHERE}"
            " --listener client=127.0.0.1:0 --session-timeout 1.5"
        )
        first = broker.pid
        broker.kill()
        assert state(first) == "X"
        broker.restart()
        second = broker.pid
        assert second != first
        assert state(second) != "X"
    assert state(second) == "X"


def test_a_broker_that_fails_to_start_is_an_error_with_its_own_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAILS", "1")
    with pytest.raises(
        StartFailed, match=r"broker 1 ended with exit code 1, it said: folkmoot: disk is full"
    ):
        BrokerProcess(1, tmp_path / "b", NOWHERE).start()


def test_a_broker_that_does_not_stop_in_order_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EXITS", "5")
    broker = BrokerProcess(1, tmp_path / "b", NOWHERE)
    broker.start()
    with pytest.raises(StartFailed, match="did not stop in order, exit code 5"):
        broker.stop()


def test_a_cluster_starts_zookeeper_and_brokers_and_stops_them_all(tmp_path: Path) -> None:
    cluster = EmbeddedCluster(tmp_path / "c", 2, FOR_TESTS)
    with cluster:
        assert cluster.server is not None
        assert cluster.zookeeper == cluster.server.address
        assert [broker.address for broker in cluster.brokers] == [
            "127.0.0.1:9001",
            "127.0.0.1:9002",
        ]
        pids = [cluster.server.pid, *(broker.pid for broker in cluster.brokers)]
        assert "X" not in [state(pid) for pid in pids]
    assert [state(pid) for pid in pids] == ["X"] * 3


def test_a_cluster_with_a_given_zookeeper_starts_none(tmp_path: Path, chroot: str) -> None:
    with EmbeddedCluster(tmp_path / "c", 1, chroot, first_broker_port=9200) as cluster:
        assert cluster.server is None
        assert cluster.zookeeper == chroot
        arguments = (tmp_path / "c" / "broker-1" / "arguments").read_text()
        assert f"--zookeeper {chroot} --listener client=127.0.0.1:9200" in arguments


def test_a_directory_that_cannot_be_one_is_refused_as_by_a_broker(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for directory in (file, file / "below", Path("/proc/x")):
        with pytest.raises(ConfigError, match=f"^{directory}: .*: use another directory$"):
            EmbeddedCluster(directory, 0, NOWHERE).start()


def test_a_second_cluster_in_the_same_directory_is_refused_until_the_first_has_stopped(
    tmp_path: Path,
) -> None:
    second = EmbeddedCluster(tmp_path, 0, NOWHERE)
    with (
        EmbeddedCluster(tmp_path, 0, NOWHERE),
        pytest.raises(DirectoryLocked, match="is used by another cluster"),
    ):
        second.start()
    with second:
        pass


def test_what_was_started_is_stopped_when_one_broker_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAILS", "2")
    cluster = EmbeddedCluster(tmp_path, 2, FOR_TESTS)
    with pytest.raises(StartFailed, match="broker 2 ended"):
        cluster.start()
    assert cluster.server is not None
    assert not cluster.server.is_running
    assert not any(broker.is_running for broker in cluster.brokers)
    monkeypatch.delenv("FAILS")
    with EmbeddedCluster(tmp_path, 0, NOWHERE):
        pass


def dev(tmp_path: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", DEV, STAND_IN, "--data", str(tmp_path), *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_dev_says_where_everything_is_and_stops_all_of_it_on_a_signal(
    tmp_path: Path, how: signal.Signals, chroot: str
) -> None:
    with dev(tmp_path, "--brokers", "2", "--zookeeper", chroot) as process:
        assert process.stdout is not None
        said = [process.stdout.readline().rstrip() for _ in range(7)]
        process.send_signal(how)
        rest, errors = process.communicate(timeout=20)
    assert said == [
        f"zookeeper  {chroot}",
        "broker 1   127.0.0.1:9001",
        "broker 2   127.0.0.1:9002",
        f"data       {tmp_path}",
        "",
        f"export FOLKMOOT_ZOOKEEPER={chroot}",
        "Ctrl-C stops all of it.",
    ]
    assert (process.returncode, rest, errors) == (0, "stopped\n", "")


def test_dev_reports_a_broker_that_dies_and_ends_when_zookeeper_does(tmp_path: Path) -> None:
    with dev(tmp_path, "--brokers", "1") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        said = [process.stdout.readline() for _ in range(6)]
        assert said[0].startswith("zookeeper  127.0.0.1:")
        pids = children(process.pid)
        names = {pid: told(pid, "comm").strip() for pid in pids}
        (server,) = (pid for pid in pids if names[pid] == "java")
        (broker,) = (pid for pid in pids if names[pid] != "java")
        os.kill(broker, signal.SIGKILL)
        assert "broker 1 ended with exit code -9" in process.stderr.readline()
        os.kill(server, signal.SIGKILL)
        assert "ZooKeeper ended" in process.stderr.readline()
        assert process.wait(20) == 1
