"""Arrow columns made ready to be written as values of a schema: checked, cast, and as plain buffers.

A column is cast only where no value changes.
"""

from typing import Any, NamedTuple

from folkmoot.protocol.errors import SerializationError
from folkmoot.schemas.avro.defaults import Json
from folkmoot.schemas.columns.extra import pa, pc
from folkmoot.schemas.columns.layout import Layout, Shape, string_array
from folkmoot.schemas.columns.program import WIDTHS, Kind
from folkmoot.schemas.values.encoding import default_body
from folkmoot.schemas.values.program import OPS, Node, Op

_UUID = "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"


class Source(NamedTuple):
    """A column to be written: its buffers, as Arrow has them, and the first slot in them."""

    kind: Kind
    offset: int
    size: int
    valid: Any
    offsets: Any
    values: Any


class Binding:
    """The nodes that write some rows as values of a schema, and the sources that they read."""

    def __init__(self, layout: Layout, array: Any, first_row: int = 0) -> None:
        """Raises SerializationError for columns that are not those of the schema.

        `first_row`: rows before the first one, for what it says.
        """
        self.nodes: list[Node] = []
        self.sources: list[Source] = []
        self._layout = layout
        self._first_row = first_row
        self.root = self._node(layout.parsed.root, layout.root, array, "")

    def _add(self, op: Op, where: str, column: int = -1, size: int = 0, data: bytes = b"") -> int:
        self.nodes.append(Node(op, where, column, size, [], data))
        return len(self.nodes) - 1

    def _source(self, kind: Kind, array: Any, size: int = 0) -> int:
        buffers = array.buffers()
        valid = buffers[0] if array.null_count else None
        offsets = buffers[1] if kind in (Kind.BINARY, Kind.LIST) else None
        values = None if kind in (Kind.LIST, Kind.GROUP) else buffers[2 if offsets else 1]
        self.sources.append(Source(kind, array.offset, size, valid, offsets, values))
        return len(self.sources) - 1

    def _node(self, schema: Json, shape: Shape, array: Any, where: str) -> int:
        s = self._layout.parsed.of(schema)
        if isinstance(s, list):
            return self._union(s, shape, array, where)
        kind = s["type"]
        if pa.types.is_null(array.type) and kind != "null":
            array = pa.nulls(len(array), shape.type)
        if kind == "null":
            return self._null(array, where)
        if kind in ("record", "error"):
            return self._record(s, shape, array, where)
        if kind == "array":
            if pa.types.is_large_list(array.type) or pa.types.is_fixed_size_list(array.type):
                array = array.cast(pa.list_(array.type.value_type))
            if not pa.types.is_list(array.type):
                raise SerializationError(f"{where}: a list is wanted, not {array.type}")
            return self._items(array, where, [(s["items"], shape.children[0], array.values)])
        if kind == "map":
            if not pa.types.is_map(array.type):
                raise SerializationError(f"{where}: a map is wanted, not {array.type}")
            pair = [("string", shape.children[0], array.keys)]
            return self._items(array, where, [*pair, (s["values"], shape.children[1], array.items)])
        return self._leaf(s, shape, array, where)

    def _null(self, array: Any, where: str) -> int:
        if array.null_count != len(array):
            raise SerializationError(f"{where}: the schema has no place for other than null")
        return self._add(Op.NULL, where)

    def _record(self, s: Json, shape: Shape, array: Any, where: str) -> int:
        if not pa.types.is_struct(array.type):
            raise SerializationError(f"{where or 'value'}: a struct is wanted, not {array.type}")
        names = [array.type.field(index).name for index in range(array.type.num_fields)]
        unknown = [name for name in names if name not in {each["name"] for each in s["fields"]}]
        if unknown or len(set(names)) != len(names):
            unknown_names = ", ".join(unknown) or "a column twice"
            raise SerializationError(
                f"{where or 'the table'} has {unknown_names}: {s['name']} has not"
            )
        node = self._add(Op.RECORD, where, self._source(Kind.GROUP, array))
        for field, inner in zip(s["fields"], shape.children, strict=True):
            inside = f"{where}.{field['name']}" if where else field["name"]
            if field["name"] in names:
                column = array.field(names.index(field["name"]))
                child = self._node(field["type"], inner, column, inside)
            elif "default" in field:
                body = default_body(field["type"], field["default"], self._layout.parsed)
                child = self._add(Op.CONSTANT, inside, data=body)
            else:
                raise SerializationError(
                    f"{inside}: there is no such column, and no default for it"
                )
            self.nodes[node].children.append(child)
        return node

    def _union(self, s: list[Json], shape: Shape, array: Any, where: str) -> int:
        kinds = [self._layout.parsed.of(each)["type"] for each in s]
        values = [number for number, kind in enumerate(kinds) if kind != "null"]
        if not values:
            return self._add(Op.CONSTANT, where, data=b"\0") if self._null(array, where) else 0
        node = self._add(Op.UNION, where)
        children = [self._add(Op.NULL, where) for _ in s]
        if len(values) == 1:
            children[values[0]] = self._node(s[values[0]], shape, array, where)
        else:
            if pa.types.is_null(array.type):
                array = pa.nulls(len(array), shape.type)
            if not pa.types.is_struct(array.type):
                raise SerializationError(f"{where}: {shape.type} is wanted, not {array.type}")
            members = [array.type.field(index).name for index in range(array.type.num_fields)]
            if members != [f"member{index}" for index in range(len(values))]:
                raise SerializationError(f"{where}: {shape.type} is wanted, not {array.type}")
            self.nodes[node].column = self._source(Kind.GROUP, array)
            for index, number in enumerate(values):
                inner = shape.children[index]
                children[number] = self._node(s[number], inner, array.field(index), where)
        self.nodes[node].children = children
        return node

    def _items(self, array: Any, where: str, inner: list[tuple[Json, Shape, Any]]) -> int:
        node = self._add(Op.ARRAY, where, self._source(Kind.LIST, array))
        inside = f"{where}[]"
        children = [self._node(*each, inside) for each in inner]
        if len(children) > 1:
            entry = self._add(Op.RECORD, inside)
            self.nodes[entry].children, children = children, [entry]
        self.nodes[node].children = children
        return node

    def _leaf(self, s: Json, shape: Shape, array: Any, where: str) -> int:
        kind, size = self._layout.columns[shape.column].kind, s.get("size", 0)
        array = _cast(array, shape.type, where)
        if shape.symbols:
            numbers = pc.index_in(array, value_set=string_array(shape.symbols))
            fits = pc.or_(numbers.is_valid(), array.is_null())
            self._check(shape, fits, array, where, f"is no symbol of {s['name']}")
            array = numbers
        elif kind is Kind.UUID:
            fits = pc.fill_null(pc.match_substring_regex(array, _UUID), True)
            self._check(shape, fits, array, where, "is no UUID")
        elif kind in (Kind.INT32, Kind.INT64):
            size = self._layout.columns[shape.column].size
        if kind in (Kind.TEXT, Kind.UUID):
            kind = Kind.BINARY
        column = self._source(kind, array, WIDTHS.get(kind, size))
        return self._add(OPS[s["type"]], where, column, size)

    def _check(self, shape: Shape, fits: Any, array: Any, where: str, reason: str) -> None:
        if not len(fits) or pc.all(fits).as_py():
            return
        index = pc.index(fits, False).as_py()
        is_row = self._layout.columns[shape.column].level == 0
        row = f"row {self._first_row + index}: " if is_row else ""
        raise SerializationError(f"{row}{where}: {str(array[index])!r:.80} {reason}")


