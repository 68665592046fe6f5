"""Identity of Avro schemas: one canonical text for each schema.

The text is compact JSON with sorted keys in which every named type, reference and alias stands with
its full name. Everything else is kept: documentation, defaults, logical types, aliases, attributes
that Avro does not know. (Avro's own parsing canonical form drops defaults and logical types: two
schemas that read the same bytes differently would be one.) `namespace` goes into the names; only
where a type without namespace is defined inside one that has one does `"namespace": ""` remain,
because nothing else would say so.

Ids last for ever, so what is let in is checked by our own rules, which point at what is wrong. Stored
schemas may be older than the rules, so they are read without the rules of style.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from folkmoot.protocol.errors import InvalidSchema
from folkmoot.schemas.avro.defaults import Defaults, Json
from folkmoot.schemas.avro.extra import fastavro
from folkmoot.schemas.avro.mismatch import SchemaMismatch

Schema = str | Mapping[str, Any] | Sequence[Any]
"""A schema as users write it: JSON text, or the same as Python values."""

MAX_BYTES = 500_000
"""Limit of a schema's text, also with its references written out."""
MAX_PARTS = 100_000
"""Limit of the smallest value of each record, and of all defaults of a schema. A short text may be endless
when it is written out: records that name another one twice, defaults that leave out fields."""
MAX_FIXED_BYTES = 2**31 - 1
MAX_DEPTH = 256
"""Limit of nested JSON. A record in a record takes three; the libraries' own functions take two frames of
Python's stack for each."""

PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
RECORDS = frozenset({"record", "error"})
NAMED = RECORDS | {"enum", "fixed"}
INNER = {"array": "items", "map": "values"}
"""The attribute that has the type of what is in an array or a map."""
# Names that a type must not have: libraries would take them for kinds of types.
_RESERVED = PRIMITIVES | NAMED | {"array", "map", "union", "error_union", "request"}
_ORDERS = ("ascending", "descending", "ignore")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_FULL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*\Z")
# The mark of fastavro on a parsed schema; it would skip parsing later.
_FASTAVRO_MARKS = frozenset({"__fastavro_parsed", "__named_schemas"})


def canonical(
    schema: Schema, *, known: Mapping[str, Json] | Sequence[str] = (), strict: bool = True
) -> str:
    """The one text of a schema. Raises InvalidSchema, in a line that points into the schema.

    `known` are full names that other schemas define; they stay names. Given with their definitions,
    defaults of their types are checked, too. `strict=False` is for what is stored.
    """
    types = known if isinstance(known, Mapping) else dict.fromkeys(known)
    if isinstance(schema, str) and len(schema) > MAX_BYTES:
        raise InvalidSchema(f"the schema has {len(schema)} bytes, more than {MAX_BYTES}")
    try:
        value = json.loads(schema) if isinstance(schema, str) else schema
        _check_depth(value)
        walk = _Walk(types, strict)
        text = dump(walk.resolve(value, "", ""))
        if strict:
            walk.check_ends()
            walk.check_defaults()
    except json.JSONDecodeError as error:
        raise InvalidSchema(f"the schema is not JSON: {error}") from None
    except RecursionError:
        raise InvalidSchema(_TOO_DEEP) from None
    except InvalidSchema:
        raise
    except ValueError as error:  # json's: a number of thousands of digits
        raise InvalidSchema(f"the schema is not JSON: {error}") from None
    return text


def parse(text: str) -> Json:
    """A canonical text as fastavro uses it. Raises InvalidSchema."""
    try:
        # fastavro takes 0 for no default of {"type": "double"}; defaults were checked by our own rules.
        return fastavro.parse_schema(json.loads(text), _ignore_default_error=True)
    except fastavro.schema.SchemaParseException as error:
        raise InvalidSchema(f"not an Avro schema: {error}") from None
    except RecursionError:
        raise InvalidSchema(_TOO_DEEP) from None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise InvalidSchema(f"not an Avro schema: {reason}") from None


