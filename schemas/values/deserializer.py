"""Avro bytes, in the wire format of `wire`, to Python values."""

from collections.abc import Mapping, Sequence
from math import inf
from time import monotonic
from typing import Any, Final, Generic, Protocol, TypeVar, overload
from uuid import UUID

from folkmoot.coordination.schemas.names import context_of
from folkmoot.protocol.errors import SchemaNotFound, SerializationError
from folkmoot.schemas.avro.identity import canonical
from folkmoot.schemas.values.decoding import BROKEN, Decode, ValueFactory, decoder, to_mismatch
from folkmoot.schemas.values.derivation import derive
from folkmoot.schemas.values.serialization import T
from folkmoot.schemas.values.wire import FRAME, FRAME_GUID, schema_id

MAX_CACHED: Final = 1_000
"""Schemas that a deserialiser keeps ready; more are asked for again when they are needed."""
PATIENCE: Final = 1.0
"""Seconds after which an unknown one is requested again: a topic may be full of its values."""

V = TypeVar("V")


class SchemaLookup(Protocol):
    """The source of schemas by id or GUID: a registry, or a client of brokers.

    `subject` says in which context an id is, as `:.context:` alone does; None is the default one.
    """

    def resolved(self, id: int | UUID, *, subject: str | None = None) -> str: ...


class AvroDeserializer(Generic[T]):
    """Bytes to values, by the schema that each was written with, for `Consumer(value_deserializer=…)`.

    Without a `reader` they are as they were written: records are dicts. With a schema, they are as that
    one says, by Avro's rules of resolution. With a class (dataclass or Struct, also `list[Order]`) they
    are its objects, read by the schema that is derived from it (`avro_schema`): fields that it has not
    are skipped, those that were not written have its defaults. The writer's name of a record does not
    matter. Inside another one or in a union it has the class's name.

    Schemas are looked up by the id in front of every value, once each, in the context of `subject`
    (`":.staging:"`), or by the GUID there; for a consumer either may stand in the header that
    Confluent's clients put it in. May be called from any thread.
    """

    reads_schema_id: Final = True

    @overload
    def __init__(
        self, schemas: SchemaLookup, reader: type[T], *, subject: str | None = None
    ) -> None: ...

    @overload
    def __init__(
        self: "AvroDeserializer[Any]",
        schemas: SchemaLookup,
        reader: Any = None,
        *,
        subject: str | None = None,
    ) -> None: ...

    def __init__(
        self, schemas: SchemaLookup, reader: Any = None, *, subject: str | None = None
    ) -> None:
        """Raises InvalidSchema, InvalidSubject."""
        self.schemas = schemas
        self.subject = subject
        context_of(subject)
        self._classes: Mapping[str, ValueFactory] | None = None
        if reader is None or isinstance(reader, str | Mapping | Sequence):
            self._reader = None if reader is None else canonical(reader)
        else:
            self._reader, self._classes = derive(reader)
        self._decoders: dict[bytes, Decode] = {}
        self._unknown: dict[bytes, tuple[float, str]] = {}

    def deserialize(self, topic: str, data: bytes, /) -> T:
        """As `__call__`: the topic does not matter."""
        return self(data)

    def __call__(self, data: bytes) -> T:
        """Raises SchemaNotFound for an unknown id, SerializationError, and errors of the look-up."""
        size = FRAME_GUID.size if data[:1] == b"\1" else FRAME.size
        decode = self._decoders.get(data[:size]) or self._prepare(data, size)
        try:
            value, end = decode(data, size)
        except BROKEN as error:
            raise _unreadable(data, str(to_mismatch(error))) from error
        if end != len(data):
            raise _unreadable(data, f"{len(data) - end} bytes are left over behind the value")
        return value  # type: ignore[no-any-return]

    def _prepare(self, data: bytes, size: int) -> Decode:
        """Return the schema named by the first `size` bytes."""
        number, frame = schema_id(data), data[:size]
        failed_at, message = self._unknown.get(frame, (-inf, ""))
        if monotonic() - failed_at < PATIENCE:
            raise _not_found(number, message)
        try:
            text = self.schemas.resolved(number, subject=self.subject)
            decode = decoder(text, self._reader, self._classes)
        except SchemaNotFound as error:
            _cache(self._unknown, frame, (monotonic(), str(error)))
            raise _not_found(number, str(error)) from error
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise _unreadable(data, f"its schema cannot be used: {error!r:.200}") from error
        _cache(self._decoders, frame, decode)
        return decode


def _cache(cache: dict[bytes, V], frame: bytes, value: V) -> None:
    while len(cache) >= MAX_CACHED:
        cache.pop(next(iter(cache)), None)
    cache[frame] = value


def _not_found(number: int | UUID, message: str) -> SchemaNotFound:
    error = SchemaNotFound(message)
    error.schema_id = number if isinstance(number, int) else None
    return error


def _unreadable(data: bytes, why: str) -> SerializationError:
    number = schema_id(data)
    error = SerializationError(f"the bytes are no value of schema {number}: {why}")
    error.schema_id = number if isinstance(number, int) else None
    return error
