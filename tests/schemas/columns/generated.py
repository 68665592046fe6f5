"""Random schemas, readers that differ from them, values, and what Arrow has to make of those."""

import copy
import json
import math
import random
import struct
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from io import BytesIO
from typing import Any
from uuid import UUID

import fastavro

from folkmoot.schemas.avro.parsed import ParsedSchema

Json = Any

_PLAIN = ["boolean", "int", "long", "float", "double", "bytes", "string"]
_LOGICAL: list[Json] = [
    {"type": "int", "logicalType": "date"},
    {"type": "int", "logicalType": "time-millis"},
    {"type": "long", "logicalType": "time-micros"},
    {"type": "long", "logicalType": "timestamp-millis"},
    {"type": "long", "logicalType": "timestamp-micros"},
    {"type": "long", "logicalType": "local-timestamp-millis"},
    {"type": "long", "logicalType": "local-timestamp-micros"},
    {"type": "string", "logicalType": "uuid"},
    {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
    {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 38},
]
_PROMOTIONS = {
    "int": ["long", "float", "double"],
    "long": ["float", "double"],
    "float": ["double"],
    "string": ["bytes"],
    "bytes": ["string"],
}


class Schemas:
    """Random schemas of one seed."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self._names = 0

    def record(self, depth: int = 2) -> Json:
        fields = [
            {"name": f"f{place}", "type": self.any(depth)}
            for place in range(self.chance.randint(1, 5))
        ]
        return {"type": "record", "name": self._name("R"), "fields": fields}

    def any(self, depth: int) -> Json:
        kind = self.chance.random()
        if kind < 0.35 or depth == 0:
            return self._leaf()
        if kind < 0.55:
            branches = ["null", self._leaf()]
            return branches if self.chance.random() < 0.7 else branches[::-1]
        if kind < 0.7:
            return self.record(depth - 1)
        if kind < 0.8:
            return {"type": "array", "items": self.any(depth - 1)}
        if kind < 0.9:
            return {"type": "map", "values": self.any(depth - 1)}
        return self._union(depth)

    def _union(self, depth: int) -> Json:
        """Types that are not promoted to each other, so that it is clear which is meant."""
        branches: list[Json] = ["null", "boolean", "string", "double", self.record(depth - 1)]
        branches.append({"type": "array", "items": self.any(depth - 1)})
        return self.chance.sample(branches, self.chance.randint(1, 4))

    def _leaf(self) -> Json:
        kind = self.chance.random()
        if kind < 0.6:
            return self.chance.choice(_PLAIN)
        if kind < 0.8:
            return copy.deepcopy(self.chance.choice(_LOGICAL))
        if kind < 0.9:
            symbols = [f"S{place}" for place in range(self.chance.randint(1, 5))]
            return {"type": "enum", "name": self._name("E"), "symbols": symbols}
        fixed: Json = {"type": "fixed", "name": self._name("F"), "size": self.chance.randint(0, 9)}
        if fixed["size"] > 3 and self.chance.random() < 0.5:
            fixed |= {"logicalType": "decimal", "precision": 7, "scale": 3}
        return fixed

    def _name(self, letter: str) -> str:
        self._names += 1
        return f"test.{letter}{self._names}"

    # -- readers ------------------------------------------------------------------------------------

    def reader(self, writer: Json) -> Json:
        """The same with fields added, dropped, renamed and in another order, and types promoted."""
        if isinstance(writer, list):
            return [self.reader(each) for each in writer if isinstance(each, dict) or each] + (
                ["null"] if "null" not in writer and self.chance.random() < 0.3 else []
            )
        if isinstance(writer, str):
            if writer in _PROMOTIONS and self.chance.random() < 0.2:
                return self.chance.choice(_PROMOTIONS[writer])
            return writer
        changed = dict(writer)
        match writer["type"]:
            case "record":
                changed["fields"] = self._fields(writer["fields"])
            case "array":
                changed["items"] = self.reader(writer["items"])
            case "map":
                changed["values"] = self.reader(writer["values"])
            case "enum" if self.chance.random() < 0.3:
                changed["symbols"] = [*writer["symbols"][1:], "OTHER"]
                if self.chance.random() < 0.7:
                    changed["default"] = "OTHER"
        return changed

    def _fields(self, written: Json) -> Json:
        fields = []
        for field in written:
            chosen = self.chance.random()
            if chosen < 0.2 and len(written) > 1:
                continue
            changed = {"name": field["name"], "type": self.reader(field["type"])}
            if chosen > 0.8:
                changed |= {"name": f"{field['name']}_new", "aliases": ["other", field["name"]]}
            if chosen > 0.7 and not isinstance(changed["type"], list):
                changed["type"] = ["null", changed["type"]]
            fields.append(changed)
        if self.chance.random() < 0.5:
            fields.append(self._added())
        self.chance.shuffle(fields)
        return fields or [self._added()]

    def _added(self) -> Json:
        kinds: list[tuple[Json, Json]] = [
            ("int", -7),
            ("string", "só"),
            ("bytes", "\u00ff\u0001"),
            (["null", "string"], None),
            (["string", "null"], "x"),
            ({"type": "array", "items": "long"}, [1, 2, 3]),
            ({"type": "map", "values": "boolean"}, {"k": True}),
            ({"type": "int", "logicalType": "date"}, 5),
            (
                {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 1},
                "\u0001\u0002",
            ),
        ]
        kind, default = copy.deepcopy(self.chance.choice(kinds))
        return {"name": "added", "type": kind, "default": default}


# -- values ---------------------------------------------------------------------------------------------


def value_of(chance: random.Random, schema: Json) -> Any:
    """As fastavro writes it; of a union, named by its branch."""
    if isinstance(schema, list):
        branch = chance.choice(schema)
        if branch == "null":
            return None
        kind = branch if isinstance(branch, str) else branch.get("name", branch["type"])
        return (kind, value_of(chance, branch))
    if isinstance(schema, dict):
        match schema["type"]:
            case "record":
                return {each["name"]: value_of(chance, each["type"]) for each in schema["fields"]}
            case "array":
                return [value_of(chance, schema["items"]) for _ in range(chance.randint(0, 3))]
            case "map":
                keys = (f"k{place}" for place in range(chance.randint(0, 3)))
                return {key: value_of(chance, schema["values"]) for key in keys}
            case "enum":
                return chance.choice(schema["symbols"])
        if "logicalType" in schema:
            return _logical(chance, schema)
        if schema["type"] == "fixed":
            return chance.randbytes(schema["size"])
        return _plain(chance, schema["type"])
    return _plain(chance, schema)


def _plain(chance: random.Random, kind: str) -> Any:
    match kind:
        case "boolean":
            return chance.random() < 0.5
        case "int":
            return chance.choice([0, -1, 2**31 - 1, -(2**31), chance.randint(-300, 300)])
        case "long":
            return chance.choice([0, 2**63 - 1, -(2**63), chance.randint(-(10**12), 10**12)])
        case "float" | "double":
            number = chance.choice([0.0, -1.5, math.inf, math.nan, chance.uniform(-1e6, 1e6)])
            return struct.unpack("<f", struct.pack("<f", number))[0] if kind == "float" else number
        case "bytes":
            return chance.randbytes(chance.randint(0, 20)).replace(b"\xff", b"a") + b"x"
        case "string":
            return "".join(chance.choice("aé漢😀\0z") for _ in range(chance.randint(0, 12)))
    return None


def _logical(chance: random.Random, schema: Json) -> Any:
    kind = schema["logicalType"]
    if kind == "decimal":
        digits = 10 ** schema["precision"] - 1
        return Decimal(chance.randint(-digits, digits)).scaleb(-schema["scale"])
    if kind == "uuid":
        return UUID(bytes=chance.randbytes(16))
    moment = datetime(2000, 1, 1) + timedelta(milliseconds=chance.randint(-(10**12), 10**12))  # noqa: DTZ001
    if kind == "date":
        return moment.date()
    if kind.startswith("time-"):
        return moment.time()
    return moment if kind.startswith("local") else moment.replace(tzinfo=UTC)


def body(parsed: Json, value: Any) -> bytes:
    """What fastavro writes."""
    out = BytesIO()
    fastavro.schemaless_writer(out, parsed, value)
    return out.getvalue()


def read(parsed: Json, data: bytes) -> Any:
    """What fastavro reads."""
    return fastavro.schemaless_reader(BytesIO(data), parsed, None)


def framed(number: int, data: bytes) -> bytes:
    return struct.pack(">BI", 0, number) + data


# -- what is to be seen -----------------------------------------------------------------------------------


def from_arrow(parsed: ParsedSchema, schema: Json, seen: Any) -> Any:
    """What `to_pylist` gives, as a decoder of single values has it."""
    s = parsed.of(schema)
    if seen is None:
        return None
    if isinstance(s, list):
        branches = [each for each in s if parsed.of(each)["type"] != "null"]
        if len(branches) == 1:
            return from_arrow(parsed, branches[0], seen)
        members = [seen[f"member{place}"] for place in range(len(branches))]
        ((place, member),) = [(p, m) for p, m in enumerate(members) if m is not None]
        return from_arrow(parsed, branches[place], member)
    match s["type"]:
        case "record":
            return {f["name"]: from_arrow(parsed, f["type"], seen[f["name"]]) for f in s["fields"]}
        case "array":
            return [from_arrow(parsed, s["items"], each) for each in seen]
        case "map":
            return {key: from_arrow(parsed, s["values"], each) for key, each in seen}
        case "string" if s.get("logicalType") == "uuid":
            return UUID(seen)
        case "float" | "double" if math.isnan(seen):
            return "NaN"
    return seen


def expected(parsed: ParsedSchema, schema: Json, value: Any) -> Any:
    """A decoder's value with what Arrow rounds, and with NaN equal to itself."""
    s = parsed.of(schema)
    if isinstance(s, list):
        for branch in s:
            kind = parsed.of(branch)["type"]
            if (
                kind
                in {dict: "record map", list: "array", float: "float double"}.get(
                    type(value), ""
                ).split()
            ):
                return expected(parsed, branch, value)
        return value
    if s["type"] == "record":
        return {f["name"]: expected(parsed, f["type"], value[f["name"]]) for f in s["fields"]}
    if s["type"] == "array":
        return [expected(parsed, s["items"], each) for each in value]
    if s["type"] == "map":
        return {key: expected(parsed, s["values"], each) for key, each in value.items()}
    if s["type"] in ("float", "double") and math.isnan(value):
        return "NaN"
    if s["type"] == "float":
        return struct.unpack("<f", struct.pack("<f", value))[0]
    return value


def text(schema: Json) -> str:
    return json.dumps(schema)
