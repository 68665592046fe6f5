"""Brokers found at addresses that were given."""

import socket
import threading
import time
from math import inf
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from folkmoot.network import ask_any, bootstrap
from folkmoot.network.bootstrap import Bootstrap
from folkmoot.network.client import Connections, Reply, SupportsFileno
from folkmoot.protocol.errors import BrokerUnreachable, ZooKeeperUnreachable
from tests.network.stub import StubBroker
from tests.network.test_client import metadata, unused_address


class Settings(NamedTuple):
    """As much of a client's configuration as Bootstrap takes."""

    bootstrap: str
    client_id: str = "me"
    request_timeout: float = inf


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
    clock = SimpleNamespace(monotonic=lambda: inf if failed else 0.0)
    monkeypatch.setattr(ask_any, "time", clock)


def test_one_broker_that_answers_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "CONNECT_WAIT", 60.0)
    dead = unused_address()
    with StubBroker(metadata) as one:
        found = Bootstrap(Settings(f"{dead},{one.address}"))
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
            Bootstrap(Settings(f"{dead},127.0.0.1:{port}")).open()
    said = str(raised.value)
    assert f"no broker of bootstrap={dead},127.0.0.1:{port} answers" in said
    assert f"{dead} is not reachable: no process listens there" in said
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
        Bootstrap(Settings(address)).open()
    finally:
        started.set()
        later.join()


@pytest.mark.usefixtures("until_one_has_failed")
def test_a_broker_that_refuses_is_named_with_what_it_says() -> None:
    def refuse(envelope: Any, body: Any, payloads: list[bytes]) -> Any:
        return [b"\xc1 this is no MessagePack"]

    with StubBroker(refuse) as one, pytest.raises(BrokerUnreachable, match="does not speak"):
        Bootstrap(Settings(one.address)).open()


def test_a_broker_that_knows_nothing_yet_is_asked_again_after_a_pause() -> None:
    asked_at: list[float] = []

    def refuse(envelope: Any, body: Any, payloads: list[bytes]) -> Any:
        asked_at.append(time.monotonic())
        if len(asked_at) < 4:
            raise ZooKeeperUnreachable("this broker has just started")
        return metadata(envelope, body, payloads)

    with StubBroker(refuse) as one:
        Bootstrap(Settings(one.address)).open()
    assert len(asked_at) == 4
    assert asked_at[3] - asked_at[0] >= 2.5 * ask_any.PAUSE


def test_one_that_answers_is_not_kept_waiting_by_one_that_refuses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ask_any, "PAUSE", 30.0)
    refused = threading.Event()

    def refuse(envelope: Any, body: Any, payloads: list[bytes]) -> Any:
        refused.set()
        raise ZooKeeperUnreachable("this broker has just started")

    def late(envelope: Any, body: Any, payloads: list[bytes]) -> Any:
        assert refused.wait(10.0)
        time.sleep(0.1)
        return metadata(envelope, body, payloads)

    with StubBroker(refuse) as one, StubBroker(late) as two:
        began = time.monotonic()
        Bootstrap(Settings(f"{one.address},{two.address}")).open()
        assert time.monotonic() - began < ask_any.PAUSE / 2
