"""Host names that do not resolve, of ZooKeeper's servers and of brokers: said at once, and in the error."""

import logging
import socket
from collections.abc import Callable
from typing import Any

import pytest

from folkmoot.coordination.zookeeper.kazoo_adapter import connect
from folkmoot.network.bootstrap import Bootstrap
from folkmoot.protocol.errors import BrokerUnreachable, FolkmootError, ZooKeeperUnreachable
from tests.network.test_bootstrap import Settings


def _zookeeper(hosts: str) -> None:
    connect(f"{hosts}:1", 6.0, connect_timeout=0.3)


def _brokers(hosts: str) -> None:
    Bootstrap(Settings(f"{hosts}:1", request_timeout=0.3)).open()


@pytest.mark.parametrize(
    ("opens", "error"),
    [(_zookeeper, ZooKeeperUnreachable), (_brokers, BrokerUnreachable)],
    ids=["zookeeper", "bootstrap"],
)
def test_a_host_name_that_does_not_resolve_is_said_at_once_and_in_the_error(
    opens: Callable[[str], None],
    error: type[FolkmootError],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    real = socket.getaddrinfo

    def look_up(host: Any, *given: Any, **options: Any) -> Any:
        if host == "no-such.invalid":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return real(host, *given, **options)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    with caplog.at_level(logging.WARNING), pytest.raises(error, match="does not resolve") as raised:
        opens("no-such.invalid")
    assert "no-such.invalid does not resolve" in str(raised.value)
    said = "host name no-such.invalid does not resolve: Name or service not known"
    assert caplog.messages[0] == said
    caplog.clear()
    with pytest.raises(error) as raised:
        opens("127.0.0.1")
    assert "resolve" not in str(raised.value) + caplog.text
