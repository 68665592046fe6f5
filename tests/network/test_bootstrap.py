"""Brokers found at addresses that were given."""

import socket
import threading
import time
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest

from folkmoot.network import bootstrap
from folkmoot.network.bootstrap import Bootstrap
from folkmoot.network.client import Connections, Reply, SupportsFileno
from folkmoot.protocol.errors import BrokerUnreachable, ZooKeeperUnreachable
from tests.network.stub import StubBroker
from tests.network.test_client import metadata, unused_address


@pytest.fixture
def until_one_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait for brokers is over when one has failed, however long that takes."""
    failed: list[Reply] = []

    class Heard(Connections):
        def poll(self, timeout: float, wake: SupportsFileno | None = None) -> list[Reply]:
            replies = super().poll(timeout, wake)
            failed.extend(replies)
            return replies

    monkeypatch.setattr(bootstrap, "Connections", Heard)
    clock = SimpleNamespace(monotonic=lambda: inf if failed else 0.0, sleep=lambda pause: None)
    monkeypatch.setattr(bootstrap, "time", clock)


def test_one_broker_that_answers_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "CONNECT_WAIT", 60.0)
    dead = unused_address()
    with StubBroker(metadata) as one:
        found = Bootstrap(f"{dead},{one.address}", "me")
        began = time.monotonic()
        found.open()
        assert time.monotonic() - began < bootstrap.CONNECT_WAIT / 2
        assert list(found()) == [dead, one.address]
        found.close()


@pytest.mark.usefixtures("until_one_has_failed")
def test_when_none_answers_all_are_named_with_the_reason() -> None:
    dead = unused_address()
    with socket.create_server(("127.0.0.1", 0)) as mute:
        port = mute.getsockname()[1]
        with pytest.raises(BrokerUnreachable) as raised:
            Bootstrap(f"{dead},127.0.0.1:{port}", "me").open()
    said = str(raised.value)
    assert f"no broker of bootstrap={dead},127.0.0.1:{port} answers" in said
    assert f"{dead} is not reachable: nobody listens there" in said
    assert f"127.0.0.1:{port} does not answer" in said


def test_a_broker_that_starts_a_moment_later_is_waited_for() -> None:
    address = unused_address()
    port = int(address.rpartition(":")[2])
    started = threading.Event()

    def start() -> None:
        with StubBroker(metadata, port=port):
            started.wait(10.0)

    later = threading.Timer(0.3, start)
    later.start()
    try:
        Bootstrap(address, "me").open()
    finally:
        started.set()
        later.join()


@pytest.mark.usefixtures("until_one_has_failed")
def test_a_broker_that_refuses_is_named_with_what_it_says() -> None:
    def refuse(envelope: Any, body: Any, payloads: list[bytes]) -> Any:
        return [b"\xc1 this is no MessagePack"]

    with StubBroker(refuse) as one, pytest.raises(BrokerUnreachable, match="does not speak"):
        Bootstrap(one.address, "me").open()


def test_a_broker_that_knows_nothing_yet_is_not_asked_without_a_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[float] = []
    clock = SimpleNamespace(monotonic=lambda: inf if len(pauses) == 3 else 0.0, sleep=pauses.append)
    monkeypatch.setattr(bootstrap, "time", clock)

    def refuse(envelope: Any, body: Any, payloads: list[bytes]) -> Any:
        raise ZooKeeperUnreachable("this broker has just started")

    with StubBroker(refuse) as one:
        with pytest.raises(BrokerUnreachable, match="has just started"):
            Bootstrap(one.address, "me").open()
        assert len(one.seen) <= len(pauses) + 1
    assert pauses == 3 * [bootstrap.PAUSE]
