"""`folkmoot schema`: what its actions say and change."""

import json
import re

import pytest

from folkmoot.console.main import main
from folkmoot.console.schema.command import LEVELS, MODES
from tests.console.schema.conftest import GATE, NOTE, NUMBER, Terminal, Typed, record

FIRST, SECOND = record(NUMBER), record(NUMBER, NOTE)
UNREADABLE = record(NUMBER, GATE)
KIND = json.dumps({"type": "enum", "name": "Kind", "symbols": ["A", "B"]})
WITH_KIND = record(NUMBER, {"name": "kind", "type": "Kind"})


def test_schemas_are_registered_listed_and_shown(terminal: Terminal) -> None:
    said = terminal.done("register", "flights-value", terminal.file(FIRST))
    assert said == "flights-value version 1 has the id 1\n"
    made = terminal.told("register", "flights-value", terminal.file(SECOND))
    assert made == {"subject": "flights-value", "version": 2, "id": 2}
    terminal.done("register", "planes-value", terminal.file(FIRST))

    rows = terminal.told("list")
    assert [(each["subject"], each["versions"], each["latest"]) for each in rows] == [
        ("flights-value", 2, 2),
        ("planes-value", 1, 1),
    ]
    assert [each["subject"] for each in terminal.told("list", "pl")] == ["planes-value"]
    assert [
        (each["version"], each["id"]) for each in terminal.told("versions", "flights-value")
    ] == [
        (1, 1),
        (2, 2),
    ]
    assert terminal.done("get", "flights-value") == f"{SECOND}\n"
    assert terminal.done("get", "flights-value", "--version", "1") == f"{FIRST}\n"
    assert terminal.done("get", "--id", "2") == f"{SECOND}\n"
    terminal.registry().register(":.c:s", '"int"')
    assert terminal.done("get", ":.c:", "--id", "1") == '"int"\n'
    assert terminal.told("get", "flights-value") == {
        "subject": "flights-value",
        "version": 2,
        "id": 2,
        "schema": SECOND,
    }


def test_a_check_says_what_register_would_say_and_why(terminal: Terminal) -> None:
    terminal.done("register", "s", terminal.file(FIRST))
    assert terminal.done("check", "s", terminal.file(SECOND)) == "s takes it\n"
    code, out, err = terminal.run("check", "s", terminal.file(UNREADABLE))
    assert (code, err) == (1, "")
    assert "gate" in out
    assert "(READER_FIELD_MISSING_DEFAULT_VALUE)" in out
    code, out, _ = terminal.run("check", "s", terminal.file(UNREADABLE), "-o", "json")
    (finding,) = json.loads(out)
    assert (code, finding["kind"]) == (1, "READER_FIELD_MISSING_DEFAULT_VALUE")
    assert "gate" in terminal.refused(1, "register", "s", terminal.file(UNREADABLE))
    assert [each["version"] for each in terminal.told("versions", "s")] == [1]
    terminal.done("compat", "s", "--set", "NONE")
    assert terminal.done("check", "s", terminal.file(UNREADABLE)) == "s takes it\n"


def test_a_difference_is_told_for_readers_and_for_writers(terminal: Terminal) -> None:
    terminal.done("register", "s", terminal.file(FIRST))
    (row,) = terminal.told("diff", "s", terminal.file(SECOND))
    assert "note" in row["change"]
    assert row["for_readers"]
    assert row["for_writers"]
    terminal.done("register", "s", terminal.file(SECOND))
    assert terminal.told("diff", "s") == [row]
    assert terminal.told("diff", "s", terminal.file(SECOND)) == []
    (back,) = terminal.told("diff", "s", "--from", "2", "--to", "1")
    assert back != row
    assert "no version before 1" in terminal.refused(1, "diff", "s", "--to", "1")
    assert "either" in terminal.refused(2, "diff", "s", terminal.file(FIRST), "--to", "1")


def test_a_schema_with_references_is_registered_and_written_out(terminal: Terminal) -> None:
    terminal.done("register", "kind", terminal.file(KIND))
    reference = ["--reference", "Kind=kind:1"]
    assert "Kind" in terminal.refused(1, "register", "s", terminal.file(WITH_KIND))
    terminal.done("register", "s", terminal.file(WITH_KIND), *reference)
    assert terminal.told("get", "s")["references"] == [
        {"name": "Kind", "subject": "kind", "version": 1}
    ]
    resolved = json.loads(terminal.done("get", "s", "--resolved"))
    assert resolved["fields"][1]["type"]["symbols"] == ["A", "B"]
    assert terminal.told("diff", "s", terminal.file(WITH_KIND), *reference) == []
    assert terminal.told("versions", "s")[0]["references"] == ["kind:1"]
    assert "refer" in terminal.refused(4, "delete", "kind")
    for wrong in ("Kind", "Kind=kind", "Kind=kind:x", "=kind:1"):
        said = terminal.refused(2, "register", "s", terminal.file(WITH_KIND), "--reference", wrong)
        assert "NAME=SUBJECT:VERSION" in said


