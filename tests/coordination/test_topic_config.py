"""A topic's options as its node has them, and what follows from them."""

import pytest

from folkmoot.coordination.topic_config import LogConfig, changed
from folkmoot.protocol.errors import ConfigError


def test_changes_become_texts_and_an_option_that_is_taken_back_becomes_none() -> None:
    own = {"retention": "60.0", "max_producers": "5"}
    found = changed(own, {"segment_bytes": 4096}, ["retention"])
    assert found == {"segment_bytes": "4096", "retention": None}


def test_an_option_cannot_be_given_and_taken_back_at_once() -> None:
    with pytest.raises(ConfigError, match="retention cannot be given and taken back at once"):
        changed({}, {"retention": 60.0}, ["retention"])


def test_what_is_no_option_cannot_be_taken_back_unless_the_topic_has_it() -> None:
    with pytest.raises(ConfigError, match="did you mean 'retention'"):
        changed({}, {}, ["retentoin"])
    assert changed({"retentoin": "60"}, {}, ["retentoin"]) == {"retentoin": None}


def test_only_where_records_are_compacted_a_segment_is_closed_for_the_compaction_lag() -> None:
    given = {"segment_age": 100.0, "max_compaction_lag": 10.0}
    assert LogConfig(cleanup_policy="compact", **given).longest_active == 10.0
    assert LogConfig(cleanup_policy="delete", **given).longest_active == 100.0
    assert LogConfig(cleanup_policy="compact", segment_age=100.0).longest_active == 100.0
