"""Schemas by chance, values that fit them, and bytes that were values before they were damaged."""

import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any
from uuid import UUID

from folkmoot.schemas.avro.identity import canonical

Json = Any

EPOCH = datetime.fromisoformat("1970-01-01")
PLAIN = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
LOGICAL: list[Json] = [
    {"type": "int", "logicalType": "date"},
    {"type": "int", "logicalType": "time-millis"},
    {"type": "long", "logicalType": "time-micros"},
    {"type": "long", "logicalType": "timestamp-millis"},
    {"type": "long", "logicalType": "timestamp-micros"},
    {"type": "long", "logicalType": "local-timestamp-millis"},
    {"type": "long", "logicalType": "local-timestamp-micros"},
    {"type": "string", "logicalType": "uuid"},
    {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
    {"type": "fixed", "name": "n.Price", "size": 6, "logicalType": "decimal", "precision": 9, "scale": 3},
]  # fmt: skip
EDGES = (0, 1, -1, 63, 64, -64, -65, 8191, 8192, 2**31 - 1, -(2**31))


def text_of(schema: Json) -> str:
    """The canonical text of a schema given as Python values, "long" too."""
    return canonical(json.dumps(schema))


class Chance:
    """One schema and values of it; named types are defined where they come first."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.named: dict[str, Json] = {}
        self._names = 0
        self._unfinished: set[str] = set()
        self.schema = self._schema(3)
        self.text = json.dumps(self.schema, sort_keys=True, separators=(",", ":"))

    def _schema(self, depth: int) -> Json:
        random = self.random
        if depth == 0 or random.random() < 0.3:
            kind = random.choice([*PLAIN, *LOGICAL, *self.named])
            if isinstance(kind, dict) and "name" in kind:
                return self._define(dict(kind), kind["name"])
            if isinstance(kind, str) and kind in self._unfinished:  # else no value would end
                return ["null", kind]
            return kind
        match random.choice(("record", "record", "array", "map", "union", "enum", "fixed")):
            case "record":
                name = self._name("R")
                made: Json = {"type": "record", "name": name, "fields": []}
                count = random.randrange(5)
                if count and random.random() < 0.2:
                    self.named[name] = made
                    self._unfinished.add(name)
                for number in range(count):
                    made["fields"].append({"name": f"f{number}", "type": self._schema(depth - 1)})
                self._unfinished.discard(name)
                self.named[name] = made
                return made
            case "array":
                return {"type": "array", "items": self._schema(depth - 1)}
            case "map":
                return {"type": "map", "values": self._schema(depth - 1)}
            case "union":
                union: dict[str, Json] = {"null": "null"} if random.random() < 0.3 else {}
                for _ in range(random.randrange(1, 5)):
                    known = dict(self.named)
                    branch = self._schema(depth - 1)
                    if isinstance(branch, list) or self._tag(branch) in union:
                        self.named = known  # nor what it has defined
                    else:
                        union[self._tag(branch)] = branch
                return list(union.values()) or ["null"]
            case "enum":
                name = self._name("E")
                return self._define(
                    {
                        "type": "enum",
                        "name": name,
                        "symbols": ["A", "B", "C"][: random.randrange(1, 4)],
                    },
                    name,
                )
        name = self._name("F")
        return self._define({"type": "fixed", "name": name, "size": random.randrange(5)}, name)

    def _name(self, kind: str) -> str:
        self._names += 1
        return f"n.{kind}{self._names}"

    def _define(self, schema: Json, name: str) -> Json:
        if name in self.named:
            return name
        self.named[name] = schema
        return schema

    @staticmethod
    def _tag(schema: Json) -> str:
        return schema if isinstance(schema, str) else str(schema.get("name", schema["type"]))

    def value(self, schema: Json = ..., depth: int = 6) -> Any:
        """One that fits, as a program would have it."""
        random = self.random
        schema = self.schema if schema is ... else schema
        if isinstance(schema, str):
            schema = self.named.get(schema, schema)
        if isinstance(schema, list):
            branch = random.choice(schema) if depth > 0 or "null" not in schema else "null"
            return (self._tag(branch), self.value(branch, depth - 1))
        if isinstance(schema, str):
            return self._plain(schema)
        if "logicalType" in schema:
            return self._logical(schema)
        count = random.randrange(4) if depth > 0 else 0
        match schema["type"]:
            case "record":
                return {
                    each["name"]: self.value(each["type"], depth - 1) for each in schema["fields"]
                }
            case "array":
                return [self.value(schema["items"], depth - 1) for _ in range(count)]
            case "map":
                return {f"k{i}": self.value(schema["values"], depth - 1) for i in range(count)}
            case "enum":
                return random.choice(schema["symbols"])
            case "fixed":
                return random.randbytes(schema["size"])
        raise AssertionError(schema)

    def _plain(self, kind: str) -> Any:
        random = self.random
        match kind:
            case "null":
                return None
            case "boolean":
                return random.random() < 0.5
            case "int":
                return random.choice((*EDGES, random.randrange(-(2**31), 2**31)))
            case "long":
                return random.choice(
                    (*EDGES, 2**63 - 1, -(2**63), random.randrange(-(2**63), 2**63))
                )
            case "float":
                return random.randrange(-1000, 1000) / 8
            case "double":
                return random.choice((random.random(), 1e300, float("inf")))
            case "bytes":
                return random.randbytes(random.randrange(6))
        return "".join(random.choice("aé€😀") for _ in range(random.randrange(5)))

    def _logical(self, schema: Json) -> Any:
        number = self.random.randrange(86_400_000)
        moment = EPOCH + timedelta(milliseconds=number * 1000)
        match schema["logicalType"].removeprefix("local-").split("-")[0]:
            case "date":
                return date(1970, 1, 1) + timedelta(days=number % 30_000 - 5000)
            case "time":
                return (EPOCH + timedelta(milliseconds=number)).time()
            case "timestamp":
                local = schema["logicalType"].startswith("local")
                return moment if local else moment.replace(tzinfo=UTC)
            case "uuid":
                return UUID(int=self.random.getrandbits(128))
        return Decimal(self.random.randrange(-(10**9) + 1, 10**9)).scaleb(-schema["scale"])


def damaged(random: Random, body: bytes) -> bytes:
    """Bytes that are a value no more, or another one."""
    made = bytearray(body)
    for _ in range(random.randrange(1, 4)):
        where = random.randrange(len(made) + 1)
        match random.randrange(5):
            case 0:
                del made[where:]
            case 1:
                made[where:where] = random.randbytes(random.randrange(1, 12))
            case 2:
                del made[where : where + random.randrange(1, 4)]
            case 3 if where < len(made):
                made[where] = random.choice((0, 1, 2, 3, 0x7F, 0x80, 0xFF, random.randrange(256)))
            case 4:
                made[where:where] = b"\xff" * random.randrange(1, 11) + b"\x01"
    return bytes(made)
