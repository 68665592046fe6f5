"""Values decoded by their schemas, as text for people and as JSON."""

import json
import math
import sys
from base64 import b64encode
from collections.abc import Mapping
from datetime import date, datetime, time
from typing import Any, Final, Self
from uuid import UUID

from folkmoot.console.options.cluster import Cluster
from folkmoot.protocol.errors import MissingExtra, SchemaNotFound, SerializationError
from folkmoot.protocol.records import Headers
from folkmoot.schemas.values.serialization import Field
from folkmoot.schemas.values.wire import prepend_frames, schema_id

BASE64: Final = "base64"

Decoded = tuple[Any, int | UUID]
"""A value and its schema's id, or GUID."""


class Decoder:
    """Values by the schema that they, or their record's headers, say; without one, or without Avro here,
    as they are.

    Schemas come from `zookeeper`, or else from the brokers at `bootstrap`.

    `readers` are the schemas that values and keys are read as, by "value" and "key"; without one values
    are as they were written, and keys are bytes. A value that cannot be decoded is shown as bytes, since it
    may begin with a zero by chance. A value that one of `readers` cannot read is an error.
    """

    def __init__(
        self,
        zookeeper: str | None,
        bootstrap: str | None = None,
        timeout: float = 15.0,
        readers: Mapping[str, str] | None = None,
        subject: str | None = None,
    ) -> None:
        """`subject` says which context ids are of."""
        self._zookeeper = zookeeper
        self._bootstrap = bootstrap
        self._timeout = timeout
        self._readers = readers or {}
        self._subject = subject
        self._is_open = False
        self._registry: Any = None
        self._deserialize: dict[str, Any] = {}

    @classmethod
    def of(cls, cluster: Cluster, context: str, readers: Mapping[str, str] | None = None) -> Self:
        """Decode by the schemas of a cluster, in a context of theirs."""
        return cls(cluster.zookeeper, cluster.bootstrap, cluster.timeout, readers, context or None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._registry is not None:
            self._registry.close()

    def value(self, data: bytes | None, headers: Headers = ()) -> Decoded | None:
        """Return a record's value for JSON; None for bytes that have no schema here."""
        return self._decode("value", data, headers)

    def key(self, data: bytes | None, headers: Headers = ()) -> Decoded | None:
        """The same of a key; None also if keys are not to be decoded."""
        return self._decode("key", data, headers) if "key" in self._readers else None

    def _decode(self, field: Field, data: bytes | None, headers: Headers) -> Decoded | None:
        (framed,) = prepend_frames(field, [data], [headers])
        # A GUID is taken from a header alone: values of other formats may well begin with byte 1.
        if framed is None or (framed is data and not framed.startswith(b"\0")):
            return None
        try:
            number = schema_id(framed)
        except SerializationError:
            return None
        try:
            return (self._deserialize[field](framed), number) if self._open() else None
        except SchemaNotFound:
            pass
        except SerializationError:
            if field in self._readers:  # which was requested, so it is reported
                raise
        return None

    def _open(self) -> bool:
        """Opened with the first value that may need it. False if Avro is not installed here."""
        if self._is_open:
            return bool(self._deserialize)
        self._is_open = True
        if not (self._zookeeper or self._bootstrap):
            return False
        try:
            from folkmoot.consumers.broker_schemas import BrokerSchemas
            from folkmoot.schemas.registry.schema_registry import SchemaRegistry
            from folkmoot.schemas.values.deserializer import AvroDeserializer, SchemaLookup
        except MissingExtra as missing:
            print(f"folkmoot: values are shown as bytes: {missing}", file=sys.stderr)
            return False
        schemas: SchemaLookup
        if self._zookeeper:
            schemas = self._registry = SchemaRegistry(self._zookeeper, timeout=self._timeout)
        else:
            schemas = BrokerSchemas(self._bootstrap or "", timeout=self._timeout)
        for field in ("key", "value"):
            reader = self._readers.get(field)
            self._deserialize[field] = AvroDeserializer(schemas, reader, subject=self._subject)
        return True


def readable(data: bytes) -> str:
    """Text where it is UTF-8, else hexadecimal after 0x: for people, who need not tell the two apart."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return f"0x{data.hex()}"


def cell_of(data: bytes | None) -> str | dict[str, str] | None:
    """Bytes as JSON has them, none like any others: text where it is UTF-8, else {"base64": …}."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {BASE64: b64encode(data).decode()}


def json_of(line: bytes) -> Any:
    """Return the value of a line of JSON. Raises SerializationError."""
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        raise SerializationError(
            f"this is not JSON: {error.msg} at character {error.pos + 1}"
        ) from None
    except (ValueError, RecursionError) as error:
        raise SerializationError(f"this is not JSON: {error}") from None


def as_json(value: object) -> str:
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


def _plain(value: object) -> object:
    """Values of Avro's logical types, and bytes, which JSON does not have."""
    if isinstance(value, bytes):
        return cell_of(value)
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    return str(value)
