"""How values of a writer's schema are read as those of a reader's: Avro's rules, made into a program.

What cannot be read is no error before a value needs it: a branch of a union that the reader has not,
for example, is one only for values that have it.
"""

from folkmoot.schemas.avro.defaults import Json
from folkmoot.schemas.avro.identity import RECORDS
from folkmoot.schemas.avro.logical import logical
from folkmoot.schemas.avro.matching import chosen, factor, fits, promotes, sources
from folkmoot.schemas.avro.parsed import Parsed
from folkmoot.schemas.columns.layout import Layout, Shape
from folkmoot.schemas.columns.program import OPS, Node, Op
from folkmoot.schemas.values.encoding import default_body


def resolve(nodes: list[Node], writer: Parsed, layout: Layout, *, of_any_name: bool = False) -> int:
    """Adds the nodes that read the writer's values into the layout's columns. → the first of them.

    `of_any_name`: what a record as a whole was called does not matter.
    """
    pair, shape = _Pair(nodes, writer, layout.parsed), layout.root
    w, r = writer.of(writer.root), layout.parsed.of(layout.parsed.root)
    if of_any_name and all(isinstance(s, dict) and s["type"] in RECORDS for s in (w, r)):
        return pair.record(w, r, shape, "")
    return pair.node(w, r, shape, "")


