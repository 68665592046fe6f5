"""Each client does against `folkmoot registry` what it does against the registry that it was written for."""

import json
from typing import Any, Final

import pytest

from folkmoot import AvroDeserializer, AvroSerializer, ColumnDeserializer
from folkmoot.protocol.errors import IncompatibleSchema
from folkmoot.schemas.avro.identity import canonical
from folkmoot.schemas.registry.schema_registry import SchemaRegistry
from folkmoot.schemas.values.wire import prepend_frames
from tests.foreign.client import Client
from tests.foreign.conftest import Start
from tests.foreign.table import CALLS, ONLY_HTTP, offering

pytestmark = pytest.mark.schemas

_NUMBER: Final = {"name": "number", "type": "long"}
_NOTE: Final = {"name": "note", "type": ["null", "string"], "default": None}
_KIND: Final = {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}


def record(*fields: Any, name: str = "Flight") -> str:
    return json.dumps({"type": "record", "name": name, "namespace": "air", "fields": fields})


FIRST: Final = record(_NUMBER)
SECOND: Final = record(_NUMBER, _NOTE)
THIRD: Final = record(_NUMBER, _NOTE, {"name": "late", "type": "boolean", "default": False})
# Nobody knows a value for what was written before.
UNREADABLE: Final = record(_NUMBER, {"name": "gate", "type": "string"})

WHOLE: Final = record(
    _NUMBER,
    {"name": "small", "type": "int"},
    {"name": "share", "type": "double"},
    {"name": "on_time", "type": "boolean"},
    {"name": "carrier", "type": "string"},
    _NOTE,
    {"name": "delay", "type": ["null", "long"], "default": None},
    {"name": "kind", "type": _KIND},
    {"name": "codes", "type": {"type": "array", "items": "string"}},
)
VALUE: Final = {
    "number": -(2**40),
    "small": 7,
    "share": 0.5,
    "on_time": True,
    "carrier": "Fluggesellschaft Süd",
    "note": None,
    "delay": None,
    "kind": "B",
    "codes": ["ä", ""],
}


def each_client(*calls: str) -> pytest.MarkDecorator:
    """With each client whose package has these calls."""
    return pytest.mark.parametrize("client", offering(*calls), indirect=True)


def code(client: Client, code: int) -> int:
    """The code of the registry's as that client tells it."""
    return int(str(code)[:3]) if client.name in ONLY_HTTP else code


def same(text: str, other: str) -> bool:
    return canonical(text) == canonical(other)


@each_client("register")
def test_what_a_client_registers_is_there_for_us_and_keeps_its_id(
    client: Client, subject: str, ours: SchemaRegistry
) -> None:
    number = client.call("register", subject=subject, schema=FIRST)
    assert client.call("register", subject=subject, schema=FIRST) == number
    assert client.call("register", subject=f"{subject}-b", schema=FIRST) == number
    found = ours.version(subject, "latest")
    assert (found.id, found.version, same(found.schema, FIRST)) == (number, 1, True)
    assert ours.lookup(f"{subject}-b", FIRST).id == number


@each_client("schema", "version")
def test_a_client_finds_what_we_registered(
    client: Client, subject: str, ours: SchemaRegistry
) -> None:
    for number, text in enumerate((FIRST, SECOND), start=1):
        made = ours.register(subject, text)
        told = client.call("version", subject=subject, version=number)
        assert told.get("id", made.id) == made.id
        assert same(told.get("schema", text), text)
        assert same(client.call("schema", id=made.id), text)


@each_client("lookup", "latest")
def test_a_client_looks_a_schema_up_by_its_text(
    client: Client, subject: str, ours: SchemaRegistry
) -> None:
    first, second = (ours.register(subject, each) for each in (FIRST, SECOND))
    for made, text in ((first, FIRST), (second, SECOND)):
        told = client.call("lookup", subject=subject, schema=text)
        assert told["id"] == made.id
        assert told.get("version", made.version) == made.version
    assert client.call("latest", subject=subject)["id"] == second.id


@each_client("lookup", "as given")
def test_a_client_is_told_whether_the_subject_or_the_schema_is_unknown(
    client: Client, subject: str, ours: SchemaRegistry
) -> None:
    unknown = {"subject": subject, "schema": FIRST}
    assert client.refusal("lookup", **unknown).code == 40401
    ours.register(subject, SECOND)
    assert client.refusal("lookup", **unknown).code == 40403
    assert client.refusal("version", subject=subject, version=2).code == 40402
    assert client.refusal("schema", id=2_000_000_000).code == 40403
    assert client.refusal("versions", subject=f"{subject}-b").code == 40401


@each_client("as given")
def test_a_client_is_told_what_is_no_schema(client: Client, subject: str) -> None:
    refused = client.refusal("register", subject=subject, schema='{"type": "recrod"}')
    assert refused.code == 42201


