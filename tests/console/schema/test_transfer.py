"""`folkmoot schema export` and `import`: ids and versions stay what they are."""

import json
import signal
from typing import Any

import pytest

from folkmoot.console.schema import transfer
from folkmoot.console.schema.registries import LocalRegistry
from folkmoot.coordination.schemas.versions import Reference, SchemaVersion
from folkmoot.protocol.errors import RegistryError
from folkmoot.schemas.registry import schema_registry
from folkmoot.schemas.registry.schema_registry import SchemaRegistry
from tests.console.schema.conftest import GATE, NOTE, NUMBER, Terminal, record
from tests.memory_zookeeper import MemoryZooKeeper

KIND = json.dumps({"type": "enum", "name": "Kind", "symbols": ["A", "B"]})


def fill(registry: SchemaRegistry) -> None:
    """Subjects with references, gaps among ids, deleted versions, a level of their own."""
    registry.register("zebra", KIND)
    registry.register("flights", record(NUMBER))
    registry.register("gone", record(GATE))
    registry.delete_subject("gone")
    registry.delete_subject("gone", permanent=True)
    registry.register(
        "flights",
        record(NUMBER, NOTE, {"name": "kind", "type": ["null", "Kind"], "default": None}),
        references=[Reference("Kind", "zebra", 1)],
    )
    registry.delete_version("flights", 1)
    registry.register("planes", record(NUMBER))
    registry.set_compatibility("FULL", "planes")


def all_of(registry: SchemaRegistry) -> transfer.Schemas:
    return transfer.collect(LocalRegistry(registry), "")


def test_schemas_go_through_a_file_into_another_cluster(terminal: Terminal) -> None:
    fill(terminal.registry())
    before = all_of(terminal.registry())
    file = str(terminal.path("schemas.jsonl"))
    assert terminal.done("export", file) == "copied 4 versions; 0 were there\n"
    terminal.ensemble = MemoryZooKeeper()
    assert terminal.done("import", file) == "copied 4 versions; 0 were there\n"
    assert all_of(terminal.registry()) == before
    assert terminal.done("import", file) == "copied 0 versions; 4 were there\n"
    assert all_of(terminal.registry()) == before
    assert terminal.done("mode", "flights") == "READWRITE\n"
    # Numbers go on behind what was imported.
    made = terminal.registry().register("new", record(GATE, name="New"))
    assert made.id > max(each.id for each in before.versions)


def test_a_copy_that_is_told_to_end_opens_its_subjects_again(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(terminal.registry())
    file = str(terminal.path("schemas.jsonl"))
    terminal.done("export", file)
    terminal.ensemble = MemoryZooKeeper()

    def put(place: LocalRegistry, each: SchemaVersion) -> None:
        assert callable(signal.getsignal(signal.SIGTERM)), "it would end at once"
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(LocalRegistry, "put", put)
    assert terminal.run("import", file)[0] == 130
    assert terminal.done("mode", "flights") == "READWRITE\n"


def test_a_copy_that_is_interrupted_while_it_closes_a_subject_opens_it_again(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(terminal.registry())
    file = str(terminal.path("schemas.jsonl"))
    terminal.done("export", file)
    terminal.ensemble = MemoryZooKeeper()
    set_mode = LocalRegistry.set_mode

    def interrupted(
        place: LocalRegistry, subject: str, mode: str | None, *, force: bool = False
    ) -> None:
        set_mode(place, subject, mode, force=force)
        if mode == "IMPORT":
            raise KeyboardInterrupt

    monkeypatch.setattr(LocalRegistry, "set_mode", interrupted)
    assert terminal.run("import", file)[0] == 130
    assert terminal.done("mode", "flights") == "READWRITE\n"


def test_a_subject_that_a_killed_copy_has_left_closed_is_named_by_the_next(
    terminal: Terminal,
) -> None:
    fill(terminal.registry())
    file = str(terminal.path("schemas.jsonl"))
    terminal.done("export", file)
    terminal.registry().set_mode("IMPORT", "planes", force=True)
    _, out, said = terminal.run("import", file)
    assert out == "copied 0 versions; 4 were there\n"
    assert "planes is in mode IMPORT" in said
    assert "`folkmoot schema mode planes --unset`" in said
    terminal.done("mode", "planes", "--unset")
    assert terminal.run("import", file)[2] == ""


def test_what_subjects_refer_to_comes_along(terminal: Terminal) -> None:
    fill(terminal.registry())
    file = str(terminal.path("schemas.jsonl"))
    terminal.done("export", file, "--prefix", "fl")
    terminal.ensemble = MemoryZooKeeper()
    terminal.done("import", file)
    assert [each["subject"] for each in terminal.told("list")] == ["flights", "zebra"]


def test_an_id_that_names_another_schema_is_found_before_anything_is_written(
    terminal: Terminal,
) -> None:
    fill(terminal.registry())
    file = str(terminal.path("schemas.jsonl"))
    terminal.done("export", file)
    terminal.ensemble = MemoryZooKeeper()
    terminal.registry().register("other", record(GATE))
    said = terminal.refused(1, "import", file)
    assert "1 is another schema" in said
    assert [each["subject"] for each in terminal.told("list")] == ["other"]


def test_a_version_that_is_another_schema_is_found_before_anything_is_written(
    terminal: Terminal,
) -> None:
    fill(terminal.registry())
    file = str(terminal.path("schemas.jsonl"))
    terminal.done("export", file)
    terminal.ensemble = MemoryZooKeeper()
    registry = terminal.registry()
    registry.set_mode("IMPORT")
    registry.register("planes", record(GATE), id=99, version=1)
    registry.delete_mode()
    assert "that version is the schema 99" in terminal.refused(1, "import", file)
    assert [each["subject"] for each in terminal.told("list")] == ["planes"]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("{", "line 2"),
        ("[]", "line 2"),
        ('{"subject": "s"}', "line 2"),
        ('{"subject": "s", "version": 1, "id": 1, "schema": 7}', "line 2"),
        (
            '{"subject": "s", "version": 1, "id": 1, "schema": "x", "schemaType": "JSON"}',
            "type JSON: only AVRO",
        ),
        (
            '{"subject": "s", "version": 2, "id": 2, "schema": "\\"int\\"", "references": '
            '[{"name": "R", "subject": "r", "version": 1}]}',
            "s version 2 refers to r version 1, which is missing",
        ),
        (
            '{"subject": "s", "version": 2, "id": 2, "schema": "\\"int\\"", "references": '
            '[{"name": "R", "subject": "s", "version": 2}]}',
            "s version 2 refers to itself",
        ),
    ],
)
def test_a_file_that_is_wrong_changes_nothing(line: str, sentence: str, terminal: Terminal) -> None:
    first = json.dumps({"subject": "s", "version": 1, "id": 1, "schema": '"long"'})
    file = terminal.file(f"{first}\n{line}\n", "schemas.jsonl")
    assert sentence in terminal.refused(1, "import", file)
    assert terminal.told("list", "--deleted") == []