def dump(value: Json) -> str:
    """The one text of a JSON value. Raises InvalidSchema, also for what is longer than MAX_BYTES."""
    try:
        text = json.dumps(
            value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
        )
        size = len(text.encode())
    except (TypeError, ValueError) as error:
        raise InvalidSchema(f"the schema cannot be written as JSON: {error}") from None
    if size > MAX_BYTES:
        raise InvalidSchema(f"the schema has {size} bytes, more than {MAX_BYTES}")
    return text


_TOO_DEEP = f"the schema is nested too deeply: JSON in more than {MAX_DEPTH} levels"


def _check_depth(value: Json) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for each in level
            if isinstance(each, Mapping | list | tuple)
            for inner in (each.values() if isinstance(each, Mapping) else each)
        ]
    if level:
        raise InvalidSchema(_TOO_DEEP)


class _Walk:
    """Goes over one schema. `namespace` is that of the type around, `where` a JSON pointer."""

    def __init__(self, known: Mapping[str, Json], strict: bool) -> None:
        self._known = known
        self._strict = strict
        self._defined: dict[str, Json] = {}
        self._pointers: dict[str, str] = {}
        self._defaults: list[tuple[Json, Json, str]] = []

    def resolve(self, schema: Json, namespace: str, where: str) -> Json:
        """The schema with full names."""
        if isinstance(schema, str):
            return schema if schema in PRIMITIVES else self._reference(schema, namespace, where)
        if isinstance(schema, Mapping):
            return self._mapping(schema, namespace, where)
        if isinstance(schema, Sequence) and not isinstance(schema, bytes | bytearray):
            return self._union(schema, namespace, where)
        raise _invalid(where, f"a schema is a string, an object or an array, not {schema!r:.80}")

    def check_defaults(self) -> None:
        """At the end: a default may be of a type that was not complete where it stood."""
        defaults = Defaults({**self._known, **self._defined})
        count = 0
        for value, kind, where in self._defaults:
            try:
                count += defaults.check(value, kind)
            except SchemaMismatch as mismatch:
                raise _invalid(f"{where}{mismatch.path}", mismatch.reason) from None
            if count > MAX_PARTS:
                raise _invalid(
                    where,
                    f"the defaults up to here are made of {count} values, more than "
                    f"{MAX_PARTS}: one that leaves out fields has their defaults, too",
                )

    def check_ends(self) -> None:
        """At the end: a record that always holds itself has no value, and ends its readers' stacks.

        Nor does anybody write one whose smallest value doubles with each record within.
        """
        types = {name: kind for name, kind in {**self._known, **self._defined}.items() if kind}
        undecided = {name: kind for name, kind in types.items() if kind["type"] in RECORDS}
        parts: dict[str, int] = {}
        before = 0
        while len(undecided) != before:
            before = len(undecided)
            # In the order of their definition: one record more in a chain takes no round more.
            for name, kind in list(undecided.items()):
                if (least := self._least(kind["fields"], undecided, parts)) is None:
                    continue
                if least > MAX_PARTS:
                    raise _invalid(
                        self._pointers.get(name, ""),
                        f"the smallest value of the record {name} has {least} parts, more than {MAX_PARTS}",
                    )
                parts[name] = least
                del undecided[name]
        for name in undecided:
            raise _invalid(self._pointers[name], f"the record {name} holds itself: it has no value")

    def _least(
        self, fields: Json, undecided: Mapping[str, Json], parts: Mapping[str, int]
    ) -> int | None:
        """The parts of the smallest value of a record; None if it has none, as far as is known."""
        least = 1
        for field in fields:
            branches = field["type"] if isinstance(field["type"], list) else [field["type"]]
            names = [each["name"] if _is_named(each) else str(each) for each in branches]
            ends = [parts.get(name, 1) for name in names if name not in undecided]
            if not ends:
                return None
            least += min(ends)
        return least

    def _reference(self, name: str, namespace: str, where: str) -> str:
        full = self._full_name(name, namespace, where)
        if full not in self._defined and full not in self._known:
            raise _invalid(where, f"no type {full} is defined here, above, or in a reference")
        return full

    def _union(self, branches: Sequence[Any], namespace: str, where: str) -> Json:
        if not branches:
            raise _invalid(where, "a union needs at least one branch")
        resolved = [
            self.resolve(each, namespace, f"{where}/{i}") for i, each in enumerate(branches)
        ]
        kinds: set[str] = set()
        for number, branch in enumerate(resolved):
            kind = branch
            if isinstance(branch, dict):
                kind = branch["name"] if branch["type"] in NAMED else branch["type"]
            if not isinstance(kind, str):
                raise _invalid(f"{where}/{number}", "a union cannot hold a union")
            if kind in kinds:
                raise _invalid(f"{where}/{number}", f"the union has {kind} twice")
            kinds.add(kind)
        return resolved

    def _mapping(self, schema: Mapping[str, Any], namespace: str, where: str) -> Json:
        attributes = {key: value for key, value in schema.items() if key not in _FASTAVRO_MARKS}
        kind = attributes.get("type")
        if kind is None:
            raise _invalid(where, 'the object has no "type"')
        if isinstance(kind, str) and kind in NAMED:
            self._check_decimal(attributes, where)
            return self._named_type(attributes, namespace, where)
        if isinstance(kind, str) and kind in INNER:
            inner = INNER[kind]
            if inner not in attributes:
                raise _invalid(where, f'the {kind} has no "{inner}"')
            return attributes | {
                inner: self.resolve(attributes[inner], namespace, f"{where}/{inner}")
            }
        resolved = self.resolve(kind, namespace, f"{where}/type")
        if len(attributes) == 1:
            return resolved
        if not isinstance(resolved, str) or resolved not in PRIMITIVES:
            raise _invalid(where, "attributes of a type stand beside the type's own, not around it")
        self._check_decimal(attributes, where)
        return attributes | {"type": resolved}

    def _check_decimal(self, schema: Mapping[str, Any], where: str) -> None:
        kind = schema["type"]
        if (
            schema.get("logicalType") != "decimal"
            or kind not in ("bytes", "fixed")
            or not self._strict
        ):
            return
        precision, scale, size = (
            schema.get("precision"),
            schema.get("scale", 0),
            schema.get("size"),
        )
        if type(precision) is not int or precision < 1:
            raise _invalid(f"{where}/precision", "the precision of a decimal is a number of digits")
        if type(scale) is not int or not 0 <= scale <= precision:
            raise _invalid(
                f"{where}/scale", f"the scale of a decimal is from 0 to its {precision} digits"
            )
        if kind == "fixed" and type(size) is int:
            most = max(0, math.floor(math.log10(2) * (8 * size - 1)))
            if precision > most:
                raise _invalid(
                    f"{where}/precision", f"{size} bytes hold {most} digits, not {precision}"
                )

    def _named_type(self, schema: dict[str, Any], namespace: str, where: str) -> Json:
        name, own = schema.get("name"), schema.get("namespace", namespace)
        if not isinstance(name, str):
            raise _invalid(where, f'the {schema["type"]} has no "name"')
        if not isinstance(own, str) or (own and not self._is_name(_FULL_NAME, own)):
            raise _invalid(f"{where}/namespace", f"{own!r:.80} is not a namespace")
        full = self._full_name(name, own, f"{where}/name")
        if full in _RESERVED:
            raise _invalid(f"{where}/name", f"{full} is the name of a type of Avro's own")
        if full in self._defined or (self._strict and full in self._known):
            origin = "" if full in self._defined else ", here and in a reference"
            raise _invalid(f"{where}/name", f"the type {full} is defined twice{origin}")
        own = full.rpartition(".")[0]
        result = {key: value for key, value in schema.items() if key != "namespace"} | {
            "name": full
        }
        self._defined[full] = result
        self._pointers[full] = where
        if namespace and not own:
            result["namespace"] = ""
        if "aliases" in schema:
            aliases = _names(schema["aliases"], f"{where}/aliases")
            result["aliases"] = [
                self._full_name(each, own, f"{where}/aliases/{i}") for i, each in enumerate(aliases)
            ]
        if schema["type"] in RECORDS:
            result["fields"] = self._fields(schema.get("fields"), own, f"{where}/fields")
        elif schema["type"] == "enum":
            self._check_symbols(schema, where)
        elif type(schema.get("size")) is not int or not 0 <= schema["size"] <= MAX_FIXED_BYTES:
            raise _invalid(
                f"{where}/size", f"the size of a fixed is a number of bytes up to {MAX_FIXED_BYTES}"
            )
        return result

    def _check_symbols(self, schema: Mapping[str, Any], where: str) -> None:
        symbols = schema.get("symbols")
        if not isinstance(symbols, list | tuple) or not symbols:
            raise _invalid(f"{where}/symbols", "the symbols of an enum are an array of names")
        seen = set()
        for number, symbol in enumerate(symbols):
            path = f"{where}/symbols/{number}"
            if not isinstance(symbol, str) or not self._is_name(_NAME, symbol):
                raise _invalid(path, f"{symbol!r:.80} is not a name")
            if symbol in seen:
                raise _invalid(path, f"the enum has {symbol} twice")
            seen.add(symbol)
        if self._strict and "default" in schema and schema["default"] not in symbols:
            raise _invalid(
                f"{where}/default", f"{schema['default']!r:.80} is no symbol of the enum"
            )

    def _fields(self, fields: Json, namespace: str, where: str) -> list[Json]:
        if not isinstance(fields, list | tuple):
            raise _invalid(where, "the fields of a record are an array")
        resolved: list[Json] = []
        names: set[str] = set()
        for number, field in enumerate(fields):
            path = f"{where}/{number}"
            if not isinstance(field, Mapping) or "type" not in field:
                raise _invalid(path, 'a field is an object with "name" and "type"')
            name = field.get("name")
            if not isinstance(name, str) or not self._is_name(_NAME, name):
                raise _invalid(f"{path}/name", f"{name!r:.80} is not a name")
            if name in names:
                raise _invalid(f"{path}/name", f"the record has the field {name} twice")
            names.add(name)
            for i, alias in enumerate(_names(field.get("aliases", ()), f"{path}/aliases")):
                if not self._is_name(_NAME, alias):
                    raise _invalid(f"{path}/aliases/{i}", f"{alias!r:.80} is not a name")
            if self._strict and field.get("order", "ascending") not in _ORDERS:
                raise _invalid(f"{path}/order", f"the order is one of {', '.join(_ORDERS)}")
            kind = self.resolve(field["type"], namespace, f"{path}/type")
            resolved.append({**field, "type": kind})
            if "default" in field:
                self._defaults.append((field["default"], kind, f"{path}/default"))
        return resolved

    def _full_name(self, name: str, namespace: str, where: str) -> str:
        if not name or not self._is_name(_FULL_NAME, name):
            raise _invalid(where, f"{name!r:.80} is neither a type nor a name")
        return name if "." in name or not namespace else f"{namespace}.{name}"

    def _is_name(self, pattern: re.Pattern[str], name: str) -> bool:
        return not self._strict or pattern.match(name) is not None


def _is_named(kind: Json) -> bool:
    return isinstance(kind, dict) and kind["type"] in NAMED


def _names(names: Json, where: str) -> Sequence[str]:
    if not isinstance(names, list | tuple) or not all(isinstance(each, str) for each in names):
        raise _invalid(where, "aliases are an array of names")
    return names


def _invalid(where: str, reason: str) -> InvalidSchema:
    return InvalidSchema(f"not an Avro schema: at {where[:400] or '/'}: {reason[:400]}")
