"""Apache's own checker in Python, as a second opinion on verdicts."""

import json
from typing import Any

import avro.schema
from avro.compatibility import ReaderWriterCompatibilityChecker, SchemaCompatibilityType

from folkmoot.schemas.avro.identity import NAMED, PRIMITIVES, RECORDS

Json = Any


def is_compatible(reader: str, writer: str) -> bool:
    """Apache's verdict about two resolved texts."""
    theirs, written = (
        avro.schema.make_avsc_object(_shape(json.loads(text))) for text in (reader, writer)
    )
    checker = ReaderWriterCompatibilityChecker()  # type: ignore[no-untyped-call]
    result = checker.get_compatibility(theirs, written)
    return bool(result.compatibility is SchemaCompatibilityType.compatible)


def _shape(kind: Json) -> Json:
    """What Apache's checker looks at, with a namespace for every name: it compares aliases with them."""
    if isinstance(kind, str):
        return kind if kind in PRIMITIVES else _with_namespace(kind)
    if isinstance(kind, list):
        return [_shape(each) for each in kind]
    made = {key: kind[key] for key in ("type", "symbols", "size") if key in kind}
    for inner in ("items", "values"):
        if inner in kind:
            made[inner] = _shape(kind[inner])
    if kind["type"] in NAMED:
        made["name"] = _with_namespace(kind["name"])
        made["aliases"] = [_with_namespace(each) for each in kind.get("aliases", ())]
    if kind["type"] == "enum" and "default" in kind:
        made["default"] = kind["default"]
    if kind["type"] in RECORDS:
        made["type"] = "record"
        made["fields"] = [field | {"type": _shape(field["type"])} for field in kind["fields"]]
    return made


def _with_namespace(name: str) -> str:
    return name if "." in name else f"_.{name}"
