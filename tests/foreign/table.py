"""Which client has which calls: what its package offers, whatever the registry would answer."""

from typing import Final

_SMALL: Final = frozenset({"register", "schema", "version", "write", "read"})
_LOOKS: Final = frozenset(
    {"lookup", "latest", "versions", "subjects", "check", "level", "set_level"}
)
_DELETIONS: Final = frozenset({"delete_version", "delete_subject"})
_MORE: Final = frozenset(
    {"subjects_of", "versions_of", "referenced_by", "mode", "set_mode", "contexts"}
)
# A soft deletion is all that python-schema-registry-client asks for; versions of deleted subjects, references
# and contexts are unknown to it.
_FOR_GOOD: Final = frozenset({"permanent"})
_REFERENCES: Final = frozenset({"references"})
# Sends what it was given, and leaves it to the registry to say that it is no schema.
_AS_GIVEN: Final = frozenset({"as given"})
# Percent-encodes what has slashes or blanks.
_ANY: Final = frozenset({"any subject"})
_BY_GUID: Final = frozenset({"write_by_guid"})

_CONFLUENT: Final = (
    _SMALL | _LOOKS | _DELETIONS | _MORE | _FOR_GOOD | _REFERENCES | _AS_GIVEN | _ANY | _BY_GUID
)

CALLS: Final[dict[str, frozenset[str]]] = {
    "confluent-kafka": _CONFLUENT,
    "confluent-kafka, asyncio": _CONFLUENT,
    "python-schema-registry-client": _SMALL | _LOOKS | _DELETIONS | {"versions_of"},
    "@kafkajs/confluent-schema-registry": _SMALL | {"lookup", "latest"} | _REFERENCES | _ANY,
    "@confluentinc/schemaregistry": (
        _SMALL | _LOOKS | _DELETIONS | _FOR_GOOD | _REFERENCES | _AS_GIVEN | _ANY | _BY_GUID
    ),
    "spring-cloud-schema-registry-client": _SMALL | _AS_GIVEN,
    "franz-go/pkg/sr": (
        _SMALL | _LOOKS | _DELETIONS | _MORE | _FOR_GOOD | _REFERENCES | _AS_GIVEN | _ANY
    ),
}

ONLY_HTTP: Final = frozenset({"@kafkajs/confluent-schema-registry"})
"""These tell HTTP's code and the registry's message, and not the registry's code."""


def offering(*calls: str) -> list[str]:
    return [name for name, offered in CALLS.items() if offered >= set(calls)]


ROWS: Final = {
    "register": "register",
    "a version, a schema by its id": "version",
    "write and read values": "write",
    "look up by text": "lookup",
    "the latest version": "latest",
    "schemas with references": "references",
    "lists of subjects and versions": "versions",
    "check": "check",
    "level: show and set": "set_level",
    "mode: show and set": "set_mode",
    "delete softly": "delete_subject",
    "delete for good": "permanent",
    "subjects and versions of an id": "versions_of",
    "who refers to a version": "referenced_by",
    "contexts": "contexts",
    "subjects with slashes, blanks, anything": "any subject",
    "the schema's GUID in a header": "write_by_guid",
}
"""Lines of the table in docs/schemas.md, and the call that each is about."""