def _cast(array: Any, target: Any, where: str) -> Any:
    """The column with the buffers of the target's type. Raises SerializationError if values would change."""
    if array.type == target:
        return array
    kind = array.type.value_type if pa.types.is_dictionary(array.type) else array.type
    source_family, target_family = _family(kind), _family(target)
    is_number = source_family == "whole number" and target_family in _NUMBERED
    is_other = (
        source_family != target_family
        and (source_family, target_family) != ("bytes", "fixed")
        and not is_number
    )
    if is_other or (
        source_family == target_family == "number" and kind.bit_width > target.bit_width
    ):
        raise SerializationError(f"{where}: {target} is wanted, not {array.type}: cast it first")
    if is_number and target_family != "number":
        target = pa.int32() if target.bit_width == 32 else pa.int64()
    try:
        return array.cast(target)
    except pa.ArrowException as error:
        reason = " ".join(str(error).split())
        raise SerializationError(f"{where}: {array.type} is not all {target}: {reason}") from None


_FAMILIES = {
    "whole number": (pa.types.is_integer,),
    "number": (pa.types.is_floating,),
    "text": (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view),
    "fixed": (pa.types.is_fixed_size_binary,),
    "bytes": (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view),
    "boolean": (pa.types.is_boolean,),
    "decimal": (pa.types.is_decimal,),
    "date": (pa.types.is_date,),
    "time of day": (pa.types.is_time,),
    "instant": (lambda kind: pa.types.is_timestamp(kind) and kind.tz is not None,),
    "local time": (pa.types.is_timestamp,),
}
_NUMBERED = frozenset({"number", "date", "time of day", "instant", "local time"})
"""Avro types that take whole numbers."""


def _family(kind: Any) -> str:
    for name, predicates in _FAMILIES.items():
        if any(is_member(kind) for is_member in predicates):
            return name
    return str(kind)
