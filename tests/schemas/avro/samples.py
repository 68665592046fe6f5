"""Random pairs of Avro schemas that are related, and random bytes of the first."""

import copy
import json
import random
import struct
from collections.abc import Callable, Iterator
from typing import Any

Json = Any

PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
NAMES = ("A", "B", "C", "D", "E", "F")
SPACES = ("", "x.", "y.")


class Samples:
    """Everything that comes out follows from the seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._types: dict[str, Json] = {}

    def pair(self) -> tuple[str, str]:
        """A writer's schema and a reader's, most often one that was changed a little."""
        writer = self.schema()
        if self._random.random() < 0.1:
            return json.dumps(writer), json.dumps(self.schema())
        reader = copy.deepcopy(writer)
        for _ in range(self._random.choice((1, 1, 2, 2, 3, 5))):
            reader = self._changed(reader)
        return json.dumps(writer), json.dumps(_written_once(reader))

    def schema(self) -> Json:
        self._types = {}
        return _written_once(self._type(self._random.choice((1, 2, 3)), top=True))

    def _type(self, depth: int, *, union: bool = True, top: bool = False) -> Json:
        kinds = ["primitive"] * (0 if top and self._random.random() < 0.8 else 4)
        kinds += ["enum", "fixed", "logical"]
        if self._types and not top:
            kinds += ["reference"] * 2
        if depth:
            kinds += ["record"] * (6 if top else 3) + ["array", "map"] + ["union"] * (2 * union)
        kind = self._random.choice(kinds)
        made: dict[str, Callable[[], Json]] = {
            "primitive": lambda: self._random.choice(PRIMITIVES),
            "logical": self._logical,
            "reference": lambda: self._random.choice(list(self._types)),
            "enum": self._enum,
            "fixed": self._fixed,
            "record": lambda: self._record(depth),
            "array": lambda: {"type": "array", "items": self._type(depth - 1)},
            "map": lambda: {"type": "map", "values": self._type(depth - 1)},
            "union": lambda: self._union(depth),
        }
        return made[kind]()

    def _logical(self) -> Json:
        return self._random.choice(
            (
                {"type": "int", "logicalType": "date"},
                {"type": "long", "logicalType": "timestamp-millis"},
                {"type": "long", "logicalType": "timestamp-micros"},
                {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2},
            )
        )

    def _name(self) -> str | None:
        free = [s + n for s in SPACES for n in NAMES if s + n not in self._types]
        return self._random.choice(free) if free else None

    def _enum(self) -> Json:
        name = self._name()
        if name is None:
            return "int"
        symbols = self._random.sample(("R", "G", "B", "W"), self._random.randint(1, 4))
        made = {"type": "enum", "name": name, "namespace": "", "symbols": symbols}
        if self._random.random() < 0.3:
            made["default"] = self._random.choice(symbols)
        self._types[name] = made
        return made

    def _fixed(self) -> Json:
        name = self._name()
        if name is None:
            return "bytes"
        made = {"type": "fixed", "name": name, "namespace": "", "size": self._random.randint(1, 3)}
        self._types[name] = made
        return made

    def _record(self, depth: int) -> Json:
        name = self._name()
        if name is None:
            return "long"
        made: Json = {"type": "record", "name": name, "namespace": "", "fields": []}
        self._types[name] = made
        for field in self._random.sample("abcdef", self._random.randint(0, 4)):
            kind = self._type(depth - 1)
            # A record that holds itself has no finite value.
            if isinstance(kind, str) and kind in self._types and self._unfinished(kind):
                kind = ["null", kind]
            made["fields"].append({"name": field, "type": kind})
        made["done"] = True
        return made

    def _unfinished(self, name: str) -> bool:
        return self._types[name]["type"] == "record" and "done" not in self._types[name]

    def _union(self, depth: int) -> Json:
        branches: list[Json] = []
        for _ in range(self._random.randint(1, 4)):
            branch = self._type(depth - 1, union=False)
            if isinstance(branch, str) and branch in self._types and self._unfinished(branch):
                branch = "null"
            if _tag(branch) not in map(_tag, branches):
                branches.append(branch)
            elif isinstance(branch, dict) and "name" in branch:
                del self._types[branch["name"]]
        return branches

    def _changed(self, schema: Json) -> Json:
        """One change somewhere."""
        kind, put = self._random.choice(list(places(schema)))
        changes: list[Callable[[Json], Json]] = [self._other]
        if isinstance(kind, str):
            changes += [self._promoted] * 3 + [self._optional]
        elif isinstance(kind, list):
            changes += [self._other_branches] * 4
        elif kind["type"] == "record":
            changes += [self._other_fields] * 8 + [self._renamed]
        elif kind["type"] == "enum":
            changes += [self._other_symbols] * 3 + [self._renamed]
        elif kind["type"] == "fixed":
            changes += [self._renamed]
        else:
            changes += [self._optional]
        made = self._random.choice(changes)(kind)
        if put is None:
            return made
        put(made)
        return schema

    def _other(self, kind: Json) -> Json:
        return self._random.choice((*PRIMITIVES, "kept")) if isinstance(kind, str) else kind

    def _promoted(self, kind: Json) -> Json:
        others = {"int": ["long", "float", "double"], "long": ["float", "double"]}
        others |= {"float": ["double"], "string": ["bytes"], "bytes": ["string"]}
        return self._random.choice(others.get(kind, [kind]))

    def _optional(self, kind: Json) -> Json:
        branches = [kind, "null"] if _tag(kind) != "null" else [kind]
        if self._random.random() < 0.5:
            more = [each for each in PRIMITIVES if each not in map(_tag, branches)]
            branches.append(self._random.choice(more))
        self._random.shuffle(branches)
        return branches

    def _other_branches(self, kind: Json) -> Json:
        branches = list(kind)
        turn = self._random.random()
        if turn < 0.3:
            self._random.shuffle(branches)
        elif turn < 0.5 and len(branches) > 1:
            branches.pop(self._random.randrange(len(branches)))
        elif turn < 0.7:
            return self._random.choice(branches)
        else:
            more = [each for each in PRIMITIVES if each not in map(_tag, branches)]
            branches.insert(self._random.randint(0, len(branches)), self._random.choice(more))
        return branches

    def _other_fields(self, kind: Json) -> Json:
        fields = kind["fields"]
        turn = self._random.random()
        if turn < 0.2 and fields:
            fields.pop(self._random.randrange(len(fields)))
        elif turn < 0.4:
            self._random.shuffle(fields)
        elif turn < 0.6 and fields:
            field = self._random.choice(fields)
            names = [each for each in "abcdefgh" if each not in [f["name"] for f in fields]]
            field["aliases"] = [*field.get("aliases", ()), field["name"]]
            field["name"] = self._random.choice(names)
        else:
            names = [each for each in "abcdefgh" if each not in [f["name"] for f in fields]]
            default = self._random.choice(DEFAULTS)
            field = {"name": self._random.choice(names), "type": default[0], "default": default[1]}
            if self._random.random() < 0.1:
                del field["default"]
            if self._random.random() < 0.2:
                field["aliases"] = [self._random.choice("abcdef")]
            fields.insert(self._random.randint(0, len(fields)), field)
        return kind

    def _other_symbols(self, kind: Json) -> Json:
        symbols = kind["symbols"]
        if self._random.random() < 0.5 and len(symbols) > 1:
            symbols.remove(self._random.choice(symbols))
            if kind.get("default") not in symbols:
                kind.pop("default", None)
        elif "X" not in symbols:
            symbols.insert(0, "X")
        if self._random.random() < 0.3:
            kind["default"] = symbols[0]
        return kind

    def _renamed(self, kind: Json) -> Json:
        space, _, short = kind["name"].rpartition(".")
        old = kind["name"]
        if self._random.random() < 0.5:
            kind["name"] = f"z.{short}"
        else:
            kind["name"] = f"{space}.Z{short}" if space else f"Z{short}"
        kind["old"] = old
        if self._random.random() < 0.6:
            same = kind["name"].rpartition(".")[0] == space
            kind["aliases"] = [short if same and self._random.random() < 0.5 else old]
        return kind


DEFAULTS: tuple[tuple[Json, Json], ...] = (
    ("null", None),
    ("boolean", True),
    ("int", 7),
    ("long", -1),
    ("float", 1),
    ("double", 0.5),
    ("string", "é"),
    ("bytes", "\x00\xff"),
    (["null", "int"], None),
    (["null", "int"], 3),
    (["string", "bytes"], "s"),
    ({"type": "array", "items": "int"}, []),
    ({"type": "array", "items": ["null", "long"]}, [1, None]),
    ({"type": "map", "values": "bytes"}, {"k": "\xfe"}),
    ({"type": "enum", "name": "n.Enum", "symbols": ["U", "V"]}, "V"),
    ({"type": "fixed", "name": "n.Fixed", "size": 2}, "\x01\x80"),
    (
        {
            "type": "record",
            "name": "n.Inner",
            "fields": [
                {"name": "p", "type": "int"},
                {"name": "q", "type": "bytes", "default": "\xaa"},
            ],
        },
        {"p": 4},
    ),
    ({"type": "int", "logicalType": "date"}, 20),
    ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 1}, "\x05"),
)


def _tag(kind: Json) -> str:
    """What may stand in a union once."""
    if isinstance(kind, dict):
        return str(kind.get("name", kind["type"]))
    return "union" if isinstance(kind, list) else str(kind)


def places(schema: Json) -> Iterator[tuple[Json, Callable[[Json], None] | None]]:
    """Every type in a schema, each with what puts another in its place; in unions only the whole."""
    stack: list[tuple[Json, Callable[[Json], None] | None]] = [(schema, None)]
    while stack:
        kind, put = stack.pop()
        yield kind, put
        if isinstance(kind, list):
            for branch in kind:
                if isinstance(branch, dict):
                    stack.append((branch, lambda made: None))
        elif isinstance(kind, dict):
            for key in ("items", "values"):
                if key in kind:
                    stack.append((kind[key], _putting(kind, key)))
            for field in kind.get("fields", ()):
                stack.append((field["type"], _putting(field, "type")))


def _putting(there: dict[str, Json], key: str) -> Callable[[Json], None]:
    return lambda made: there.__setitem__(key, made)


def _written_once(schema: Json) -> Json:
    """The schema with each type written out where it is first, and former names gone."""
    new: dict[str, str] = {}
    types: dict[str, Json] = {}
    for kind, _ in places(schema):
        if isinstance(kind, dict) and "name" in kind:
            new[str(kind.get("old", kind["name"]))] = kind["name"]
            types.setdefault(kind["name"], kind)
    done: set[str] = set()

    def written(kind: Json) -> Json:
        if isinstance(kind, list):
            branches = [written(each) for each in kind]
            tags = [_tag(each) for each in branches]
            flat = [each for i, each in enumerate(branches) if tags.index(tags[i]) == i]
            return [each for each in flat if not isinstance(each, list)] or ["null"]
        if isinstance(kind, str):
            if kind in PRIMITIVES:
                return kind
            name = new.get(kind, kind)
            if name in done:
                return name
            if name not in types:
                return "int"
            kind = types[name]
        if "name" in kind:
            if kind["name"] in done:
                return kind["name"]
            done.add(kind["name"])
        made = {key: value for key, value in kind.items() if key not in ("old", "done")}
        for key in ("items", "values"):
            if key in kind:
                made[key] = written(kind[key])
        if "fields" in kind:
            made["fields"] = [each | {"type": written(each["type"])} for each in kind["fields"]]
        return made

    return written(schema)


def plain(text: str) -> str:
    """A resolved text without logical types, as the only field of a record: its bytes are the same."""

    def kept(pairs: list[tuple[str, Json]]) -> Json:
        return {
            key: value for key, value in pairs if key not in ("logicalType", "precision", "scale")
        }

    inner = json.loads(text, object_pairs_hook=kept)
    return json.dumps({"type": "record", "name": "Top", "fields": [{"name": "top", "type": inner}]})


class Endless(Exception):
    """A record that holds itself, always."""


class Bodies:
    """Random bytes of a resolved schema, written without any library."""

    def __init__(self, schema: str, source: random.Random) -> None:
        self._schema = json.loads(schema)
        self._random = source
        self._types: dict[str, Json] = {}
        for kind, _ in places(self._schema):
            if isinstance(kind, dict) and "name" in kind:
                self._types[kind["name"]] = kind

    def body(self) -> bytes | None:
        """None of a schema that has no finite values."""
        try:
            return self._of(self._schema, 6)
        except Endless:
            return None

    def _of(self, kind: Json, depth: int) -> bytes:
        if depth < -10:
            raise Endless
        if isinstance(kind, list):
            # Deep inside, the first that ends.
            ends = [i for i, each in enumerate(kind) if _tag(each) in PRIMITIVES]
            number = self._random.randrange(len(kind))
            if depth <= 0 and ends:
                number = ends[0]
            return zigzag(number) + self._of(kind[number], depth - 1)
        if isinstance(kind, str) and kind in self._types:
            kind = self._types[kind]
        name = kind if isinstance(kind, str) else kind["type"]
        if name == "record":
            return b"".join(self._of(each["type"], depth - 1) for each in kind["fields"])
        if name == "enum":
            return zigzag(self._random.randrange(len(kind["symbols"])))
        if name == "fixed":
            return self._random.randbytes(kind["size"])
        if name in ("array", "map"):
            count = self._random.randint(0, 2) if depth > 0 else 0
            inner = kind["items"] if name == "array" else kind["values"]
            items = [
                (b"" if name == "array" else _text(f"k{i}".encode())) + self._of(inner, depth - 1)
                for i in range(count)
            ]
            return (zigzag(count) + b"".join(items) if count else b"") + b"\0"
        return self._primitive(name, kind)

    def _primitive(self, name: str, kind: Json) -> bytes:
        if isinstance(kind, dict) and "logicalType" in kind:
            if kind["logicalType"] == "decimal":
                return _text(self._random.choice((b"\x01", b"\xff", b"\x7f\x00")))
            return zigzag(self._random.randint(-1000, 20000))
        some = self._random.choice
        made: dict[str, Callable[[], bytes]] = {
            "null": lambda: b"",
            "boolean": lambda: some((b"\0", b"\1")),
            "int": lambda: zigzag(some((0, 1, -1, 16777217, 2**31 - 1, -(2**31)))),
            "long": lambda: zigzag(some((0, 1, -1, 2**53 + 1, 2**63 - 1, -(2**63)))),
            "float": lambda: struct.pack("<f", some((0.0, -1.5, 3.4e38, float("inf")))),
            "double": lambda: struct.pack("<d", some((0.0, 0.1, -1e300, float("-inf")))),
            "bytes": lambda: _text(some((b"", b"abc", b"\xff\xfe", b"\xc3\xa9"))),
            "string": lambda: _text(some(("", "abc", "é", "漢")).encode()),
        }
        return made[name]()


def zigzag(number: int) -> bytes:
    left = (number << 1) ^ (number >> 63)
    out = bytearray()
    while left > 0x7F:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*out, left])


def _text(value: bytes) -> bytes:
    return zigzag(len(value)) + value
