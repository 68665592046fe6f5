"""Python values to Avro bytes and back, in the wire format of `wire`."""

import struct
from collections.abc import Sequence
from io import BytesIO
from typing import Any, Final

from folkmoot.protocol.errors import InvalidSchema, SerializationError
from folkmoot.schemas.avro.extra import fastavro
from folkmoot.schemas.avro.identity import Schema, canonical, parse
from folkmoot.schemas.registry.schema_registry import SchemaRegistry
from folkmoot.schemas.values.wire import FRAME, MAGIC, schema_id

MAX_PARSED = 1_000
"""Schemas that a deserialiser keeps parsed; more are parsed again when they are needed."""

# What fastavro raises for a value that is none of its schema, and for bytes that are none.
_MISFITS = (
    *(ValueError, TypeError, KeyError, AttributeError, IndexError, ArithmeticError),
    *(EOFError, AssertionError, struct.error, StopIteration, RecursionError, MemoryError),
)


class AvroSerializer:
    """Values of one schema to bytes. The schema is registered at the first value.

    A value must have every field that has no default, and none that the schema has not. May be
    called from any thread.
    """

    writes_schema_id: Final = True

    def __init__(self, registry: SchemaRegistry, subject: str, schema: Schema) -> None:
        self.subject = subject
        self._registry = registry
        self._schema = schema
        self._ready: tuple[int, bytes, Any] | None = None

    @property
    def schema_id(self) -> int:
        """The id that values are written with. Raises InvalidSchema, InvalidName."""
        return self._prepared()[0]

    def __call__(self, value: Any) -> bytes:
        """Raises SerializationError for a value that does not fit the schema."""
        number, frame, parsed = self._ready or self._prepared()
        body = BytesIO()
        body.write(frame)
        try:
            fastavro.schemaless_writer(body, parsed, value, strict_allow_default=True)
        except _MISFITS as error:
            raise SerializationError(
                f"the value does not fit schema {number} of {self.subject}: {_said(error)}"
            ) from error
        return body.getvalue()

    def _prepared(self) -> tuple[int, bytes, Any]:
        if self._ready is None:
            text = canonical(self._schema)
            number = self._registry.register(self.subject, text).id
            self._ready = number, FRAME.pack(MAGIC, number), parse(text)
        return self._ready


class AvroDeserializer:
    """Bytes to the values that were written, each with the schema it was written with.

    Schemas are looked up by the id in front of every value, once each. May be called from any
    thread.
    """

    def __init__(self, registry: SchemaRegistry) -> None:
        self._registry = registry
        self._parsed: dict[int, Any] = {}

    def __call__(self, value: bytes) -> Any:
        """Raises SchemaNotFound, SerializationError."""
        return self.decode_values((value,))[0]

    def decode_values(self, values: Sequence[bytes]) -> list[Any]:
        """A column of values; as long as the id stays the same, its schema is looked up once.

        Raises SchemaNotFound, SerializationError: one value that cannot be read is an error of all.
        """
        decoded = []
        frame: bytes | None = None
        schema: Any = None
        for value in values:
            if value[: FRAME.size] != frame:
                schema = self._schema(schema_id(value))
                frame = value[: FRAME.size]
            body = BytesIO(value)
            body.seek(FRAME.size)
            try:
                decoded.append(fastavro.schemaless_reader(body, schema, None))
            except _MISFITS as error:
                raise SerializationError(
                    f"the bytes are no value of schema {schema_id(value)}: {_said(error)}"
                ) from error
            if body.tell() != len(value):
                raise SerializationError(
                    f"{len(value) - body.tell()} bytes are left over behind a value of schema "
                    f"{schema_id(value)}"
                )
        return decoded

    def _schema(self, number: int) -> Any:
        parsed = self._parsed.get(number)
        if parsed is None:
            try:
                parsed = parse(self._registry.resolved(number))
            except InvalidSchema as error:
                raise SerializationError(f"schema {number} cannot be used: {error}") from error
            while len(self._parsed) >= MAX_PARSED:
                self._parsed.pop(next(iter(self._parsed)), None)
            self._parsed[number] = parsed
        return parsed


def _said(error: BaseException) -> str:
    """An error of another library in one line of bounded length."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]}" if text else type(error).__name__
