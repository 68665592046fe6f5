"""A topic's options as its node has them, and what follows from them."""

import dataclasses

import pytest

from folkmoot.coordination.topic_config import LogConfig, build_changes, effective, own_options
from folkmoot.protocol.errors import ConfigError


def test_changes_become_texts_and_an_option_that_is_taken_back_becomes_none() -> None:
    own = {"retention": "60.0", "max_producers": "5"}
    found = build_changes(own, {"segment_bytes": 4096}, ["retention"])
    assert found == {"segment_bytes": "4096", "retention": None}


def test_an_option_cannot_be_given_and_taken_back_at_once() -> None:
    with pytest.raises(ConfigError, match="retention cannot be set and removed at once"):
        build_changes({}, {"retention": 60.0}, ["retention"])


def test_what_is_no_option_cannot_be_taken_back_unless_the_topic_has_it() -> None:
    with pytest.raises(ConfigError, match="did you mean 'retention'"):
        build_changes({}, {}, ["retentoin"])
    assert build_changes({"retentoin": "60"}, {}, ["retentoin"]) == {"retentoin": None}


def test_every_option_that_holds_for_a_topic_has_a_source() -> None:
    brokers = {
        1: own_options(LogConfig(retention=60.0, segment_bytes=4096)),
        2: own_options(LogConfig(retention=60.0)),
    }
    rows = effective({"max_batch_bytes": "1MiB"}, brokers, replicas=1)
    found: dict[str, list[tuple[str, str]]] = {}
    for name, value, source in rows:
        found.setdefault(name, []).append((value, source))
    assert found.keys() == {field.name for field in dataclasses.fields(LogConfig)}
    assert found["max_batch_bytes"] == [("1MiB", "topic")]
    assert found["retention"] == [("60.0", "brokers")]
    assert found["segment_bytes"] == [("4096", "broker 1"), (str(256 * 2**20), "broker 2")]
    assert found["retention_bytes"] == [("none", "default")]
    assert found["durability"] == [("page-cache", "default")]
    assert found["min_in_sync"] == [("1", "default")]
