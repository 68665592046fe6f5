"""How values of a writer's schema are read as those of a reader's: Avro's rules, made into a program.

An unreadable part is an error only for values that have it, such as a branch of a union that the reader
lacks.
"""

from collections.abc import Sequence
from typing import Protocol

from folkmoot.schemas.avro.defaults import Json
from folkmoot.schemas.avro.identity import RECORDS
from folkmoot.schemas.avro.logical import logical
from folkmoot.schemas.avro.matching import choose_branch, fits, promotes, sources, unit_factor
from folkmoot.schemas.avro.parsed import ParsedSchema
from folkmoot.schemas.values.encoding import default_body
from folkmoot.schemas.values.program import OPS, Node, Op


class ColumnTree(Protocol):
    """The column that values of a type are read into, or -1, and those of what is within."""

    @property
    def column(self) -> int: ...
    @property
    def children(self) -> Sequence["ColumnTree"]: ...


def resolve(
    nodes: list[Node],
    writer: ParsedSchema,
    reader: ParsedSchema,
    shape: ColumnTree | None = None,
    *,
    of_any_name: bool = False,
) -> int:
    """Adds the nodes that read the writer's values as the reader's. → the first of them.

    They are read into the columns of `shape`; without it, as single values. `of_any_name`: what a
    record as a whole was called does not matter.
    """
    pair = _Pair(nodes, writer, reader)
    w, r = writer.of(writer.root), reader.of(reader.root)
    if of_any_name and all(isinstance(s, dict) and s["type"] in RECORDS for s in (w, r)):
        return pair.record(w, r, shape, "")
    return pair.node(w, r, shape, "")


class _Pair:
    def __init__(
        self, nodes: list[Node], writer: ParsedSchema, reader: ParsedSchema, *, skips: bool = False
    ) -> None:
        """`skips`: the values are read over, each as it was written."""
        self._nodes = nodes
        self._writer = writer
        self._reader = reader
        self._skips = skips
        self._skipping = self if skips else None
        # Several writers' records may be read into the same columns, in several ways at each level.
        self._records: dict[tuple[str, str, int], int] = {}
        self._empty: dict[str, bool] = {}

    def _add(
        self, op: Op, where: str, writer: Json = None, reader: Json = None, column: int = -1
    ) -> tuple[int, Node]:
        node = Node(op, where, column, writer=writer, reader=None if self._skips else reader)
        self._nodes.append(node)
        return len(self._nodes) - 1, node

    def _fail(self, where: str, why: str) -> int:
        number, node = self._add(Op.FAIL, where)
        node.data = why.encode()
        return number

    def _struct(self, where: str, children: list[int], column: int = -1) -> int:
        """A record that no schema has: an entry of a map, or the columns of a union."""
        number, node = self._add(Op.RECORD, where, column=column)
        node.children = children
        return number

    def node(self, writer: Json, reader: Json, shape: ColumnTree | None, where: str) -> int:
        w, r = self._writer.of(writer), self._reader.of(reader)
        if isinstance(w, list):
            number, node = self._add(Op.UNION, where, w, r)
            node.children = [self.node(b, b if self._skips else r, shape, where) for b in w]
            return number
        if isinstance(r, list):
            return self._into_union(w, r, shape, where)
        why = _mismatch(w, r, is_column=shape is not None)
        if why:
            return self._fail(where, why)
        kind = w["type"]
        if kind in RECORDS:
            return self.record(w, r, shape, where)
        if kind == "array" or kind == "map":
            return self._items(w, r, shape, where)
        number, node = self._add(OPS[kind], where, w, r, _column(shape))
        if kind == "enum":
            indexes = {symbol: index for index, symbol in enumerate(r["symbols"])}
            default = r.get("default")
            otherwise = indexes[default] if default in r["symbols"] else -1
            node.children = [indexes.get(each, otherwise) for each in w["symbols"]]
        else:
            node.size = w["size"] if kind == "fixed" else int(unit_factor(w, r))
        return number

    def _into_union(self, w: Json, r: list[Json], shape: ColumnTree | None, where: str) -> int:
        branches = [self._reader.of(each) for each in r]
        index = choose_branch(w, branches)
        if index is None:
            return self._fail(where, f"the reader's union has no branch for {_describe(w)}")
        columns = [number for number, each in enumerate(branches) if each["type"] != "null"]
        if shape is None or len(columns) == 1 or index not in columns:
            return self.node(w, branches[index], shape, where)
        member = self.node(w, branches[index], shape.children[columns.index(index)], where)
        return self._struct(where, [member], shape.column)

    def _items(self, w: Json, r: Json, shape: ColumnTree | None, where: str) -> int:
        inside = f"{where}[]"
        number, node = self._add(Op.ARRAY, where, w, r, _column(shape))
        if w["type"] == "array":
            node.size = int(self._is_empty(w["items"]))
            node.children = [self.node(w["items"], r["items"], _inner(shape, 0), inside)]
        else:
            key = self.node("string", "string", _inner(shape, 0), inside)
            value = self.node(w["values"], r["values"], _inner(shape, 1), inside)
            node.children = [self._struct(inside, [key, value])]
        return number

    def record(self, w: Json, r: Json, shape: ColumnTree | None, where: str) -> int:
        key = w["name"], r["name"], _column(shape)
        if key in self._records:
            return self._records[key]
        number, node = self._add(Op.RECORD, where, w, r, _column(shape))
        self._records[key] = number
        reader_indexes = {} if self._skips else sources(w, r)
        for field in w["fields"]:
            inside = f"{where}.{field['name']}" if where else field["name"]
            index = reader_indexes.get(field["name"], -1)
            node.indexes.append(index)
            if index < 0:
                node.children.append(self._skip(field["type"], inside))
            else:
                reader_type = r["fields"][index]["type"]
                node.children.append(
                    self.node(field["type"], reader_type, _inner(shape, index), inside)
                )
        for index, field in enumerate([] if self._skips else r["fields"]):
            if index not in reader_indexes.values():
                inside = f"{where}.{field['name']}" if where else field["name"]
                node.indexes.append(index)
                node.children.append(self._default(field, _inner(shape, index), inside))
        return number

    def _default(self, field: Json, shape: ColumnTree | None, where: str) -> int:
        if "default" not in field:
            why = "the writer has no such field, and the reader no default for it"
            return self._fail(where, why)
        try:
            data = default_body(field["type"], field["default"], self._reader)
        except ValueError as error:
            return self._fail(where, f"the reader's default does not fit: {error}")
        number, node = self._add(Op.CONSTANT, where)
        node.data = data
        same = _Pair(self._nodes, self._reader, self._reader)
        node.children = [same.node(field["type"], field["type"], shape, where)]
        return number

    def _skip(self, writer: Json, where: str) -> int:
        """Reads what the reader has no place for."""
        if self._skipping is None:
            self._skipping = _Pair(self._nodes, self._writer, self._writer, skips=True)
        return self._skipping.node(writer, writer, None, where)

    def _is_empty(self, writer: Json) -> bool:
        """Return whether a value may take no bytes."""
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


