"""Records as text for people and as JSON for programs, their values decoded by their schemas."""

import json
import math
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime, time
from typing import TYPE_CHECKING, Any, Self

from folkmoot.protocol.errors import MissingExtra, SchemaNotFound, SerializationError

if TYPE_CHECKING:
    from folkmoot.protocol.records import Record

SCHEMA_MARK = b"\0"
MAX_UNKNOWN = 10_000


class Decoder:
    """Values by the schema whose id they carry; without one, or without Avro or ZooKeeper here, as they are.

    What cannot be decoded is shown as bytes: a value may begin with a zero by chance.
    """

    def __init__(self, zookeeper: str | None) -> None:
        self._zookeeper = zookeeper
        self._opened = False
        self._registry: Any = None
        self._deserialize: Any = None
        self._unknown: set[int] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._registry is not None:
            self._registry.close()

    def __call__(self, value: bytes) -> tuple[Any, int | None]:
        """The value for a person to read, and its schema's id if it was decoded by it."""
        if value[:1] != SCHEMA_MARK or len(value) < 5 or not self._is_ready():
            return readable(value), None
        number = int.from_bytes(value[1:5], "big")
        if number in self._unknown:
            return readable(value), None
        try:
            return self._deserialize(value), number
        except SchemaNotFound:
            if len(self._unknown) < MAX_UNKNOWN:
                self._unknown.add(number)
        except SerializationError:
            pass
        return readable(value), None

    def _is_ready(self) -> bool:
        """Opened with the first value that may need it. False if Avro is not installed here."""
        if self._opened:
            return self._deserialize is not None
        self._opened = True
        if self._zookeeper is None:
            print("folkmoot: values are shown as bytes: schemas are in ZooKeeper", file=sys.stderr)
            return False
        try:
            from folkmoot.schemas.avro import AvroDeserializer
            from folkmoot.schemas.registry import SchemaRegistry
        except MissingExtra as missing:
            print(f"folkmoot: values are shown as bytes: {missing}", file=sys.stderr)
            return False
        self._registry = SchemaRegistry(self._zookeeper)
        self._deserialize = AvroDeserializer(self._registry)
        return True


def writer(output: str, decode: Decoder) -> Callable[["Record"], None]:
    """What prints a record as `text`, `json` or `raw`."""
    if output == "raw":
        return lambda record: _print_raw(record.value)
    if output == "json":
        return lambda record: print(_json(record, decode))
    return lambda record: print(_text(record, decode))


def readable(data: bytes | None) -> str | None:
    """Text where it is UTF-8, else hexadecimal after 0x."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return f"0x{data.hex()}"


def _print_raw(value: bytes | None) -> None:
    sys.stdout.buffer.write((value or b"") + b"\n")


def _text(record: "Record", decode: Decoder) -> str:
    """One line; nothing in it moves the cursor or ends the line, whoever wrote the record."""
    value, _ = (None, None) if record.value is None else decode(record.value)
    shown = value if isinstance(value, str) else _as_json(value)
    key = "" if record.key is None else f"{readable(record.key)}: "
    line = f"{record.partition}@{record.offset} {key}{shown}"
    if line.isprintable():
        return line
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in line
    )


def _json(record: "Record", decode: Decoder) -> str:
    value, schema = (None, None) if record.value is None else decode(record.value)
    fields = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": _moment(record.timestamp),
        "key": readable(record.key),
        "value": value,
        "headers": [[name, readable(data)] for name, data in record.headers],
        "schema_id": schema,
    }
    return _as_json(fields)


def _as_json(value: object) -> str:
    """JSON, and nothing that only looks like it: NaN and the infinities of floats are strings."""
    try:
        return json.dumps(value, default=_plain, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), default=_plain, allow_nan=False)


def _finite(value: Any) -> Any:
    """The same with a name for each number that JSON does not have, as Avro's own JSON names them."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return value


def _moment(timestamp_ms: int) -> str | int:
    """ISO 8601, or the number where no calendar reaches."""
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat()
    except (ValueError, OverflowError, OSError):
        return timestamp_ms


def _plain(value: object) -> str | None:
    """Values of Avro's logical types, and bytes, which JSON does not have."""
    if isinstance(value, bytes):
        return readable(value)
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    return str(value)
