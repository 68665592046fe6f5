"""Options of a broker: what is taken, and which words refuse the rest."""

from pathlib import Path
from typing import Any

import pytest

from folkmoot.brokers.server.config import BrokerConfig, Listener
from folkmoot.coordination.topic_config import LogConfig
from folkmoot.protocol.errors import ConfigError


def broker(**changes: Any) -> BrokerConfig:
    options: dict[str, Any] = {
        "broker_id": 1,
        "data": Path("data"),
        "zookeeper": "127.0.0.1:2181/a",
    }
    return BrokerConfig(**(options | changes))


def test_a_broker_needs_an_id_a_directory_and_a_zookeeper() -> None:
    config = broker()
    assert config.session_timeout == 6.0
    assert config.log == LogConfig()
    assert [listener.name for listener in config.listeners] == ["client"]


@pytest.mark.parametrize(
    ("text", "listener", "advertised"),
    [
        ("client=127.0.0.1:0", Listener("client", "127.0.0.1", 0, "127.0.0.1", 0), "127.0.0.1:77"),
        (
            "client=0.0.0.0:9191@host:9192",
            Listener("client", "0.0.0.0", 9191, "host", 9192),
            "host:9192",
        ),
        (
            "inside=0.0.0.0:0@broker-1.local:0",
            Listener("inside", "0.0.0.0", 0, "broker-1.local", 0),
            "broker-1.local:77",
        ),
        ("client=[::1]:5", Listener("client", "[::1]", 5, "[::1]", 5), "[::1]:5"),
    ],
)
def test_a_listener_is_read_from_text(text: str, listener: Listener, advertised: str) -> None:
    assert Listener.parse(text) == listener
    assert listener.advertised(77) == advertised


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not understood"),
        ("client", "not understood"),
        ("client=host", "not understood"),
        ("client=host:", "not understood"),
        ("client=host:1@", "not understood"),
        ("client=host:1@there", "not understood"),
        ("client=ho st:1", "not understood"),
        ("=host:1", "listener name ''"),
        ("Client=host:1", "listener name 'Client'"),
        ("client=host:65536", "listener client: port=65536"),
        ("client=host:1@there:99999", "listener client: advertised port=99999"),
        ("client=0.0.0.0:1", "no address that a client can reach"),
        ("client=[::]:1", "no address that a client can reach"),
    ],
)
def test_a_listener_that_makes_no_sense_is_refused(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as raised:
        Listener.parse(text)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"broker_id": -1},
        {"broker_id": 2**31},
        {"broker_id": True},
        {"broker_id": "1"},
        {"data": "data"},
        {"zookeeper": ""},
        {"zookeeper": "/chroot"},
        {"zookeeper": 5},
        {"rack": 5},
        {"listeners": ()},
        {"listeners": (Listener.parse("a=h:1"), Listener.parse("a=h:2"))},
        {"session_timeout": 0.0},
        {"session_timeout": float("nan")},
        {"session_timeout": "6"},
    ],
)
def test_an_option_outside_its_range_is_refused_by_name(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(changes))):
        broker(**changes)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("segment_bytes", 511),
        ("segment_bytes", 2**30 + 1),
        ("segment_bytes", 1e6),
        ("index_interval_bytes", 0),
        ("max_batch_bytes", 83),
        ("max_batch_bytes", 2**30),
    ],
)
def test_a_log_setting_outside_its_range_is_refused_by_name(option: str, value: float) -> None:
    with pytest.raises(ConfigError, match=option):
        LogConfig(**{option: value})  # type: ignore[arg-type]