@each_client("register", "versions", "check", "lookup")
def test_a_schema_evolves(client: Client, subject: str) -> None:
    numbers = [client.call("register", subject=subject, schema=each) for each in (FIRST, SECOND)]
    assert client.call("check", subject=subject, schema=THIRD) is True
    numbers.append(client.call("register", subject=subject, schema=THIRD))
    assert len(set(numbers)) == 3
    assert client.call("versions", subject=subject) == [1, 2, 3]
    assert client.call("latest", subject=subject)["id"] == numbers[2]


@each_client("register")
def test_a_schema_that_cannot_read_the_last_one_is_refused(
    client: Client, subject: str, ours: SchemaRegistry
) -> None:
    client.call("register", subject=subject, schema=FIRST)
    refused = client.refusal("register", subject=subject, schema=UNREADABLE)
    assert refused.code == 409
    assert ours.versions(subject) == [1]
    with pytest.raises(IncompatibleSchema):
        ours.register(subject, UNREADABLE)


@each_client("check", "set_level", "level")
def test_a_level_that_a_client_sets_is_what_schemas_are_judged_by(
    client: Client, subject: str, ours: SchemaRegistry
) -> None:
    client.call("register", subject=subject, schema=FIRST)
    assert client.call("check", subject=subject, schema=UNREADABLE) is False
    assert client.call("set_level", subject=subject, level="NONE") == "NONE"
    assert client.call("level", subject=subject) == ours.compatibility(subject) == "NONE"
    assert client.call("check", subject=subject, schema=UNREADABLE) is True
    client.call("register", subject=subject, schema=UNREADABLE)
    assert ours.versions(subject) == [1, 2]


@each_client("level")
def test_a_client_asks_for_the_level_that_holds_for_all(
    client: Client, ours: SchemaRegistry
) -> None:
    assert client.call("level", subject=None if client.name != "franz-go/pkg/sr" else "") == (
        ours.compatibility()
    )


@each_client("mode", "set_mode")
def test_nothing_is_registered_in_a_subject_that_a_client_made_readonly(
    client: Client, subject: str, ours: SchemaRegistry
) -> None:
    assert client.call("set_mode", subject=subject, mode="READONLY") == "READONLY"
    assert client.call("mode", subject=subject) == ours.mode(subject) == "READONLY"
    assert client.refusal("register", subject=subject, schema=FIRST).code == 42205
    client.call("set_mode", subject=subject, mode="READWRITE")
    client.call("register", subject=subject, schema=FIRST)


@each_client("references", "write", "read")
def test_a_client_writes_and_reads_by_a_schema_with_references(
    client: Client, subject: str, ours: SchemaRegistry
) -> None:
    client.call("register", subject=subject, schema=json.dumps({**_KIND, "namespace": "air"}))
    reference = {"name": "air.Kind", "subject": subject, "version": 1}
    schema = record(_NUMBER, {"name": "kind", "type": "air.Kind"})
    value = {"number": 7, "kind": "B"}
    arguments = {"schema": schema, "references": [reference]}
    number = client.call("register", subject=f"{subject}-value", **arguments)
    assert ours.get(number).references[0].subject == subject
    assert json.loads(ours.resolved(number))["fields"][1]["type"]["symbols"] == ["A", "B"]
    if client.name != "franz-go/pkg/sr":  # which leaves the schemas behind references to its users
        data = client.call("write", topic=subject, value=value, **arguments)
        assert client.call("read", topic=subject, data=data) == value
        assert int(data[2:10], 16) == number


@each_client("referenced_by", "delete_version", "references")
def test_what_is_referred_to_is_not_deleted(client: Client, subject: str) -> None:
    client.call("register", subject=subject, schema=json.dumps({**_KIND, "namespace": "air"}))
    arguments = {
        "schema": record(_NUMBER, {"name": "kind", "type": "air.Kind"}),
        "references": [{"name": "air.Kind", "subject": subject, "version": 1}],
    }
    number = client.call("register", subject=f"{subject}-value", **arguments)
    assert client.call("referenced_by", subject=subject, version=1) == [number]
    refused = client.refusal("delete_version", subject=subject, version=1)
    assert refused.code == 42206


@each_client("delete_version", "delete_subject")
def test_what_a_client_deletes_is_no_longer_listed_and_can_still_be_read(
    client: Client, subject: str, ours: SchemaRegistry
) -> None:
    numbers = [ours.register(subject, each).id for each in (FIRST, SECOND)]
    assert client.call("delete_version", subject=subject, version=1) == 1
    assert ours.versions(subject) == client.call("versions", subject=subject) == [2]
    assert client.call("delete_subject", subject=subject) == [2]
    assert subject not in client.call("subjects")
    assert ours.versions(subject, deleted=True) == [1, 2]
    assert same(client.call("schema", id=numbers[0]), FIRST)
    assert ours.register(subject, THIRD).version == 3


