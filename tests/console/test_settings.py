"""Where a broker's options come from, and which goes before which."""

from pathlib import Path
from typing import Any

import pytest

from folkmoot.console.running.settings import broker_config, flag
from folkmoot.protocol.errors import ConfigError

NEEDED = {"broker_id": 1, "data": Path("d"), "zookeeper": "z:1"}


def test_flags_go_before_the_environment_before_the_file_before_the_defaults(
    tmp_path: Path,
) -> None:
    file = tmp_path / "broker.toml"
    file.write_text(
        """
        broker_id = 7
        data = "from the file"
        zookeeper = "file:1"
        listeners = ["client=127.0.0.1:1", "inside=127.0.0.1:2"]
        session_timeout = 1
        open_segments = 10
        [log]
        retention = 10.0
        retention_bytes = 10
        segment_bytes = 1024
        """
    )
    environment = {
        "FOLKMOOT_ZOOKEEPER": "environment:1",
        "FOLKMOOT_SESSION_TIMEOUT": "2.5",
        "FOLKMOOT_LOG_RETENTION": "none",
        "FOLKMOOT_LOG_RETENTION_BYTES": "20",
        "FOLKMOOT_OPEN_SEGMENTS": "",
    }
    flags: dict[str, Any] = {"session_timeout": 3.0, "data": None, "log.retention_bytes": "30"}
    config = broker_config(file, environment, flags)
    assert (config.broker_id, config.data) == (7, Path("from the file"))
    assert (config.zookeeper, config.session_timeout) == ("environment:1", 3.0)
    assert [listener.name for listener in config.listeners] == ["client", "inside"]
    assert (config.open_segments, config.log.segment_bytes) == (10, 1024)
    assert (config.log.retention, config.log.retention_bytes) == (None, 30)
    assert config.scrub_period == broker_config(None, {}, NEEDED).scrub_period


def test_the_environment_alone_can_say_all() -> None:
    environment = {
        "FOLKMOOT_BROKER_ID": "3",
        "FOLKMOOT_DATA": "there",
        "FOLKMOOT_ZOOKEEPER": "z:1",
        "FOLKMOOT_LISTENERS": "client=127.0.0.1:1,inside=127.0.0.1:2",
        "FOLKMOOT_METRICS_PORT": "9290",
        "FOLKMOOT_LOG_FORMAT": "json",
        "FOLKMOOT_LOG_RETENTION": "60",
    }
    config = broker_config(None, environment, {})
    assert (config.broker_id, config.data, len(config.listeners)) == (3, Path("there"), 2)
    assert (config.metrics_port, config.log_format, config.log.retention) == (9290, "json", 60.0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("session_timeot = 1", "did you mean 'session_timeout'"),
        ("[log]\nretentoin = 1", "did you mean 'retention'"),
        ("session_timeout = 'soon'", "a number of seconds"),
        ("log = 5", "is a table"),
        ("listeners = 'client=127.0.0.1:1'", "a list"),
        ("listeners = [1]", "a list of texts"),
        ("rack = 5", "rack=5"),
        ("metrics_port = 70000", "a whole number from 0 to 65535, or None"),
        ("log_format = 'xml'", "use 'text' or 'json'"),
        ("nonsense", "is not TOML"),
    ],
)
def test_what_a_file_may_not_say_is_refused(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "broker.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=words):
        broker_config(file, {}, NEEDED)


def test_what_is_missing_or_wrong_is_named(tmp_path: Path) -> None:
    for option, missing in (
        ("--broker-id", "broker_id"),
        ("--data", "data"),
        ("--zookeeper", "zookeeper"),
    ):
        said = (
            f"{option} is missing: give it, set FOLKMOOT_{missing.upper()}, or write {missing} into"
        )
        with pytest.raises(ConfigError, match=said):
            broker_config(None, {}, {name: NEEDED[name] for name in NEEDED if name != missing})
    with pytest.raises(ConfigError, match="broker_id='x'"):
        broker_config(None, {"FOLKMOOT_BROKER_ID": "x"}, {})
    with pytest.raises(ConfigError, match="name a file that exists"):
        broker_config(tmp_path / "nothing", {}, NEEDED)
    for word in ("retention=1", "log.retention", "broker_id=1"):
        with pytest.raises(ConfigError):
            flag(word)
    assert flag("log.retention=1") == ("log.retention", "1")
