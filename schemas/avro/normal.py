"""A schema as Confluent's registry normalises it."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from folkmoot.schemas.avro.defaults import Json
from folkmoot.schemas.avro.identity import INNER, NAMED, RECORDS, Schema, canonical

_FIELD = frozenset({"name", "type", "doc", "default", "order", "aliases"})
_TYPE = frozenset(
    {"type", "name", "namespace", "doc", "aliases", "fields", "symbols", "size", "items", "values"}
)


def normalize(
    schema: Schema, *, known: Mapping[str, Json] | Sequence[str] = (), strict: bool = True
) -> str:
    """The text that Confluent's registry stores with `normalize=true`. Parameters as of `canonical`.

    Aliases and attributes are sorted, defaults are left out (an empty doc, the order
    "ascending"), and keys stand in the order in which Java's Avro writes them: a client that compares
    what it gets with what it would write finds them equal. Raises InvalidSchema.
    """
    value = json.loads(canonical(schema, known=known, strict=strict))
    return json.dumps(_type(value, ""), separators=(",", ":"), ensure_ascii=False)


def _type(kind: Json, namespace: str) -> Json:
    if isinstance(kind, str):
        space, _, short = kind.rpartition(".")
        return short if space == namespace else kind
    if isinstance(kind, list):
        return [_type(each, namespace) for each in kind]
    name = kind["type"]
    result: dict[str, Any] = {"type": name}
    own = namespace
    if name in NAMED:
        own, _, result["name"] = kind["name"].rpartition(".")
        if own != namespace:
            result["namespace"] = own
        if kind.get("doc"):
            result["doc"] = kind["doc"]
    if name in RECORDS:
        result["fields"] = [_field(each, own) for each in kind["fields"]]
    elif name == "enum":
        result["symbols"] = kind["symbols"]
        if "default" in kind:
            result["default"] = kind["default"]
    elif name == "fixed":
        result["size"] = kind["size"]
    elif name in INNER:
        result[INNER[name]] = _type(kind[INNER[name]], namespace)
    result |= _attributes(kind, _TYPE | {"default"} if name == "enum" else _TYPE)
    if kind.get("aliases"):
        aliases = (each.rpartition(".") for each in sorted(set(kind["aliases"])))
        result["aliases"] = [
            short if space == own else f"{space}.{short}" for space, _, short in aliases
        ]
    return result


def _field(field: Json, namespace: str) -> Json:
    result = {"name": field["name"], "type": _type(field["type"], namespace)}
    if field.get("doc") is not None:
        result["doc"] = field["doc"]
    if "default" in field:
        result["default"] = field["default"]
    if field.get("order", "ascending") != "ascending":
        result["order"] = field["order"]
    if field.get("aliases"):
        result["aliases"] = sorted(set(field["aliases"]))
    return result | _attributes(field, _FIELD)


def _attributes(kind: Json, known: frozenset[str]) -> dict[str, Any]:
    first = ["logicalType"]
    if kind.get("logicalType") == "decimal":
        first += ["precision"] + ["scale"] * bool(kind.get("scale"))
    names = [each for each in first if each in kind and known is not _FIELD]
    names += sorted(kind.keys() - known - set(names))
    return {name: kind[name] for name in names}