@each_client("delete_version", "delete_subject", "permanent")
def test_a_client_deletes_softly_first_and_then_for_good(
    client: Client, subject: str, ours: SchemaRegistry
) -> None:
    for each in (FIRST, SECOND):
        ours.register(subject, each)
    one = {"subject": subject, "version": 1}
    assert client.refusal("delete_version", **one, permanent=True).code == 40407
    assert client.refusal("delete_subject", subject=subject, permanent=True).code == 40405
    client.call("delete_version", **one)
    assert client.refusal("delete_version", **one).code == 40406
    client.call("delete_subject", subject=subject)
    assert client.refusal("delete_subject", subject=subject).code == 40404
    client.call("delete_subject", subject=subject, permanent=True)
    assert client.refusal("delete_subject", subject=subject).code == 40401
    assert ours.register(subject, FIRST).version == 1


@each_client("any subject")
def test_a_subject_may_have_any_characters(
    client: Client, subject: str, ours: SchemaRegistry
) -> None:
    name = f"{subject} a/b?ü%2F-value"
    number = client.call("register", subject=name, schema=FIRST)
    assert ours.version(name, 1).id == number
    assert client.call("latest", subject=name)["id"] == number


@each_client("subjects", "versions")
def test_a_client_lists_subjects_and_versions(
    client: Client, subject: str, ours: SchemaRegistry
) -> None:
    for name, text in ((subject, FIRST), (subject, SECOND), (f"{subject}-b", FIRST)):
        ours.register(name, text)
    assert {subject, f"{subject}-b"} <= set(client.call("subjects"))
    assert client.call("versions", subject=subject) == [1, 2]


@each_client("versions_of")
def test_a_client_asks_where_an_id_is_used(
    client: Client, subject: str, ours: SchemaRegistry
) -> None:
    text = record(_NUMBER, name=f"R{subject}")
    number = ours.register(subject, text).id
    ours.register(f"{subject}-b", text)
    expected = [[subject, 1], [f"{subject}-b", 1]]
    assert sorted(client.call("versions_of", id=number)) == expected


@each_client("contexts", "subjects_of")
def test_a_client_sees_contexts_and_the_subjects_of_an_id(
    client: Client, subject: str, ours: SchemaRegistry
) -> None:
    text = record(_NUMBER, name=f"R{subject}")
    ours.register(f":.{subject}:{subject}", FIRST)
    assert {".", f".{subject}"} <= set(client.call("contexts"))
    number = ours.register(subject, text).id
    assert client.call("subjects_of", id=number) == [subject]


@pytest.mark.parametrize("text", [FIRST, WHOLE], ids=["small", "whole"])
def test_all_clients_and_we_read_what_each_of_us_has_written(
    text: str, start: Start, subject: str, ours: SchemaRegistry
) -> None:
    value = VALUE if text == WHOLE else {"number": 7}
    written = {"ours": AvroSerializer(ours, text).serialize(subject, value).hex()}
    clients = {name: start(name) for name in CALLS}
    for name, client in clients.items():
        written[name] = client.call("write", topic=subject, schema=text, value=value)
    number = ours.version(f"{subject}-value", "latest").id
    # Most write the same bytes; arrays may be written in blocks that say their length.
    for data in sorted(set(written.values())):
        assert data.startswith(f"00{number:08x}")
        assert AvroDeserializer(ours)(bytes.fromhex(data)) == value, written
        for name, client in clients.items():
            assert client.call("read", topic=subject, data=data) == value, (name, written)


@each_client("write_by_guid")
def test_a_client_writes_the_schemas_guid_into_a_header(
    client: Client, subject: str, ours: SchemaRegistry
) -> None:
    value = {"number": 7, "note": "longer than a prefix"}  # or the client takes it for none
    data, headers = client.call("write_by_guid", topic=subject, schema=SECOND, value=value)
    ((_, held),) = headers
    guid = ours.version(f"{subject}-value", 1).guid
    assert held == "01" + guid.replace("-", "")
    read = client.call("read_by_guid", topic=subject, data=data, headers=headers)
    assert read == value
    # As our consumers do it, one by one and in columns.
    row = tuple((name, bytes.fromhex(each)) for name, each in headers)
    (ours_to_read,) = prepend_frames("value", [bytes.fromhex(data)], [row])
    assert ours_to_read is not None
    assert AvroDeserializer(ours)(ours_to_read) == value
    assert ColumnDeserializer(ours, SECOND)([ours_to_read]).to_pylist() == [value]
