"""Schemas and versions as the registry returns them."""

from typing import Any

from msgspec import Struct


class Reference(Struct, frozen=True):
    """A type of another schema that a schema uses: its full name, and the version that defines it."""

    name: str
    subject: str
    version: int


class StoredSchema(Struct, frozen=True):
    """A schema by its id. `schema` is the text that was registered first; it never changes.

    `guid` is a UUID of the schema's identity, the same in every context. The registry does not interpret
    the JSON objects `metadata` and `rule_set`.
    """

    id: int
    schema: str
    references: tuple[Reference, ...] = ()
    metadata: dict[str, Any] | None = None
    rule_set: dict[str, Any] | None = None
    guid: str = ""


class SchemaVersion(Struct, frozen=True):
    """A schema as a version of a subject; if it is softly `deleted` it can still be read by its id."""

    subject: str
    version: int
    id: int
    schema: str
    references: tuple[Reference, ...] = ()
    metadata: dict[str, Any] | None = None
    rule_set: dict[str, Any] | None = None
    guid: str = ""
    deleted: bool = False
