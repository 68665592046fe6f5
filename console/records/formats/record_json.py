"""A record as one line of JSON, from which the very same record can be made again.

```
{"topic": "t", "partition": 0, "offset": 7, "timestamp": "2026-01-31T12:00:00.000+00:00",
 "key": "k", "value": "v", "headers": [["name", "v"]], "schema_id": null}
```

A key, value or header is a text where its bytes are UTF-8, `{"base64": "…"}` where they are not, null
where there is none. A value with a schema is what it says, as JSON; then `encoded` is its bytes. So is
a key, if keys were asked to be read by a schema.
"""

import json
from base64 import b64decode
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from folkmoot.console.records.formats.values import BASE64, Decoder, as_json, cell_of, json_of
from folkmoot.protocol.errors import SerializationError
from folkmoot.protocol.options import unknown_option
from folkmoot.protocol.quantities import EPOCH
from folkmoot.schemas.values.wire import header_name

if TYPE_CHECKING:
    from folkmoot.protocol.records import Headers, Record

_FIELDS: Final = frozenset(
    {"topic", "partition", "offset", "timestamp", "key", "value", "headers", "schema_id", "encoded"}
)
_Encode = Callable[[Any], bytes]
_MILLISECOND: Final = timedelta(milliseconds=1)


class OutgoingRecord(NamedTuple):
    """A record to send, without a position. `timestamp` is in ms, None: now."""

    value: bytes | None
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()
    timestamp: int | None = None


def format_record(record: "Record", decode: Decoder) -> str:
    """The record as JSON."""
    decoded = decode.value(record.value, record.headers)
    decoded_key = decode.key(record.key, record.headers)
    value, schema_id = (cell_of(record.value), None) if decoded is None else decoded
    fields = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": _format_timestamp(record.timestamp),
        "key": cell_of(record.key) if decoded_key is None else decoded_key[0],
        "value": value,
        "headers": [[name, cell_of(data)] for name, data in record.headers],
        "schema_id": schema_id,
    }
    if decoded is not None and record.value is not None:
        fields["encoded"] = cell_of(record.value)
    return as_json(fields)


def parse_record(
    line: bytes, decode: Decoder, encode: _Encode | None, encode_key: _Encode | None = None
) -> OutgoingRecord:
    """Return the record of a line, without its position. Raises SerializationError.

    A key is written by `encode_key`, a value by `encode`, if there is one. Else `encoded` has the value's
    bytes, which must mean what `value` says: that was perhaps changed on the way. A header that says which
    schema it was is left out of what is written anew.
    """
    fields = json_of(line)
    if not isinstance(fields, dict):
        raise SerializationError("this is no JSON object")
    for name in fields.keys() - _FIELDS:
        raise SerializationError(str(unknown_option(name, sorted(_FIELDS), "field")))
    if "value" not in fields:
        raise SerializationError("there is no value: write null for a tombstone")
    value, headers = fields["value"], _headers(fields)
    if encode is not None:
        data = None if value is None else encode(value)
    elif "encoded" in fields:
        data = _check_encoded(fields, tuple(headers), decode)
    else:
        data = _bytes("value", value)
    key = fields.get("key")
    key = _bytes("key", key) if key is None or encode_key is None else encode_key(key)
    encoders = {header_name("value"): encode, header_name("key"): encode_key}
    headers = [each for each in headers if encoders.get(each[0]) is None]
    return OutgoingRecord(data, key, headers, _parse_timestamp(fields.get("timestamp")))


def _check_encoded(fields: dict[str, Any], headers: "Headers", decode: Decoder) -> bytes:
    data = _bytes("encoded", fields["encoded"])
    decoded = decode.value(data, headers)
    if data is None or decoded is None:
        raise SerializationError("encoded has no schema of this cluster: give --value-schema")
    if json.loads(as_json(decoded[0])) != fields["value"]:
        raise SerializationError(
            "value is not what encoded says: give --value-schema to write it anew"
        )
    return data


def _bytes(name: str, cell: object) -> bytes | None:
    try:
        if cell is None:
            return None
        if isinstance(cell, str):
            return cell.encode()
        if isinstance(cell, dict) and cell.keys() == {BASE64}:
            return b64decode(cell[BASE64], validate=True)
    except (ValueError, TypeError) as error:
        raise SerializationError(f"{name} is not understood: {error}") from None
    also = f", or give --{name}-schema" if name in ("key", "value") else ""
    raise SerializationError(
        f'{name} is neither a text, {{"{BASE64}": "…"}} nor null: write one of them{also}'
    )


def _headers(fields: dict[str, Any]) -> list[tuple[str, bytes | None]]:
    try:
        return [(str(name), _bytes("header", cell)) for name, cell in fields.get("headers") or ()]
    except (ValueError, TypeError) as error:
        if isinstance(error, SerializationError):
            raise
        raise SerializationError(
            'headers are not understood: write [["name", "value"], …]'
        ) from None


def _format_timestamp(timestamp_ms: int) -> str | int:
    """ISO 8601, or the number where no calendar reaches."""
    try:
        return (EPOCH + timedelta(milliseconds=timestamp_ms)).isoformat(timespec="milliseconds")
    except OverflowError:
        return timestamp_ms


def _parse_timestamp(text: object) -> int | None:
    if text is None or (isinstance(text, int) and not isinstance(text, bool)):
        return text
    try:
        moment = datetime.fromisoformat(text) if isinstance(text, str) else None
        if moment is not None and moment.tzinfo is not None:
            return round((moment - EPOCH) / _MILLISECOND)
    except ValueError:
        pass
    raise SerializationError(
        f"timestamp {text!r} is not understood: write it as in 2026-01-31T12:00:00.000+00:00, or in "
        "milliseconds since 1970"
    )
