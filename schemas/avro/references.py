"""One self-contained text of a schema and those that it refers to."""

import json
from collections.abc import Mapping, Sequence

from folkmoot.protocol.errors import InvalidSchema
from folkmoot.schemas.avro.defaults import Json
from folkmoot.schemas.avro.identity import NAMED, RECORDS, Schema, canonical, dump, parse


def resolve(schema: Schema, references: Sequence[str] = (), *, strict: bool = True) -> str:
    """The canonical text of `schema` with all types of `references` that it uses written out.

    `references` are texts whose types may be named in the schema and in later references. Two of them
    may hold the same type, if they define it alike. `strict` is for new schemas: all rules, and those
    of `fastavro`. Stored schemas are read with `strict=False`, which only checks that they can be read.
    Raises InvalidSchema with a JSON pointer to what is wrong.
    """
    types = definitions(references)
    text = canonical(schema, known=types, strict=strict)
    if types:
        try:
            text = dump(_Writer(types).written(json.loads(text), ""))
        except RecursionError:
            raise InvalidSchema("the schema's references are nested too deeply") from None
    if strict:
        parse(text)
    return text


def definitions(references: Sequence[str]) -> dict[str, Json]:
    """All named types of the references by their full names; inside of each, types are names.

    Raises InvalidSchema for what is no schema, and for a type that is missing or defined in two ways.
    """
    found: dict[str, Json] = {}
    for number, text in enumerate(references):
        own: dict[str, Json] = {}
        try:
            _flattened(json.loads(canonical(text, known=found, strict=False)), own)
        except InvalidSchema as error:
            raise InvalidSchema(f"reference {number + 1}: {error}") from None
        for name, kind in own.items():
            if found.setdefault(name, kind) != kind:
                raise InvalidSchema(f"two references define the type {name} in different ways")
    return found


def _flattened(kind: Json, found: dict[str, Json]) -> Json:
    """The type with names for all named types in it, whose definitions go into `found`."""
    if isinstance(kind, list):
        return [_flattened(each, found) for each in kind]
    if not isinstance(kind, dict):
        return kind
    made = {key: value for key, value in kind.items() if key != "namespace"}
    for inner in ("items", "values"):
        if kind["type"] == {"items": "array", "values": "map"}[inner]:
            made[inner] = _flattened(kind[inner], found)
    if kind["type"] in RECORDS:
        made["fields"] = [
            field | {"type": _flattened(field["type"], found)} for field in kind["fields"]
        ]
    if kind["type"] not in NAMED:
        return made
    found[kind["name"]] = made
    return kind["name"]


class _Writer:
    """Writes each type where it is needed first, and its name from then on."""

    def __init__(self, types: Mapping[str, Json]) -> None:
        self._left = dict(types)

    def written(self, kind: Json, namespace: str) -> Json:
        if isinstance(kind, list):
            return [self.written(each, namespace) for each in kind]
        if isinstance(kind, str):
            if kind not in self._left:
                return kind
            kind = self._left.pop(kind)
        made = dict(kind)
        if kind["type"] == "array":
            made["items"] = self.written(kind["items"], namespace)
        elif kind["type"] == "map":
            made["values"] = self.written(kind["values"], namespace)
        elif kind["type"] in NAMED:
            own = kind["name"].rpartition(".")[0]
            made.pop("namespace", None)
            if namespace and not own:
                made["namespace"] = ""
            if kind["type"] in RECORDS:
                made["fields"] = [
                    field | {"type": self.written(field["type"], own)} for field in kind["fields"]
                ]
        return made
