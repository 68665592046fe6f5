"""Broker processes and clusters of them: order, addresses, failures. The broker is a stand-in."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from folkmoot.console.main import main
from folkmoot.console.running import dev as dev_command
from folkmoot.console.running import processes
from folkmoot.console.running.children import StartFailed
from folkmoot.console.running.processes import BrokerProcess, EmbeddedCluster
from folkmoot.protocol.errors import ConfigError, DirectoryLocked, pip_command
from tests.processes import children, state, told
from tests.servers import FOR_TESTS

# Says what a broker says, and writes down what it was told.
STAND_IN = """
import argparse, os, signal, sys
from pathlib import Path
parser = argparse.ArgumentParser()
parser.add_argument("command")
for option in ("--broker-id", "--data", "--zookeeper", "--session-timeout", "--default-replicas"):
    parser.add_argument(option)
parser.add_argument("--listeners")
parser.add_argument("--port")
args = parser.parse_args()
if args.command == "registry":
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    print(f"registry at http://127.0.0.1:{args.port}", flush=True)
    signal.sigwait([signal.SIGTERM])
    sys.exit()
data = Path(args.data)
data.mkdir(exist_ok=True)
(data / "arguments").write_text(" ".join(sys.argv[1:]))
if args.broker_id == os.environ.get("FAILS"):
    sys.exit("folkmoot: disk is full: make room")
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # or it could come right before the wait
print("a line before it")
address = args.listeners.partition("=")[2] if args.listeners else "127.0.0.1:1"
print(f"broker {args.broker_id} ready client={address} inside=b:1")
signal.sigwait([signal.SIGTERM])
sys.exit(int(os.environ.get("EXITS", 0)))
"""
DEV = """
import sys
from folkmoot.console.main import main
from folkmoot.console.running import processes
processes.FOLKMOOT = (sys.executable, "-c", sys.argv[1])
sys.exit(main(["dev", *sys.argv[2:]]))
"""
NOWHERE = "127.0.0.1:1/none"
SERVER = "org.apache.zookeeper.server.ZooKeeperServerMain"


@pytest.fixture(autouse=True)
def _stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "FOLKMOOT", (sys.executable, "-S", "-c", STAND_IN))


def test_a_broker_process_is_ready_when_it_says_so_and_tells_its_addresses(tmp_path: Path) -> None:
    with BrokerProcess(3, tmp_path / "b", NOWHERE, ["client=127.0.0.1:9003"], 1.5) as broker:
        assert broker.address == "127.0.0.1:9003"
        assert broker.listeners == {"client": "127.0.0.1:9003", "inside": "b:1"}
        assert (tmp_path / "b" / "arguments").read_text() == (
            f"broker --broker-id 3 --data {tmp_path}/b --zookeeper {NOWHERE}"
            " --listeners client=127.0.0.1:9003 --session-timeout 1.5"
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
        assert len({broker.address for broker in cluster.brokers}) == 2
        pids = [cluster.server.pid, *(broker.pid for broker in cluster.brokers)]
        assert "X" not in [state(pid) for pid in pids]
    assert [state(pid) for pid in pids] == ["X"] * 3


def test_a_cluster_with_a_given_zookeeper_starts_none(tmp_path: Path, chroot: str) -> None:
    with EmbeddedCluster(tmp_path / "c", 1, chroot, first_broker_port=9200) as cluster:
        assert cluster.server is None
        assert cluster.zookeeper == chroot
        arguments = (tmp_path / "c" / "broker-1" / "arguments").read_text()
        assert f"--zookeeper {chroot} --listeners client=127.0.0.1:9200" in arguments


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
    ports = ("--broker-port", "9001", "--registry-port", "9081")
    with dev(tmp_path, "--brokers", "2", "--zookeeper", chroot, *ports) as process:
        assert process.stdout is not None
        said = [process.stdout.readline().rstrip() for _ in range(8)]
        process.send_signal(how)
        rest, errors = process.communicate(timeout=20)
    assert said == [
        f"zookeeper  {chroot}",
        "broker 1   127.0.0.1:9001",
        "broker 2   127.0.0.1:9002",
        "registry   http://127.0.0.1:9081",
        f"data       {tmp_path}",
        "",
        f"export FOLKMOOT_ZOOKEEPER={chroot}",
        "Ctrl-C stops all of it.",
    ]
    assert (process.returncode, rest, errors) == (0, "stopped\n", "")
    for number in (1, 2):
        arguments = (tmp_path / f"broker-{number}" / "arguments").read_text()
        assert arguments.endswith("--default-replicas 2")


def kill_child(process: subprocess.Popen[str], word: str) -> None:
    """The one that has this word in its command line."""
    (pid,) = (pid for pid in children(process.pid) if word in told(pid, "cmdline").split("\0"))
    os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
def test_dev_starts_again_what_dies_and_ends_when_zookeeper_dies_again_and_again(
    tmp_path: Path,
) -> None:
    with dev(tmp_path, "--brokers", "1") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        said = [process.stdout.readline() for _ in range(7)]
        assert said[0].startswith("zookeeper  127.0.0.1:")
        for word, name in (
            ("broker", "broker 1"),
            ("registry", "registry"),
            (SERVER, "ZooKeeper on port"),
            (SERVER, "ZooKeeper"),
        ):
            kill_child(process, word)
            line = process.stderr.readline()
            assert line.startswith(f"folkmoot: {name}")
            assert "was killed by SIGKILL (log: " in line
            assert line.endswith("; it is started again\n")
            assert process.stderr.readline().endswith("is back\n")
        kill_child(process, SERVER)
        assert "for the 3rd time in a minute: mend it, then start" in process.stderr.readline()
        assert process.wait(20) == 1


@pytest.mark.slow
def test_dev_has_the_same_ports_again_and_says_whose_data_it_leaves_out(tmp_path: Path) -> None:
    def run(*options: str) -> tuple[list[str], str]:
        with dev(tmp_path, *options) as process:
            assert process.stdout is not None
            said = list(iter(process.stdout.readline, "Ctrl-C stops all of it.\n"))
            process.send_signal(signal.SIGINT)
            return said, process.communicate(timeout=20)[1]

    first, quiet = run("--brokers", "3", "--zookeepers", "3")
    assert quiet == ""
    assert first[0].count(",") == 2
    second, warning = run("--brokers", "1")
    assert second[:2] == first[:2]
    assert second[2] == first[4]
    assert second[2].startswith("registry   http://127.0.0.1:")
    assert warning == (
        f"folkmoot: {tmp_path} has data of brokers 2, 3, not started with --brokers 1: what only that has "
        "is missing until --brokers 3\n"
    )


def test_dev_says_how_to_get_the_registry_where_it_is_not_installed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dev_command._print_addresses(EmbeddedCluster(tmp_path, 0, NOWHERE))
    assert f"\nregistry   none: {pip_command('server')} brings it\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--brokers", "33"], "33 is not in the range 1<=x<=32"),
        (["--brokers", "2", "--replicas", "3"], "no topic could be created"),
        (["--zookeepers", "3", "--zookeeper", NOWHERE], "leave out --zookeepers"),
        (["--brokers", "3", "--port", "65530"], "leaves no port for all 13"),
        (["--broker-port", "65534"], "leaves no port for all 3"),
        (["--zookeepers", "3"], "has the data of 1 ZooKeeper servers, of which each must be there"),
    ],
)
def test_dev_refuses_numbers_that_cannot_be(
    tmp_path: Path, options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "zookeeper-1" / "version-2").mkdir(parents=True)
    (tmp_path / "broker-1").mkdir()
    assert main(["dev", "--data", str(tmp_path), *options]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--brokers", "0"], "0 is not in the range"),
        (["--brokers", "x"], "'x' is not a valid integer"),
        (["--replicas", "0"], "0 is not in the range"),
        (["--zookeepers", "2"], "'2' is not one of"),
        (["--port", "x"], "'x' is not a valid integer"),
        (["--broker-port", "65536"], "65536 is not in the range"),
        (["--data", ""], "it is empty: name a directory"),
    ],
)
def test_dev_says_what_is_wrong_with_an_option(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["dev", *words]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    "text", ["", "[1]", '{"broker-1": "x"}', '{"broker-1": 0}', '{"broker-1": 65536}']
)
def test_ports_that_are_illegible_are_chosen_anew(tmp_path: Path, text: str, chroot: str) -> None:
    (tmp_path / "ports.json").write_text(text)
    with EmbeddedCluster(tmp_path, 1, chroot) as cluster:
        assert cluster.brokers[0].is_running
    assert 0 < json.loads((tmp_path / "ports.json").read_text())["broker-1"] < 65_536


def test_an_ensemble_whose_first_start_was_interrupted_can_be_begun_again(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / f"zookeeper-{number}" / "version-2").mkdir(parents=True)
    with EmbeddedCluster(tmp_path, 0, FOR_TESTS, zookeepers=1) as cluster:
        assert len(cluster.servers) == 1
    with EmbeddedCluster(tmp_path, 0, FOR_TESTS) as cluster:
        assert len(cluster.servers) == 1


def test_a_directory_that_cannot_be_written_to_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "ports.json.new").mkdir()
    with pytest.raises(StartFailed, match=f"the cluster in {tmp_path} was not started: "):
        EmbeddedCluster(tmp_path, 0, NOWHERE).start()


def test_dev_gives_up_a_process_that_cannot_be_launched_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Broken(BrokerProcess):
        def launch(self) -> None:
            raise OSError("no room")

    watched = dev_command._SupervisedProcess(Broken(1, tmp_path / "broker-1", NOWHERE))
    for _ in range(dev_command.DEATHS + 1):
        watched.check()
    said = capsys.readouterr().err
    assert watched.has_failed
    assert said.count("broker 1 could not be started: no room") == dev_command.DEATHS - 1
