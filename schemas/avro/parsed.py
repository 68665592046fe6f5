"""A resolved text as JSON values, whose named types can be looked up."""

import json
from collections.abc import Mapping

from folkmoot.schemas.avro.defaults import Json
from folkmoot.schemas.avro.identity import NAMED, PRIMITIVES

_PRIMITIVE = {kind: {"type": kind} for kind in PRIMITIVES}


class Parsed:
    """A schema and the types that it names. `of` returns the same object for the same type."""

    def __init__(self, text: str) -> None:
        self.root: Json = json.loads(text)
        self.names = named_types(self.root)

    def of(self, schema: Json) -> Json:
        return definition(schema, self.names)


def named_types(schema: Json) -> dict[str, Json]:
    """The definitions of a schema's named types, by full name."""
    found: dict[str, Json] = {}
    stack = [schema]
    while stack:
        kind = stack.pop()
        if isinstance(kind, list):
            stack.extend(kind)
        elif isinstance(kind, dict):
            if kind["type"] in NAMED:
                found[kind["name"]] = kind
            stack.extend(field["type"] for field in kind.get("fields", ()))
            stack.extend(kind[inner] for inner in ("items", "values") if inner in kind)
    return found


def definition(schema: Json, named: Mapping[str, Json]) -> Json:
    """A schema as a list of branches, or as an object whose type is a word."""
    if isinstance(schema, str):
        return named[schema] if schema in named else _PRIMITIVE[schema]
    return schema
