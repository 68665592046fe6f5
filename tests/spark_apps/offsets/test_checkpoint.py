"""The offset as it stands in a checkpoint."""

import json
from typing import Any

import msgspec
import pytest

from folkmoot.protocol.errors import ConfigError
from folkmoot.protocol.records import TopicPartition
from folkmoot.spark_apps.offsets import checkpoint
from folkmoot.spark_apps.offsets.checkpoint import (
    Ends,
    InitialTopic,
    QueryOffsets,
    Range,
    from_json,
    to_json,
)

FLIGHTS_2, FLIGHTS_10 = TopicPartition("flights", 2), TopicPartition("flights", 10)
RANGES = {FLIGHTS_10: Range(5, 5, 3), FLIGHTS_2: Range(0, 7, 3, "mark")}
ENDS = Ends("g", RANGES, {"flights": "id-1"}, {"flights": InitialTopic("id-1", 11)}, 20_000)


def test_an_end_survives_the_checkpoint() -> None:
    assert from_json(json.loads(json.dumps(to_json(ENDS))), "g") == ENDS


def test_the_schema_that_values_are_read_with_survives_it_too() -> None:
    typed = to_json(msgspec.structs.replace(ENDS, reader_schema=7))
    assert typed == {**to_json(ENDS), "r": 7}
    assert from_json(json.loads(json.dumps(typed)), "g").reader_schema == 7


def test_the_same_end_is_the_same_text_in_whatever_order_it_was_made() -> None:
    backwards = dict(reversed(RANGES.items()))
    other = Ends("g", backwards, {"flights": "id-1"}, {"flights": InitialTopic("id-1", 11)}, 20_000)
    text = json.dumps(to_json(ENDS))
    assert json.dumps(to_json(other)) == text
    assert json.dumps(to_json(from_json(json.loads(text), "g"))) == text
    assert text == (
        '{"g": "g", "n": 20000, "p": {"flights/2": [0, 7, 3, "mark"], "flights/10": [5, 5, 3]}, '
        '"s": {"flights": ["id-1", 11]}, "t": {"flights": "id-1"}, "v": 2}'
    )


def test_what_was_processed_counts_for_the_topic_of_the_same_id_only() -> None:
    assert ENDS.processed_range(FLIGHTS_10, "id-1") == Range(5, 5, 3)
    assert ENDS.processed_range(FLIGHTS_10, "id-2") is None
    assert ENDS.processed_range(TopicPartition("flights", 3), "id-1") is None


def test_what_was_processed_counts_under_the_same_mark_of_a_reset_only() -> None:
    assert ENDS.processed_range(FLIGHTS_2, "id-1") is None
    assert ENDS.processed_range(FLIGHTS_2, "id-1", "mark") == Range(0, 7, 3, "mark")
    assert ENDS.processed_range(FLIGHTS_10, "id-1", "mark") is None


def test_a_checkpoint_of_another_group_is_refused() -> None:
    with pytest.raises(ConfigError, match="belongs to group 'g', the options say group 'h'"):
        from_json(to_json(ENDS), "h")


@pytest.mark.parametrize(
    "found",
    [
        {},
        {"v": 2},
        {"v": 3, "g": "g"},
        {"v": 2, "g": "g", "p": {"flights": [0, 1]}, "t": {"flights": "a"}},
        {"v": 2, "g": "g", "p": {"flights/0": [0]}, "t": {"flights": "a"}},
        {"v": 2, "g": "g", "p": {"flights/0": [2, 1]}, "t": {"flights": "a"}},
        {"v": 2, "g": "g", "p": {"flights/0": [0, 1]}, "t": {}},
        {"flights": {"0": 12}},
    ],
)
def test_a_checkpoint_of_something_else_is_refused(found: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        from_json(found, "g")


def test_an_offset_that_the_engine_hands_to_several_calls_is_parsed_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    offsets = QueryOffsets("g")
    start = json.dumps(to_json(ENDS))
    found = offsets.parse(json.loads(start))
    following = Ends("g", {FLIGHTS_2: Range(7, 9, 3)}, {"flights": "id-1"})
    end = json.dumps(offsets.to_json(following))
    monkeypatch.setattr(checkpoint, "from_json", None)
    for _ in range(2):
        assert offsets.parse(json.loads(start)) is found
        assert offsets.parse(json.loads(end)) is following
