"""Avro bodies to Python values, as a reader's schema says, by functions that are made once per schema.

Two schemas are resolved as Avro's specification says and Java does, which fastavro does not always: of a
union the branch that is exactly the writer's comes before one that it could be promoted to, a default of
bytes is bytes, and bytes that no such value can have are an error, never a value.
"""

import struct
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from folkmoot.schemas.avro.defaults import Json
from folkmoot.schemas.avro.logical import logical
from folkmoot.schemas.avro.mismatch import SchemaMismatch
from folkmoot.schemas.avro.parsed import ParsedSchema
from folkmoot.schemas.values.encoding import MAX_EMPTY_ITEMS
from folkmoot.schemas.values.program import Node, Op
from folkmoot.schemas.values.resolution import resolve

Decode = Callable[[bytes, int], tuple[Any, int]]
"""The value that begins at a position of some bytes, and the position behind it. Raises BROKEN."""

BROKEN: Final = (
    SchemaMismatch,
    ValueError,
    IndexError,
    ArithmeticError,
    RecursionError,
    struct.error,
)
"""Errors for bytes that are no value of the schema."""

_FLOAT: Final = struct.Struct("<f")


class ValueFactory(NamedTuple):
    """A factory for values of a named type, in place of a dict or text."""

    make: Callable[..., Any]
    """For a record it gets the attributes by name; for an enum, the symbol."""
    attributes: Mapping[str, str]
    """Attributes of a record's fields."""


def decoder(
    writer: str, reader: str | None = None, classes: Mapping[str, ValueFactory] | None = None
) -> Decode:
    """Reads what the schema `writer` wrote as `reader` says, without one as it was written; resolved texts.

    `classes` says what becomes of the reader's named types; a record of a class may have been written under
    any name, since it is the application that wants it. That the two schemas do not fit is raised
    where the bytes have such a value, as the specification wants it.
    """
    writer_schema = ParsedSchema(writer)
    reader_schema = writer_schema if reader is None else ParsedSchema(reader)
    nodes: list[Node] = []
    root = resolve(nodes, writer_schema, reader_schema, of_any_name=classes is not None)
    return _Decoders(nodes, classes or {}).of(root)


# -- plain types --------------------------------------------------------------------------------------


def _null(data: bytes, position: int) -> tuple[None, int]:
    return None, position


def _boolean(data: bytes, position: int) -> tuple[bool, int]:
    byte = data[position]
    if byte > 1:
        raise SchemaMismatch(f"byte {byte} is no boolean")
    return byte == 1, position + 1


def _int(data: bytes, position: int) -> tuple[int, int]:
    byte = data[position]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position + 1
    more = data[position + 1]
    if more < 0x80:
        byte += (more << 7) - 0x80
        return (byte >> 1) ^ -(byte & 1), position + 2
    number, position = _long(data, position)
    if not -0x8000_0000 <= number <= 0x7FFF_FFFF:
        raise SchemaMismatch(f"{number} does not fit into an int")
    return number, position


def _long(data: bytes, position: int) -> tuple[int, int]:
    byte = data[position]
    position += 1
    number, shift = byte & 0x7F, 7
    while byte >= 0x80:
        if shift > 63:
            raise SchemaMismatch("a number has more than ten bytes")
        byte = data[position]
        position += 1
        number |= (byte & 0x7F) << shift
        shift += 7
    if number >> 64:
        raise SchemaMismatch("a number has more than 64 bits")
    return (number >> 1) ^ -(number & 1), position


def _floating(form: str) -> Decode:
    unpack, size = struct.Struct(form).unpack_from, struct.calcsize(form)

    def decode(data: bytes, position: int) -> tuple[float, int]:
        return unpack(data, position)[0], position + size

    return decode


def _end(data: bytes, position: int) -> tuple[int, int]:
    """Return start and end of bytes whose length is at this position."""
    byte = data[position]
    if byte < 0x80 and not byte & 1:
        size, position = byte >> 1, position + 1
    else:
        size, position = _long(data, position)
    end = position + size
    if size < 0 or end > len(data):
        raise SchemaMismatch(f"{len(data) - position} bytes are left, and {size} wanted")
    return position, end


def _string(data: bytes, position: int) -> tuple[str, int]:
    position, end = _end(data, position)
    return data[position:end].decode(), end


def _bytes(data: bytes, position: int) -> tuple[bytes, int]:
    position, end = _end(data, position)
    return data[position:end], end


_PLAIN: Final[dict[str, Decode]] = {
    "null": _null,
    "boolean": _boolean,
    "int": _int,
    "long": _long,
    "float": _floating("<f"),
    "double": _floating("<d"),
    "bytes": _bytes,
    "string": _string,
}


