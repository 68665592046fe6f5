"""A resolved text as JSON values, whose named types can be looked up."""

import json

from folkmoot.schemas.avro.defaults import Json
from folkmoot.schemas.avro.identity import NAMED, PRIMITIVES

_PRIMITIVE = {kind: {"type": kind} for kind in PRIMITIVES}


class ParsedSchema:
    """A schema, and the types that it names, by their full names."""

    def __init__(self, text: str) -> None:
        self.root: Json = json.loads(text)
        self.names: dict[str, Json] = {}
        stack = [self.root]
        while stack:
            kind = stack.pop()
            if isinstance(kind, list):
                stack.extend(kind)
            elif isinstance(kind, dict):
                if kind["type"] in NAMED:
                    self.names[kind["name"]] = kind
                stack.extend(field["type"] for field in kind.get("fields", ()))
                stack.extend(kind[inner] for inner in ("items", "values") if inner in kind)

    def of(self, schema: Json) -> Json:
        """The definition: a list of branches, or an object whose type is a word. The same one each time."""
        if isinstance(schema, str):
            return self.names[schema] if schema in self.names else _PRIMITIVE[schema]
        return schema
