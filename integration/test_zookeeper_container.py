"""ZooKeeperContainer alone: one address, whatever is done to the container."""

from contextlib import closing
from typing import Any

import pytest
from testcontainers.core.network import Network

from folkmoot.console.running.children import StartFailed
from folkmoot.coordination.connector import connect
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.coordination.zookeeper.operations import Create, Exists, Get, Operation
from folkmoot.coordination.zookeeper.session import SessionState
from folkmoot.integration.containers import DockerUnavailable, ZooKeeperContainer
from tests.waiting import eventually

pytestmark = pytest.mark.docker

SESSION_TIMEOUT = 4.0
SUSPENDED_WITHIN = 30.0


def execute_in_new_session(
    zookeeper: ZooKeeperContainer, operation: Operation, chroot: str = ""
) -> Any:
    """What a session of its own is answered: another one may have ended while the server was away."""
    with closing(connect(zookeeper.connect_string + chroot, SESSION_TIMEOUT, create=True)) as fresh:
        return execute(fresh, operation)


def test_what_was_written_is_there_at_the_same_address_after_a_kill(
    zookeeper: ZooKeeperContainer,
) -> None:
    before = zookeeper.connect_string
    session = connect(f"{before}/kept", SESSION_TIMEOUT, create=True)
    try:
        execute(session, Create("/node", b"value"))
        zookeeper.kill()
        eventually(lambda: session.state is SessionState.SUSPENDED, SUSPENDED_WITHIN)
        zookeeper.start_again()
        assert zookeeper.connect_string == before
        assert execute_in_new_session(zookeeper, Get("/node"), "/kept").data == b"value"
    finally:
        session.close()


def test_a_paused_server_answers_nothing_and_a_resumed_one_goes_on(
    zookeeper: ZooKeeperContainer,
) -> None:
    session = connect(zookeeper.connect_string, SESSION_TIMEOUT, create=True)
    try:
        zookeeper.pause()
        eventually(lambda: session.state is SessionState.SUSPENDED, SUSPENDED_WITHIN)
        zookeeper.unpause()
        assert execute_in_new_session(zookeeper, Exists("/")) is not None
    finally:
        session.close()


def test_a_server_out_of_its_network_is_reached_again_once_it_is_back(
    zookeeper: ZooKeeperContainer, network: Network
) -> None:
    session = connect(zookeeper.connect_string, SESSION_TIMEOUT, create=True)
    try:
        zookeeper.disconnect(network)
        eventually(lambda: session.state is SessionState.SUSPENDED, SUSPENDED_WITHIN)
        zookeeper.connect(network)
        assert execute_in_new_session(zookeeper, Exists("/")) is not None
    finally:
        session.close()


def test_a_container_that_ends_before_it_is_ready_shows_its_last_words(network: Network) -> None:
    container = ZooKeeperContainer(network=network, alias="broken")
    container.with_command("not-a-number /data")
    with (
        pytest.raises(StartFailed, match=r"(?s)ended before it was ready:.*Usage: "),
        container,
    ):
        pass


def test_a_missing_image_is_named_with_the_way_to_it() -> None:
    container = ZooKeeperContainer("folkmoot-nowhere")
    pattern = r"folkmoot-nowhere.*integration/images/build"
    with pytest.raises(DockerUnavailable, match=pattern), container:
        pass


def test_a_missing_engine_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    with pytest.raises(DockerUnavailable, match="no Docker engine answers"):
        ZooKeeperContainer()
