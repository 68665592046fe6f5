"""Avro values in Confluent's wire format, over a registry in memory."""

from collections.abc import Callable
from functools import partial
from typing import Any
from uuid import UUID

import fastavro
import pytest

from folkmoot.protocol.errors import InvalidSubject, SchemaNotFound, SerializationError
from folkmoot.schemas.registry.schema_registry import SchemaRegistry
from folkmoot.schemas.values import deserializer
from folkmoot.schemas.values.deserializer import AvroDeserializer
from folkmoot.schemas.values.serializer import AvroSerializer
from folkmoot.schemas.values.wire import schema_id
from tests.schemas.sessions import CountingSession

PERSON = {
    "type": "record",
    "name": "Person",
    "fields": [
        {"name": "name", "type": "string"},
        {"name": "age", "type": ["null", "int"], "default": None},
    ],
}
ADA = {"name": "Ada", "age": 36}


def person(registry: SchemaRegistry) -> Callable[[Any], bytes]:
    return partial(AvroSerializer(registry, PERSON).serialize, "people")


def test_a_value_is_byte_0_then_the_id_then_the_avro_body(registry: SchemaRegistry) -> None:
    serializer = AvroSerializer(registry, {"type": "record", "name": "A", "fields": [
        {"name": "x", "type": "string"}]})  # fmt: skip
    assert serializer.serialize("t", {"x": "a"}) == bytes.fromhex("00 00000001 02 61")
    assert serializer.prepare("t") == 1


def test_what_was_written_is_read(registry: SchemaRegistry) -> None:
    value = person(registry)(ADA)
    assert AvroDeserializer(registry)(value) == ADA


def test_a_field_with_a_default_may_be_missing(registry: SchemaRegistry) -> None:
    value = person(registry)({"name": "Ada"})
    assert AvroDeserializer(registry)(value) == {"name": "Ada", "age": None}


@pytest.mark.parametrize(
    "value",
    [
        {"age": 3},
        {"name": "Ada", "height": 170},
        {"name": 3},
        {"name": "Ada", "age": "old"},
        {"name": "Ada", "age": 2**40},
        {"name": "\ud800"},
        None,
        "Ada",
        7,
    ],
)
def test_a_value_that_does_not_fit_is_refused_in_one_line(
    registry: SchemaRegistry, value: Any
) -> None:
    with pytest.raises(
        SerializationError, match=r"does not fit schema 1 of people-value"
    ) as refusal:
        person(registry)(value)
    assert "\n" not in str(refusal.value)


def test_an_id_that_names_nothing_is_schema_not_found(registry: SchemaRegistry) -> None:
    with pytest.raises(SchemaNotFound, match="77"):
        AvroDeserializer(registry)(bytes.fromhex("00 0000004d 02 61"))


@pytest.mark.parametrize(
    ("value", "reason"),
    [(b"", "0 bytes are too few"), (b"\0\0\0\0", "too few"), (b'{"a": 1}', "begins with byte 0")],
)
def test_bytes_that_are_not_the_wire_format_are_refused(
    registry: SchemaRegistry, value: bytes, reason: str
) -> None:
    with pytest.raises(SerializationError, match=reason):
        AvroDeserializer(registry)(value)


def test_every_cut_and_every_extension_of_a_value_is_refused(registry: SchemaRegistry) -> None:
    value = person(registry)(ADA)
    deserialize = AvroDeserializer(registry)
    for wrong in [*(value[:length] for length in range(len(value))), value + b"\0"]:
        with pytest.raises(SerializationError):
            deserialize(wrong)


def test_no_damage_to_a_value_raises_anything_else(registry: SchemaRegistry) -> None:
    value = person(registry)(ADA)
    deserialize = AvroDeserializer(registry)
    for position in range(len(value)):
        for byte in range(256):
            damaged = value[:position] + bytes([byte]) + value[position + 1 :]
            try:
                deserialize(damaged)
            except (SerializationError, SchemaNotFound):
                continue


def test_values_of_one_schema_cost_one_look_up(
    registry: SchemaRegistry, session: CountingSession
) -> None:
    value = person(registry)(ADA)
    session.asked = 0
    fresh = AvroDeserializer(SchemaRegistry(session))
    assert fresh(value) == ADA
    asked = session.asked
    assert [fresh(value) for _ in range(500)] == [ADA] * 500
    assert session.asked == asked > 0


def test_what_nobody_knows_is_asked_for_once_a_second(
    registry: SchemaRegistry, session: CountingSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(deserializer, "monotonic", lambda: now[0])
    read, stranger = AvroDeserializer(registry), bytes.fromhex("00 00000001 06 416461 00")
    for _ in range(500):
        with pytest.raises(SchemaNotFound, match="id 1 ") as raised:
            read(stranger)
        assert raised.value.schema_id == 1
    asked, session.asked = session.asked, 0
    assert 0 < asked < 10
    person(registry)(ADA)
    now[0] += deserializer.PATIENCE
    assert read(stranger) == {"name": "Ada", "age": None}


def test_a_value_may_say_its_schemas_guid(
    registry: SchemaRegistry, session: CountingSession
) -> None:
    value = person(registry)(ADA)
    guid = UUID(registry.version("people-value", 1).guid)
    read = AvroDeserializer(SchemaRegistry(session))
    assert read(b"\1" + guid.bytes + value[5:]) == ADA
    session.asked = 0
    assert read(b"\1" + guid.bytes + value[5:]) == ADA
    assert session.asked == 0
    for wrong in (b"\1", b"\1" + guid.bytes[:-1], b"\1" + guid.bytes + value[5:] + b"\0"):
        with pytest.raises(SerializationError, match=r"too few|left over"):
            read(wrong)
    other = UUID(int=guid.int ^ 1)  # it begins alike
    with pytest.raises(SchemaNotFound, match=str(other)) as raised:
        read(b"\1" + other.bytes + value[5:])
    assert raised.value.schema_id is None


def test_ids_are_those_of_a_context(registry: SchemaRegistry) -> None:
    registry.register("other", '"long"')
    staging: AvroSerializer[Any] = AvroSerializer(registry, PERSON, subject=":.staging:")
    value = staging.serialize("people", ADA)
    assert registry.subjects(":.staging:") == [":.staging:people-value"]
    assert value[:5] == bytes.fromhex("00 00000001")  # as the other context's
    assert AvroDeserializer(registry, subject=":.staging:")(value) == ADA
    with pytest.raises(SerializationError, match="schema 1: "):
        AvroDeserializer(registry)(value)
    by_id: AvroSerializer[Any] = AvroSerializer(registry, id=1, subject=":.staging:")
    assert by_id.serialize("t", ADA) == value
    with pytest.raises(InvalidSubject):
        AvroDeserializer(registry, subject=":.staging")


def test_a_text_that_is_no_schema_is_a_serialization_error() -> None:
    class Lookup:
        def resolved(self, id: int | UUID, *, subject: str | None = None) -> str:
            return '{"type":"array"}'

    with pytest.raises(SerializationError, match="schema 7: its schema cannot"):
        AvroDeserializer(Lookup())(b"\0\0\0\0\7\2")


def test_the_id_of_a_value_is_told_without_reading_it() -> None:
    assert schema_id(bytes.fromhex("00 ffffffff")) == 2**32 - 1


def test_bodies_are_what_fastavro_writes(registry: SchemaRegistry) -> None:
    from io import BytesIO

    body = BytesIO()
    fastavro.schemaless_writer(body, fastavro.parse_schema(PERSON), ADA)
    assert person(registry)(ADA)[5:] == body.getvalue()
