"""The nodes of the registry, and their limits."""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from folkmoot.coordination.schemas.names import SubjectName, parse_subject
from folkmoot.coordination.schemas.versions import Reference
from folkmoot.protocol.errors import InvalidSchema

MAX_CONTENT_BYTES = 800_000
"""Limit of a schema with its references, metadata and rules as JSON: ZooKeeper takes a megabyte a request."""
MAX_DEPTH = 100
"""Limit of the nesting of metadata and rules, so that every reader can parse them."""
MAX_NUMBER = 2**31 - 1
"""Limit of ids and versions: clients use signed 32-bit integers."""
MAX_VERSIONS = 5_000
"""Limit of a subject's versions: one node has them all, and is written together with a new schema."""


class StoredReference(Struct, frozen=True, array_like=True):
    """A reference with the version and id that it meant when it was made."""

    name: str
    subject: str
    version: int
    id: int

    def resolve(self, context: str) -> SubjectName:
        """Return the subject that a schema in `context` refers to."""
        return parse_subject(self.subject, context)


class Content(Struct, frozen=True, omit_defaults=True):
    """An id's node."""

    schema: str
    guid: str
    references: tuple[StoredReference, ...] = ()
    metadata: dict[str, Any] | None = None
    rule_set: dict[str, Any] | None = None

    def plain_references(self) -> tuple[Reference, ...]:
        return tuple(Reference(each.name, each.subject, each.version) for each in self.references)


class Number(Struct, frozen=True):
    """A guid's node: its id in this context."""

    id: int


class Counter(Struct, frozen=True):
    """The counter's node: the highest id."""

    last: int


class Version(Struct, frozen=True, array_like=True):
    """A version of a subject; `refers` if its schema has references."""

    version: int
    id: int
    deleted: bool = False
    refers: bool = False


class Settings(Struct, frozen=True, omit_defaults=True):
    """Settings of a context, or global ones."""

    compatibility: str | None = None
    mode: str | None = None


class Subject(Settings, frozen=True, omit_defaults=True):
    """A subject's node: its versions, lowest first, and its settings."""

    versions: tuple[Version, ...] = ()

    def live(self) -> list[Version]:
        return [each for each in self.versions if not each.deleted]

    def with_versions(self, versions: Sequence[Version]) -> "Subject":
        ordered = tuple(sorted(versions, key=lambda each: each.version))
        return msgspec.structs.replace(self, versions=ordered)


encode = msgspec.json.encode
content_decoder = msgspec.json.Decoder(Content)
number_decoder = msgspec.json.Decoder(Number)
counter_decoder = msgspec.json.Decoder(Counter)
settings_decoder = msgspec.json.Decoder(Settings)
subject_decoder = msgspec.json.Decoder(Subject)


def encode_content(content: Content) -> bytes:
    """Encode an id's node. Raises InvalidSchema if it is too large or no JSON."""
    for what, value in (("metadata", content.metadata), ("rule set", content.rule_set)):
        if not _is_flat(value, MAX_DEPTH):
            raise InvalidSchema(f"the schema's {what} is nested more than {MAX_DEPTH} deep")
    try:
        data = encode(content)
        faithful = content_decoder.decode(data) == content
    except (UnicodeEncodeError, TypeError, ValueError, msgspec.MsgspecError) as error:
        raise InvalidSchema(f"the schema cannot be stored as JSON: {error}") from None
    if not faithful:
        raise InvalidSchema("the schema's metadata or rule set is not a JSON object")
    if len(data) > MAX_CONTENT_BYTES:
        raise InvalidSchema(
            f"the schema takes {len(data)} bytes to store, more than {MAX_CONTENT_BYTES}: "
            "split it, or shorten its documentation"
        )
    return data


def _is_flat(value: Any, depth: int) -> bool:
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list | tuple):
        return True
    return depth > 0 and all(_is_flat(each, depth - 1) for each in value)