def test_levels_and_modes_are_shown_set_and_taken_back(terminal: Terminal) -> None:
    assert terminal.done("compat") == "BACKWARD\n"
    assert terminal.done("compat", "s", "--set", "FULL") == "FULL\n"
    assert terminal.done("compat", "--set", "NONE") == "NONE\n"
    assert terminal.told("compat", "s") == {"subject": "s", "compatibility": "FULL"}
    assert terminal.done("compat", "s", "--unset") == "NONE\n"
    assert terminal.done("mode", "s", "--set", "READONLY") == "READONLY\n"
    assert "READONLY" in terminal.refused(4, "register", "s", terminal.file(FIRST))
    assert terminal.done("mode", "s", "--unset") == "READWRITE\n"
    terminal.done("register", "s", terminal.file(FIRST))


def test_what_is_deleted_can_be_looked_at_until_it_is_gone_for_good(
    terminal: Terminal, typed: Typed
) -> None:
    for text in (FIRST, SECOND):
        terminal.done("register", "s", terminal.file(text))
    assert terminal.done("delete", "s", "--version", "1") == "deleted version 1 of s\n"
    assert [each["version"] for each in terminal.told("versions", "s")] == [2]
    assert terminal.done("delete", "s") == "deleted s (1 version)\n"
    assert terminal.told("list") == []
    assert [each["subject"] for each in terminal.told("list", "--deleted")] == ["s"]
    versions = terminal.told("versions", "s", "--deleted")
    assert [(each["version"], each["deleted"]) for each in versions] == [(1, "yes"), (2, "yes")]
    assert terminal.done("get", "--id", "1") == f"{FIRST}\n"
    typed("no\n")
    code, _, err = terminal.run("delete", "s", "--permanent")
    assert (code, "for good" in err, "s was not deleted" in err) == (4, True, True)
    typed("s\n")
    assert terminal.done("delete", "s", "--permanent") == "deleted s (2 versions)\n"
    assert terminal.told("list", "--deleted") == []


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["get"], 2, "give a SUBJECT or --id"),
        (["get", ":.c:", "--id", "1"], 1, "id 1 in context .c"),
        (["get", "--id", "1", "--version", "1"], 2, "leave out --version"),
        (["get", "missing"], 1, "missing"),
        (["get", "--id", "7"], 1, "7"),
        (["versions", "missing"], 1, "missing"),
        (["delete", "missing"], 1, "missing"),
        (["register", "s", "nowhere.avsc"], 2, "nowhere.avsc cannot be read"),
        (["import", "nowhere.json"], 2, "nowhere.json cannot be read: No such file or directory\n"),
        (["import", "http://127.0.0.1:1"], 3, "does not answer: [Errno 111] Connection refused\n"),
        (["import", __file__], 1, "line 1: this is not JSON: "),
        (["import", "http://host:port"], 2, "no address of a registry"),
        (["import", "http://user:secret@host:port"], 2, "'http://host:port' is no address"),
        (["export", "http://"], 2, "no address of a registry"),
        (["export", "ftp://host/file"], 2, "no address of a registry"),
        (["export", "."], 2, ". cannot be written: Is a directory"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_an_exit_code(
    words: list[str], code: int, sentence: str, terminal: Terminal
) -> None:
    assert sentence in terminal.refused(code, *words)


def test_a_registry_elsewhere_that_is_silent_is_not_taken_for_the_cluster(
    terminal: Terminal,
) -> None:
    assert "the cluster at" not in terminal.refused(3, "import", "http://127.0.0.1:1")


@pytest.mark.parametrize(("action", "words"), [("compat", LEVELS), ("mode", MODES)])
def test_help_names_what_can_be_set(
    action: str, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["schema", action, "--help"]) == 0
    assert set(words) <= set(re.findall(r"[A-Z_]+", capsys.readouterr().out))


def test_what_is_no_schema_is_refused_with_the_place_in_it(terminal: Terminal) -> None:
    wrong = record(NUMBER, NUMBER)
    assert "/fields/1" in terminal.refused(1, "register", "s", terminal.file(wrong))
    file = terminal.file("{")
    for action in ("register", "check"):
        assert f"{file}: the schema is not JSON" in terminal.refused(1, action, "s", file)
