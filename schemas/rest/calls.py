"""The answer of each call: a value for JSON, or a text in JSON."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from folkmoot.coordination.schemas.versions import SchemaVersion, StoredSchema
from folkmoot.protocol.errors import InvalidCompatibility, InvalidMode, InvalidSchema
from folkmoot.schemas.registry.schema_registry import ALL_CONTEXTS
from folkmoot.schemas.rest.call import Call, LevelBody, ModeBody, SchemaBody

Json = Any

TYPES: Final = ["AVRO"]
MOST_SCHEMAS: Final = 1_000
"""In one answer, as Confluent's has it: clients ask for the next page."""


# -- schemas ---------------------------------------------------------------------------------------


def schema_types(call: Call) -> Json:
    return TYPES


def schema(call: Call) -> Json:
    return _stored_json(call.registry.get(call.id, subject=call.query_subject))


def schema_text(call: Call) -> Json:
    return msgspec.Raw(call.registry.get(call.id, subject=call.query_subject).schema.encode())


def schema_by_guid(call: Call) -> Json:
    return _stored_json(call.registry.by_guid(call.part("guid")))


def schema_subjects(call: Call) -> Json:
    deleted = call.flag("deleted")
    return call.page(
        call.registry.subjects_of(call.id, subject=call.query_subject, deleted=deleted)
    )


def schema_versions(call: Call) -> Json:
    deleted = call.flag("deleted")
    found = call.registry.versions_of(call.id, subject=call.query_subject, deleted=deleted)
    return call.page([{"subject": subject, "version": version} for subject, version in found])


# -- subjects --------------------------------------------------------------------------------------


def subjects(call: Call) -> Json:
    """Without a prefix those of all contexts, with one, also an empty one, those of its context."""
    return call.page(call.registry.subjects(_prefix(call), **_deletion(call)))


def schemas(call: Call) -> Json:
    """Versions of subjects, which are chosen as `subjects` does."""
    offset, limit = call.window()
    found = call.registry.schemas(
        _prefix(call),
        latest_only=call.flag("latestOnly"),
        deleted=call.flag("deleted"),
        offset=offset,
        limit=MOST_SCHEMAS if limit is None else min(limit, MOST_SCHEMAS),
    )
    return [_version_json(each) for each in found]


def lookup(call: Call) -> Json:
    body = _schema_body(call)
    return _version_json(
        call.registry.lookup(
            call.subject,
            body.schema,
            references=body.references or (),
            metadata=body.metadata,
            rule_set=body.rule_set,
            normalize=call.flag("normalize"),
            deleted=call.flag("deleted"),
        )
    )


def delete_subject(call: Call) -> Json:
    return call.registry.delete_subject(call.subject, permanent=call.flag("permanent"))


def versions(call: Call) -> Json:
    return call.page(call.registry.versions(call.subject, **_deletion(call)))


def register(call: Call) -> Json:
    body = _schema_body(call)
    # Clients of Confluent's write 0 or -1 for a number that they do not give.
    registered = call.registry.register(
        call.subject,
        body.schema,
        references=body.references or (),
        metadata=body.metadata,
        rule_set=body.rule_set,
        normalize=call.flag("normalize"),
        id=body.id if body.id is not None and body.id >= 0 else None,
        version=body.version if body.version is not None and body.version > 0 else None,
    )
    result = _version_json(registered)
    del result["subject"]
    return result


def version(call: Call) -> Json:
    return _version_json(
        call.registry.version(call.subject, call.version, deleted=call.flag("deleted"))
    )


def version_text(call: Call) -> Json:
    found = call.registry.version(call.subject, call.version, deleted=call.flag("deleted"))
    return msgspec.Raw(found.schema.encode())


def delete_version(call: Call) -> Json:
    permanent = call.flag("permanent")
    return call.registry.delete_version(call.subject, call.version, permanent=permanent)


def referenced_by(call: Call) -> Json:
    return call.page(call.registry.referenced_by(call.subject, call.version))


# -- compatibility, levels and modes ---------------------------------------------------------------


def check_version(call: Call) -> Json:
    return _check(call, call.version)


def check(call: Call) -> Json:
    return _check(call, None)


def level(call: Call) -> Json:
    default = call.flag("defaultToGlobal")
    found = call.registry.compatibility(call.scope, default_to_global=default)
    return {"compatibilityLevel": found}


def set_level(call: Call) -> Json:
    level = _level_body(call)
    call.registry.set_compatibility(level, call.scope)
    return {"compatibility": level}


def delete_level(call: Call) -> Json:
    return {"compatibilityLevel": call.registry.delete_compatibility(call.scope)}


