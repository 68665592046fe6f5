"""Avro bytes, in the wire format of `wire`, to Python values."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Generic, Protocol, overload

from folkmoot.protocol.errors import SchemaNotFound, SerializationError
from folkmoot.schemas.avro.identity import canonical
from folkmoot.schemas.values.decoding import BROKEN, Decode, Made, decoder, in_words
from folkmoot.schemas.values.derivation import derived
from folkmoot.schemas.values.serialization import T
from folkmoot.schemas.values.wire import FRAME, schema_id

MAX_KEPT: Final = 1_000
"""Schemas that a deserialiser keeps ready; more are asked for again when they are needed."""


class SchemaLookup(Protocol):
    """Where the schema of an id comes from: a registry, or a client that asks brokers.

    `subject` says in which context, as `:.context:` alone does; None is the default one.
    """

    def resolved(self, id: int, *, subject: str | None = None) -> str: ...


class AvroDeserializer(Generic[T]):
    """Bytes to values, by the schema that each was written with, for `Consumer(value_deserializer=…)`.

    Without a `reader` they are as they were written: records are dicts. With a schema, they are as that
    one says, by Avro's rules of resolution. With a class (dataclass or Struct, also `list[Order]`) they
    are its objects, read by the schema that is derived from it (`avro_schema`): fields that it has not
    are skipped, those that were not written have its defaults. What a record was called does not matter,
    within another one or in a union it has the class's name.

    Schemas are looked up by the id in front of every value, once each. May be called from any thread.
    """

    @overload
    def __init__(self, schemas: SchemaLookup, reader: type[T]) -> None: ...

    @overload
    def __init__(
        self: "AvroDeserializer[Any]", schemas: SchemaLookup, reader: Any = None
    ) -> None: ...

    def __init__(self, schemas: SchemaLookup, reader: Any = None) -> None:
        """Raises InvalidSchema."""
        self._schemas = schemas
        self._classes: Mapping[str, Made] | None = None
        if reader is None or isinstance(reader, str | Mapping | Sequence):
            self._reader = None if reader is None else canonical(reader)
        else:
            self._reader, self._classes = derived(reader)
        self._decoders: dict[bytes, Decode] = {}

    def deserialize(self, topic: str, data: bytes, /) -> T:
        """As `__call__`: the topic does not matter."""
        return self(data)

    def __call__(self, data: bytes) -> T:
        """Raises SchemaNotFound for an id that is unknown, SerializationError, and why nobody tells."""
        decode = self._decoders.get(data[: FRAME.size]) or self._prepare(data)
        try:
            value, end = decode(data, FRAME.size)
        except BROKEN as error:
            raise _unreadable(data, str(in_words(error))) from error
        if end != len(data):
            raise _unreadable(data, f"{len(data) - end} bytes are left over behind the value")
        return value  # type: ignore[no-any-return]

    def _prepare(self, data: bytes) -> Decode:
        number = schema_id(data)
        try:
            made = decoder(self._schemas.resolved(number), self._reader, self._classes)
        except SchemaNotFound as error:
            error.schema_id = number
            raise
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise _unreadable(data, f"its schema cannot be used: {error!r:.200}") from error
        while len(self._decoders) >= MAX_KEPT:
            self._decoders.pop(next(iter(self._decoders)), None)
        self._decoders[data[: FRAME.size]] = made
        return made


def _unreadable(data: bytes, why: str) -> SerializationError:
    number = schema_id(data)
    error = SerializationError(f"the bytes are no value of schema {number}: {why}")
    error.schema_id = number
    return error