class _Pair:
    def __init__(self, nodes: list[Node], writer: Parsed, reader: Parsed) -> None:
        self._nodes = nodes
        self._writer = writer
        self._reader = reader
        self._skipped: dict[str, int] = {}
        # Several writers' records may be read into the same columns, in several ways at each level.
        self._records: dict[tuple[str, int], int] = {}
        self._empty: dict[str, bool] = {}

    def _add(self, op: Op, where: str, column: int = -1, size: int = 0, data: bytes = b"") -> int:
        self._nodes.append(Node(op, where, column, size, [], data))
        return len(self._nodes) - 1

    def node(self, writer: Json, reader: Json, shape: Shape, where: str) -> int:
        w, r = self._writer.of(writer), self._reader.of(reader)
        if isinstance(w, list):
            union = self._add(Op.UNION, where)
            self._nodes[union].children = [self.node(each, r, shape, where) for each in w]
            return union
        if isinstance(r, list):
            return self._into_union(w, r, shape, where)
        why = _misfit(w, r)
        if why:
            return self._add(Op.FAIL, where, data=why.encode())
        kind = w["type"]
        if kind in RECORDS:
            return self.record(w, r, shape, where)
        if kind == "null":
            return self._add(Op.NULL, where)
        if kind == "fixed":
            return self._add(Op.FIXED, where, shape.column, w["size"])
        if kind == "enum":
            node = self._add(Op.ENUM, where, shape.column)
            otherwise = r["symbols"].index(r["default"]) if r.get("default") in r["symbols"] else -1
            self._nodes[node].children = [
                r["symbols"].index(each) if each in r["symbols"] else otherwise
                for each in w["symbols"]
            ]
            return node
        if kind == "array" or kind == "map":
            return self._array(w, r, shape, where)
        return self._add(OPS[kind], where, shape.column, int(factor(w, r)))

    def _into_union(self, w: Json, r: list[Json], shape: Shape, where: str) -> int:
        branches = [self._reader.of(each) for each in r]
        place = chosen(w, branches)
        if place is None:
            why = f"the reader's union has no branch for {_named(w)}"
            return self._add(Op.FAIL, where, data=why.encode())
        if branches[place]["type"] == "null":
            return self._add(Op.NULL, where)
        kept = [number for number, each in enumerate(branches) if each["type"] != "null"]
        if len(kept) == 1:
            return self.node(w, branches[place], shape, where)
        member = self.node(w, branches[place], shape.children[kept.index(place)], where)
        node = self._add(Op.RECORD, where, shape.column)
        self._nodes[node].children = [member]
        return node

    def _array(self, w: Json, r: Json, shape: Shape, where: str) -> int:
        inside = f"{where}[]"
        node = self._add(Op.ARRAY, where, shape.column)
        if w["type"] == "array":
            self._nodes[node].size = int(self._is_empty(w["items"]))
            item = self.node(w["items"], r["items"], shape.children[0], inside)
        else:
            key = self._add(Op.BYTES, inside, shape.children[0].column)
            value = self.node(w["values"], r["values"], shape.children[1], inside)
            item = self._add(Op.RECORD, inside)
            self._nodes[item].children = [key, value]
        self._nodes[node].children = [item]
        return node

    def record(self, w: Json, r: Json, shape: Shape, where: str) -> int:
        key = w["name"], shape.column
        if key in self._records:
            return self._records[key]
        node = self._records[key] = self._add(Op.RECORD, where, shape.column)
        children, places = [], sources(w, r)
        for field in w["fields"]:
            inside = f"{where}.{field['name']}" if where else field["name"]
            place = places.get(field["name"])
            if place is None:
                children.append(self._skip(field["type"], inside))
                continue
            there = r["fields"][place]["type"]
            children.append(self.node(field["type"], there, shape.children[place], inside))
        for place, field in enumerate(r["fields"]):
            if place not in places.values():
                inside = f"{where}.{field['name']}" if where else field["name"]
                children.append(self._default(field, shape.children[place], inside))
        self._nodes[node].children = children
        return node

    def _default(self, field: Json, shape: Shape, where: str) -> int:
        if "default" not in field:
            why = "the writer has no such field, and the reader no default for it"
            return self._add(Op.FAIL, where, data=why.encode())
        try:
            data = default_body(field["type"], field["default"], self._reader.names)
        except ValueError as error:
            why = f"the reader's default does not fit: {error}"
            return self._add(Op.FAIL, where, data=why.encode())
        node = self._add(Op.CONSTANT, where, data=data)
        same = _Pair(self._nodes, self._reader, self._reader)
        self._nodes[node].children = [same.node(field["type"], field["type"], shape, where)]
        return node

    def _skip(self, writer: Json, where: str) -> int:
        """Reads what the reader has no column for. A type may contain itself."""
        w = self._writer.of(writer)
        if isinstance(w, list):
            node = self._add(Op.UNION, where)
            self._nodes[node].children = [self._skip(each, where) for each in w]
            return node
        kind = w["type"]
        if kind in RECORDS:
            if w["name"] in self._skipped:
                return self._skipped[w["name"]]
            node = self._skipped[w["name"]] = self._add(Op.RECORD, where)
            self._nodes[node].children = [self._skip(each["type"], where) for each in w["fields"]]
            return node
        if kind == "array" or kind == "map":
            inner = w["items"] if kind == "array" else w["values"]
            node = self._add(Op.ARRAY, where, size=int(kind == "array" and self._is_empty(inner)))
            item = self._skip(inner, where)
            if kind == "map":
                entry, key = self._add(Op.RECORD, where), self._add(Op.BYTES, where)
                self._nodes[entry].children = [key, item]
                item = entry
            self._nodes[node].children = [item]
            return node
        if kind == "enum":
            node = self._add(Op.ENUM, where)
            self._nodes[node].children = [0] * len(w["symbols"])
            return node
        if kind == "fixed":
            return self._add(Op.FIXED, where, size=w["size"])
        return self._add(Op.NULL if kind == "null" else OPS[kind], where)

    def _is_empty(self, writer: Json) -> bool:
        """Whether a value may take no bytes."""
        w = self._writer.of(writer)
        if isinstance(w, list):
            return False
        if w["type"] in RECORDS:
            name = w["name"]
            if name not in self._empty:
                self._empty[name] = True  # within itself
                self._empty[name] = all(self._is_empty(field["type"]) for field in w["fields"])
            return self._empty[name]
        return bool(w["type"] == "null" or (w["type"] == "fixed" and not w["size"]))


def _misfit(w: Json, r: Json) -> str:
    """Why a value of `w` cannot be one of `r`, looking at the two alone; nothing if it can."""
    if fits(w, r) or promotes(w, r):
        return _other_meaning(w, r)
    said = f"{_named(w)} cannot be read as {_named(r)}"
    is_renamed = "name" in w and "name" in r and w.get("size") == r.get("size")
    return f"{said}: give that an alias" if is_renamed else said


def _other_meaning(w: Json, r: Json) -> str:
    """Numbers that would silently be others: of another scale, or in a unit that has no room for them."""
    mean = [each.get("logicalType") for each in (w, r)]
    if mean[0] == mean[1] == "decimal" and logical(w) and logical(r):
        scales = [each.get("scale", 0) for each in (w, r)]
        if scales[0] != scales[1]:
            return f"a decimal of scale {scales[0]} cannot be read as one of {scales[1]}"
    return "" if factor(w, r) >= 1 else f"{mean[0]} cannot be read as {mean[1]}, which is coarser"


def _named(schema: Json) -> str:
    kind, name = schema["type"], schema.get("name")
    return f"{kind} {name}" if name else f"{'an' if kind in ('array', 'int') else 'a'} {kind}"