def _fixed(size: int) -> Decode:
    def decode(data: bytes, position: int) -> tuple[bytes, int]:
        end = position + size
        if end > len(data):
            raise SchemaMismatch(f"{len(data) - position} bytes are left, and {size} wanted")
        return data[position:end], end

    return decode


def _array(item: Decode) -> Decode:
    def decode(data: bytes, position: int) -> tuple[list[Any], int]:
        items: list[Any] = []
        try:
            count, position = _block(data, position)
            while count:
                begin = position
                value, position = item(data, position)
                items.append(value)
                if position == begin and len(items) + count - 1 > MAX_EMPTY_ITEMS:
                    raise SchemaMismatch(f"more than {MAX_EMPTY_ITEMS} items take no bytes")
                for _ in range(count - 1):
                    value, position = item(data, position)
                    items.append(value)
                count, position = _block(data, position)
        except BROKEN as error:
            raise to_mismatch(error).within(f"[{len(items)}]") from None
        return items, position

    return decode


def _map(key_of: Decode, item: Decode) -> Decode:
    def decode(data: bytes, position: int) -> tuple[dict[str, Any], int]:
        entries: dict[str, Any] = {}
        key = ""
        try:
            count, position = _block(data, position)
            while count:
                for _ in range(count):
                    key, position = key_of(data, position)
                    entries[key], position = item(data, position)
                count, position = _block(data, position)
        except BROKEN as error:
            raise to_mismatch(error).within(f"[{key!r:.80}]") from None
        return entries, position

    return decode


def _block(data: bytes, position: int) -> tuple[int, int]:
    """How many items follow, and where."""
    count, position = _long(data, position)
    if count < 0:
        _, position = _long(data, position)
        count = -count
    return count, position


def _convert(plain: Decode, convert: Callable[[Any], Any]) -> Decode:
    def decode(data: bytes, position: int) -> tuple[Any, int]:
        value, position = plain(data, position)
        return convert(value), position

    return decode


def _refuse(why: str) -> Decode:
    def decode(data: bytes, position: int) -> tuple[Any, int]:
        raise SchemaMismatch(why)

    return decode


def to_mismatch(error: BaseException) -> SchemaMismatch:
    """One of BROKEN in words of ours."""
    match error:
        case SchemaMismatch():
            return error
        case IndexError() | struct.error():
            return SchemaMismatch("the bytes end here")
        case UnicodeDecodeError():
            return SchemaMismatch("a text is not UTF-8")
        case RecursionError():
            return SchemaMismatch("it is nested too deeply")
    return SchemaMismatch(str(error)[:200])


# -- records, enums, unions ---------------------------------------------------------------------------


_Field = tuple[str | None, Decode]
"""A field as it was written, or a default: the name that it gets (None: it is skipped), and its function."""


def _record(
    fields: list[_Field], order: list[str] | None, make: Callable[[dict[Any, Any]], Any] | None
) -> Decode:
    """`order`: the reader's; None where it is the same."""

    def decode(data: bytes, position: int) -> tuple[Any, int]:
        values: dict[str | None, Any] = {}
        name: str | None = None
        try:
            for name, read in fields:
                values[name], position = read(data, position)
        except BROKEN as error:
            raise to_mismatch(error).within(f".{name or '(a field that is skipped)'}") from None
        if order is not None:
            values = {name: values[name] for name in order}
        return values if make is None else make(values), position

    return decode


def _nullable(null: int, decode: Decode) -> Decode:
    """A union of null and one other, of which null may be made."""
    nothing, something = null * 2, 2 - null * 2

    def read(data: bytes, position: int) -> tuple[Any, int]:
        byte = data[position]
        if byte == something:
            return decode(data, position + 1)
        if byte == nothing:
            return None, position + 1
        number, position = _long(data, position)
        if number not in (0, 1):
            raise SchemaMismatch(f"the union has two branches, and none {number}")
        return (
            (None, position) if number == null else decode(data, position)
        )  # in more bytes than one

    return read


def _union(branches: list[Decode]) -> Decode:
    def decode(data: bytes, position: int) -> tuple[Any, int]:
        number, position = _long(data, position)
        if not 0 <= number < len(branches):
            raise SchemaMismatch(f"the union has {len(branches)} branches, and none {number}")
        return branches[number](data, position)

    return decode


# -- programs -----------------------------------------------------------------------------------------


