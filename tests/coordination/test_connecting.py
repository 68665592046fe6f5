"""Opening a session: the chroot, the timeout, and servers that are not there or not ZooKeeper."""

import logging
import math
import re
import socket
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from folkmoot.console.running.children import free_port
from folkmoot.console.running.embedded import EmbeddedZooKeeper
from folkmoot.coordination import connector
from folkmoot.coordination.guardian import GUARDIAN
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.coordination.zookeeper.kazoo_adapter import CONNECT_TIMEOUT, KazooSession, connect
from folkmoot.coordination.zookeeper.operations import Children, Create, Exists, Multi
from folkmoot.coordination.zookeeper.session import SessionState
from folkmoot.protocol.errors import ConfigError, ZooKeeperUnreachable
from tests.servers import FOR_TESTS
from tests.waiting import eventually


def test_the_chroot_is_created_and_everything_lies_below_it(
    zookeeper: EmbeddedZooKeeper, chroot: str
) -> None:
    session = connect(f"{chroot}/deep/er", 10.0, create=True)
    outside = connect(chroot, 10.0)
    assert execute(session, Create("/a-", sequence=True)) == "/a-0000000000"
    assert execute(session, Multi((Create("/b"), Create("/b/c")))) == ["/b", "/b/c"]
    assert sorted(execute(session, Children("/"))) == ["a-0000000000", "b"]
    assert execute(outside, Exists("/deep/er/b/c")) is not None
    fired: list[None] = []
    execute(session, Children("/", lambda: fired.append(None)))
    execute(outside, Create("/deep/er/d"))
    eventually(lambda: fired)
    session.close()
    outside.close()


def test_many_clients_may_create_one_chroot(chroot: str) -> None:
    sessions: list[KazooSession] = []
    threads = [
        threading.Thread(
            target=lambda: sessions.append(connect(f"{chroot}/x/y/z", 10.0, create=True))
        )
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(sessions) == 8
    for session in sessions:
        session.close()


def test_the_session_timeout_is_the_one_that_the_server_grants(chroot: str) -> None:
    def granted_for(asked: float) -> float | None:
        try:
            session = connect(chroot, asked)
        except ZooKeeperUnreachable:
            return None  # a machine that stood still for a second has ended it already
        session.close()
        return session.session_timeout

    for asked, granted in ((0.1, 1.0), (5.0, 5.0), (1000.0, 60.0)):
        assert eventually(partial(granted_for, asked), 60.0) == pytest.approx(granted)


def test_a_session_has_an_identity(chroot: str) -> None:
    session = connect(chroot, 10.0)
    assert session.session_id != 0
    assert len(session.password) == 16
    execute(session, Create("/a", ephemeral=True))
    assert execute(session, Exists("/a")).ephemeral_owner == session.session_id
    session.close()


def test_the_password_of_a_session_is_not_logged(
    chroot: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    session = connect(chroot, 10.0)
    session.close()
    eventually(lambda: "connecting to ZooKeeper at 127.0.0.1" in caplog.text)
    assert "passwd" not in caplog.text
    assert session.password.hex() not in caplog.text


def test_no_server_is_an_error_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    address = f"127.0.0.1:{free_port()}"
    before = time.monotonic()
    with pytest.raises(ZooKeeperUnreachable, match=address) as raised:
        connect(f"{address}/root", 10.0, connect_timeout=0.5)
    assert 0.5 <= time.monotonic() - before < CONNECT_TIMEOUT - 1.0
    assert "\n" not in str(raised.value)
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_a_server_that_accepts_and_is_silent_is_unreachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        before = time.monotonic()
        with pytest.raises(ZooKeeperUnreachable, match=address):
            connect(address, 10.0, connect_timeout=0.5)
        assert time.monotonic() - before < CONNECT_TIMEOUT - 1.0


def test_a_server_that_speaks_otherwise_is_unreachable() -> None:
    def answer(listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        threading.Thread(target=answer, args=(listener,), daemon=True).start()
        with pytest.raises(ZooKeeperUnreachable, match=address):
            connect(address, 10.0, connect_timeout=0.5)
        listener.shutdown(socket.SHUT_RDWR)


def test_one_living_server_of_several_is_enough(chroot: str) -> None:
    session = connect(f"127.0.0.1:{free_port()},127.0.0.1:{free_port()},{chroot}", 10.0)
    assert execute(session, Exists("/")) is not None
    session.close()


@pytest.mark.parametrize("seconds", [0.0, 0.0001, 3_000_000.0, math.inf, math.nan])
def test_a_session_timeout_that_no_server_can_be_asked_for_is_refused(
    chroot: str, seconds: float
) -> None:
    """Told as a server that does not answer it would send people to the wrong place."""
    with pytest.raises(ConfigError, match=r"session_timeout=.* use 0\.1 to 86400 seconds"):
        connect(chroot, seconds)


def test_a_guarded_session_whose_opening_is_interrupted_is_closed(
    chroot: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[KazooSession] = []

    def interrupted(session: KazooSession, zookeeper: str) -> None:
        opened.append(session)
        raise KeyboardInterrupt

    monkeypatch.setattr(GUARDIAN, "guard", interrupted)
    with pytest.raises(KeyboardInterrupt):
        connector.connect(chroot, 10.0, guarded=True, create=True)
    assert [session.state for session in opened] == [SessionState.LOST]


@pytest.mark.parametrize("emptied", [True, False])
def test_a_zookeeper_that_was_emptied_refuses_a_session_and_the_log_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, emptied: bool
) -> None:
    """For a minute it was said that no server answers, while new sessions were opened."""
    with EmbeddedZooKeeper(tmp_path / "before", FOR_TESTS) as before:
        session = connect(before.address, 10.0)
        for number in range(20):
            execute(session, Create(f"/{number}"))
        address, port = before.address, int(before.address.rpartition(":")[2])
        before.kill()
        eventually(lambda: "answers session" in caplog.text)
        with EmbeddedZooKeeper(
            tmp_path / ("after" if emptied else "before"), replace(FOR_TESTS, port=port)
        ) as after:
            assert after.address == address
            if emptied:
                said = f"{address} refuses session 0x{session.session_id:x}: .*set back or emptied"
                eventually(lambda: re.search(said, caplog.text))
                with pytest.raises(ZooKeeperUnreachable, match="set back or emptied"):
                    execute(session, Exists("/"), 0.1)
            else:
                eventually(lambda: session.state is SessionState.CONNECTED)
                assert "refuses session" not in caplog.text
            session.close()
