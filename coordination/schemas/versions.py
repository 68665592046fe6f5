"""What the registry has of a schema, as it is handed out."""

from typing import Any

from msgspec import Struct


class Reference(Struct, frozen=True):
    """A type of another schema that a schema uses: its full name, and the version that defines it."""

    name: str
    subject: str
    version: int


class StoredSchema(Struct, frozen=True):
    """A schema by its id. `schema` is the text as it was given first; it never changes.

    `guid` is a UUID made of all that makes a schema the same schema, the same in every context.
    `metadata` and `rule_set` are JSON objects that the registry keeps and does not interpret.
    """

    id: int
    schema: str
    references: tuple[Reference, ...] = ()
    metadata: dict[str, Any] | None = None
    rule_set: dict[str, Any] | None = None
    guid: str = ""


class SchemaVersion(Struct, frozen=True):
    """A schema as a version of a subject; `deleted`: softly, it can still be read by its id."""

    subject: str
    version: int
    id: int
    schema: str
    references: tuple[Reference, ...] = ()
    metadata: dict[str, Any] | None = None
    rule_set: dict[str, Any] | None = None
    guid: str = ""
    deleted: bool = False