def mode(call: Call) -> Json:
    default = call.flag("defaultToGlobal")
    return {"mode": call.registry.mode(call.scope, default_to_global=default)}


def set_mode(call: Call) -> Json:
    mode = call.read(ModeBody, InvalidMode).mode
    call.registry.set_mode(mode, call.scope, force=call.flag("force"))
    return {"mode": mode}


def delete_mode(call: Call) -> Json:
    return {"mode": call.registry.delete_mode(call.scope)}


def contexts(call: Call) -> Json:
    return call.page(call.registry.contexts())


def root(call: Call) -> Json:
    return {}


Function = Callable[[Call], Json]

_LEVEL: Final = {"GET": level, "PUT": set_level, "DELETE": delete_level}
_MODE: Final = {"GET": mode, "PUT": set_mode, "DELETE": delete_mode}

CALLS: Final[Mapping[str, Mapping[str, Function]]] = {
    "/schemas/ids/{id}": {"GET": schema},
    "/subjects/{subject}": {"POST": lookup, "DELETE": delete_subject},
    "/subjects/{subject}/versions": {"GET": versions, "POST": register},
    "/subjects/{subject}/versions/{version}": {"GET": version, "DELETE": delete_version},
    "/subjects/{subject}/versions/{version}/schema": {"GET": version_text},
    "/subjects/{subject}/versions/{version}/referencedby": {"GET": referenced_by},
    "/subjects": {"GET": subjects},
    "/schemas/ids/{id}/schema": {"GET": schema_text},
    "/schemas/ids/{id}/subjects": {"GET": schema_subjects},
    "/schemas/ids/{id}/versions": {"GET": schema_versions},
    "/schemas/guids/{guid}": {"GET": schema_by_guid},
    "/schemas/types": {"GET": schema_types},
    "/schemas": {"GET": schemas},
    "/compatibility/subjects/{subject}/versions": {"POST": check},
    "/compatibility/subjects/{subject}/versions/{version}": {"POST": check_version},
    "/config": _LEVEL,
    "/config/{subject}": _LEVEL,
    "/mode": _MODE,
    "/mode/{subject}": _MODE,
    "/contexts": {"GET": contexts},
    "/": {"GET": root},
}
"""Each path and what is done there by method, those that are asked for most at the beginning."""


def _schema_body(call: Call) -> SchemaBody:
    """Raises BadRequest, InvalidSchema."""
    body = call.read(SchemaBody, InvalidSchema)
    if (body.schema_type or TYPES[0]) not in TYPES:
        raise InvalidSchema(
            f"schemas of type {body.schema_type:.80} are not kept here: only AVRO ones are"
        )
    return body


def _level_body(call: Call) -> str:
    body = call.read(LevelBody, InvalidCompatibility)
    for level in (body.compatibility, body.compatibility_level):
        if isinstance(level, str):
            return level
    raise InvalidCompatibility('the body names no level: {"compatibility": "BACKWARD"}')


def _prefix(call: Call) -> str:
    return ALL_CONTEXTS if call.prefix is None else call.prefix


def _deletion(call: Call) -> dict[str, bool]:
    """Confluent's server knows one spelling of the second, its Python client sends the other."""
    only = call.flag("deletedOnly") or call.flag("deleted_only")
    return {"deleted": call.flag("deleted"), "deleted_only": only}


def _check(call: Call, against: Any) -> Json:
    body = _schema_body(call)
    found = call.registry.check(
        call.subject,
        body.schema,
        against,
        references=body.references or (),
        normalize=call.flag("normalize"),
    )
    result: dict[str, Json] = {"is_compatible": all(each.warning for each in found)}
    if call.flag("verbose"):
        result["messages"] = [f"{each.kind} at {each.path}: {each.message}" for each in found]
    return result


def _stored_json(found: StoredSchema) -> Json:
    return {"schema": found.schema, **_additions(found)}


def _version_json(found: SchemaVersion) -> Json:
    result = {
        "subject": found.subject,
        "version": found.version,
        "id": found.id,
        "guid": found.guid,
        "schema": found.schema,
        **_additions(found),
    }
    return {**result, "deleted": True} if found.deleted else result


def _additions(found: StoredSchema | SchemaVersion) -> dict[str, Json]:
    """Optional fields of a schema. Missing ones are left out: old clients are strict."""
    result: dict[str, Json] = {}
    if found.references:
        result["references"] = found.references
    if found.metadata is not None:
        result["metadata"] = found.metadata
    if found.rule_set is not None:
        result["ruleSet"] = found.rule_set
    return result
