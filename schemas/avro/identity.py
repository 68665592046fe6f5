"""What makes two Avro schemas the same schema: one text for each, whatever way it was written.

The text is compact JSON with sorted keys in which every named type, reference and alias stands with
its full name. Everything else is kept: documentation, defaults, logical types, aliases, attributes
that Avro does not know. (Avro's own parsing canonical form drops defaults and logical types: two
schemas that read the same bytes differently would be one.) `namespace` goes into the names; only
where a type without namespace is defined inside one that has one does `"namespace": ""` remain,
because nothing else would say so.

Ids last for ever, so what is let in here is checked by our own rules where fastavro has none (names,
fields given twice, unions in unions), and then by fastavro. What is stored was checked once, and
`parse` takes it as it is.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from folkmoot.protocol.errors import InvalidSchema
from folkmoot.schemas.avro.extra import fastavro

Json = Any
"""A JSON value as `json` makes it."""

Schema = str | Mapping[str, Any] | Sequence[Any]
"""A schema as users write it: JSON text, or the same as Python values."""

PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_FULL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*\Z")
# What fastavro adds to a schema that it has parsed; it would make it skip the parsing later.
_FASTAVRO_MARKS = frozenset({"__fastavro_parsed", "__named_schemas"})


def canonical(schema: Schema) -> str:
    """The one text of a schema. Raises InvalidSchema, in a line that points into the schema."""
    try:
        value = json.loads(schema) if isinstance(schema, str) else schema
        text = _dump(_resolve(value, "", ""))
    except json.JSONDecodeError as error:
        raise InvalidSchema(f"the schema is not JSON: {error}") from None
    except RecursionError:
        raise InvalidSchema("the schema is nested too deeply") from None
    parse(text)
    return text


def parse(text: str) -> Json:
    """A canonical text as fastavro uses it. Raises InvalidSchema."""
    try:
        return fastavro.parse_schema(json.loads(text))
    except fastavro.schema.SchemaParseException as error:
        raise InvalidSchema(f"not an Avro schema: {error}") from None
    except RecursionError:
        raise InvalidSchema("the schema is nested too deeply") from None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise InvalidSchema(f"not an Avro schema: {reason}") from None


def _dump(value: Json) -> str:
    try:
        return json.dumps(
            value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
        )
    except (TypeError, ValueError) as error:
        raise InvalidSchema(f"the schema cannot be written as JSON: {error}") from None


def _resolve(schema: Json, namespace: str, where: str) -> Json:
    """The schema with full names; `namespace` is that of the type around it, `where` a pointer to it."""
    if isinstance(schema, str):
        return schema if schema in PRIMITIVES else _full_name(schema, namespace, where)
    if isinstance(schema, Mapping):
        return _resolve_mapping(schema, namespace, where)
    if isinstance(schema, Sequence) and not isinstance(schema, bytes | bytearray):
        return _resolve_union(schema, namespace, where)
    raise _invalid(where, f"a schema is a string, an object or an array, not {schema!r:.80}")


def _resolve_union(branches: Sequence[Any], namespace: str, where: str) -> Json:
    if not branches:
        raise _invalid(where, "a union needs at least one branch")
    resolved = [
        _resolve(branch, namespace, f"{where}/{number}") for number, branch in enumerate(branches)
    ]
    kinds: list[str] = []
    for number, branch in enumerate(resolved):
        kind = branch
        if isinstance(branch, dict):
            kind = branch["name"] if "name" in branch else branch["type"]
        if not isinstance(kind, str):
            raise _invalid(f"{where}/{number}", "a union cannot hold a union")
        if kind in kinds:
            raise _invalid(f"{where}/{number}", f"the union has {kind} twice")
        kinds.append(kind)
    return resolved


def _resolve_mapping(schema: Mapping[str, Any], namespace: str, where: str) -> Json:
    kept = {key: value for key, value in schema.items() if key not in _FASTAVRO_MARKS}
    kind = kept.get("type")
    if kind is None:
        raise _invalid(where, 'the object has no "type"')
    if kind in ("record", "error", "enum", "fixed"):
        return _resolve_named(kept, namespace, where)
    if kind == "array" or kind == "map":
        inner = "items" if kind == "array" else "values"
        if inner not in kept:
            raise _invalid(where, f'the {kind} has no "{inner}"')
        return kept | {inner: _resolve(kept[inner], namespace, f"{where}/{inner}")}
    resolved = _resolve(kind, namespace, f"{where}/type")
    return resolved if len(kept) == 1 else kept | {"type": resolved}


def _resolve_named(schema: dict[str, Any], namespace: str, where: str) -> Json:
    name, own = schema.get("name"), schema.get("namespace", namespace)
    if not isinstance(name, str):
        raise _invalid(where, f'the {schema["type"]} has no "name"')
    if not isinstance(own, str) or (own and not _FULL_NAME.match(own)):
        raise _invalid(f"{where}/namespace", f"{own!r:.80} is not a namespace")
    full = _full_name(name, own, f"{where}/name")
    if full in PRIMITIVES:
        raise _invalid(f"{where}/name", f"{full} is the name of a primitive type")
    own = full.rpartition(".")[0]
    result = {key: value for key, value in schema.items() if key != "namespace"} | {"name": full}
    if namespace and not own:
        result["namespace"] = ""
    if "aliases" in schema:
        result["aliases"] = _aliases(schema["aliases"], own, f"{where}/aliases")
    if schema["type"] in ("record", "error"):
        result["fields"] = _fields(schema.get("fields"), own, f"{where}/fields")
    elif schema["type"] == "enum":
        _check_symbols(schema.get("symbols"), f"{where}/symbols")
    elif type(schema.get("size")) is not int or schema["size"] < 0:
        raise _invalid(f"{where}/size", "the size of a fixed is a number of bytes")
    return result


def _check_symbols(symbols: Json, where: str) -> None:
    if not isinstance(symbols, list | tuple) or not symbols:
        raise _invalid(where, "the symbols of an enum are an array of names")
    for number, symbol in enumerate(symbols):
        if not isinstance(symbol, str) or not _NAME.match(symbol):
            raise _invalid(f"{where}/{number}", f"{symbol!r:.80} is not a name")
        if symbols.index(symbol) != number:
            raise _invalid(f"{where}/{number}", f"the enum has {symbol} twice")


def _aliases(aliases: Json, namespace: str, where: str) -> list[str]:
    if not isinstance(aliases, list | tuple) or not all(isinstance(each, str) for each in aliases):
        raise _invalid(where, "aliases are an array of names")
    return [_full_name(each, namespace, f"{where}/{i}") for i, each in enumerate(aliases)]


def _fields(fields: Json, namespace: str, where: str) -> list[Json]:
    if not isinstance(fields, list | tuple):
        raise _invalid(where, "the fields of a record are an array")
    resolved: list[Json] = []
    names: set[str] = set()
    for number, field in enumerate(fields):
        here = f"{where}/{number}"
        if not isinstance(field, Mapping) or "type" not in field:
            raise _invalid(here, 'a field is an object with "name" and "type"')
        name = field.get("name")
        if not isinstance(name, str) or not _NAME.match(name):
            raise _invalid(f"{here}/name", f"{name!r:.80} is not a name")
        if name in names:
            raise _invalid(f"{here}/name", f"the record has the field {name} twice")
        names.add(name)
        resolved.append({**field, "type": _resolve(field["type"], namespace, f"{here}/type")})
    return resolved


def _full_name(name: str, namespace: str, where: str) -> str:
    if not _FULL_NAME.match(name):
        raise _invalid(where, f"{name!r:.80} is neither a type nor a name")
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _invalid(where: str, what: str) -> InvalidSchema:
    return InvalidSchema(f"not an Avro schema: at {where or '/'}: {what}")
