"""Call by call: what Confluent's clients ask for, and the answers that they rely on."""

import pytest

from folkmoot.schemas.rest import calls
from tests.schemas.rest.api import LONG, STRING, Api, record
from tests.schemas.rest.table import CASES, REGISTER, Case


@pytest.mark.parametrize("case", [pytest.param(each, id=each.name) for each in CASES])
def test_a_call_is_answered_as_clients_expect(case: Case) -> None:
    api = Api()
    for step in case.before:
        api.done(*step)
    status, said = api(*case.call)
    if case.call[0].split("?")[0].endswith("/schemas") and status == 200:
        said = [f"{each['subject']} version {each['version']}" for each in said]
    if isinstance(case.answer, int) and case.answer > 100:
        assert (status, said["error_code"]) == (
            case.answer // 100 if case.answer > 999 else case.answer,
            case.answer,
        )
    elif isinstance(case.answer, dict):
        assert (status, said) == (200, said | case.answer)
    else:
        assert (status, said) == (200, case.answer)


def test_what_is_in_an_answer_is_no_more_than_strict_clients_know() -> None:
    api = Api()
    made = api.done(REGISTER, LONG)
    assert made.keys() == {"id", "version", "guid", "schema"}
    known = {"subject": "s", **made}
    assert api.done("GET /subjects/s/versions/latest") == known
    assert api.done("POST /subjects/s", LONG) == known
    assert api.done("GET /schemas/ids/1") == {"schema": '"long"'}
    assert api.done("GET /config") == {"compatibilityLevel": "BACKWARD"}
    checked = api.done("POST /compatibility/subjects/s/versions/latest", STRING)
    assert checked == {"is_compatible": False}


def test_schemas_come_as_versions_do_and_not_more_than_a_thousand(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    api = Api()
    api.done(REGISTER, record("a"))
    api.done(REGISTER, record("a", "b="))
    first, second = api.done("GET /schemas")
    assert [first, second] == [api.done(f"GET /subjects/s/versions/{n}") for n in (1, 2)]
    monkeypatch.setattr(calls, "MOST_SCHEMAS", 1)
    assert api.done("GET /schemas?limit=2") == api.done("GET /schemas") == [first]
    assert api.done("GET /schemas?limit=2&offset=1") == [second]


def test_a_schema_is_found_by_its_guid() -> None:
    api = Api()
    guid = api.done(REGISTER, LONG)["guid"]
    assert api.done(f"GET /schemas/guids/{guid}") == {"schema": '"long"'}


def test_the_text_comes_back_as_it_was_given_unless_it_is_to_be_normalized() -> None:
    api = Api()
    text = '{ "type":  "long" }'
    api.done(REGISTER, {"schema": text})
    assert api.done("GET /subjects/s/versions/1")["schema"] == text
    assert api.client.get("/subjects/s/versions/1/schema").text == text
    assert api.client.get("/schemas/ids/1/schema").text == text
    api.done("POST /subjects/n/versions?normalize=true", {"schema": '{ "type":  "string" }'})
    assert api.done("GET /subjects/n/versions/1")["schema"] == '"string"'


def test_metadata_and_rules_are_kept_and_come_back() -> None:
    api = Api()
    more = {
        "metadata": {"properties": {"owner": "ops"}, "tags": {}, "sensitive": []},
        "ruleSet": {
            "domainRules": [{"name": "r", "kind": "CONDITION", "type": "CEL", "expr": "x"}]
        },
    }
    api.done(REGISTER, {**LONG, **more})
    version = api.done("GET /subjects/s/versions/1")
    assert {name: version[name] for name in more} == more
    stored = api.done("GET /schemas/ids/1")
    assert {name: stored[name] for name in more} == more
    assert api.done("POST /subjects/s", {**LONG, **more})["id"] == 1
    assert api.refused("POST /subjects/s", LONG) == 40403


def test_messages_name_what_is_wrong_and_come_only_when_asked_for() -> None:
    api = Api()
    api.done(REGISTER, record("a"))
    check = "POST /compatibility/subjects/s/versions/latest"
    assert api.done(check, record("a", "b")) == {"is_compatible": False}
    said = api.done(f"{check}?verbose=True", record("a", "b"))
    assert said["is_compatible"] is False
    assert "READER_FIELD_MISSING_DEFAULT_VALUE" in said["messages"][0]


SUBJECTS = (
    ("a%20b%2Fc-value", "a b/c-value"),
    ("a%2Fversions", "a/versions"),
    ("%2F", "/"),
    ("a%252Fb", "a%2Fb"),
    ("%C3%A9", "é"),
    ("é", "é"),
    ("%3A.c%3As", ":.c:s"),
    ("versions", "versions"),
)


@pytest.mark.parametrize(("path", "subject"), SUBJECTS)
def test_a_subject_may_have_any_printable_characters_percent_encoded(
    path: str, subject: str
) -> None:
    api = Api()
    api.done(f"POST /subjects/{path}/versions", LONG)
    assert api.done("GET /subjects") == [subject]
    assert api.done(f"GET /subjects/{path}/versions/latest")["subject"] == subject
    assert api.done(f"POST /subjects/{path}", LONG)["version"] == 1
    assert api.done(f"GET /subjects/{path}/versions/") == [1]
    assert api.done(f"PUT /config/{path}", {"compatibility": "NONE"}) == {"compatibility": "NONE"}
    assert api.done(f"DELETE /subjects/{path}") == [1]
