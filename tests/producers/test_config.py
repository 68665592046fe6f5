"""What a producer can be told, and what it says to what it cannot."""

import sys
from typing import Any

import pytest

from folkmoot.producers.config import ProducerConfig
from folkmoot.producers.producer import Producer
from folkmoot.protocol.errors import ConfigError, InvalidName, MissingExtra
from folkmoot.protocol.options import build


def test_an_unknown_option_names_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match="did you mean 'linger'"):
        Producer(zookeeper="localhost:2181", linger_ms=5)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="known are zookeeper"):
        Producer(zookeeper="localhost:2181", xyz=5)  # type: ignore[call-arg]


def test_without_zookeeper_there_is_no_producer() -> None:
    with pytest.raises(
        ConfigError, match=r"zookeeper=.* or by bootstrap=.*: one of them is missing"
    ):
        Producer()


@pytest.mark.parametrize(
    "options",
    [
        {"acks": 2},
        {"compression": "rar"},
        {"compression": None},
        {"linger": -0.1},
        {"batch_bytes": 0},
        {"batch_bytes": 15 * 2**20 + 1},
        {"max_record_bytes": 30 * 2**20 + 1},
        {"buffer_bytes": -1},
        {"delivery_timeout": 0},
        {"max_in_flight": 0},
        {"switch_interval": 0.0},
        {"request_timeout": float("nan")},
        {"delivery_timeout": float("inf")},
        {"linger": "5ms"},
        {"linger": None},
        {"batch_bytes": 1e6},
        {"max_in_flight": True},
        {"zookeeper": "/only/a/chroot"},
        {"linger": 120.0},
        {"compression_level": 23},
        {"compression_level": 1.5},
        {"key_serializer": "utf-8"},
        {"value_serializer": 7},
    ],
    ids=str,
)
def test_an_option_outside_its_range_is_refused_by_name(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(ConfigError, match=name):
        build(ProducerConfig, {"zookeeper": "localhost:2181", **options})


@pytest.mark.parametrize(
    ("compression", "allowed", "refused"),
    [("zstd", 19, 20), ("gzip", 9, 0), ("lz4", 16, 17), ("none", None, 1), ("snappy", None, 1)],
)
def test_a_compression_level_is_one_of_the_codec_s(
    compression: str, allowed: int | None, refused: int
) -> None:
    options = {"zookeeper": "localhost:2181", "compression": compression}
    build(ProducerConfig, {**options, "compression_level": allowed})
    with pytest.raises(ConfigError, match=f"compression_level={refused} .*{compression}"):
        build(ProducerConfig, {**options, "compression_level": refused})


def test_a_linger_that_would_fail_every_record_is_refused() -> None:
    options = {"zookeeper": "localhost:2181", "delivery_timeout": 1.0}
    build(ProducerConfig, {**options, "linger": 0.9})
    with pytest.raises(ConfigError, match="use less than delivery_timeout=1"):
        build(ProducerConfig, {**options, "linger": 1.0})


def test_a_client_id_is_a_name() -> None:
    with pytest.raises(InvalidName):
        ProducerConfig(zookeeper="localhost:2181", client_id="no spaces")


def test_words_become_numbers_of_the_wire() -> None:
    config = ProducerConfig(zookeeper="localhost:2181", acks="all")
    assert (config.wire_acks, ProducerConfig(zookeeper="z:1", acks=0).wire_acks) == (-1, 0)


def test_a_codec_that_is_not_installed_is_an_error_of_start_that_names_the_pip_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    producer = Producer(zookeeper="localhost:1", compression="lz4")
    monkeypatch.setitem(sys.modules, "lz4.frame", None)
    with pytest.raises(MissingExtra, match=r"pip install .*\[codecs\]'"):
        producer.start()
