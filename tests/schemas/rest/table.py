"""Call by call: what is asked for, what was done before, and the answer."""

import json
from typing import Any, NamedTuple

from tests.schemas.rest.api import LONG, STRING, record

Step = tuple[str] | tuple[str, Any]

REGISTER = "POST /subjects/s/versions"
REFERRED = {"schema": '{"type": "fixed", "name": "n.F", "size": 2}'}
REFERRING = {
    "schema": '{"type": "array", "items": "n.F"}',
    "references": [{"name": "n.F", "subject": "s", "version": 1}],
}
ONE = (REGISTER, LONG)
TWO = (REGISTER, record("a")), (REGISTER, record("a", "b="))
IN_CONTEXT = ("POST /contexts/.c/subjects/s/versions", STRING)
READONLY = ("PUT /mode", {"mode": "READONLY"})
IMPORT = ("PUT /mode/s", {"mode": "IMPORT"})
NONE = ("PUT /config/s", {"compatibility": "NONE"})


class Case(NamedTuple):
    """A call, what was done before it, and its answer: JSON, or the code of an error."""

    name: str
    call: Step
    answer: Any
    before: tuple[Step, ...] = ()


CASES = (
    # -- registering, looking up
    Case("the same again has the same id", ("GET /subjects/t/versions/1",), {"id": 1}, (ONE, ("POST /subjects/t/versions", LONG))),
    Case("a version goes on", (REGISTER, record("a", "b=")), {"id": 2, "version": 2}, TWO[:1]),
    Case("Python's booleans", (REGISTER + "?normalize=False", LONG), {"id": 1}),
    Case("fields that mean nothing here", (REGISTER, {**LONG, "schemaType": "AVRO", "references": [], "propagateSchemaTags": False}), {"id": 1}),
    Case("null for what is not given", (REGISTER, {**LONG, "schemaType": None, "references": None, "metadata": None, "id": -1, "version": 0}), {"id": 1}),
    Case("looked up", ("POST /subjects/s?normalize=False&deleted=False", {"schema": '{"type": "long"}'}), {"subject": "s", "version": 1, "id": 1, "schema": '"long"'}, (ONE,)),
    Case("looked up in an unknown subject", ("POST /subjects/u", LONG), 40401, (ONE,)),
    Case("looked up in a known one", ("POST /subjects/s", STRING), 40403, (ONE,)),
    Case("looked up, deleted", ("POST /subjects/s?deleted=True", LONG), {"version": 1}, (ONE, NONE, (REGISTER, STRING), ("DELETE /subjects/s/versions/1",))),
    Case("looked up, deleted, and not asked for", ("POST /subjects/s?deleted=False", LONG), 40403, (ONE, NONE, (REGISTER, STRING), ("DELETE /subjects/s/versions/1",))),
    Case("not compatible", (REGISTER, STRING), 409, (ONE,)),
    Case("no Avro", (REGISTER, {"schema": '"lang"'}), 42201),
    Case("no schema at all", (REGISTER, {}), 42201),
    Case("a schema that is no text", (REGISTER, {"schema": {"type": "long"}}), 42201),
    Case("a schema that is no JSON", (REGISTER, {"schema": "{"}), 42201),
    Case("another type of schema", (REGISTER, {**LONG, "schemaType": "PROTOBUF"}), 42201),
    Case("too large a schema", (REGISTER, {"schema": json.dumps({"type": "long", "doc": "x" * 500_001})}), 42201),
    Case("a schema nested 10,000 deep", (REGISTER, {"schema": '{"type":"array","items":' * 10_000 + '"long"' + "}" * 10_000}), 42201),
    Case("a reference", (REGISTER.replace("/s/", "/t/"), REFERRING), {"id": 2}, ((REGISTER, REFERRED),)),
    Case("a reference to what is not there", (REGISTER, REFERRING), 42201),
    Case("a reference of the wrong shape", (REGISTER, {**LONG, "references": [{"name": "x"}]}), 42201),
    Case("a context has ids of its own", ("POST /subjects/:.c:s/versions", STRING), {"id": 1}, (ONE,)),
    # -- by id
    Case("by id", ("GET /schemas/ids/1?subject=whatever",), {"schema": '"long"'}, (ONE,)),
    Case("by an unknown id", ("GET /schemas/ids/7",), 40403),
    Case("by what is no id", ("GET /schemas/ids/x",), 404),
    Case("by an id without end", (f"GET /schemas/ids/{'9' * 5_000}",), 404),
    Case("by id in a context", ("GET /schemas/ids/1?subject=:.c:x",), {"schema": '"string"'}, (ONE, ("POST /subjects/:.c:s/versions", STRING))),
    Case("by id after a deletion", ("GET /schemas/ids/1",), {"schema": '"long"'}, (ONE, ("DELETE /subjects/s",), ("DELETE /subjects/s?permanent=true",))),
    Case("only the text, by id", ("GET /schemas/ids/1/schema",), "long", (ONE,)),
    Case("subjects of an id", ("GET /schemas/ids/1/subjects?offset=1&limit=1",), ["t"], (ONE, ("POST /subjects/t/versions", LONG))),
    Case("versions of an id", ("GET /schemas/ids/1/versions",), [{"subject": "s", "version": 1}], (ONE,)),
    Case("subjects of an unknown id", ("GET /schemas/ids/1/subjects",), 40403),
    Case("types", ("GET /schemas/types",), ["AVRO"]),
    Case("by an unknown guid", ("GET /schemas/guids/00000000-0000-0000-0000-000000000000",), 40403),
    # -- below a context
    Case("registered below a context", ("GET /subjects",), [":.c:s", "s"], (ONE, IN_CONTEXT)),
    Case("its version", ("GET /contexts/.c/subjects/s/versions/latest",), {"subject": ":.c:s", "id": 1, "schema": '"string"'}, (ONE, IN_CONTEXT)),
    Case("by id below a context", ("GET /contexts/:.c:/schemas/ids/1",), {"schema": '"string"'}, (ONE, IN_CONTEXT, ("GET /schemas/ids/1",))),
    Case("the same, as Confluent's also takes it", ("GET /contexts/c/schemas/ids/1?subject=x",), {"schema": '"string"'}, (ONE, IN_CONTEXT)),
    Case("by id below the default one", ("GET /contexts/:.:/schemas/ids/1",), {"schema": '"long"'}, (ONE, IN_CONTEXT)),
    Case("by id below another one", ("GET /contexts/.d/schemas/ids/1",), 40403, (ONE, IN_CONTEXT)),
    Case("looked up below a context", ("POST /contexts/.c/subjects/s", LONG), 40403, (ONE, IN_CONTEXT)),
    Case("checked below a context", ("POST /contexts/.c/compatibility/subjects/s/versions/latest", LONG), {"is_compatible": False}, (ONE, IN_CONTEXT)),
    Case("subjects below a context", ("GET /contexts/.c/subjects?subjectPrefix=s",), [":.c:s"], (ONE, IN_CONTEXT)),
    Case("subjects below a context, of another one", ("GET /contexts/.c/subjects?subjectPrefix=:.d:",), [], (ONE, IN_CONTEXT)),
    Case("a context's level", ("GET /config/s?defaultToGlobal=true",), {"compatibilityLevel": "BACKWARD"}, (("PUT /contexts/.c/config", {"compatibility": "NONE"}),)),
    Case("a context's level, which is its subjects'", ("GET /contexts/.c/config/s?defaultToGlobal=true",), {"compatibilityLevel": "NONE"}, (("PUT /contexts/.c/config", {"compatibility": "NONE"}),)),
    Case("a context's mode", ("POST /contexts/.c/subjects/s/versions", LONG), 42205, (("PUT /contexts/.c/mode", {"mode": "READONLY"}),)),
    Case("deleted below a context", ("GET /subjects",), ["s"], (ONE, IN_CONTEXT, ("DELETE /contexts/.c/subjects/s",))),
    Case("a context that is none", ("GET /contexts/.a:b/subjects",), 42208),
    Case("a method that a path below a context has not", ("PUT /contexts/.c/subjects/s", LONG), 405),
    Case("a page that there is not below a context", ("GET /contexts/.c/favicon.ico",), 404),
    # -- schemas
    Case("schemas of all contexts", ("GET /schemas",), [":.c:s version 1", "s version 1", "t version 1"], (ONE, IN_CONTEXT, ("POST /subjects/t/versions", LONG))),
    Case("schemas, a page", ("GET /schemas?offset=1&limit=1",), ["s version 2"], TWO),
    Case("schemas by prefix", ("GET /schemas?subjectPrefix=t",), ["t version 1"], (ONE, ("POST /subjects/t/versions", LONG))),
    Case("the latest schemas", ("GET /schemas?latestOnly=true",), ["s version 2", "t version 1"], (*TWO, ("POST /subjects/t/versions", LONG))),
    Case("schemas, live ones", ("GET /schemas",), ["s version 2"], (*TWO, ("DELETE /subjects/s/versions/1",))),
    Case("schemas, deleted ones too", ("GET /schemas?deleted=true",), ["s version 1", "s version 2", "t version 1"], (*TWO, ("DELETE /subjects/s/versions/1",), ("POST /subjects/t/versions", LONG), ("DELETE /subjects/t",))),
    Case("schemas of nothing", ("GET /schemas",), []),
    Case("schemas below a context", ("GET /contexts/.c/schemas",), [":.c:s version 1"], (ONE, IN_CONTEXT)),
    # -- subjects and versions
    Case("subjects", ("GET /subjects?deleted=false&deleted_only=false&offset=0&limit=-1",), [":.c:s", "s", "t"], (ONE, ("POST /subjects/:.c:s/versions", LONG), ("POST /subjects/t/versions", LONG))),
    Case("subjects by prefix", ("GET /subjects?subjectPrefix=s",), ["s"], (ONE, ("POST /subjects/t/versions", LONG))),
    Case("subjects of the default context", ("GET /subjects?subjectPrefix=",), ["s"], (ONE, ("POST /subjects/:.c:s/versions", LONG))),
    Case("subjects of a context", ("GET /subjects?subjectPrefix=:.c:",), [":.c:s"], (ONE, ("POST /subjects/:.c:s/versions", LONG))),
    Case("subjects, a page", ("GET /subjects?offset=1&limit=1",), ["t"], (ONE, ("POST /subjects/t/versions", LONG), ("POST /subjects/u/versions", LONG))),
    Case("subjects, deleted ones too", ("GET /subjects?deleted=true",), ["s", "t"], (ONE, ("POST /subjects/t/versions", LONG), ("DELETE /subjects/t",))),
    Case("subjects, deleted ones only", ("GET /subjects?deletedOnly=true",), ["t"], (ONE, ("POST /subjects/t/versions", LONG), ("DELETE /subjects/t",))),
    Case("the same, as Python spells it", ("GET /subjects?deleted_only=True",), ["t"], (ONE, ("POST /subjects/t/versions", LONG), ("DELETE /subjects/t",))),
    Case("a page that is no number", ("GET /subjects?limit=all",), 422),
    Case("a page that begins before the beginning", ("GET /subjects?offset=-1",), 422),
    Case("versions", ("GET /subjects/s/versions",), [1, 2], TWO),
    Case("versions, a page", ("GET /subjects/s/versions?offset=1&limit=5",), [2], TWO),
    Case("versions of an unknown subject", ("GET /subjects/s/versions",), 40401),
    Case("versions, deleted ones too", ("GET /subjects/s/versions?deleted=true",), [1, 2], (*TWO, ("DELETE /subjects/s/versions/1",))),
    Case("versions, deleted ones only", ("GET /subjects/s/versions?deleted_only=True",), [1], (*TWO, ("DELETE /subjects/s/versions/1",))),
    Case("latest", ("GET /subjects/s/versions/latest",), {"subject": "s", "version": 2, "id": 2}, TWO),
    Case("latest, as Java spells it", ("GET /subjects/s/versions/-1",), {"version": 2}, TWO),
    Case("latest of an unknown subject", ("GET /subjects/s/versions/latest",), 40401),
    Case("an unknown version", ("GET /subjects/s/versions/3",), 40402, TWO),
    Case("a version of an unknown subject", ("GET /subjects/s/versions/1",), 40401),
    Case("version 0", ("GET /subjects/s/versions/0",), 42202, TWO),
    Case("version -2", ("GET /subjects/s/versions/-2",), 42202, TWO),
    Case("version earliest", ("GET /subjects/s/versions/earliest",), 42202, TWO),
    Case("a version of 11 digits", ("GET /subjects/s/versions/99999999999",), 42202, TWO),
    Case("only the text of a version", ("GET /subjects/s/versions/latest/schema",), "long", (ONE,)),
    Case("a deleted version", ("GET /subjects/s/versions/1",), 40402, (*TWO, ("DELETE /subjects/s/versions/1",))),
    Case("a deleted version, asked for", ("GET /subjects/s/versions/1?deleted=true",), {"version": 1, "deleted": True}, (*TWO, ("DELETE /subjects/s/versions/1",))),
    Case("referenced by", ("GET /subjects/s/versions/1/referencedby",), [2], ((REGISTER, REFERRED), (REGISTER.replace("/s/", "/t/"), REFERRING))),
    Case("references come back", ("GET /schemas/ids/2",), {"references": REFERRING["references"]}, ((REGISTER, REFERRED), (REGISTER.replace("/s/", "/t/"), REFERRING))),
    # -- deleting
    Case("a subject deleted", ("DELETE /subjects/s",), [1, 2], TWO),
    Case("an unknown subject deleted", ("DELETE /subjects/s",), 40401),
    Case("a subject deleted twice", ("DELETE /subjects/s",), 40404, (ONE, ("DELETE /subjects/s",))),
    Case("a subject deleted permanently first", ("DELETE /subjects/s?permanent=true",), 40405, (ONE,)),
    Case("a subject deleted permanently", ("DELETE /subjects/s?permanent=True",), [1, 2], (*TWO, ("DELETE /subjects/s",))),
    Case("a version deleted", ("DELETE /subjects/s/versions/1",), 1, TWO),
    Case("the latest version deleted", ("DELETE /subjects/s/versions/latest",), 2, TWO),
    Case("an unknown version deleted", ("DELETE /subjects/s/versions/9",), 40402, TWO),
    Case("a version of an unknown subject deleted", ("DELETE /subjects/s/versions/1",), 40401),
    Case("a version deleted twice", ("DELETE /subjects/s/versions/1",), 40406, (*TWO, ("DELETE /subjects/s/versions/1",))),
    Case("a version deleted permanently first", ("DELETE /subjects/s/versions/1?permanent=true",), 40407, TWO),
    Case("a version deleted permanently", ("DELETE /subjects/s/versions/1?permanent=true",), 1, (*TWO, ("DELETE /subjects/s/versions/1",))),
    Case("a version that is referred to", ("DELETE /subjects/s/versions/1",), 42206, ((REGISTER, REFERRED), (REGISTER.replace("/s/", "/t/"), REFERRING))),
    Case("a subject that is referred to", ("DELETE /subjects/s",), 42206, ((REGISTER, REFERRED), (REGISTER.replace("/s/", "/t/"), REFERRING))),
    Case("versions go on after a deletion", (REGISTER, STRING), {"version": 3, "id": 3}, (*TWO, ("DELETE /subjects/s",))),
    Case("versions begin again, ids do not", (REGISTER, STRING), {"version": 1, "id": 3}, (*TWO, ("DELETE /subjects/s",), ("DELETE /subjects/s?permanent=true",))),
    # -- compatibility
    Case("compatible", ("POST /compatibility/subjects/s/versions/latest?normalize=False&verbose=False", record("a", "b=")), {"is_compatible": True}, TWO[:1]),
    Case("incompatible, in silence", ("POST /compatibility/subjects/s/versions/1?verbose=False", STRING), {"is_compatible": False}, (ONE,)),
    Case("compatible with all", ("POST /compatibility/subjects/s/versions?verbose=true", LONG), {"is_compatible": True, "messages": []}, (ONE,)),
    Case("incompatible with all", ("POST /compatibility/subjects/s/versions", STRING), {"is_compatible": False}, (ONE,)),
    Case("compatible with nothing", ("POST /compatibility/subjects/s/versions/latest", STRING), {"is_compatible": True}),
    Case("checked against an unknown version", ("POST /compatibility/subjects/s/versions/100", LONG), 40402, (ONE,)),
    Case("checked against no version", ("POST /compatibility/subjects/s/versions/first", LONG), 42202, (ONE,)),
    Case("checked, and no Avro", ("POST /compatibility/subjects/s/versions/1", {"schema": "[]"}), 42201, (ONE,)),
    # -- levels
    Case("the global level", ("GET /config",), {"compatibilityLevel": "BACKWARD"}),
    Case("the same with a slash", ("GET /config/",), {"compatibilityLevel": "BACKWARD"}),
    Case("the global level set", ("PUT /config", {"compatibility": "FULL"}), {"compatibility": "FULL"}),
    Case("a level that there is not", ("PUT /config", {"compatibility": "SIDEWAYS"}), 42203),
    Case("no level", ("PUT /config", {}), 42203),
    Case("a level that is no text", ("PUT /config", {"compatibility": 1}), 42203),
    Case("a subject's level before the subject", ("PUT /config/s", {"compatibility": "NONE"}), {"compatibility": "NONE"}),
    Case("the same read", ("GET /config/s",), {"compatibilityLevel": "NONE"}, (NONE,)),
    Case("a subject without a level", ("GET /config/s",), 40408, (ONE,)),
    Case("a subject without a level, by default", ("GET /config/s?defaultToGlobal=True",), {"compatibilityLevel": "FULL"}, (("PUT /config", {"compatibility": "FULL"}),)),
    Case("a subject's level deleted", ("DELETE /config/s",), {"compatibilityLevel": "NONE"}, (NONE,)),
    Case("a subject's level that is gone", ("GET /config/s",), 40408, (NONE, ("DELETE /config/s",))),
    Case("the global level deleted", ("DELETE /config",), {"compatibilityLevel": "NONE"}, (("PUT /config", {"compatibility": "NONE"}),)),
    Case("what a level allows", (REGISTER, STRING), {"version": 2}, (ONE, NONE)),
    # -- modes
    Case("the global mode", ("GET /mode",), {"mode": "READWRITE"}),
    Case("the global mode set", ("PUT /mode?force=False", {"mode": "READONLY"}), {"mode": "READONLY"}),
    Case("a mode that there is not", ("PUT /mode", {"mode": "BACKWARDS"}), 42204),
    Case("no mode", ("PUT /mode", {}), 42204),
    Case("a subject without a mode", ("GET /mode/s",), 40409),
    Case("a subject without a mode, by default", ("GET /mode/s?defaultToGlobal=true",), {"mode": "READONLY"}, (READONLY,)),
    Case("a subject's mode", ("GET /mode/s",), {"mode": "IMPORT"}, (IMPORT,)),
    Case("a subject's mode deleted", ("DELETE /mode/s",), {"mode": "IMPORT"}, (IMPORT,)),
    Case("registering in READONLY", (REGISTER, LONG), 42205, (READONLY,)),
    Case("deleting in READONLY", ("DELETE /subjects/s",), 42205, (ONE, READONLY)),
    Case("a subject that is READWRITE under READONLY", (REGISTER, LONG), {"id": 1}, (READONLY, ("PUT /mode/s", {"mode": "READWRITE"}))),
    Case("IMPORT where there are schemas", IMPORT, 42205, (ONE,)),
    Case("IMPORT by force", ("PUT /mode/s?force=True", {"mode": "IMPORT"}), {"mode": "IMPORT"}, (ONE,)),
    Case("id and version in IMPORT", (REGISTER, {**LONG, "id": 70, "version": 7}), {"id": 70, "version": 7}, (IMPORT,)),
    Case("later ids", ("POST /subjects/t/versions", STRING), {"id": 71}, (IMPORT, (REGISTER, {**LONG, "id": 70, "version": 7}))),
    Case("an id outside of IMPORT", (REGISTER, {**LONG, "id": 70}), 42205),
    # -- the rest
    Case("contexts", ("GET /contexts?offset=0&limit=-1",), [".", ".c"], (ONE, ("POST /subjects/:.c:s/versions", LONG))),
    Case("contexts of nothing", ("GET /contexts",), ["."]),
    Case("associations, which clients ask for first", ("GET /associations/resources/-/t?resourceType=topic&associationType=value",), 404),
    Case("metadata, which is not offered", ("GET /subjects/s/metadata?key=a&value=b",), 404, (ONE,)),
    Case("the root", ("GET /",), {}),
    Case("a page that there is not", ("GET /favicon.ico",), 404),
    Case("a subject that is too long", (f"POST /subjects/{'s' * 600}/versions", LONG), 42208),
    Case("a subject with a line end", ("POST /subjects/a%0Ab/versions", LONG), 42208),
    Case("a subject of no characters", ("POST /subjects/%FF/versions", LONG), 42208),
)  # fmt: skip
