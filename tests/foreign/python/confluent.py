"""`confluent_kafka.schema_registry`, synchronous or on asyncio: python confluent.py URL sync|async"""

import asyncio
import inspect
import sys
from typing import Any

from confluent_kafka import schema_registry
from confluent_kafka.schema_registry import (
    ConfigCompatibilityLevel,
    Schema,
    SchemaReference,
    ServerConfig,
    avro,
    header_schema_id_serializer,
)
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.serialization import MessageField, SerializationContext
from line import answer

URL, HALF = sys.argv[1:]
PREFIX = "Async" if HALF == "async" else ""
LOOP = asyncio.new_event_loop()


def done(value: Any) -> Any:
    """What a method returns in the one half, and what is awaited in the other."""
    return LOOP.run_until_complete(value) if inspect.isawaitable(value) else value


class Calls:
    def __init__(self) -> None:
        self.client = getattr(schema_registry, f"{PREFIX}SchemaRegistryClient")({"url": URL})
        self.deserializer = done(getattr(avro, f"{PREFIX}AvroDeserializer")(self.client))

    def register(self, subject: str, schema: str, references: Any = ()) -> Any:
        return done(self.client.register_schema(subject, made(schema, references)))

    def lookup(self, subject: str, schema: str, references: Any = ()) -> Any:
        return version(done(self.client.lookup_schema(subject, made(schema, references))))

    def schema(self, id: int) -> Any:
        return done(self.client.get_schema(id)).schema_str

    def latest(self, subject: str) -> Any:
        return version(done(self.client.get_latest_version(subject)))

    def version(self, subject: str, version: int) -> Any:
        return globals()["version"](done(self.client.get_version(subject, version)))

    def versions(self, subject: str) -> Any:
        return done(self.client.get_versions(subject))

    def subjects(self) -> Any:
        return done(self.client.get_subjects())

    def subjects_of(self, id: int) -> Any:
        return done(self.client.get_subjects_by_schema_id(id))

    def versions_of(self, id: int) -> Any:
        return [[e.subject, e.version] for e in done(self.client.get_schema_versions(id))]

    def referenced_by(self, subject: str, version: int) -> Any:
        return done(self.client.get_referenced_by(subject, version))

    def check(self, subject: str, schema: str) -> Any:
        return done(self.client.test_compatibility(subject, made(schema)))

    def level(self, subject: str | None) -> Any:
        return done(self.client.get_compatibility(subject))

    def set_level(self, subject: str, level: str) -> Any:
        wanted = ServerConfig(compatibility=ConfigCompatibilityLevel(level))
        return done(self.client.set_config(subject, wanted))["compatibility"]

    def mode(self, subject: str) -> Any:
        return done(self.client.get_mode(subject))

    def set_mode(self, subject: str, mode: str) -> Any:
        return done(self.client.update_mode(subject, mode))

    def delete_version(self, subject: str, version: int, permanent: bool = False) -> Any:
        return done(self.client.delete_version(subject, version, permanent))

    def delete_subject(self, subject: str, permanent: bool = False) -> Any:
        return done(self.client.delete_subject(subject, permanent))

    def contexts(self) -> Any:
        return done(self.client.get_contexts())

    def write(self, topic: str, schema: str, value: Any, references: Any = ()) -> Any:
        serializer = done(
            getattr(avro, f"{PREFIX}AvroSerializer")(self.client, made(schema, references))
        )
        return done(serializer(value, SerializationContext(topic, MessageField.VALUE))).hex()

    def write_by_guid(self, topic: str, schema: str, value: Any) -> Any:
        """The schema's UUID stands in a header, and nothing of it in the value."""
        context = SerializationContext(topic, MessageField.VALUE, [])
        conf = {"schema.id.serializer": header_schema_id_serializer}
        make = getattr(avro, f"{PREFIX}AvroSerializer")
        data = done(done(make(self.client, made(schema), conf=conf))(value, context))
        return [data.hex(), [[name, held.hex()] for name, held in context.headers]]

    def read_by_guid(self, topic: str, data: str, headers: Any) -> Any:
        held = [(name, bytes.fromhex(text)) for name, text in headers]
        context = SerializationContext(topic, MessageField.VALUE, held)
        return done(self.deserializer(bytes.fromhex(data), context))

    def read(self, topic: str, data: str) -> Any:
        context = SerializationContext(topic, MessageField.VALUE)
        return done(self.deserializer(bytes.fromhex(data), context))


def made(schema: str, references: Any = ()) -> Schema:
    named = [SchemaReference(e["name"], e["subject"], e["version"]) for e in references]
    return Schema(schema, "AVRO", named)


def version(found: Any) -> Any:
    return {"id": found.schema_id, "version": found.version, "schema": found.schema.schema_str}


answer(Calls(), lambda error: error.error_code if isinstance(error, SchemaRegistryError) else None)
