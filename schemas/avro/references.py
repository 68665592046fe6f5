"""One self-contained text of a schema and those that it refers to."""

import json
from collections.abc import Mapping, Sequence

from folkmoot.protocol.errors import InvalidSchema
from folkmoot.schemas.avro.defaults import Json
from folkmoot.schemas.avro.identity import INNER, NAMED, RECORDS, Schema, canonical, dump, parse


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
            text = dump(_Writer(types).write(json.loads(text), ""))
        except RecursionError:
            raise InvalidSchema("the schema's references are nested too deeply") from None
    if strict:
        parse(text)
    return text


def definitions(references: Sequence[str]) -> dict[str, Json]:
    """All named types of the references by their full names; inside of each, types are names.

    Raises InvalidSchema for what is no schema, and for a type that is missing or defined in two ways.
    """
    types: dict[str, Json] = {}
    for number, text in enumerate(references):
        own: dict[str, Json] = {}
        try:
            _flatten(json.loads(canonical(text, known=types, strict=False)), own)
        except InvalidSchema as error:
            raise InvalidSchema(f"reference {number + 1}: {error}") from None
        for name, kind in own.items():
            if types.setdefault(name, kind) != kind:
                raise InvalidSchema(f"two references define the type {name} in different ways")
    return types


def _flatten(kind: Json, types: dict[str, Json]) -> Json:
    """The type with names for all named types in it, whose definitions go into `types`."""
    if isinstance(kind, list):
        return [_flatten(each, types) for each in kind]
    if not isinstance(kind, dict):
        return kind
    result = {key: value for key, value in kind.items() if key != "namespace"}
    if kind["type"] in INNER:
        inner = INNER[kind["type"]]
        result[inner] = _flatten(kind[inner], types)
    if kind["type"] in RECORDS:
        result["fields"] = [
            field | {"type": _flatten(field["type"], types)} for field in kind["fields"]
        ]
    if kind["type"] not in NAMED:
        return result
    types[kind["name"]] = result
    return kind["name"]


class _Writer:
    """Writes each type where it is needed first, and its name from then on."""

    def __init__(self, types: Mapping[str, Json]) -> None:
        self._unwritten = dict(types)

    def write(self, kind: Json, namespace: str) -> Json:
        if isinstance(kind, list):
            return [self.write(each, namespace) for each in kind]
        if isinstance(kind, str):
            if kind not in self._unwritten:
                return kind
            kind = self._unwritten.pop(kind)
        result = dict(kind)
        if kind["type"] in INNER:
            inner = INNER[kind["type"]]
            result[inner] = self.write(kind[inner], namespace)
        elif kind["type"] in NAMED:
            own = kind["name"].rpartition(".")[0]
            result.pop("namespace", None)
            if namespace and not own:
                result["namespace"] = ""
            if kind["type"] in RECORDS:
                result["fields"] = [
                    field | {"type": self.write(field["type"], own)} for field in kind["fields"]
                ]
        return result