class _Decoders:
    """Makes the functions of one program."""

    def __init__(self, nodes: list[Node], classes: Mapping[str, ValueFactory]) -> None:
        self._nodes = nodes
        self._classes = classes
        self._records: dict[int, Decode] = {}

    def of(self, number: int) -> Decode:
        node = self._nodes[number]
        match node.op:
            case Op.NULL:
                return _null
            case Op.RECORD:
                return self._of_record(number)
            case Op.UNION:
                return self._of_union(node)
            case Op.ARRAY if node.writer["type"] == "map":
                key, value = self._nodes[node.children[0]].children
                return _map(self.of(key), self.of(value))
            case Op.ARRAY:
                return _array(self.of(node.children[0]))
            case Op.ENUM:
                return self._of_enum(node)
            case Op.CONSTANT:
                return _constant(self.of(node.children[0]), node.data)
            case Op.FAIL:
                return _refuse(node.data.decode())
        return _of_plain(node)

    def _of_union(self, node: Node) -> Decode:
        branches = [self.of(child) for child in node.children]
        if len(branches) == 2 and _null in branches:
            null = branches.index(_null)
            return _nullable(null, branches[1 - null])
        return _union(branches)

    def _of_enum(self, node: Node) -> Decode:
        writer, reader = node.writer, node.reader or node.writer
        factory = self._classes.get(reader["name"])
        symbols = reader["symbols"] if factory is None else [*map(factory.make, reader["symbols"])]
        values = [None if each < 0 else symbols[each] for each in node.children]

        def decode(data: bytes, position: int) -> tuple[Any, int]:
            number, position = _int(data, position)
            if not 0 <= number < len(values):
                raise SchemaMismatch(f"the enum {writer['name']} has no symbol {number}")
            if values[number] is None:
                symbol = writer["symbols"][number]
                raise SchemaMismatch(f"the reader's enum has no symbol {symbol}")
            return values[number], position

        return decode

    def _of_record(self, number: int) -> Decode:
        if number not in self._records:
            node = self._nodes[number]
            factory = self._classes.get(node.reader["name"]) if node.reader else None
            reader_fields = node.reader["fields"] if node.reader else []
            attributes = {} if factory is None else factory.attributes
            names = [attributes.get(each["name"], each["name"]) for each in reader_fields]
            targets = [None if position < 0 else names[position] for position in node.indexes]
            fields: list[_Field] = []
            order = None if targets == names else names
            make = None if factory is None else _record_maker(factory.make)
            self._records[number] = _record(fields, order, make)
            # Now that it is known: a record may be within itself.
            fields += zip(targets, map(self.of, node.children), strict=True)
        return self._records[number]


def _constant(read: Decode, body: bytes) -> Decode:
    """A default, made anew for each value."""

    def decode(data: bytes, position: int) -> tuple[Any, int]:
        return read(body, 0)[0], position

    return decode


def _of_plain(node: Node) -> Decode:
    writer, reader = node.writer, node.reader
    kind = writer["type"]
    plain = _fixed(node.size) if node.op is Op.FIXED else _PLAIN[kind]
    if reader is None:  # skipped: a text is not decoded, a date is a number
        return _bytes if node.op is Op.BYTES else plain
    target, times = reader["type"], 1
    if node.op is Op.BYTES:
        plain = _PLAIN[target]
    elif node.op in (Op.INT, Op.LONG):
        times = node.size
        if target in ("float", "double"):
            plain = _convert(plain, float if target == "double" else as_float)
    theirs, ours = logical(writer), logical(reader)
    # The same point in time, and the same number, whatever unit or scale each of the two has.
    if ours is not None and theirs is not None and _family(writer) == _family(reader):
        return _convert(plain, theirs.read)
    if times > 1:  # to what Python has no type for
        plain = _convert(plain, lambda number: _to_finer_unit(number, times))
    return plain if ours is None else _convert(plain, ours.read)


def _to_finer_unit(number: int, times: int) -> int:
    converted = number * times
    if not -(1 << 63) <= converted < 1 << 63:
        raise SchemaMismatch(f"{number} is out of range in the reader's unit")
    return converted


def as_float(number: int) -> float:
    """As 32 bits hold it, rounded once."""
    if number >> 53 not in (0, -1):
        # Python goes by way of a double. Dropped values leave a trace.
        number = (number >> 11 | bool(number & 0x7FF)) << 11
    nearest: float = _FLOAT.unpack(_FLOAT.pack(number))[0]
    return nearest


def _family(schema: Json) -> str:
    kind = str(schema["logicalType"])
    return kind.removesuffix("-millis").removesuffix("-micros")


def _record_maker(make: Callable[..., Any]) -> Callable[[dict[Any, Any]], Any]:
    def make_record(fields: dict[Any, Any]) -> Any:
        try:
            return make(**fields)
        except Exception as error:  # the class is the application's
            raise SchemaMismatch(f"{make.__name__} refuses it: {error!r}") from error

    return make_record