def _column(shape: ColumnTree | None) -> int:
    return -1 if shape is None else shape.column


def _inner(shape: ColumnTree | None, index: int) -> ColumnTree | None:
    return None if shape is None else shape.children[index]


def _mismatch(w: Json, r: Json, *, is_column: bool) -> str:
    """Why a value of `w` cannot be one of `r`, looking at the two alone; nothing if it can."""
    if not fits(w, r) and not promotes(w, r):
        why = f"{_describe(w)} cannot be read as {_describe(r)}"
        is_renamed = "name" in w and "name" in r and w.get("size") == r.get("size")
        return f"{why}: give that an alias" if is_renamed else why
    if not is_column and logical(w) and logical(r):
        return ""  # Python's decimals and times have any scale and unit
    return _meaning_mismatch(w, r)


def _meaning_mismatch(w: Json, r: Json) -> str:
    """Numbers that would silently be others: of another scale, or in a unit that has no room for them."""
    mean = [each.get("logicalType") for each in (w, r)]
    if mean[0] == mean[1] == "decimal" and logical(w) and logical(r):
        scales = [each.get("scale", 0) for each in (w, r)]
        if scales[0] != scales[1]:
            return f"a decimal of scale {scales[0]} cannot be read as one of {scales[1]}"
    return (
        "" if unit_factor(w, r) >= 1 else f"{mean[0]} cannot be read as {mean[1]}, which is coarser"
    )


def _describe(schema: Json) -> str:
    kind, name = schema["type"], schema.get("name")
    if name:
        return f"{kind} {name}"
    return kind if kind == "null" else f"{'an' if kind in ('array', 'int') else 'a'} {kind}"
