"""The embedded ZooKeeper: it serves, survives, says what is wrong, and does not outlive us."""

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from folkmoot.console.running.children import StartFailed
from folkmoot.console.running.embedded import EmbeddedZooKeeper, ZooKeeperConfig
from folkmoot.protocol.errors import AddressTaken
from tests.processes import state
from tests.servers import FOR_TESTS, ZooKeeperEnsemble
from tests.waiting import eventually


@contextmanager
def client_of(address: str) -> Iterator[KazooClient]:
    client = KazooClient(hosts=address)
    client.start()
    try:
        yield client
    finally:
        client.stop()
        client.close()


def test_the_shared_server_serves_each_test_its_own_chroot(
    zookeeper: EmbeddedZooKeeper, empty_chroot: str
) -> None:
    # A busy server may not answer in time.
    eventually(lambda: zookeeper.mode() == "standalone")
    eventually(lambda: zookeeper.ask("ruok") == "imok")
    eventually(lambda: "zk_znode_count" in zookeeper.ask("mntr"))
    with client_of(empty_chroot) as client:
        assert client.get_children("/") == []
        client.create("/a", b"1")
        assert client.get("/a")[0] == b"1"


def test_a_kill_and_a_restart_keep_data_and_port(private_zookeeper: EmbeddedZooKeeper) -> None:
    address, pid = private_zookeeper.address, private_zookeeper.pid
    with client_of(address) as client:
        client.create("/kept", b"yes")
    private_zookeeper.kill()
    assert not private_zookeeper.is_running
    assert private_zookeeper.mode() is None
    private_zookeeper.restart()
    assert private_zookeeper.address == address
    assert private_zookeeper.pid != pid
    with client_of(address) as client:
        assert client.get("/kept")[0] == b"yes"


def test_a_paused_server_does_not_answer_and_a_resumed_one_does(
    private_zookeeper: EmbeddedZooKeeper,
) -> None:
    private_zookeeper.pause()
    eventually(lambda: state(private_zookeeper.pid) == "T")
    assert private_zookeeper.ask("ruok") == ""
    private_zookeeper.resume()
    eventually(lambda: private_zookeeper.mode() == "standalone")


def test_sessions_of_a_second_are_granted(zookeeper: EmbeddedZooKeeper) -> None:
    eventually(lambda: "minSessionTimeout=1000\n" in zookeeper.ask("conf"))


def test_a_taken_port_is_one_clear_error(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        server = EmbeddedZooKeeper(tmp_path, ZooKeeperConfig(port=port))
        with pytest.raises(AddressTaken, match=f"port {port} for ZooKeeper is in use"):
            server.start()


def test_another_zookeeper_on_the_port_is_not_taken_for_ours(
    zookeeper: EmbeddedZooKeeper, tmp_path: Path
) -> None:
    impostor = EmbeddedZooKeeper(tmp_path, ZooKeeperConfig(port=zookeeper.port))
    eventually(lambda: "Mode: standalone" in impostor.ask("srvr"))
    assert impostor.mode() is None


def test_a_server_that_fails_to_start_says_why(tmp_path: Path) -> None:
    (tmp_path / "version-2").write_text("a file where the server wants a directory")
    with pytest.raises(StartFailed, match=r"ZooKeeper on port \d+ ended .*version-2.*log: "):
        EmbeddedZooKeeper(tmp_path).start()


def test_the_server_dies_when_its_parent_is_killed(tmp_path: Path) -> None:
    code = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from folkmoot.console.running.embedded import EmbeddedZooKeeper\n"
        "with EmbeddedZooKeeper(Path(sys.argv[1])) as server:\n"
        "    print(server.pid, flush=True)\n"
        "    time.sleep(600)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert state(pid) != "X"
        parent.send_signal(signal.SIGKILL)
    eventually(lambda: state(pid) == "X")


def test_an_ensemble_elects_a_new_leader_and_keeps_what_was_written(tmp_path: Path) -> None:
    with ZooKeeperEnsemble(tmp_path, FOR_TESTS) as ensemble:

        def modes() -> list[str]:
            return sorted(str(server.mode()) for server in ensemble.servers)

        eventually(lambda: modes() == ["follower", "follower", "leader"])
        with client_of(ensemble.address) as client:
            client.create("/kept", b"yes")
            client.sync("/kept")
        first = ensemble.leader()
        first.kill()
        assert ensemble.leader() is not first
        with client_of(ensemble.address) as client:
            assert client.get("/kept")[0] == b"yes"
        first.restart()
        eventually(lambda: first.mode() == "follower")


def test_a_server_is_ready_in_a_few_seconds_at_most(tmp_path: Path) -> None:
    began = time.monotonic()
    with EmbeddedZooKeeper(tmp_path, FOR_TESTS):
        took = time.monotonic() - began
    print(f"ready in {took:.2f} s")
    # A second on an idle machine; the limit is for a busy one.
    assert took < 20
