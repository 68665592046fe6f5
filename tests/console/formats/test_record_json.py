"""Records as JSON: the very same ones can be made of it, and what is no record is named."""

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from folkmoot.console.records.formats.record_json import OutgoingRecord, format_record, parse_record
from folkmoot.console.records.formats.values import Decoder
from folkmoot.protocol.errors import SerializationError
from folkmoot.protocol.records import Headers, Record

UNDECODED = Decoder(None)

cells = st.none() | st.binary(max_size=12) | st.text(max_size=12).map(str.encode)


@settings(deadline=None, print_blob=True)
@given(
    key=cells,
    value=cells.filter(lambda value: not (value or b"").startswith(b"\0")),  # as Avro's do
    headers=st.lists(st.tuples(st.text(max_size=5), cells), max_size=3).map(tuple),
    timestamp=st.integers(-(2**50), 2**50),
)
@example(key=b"0xff", value=b"\xff", headers=(("", None),), timestamp=-1)
@example(key=b'{"base64": "/w=="}', value=b"", headers=(), timestamp=253_402_300_799_999)
def test_what_is_written_is_read_again_byte_for_byte(
    key: bytes | None, value: bytes | None, headers: Headers, timestamp: int
) -> None:
    line = format_record(Record("t", 1, 7, timestamp, key, value, headers), UNDECODED)
    assert parse_record(line.encode(), UNDECODED, None) == OutgoingRecord(
        value, key, list(headers), timestamp
    )


def test_a_value_alone_is_enough() -> None:
    assert parse_record(b'{"value": null}', UNDECODED, None) == OutgoingRecord(None, None, [], None)
    written = parse_record(
        b'{"value": {"n": 1}}', UNDECODED, lambda value: json.dumps(value).encode()
    )
    assert written.value == b'{"n": 1}'


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("text", "this is not JSON: Expecting value at character 1"),
        ("[]", "is no JSON object"),
        ('{"key": "k"}', "there is no value: write null for a tombstone"),
        ('{"vlaue": "v"}', "field 'vlaue' is not known: did you mean 'value'?"),
        ('{"value": 7}', "value is neither a text"),
        ('{"value": "\\ud800"}', "value is not understood"),
        ('{"value": {"base64": "!"}}', "value is not understood"),
        ('{"value": {"base64": 7}}', "value is not understood"),
        ('{"value": "v", "key": {"a": 1}}', "key is neither a text"),
        ('{"value": "v", "headers": {"a": "b"}}', "headers are not understood"),
        ('{"value": "v", "headers": 7}', "headers are not understood"),
        ('{"value": "v", "headers": [["a", 1]]}', "header is neither a text"),
        ('{"value": "v", "timestamp": "now"}', "timestamp 'now' is not understood"),
        ('{"value": "v", "timestamp": "2026-01-31T12:00"}', "is not understood"),
        ('{"value": "v", "timestamp": true}', "timestamp True is not understood"),
        ('{"value": "v", "timestamp": 1e30}', "is not understood"),
        ('{"value": {}, "encoded": {"base64": "AP////8A"}}', "no schema of this cluster"),
    ],
)
def test_a_line_that_is_no_record_is_named(line: str, sentence: str) -> None:
    with pytest.raises(SerializationError) as raised:
        parse_record(line.encode(), UNDECODED, None)
    assert sentence in str(raised.value)
    assert "\n" not in str(raised.value)