def test_versions_come_behind_what_they_refer_to_and_their_subjects_earlier_ones() -> None:
    versions = [
        SchemaVersion("a", 1, 5, "x", (Reference("R", "b", 2),)),
        SchemaVersion("b", 2, 4, "x"),
        SchemaVersion("b", 1, 9, "x", (Reference("R", "c", 1),)),
        SchemaVersion("c", 1, 3, "x"),
    ]
    found = [(each.subject, each.version) for each in transfer.sort_versions(versions)]
    assert found == [("c", 1), ("b", 1), ("b", 2), ("a", 1)]
    with pytest.raises(RegistryError, match="refers to itself"):
        transfer.sort_versions([SchemaVersion("a", 1, 5, "x", (Reference("R", "a", 1),))])


@pytest.mark.parametrize("command", [["export", "FILE"], ["versions", "s"], ["list"]])
def test_many_versions_are_read_side_by_side(
    command: list[str], terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = terminal.registry()
    registry.set_compatibility("NONE")
    for number in range(50):
        registry.register("s", record(NUMBER, name=f"S{number}"))
        registry.register(f"s{number}", record(NUMBER))
    waits = 0
    for name in ("execute", "execute_all"):
        carry_out = getattr(schema_registry, name)

        def counted(*args: Any, carry_out: Any = carry_out, **options: Any) -> Any:
            nonlocal waits
            waits += 1
            return carry_out(*args, **options)

        monkeypatch.setattr(schema_registry, name, counted)
    terminal.done(*(word.replace("FILE", str(terminal.path("f"))) for word in command))
    assert waits <= 5


def line(subject: str, number: int, schema: str, **more: Any) -> str:
    return json.dumps({"subject": subject, "version": 1, "id": number, "schema": schema, **more})


BAD_UUID = {"name": "id", "type": {"type": "string", "logicalType": "uuid"}, "default": ""}
BAD_INT = {"name": "n", "type": "int", "default": ""}
WITH_INVALID = "\n".join(
    [
        line("good", 1, record(NUMBER)),
        line("uuid", 2, record(BAD_UUID, name="Uuid")),
        line("int", 3, record(BAD_INT, name="Int")),
        line("user", 4, '"Uuid"', references=[{"name": "Uuid", "subject": "uuid", "version": 1}]),
    ]
)


def test_an_import_checks_all_schemas_before_it_writes_one(terminal: Terminal) -> None:
    file = terminal.file(WITH_INVALID, "schemas.jsonl")
    message = terminal.refused(1, "import", file)
    for fact in ("uuid version 1", "int version 1", "user version 1", "--skip-invalid"):
        assert fact in message
    assert "good" not in message
    assert terminal.told("list", "--deleted") == []


def test_an_import_leaves_out_invalid_schemas_and_what_refers_to_them(terminal: Terminal) -> None:
    file = terminal.file(WITH_INVALID, "schemas.jsonl")
    code, out, err = terminal.run("import", file, "--skip-invalid")
    assert (code, out) == (1, "copied 1 version; 0 were there; 3 were left out\n")
    assert err.count("left out") == 3
    assert [each["subject"] for each in terminal.told("list")] == ["good"]
