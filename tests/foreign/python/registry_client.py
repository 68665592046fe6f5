"""`python-schema-registry-client`: python registry_client.py URL"""

import json
import sys
from typing import Any

import httpx
from line import answer
from schema_registry.client import SchemaRegistryClient
from schema_registry.client.errors import ClientError
from schema_registry.client.schema import AvroSchema
from schema_registry.serializers import AvroMessageSerializer


class Calls:
    def __init__(self) -> None:
        patient = httpx.Timeout(60.0)  # its own waits for five seconds
        self.client = SchemaRegistryClient(url=sys.argv[1], timeout=patient)
        self.serializer = AvroMessageSerializer(self.client)

    def register(self, subject: str, schema: str) -> Any:
        return self.client.register(subject, AvroSchema(schema))

    def lookup(self, subject: str, schema: str) -> Any:
        """None where the registry says 404."""
        found = self.client.check_version(subject, AvroSchema(schema))
        return found and {"id": found.schema_id, "version": found.version}

    def schema(self, id: int) -> Any:
        found = self.client.get_by_id(id)
        return found and json.dumps(found.raw_schema)

    def latest(self, subject: str) -> Any:
        return version(self.client.get_schema(subject))

    def version(self, subject: str, version: int) -> Any:
        return globals()["version"](self.client.get_schema(subject, version))

    def versions(self, subject: str) -> Any:
        return self.client.get_versions(subject)

    def subjects(self) -> Any:
        return self.client.get_subjects()

    def versions_of(self, id: int) -> Any:
        return [[e.subject, e.version] for e in self.client.get_schema_subject_versions(id) or ()]

    def check(self, subject: str, schema: str) -> Any:
        return self.client.test_compatibility(subject, AvroSchema(schema))

    def level(self, subject: str | None) -> Any:
        return self.client.get_compatibility(subject)

    def set_level(self, subject: str, level: str) -> Any:
        return self.client.update_compatibility(level, subject) and level

    def delete_version(self, subject: str, version: int) -> Any:
        return self.client.delete_version(subject, version)

    def delete_subject(self, subject: str) -> Any:
        return self.client.delete_subject(subject)

    def write(self, topic: str, schema: str, value: Any) -> Any:
        subject = f"{topic}-value"
        return self.serializer.encode_record_with_schema(subject, AvroSchema(schema), value).hex()

    def read(self, topic: str, data: str) -> Any:
        return self.serializer.decode_message(bytes.fromhex(data))


def version(found: Any) -> Any:
    return found and {
        "id": found.schema_id,
        "version": found.version,
        "schema": json.dumps(found.schema.raw_schema),
    }


def code(error: Exception) -> Any:
    """What the registry said, or only HTTP's code where the client keeps nothing else."""
    if not isinstance(error, ClientError):
        return None
    said = error.server_traceback
    return said.get("error_code") if isinstance(said, dict) else error.http_code


answer(Calls(), code)
